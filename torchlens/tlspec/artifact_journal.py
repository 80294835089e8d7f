"""The journal of an artifact: its stored events and payloads, as every journal is read. Nothing can be appended.

Reads  ``events.msgpack``: the chunks of one stream, each a msgpack binary; payload bytes through blobs.py.
Rule   what is asked of it is answered by the journal's own readers: there is one decoder of events.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Final

import msgpack

from journal.copying import copy_streams
from journal.errors import JournalError, malformed
from journal.events import At, Row, Seq, StreamId, StreamOpened
from journal.lmdb_journal import open_copy
from journal.memory_journal import MemoryShelf
from journal.payloads import Buffer, Place
from journal.protocol import Copied
from journal.stream_writer import CHUNK_ROWS, Writer
from journal.user import JournalUser
from journal.wire import MAX_CHUNK_BYTES, Chunk, ChunkPacker, Located, read_envelope
from torchlens.errors import TorchLensWarning
from torchlens.tlspec.blobs import Blobs

EVENTS: Final = "events.msgpack"
RECORDS: Final = "records.msgpack"
"""What an artifact holds beside its manifest and payloads."""

STREAM: Final = StreamId(0)
"""The one stream of an artifact."""

SLACK: Final = 4
"""Bytes of a chunk beside those that its limit counts: its checksum."""


# Written --------------------------------------------------------------------------------------------


def packed_events(rows: Iterable[Row], payloads: Iterable[Located], payload_end: int) -> bytes:
    """The stored form of a stream: its chunks, each a msgpack binary.

    Args:
        rows: Its events.
        payloads: Number, bytes and digest of each payload that is stored; the last chunk tells them.
        payload_end: More than the number of every payload that is named.
    """
    packer, pack = ChunkPacker(), msgpack.Packer(use_bin_type=True, autoreset=True).pack
    waiting, told, at = list(rows), tuple(payloads), 0
    runs = [waiting[:1], *(waiting[start : start + CHUNK_ROWS] for start in range(1, len(waiting), CHUNK_ROWS))]
    parts: list[bytes] = []
    for run in runs:  # the header stands in a chunk of its own
        while run:  # of which as many are taken as a chunk may have bytes
            chunk = packer.chunk(run, Seq(at), STREAM, At(at), payload_end, told)
            parts.append(pack(chunk.data))
            run, told, at = run[chunk.count :], (), at + chunk.count
    return b"".join(parts)


# Read -----------------------------------------------------------------------------------------------


def chunks_of(data: bytes) -> Iterator[Chunk]:
    """The chunks of a stored stream.

    Raises:
        JournalCorrupt: ``chunk_malformed``, ``chunk_checksum``, ``chunk_missing``.
        JournalError: ``journal_newer``.
    """
    unpacker = msgpack.Unpacker(None, max_buffer_size=max(1, len(data)), max_bin_len=MAX_CHUNK_BYTES + SLACK)
    unpacker.feed(data)
    end = 0
    while unpacker.tell() < len(data):
        try:
            stored = unpacker.unpack()
        except (ValueError, TypeError, msgpack.UnpackException) as exc:
            raise malformed("chunk_malformed", f"a stream is no chunks ({type(exc).__name__})") from exc
        if not isinstance(stored, bytes):
            raise malformed("chunk_malformed", "a stream is no chunks")
        envelope = read_envelope(stored)
        if envelope.stream != STREAM or envelope.first_at != end or envelope.first_seq != end:
            raise malformed("chunk_missing", f"no chunk holds event {end} of the artifact")
        end = envelope.end_at
        yield Chunk(envelope.first_seq, STREAM, envelope.first_at, envelope.count, envelope.payloads, stored)


class ArtifactPayloads:
    """The payloads of an artifact as a journal's store of them."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs: Final = blobs

    def read(self, located: Located) -> memoryview:
        return self.blobs.bytes(located.number)

    def pieces(self, located: Located) -> Iterator[memoryview]:
        yield self.read(located)

    def write(self, data: Buffer) -> Place:
        raise read_only()

    def write_pieces(self, located: Located, pieces: Iterator[memoryview]) -> Place:
        raise read_only()

    def lost(self) -> Place:
        raise read_only()


class ArtifactShelf(MemoryShelf):
    """The chunks of an artifact."""

    def __init__(self, chunks: Iterable[Chunk], blobs: Blobs) -> None:
        super().__init__()
        self.payloads = ArtifactPayloads(blobs)
        for chunk in chunks:
            self.add(chunk)

    def check_writable(self) -> None:
        raise read_only()


class ArtifactJournal(JournalUser):
    """The events and payloads of an artifact.

    Args:
        events: What ``events.msgpack`` holds.
        blobs: Its payloads.
        has_passes: Whether the capture had backward passes, of which no event is here.

    Raises:
        JournalCorrupt: ``chunk_malformed``, ``chunk_checksum``, ``chunk_missing``.
        JournalError: ``journal_newer``.
    """

    def __init__(self, events: bytes, blobs: Blobs, *, has_passes: bool = False) -> None:
        super().__init__(ArtifactShelf(chunks_of(events), blobs))
        self.blobs: Final = blobs
        self.has_passes: Final = has_passes

    @property
    def path(self) -> None:
        return None

    @property
    def id(self) -> None:
        return None

    def open_stream(self, opened: StreamOpened, time_ns: int | None = None) -> Writer:
        raise read_only()

    def continue_stream(self, stream: StreamId) -> Writer:
        raise read_only()

    def copy_to(self, path: str | os.PathLike[str]) -> Copied:
        """Append the forward to a journal. Backward passes are not in it, which a warning tells where there were any
        (``backward_not_copied``)."""
        if self.has_passes:
            warnings.warn(forward_alone(), stacklevel=2)
        with open_copy(path) as target:
            return copy_streams(self, target)

    def close(self) -> None:
        self.blobs.close()


def forward_alone() -> TorchLensWarning:
    return TorchLensWarning(
        code="backward_not_copied",
        problem="a journal that is copied from an artifact has the forward alone: the artifact holds no events of its"
        " backward passes",
        remedy="capture with journal=, which keeps them; their records stay in the artifact",
    )


def read_only() -> JournalError:
    return JournalError(
        code="artifact_read_only",
        problem="an artifact is never written to once it is saved",
        remedy="copy its forward into a journal, trace.journal.copy_to(path), which leaves backward passes out; or"
        " capture with journal=, which keeps them",
    )
