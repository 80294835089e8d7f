"""Tables in canonical form, read: as they come back from where anyone may have put them.

Reads  the bytes that ``encoding.packed`` writes.
Gives  a table whose columns are read one by one, when they are asked for.
Rule   bytes are believed in nothing that costs memory: rows and cells are counted before they are made.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from projections.columnar.arguments import is_tuple
from projections.columnar.canonical import MAP, VERSION, WIDTHS, Form, Summary
from projections.columnar.ordered import by_key
from projections.errors import EncodingError

MOST_CELLS: Final = 1 << 26
"""Rows of a table, and cells of a column with what is in them, that are believed on reading."""

CHARACTERS: Final = 16
"""So many characters of a text, or bytes, are as good as one more cell."""


class PackedTable(NamedTuple):
    """A stored table: what tells it from another, and its columns, still packed."""

    summary: Summary
    labels: Sequence[str] | None  # op labels, where a column speaks of them
    columns: Mapping[str, bytes]
    most: int  # cells of a column that are believed

    def column(self, name: str) -> list[Any]:
        """The cells of one column.

        Raises:
            EncodingError: ``encoding_malformed``.
        """
        return read_column(self.columns[name], self.summary.num_rows, self.labels, self.most)


def unpack_table(data: bytes, most: int = MOST_CELLS) -> PackedTable:
    """A table as ``packed`` wrote it, its columns unread.

    Args:
        data: The bytes.
        most: Rows that are believed, and cells of a column with what is in them.

    Raises:
        EncodingError: ``encoding_malformed``, when the bytes are none, and ``encoding_version_unknown``, when a later
            version wrote them.
    """
    parts = array_of(unpack(data), "a table")
    if len(parts) != 5:
        raise table_malformed("a table is not an array of five")
    version, name, count, labels, columns = parts
    if version != VERSION:
        raise EncodingError(
            code="encoding_version_unknown",
            problem=f"the tables are in form {version!r}, and this is form {VERSION}",
            remedy="read them with the version of this package that wrote them",
            version=version,
        )
    if not isinstance(name, str) or type(count) is not int or count < 0 or not isinstance(labels, bytes):
        raise table_malformed("a table without name, number of rows and labels")
    if count > most:
        raise table_malformed(f"a table of {count} rows, which are too many to be believed")
    before = hashlib.sha256(labels).digest()
    digests: dict[str, bytes] = {}
    found: dict[str, bytes] = {}
    for column in array_of(columns, "columns"):
        match array_of(column, "a column"):
            case (str(column_name), bool(is_labelled), bytes(cells)):
                digests[column_name] = hashlib.sha256(before + cells if is_labelled else cells).digest()
                found[column_name] = cells
            case _:
                raise table_malformed("a column is not a name, a truth and bytes")
    op_labels = read_column(labels, None, None, most) if labels else None
    if op_labels is not None and not all(type(label) is str for label in op_labels):
        raise table_malformed("an op label is no text")
    return PackedTable(Summary(name, count, digests), op_labels, found, most)


def read_column(data: bytes, count: int | None, labels: Sequence[str] | None, most: int = MOST_CELLS) -> list[Any]:
    """The cells of a column, as many as its table has rows; None where only they tell how many."""
    try:
        return ColumnReader(labels, most).cells(unpack(data), count)
    except (TypeError, ValueError, LookupError, RecursionError, StopIteration) as exc:
        if isinstance(exc, EncodingError):
            raise
        raise table_malformed(f"{type(exc).__name__}: {exc}") from exc


class ColumnReader:
    """Reads one column, and believes it so many cells in all.

    Cells that are equal take no bytes of their own, and stand as one object in many places: a few bytes can speak of
    more cells than there is memory for, and a cell can hold one object so often that writing it out takes more still.
    So every cell counts, in whatever form, and one inside another counts with all that is in it.

    Args:
        labels: The op labels, where the column speaks of them.
        most: Cells that are believed.
    """

    def __init__(self, labels: Sequence[str] | None, most: int) -> None:
        self.labels = labels
        self.left = most

    def take(self, cells: int) -> None:
        self.left -= cells
        if self.left < 0:
            raise table_malformed("a column of too many cells to be believed")

    def cells(self, column: Any, count: int | None, *, is_inner: bool = False) -> list[Any]:
        self.take(count or 0)
        match array_of(column, "a column"):
            case (Form.PLAIN, cells):
                found = list(array_of(cells, "cells"))
            case (Form.FEW, values, numbers) if count is not None:
                found = self.few(array_of(values, "values"), numbers, count, is_inner=is_inner)
            case (Form.LABELS, (_, rows)) if self.labels is not None:
                found = [self.labels[row] for row in array_of(rows, "rows")]
                if is_inner:
                    self.take(sum(map(len, found)) // CHARACTERS)
            case (Form.RAGGED, lengths, items) if count is not None:
                found = self.ragged(self.cells(lengths, count), items)
            case (Form.FIXED, parts):
                inner = [self.cells(part, count, is_inner=True) for part in array_of(parts, "parts")]
                found = list(zip(*inner, strict=True))
            case (Form.MAPS, keys, items):
                found = self.maps(self.cells(keys, count, is_inner=True), self.cells(items, count, is_inner=True))
            case (Form.OPTIONAL, present, cells) if count is not None:
                is_there = self.cells(present, count)
                given = iter(self.cells(cells, is_there.count(True), is_inner=is_inner))
                found = [next(given) if there else None for there in is_there]
            case _:
                raise table_malformed("a column in no form")
        if count is not None and len(found) != count:
            raise table_malformed(f"a column has {len(found)} cells for {count} rows")
        return found

    def few(self, values: Sequence[Any], numbers: bytes, count: int, *, is_inner: bool) -> list[Any]:
        if len(values) == 1:
            if is_inner:
                self.take(count * weight(values[0]))
            return [values[0]] * count
        width = next(width for limit, width in WIDTHS if len(values) <= limit)
        places = array(width, numbers)
        if sys.byteorder == "big":
            places.byteswap()
        if is_inner:
            weights = list(map(weight, values))
            self.take(sum([weights[place] for place in places]))
        return [values[place] for place in places]

    def ragged(self, lengths: Sequence[int], items: Any) -> list[Any]:
        if any(length < 0 for length in lengths):
            raise table_malformed("tuples of impossible lengths")
        cells = self.cells(items, sum(lengths), is_inner=True)
        made: list[Any] = []
        start = 0
        for length in lengths:
            made.append(tuple(cells[start : start + length]))
            start += length
        return made

    def maps(self, keys: Sequence[Any], items: Sequence[Any]) -> list[Any]:
        made: list[Any] = []
        for names, values in zip(keys, items, strict=True):
            self.take(len(names))
            made.append(by_key(dict(zip(names, values, strict=True))))
        return made


def weight(value: Any) -> int:
    """How many cells a value is as good as, with all that is in it, itself left out."""
    match value:
        case tuple():
            return len(value) + sum(map(weight, value))  # pyright: ignore[reportUnknownArgumentType] - of any kind
        case dict():
            return weight(tuple(value)) + weight(tuple(value.values()))  # pyright: ignore[reportUnknownArgumentType] - the same
        case str() | bytes():
            return len(value) // CHARACTERS
        case _:
            return 0


def array_of(value: Any, what: str) -> tuple[Any, ...]:
    if is_tuple(value):
        return value
    raise table_malformed(f"{what} should be an array")


def unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False, ext_hook=opened)
    except (ValueError, RecursionError, msgpack.UnpackException) as exc:
        raise table_malformed(str(exc) or type(exc).__name__) from exc


def opened(code: int, data: bytes) -> Any:
    """A map from its pairs."""
    if code != MAP:
        raise table_malformed(f"extension {code} is unknown")
    unpacker = msgpack.Unpacker(use_list=False, raw=False, strict_map_key=False, ext_hook=opened)
    unpacker.feed(data)
    items = list(unpacker)
    return by_key(dict(zip(items[0::2], items[1::2], strict=True)))


def table_malformed(why: str) -> EncodingError:
    return EncodingError(
        code="encoding_malformed",
        problem=f"the bytes are no tables in canonical form: {why}",
        remedy="fold the stream again",
        why=why,
    )
