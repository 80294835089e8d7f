"""The events of one stream of a journal, as the folds read them.

Rule  what is fetched for one event serves its neighbours: a chunk is decoded whole in any case.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from journal import Journal, JournalError
from journal.events import Row, StreamId

__all__ = ["StreamSource"]


class StreamSource:
    """A ``projections.Source`` over one stream.

    Args:
        journal: Where the stream is.
        stream: Its number.
    """

    RUN: Final = 256
    """Events fetched together when single ones are asked for: about a stored chunk, which is decoded whole."""

    KEPT: Final = 32
    """Runs kept for the next such question."""

    def __init__(self, journal: Journal, stream: StreamId) -> None:
        self.journal = journal
        self.stream = stream
        self.runs: OrderedDict[int, list[Row]] = OrderedDict()

    def head(self) -> int:
        return self.journal.head(self.stream)

    def rows(self, start: int, stop: int | None = None) -> Iterable[Sequence[Row]]:
        return self.journal.rows(self.stream, start, stop)

    def row(self, at: int) -> Row:
        number, place = divmod(at, self.RUN)
        run = self.runs.get(number)
        if run is None or place >= len(run):
            start = number * self.RUN
            run = [row for rows in self.rows(start, min(start + self.RUN, self.head())) for row in rows]
            self.runs[number] = run
            if len(self.runs) > self.KEPT:
                self.runs.popitem(last=False)
        return run[place]

    def payload(self, number: int) -> bytes | None:
        try:
            return bytes(self.journal.payload(self.stream, number))
        except JournalError:  # lost or damaged, as after a power cut, or never there
            return None
