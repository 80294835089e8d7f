"""Which parts of a tree are alike: the same in themselves, and the same all the way down.

Reads  what each part is in itself, and the parts right below it.
Gives  a number for each, equal for those that are alike.
Rule   parts are compared by what they are and by the numbers of those below, never by walking both: the time goes with
       the size of the tree.
Not    which parts of a graph repeat, where edges have to agree too (picture/repeats.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def kinds(below: Sequence[Sequence[int]], own: Sequence[Hashable]) -> list[int]:
    """By part a number: equal for parts that are alike.

    Args:
        below: The parts right below each, all with larger numbers than its own.
        own: What each is in itself.
    """
    known: dict[tuple[Hashable, tuple[int, ...]], int] = {}
    made = [0] * len(own)
    for part in range(len(own) - 1, -1, -1):
        made[part] = known.setdefault((own[part], tuple([made[one] for one in below[part]])), len(known))
    return made


def runs(items: Sequence[Item], kinds: Sequence[int]) -> list[list[Item]]:
    """Items in order, those that stand next to each other and are of one kind together."""
    made: list[list[Item]] = []
    last: int | None = None
    for item, kind in zip(items, kinds, strict=True):
        if made and kind == last:
            made[-1].append(item)
        else:
            made.append([item])
        last = kind
    return made
