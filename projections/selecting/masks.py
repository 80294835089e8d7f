"""Which elements of a site are meant: all of them, or some by their position in the flattened tensor.

A ``Choice`` tells them for some op rows of one forward. A row whose elements were all taken away one by one stays,
with none of them; one that was taken away whole goes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, TypeAlias


class Whole(Enum):
    """Every element of a site."""

    ALL = "all"


ALL: Final = Whole.ALL

Mask: TypeAlias = "Whole | array[int]"
"""All elements, or the positions of some, ascending."""

Choice: TypeAlias = Mapping[int, Mask]
"""Mask by op row, ascending."""

Size: TypeAlias = Callable[[int], int]
"""How many elements the value of an op row has."""


def some(positions: Iterable[int]) -> Mask:
    """Some elements, by position."""
    return array("q", sorted(set(positions)))


def count(mask: Mask, size: int) -> int:
    return size if isinstance(mask, Whole) else len(mask)


def whole(rows: Iterable[int]) -> dict[int, Mask]:
    """All elements of some rows."""
    return dict.fromkeys(sorted(rows), ALL)


def _sorted(chosen: Mapping[int, Mask]) -> dict[int, Mask]:
    return dict(sorted(chosen.items()))


def union(one: Choice, other: Choice, size: Size) -> dict[int, Mask]:
    """What either has."""
    made = dict(one)
    for row, mask in other.items():
        made[row] = _either(made[row], mask, size(row)) if row in made else mask
    return _sorted(made)


def intersection(one: Choice, other: Choice) -> dict[int, Mask]:
    """What both have; of a row that both have, perhaps no element."""
    return {row: _both(mask, other[row]) for row, mask in one.items() if row in other}


def difference(one: Choice, other: Choice, size: Size) -> dict[int, Mask]:
    """What the first has and the second has not."""
    made: dict[int, Mask] = {}
    for row, mask in one.items():
        taken = other.get(row)
        if taken is None:
            made[row] = mask
        elif not isinstance(taken, Whole):
            made[row] = _without(mask, taken, size(row))
    return made


def complement(one: Choice, rows: Iterable[int], size: Size) -> dict[int, Mask]:
    """What it has not, of some rows."""
    return difference(whole(rows), one, size)


def _either(one: Mask, other: Mask, size: int) -> Mask:
    if isinstance(one, Whole) or isinstance(other, Whole):
        return ALL
    made = some([*one, *other])
    return ALL if count(made, size) == size else made


def _both(one: Mask, other: Mask) -> Mask:
    if isinstance(one, Whole):
        return other
    return one if isinstance(other, Whole) else some(set(one).intersection(other))


def _without(one: Mask, taken: array[int], size: int) -> Mask:
    gone = set(taken)
    if not gone:
        return one
    every: Iterable[int] = range(size) if isinstance(one, Whole) else one
    return array("q", [position for position in every if position not in gone])
