"""A fold: how events, taken in order, become the state that records are computed from.

A fold is a name, a version and one handler per event class it reads; every other event passes it by.
A handler gets the fold's state, the number of the event in its stream and the event as a flat row, so
no event object is built on the way::

    def module_left(graph, at, type_id, time_ns, call, result, outputs): ...

Its parameters are the fields of the event class, in order. A name may carry a leading underscore
where the value is not used or the name is taken, and the tail may be taken by ``*_rest``. The names are
checked against the class when the fold is made, which is at import: a changed schema cannot shift a
field unnoticed.

State grows by appending. What a handler changes in place is a small head: counters, the stack of open
calls. Each field of the state says which of the two it is (split.py). Folding a prefix and then the rest
gives what folding at once gives, which is what makes memoising by head and snapshots possible.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from journal.events import Event, Row
from journal.events.base import EVENTS_BY_NAME
from projections.folds.split import Split

State = TypeVar("State")

Handler: TypeAlias = Callable[..., None]
"""Takes state, event number and the stored row, spread out; changes the state."""

LEADING: Final = ("at", "type_id", "time_ns")


class Source(Protocol):
    """The events of one stream, as the folds read them."""

    def head(self) -> int:
        """Number of events there are now."""
        ...

    def rows(self, start: int, stop: int | None = None) -> Iterable[Sequence[Row]]:
        """Runs of rows, in order, of the events from ``start`` up to, not including, ``stop``."""
        ...

    def row(self, at: int) -> Row:
        """The row of one event."""
        ...

    def payload(self, number: int) -> bytes | None:
        """The bytes of a payload; None where they are not to be had."""
        ...


class Fold(Generic[State]):
    """How one kind of state is made from events.

    Attributes:
        name: What the state is called.
        version: Raised whenever the same events may give another state.
        initial: Makes the state before the first event.
        handlers: What each event class does to the state.
        split: What of the state is its head, and how the rest grows.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        initial: type[State],
        handlers: Mapping[type[Event], Handler],
    ) -> None:
        for cls, handler in handlers.items():
            require_fields(handler, cls)
        self.name = name
        self.version = version
        self.initial = initial
        self.handlers = dict(handlers)
        self.split: Final = Split(initial)


def require_fields(handler: Handler, cls: type[Event]) -> None:
    """Refuse a handler whose parameters are not the fields of the class, in order."""
    wanted = (*LEADING, *cls.fields)
    _, *parameters = inspect.signature(handler).parameters.values()
    open_ended = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    if open_ended:
        parameters.pop()
    given = tuple(parameter.name.removeprefix("_") for parameter in parameters)
    if given != (wanted[: len(given)] if open_ended else wanted):
        raise TypeError(f"{handler.__qualname__} takes {given}, but {cls.__name__} has {wanted}")


class Folding:
    """Several folds on their way through one stream, advanced together in one pass.

    Args:
        folds: The folds.
        at: Number of events that were folded already.
        states: What they gave, in the order of the folds; by default the states before the first event.
    """

    def __init__(self, folds: Sequence[Fold[Any]], at: int = 0, states: Sequence[Any] | None = None) -> None:
        self.at = at
        self.states = tuple([fold.initial() for fold in folds] if states is None else states)
        size = 1 + max(cls.type_id for cls in EVENTS_BY_NAME.values())
        # By type: who reads it. Rows are spread into the handlers, so that no event object is built.
        self.dispatch: list[tuple[tuple[Handler, Any], ...]] = [()] * size
        for fold, state in zip(folds, self.states, strict=True):
            for cls, handler in fold.handlers.items():
                self.dispatch[cls.type_id] += ((handler, state),)

    def advance(self, source: Source, stop: int) -> None:
        """Fold the events up to, not including, ``stop``."""
        if self.at < stop:
            for run in source.rows(self.at, stop):
                self.take(run)

    def take(self, run: Sequence[Row]) -> None:
        """Fold the next events."""
        at = self.at
        dispatch = self.dispatch
        for row in run:
            kind: int = row[0]
            for handler, state in dispatch[kind]:
                handler(state, at, *row)
            at += 1
        self.at = at
