"""From a scene, and what of it is open, to a picture.

Reads  a ``Scene``, its ``Tree``, and what is ``Opened``.
Gives  the ``Picture``.
Rule   every item comes to stand in exactly one node: its own, that of the item that it is a copy of, that of a closed
       box around it, or one that stands for several of its table. An edge of the records is drawn between the nodes
       of its ends unless these are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from projections.picture.opening import Opened
from projections.picture.parts import Cluster, Edge, EdgeKind, Node, Picture
from projections.picture.repeats import Piece
from projections.picture.scene import FAILED, ROOT, Scene, Tree
from projections.picture.texts import counts_text

Crumb: TypeAlias = tuple[tuple[int, int], ...]
"""Of what a place is a copy: pairs of a fold and which copy in it, outermost first."""

Line: TypeAlias = tuple[int, int, EdgeKind, "str | None"]
"""What is one edge of a picture: the nodes that it joins, its kind and its label."""

MOST_LABELS: Final = 3
"""Edges of one kind between the same nodes that are drawn apart for what they tell, at most."""


@attrs.frozen
class Drawn:
    """A node or cluster in the making."""

    units: tuple[int, ...]
    cluster: int
    times: int
    is_alone: bool = False  # in a box that is not drawn
    is_stretch: bool = False

    @property
    def is_box(self) -> bool:
        return len(self.units) == 1 and min(self.units) < 0


@attrs.frozen
class Fold:
    """Copies of what is drawn: the places and boxes of the first, and how many there are."""

    start: int
    size: int
    box_start: int
    boxes: int
    times: int


class Composer:
    """Goes through the open boxes from the outside in.

    Args:
        scene: What may be drawn.
        tree: Where it stands.
        opened: What of it is open.
    """

    def __init__(self, scene: Scene, tree: Tree, opened: Opened) -> None:
        self.scene: Final = scene
        self.tree: Final = tree
        self.opened: Final = opened
        self.node_at: Final = [-1] * len(tree.item_at)  # by place
        self.node_of_box: Final = [-1] * len(tree.box_at)  # by position, of closed boxes
        self.cluster_of_box: Final = [-1] * len(tree.box_at)
        self.nodes: Final[list[Drawn]] = []
        self.clusters: Final[list[Drawn]] = []
        self.folds: Final[list[Fold]] = []

    def picture(self) -> Picture:
        """What is drawn; what there is to say of it comes later (captions.py)."""
        self.visit()
        crumbs = self.copied()
        edges, inside = self.made_edges(crumbs)
        return Picture(
            title=self.scene.title,
            nodes=self.made_nodes(),
            edges=edges,
            clusters=self.made_clusters(),
            hidden=self.hidden(inside),
        )

    # -- what is drawn

    def visit(self) -> None:
        waiting: list[tuple[Piece, int]] = [(piece, -1) for piece in reversed(self.opened.pieces[ROOT])]
        while waiting:
            piece, cluster = waiting.pop()
            if piece.is_one:
                self.draw_strands(piece.units, cluster)
                continue
            if piece.times > 1:
                self.fold(piece)
            if len(piece.copy) > 1:
                self.clusters.append(Drawn(piece.copy, cluster, piece.times, is_stretch=True))
                inner = piece.inner or [Piece((unit,)) for unit in piece.copy]
                waiting += [(one, len(self.clusters) - 1) for one in reversed(inner)]
            else:
                self.enter(piece.units[0], cluster, piece.times, waiting)

    def enter(self, unit: int, cluster: int, times: int, waiting: list[tuple[Piece, int]]) -> None:
        """Draw a unit, or have what is in it drawn."""
        box = ~unit
        if unit >= 0 or not self.opened.is_open[box]:
            self.draw(Drawn((unit,), cluster, times))
        elif self.tree.size(box) == 1:
            self.draw(Drawn((self.tree.item_at[self.tree.start[box]],), cluster, times, is_alone=True))
        else:
            self.cluster_of_box[self.tree.box_start[box]] = len(self.clusters)
            self.clusters.append(Drawn((unit,), cluster, times))
            waiting += [(piece, len(self.clusters) - 1) for piece in reversed(self.opened.pieces[box])]

    def draw_strands(self, units: Sequence[int], cluster: int) -> None:
        """Draw neighbours as one, each strand of what is in them a node."""
        start, end = self.tree.interval(units)
        direct = frozenset(units)
        for items in self.scene.strands(self.tree.item_at[start:end]):
            is_alone = len(items) == 1 and items[0] not in direct
            self.draw(Drawn(tuple(items), cluster, 1, is_alone=is_alone))

    def draw(self, drawn: Drawn) -> None:
        number = len(self.nodes)
        if drawn.is_box:
            start, end = self.tree.interval(drawn.units)
            self.node_at[start:end] = [number] * (end - start)
            self.node_of_box[self.tree.box_start[~drawn.units[0]]] = number
        else:
            for item in drawn.units:
                self.node_at[self.tree.place[item]] = number
        self.nodes.append(drawn)

    def fold(self, piece: Piece) -> None:
        """Note that the copies come to stand where the first one does."""
        start, end = self.tree.interval(piece.copy)
        box_start, box_end = self.tree.box_interval(piece.copy)
        self.folds.append(Fold(start, end - start, box_start, box_end - box_start, piece.times))

    def copied(self) -> list[Crumb]:
        """Let copies stand where the first one does; by place, of what it is a copy. [] where nothing is folded."""
        crumbs: list[Crumb] = [()] * len(self.node_at) if self.folds else []
        for number, fold in reversed(list(enumerate(self.folds))):  # inner ones first
            for cells, start, size in (
                (self.node_at, fold.start, fold.size),
                (self.node_of_box, fold.box_start, fold.boxes),
                (self.cluster_of_box, fold.box_start, fold.boxes),
            ):
                cells[start : start + size * fold.times] = cells[start : start + size] * fold.times
            first = crumbs[fold.start : fold.start + fold.size]
            for copy in range(fold.times):
                longer = {crumb: ((number, copy), *crumb) for crumb in set(first)}
                begin = fold.start + copy * fold.size
                crumbs[begin : begin + fold.size] = [longer[crumb] for crumb in first]
        return crumbs

    # -- as parts

    def made_nodes(self) -> tuple[Node, ...]:
        items: list[list[int]] = [[] for _ in self.nodes]
        for item, node in zip(self.tree.item_at, self.node_at, strict=True):
            items[node].append(item)
        boxes = self.boxes_by(self.node_of_box, len(self.nodes))
        return tuple([self.node(*parts) for parts in zip(self.nodes, items, boxes, strict=True)])

    def boxes_by(self, cells: Sequence[int], count: int) -> list[list[int]]:
        made: list[list[int]] = [[] for _ in range(count)]
        for box, cell in zip(self.tree.box_at, cells, strict=True):
            if cell >= 0:
                made[cell].append(box)
        return made

    def node(self, drawn: Drawn, items: Sequence[int], boxes: Sequence[int]) -> Node:
        scene = self.scene
        counts = scene.counts(items)
        first = drawn.units[0]
        if len(drawn.units) > 1:
            face, key = scene.face_of_several(items), f"{scene.key(items[0])} … {scene.key(items[-1])}"
            table, rows = scene.table[first], scene.rows_of(items)
        elif first < 0:
            within = self.within(drawn.cluster)
            face, key = (
                scene.boxes.face(boxes, self.copies(drawn), within, scene.op_rows(items), scene.main(counts)),
                scene.boxes.key(boxes[0]),
            )
            table, rows = scene.boxes.row(boxes[0])[0], tuple([scene.boxes.row(box)[1] for box in boxes])
        else:
            table, key = scene.table[first], scene.key(first)
            rows = scene.rows_of(items)
            if table == FAILED:
                table, rows = "", ()  # no record
            where = self.where(items[: self.copies(drawn)], drawn.cluster) if drawn.is_alone else None
            around = self.within(drawn.cluster)
            ahead = "" if around == ROOT else f"{scene.boxes.address(around)}."
            own = len(scene.rows[first])
            face = scene.look(first).face(rows or scene.rows[first], own, where, ahead)
        return Node(
            key=key,
            kind=face.kind,
            title=face.title,
            lines=face.lines,
            table=table,
            rows=rows,
            cluster=drawn.cluster,
            passes=face.passes,
            times=drawn.times * face.times,
            ops=counts.get("ops", 0),
            grad_fns=counts.get("grad_fns", 0),
            marks=face.marks | scene.alarms(items) if len(drawn.units) > 1 or first < 0 else face.marks,
        )

    def where(self, items: Sequence[int], cluster: int) -> str:
        """The modules that items are in."""
        return self.scene.boxes.name([self.scene.box[item] for item in items], self.within(cluster))

    def copies(self, drawn: Drawn) -> int:
        """How many of what something stands for are its siblings, not in copies of a box around it."""
        times = drawn.times
        while drawn.cluster >= 0 and (drawn := self.clusters[drawn.cluster]).is_stretch:
            times *= drawn.times
        return times

    def within(self, cluster: int) -> int:
        """The innermost box of a cluster and those around it."""
        while cluster >= 0 and self.clusters[cluster].is_stretch:
            cluster = self.clusters[cluster].cluster
        return ROOT if cluster < 0 else ~self.clusters[cluster].units[0]

    def made_clusters(self) -> tuple[Cluster, ...]:
        scene, tree = self.scene, self.tree
        boxes = self.boxes_by(self.cluster_of_box, len(self.clusters))
        made: list[Cluster] = []
        for drawn, inside in zip(self.clusters, boxes, strict=True):
            start, end = tree.interval(drawn.units)
            items = tree.item_at[start:end]
            counts = scene.main(scene.counts(items))
            if drawn.is_stretch:
                key, title = f"stretch/{scene.key(items[0])} … {scene.key(items[-1])}", counts_text(counts)
                made.append(Cluster(key=key, title=title, parent=drawn.cluster, table="", times=drawn.times))
                continue
            counts = {word: number * len(inside) for word, number in counts.items()}
            face = scene.boxes.face(inside, self.copies(drawn), self.within(drawn.cluster), (), counts)
            made.append(
                Cluster(
                    key=scene.boxes.key(inside[0]),
                    title=face.title,
                    lines=face.lines[:1],
                    parent=drawn.cluster,
                    table=scene.boxes.row(inside[0])[0],
                    rows=tuple([scene.boxes.row(box)[1] for box in inside]),
                    times=drawn.times,
                    passes=face.passes,
                )
            )
        return tuple(made)

    def made_edges(self, crumbs: Sequence[Crumb]) -> tuple[tuple[Edge, ...], int]:
        """The edges that are drawn, and how many are inside of nodes."""
        scene, tree, node_at = self.scene, self.tree, self.node_at
        found: dict[Line, int] = {}
        inside = 0
        for source, target, kind, label in zip(tree.sources, tree.targets, scene.kinds, scene.labels, strict=True):
            start, end = node_at[source], node_at[target]
            drawn = kind
            if crumbs and is_next(crumbs[source], crumbs[target]):
                drawn = "repeat"
            elif start == end and (kind != "recurrent" or self.holds_several(start)):
                inside += 1
                continue
            found[start, end, drawn, label] = found.get((start, end, drawn, label), 0) + 1
        made = [
            Edge(source=start, target=end, kind=kind, label=label, count=count)
            for (start, end, kind, label), count in with_few_labels(found).items()
        ]
        return tuple(made), inside

    def holds_several(self, node: int) -> bool:
        return self.nodes[node].is_box or len(self.nodes[node].units) > 1

    def hidden(self, inside: int) -> tuple[tuple[str, int], ...]:
        """What is in closed boxes, was left out, or leads from a node to itself."""
        closed = [item for item, node in zip(self.tree.item_at, self.node_at, strict=True) if self.nodes[node].is_box]
        counts = self.scene.counts(closed)
        for word, number in (*self.scene.left_out.items(), ("edges", inside)):
            counts[word] = counts.get(word, 0) + number
        return tuple(sorted([(word, number) for word, number in counts.items() if number]))


def with_few_labels(found: Mapping[Line, int]) -> dict[Line, int]:
    """Edges, of which those between the same nodes are one where they tell too many different things."""
    labels: dict[tuple[int, int, EdgeKind], list[str]] = {}
    for start, end, kind, label in found:
        if label is not None:
            labels.setdefault((start, end, kind), []).append(label)
    made: dict[Line, int] = {}
    for (start, end, kind, label), count in found.items():
        told = labels.get((start, end, kind), [])
        if label is not None and len(told) > MOST_LABELS:
            label = f"{told[0]}, …"
        made[start, end, kind, label] = made.get((start, end, kind, label), 0) + count
    return made


def is_next(one: Crumb, other: Crumb) -> bool:
    """Whether two places are in different copies of one fold."""
    differing = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
    return bool(differing) and differing[0][0][0] == differing[0][1][0]
