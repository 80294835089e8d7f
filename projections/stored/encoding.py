"""The tables of a capture brought into canonical form, column by column.

Reads  tables, and how their columns are held in memory (columnar/sequences.py).
Gives  the canonical bytes of each column (columnar/canonical.py), and a SHA-256 per column, per table over those of its
       columns, and one for all tables, the fingerprint. The digest of a column that speaks of op labels is taken over
       the labels too.
Rule   the cells alone decide the bytes. How a column is held makes it cheaper to encode and never other bytes.
"""

from __future__ import annotations

import hashlib
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, pairwise
from typing import Any, Final, NamedTuple, TypeGuard

from projections.build import CaptureTables
from projections.columnar.arguments import is_tuple
from projections.columnar.canonical import (
    DEEPEST,
    FLOATS,
    INTEGERS,
    MAPPINGS,
    NONE,
    SCALARS,
    STRINGS,
    TUPLES,
    VERSION,
    WIDEST,
    WIDTHS,
    Compared,
    Different,
    Form,
    Kinds,
    Summary,
    compared,
    fingerprint_of,
    pack,
    plain,
)
from projections.columnar.sequences import Classes, Deferred, Named, Picked, Ragged
from projections.columnar.tables import Column, Table
from projections.columns import IMPLIED
from projections.errors import over_events

PACKED_FORMS: Final = tuple([bytes([form]) for form in Form])

SHORT_ARRAYS: Final = tuple([bytes([0x91 + parts]) for parts in range(4)])  # of the form and so many parts


class EncodedColumn(NamedTuple):
    """The canonical bytes of a column."""

    data: bytes
    is_labelled: bool = False  # it speaks of op labels, which it does not hold


class EncodedTable(NamedTuple):
    """The canonical bytes of a table's columns, with what it takes to read them."""

    summary: Summary
    columns: Mapping[str, EncodedColumn]
    labels: bytes  # the column of op labels


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
        tables.require_writable()
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
        names = [name for name in table.names if name not in IMPLIED.get(table.name, ())]
        if not len(table):  # as many empty columns, whatever would be in them
            columns = dict.fromkeys(names, EMPTY)
        else:
            with over_events():  # a cell may be nested deeper than Python calls
                columns = {name: self.column(table.column(name)) for name in names}
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
        data = [b"".join((array_start(len(parts)), *data))]
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


def array_start(count: int) -> bytes:
    """What comes before the members of an array."""
    return bytes([0x90 + count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def worth(different: Sequence[Any], cells: Sequence[Any], kinds: Kinds) -> bool:
    """Whether writing different values once saves half of the cells, or half of what the tuples among them hold."""
    if 2 * len(different) <= len(cells):
        return True
    items = total_length(cells, kinds)
    return items > 0 and 2 * total_length(different, kinds) <= items


def total_length(cells: Iterable[Any], kinds: Kinds) -> int:
    return sum(map(len, cells)) if kinds == TUPLES else sum([len(cell) for cell in cells if is_tuple(cell)])
