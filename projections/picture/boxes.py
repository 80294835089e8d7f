"""What items of a picture are in: module calls, or modules where loops are rolled.

Reads  the columns of the tables of modules, module calls and ops.
Rule   copies of a box that are calls of one module, from different modules, say so: ``shared`` and its address.
Rule   a module that is called in several places stands, where it is drawn once, in the one that called it first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from projections.build import CaptureTables
from projections.picture.amounts import AMOUNTS, amount_line, params_text
from projections.picture.request import Line
from projections.picture.scene import ROOT, Boxes, Face
from projections.picture.texts import counts_text, names_of, shape_text, short


class ModuleFaces(Boxes):
    """What boxes of both kinds have in common.

    Args:
        tables: The records.
        lines: What is told of a closed box.
    """

    def __init__(self, tables: CaptureTables, lines: Sequence[Line]) -> None:
        self.tables: Final = tables
        self.lines: Final = lines

    def names(self, addresses: Sequence[str], within: int) -> str:
        """One name for modules of these addresses, as it is told within another."""
        around = f"{self.address(within)}."
        own = [one.removeprefix(around) for one in addresses] if within != ROOT else addresses
        return names_of(own)

    def told(
        self, class_name: str, output: int, op_rows: Sequence[int], counts: Mapping[str, int], copies: int
    ) -> tuple[str, ...]:
        """The lines of a box."""
        ops = self.tables.ops
        made: list[str | None] = [short(class_name)]
        for line in self.lines:
            if line == "shape" and output >= 0:
                made.append(shape_text(ops.value("shape", output), ops.value("dtype", output)))
            elif line == "params":
                made.append(params_text(self.tables, op_rows))
            elif line in AMOUNTS:
                made.append(amount_line(ops, op_rows, line, is_sum=copies > 1))
        made.append(counts_text({word: number // copies for word, number in counts.items()}))
        return tuple(filter(None, made))


class CallBoxes(ModuleFaces):
    """Module calls; a box has the row of its call as its number."""

    def __init__(self, tables: CaptureTables, lines: Sequence[Line]) -> None:
        super().__init__(tables, lines)
        parents = tables.module_calls.column("parent_row")
        self.parent = [-1, *[max(parent, ROOT) for parent in parents[1:]]]

    def key(self, box: int) -> str:
        return f"module_calls/{self.tables.module_calls.value('call_label', box)}"

    def row(self, box: int) -> tuple[str, int]:
        return "module_calls", box

    def address(self, box: int) -> str:
        return str(self.tables.module_calls.value("address", box))

    def name(self, boxes: Sequence[int], within: int) -> str:
        calls = self.tables.module_calls
        addresses = [self.address(box) for box in boxes]
        name = self.names(addresses, within)
        module = calls.value("module_row", boxes[0])
        if len(set(addresses)) > 1 or self.tables.modules.value("num_calls", module) == 1:
            return name
        first, last = calls.value("call_index", boxes[0]), calls.value("call_index", boxes[-1])
        return f"{name}:{first}" + (f" … {last}" if last != first else "")

    def face(
        self, boxes: Sequence[int], times: int, within: int, op_rows: Sequence[int], counts: Mapping[str, int]
    ) -> Face:
        calls = self.tables.module_calls
        outputs = calls.value("output_op_rows", boxes[0])
        told = self.told(
            calls.value("class_name", boxes[0]),
            outputs[0] if outputs else -1,
            op_rows,
            counts,
            len(boxes),
        )
        shared = sharing(self.tables, boxes)
        if shared is not None:
            told = (f"{told[0]}, {shared}", *told[1:])
        return Face("module", short(self.name(boxes[:times], within)), told)

    def likeness(self, box: int) -> Hashable:
        return str(self.tables.module_calls.value("class_name", box))


class ModuleBoxes(ModuleFaces):
    """Modules that were called; a box has the row of its module as its number."""

    def __init__(self, tables: CaptureTables, lines: Sequence[Line]) -> None:
        super().__init__(tables, lines)
        calls, parents = tables.module_calls.column("module_row"), tables.module_calls.column("parent_row")
        self.parent = [-1]
        for module, rows in enumerate(tables.modules.column("call_rows")[1:], 1):
            outer = calls[parents[rows[0]]] if rows and parents[rows[0]] >= 0 else ROOT
            self.parent.append(outer if outer < module else ROOT)

    def key(self, box: int) -> str:
        return f"modules/{self.tables.modules.value('address', box)}"

    def row(self, box: int) -> tuple[str, int]:
        return "modules", box

    def address(self, box: int) -> str:
        return str(self.tables.modules.value("address", box))

    def name(self, boxes: Sequence[int], within: int) -> str:
        return self.names([self.address(box) for box in boxes], within)

    def face(
        self, boxes: Sequence[int], times: int, within: int, op_rows: Sequence[int], counts: Mapping[str, int]
    ) -> Face:
        modules = self.tables.modules
        calls = modules.value("call_rows", boxes[0])
        outputs = self.tables.module_calls.value("output_op_rows", calls[0]) if calls else ()
        told = self.told(
            modules.value("class_name", boxes[0]),
            outputs[0] if outputs else -1,
            op_rows,
            counts,
            len(boxes),
        )
        return Face("module", short(self.name(boxes[:times], within)), told, passes=max(1, len(calls)))

    def likeness(self, box: int) -> Hashable:
        modules = self.tables.modules
        return modules.value("class_name", box), modules.value("num_calls", box)


def sharing(tables: CaptureTables, calls: Sequence[int]) -> str | None:
    """What calls that are copies of each other have in common: modules that are called from several others."""
    if len(calls) < 2:
        return None
    module, parent = tables.module_calls.column("module_row"), tables.module_calls.column("parent_row")
    called_from: dict[int, set[int]] = {}
    for call in calls:
        if call >= 0 and parent[call] >= 0:
            called_from.setdefault(module[call], set()).add(module[parent[call]])
    if all(len(callers) < 2 for callers in called_from.values()):
        return None
    if len(called_from) > 1:
        return f"{len(called_from)} modules, shared"
    return short(f"shared: {tables.modules.value('address', next(iter(called_from)))}")


def boxes_of(tables: CaptureTables, lines: Sequence[Line], *, rolled: bool) -> ModuleFaces:
    return (ModuleBoxes if rolled else CallBoxes)(tables, lines)


def boxes_of_calls(tables: CaptureTables, *, rolled: bool) -> Sequence[int]:
    """By module call, its box."""
    rows: Sequence[int] = tables.module_calls.column("module_row") if rolled else range(len(tables.module_calls))
    return rows
