"""Which boxes of a picture are drawn open, and how much of what is in them.

Reads  a ``Scene``, its ``Tree``, and by box the pieces in it (repeats.py).
Gives  ``Opened``: by box whether it is open, and what of it is drawn.
Rule   what is closed costs one node, whatever is inside. A box with a single item is never closed by itself: its item
       says more.
Rule   automatic: level by level, of each level the classes with most inside first, all of a class or, where that
       would be a quarter too much, one of it, as long as there are no more nodes than there may be. Where what must be
       open is too long, stretches that repeat are folded, with a quarter too much if need be, then neighbours drawn as
       one, a node for each strand (table and kind) of what is in them, as few of them as that takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from projections.picture.parts import RED
from projections.picture.repeats import Piece, Repeats
from projections.picture.scene import ROOT, Scene, Tree

OVER: Final = 4
"""A class is opened whole where that is up to such a part of the nodes that there may be, a quarter, too much: its
boxes look alike, and one open beside others closed looks as if it were another; with fifty nodes a picture is not much
harder to read than with forty."""


class Opened:
    """What is open.

    Args:
        scene: What may be drawn.
        tree: Where it stands.
        pieces: By box, what stands in it.

    Attributes:
        is_open: By box, whether it is open.
        pieces: By box, what of it is drawn.
    """

    def __init__(self, scene: Scene, tree: Tree, pieces: Sequence[list[Piece]]) -> None:
        self.scene: Final = scene
        self.tree: Final = tree
        self.pieces: Final = list(pieces)
        self.is_open: Final = [tree.size(box) == 1 for box in range(len(tree.units))]
        self.is_open[ROOT] = True

    # -- as asked

    def all(self) -> None:
        """Open everything."""
        self.is_open[:] = [True] * len(self.is_open)

    def to_depth(self, depth: int) -> None:
        """Open what has fewer boxes around it than that, the whole counted."""
        for box in self.tree.box_at:
            self.is_open[box] = self.is_open[box] or self.tree.depth[box] < depth
        if depth == 0:
            self.pieces[ROOT] = self.in_a_row(self.pieces[ROOT], 1)

    def but(self, closed: frozenset[int]) -> None:
        """Open all but some."""
        for box in self.tree.box_at:
            self.is_open[box] = box not in closed or box == ROOT

    def part(self, closed: float) -> None:
        """Open a part of what can be, as ``by_use`` orders it: of 0.0 all, of 1.0 nothing but the whole."""
        boxes = [box for level in self.by_use() for group in level for box in group]
        for box in boxes[: len(boxes) - round(closed * len(boxes))]:
            self.is_open[box] = True

    # -- automatic

    def as_many_as(self, most: int, repeats: Repeats | None) -> None:
        """Open what is most useful, with no more nodes than that."""
        self.fit(ROOT, most, repeats)
        for box in self.alarming():
            self.is_open[box] = True
        total = self.shown()
        half = len(self.scene.rows) / 2
        boxes = self.inside([ROOT])
        while boxes:
            for group in self.groups(boxes):
                more = sum([self.cost(box) - 1 for box in group if not self.is_open[box]])
                limit = most + most // OVER
                chosen = group if total + more <= limit else group[:1]
                if len(chosen) < len(group):
                    limit = most
                for box in chosen:
                    if self.is_open[box]:
                        continue
                    if total + self.cost(box) - 1 > most and self.tree.size(box) > half:
                        self.fit(box, most - total + 1, repeats)
                    if total + self.cost(box) - 1 <= limit:
                        self.is_open[box] = True
                        total += self.cost(box) - 1
            boxes = self.inside([box for box in boxes if self.is_open[box]])

    def alarming(self) -> list[int]:
        """The boxes around what went wrong."""
        scene = self.scene
        wrong = [item for item in range(len(scene.rows)) if scene.alarms((item,)) & RED]
        return [box for item in wrong for box in scene.boxes.path(scene.box[item])]

    def shown(self) -> int:
        """Nodes that are drawn."""
        total, boxes = self.cost(ROOT), self.inside([ROOT])
        while boxes:
            opened = [box for box in boxes if self.is_open[box]]
            total += sum([self.cost(box) - 1 for box in opened])
            boxes = self.inside(opened)
        return total

    def by_use(self) -> list[list[list[int]]]:
        """The boxes that are drawn if those around them are open: by level and by class, the most useful first."""
        made: list[list[list[int]]] = []
        boxes = self.inside([ROOT])
        while boxes:
            made.append(self.groups(boxes))
            boxes = self.inside(boxes)
        return made

    def inside(self, boxes: Sequence[int]) -> list[int]:
        """The boxes that stand directly in some, of equal ones the first, without those of a single item."""
        drawn = [unit for box in boxes for piece in self.pieces[box] if not piece.is_one for unit in piece.drawn]
        return [~unit for unit in drawn if unit < 0 and self.tree.size(~unit) > 1]

    def groups(self, boxes: Sequence[int]) -> list[list[int]]:
        """Boxes by class, those with most inside first."""
        made: dict[Hashable, list[int]] = {}
        for box in boxes:
            made.setdefault(self.scene.boxes.likeness(box), []).append(box)
        return sorted(made.values(), key=lambda group: -sum([self.tree.size(box) for box in group]))

    def cost(self, box: int) -> int:
        """Nodes that it takes to draw a box open and what is in it closed."""
        return nodes_of(self.pieces[box])

    def fit(self, box: int, most: int, repeats: Repeats | None) -> None:
        """Have no more in a box than that, if need be by drawing several units as one."""
        if self.cost(box) > most and repeats is not None:
            kinds = repeats.kinds_of(self.tree.units[box])
            self.pieces[box] = repeats.folded(box, kinds, least=1, loose=True)
            if any(piece.times > 1 for piece in self.pieces[box]) and self.cost(box) <= most + most // OVER:
                return
        if self.cost(box) > most:
            pieces = self.pieces[box]
            shorter = self.in_a_row(pieces, most, keep_boxes=True)
            if nodes_of(shorter) > most:
                shorter = self.in_a_row(pieces, most)
            if nodes_of(shorter) > most:
                shorter = self.in_a_row([Piece((unit,)) for unit in self.tree.units[box]], most)
            self.pieces[box] = shorter

    def in_a_row(self, pieces: Sequence[Piece], most: int, *, keep_boxes: bool = False) -> list[Piece]:
        """Pieces of which neighbours are put together until there are not more than that; some have to stay alone."""
        rows: list[list[int]] = []
        made: list[Piece | list[int]] = []
        for piece in pieces:
            unit = piece.units[0]
            stays = keep_boxes if unit < 0 else self.scene.is_fixed(unit)
            if piece.times > 1 or piece.is_one or stays:
                made.append(piece)
            elif made and isinstance(made[-1], list):
                made[-1].append(unit)
            else:
                rows.append([unit])
                made.append(rows[-1])
        alone = sum([part.nodes for part in made if isinstance(part, Piece)])
        length = self.length([[self.strands(unit) for unit in row] for row in rows], most - alone)
        done: list[Piece] = []
        for part in made:
            if isinstance(part, Piece):
                done.append(part)
                continue
            for at in range(0, len(part), length):
                units = tuple(part[at : at + length])
                strands = frozenset[Hashable]().union(*map(self.strands, units))
                done.append(Piece(units, len(units), is_one=len(units) > 1, strands=len(strands)))
        return done

    def strands(self, unit: int) -> frozenset[Hashable]:
        """The strands of what is in a unit."""
        start, end = self.tree.interval((unit,))
        return frozenset([self.scene.strand(item) for item in self.tree.item_at[start:end]])

    def length(self, rows: Sequence[Sequence[frozenset[Hashable]]], most: int) -> int:
        """The shortest length of stretches that take no more nodes than that; of all units, their strands are given."""
        low, high = 1, max(map(len, rows), default=1)
        while low < high:
            middle = (low + high) // 2
            stretches = [row[at : at + middle] for row in rows for at in range(0, len(row), middle)]
            if sum(map(nodes_of_stretch, stretches)) <= most:
                high = middle
            else:
                low = middle + 1
        return low


def nodes_of(pieces: Sequence[Piece]) -> int:
    """Nodes that it takes to draw some pieces with all boxes closed."""
    return sum([piece.nodes for piece in pieces])


def nodes_of_stretch(units: Sequence[frozenset[Hashable]]) -> int:
    """Nodes that it takes to draw neighbours as one, of which the strands are given; one that is alone stays closed."""
    return len(frozenset[Hashable]().union(*units)) if len(units) > 1 else 1
