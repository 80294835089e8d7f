"""The canonical form of a column, and the bytes of a cell: the same records give the same on any machine.

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
Gives  the bytes of a cell, which cells have the same, and the digests of tables.
Rule   exact types only: a subclass, a set, a list or a foreign number is refused, since its bytes would say
       nothing of it. A tuple subclass that stands for a plain sequence of sizes has been made plain before it got
       here. NaN has one form, and minus zero is zero.
Not    bringing columns into this form (stored/encoding.py), or reading them (decoding.py).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgpack

from projections.columnar.arguments import is_tuple
from projections.columnar.packing import packed_bytes
from projections.errors import EncodingError

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


MAP: Final = 1
"""Extension code of a map."""

WIDEST: Final = 32
"""Longer tuples of one length are ragged: a column for each position would cost more than it saves."""

DEEPEST: Final = 16
"""Tuples in tuples are taken apart to this depth, and written plain below it."""

WIDTHS: Final = ((1 << 8, "B"), (1 << 16, "H"), (1 << 32, "I"))
"""Type of the little-endian numbers that say which of up to so many values a cell has."""

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


# Bytes -------------------------------------------------------------------------------------------


def pack(value: Any) -> bytes:
    """The bytes of what ``plain`` gives.

    Raises:
        EncodingError: ``encoding_type_refused``, for an integer beyond 64 bits and text that is no Unicode.
    """
    try:
        return packed_bytes(value)
    except (OverflowError, UnicodeEncodeError) as exc:
        raise refused(value, "an integer beyond 64 bits, or text that is no Unicode,") from exc


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


# Which cells have the same bytes ---------------------------------------------------------------


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


# Digests -----------------------------------------------------------------------------------------


class Summary(NamedTuple):
    """What tells whether two tables have the same cells, and where not."""

    name: str
    num_rows: int
    columns: Mapping[str, bytes]  # SHA-256 by name

    def digest(self) -> bytes:
        """SHA-256 over all columns, whatever their order."""
        columns = tuple(sorted(self.columns.items()))
        return hashlib.sha256(pack((VERSION, self.name, self.num_rows, columns))).digest()


def fingerprint_of(summaries: Iterable[Summary]) -> str:
    """One SHA-256 over tables, whatever their order, in hexadecimal."""
    return hashlib.sha256(pack(tuple(sorted([(one.name, one.digest()) for one in summaries])))).hexdigest()
