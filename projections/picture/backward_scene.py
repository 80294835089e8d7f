"""What backward passes did as a scene: each autograd node an item; those of one layer, where loops are rolled.

Reads  the columns of the tables of grad_fns, ops, module calls and parameters.
Rule   a grad_fn stands in the module call of the op that it differentiates, or whose call made it; what gathers the
       gradient of a parameter in that of the ops that took it; what a backward pass made in that of the grad_fn whose
       firing made it; any other in that of the grad_fn that led to it.
Rule   what gathers the gradient of a parameter is shown as that parameter. All of them mean something.
Rule   where loops are rolled an edge of one is recurrent that leads to the node of an earlier pass of its layer.
Rule   beside a forward a node stands right behind its op, so that what repeats in both is one stretch.
Rule   of a pass that raised the node that did is marked; where that is not known, the last that fired.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

from projections.accounts.charging import charged_ops
from projections.build import CaptureTables
from projections.columnar.tables import Table
from projections.picture.boxes import boxes_of_calls
from projections.picture.cycles import components
from projections.picture.firings import Firings
from projections.picture.parts import Mark, NodeKind
from projections.picture.request import Request
from projections.picture.scene import NOTHING, RAISED, ROOT, Face, Look, Scene
from projections.picture.texts import shape_text, short
from projections.structure.made_first import makers_first


class GradFnLook(Look):
    """Autograd nodes.

    Args:
        tables: The records.
        request: What is asked for.
    """

    def __init__(self, tables: CaptureTables, request: Request) -> None:
        self.tables: Final = tables
        self.request: Final = request
        self.nodes: Final[Table[Any]] = tables.grad_fns
        self.raised: Final = frozenset(raised_rows(tables, request.passes))
        self.firings: Final = Firings(tables, request.passes)

    def key(self, row: int) -> str:
        return f"grad_fns/{self.nodes.value('label', row)}"

    def title(self, row: int) -> str:
        if (address := self.nodes.value("param_address", row)) is not None:
            return short(str(address))
        return short(f"{self.nodes.value('type', row)}_back_{self.nodes.value('type_index', row)}")

    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        nodes, row = self.nodes, rows[0]
        param = nodes.value("param_row", row)
        lines: list[str | None] = []
        if param >= 0:
            params = self.tables.params
            title = short(str(nodes.value("param_address", row)).removeprefix(within))
            lines.append("AccumulateGrad")
            shape, dtype = params.value("shape", param), params.value("dtype", param)
        else:
            title = self.title(row)
            op, ops = nodes.value("op_row", row), self.tables.ops
            if self.request.options.graph == "backward" and op >= 0:
                label = "layer_label_short" if self.request.options.rolled else "label_short"
                lines.append(short(f"of {ops.value(label, op)}"))
            lines.append(self.input_line(row))
            shape, dtype = (ops.value("shape", op), ops.value("dtype", op)) if op >= 0 else (None, None)
        for line in self.request.options.node_lines:
            if line == "shape":
                lines.append(shape_text(shape, dtype))
            elif line == "module":
                lines.append(None if where is None else short(f"@ {where}"))
        lines.append(self.firings.line(rows[:own]))
        fired = self.firings.count(rows[:own])
        kind: NodeKind = "param" if param >= 0 else "grad_fn"
        marks = self.marks(rows[:own]).union(*map(self.alarms, rows))
        return Face(kind, title, tuple(filter(None, lines)), fired, 1, marks)

    def input_line(self, row: int) -> str | None:
        """Of what gathers the gradient of an input, its name."""
        if not self.nodes.value("is_gatherer", row):
            return None
        ops = self.tables.ops
        given = [self.nodes.value("op_row", parent) for parent in self.nodes.value("parent_rows", row)]
        roles = [str(ops.value("io_role", op)) for op in given if op >= 0 and ops.value("is_input", op)]
        return short(f"of {roles[0]}") if roles else None

    def marks(self, rows: Sequence[int]) -> frozenset[Mark]:
        """Those that any of some rows has; only where loops are rolled are there several."""
        made: list[Mark] = []
        if any(map(self.firings.has_saved, rows)):
            made.append("grad")
        if any(self.nodes.value("is_made", row) for row in rows):
            made.append("made")
        return frozenset(made)

    def likenesses(self) -> Sequence[Hashable]:
        nodes = self.nodes
        shapes = [self.shape(row) for row in range(len(nodes))]
        facts = [nodes.column(name) for name in ("class_name", "is_made", "is_gatherer")]
        fired = [(self.firings.passes[row], self.firings.has_saved(row)) for row in range(len(nodes))]
        raised = [row in self.raised for row in range(len(nodes))]
        return list(zip(*facts, fired, shapes, raised, strict=True))

    def shape(self, row: int) -> Hashable:
        op, param = self.nodes.value("op_row", row), self.nodes.value("param_row", row)
        if param >= 0:
            return "param", self.tables.params.value("shape", param), self.tables.params.value("dtype", param)
        return ("op", self.tables.ops.value("shape", op), self.tables.ops.value("dtype", op)) if op >= 0 else None

    def count(self, row: int) -> tuple[str, int]:
        return "grad_fns", 1

    def together(self, row: int) -> NodeKind:
        return "params" if self.nodes.value("param_row", row) >= 0 else "grad_fns"

    def alarms(self, row: int) -> frozenset[Mark]:
        return RAISED if row in self.raised else NOTHING

    def lines_of_several(self, rows: Sequence[int]) -> Sequence[str]:
        first = "AccumulateGrad" if self.nodes.value("param_row", rows[0]) >= 0 else None
        return list(filter(None, [first, self.firings.line(rows)]))


def raised_rows(tables: CaptureTables, asked: frozenset[int] | None) -> Iterator[int]:
    """Of each pass that raised, the node that did; the last that fired where that is not known."""
    passes, fires = tables.backward_passes, tables.grad_fn_calls
    statuses: Sequence[str] = passes.column("status")
    labels: Sequence[str] = tables.grad_fns.column("label") if "error" in statuses else ()
    rows = {label: row for row, label in enumerate(labels)}
    for number, status in enumerate(statuses):
        if status == "error" and (asked is None or number + 1 in asked):
            label, fired = passes.value("raised_in", number), passes.value("call_rows", number)
            if label is None and fired:
                label = fires.value("label", fired[-1])
            if label in rows:
                yield rows[label]


class BackwardItems:
    """Puts autograd nodes into a scene, and joins them with ops that have an item.

    Args:
        scene: The scene.
        tables: The records.
        request: What is asked for.
        of_op: By op row its item, -1 for none; () where the forward is not drawn.
    """

    def __init__(self, scene: Scene, tables: CaptureTables, request: Request, of_op: Sequence[int] = ()) -> None:
        self.scene: Final = scene
        self.tables: Final = tables
        self.request: Final = request
        self.nodes: Final = tables.grad_fns
        self.box_of_call: Final = boxes_of_calls(tables, rolled=request.options.rolled)
        look = scene.looks["grad_fns"] = GradFnLook(tables, request)
        self.of_node: Final = [-1] * len(self.nodes)
        self.ops: Final = charged_ops(tables)
        self.add_items(look.firings.drawn)
        self.join()
        if of_op:
            self.pair(of_op)
            self.stand_with(of_op)

    def add_items(self, drawn: Sequence[bool]) -> None:
        """Nodes of one layer and class are one item where loops are rolled."""
        boxes = self.boxes()
        groups: dict[Hashable, list[int]] = {}
        layer: Sequence[int] = self.tables.ops.column("layer_row")
        params: Sequence[int] = self.nodes.column("param_row")
        classes: Sequence[str] = self.nodes.column("class_name")
        for row, op in enumerate(self.ops):
            if not drawn[row] or (params[row] >= 0 and self.request.options.params == "never"):
                self.scene.leave_out("grad_fns")
                continue
            key: Hashable = (layer[op], classes[row], boxes[row]) if self.request.options.rolled and op >= 0 else (row,)
            groups.setdefault(key, []).append(row)
        for rows in groups.values():
            item = self.scene.add("grad_fns", tuple(rows), boxes[rows[0]])
            for row in rows:
                self.of_node[row] = item

    def boxes(self) -> list[int]:
        """By node, the box that it is in."""
        calls: Sequence[int] = self.tables.ops.column("call_row")
        params = self.tables.params
        parents: Sequence[Sequence[int]] = self.nodes.column("parent_rows")
        param_rows: Sequence[int] = self.nodes.column("param_row")
        creators: Sequence[int] = self.nodes.column("creator_row")
        made: dict[int, int] = {}
        for row in makers_first(creators):
            op = self.ops[row]
            if op >= 0:
                made[row] = self.box(calls[op])
            elif param_rows[row] >= 0:
                taken_by: Sequence[int] = params.value("op_rows", param_rows[row])
                takers = [self.box(calls[taker]) for taker in taken_by]
                made[row] = self.scene.boxes.around(takers) if takers else ROOT
            elif creators[row] in made:
                made[row] = made[creators[row]]
            else:
                made[row] = next((made[parent] for parent in parents[row] if parent in made), ROOT)
        return [made[row] for row in range(len(made))]

    def box(self, call: int) -> int:
        return self.box_of_call[call] if call >= 0 else ROOT

    def join(self) -> None:
        of_node = self.of_node
        there: Sequence[Sequence[int]] = self.nodes.column("child_rows")
        pairs = [
            (row, child)
            for row, children in enumerate(there)
            for child in children
            if of_node[row] >= 0 and of_node[child] >= 0
        ]
        if not self.request.options.rolled:
            for row, child in pairs:
                self.scene.connect(of_node[row], of_node[child], "backward")
            return
        number: Sequence[int] = self.tables.ops.column("pass_index")
        passes = [number[op] if op >= 0 else 0 for op in self.ops]
        loop = components(len(self.scene.rows), {(of_node[row], of_node[child]) for row, child in pairs})
        for row, child in pairs:
            source, item = of_node[row], of_node[child]
            is_earlier = 0 < passes[child] < passes[row] or item <= source
            self.scene.connect(source, item, "recurrent" if loop[source] == loop[item] and is_earlier else "backward")

    def pair(self, of_op: Sequence[int]) -> None:
        stand: Sequence[Sequence[int]] = self.nodes.column("op_rows")
        for row, ops in enumerate(stand):
            for op in ops if self.of_node[row] >= 0 else ():
                if of_op[op] >= 0:
                    self.scene.connect(of_op[op], self.of_node[row], "pair")

    def stand_with(self, of_op: Sequence[int]) -> None:
        """Have each node stand behind what it is there for, in the same box: its op; else the only node that leads to
        it. So one time round a loop is a stretch, forward and backward, and equal ones are neighbours."""
        scene = self.scene
        leads: Sequence[Sequence[int]] = self.nodes.column("parent_rows")
        placed: set[int] = set()
        for row, op in enumerate(self.ops):
            item = self.of_node[row]
            if item < 0 or item in placed:
                continue
            placed.add(item)
            anchor = of_op[op] if op >= 0 else -1
            if anchor < 0 and len(leads[row]) == 1 and self.is_alone(row):
                anchor = self.of_node[leads[row][0]]
            if 0 <= anchor < item and scene.box[anchor] == scene.box[item]:
                scene.stand_behind(item, anchor)

    def is_alone(self, row: int) -> bool:
        """Whether it gathers the gradient of no parameter that several ops took."""
        param = self.nodes.value("param_row", row)
        return param < 0 or len(self.tables.params.value("op_rows", param)) < 2
