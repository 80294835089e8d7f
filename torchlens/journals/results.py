"""The tables of a capture as they are kept beside its journal, and the receipt that says what they were made of.

Gives  a folded capture kept in a cache; and what was kept, found again.
Rule   tables and receipt are kept under stream, head and the version of the canonical form, each table with its own
       version beside it. The receipt is written last; what it does not speak of is not read. It is a file of its own,
       since it is all that is read where nothing differs.
Rule   a result is of a stream if it was opened at the moment that the receipt names, and its last event happened when
       the receipt says: a number alone may have been given anew after a power cut.
Not    folding (folded.py), or where the bytes lie (cache.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import attrs

from journal import StreamInfo
from projections import Source
from projections.columnar.arguments import is_tuple
from projections.columnar.canonical import VERSION, pack
from projections.columnar.decoding import MOST_CELLS, PackedTable, array_of, unpack, unpack_table
from projections.errors import EncodingError
from projections.stored.encoding import EncodedTable, packed
from torchlens.journals.cache import CacheKey, FileCache
from torchlens.journals.folded import Result, witness_of
from torchlens.version import VERSION as PACKAGE_VERSION

__all__ = ["Receipt", "find", "has_tables", "keep", "kept_tables"]

RECEIPT: Final = "receipt"
TABLES: Final = "tables"
"""What is kept of a capture, as projections."""

MOST_RECEIPT: Final = 1 << 16
"""Bytes of a receipt. A longer one is none: it names some tables."""

ROOM: Final = 1 << 20
TIMES: Final = 16
"""A kept table is read if it has no more bytes and cells than this, and so many times as many as its events give now.

Nobody vouches for what lies in a cache but its digests, which whoever wrote it made.
"""

FAST: Final = 1
"""Level of compression: a table is mostly numbers, on which a higher one gains little."""


@attrs.frozen
class Receipt:
    """What a kept result was made of, and what it is."""

    head: int
    witness: tuple[int, int]  # when the stream was opened, and when the last event happened
    written_by: str
    fingerprint: str
    tables: Mapping[str, tuple[int, bytes]]  # version and digest, by name


def keep(cache: FileCache, stream: int, result: Result) -> None:
    """Keep a result instead of every older one of its stream."""
    head = result.tables.head
    receipt, tables = (CacheKey(name, VERSION, stream, head) for name in (RECEIPT, TABLES))
    named: list[tuple[str, int, bytes]] = []
    held: list[tuple[str, int, bytes]] = []
    for name, encoded in result.encoded.items():
        version = result.tables.table(name).version
        named.append((name, version, encoded.summary.digest()))
        held.append((name, version, zlib.compress(packed(encoded), FAST)))
    cache.put(tables, pack(held))
    cache.put(receipt, pack((result.witness, PACKAGE_VERSION, result.fingerprint, named)))
    kept = list(cache.keys(stream))
    for old in kept if receipt in kept else ():  # what could not be kept replaces nothing
        if old.projection in (RECEIPT, TABLES) and old not in (receipt, tables):
            cache.drop(old)


def has_tables(cache: FileCache, stream: int, result: Result) -> bool:
    """Whether tables of this head are kept, whole."""
    return cache.get(CacheKey(TABLES, VERSION, stream, result.tables.head)) is not None


class Found(NamedTuple):
    """What is kept of a capture."""

    receipt: Receipt | None  # the newest of these events
    is_stale: bool  # there is one of other events, or in another form


def find(cache: FileCache, source: Source, info: StreamInfo) -> Found:
    """The newest result of a capture's events that is kept."""
    heads = [key for key in cache.keys(info.stream) if key.projection == RECEIPT]
    is_stale = any(key.version != VERSION for key in heads)
    for key in sorted(heads, key=lambda key: -key.head):
        receipt = read_receipt(cache, key) if key.version == VERSION else None
        if receipt is None:
            continue
        if 0 < key.head <= info.head and witness_of(source, info, key.head) == receipt.witness:
            return Found(receipt, is_stale)
        is_stale = True
    return Found(None, is_stale)


def read_receipt(cache: FileCache, key: CacheKey) -> Receipt | None:
    data = cache.get(key)
    try:
        match None if data is None or len(data) > MOST_RECEIPT else unpack(data):
            case ((int(opened), int(last)), str(written_by), str(fingerprint), entries) if is_tuple(entries):
                tables: dict[str, tuple[int, bytes]] = {}
                for entry in entries:
                    match entry:
                        case (str(name), int(version), bytes(digest)):
                            tables[name] = (version, digest)
                        case _:
                            return None
                return Receipt(key.head, (opened, last), written_by, fingerprint, tables)
            case _:
                return None
    except EncodingError:
        return None


def kept_tables(cache: FileCache, stream: int, receipt: Receipt, now: Result) -> dict[str, PackedTable]:
    """The tables that a receipt speaks of, as far as they are there, and are as the receipt says.

    Args:
        cache: Where they are.
        stream: Number of the stream.
        receipt: What they were.
        now: What the same events give now, in proportion to which they are believed.
    """
    data = cache.get(CacheKey(TABLES, VERSION, stream, receipt.head))
    room = {name: room_for(encoded) for name, encoded in now.encoded.items()}
    found: dict[str, PackedTable] = {}
    if data is None or len(data) > sum(room.values()):
        return found
    with suppress(EncodingError):
        for entry in array_of(unpack(data), "tables"):
            match entry:
                case (str(name), int(version), bytes(packed_table)) if name in receipt.tables and name in room:
                    table = inflated(packed_table, room[name])
                    if table is not None and (version, table.summary.digest()) == receipt.tables[name]:
                        found[name] = table
                case _:
                    pass
    return found


def room_for(now: EncodedTable) -> int:
    """Bytes that a kept table may have, and cells that each of its columns may have, given the table as it is now."""
    data = sum([len(column.data) for column in now.columns.values()])
    return min(MOST_CELLS, ROOM + TIMES * (now.summary.num_rows + len(now.labels) + data))


def inflated(data: bytes, most: int) -> PackedTable | None:
    inflate = zlib.decompressobj()
    try:
        table = unpack_table(inflate.decompress(data, most), most)
    except (zlib.error, EncodingError):
        return None
    return table if inflate.eof else None
