"""A picture as text for a terminal: a numbered line for each node, open modules as boxes around their lines.

Rule   a line reads from the line above it, unless it says otherwise: ``<- 3, 7`` are those it reads from, by number.
Rule   no line is wider than ``WIDTH`` cells, as terminals count them (a wide letter takes two); more goes on below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs
from rich.cells import cell_len, chop_cells

from projections.picture.parts import RED, Edge, Node, Picture
from torchlens.viz.legend import signs
from torchlens.viz.look import Look
from torchlens.viz.wording import caption_of, cluster_words, edge_word, node_words

__all__ = ["PlainText", "text_of"]

WIDTH: Final = 80

DEEPEST: Final = 12
"""Boxes around a line that are drawn; those further in stand as far right."""

MOST_SOURCES: Final = 12
"""Lines that one line is said to read from; the rest is counted."""

SIGNS: Final[Mapping[str, str]] = {
    "input": ">",
    "output": "<",
    "op": "o",
    "kept": "*",
    "param": "p",
    "buffer": "b",
    "module": "#",
    "grad_fn": "d",
    "failed": "X",
    "nonfinite": "X",
    "ops": ":",
    "grad_fns": "D",
    "params": "P",
}
"""What stands before a node, by its kind; ``kept`` is an op whose activation was kept."""

MEANINGS: Final[Mapping[str, str]] = {
    "input": "input",
    "output": "output",
    "op": "op, not kept",
    "kept": "op, kept",
    "param": "parameter",
    "buffer": "buffer",
    "module": "module, closed",
    "grad_fn": "grad_fn",
    "failed": "failed",
    "nonfinite": "not finite",
    "ops": "several ops",
    "grad_fns": "several grad_fns",
    "params": "several parameters",
}

FROM: Final[Mapping[str, str]] = {
    "forward": "<-",
    "backward": "<-",
    "pair": "of",
    "buffer_write": "written by",
    "repeat": "again after",
    "recurrent": "again after",
}
"""How a line says from which lines it reads, by the kind of the edges."""


@attrs.frozen
class PlainText:
    """The renderer ``text``, which needs nothing."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Text alone."""
        return ("txt",)

    def missing(self) -> str | None:
        """Nothing, anywhere."""
        return None

    def render(self, picture: Picture, look: Look, format: str, *, dpi: int) -> bytes:
        """The text in UTF-8."""
        return text_of(picture, look).encode()


def text_of(picture: Picture, look: Look) -> str:
    """The text of a picture, lines apart by line feeds."""
    return "\n".join(lines_of(picture, look))


def lines_of(picture: Picture, look: Look) -> Iterator[str]:
    title, caption = caption_of(picture)
    for line in (title, *caption):
        yield from wrapped(line, "", "  ")
    if not picture.nodes:
        return
    yield ""
    numbers = {position: number for number, position in enumerate(order(picture), 1)}
    sources: dict[int, list[Edge]] = {}
    for edge in picture.edges:
        sources.setdefault(edge.target, []).append(edge)
    places = len(str(len(numbers)))
    for place, depth, is_node in walked(picture):
        bars = "| " * min(depth, DEEPEST)
        if is_node:
            node, number = picture.nodes[place], numbers[place]
            name, below = node_words(node, look.labels.get(place))
            told = origins(node, sources.get(place, ()), numbers, number)
            highlighted = "  (highlighted)" if place in look.highlighted else ""
            line = "  ".join(filter(None, [name + highlighted, *below, *told]))
            front = f"{number:>{places}} {bars}"
            yield from wrapped(line, f"{front}{SIGNS[kind_of(node)]} ", " " * (places + 1) + bars + "    ")
        else:
            name, below = cluster_words(picture.clusters[place])
            front = " " * (places + 1) + bars
            yield from wrapped("  ".join((name, *below)), f"{front}+ ", f"{front}|   ")
    if look.legend:
        kinds = dict.fromkeys(kind_of(node) for node in picture.nodes)
        yield ""
        meant = [f"{SIGNS[kind]} {MEANINGS[kind]}" for kind in SIGNS if kind in kinds]
        yield from wrapped(",  ".join([*meant, *signs(picture)]), "", "")
        yield from wrapped("A line reads from the one above it, unless it says otherwise.", "", "")


def kind_of(node: Node) -> str:
    if node.marks & RED:
        return "failed" if "failed" in node.marks else "nonfinite"
    return "kept" if node.kind == "op" and "saved" in node.marks else node.kind


def origins(node: Node, edges: Sequence[Edge], numbers: Mapping[int, int], number: int) -> list[str]:
    """From which lines a node reads, in words; nothing where that goes without saying."""
    plain = [edge for edge in edges if edge.kind in ("forward", "backward") and edge_word(edge) is None]
    if len(edges) == 1 and plain and numbers[edges[0].source] == number - 1:
        return []
    if not edges:
        return ["<- nothing"] if node.kind in ("op", "ops", "module", "output") and number > 1 else []
    by: dict[str, list[str]] = {}
    for edge in edges:
        word = edge_word(edge)
        by.setdefault(FROM[edge.kind], []).append(f"{numbers[edge.source]}" + (f" ({word})" if word else ""))
    told: list[str] = []
    for how, given in by.items():
        names = list(dict.fromkeys(given))
        more = f" and {len(names) - MOST_SOURCES} more" if len(names) > MOST_SOURCES else ""
        told.append(f"{how} {', '.join(names[:MOST_SOURCES])}{more}")
    return told


def order(picture: Picture) -> Iterator[int]:
    """The nodes as their lines stand."""
    return (place for place, _, is_node in walked(picture) if is_node)


def walked(picture: Picture) -> Iterator[tuple[int, int, bool]]:
    """Clusters and nodes as they lie in each other, each with the clusters around it counted; a cluster stands where
    its first node does. The walk takes no stack of Python's."""
    count = len(picture.clusters)
    first = [len(picture.nodes)] * (count + 1)
    inside: list[list[tuple[int, bool, int]]] = [[] for _ in range(count + 1)]
    for position, node in enumerate(picture.nodes):
        inside[node.cluster].append((position, True, position))
        first[node.cluster] = min(first[node.cluster], position)
    for place in range(count - 1, -1, -1):  # a cluster stands behind the one around it
        parent = picture.clusters[place].parent
        first[parent] = min(first[parent], first[place])
        inside[parent].append((first[place], False, place))
    stack = [(False, -1, 0)]
    while stack:
        is_node, place, depth = stack.pop()
        if is_node or place >= 0:
            yield place, depth, is_node
        if not is_node:
            within = depth + 1 if place >= 0 else depth
            stack += [(node, what, within) for _, node, what in sorted(inside[place], reverse=True)]


def wrapped(text: str, front: str, further: str) -> Iterator[str]:
    """A text in lines of at most ``WIDTH`` cells, broken between words; ``further`` stands before all but the first."""
    line, room = front, WIDTH - cell_len(front)
    is_empty = True
    for word in pieces(text, max(8, WIDTH - max(cell_len(front), cell_len(further)))):
        wide = cell_len(word)
        if not is_empty and wide > room:
            yield line.rstrip()
            line, room, is_empty = further, WIDTH - cell_len(further), True
        if is_empty and word.isspace():
            continue
        line, room, is_empty = line + word, room - wide, False
    yield line.rstrip()


def pieces(text: str, most: int) -> Iterable[str]:
    """Words and the blanks between them, cut to a width."""
    for part in re.split(r"(\s+)", text):
        if part.isspace() or cell_len(part) <= most:
            yield part
        else:
            yield from chop_cells(part, most)
