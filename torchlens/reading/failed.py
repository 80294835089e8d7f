"""The errors that a capture ends with and that hold its trace: the model raised, or the journal refused.

Gives  what is raised: ours, and for a model's exception an instance of its class too, with what that one tells.
Not    the errors of a forward that was left on purpose (tracing.left).
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

from journal import JournalError, TorchLensError
from torchlens.errors import CaptureError, message_of
from torchlens.reading.facade import Trace

__all__ = ["TraceCaptureError", "TraceJournalError"]


class TraceCaptureError(CaptureError, RuntimeError):
    """The model raised, or was stopped at a NaN; what was recorded before it is a true prefix, at ``partial_trace``.

    The exception of the model is its cause, and what is raised is an instance of that exception's class too, with its
    ``args`` and attributes, so that code which catches it goes on working. ``code``, ``problem``, ``remedy`` and
    ``fields`` are ours.
    """

    @staticmethod
    def of(
        error: Exception, partial_trace: Trace, refusal: JournalError | None = None, *, hint: str | None = None
    ) -> TraceCaptureError:
        """The error for a model that raised ``error``, in a capture that its journal could not wholly take.

        Args:
            error: What the model raised.
            partial_trace: What came before it.
            refusal: What the journal could not take.
            hint: What else to look at, from how the model was called.
        """
        made = _class_for(type(error))(  # type: ignore[arg-type]  # mypy takes a class for unhashable
            code="model_raised",
            problem=f"the model raised {type(error).__name__}: {message_of(error)}{_where(partial_trace)}",
            remedy="see the cause; exc.partial_trace holds what was recorded before it, and .failure tells of the call"
            + (f"; {hint}" if hint else ""),
            refused=None if refusal is None else refusal.code,
        )
        made.partial_trace = partial_trace
        if isinstance(made, type(error)):
            _tell_also(made, error)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        made, (_, *rest) = super().__reduce__()
        return made, (TraceCaptureError, *rest)


class TraceJournalError(JournalError):
    """The model ran to its end, but the journal could not take all of the capture.

    Its code and cause are what the journal refused with. ``partial_trace`` can be read in this process: what the disk
    has not taken is in memory. Its ``cleanup()`` tries once more to write it.
    """

    @staticmethod
    def of(refusal: JournalError, partial_trace: Trace, num_unstored: int) -> TraceJournalError:
        """The error for a capture of which the journal has refused something, payloads among it."""
        without = f", and {num_unstored} payloads have no bytes in it" if num_unstored else ""
        made = TraceJournalError(
            code=refusal.code,
            problem=f"the model ran to its end, but its journal could not take all of it{without}: {refusal.problem}",
            remedy="read the capture at exc.partial_trace, whose cleanup() tries once more to store its events; "
            f"for the next one: {refusal.remedy}",
            num_unstored=num_unstored,
            path=partial_trace.journal.path,
        )
        made.partial_trace = partial_trace
        return made


def _where(trace: Trace) -> str:
    """In which call and at which line, as the end of a sentence; nothing where that cannot be read."""
    with contextlib.suppress(TorchLensError):  # what the model raised is told in any case
        failure = trace.failure
        if failure is not None and failure.said:
            return f" ({failure.said})"
    return ""


@functools.lru_cache(maxsize=256)
def _class_for(kind: type[Exception]) -> type[TraceCaptureError]:
    """``TraceCaptureError`` as a kind of ``kind`` too, where Python lets the two be one."""
    if issubclass(TraceCaptureError, kind):
        return TraceCaptureError
    try:
        both = type("TraceCaptureError", (TraceCaptureError, kind), {"__module__": __name__})
        both(code="", problem="", remedy="")
    except Exception:  # noqa: BLE001  # a class with a layout or a constructor of its own
        return TraceCaptureError
    return both


def _tell_also(made: TraceCaptureError, error: Exception) -> None:
    """Give what is raised the arguments and attributes of the model's exception, where it has none of that name."""
    made.args = error.args
    own = vars(made)
    for name, value in [*vars(error).items(), *_built_in(error)]:
        if name not in own and name != MARK:
            with contextlib.suppress(Exception):  # a class may guard its attributes; the cause has them
                setattr(made, name, value)


MARK = "_torchlens_capture"
"""What the recorder puts on an exception that a call raised."""


def _built_in(error: Exception) -> Iterator[tuple[str, Any]]:
    """What an exception holds outside its dictionary: in slots, and in the fields of Python's own classes."""
    for kind in type(error).__mro__:
        for name, held in vars(kind).items():
            if isinstance(held, types.MemberDescriptorType | types.GetSetDescriptorType) and not name.startswith("__"):
                with contextlib.suppress(Exception):  # not set
                    yield name, held.__get__(error)
