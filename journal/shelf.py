"""Where the chunks and payloads of a journal go: the part that every user and writer of it shares.

Reads  chunks by stream and number, through the parents of a branch, or by seq.
Not    where they are stored: a subclass says so (memory_journal.py, environment.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from threading import RLock
from typing import Final

from journal.errors import JournalError, malformed
from journal.events.base import At, Row, StreamId, event_class
from journal.events.capture import StreamOpened
from journal.lifecycle import CAPTURE_INPUTS, CaptureState, state_after
from journal.lineage import (
    FROM_NOTHING,
    Origin,
    Run,
    holder_of,
    origin_of,
    require_branch_point,
    runs,
    stream_malformed,
)
from journal.payloads import PayloadStore
from journal.stream_writer import Progress, Writer
from journal.wire import Chunk, ChunkPacker, Envelope, Located, event_of, read_envelope

FRESH_ROWS: Final = 4096
"""As many of the newest rows are held as they were appended, until they are first read."""

MOVING: Final = frozenset(kind.event_name for kind in CAPTURE_INPUTS if not isinstance(kind, Enum))
"""Names of the events that move a capture."""


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
        self.left: dict[StreamId, tuple[StreamOpened, Progress]] = {}  # as its last writer here left a stream
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
            writer = self.writers[stream] = Writer(
                self, stream, opened, chunk_size, durability, Progress(origin.at, origin.payloads, state)
            )
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

    def go_on(self, stream: StreamId, chunk_size: int, durability: str) -> Writer:
        """A writer that goes on with a stream; one that the disk has kept from closing is taken back."""
        self.check_writable()
        with self.lock:
            writer = self.writers.get(stream)
            if writer is None or writer.closed:
                opened, progress = self.progress(stream)
                writer = Writer(self, stream, opened, chunk_size, durability, progress)
                self.writers[stream] = writer
            elif writer.is_closing or writer.user is None:  # an interrupt came before it was handed out
                writer.is_closing = False
            else:
                raise JournalError(
                    code="stream_open",
                    problem=f"stream {stream} has a writer that is not closed",
                    remedy="append to that one, or close it first",
                    stream=stream,
                )
        return writer

    def progress(self, stream: StreamId) -> tuple[StreamOpened, Progress]:
        """The header of a stream that has no writer, and how far the stream has come.

        Nothing is read where it is as its last writer here left it. Payload numbers that this process has given
        out are not given again, also where no stored event tells of them.
        """
        head, known = self.head(stream), self.left.get(stream)
        if known is not None and known[1].head == head:
            return known
        opened, _ = self.header(stream, self.origin(stream).at)
        payloads = next(self.envelopes(stream, head - 1, head)).payload_end
        if known is not None:
            payloads = max(payloads, known[1].payloads)
        return opened, Progress(head, payloads, self.state_at(stream, head))

    def let_go(self, writer: Writer) -> None:
        """A writer was closed; where another one goes on with its stream, that one stays."""
        with self.lock:
            if self.writers.get(writer.stream) is writer:
                self.left[writer.stream] = writer.opened, writer.progress
                del self.writers[writer.stream]

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
        self.check()  # before the lock: a forked child would wait for it for ever
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
