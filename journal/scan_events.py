"""The scan of the databases: commits, chunks, events and payload numbers, in the order of the journal.

Rule  Memory grows by some 150 bytes a payload and 200 a stream, whatever the journal says of itself.
Not   payload bytes (scan_payloads.py), pages and HEAD (scan.py).
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Final

from journal.damages import Damages
from journal.environment import Environment
from journal.errors import JournalError
from journal.events.base import At, Event, StreamId
from journal.events.capture import StreamOpened
from journal.lifecycle import WriterState
from journal.lineage import origin_of
from journal.lmdb_layout import COMMIT, COPYING, ONE, TWO
from journal.scan_payloads import PLACE
from journal.wire import FORMAT, Envelope, Located, check_row, event_of, read_envelope

META_KEYS: Final = frozenset([b"format", b"id", b"state", b"written_by"])


class Stream:
    """What is known of a stream so far."""

    __slots__ = ("end", "opened", "payload_end")

    def __init__(self, opened: StreamOpened | None) -> None:
        self.opened = opened
        self.end = 0  # number of its events
        self.payload_end = 0


def start_of(opened: StreamOpened | None) -> int:
    """The number of a stream's own first event, by its header."""
    return 0 if opened is None or opened.kind != "branch" else opened.branched_at or 0


class Events:
    """The databases of a journal, in one read transaction."""

    def __init__(self, journal: Environment, txn: Any, found: Damages) -> None:
        self.journal = journal
        self.txn = txn
        self.found = found
        self.streams: list[Stream] = []
        self.seq = 0  # of the next event
        self.end = (0, 0)  # segment, and length of it that payloads so far take
        self.places = bytearray()
        self.lost = 0  # payloads whose bytes are known to be lost
        self.state: WriterState | None = None
        self.chunk: tuple[bytes, bytes] | None = None  # the next one, key and value
        self.chunks = txn.cursor(db=journal.events_db)

    def scan(self) -> None:
        self.scan_commits()
        self.scan_index()
        self.scan_parents()
        self.scan_meta()
        self.found.counts.streams = len(self.streams)
        if self.lost:
            self.found.note(f"the bytes of {self.lost} payloads are known to be lost since the journal was recovered")

    def scan_meta(self) -> None:
        entries = {bytes(key): bytes(value) for key, value in self.txn.cursor(db=self.journal.meta_db)}
        if entries.get(b"format") != ONE.pack(FORMAT):
            self.found.damage("meta_malformed", "the journal's format is none that was ever written")
        state = entries.get(b"state")
        if state is None:
            if self.seq:
                self.found.damage("meta_malformed", "the journal does not say the state of its writer")
        elif state in (WriterState.SEALED.value.encode(), WriterState.WRITING.value.encode()):
            self.state = WriterState(state.decode())
            self.found.counts.is_sealed = self.state is WriterState.SEALED
        else:
            self.found.damage("meta_malformed", f"the state of the writer is {state[:100]!r}, which is none")
        copying = [key for key in entries if key.startswith(COPYING) and len(key) == len(COPYING) + ONE.size]
        if copying:
            self.found.note("a copy into this journal has not ended: streams may be missing at its end")
        strangers = entries.keys() - META_KEYS - set(copying)
        if strangers:
            self.found.damage("meta_malformed", f"an entry is named {min(strangers)[:100]!r}, which none is")
        opened = self.streams[-1].opened if self.streams else None
        author = entries.get(b"written_by")
        if opened is not None and author != opened.written_by.encode("utf-8", "replace"):
            self.found.damage("meta_malformed", f"{author!r} is not the version that opened the last stream")
        if not self.streams and author is not None:
            self.found.damage("meta_malformed", "a version is named as the last writer's, and there is no stream")

    # commits

    def scan_commits(self) -> None:
        self.advance()
        before = [bytes(32)]
        for key, value in self.txn.cursor(db=self.journal.commits_db):
            before = self.scan_commit(bytes(key), bytes(value), before)
            self.found.counts.commits += 1
        if self.chunk is not None:
            self.found.damage("commit_malformed", "the last events are in no commit", seq=self.seq)
        while self.chunk is not None:
            self.take_chunk()

    def scan_commit(self, key: bytes, value: bytes, before: list[bytes]) -> list[bytes]:
        """Look at a commit and its chunks.

        Args:
            key: Its key.
            value: Its value.
            before: The chain before it: as it is stored, and as it was computed where that differs.

        Returns:
            The same for the next one, so that one wrong chain is told once.
        """
        begin = self.seq
        if len(key) != ONE.size or len(value) != COMMIT.size:
            self.found.damage("commit_malformed", "an entry of the commits has not the length of one", seq=begin)
            return before
        first, count, segment, length, chain = COMMIT.unpack(value)
        last_seq = ONE.unpack(key)[0]
        if first != begin or last_seq != first + count - 1 or count == 0:
            problem = f"a commit says that it holds {count} events from {first} to {last_seq}; {begin} is the next"
            self.found.damage("commit_malformed", problem, seq=begin)
        digests = [hashlib.sha256(chain_before + self.journal.id + ONE.pack(begin)) for chain_before in before]
        is_whole = True
        while self.chunk is not None and self.chunk[0] <= key:
            data = self.chunk[1]
            is_whole = self.take_chunk() and is_whole
            for digest in digests:
                digest.update(data)
        if self.seq != last_seq + 1:
            problem = f"events {self.seq} to {last_seq} are in no chunk, or a commit ends inside one"
            self.found.damage("chunk_missing", problem, seq=self.seq)
            self.seq = last_seq + 1
            is_whole = False
        computed = [digest.digest() for digest in digests]
        if is_whole and chain not in computed:
            self.found.damage("commit_malformed", "the chain of a commit does not fit its events", seq=begin)
        if is_whole and (segment, length) != self.end:
            problem = f"a commit says that payloads end at {length} of segment {segment}, and they do at {self.end[1]}"
            self.found.damage("commit_malformed", problem, seq=begin)
        return [chain] if chain in computed else [chain, digests[0].digest()]

    # chunks

    def advance(self) -> None:
        self.chunk = self.chunks.item() if self.chunks.next() else None

    def take_chunk(self) -> bool:
        """Look at the next chunk and go on to the one after it; whether it could be read."""
        assert self.chunk is not None
        key, data = self.chunk
        self.advance()
        self.found.counts.chunks += 1
        seq = ONE.unpack(key)[0] if len(key) == ONE.size else self.seq
        if len(key) != ONE.size:
            self.found.damage("chunk_malformed", "the key of a chunk is no seq", seq=seq)
        if seq > self.seq:
            self.found.damage("chunk_missing", f"events {self.seq} to {seq - 1} are in no chunk", seq=self.seq)
        try:
            envelope = read_envelope(data)
        except JournalError as exc:
            self.found.damage(exc.code, exc.problem, seq=seq)
            self.seq = self.next_key(seq)
            return False
        if envelope.first_seq != seq or seq < self.seq:
            problem = f"the chunk at {seq} says that it begins with event {envelope.first_seq}; {self.seq} is the next"
            self.found.damage("chunk_malformed", problem, seq=seq, stream=envelope.stream)
        self.seq = max(self.seq, seq + envelope.count)
        self.found.counts.events += envelope.count
        self.scan_place(envelope)
        self.scan_payload_table(envelope)
        self.scan_rows(envelope)
        return True

    def next_key(self, seq: int) -> int:
        """Where a chunk that cannot be read ends, by where the next one begins."""
        if self.chunk is not None and len(self.chunk[0]) == ONE.size:
            return int(ONE.unpack(self.chunk[0])[0])
        cursor = self.txn.cursor(db=self.journal.commits_db)
        found = cursor.set_range(ONE.pack(min(seq, (1 << 64) - 1))) and len(cursor.key()) == ONE.size
        return int(ONE.unpack(cursor.key())[0]) + 1 if found else seq + 1

    def scan_place(self, envelope: Envelope) -> None:
        """Whether a chunk follows on the last one of its stream, and the index knows it."""
        number, seq = envelope.stream, envelope.first_seq
        if number >= len(self.streams):
            if number > len(self.streams):
                problem = f"stream {number} begins where {len(self.streams)} is the next"
                self.found.damage("stream_malformed", problem, seq=seq, stream=number)
                return
            self.streams.append(Stream(self.header(envelope)))
            self.streams[number].end = start_of(self.streams[number].opened)
        stream = self.streams[number]
        if envelope.first_at != stream.end:
            problem = f"events {stream.end} to {envelope.first_at - 1} of stream {number} are missing"
            if envelope.first_at < stream.end:
                problem = f"events from {envelope.first_at} of stream {number} are there twice"
            self.found.damage("chunk_missing", problem, seq=seq, stream=number)
        stream.end = envelope.end_at
        entry = self.txn.get(TWO.pack(number, envelope.first_at), db=self.journal.index_db)
        if entry is None or bytes(entry) != TWO.pack(seq, envelope.count):
            problem = f"the index has not the place of event {envelope.first_at} of stream {number}"
            self.found.damage("index_malformed", problem, seq=seq, stream=number)

    def header(self, envelope: Envelope) -> StreamOpened | None:
        """The event that begins a stream; None where it cannot be read, which the scan of the rows tells."""
        first: Event | None = None
        try:
            first = event_of(envelope.rows(self.journal.written_by)[0])
        except JournalError:
            return None
        if not isinstance(first, StreamOpened):
            problem = f"stream {envelope.stream} does not begin with its header"
            self.found.damage("stream_malformed", problem, seq=envelope.first_seq, stream=envelope.stream)
            return None
        return first

    def scan_rows(self, envelope: Envelope) -> None:
        seq, stream = envelope.first_seq, envelope.stream
        place = 0
        try:
            rows = envelope.rows(self.journal.written_by)
            for place, row in enumerate(rows):  # noqa: B007 - the place is told where it ends early
                check_row(row)
        except JournalError as exc:
            if exc.code in ("event_unknown", "event_version_newer"):
                self.found.unread(exc.code, exc.problem, seq=seq, stream=stream)
            else:
                self.found.damage(exc.code, exc.problem, seq=seq + place, stream=stream)
            return
        headers = [place for place, row in enumerate(rows) if row[0] == StreamOpened.type_id]
        if stream < len(self.streams) and headers != [0] * (envelope.first_at == start_of(self.streams[stream].opened)):
            problem = f"stream {stream} has a header elsewhere than at its beginning"
            self.found.damage("stream_malformed", problem, seq=seq, stream=stream)

    # payload numbers

    def scan_payload_table(self, envelope: Envelope) -> None:
        stream = envelope.stream
        known = self.streams[stream] if stream < len(self.streams) else Stream(None)
        least = known.payload_end
        if envelope.payload_end < least:
            problem = f"stream {stream} had given out {least} payload numbers, and later {envelope.payload_end}"
            self.found.damage("payload_misplaced", problem, seq=envelope.first_seq, stream=stream)
        for located in envelope.payloads:
            if located.number < least:
                problem = f"payload {located.number} of stream {stream} is placed twice, or out of order"
                self.found.damage("payload_misplaced", problem, seq=envelope.first_seq, stream=stream)
            least = max(least, located.number + 1)
            self.take_place(located, envelope)
        known.payload_end = max(known.payload_end, envelope.payload_end)

    def take_place(self, located: Located, envelope: Envelope) -> None:
        if not located.digest:
            self.lost += 1
        elif len(located.digest) != 16:
            problem = f"the digest of payload {located.number} has {len(located.digest)} bytes"
            self.found.damage("chunk_malformed", problem, seq=envelope.first_seq, stream=envelope.stream)
        else:
            self.end = max(self.end, located.end)
            number, segment, offset, nbytes, digest = located
            self.places += PLACE.pack(segment, offset, nbytes, envelope.stream, number, digest)

    # what must agree at the end

    def scan_index(self) -> None:
        """No entry of the index may be left that no chunk answers to. Each chunk was looked up there before."""
        count = sum(1 for _ in self.txn.cursor(db=self.journal.index_db).iternext(keys=True, values=False))
        if count == self.found.counts.chunks:
            return
        for key, value in self.txn.cursor(db=self.journal.index_db):
            data = self.txn.get(bytes(value)[: ONE.size], db=self.journal.events_db) if len(value) == TWO.size else None
            envelope: Envelope | None = None
            if data is not None:
                with suppress(JournalError):  # a chunk that cannot be read was told
                    envelope = read_envelope(bytes(data))
            if envelope is None or bytes(key) != TWO.pack(envelope.stream, envelope.first_at):
                self.found.damage("index_malformed", f"the index has an entry {bytes(key).hex()} for which no chunk is")

    def scan_parents(self) -> None:
        for number, stream in enumerate(self.streams):
            if stream.opened is not None:
                at = At(start_of(stream.opened))
                try:
                    origin_of(StreamId(number), stream.opened, at, 0, self.end_of)
                except JournalError as exc:
                    self.found.damage(exc.code, exc.problem, stream=number)

    def end_of(self, stream: int) -> int:
        return self.streams[stream].end
