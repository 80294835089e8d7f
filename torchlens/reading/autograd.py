"""What autograd had to do with an op, and with a trace: ``op.autograd`` and ``trace.autograd``.

Rule   a gradient is refused where there is none, or there are several, and is never None.
Rule   an output has no record of its own: its gradient is read from those of the op whose tensor it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from projections.errors import over_events
from torchlens.errors import AmbiguousReadError, PayloadUnavailableError
from torchlens.printable import amount
from torchlens.quantities import Duration
from torchlens.reading.accessors import ExplanationAccessor
from torchlens.reading.backward_accessors import (
    BackwardPassAccessor,
    GradFnAccessor,
    GradFnCallAccessor,
    GradientAccessor,
    has_pass,
)
from torchlens.reading.executed import DispatchedOpAccessor, operators_of, require_census, require_timings
from torchlens.reading.explaining import Explanation, explain
from torchlens.reading.lookup import listed
from torchlens.reading.view import View

if TYPE_CHECKING:
    from torchlens.reading.backward import BackwardPass, GradFn, GradFnCall, GradientRecord

__all__ = [
    "Gradients",
    "OpAutograd",
    "TraceAutograd",
    "gradients_of",
    "gradients_read",
    "only_gradient",
]

Gradients: TypeAlias = "GradientAccessor[GradientRecord]"


def gradients_of(trace: View, rows: Sequence[int], of: str) -> Gradients:
    """Rows of the gradients, as the collection of those of one thing."""
    return GradientAccessor(trace, rows, of=of)


class Owner(Protocol):
    """An op, as far as its autograd side reads it."""

    trace: View
    row: int

    def read(self, column: str) -> Any:
        """The value of one column."""
        ...


def gradients_read(op: Owner) -> Gradients:
    """What an op's gradient is read from: its own records, and for an output those of the op whose tensor it is."""
    rows: Sequence[int] = op.read("gradient_rows")
    if op.read("is_output"):
        rows = op.trace.table("ops").value("gradient_rows", op.read("origin_row"))
    return gradients_of(op.trace, rows, op.read("label"))


def only_gradient(op: Owner) -> Any:
    """The only saved gradient of an op.

    Raises:
        PayloadUnavailableError: ``gradient_not_saved``, where there is none; it says why.
        AmbiguousReadError: ``gradient_pass_ambiguous``, where there are several.
    """
    records = gradients_read(op)
    if not records:
        raise not_saved(op)
    if len(records) > 1:
        label, passes = op.read("label"), records.column("backward_pass_index")
        raise AmbiguousReadError(
            code="gradient_pass_ambiguous",
            problem=f"{label!r} has {len(records)} saved gradients, of backward passes {listed(passes)}",
            remedy=f"ask for one: trace.ops[{label!r}].autograd.grad_for(bwd={passes[0]}), or one of .autograd.grads",
            label=label,
            passes=tuple(passes),
        )
    return records[0].grad


def not_saved(op: Owner, bwd: int | None = None) -> PayloadUnavailableError:
    """The refusal of a gradient that there is not, of any pass or of one, with why."""
    label = op.read("label")
    text, reason, number = why_none(op, bwd)
    if reason is None:
        remedy = "read what arrived at its node: op.autograd.grad_fn.calls[0].grad_outputs"
    elif reason == "no backward yet" and op.trace.is_disarmed:
        text += ", and none will be: this trace was disarmed"
        remedy = "capture again, and run the backward before trace.autograd.disarm()"
    elif reason == "no backward yet":
        remedy = "capture with tl.CaptureOptions(save_grads=True) and run trace.backward(loss)"
    elif reason == "not saved by policy" and number is not None:
        remedy = to_keep_it(op, number)
    elif records := gradients_read(op):
        remedy = f"it has gradients of backward passes {listed(records.column('backward_pass_index'))}"
    else:
        remedy = to_reach_it(op, bwd, reason)
    return PayloadUnavailableError(
        code="gradient_not_saved", problem=text, remedy=remedy, label=label, reason=reason, count=0
    )


def to_keep_it(op: Owner, number: int) -> str:
    """What to do where a pass leads to an op, and has left no gradient of it."""
    passes, row = op.trace.table("backward_passes"), number - 1
    if passes.value("is_transient", row):
        return "run torch.autograd.grad once for each gradient that is given, without is_grads_batched=True"
    is_narrow = passes.value("inputs_subset", row) is not None or not passes.value("accumulates", row)
    if is_narrow and row not in op.read("gradient_pass_rows"):
        return "name it in inputs=; or run trace.backward(loss), which works out all"
    policy = passes.value("save_grads_policy", row)
    return "run a backward with save_grads=True, or with a selector that matches it; that one kept " + (
        "no gradient" if policy is None else f"what save_grads={policy} names"
    )


def to_reach_it(op: Owner, bwd: int | None, reason: str) -> str:
    """What to do where no pass came to an op, or one failed before."""
    if reason == "graph freed":
        return "run the earlier backward with retain_graph=True, or this one on a graph of its own"
    if reason == "backward failed":
        return "mend what ended it, which trace.autograd.backward_passes tells, and run it again"
    if reason == "not upstream of the loss":
        return "make the loss of something that was made from it"
    if reason == "frozen" and op.read("is_input"):
        return "call .requires_grad_() on the input before tracing"
    found = explain(op.trace, op, bwd)
    cut = None if found is None else found.location
    at = "" if cut is None else f"; the path was cut at {cut}"
    return TO_REQUIRE.get(reason.partition(" at ")[0], "trace with what it is made from requiring a gradient") + at


TO_REQUIRE: Final = {
    "frozen": "call .requires_grad_() before tracing on an input or a parameter that it is made from",
    "detached": "leave the detach out, or read a gradient before it",
    "no_grad section": "trace with grad mode on there",
    "not differentiable": "make it by functions that have a derivative, of values of floating point",
}
"""What to do about a path that was cut, by the reason."""


def why_none(op: Owner, bwd: int | None) -> tuple[str, str | None, int | None]:
    """Why an op has no gradient, of any pass or of one, from 1: in words, the reason, and the pass that is it."""
    if op.read("is_orphan"):
        return f"{op.read('label')} is on an island, and of ops there no gradient is recorded", None, None
    tables = op.trace.tables
    is_told = bwd is None or tables.has_diary or len(tables.backward_passes) == 1
    found = tables.explanations if bwd is None or not is_told else tables.explanations_of_pass(bwd - 1)
    with over_events():
        row = found.context.place(op.row, is_param=False)
        if row is not None:
            return found.value("text", row), found.value("reason", row), found.value("pass_index", row)
    op.trace.require_kept("gradient", f"the gradient of {op.read('label')!r}")
    assert not is_told  # there is no gradient
    return f"of {op.read('label')} no gradient was kept in backward pass {bwd}", None, None


class OpAutograd:
    """What autograd had to do with an op."""

    __slots__ = ("op",)

    def __init__(self, op: Owner) -> None:
        self.op = op

    @property
    def grads(self) -> Gradients:
        """Its saved gradients, in order of the backward passes that left them; an output has none of its own."""
        return gradients_of(self.op.trace, self.op.read("gradient_rows"), self.op.read("label"))

    @property
    def num_saved_grads(self) -> int:
        """How many they are."""
        return len(self.grads)

    def grad_for(self, bwd: int) -> Any:
        """Its gradient in one backward pass.

        Args:
            bwd: Number of the pass, from 1.

        Raises:
            LookupRefused: ``backward_pass_unknown``, a ``KeyError``, where the trace has no such pass.
            PayloadUnavailableError: ``gradient_not_saved``, where that pass left none.
            AmbiguousReadError: ``gradient_pass_ambiguous``, where its node fired several times in that pass.
        """
        records = gradients_read(self.op)
        if not records.rows_of_pass(bwd) and has_pass(self.op.trace, bwd):
            raise not_saved(self.op, int(bwd))
        return records.for_pass(bwd).grad

    @property
    def grad_fn_class_name(self) -> str | None:
        """Class of its autograd node; None without one."""
        name: str | None = self.op.read("grad_fn_class_name")
        return name

    @property
    def grad_fn_object_id(self) -> int | None:
        """Number of that node, which the results of one call share; None without one."""
        number: int | None = self.op.read("grad_fn_object_id")
        return number

    @property
    def grad_fn_handle(self) -> Any:
        """That node; None without one, and where the trace is not of this process."""
        number, handles = self.grad_fn_object_id, self.op.trace.handles
        return None if number is None or handles is None else handles.node(number)

    @property
    def grad_fn(self) -> GradFn | None:
        """The record of that node; None until a backward pass finds it."""
        row = self.op.read("grad_fn_row")
        return None if row < 0 else self.op.trace.record("grad_fns", row)

    @property
    def grad_fn_label(self) -> str | None:
        """Label of that record; None until a backward pass finds it."""
        label: str | None = self.op.read("grad_fn_label")
        return label

    def __repr__(self) -> str:
        if self.op.trace.projector is None:
            return f"<autograd of {self.op!r}>"
        gradients = amount(self.num_saved_grads, "gradient")
        return f"<autograd of {self.op.read('label')}: {self.grad_fn_class_name}, {gradients}>"


def count(trace: View, what: str) -> int:
    """A count among the facts of the capture."""
    told: int = trace.tables.fact(what)
    return told


class FireTimings(Mapping[str, "Duration | None"]):
    """How long each firing took, by call label, as of when it was asked for; times are read one by one."""

    __slots__ = ("_rows", "_times")

    def __init__(self, trace: View) -> None:
        self._rows = trace.index().door("grad_fn_calls")
        self._times = trace.table("grad_fn_calls").column("backward_duration")

    def __getitem__(self, label: str) -> Duration | None:
        time = self._times[self._rows[label][0]]
        return None if time is None else Duration(time)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(dict(self))


class TraceAutograd:
    """What autograd had to do with a capture: its backward passes, the nodes that they found, and their firings."""

    __slots__ = ("trace",)

    def __init__(self, trace: View) -> None:
        self.trace = trace

    @property
    def grad_fns(self) -> GradFnAccessor[GradFn]:
        """The autograd nodes that backward passes found, in the order in which they did."""
        return GradFnAccessor(self.trace)

    @property
    def grad_fn_calls(self) -> GradFnCallAccessor[GradFnCall]:
        """Their firings, in order."""
        return GradFnCallAccessor(self.trace)

    @property
    def dispatched_ops(self) -> DispatchedOpAccessor:
        """The operators that the dispatcher ran in backward passes, in order, of each pass of which they were told.

        Raises:
            PayloadUnavailableError: ``aten_ops_not_recorded``, where there are passes and they were told of none;
                ``aten_ops_not_stored``, for a trace that was loaded from an artifact.
        """
        told = self.trace.table("backward_passes").column("has_census")
        if any(told):
            require_census(self.trace)
        return operators_of(self.trace, 0, None) if len(told) and not any(told) else DispatchedOpAccessor(self.trace)

    @property
    def backward_passes(self) -> BackwardPassAccessor[BackwardPass]:
        """The backward passes: ``backward_passes[0]`` is pass 1, as is ``.for_pass(1)``."""
        return BackwardPassAccessor(self.trace)

    @property
    def gradients(self) -> Gradients:
        """Every gradient record, in the order in which they passed: kept gradients of ops (``.ops``), and what was
        added to those of parameters, kept or not (``.params``); ``.in_pass(2)`` has those of one pass."""
        return GradientAccessor(self.trace)

    @property
    def last_backward_pass(self) -> BackwardPass | None:
        """The newest backward pass; None before the first."""
        passes = self.backward_passes
        return passes[-1] if passes else None

    @property
    def explanations(self) -> ExplanationAccessor[Explanation]:
        """Why what has no gradient has none: one for each such op and parameter."""
        return ExplanationAccessor(self.trace)

    def explain(self, subject: object, *, bwd: int | None = None) -> Explanation | None:
        """Why an op or a parameter has no gradient; None where it has one.

        Args:
            subject: An op or a parameter of the trace, a site of a selection, a label or address, or a parameter of the
                model itself. What has one op stands for it: a layer, a module that was called once.
            bwd: Number of the backward pass that is asked about, from 1; None for all together.

        Raises:
            LookupRefused: ``explanation_subject_invalid``, and what ``trace[...]`` raises for a key;
                ``backward_pass_unknown``, where the trace has no such pass.
            AmbiguousReadError: ``explanation_subject_ambiguous``.
        """
        if bwd is not None:
            self.backward_passes.in_pass(bwd)
        return explain(self.trace, subject, bwd)

    @property
    def grad_fn_fire_timings(self) -> Mapping[str, Duration | None]:
        """How long each firing took, by call label, in order; None for one of which only the beginning was seen.

        Raises:
            PayloadUnavailableError: ``grad_fn_fire_timing_unavailable``, once the trace is cleaned up, and for one that
                was loaded from an artifact.
        """
        require_timings(self.trace)
        if self.trace.projector is None:
            raise PayloadUnavailableError(
                code="grad_fn_fire_timing_unavailable",
                problem="this trace was cleaned up, and with it the times of its firings",
                remedy="read them before cleanup(), or from the journal of the capture",
            )
        return FireTimings(self.trace)

    def disarm(self) -> None:
        """Hear of no further backward pass of this capture: close what is open, and take the hooks off its nodes."""
        if self.trace.backwards is not None:
            self.trace.backwards.disarm()

    @property
    def num_backward_passes(self) -> int:
        """How many there are."""
        return count(self.trace, "num_backward_passes")

    @property
    def num_grad_fns(self) -> int:
        """Autograd nodes that were found."""
        return count(self.trace, "num_grad_fns")

    @property
    def num_grad_fns_with_op(self) -> int:
        """Of them those that differentiate an op of the forward."""
        return count(self.trace, "num_grad_fns_with_op")

    @property
    def num_grad_fns_without_op(self) -> int:
        """The others."""
        return count(self.trace, "num_grad_fns_without_op")

    @property
    def num_grad_fn_calls(self) -> int:
        """Their firings."""
        return count(self.trace, "num_grad_fn_calls")

    @property
    def num_backward_edges(self) -> int:
        """Edges between these nodes."""
        return count(self.trace, "num_backward_edges")

    def __repr__(self) -> str:
        if self.trace.projector is None:
            return f"<autograd of {self.trace!r}>"
        ended = ", disarmed" if self.trace.is_disarmed else ""
        return f"<autograd of {self.trace!r}: {amount(self.num_backward_passes, 'backward pass')}{ended}>"
