"""The order of a map that is a cell: that of its keys, whether it was just made or read back from a table.

Rule  numbers come before text, and text before tuples; two maps that are equal are in one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from projections.columnar.arguments import is_tuple

V = TypeVar("V")


def by_key(told: Mapping[Any, V]) -> dict[Any, V]:
    """A map in the order of its keys."""
    if len(told) < 2:
        return dict(told)
    return {key: told[key] for key in sorted(told, key=place)}


def place(key: Any) -> tuple[int, Any]:
    """Where a key stands among others."""
    if isinstance(key, int):
        return 0, key
    if isinstance(key, str):
        return 1, key
    if is_tuple(key):
        return 2, tuple([place(item) for item in key])
    return 3, repr(key)
