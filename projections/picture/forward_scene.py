"""The forward as a scene: each op, input, output and buffer version an item; or each layer, where loops are rolled.

Reads  the columns of the tables of ops, layers, module calls and parameters.
Rule   a buffer version means something where it carries a value from one op to another that is not the same code, or
       was written with more than itself; running statistics, and constants that only join other values, do not.
Rule   a parameter means something where several modules take it.
Rule   an op that was asked for its truth says where and what it was; the edges into an arm say which arm.
Rule   an edge between layers tells which passes of both it joins, unless it joins every pass with the same one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from journal.events import event_class
from projections.build import CaptureTables
from projections.call_facts import call_facts
from projections.checkpoint_witness import spans
from projections.details import field
from projections.picture.amounts import AMOUNTS, amount_line, params_line
from projections.picture.boxes import boxes_of_calls
from projections.picture.parts import EdgeKind, Mark
from projections.picture.request import Request
from projections.picture.scene import FAILED, ROOT, Face, Look, Scene
from projections.picture.texts import between, names_of, shape_text, short, wrapped
from projections.roles import roles_of
from projections.tables import Table

MARKS: Final[dict[Mark, str]] = {
    "saved": "has_saved_payload",
    "grad": "has_grad",
    "inplace": "is_inplace",
    "opaque": "is_opaque",
    "bool": "is_terminal_bool",
}
"""The column that tells each mark, of ops and of layers."""

LOOKS: Final = (
    *("layer_type", "func_name", "dtype", "func_config", "num_passes", "in_multi_output", "multi_output_index"),
    *("buffer_write_kind", "is_internal_source", *MARKS.values()),
)
"""Columns that rows have equal which look the same, of ops and of layers."""


QUESTIONS: Final = {"if_test": "if", "elif_test": "elif", "ifexp": "if", "while": "while", "assert": "assert"}
"""What asks for a truth, by conditional_context_kind."""

NOTHING: Final = frozenset[Mark]()
HALTED: Final[frozenset[Mark]] = frozenset(("halted",))
RAISED: Final[frozenset[Mark]] = frozenset(("failed",))

NUMBER: Final = re.compile(r"\d+")

MESSAGE_LINES: Final = 3
"""Lines that an error's message takes at most."""

MANY: Final = 3
"""Inputs or outputs that are drawn as one, at least."""


class ForwardLook(Look):
    """Rows of ops, of orphans or of layers.

    Args:
        tables: The records.
        request: What is asked for.
        table: The table.
    """

    def __init__(self, tables: CaptureTables, request: Request, table: Table[Any]) -> None:
        self.tables: Final = tables
        self.request: Final = request
        self.table: Final = table
        self.is_rolled: Final = table.name == "layers"
        self.name: Final = "layer_label" if self.is_rolled else "label"
        self.short: Final = "layer_label_short" if self.is_rolled else "label_short"
        self.kinds: Final = roles_of(table)
        self.last_event: Final = last_event(tables)
        witness = tables.fact("checkpoint_invocation_witness")
        self.checkpoints: Final = borders(spans(tables.forward)) if witness and witness["token_count"] else []

    def key(self, row: int) -> str:
        return f"{self.table.name}/{self.table.value(self.name, row)}"

    def title(self, row: int) -> str:
        return short(str(self.table.value(self.short, row)))

    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        table, row = self.table, rows[0]
        kind = self.kinds[row]
        lines: list[str | None] = []
        if kind == "buffer":
            lines.append(short(names_of([str(table.value("address", one)) for one in rows])))
        elif kind != "op":
            lines.append(short(between([str(table.value("io_role", one) or "") for one in rows])))
        for line in self.request.node_lines:
            if line == "shape":
                lines.append(self.shape_line(row))
            elif line == "module":
                lines.append(None if where is None else short(f"@ {where}"))
            elif line == "params":
                lines.append(params_line(self.tables, table.value("param_rows", row)))
            else:
                lines.append(self.amount_line(rows, line))
        if table.value("in_multi_output", row):
            name = table.value("multi_output_name", row)
            lines.append(short(f"result {table.value('multi_output_index', row) if name is None else name}"))
        if table.value("is_terminal_bool", row):
            lines.append(self.question(row))
        passes = table.value("num_passes", row) if self.is_rolled else 1
        title = short(names_of([str(table.value(self.short, one)) for one in rows[:own]]))
        return Face(kind, title, tuple(filter(None, lines)), passes, own, self.marks(row))

    def question(self, row: int) -> str:
        """What Python asked of it, and the answer where there is one alone."""
        rows = self.op_rows((row,))
        table = self.tables.ops if self.is_rolled else self.table
        kind = QUESTIONS.get(table.value("conditional_context_kind", rows[0]), "asked")
        return f"{kind}: {table.value('bool_value', rows[0])}" if len(rows) == 1 else f"{kind} …"

    def shape_line(self, row: int) -> str | None:
        dtype = self.table.value("dtype", row)
        if not self.is_rolled:
            return shape_text(self.table.value("shape", row), dtype)
        summary = self.table.value("shape_summary", row)
        return short(f"{summary} {dtype or ''}".strip()) or None

    def amount_line(self, rows: Sequence[int], line: str) -> str | None:
        table = self.tables.ops if self.is_rolled else self.table
        return amount_line(table, self.op_rows(rows), line, is_sum=len(rows) > 1)

    def lines_of_several(self, rows: Sequence[int]) -> Sequence[str]:
        lines = [self.amount_line(rows, line) for line in self.request.node_lines if line in AMOUNTS]
        return [line for line in lines if line is not None]

    def marks(self, row: int) -> frozenset[Mark]:
        table = self.table
        made: list[Mark] = [mark for mark, column in MARKS.items() if table.value(column, row)]
        if table.value("is_internal_source", row) and not table.value("is_buffer", row):
            made.append("internal_source")
        if table.name == "orphans":
            made.append("orphan")
        if self.is_checkpointed(row):
            made.append("checkpointed")
        if self.last_event is not None and any(map(self.is_last, self.ops((row,)))):
            made.append("halted")
        return frozenset(made)

    def op_rows(self, rows: Sequence[int]) -> Sequence[int]:
        """The rows of ops, or of orphans, that rows stand for."""
        if not self.is_rolled:
            return rows
        return [op for row in rows for op in self.table.value("op_rows", row)]

    def is_checkpointed(self, row: int) -> bool:
        """Whether an op ran in a checkpoint, to be computed again in the backward."""
        if not self.checkpoints:
            return False
        events = [self.tables.ops.value("event", op) for op in self.ops((row,))]
        return any(bisect_left(self.checkpoints, event) % 2 for event in events)

    def is_last(self, op: int) -> bool:
        """Whether an op is where the forward was stopped."""
        return bool(self.tables.ops.value("event", op) == self.last_event)

    def likenesses(self) -> Sequence[Hashable]:
        table, params = self.table, self.tables.params
        shapes: Sequence[Any] = table.column("shape_summary" if self.is_rolled else "shape")
        facts = zip(shapes, *[table.column(name) for name in LOOKS], strict=True)
        param_shapes: list[Hashable] = list(zip(params.column("shape"), params.column("dtype"), strict=True))
        param_rows: Sequence[Sequence[int]] = table.column("param_rows")
        taken = [tuple([param_shapes[row] for row in rows]) for rows in param_rows]
        again = [self.is_checkpointed(row) for row in range(len(table))]
        return list(zip(facts, taken, again, strict=True))

    def count(self, row: int) -> tuple[str, int]:
        if self.table.name == "orphans":
            return "orphans", 1
        kind = self.kinds[row]
        return f"{kind}s", self.table.value("num_passes", row) if self.is_rolled else 1

    def is_fixed(self, row: int) -> bool:
        return self.kinds[row] in ("input", "output")

    def alarms(self, row: int) -> frozenset[Mark]:
        return NOTHING if self.last_event is None else self.marks(row) & HALTED

    def takes_params(self, row: int) -> bool:
        return bool(self.table.value("param_rows", row))

    def ops(self, rows: Sequence[int]) -> Sequence[int]:
        return () if self.table.name == "orphans" else self.op_rows(rows)


class ParamLook(Look):
    """Parameters."""

    def __init__(self, tables: CaptureTables) -> None:
        self.params: Final = tables.params

    def key(self, row: int) -> str:
        return f"params/{self.params.value('address', row)}"

    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        line = shape_text(self.params.value("shape", rows[0]), self.params.value("dtype", rows[0]))
        name = short(str(self.params.value("address", rows[0])).removeprefix(within))
        return Face("param", name, tuple(filter(None, [line])))

    def likenesses(self) -> Sequence[Hashable]:
        return list(zip(*[self.params.column(name) for name in ("shape", "dtype", "is_trainable")], strict=True))

    def count(self, row: int) -> tuple[str, int]:
        return "params", 1

    def is_fixed(self, row: int) -> bool:
        return True


class FailedLook(Look):
    """What ended a forward that raised: the call of torch that did, or the model's own code."""

    def __init__(self, tables: CaptureTables) -> None:
        self.tables: Final = tables
        event: int | None = tables.fact("raised_event")
        self.call: Final = None if event is None else call_facts(tables.forward, event, tables.orphans.context)

    def key(self, row: int) -> str:
        return "failed"

    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        call = self.call
        kind, message = (self.fact("error_type"), self.fact("error_message"))
        if call is not None and call.exception:
            kind, message = call.exception, call.message or ""
        name = short(kind.rpartition(".")[2])
        lines = wrapped(message, MESSAGE_LINES)
        if call is None:
            return Face("failed", name, lines, marks=RAISED)
        shapes = [shape_text(tensor.shape, None) or "" for tensor in call.tensors]
        given = short(", ".join(shapes))
        return Face("failed", short(call.func_name), tuple(filter(None, [given, name, *lines])), marks=RAISED)

    def fact(self, name: str) -> str:
        return str(self.tables.fact(name) or "")

    def likenesses(self) -> Sequence[Hashable]:
        return ["failed"]

    def count(self, row: int) -> tuple[str, int]:
        return "failed", 1

    def is_fixed(self, row: int) -> bool:
        return True

    def alarms(self, row: int) -> frozenset[Mark]:
        return RAISED

    def box_of(self) -> int:
        """Row of the module call that it was in."""
        calls = self.tables.module_calls
        if self.call is not None and self.call.modules:
            labels = list(calls.column("call_label"))
            return labels.index(self.call.modules[-1])
        return max(int(self.tables.fact("raised_call_row")), 0)

    def operands(self) -> list[int]:
        """Op rows of the tensors that the call was given."""
        if self.call is None:
            return []
        event = self.tables.forward.source.row(self.call.event)
        given: Sequence[int] = event[field(event_class(event[0]), "inputs")]
        rows = {value: row for row, value in reversed(list(enumerate(self.tables.ops.column("value"))))}
        return [rows[value] for value in given if value in rows]


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
        self.layer: Final[list[int]] = list(ops.column("layer_row"))
        self.arms: Final[Sequence[Any]] = (
            ops.column("conditional_branch_stack") if tables.fact("is_dynamic_graph") else ()
        )
        self.box_of_call: Final = boxes_of_calls(tables, rolled=request.rolled)
        self.calls: Final[Sequence[int]] = ops.column("call_row")
        self.boxes: Final = [self.box_of_call[call] if call >= 0 else ROOT for call in self.calls]
        self.of_op: Final = [-1] * len(ops)
        self.table: Final = tables.layers if request.rolled else ops
        scene.looks[self.table.name] = ForwardLook(tables, request, self.table)
        scene.looks["params"] = ParamLook(tables)
        self.add_items()
        if request.rolled:
            self.join_layers()
        else:
            self.join_ops()
        if request.orphans:
            self.add_orphans()
        if tables.fact("error_type") is not None:
            self.add_failed()

    # -- items

    def add_items(self) -> None:
        scene, table, shown, params = self.scene, self.table.name, self.shown_buffers(), self.shown_params()
        taken: Sequence[Sequence[int]] = list(self.tables.ops.column("param_rows")) if params else ()
        of_param: dict[int, int] = {}
        of_layer: dict[int, int] = {}
        together = self.at_the_ends() if self.request.fold_repeats else {}
        for row, box in enumerate(self.boxes):
            if self.is_buffer[row] and row not in shown:
                scene.leave_out("buffers")
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
            if not self.request.rolled:
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
        groups: dict[Hashable, list[int]] = {}
        for row, role in enumerate(ops.column("io_role")):
            if role is not None:
                looks = [ops.value(name, row) for name in ("is_input", "shape", "dtype", *MARKS.values())]
                groups.setdefault((NUMBER.sub("#", role), *looks), []).append(row)
        return {row: tuple(rows) for rows in groups.values() if len(rows) >= MANY for row in rows}

    def named(self, op_rows: Sequence[int]) -> tuple[int, ...]:
        """The rows of the table that items are of."""
        rows = op_rows if not self.request.rolled else dict.fromkeys([self.layer[row] for row in op_rows])
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

    def add_failed(self) -> None:
        look = FailedLook(self.tables)
        self.scene.looks[FAILED] = look
        call = look.box_of()
        item = self.scene.add(FAILED, (0,), self.box_of_call[call] if call < len(self.box_of_call) else ROOT)
        for row in look.operands():
            if self.of_op[row] >= 0:
                self.scene.connect(self.of_op[row], item)

    def shown_buffers(self) -> frozenset[int]:
        """Rows of the buffer versions that are items; of a layer all, or none."""
        asked = self.request.buffers
        versions = [row for row, is_one in enumerate(self.is_buffer) if is_one]
        if not versions or asked == "never":
            return frozenset()
        if asked == "always":
            return frozenset(versions)
        found = frozenset(filter(self.carries_a_value(), versions))
        if self.request.rolled:
            layers = {self.layer[row] for row in found}
            return frozenset([row for row in versions if self.layer[row] in layers])
        return found

    def carries_a_value(self) -> Any:
        parents, is_buffer, layer = self.parents, self.is_buffer, self.layer
        children: Sequence[Sequence[int]] = self.tables.ops.column("child_rows")
        how: Sequence[str | None] = self.tables.ops.column("buffer_write_kind")

        def has_more(op: int) -> bool:
            return any(not is_buffer[parent] for parent in parents[op])

        def only_writes(op: int) -> bool:
            return bool(children[op]) and all(is_buffer[child] for child in children[op])

        def carries(row: int) -> bool:
            readers = [op for op in children[row] if not only_writes(op)]
            if how[row] is None:
                return any(not has_more(op) for op in readers)
            if how[row] == "fused":
                return any(layer[op] != layer[writer] for op in readers for writer in parents[row])
            return how[row] == "reassign" or any(map(has_more, parents[row]))

        return carries

    def shown_params(self) -> dict[int, int]:
        """By row of a parameter that is an item, the box that it is in."""
        asked = self.request.params
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
        if not self.arms:
            return None
        around = self.arms[parent]
        entered = [arm for _, arm in self.arms[row] if (_, arm) not in around]
        return entered[-1].replace("_", " ") if entered else None

    def join_layers(self) -> None:
        of_op, number = self.of_op, self.tables.ops.column("pass_index")
        found: dict[tuple[int, int, EdgeKind], list[tuple[int, int, str | None]]] = {}
        first = {item: row for row, item in reversed(list(enumerate(of_op))) if item >= 0}
        for row, parents in enumerate(self.parents):
            item = of_op[row]
            for parent in parents if item >= 0 else ():
                source = of_op[parent]
                if source >= 0:
                    kind: EdgeKind = "buffer_write" if self.is_buffer[row] else "forward"
                    kind = "recurrent" if first[source] >= first[item] else kind
                    told = (number[parent], number[row], self.arm_entered(parent, row))
                    found.setdefault((source, item, kind), []).append(told)
        counts: Sequence[int] = self.tables.layers.column("num_passes")
        rows = self.scene.rows
        for (source, item, kind), uses in found.items():
            text = passes_text([use[:2] for use in uses], counts[rows[source][0]], counts[rows[item][0]])
            arms = dict.fromkeys([arm for _, _, arm in uses if arm is not None])
            label = ", ".join([*arms, *filter(None, [text])]) or None
            for _ in uses:
                self.scene.connect(source, item, kind, label)


def last_event(tables: CaptureTables) -> int | None:
    """The event of the last op before a forward was stopped; None of one that was not."""
    stopped = tables.fact("halted_at")
    if stopped is None:
        return None
    ops = zip(tables.ops.column("event"), tables.ops.column("is_compute_op"), strict=True)
    return max([event for event, is_op in ops if is_op and event <= stopped], default=None)


def borders(spans_of: Sequence[tuple[int, int]]) -> list[int]:
    """Where what some stretches cover begins and ends, in turn."""
    made: list[int] = []
    for start, end in sorted(spans_of):
        if made and start <= made[-1]:
            made[-1] = max(made[-1], end)
        else:
            made += (start, end)
    return made


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


def ranges(numbers: Iterable[int]) -> str:
    """``1-3, 5``, and not too much of it."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(told) if len(told) <= MOST_RANGES else f"{', '.join(told[: MOST_RANGES - 1])}, …, {told[-1]}"


MOST_RANGES: Final = 4
"""Stretches of passes that an edge tells at most."""
