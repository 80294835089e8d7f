"""A picture in DOT, the language of Graphviz.

Rule   nothing of a picture is ever a name in DOT: nodes are ``n0``, ``n1``, clusters ``cluster_0``. Its texts stand in
       labels (HTML-like ones, escaped as XML) and in tooltips (quoted strings), and nowhere else.
Note   what leads back (``repeat``, ``recurrent``) does not take part in the placing of rows. Where a forward and its
       backward are drawn at once, backward edges are written the other way round and drawn from their end, so that the
       two stand side by side and each grad_fn in the row of its op.
Source https://graphviz.org/doc/info/lang.html, .../shapes.html#html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from projections.picture.parts import RED, Edge, Mark, Node, Picture
from torchlens.printable import amount
from torchlens.viz.legend import meanings
from torchlens.viz.look import Direction, Look
from torchlens.viz.themes import Theme
from torchlens.viz.wording import WORDS, caption_of, cluster_words, edge_word, node_words

__all__ = ["dot_of"]

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

CELLS: Final = 4
"""Meanings in one row of the legend."""


def dot_of(picture: Picture, look: Look) -> str:
    """The source of a picture; equal pictures and looks give equal texts."""
    return "\n".join(Writer(picture, look).lines()) + "\n"


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

    def __init__(self, picture: Picture, look: Look) -> None:
        self.picture, self.look, self.theme = picture, look, look.theme
        kinds = {edge.kind for edge in picture.edges}
        self.is_combined = "backward" in kinds and bool(kinds & {"forward", "pair"})

    def lines(self) -> Iterator[str]:
        theme = self.theme
        yield "digraph trace {"
        yield f"  graph {attributes(self.graph())};"
        yield f'  node [shape=box fontname="{theme.font}" fontsize=10 margin="0.12,0.06" height=0.3 width=0.4];'
        yield f'  edge [fontname="{theme.font}" fontsize={SMALL} arrowsize=0.55 color="{theme.line}"];'
        yield from self.inside()
        for edge in self.picture.edges:
            yield f"  {self.edge(edge)};"
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
        title, lines = cluster_words(cluster)
        return {
            "id": f'"c{place}"',
            "label": self.heading_of(title, lines),
            "labeljust": "l",
            "labelloc": "t",
            "margin": "7",
            "style": '"rounded,filled"' if cluster.table else '"rounded,filled,dashed"',
            "fillcolor": f'"{theme.cluster if depth % 2 else theme.background}"',
            "color": f'"{theme.cluster_line}"',
            "penwidth": "1.6" if cluster.times > 1 else "1",
            "tooltip": quoted("\n".join((title, *lines))),
        }

    def heading_of(self, title: str, lines: Sequence[str]) -> str:
        """What stands at the edge of an open module: on the left half, since what leads into it mostly comes in the
        middle."""
        theme = self.theme
        rows = [f'<FONT COLOR="{theme.ink}" POINT-SIZE="10"><B>{markup(title)}</B></FONT>']
        rows += [f'<FONT COLOR="{theme.faint}" POINT-SIZE="{SMALL}">{markup(line)}</FONT>' for line in lines]
        wide = max(LETTER * len(title), 0.8 * LETTER * max(map(len, lines), default=0))
        empty = f'<TD FIXEDSIZE="TRUE" WIDTH="{wide:.0f}" HEIGHT="1"></TD>'
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
        if node.kind == "module":
            made["peripheries"] = "2"
        if position in self.look.highlighted:
            made |= {"color": f'"{theme.highlight}"', "penwidth": "3.5"}
        return made

    def edge(self, edge: Edge) -> str:
        theme = self.theme
        source, target = edge.source, edge.target
        made: dict[str, str] = {"tooltip": quoted(f"{edge.kind}: {amount(edge.count, 'edge')}")}
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
        return f"n{source} -> n{target} {attributes(made)}"


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
        case "op":
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
        case "ops":
            return theme.op


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
