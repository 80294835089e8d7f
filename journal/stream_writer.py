"""The writer of a stream: rows are appended to a plain list and become one chunk when it is flushed.

Note  The list is appended to by any thread without a lock. A flush copies the first rows of it, stores
      them, and deletes as many; each of the two is one step for other threads.
Not   where chunks and payload bytes go: the shelf that the writer was begun by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from journal.errors import JournalError
from journal.events.base import At, Event, Row, Seq, StreamId
from journal.events.capture import StreamOpened
from journal.lifecycle import CAPTURE, CAPTURE_INPUTS, CaptureState
from journal.machine import Machine
from journal.payloads import Buffer, PayloadStore
from journal.wire import Chunk, ChunkPacker, Located, require_storable

CHUNK_ROWS: Final = 256
"""Rows that a chunk holds unless each event is to be committed by itself."""


class Progress(NamedTuple):
    """How far a stream has come: where its writer goes on."""

    head: int  # number of the next event
    payloads: int  # number of the next payload
    state: CaptureState


class Store(Protocol):
    """What a writer needs of its shelf; its lock is held around `add` and what goes with it."""

    writers: dict[StreamId, Writer]
    next_seq: int
    is_forked: bool

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def payloads(self) -> PayloadStore: ...
    @property
    def packer(self) -> ChunkPacker: ...

    def check(self) -> None: ...
    def check_writable(self) -> None: ...
    def add(self, chunk: Chunk) -> None: ...
    def recount(self) -> None: ...
    def hold_fresh(self, chunk: Chunk, rows: Sequence[Row]) -> None: ...
    def stored_head(self, stream: StreamId) -> int: ...
    def flushed(self, writer: Writer) -> None: ...
    def commit(self) -> None: ...
    def let_go(self, writer: Writer) -> None: ...


class Writer:
    """The one implementation of `StreamWriter`."""

    def __init__(
        self,
        shelf: Store,
        stream: StreamId,
        opened: StreamOpened,
        chunk_size: int,
        durability: str,
        progress: Progress,
    ) -> None:
        self.shelf = shelf
        self.stream = stream
        self.opened = opened
        self.chunk_size = chunk_size
        self.durability = durability
        self.pending: list[Row] = []
        self.kept: list[Located] = []  # payloads whose place is in no chunk yet
        self.payload_end = progress.payloads
        self.stored = progress.head  # events in chunks; with the pending ones, all
        self.counting = Lock()  # held while stored and pending, or kept and payload_end, change together
        self.cut: tuple[Chunk, Row, Located | None] | None = None  # chunk being stored, the first it takes of each list
        self.machine: Machine[CaptureState] = Machine(CAPTURE, progress.state)
        self.user: object = None  # who closes it, and is held while it is open
        self.is_closing = False  # asked to close, which the disk may have refused so far
        self.is_patient = False
        self.refusal: JournalError | None = None
        self.num_unstored = 0  # payloads whose bytes were refused
        self.closed = False

    @property
    def state(self) -> CaptureState:
        return self.machine.state

    @property
    def progress(self) -> Progress:
        with self.counting:
            return Progress(self.stored + len(self.pending), self.payload_end, self.state)

    def next_at(self) -> At:
        self.check_process()
        with self.counting:
            return At(self.stored + len(self.pending))

    def append(self, event: Event, time_ns: int | None = None) -> At:
        self.check()
        row = event.row(time.monotonic_ns() if time_ns is None else time_ns)
        require_storable(row)
        if type(event) in CAPTURE_INPUTS:
            self.machine.step(event)
        with self.counting:
            if self.closed:  # by another thread since it was checked: the row would never be stored
                raise self.refused()
            at = At(self.stored + len(self.pending))
            self.pending.append(row)
        if len(self.pending) >= self.chunk_size:
            self.flush()
        return at

    def check(self) -> None:
        self.shelf.check_writable()
        if self.closed:
            raise self.refused()

    def check_process(self) -> None:
        """Refuse in a forked child, where a lock that another thread held is never given back."""
        if self.shelf.is_forked:
            self.shelf.check()

    def refused(self) -> JournalError:
        return JournalError(
            code="stream_closed",
            problem=f"the writer of stream {self.stream} was closed",
            remedy="append before it is closed, or open a new stream",
            stream=self.stream,
        )

    def flush(self) -> None:
        if not self.pending:
            self.shelf.check()
            return
        self.shelf.check_writable()
        with self.shelf.lock:
            if self.closed and self.pending:
                raise self.refused()
            self.cut_chunks()
            if self.refusal is None:
                self.commit_if_due()

    def cut_chunks(self) -> None:
        """Give the pending rows to the shelf, whose lock is held, as chunks."""
        shelf = self.shelf
        if self.cut is not None:  # an interrupt fell into the last flush
            shelf.recount()
            if shelf.stored_head(self.stream) >= self.cut[0].end_at:
                self.finish(*self.cut)
            self.cut = None
        left = len(self.pending)
        while left > 0:
            rows = self.pending[: min(left, CHUNK_ROWS * 16)]
            with self.counting:  # after the rows were taken: what they name was kept before they were appended
                kept, payload_end = tuple(self.kept), self.payload_end
            chunk = shelf.packer.chunk(rows, Seq(shelf.next_seq), self.stream, At(self.stored), payload_end, kept)
            self.cut = (chunk, rows[0], kept[0] if kept else None)
            shelf.add(chunk)
            if shelf.packer.is_exact:
                shelf.hold_fresh(chunk, rows[: chunk.count])
            self.finish(*self.cut)
            left -= chunk.count

    def commit_if_due(self) -> None:
        try:
            self.shelf.flushed(self)
        except JournalError as exc:
            self.endure(exc)

    def endure(self, refusal: JournalError) -> None:
        """Go on with what the disk has not taken, or raise it."""
        if not self.is_patient:
            raise refusal
        self.refusal = self.refusal or refusal

    def finish(self, chunk: Chunk, first: Row, kept: Located | None) -> None:
        """Let go of what a chunk has taken. After an interrupt it is run again, so it looks before it deletes."""
        with self.counting:
            if self.pending and self.pending[0] is first:
                del self.pending[: chunk.count]
            if self.kept and self.kept[0] is kept:
                del self.kept[: len(chunk.payloads)]
            self.stored = chunk.end_at
        self.cut = None

    def commit(self) -> None:
        self.flush()
        self.shelf.commit()

    def keep(self, data: Buffer) -> int:
        number = self.placed(data)
        return self.reserve() if number is None else number

    def store(self, data: Buffer) -> int | None:
        if self.refusal is None:
            return self.placed(data)
        self.num_unstored += 1
        return None

    def placed(self, data: Buffer) -> int | None:
        """The number of a payload whose bytes the disk has taken; None where a patient writer is refused."""
        self.check()
        try:
            place = self.shelf.payloads.write(data)
        except JournalError as exc:
            self.endure(exc)
            self.num_unstored += 1
            return None
        with self.counting:
            number = self.payload_end
            located = Located(number, *place)
            self.payload_end = number + 1  # first: a number without bytes may be, bytes without a number may not
            self.kept.append(located)
        return number

    def reserve(self) -> int:
        self.check_process()
        with self.counting:
            number = self.payload_end
            self.payload_end = number + 1
        return number

    def close(self) -> None:
        if self.shelf.is_forked:
            return
        if not self.closed:
            self.is_closing = True
            self.commit()  # what takes long, while other threads append on
            self.end()
        if self.closed:
            self.user = None
            self.shelf.let_go(self)

    def end(self) -> None:
        """Let nothing more be appended and commit the last rows; where that is refused, the writer goes on."""
        with self.shelf.lock:  # for which a flush of another thread waits
            if self.closed or not self.is_closing:  # another thread closed it, or goes on with it
                return
            try:
                with self.counting:
                    self.closed = True
                self.cut_chunks()
                self.shelf.commit()
            except BaseException:
                self.closed = False
                raise
