"""Equal siblings: which neighbouring units of a box may be drawn as one, ``x N``.

Reads  a ``Scene`` and its ``Tree``.
Gives  ``Repeats``: by box what stands in it, as pieces of which some are folded.
Rule   siblings are equal where what is in them is: item by item, edge by edge, down to the last box inside and what of
       it is folded in turn. Names and parameters may differ, classes of modules and shapes may not.
Rule   they are folded only where one tells the truth for all. An edge of one from or to another joins neighbours, and
       joins all neighbours alike. An edge from or to outside is one that every one has, with the same item; besides,
       the first and the last have from outside what the others have from a neighbour, and from where others lead to a
       neighbour they may lead anywhere.
Note   the folded siblings are a *run*, each of them a *copy*; a copy may be several units, which then are the *period*.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

import attrs

from projections.picture.scene import Scene, Tree

LONGEST: Final = 16
"""Units of a period at most. Each period takes a pass over the units of a box, so this bounds the work; a stretch of
more that repeats is rare, as who writes one gives it a module of its own, which is one unit."""

FEW: Final = 4
MORE: Final = 8
"""Items that a fold must hide: of a single module, of anything else. What is left of a module is one node or cluster,
which is there anyway, and a number: that is worth it from two pairs of small ones on. Several units need a cluster of
their own around them, without a name to know it by, and an edge back: that has to hide twice as many."""

Outer: TypeAlias = tuple[bool, int, int, int]
"""An edge of a copy from or to outside: whether it leads in, the place counted from the start of the copy, the place
outside, and a number of what it is."""


class Near(NamedTuple):
    """An edge of a copy from or to a neighbour."""

    is_in: bool
    place: int  # counted from the start of the copy
    other: int  # in the neighbour, counted so
    kind: int
    step: int  # -1 where the neighbour stands before, 1 where it stands behind


@attrs.define
class Border:
    """The edges that lead into and out of a copy."""

    inner: list[tuple[int, int, int]] = attrs.Factory(list["tuple[int, int, int]"])  # and those inside of it
    near: list[Near] = attrs.Factory(list[Near])
    outside: Counter[Outer] = attrs.Factory(Counter[Outer])
    reach: int = sys.maxsize  # copies of which none has an edge from or to one that is no neighbour


@attrs.frozen
class Piece:
    """Neighbouring units of a box.

    Attributes:
        units: The units, in order.
        period: Units of a copy; as many as there are where nothing is folded.
        is_one: Whether they are drawn as one: a node for each strand of what is in them.
        strands: How many nodes that are.
    """

    units: tuple[int, ...]
    period: int = 1
    is_one: bool = False
    strands: int = 1

    @property
    def nodes(self) -> int:
        """Nodes that it takes to draw them with all boxes closed."""
        return self.strands if self.is_one else self.period

    @property
    def times(self) -> int:
        return 1 if self.is_one else len(self.units) // self.period

    @property
    def copy(self) -> tuple[int, ...]:
        """The units that are drawn."""
        return self.units[: self.period]


class Repeats:
    """Finds what may be folded.

    Attributes:
        pieces: By box, what stands in it.
        kind: By box a number, equal where boxes are.
        looked_at: Items and edges that were looked at across borders: a measure of the work.
    """

    def __init__(self, scene: Scene, tree: Tree) -> None:
        self.scene: Final = scene
        self.tree: Final = tree
        self.looked_at = 0
        self.into, self.out_of = self.neighbours()
        self.item_kinds: Final = numbered(scene.likenesses())
        self.kind: Final = [-1] * len(tree.units)
        self.pieces: Final[list[list[Piece]]] = [[] for _ in tree.units]
        self.known: Final[dict[Hashable, int]] = {}
        inner = self.inner_edges()
        for box in reversed(tree.box_at):  # those inside come first
            kinds = self.kinds_of(tree.units[box])
            pieces = self.pieces[box] = self.folded(box, kinds, least=FEW)
            shape = tuple([(len(piece.units), piece.period) for piece in pieces if piece.times > 1])
            key = (scene.boxes.likeness(box), tuple(kinds), tuple(sorted(inner[box])), shape)
            self.kind[box] = self.known.setdefault(key, len(self.known))

    # -- what is equal

    def neighbours(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """By place the edges into it and out of it: the place at the other end, and a number of what the edge is."""
        tree, scene = self.tree, self.scene
        into: list[list[tuple[int, int]]] = [[] for _ in tree.item_at]
        out_of: list[list[tuple[int, int]]] = [[] for _ in tree.item_at]
        kinds = numbered(list(zip(scene.kinds, scene.labels, strict=True)))
        for source, target, kind in zip(tree.sources, tree.targets, kinds, strict=True):
            into[target].append((source, kind))
            out_of[source].append((target, kind))
        return into, out_of

    def inner_edges(self) -> list[list[tuple[int, int, int]]]:
        """By box the edges between what is in different units of it: both places, counted from its start."""
        tree, parent, box_of = self.tree, self.scene.boxes.parent, self.scene.box
        made: list[list[tuple[int, int, int]]] = [[] for _ in tree.units]
        for target, edges in enumerate(self.into):
            for source, kind in edges:
                box, other = box_of[tree.item_at[target]], box_of[tree.item_at[source]]
                while box != other:
                    if tree.depth[box] >= tree.depth[other]:
                        box = parent[box]
                    else:
                        other = parent[other]
                made[box].append((source - tree.start[box], target - tree.start[box], kind))
        return made

    def kinds_of(self, units: Sequence[int]) -> list[int]:
        """By unit a number, equal where units are; boxes have negative ones."""
        return [self.item_kinds[unit] if unit >= 0 else -1 - self.kind[~unit] for unit in units]

    # -- what is folded

    def folded(self, box: int, kinds: Sequence[int], *, least: int, loose: bool = False) -> list[Piece]:
        """What stands in a box.

        Args:
            box: The box.
            kinds: By unit, what it is.
            least: Items that a fold of a single module must hide.
            loose: Whether items that are in no box of their own may be folded, too.
        """
        units = self.tree.units[box]
        if not loose and all(unit >= 0 for unit in units):
            return [Piece((unit,)) for unit in units]
        alike = [matches(kinds, period) for period in range(1, min(LONGEST, len(units) // 2) + 1)]
        made: list[Piece] = []
        at = 0
        while at < len(units):
            best = self.best(units, alike, at, least, loose=loose)
            if best is None:
                made.append(Piece((units[at],)))
                at += 1
                continue
            start, period, times = best
            made += [Piece((unit,)) for unit in units[at:start]]
            at = start + period * times
            made.append(Piece(tuple(units[start:at]), period))
        return made

    def best(
        self, units: Sequence[int], alike: Sequence[Sequence[int]], at: int, least: int, *, loose: bool
    ) -> tuple[int, int, int] | None:
        """Where the fold that hides most begins, at a unit or less than a period behind it; its period and times."""
        found: tuple[int, int, int] | None = None
        most: tuple[int, bool, bool] = (0, False, False)
        for period, same in enumerate(alike, 1):
            if found is not None and period % found[1] == 0:
                continue
            for start in range(at, at + period):
                times = 1 + (same[start] // period if start < len(same) else 0)
                hidden = self.hidden(units[start : start + period], times, least, loose=loose)
                if not hidden:
                    if start == at:
                        break
                    continue
                first = units[start]
                rank = (hidden, first < 0, self.takes_params(first))
                if rank > most:
                    found, most = (start, period, 1 + hidden // self.size(units[start : start + period])), rank
        return found

    def hidden(self, copy: Sequence[int], times: int, least: int, *, loose: bool) -> int:
        """Items that are hidden where so many copies, from the first, are folded as far as that is allowed; or 0."""
        if times < 2 or not (loose or any(unit < 0 for unit in copy)):
            return 0
        size = self.size(copy)
        needed = least if len(copy) == 1 and copy[0] < 0 and size > 2 else MORE
        if (times - 1) * size < needed:
            return 0
        hidden = (self.told_truly(self.tree.interval(copy)[0], size, times) - 1) * size
        return hidden if hidden >= needed else 0

    def size(self, units: Sequence[int]) -> int:
        start, end = self.tree.interval(units)
        return end - start

    def takes_params(self, unit: int) -> bool:
        """Whether what begins a copy takes parameters: where a period may begin in several places, there it does."""
        item = unit if unit >= 0 else self.tree.item_at[self.tree.start[~unit]]
        return self.scene.look(item).takes_params(self.scene.rows[item][0])

    def told_truly(self, start: int, size: int, times: int) -> int:
        """Of how many of some equal copies, from the first, one tells the truth for all; 1 where of no two.

        Args:
            start: Place of the first.
            size: Places of each.
            times: How many there are.
        """
        while times > 1:
            good = self.alike_outside(start, size, times)
            if good == times:
                return times
            times = good if good > 1 or times == 2 else 2  # the edges among fewer are others: looked at once more
        return 1

    def alike_outside(self, start: int, size: int, times: int) -> int:
        """How many copies have edges that lead out of them as the rule has it; fewer where some have not."""
        borders = [self.border(start, size, times, copy) for copy in range(times)]
        reach = min([border.reach for border in borders])
        first, second = borders[0], borders[1]
        if times == 2:
            common = first.outside & second.outside
            before, behind = second.near, first.near
        else:
            common = second.outside
            before = [near for near in second.near if near.step < 0]
            behind = [near for near in second.near if near.step > 0]
            if first.near != behind:
                return 1
        if first.inner != second.inner or common - first.outside or not fits(first.outside - common, before):
            return 1
        good = 2
        if times > 2:
            while good < times - 1 and borders[good] == second:
                good += 1
        last = borders[good if times > 2 else 1]
        if (
            (last.inner, last.near) == (second.inner, before)
            and not common - last.outside
            and fits(last.outside - common, behind)
        ):
            good = good + 1 if times > 2 else 2
        elif times == 2:
            return 1
        return min(good, reach)

    def border(self, start: int, size: int, times: int, copy: int) -> Border:
        """The edges that lead into and out of one of some copies."""
        begin, end = start + copy * size, start + (copy + 1) * size
        stop = start + times * size
        made = Border()
        for is_in, edges in ((True, self.into), (False, self.out_of)):
            for place in range(begin, end):
                self.looked_at += 1 + len(edges[place])
                for other, kind in edges[place]:
                    if begin <= other < end:
                        if is_in:
                            made.inner.append((place - begin, other - begin, kind))
                        continue
                    if not start <= other < stop:
                        made.outside[is_in, place - begin, other, kind] += 1
                        continue
                    there = (other - start) // size
                    if abs(there - copy) == 1:
                        inside = other - start - there * size
                        made.near.append(Near(is_in, place - begin, inside, kind, there - copy))
                    else:
                        made.reach = min(made.reach, max(there, copy))
        made.near.sort()
        made.inner.sort()
        return made


def fits(more: Counter[Outer], near: Sequence[Near]) -> bool:
    """Whether what one copy has from and to outside stands for what the others have from and to a neighbour."""
    given = {(place, kind) for is_in, place, _, kind in more if is_in}
    wanted = {(one.place, one.kind) for one in near if one.is_in}
    leading = {one.place for one in near if not one.is_in}
    return given == wanted and all(place in leading for is_in, place, _, _ in more if not is_in)


def numbered(values: Sequence[Hashable]) -> list[int]:
    """Equal values as equal numbers, from 0."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def matches(kinds: Sequence[int], period: int) -> list[int]:
    """By position, how many units from there on are like the one a period behind them."""
    made = [0] * (len(kinds) - period)
    for at in reversed(range(len(made))):
        if kinds[at] == kinds[at + period]:
            made[at] = 1 + (made[at + 1] if at + 1 < len(made) else 0)
    return made


def unfolded(tree: Tree) -> list[list[Piece]]:
    """By box, what stands in it, where nothing is folded."""
    return [[Piece((unit,)) for unit in units] for units in tree.units]
