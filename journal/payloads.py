"""Payload bytes: in append-only segment files beside the events, or in memory.

Bytes come first: a payload is written before any event can name its number, and its place and digest go
into the envelope of the chunk that does. So an event never points at missing bytes; bytes that no chunk
names are what a crash left over, and the next writer cuts them off.

Not   which number has which place (log.py), or what the bytes mean: the event that names them says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import xxhash

from journal.errors import JournalError
from journal.wire import Located

SEGMENT_BYTES: Final = 256 << 20
"""A segment file that has reached this length is followed by the next one."""

Buffer: TypeAlias = Any
"""Any contiguous buffer: bytes, bytearray, memoryview, an array of ctypes or numpy."""


class Place(NamedTuple):
    """Where bytes went, and their digest."""

    segment: int
    offset: int
    nbytes: int
    digest: bytes


class PayloadStore(Protocol):
    """Where payload bytes go."""

    def write(self, data: Buffer) -> Place:
        """Store a copy of the bytes as they are now."""
        ...

    def read(self, located: Located) -> memoryview:
        """The bytes, checked.

        Raises:
            JournalError: `payload_lost`, `payload_damaged`.
        """
        ...


class MemoryPayloads:
    """Payloads held by this process. What `read` gives may not be written to."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.lock = Lock()

    def write(self, data: Buffer) -> Place:
        copy = memoryview(data).tobytes()
        with self.lock:
            self.held.append(copy)
            return Place(0, len(self.held) - 1, len(copy), b"")

    def read(self, located: Located) -> memoryview:
        return memoryview(self.held[located.offset])


class Segments:
    """The segment files of one journal. What `read` gives is the reader's own and may be written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = Lock()
        self.segment = 0
        self.offset = 0
        self.writing: int | None = None  # descriptor of the segment that grows
        self.unsynced: set[int] = set()
        self.reading: dict[int, int] = {}  # descriptors by segment

    def start(self, segment: int, offset: int) -> None:
        """Go on writing after the last byte that an event names; what lies behind it is cut off.

        Raises:
            JournalError: `journal_write_failed`.
        """
        with self.lock, write_failures(self.folder):
            self.folder.mkdir(exist_ok=True)
            for file in sorted(self.folder.glob("*.seg")):
                number = int(file.stem) if file.stem.isdecimal() else -1
                if number > segment:
                    file.unlink()
                elif number == segment and file.stat().st_size > offset:
                    os.truncate(file, offset)
            self.segment, self.offset = segment, offset

    def write(self, data: Buffer) -> Place:
        """One write at the end of the growing segment.

        Raises:
            JournalError: `journal_write_failed`; nothing counts as written then.
        """
        view = memoryview(data)
        nbytes = view.nbytes
        digest = xxhash.xxh3_128_digest(data)
        with self.lock:
            with write_failures(self.folder):
                if self.writing is None or self.offset >= SEGMENT_BYTES:
                    self.roll()
                assert self.writing is not None
                done = os.pwrite(self.writing, data, self.offset) if nbytes else 0
                while done < nbytes:  # a signal, or more than one call may write
                    done += os.pwrite(self.writing, flat(view)[done:], self.offset + done)
            place = Place(self.segment, self.offset, nbytes, digest)
            self.offset += nbytes
            self.unsynced.add(self.segment)
        return place

    def roll(self) -> None:
        if self.writing is not None and self.offset >= SEGMENT_BYTES:
            os.close(self.writing)
            self.writing = None
            self.segment += 1
            self.offset = 0
        self.writing = os.open(self.path(self.segment), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def sync(self) -> None:
        """Make everything written so far survive a power cut.

        Raises:
            JournalError: `journal_write_failed`.
        """
        with self.lock, write_failures(self.folder):
            for segment in sorted(self.unsynced):
                sync_file(self.path(segment), os.O_WRONLY)
            if self.unsynced:
                sync_file(self.folder, os.O_RDONLY)
            self.unsynced.clear()

    def read(self, located: Located) -> memoryview:
        data = self.bytes_at(located)
        if data is None:
            raise JournalError(
                code="payload_lost",
                problem=f"the bytes of payload {located.number} are not in segment {located.segment}",
                remedy="they did not reach the disk before a power cut, or the file was removed; capture again",
                number=located.number,
                segment=located.segment,
            )
        if xxhash.xxh3_128_digest(data) != located.digest:
            raise JournalError(
                code="payload_damaged",
                problem=f"the bytes of payload {located.number} do not match their digest",
                remedy="they were changed, or did not reach the disk before a power cut; capture again",
                number=located.number,
                segment=located.segment,
            )
        return memoryview(data)

    def bytes_at(self, located: Located) -> bytearray | None:
        try:
            with self.lock:
                file = self.reading.get(located.segment)
                if file is None:
                    file = os.open(self.path(located.segment), os.O_RDONLY | os.O_CLOEXEC)
                    self.reading[located.segment] = file
                if os.fstat(file).st_size < located.offset + located.nbytes:
                    return None
                data = bytearray(located.nbytes)
                view = memoryview(data)
                done = 0
                while done < located.nbytes:
                    count = os.preadv(file, [view[done:]], located.offset + done)
                    if count == 0:
                        return None
                    done += count
        except OSError:
            return None
        return data

    def close(self) -> None:
        with self.lock:
            for file in self.reading.values():
                os.close(file)
            self.reading.clear()
            self.stop()

    def stop(self) -> None:
        """Write no more; reading goes on."""
        if self.writing is not None:
            os.close(self.writing)
            self.writing = None

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:06d}.seg"


def flat(view: memoryview) -> memoryview:
    try:
        return view.cast("B")
    except TypeError:  # a format that cast does not know, as ctypes arrays have
        return memoryview(view.tobytes())


def sync_file(path: Path, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file) if flags == os.O_RDONLY else os.fdatasync(file)
    finally:
        os.close(file)


class write_failures:
    """Wraps what the operating system refuses, once, where it enters."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, OSError):
            raise write_failed(self.path, exc) from exc


def write_failed(path: Path, exc: BaseException) -> JournalError:
    return JournalError(
        code="journal_write_failed",
        problem=f"writing to {str(path)!r} failed: {exc}",
        remedy="make room or repair the disk; what was not written is kept in memory and written at the next commit",
        path=str(path),
    )
