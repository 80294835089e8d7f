"""Payload bytes: in append-only segment files beside the events, or in memory.

Bytes come first: a payload is written before any event can name its number, and its place and digest go
into the envelope of the chunk that does. So an event never points at missing bytes; bytes that no chunk
names are what a crash left over, and the next writer cuts them off.

Not   which number has which place (shelf.py), or what the bytes mean: the event that names them says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import xxhash

from journal.errors import JournalCorrupt, JournalError
from journal.wire import Located
from journal.writing import write_all_at

SEGMENT_BYTES: Final = 256 << 20
"""A segment file that has reached this length is followed by the next one."""

SMALL_BYTES: Final = 32 << 10
"""A payload up to this size waits for company before it is written."""

GATHERED_BYTES: Final = 1 << 20
"""As many bytes of small payloads are written together."""

PIECE_BYTES: Final = 4 << 20
"""Longer payloads are copied piece by piece."""

ALLOCATED_BYTES: Final = 64 << 20
"""Room asked for ahead in a growing segment; what is not used is given back when it ends."""

READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a segment is opened: a link is refused, and a pipe in its place, which would wait for a writer, is not."""

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

KEEP_SIZE: Final = 1
"""Flag of `fallocate`: the file's length stays as it is."""


def find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """The system's `fallocate`, which Python does not offer with flags; None where there is none."""
    try:
        found = ctypes.CDLL(None).fallocate
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found


fallocate: Final = find_fallocate()

Buffer: TypeAlias = Any
"""Any contiguous buffer: bytes, bytearray, memoryview, an array of ctypes or numpy."""


LOST: Final = 1
"""Segment of lost payloads in memory, where others have none; on disk an empty digest tells them."""


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
        """The bytes, checked; the caller's own where they may be written to, else shared with others.

        Raises:
            JournalError: `payload_lost`, `payload_damaged`.
        """
        ...

    def pieces(self, located: Located) -> Iterator[memoryview]:
        """The bytes, not checked, a piece at a time.

        Raises:
            JournalError: `payload_lost`.
        """
        ...

    def write_pieces(self, located: Located, pieces: Iterator[memoryview]) -> Place:
        """Store the bytes of a payload of another journal, checked.

        Raises:
            JournalError: `payload_damaged`, and nothing counts as written then.
        """
        ...

    def lost(self) -> Place:
        """The place of a payload that is known to be lost: reading it is refused with `payload_lost`."""
        ...


class Lender(Protocol):
    """Has the bytes of payloads whose numbers were only reserved, for as long as their tensors are live."""

    def lend(self, number: int) -> Buffer | None:
        """The elements of a payload's tensor, contiguous; None where it is no longer held as it was."""
        ...


class MemoryPayloads:
    """Payloads held by this process. What `read` gives is shared, and may not be written to."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.lock = Lock()

    def write(self, data: Buffer) -> Place:
        copy = memoryview(data).tobytes()
        with self.lock:
            self.held.append(copy)
            return Place(0, len(self.held) - 1, len(copy), b"")

    def read(self, located: Located) -> memoryview:
        if located.segment == LOST:
            raise lost(located, "were lost before they were copied here")
        return memoryview(self.held[located.offset])

    def pieces(self, located: Located) -> Iterator[memoryview]:
        yield self.read(located)

    def write_pieces(self, located: Located, pieces: Iterator[memoryview]) -> Place:
        data = b"".join(pieces)
        if located.digest and xxhash.xxh3_128_digest(data) != located.digest:
            raise damaged(located)
        return self.write(data)

    def lost(self) -> Place:
        return Place(LOST, 0, 0, b"")


class Segments:
    """The segment files of one journal. What `read` gives is the reader's own and may be written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = Lock()
        self.segment = 0
        self.offset = 0
        self.writing: int | None = None  # descriptor of the segment that grows
        self.gathered = bytearray()  # the last small payloads, not yet in the file
        self.gathered_at = 0  # where in the segment they belong
        self.allocated = 0  # up to where room in the segment was asked for
        self.unsynced: set[int] = set()
        self.reading: dict[int, int] = {}  # descriptors by segment
        self.home: int | None = None  # descriptor of the folder: at its path another one may come to stand

    def start(self, segment: int, offset: int, beside: tuple[int, int] | None) -> None:
        """Go on writing after the last byte that an event names; what lies behind it is cut off.

        Args:
            segment: Segment of the last byte that an event names.
            offset: Where in it that byte ends.
            beside: Device and number of the data.mdb in whose directory the folder is.

        Raises:
            JournalError: `journal_write_failed`.
            JournalCorrupt: `segment_missing`.
        """
        with self.lock, write_failures(self.folder):
            self.hold(self.opened_home(beside, make=True))
            found = self.segments_there()
            behind = [number for number in found if number > segment]
            last = found.get(segment)
            if behind and offset > (0 if last is None else last.st_size):
                raise missing(self.folder, segment, offset, behind[0])
            for number in behind:
                os.unlink(name_of(number), dir_fd=self.home)
            # A killed writer also leaves the room that it asked for ahead, which shows in the blocks alone.
            if last is not None and (last.st_size > offset or last.st_blocks * 512 > offset + last.st_blksize):
                self.cut_file(segment, min(offset, last.st_size))
            self.segment, self.offset = segment, offset

    def look(self, beside: tuple[int, int] | None) -> None:
        """Hold the folder as it is now, to read from it wherever it goes."""
        with self.lock, suppress(OSError, JournalError):  # told when a payload is read
            self.hold(self.opened_home(beside, make=False))

    def opened_home(self, beside: tuple[int, int] | None, make: bool) -> int:
        """A descriptor of the folder, where it is the one beside that data.mdb."""
        parent = os.open(self.folder.parent, FOLDER)
        try:
            data = os.stat("data.mdb", dir_fd=parent, follow_symlinks=False)
            if (data.st_dev, data.st_ino) != beside:
                raise write_failed(self.folder, OSError(errno.ESTALE, "the journal was replaced while it was opened"))
            if make:
                with suppress(FileExistsError):
                    os.mkdir(self.folder.name, dir_fd=parent)
            return os.open(self.folder.name, FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        finally:
            os.close(parent)

    def hold(self, home: int | None) -> None:
        before, self.home = self.home, home
        if before is not None:
            os.close(before)

    def segments_there(self) -> dict[int, os.stat_result]:
        """The segments in the folder by number, in order; files with other names are not ours."""
        found: dict[int, os.stat_result] = {}
        assert self.home is not None
        for name in sorted(os.listdir(self.home)):
            if not name.endswith(".seg"):
                continue
            entry = os.stat(name, dir_fd=self.home, follow_symlinks=False)
            if not stat.S_ISREG(entry.st_mode):
                raise write_failed(self.folder / name, OSError(errno.EINVAL, "a segment is a link, or no file"))
            stem = name[: -len(".seg")]
            if stem.isdecimal() and name == name_of(int(stem)):
                found[int(stem)] = entry
        return found

    def cut_file(self, segment: int, length: int) -> None:
        file = self.opened(segment, os.O_WRONLY)
        try:
            os.ftruncate(file, length)
        finally:
            os.close(file)

    def opened(self, segment: int, flags: int) -> int:
        """A descriptor of a segment file, for writing."""
        if self.home is None:
            raise write_failed(self.folder, OSError(errno.EBADF, "the journal was closed"))
        return os.open(name_of(segment), flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=self.home)

    def write(self, data: Buffer) -> Place:
        """Append to the growing segment; small payloads gather and reach the file together, at the next `push`.

        Raises:
            JournalError: `journal_write_failed`; nothing counts as written then.
        """
        view = memoryview(data)
        nbytes = view.nbytes
        digest = xxhash.xxh3_128_digest(data)
        with self.lock:
            try:
                if self.writing is None or self.offset >= SEGMENT_BYTES:
                    self.roll()
                if nbytes <= SMALL_BYTES:
                    if len(self.gathered) >= GATHERED_BYTES:
                        self.push_gathered()
                    if not self.gathered:
                        self.gathered_at = self.offset
                    elif len(self.gathered) > self.offset - self.gathered_at:
                        self.cut_gathered()
                    self.gathered += data
                else:
                    self.push_gathered()
                    if self.offset + nbytes > self.allocated:
                        self.allocate(nbytes)
                    self.write_at(data, self.offset)
            except OSError as exc:
                raise write_failed(self.folder, exc) from exc
            place = Place(self.segment, self.offset, nbytes, digest)
            self.offset += nbytes
            self.unsynced.add(self.segment)
        return place

    def write_at(self, data: Buffer, offset: int) -> None:
        assert self.writing is not None
        write_all_at(self.writing, data, offset)

    def push_gathered(self) -> None:
        """Write what has gathered. What fails stays gathered."""
        self.cut_gathered()
        if self.gathered:
            self.write_at(self.gathered, self.gathered_at)
            self.gathered = bytearray()

    def cut_gathered(self) -> None:
        """Drop what was gathered and has no place, since an interrupt fell before it had one."""
        del self.gathered[max(0, self.offset - self.gathered_at) :]

    def discard(self) -> None:
        """Write none of what has gathered."""
        with self.lock:
            self.gathered = bytearray()

    def push(self) -> None:
        """Hand everything written so far to the operating system, before a transaction names it.

        Raises:
            JournalError: `journal_write_failed`.
        """
        with self.lock, write_failures(self.folder):
            self.push_gathered()

    def allocate(self, nbytes: int) -> None:
        """Ask for room ahead: a file that grows write by write costs half as much again."""
        step = max(ALLOCATED_BYTES, nbytes)
        self.allocated = self.offset + step
        if fallocate is not None and self.writing is not None:
            fallocate(self.writing, KEEP_SIZE, self.offset, step)  # what is refused is not missed

    def roll(self) -> None:
        self.push_gathered()
        if self.offset >= SEGMENT_BYTES:
            self.end_segment()
            self.segment, self.offset = self.segment + 1, 0
        self.allocated = 0
        self.writing = self.opened(self.segment, os.O_RDWR | os.O_CREAT)

    def end_segment(self) -> None:
        """Give back room that was asked for and not used."""
        file, self.writing = self.writing, None  # first, so that an interrupt has no file closed twice
        if file is not None:
            try:
                if self.allocated > self.offset:
                    os.ftruncate(file, self.offset)
            finally:
                os.close(file)

    def sync(self) -> None:
        """Make everything written so far survive a power cut.

        Raises:
            JournalError: `journal_write_failed`.
        """
        with self.lock, write_failures(self.folder):
            self.push_gathered()
            for segment in sorted(self.unsynced):
                file = self.opened(segment, os.O_WRONLY)
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)
            if self.unsynced and self.home is not None:
                os.fsync(self.home)
            self.unsynced.clear()

    def read(self, located: Located) -> memoryview:
        if not located.digest:
            raise lost(located, "were lost before they were copied here")
        data = self.bytes_at(located)
        if data is None:
            raise lost(located, f"are not in segment {located.segment}")
        if xxhash.xxh3_128_digest(data) != located.digest:
            raise damaged(located)
        return memoryview(data)

    def pieces(self, located: Located) -> Iterator[memoryview]:
        if not located.digest:
            raise lost(located, "were lost before they were copied here")
        for start in range(0, located.nbytes, PIECE_BYTES):
            nbytes = min(PIECE_BYTES, located.nbytes - start)
            data = self.bytes_at(located._replace(offset=located.offset + start, nbytes=nbytes))
            if data is None:
                raise lost(located, f"are not in segment {located.segment}")
            yield memoryview(data)

    def write_pieces(self, located: Located, pieces: Iterator[memoryview]) -> Place:
        digest = xxhash.xxh3_128()
        with self.lock, write_failures(self.folder):
            if self.writing is None or self.offset >= SEGMENT_BYTES:
                self.roll()
            self.push_gathered()
            if self.offset + located.nbytes > self.allocated:
                self.allocate(located.nbytes)
            end = self.offset
            for piece in pieces:
                self.write_at(piece, end)
                digest.update(piece)
                end += piece.nbytes
            if located.digest not in (b"", digest.digest()):
                raise damaged(located)
            place = Place(self.segment, self.offset, end - self.offset, digest.digest())
            self.offset = end
            self.unsynced.add(self.segment)
        return place

    def lost(self) -> Place:
        return Place(0, 0, 0, b"")

    def bytes_at(self, located: Located) -> bytearray | None:
        try:
            with self.lock:
                at = located.offset - self.gathered_at
                is_gathered = at >= 0 and at + located.nbytes <= len(self.gathered)
                if self.gathered and located.segment == self.segment and is_gathered:
                    return bytearray(memoryview(self.gathered)[at : at + located.nbytes])
                # The growing one is read where it is written, also when it was removed meanwhile.
                file = self.writing if located.segment == self.segment else None
                file = self.reading.get(located.segment) if file is None else file
                if file is None:
                    name = name_of(located.segment)
                    file = open_segment(self.folder / name if self.home is None else name, self.home)
                    if file is None:
                        return None
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
        except (OSError, MemoryError):  # a length that was made up, over a file with a hole
            return None
        return data

    def close(self) -> None:
        with self.lock:
            while self.reading:
                os.close(self.reading.popitem()[1])
            try:
                self.stop()
            finally:
                self.hold(None)

    def stop(self) -> None:
        """Write no more; reading goes on."""
        with write_failures(self.folder):
            self.push_gathered()
            self.end_segment()

    def files(self) -> list[Path]:
        """The segment files there are, in order."""
        return sorted(self.folder.glob("*.seg"))


def name_of(segment: int) -> str:
    return f"{segment:06d}.seg"


def pieces_of(file: int, located: Located) -> Iterator[memoryview]:
    """Bytes of an open segment file, a piece at a time; each piece is gone with the next.

    Raises:
        JournalError: `payload_lost`, where the file has not as many.
    """
    view = memoryview(bytearray(min(located.nbytes, GATHERED_BYTES)))
    done = 0
    while done < located.nbytes:
        try:
            count = os.preadv(file, [view[: located.nbytes - done]], located.offset + done)
        except OSError:
            count = 0
        if count == 0:
            raise lost(located, f"are not in segment {located.segment}")
        yield view[:count]
        done += count


def open_segment(path: Path | str, home: int | None = None) -> int | None:
    """A segment file for reading; None where there is none, or a link or something else that might never answer.

    Args:
        path: Where it is.
        home: Descriptor of the directory that a relative path begins in.
    """
    try:
        file = os.open(path, READING, dir_fd=home)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


class write_failures:
    """Wraps what the operating system refuses, once, where it enters."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if isinstance(exc, OSError):
            raise write_failed(self.path, exc) from exc


def lost(located: Located, why: str) -> JournalError:
    return JournalError(
        code="payload_lost",
        problem=f"the bytes of payload {located.number} {why}",
        remedy="they did not reach the disk before a power cut, or the file was removed; capture again",
        number=located.number,
        segment=located.segment,
    )


def damaged(located: Located) -> JournalError:
    return JournalError(
        code="payload_damaged",
        problem=f"the bytes of payload {located.number} do not match their digest",
        remedy="they were changed, or did not reach the disk before a power cut; capture again",
        number=located.number,
        segment=located.segment,
    )


def missing(folder: Path, segment: int, length: int, behind: int) -> JournalCorrupt:
    return JournalCorrupt(
        code="segment_missing",
        problem=f"{name_of(segment)} in {str(folder)!r} lacks some of its {length} bytes; {name_of(behind)} is there",
        remedy="give a renamed segment its name back; else read on, and write on in what `journal recover` makes of it",
        path=str(folder),
        segment=segment,
    )


def write_failed(path: Path, exc: BaseException) -> JournalError:
    return JournalError(
        code="journal_write_failed",
        problem=f"writing to {str(path)!r} failed: {exc}",
        remedy="make room or repair the disk; what was not written is kept in memory and written at the next commit",
        path=str(path),
    )
