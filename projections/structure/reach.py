"""What can be reached along edges: distances and the sets of origins and outputs.

Reads  parents and children of op rows. Parents stand before their children, so one sweep each way is enough.
Gives  one number or one set of rows per op row.
Not    which rows count as origins (the caller says).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from projections.columnar.sequences import Ragged


def distances(neighbours: Ragged[int], starts: Iterable[int], order: Iterable[int], longest: bool) -> list[int | None]:
    """Edges on the shortest or longest way from a start to each row; None where there is no way.

    Args:
        neighbours: Rows one edge nearer to the starts.
        starts: Rows at distance 0.
        order: All rows, each after its neighbours.
        longest: The longest way instead of the shortest.
    """
    made: list[int | None] = [None] * len(neighbours)
    for row in starts:
        made[row] = 0
    better: Callable[[Iterable[int]], int] = max if longest else min
    items, ends = neighbours.items, neighbours.ends
    for row in order:
        if made[row] is not None:
            continue
        near = [steps for other in items[ends[row] : ends[row + 1]] if (steps := made[other]) is not None]
        if near:
            made[row] = better(near) + 1
    return made


def reached(neighbours: Ragged[int], starts: Sequence[int], order: Iterable[int]) -> list[frozenset[int]]:
    """The starts from which each row can be reached, itself included where it is one; equal sets are one object.

    Sets are worked out as bit masks over the starts, and each mask becomes a set once.
    """
    masks = [0] * len(neighbours)
    for bit, row in enumerate(starts):
        masks[row] = 1 << bit
    items, ends = neighbours.items, neighbours.ends
    for row in order:
        mask = masks[row]
        for other in items[ends[row] : ends[row + 1]]:
            mask |= masks[other]
        masks[row] = mask
    sets: dict[int, frozenset[int]] = {}
    made: list[frozenset[int]] = []
    for mask in masks:
        found = sets.get(mask)
        if found is None:
            found = sets[mask] = frozenset(members(mask, starts))
        made.append(found)
    return made


def members(mask: int, starts: Sequence[int]) -> list[int]:
    """The starts whose bits a mask has."""
    chosen: list[int] = []
    while mask:
        lowest = mask & -mask
        chosen.append(starts[lowest.bit_length() - 1])
        mask ^= lowest
    return chosen
