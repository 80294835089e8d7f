"""The journal in memory: chunks and payload bytes that live as long as the process."""

from __future__ import annotations

import os

from journal.chunk_list import ChunkList
from journal.copying import copy_streams
from journal.events.base import StreamId
from journal.events.capture import StreamOpened
from journal.lmdb_journal import open_copy
from journal.payloads import MemoryPayloads
from journal.protocol import Copied
from journal.shelf import Shelf
from journal.stream_writer import CHUNK_ROWS, Writer
from journal.user import JournalUser
from journal.wire import Chunk


class MemoryShelf(Shelf):
    """Chunks in a list."""

    def __init__(self) -> None:
        super().__init__(MemoryPayloads())
        self.chunks = ChunkList()

    def add(self, chunk: Chunk) -> None:
        self.chunks.add(chunk)
        self.next_seq = chunk.end_seq

    def recount(self) -> None:
        self.next_seq = self.chunks.end_seq()

    def find(self, stream: StreamId, at: int) -> bytes | None:
        chunk = self.chunks.find(stream, at)
        return None if chunk is None else chunk.data

    def find_seq(self, seq: int) -> bytes | None:
        chunk = self.chunks.find_seq(seq)
        return None if chunk is None else chunk.data

    def end_seq(self) -> int:
        return self.next_seq

    def stored_head(self, stream: StreamId) -> int:
        return self.chunks.head(stream)

    def stored_start(self, stream: StreamId) -> int | None:
        return self.chunks.start(stream)

    def stream_count(self) -> int:
        return len(self.chunks.of)


class MemoryJournal(JournalUser):
    """A journal that lives as long as the process. Payloads it gives may not be written to."""

    def __init__(self) -> None:
        super().__init__(MemoryShelf())

    @property
    def path(self) -> None:
        return None

    @property
    def id(self) -> None:
        return None

    def open_stream(self, opened: StreamOpened, time_ns: int | None = None) -> Writer:
        return self.begin(opened, time_ns, CHUNK_ROWS, "close")

    def continue_stream(self, stream: StreamId) -> Writer:
        return self.go_on(stream, CHUNK_ROWS, "close")

    def copy_to(self, path: str | os.PathLike[str]) -> Copied:
        with open_copy(path) as target:
            return copy_streams(self, target)

    def close(self) -> None:
        self.close_writers()
