"""What a cursor is sent to: events by selector, by type, by tensors that are not finite, or by a predicate.

Reads  the events of a capture and, for a selector, its tables at the head.
Gives  ``sought``, which makes of any of these something that finds its first and last match among some events.
Rule   a selector of the forward matches the event that made the op row, so a call with several results is one match.
       One of gradients matches the event that tells of the gradient: that it was observed or, where nothing observed
       it, that the node which it came to fired. One of autograd nodes matches the firing. What ``|`` puts side by
       side matches where either does.
Rule   a selector is answered once, by the tables of the head; a type and a predicate are looked for event by event, and
       nothing is folded for an event whose trace the predicate does not read.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

from journal.events import EVENTS_BY_NAME, Event, Stamped
from projections import CaptureTables, Selector
from projections.selecting.backward_terms import about, behind_outputs, matching
from projections.selecting.selector import AnyOf
from torchlens import collector
from torchlens.errors import (
    ConfigurationError,
    LookupRefused,
    PayloadUnavailableError,
    SelectionError,
    TorchLensError,
)
from torchlens.printable import amount
from torchlens.questions.nonfinite import NonfiniteEvents
from torchlens.questions.nonfinite_answer import NONFINITE, Nonfinite
from torchlens.reading.absent import absences
from torchlens.reading.facade import Trace
from torchlens.reading.gradient_sites import kinds_mixed, matching_firings, require_passes, spots
from torchlens.reading.lookup import near_misses
from torchlens.travel.past import PastTrace

__all__ = ["Predicate", "Sought", "What", "sought"]

Predicate: TypeAlias = Callable[[Stamped, PastTrace], object]
"""Is given an event, and the trace as it stood after it."""

What: TypeAlias = "Selector | type[Event] | str | Predicate"
"""What a cursor may be sent to; a text is the name of an event type as it is stored, ``"nonfinite"`` or ``"nan"``."""

NOT_THERE: Final = frozenset(
    (
        *("activation_not_saved", "arguments_not_saved", "aten_ops_not_recorded", "gradient_not_saved"),
        *("gradient_sites_unavailable", "output_not_stored", "statistics_only"),
    )
)
"""Codes with which is refused what was not kept, or has not come yet; others tell that something kept is lost."""

RUN: Final = 1024
"""Events that are read together when they are looked through backwards."""


class Sought(Protocol):
    """Something to find among the events of a capture.

    Attributes:
        is_settled_by_events: Whether an event that was looked at needs not be looked at again when there are more.
    """

    is_settled_by_events: bool

    def first(self, start: int, stop: int) -> int | None:
        """Number of the first match from ``start`` to before ``stop``."""
        ...

    def last(self, start: int, stop: int) -> int | None:
        """Number of the last one there."""
        ...

    def hint(self) -> str | None:
        """Why there may be none, in a sentence; None where nothing is to be said."""
        ...


def sought(trace: Trace, what: What) -> Sought:
    """What finds the matches of something in a capture.

    Args:
        trace: The capture.
        what: A selector, an event class or its stored name, ``"nonfinite"`` or ``"nan"``, or a predicate.

    Raises:
        LookupRefused: ``event_type_unknown``.
        ConfigurationError: ``match_type_invalid``.
    """
    if isinstance(what, Selector):
        return Chosen(trace, what)
    if isinstance(what, str):
        kind = next((kind for kind in NONFINITE if kind == what), None)
        if kind is not None:
            return NotFinite(trace, kind)
        if what not in EVENTS_BY_NAME:
            near = near_misses(what, (dict.fromkeys(EVENTS_BY_NAME, ()),))
            raise LookupRefused(
                code="event_type_unknown",
                problem=f"no event type is called {what!r}",
                remedy=(f"did you mean {near[0]!r}? " if near else "")
                + f"An op is named by a selector: tl.label({what!r}), tl.func({what!r})",
                name=what,
            )
        return OfType(trace, EVENTS_BY_NAME[what])
    if isinstance(what, type) and EVENTS_BY_NAME.get(getattr(what, "event_name", "")) is what:
        return OfType(trace, what)
    if not isinstance(what, type) and callable(what):
        require_two(what)
        return Holding(trace, what)
    raise ConfigurationError(
        code="match_type_invalid",
        problem=f"events are not looked for by {what!r}",
        remedy="give a selector, an event class or its name, 'nonfinite' or 'nan', or a function of an event and the "
        "trace as it stood then",
        received_type=type(what).__name__,
    )


def require_two(predicate: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with an event and a trace.

    Raises:
        ConfigurationError: ``match_type_invalid``.
    """
    try:
        inspect.signature(predicate).bind(None, None)
    except ValueError:  # of something built in, which does not tell
        return
    except TypeError as exc:
        raise ConfigurationError(
            code="match_type_invalid",
            problem=f"{predicate!r} cannot be asked about an event and a trace: {exc}",
            remedy="give a function of both, lambda event, then: ...; one of an op makes a selector, tl.where(...)",
            received_type=type(predicate).__name__,
        ) from exc


class OfType:
    """The events of one type.

    Args:
        trace: The capture.
        wanted: The type.
    """

    is_settled_by_events = True

    def __init__(self, trace: Trace, wanted: type[Event]) -> None:
        self.trace: Final = trace
        self.type_id: Final = wanted.type_id

    def first(self, start: int, stop: int) -> int | None:
        at = start
        for rows in self.trace.journal.rows(self.trace.stream, start, stop):
            for row in rows:
                if row[0] == self.type_id:
                    return at
                at += 1
        return None

    def last(self, start: int, stop: int) -> int | None:
        for begin, end in runs_back(start, stop):
            found = None
            for at, row in enumerate(self.rows(begin, end), begin):
                if row[0] == self.type_id:
                    found = at
            if found is not None:
                return found
        return None

    def rows(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        for rows in self.trace.journal.rows(self.trace.stream, start, stop):
            yield from rows

    def hint(self) -> str | None:
        return None


class NotFinite:
    """The events at which a tensor holds NaN, or infinity too; what nothing was kept of matches not.

    Args:
        trace: The capture.
        kind: ``"nonfinite"``, or ``"nan"``, which passes over infinities.
    """

    is_settled_by_events = False  # a payload may come after its event

    def __init__(self, trace: Trace, kind: Nonfinite) -> None:
        self.events: Final = NonfiniteEvents(trace, kind)

    def first(self, start: int, stop: int) -> int | None:
        return self.events.first(start, stop)

    def last(self, start: int, stop: int) -> int | None:
        return self.events.last(runs_back(start, stop))

    def hint(self) -> str | None:
        missed = self.events.num_unexamined
        return f"{amount(missed, 'tensor')} there could not be looked at" if missed else None


class Holding:
    """The events for which a predicate holds.

    Args:
        trace: The capture.
        predicate: One that looks up or reads what is not there yet does not hold; anything else that it raises is
            passed on.
    """

    is_settled_by_events = True

    def __init__(self, trace: Trace, predicate: Predicate) -> None:
        self.trace: Final = trace
        self.predicate: Final = predicate
        self.refusal: TorchLensError | None = None  # the last one

    def first(self, start: int, stop: int) -> int | None:
        return next((one.at for one in self.trace.events(start, stop) if self.holds(one)), None)

    def last(self, start: int, stop: int) -> int | None:
        for begin, end in runs_back(start, stop):
            for one in reversed(list(self.trace.events(begin, end))):
                if self.holds(one):
                    return one.at
        return None

    def holds(self, one: Stamped) -> bool:
        try:
            return bool(self.predicate(one, PastTrace(self.trace, one.at + 1)))
        except LookupRefused as exc:
            self.refusal = exc
            return False
        except (PayloadUnavailableError, SelectionError) as exc:
            if exc.code not in NOT_THERE:
                raise
            self.refusal = exc
            return False

    def hint(self) -> str | None:
        return None if self.refusal is None else f"it looked up what was not there, {self.refusal.problem}"


class Chosen:
    """The events that made what a selector names.

    Args:
        trace: The capture.
        selector: The selector. It is answered anew when the capture has grown.
    """

    is_settled_by_events = False  # what a row is called may depend on what comes behind it

    def __init__(self, trace: Trace, selector: Selector) -> None:
        self.trace: Final = trace
        self.selector: Final = selector
        self.known: tuple[CaptureTables, Sequence[int]] | None = None

    @property
    def events(self) -> Sequence[int]:
        """Numbers of the events, ascending."""
        tables = self.trace.tables
        if self.known is None or self.known[0] is not tables:
            with collector.paused():
                self.known = (tables, sorted(events_of(self.trace, tables, self.selector)))
        return self.known[1]

    def first(self, start: int, stop: int) -> int | None:
        place = bisect_left(self.events, start)
        return self.events[place] if place < len(self.events) and self.events[place] < stop else None

    def last(self, start: int, stop: int) -> int | None:
        place = bisect_left(self.events, stop) - 1
        return self.events[place] if place >= 0 and self.events[place] >= start else None

    def hint(self) -> str | None:
        return "; ".join(dict.fromkeys(absences(self.selector, self.trace.index()))) or None


def runs_back(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The events from ``start`` to before ``stop`` in short runs, the last one first."""
    while start < stop:
        begin = max(start, stop - RUN)
        yield begin, stop
        stop = begin


def events_of(trace: Trace, tables: CaptureTables, selector: Selector) -> set[int]:
    """The events that made what a selector names.

    Raises:
        SelectionError: what the selector is refused with by a finished trace, such as ``gradient_sites_unavailable``
            before any backward pass, and ``selection_kind_incompatible``.
    """
    kind = about(selector)
    if kind == "op":
        events = tables.forward.rows.event
        return {events[row] for row in trace.resolved(selector)}
    if kind == "node":
        state = tables.forward.backward
        return {state.firing(fire).at for fire in matching_firings(selector, tables, trace.records)}
    if kind == "gradient":
        return events_of_gradients(trace, tables, selector)
    if isinstance(selector, AnyOf):
        return set().union(*(events_of(trace, tables, part) for part in selector.of))
    raise kinds_mixed(
        f"{selector!r} narrows what it means by something of another kind",
        remedy="put different kinds side by side with |; & and - stand between selectors of one kind",
    )


def events_of_gradients(trace: Trace, tables: CaptureTables, selector: Selector) -> set[int]:
    """The events that tell of the gradients of some ops, in each pass that one came in."""
    require_passes(selector, tables)
    if selector.reads_values:
        raise kinds_mixed(f"{selector!r} compares values, which are those of activations, to choose gradients")
    holds = matching(selector, lambda part: behind_outputs(part.rows(tables, trace.records), tables))
    told = Told(tables)
    nodes, slots = (tables.ops.column(name) for name in ("gradient_node_row", "grad_slot"))
    return {
        told.event(nodes[spot.row], slots[spot.row] or 0, spot.pass_index - 1)
        for spot in spots(tables)
        if spot.row is not None and holds(spot)
    }


class Told:
    """Which event tells of the gradient at an output of an autograd node in a pass.

    Args:
        tables: The tables of the capture.
    """

    def __init__(self, tables: CaptureTables) -> None:
        autograd = tables.forward.autograd
        state, rows = autograd.state, autograd.rows
        self.observed: dict[tuple[int, int, int], int] = {}
        for one in state.observed():
            if not one.is_input:
                self.observed.setdefault((rows[one.node], one.slot, one.pass_number), one.at)
        self.fired: dict[tuple[int, int], int] = {}
        for firing in state.firings():
            self.fired.setdefault((rows[firing.node], firing.pass_number), firing.at)

    def event(self, node: int, slot: int, number: int) -> int:
        """The number of that event; a gradient came there, so one of the two did happen."""
        at = self.observed.get((node, slot, number))
        return self.fired[node, number] if at is None else at
