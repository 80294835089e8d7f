"""Chunks in memory, found by stream and number or by seq."""

from __future__ import annotations

from bisect import bisect_right

from journal.events.base import StreamId
from journal.wire import Chunk


class ChunkList:
    """Chunks in memory, found by stream and number."""

    def __init__(self) -> None:
        self.of: dict[StreamId, list[Chunk]] = {}
        self.all: list[Chunk] = []  # by seq; an interrupt may have left one that is not in `of`

    def add(self, chunk: Chunk) -> None:
        while self.all and self.all[-1].first_seq >= chunk.first_seq:
            self.all.pop()
        self.all.append(chunk)
        self.of.setdefault(chunk.stream, []).append(chunk)

    def find_seq(self, seq: int) -> Chunk | None:
        place = bisect_right(self.all, seq, key=lambda chunk: chunk.first_seq) - 1
        return self.all[place] if place >= 0 and seq < self.all[place].end_seq else None

    def find(self, stream: StreamId, at: int) -> Chunk | None:
        chunks = self.of.get(stream)
        if not chunks:
            return None
        place = bisect_right(chunks, at, key=lambda chunk: chunk.first_at) - 1
        return chunks[place] if place >= 0 and at < chunks[place].end_at else None

    def head(self, stream: StreamId) -> int:
        chunks = self.of.get(stream)
        return chunks[-1].end_at if chunks else 0

    def start(self, stream: StreamId) -> int | None:
        chunks = self.of.get(stream)
        return chunks[0].first_at if chunks else None

    def in_order(self) -> list[Chunk]:
        return sorted((chunk for chunks in self.of.values() for chunk in chunks), key=lambda chunk: chunk.first_seq)

    def end_seq(self) -> int:
        return max((chunks[-1].end_seq for chunks in self.of.values() if chunks), default=0)
