"""Where a Graphviz put what is in a picture, and where the titles of open modules stand among it.

``dot`` keeps room for the title of an open module at one edge of its frame, and draws lines through that room as
through any other. So a picture with open modules is made in two runs: the first places everything, titles are then put
where no line passes, and the second draws, with everything where it is.

Reads  the layout in JSON (``-Tjson0``), in which everything is called what ``dot_of`` calls it.
Gives  ``Placed``: positions as Graphviz writes them, and the titles, on the left of their room where that is free.
Note   where lines leave no room that is wide enough, a title stands where the fewest pass, and is drawn above them.
Source https://graphviz.org/docs/outputs/json/, https://graphviz.org/docs/attr-types/splineType/
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

__all__ = ["NoLayout", "Placed", "Title", "placed_of"]

Point: TypeAlias = tuple[float, float]
Line: TypeAlias = list[Point]

POINTS: Final = 72
"""Of an inch."""

INSET: Final = 8.0
"""Points between the frame of a module and its title."""

CLEAR: Final = 3.0
"""Points that a title keeps from lines."""

STEPS: Final = 12
"""Straight pieces that a piece of a curve is taken for."""


class NoLayout(Exception):
    """What a program wrote is no layout; the renderer says so as a failure of its own."""


class Box(NamedTuple):
    left: float
    low: float
    right: float
    high: float


class Title(NamedTuple):
    """Where the title of an open module stands: its middle, and how many lines pass behind it."""

    x: float
    y: float
    crossed: int


@attrs.frozen(kw_only=True)
class Placed:
    """A layout, by the names of ``dot_of``.

    Attributes:
        whole, nodes, clusters, edges: Attributes that tell where each is.
        titles: Where those of clusters go.
    """

    whole: Mapping[str, str]
    nodes: Mapping[str, Mapping[str, str]]
    clusters: Mapping[str, Mapping[str, str]]
    edges: Mapping[str, Mapping[str, str]]
    titles: Mapping[str, Title]

    @property
    def crossed(self) -> list[str]:
        """The clusters whose titles lines pass behind."""
        return [name for name, title in self.titles.items() if title.crossed]


def placed_of(layout: bytes, spare: Mapping[str, float], words: Mapping[str, tuple[float, float]]) -> Placed:
    """A layout, read, with titles put into it.

    Args:
        layout: What ``-Tjson0`` wrote.
        spare: Points by which the room kept for a title is wider than the title, by cluster.
        words: Width and height of what is written at an edge, in points, by edge.

    Raises:
        NoLayout: it is none.
    """
    try:
        read: Any = json.loads(layout)
        objects: list[Any] = read.get("objects", [])
        clusters = {one["name"]: one for one in objects if "bb" in one}
        edges = {one["id"]: one for one in read.get("edges", [])}
        lines = [line_of(edge["pos"]) for edge in edges.values()]
        lines += [line for name, size in words.items() for line in lines_of(point(edges[name]["lp"]), size)]
        rooms = {name: room_of(clusters[name], wider) for name, wider in spare.items()}
        return Placed(
            whole={"lp": read["lp"]},
            nodes={one["name"]: {"pos": one["pos"]} for one in objects if "pos" in one},
            clusters={name: {"bb": one["bb"]} for name, one in clusters.items()},
            edges={name: {key: one[key] for key in ("pos", "lp") if key in one} for name, one in edges.items()},
            titles=dict(zip(rooms, titles_in(list(rooms.values()), lines), strict=True)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise NoLayout(f"no layout, {type(exc).__name__}: {exc}") from exc


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def point(text: str) -> Point:
    x, y = numbers(text)
    return x, y


def room_of(cluster: Mapping[str, str], wider: float) -> tuple[Box, float]:
    """The room of a title, from frame to frame, and the width of the title."""
    left, _, right, _ = numbers(cluster["bb"])
    half, wide = float(cluster["lheight"]) * POINTS / 2, float(cluster["lwidth"]) * POINTS - wider
    _, y = point(cluster["lp"])
    return Box(left + INSET, y - half, max(right - INSET, left + INSET + wide), y + half), wide


def line_of(position: str) -> Line:
    """The points along an edge, close enough to stand for its curves and the arrows at their ends."""
    line: Line = []
    for curve in position.split(";"):
        parts = curve.split()
        line += [point(part[2:]) for part in parts if part.startswith("s,")]
        line += bent([point(part) for part in parts if part[0] not in "se"])
        line += [point(part[2:]) for part in parts if part.startswith("e,")]
    return line


def bent(points: Sequence[Point]) -> Iterator[Point]:
    """Points along a row of cubic curves, of which each begins where the one before it ends."""
    yield points[0]
    for at in range(0, len(points) - 3, 3):
        (x0, y0), (x1, y1), (x2, y2), (x3, y3) = points[at : at + 4]
        for step in range(1, STEPS + 1):
            t = step / STEPS
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            yield a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3


def lines_of(middle: Point, size: tuple[float, float]) -> Iterator[Line]:
    """Lines through a text, close enough that no title fits between them."""
    (x, y), (wide, high) = middle, size
    for level in (y - high / 2, y, y + high / 2):
        yield [(x - wide / 2, level), (x + wide / 2, level)]


def titles_in(rooms: Sequence[tuple[Box, float]], lines: Iterable[Line]) -> list[Title]:
    """Where titles stand in their rooms."""
    taken: list[list[tuple[float, float, int]]] = [[] for _ in rooms]
    order = sorted(range(len(rooms)), key=lambda at: rooms[at][0].low)
    lows = [rooms[at][0].low for at in order]
    highest = max((room.high - room.low for room, _ in rooms), default=0.0)
    for number, line in enumerate(lines):
        for one, other in pairwise(line):
            low, high = min(one[1], other[1]), max(one[1], other[1])
            for at in order[bisect_left(lows, low - highest) : bisect_right(lows, high)]:
                span = span_of(one, other, rooms[at][0])
                if span is not None:
                    taken[at].append((span[0] - CLEAR, span[1] + CLEAR, number))
    return [title_in(room, wide, spans) for (room, wide), spans in zip(rooms, taken, strict=True)]


def span_of(one: Point, other: Point, room: Box) -> tuple[float, float] | None:
    """From where to where a straight line is in the height of a room; None for nowhere, or beside it."""
    (x0, y0), (x1, y1) = sorted((one, other), key=lambda point: point[1])
    if y1 < room.low or y0 > room.high or max(x0, x1) < room.left or min(x0, x1) > room.right:
        return None
    slope = (x1 - x0) / (y1 - y0) if y1 > y0 else 0.0
    ends = (x0 + slope * (max(y0, room.low) - y0), x1 - slope * (y1 - min(y1, room.high))) if slope else (x0, x1)
    return min(ends), max(ends)


def title_in(room: Box, wide: float, spans: Sequence[tuple[float, float, int]]) -> Title:
    """The place that the fewest lines cross; of several the one on the left."""
    last = room.right - wide
    starts = sorted({room.left, *(end for _, end, _ in spans if room.left < end <= last)})
    crossed = [len({line for low, high, line in spans if low < start + wide and start < high}) for start in starts]
    best = crossed.index(min(crossed))
    return Title(starts[best] + wide / 2, (room.low + room.high) / 2, crossed[best])
