"""What a promise about records is, and the comparisons that many of them make.

Gives  ``Promise``, and columns, facts and sums compared with what follows from others.
Not    the promises themselves (invariants.py, backward_invariants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from projections.build import CaptureTables
from projections.columnar.tables import Table

Breaches: TypeAlias = "Iterator[tuple[str, str]]"
"""The record and the problem of each breach."""

Promise = Callable[[CaptureTables], Breaches]

FEW: Final = 64
"""So many neighbours of neighbours are looked at, of one row of at most ``SMALL``."""

SMALL: Final = 4096
"""Rows up to which ancestors and neighbours of neighbours are looked at: together they may be as many as the square
of the rows."""


def unequal(table: Table[Any], key: str, column: str, wanted: Iterable[Any]) -> Breaches:
    """Where a column holds something else than follows from the others."""
    for label, found, right in zip(table.column(key), table.column(column), wanted, strict=True):
        if found != right:
            yield str(label), f"its {column} is {shown(found)} and not {shown(right)}"


def fact_is(tables: CaptureTables, name: str, wanted: Any) -> Breaches:
    """Where a fact of the capture is not what the tables hold."""
    found = tables.fact(name)
    if found != wanted:
        yield name, f"it is {shown(found)}, and the tables hold {shown(wanted)}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= FEW else f"{text[:FEW]}..."


def named(labels: Sequence[str], rows: Iterable[int]) -> tuple[str, ...]:
    """The labels of some rows."""
    return tuple([labels[row] for row in rows])


def marked(flags: Iterable[Any]) -> list[int]:
    """The rows with a mark."""
    return [row for row, flag in enumerate(flags) if flag]


def picked(column: Sequence[Any], rows: Iterable[int]) -> list[Any]:
    return [column[row] for row in rows]


def total(values: Iterable[Any]) -> Any:
    """Their sum; None where one is unknown."""
    found = list(values)
    return None if None in found else sum(found)
