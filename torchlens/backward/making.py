"""Nodes that the engine makes while it runs under ``create_graph``, and which node made each.

Gives  the events of what a pass made.
Rule   a node with a number between those at the beginning and the end of the run was made in it; one found on the way
       with a lower number hung on a saved tensor alone, and is only found.
Not    whose maker a node is: that follows from the windows of firings, and from which node ran at each operator
       (dispatching.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import Tensor

from journal.events import Event, GraphNode, MakersSeen, NodesFound, NodesMade
from torchlens import compat
from torchlens.backward.walking import Edges, Walk

__all__ = ["Made", "Numbering", "given_nodes", "made_by"]


class Made(Protocol):
    """A pass, as far as what it made goes."""

    gave: list[Any]  # the nodes from which what it made is reached
    makers: list[tuple[int, Any]]
    sequences: tuple[int, int]  # the next node's number as it began, and as it ended

    @property
    def number(self) -> int: ...


class Numbering(Protocol):
    """What numbers the nodes of a capture."""

    nodes: dict[Any, int]

    def number(self, found: Iterable[Any]) -> dict[Any, int]:
        """Number of each node, new ones in this order."""

    def told(self, node: Any) -> int | None:
        """Number of a node that an event has told of; None for any other, as where recording failed before."""

    def row(self, node: Any, edges: Edges) -> GraphNode:
        """A node as events have it."""


def given_nodes(result: Any, nodes: Iterable[Any]) -> list[Any]:
    """The nodes of the gradients that a run gave: those that it returned, and those that leaves have now.

    Args:
        result: What the engine returned.
        nodes: The nodes of the run, among them those that gather the gradient of a leaf.
    """
    given = list(result) if isinstance(result, (tuple, list)) else []
    given += [leaf.grad for node in nodes if (leaf := compat.leaf_of(node)) is not None]
    made = [compat.given_node(gradient) for gradient in given if isinstance(gradient, Tensor)]
    return [node for node in dict.fromkeys(made) if node is not None]


def made_by(diary: Numbering, made: Made) -> Iterator[tuple[Event, frozenset[int]]]:
    """The events of the nodes that a pass made, with the numbers of these nodes."""
    walk = Walk(made.gave, diary.nodes)
    walk.go()
    found = walk.walked()
    diary.number(found)
    first, behind = made.sequences
    new: list[GraphNode] = []
    others: list[GraphNode] = []
    for node in found:
        row = diary.row(node, walk.edges[node])
        is_new = row[6] is not None and first <= row[6] < behind
        (new if is_new else others).append(row)
    if others:
        yield NodesFound(pass_number=made.number, nodes=tuple(others), is_cut=False), frozenset()
    if new:
        numbers = frozenset([row[0] for row in new])
        yield NodesMade(pass_number=made.number, nodes=tuple(new)), numbers
    entries = tuple([(number, None if node is None else diary.told(node)) for number, node in made.makers])
    if entries:
        yield MakersSeen(pass_number=made.number, entries=entries), frozenset()
