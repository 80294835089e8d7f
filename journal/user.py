"""One user of a journal: it reads all of it, and closes the writers that it has."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress

from journal.errors import JournalError, malformed
from journal.events.base import At, Row, Seq, Stamped, StreamId
from journal.events.capture import StreamOpened
from journal.lineage import header_of
from journal.payloads import Lender
from journal.protocol import StreamInfo
from journal.shelf import Shelf
from journal.stream_writer import Writer
from journal.upcasting import UNREADABLE
from journal.wire import Envelope, event_of, read_envelope


class JournalUser:
    """What a user of a journal holds: reading for all journals, and its own writers."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.writers: list[Writer] = []
        self.lenders: dict[StreamId, Lender] = {}

    def begin(self, opened: StreamOpened, time_ns: int | None, chunk_size: int, durability: str) -> Writer:
        return self.hold(self.shelf.begin(opened, time_ns, chunk_size, durability))

    def go_on(self, stream: StreamId, chunk_size: int, durability: str) -> Writer:
        return self.hold(self.shelf.go_on(stream, chunk_size, durability))

    def hold(self, writer: Writer) -> Writer:
        """Close a writer when this user lets go of the journal."""
        self.writers = [one for one in self.writers if one.user is self and one is not writer]
        try:
            writer.user = self
            self.writers.append(writer)
        except BaseException:  # an interrupt: nobody will have it
            writer.user = None
            raise
        return writer

    def close_writers(self) -> None:
        for writer in self.writers:
            if writer.user is self:  # else it was closed, or another user goes on with it
                writer.close()

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

    def lender(self, stream: StreamId) -> Lender | None:
        return self.lenders.get(stream)

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
