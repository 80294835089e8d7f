"""What is written at a node, whoever draws it: its title, its lines, and its marks in words.

Rule   names come from a journal that anybody may have written: each is printable here, and of a bounded length, before
       a renderer sees it. What a renderer's own language would take for its own, the renderer escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from projections.picture.parts import Cluster, Edge, Mark, Node, Picture
from torchlens.printable import cut

__all__ = ["WORDS", "caption_of", "cluster_words", "edge_word", "node_words"]

WIDEST: Final = 120
"""Letters of one line of a picture; pictures that this package makes keep to fewer."""

MOST_LINES: Final = 24
"""Lines at one node; the rest is counted."""

WORDS: Final[Mapping[Mark, str]] = {
    "failed": "failed",
    "halted": "halted here",
    "nonfinite": "not finite, left here",
    "inplace": "in place",
    "opaque": "opaque",
    "checkpointed": "checkpointed",
    "made": "made by a backward pass",
    "internal_source": "made without inputs",
    "orphan": "reaches no output",
}
"""The marks that are words at a node, in the order in which they stand there. ``saved`` and ``grad`` are colours, and
what Python asked of a ``bool`` is a line of the picture's own."""


def bounded(lines: Iterable[str]) -> tuple[str, ...]:
    """At most so many lines of at most so many printable letters."""
    made: list[str] = []
    left = 0
    for line in lines:
        if len(made) < MOST_LINES:
            made.append(cut(line, WIDEST))
        else:
            left += 1
    return (*made, f"and {left:,} more lines") if left else tuple(made)


def node_words(node: Node, label: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The title of a node and the lines below it.

    Args:
        label: What a function of the user's gave in place of both, lines apart by line feeds.
    """
    marks = [word for mark, word in WORDS.items() if mark in node.marks and mark != node.kind]
    if label is not None:
        first, *lines = label[: WIDEST * (MOST_LINES + 1)].split("\n")
        return bounded([first])[0], bounded(lines)
    title = cut(node.title, WIDEST) + (f" x {node.times}" if node.times > 1 else "")
    is_fired = node.kind == "grad_fn" or node.table == "grad_fns"
    often = "fired {:,} times" if is_fired else "{:,} calls" if node.kind == "module" else "{:,} passes"
    passes = [often.format(node.passes)] if node.passes > 1 else []
    return title, bounded([*node.lines, *passes, *marks])


def cluster_words(cluster: Cluster) -> tuple[str, tuple[str, ...]]:
    """The title of an open module and the lines below it."""
    title = (cut(cluster.title, WIDEST) + (f" x {cluster.times}" if cluster.times > 1 else "")).strip()
    return title, bounded([*cluster.lines, *([f"{cluster.passes:,} calls"] if cluster.passes > 1 else [])])


def edge_word(edge: Edge) -> str | None:
    """What is written at an edge; None for nothing."""
    return cut(edge.label, WIDEST) if edge.label else None


def caption_of(picture: Picture) -> tuple[str, tuple[str, ...]]:
    """The title of a picture, and what is said about the whole."""
    return cut(picture.title, WIDEST), bounded(picture.caption)
