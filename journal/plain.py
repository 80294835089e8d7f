"""Values that msgpack has no form for, replaced by their template tags, so that the event is kept.

Rule  nothing foreign is asked for its text, which may run anything; numpy's scalars alone are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, cast

from journal.checks import checks_of
from journal.events import event_class
from journal.events.base import Row
from journal.events.template import BIG_INT, BYTES, DEEP, DICT, LONG, LONG_TEXT, OPAQUE, SET, TEXT, TUPLE

MAX_DEPTH: Final = 200
"""Deeper values are cut off when an event is packed; msgpack's own limit is above it."""


def storable(row: Row, limit: int | None = None) -> Row:
    """The row with everything that msgpack has no form for replaced by its template tag.

    Args:
        row: Any row.
        limit: Also cut texts, bytes and containers longer than this.
    """
    cls = event_class(row[0])
    fields: list[Any] = []
    for value, fits in zip(row[2:], checks_of(cls.type_id), strict=True):
        plain = plain_of(value, True, limit, 0)
        if not fits(plain):
            bare = plain_of(value, False, limit, 0)  # a field that must be text stays text
            plain = bare if fits(bare) else plain
        fields.append(plain)
    return (row[0], row[1], *fields)


def plain_of(value: Any, tagged: bool, limit: int | None, depth: int) -> Any:
    kind = type(cast("object", value))
    if value is None or kind is bool:
        return value
    if issubclass(kind, int):
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 64 else (BIG_INT, int_text(number))
    if issubclass(kind, float):
        return float(value)
    if issubclass(kind, str):
        return plain_text(value, tagged, limit)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return (BYTES, len(data)) if limit is not None and len(data) > limit else data
    if depth >= MAX_DEPTH:
        return (DEEP,)
    if issubclass(kind, (tuple, list)):
        return plain_items(TUPLE, value, tagged, limit, depth, head=())
    if issubclass(kind, (set, frozenset)):
        return plain_items(SET, list(value), tagged, limit, depth, head=(SET,))
    if issubclass(kind, dict):
        flat = [part for pair in value.items() for part in pair]
        return plain_items(DICT, flat, tagged, limit, depth, head=(DICT,))
    # Only numpy's scalars are asked for their text: that of a tensor or a foreign object may run anything.
    text = str(value)[:100] if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0 else ""
    return (OPAQUE, f"{kind.__module__}.{kind.__qualname__}", text)


def plain_items(
    tag: int, items: Sequence[Any], tagged: bool, limit: int | None, depth: int, head: tuple[int, ...]
) -> tuple[Any, ...]:
    if limit is not None and len(items) > limit:
        first = tuple(plain_of(item, tagged, limit, depth + 2) for item in items[:limit])
        return (LONG, tag, first, len(items))
    return head + tuple([plain_of(item, tagged, limit, depth + 1) for item in items])


def plain_text(value: str, tagged: bool, limit: int | None) -> Any:
    text = str.encode(value, "utf-8", "backslashreplace").decode()
    if limit is not None and len(text) > limit:
        return (LONG_TEXT, text[:limit], len(text)) if tagged else text[:limit]
    return (TEXT, text) if tagged and text != value else text


def int_text(number: int) -> str:
    """Decimal digits, or hexadecimal ones where Python refuses to write so many decimal ones."""
    limit = sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else 0
    return hex(number) if limit and number.bit_length() > 3 * limit else str(number)
