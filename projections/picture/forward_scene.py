"""The forward as a scene: each op, input, output and buffer version an item; or each layer, where loops are rolled.

Reads  the columns of the tables of ops, layers, module calls and parameters.
Rule   a buffer version means something where it carries a value from one op to another that is not the same code, or
       was written with more than itself; running statistics, and constants that only join other values, do not. What
       one that does was made of by ops that only write buffers does, too.
Rule   an op all whose edges are from and to buffer versions that are not drawn, as that which counts the batches of a
       BatchNorm, is not drawn either, unless something went wrong or ended there.
Rule   a parameter means something where several modules take it.
Rule   an edge into an arm of a conditional, from outside or from another evaluation of its test, says which arm.
Rule   an edge between layers of a loop is recurrent where it leads from a pass to a later one.
Rule   an edge between layers tells which passes of both it joins, unless it joins every pass with the same one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from projections.accounts.ended import broken_call, left_at
from projections.build import CaptureTables
from projections.picture.boxes import boxes_of_calls
from projections.picture.cycles import components
from projections.picture.forward_looks import FailedLook, ForwardLook, ParamLook
from projections.picture.parts import EdgeKind
from projections.picture.request import Request
from projections.picture.scene import FAILED, ROOT, Scene
from projections.picture.texts import ranges

NUMBER: Final = re.compile(r"\d+")

MANY: Final = 3
"""Inputs or outputs that are drawn as one, at least."""


class ForwardItems:
    """Puts the forward into a scene.

    Attributes:
        of_op: By op row, its item; -1 where it has none.
    """

    def __init__(self, scene: Scene, tables: CaptureTables, request: Request) -> None:
        self.scene: Final = scene
        self.tables: Final = tables
        self.request: Final = request
        ops = tables.ops
        self.is_buffer: Final[list[bool]] = list(ops.column("is_buffer"))
        self.parents: Final[list[Sequence[int]]] = list(ops.column("parent_rows"))
        self.children: Final[list[Sequence[int]]] = list(ops.column("child_rows"))
        self.layer: Final[list[int]] = list(ops.column("layer_row"))
        self.arms: Final[Sequence[Any]] = (
            ops.column("conditional_branch_stack") if tables.fact("is_dynamic_graph") else ()
        )
        self.arms_below: Final[dict[int, dict[int, set[tuple[int, str]]]]] = {}
        self.row_of: Final = {label: row for row, label in enumerate(ops.column("label"))} if self.arms else {}
        self.box_of_call: Final = boxes_of_calls(tables, rolled=request.options.rolled)
        self.calls: Final[Sequence[int]] = ops.column("call_row")
        self.boxes: Final = [self.box_of_call[call] if call >= 0 else ROOT for call in self.calls]
        self.of_op: Final = [-1] * len(ops)
        self.table: Final = tables.layers if request.options.rolled else ops
        scene.looks[self.table.name] = ForwardLook(tables, request, self.table)
        scene.looks["params"] = ParamLook(tables)
        self.add_items()
        if request.options.rolled:
            self.join_layers()
        else:
            self.join_ops()
        if request.options.orphans:
            self.add_orphans()
        if self.ended_in_a_call():
            self.add_failed()

    # -- items

    def add_items(self) -> None:
        scene, table, shown, params = self.scene, self.table.name, self.shown_buffers(), self.shown_params()
        counting = self.counting_ops(shown)
        taken: Sequence[Sequence[int]] = list(self.tables.ops.column("param_rows")) if params else ()
        of_param: dict[int, int] = {}
        of_layer: dict[int, int] = {}
        together = self.at_the_ends() if self.request.fold_repeats else {}
        for row, box in enumerate(self.boxes):
            if self.is_buffer[row] and row not in shown:
                scene.leave_out("buffers")
                continue
            if row in counting:
                scene.leave_out("ops")
                continue
            used = [param for param in taken[row] if param in params] if taken else []
            for param in used:
                if param not in of_param:
                    of_param[param] = scene.add("params", (param,), params[param])
            if row in together:
                if self.of_op[row] < 0:
                    item = scene.add(table, self.named(together[row]), box)
                    for one in together[row]:
                        self.of_op[one] = item
                continue
            if not self.request.options.rolled:
                item = scene.add(table, (row,), box)
            elif (layer := self.layer[row]) in of_layer:
                item = of_layer[layer]
            else:
                item = of_layer[layer] = scene.add(table, (layer,), box)
            self.of_op[row] = item
            for param in used:
                scene.connect(of_param[param], item)

    def at_the_ends(self) -> dict[int, tuple[int, ...]]:
        """By row of an input or output those that are told with it: equal but for a number in their role."""
        ops = self.tables.ops
        look = ForwardLook(self.tables, self.request, ops)
        groups: dict[Hashable, list[int]] = {}
        for row, role in enumerate(ops.column("io_role")):
            if role is not None:
                looks = [*[ops.value(name, row) for name in ("is_input", "shape", "dtype")], look.marks(row)]
                groups.setdefault((NUMBER.sub("#", role), *looks), []).append(row)
        return {row: tuple(rows) for rows in groups.values() if len(rows) >= MANY for row in rows}

    def named(self, op_rows: Sequence[int]) -> tuple[int, ...]:
        """The rows of the table that items are of."""
        rows = op_rows if not self.request.options.rolled else dict.fromkeys([self.layer[row] for row in op_rows])
        return tuple(rows)

    def add_orphans(self) -> None:
        orphans = self.tables.orphans
        self.scene.looks["orphans"] = ForwardLook(self.tables, self.request, orphans)
        items: list[int] = []
        calls: Sequence[int] = orphans.column("call_row")
        parents_of: Sequence[Sequence[int]] = orphans.column("parent_rows")
        for row, call in enumerate(calls):
            box = self.box_of_call[call] if 0 <= call < len(self.box_of_call) else ROOT
            items.append(self.scene.add("orphans", (row,), box))
        for row, parents in enumerate(parents_of):
            for parent in parents:
                self.scene.connect(items[parent], items[row])

    def ended_in_a_call(self) -> bool:
        """Whether the forward was ended by what is none of the ops that are shown."""
        tables = self.tables
        if self.request.options.orphans and left_at(tables, tables.orphans) is not None:
            return False
        return tables.fact("error_type") is not None or broken_call(tables) is not None

    def add_failed(self) -> None:
        look = FailedLook(self.tables)
        self.scene.looks[FAILED] = look
        call = look.box_of()
        item = self.scene.add(FAILED, (0,), self.box_of_call[call] if call < len(self.box_of_call) else ROOT)
        number, passes = self.tables.ops.column("pass_index"), self.tables.ops.column("num_passes")
        for row in look.operands():
            if self.of_op[row] >= 0:
                label = passes_text([(number[row], 1)], passes[row], 1) if self.request.options.rolled else None
                self.scene.connect(self.of_op[row], item, label=label)

    def shown_buffers(self) -> frozenset[int]:
        """Rows of the buffer versions that are items; of a layer all, or none."""
        asked = self.request.options.buffers
        versions = [row for row, is_one in enumerate(self.is_buffer) if is_one]
        if not versions or asked == "never":
            return frozenset()
        if asked == "always":
            return frozenset(versions)
        found = self.carrying(versions)
        if self.request.options.rolled:
            layers = {self.layer[row] for row in found}
            return frozenset([row for row in versions if self.layer[row] in layers])
        return frozenset(found)

    def carrying(self, versions: Sequence[int]) -> set[int]:
        """Those that mean something."""
        parents, layer, has_more, only_writes = self.parents, self.layer, self.has_more, self.only_writes
        how: Sequence[str | None] = self.tables.ops.column("buffer_write_kind")
        found: set[int] = set()

        def carries(row: int) -> bool:
            readers = [op for op in self.children[row] if not only_writes(op)]
            if how[row] is None:
                return any(not has_more(op) for op in readers)
            if how[row] == "reassign" or any(layer[op] != layer[writer] for op in readers for writer in parents[row]):
                return True
            return how[row] != "fused" and any(map(has_more, parents[row]))

        def goes_into(row: int) -> bool:
            """Whether an op makes one of those found of it alone, or of what was written to it."""
            writers = [op for op in self.children[row] if only_writes(op) and not found.isdisjoint(self.children[op])]
            return any(how[row] is not None or not has_more(op) for op in writers)

        for row in reversed(versions):
            if carries(row) or goes_into(row):
                found.add(row)
        return found

    def has_more(self, op: int) -> bool:
        """Whether it takes more than buffers."""
        return any(not self.is_buffer[parent] for parent in self.parents[op])

    def only_writes(self, op: int) -> bool:
        """Whether what it made went into buffers alone."""
        children = self.children[op]
        return bool(children) and all(self.is_buffer[child] for child in children)

    def counting_ops(self, shown: frozenset[int]) -> frozenset[int]:
        """Rows of ops whose edges are all from and to buffer versions that are not drawn; of a layer all, or none."""
        if not any(self.is_buffer):
            return frozenset()
        alarms = self.scene.looks[self.table.name].alarms
        found: list[int] = []
        for row, is_version in enumerate(self.is_buffer):
            if is_version or self.has_more(row) or not self.parents[row] or not self.only_writes(row):
                continue
            if shown.isdisjoint((*self.parents[row], *self.children[row])):
                found.append(row)
        if not self.request.options.rolled:
            return frozenset([row for row in found if not alarms(row)])
        op_rows: Sequence[Sequence[int]] = self.tables.layers.column("op_rows")
        whole = {one for one in {self.layer[row] for row in found} if set(op_rows[one]) <= set(found)}
        return frozenset([row for row in found if self.layer[row] in whole and not alarms(self.layer[row])])

    def shown_params(self) -> dict[int, int]:
        """By row of a parameter that is an item, the box that it is in."""
        asked = self.request.options.params
        if asked == "never":
            return {}
        made: dict[int, int] = {}
        calls = self.calls
        modules: Sequence[int] = self.tables.module_calls.column("module_row")
        taken_by: Sequence[Sequence[int]] = self.tables.params.column("op_rows")
        for param, rows in enumerate(taken_by):
            takers = {modules[calls[row]] if calls[row] >= 0 else ROOT for row in rows}
            if takers and (asked == "always" or len(takers) > 1):
                made[param] = self.scene.boxes.around([self.boxes[row] for row in rows])
        return made

    # -- edges

    def join_ops(self) -> None:
        of_op, connect = self.of_op, self.scene.connect
        for row, parents in enumerate(self.parents):
            item = of_op[row]
            if item < 0:
                continue
            kind: EdgeKind = "buffer_write" if self.is_buffer[row] else "forward"
            for parent in parents:
                if of_op[parent] >= 0:
                    connect(of_op[parent], item, kind, self.arm_entered(parent, row))

    def arm_entered(self, parent: int, row: int) -> str | None:
        """The innermost arm that an edge leads into."""
        if not self.arms or not self.arms[row]:
            return None
        entered = self.entered(parent).get(row, ())
        inner = next((arm for arm in reversed(self.arms[row]) if arm in entered), None)
        return None if inner is None else inner[1].replace("_", " ")

    def entered(self, parent: int) -> dict[int, set[tuple[int, str]]]:
        """By child of an op, the arms that it ran in and the op did not, or not in the same evaluation."""
        if parent not in self.arms_below:
            made: dict[int, set[tuple[int, str]]] = {}
            below = self.tables.ops.value("conditional_arm_children", parent)
            for conditional, arms in below.items():
                for arm, labels in arms.items():
                    for label in labels:
                        made.setdefault(self.row_of[label], set()).add((conditional, arm))
            self.arms_below[parent] = made
        return self.arms_below[parent]

    def join_layers(self) -> None:
        of_op, number = self.of_op, self.tables.ops.column("pass_index")
        found: dict[tuple[int, int, EdgeKind, str | None], list[tuple[int, int]]] = {}
        first = {item: row for row, item in reversed(list(enumerate(of_op))) if item >= 0}
        pairs = [
            (parent, row)
            for row, parents in enumerate(self.parents)
            for parent in parents
            if of_op[row] >= 0 and of_op[parent] >= 0
        ]
        loop = components(len(self.scene.rows), {(of_op[parent], of_op[row]) for parent, row in pairs})
        for parent, row in pairs:
            source, item = of_op[parent], of_op[row]
            kind: EdgeKind = "buffer_write" if self.is_buffer[row] else "forward"
            if loop[source] == loop[item] and (number[parent] < number[row] or first[source] >= first[item]):
                kind = "recurrent"
            found.setdefault((source, item, kind, self.arm_entered(parent, row)), []).append(
                (number[parent], number[row])
            )
        counts: Sequence[int] = self.tables.layers.column("num_passes")
        rows = self.scene.rows
        for (source, item, kind, arm), uses in found.items():
            text = passes_text(uses, counts[rows[source][0]], counts[rows[item][0]])
            label = ", ".join(filter(None, [arm, text])) or None
            for _ in uses:
                self.scene.connect(source, item, kind, label)


def passes_text(uses: Iterable[tuple[int, int]], sources: int, targets: int) -> str | None:
    """Which passes an edge between layers joins, as ``1-2 → 2-3``; None where each has it that could."""
    pairs = set(uses)
    there, back = {source for source, _ in pairs}, {target for _, target in pairs}
    if sources == targets == 1:
        return None
    if sources == targets == len(pairs) and all(source == target for source, target in pairs):
        return None
    if sources == 1:
        return None if len(back) == targets else f"to pass {ranges(back)}"
    if targets == 1:
        return None if len(there) == sources else f"from pass {ranges(there)}"
    return f"{ranges(there)} → {ranges(back)}"
