"""Recovery: what a damaged journal can prove, as a new and whole one.

Every event up to the first that is not there is copied, byte for byte and with its number; so is every payload
that its digest proves. A payload that cannot be proven keeps its number and its events, and
its place says that it is lost. Until the last event is there the new journal is marked as a copy that has not ended.

Rule  The source is read, never mapped, opened by LMDB, locked or written, so it may be on a read-only disk, and
      even a file that would kill who maps it can be recovered from.
Not   how a prefix is found and proven: carving.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from journal.carving import DataFile, Proven, prove
from journal.directories import found_at, refusals, require_free
from journal.errors import JournalCorrupt, JournalError
from journal.lineage import header_of
from journal.lmdb_journal import LmdbJournal, open_new
from journal.payloads import Place, open_segment, pieces_of
from journal.wire import Located, read_envelope

OPEN_SEGMENTS: Final = 64
"""As many segment files of the source are kept open."""


@attrs.define(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What `recover` could save.

    Attributes:
        path: Directory of the new journal.
        source: Directory of the old one.
        source_id: The old one's id, in hexadecimal.
        events: Events that were copied: all up to the first that is not there.
        unchained: How many of them no commit's chain proves. Each stands in a chunk with a right checksum, which
            goes on where the one before ended.
        events_lost: Events that the source is known to have had beyond those. It may have had more.
        commits: Commits of the source that were proven.
        streams: Streams of which there is at least the first event.
        payloads: Payloads that were copied.
        payload_bytes: How many bytes they have.
        payloads_lost: Payloads of the copied events whose bytes are lost.
    """

    path: str
    source: str
    source_id: str
    events: int
    unchained: int
    events_lost: int
    commits: int
    streams: int
    payloads: int
    payload_bytes: int
    payloads_lost: int


def recover(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> Recovered:
    """Write the longest prefix that a journal proves into a new journal, and change nothing in the old one.

    Args:
        source: Directory of the damaged journal. It may be whole, too.
        path: Where to write: nothing yet, or an empty directory.

    Raises:
        JournalError: `journal_not_found`, `journal_not_a_journal`, `target_taken`, `journal_newer`, and what
            reading (`journal_open_failed`) and writing a journal raise; nothing is left at ``path`` then.
        JournalCorrupt: `nothing_recoverable`.
    """
    old = found_at(source)
    new = require_free(path, old)
    with refusals(old):
        data = DataFile(old / "data.mdb")
    try:
        proven, known = prove(data, old)
        if not proven.pieces:
            raise JournalCorrupt(
                code="nothing_recoverable",
                problem=f"no event of the journal {str(old)!r} can be proven",
                remedy="look for a copy of it; what is left of this one is not enough",
                path=str(old),
            )
        with open_new(new, old) as journal:
            copied = Copy(data, old / "segments", journal, proven)
    finally:
        data.close()
    return Recovered(
        path=str(new),
        source=str(old),
        source_id=proven.id.hex(),
        events=proven.next_seq,
        unchained=proven.next_seq - proven.chained,
        events_lost=known - proven.next_seq,
        commits=proven.commits,
        streams=len(copied.streams),
        payloads=copied.payloads,
        payload_bytes=copied.payload_bytes,
        payloads_lost=copied.payloads_lost,
    )


class Copy:
    """Writes a proven prefix as a journal of its own."""

    def __init__(self, data: DataFile, segments: Path, journal: LmdbJournal, proven: Proven) -> None:
        self.data = data
        self.segments = segments
        self.files: dict[int, int | None] = {}  # descriptors of the source's segments
        self.left = sum(file.stat().st_size for file in segments.glob("*.seg") if file.is_file())
        self.streams: set[int] = set()
        self.payloads = self.payload_bytes = self.payloads_lost = 0
        self.journal = journal
        try:
            self.write(proven)
        finally:
            self.let_go()

    def write(self, proven: Proven) -> None:
        shelf = self.journal.environment
        begun = shelf.begin_copy()
        for piece in proven.pieces:
            envelope = read_envelope(self.data.chunk(piece))
            if envelope.stream not in self.streams:
                self.streams.add(envelope.stream)
                opened = header_of(envelope)
                shelf.written_by = shelf.written_by if opened is None else opened.written_by
            payloads = tuple(self.moved(located) for located in envelope.payloads)
            shelf.add(shelf.packer.enveloped(attrs.evolve(envelope, payloads=payloads)))
            if shelf.is_due():
                shelf.commit()
        shelf.commit()
        shelf.end_copy(begun)

    def moved(self, located: Located) -> Located:
        """The payload's place in the new journal, where its bytes are now, if they are anywhere."""
        place = None
        if located.digest and located.nbytes <= self.left:  # else more bytes are named than there are
            file = self.file(located.segment)
            place = None if file is None else self.copied(file, located)
        if place is None:
            self.payloads_lost += 1
            return Located(located.number, 0, 0, located.nbytes, b"")
        self.left -= located.nbytes
        self.payloads += 1
        self.payload_bytes += located.nbytes
        return Located(located.number, *place)

    def copied(self, file: int, located: Located) -> Place | None:
        try:
            return self.journal.environment.segments.write_pieces(located, pieces_of(file, located))
        except JournalError as exc:
            if exc.code not in ("payload_lost", "payload_damaged"):
                raise
            return None

    def file(self, segment: int) -> int | None:
        if segment not in self.files:
            if len(self.files) >= OPEN_SEGMENTS:
                self.let_go()
            self.files[segment] = open_segment(self.segments / f"{segment:06d}.seg")
        return self.files[segment]

    def let_go(self) -> None:
        for file in self.files.values():
            if file is not None:
                os.close(file)
        self.files.clear()
