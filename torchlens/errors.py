"""The error classes a caller may want to catch apart; codes tell causes apart.

Every error is a ``TorchLensError`` and, where a Python reader would catch a builtin, that builtin too. The
codes stand in ``torchlens.codes`` and, with their remedies, in ``docs/errors.md``.
"""

from __future__ import annotations

from journal.errors import Coded, IllegalTransition, JournalCorrupt, JournalError, TorchLensError
from projections.errors import (
    ConfigurationError,
    EncodingError,
    NotYetKnown,
    PayloadUnavailableError,
    SelectionError,
    SelectorTypeError,
)

__all__ = [
    "AmbiguousOpLookupError",
    "AmbiguousReadError",
    "ArtifactCorrupt",
    "ArtifactError",
    "BackwardRefused",
    "CaptureError",
    "CaptureOutcomeError",
    "CompatibilityError",
    "ConfigurationError",
    "EncodingError",
    "GraphvizUnavailableError",
    "IllegalTransition",
    "IndexOutOfRange",
    "JournalCorrupt",
    "JournalError",
    "LookupRefused",
    "NotYetKnown",
    "PathDivergenceError",
    "PayloadUnavailableError",
    "RenderingError",
    "ReplayRefused",
    "RunCapabilityUnavailableError",
    "SaveBudgetExceededError",
    "SaveTransformError",
    "SelectionError",
    "SelectorTypeError",
    "SiteAmbiguityError",
    "StateBindingError",
    "TorchLensError",
    "TorchLensWarning",
    "TraceCleanedUpError",
    "ValidationError",
]


class CaptureError(TorchLensError):
    """A capture could not begin, go on or end as asked."""


class CaptureOutcomeError(TorchLensError, RuntimeError):
    """What was asked for takes a forward that came to its end, and this one did not."""


class SaveBudgetExceededError(CaptureError):
    """The kept activations hold more memory than ``save_budget`` allows; what ran is at ``partial_trace``."""


class SaveTransformError(CaptureError):
    """What ``save=`` should make of an activation could not be made; the trace of what ran is at ``partial_trace``.

    The exception of the transform is its cause.
    """


class CompatibilityError(TorchLensError, TypeError):
    """This kind of model, tensor or environment is not supported."""


class ValidationError(TorchLensError, AssertionError):
    """A record contradicts another, or the model: something was recorded wrongly."""


class LookupRefused(TorchLensError, KeyError):
    """A key names nothing here, or more than this door can give."""


class IndexOutOfRange(LookupRefused, IndexError):
    """A position lies outside its collection."""


class AmbiguousOpLookupError(LookupRefused):
    """A key names several records where one is needed."""


class AmbiguousReadError(TorchLensError, ValueError):
    """A field has one answer per pass or call, and there are several."""


class ArtifactError(TorchLensError, RuntimeError):
    """An artifact cannot be saved or loaded as asked."""


class ArtifactCorrupt(ArtifactError):
    """Files are not what an artifact of this project holds."""


class BackwardRefused(TorchLensError, RuntimeError):
    """A backward pass cannot be run through a capture as asked."""


class RunCapabilityUnavailableError(TorchLensError, RuntimeError):
    """What was asked for runs the model or its graph, or its recorded calls, and this trace cannot."""


class PathDivergenceError(TorchLensError, ValueError):
    """What was given to a run, or what came about in it, contradicts the recorded path."""


class StateBindingError(TorchLensError, ValueError):
    """A state cannot be given to the recorded parameters and buffers."""


class ReplayRefused(TorchLensError, RuntimeError):
    """A recorded call cannot be made again from what was recorded."""


class RenderingError(TorchLensError, RuntimeError):
    """A picture cannot be drawn as asked by the renderer that is there."""


class GraphvizUnavailableError(RenderingError):
    """Nothing that draws a picture is installed here, or what was named is not."""


class SiteAmbiguityError(SelectionError):
    """A selector matched more sites than the caller allowed."""


class TraceCleanedUpError(TorchLensError, AttributeError):
    """The trace was cleaned up; nothing can be read from it any more."""


def backward_not_requested() -> CaptureError:
    """The refusal of a backward of a recording that was asked for none."""
    return CaptureError(
        code="recording_backward_not_requested",
        problem="no backward was asked for when this forward was recorded, so none is followed",
        remedy="record again with save_grads=, default_grad= or backward_ready=True; or call backward on the loss: "
        "record.out is on the model's graph",
    )


class TorchLensWarning(Coded, UserWarning):
    """A warning with the same facts as an error: code, problem, remedy and fields."""


def message_of(error: BaseException) -> str:
    """What an exception says, cut to a bound; its type where it cannot say it."""
    try:
        return str(error)[:4096]
    except Exception:  # noqa: BLE001  # a user's __str__ may do anything
        return f"<{type(error).__name__} without a message>"
