"""A picture in DOT, the language of Graphviz.

Rule   nothing of a picture is ever a name in DOT: nodes are ``n0``, ``n1``, clusters ``cluster_0``. Its texts stand in
       labels (HTML-like ones, escaped as XML) and in tooltips (quoted strings), and nowhere else.
Note   what leads back (``repeat``, ``recurrent``) does not take part in the placing of rows. Where a forward and its
       backward are drawn at once, backward edges are written the other way round and drawn from their end, so that the
       two stand side by side and each grad_fn in the row of its op.
Note   once placed (``placing``), everything has a position, and titles of modules are nodes that come last: they
       stand above what leads past them.
Source https://graphviz.org/doc/info/lang.html, .../shapes.html#html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Final

from rich.cells import cell_len

from projections.picture.parts import RED, Cluster, Edge, Mark, Node, Picture
from torchlens.printable import amount
from torchlens.viz.legend import meanings
from torchlens.viz.look import Direction, Look
from torchlens.viz.placing import NoLayout, Placed, placed_of
from torchlens.viz.themes import Theme
from torchlens.viz.wording import WORDS, caption_of, cluster_words, edge_word, node_words

__all__ = ["dot_of", "placed_by"]

RANKDIR: Final[Mapping[Direction, str]] = {"bottomup": "BT", "topdown": "TB", "leftright": "LR"}

SMALL: Final = 8
"""Points of a line below a title."""

PLACING: Final = {
    "dot": {},
    "rank": {"nslimit": "1", "nslimit1": "1", "mclimit": "0.1", "splines": "polyline"},
}
"""Attributes by layout. The limits are on what network simplex and the search for fewer crossings may do, by node."""

LETTER: Final = 6.0
"""Points that a letter of the title of an open module takes, about."""

WORD: Final = 4.6
"""Points that a letter at an edge takes, about."""

PLACE: Final = re.compile(r"[-+.,;se\d\s]+")
"""Places of Graphviz: points of numbers, with ``s`` and ``e`` before those of arrows."""

MORE: Final = 2.0
"""Times the room beside a title, where there was none for it between lines."""

TRIES: Final = 3
"""Layouts with more room at most."""

NONE: Final[Mapping[str, float]] = MappingProxyType({})

CELLS: Final = 4
"""Meanings in one row of the legend."""


def dot_of(picture: Picture, look: Look, placed: Placed | None = None, spare: Mapping[str, float] = NONE) -> str:
    """The source of a picture; equal pictures, looks and layouts give equal texts.

    Args:
        placed: Where everything is to stand; where Graphviz puts it, if None.
        spare: Points of room beside the titles of open modules, where it is not that of ``spare_of``.
    """
    return "\n".join(Writer(picture, look, placed, spare).lines()) + "\n"


def placed_by(place: Callable[[str], bytes], picture: Picture, look: Look) -> Placed:
    """The layout of a picture, with its titles where lines leave room; what has none gets more, a few times.

    Args:
        place: Gives what ``-Tjson0`` writes for a source.

    Raises:
        NoLayout: it gives something else.
    """
    words = {f"e{number}": edge_word(edge) for number, edge in enumerate(picture.edges)}
    sizes = {name: (WORD * len(word) + 6, SMALL + 6.0) for name, word in words.items() if word is not None}
    spare = {f"cluster_{number}": spare_of(cluster) for number, cluster in enumerate(picture.clusters)}
    best = placed_of(place(dot_of(picture, look, spare=spare)), spare, sizes)
    tries = TRIES if look.placing(picture) == "dot" else 0
    while best.crossed and tries:
        tries -= 1
        spare |= {name: MORE * spare[name] for name in best.crossed}
        other = placed_of(place(dot_of(picture, look, spare=spare)), spare, sizes)
        best = min(best, other, key=lambda one: len(one.crossed))
    return best


def markup(text: str) -> str:
    """A text in an HTML-like label; never empty, which their grammar does not know.

    Backslashes are doubled: ``\\N`` would be the name of the node there, too.
    """
    return escape(text).replace("\\", "\\\\") if text.strip() else "&#160;"


def quoted(text: str) -> str:
    """A text as a quoted string that shows it as it is: the escapes and entities in it are spelled out."""
    return '"' + escape(text).replace("\\", "\\\\").replace("\n", "\\n") + '"'


def attributes(given: Mapping[str, str]) -> str:
    """Attributes in brackets. Values are our own words, or a string or HTML-like label already."""
    return "[" + " ".join(f"{name}={value}" for name, value in given.items()) + "]"


class Writer:
    """What a picture is written with."""

    def __init__(self, picture: Picture, look: Look, placed: Placed | None, spare: Mapping[str, float]) -> None:
        self.picture, self.look, self.theme, self.placed, self.spare = picture, look, look.theme, placed, spare
        kinds = {edge.kind for edge in picture.edges}
        self.is_combined = "backward" in kinds and bool(kinds & {"forward", "pair"})

    def lines(self) -> Iterator[str]:
        theme = self.theme
        yield "digraph trace {"
        yield f"  graph {attributes(self.graph())};"
        yield f'  node [shape=box fontname="{theme.font}" fontsize=10 margin="0.12,0.06" height=0.3 width=0.4];'
        yield f'  edge [fontname="{theme.font}" fontsize={SMALL} arrowsize=0.55 color="{theme.line}"];'
        yield from self.inside()
        for position, edge in enumerate(self.picture.edges):
            yield f"  {self.edge(position, edge)};"
        yield from self.titles()
        yield "}"

    def graph(self) -> dict[str, str]:
        theme = self.theme
        return {
            "rankdir": RANKDIR[self.look.direction],
            "nodesep": "0.2",
            "ranksep": "0.22",
            "pad": "0.15",
            "bgcolor": f'"{theme.background}"',
            "fontname": f'"{theme.font}"',
            "fontsize": "12",
            "labelloc": "t",
            "labeljust": "l",
            "tooltip": quoted(caption_of(self.picture)[0]),
            "label": f"<{self.heading()}>",
            **PLACING[self.look.placing(self.picture)],
            **({"outputorder": "edgesfirst", **at(self.placed.whole)} if self.placed else {}),
        }

    def heading(self) -> str:
        """What stands above the picture: its title, what is said about the whole, and what the colours mean."""
        theme = self.theme
        title, caption = caption_of(self.picture)
        rows = [f'<TR><TD ALIGN="LEFT"><FONT COLOR="{theme.ink}"><B>{markup(title)}</B></FONT></TD></TR>']
        rows += [
            f'<TR><TD ALIGN="LEFT"><FONT COLOR="{theme.faint}" POINT-SIZE="9">{markup(line)}</FONT></TD></TR>'
            for line in caption
        ]
        cells = [
            f'<TD BORDER="{2 if meaning.is_wide else 1}" COLOR="{meaning.line}" BGCOLOR="{meaning.fill}">'
            f'<FONT COLOR="{meaning.ink}" POINT-SIZE="{SMALL}">{markup(meaning.word)}</FONT></TD>'
            for meaning in (meanings(self.picture, self.look) if self.look.legend else ())
        ]
        if cells:
            legend = "".join(f"<TR>{''.join(cells[at : at + CELLS])}</TR>" for at in range(0, len(cells), CELLS))
            table = f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="3" CELLPADDING="2">{legend}</TABLE>'
            rows.append(f'<TR><TD ALIGN="LEFT">{table}</TD></TR>')
        return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="1" CELLPADDING="1">{"".join(rows)}</TABLE>'

    def inside(self) -> Iterator[str]:
        """Clusters and the nodes in them, as they lie in each other; the walk takes no stack of Python's."""
        count = len(self.picture.clusters)
        nodes: list[list[int]] = [[] for _ in range(count + 1)]  # the last one is of what is in no cluster
        clusters: list[list[int]] = [[] for _ in range(count + 1)]
        for position, node in enumerate(self.picture.nodes):
            nodes[node.cluster].append(position)
        for position, cluster in enumerate(self.picture.clusters):
            clusters[cluster.parent].append(position)
        stack: list[tuple[int, int, bool]] = [(-1, 0, False)]
        while stack:
            place, depth, is_left = stack.pop()
            pad = "  " * min(depth + 1, 20)
            if is_left:
                yield f"{pad[2:]}}}"
                continue
            if place >= 0:
                yield f"{pad[2:]}subgraph cluster_{place} {{"
                yield f"{pad}graph {attributes(self.cluster(place, depth))};"
                stack.append((place, depth, True))
            for position in nodes[place]:
                yield f"{pad}n{position} {attributes(self.node(position))};"
            stack += [(child, depth + 1, False) for child in reversed(clusters[place])]

    def cluster(self, place: int, depth: int) -> dict[str, str]:
        theme, cluster = self.theme, self.picture.clusters[place]
        (title, lines), name = cluster_words(cluster), f"cluster_{place}"
        if self.placed:
            label = {"label": '""', **at(self.placed.clusters[name])}
        else:
            spare = self.spare.get(name) or spare_of(cluster)
            label = {"label": self.heading_of(title, lines, spare), "labeljust": "l", "labelloc": "t"}
        return {
            "id": f'"c{place}"',
            **label,
            "margin": "7",
            "style": '"rounded,filled"' if cluster.table else '"rounded,filled,dashed"',
            "fillcolor": f'"{self.behind(depth)}"',
            "color": f'"{theme.cluster_line}"',
            "penwidth": "1.6" if cluster.times > 1 else "1",
            "tooltip": quoted("\n".join((title, *lines))),
        }

    def behind(self, depth: int) -> str:
        """What a module is filled with, by how many there are around it."""
        return self.theme.cluster if depth % 2 else self.theme.background

    def titles(self) -> Iterator[str]:
        """The titles of open modules as nodes, where they have a place."""
        if self.placed is None:
            return
        depths: list[int] = []
        for place, cluster in enumerate(self.picture.clusters):
            depths.append(1 + (depths[cluster.parent] if cluster.parent >= 0 else 0))
            there = self.placed.titles[f"cluster_{place}"]
            made = {
                "id": f'"title-c{place}"',
                "class": '"title"',
                "shape": "plain",
                "style": "filled",
                "fillcolor": f'"{self.behind(depths[place])}"',
                "label": self.heading_of(*cluster_words(cluster)),
                **at({"pos": f"{there.x:.2f},{there.y:.2f}"}),
            }
            yield f"  title_{place} {attributes(made)};"

    def heading_of(self, title: str, lines: Sequence[str], spare: float = 0) -> str:
        """The title of an open module, with points of room beside it."""
        theme = self.theme
        rows = [f'<FONT COLOR="{theme.ink}" POINT-SIZE="10"><B>{markup(title)}</B></FONT>']
        rows += [f'<FONT COLOR="{theme.faint}" POINT-SIZE="{SMALL}">{markup(line)}</FONT>' for line in lines]
        empty = f'<TD FIXEDSIZE="TRUE" WIDTH="{spare:.0f}" HEIGHT="4"></TD>' if spare else ""
        cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD>{empty}</TR>' for row in rows)
        return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1">{cells}</TABLE>>'

    def node(self, position: int) -> dict[str, str]:
        theme, node = self.theme, self.picture.nodes[position]
        title, lines = node_words(node, self.look.labels.get(position))
        line, width = line_around(node, theme)
        made = {
            "id": f'"n{position}"',
            "label": label(title, lines, theme, node.marks),
            "style": f'"{style_of(node)}"',
            "fillcolor": f'"{fill_of(node, theme)}"',
            "color": f'"{line}"',
            "penwidth": width,
            "tooltip": quoted("\n".join((title, *lines))),
        }
        if wide := wide_letters(title, lines):
            made["width"] = f"{wide / 72 + 0.3:.2f}"
        if node.kind == "module":
            made["peripheries"] = "2"
        if position in self.look.highlighted:
            made |= {"color": f'"{theme.highlight}"', "penwidth": "3.5"}
        return made | (at(self.placed.nodes[f"n{position}"]) if self.placed else {})

    def edge(self, position: int, edge: Edge) -> str:
        theme = self.theme
        source, target = edge.source, edge.target
        tooltip = quoted(f"{edge.kind}: {amount(edge.count, 'edge')}")
        made: dict[str, str] = {"id": f'"e{position}"', "tooltip": tooltip}
        word = edge_word(edge)
        if word is not None:
            said = f'<FONT COLOR="{theme.faint}">{markup(word)}</FONT>'
            made["label"] = f'<<TABLE BORDER="0" CELLBORDER="0" CELLPADDING="3"><TR><TD>{said}</TD></TR></TABLE>>'
        match edge.kind:
            case "forward":
                pass
            case "backward":
                made["color"] = f'"{theme.gradient}"'
                if self.is_combined:
                    source, target = target, source
                    made["dir"] = "back"
            case "pair":
                made |= {
                    "style": "dotted",
                    "arrowhead": "none",
                    "minlen": "0",
                    "weight": "0",
                    "color": f'"{theme.gradient}"',
                }
            case "buffer_write":
                made |= {"style": "dashed", "color": f'"{theme.inplace}"'}
            case "repeat" | "recurrent":
                made |= {"style": "dashed", "constraint": "false"}
        if self.placed:
            made |= at(self.placed.edges[f"e{position}"])
        return f"n{source} -> n{target} {attributes(made)}"


def at(told: Mapping[str, str]) -> dict[str, str]:
    """Attributes that tell where something is, as they stand in DOT: of numbers, and nothing else."""
    if not all(PLACE.fullmatch(value) for value in told.values()):
        raise NoLayout("a place in the layout is not of numbers")
    return {name: f'"{value}"' for name, value in told.items()}


def wide_letters(title: str, lines: Sequence[str]) -> float:
    """Points that texts take in which there are letters as wide as high, 0 where there are none: a Graphviz whose fonts
    lack these takes them for as wide as a space."""
    sizes = [(10.0, title), *((float(SMALL), line) for line in lines)]
    wide = [0.6 * size * len(text) + 0.4 * size * (cell_len(text) - len(text)) for size, text in sizes]
    has = any(cell_len(text) > len(text) for _, text in sizes)
    return max(wide) if has else 0.0


def spare_of(cluster: Cluster) -> float:
    """Points of room beside the title of an open module, as wide as itself: what leads into a module mostly comes in
    the middle."""
    title, lines = cluster_words(cluster)
    return round(max(LETTER * cell_len(title), 0.8 * LETTER * max(map(cell_len, lines), default=0), LETTER))


def label(title: str, lines: Iterable[str], theme: Theme, marks: frozenset[Mark]) -> str:
    """A title and smaller lines below it, as an HTML-like label."""

    def colour(line: str) -> str:
        if "inplace" in marks and line == WORDS["inplace"]:
            return theme.inplace
        return theme.ink if marks & RED else theme.faint

    below = "".join(f'<BR/><FONT POINT-SIZE="{SMALL}" COLOR="{colour(line)}">{markup(line)}</FONT>' for line in lines)
    return f'<<FONT COLOR="{theme.ink}"><B>{markup(title)}</B></FONT>{below}>'


def fill_of(node: Node, theme: Theme) -> str:
    """What a node is filled with, by its kind and whether its activation was kept."""
    if node.marks & RED:
        return theme.failed
    match node.kind:
        case "input":
            return theme.input
        case "output":
            return theme.output
        case "op" | "ops":
            return theme.kept if "saved" in node.marks else theme.op
        case "buffer":
            return theme.buffer
        case "param" | "params":
            return theme.param
        case "module":
            return theme.module
        case "grad_fn" | "grad_fns":
            return theme.grad_fn
        case "failed":
            return theme.failed


def line_around(node: Node, theme: Theme) -> tuple[str, str]:
    """Colour and points of the line around a node."""
    if "grad" in node.marks:
        return theme.gradient, "1.8"
    if node.kind in ("input", "output", "failed"):
        return theme.ink, "1.4"
    return theme.line, "1"


def style_of(node: Node) -> str:
    """Corners and the kind of line; what holds a tensor of the model has corners, what ran has none."""
    words = ["filled"]
    if node.kind not in ("param", "params", "buffer"):
        words.append("rounded")
    if "opaque" in node.marks:
        words.append("dashed")
    return ",".join(words)
