"""What is raised where a forward was left because the save request could not be served, and what it tells.

Gives  the error, its sentence made from the trace of what ran, and the sentence alone for the journal.
Not    when to leave (capture.budget, capture.changing), or how (capture.recorder).
"""

from __future__ import annotations

from projections import CaptureTables
from torchlens.capture.budget import Shortage
from torchlens.capture.changing import ChangeFailed
from torchlens.errors import SaveBudgetExceededError, SaveTransformError, TorchLensError
from torchlens.quantities import Bytes

__all__ = ["Why", "error_of", "problem_of"]

Why = Shortage | ChangeFailed


def problem_of(why: Why) -> str:
    """What was wrong, in one clause."""
    if isinstance(why, ChangeFailed):
        return f"the transform of SaveOptions {why.problem}"
    return (
        f"the kept activations hold {Bytes(why.held)} on {why.device}, more than the {Bytes(why.allowed)} that "
        "save_budget allows"
    )


def error_of(why: Why, tables: CaptureTables) -> TorchLensError:
    """The error to raise, naming ops by the labels that they have in the trace of what ran."""
    labels = dict(reversed([*zip(tables.ops.column("value"), tables.ops.column("label"), strict=True)]))
    if isinstance(why, ChangeFailed):
        label = labels.get(why.value)
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
