"""What stands where in the directory of a journal, its databases and the pages of data.mdb.

    run.journal/
        data.mdb, lock.mdb   databases meta, events, index, commits
        segments/NNNNNN.seg  payload bytes
        writer.lease         locked by the process that writes; names it
        HEAD                 what the journal held when it was last sealed (head.py)
        cache/               what was computed from the events

    meta      text                 format, id, state, written_by
    events    first seq            chunk (wire.py)
    index     stream, first at     first seq, number of rows
    commits   last seq             first seq, rows, segment, its length, chain

Numbers are eight bytes, big-endian. One commit is one transaction: chunks that waited in memory, then one
entry of commits, whose chain is the SHA-256 of the chain before it, the journal's id, the first seq and
the chunks. Payload bytes named by a chunk were written before.

Note  The pages' format is version 1 of LMDB's, on a machine with 64 bits and little-endian order: `MDB_page`,
      `MDB_node` and `MDB_meta` in its mdb.c.
Not   opening LMDB (lmdb_opening.py): what is read here is read, never mapped.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from journal.errors import JournalCorrupt
from journal.head import NAME as HEAD_NAME
from journal.head import PARTIAL_NAME
from journal.lease import LEASE

FOLDERS: Final = ("cache", "segments")
"""Directories of a journal; each other name is a file's."""

KNOWN_NAMES: Final = ("lock.mdb", LEASE, HEAD_NAME, PARTIAL_NAME, *FOLDERS)
"""What may stand in the directory of a journal that has no events yet."""

COPYING: Final = b"copying"
"""With a seq, the key in meta of a copy that begins there and has not ended."""

ONE: Final = struct.Struct(">Q")
TWO: Final = struct.Struct(">QQ")
COMMIT: Final = struct.Struct(">QQQQ32s")

META: Final = struct.Struct("=16xII8xQI92xQQ")
"""A meta page of LMDB: magic, version, map size, page size, last page, transaction."""

META_MAGIC: Final = (0xBEEFC0DE, 1)

PAGE_HEADER: Final = struct.Struct("<QHHHH")
"""Page number, padding, flags, end of the node pointers, begin of the nodes; in overflow pages a count instead."""

NODE_HEADER: Final = struct.Struct("<HHHH")
"""Low and high half of the value's length, flags, length of the key."""

IS_LEAF: Final = 0x02
IS_OVERFLOW: Final = 0x04
IS_ELSEWHERE: Final = 0x01
"""Flag of a node whose value is in overflow pages; the node has their number."""


def meta_pages(file: int) -> list[bytes]:
    """The begin of both meta pages, as far as they are there; it changes with every transaction."""
    first = os.pread(file, META.size, 0)
    page_size = META.unpack(first)[3] if len(first) == META.size else 0
    return [first, os.pread(file, META.size, page_size)]


def check_length(folder: Path) -> None:
    """Refuse a data.mdb that ends before its last page: LMDB would map what is not there, and die of reading it."""
    try:
        file = os.open(folder / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        metas = meta_pages(file)
        if len(metas[0]) < META.size or META.unpack(metas[0])[:2] != META_MAGIC:
            return  # empty, or none that this project writes: LMDB says so
        page_size = META.unpack(metas[0])[3]
        ends = [META.unpack(page)[4:] for page in metas if len(page) == META.size]
        due = page_size * (max(ends, key=lambda end: end[1])[0] + 1)
        found = os.fstat(file).st_size  # asked last: a writer lengthens the file before it says so
    finally:
        os.close(file)
    if found < due:
        raise JournalCorrupt(
            code="journal_truncated",
            problem=f"the data.mdb of {str(folder)!r} has {found} bytes where {due} are due",
            remedy="bring it back from a copy; it was cut by what copied it, or by a power cut",
            path=str(folder),
            found=found,
            due=due,
        )
