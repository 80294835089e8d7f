"""Rows in an order in which each comes behind the row that made it.

Gives  every row once: ascending, but for a row that was told before what made it, which waits for that.
Rule   of rows that made one another in a circle, which only events that nobody wrote can say, some come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from projections.folds.graph import NOWHERE


def makers_first(makers: Sequence[int]) -> Iterator[int]:
    """Every row.

    Args:
        makers: By row, the row that made it; NOWHERE for none.
    """
    is_met = [False] * len(makers)
    for row in range(len(makers)):
        waiting: list[int] = []
        while row != NOWHERE and not is_met[row]:
            is_met[row] = True
            waiting.append(row)
            row = makers[row]
        yield from reversed(waiting)
