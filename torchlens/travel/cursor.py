"""A cursor: a place in a capture that is moved event by event, to events by what they are, and to any of them at once.

    with tl.time_travel("run.journal") as cursor:
        cursor.run_to(tl.func("softmax"))  # the first softmax
        cursor.next(tl.grad("relu_1_2"))  # a gradient, in the backward
        print(cursor.where(), cursor.changed(), cursor.trace.params["0.weight"].grads)

Rule   a cursor has a *position*, the number of events that have happened: 0 is before the first event, ``num_events``
       after the last one. ``event`` is the last that has happened, so that a cursor which stands on event k is at
       position k + 1, and shows the records as the first k + 1 events give them.
Rule   ``next`` and ``previous`` look beyond the event that the cursor stands on; ``run_to`` and ``run_back_to`` stay
       where that one matches already. What cannot be done is refused, and then the cursor stays where it was.
Note   a cursor sees everything that the stream holds by now, as a trace does: nothing needs to be loaded again.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from types import TracebackType
from typing import Any, Final

from journal import follow
from journal.events import Stamped
from torchlens.errors import ConfigurationError, IndexOutOfRange, LookupRefused, SelectionError, TorchLensError
from torchlens.journals.journal_view import JournalView, holds_none, open_journal
from torchlens.printable import amount, printable
from torchlens.questions.chain import Chain
from torchlens.questions.nonfinite_answer import FirstNonfinite, Nonfinite
from torchlens.reading.facade import Trace
from torchlens.travel.changes import Changes, changes
from torchlens.travel.matching import Sought, What, sought
from torchlens.travel.past import PastTrace
from torchlens.travel.waiting import grew
from torchlens.travel.whereabouts import Whereabouts, whereabouts

__all__ = ["Cursor", "time_travel"]

LAST: Final = -1
"""Number of the last capture of a journal."""

NOT_YET: Final = frozenset(("gradient_sites_unavailable",))
"""Codes with which a selector is refused by a capture that has not come so far."""


class Cursor:
    """A place in a capture, and the capture as it stood there.

    Args:
        whole: The trace of the capture.
        view: What the trace was taken from, where it is closed with the cursor.

    Attributes:
        whole: The trace of everything that the stream holds.
    """

    def __init__(self, whole: Trace, view: JournalView | None = None) -> None:
        self.whole: Final = whole
        self._position = 0
        self._view: Final = view
        # The last past traces, with how many events there were then.
        self._shown: deque[tuple[int, PastTrace]] = deque(maxlen=2)

    # -- where it is

    @property
    def position(self) -> int:
        """Number of events that have happened: 0 to ``num_events``."""
        return self._position

    @property
    def num_events(self) -> int:
        """Number of events that there are now; more, later, in a capture that goes on."""
        return self.whole.num_events

    @property
    def event(self) -> Stamped | None:
        """The last event that has happened, with ``at``, ``seq`` and ``time_ns``; None before the first one."""
        if self.position == 0:
            return None
        return next(self.whole.events(self.position - 1, self.position), None)

    @property
    def trace(self) -> PastTrace:
        """The capture as it stood here, with all that a trace has, named as at the head of the stream."""
        return self._past(self.position)

    @property
    def capture(self) -> tuple[int, int] | None:
        """Which capture of the journal this is, from 0, and of how many; None where a trace was given."""
        if self._view is None or self._view.is_closed:
            return None
        streams = [info.stream for info in self._view.capture_streams]
        return streams.index(self.whole.stream), len(streams)

    @property
    def title(self) -> str:
        """Name of the capture, and which one of its journal it is where that has several."""
        name, found = str(self.whole.trace_label), self.capture
        return name if found is None or found[1] == 1 else f"{name}, capture {found[0]} of {found[1]}"

    def _past(self, position: int) -> PastTrace:
        """The capture as it stood at a position. The last two are kept: who steps looks at neighbours."""
        count = self.num_events
        for known, shown in self._shown:
            if (known, shown.position) == (count, position):
                return shown
        made = PastTrace(self.whole, position)
        self._shown.append((count, made))
        return made

    def where(self) -> Whereabouts:
        """Where the event happened: ``place`` in the source with its text, ``modules``, ``backward_pass``, ``node``.

        Raises:
            IndexOutOfRange: ``cursor_before_first``, where no event has happened.
        """
        return whereabouts(self.whole, self.trace, self._happened("where"))

    def changed(self) -> Changes:
        """What the event changed in the records: rows that came, and cells with what they held and hold, by table.

        It reads every field of the records before and after, so it takes the time of making two data frames of each
        table.

        Raises:
            IndexOutOfRange: ``cursor_before_first``, where no event has happened.
        """
        event = self._happened("changed")
        before, after = self._past(self.position - 1), self._past(self.position)
        return changes(event.at, event.event.event_name, before.tables, after.tables)

    def _happened(self, asked: str) -> Stamped:
        """The event that the cursor stands on."""
        found = self.event
        if found is None:
            raise IndexOutOfRange(
                code="cursor_before_first",
                problem=f"the cursor is before the first event, so there is none that {asked} could tell of",
                remedy="step to the first event, or seek one",
            )
        return found

    # -- to a position

    def seek(self, to: int | float | Stamped) -> Cursor:
        """Go to an event, or to a part of the way.

        Args:
            to: The number of an event, from the end if negative; an event; or a fraction of all events, as a float:
                0.0 is before the first one, 1.0 after the last.

        Raises:
            IndexOutOfRange: ``event_out_of_range``.
            ConfigurationError: ``seek_target_invalid``.
        """
        count = self.num_events
        if isinstance(to, Stamped):
            to = self._number_of(to)
        if isinstance(to, Integral) and not isinstance(to, bool):
            number = int(to)
            if not -count <= number < count:
                raise IndexOutOfRange(
                    code="event_out_of_range",
                    problem=f"there is no event {number} in this capture, which has {count}",
                    remedy=f"ask for one from {-count} to {count - 1}; seek(0.0) is before the first"
                    if count
                    else "it has none yet",
                    event=number,
                    events=count,
                )
            self._position = number % count + 1
            return self
        if isinstance(to, Real) and not isinstance(to, bool) and 0.0 <= to <= 1.0:
            self._position = round(float(to) * count)
            return self
        raise ConfigurationError(
            code="seek_target_invalid",
            problem=f"{to!r} is neither an event, the number of one, nor a part of the way",
            remedy="give a whole number, an event of this capture, or a float from 0.0 to 1.0",
            received=repr(to),
        )

    def _number_of(self, event: Stamped) -> int:
        """The number of an event of this capture."""
        if next(self.whole.events(event.at, event.at + 1), None) != event:
            raise ConfigurationError(
                code="seek_target_invalid",
                problem=f"event {event.at} of stream {event.stream} is none of this capture",
                remedy="give an event that cursor.event, cursor.follow() or the trace's events() gave",
                received=repr(event),
            )
        return event.at

    def step(self, n: int = 1) -> Cursor:
        """Let ``n`` more events happen.

        Raises:
            IndexOutOfRange: ``step_out_of_range``, where there are not so many.
            ConfigurationError: ``step_count_invalid``.
        """
        return self._go(counted(n), self.num_events)

    def back(self, n: int = 1) -> Cursor:
        """Go back to before the last ``n`` events.

        Raises:
            IndexOutOfRange: ``step_out_of_range``, where there are not so many.
            ConfigurationError: ``step_count_invalid``.
        """
        return self._go(-counted(n), self.num_events)

    def _go(self, by: int, count: int) -> Cursor:
        to = self.position + by
        if not 0 <= to <= count:
            left = count - self.position if by > 0 else self.position
            raise IndexOutOfRange(
                code="step_out_of_range",
                problem=f"there {'is' if left == 1 else 'are'} {amount(left, 'event')} "
                f"{'behind' if by > 0 else 'before'} the cursor's position, and {abs(by)} were asked for",
                remedy=f"go {left} at most; a capture that is still written has more later: next(what, timeout=...)"
                if by > 0
                else f"go {left} at most",
                asked=abs(by),
                left=left,
            )
        self._position = to
        return self

    # -- to what is sought

    def next(self, what: What, *, timeout: float | None = 0.0) -> Cursor:
        """Go on to the first match behind the event that the cursor stands on.

        Args:
            what: A selector, such as ``tl.grad("relu_1_2")``, ``tl.func("softmax")`` or ``tl.in_module("block.2")``,
                for the event that made what it names; an event class or its stored name; ``"nonfinite"``, for a tensor
                with NaN or infinity, or ``"nan"``, which passes over infinities; or a function of the event and the
                trace as it stood then.
            timeout: Seconds to wait for an event that is yet to come; None for as long as somebody writes.

        Raises:
            LookupRefused: ``no_event_matches``; ``event_type_unknown``.
            ConfigurationError: ``match_type_invalid``, ``timeout_invalid``.
            SelectionError: What the selector is refused with by a finished trace.
        """
        return self._to_first(what, self.position, timeout)

    def run_to(self, what: What, *, timeout: float | None = 0.0) -> Cursor:
        """Go on to the first match, the event that the cursor stands on included: it stays where that one matches.

        Args and what it raises are those of ``next``.
        """
        return self._to_first(what, max(0, self.position - 1), timeout)

    def previous(self, what: What) -> Cursor:
        """Go back to the last match before the event that the cursor stands on.

        Raises:
            TorchLensError: As ``next``.
        """
        return self._to_last(what, max(0, self.position - 1))

    def run_back_to(self, what: What) -> Cursor:
        """Go back to the last match, the event that the cursor stands on included: it stays where that one matches.

        Raises:
            TorchLensError: As ``next``.
        """
        return self._to_last(what, self.position)

    def _to_first(self, what: What, start: int, timeout: float | None) -> Cursor:
        """Go to the first match from an event on, and wait for one if there is none yet."""
        with self._staying():
            return self._first_match(what, start, deadline_of(timeout))

    def _first_match(self, what: What, start: int, deadline: float | None) -> Cursor:
        wanted = sought(self.whole, what)
        refusal: TorchLensError
        while True:
            count, begun = self.num_events, time.monotonic()
            try:
                found = wanted.first(start, count)
            except SelectionError as exc:
                if exc.code not in NOT_YET:
                    raise
                refusal = exc
            else:
                if found is not None:
                    self._position = found + 1
                    return self
                problem = f"{what!r} matches none of the {amount(count - start, 'event')} from {start} on"
                refusal = nothing(wanted, problem)
            if not grew(self.whole.journal, self.whole.stream, count, deadline, time.monotonic() - begun):
                raise refusal
            if wanted.is_settled_by_events:
                start = count

    def _to_last(self, what: What, stop: int) -> Cursor:
        """Go to the last match before an event."""
        with self._staying():
            wanted = sought(self.whole, what)
            found = wanted.last(0, stop)
            if found is None:
                raise nothing(wanted, f"{what!r} matches none of the first {amount(stop, 'event')}")
            self._position = found + 1
            return self

    @contextmanager
    def _staying(self) -> Iterator[None]:
        """Where something is raised, the cursor is where it was, also if a predicate moved it."""
        before = self._position
        try:
            yield
        except BaseException:
            self._position = before
            raise

    # -- questions

    def first_nonfinite(self, kind: Nonfinite = "nonfinite") -> FirstNonfinite:
        """The first tensor of the capture with NaN or infinity, wherever the cursor stands; see
        ``Trace.first_nonfinite``. ``cursor.seek(found.at)`` goes there, and ``cursor.next(kind)`` to the next one."""
        return self.whole.first_nonfinite(kind)

    def why(self, site: Any, *, bwd: int | None = None) -> Chain:
        """The chain of events that produced a value or a gradient, as far as the cursor has come; see ``Trace.why``."""
        return self.trace.why(site, bwd=bwd)

    # -- while it is written

    def follow(self, *, timeout: float | None = None) -> Iterator[Stamped]:
        """Go on event by event as they are written, by this process or by another one.

        Args:
            timeout: Seconds without an event after which to end; None waits for as long as somebody writes.

        Yields:
            Each event from the cursor's position on, when the cursor stands on it; until the capture is settled, and
            with it each backward pass that was begun, or nobody writes any more.

        Raises:
            ConfigurationError: ``timeout_invalid``.
        """
        deadline_of(timeout)
        for stamped in follow(self.whole.journal, self.whole.stream, start=self.position, timeout=timeout):
            self._position = stamped.at + 1
            yield stamped

    # -- its life

    def close(self) -> None:
        """Let go of the journal that was opened for it. A trace that was given stays open. Closing twice is nothing."""
        if self._view is not None:
            self._view.close()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    def __repr__(self) -> str:
        if self.whole.is_cleaned_up:
            return f"<Cursor of {self.whole!r}>"
        event, count = self.event, self.num_events
        place = f"before the first of {count}" if event is None else f"on event {event.at} of {count}"
        name = "" if event is None else f", {event.event.event_name}"
        return printable(f"<Cursor of {self.title}, {place}{name}>")


def counted(n: int) -> int:
    """A number of events to go."""
    if isinstance(n, Integral) and not isinstance(n, bool) and n >= 0:
        return int(n)
    raise ConfigurationError(
        code="step_count_invalid",
        problem=f"{n!r} is no number of events to go",
        remedy="give a whole number, 0 or more: step() goes on, back() goes back",
        received=repr(n),
    )


def deadline_of(timeout: float | None) -> float | None:
    """The time of the monotonic clock until when to wait; None where there is none."""
    if timeout is None:
        return None
    if isinstance(timeout, Real) and not isinstance(timeout, bool) and 0.0 <= timeout < math.inf:
        return time.monotonic() + float(timeout)
    raise ConfigurationError(
        code="timeout_invalid",
        problem=f"timeout={timeout!r} is no time to wait",
        remedy="give seconds, 0 or more; None waits for as long as somebody writes",
        received=repr(timeout),
    )


def nothing(wanted: Sought, problem: str) -> LookupRefused:
    """The refusal where there is no match."""
    hint = wanted.hint()
    return LookupRefused(
        code="no_event_matches",
        problem=printable(problem + (f": {hint}" if hint else "")),
        remedy="look the other way, or name what there is; the cursor stays where it was",
    )


def time_travel(trace_or_path: Trace | str | os.PathLike[str], capture: int | str = LAST) -> Cursor:
    """A cursor over a capture, before its first event.

    Args:
        trace_or_path: A trace, or the directory of a journal, which is closed with the cursor: use that as a context
            manager, or close it.
        capture: Of a journal, which capture: its number, from the end if negative, or its name; the last one by
            default. ``cursor.title`` tells which it is, ``torchlens journal captures`` lists them.

    Raises:
        JournalError: ``journal_holds_none``, ``capture_unknown``, ``capture_ambiguous``, and what opening raises.
        ConfigurationError: ``time_travel_type_invalid``; ``option_value_invalid``, for a capture of a trace.
        TraceCleanedUpError: ``trace_cleaned_up``.
    """
    if isinstance(trace_or_path, Trace):
        if capture != LAST:
            raise ConfigurationError(
                code="option_value_invalid",
                problem=f"capture={capture!r} chooses among the captures of a journal, and a trace is one",
                remedy="leave capture= out, or give the path of the journal",
                argument="capture",
            )
        trace_or_path.require_open()
        return Cursor(trace_or_path.whole if isinstance(trace_or_path, PastTrace) else trace_or_path)
    if not isinstance(trace_or_path, str | os.PathLike):
        raise ConfigurationError(
            code="time_travel_type_invalid",
            problem=f"time_travel() got {type(trace_or_path).__name__}, which holds no events",
            remedy="give a trace, or the directory of a journal",
            received_type=type(trace_or_path).__name__,
        )
    view = open_journal(trace_or_path)
    try:
        if not view.capture_streams:
            raise holds_none(view.path)
        return Cursor(view.capture(capture), view)
    except BaseException:
        view.close()
        raise
