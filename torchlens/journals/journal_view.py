"""A journal opened for reading: its captures as traces, its streams as they were appended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from journal import Copied, Journal, LmdbJournal, Report, Stamped, StreamInfo, follow, open_for_reading, verify
from journal.copying import copy_streams
from journal.errors import JournalError
from journal.following import POLL_SECONDS
from journal.lease import is_held
from journal.lmdb_journal import open_new
from projections.selecting.selector import is_count
from torchlens.errors import ConfigurationError
from torchlens.printable import amount
from torchlens.reading.facade import Trace

__all__ = ["JournalView", "load", "open_journal"]

READABLE = ("capture", "branch")
"""Kinds of stream that a trace can stand for."""


MADE_SECONDS: Final = 10.0
"""So long a journal that a process has begun to make is waited for."""


def captures_in(journal: Journal) -> list[StreamInfo]:
    """The streams of a journal that a trace can stand for."""
    return [info for info in journal.streams() if info.opened.kind in READABLE]


def holds_none(path: str) -> JournalError:
    """The refusal for a journal without a capture."""
    return JournalError(
        code="journal_holds_none",
        problem=f"nothing of a capture was committed to the journal {path!r}",
        remedy="give a journal that a capture was written to; where a process died within half a second of beginning, "
        'capture with tl.JournalOptions(path, durability="event"), which commits each event at once',
        path=path,
        captures=0,
    )


class JournalView:
    """What a journal holds. Traces it gave are cleaned up when it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.journal: LmdbJournal = open_for_reading(path)
        self.path = os.fspath(path)
        self.traces: dict[int, Trace] = {}
        self.is_closed = False

    @property
    def streams(self) -> list[StreamInfo]:
        """Every stream, in the order they were opened: number, first event, number of events."""
        return self.journal.streams()

    @property
    def captures(self) -> list[Trace]:
        """A trace for each capture, in the order they were made; folded when first read."""
        return [self.trace(info) for info in self.capture_streams]

    @property
    def capture_streams(self) -> list[StreamInfo]:
        """The streams that ``captures`` stand for."""
        return captures_in(self.journal)

    def capture(self, which: int | str) -> Trace:
        """One capture.

        Args:
            which: Its number among ``captures``, from the end if negative, or its name. A text that is a number
                is one, as on the command line.

        Raises:
            JournalError: ``capture_unknown``, ``capture_ambiguous``.
        """
        return self.trace(self.chosen(which))

    def find(self, name: str | None = None, *, tag: str | None = None) -> list[Trace]:
        """The captures with this name and this tag, in the order they were made; without either, all."""
        return [self.trace(info) for _, info in self.matching(name, tag)]

    def follow(
        self,
        capture: int | str | None = None,
        *,
        start: int | None = None,
        timeout: float | None = None,
        through_seals: bool = False,
    ) -> Iterator[Stamped]:
        """The events as they arrive, while this process or another one writes the journal.

        An event is given as soon as it was committed: under the durabilities "event" and "batch" within a second.

        Args:
            capture: Only this one, as for ``capture``; it may be one that is yet to come. None for all streams.
            start: Number of the first event wanted, within the capture or the journal; from the first by default.
            timeout: Seconds without an event after which to end; None to wait for as long as somebody writes.
            through_seals: Go on when nobody writes. A loop that cleans up each trace before the next seals the journal
                after each, and opens it again.

        Yields:
            Events with their places; until the journal is sealed or its writer died, and for one capture until
            it is settled, and with it each backward pass that was begun.

        Raises:
            JournalError: ``capture_unknown``, ``capture_ambiguous``, and what reading raises.
        """
        stream = None if capture is None else self.awaited(capture, timeout)
        yield from follow(
            self.journal,
            None if stream is None else stream.stream,
            start=start or 0,
            timeout=timeout,
            through_seals=through_seals,
        )

    def prune(
        self,
        path: str | os.PathLike[str],
        *,
        captures: Sequence[int | str] = (),
        tags: Sequence[str] = (),
        keep_last: int | None = None,
    ) -> Copied:
        """Write a new journal with some of the captures; this one stays as it is.

        What any of the choices names is kept, and without one everything, which compacts. A branch brings the
        captures along that it reads through.

        Args:
            path: Where nothing is yet.
            captures: Numbers and names, as for ``capture``.
            tags: Captures with any of these.
            keep_last: So many of the last captures.

        Raises:
            JournalError: ``target_taken``, ``capture_unknown``, ``capture_ambiguous``, and what reading and
                writing raise.
            ConfigurationError: ``option_value_invalid``.

        Nothing is left at ``path`` where it fails.
        """
        kept = None
        if captures or tags or keep_last is not None:
            kept = {self.chosen(which).stream for which in captures}
            for tag in tags:
                tagged = self.matching(None, tag)
                if not tagged:
                    raise unknown(self.path, tag, "has the tag")
                kept |= {info.stream for _, info in tagged}
            if keep_last is not None:
                if keep_last < 1:
                    raise ConfigurationError(
                        code="option_value_invalid",
                        problem=f"keep_last={keep_last!r} keeps nothing",
                        remedy="keep at least one capture",
                        argument="keep_last",
                    )
                kept |= {info.stream for info in self.capture_streams[-keep_last:]}
            kept |= {info.stream for info in self.streams if info.opened.kind == "read" and info.opened.parent in kept}
        self.journal.streams()  # refuses a journal that was closed
        with open_new(path, self.journal.path) as journal:
            return copy_streams(self.journal, journal, kept)

    def chosen(self, which: int | str) -> StreamInfo:
        """The stream of one capture; see ``capture``."""
        return chosen_of(self.capture_streams, which, self.path)

    def matching(self, name: str | None, tag: str | None) -> list[tuple[int, StreamInfo]]:
        """Number and stream of the captures with this name and this tag; None asks for nothing."""
        return [
            (number, info)
            for number, info in enumerate(self.capture_streams)
            if name in (None, info.opened.label) and (tag is None or tag in info.opened.tags)
        ]

    def awaited(self, which: int | str, timeout: float | None) -> StreamInfo:
        """The stream of a capture that may be yet to come."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            may_grow = self.journal.is_written()
            try:
                return self.chosen(which)
            except JournalError as exc:
                if exc.code != "capture_unknown" or not may_grow or past(deadline):
                    raise
            time.sleep(POLL_SECONDS)

    @property
    def is_unfinished_copy(self) -> bool:
        """Whether a copy into this journal did not end, so that it may hold less than it should."""
        return bool(self.journal.unfinished_copies())

    def trace(self, info: StreamInfo) -> Trace:
        """The trace of a capture's stream."""
        made = self.traces.get(info.stream)
        if made is None or made.is_cleaned_up:
            made = self.traces[info.stream] = Trace(open_for_reading(self.journal.path), info.stream)
        return made

    def verify(self, *, timeout: float | None = None) -> Report:
        """Look at every byte that means anything, in a process of its own: ``.ok``, and every damage that was found.

        Args:
            timeout: Seconds after which to give up; never, by default.

        Raises:
            JournalError: ``scan_timed_out``, ``scan_failed``; damage is told and not raised.
        """
        return verify(self.journal.path, timeout=timeout)

    def forget(self, info: StreamInfo) -> None:
        """Clean up the trace of a stream, if one was made."""
        made = self.traces.pop(info.stream, None)
        if made is not None:
            made.cleanup()

    def close(self) -> None:
        """Let go of the journal and of the traces it gave. Closing twice is nothing."""
        if not self.is_closed:
            self.is_closed = True
            for trace in self.traces.values():
                trace.is_journal_closed = not trace.is_cleaned_up
                trace.cleanup()
            self.journal.close()

    def __enter__(self) -> JournalView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<JournalView {self.path!r}, closed>"
        captures = amount(len(self.capture_streams), "capture")
        events = amount(sum(info.head for info in self.streams), "event")
        copy = ", an unfinished copy" if self.is_unfinished_copy else ""
        return f"<JournalView {self.path!r}: {captures}, {events}{copy}>"


def chosen_of(streams: Sequence[StreamInfo], which: int | str, path: str) -> StreamInfo:
    """The stream of one capture by number, from the end if negative, or by name."""
    is_number_text = isinstance(which, str) and is_count(which.removeprefix("-"))
    number = int(which) if isinstance(which, int) or is_number_text else None
    if number is not None and -len(streams) <= number < len(streams):
        return streams[number]
    named = [place for place, info in enumerate(streams) if info.opened.label == which]
    if len(named) == 1:
        return streams[named[0]]
    if not named:
        raise unknown(path, which, "is called" if number is None else "has the number")
    raise JournalError(
        code="capture_ambiguous",
        problem=f"{len(named)} captures of {path!r} are called {which!r}",
        remedy=f"give a number: {', '.join(map(str, named[:10]))}{', ...' if len(named) > 10 else ''}",
        capture=which,
        numbers=tuple(named),
    )


def unknown(path: str, which: object, what: str) -> JournalError:
    return JournalError(
        code="capture_unknown",
        problem=f"no capture of {path!r} {what} {which!r}",
        remedy="`torchlens journal captures` shows number, name and tags of each",
        capture=which,
    )


def open_journal(path: str | os.PathLike[str], *, wait: float = 0.0) -> JournalView:
    """Open a journal for reading; use it as a context manager, or close it.

    Args:
        path: Directory of the journal, as given to ``tl.trace(..., journal=path)``.
        wait: Seconds to wait for a journal that is not there yet. One that a process has begun to make is
            waited for in any case.

    Raises:
        JournalError: when there is no journal, or one that cannot be read.
    """
    begun = time.monotonic()
    while True:
        try:
            return JournalView(path)
        except JournalError as exc:
            if exc.code not in ("journal_not_found", "journal_not_a_journal"):
                raise
            seconds = max(wait, MADE_SECONDS) if is_being_made(path) else wait
            if time.monotonic() - begun >= seconds:
                raise
        time.sleep(POLL_SECONDS)


def past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def is_being_made(path: str | os.PathLike[str]) -> bool:
    """Whether a process has taken the right to write a journal here, and not yet made it."""
    return is_held(Path(path))


def load(path: str | os.PathLike[str], *, capture: int | str | None = None) -> Trace:
    """The trace of a capture in a journal.

    Args:
        path: Directory of the journal.
        capture: Its number, from the end if negative, or its name; None for the only one.

    Raises:
        JournalError: ``journal_holds_none``; ``journal_holds_many``, when there are several and none was chosen;
            ``capture_unknown``, ``capture_ambiguous``.
    """
    journal = open_for_reading(path)
    where = os.fspath(path)
    try:
        captures = captures_in(journal)
        if not captures:
            raise holds_none(where)
        if capture is None and len(captures) > 1:
            raise JournalError(
                code="journal_holds_many",
                problem=f"the journal {where!r} holds {len(captures)} captures",
                remedy=f"give one: load(path, capture={len(captures) - 1}) is the last; or open it with open_journal()",
                path=where,
                captures=len(captures),
            )
        info = captures[0] if capture is None else chosen_of(captures, capture, where)
    except BaseException:
        journal.close()
        raise
    return Trace(journal, info.stream)
