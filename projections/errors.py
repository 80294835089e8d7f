"""Refusals of this package, by what a caller may want to catch apart; codes tell causes apart.

Note  Folds and columns trust that events fit together, as those of a capture do, and check little. Stored
      ones may have been written by anyone: what goes wrong over them is a `FAULTS` somewhere inside, which
      the few doors to the records turn into `events_contradictory`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

from journal.errors import JournalCorrupt, TorchLensError

FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What Python raises where events do not fit together. Errors of this project pass as they are, and so does the want of
memory, which says nothing of the events."""

NO_MEMORY: Final = "can't allocate memory"
"""What torch says in a ``RuntimeError`` where Python raises ``MemoryError``."""


class SelectionError(TorchLensError, ValueError):
    """A selector or selection cannot be resolved or used as asked."""


class ConfigurationError(TorchLensError, ValueError):
    """An option or argument is outside what is accepted, or two of them contradict."""


class PayloadUnavailableError(TorchLensError, RuntimeError):
    """A value existed, but is not here to be given."""


class NotYetKnown(SelectionError):
    """Something was asked of an op that has just run that only a finished forward can tell."""


class SelectorTypeError(TorchLensError, TypeError):
    """A selector was given something of the wrong type."""


class EncodingError(TorchLensError, ValueError):
    """Something is no table in canonical form, or cannot be brought into it."""


def contradictory(why: str) -> JournalCorrupt:
    """The error for events that do not fit together."""
    return JournalCorrupt(
        code="events_contradictory",
        problem=f"the events of this stream do not fit together: {why}",
        remedy="read a journal that is whole; if a capture wrote this one, report it with the journal",
    )


def fault_text(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {str(exc)[:200]}"


def wants_memory(exc: BaseException) -> bool:
    return isinstance(exc, RuntimeError) and (type(exc).__name__ == "OutOfMemoryError" or NO_MEMORY in str(exc))


class OverEvents:
    """Wraps what events that do not fit together bring about, once, where records are made of them."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        if isinstance(exc, FAULTS) and not isinstance(exc, TorchLensError) and not wants_memory(exc):
            raise contradictory(fault_text(exc)) from exc


OVER_EVENTS: Final = OverEvents()


def over_events() -> OverEvents:
    """The context in which records are made of events. It is entered for every column, so it is made once."""
    return OVER_EVENTS
