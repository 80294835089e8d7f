"""Copying streams into another journal: pruning, compaction, and putting a journal in memory on disk.

Bodies stay as they are, byte for byte; envelopes are new, since places of payloads and seqs are the target's.
Chunks of fewer rows than a chunk holds are joined. Streams come one after the other and get the next free numbers
there, so the header's parent, the one number that names a stream, is rewritten where it differs. A branch brings
the streams that it reads through along.

Rule  the source is only read. Payload bytes are checked against their digests on the way; what is lost or
      damaged reads as `payload_lost` in the copy, what was only reserved and cannot be lent as not stored.
Rule  a copy that did not end is marked in the target, from before its first event; so is a copy of one, unless
      only streams were wanted that were there before it began.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import attrs

from journal.errors import JournalError, malformed
from journal.events.base import At, Seq, StreamId
from journal.events.capture import StreamOpened
from journal.lineage import stream_malformed
from journal.payloads import PIECE_BYTES, Lender, Place
from journal.protocol import Copied
from journal.stream_writer import CHUNK_ROWS
from journal.user import JournalUser
from journal.wire import SPLIT_BYTES, ChunkPacker, Envelope, Located, body_of, packed_rows

PARENT: Final = 2 + StreamOpened.fields.index("parent")
"""Where a header's row names its parent."""


def copy_streams(source: JournalUser, target: JournalUser, streams: Iterable[StreamId] | None = None) -> Copied:
    """Append streams of one journal to another, each with all its events and payloads as they are now.

    Args:
        source: Where they are; opened for reading or writing.
        target: Opened for writing.
        streams: Their numbers, in any order; all by default.

    Raises:
        JournalError: `copy_onto_itself`, `stream_unknown`, and what reading and writing raise.
    """
    if source.shelf is target.shelf:
        raise onto_itself()
    unfinished = source.unfinished_copies()
    wanted = with_parents(source, [info.stream for info in source.streams()] if streams is None else streams)
    tally = Tally()
    shelf = target.shelf
    shelf.check_writable()
    begun = shelf.begin_copy()
    try:
        for stream in wanted:
            StreamCopy(source, target, stream, tally).run()
        shelf.commit()
    except BaseException:
        with suppress(JournalError), shelf.lock:
            shelf.recount()  # an interrupt may have cut the taking of a chunk short
            if not tally.events and shelf.next_seq == begun:
                shelf.end_copy(begun)  # nothing was copied, so nothing is unfinished
        raise
    may_lack = unfinished and (streams is None or any(first_seq(source, one) >= min(unfinished) for one in wanted))
    if not may_lack:
        shelf.end_copy(begun)
    return tally.copied()


def first_seq(source: JournalUser, stream: StreamId) -> int:
    """Where in the journal a stream begins."""
    at = source.shelf.origin(stream).at
    return next(source.shelf.envelopes(stream, at, at + 1)).first_seq


def with_parents(source: JournalUser, streams: Iterable[StreamId]) -> list[StreamId]:
    """The streams, their parents and the parents of these, earliest first."""
    found: set[StreamId] = set()
    for stream in streams:
        wanted: StreamId | None = stream
        while wanted is not None and wanted not in found:
            source.head(wanted)  # refuses one that is not there
            found.add(wanted)
            wanted = parent_of(source, wanted)
    return sorted(found)


def parent_of(source: JournalUser, stream: StreamId) -> StreamId | None:
    opened, _ = source.shelf.header(stream, source.shelf.origin(stream).at)
    if opened.parent is not None and not 0 <= opened.parent < stream:
        raise stream_malformed(stream, f"has the parent {opened.parent}, which is no earlier stream")
    return opened.parent


@attrs.define(slots=True)
class Tally:
    """What was copied so far; see `Copied`."""

    numbers: dict[StreamId, StreamId] = attrs.Factory(dict[StreamId, StreamId])
    events: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    payloads_missing: int = 0

    def copied(self) -> Copied:
        return Copied(
            numbers=dict(self.numbers),
            events=self.events,
            payloads=self.payloads,
            payload_bytes=self.payload_bytes,
            payloads_missing=self.payloads_missing,
        )


class StreamCopy:
    """One stream on its way into another journal."""

    def __init__(self, source: JournalUser, target: JournalUser, stream: StreamId, tally: Tally) -> None:
        self.source = source
        self.target = target.shelf
        self.stream = stream
        self.tally = tally
        self.lender: Lender | None = source.lender(stream)
        self.packer: Final = ChunkPacker()
        self.joined: Envelope | None = None  # rows that wait to become a chunk; its body is their packed form
        self.number: StreamId | None = None  # there, from when the header is

    def run(self) -> None:
        shelf = self.source.shelf
        origin, head = shelf.origin(self.stream), self.source.head(self.stream)
        at, given = origin.at, origin.payloads
        stored = 0
        for envelope in shelf.envelopes(self.stream, at, head):
            if envelope.first_at != at or envelope.payload_end < given:
                raise malformed("chunk_malformed", f"the chunk of event {at} of stream {self.stream} is another one")
            placed = self.placed(envelope, given)
            stored += len(placed)
            envelope = attrs.evolve(envelope, payloads=placed)
            if self.number is None:
                self.begin(envelope)
            else:
                self.join(envelope)
            at, given = envelope.end_at, envelope.payload_end
        self.flush()
        self.tally.payloads_missing += given - origin.payloads - stored

    # payloads

    def placed(self, envelope: Envelope, given: int) -> tuple[Located, ...]:
        """The payloads of a chunk, with their bytes in the target."""
        places = [Located(one.number, *self.place(one)) for one in envelope.payloads]
        if self.lender is not None:
            known = {one.number for one in envelope.payloads}
            for number in range(given, envelope.payload_end):
                data = None if number in known else self.lender.lend(number)
                if data is not None:
                    places.append(Located(number, *self.counted(self.target.payloads.write(data))))
        return tuple(sorted(places))

    def place(self, located: Located) -> Place:
        source, target = self.source.shelf.payloads, self.target.payloads
        try:
            if located.nbytes <= PIECE_BYTES:
                return self.counted(target.write(source.read(located)))
            return self.counted(target.write_pieces(located, source.pieces(located)))
        except JournalError as exc:
            if exc.code not in ("payload_lost", "payload_damaged"):
                raise
            self.tally.payloads_missing += 1
            return target.lost()

    def counted(self, place: Place) -> Place:
        self.tally.payloads += 1
        self.tally.payload_bytes += place.nbytes
        return place

    # events

    def begin(self, envelope: Envelope) -> None:
        """The chunk with the header, which stays a chunk of its own."""
        opened, _ = self.source.shelf.header(self.stream, At(envelope.first_at))
        parent = None if opened.parent is None else self.tally.numbers[opened.parent]
        if parent != opened.parent:
            rows = list(envelope.rows(self.source.shelf.written_by))
            rows[0] = (*rows[0][:PARENT], parent, *rows[0][PARENT + 1 :])
            types = self.packer.table(frozenset(row[0] for row in rows))
            envelope = attrs.evolve(envelope, types=types, body=self.packer.body(rows))
        with self.target.lock:
            self.number = StreamId(self.target.stream_count())
            self.target.written_by = opened.written_by
            self.store(envelope)
        self.tally.numbers[self.stream] = self.number

    def join(self, envelope: Envelope) -> None:
        """Put rows behind those that wait, or store these first where both are too many for one chunk."""
        rows = packed_rows(envelope)
        before = self.joined
        if before is not None:
            types = {kind: (name, version) for kind, name, version in before.types}
            agree = all(
                types.setdefault(kind, (name, version)) == (name, version) for kind, name, version in envelope.types
            )
            fits = before.count + envelope.count <= CHUNK_ROWS and len(before.body) + len(rows) <= SPLIT_BYTES
            if agree and fits:
                self.joined = attrs.evolve(
                    before,
                    count=before.count + envelope.count,
                    types=tuple((kind, *named) for kind, named in sorted(types.items())),
                    payload_end=envelope.payload_end,
                    payloads=before.payloads + envelope.payloads,
                    body=before.body + rows,
                )
                return
            self.flush()
        self.joined = attrs.evolve(envelope, body=rows)

    def flush(self) -> None:
        if self.joined is not None:
            self.store(attrs.evolve(self.joined, body=body_of([self.joined.body], self.joined.count)))
            self.joined = None

    def store(self, envelope: Envelope) -> None:
        assert self.number is not None
        shelf = self.target
        with shelf.lock:
            shelf.add(self.packer.enveloped(attrs.evolve(envelope, first_seq=Seq(shelf.next_seq), stream=self.number)))
            self.tally.events += envelope.count
            if shelf.is_due():
                shelf.commit()


def onto_itself() -> JournalError:
    return JournalError(
        code="copy_onto_itself",
        problem="a journal was to be copied into itself",
        remedy="give the path of another journal, or one where nothing is yet",
    )
