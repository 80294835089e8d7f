"""A table's canonical bytes: the same records give the same bytes on any machine, and their digest.

Form   msgpack: ``[version, table name, number of rows, [[column name, [cell, ...]], ...]]``. A cell is nil, a
       boolean, an integer, a double, a string, bytes, an array for a tuple, or a map, written as an extension that
       holds an array of pairs in the order of their encoded keys. A whole capture is an array of its tables.
       What `REPEATED` names is left out.
Rule   exact types only: a subclass, a set, a list or a foreign number is refused, since its bytes would say
       nothing of it. A tuple subclass that stands for a plain sequence of sizes has been made plain before it got
       here. NaN has one form, and minus zero is zero.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Final, cast

import msgpack

from projections.arguments import is_tuple
from projections.bounds import require_writable
from projections.build import CaptureTables
from projections.errors import EncodingError, over_events
from projections.tables import Table

VERSION: Final = 1

MAP: Final = 1
"""Extension code of a map."""

REPEATED: Final = frozenset({"recurrent_ops"})
"""Columns that tell for every pass of a layer what ``op_labels`` of the layer tells once: written out they grow
with the square of the passes."""

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 64) - 1

SCALARS: Final = frozenset((type(None), bool, int, str, bytes))

Decoded = dict[str, dict[str, list[Any]]]
"""Columns by name, by table."""


def fingerprint(tables: CaptureTables) -> str:
    """SHA-256 of the canonical bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for piece in pieces(tables):
        digest.update(piece)
    return digest.hexdigest()


def encode(tables: CaptureTables) -> bytes:
    """All tables of a capture in canonical form."""
    return b"".join(pieces(tables))


def pieces(tables: CaptureTables) -> Iterator[bytes]:
    """The canonical bytes, a column at a time: all at once they may be large.

    Raises:
        JournalError: ``records_too_large``, and what reading the columns raises.
    """
    for table in (tables.ops, tables.orphans):
        with over_events():
            require_writable(table.context)
    yield header(len(tables.all))
    for table in tables.all.values():
        names = written(table)
        yield header(4) + pack(VERSION) + pack(table.name) + pack(len(table)) + header(len(names))
        for name in names:
            with over_events():  # a cell may be nested deeper than Python calls
                column = pack([plain(cell) for cell in table.column(name)])
            yield header(2) + pack(name) + column


def written(table: Table[Any]) -> list[str]:
    """Names of the columns that are encoded, in order."""
    return [name for name in table.names if name not in REPEATED]


def header(count: int) -> bytes:
    """What comes before the members of an array."""
    return bytes(msgpack.Packer().pack_array_header(count))


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, use_bin_type=True))


def plain(value: Any) -> Any:
    """A cell as what msgpack writes in one way only.

    Raises:
        EncodingError: ``encoding_type_refused``, for anything that is no plain value.
    """
    kind = type(cast(object, value))
    if kind in SCALARS:
        if kind is int and not SMALLEST <= value <= LARGEST:
            raise refused(value, "an integer beyond 64 bits")
        return value
    if kind is float:
        return math.nan if value != value else value + 0.0
    if kind is tuple:
        return [plain(item) for item in value]
    if kind is dict:
        pairs = sorted((pack(plain(key)), pack(plain(item))) for key, item in value.items())
        return msgpack.ExtType(MAP, b"".join(part for pair in pairs for part in pair))
    raise refused(value, f"a value of type {kind.__module__}.{kind.__qualname__}")


def refused(value: object, what: str) -> EncodingError:
    return EncodingError(
        code="encoding_type_refused",
        problem=f"{what} has no canonical form",
        remedy="make the column of plain values: None, bool, int, float, str, bytes, tuple, dict",
        type=type(value).__qualname__,
    )


def decode(data: bytes) -> Decoded:
    """The columns that canonical bytes hold, those of ``REPEATED`` not among them.

    Raises:
        EncodingError: ``encoding_malformed``, when the bytes are not what ``encode`` writes, and
            ``encoding_version_unknown``, when a later version wrote them.
    """
    found: Decoded = {}
    for table in array(unpack(data), "tables"):
        name, columns = decoded_table(array(table, "a table"))
        found[name] = columns
    return found


def array(value: Any, what: str) -> tuple[Any, ...]:
    if is_tuple(value):
        return value
    raise malformed(f"{what} should be an array")


def decoded_table(table: tuple[Any, ...]) -> tuple[str, dict[str, list[Any]]]:
    if len(table) != 4:
        raise malformed("a table is not an array of four")
    version, name, count, columns = table
    if version != VERSION:
        raise EncodingError(
            code="encoding_version_unknown",
            problem=f"the tables are in form {version!r}, and this is form {VERSION}",
            remedy="read them with the version of this package that wrote them",
            version=version,
        )
    made: dict[str, list[Any]] = {}
    for column, cells in array(columns, "columns"):
        if len(cells) != count:
            raise malformed(f"column {column!r} has {len(cells)} cells for {count} rows")
        made[column] = list(cells)
    return name, made


def unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False, ext_hook=opened)
    except (ValueError, msgpack.UnpackException) as exc:
        raise malformed(str(exc) or type(exc).__name__) from exc


def opened(code: int, data: bytes) -> Any:
    """A map from its pairs."""
    if code != MAP:
        raise malformed(f"extension {code} is unknown")
    unpacker = msgpack.Unpacker(use_list=False, raw=False, strict_map_key=False, ext_hook=opened)
    unpacker.feed(data)
    items = list(unpacker)
    return dict(zip(items[0::2], items[1::2], strict=True))


def malformed(why: str) -> EncodingError:
    return EncodingError(
        code="encoding_malformed",
        problem=f"the bytes are no tables in canonical form: {why}",
        remedy="fold the stream again",
        why=why,
    )
