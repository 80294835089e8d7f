"""Canonical bytes of a table, column by column, and their digests: the same records give the same on any machine.

Form   a column is one of these msgpack arrays, and the cells alone decide which:
       ``[PLAIN, [cell, ...]]``                  as they stand;
       ``[FEW, [value, ...], places]``           at most half as many values as cells, by first appearance, and the
                                                 place of each cell's value, ``WIDTHS`` bytes each;
       ``[LABELS, column]``                      op labels as rows of the op table;
       ``[RAGGED, lengths, column]``             tuples, one after the other;
       ``[FIXED, [column, ...]]``                tuples of one length from 2 to ``WIDEST``, by position;
       ``[MAPS, keys, values]``                  maps, as two columns of tuples, keys in the order of their bytes;
       ``[OPTIONAL, present, column]``           tuples or maps, and None.
       A cell is nil, a boolean, an integer, a double, a string, bytes, an array for a tuple, or a map, written as an
       extension that holds an array of pairs in the order of their encoded keys.
Gives  a SHA-256 per column, per table over those of its columns, and one for all tables, the fingerprint. The digest of
       a column that speaks of op labels is taken over the labels too.
Rule   exact types only: a subclass, a set, a list or a foreign number is refused, since its bytes would say
       nothing of it. A tuple subclass that stands for a plain sequence of sizes has been made plain before it got
       here. NaN has one form, and minus zero is zero.
Note   How a column is held in memory (``sequences.py``) makes it cheaper to encode and never other bytes.
"""

from __future__ import annotations

import hashlib
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import chain, compress, pairwise
from typing import Any, Final, NamedTuple, TypeGuard, cast

import msgpack

from projections.arguments import is_tuple
from projections.bounds import require_writable
from projections.build import CaptureTables
from projections.errors import EncodingError, over_events
from projections.packing import packed_bytes
from projections.sequences import Classes, Deferred, Named, Picked, Ragged
from projections.tables import Column, Table

VERSION: Final = 1


class Form(IntEnum):
    """How the cells of a column are written."""

    PLAIN = 0
    FEW = 1
    LABELS = 2
    RAGGED = 3
    FIXED = 4
    MAPS = 5
    OPTIONAL = 6


PACKED_FORMS: Final = tuple([bytes([form]) for form in Form])
SHORT_ARRAYS: Final = tuple([bytes([0x91 + parts]) for parts in range(4)])  # of the form and so many parts

MAP: Final = 1
"""Extension code of a map."""

WIDEST: Final = 32
"""Longer tuples of one length are ragged: a column for each position would cost more than it saves."""

DEEPEST: Final = 16
"""Tuples in tuples are taken apart to this depth, and written plain below it."""

WIDTHS: Final = ((1 << 8, "B"), (1 << 16, "H"), (1 << 32, "I"))
"""Type of the little-endian numbers that say which of up to so many values a cell has."""

MOST_CELLS: Final = 1 << 26
"""Rows of a table, and cells of a column with what is in them, that are believed on reading."""

CHARACTERS: Final = 16
"""So many characters of a text, or bytes, are as good as one more cell."""

SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 64) - 1

SCALARS: Final = frozenset((type(None), bool, int, str, bytes))
NUMBERS: Final = frozenset((bool, int, float))
"""Types whose values may equal those of another: 1, 1.0 and True."""

KNOWN: Final[frozenset[type]] = SCALARS | {float, tuple}

Kinds = frozenset[type]
"""The types of some cells."""

NONE: Final[Kinds] = frozenset((type(None),))
STRINGS: Final[Kinds] = frozenset((str,))
INTEGERS: Final[Kinds] = frozenset((int,))
FLOATS: Final[Kinds] = frozenset((float,))
TUPLES: Final[Kinds] = frozenset((tuple,))
MAPPINGS: Final[Kinds] = frozenset((dict,))


class EncodedColumn(NamedTuple):
    """The canonical bytes of a column."""

    data: bytes
    is_labelled: bool = False  # it speaks of op labels, which it does not hold


class Summary(NamedTuple):
    """What tells whether two tables have the same cells, and where not."""

    name: str
    num_rows: int
    columns: Mapping[str, bytes]  # SHA-256 by name

    def digest(self) -> bytes:
        """SHA-256 over all columns, whatever their order."""
        columns = tuple(sorted(self.columns.items()))
        return hashlib.sha256(pack((VERSION, self.name, self.num_rows, columns))).digest()


class EncodedTable(NamedTuple):
    """The canonical bytes of a table's columns, with what it takes to read them."""

    summary: Summary
    columns: Mapping[str, EncodedColumn]
    labels: bytes  # the column of op labels


def fingerprint_of(summaries: Iterable[Summary]) -> str:
    """One SHA-256 over tables, whatever their order, in hexadecimal."""
    return hashlib.sha256(pack(tuple(sorted([(one.name, one.digest()) for one in summaries])))).hexdigest()


def fingerprint(tables: CaptureTables) -> str:
    """SHA-256 of all records of a capture in canonical form, in hexadecimal."""
    encoder = Encoder(tables)
    return fingerprint_of([encoder.table(table).summary for table in tables.all.values()])


def packed(table: EncodedTable) -> bytes:
    """A table by itself: ``[VERSION, name, number of rows, op labels, [(column, speaks of op labels, bytes), ...]]``.

    The op labels are there if a column speaks of them. A column can be read, or told from another, alone.
    """
    is_labelled = any(column.is_labelled for column in table.columns.values())
    columns = tuple([(name, column.is_labelled, column.data) for name, column in table.columns.items()])
    name, num_rows, _ = table.summary
    return pack((VERSION, name, num_rows, table.labels if is_labelled else b"", columns))


def header(count: int) -> bytes:
    """What comes before the members of an array."""
    return bytes([0x90 + count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def pack(value: Any) -> bytes:
    """The bytes of what ``plain`` gives.

    Raises:
        EncodingError: ``encoding_type_refused``, for an integer beyond 64 bits and text that is no Unicode.
    """
    try:
        return packed_bytes(value)
    except (OverflowError, UnicodeEncodeError) as exc:
        raise refused(value, "an integer beyond 64 bits, or text that is no Unicode,") from exc


# Columns ------------------------------------------------------------------------------------------


def is_ragged(column: Column) -> TypeGuard[Ragged[Any]]:
    return isinstance(column, Ragged)


class OpLabels(NamedTuple):
    """The op labels of a capture."""

    column: Column
    rows: Mapping[str, int]  # row by label; none where a label stands twice
    data: bytes
    digest: bytes


class Encoder:
    """Brings the tables of one capture into canonical form; what columns share is encoded once.

    Args:
        tables: The capture.
        labels: Its op labels, where they are encoded already.

    Raises:
        JournalError: ``records_too_large``.
    """

    def __init__(self, tables: CaptureTables, labels: OpLabels | None = None) -> None:
        for table in (tables.ops, tables.orphans):
            with over_events():
                require_writable(table.context)
        self.shared: dict[int, tuple[object, EncodedColumn]] = {}  # by identity, which what is held keeps its own
        self.rows: Mapping[str, int] = {}  # by label, where labels may be referred to
        if labels is None:
            column = tables.ops.column("label")
            data = self.cells(list(column)).data
            rows = {label: row for row, label in enumerate(column)}
            labels = OpLabels(column, rows if len(rows) == len(column) else {}, data, hashlib.sha256(data).digest())
        self.labels: Final = labels
        self.rows = labels.rows

    def table(self, table: Table[Any]) -> EncodedTable:
        """One table of the capture.

        Raises:
            EncodingError: ``encoding_type_refused``, for a cell that is no plain value.
            JournalCorrupt: ``events_contradictory``, when a column cannot be made.
        """
        if not len(table):  # as many empty columns, whatever would be in them
            columns = dict.fromkeys(table.names, EMPTY)
        else:
            with over_events():  # a cell may be nested deeper than Python calls
                columns = {name: self.column(table.column(name)) for name in table.names}
        if table.name == "ops":
            columns["label"] = EncodedColumn(self.labels.data)
        digests = {name: self.digest(column) for name, column in columns.items()}
        return EncodedTable(Summary(table.name, len(table), digests), columns, self.labels.data)

    def renewed(self, encoded: EncodedTable, table: Table[Any], names: Iterable[str]) -> EncodedTable:
        """A table of which some columns are not those that were encoded."""
        new = {name: self.column(table.column(name)) for name in names} if len(table) else {}
        digests = {name: self.digest(column) for name, column in new.items()}
        before = encoded.summary
        return EncodedTable(
            Summary(before.name, before.num_rows, {**before.columns, **digests}),
            {**encoded.columns, **new},
            encoded.labels,
        )

    def digest(self, column: EncodedColumn) -> bytes:
        data, is_labelled = column
        return hashlib.sha256(self.labels.digest + data if is_labelled else data).digest()

    def column(self, column: Column) -> EncodedColumn:
        """A column, however it is held in memory."""
        while isinstance(column, Deferred):
            column = column.all()
        known = self.shared.get(id(column))
        if known is not None:
            return known[1]
        if isinstance(column, Picked):
            made = self.picked(column.values, column.classes)
        elif isinstance(column, Named):
            made = self.ragged(column.rows, column.labels)
        elif is_ragged(column):
            made = self.ragged(column, None)
        else:
            made = None
        if made is None:
            made = self.cells(list(column))
        self.shared[id(column)] = (column, made)
        return made

    # by the cells alone

    def cells(self, cells: list[Any], depth: int = 0) -> EncodedColumn:
        """A column of these cells: the form that every other way to encode one must agree with."""
        kinds = frozenset(map(type, cells))
        few = self.few(cells, kinds, depth)
        if few is not None:
            return few
        if kinds <= SCALARS:
            if kinds == STRINGS and self.rows and cells[0] in self.rows and cells[-1] in self.rows:
                rows = list(map(self.rows.get, cells))
                if None not in rows:
                    return labelled(written(Form.PLAIN, pack(rows)))
            return EncodedColumn(written(Form.PLAIN, pack(cells)))
        if kinds == FLOATS:
            return EncodedColumn(
                written(Form.PLAIN, pack([cell + 0.0 if cell == cell else math.nan for cell in cells]))
            )
        if depth < DEEPEST:
            if kinds == TUPLES:
                return self.tuples(cells, depth)
            if kinds == MAPPINGS:
                return self.mappings(cells, depth)
            if kinds in (TUPLES | NONE, MAPPINGS | NONE):
                present = [cell is not None for cell in cells]
                inner = self.cells(list(compress(cells, present)), depth)
                return joined(Form.OPTIONAL, (self.cells(present), inner))
        return EncodedColumn(written(Form.PLAIN, pack([plain(cell) for cell in cells])))

    def few(self, cells: list[Any], kinds: Kinds, depth: int) -> EncodedColumn | None:
        """The cells by their different values; None where these are too many, or there are maps among them."""
        count = len(cells)
        if count < 2 or depth >= DEEPEST:
            return None
        if tuple in kinds:  # which mostly come several times as one object
            objects = dict(zip(map(id, cells), cells, strict=True))
            different = Different.among(list(objects.values()), kinds)
            if different is None or not worth(different.values, cells, kinds):
                return None
            place = dict(zip(objects, different.places(), strict=True))
            return few_of(different.values, map(place.__getitem__, map(id, cells)))
        different = Different.among(cells, kinds)
        if different is None or 2 * len(different.values) > count:
            return None
        return few_of(different.values, different.places())

    def tuples(self, cells: list[Any], depth: int) -> EncodedColumn:
        lengths = list(map(len, cells))
        width = lengths[0]
        if 2 <= width <= WIDEST and lengths.count(width) == len(lengths):
            return joined(
                Form.FIXED, [self.cells(list(part), depth + 1) for part in zip(*cells, strict=True)], count=True
            )
        return joined(Form.RAGGED, (self.cells(lengths), self.cells(list(chain.from_iterable(cells)), depth + 1)))

    def mappings(self, cells: list[Any], depth: int) -> EncodedColumn:
        orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        every = list(chain.from_iterable(cells))
        is_known = compared(every, frozenset(map(type, every))) is Compared.AS_THEY_ARE
        keys: list[tuple[Any, ...]] = []
        for cell in cells:
            given = tuple(cell)
            order = orders.get(given) if is_known else None
            if order is None:
                order = orders[given] = tuple(sorted(given, key=lambda key: pack(plain(key))))
            keys.append(order)
        items = [tuple([cell[key] for key in order]) for cell, order in zip(cells, keys, strict=True)]
        return joined(Form.MAPS, (self.cells(keys, depth + 1), self.cells(items, depth + 1)))

    # by how the column is held: the same bytes, sooner

    def picked(self, values: Sequence[Any], classes: Classes) -> EncodedColumn | None:
        if len(classes.of) < 2:
            return None
        held = list(values)
        different = Different.among(held, frozenset(map(type, held)))
        if different is None or 2 * len(different.values) > len(classes.of):
            return None
        places = list(different.places())
        if len(different.values) == 1 or classes.count > 256:
            return few_of(different.values, map(places.__getitem__, classes.of))
        table = bytes(places).ljust(256, b"\0")
        return few_of(different.values, classes.small_numbers().translate(table))

    def ragged(self, column: Ragged[Any], labels: Sequence[str] | None) -> EncodedColumn | None:
        items, ends = column.items, column.ends
        count = len(ends) - 1
        if (
            count < 2
            or ends[-1] != len(items)
            or (labels is not None and (labels is not self.labels.column or not self.rows))
        ):
            return None
        different = len(set(items))
        heads = {items[start] for start, end in pairwise(ends) if start < end}
        if 2 * len(heads) <= count or 2 * different <= len(items) or frozenset(map(type, items)) != INTEGERS:
            return None
        lengths = column.lengths()
        if lengths[0] >= 2 and lengths.count(lengths[0]) == count:
            return None
        known = self.shared.get(id(items))
        if known is None:
            known = self.shared[id(items)] = (items, EncodedColumn(written(Form.PLAIN, pack(items))))
        inner = known[1] if labels is None else labelled(known[1].data)
        return joined(Form.RAGGED, (self.cells(lengths), inner))


EMPTY: Final = EncodedColumn(bytes([0x92, Form.PLAIN, 0x90]))
"""A column without cells."""


def written(form: Form, *parts: bytes) -> bytes:
    """An array of a form and its packed parts."""
    return b"".join((SHORT_ARRAYS[len(parts)], PACKED_FORMS[form], *parts))


def labelled(rows: bytes) -> EncodedColumn:
    return EncodedColumn(written(Form.LABELS, rows), is_labelled=True)


def joined(form: Form, parts: Sequence[EncodedColumn], *, count: bool = False) -> EncodedColumn:
    """A form of several columns, or of one array of columns."""
    data = [part.data for part in parts]
    if count:
        data = [b"".join((header(len(parts)), *data))]
    return EncodedColumn(written(form, *data), any(part.is_labelled for part in parts))


def few_of(values: Sequence[Any], places: Iterable[int] | bytes) -> EncodedColumn:
    """Different values, and which of them each cell has."""
    kinds = frozenset(map(type, values))
    held = pack(values if kinds <= SCALARS else [plain(value) for value in values])
    if len(values) == 1:
        numbers = b""
    else:
        if len(values) <= WIDTHS[0][0]:
            numbers = bytes(places)
        else:
            width = next(width for limit, width in WIDTHS if len(values) <= limit)
            wide = array(width, places)
            if sys.byteorder == "big":
                wide.byteswap()
            numbers = wide.tobytes()
    return EncodedColumn(written(Form.FEW, held, pack(numbers)))


class Different(NamedTuple):
    """The different ones among some values, by first appearance."""

    keys: Sequence[Any]  # of all values, equal just where the values' bytes are
    first: Mapping[Any, None]  # the keys, each once
    values: list[Any]

    @classmethod
    def among(cls, values: list[Any], kinds: Kinds) -> Different | None:
        """None where there are maps among them."""
        how = compared(values, kinds)
        if how is Compared.NEVER:
            return None
        if how is Compared.AS_THEY_ARE:
            first = dict.fromkeys(values)
            return cls(values, first, list(first))
        keys = [pack(plain(value)) for value in values]
        found: dict[bytes, Any] = {}
        for key, value in zip(keys, values, strict=True):
            found.setdefault(key, value)
        return cls(keys, dict.fromkeys(found), list(found.values()))

    def places(self) -> Iterable[int]:
        """The place of each value among the different ones."""
        if len(self.first) == len(self.keys):
            return range(len(self.keys))
        place = dict(zip(self.first, range(len(self.first)), strict=True))
        return map(place.__getitem__, self.keys)


class Compared(Enum):
    """How cells are told from one another."""

    AS_THEY_ARE = "their equality is that of their bytes"
    BY_BYTES = "equal cells may have other bytes: 1 and True"
    NEVER = "there are maps among them"


def compared(cells: Sequence[Any], kinds: Kinds, depth: int = 0) -> Compared:
    """How to tell cells from one another; maps count as far down as tuples are taken apart."""
    if len(kinds) == 1 and kinds <= SCALARS:
        return Compared.AS_THEY_ARE
    if dict in kinds:
        return Compared.NEVER
    is_exact = kinds <= KNOWN and len(kinds & NUMBERS) <= 1
    if float in kinds and any(cell != cell for cell in cells):
        is_exact = False
    if tuple in kinds:
        if depth >= DEEPEST:
            return Compared.BY_BYTES
        tuples = cells if kinds == TUPLES else [cell for cell in cells if is_tuple(cell)]
        items = list(chain.from_iterable(tuples))
        inner = compared(items, frozenset(map(type, items)), depth + 1)
        if inner is not Compared.AS_THEY_ARE:
            return inner
    return Compared.AS_THEY_ARE if is_exact else Compared.BY_BYTES


def worth(different: Sequence[Any], cells: Sequence[Any], kinds: Kinds) -> bool:
    """Whether writing different values once saves half of the cells, or half of what the tuples among them hold."""
    if 2 * len(different) <= len(cells):
        return True
    items = total_length(cells, kinds)
    return items > 0 and 2 * total_length(different, kinds) <= items


def total_length(cells: Iterable[Any], kinds: Kinds) -> int:
    return sum(map(len, cells)) if kinds == TUPLES else sum([len(cell) for cell in cells if is_tuple(cell)])


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


# Reading ------------------------------------------------------------------------------------------


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
        raise malformed("a table is not an array of five")
    version, name, count, labels, columns = parts
    if version != VERSION:
        raise EncodingError(
            code="encoding_version_unknown",
            problem=f"the tables are in form {version!r}, and this is form {VERSION}",
            remedy="read them with the version of this package that wrote them",
            version=version,
        )
    if not isinstance(name, str) or type(count) is not int or count < 0 or not isinstance(labels, bytes):
        raise malformed("a table without name, number of rows and labels")
    if count > most:
        raise malformed(f"a table of {count} rows, which are too many to be believed")
    before = hashlib.sha256(labels).digest()
    digests: dict[str, bytes] = {}
    found: dict[str, bytes] = {}
    for column in array_of(columns, "columns"):
        match array_of(column, "a column"):
            case (str(column_name), bool(is_labelled), bytes(cells)):
                digests[column_name] = hashlib.sha256(before + cells if is_labelled else cells).digest()
                found[column_name] = cells
            case _:
                raise malformed("a column is not a name, a truth and bytes")
    op_labels = read_column(labels, None, None, most) if labels else None
    if op_labels is not None and not all(type(label) is str for label in op_labels):
        raise malformed("an op label is no text")
    return PackedTable(Summary(name, count, digests), op_labels, found, most)


def read_column(data: bytes, count: int | None, labels: Sequence[str] | None, most: int = MOST_CELLS) -> list[Any]:
    """The cells of a column, as many as its table has rows; None where only they tell how many."""
    try:
        return ColumnReader(labels, most).cells(unpack(data), count)
    except (TypeError, ValueError, LookupError, RecursionError) as exc:
        if isinstance(exc, EncodingError):
            raise
        raise malformed(f"{type(exc).__name__}: {exc}") from exc


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
            raise malformed("a column of too many cells to be believed")

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
                raise malformed("a column in no form")
        if count is not None and len(found) != count:
            raise malformed(f"a column has {len(found)} cells for {count} rows")
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
            raise malformed("tuples of impossible lengths")
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
            made.append(dict(zip(names, values, strict=True)))
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
    raise malformed(f"{what} should be an array")


def unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False, ext_hook=opened)
    except (ValueError, RecursionError, msgpack.UnpackException) as exc:
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
