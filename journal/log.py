"""The journal as a protocol, and what all journals share.

A stream is written through a `StreamWriter`: rows are appended to a plain list and become one chunk when
it is flushed. Journals differ only in where chunks and payload bytes go
(memory_log.py, environment.py).

Note  The list is appended to by any thread without a lock. A flush copies the first rows of it, stores
      them, and deletes as many; each of the two is one step for other threads.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from threading import Lock, RLock
from typing import Final, Protocol

import attrs

from journal.errors import JournalError
from journal.events.base import At, Event, Row, Seq, Stamped, StreamId, event_class
from journal.events.capture import StreamOpened
from journal.lifecycle import CAPTURE, CAPTURE_INPUTS, CaptureState, state_after
from journal.lineage import (
    FROM_NOTHING,
    Origin,
    Run,
    header_of,
    holder_of,
    origin_of,
    require_branch_point,
    runs,
    stream_malformed,
)
from journal.machine import Machine
from journal.payloads import Buffer, Lender, PayloadStore
from journal.wire import UNREADABLE, Chunk, ChunkPacker, Envelope, Located, event_of, malformed, read_envelope

CHUNK_ROWS: Final = 256
"""Rows that a chunk holds unless each event is to be committed by itself."""

FRESH_ROWS: Final = 4096
"""As many of the newest rows are held as they were appended, until they are first read."""


MOVING: Final = frozenset(kind.event_name for kind in CAPTURE_INPUTS if not isinstance(kind, Enum))
"""Names of the events that move a capture."""


@attrs.define(frozen=True, slots=True)
class StreamInfo:
    """A stream as a journal lists it."""

    stream: StreamId
    opened: StreamOpened
    head: int  # number of its events


@attrs.define(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied.

    Attributes:
        numbers: Number there of each stream, the parents that were brought along included.
        events: Events of these streams, each counted where it is stored and not in the branches that read it.
        payloads: Payloads that have their bytes there.
        payload_bytes: How many bytes they have.
        payloads_missing: Payloads that have none there: lost, damaged, or held nowhere.
    """

    numbers: Mapping[StreamId, StreamId]
    events: int
    payloads: int
    payload_bytes: int
    payloads_missing: int

    @property
    def streams(self) -> int:
        """Number of streams copied."""
        return len(self.numbers)


class StreamWriter(Protocol):
    """Appends to one stream."""

    stream: StreamId
    pending: list[Row]  # rows appended but not yet a chunk; may be appended to directly
    chunk_size: int  # flush when pending holds as many
    is_patient: bool  # what the disk refuses to `append`, `flush` and `keep` is not raised but kept in `refusal`
    refusal: JournalError | None  # the first of these; from then on only `keep`, `commit` and `close` ask the disk
    num_unstored: int  # payloads whose bytes were refused

    @property
    def state(self) -> CaptureState:
        """How far the capture has come, by the events given to `append`."""
        ...

    def next_at(self) -> At:
        """Number of the next event."""
        ...

    def append(self, event: Event, time_ns: int | None = None) -> At:
        """Append any event and tell its number, exact while no other thread appends.

        Args:
            event: An input of the capture's machine is stepped first.
            time_ns: On the monotonic clock; now, by default.

        Raises:
            IllegalTransition: `illegal_transition`; nothing is appended then.
            JournalError: `stream_closed`, `journal_forked`, and what `flush` raises.
        """
        ...

    def flush(self) -> None:
        """Make a chunk of the pending rows, and commit if that is due.

        Raises:
            JournalError: `journal_write_failed`, `journal_full`; rows are kept and written next time.
        """
        ...

    def commit(self) -> None:
        """Flush, and make everything so far as durable as the journal promises."""
        ...

    def keep(self, data: Buffer) -> int:
        """Store a copy of any contiguous buffer's bytes and give the payload its number.

        Where a patient writer is refused, the number has no bytes.
        """
        ...

    def store(self, data: Buffer) -> int | None:
        """As `keep`; None, and no number, where a patient writer is refused."""
        ...

    def reserve(self) -> int:
        """A payload number without bytes: its tensor is held live by the capturing process."""
        ...

    def close(self) -> None:
        """Commit and append no more. Closing twice is nothing."""
        ...


class Journal(Protocol):
    """A store of streams."""

    @property
    def path(self) -> str | None:
        """Directory of the journal; None for one in memory."""
        ...

    @property
    def id(self) -> bytes | None:
        """What tells the journal from every other, for good; None for one in memory."""
        ...

    def open_stream(self, opened: StreamOpened, time_ns: int | None = None) -> StreamWriter:
        """Begin a stream with this event, at a time of the monotonic clock; now, by default.

        The event is number 0 or, for a branch, has the number of its branch point: the events before are the
        parent's, also when they are read, and the parent may go on by itself.

        Raises:
            JournalError: `branch_point_invalid`, `stream_unknown` for the parent; `journal_read_only`.
        """
        ...

    def streams(self) -> list[StreamInfo]:
        """All streams, in the order they were opened."""
        ...

    def head(self, stream: StreamId) -> int:
        """Number of events of a stream that can be read.

        Raises:
            JournalError: `stream_unknown`.
        """
        ...

    def rows(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Sequence[Row]]:
        """Runs of rows from ``start`` to before ``stop``, or to the head as it is now."""
        ...

    def events(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Stamped]:
        """The same, as events with their places; those before a branch point have their place in the parent."""
        ...

    def since(self, seq: int) -> Iterator[Stamped]:
        """Every event from ``seq`` to the last one that there is now, of all streams, in the order of seq.

        Rows that are pending in this process get their seq by this.
        """
        ...

    def news(self) -> Hashable:
        """A mark that has changed when there is more to read. It costs little to ask, and nothing is held."""
        ...

    def is_written(self) -> bool:
        """Whether more may be appended: a writer is open, or on disk, some process has the journal open for writing."""
        ...

    def payload(self, stream: StreamId, number: int) -> memoryview | bytes:
        """The bytes of a payload, checked against their digest. A copy may be avoided where they are writable.

        Raises:
            JournalError: `payload_unknown`, `payload_not_stored`, `payload_lost`, `payload_damaged`.
        """
        ...

    def payload_size(self, stream: StreamId, number: int) -> int | None:
        """Number of bytes, or None where none are stored."""
        ...

    def lend(self, stream: StreamId, lender: Lender) -> None:
        """Ask ``lender`` for the bytes of a stream's reserved payloads when it is copied."""
        ...

    def copy_to(self, path: str | os.PathLike[str]) -> Copied:
        """Append all streams to the journal at ``path``, which is made if it is missing.

        Raises:
            JournalError: `copy_onto_itself`, and what opening, reading and writing raise. A copy that did
                not end is listed by `unfinished_copies` of the target.
        """
        ...

    def unfinished_copies(self) -> list[int]:
        """First seq of each copy into this journal that was begun and did not end."""
        ...

    def close(self) -> None:
        """Close the writers opened here and let go of the journal. Closing twice is nothing."""
        ...


# What all journals share --------------------------------------------------------------------------


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


class PayloadIndex:
    """Where the payloads of one stream are, as far as its chunks have been read."""

    __slots__ = ("at", "end", "places")

    def __init__(self, origin: Origin) -> None:
        self.at: int = origin.at
        self.end = origin.payloads
        self.places: dict[int, Located] = {}


class Shelf:
    """Where the chunks and payloads of a journal go: the part that every user and writer of it shares.

    A subclass says how chunks are stored, found and committed. Its lock is held around every method
    that takes or changes chunks.
    """

    def __init__(self, payloads: PayloadStore) -> None:
        self.lock = RLock()
        self.payloads = payloads
        self.packer = ChunkPacker()
        self.writers: dict[StreamId, Writer] = {}
        self.indexes: dict[StreamId, PayloadIndex] = {}
        self.origins: dict[StreamId, Origin] = {}
        self.started: dict[StreamId, CaptureState] = {}  # state in which a stream's own events begin
        self.fresh: dict[tuple[StreamId, int], Sequence[Row]] = {}  # by stream and first event, oldest first
        self.fresh_rows = 0
        self.next_seq = 0
        self.written_by: str | None = None
        self.is_forked = False

    def check(self) -> None:
        """Refuse when the journal cannot be used any more."""

    def check_writable(self) -> None:
        """Refuse when nothing may be appended."""

    def add(self, chunk: Chunk) -> None:
        """Take a chunk that follows on the last one; `next_seq` moves last."""
        raise NotImplementedError

    def recount(self) -> None:
        """Set `next_seq` from the chunks taken, after an interrupt may have cut `add` short."""
        raise NotImplementedError

    def find(self, stream: StreamId, at: int) -> bytes | None:
        """The stored chunk that holds event ``at`` of a stream."""
        raise NotImplementedError

    def find_seq(self, seq: int) -> bytes | None:
        """The stored chunk that holds event ``seq`` of the journal."""
        raise NotImplementedError

    def end_seq(self) -> int:
        """Number of events of the journal that are in chunks."""
        raise NotImplementedError

    def stored_head(self, stream: StreamId) -> int:
        """Number of events of a stream that are in chunks, those before its branch point included."""
        raise NotImplementedError

    def stored_start(self, stream: StreamId) -> int | None:
        """Number of the first event of a stream that is in a chunk of its own; None where there is none."""
        raise NotImplementedError

    def stream_count(self) -> int:
        """Streams are numbered from 0 to before this."""
        raise NotImplementedError

    def news(self) -> Hashable:
        """See `Journal.news`; this is what is known within the process."""
        return self.next_seq, sum(len(writer.pending) for writer in list(self.writers.values()))

    def is_written(self) -> bool:
        """See `Journal.is_written`; this is what is known within the process."""
        return bool(self.writers)

    def flushed(self, writer: Writer) -> None:
        """A writer has added chunks: commit if its policy says so."""

    def commit(self) -> None:
        """Make every chunk taken so far durable."""

    def is_due(self) -> bool:
        """Whether so much waits that it should be committed."""
        return False

    def begin_copy(self) -> int:
        """Say that streams are copied in from the next seq on, until `end_copy` is given that number."""
        return self.next_seq

    def end_copy(self, first_seq: int) -> None:
        """Say that everything was copied that `begin_copy` announced."""

    def unfinished_copies(self) -> list[int]:
        """See `Journal.unfinished_copies`."""
        return []

    # writing

    def begin(self, opened: StreamOpened, time_ns: int | None, chunk_size: int, durability: str) -> Writer:
        self.check_writable()
        with self.lock:
            origin, state = self.begun(opened)
            stream = StreamId(self.stream_count())
            self.written_by = opened.written_by
            self.origins[stream], self.started[stream] = origin, state
            writer = self.writers[stream] = Writer(self, stream, opened, chunk_size, durability, origin, state)
            try:
                writer.append(opened, time_ns)
                writer.flush()  # a chunk of its own, so that listing streams reads little
            except BaseException:
                self.withdraw(stream)
                raise
        return writer

    def withdraw(self, stream: StreamId) -> None:
        """Forget the newest stream, whose beginning was refused."""
        del self.writers[stream], self.origins[stream], self.started[stream]

    def begun(self, opened: StreamOpened) -> tuple[Origin, CaptureState]:
        """How a stream with this header begins, and the state of its capture then."""
        require_branch_point(opened, self.head)
        if opened.parent is None or opened.branched_at is None:
            return FROM_NOTHING, CaptureState.IDLE
        holder, _, stop = self.runs(opened.parent, opened.branched_at - 1, opened.branched_at)[0]
        payloads = next(self.envelopes(holder, stop - 1, stop)).payload_end
        return Origin(opened.parent, opened.branched_at, payloads), self.state_at(holder, stop)

    def state_at(self, stream: StreamId, at: int) -> CaptureState:
        """The state of a stream's capture after its first ``at`` events."""
        state, known = CaptureState.IDLE, self.started
        back: list[Run] = []  # from the last stream to the first, or to one whose beginning is known
        while True:
            parent, start, _ = self.origin(stream)
            if at > start:
                back.append(Run(stream, start, at))
                at = start
                if stream in known:
                    state = known[stream]
                    break
            if parent is None:
                break
            stream = parent
        for run in reversed(back):
            known[run.stream] = state
            for envelope in self.envelopes(run.stream, run.start, run.stop):
                if not MOVING.isdisjoint([name for _, name, _ in envelope.types]):  # else its rows need no decoding
                    rows = envelope.rows(self.written_by)[: run.stop - envelope.first_at]
                    state = state_after(state, [event_class(row[0]) for row in rows])
        return state

    def flush_all(self) -> None:
        """Make chunks of everything that is pending in this process."""
        with self.lock:
            for writer in list(self.writers.values()):
                writer.flush()

    # reading

    def head(self, stream: StreamId) -> int:
        self.check()
        with self.lock:
            writer = self.writers.get(stream)
            head = self.stored_head(stream) if writer is None else writer.next_at()
        if head == 0:
            raise JournalError(
                code="stream_unknown",
                problem=f"the journal has no stream {stream}",
                remedy="streams() lists those it has",
                stream=stream,
            )
        return head

    def origin(self, stream: StreamId) -> Origin:
        """How a stream begins. A header is only read where its number says that it is a branch's.

        Raises:
            JournalError: `stream_malformed`.
        """
        known = self.origins.get(stream)
        if known is None:
            with self.lock:
                at = self.stored_start(stream)
                known = FROM_NOTHING if not at else self.header(stream, At(at))[1]
                if at is not None:
                    self.origins[stream] = known
        return known

    def header(self, stream: StreamId, at: At) -> tuple[StreamOpened, Origin]:
        """The header of a stream, which is its event ``at``."""
        envelope = next(self.envelopes(stream, at, at + 1))
        opened = event_of(envelope.rows(self.written_by)[0])
        if not isinstance(opened, StreamOpened):
            raise stream_malformed(stream, "does not begin with its header")
        return opened, origin_of(stream, opened, at, envelope.payload_end, self.stored_head)

    def runs(self, stream: StreamId, start: int, stop: int | None) -> list[Run]:
        """Where the events of a stream are that can be read now."""
        head = self.head(stream)
        return runs(self.origin, stream, start, head if stop is None else min(stop, head))

    def hold_fresh(self, chunk: Chunk, rows: Sequence[Row]) -> None:
        """Hold the rows of a chunk, which the capturing process usually reads next, to save decoding them."""
        self.fresh[chunk.stream, chunk.first_at] = rows
        self.fresh_rows += chunk.count
        while self.fresh_rows > FRESH_ROWS:
            self.fresh_rows -= len(self.fresh.pop(next(iter(self.fresh))))

    def take_fresh(self, stream: StreamId, at: int) -> Sequence[Row] | None:
        """The held rows of the chunk that begins at ``at``, once."""
        with self.lock:
            rows = self.fresh.pop((stream, at), None)
            if rows is not None:
                self.fresh_rows -= len(rows)
            return rows

    def envelopes(self, stream: StreamId, start: int, stop: int | None) -> Iterator[Envelope]:
        """The chunks of a stream's own events."""
        head = self.head(stream)
        stop = head if stop is None else min(stop, head)
        at = max(0, start)
        while at < stop:
            with self.lock:
                data = self.find(stream, at)
                if data is None:  # it is still pending in this process
                    writer = self.writers.get(stream)
                    if writer is not None:
                        writer.flush()
                    data = self.find(stream, at)
            if data is None:
                raise malformed("chunk_missing", f"no chunk holds event {at} of stream {stream}")
            envelope = read_envelope(data, self.written_by)
            if envelope.stream != stream or not envelope.first_at <= at < envelope.end_at:
                raise malformed("chunk_malformed", f"the chunk of event {at} of stream {stream} is another one")
            yield envelope
            at = envelope.end_at

    def places(self, stream: StreamId) -> PayloadIndex:
        with self.lock:
            index = self.indexes.get(stream)
            if index is None:
                index = self.indexes[stream] = PayloadIndex(self.origin(stream))
            head = self.stored_head(stream)
            if index.at < head:
                for envelope in self.envelopes(stream, index.at, head):
                    index.places.update((located.number, located) for located in envelope.payloads)
                    index.end = envelope.payload_end
                    index.at = envelope.end_at
            return index

    def located(self, stream: StreamId, number: int) -> Located | None:
        """The place of a payload; None for one whose number was only reserved.

        Raises:
            JournalError: `payload_unknown`, `stream_unknown`.
        """
        self.head(stream)
        stream = holder_of(self.origin, stream, number)
        with self.lock:
            writer = self.writers.get(stream)
            index = self.places(stream)
            end = index.end if writer is None else writer.payload_end
            place = index.places.get(number)
            if place is None and writer is not None:
                place = next((kept for kept in list(writer.kept) if kept.number == number), None)
        if place is None and not 0 <= number < end:
            raise JournalError(
                code="payload_unknown",
                problem=f"stream {stream} has no payload {number}",
                remedy=f"it has {end} payloads, numbered from 0" if end else "it has none",
                stream=stream,
                number=number,
            )
        return place


class Writer:
    """The one implementation of `StreamWriter`."""

    def __init__(
        self,
        shelf: Shelf,
        stream: StreamId,
        opened: StreamOpened,
        chunk_size: int,
        durability: str,
        origin: Origin,
        state: CaptureState,
    ) -> None:
        self.shelf = shelf
        self.stream = stream
        self.opened = opened
        self.chunk_size = chunk_size
        self.durability = durability
        self.pending: list[Row] = []
        self.kept: list[Located] = []  # payloads whose place is in no chunk yet
        self.payload_end = origin.payloads
        self.stored: int = origin.at  # events in chunks; with the pending ones, all
        self.counting = Lock()  # held while stored and pending, or kept and payload_end, change together
        self.cut: tuple[Chunk, Row, Located | None] | None = None  # chunk being stored, the first it takes of each list
        self.machine: Machine[CaptureState] = Machine(CAPTURE, state)
        self.user: JournalUser | None = None  # who opened it, and is held while it is open
        self.is_closing = False  # asked to close, which the disk may have refused so far
        self.is_patient = False
        self.refusal: JournalError | None = None
        self.num_unstored = 0  # payloads whose bytes were refused
        self.closed = False

    @property
    def state(self) -> CaptureState:
        return self.machine.state

    def next_at(self) -> At:
        with self.counting:
            return At(self.stored + len(self.pending))

    def append(self, event: Event, time_ns: int | None = None) -> At:
        self.check()
        if type(event) in CAPTURE_INPUTS:
            self.machine.step(event)
        row = event.row(time.monotonic_ns() if time_ns is None else time_ns)
        with self.counting:
            at = At(self.stored + len(self.pending))
            self.pending.append(row)
        if len(self.pending) >= self.chunk_size:
            self.flush()
        return at

    def check(self) -> None:
        self.shelf.check_writable()
        if self.closed:
            raise JournalError(
                code="stream_closed",
                problem=f"the writer of stream {self.stream} was closed",
                remedy="append before it is closed, or open a new stream",
                stream=self.stream,
            )

    def flush(self) -> None:
        if not self.pending:
            self.shelf.check()
            return
        self.check()
        shelf = self.shelf
        with shelf.lock:
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
            if self.refusal is None:
                self.commit_if_due()

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
            self.kept.append(Located(number, *place))
            self.payload_end = number + 1
        return number

    def reserve(self) -> int:
        with self.counting:
            number = self.payload_end
            self.payload_end = number + 1
        return number

    def close(self) -> None:
        if self.closed:
            return
        if self.shelf.is_forked:
            return
        self.is_closing = True
        self.commit()
        self.closed = True
        self.user = None
        self.shelf.writers.pop(self.stream, None)


class JournalUser:
    """What a user of a journal holds: reading for all journals, and its own writers."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.opened_here: list[Writer] = []
        self.lenders: dict[StreamId, Lender] = {}

    def begin(self, opened: StreamOpened, time_ns: int | None, chunk_size: int, durability: str) -> Writer:
        self.opened_here = [writer for writer in self.opened_here if not writer.closed]
        writer = self.shelf.begin(opened, time_ns, chunk_size, durability)
        writer.user = self
        self.opened_here.append(writer)
        return writer

    def check(self) -> None:
        """Refuse when this user has let go of the journal, or it cannot be used any more."""
        self.shelf.check()

    def streams(self) -> list[StreamInfo]:
        self.check()
        with self.shelf.lock:
            writers = dict(self.shelf.writers)
            count = self.shelf.stream_count()
        # Lazily: what a journal says of itself may be any number, and the first stream that is missing is told.
        return [self.info(StreamId(stream), writers.get(StreamId(stream))) for stream in range(count)]

    def info(self, stream: StreamId, writer: Writer | None) -> StreamInfo:
        head = self.head(stream)
        if writer is not None:
            return StreamInfo(stream, writer.opened, head)
        return StreamInfo(stream, self.shelf.header(stream, At(self.shelf.stored_start(stream) or 0))[0], head)

    def head(self, stream: StreamId) -> int:
        self.check()
        return self.shelf.head(stream)

    def rows(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Sequence[Row]]:
        self.check()
        for holder, at, end in self.shelf.runs(stream, start, stop):
            while at < end:
                rows = self.shelf.take_fresh(holder, at)
                if rows is None:
                    envelope = next(self.shelf.envelopes(holder, at, at + 1))
                    rows = self.decoded(envelope)
                    if at > envelope.first_at:
                        rows = rows[at - envelope.first_at :]
                yield rows if len(rows) <= end - at else rows[: end - at]
                at += len(rows)

    def events(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Stamped]:
        self.check()
        for run in self.shelf.runs(stream, start, stop):
            for envelope in self.shelf.envelopes(run.stream, run.start, run.stop):
                first, end = run.start - envelope.first_at, run.stop - envelope.first_at
                yield from self.stamped(envelope, max(0, first), min(envelope.count, end))

    def since(self, seq: int) -> Iterator[Stamped]:
        self.check()
        shelf = self.shelf
        shelf.flush_all()
        at, stop = max(0, seq), shelf.end_seq()
        while at < stop:
            self.check()
            with shelf.lock:
                data = shelf.find_seq(at)
            envelope = None if data is None else read_envelope(data)
            if envelope is None or not envelope.first_seq <= at < envelope.first_seq + envelope.count:
                raise malformed("chunk_missing", f"no chunk holds event {at} of the journal")
            first, end = at - envelope.first_seq, min(envelope.count, stop - envelope.first_seq)
            yield from self.stamped(envelope, first, end)
            at = envelope.first_seq + end

    def stamped(self, envelope: Envelope, first: int, end: int) -> Iterator[Stamped]:
        """Some events of a chunk, with their places."""
        rows = self.decoded(envelope)
        for place in range(first, end):
            row = rows[place]
            seq, at = Seq(envelope.first_seq + place), At(envelope.first_at + place)
            yield Stamped(seq, envelope.stream, at, row[1], event_of(row))

    def lend(self, stream: StreamId, lender: Lender) -> None:
        self.lenders[stream] = lender

    def unfinished_copies(self) -> list[int]:
        self.check()
        return self.shelf.unfinished_copies()

    def news(self) -> Hashable:
        self.check()
        return self.shelf.news()

    def is_written(self) -> bool:
        self.check()
        return self.shelf.is_written()

    def decoded(self, envelope: Envelope) -> Sequence[Row]:
        """The rows of a chunk. A refusal names the version that wrote its stream, which reads them."""
        try:
            return envelope.rows(self.shelf.written_by)
        except JournalError as exc:
            if exc.code not in UNREADABLE:
                raise
        return envelope.rows(self.author(envelope.stream))

    def author(self, stream: StreamId) -> str | None:
        """Version of the package that wrote a stream; where its header is not readable, that of the newest stream."""
        opened: StreamOpened | None = None
        with suppress(JournalError):
            start = self.shelf.origin(stream).at
            opened = header_of(next(self.shelf.envelopes(stream, start, start + 1)), self.shelf.written_by)
        return self.shelf.written_by if opened is None else opened.written_by

    def payload(self, stream: StreamId, number: int) -> memoryview | bytes:
        self.check()
        located = self.shelf.located(stream, number)
        if located is None:
            raise JournalError(
                code="payload_not_stored",
                problem=f"the bytes of payload {number} were never stored; its tensor is held by the capture alone",
                remedy="read it while the capture is live, or capture with its bytes kept",
                stream=stream,
                number=number,
            )
        return self.shelf.payloads.read(located)

    def payload_size(self, stream: StreamId, number: int) -> int | None:
        self.check()
        located = self.shelf.located(stream, number)
        return None if located is None else located.nbytes
