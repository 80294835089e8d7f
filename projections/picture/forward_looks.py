"""How what a forward did looks: ops, inputs, outputs and buffer versions, or layers; parameters; a call that is no op.

Reads  the columns of the tables of ops, layers, orphans and parameters.
Rule   an op that was asked for its truth says where and what it was.
Rule   marks and answers are told of each: what differs in one of them is not equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Any, Final

from journal.events import event_class
from projections.accounts.ended import broken_call, call_in_progress, left_at
from projections.accounts.roles import roles_of
from projections.build import CaptureTables
from projections.columnar.tables import Table
from projections.picture.amounts import AMOUNTS, amount_line, params_line
from projections.picture.boxes import sharing
from projections.picture.parts import Mark, NodeKind
from projections.picture.request import Request
from projections.picture.scene import NOTHING, RAISED, Face, Look
from projections.picture.texts import between, names_of, shape_text, short, wrapped
from projections.records.checkpoint_witness import spans
from projections.structure.details import field

__all__ = ["FailedLook", "ForwardLook", "ParamLook"]

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
    *("multi_output_name", "buffer_write_kind", "is_internal_source", *MARKS.values()),
)
"""Columns that rows have equal which look the same, of ops and of layers."""

QUESTIONS: Final = {"if_test": "if", "elif_test": "elif", "ifexp": "if", "while": "while", "assert": "assert"}
"""What asks for a truth, by conditional_context_kind."""

ENDED: Final[frozenset[Mark]] = frozenset(("halted", "nonfinite"))
NONFINITE: Final[frozenset[Mark]] = frozenset(("nonfinite",))
SAVED: Final[frozenset[Mark]] = frozenset(("saved",))

NOT_RETURNED: Final = "has not returned"
"""Said of a call in which its process ended, or still is."""

MESSAGE_LINES: Final = 3
"""Lines that an error's message takes at most."""


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
        self.left_at: Final = left_at(tables, tables.ops if self.is_rolled else table)
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
        for line in self.request.options.node_lines:
            if line == "shape":
                lines.append(self.shape_line(row))
            elif line == "module":
                lines.append(None if where is None else short(f"@ {where}"))
            elif line == "params":
                lines.append(params_line(self.tables, table.value("param_rows", row)))
            else:
                lines.append(self.amount_line(rows, line))
        if where is not None and not self.is_rolled:
            lines.append(sharing(self.tables, [table.value("call_row", one) for one in rows]))
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
        lines = [self.amount_line(rows, line) for line in self.request.options.node_lines if line in AMOUNTS]
        kept = self.kept(rows)
        lines.append(f"{sum(kept):,} of {len(kept):,} kept" if any(kept) and not all(kept) else None)
        return [line for line in lines if line is not None]

    def marks_of_several(self, rows: Sequence[int]) -> frozenset[Mark]:
        kept = self.kept(rows)
        return SAVED if kept and all(kept) else NOTHING

    def kept(self, rows: Sequence[int]) -> list[bool]:
        """Of each op of some rows, whether its activation was kept."""
        return [bool(self.table.value(MARKS["saved"], row)) for row in rows if self.kinds[row] == "op"]

    def marks(self, row: int) -> frozenset[Mark]:
        table = self.table
        made: list[Mark] = [mark for mark, column in MARKS.items() if table.value(column, row)]
        if table.value("is_internal_source", row) and not table.value("is_buffer", row):
            made.append("internal_source")
        if table.name == "orphans":
            made.append("orphan")
        return frozenset(made) | self.rare_marks(row)

    def rare_marks(self, row: int) -> frozenset[Mark]:
        """Those that no column tells."""
        made: list[Mark] = []
        if self.is_checkpointed(row):
            made.append("checkpointed")
        if self.last_event is not None and any(map(self.is_last, self.ops((row,)))):
            made.append("halted")
        if self.left_at is not None and self.left_at in self.op_rows((row,)):
            made.append("nonfinite")
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
        marks = [self.rare_marks(row) for row in range(len(table))]
        asked: Sequence[bool] = table.column("is_terminal_bool")
        answers = [self.question(row) if is_asked else None for row, is_asked in enumerate(asked)]
        return list(zip(facts, taken, marks, answers, strict=True))

    def count(self, row: int) -> tuple[str, int]:
        if self.table.name == "orphans":
            return "orphans", 1
        kind = self.kinds[row]
        return f"{kind}s", self.table.value("num_passes", row) if self.is_rolled else 1

    def together(self, row: int) -> NodeKind:
        return "ops"

    def is_fixed(self, row: int) -> bool:
        return self.kinds[row] in ("input", "output")

    def alarms(self, row: int) -> frozenset[Mark]:
        if self.last_event is None and self.left_at is None:
            return NOTHING
        return self.rare_marks(row) & ENDED

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

    def together(self, row: int) -> NodeKind:
        return "params"

    def is_fixed(self, row: int) -> bool:
        return True


class FailedLook(Look):
    """What ended a forward and is no op: a call of torch that is none, or the model's own code."""

    def __init__(self, tables: CaptureTables) -> None:
        self.tables: Final = tables
        self.call: Final = broken_call(tables)

    def key(self, row: int) -> str:
        return "failed"

    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        call = self.call
        kind, message = (self.fact("error_type"), self.fact("error_message"))
        if call is not None and call.exception:
            kind, message = call.exception, call.message or ""
        name = short(kind.rpartition(".")[2])
        lines = wrapped(message, MESSAGE_LINES)
        if call is not None and call.event == call_in_progress(self.tables):
            lines = (NOT_RETURNED, *lines)
        if reason := self.tables.fact("nonfinite_reason"):
            lines = (short(reason),)
        if call is None:
            return Face("failed", name, lines, marks=RAISED)
        shapes = [shape_text(tensor.shape, None) or "" for tensor in call.tensors]
        given = short(", ".join(shapes))
        at = None if where is None else short(f"@ {where}")
        return Face("failed", short(call.func_name), tuple(filter(None, [given, at, name, *lines])), marks=self.marks())

    def marks(self) -> frozenset[Mark]:
        return RAISED if self.tables.fact("nonfinite_stop") is None else NONFINITE

    def fact(self, name: str) -> str:
        return str(self.tables.fact(name) or "")

    def likenesses(self) -> Sequence[Hashable]:
        return ["failed"]

    def count(self, row: int) -> tuple[str, int]:
        return "failed", 1

    def together(self, row: int) -> NodeKind:
        return "failed"

    def is_fixed(self, row: int) -> bool:
        return True

    def alarms(self, row: int) -> frozenset[Mark]:
        return self.marks()

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
