"""Why something has no gradient: the record of a reason, and how it is found for what is asked about.

Reads  the table of explanations.
Gives  ``Explanation``, and ``explain``, which takes an op, a parameter, or what names one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from typing_extensions import Self

from projections.columnar.tables import Table
from projections.errors import over_events
from torchlens.errors import AmbiguousReadError, LookupRefused
from torchlens.reading.fields import Field, Record
from torchlens.reading.locations import FuncCallLocation
from torchlens.reading.lookup import at_position
from torchlens.reading.view import View

__all__ = ["Explanation", "explain"]


class Explanation(Record):
    """Why an op or a parameter has no gradient. As text it is a sentence, with the line where the path was cut.

    It says what was so when it was asked for: a later backward pass may bring the gradient, or another reason. Two are
    equal where they say the same of the same.
    """

    __slots__ = ("told",)
    table_name = "explanations"

    def __init__(self, trace: View, place: int, bwd: int | None = None) -> None:
        table = explanations(trace, bwd)
        self.told = {name: table.value(name, place) for name in table.names}
        super().__init__(trace, self.told["row"])

    def read(self, column: str) -> Any:
        return self.told[column]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented if not isinstance(other, Record) else False
        return self.told == other.told and self.trace is other.trace

    def __hash__(self) -> int:
        return hash((id(self.trace), *self.told.values()))

    def __copy__(self) -> Self:
        return self

    subject = Field[str]("Label of the op, or address of the parameter.")
    kind = Field[str]("``op`` or ``parameter``.")
    reason = Field[str](
        "``no_grad section``, ``detached at <label>``, ``frozen``, ``never called``, ``not upstream of the loss``,"
        " ``not in the graph``,"
        " ``not differentiable``, ``graph freed``, ``not saved by policy``, ``backward failed`` or ``no backward yet``."
    )
    at = Field[str | None]("Op or parameter at which the path was cut; None where it was at none.")
    text = Field[str]("The reason in a sentence.")
    pass_index = Field[int | None]("The backward pass that is the reason, from 1; None where none is.")

    @property
    def op(self) -> Any:
        """The op that has no gradient; None where it is a parameter."""
        return self.trace.record("ops", self.read("row")) if self.kind == "op" else None

    @property
    def param(self) -> Any:
        """The parameter that has none; None where it is an op."""
        return None if self.kind == "op" else self.trace.record("params", self.read("row"))

    @property
    def location(self) -> FuncCallLocation | None:
        """The line of the user's own code at which the path was cut; None where it was at no call."""
        row = self.read("at_row")
        place: FuncCallLocation | None = None if row < 0 else self.trace.record("ops", row).user_place
        return place

    def __str__(self) -> str:
        where = self.location
        return self.text if where is None else f"{self.text} ({where})"

    def about(self) -> str:
        return f": {self.read('reason')}"


def explain(trace: View, subject: object, bwd: int | None = None) -> Explanation | None:
    """Why ``subject`` has no gradient, of any pass or of one, from 1; what ``trace.autograd.explain`` gives."""
    table, row = place_of(trace, subject)
    found = explanations(trace, bwd)
    with over_events():
        place = found.context.place(row, is_param=table == "params")
    return None if place is None else Explanation(trace, place, bwd)


def explanations(trace: View, bwd: int | None) -> Table[Any]:
    """Why what has no gradient has none, of any backward pass or of one, from 1."""
    return trace.table("explanations") if bwd is None else trace.tables.explanations_of_pass(bwd - 1)


def place_of(trace: View, subject: object) -> tuple[str, int]:
    """Table and row of the op or parameter that is meant."""
    if isinstance(subject, str):
        subject = trace.found(trace.index().find(subject))
    elif isinstance(subject, int):
        return "ops", at_position(subject, len(trace.table("ops")), "op")
    record = subject if isinstance(subject, Record) else getattr(subject, "op", None)  # a site answers for its op
    if isinstance(record, Record) and record.trace is trace:
        if record.table_name in ("ops", "params"):
            return record.table_name, record.row
        rows = op_rows_of(record)
        if len(rows) == 1:
            return "ops", rows[0]
        if rows:
            raise ambiguous(record, rows)
    number = parameter_number(trace, subject)
    if number is None:
        raise LookupRefused(
            code="explanation_subject_invalid",
            problem=f"{subject!r} stands for no op and no parameter of this trace",
            remedy="give one of trace.ops or trace.params, its label or address, or a parameter of the model",
            received_type=type(subject).__name__,
        )
    return "params", number


def op_rows_of(record: Record) -> tuple[int, ...]:
    """The op rows that a record stands for; none for what stands for no op."""
    if record.table_name == "ops":
        return (record.row,)
    return OPS_OF[record.table_name](record) if record.table_name in OPS_OF else ()


def outputs_of_calls(module: Record) -> tuple[int, ...]:
    """The op rows that the calls of a module returned."""
    calls = module.trace.table("module_calls")
    return tuple(row for call in module.read("call_rows") for row in calls.value("output_op_rows", call))


OPS_OF: Final[Mapping[str, Callable[[Record], tuple[int, ...]]]] = {
    "layers": lambda layer: layer.read("op_rows"),
    "modules": outputs_of_calls,
    "module_calls": lambda call: call.read("output_op_rows"),
    "buffers": lambda buffer: buffer.read("version_rows"),
}
"""The op rows that a record of another table may stand for, by table."""


def ambiguous(record: Record, rows: tuple[int, ...]) -> AmbiguousReadError:
    labels = [record.trace.table("ops").value("label", row) for row in rows]
    return AmbiguousReadError(
        code="explanation_subject_ambiguous",
        problem=f"{record!r} stands for {len(rows)} ops, and each may have a gradient or none",
        remedy=f"ask one of them: explain({labels[0]!r}), to {labels[-1]!r}",
        ops=tuple(labels),
    )


def parameter_number(trace: View, subject: object) -> int | None:
    """Number of a live parameter of the model."""
    if trace.handles is None or subject is None:
        return None
    numbers = range(len(trace.table("params")))
    return next((number for number in numbers if trace.handles.parameter(number) is subject), None)
