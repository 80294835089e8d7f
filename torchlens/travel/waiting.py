"""Waiting for a stream to grow, while another process or thread writes it.

Rule   nothing is held between two looks, and a writer that was killed ends the waiting as one that is done does.
Not    events as they arrive (journal/following.py).
"""

from __future__ import annotations

import time

from journal import Journal
from journal.events import StreamId
from journal.following import POLL_SECONDS

__all__ = ["grew"]


def grew(journal: Journal, stream: StreamId, known: int, deadline: float | None, spent: float) -> bool:
    """Whether a stream has more events than are known, now or before a time of the monotonic clock.

    Args:
        journal: Where it is.
        stream: Its number.
        known: Number of events that are known.
        deadline: Until when to wait; None for as long as somebody writes.
        spent: Seconds that it took to look at the events that are known: as long is left to others, so that one who
            waits at a long capture which grows event by event is not at work all the time.
    """
    if deadline is None or time.monotonic() + spent < deadline:
        time.sleep(spent)
    while True:
        may_grow = journal.is_written()  # asked before reading: what was appended until then is read below
        if journal.head(stream) > known:
            return True
        rest = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
        if rest <= 0 or not may_grow:
            return False
        time.sleep(rest)
