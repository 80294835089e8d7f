"""Payloads of an artifact: one tensor each, in safetensors files of bounded size.

Writes  one tensor after the other, from where its bytes are. The safetensors library wants all tensors of a file in
        memory at once, which those of a journal, and those that do not lie in one run of memory, are not.
Reads   one tensor at a time, into memory of its own, and checks its digest there: what is given cannot change any
        more, whatever happens to the file.
Rule    A header is never trusted: it must say of each tensor what the manifest says, in full, and nothing else; the
        tensors lie behind it without gap or overlap, to the end of the file.
Rule    Every file is opened when the artifact is, so one that is replaced while it is read stays readable.
Rule    What was read when the artifact was loaded is given to the first who asks, and may be written to: fresh memory
        costs more than the reading. Whoever asks next gets a copy, held against its digest; where that does not fit,
        the file is read again. For that a large file is kept open; of a small one copies are given.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs
import xxhash

from journal.errors import JournalError
from journal.payloads import Buffer
from journal.writing import write_all_at
from torchlens.tlspec import json_text
from torchlens.tlspec.errors import integrity_refused, load_failed
from torchlens.tlspec.folder import Folder, read_at
from torchlens.tlspec.json_text import NotPlain
from torchlens.tlspec.manifest import StoredFile, StoredKind, StoredPayload
from torchlens.tlspec.staging import new_file

FOLDER: Final = "payloads"

FILE_BYTES: Final = 256 << 20
"""A file that holds as many is followed by the next one; a larger tensor has a file of its own."""

FILE_TENSORS: Final = 16384
"""A file with as many is followed by the next one, so that its header stays small."""

WORDS: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""The safetensors word of each dtype that it has one for and whose elements are whole bytes."""

ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

RESERVED: Final = "__metadata__"
"""What no tensor may be called in a header."""

NAME_CHARACTERS: Final = 200

LENGTH: Final = struct.Struct("<Q")
"""Of the header, in front of it."""

GIVEN_BYTES: Final = 16 << 20
"""Of a file with so many, what was read is given away; so much memory for each file that is kept open bounds them."""

BEGUN_BYTES: Final = 16 << 20
"""When so many have been written the disk begins with them: the flush at the end then waits for the last ones alone."""

BEGIN: Final = 2
"""Flag of `sync_file_range`: begin to write, and wait for nothing."""

MOST: Final = (1 << 63) - 1
"""More than any place in a file."""

HEADER_BYTES: Final = 4096
"""A header has at most so many for each tensor, and for itself."""

PIECE_BYTES: Final = 4 << 20
"""What is read of a file with holes is looked at in pieces of so many, before there is memory for all of it."""

Counted: TypeAlias = Literal["payload", "parameter", "buffer"]
"""Among which numbers a payload is counted: parameters and buffers have their own."""


@attrs.frozen(kw_only=True)
class Blob:
    """A payload to be written.

    Attributes:
        number: Of the payload, parameter or buffer, as the events have it.
        kind: What it is.
        name: What to call the tensor; made different where it is taken.
        dtype: The dtype of its elements, a word such as "float32"; anything else for what has none.
        shape: Its shape. Where dtype and shape do not make up its bytes, it is stored as so many bytes.
        data: Its bytes, or a function that gives them when they are due.
        address: Of a parameter or buffer.
    """

    number: int
    kind: StoredKind
    name: str
    dtype: str
    shape: Sequence[int]
    data: Buffer | Callable[[], Buffer]
    address: str | None = None


class Written(NamedTuple):
    """What was written, for the manifest."""

    body_index: tuple[StoredPayload, ...]
    files: tuple[StoredFile, ...]


# Writing -----------------------------------------------------------------------------------------------


def write(folder: Path, blobs: Iterable[Blob]) -> Written:
    """Write payloads below an artifact's folder.

    Args:
        folder: The artifact's folder while it is staged.
        blobs: Bytes that a function gives are asked for when they are written, and let go of then.

    Raises:
        OSError: what the disk refuses.
    """
    written: list[tuple[StoredFile, list[StoredPayload]]] = []
    pending: list[Blob] = []
    nbytes = 0
    for blob in blobs:
        pending.append(blob)
        nbytes += expected(blob)
        if nbytes >= FILE_BYTES or len(pending) >= FILE_TENSORS:
            written.append(write_file(folder, len(written), pending))
            pending, nbytes = [], 0
    if pending:
        written.append(write_file(folder, len(written), pending))
    return Written(tuple(row for _, rows in written for row in rows), tuple(file for file, _ in written))


def expected(blob: Blob) -> int:
    """The bytes that dtype and shape make up."""
    return math.prod(blob.shape) * ITEM_BYTES[WORDS.get(blob.dtype, "U8")]


def write_file(folder: Path, number: int, blobs: Sequence[Blob]) -> tuple[StoredFile, list[StoredPayload]]:
    """Write one payload file; what the manifest says of it and of each of its payloads."""
    path = f"{FOLDER}/{number:05d}.safetensors"
    (folder / FOLDER).mkdir(exist_ok=True)
    with new_file(folder / path) as file:
        return Writing(file, path, blobs).written()


class Writing:
    """A payload file that is being written.

    Note  The header stands in front and says how long each tensor is, which is certain only once its bytes have been
          asked for. So room is left for it, as much as it can need; it is written last, and filled up with spaces.
    Note  Longer elements lie before shorter ones, so that each tensor begins at a multiple of its elements' size:
          readers that map a file need that. What turns out to be mere bytes goes to the end.
    """

    def __init__(self, file: int, path: str, blobs: Sequence[Blob]) -> None:
        self.file: Final = file
        self.path: Final = path
        self.names: Final = free_names(blobs)
        self.blobs: Final = sorted(enumerate(blobs), key=lambda one: -ITEM_BYTES[WORDS.get(one[1].dtype, "U8")])
        longest = (member("F8_E4M3FNUZ", (*blob.shape, MOST), MOST, MOST) for blob in blobs)
        texts = [json.dumps({name: one}) for name, one in zip(self.names, longest, strict=True)]
        room = sum(map(len, texts)) + len("{}")
        self.room: Final = room + -room % LENGTH.size
        self.rows: dict[int, StoredPayload] = {}  # by place among the blobs
        self.header: dict[str, Any] = {}
        self.nbytes = 0  # of tensors so far
        self.begun = 0  # of those, what the disk was told of

    def written(self) -> tuple[StoredFile, list[StoredPayload]]:
        mere_bytes: list[tuple[int, Blob, Buffer]] = []
        for place, blob in self.blobs:
            data = blob.data() if callable(blob.data) else blob.data
            if memoryview(data).nbytes != expected(blob) and WORDS.get(blob.dtype, "U8") != "U8":
                mere_bytes.append((place, blob, data))
            else:
                self.add(place, blob, data)
        for one in mere_bytes:
            self.add(*one)
        text = json.dumps(self.header, separators=(",", ":")).encode().ljust(self.room)
        front = LENGTH.pack(self.room) + text
        write_all_at(self.file, front, 0)
        begin_flush(self.file)
        row_of_file = StoredFile(
            path=self.path, nbytes=len(front) + self.nbytes, digest=xxhash.xxh3_128_hexdigest(front)
        )
        return row_of_file, [self.rows[place] for place in range(len(self.rows))]

    def add(self, place: int, blob: Blob, data: Buffer) -> None:
        nbytes = memoryview(data).nbytes
        dtype, shape = WORDS.get(blob.dtype, "U8"), tuple(blob.shape)
        if expected(blob) != nbytes or (dtype == "U8" and blob.dtype != "uint8"):
            dtype, shape = "U8", (nbytes,)
        name = self.names[place]
        self.header[name] = member(dtype, shape, self.nbytes, self.nbytes + nbytes)
        self.rows[place] = StoredPayload(
            number=blob.number,
            kind=blob.kind,
            file=self.path,
            tensor=name,
            dtype=dtype,
            shape=shape,
            nbytes=nbytes,
            digest=xxhash.xxh3_128_hexdigest(data),
            address=blob.address,
        )
        if nbytes:
            write_all_at(self.file, data, LENGTH.size + self.room + self.nbytes)
            self.nbytes += nbytes
            if self.nbytes - self.begun >= BEGUN_BYTES:
                begin_flush(self.file)
                self.begun = self.nbytes


def find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The system's `sync_file_range`, which Python does not offer; None where there is none."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


sync_file_range: Final = find_sync_file_range()


def begin_flush(file: int) -> None:
    """Let the disk begin with what was written to a file, where the system has a call for it. It promises nothing."""
    if sync_file_range is not None:
        sync_file_range(file, 0, 0, BEGIN)


def member(dtype: str, shape: Sequence[int], start: int, end: int) -> dict[str, Any]:
    """A tensor as a header has it."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def free_names(blobs: Iterable[Blob]) -> list[str]:
    """A name for each tensor of a file, as it is wanted or made different."""
    taken = {RESERVED}
    names: list[str] = []
    for blob in blobs:
        wanted = blob.name.encode("utf-8", "backslashreplace").decode()[:NAME_CHARACTERS] or "unnamed"
        name, count = wanted, 1
        while name in taken:
            count += 1
            name = f"{wanted}#{count}"
        taken.add(name)
        names.append(name)
    return names


# Reading -----------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A tensor as the header of its file has it."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # behind the header
    end: int


def members_of(header: bytes) -> dict[str, Member]:
    """The tensors that a header tells.

    Raises:
        NotPlain: with what is wrong.
    """
    found = json_text.read(header)
    if not isinstance(found, dict):
        raise NotPlain("the header is no map")
    found.pop(RESERVED, None)
    return {name: member_of(name, one) for name, one in found.items()}


def member_of(name: str, one: Any) -> Member:
    if isinstance(one, dict) and one.keys() == {"dtype", "shape", "data_offsets"}:
        dtype, shape, offsets = one["dtype"], one["shape"], one["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
        if isinstance(dtype, str) and len(offsets) == 2 and all(type(number) is int for number in numbers):
            return Member(dtype, tuple(shape), *offsets)
    raise NotPlain(f"the header does not tell what {name!r} is")


class Opened(NamedTuple):
    """A payload file that is open."""

    file: int
    nbytes: int
    places: Mapping[str, int]  # where in the file each tensor begins
    has_holes: bool  # so that it may tell of more bytes than anybody has stored


class Blobs:
    """The payloads of an artifact.

    Args:
        folder: The artifact's folder.
        body_index: What the manifest says of each.
        files: What the manifest says of the files.
        lazy: Whether each is read when it is first asked for; else all are read now.

    Raises:
        ArtifactError: `bundle_load_failed`, for a file that is missing.
        ArtifactCorrupt: `bundle_metadata_integrity_refused`, where index, files and headers do not fit together.
        JournalError: `payload_damaged`, when all are read now.
    """

    def __init__(
        self, folder: Folder, body_index: Iterable[StoredPayload], files: Iterable[StoredFile], *, lazy: bool = True
    ) -> None:
        self.path = folder.path
        self.lock = Lock()
        self.opened: dict[str, Opened] = {}
        self.held: dict[tuple[Counted, int], memoryview] = {}  # read when it was loaded, and nobody else's
        self.given: dict[tuple[Counted, int], memoryview] = {}  # of these, what a reader has got and may have written
        self.rows: dict[tuple[Counted, int], StoredPayload] = {}
        told = {file.path: file for file in files}
        by_file: dict[str, list[StoredPayload]] = {}
        for row in body_index:
            key = (counted(row.kind), row.number)
            if key in self.rows:
                raise integrity_refused(self.path, f"{key[0]} {row.number} stands twice in its body_index")
            self.rows[key] = row
            by_file.setdefault(row.file, []).append(row)
        try:
            for name, rows in by_file.items():
                if name not in told:
                    raise integrity_refused(self.path, f"{name} holds payloads and is not among its files")
                self.opened[name] = open_file(folder, told[name], rows)
            if not lazy:
                self.held = {key: self.read(row) for key, row in self.rows.items()}
                self.close(below=GIVEN_BYTES)
        except BaseException:
            self.close()
            raise

    def bytes(self, number: int, among: Counted = "payload") -> memoryview:
        """The bytes of a payload, checked: the caller's own where they may be written to, else held for all who ask.

        Raises:
            JournalError: `payload_not_stored`, `payload_lost`, `payload_damaged`.
        """
        row, key = self.row(number, among), (among, number)
        with self.lock:
            if key in self.held and row.file not in self.opened:
                return self.held[key].toreadonly()
            if key in self.held:
                self.given[key] = self.held.pop(key)
                return self.given[key]
            given = self.given.get(key)
        if given is None:
            return self.read(row)
        data = bytearray(given)
        if xxhash.xxh3_128_hexdigest(data) == row.digest:
            return memoryview(data)
        self.given.pop(key, None)  # it was written to
        return self.read(row)

    def size(self, number: int, among: Counted = "payload") -> int | None:
        """How many bytes a payload has; None for one that the artifact does not hold."""
        row = self.rows.get((among, number))
        return None if row is None else row.nbytes

    def row(self, number: int, among: Counted = "payload") -> StoredPayload:
        row = self.rows.get((among, number))
        if row is None:
            raise JournalError(
                code="payload_not_stored",
                problem=f"the artifact {str(self.path)!r} does not hold {among} {number}",
                remedy="save it at a level that keeps it, or with include_*=True",
                number=number,
            )
        return row

    def read(self, row: StoredPayload) -> memoryview:
        with self.lock:
            opened = self.opened.get(row.file)
        if opened is None:
            raise unreadable(row, "payload_lost", "the artifact was closed")
        place = opened.places[row.tensor]
        try:
            if opened.has_holes and digest_at(opened.file, row.nbytes, place) != row.digest:
                raise unreadable(row, "payload_damaged", "its bytes do not match their digest")
            data = read_at(opened.file, row.nbytes, place)
        except (OSError, MemoryError) as exc:
            raise unreadable(row, "payload_lost", str(exc) or "there is no memory for it") from exc
        if data is None:
            raise unreadable(row, "payload_lost", f"{row.file} has become shorter")
        if xxhash.xxh3_128_hexdigest(data) != row.digest:
            raise unreadable(row, "payload_damaged", "its bytes do not match their digest")
        return memoryview(data)

    def close(self, below: int | None = None) -> None:
        """Let go of the files, or of those with less than so many bytes. Closing twice is nothing."""
        with self.lock:
            names = [name for name, one in self.opened.items() if below is None or one.nbytes < below]
            closed = [self.opened.pop(name) for name in names]
        for one in closed:
            os.close(one.file)

    def __del__(self) -> None:
        with suppress(Exception):  # of one that could not be opened, too
            self.close()


def digest_at(file: int, nbytes: int, offset: int) -> str:
    """The digest of some bytes of an open file, or of as many as there are, a piece at a time."""
    digest, piece, done = xxhash.xxh3_128(), memoryview(bytearray(min(nbytes, PIECE_BYTES))), 0
    while done < nbytes:
        count = os.preadv(file, [piece[: nbytes - done]], offset + done)
        if count == 0:
            break
        digest.update(piece[:count])
        done += count
    return digest.hexdigest()


def counted(kind: StoredKind) -> Counted:
    return kind if kind in ("parameter", "buffer") else "payload"


def unreadable(row: StoredPayload, code: str, why: str) -> JournalError:
    return JournalError(
        code=code,
        problem=f"{row.tensor!r} cannot be read from the artifact: {why}",
        remedy="copy the artifact anew from where it was saved, or save it again",
        number=row.number,
        file=row.file,
    )


def open_file(folder: Folder, told: StoredFile, rows: Sequence[StoredPayload]) -> Opened:
    """Open a payload file, and hold its header against what the manifest says."""
    try:
        file, nbytes = folder.opened(told.path)
    except FileNotFoundError as exc:
        raise load_failed(folder.path, f"{told.path} is missing") from exc
    try:
        if nbytes != told.nbytes:
            raise integrity_refused(folder.path, f"{told.path} has {nbytes} bytes instead of {told.nbytes}")
        try:
            return Opened(file, nbytes, places_of(file, told, rows), os.fstat(file).st_blocks * 512 < nbytes)
        except NotPlain as exc:
            raise integrity_refused(folder.path, f"{told.path}: {exc}") from exc
        except OSError as exc:
            raise load_failed(folder.path, f"{told.path}: {exc.strerror}") from exc
    except BaseException:
        os.close(file)
        raise


def places_of(file: int, told: StoredFile, rows: Sequence[StoredPayload]) -> dict[str, int]:
    """Where in a file each tensor begins.

    Raises:
        NotPlain: where its header does not say exactly what the manifest says.
    """
    nbytes = told.nbytes
    front = read_at(file, LENGTH.size, 0) if nbytes >= LENGTH.size else None
    length = -1 if front is None else LENGTH.unpack(front)[0]
    if not 0 <= length <= min(HEADER_BYTES * (1 + len(rows)), nbytes - LENGTH.size):
        raise NotPlain("it has no header")
    behind = LENGTH.size + length
    front = read_at(file, behind, 0)
    if front is None or xxhash.xxh3_128_hexdigest(front) != told.digest:
        raise NotPlain("its header does not match its digest")
    found = members_of(bytes(front[LENGTH.size :]))
    wanted = {row.tensor: row for row in rows}
    if len(wanted) != len(rows) or found.keys() != wanted.keys():
        raise NotPlain("it does not hold the tensors that the manifest tells")
    end = 0
    for name, member in sorted(found.items(), key=lambda one: (one[1].start, one[1].end)):
        row = wanted[name]
        nbytes_each = ITEM_BYTES.get(row.dtype)
        if nbytes_each is None or math.prod(row.shape) * nbytes_each != row.nbytes:
            raise NotPlain(f"the manifest does not tell what {name!r} is")
        if member != (row.dtype, row.shape, end, end + row.nbytes):
            raise NotPlain(f"{name!r} is not what the manifest tells, or not where it must be")
        end += row.nbytes
    if behind + end != nbytes:
        raise NotPlain(f"it has {nbytes - behind} bytes of tensors instead of {end}")
    return {name: behind + member.start for name, member in found.items()}
