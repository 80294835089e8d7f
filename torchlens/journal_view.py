"""A journal opened for reading: its captures as traces, its streams as they were appended."""

from __future__ import annotations

import os
from types import TracebackType

from journal import Journal, StreamInfo, open_for_reading
from journal.errors import JournalError
from journal.integrity import Report, verify
from torchlens.facade import Trace

__all__ = ["JournalView", "load", "open_journal"]

READABLE = ("capture", "branch")
"""Kinds of stream that a trace can stand for."""


def captures_in(journal: Journal) -> list[StreamInfo]:
    """The streams of a journal that a trace can stand for."""
    return [info for info in journal.streams() if info.opened.kind in READABLE]


class JournalView:
    """What a journal holds. Traces it gave are cleaned up when it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.journal = open_for_reading(path)
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

    def trace(self, info: StreamInfo) -> Trace:
        """The trace of a capture's stream."""
        made = self.traces.get(info.stream)
        if made is None or made.is_cleaned_up:
            made = self.traces[info.stream] = Trace(open_for_reading(self.path), info.stream)
        return made

    def verify(self, *, timeout: float | None = None) -> Report:
        """Look at every stored byte, in a process of its own: ``.ok``, and every damage that was found.

        Args:
            timeout: Seconds after which to give up; never, by default.

        Raises:
            JournalError: ``scan_timed_out``, ``scan_failed``; damage is told and not raised.
        """
        return verify(self.journal.path, timeout=timeout)

    def close(self) -> None:
        """Let go of the journal and of the traces it gave. Closing twice is nothing."""
        if not self.is_closed:
            self.is_closed = True
            for trace in self.traces.values():
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
        captures = len(self.capture_streams)
        events = sum(info.head for info in self.streams)
        return f"<JournalView {self.path!r}: {captures} capture{'' if captures == 1 else 's'}, {events} events>"


def open_journal(path: str | os.PathLike[str]) -> JournalView:
    """Open a journal for reading; use it as a context manager, or close it.

    Args:
        path: Directory of the journal, as given to ``tl.trace(..., journal=path)``.

    Raises:
        JournalError: when there is no journal, or one that cannot be read.
    """
    return JournalView(path)


def load(path: str | os.PathLike[str]) -> Trace:
    """The trace of a journal that holds one capture.

    Raises:
        JournalError: ``journal_holds_many`` or ``journal_holds_none``, when it does not hold exactly one.
    """
    journal = open_for_reading(path)
    where = os.fspath(path)
    try:
        captures = captures_in(journal)
        if len(captures) != 1:
            several = len(captures) > 1
            raise JournalError(
                code="journal_holds_many" if several else "journal_holds_none",
                problem=f"the journal {where!r} holds {len(captures)} captures",
                remedy="open it with open_journal() and pick one of its .captures"
                if several
                else "load a journal that a capture was written to",
                path=where,
                captures=len(captures),
            )
    except BaseException:
        journal.close()
        raise
    return Trace(journal, captures[0].stream)
