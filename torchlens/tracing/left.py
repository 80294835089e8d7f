"""What is raised where a forward was left, because the request could not be served or a value was not finite.

Gives  the error, its sentence made from the trace of what ran, and the sentence alone for the journal.
Not    when to leave (capture.budget, capture.changing, capture.plan, capture.witness), or how (capture.recorder).
"""

from __future__ import annotations

from projections import CaptureTables
from torchlens.capture.budget import Shortage
from torchlens.capture.changing import ChangeFailed
from torchlens.capture.plan import Unanswered
from torchlens.errors import CaptureError, SaveBudgetExceededError, SaveTransformError, TorchLensError
from torchlens.quantities import Bytes
from torchlens.reading.calls_made import call_at
from torchlens.reading.facade import Trace
from torchlens.reading.failed import TraceCaptureError

__all__ = ["Why", "class_of", "error_of", "problem_of", "stopped"]

Why = Shortage | ChangeFailed | Unanswered


def problem_of(why: Why) -> str:
    """What was wrong, in one clause."""
    if isinstance(why, Unanswered):
        return why.error.problem
    if isinstance(why, ChangeFailed):
        return f"the transform of SaveOptions {why.problem}"
    return (
        f"the kept activations hold {Bytes(why.held)} on {why.device}, more than the {Bytes(why.allowed)} that "
        "save_budget allows"
    )


def class_of(why: Why) -> type[TorchLensError]:
    """The class that the journal names."""
    return type(why.error) if isinstance(why, Unanswered) else CaptureError


def error_of(why: Why, tables: CaptureTables) -> TorchLensError:
    """The error to raise, naming ops by the labels that they have in the trace of what ran."""
    if isinstance(why, Unanswered):
        return why.error
    labels = dict(reversed([*zip(tables.ops.column("value"), tables.ops.column("label"), strict=True)]))
    if isinstance(why, ChangeFailed):
        label = labels.get(why.value)
        if why.is_cut:
            return SaveTransformError(
                code="transform_not_differentiable",
                problem=f"{problem_of(why)}, at {label!r}, and backward_ready=True keeps activations on it",
                remedy="return a floating tensor that differentiable calls made of the activation, keep the activation "
                "beside it with SaveOptions(raw=True), or leave out backward_ready",
                label=label,
            )
        error: TorchLensError = SaveTransformError(
            code="save_transform_failed",
            problem=f"{problem_of(why)}, at {label!r}",
            remedy="mend it, or select only what it is made for; what ran before is at exc.partial_trace",
            label=label,
        )
        error.__cause__ = why.cause
        return error
    largest = [(labels.get(value, "a constant"), nbytes) for value, nbytes in why.largest]
    named = ", ".join(f"{label} ({Bytes(nbytes)})" for label, nbytes in largest)
    return SaveBudgetExceededError(
        code="save_budget_exceeded",
        problem=f"{problem_of(why)}; the largest: {named}",
        remedy="select less with save= (a selector that needs final labels holds everything until the forward has "
        "ended), keep less of each with SaveOptions(dtype=, transform=, device=), stream to disk with "
        "storage=tl.to_disk(path), or raise CaptureOptions(save_budget=); what ran before is at exc.partial_trace",
        device=why.device,
        held=why.held,
        allowed=why.allowed,
        largest=tuple(largest),
    )


def stopped(trace: Trace) -> TraceCaptureError:
    """The error for a forward that was left at a value that is not finite."""
    tables = trace.tables
    event, _, num_nan, num_inf = tables.fact("nonfinite_stop")
    call = call_at(trace, event)
    place = call.place
    operands = tuple((tensor.argument, tensor.shape, tensor.dtype) for tensor in call.tensors)
    line = "" if place is None else f", at {place.file}:{place.line}" + (f": {place.text}" if place.text else "")
    made = TraceCaptureError(
        code="nonfinite_value",
        problem=f"{call.label or call.function} gave {tables.fact('nonfinite_reason')}: {call}{line}",
        remedy="exc.partial_trace.first_nonfinite() tells what it was made from"
        + ("" if num_nan else "; where infinities are meant, pass raise_on_nan='nan'"),
        op=call.label,
        function=call.function,
        operands=operands,
        module=call.modules[-1] if call.modules else None,
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        num_nan=num_nan,
        num_inf=num_inf,
    )
    made.partial_trace = trace
    return made
