"""HEAD: what a journal held when it was last sealed, in a file beside the events.

    HEAD    8192 bytes: two slots, at 0 and 4096, the newer of which counts; the rest is zero
    slot    format, id, next seq, segment, its length, chain, CRC-32 of these; big-endian

LMDB keeps two states of its file and opens the older one without a word when the newer is damaged, and a
copied directory may mix files of two moments. Either shows against HEAD, and against nothing else.

Rule  HEAD is written when the events it speaks of are on the disk, and the journal says `sealed` only after that:
      a journal is never behind its HEAD, and ahead of it only while it is not sealed.
Rule  The older slot is written over, in place: a write that a power cut tears leaves the newer one, and a file whose
      length stays costs the disk a fifth of a new one's rename. A slot that is torn is one of a journal not yet sealed.
Not   whether the events before fit together: `integrity.py` looks at all of them.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from journal.errors import JournalCorrupt, malformed
from journal.wire import FORMAT, newer_format
from journal.writing import write_all_at

NAME: Final = "HEAD"
PARTIAL_NAME: Final = "HEAD.partial"
"""The first one while it is made; what a crash left of it is removed."""

BODY: Final = struct.Struct(">Q16sQQQ32s")
CHECKSUM: Final = struct.Struct(">I")
SLOT_BYTES: Final = BODY.size + CHECKSUM.size
SLOTS: Final = (0, 4096)
"""Where they begin: no sector of a disk holds both."""

LENGTH: Final = 8192


class Head(NamedTuple):
    """Where a journal ended."""

    id: bytes
    next_seq: int
    segment: int  # the one that grows
    length: int  # bytes of it that events name
    chain: bytes


class Found(NamedTuple):
    """What HEAD says."""

    head: Head
    place: int  # of its slot
    is_torn: bool  # the other slot holds something that was not written whole, or not left alone


def find_head(folder: Path) -> Found | None:
    """What HEAD says; None where there is none.

    Raises:
        JournalCorrupt: `head_malformed`, where neither slot can be read.
        JournalError: `journal_newer`.
    """
    try:
        file = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        raise malformed("head_malformed", f"the HEAD of {str(folder)!r} is a link") from exc
    try:
        return found_in(file, folder)
    finally:
        os.close(file)


def read_head(folder: Path) -> Head | None:
    """The same, without how it was found."""
    found = find_head(folder)
    return None if found is None else found.head


def found_in(file: int, folder: Path) -> Found:
    data = os.pread(file, LENGTH + 1, 0) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    if len(data) != LENGTH:
        raise malformed("head_malformed", f"the HEAD of {str(folder)!r} has not {LENGTH} bytes")
    slots = [data[place : place + SLOT_BYTES] for place in SLOTS]
    heads = [(head, place) for place, slot in zip(SLOTS, slots, strict=True) if (head := head_of(slot)) is not None]
    if not heads:
        raise malformed("head_malformed", f"the HEAD of {str(folder)!r} does not match its checksums")
    head, place = max(heads, key=lambda found: found[0].next_seq)
    return Found(head, place, len(heads) + slots.count(bytes(SLOT_BYTES)) < len(SLOTS))


def head_of(slot: bytes) -> Head | None:
    """What a slot says; None where it does not match its checksum.

    Raises:
        JournalError: `journal_newer`.
    """
    body, checksum = slot[: BODY.size], slot[BODY.size :]
    if CHECKSUM.pack(zlib.crc32(body)) != checksum:
        return None
    found, *rest = BODY.unpack(body)
    if found > FORMAT:
        raise newer_format(found, None)
    return Head(*rest) if found == FORMAT else None


def write_head(folder: Path, head: Head, *, durable: bool) -> None:
    """Let HEAD say something newer.

    Args:
        folder: Directory of the journal.
        head: What to write.
        durable: Whether it must have reached the disk when this returns.
    """
    body = BODY.pack(FORMAT, *head)
    slot = body + CHECKSUM.pack(zlib.crc32(body))
    try:
        file = os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return make_head(folder, slot, durable)
    try:
        write_all_at(file, slot, SLOTS[0] if found_in(file, folder).place == SLOTS[1] else SLOTS[1])
        if durable:
            os.fdatasync(file)
    finally:
        os.close(file)


def make_head(folder: Path, slot: bytes, durable: bool) -> None:
    """The first HEAD of a journal, whole from the moment that it is there."""
    partial = folder / PARTIAL_NAME
    partial.unlink(missing_ok=True)
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        write_all_at(file, slot.ljust(LENGTH, b"\0"), 0)
        if durable:
            os.fsync(file)
    finally:
        os.close(file)
    os.replace(partial, folder / NAME)
    if durable:
        place = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def contradiction(head: Head, last: Head, at_head: Head | None, is_sealed: bool) -> str | None:
    """Why a journal cannot be the one that HEAD speaks of, as a sentence; None where it can.

    Args:
        head: What HEAD says.
        last: What the journal's last commit says.
        at_head: What its commit that ends at HEAD's seq says; None where no commit ends there.
        is_sealed: Whether the journal says that nothing was appended since.
    """
    if head.id != last.id:
        return "HEAD belongs to another journal"
    if head.next_seq > last.next_seq:
        return f"it ends with {last.next_seq} events and had {head.next_seq} when it was sealed"
    if head != at_head:
        return f"its first {head.next_seq} events are not those it had when it was sealed"
    if is_sealed and head.next_seq != last.next_seq:
        return f"it says that it was sealed with {last.next_seq} events, and HEAD says with {head.next_seq}"
    return None


def rolled_back(folder: Path, why: str) -> JournalCorrupt:
    return JournalCorrupt(
        code="journal_rolled_back",
        problem=f"the journal {str(folder)!r} is not as it was sealed: {why}",
        remedy="bring back a copy made while nothing wrote it, or save what can be proven with `journal recover`",
        path=str(folder),
    )


def head_torn(folder: Path) -> JournalCorrupt:
    return malformed("head_malformed", f"a slot of the HEAD of {str(folder)!r} does not match its checksum")


def head_missing(folder: Path) -> JournalCorrupt:
    return JournalCorrupt(
        code="head_missing",
        problem=f"the journal {str(folder)!r} was sealed, and has no HEAD to say with what",
        remedy="bring HEAD back from where the journal was copied, or save what can be proven with `journal recover`",
        path=str(folder),
    )
