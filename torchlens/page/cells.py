"""Cells of records as a page has them: finite numbers that any program reads, and rows that there are.

Rule  Columns of an artifact are read from its bytes as they are, so a cell may be anything: None where it is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from projections.folds.graph import NOWHERE

__all__ = ["number_of", "numbers", "rows_of"]

EXACT: Final = 1 << 53
"""Whole numbers below this are the same in any program that reads JSON."""


def number_of(value: Any) -> int | float | None:
    """A number as JSON has it; None for what is none, or not finite."""
    if type(value) is bool or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) < EXACT:
        return int(value)
    try:
        wide = float(value)
    except OverflowError:
        return None
    return wide if math.isfinite(wide) else None


def numbers(cells: Iterable[Any]) -> list[int | float | None]:
    return [number_of(cell) for cell in cells]


def rows_of(cells: Iterable[Any], count: int) -> list[int]:
    """Rows of a table of so many; -1 for none, and for what is none, as the columns of an artifact may hold."""
    return [cell if type(cell) is int and 0 <= cell < count else NOWHERE for cell in cells]
