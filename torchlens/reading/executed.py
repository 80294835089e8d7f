"""What backward passes executed: the operators that the dispatcher ran, and their FLOPs by firing and by op.

``BackwardPass.aten_ops`` are the operators, ``BackwardPass.flops_attribution`` is the account of one counted pass.

None means that there is no count, and never that nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from torchlens.errors import AmbiguousOpLookupError, PayloadUnavailableError
from torchlens.printable import amount, printable
from torchlens.quantities import Flops
from torchlens.reading.accessors import Accessor
from torchlens.reading.fields import Field, Record
from torchlens.reading.tabular import frame_of
from torchlens.reading.values import torch_dtype
from torchlens.reading.view import View

if TYPE_CHECKING:
    import pandas

__all__ = [
    "BackwardFlopsAttribution",
    "BackwardFlopsRow",
    "DispatchedOp",
    "DispatchedOpAccessor",
    "attribution_of",
    "operators_of",
]


class DispatchedOp(Record):
    """One operator that the dispatcher ran during a backward pass."""

    __slots__ = ()
    table_name = "dispatched_ops"

    name = Field[str]("Its name, with its overload: ``aten.mm.default``.")
    family = Field[str]("Its name without it: ``aten.mm``.")
    backward_pass_index = Field[int]("Number of the pass.")
    ordinal_in_pass = Field[int]("Position among the operators of the pass.")
    grad_fn_label = Field[str | None](
        "Label of the autograd node that ran; None where that is none which this capture knows: torch made the gradient"
        " of a root, or the node was made where no capture looks."
    )
    call_index = Field[int | None]("Which firing of that node it ran in, from 1; None without one.")
    op_label = Field[str | None](
        "The op of the forward that this node differentiates, alone or as an inner node; None without one."
    )
    is_elsewhere = Field[bool]("Whether the node that ran belongs to another capture.")
    grad_enabled = Field[bool]("Whether grad mode was on, as when a checkpoint runs its forward again.")
    input_shapes = Field[tuple[tuple[int, ...], ...]]("Shapes of the tensors among its arguments, in order.")
    input_dtypes = Field[tuple[Any, ...]]("Their element types.", lambda told: tuple(map(torch_dtype, told)))
    output_shapes = Field[tuple[tuple[int, ...], ...]]("Shapes of the tensors that it returned.")
    output_dtypes = Field[tuple[Any, ...]]("Their element types.", lambda told: tuple(map(torch_dtype, told)))
    flops = Field[Flops | None](
        "Its FLOPs, two for a multiply-accumulate, as ``torch.utils.flop_counter`` counts them; None where it has no"
        " formula, or its shapes do not tell.",
        Flops,
    )

    @property
    def backward_pass(self) -> Any:
        """The pass."""
        return self.trace.record("backward_passes", self.read("pass_row"))

    @property
    def grad_fn(self) -> Any:
        """The node that ran; None as for its label."""
        row = self.read("grad_fn_row")
        return None if row < 0 else self.trace.record("grad_fns", row)

    @property
    def grad_fn_call(self) -> Any:
        """The firing that it ran in; None without one."""
        row = self.read("call_row")
        return None if row < 0 else self.trace.record("grad_fn_calls", row)

    def about(self) -> str:
        node, flops = self.read("grad_fn_label"), self.flops
        count = "no count" if flops is None else str(flops)
        return f" in {node or 'no recorded node'} of pass {self.read('backward_pass_index')}, {count}"


class DispatchedOpAccessor(Accessor[DispatchedOp]):
    """Operators in the order in which they ran, by position, or by name or family where only one has it."""

    table_name = "dispatched_ops"

    def row_of(self, key: str) -> int | None:
        found = self.named(key)
        if len(found) > 1:
            raise AmbiguousOpLookupError(
                code="ambiguous_record_lookup",
                problem=f"{key!r} ran {len(found)} times",
                remedy=f"ask for all of them, .find({key!r}), or for one by its position",
                key=key,
                count=len(found),
            )
        return found[0] if found else None

    def named(self, key: str) -> list[int]:
        table = self.trace.table(self.table_name)
        names, families = table.column("name"), table.column("family")
        return [row for row in self.rows if key in (names[row], families[row])]

    def __contains__(self, key: object) -> bool:
        """Whether an operator or a family of this name, or a record, is a member."""
        return bool(self.named(key)) if isinstance(key, str) else super().__contains__(key)

    @property
    def counted(self) -> DispatchedOpAccessor:
        """Those of which there is a count."""
        return self.told(is_counted=True)

    @property
    def uncounted(self) -> DispatchedOpAccessor:
        """The others."""
        return self.told(is_counted=False)

    def told(self, *, is_counted: bool) -> DispatchedOpAccessor:
        flops = self.trace.table(self.table_name).column("flops")
        return type(self)(self.trace, [row for row in self.rows if (flops[row] is not None) is is_counted])


def operators_of(trace: View, number: int, rows: Callable[[], Sequence[int]] | None) -> DispatchedOpAccessor:
    """Some operators of a pass, from 0, by what tells their rows; None for all there are.

    Raises:
        PayloadUnavailableError: ``aten_ops_not_recorded``, where no census was taken of it; ``aten_ops_not_stored``.
    """
    passes = trace.table("backward_passes")
    if not passes.value("has_census", number):
        refuse(trace, number)
    require_census(trace)
    return DispatchedOpAccessor(trace, None if rows is None else rows())


def require_census(trace: View) -> None:
    """Refuse the operators of a trace that was loaded from an artifact, which holds what is counted of them.

    Raises:
        PayloadUnavailableError: ``aten_ops_not_stored``.
    """
    if trace.artifact is not None:
        raise PayloadUnavailableError(
            code="aten_ops_not_stored",
            problem="an artifact holds no list of the operators that backward passes ran, only what they add up to",
            remedy="read .flops_attribution; or capture with journal=, which keeps each operator",
        )


def require_timings(trace: View) -> None:
    """Refuse the time of each firing of a trace that was loaded from an artifact, which holds what they add up to.

    Raises:
        PayloadUnavailableError: ``grad_fn_fire_timing_unavailable``.
    """
    if trace.artifact is not None:
        raise PayloadUnavailableError(
            code="grad_fn_fire_timing_unavailable",
            problem="an artifact holds no time of each firing, only what they add up to by node, module and pass",
            remedy="read .total_backward_duration of the node; or capture with journal=, which keeps each time",
        )


def refuse(trace: View, number: int) -> NoReturn:
    passes = trace.table("backward_passes")
    if passes.value("implicit", number):
        remedy = "have the backward run by trace.backward(loss), loss.backward() or torch.autograd.grad"
    elif trace.has_option("backward_ready"):
        remedy = "use a torch that tells the running node: tl.report.doctor() shows whether it does"
    else:
        remedy = "capture again with tl.CaptureOptions(backward_ready=True), and run the backward then"
    raise PayloadUnavailableError(
        code="aten_ops_not_recorded",
        problem=passes.value("executed_reason", number),
        remedy=remedy,
        backward_pass_index=number + 1,
    )


# -- the account of a pass


@attrs.frozen
class BackwardFlopsRow:
    """What one firing of one autograd node executed.

    Attributes:
        grad_fn_label: Label of the node.
        call_index: Which of its firings, from 1.
        op_label: The op of the forward that it differentiates, alone or as an inner node; None without one.
        flops: Of the operators that ran in it, those of which there is a count.
        recompute_flops: Of these what a checkpoint ran again of the forward; None where that is not known.
        uncounted_families: The families that do work and have no count, and how many calls of each ran in it.
    """

    grad_fn_label: str
    call_index: int
    op_label: str | None
    flops: Flops
    recompute_flops: Flops | None
    uncounted_families: Mapping[str, int]

    @property
    def call_label(self) -> str:
        """Label of the firing."""
        return f"{self.grad_fn_label}:{self.call_index}"


class BackwardFlopsAttribution:
    """The FLOPs of one backward pass, charged to the firings that executed them.

    The rows and what is unattributed add up to ``executed_flops``. What ran in nodes of another capture is that one's.
    """

    def __init__(self, trace: View, number: int) -> None:
        self.trace: Final = trace
        self.number: Final = number

    def read(self, column: str) -> Any:
        return self.trace.table("backward_passes").value(column, self.number)

    @property
    def backward_pass_index(self) -> int:
        """Number of the pass."""
        return self.number + 1

    @cached_property
    def rows(self) -> tuple[BackwardFlopsRow, ...]:
        """One for each firing, in their order, also where nothing was counted."""
        calls, nodes = self.trace.table("grad_fn_calls"), self.trace.table("grad_fns")
        names = ("label", "call_index", "grad_fn_row", "flops", "recompute_flops", "uncounted_families")
        columns = [calls.column(name) for name in names]
        made: list[BackwardFlopsRow] = []
        for row in self.read("call_rows"):
            label, index, node, flops, again, families = (column[row] for column in columns)
            counts = (Flops(flops), None if again is None else Flops(again), dict(families))
            op = nodes.value("op_label", node) or nodes.value("inner_of", node)
            made.append(BackwardFlopsRow(label, index, op, *counts))
        return tuple(made)

    @property
    def executed_flops(self) -> Flops:
        """Those of the rows and those that are unattributed."""
        return Flops(self.read("executed_flops"))

    @property
    def unattributed_flops(self) -> Flops:
        """Of what ran in no recorded node."""
        return Flops(self.read("unattributed_flops"))

    @property
    def recompute_flops(self) -> Flops | None:
        """Of those of the rows what a checkpoint ran again of the forward; None where that is not known."""
        told = self.read("recompute_flops")
        return None if told is None else Flops(told)

    @property
    def unattributed_ops(self) -> DispatchedOpAccessor:
        """What ran in no recorded node, call by call: what makes the gradient of a root, and nodes unknown here."""
        return DispatchedOpAccessor(self.trace, self.read("unattributed_rows"))

    @property
    def other_trace_ops(self) -> DispatchedOpAccessor:
        """What ran in nodes of other captures, in whose accounts it is."""
        return DispatchedOpAccessor(self.trace, self.read("other_trace_rows"))

    @property
    def uncounted_families(self) -> dict[str, int]:
        """The families of operators that do work and have no count, and how many calls of each ran."""
        return dict(self.read("uncounted_families"))

    def flops_by_op(self) -> dict[str, Flops]:
        """FLOPs by label of the op of the forward whose nodes executed them; of ops with a counted call alone."""
        counted = self.trace.table("grad_fn_calls").column("num_counted_ops")
        made: dict[str, int] = {}
        for place, row in zip(self.read("call_rows"), self.rows, strict=True):
            if row.op_label is not None and counted[place]:
                made[row.op_label] = made.get(row.op_label, 0) + row.flops
        return {label: Flops(count) for label, count in made.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per firing; what is unattributed is in none."""
        rows = self.rows
        names = ("grad_fn_label", "call_index", "op_label", "flops", "recompute_flops", "uncounted_families")
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        for name in ("flops", "recompute_flops"):
            columns[name] = [None if count is None else int(count) for count in columns[name]]
        return frame_of(columns, len(rows))

    def __repr__(self) -> str:
        if self.trace.projector is None:
            return f"<BackwardFlopsAttribution of {self.trace!r}>"
        parts = [amount(len(self.rows), "row"), f"{self.unattributed_flops} unattributed"]
        if self.other_trace_ops:
            parts.append(f"{amount(len(self.other_trace_ops), 'operator')} of other captures")
        about = ", ".join(parts)
        return printable(
            f"<BackwardFlopsAttribution of pass {self.backward_pass_index}: {self.executed_flops}, {about}>"
        )


def attribution_of(trace: View, number: int) -> BackwardFlopsAttribution | None:
    """The account of a pass, from 0; None where it is not counted."""
    is_counted = trace.table("backward_passes").value("executed_flops", number) is not None
    return BackwardFlopsAttribution(trace, number) if is_counted else None
