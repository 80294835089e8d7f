"""Following a journal: events as they arrive, from a writer of this process or of another one.

Nothing is held between two looks: a look asks for a mark that changes with the journal, and reads only when
it has. It ends when nobody may append any more and everything was given; a writer that was killed writes no more.

Not   which capture a name or number means, or how long a journal is waited for (torchlens.journals.journal_view).
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from typing import Final

from journal.events.backward import PassFinalized
from journal.events.base import Event, Stamped, StreamId
from journal.events.capture import CaptureSettled
from journal.protocol import Journal

POLL_SECONDS: Final = 0.05
"""Time between two looks. An event is seen as soon after it was committed, or appended in this process."""

RESTS: Final = (CaptureSettled, PassFinalized)
"""With these a stream comes to rest; a backward pass may follow yet."""


def follow(
    journal: Journal,
    stream: StreamId | None = None,
    *,
    start: int = 0,
    timeout: float | None = None,
    through_seals: bool = False,
) -> Iterator[Stamped]:
    """Every event from ``start`` on, each as soon as it can be read.

    Args:
        journal: Opened for reading or for writing.
        stream: Only this one; None for all, in the order of seq.
        start: Number of the first event wanted: within the stream, or a seq.
        timeout: End after so many seconds without an event; None waits for as long as somebody may append.
        through_seals: Go on when nobody writes, since a later capture may open the journal again: without a timeout
            it never ends.

    Yields:
        Events, until the journal is sealed or its writer died; for a stream also until its capture is
        settled, the last backward pass that was begun is finalized, and nothing followed that for one look.

    Raises:
        JournalError: what reading raises.
    """
    seen: Hashable = None
    heard = time.monotonic()
    next_one = max(0, start)
    rests = stream is not None and isinstance(last_event(journal, stream), RESTS)
    while True:
        may_grow = journal.is_written()  # asked before reading: what was appended until then is read below
        mark = journal.news()
        first = next_one
        if mark != seen:
            for stamped in journal.since(next_one) if stream is None else journal.events(stream, next_one):
                yield stamped
                next_one = 1 + (stamped.seq if stream is None else stamped.at)
                rests = stream is not None and isinstance(stamped.event, RESTS)
            seen = mark
        now = time.monotonic()
        if next_one > first:
            heard = now
        elif rests or not (may_grow or through_seals):
            return
        rest = POLL_SECONDS if timeout is None else min(POLL_SECONDS, heard + timeout - now)
        if rest <= 0:
            return
        time.sleep(rest)


def last_event(journal: Journal, stream: StreamId) -> Event:
    return next(journal.events(stream, journal.head(stream) - 1)).event
