"""Everything that could be drawn of some records, before it is decided what is: items, edges and a tree of boxes.

Gives  ``Scene``, filled by ``forward_scene.py`` and ``backward_scene.py``, and ``Tree``, where its items stand: what is
       in one box has neighbouring places, so a box is an interval of places.
Rule   an *item* is what may become a node: rows of one table. A *box* is what may be drawn open, as a cluster, or
       closed, as one node: a module call or a module. Box 0 is the whole, and boxes stand behind those around them.
Note   a *unit* is what stands directly in a box: item i as i, box b as ~b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from projections.errors import contradictory
from projections.picture.parts import EdgeKind, Mark, NodeKind
from projections.picture.texts import counts_text, short

ROOT: Final = 0

NOTHING: Final = frozenset[Mark]()
RAISED: Final[frozenset[Mark]] = frozenset(("failed",))
"""Marks of what raised."""

FAILED: Final = "failed"
"""Stands for a table where an item is the call that raised, which is in none."""


@attrs.frozen
class Face:
    """How something looks that is drawn as a node or a cluster."""

    kind: NodeKind
    title: str
    lines: tuple[str, ...] = ()
    passes: int = 1
    times: int = 1
    marks: frozenset[Mark] = frozenset()


class Look(ABC):
    """How the rows of one table look as items, and what they count as."""

    @abstractmethod
    def key(self, row: int) -> str:
        """Names a row among those of all tables."""

    @abstractmethod
    def face(self, rows: Sequence[int], own: int, where: str | None, within: str) -> Face:
        """How an item looks, of which there may be copies.

        Args:
            rows: The rows of it and of its copies.
            own: How many of them, from the first, are its own.
            where: The module that it is alone in, whose box is not drawn; None for none.
            within: What the addresses of what is in the innermost box around it that is drawn begin with.
        """

    @abstractmethod
    def likenesses(self) -> Sequence[Hashable]:
        """By row, something that rows have in common which look the same save for their names."""

    @abstractmethod
    def count(self, row: int) -> tuple[str, int]:
        """As what a row is counted, and as how many."""

    @abstractmethod
    def together(self, row: int) -> NodeKind:
        """What kind of node it is, with others of its table and of that kind, where several are drawn as one."""

    def is_fixed(self, row: int) -> bool:
        """Whether a row always has a node of its own."""
        return False

    def alarms(self, row: int) -> frozenset[Mark]:
        """Marks that a closed box around it has, too."""
        return frozenset()

    def takes_params(self, row: int) -> bool:
        """Whether it takes parameters."""
        return False

    def ops(self, rows: Sequence[int]) -> Sequence[int]:
        """The ops that rows stand for, for amounts over them."""
        return ()

    def title(self, row: int) -> str:
        """What a row is called in the title of several."""
        return self.face((row,), 1, None, "").title

    def lines_of_several(self, rows: Sequence[int]) -> Sequence[str]:
        """What is told of rows that are drawn as one node."""
        return ()

    def marks_of_several(self, rows: Sequence[int]) -> frozenset[Mark]:
        """Marks that all of some rows have, which are drawn as one node."""
        return NOTHING


class Boxes(ABC):
    """The modules or module calls that items are in.

    Attributes:
        parent: By box, the box around it; -1 of box 0.
    """

    parent: list[int]

    @abstractmethod
    def key(self, box: int) -> str:
        """Names a box among all."""

    @abstractmethod
    def row(self, box: int) -> tuple[str, int]:
        """The table and row that a box stands for."""

    @abstractmethod
    def address(self, box: int) -> str:
        """The address of its module."""

    @abstractmethod
    def name(self, boxes: Sequence[int], within: int) -> str:
        """What a box is called of which the others are copies, drawn within another."""

    @abstractmethod
    def face(
        self, boxes: Sequence[int], times: int, within: int, op_rows: Sequence[int], counts: Mapping[str, int]
    ) -> Face:
        """How a box looks, open or closed, of which the others are copies.

        Args:
            boxes: The boxes.
            times: How many of them, from the first, are its siblings; the others are in copies of what is around it.
            within: The innermost box around them that is drawn.
            op_rows: The ops inside of them.
            counts: How many there are inside of all of them, of each of the words that are told.
        """

    @abstractmethod
    def likeness(self, box: int) -> Hashable:
        """Equal for boxes that may be copies of each other."""

    def path(self, box: int) -> list[int]:
        """The boxes around one, outermost first, itself the last."""
        made = [box]
        while made[-1] != ROOT:
            made.append(self.parent[made[-1]])
        return made[::-1]

    def around(self, boxes: Sequence[int]) -> int:
        """The innermost box around some."""
        common = ROOT
        for steps in zip(*map(self.path, boxes), strict=False):
            if len(set(steps)) > 1:
                break
            common = steps[0]
        return common


class Scene:
    """What may be drawn.

    Attributes:
        title: What the whole is called.
        boxes: What items are in.
        looks: By table, how its rows look.
        words: What the picture is of: ``ops``, ``grad_fns`` or both.
        table: By item, the table of its rows.
        rows: By item, the rows that it stands for.
        box: By item, the innermost box that it is in.
        sources, targets, kinds, labels: By edge, the items at its ends, what it is, and a text.
        behind: By item the items that stand right behind it, wherever they were added.
        left_out: How many of what the records have and no item stands for.
    """

    def __init__(self, title: str, boxes: Boxes, words: Sequence[str]) -> None:
        self.title: Final = title
        self.boxes: Final = boxes
        self.looks: Final[dict[str, Look]] = {}
        self.words: Final = tuple(words)
        self.table: Final[list[str]] = []
        self.rows: Final[list[tuple[int, ...]]] = []
        self.box: Final[list[int]] = []
        self.sources: Final[list[int]] = []
        self.targets: Final[list[int]] = []
        self.kinds: Final[list[EdgeKind]] = []
        self.labels: Final[list[str | None]] = []
        self.behind: Final[dict[int, list[int]]] = {}
        self.left_out: Final[dict[str, int]] = {}
        self.counted: Final[list[list[tuple[str, int]]]] = []  # by item, as what its rows are counted
        self.strand_of: Final[list[Hashable]] = []  # by item

    def add(self, table: str, rows: tuple[int, ...], box: int) -> int:
        """One more item; its number."""
        self.table.append(table)
        self.rows.append(rows)
        self.box.append(box)
        return len(self.rows) - 1

    def connect(self, source: int, target: int, kind: EdgeKind = "forward", label: str | None = None) -> None:
        self.sources.append(source)
        self.targets.append(target)
        self.kinds.append(kind)
        self.labels.append(label)

    def stand_behind(self, item: int, other: int) -> None:
        """Have an item stand right behind an earlier one, which is in the same box."""
        self.behind.setdefault(other, []).append(item)

    def order(self) -> Iterator[int]:
        """The items, in the order in which they stand in their boxes."""
        moved = frozenset([item for items in self.behind.values() for item in items])
        for item in range(len(self.rows)):
            waiting = [] if item in moved else [item]
            while waiting:
                yield (one := waiting.pop())
                waiting += reversed(self.behind.get(one, ()))

    def leave_out(self, word: str, number: int = 1) -> None:
        self.left_out[word] = self.left_out.get(word, 0) + number

    def look(self, item: int) -> Look:
        return self.looks[self.table[item]]

    def key(self, item: int) -> str:
        return self.look(item).key(self.rows[item][0])

    def alarms(self, items: Sequence[int]) -> frozenset[Mark]:
        return frozenset[Mark]().union(*[self.look(item).alarms(row) for item in items for row in self.rows[item]])

    def is_fixed(self, item: int) -> bool:
        return self.look(item).is_fixed(self.rows[item][0]) or bool(self.alarms((item,)))

    def counts(self, items: Sequence[int]) -> dict[str, int]:
        """How many of what items stand for."""
        known = self.counted
        if len(known) < len(self.rows):
            for table, rows in zip(self.table[len(known) :], self.rows[len(known) :], strict=True):
                known.append([self.looks[table].count(row) for row in rows])
        made: dict[str, int] = {}
        for item in items:
            for word, number in known[item]:
                made[word] = made.get(word, 0) + number
        return made

    def main(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Of some counts those of what the picture is of."""
        return {word: counts.get(word, 0) for word in self.words}

    def strand(self, item: int) -> Hashable:
        """Equal for items that become one node where neighbours are drawn as one: what alarms has its own."""
        known = self.strand_of
        for one in range(len(known), len(self.rows)):
            kind = one if self.alarms((one,)) else self.look(one).together(self.rows[one][0])
            known.append((self.table[one], kind))
        return known[item]

    def strands(self, items: Sequence[int]) -> list[list[int]]:
        """Neighbours that are drawn as one, by what becomes a node: rows of one table, and of one kind."""
        made: dict[Hashable, list[int]] = {}
        for item in items:
            made.setdefault(self.strand(item), []).append(item)
        return list(made.values())

    def op_rows(self, items: Sequence[int]) -> list[int]:
        return [row for item in items for row in self.look(item).ops(self.rows[item])]

    def rows_of(self, items: Sequence[int]) -> tuple[int, ...]:
        return tuple([row for item in items for row in self.rows[item]])

    def face_of_several(self, items: Sequence[int]) -> Face:
        """How items of one strand look, drawn as one node."""
        first, last = items[0], items[-1]
        look = self.look(first)
        titles = [look.title(self.rows[item][0]) for item in (first, last)]
        rows = self.rows_of(items)
        lines = (*look.lines_of_several(rows), counts_text(self.counts(items)))
        kind = look.together(self.rows[first][0])
        return Face(kind, short(" … ".join(titles)), lines, marks=look.marks_of_several(rows))

    def likenesses(self) -> list[Hashable]:
        """By item, something that items have in common which look the same save for their names."""
        by_table = {table: look.likenesses() for table, look in self.looks.items()}
        return [
            (table, by_table[table][rows[0]] if len(rows) == 1 else tuple([by_table[table][row] for row in rows]))
            for table, rows in zip(self.table, self.rows, strict=True)
        ]


class Tree:
    """Where the items of a scene stand.

    Attributes:
        units: By box, what stands directly in it, in the order of the scene by the first item of each.
        item_at: By place, the item.
        place: By item, its place.
        start, end: By box, the places that it takes.
        box_at: By position in the order of the tree, the box; those that hold an item, and the whole.
        box_start, box_end: By box, the positions that it and the boxes inside take.
        depth: By box, how many boxes are around it.
        sources, targets: By edge, the places of its ends.
    """

    def __init__(self, scene: Scene) -> None:
        parent = scene.boxes.parent
        count = len(parent)
        self.units: Final[list[list[int]]] = [[] for _ in range(count)]
        self.arrange(scene, parent)
        self.item_at: Final[list[int]] = []
        self.box_at: Final[list[int]] = []
        self.place: Final = [0] * len(scene.rows)
        self.start, self.end = [0] * count, [0] * count
        self.box_start, self.box_end = [0] * count, [0] * count
        self.walk()
        if len(self.item_at) != len(scene.rows):
            raise contradictory("a module call stands in none of those around it")
        self.depth: Final = [0] * count
        for box in self.box_at[1:]:
            self.depth[box] = self.depth[parent[box]] + 1
        self.sources: Final = [self.place[item] for item in scene.sources]
        self.targets: Final = [self.place[item] for item in scene.targets]

    def arrange(self, scene: Scene, parent: Sequence[int]) -> None:
        """Put each item, and each box with an item inside, into the box that it is in."""
        seen = [False] * len(parent)
        seen[ROOT] = True
        for item in scene.order():
            box = scene.box[item]
            self.units[box].append(item)
            while not seen[box]:
                seen[box] = True
                self.units[parent[box]].append(~box)
                box = parent[box]

    def walk(self) -> None:
        """Give every item and box its place."""
        stack = [(~ROOT, False)]
        while stack:
            unit, is_left = stack.pop()
            if unit >= 0:
                self.place[unit] = len(self.item_at)
                self.item_at.append(unit)
            elif is_left:
                self.end[~unit], self.box_end[~unit] = len(self.item_at), len(self.box_at)
            else:
                self.start[~unit], self.box_start[~unit] = len(self.item_at), len(self.box_at)
                self.box_at.append(~unit)
                stack.append((unit, True))
                stack += [(inside, False) for inside in reversed(self.units[~unit])]

    def size(self, box: int) -> int:
        """Items inside."""
        return self.end[box] - self.start[box]

    def interval(self, units: Sequence[int]) -> tuple[int, int]:
        """The places that neighbouring units take."""
        first, last = units[0], units[-1]
        start = self.place[first] if first >= 0 else self.start[~first]
        return start, self.place[last] + 1 if last >= 0 else self.end[~last]

    def box_interval(self, units: Sequence[int]) -> tuple[int, int]:
        """The positions that neighbouring units take in the order of boxes."""
        boxes = [~unit for unit in units if unit < 0]
        return (self.box_start[boxes[0]], self.box_end[boxes[-1]]) if boxes else (0, 0)
