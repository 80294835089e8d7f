"""A capture folded into tables in canonical form, as they are kept and compared.

Reads  the events of a stream up to a head, from the journal.
Gives  its tables, their canonical form, the fingerprint, and what tells the stream from another of its number.
Not    what becomes of it (results.py, reprojection.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from journal import Journal, StreamInfo
from journal.events import Row
from projections import CaptureTables, Projector, Source
from projections.accounts.twins import Twins
from projections.columnar.canonical import fingerprint_of
from projections.columnar.decoding import PackedTable, unpack_table
from projections.stored.encoding import EncodedTable, packed
from torchlens import collector
from torchlens.reading.source import StreamSource

__all__ = ["Result", "fold", "unpacked", "witness_of"]


@attrs.frozen
class Result:
    """A capture folded, in canonical form."""

    tables: CaptureTables
    encoded: Mapping[str, EncodedTable]
    fingerprint: str
    witness: tuple[int, int]
    source: Source  # of its events


class OnceRead(StreamSource):
    """A stream whose rows are read from the journal once, if they are few."""

    FEW: Final = 1 << 13

    def __init__(self, journal: Journal, info: StreamInfo, head: int) -> None:
        super().__init__(journal, info.stream)
        self.held: list[Row] | None = None
        if head <= self.FEW:
            self.held = [row for run in super().rows(0, head) for row in run]

    def rows(self, start: int, stop: int | None = None) -> Iterator[Sequence[Row]]:
        if self.held is None:
            yield from super().rows(start, stop)
        elif start < len(self.held):
            yield self.held[start:stop]

    def row(self, at: int) -> Row:
        return super().row(at) if self.held is None else self.held[at]


def fold(journal: Journal, info: StreamInfo, head: int, twins: Twins) -> Result:
    """The first ``head`` events of a capture, folded and in canonical form.

    Args:
        journal: Where it is.
        info: Its stream.
        head: Number of events.
        twins: The captures that were encoded before.

    Raises:
        JournalCorrupt, JournalError: what reading and folding raise.
    """
    with collector.paused():
        source = OnceRead(journal, info, head)
        tables = Projector(source).tables(head)
        encoded = twins.encoded(source.held, tables)
        fingerprint = fingerprint_of([table.summary for table in encoded.values()])
        return Result(tables, encoded, fingerprint, witness_of(source, info, head), source)


def witness_of(source: Source, info: StreamInfo, head: int) -> tuple[int, int]:
    return info.opened.wall_time_ns, source.row(head - 1)[1]


def unpacked(encoded: EncodedTable) -> PackedTable:
    """A table as it would come back from a cache."""
    return unpack_table(packed(encoded))
