"""Equal siblings: which neighbouring units of a box may be drawn as one, ``x N``.

Reads  a ``Scene`` and its ``Tree``.
Gives  ``Repeats``: by box what stands in it, as pieces of which some are folded.
Rule   siblings are equal where what is in them is: item by item, edge by edge, down to the last box inside and what of
       it is folded in turn. Names and parameters may differ, classes of modules and shapes may not.
Rule   they are folded only where one tells the truth for all. An edge of one from or to another joins neighbours, and
       joins all neighbours alike. An edge from or to outside is one that every one has, with the same item; besides,
       the first and the last have from outside what the others have from a neighbour, and from where others lead to a
       neighbour they may lead anywhere.
Rule   what is looked at is bounded by the items and edges there are, whatever of it may be folded: the copies of a run
       are compared place by place, and none behind the first that differs.
Rule   what repeats within a copy of several units is folded in turn, where it may be in every copy.
Note   the folded siblings are a *run*, each of them a *copy*; a copy may be several units, which then are the *period*.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, TypeAlias

import attrs

from projections.picture.scene import Scene, Tree

LONGEST: Final = 48
"""Units of a period at most: two dozen ops with their autograd nodes, which together leave a picture readable. Each
period takes a pass over the units of a box, so this bounds the work; a stretch of more that repeats is rare, as who
writes one gives it a module of its own, which is one unit."""

FEW: Final = 4
MORE: Final = 8
"""Items that a fold must hide: of a single module, of anything else. What is left of a module is one node or cluster,
which is there anyway, and a number: that is worth it from two pairs of small ones on. Several units need a cluster of
their own around them, without a name to know it by, and an edge back: that has to hide twice as many."""


Ends: TypeAlias = set[tuple[int, int]]
"""Edges, as the places at their other ends and numbers of what they are."""


@attrs.define
class Side:
    """The edges into a place of a copy, or out of it.

    Attributes:
        is_out: Whether they lead out of it.
        reach: Copies of which none has one of these from or to a copy that is no neighbour.
        before, inside, behind: Those from or to the copy before, this one, and the next; places count from its start.
        outside: The others.
    """

    is_out: bool
    reach: int
    before: Ends = attrs.Factory(Ends)
    inside: Ends = attrs.Factory(Ends)
    behind: Ends = attrs.Factory(Ends)
    outside: Ends = attrs.Factory(Ends)


@attrs.frozen
class Piece:
    """Neighbouring units of a box.

    Attributes:
        units: The units, in order.
        period: Units of a copy; as many as there are where nothing is folded.
        is_one: Whether they are drawn as one: a node for each strand of what is in them.
        strands: How many nodes that are.
        inner: What stands in a copy of several units, of which some are folded in turn; () where none is.
    """

    units: tuple[int, ...]
    period: int = 1
    is_one: bool = False
    strands: int = 1
    inner: tuple[Piece, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes that it takes to draw them with all boxes closed."""
        if self.inner:
            return sum([piece.nodes for piece in self.inner])
        return self.strands if self.is_one else self.period

    @property
    def shape(self) -> Hashable:
        """Equal where as much is folded in the same way."""
        return len(self.units), self.period, tuple([piece.shape for piece in self.inner])

    @property
    def drawn(self) -> tuple[int, ...]:
        """The units that are drawn."""
        return tuple([unit for piece in self.inner for unit in piece.drawn]) if self.inner else self.copy

    @property
    def times(self) -> int:
        return 1 if self.is_one else len(self.units) // self.period

    @property
    def copy(self) -> tuple[int, ...]:
        """The units of the first copy."""
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
        self.ends_into: Final = [frozenset(edges) for edges in self.into]
        self.ends_out_of: Final = [frozenset(edges) for edges in self.out_of]
        self.item_kinds: Final = self.kinds_of_items()
        self.kind: Final = [-1] * len(tree.units)
        self.pieces: Final[list[list[Piece]]] = [[] for _ in tree.units]
        self.known: Final[dict[Hashable, int]] = {}
        inner = self.inner_edges()
        for box in reversed(tree.box_at):  # those inside come first
            kinds = self.kinds_of(tree.units[box])
            pieces = self.pieces[box] = self.folded(box, kinds, least=FEW)
            shape = tuple([piece.shape for piece in pieces if piece.times > 1])
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

    def kinds_of_items(self) -> list[int]:
        """By item a number, equal where items look the same and edges of the same kinds lead into them, as they do into
        what is folded."""
        likenesses = self.scene.likenesses()
        taken = [frozenset([kind for _, kind in self.into[place]]) for place in self.tree.place]
        return numbered(list(zip(likenesses, taken, strict=True)))

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
        return self.in_pieces(units, kinds, least, loose=loose)

    def in_pieces(self, units: Sequence[int], kinds: Sequence[int], least: int, *, loose: bool) -> list[Piece]:
        """Neighbouring units, of which some are folded."""
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
            made.append(self.with_inner(tuple(units[start:at]), kinds[start : start + period], least, loose=loose))
        return made

    def with_inner(self, units: tuple[int, ...], kinds: Sequence[int], least: int, *, loose: bool) -> Piece:
        """Copies of so many kinds, and what of each may be folded in turn: what may be in every one."""
        period = len(kinds)
        plain = Piece(units, period)
        if period < 2:
            return plain
        inner = self.in_pieces(units[:period], kinds, least, loose=loose)
        first, size = self.tree.interval(units[:period])[0], self.size(units[:period])
        kept: list[Piece] = []
        for piece in inner:
            start = self.tree.interval(piece.units)[0]
            copies = range(start, first + size * plain.times, size)
            length = self.size(piece.copy)
            if piece.times < 2 or all(self.told_truly(at, length, piece.times) == piece.times for at in copies):
                kept.append(piece)
            else:
                kept += [Piece((unit,)) for unit in piece.units]
        return attrs.evolve(plain, inner=tuple(kept)) if any(piece.times > 1 for piece in kept) else plain

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
                if times < 2:
                    if start == at:
                        break
                    continue
                copy = units[start : start + period]
                size, first = self.size(copy), copy[0]
                rank = ((times - 1) * size, first < 0, self.takes_params(first))
                if rank <= most:
                    continue  # it could hide no more
                hidden = self.hidden(copy, times, least, loose=loose)
                if not hidden and start == at:
                    break
                rank = (hidden, *rank[1:])
                if hidden and rank > most:
                    found, most = (start, period, 1 + hidden // size), rank
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
        while times > 1 and self.may_begin(start, size):
            good = self.alike_outside(start, size, times)
            if good == times:
                return times
            times = good if good > 1 or times == 2 else 2  # the edges among fewer are others: looked at once more
        return 1

    def may_begin(self, start: int, size: int) -> bool:
        """Whether no edge of a copy tells at once that it is not the first of some that may be folded.

        It stays inside as that of the next copy does, joins the two, has its other end where one of the next has, or
        stands for one by which the next is joined with this one. Most of what is no repetition fails here, whatever the
        edges are in all.
        """
        middle, end = start + size, start + 2 * size
        for place in range(start, middle):
            for is_out, edges in ((False, self.ends_into), (True, self.ends_out_of)):
                here, following = edges[place], edges[place + size]
                self.looked_at += 1 + len(here) + len(following)
                given: set[int] = set()  # kinds of those that have to stand for some by which the two are joined
                for other, kind in here:
                    if start <= other < end:
                        if other < middle and (other + size, kind) not in following:
                            return False
                    elif (other, kind) not in following:
                        given.add(kind)
                joined = {kind for other, kind in following if start <= other < middle}
                if (given and not joined) if is_out else given != joined:
                    return False
        return True

    def alike_outside(self, start: int, size: int, times: int) -> int:
        """How many copies, from the first, have edges out of them as the rule has it: all of them, or, where one has
        not, how many are worth another look, of which it is the last or which end before it.

        No edge is looked at behind the first that differs. So a long run of which no two may be folded, of which there
        are as many as there are places and periods, costs no more than a short one.
        """
        reach = times
        before: list[Side] = []  # by place of the last copy, its edges in and out
        for copy in range(1, times):
            if copy >= reach:
                break
            sides: list[Side] = []
            for number in range(2 * size):
                if copy == 1:
                    before.append(self.side(start, size, times, 0, number))
                side = self.side(start, size, times, copy, number)
                reach = min(reach, before[number].reach, side.reach)
                if not agree(before[number], side, is_first=copy == 1, is_last=copy == times - 1):
                    return min(reach, copy + 1 if copy + 1 < times else copy)
                sides.append(side)
            before = sides
        return reach

    def side(self, start: int, size: int, times: int, copy: int, number: int) -> Side:
        """The edges into a place of a copy, or out of it."""
        begin, stop = start + copy * size, start + times * size
        place, is_out = divmod(number, 2)
        edges = (self.out_of if is_out else self.into)[begin + place]
        self.looked_at += 1 + len(edges)
        made = Side(bool(is_out), times)
        near = (made.before, made.inside, made.behind)
        for other, kind in edges:
            there = (other - start) // size - copy
            is_within = start <= other < stop
            if is_within and -2 < there < 2:
                near[there + 1].add((other - begin, kind))
                continue
            made.outside.add((other, kind))
            if is_within:
                made.reach = min(made.reach, max(there, 0) + copy)
        return made


def agree(one: Side, next_one: Side, *, is_first: bool, is_last: bool) -> bool:
    """Whether a place of a copy and that of the next one have edges that one may tell for the other."""
    if one.inside != next_one.inside:
        return False
    more, more_of_next = one.outside - next_one.outside, next_one.outside - one.outside
    if is_first:
        is_alike = fits(more, next_one.before, is_out=one.is_out)
    else:
        is_alike = not more and one.before == next_one.before
    if is_last:
        return is_alike and fits(more_of_next, one.behind, is_out=one.is_out)
    return is_alike and not more_of_next and one.behind == next_one.behind


def fits(more: Ends, near: Ends, *, is_out: bool) -> bool:
    """Whether what one copy has from or to outside stands for what the others have from or to a neighbour."""
    if is_out:
        return bool(near) or not more
    return {kind for _, kind in more} == {kind for _, kind in near}


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
