"""The graph from some roots on: breadth first, in slot order, past the nodes of our own copies.

Gives  each node with its edges, in the order in which it was reached; and which part of it is one capture's.
Rule   a walk may stop and go on: nodes that were looked at are dear to free (``compat.MAX_TOUCHED_NODES``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final, TypeAlias

from torchlens import compat
from torchlens.capture.template import path_of
from torchlens.copying import MARKED, past_copies

__all__ = ["Edge", "Edges", "Walk", "kind_of", "own_part"]

Edge: TypeAlias = "tuple[Any, int]"
"""An autograd node, and which of its outputs."""

Edges: TypeAlias = "tuple[Edge | None, ...]"

_kinds: Final[dict[type, tuple[str, str, bool]]] = {}


def kind_of(node: Any) -> tuple[str, str, bool]:
    """Class name of a node, qualified class name, and whether it is of a Python ``autograd.Function``."""
    kind = type(node)
    known = _kinds.get(kind)
    if known is None:
        known = (kind.__name__, path_of(kind), compat.is_python_node(kind))
        if not known[2]:  # classes of C++ nodes are few; those of Functions may be made anew at every call
            _kinds[kind] = known
    return known


class Walk:
    """A walk that goes as far as it is told.

    Args:
        roots: Where it starts.
        known: Nodes that it does not look at.
    """

    __slots__ = ("_at", "_known", "_queue", "edges")

    def __init__(self, roots: Iterable[Any], known: Container[Any] = ()) -> None:
        self._queue: list[Any] = [node for node in dict.fromkeys(roots) if node is not None and node not in known]
        self.edges: dict[Any, Edges] = dict.fromkeys(self._queue, ())
        self._known = known
        self._at = 0

    @property
    def is_cut(self) -> bool:
        """Whether the graph goes on."""
        return self._at < len(self._queue)

    def go(self, most: int | None = None, touched: Container[Any] = ()) -> None:
        """Go on to the end, or until as many nodes were reached that nobody has looked at before.

        Args:
            most: How many; None for any number.
            touched: Nodes that were looked at.
        """
        queue, edges, known, marked = self._queue, self.edges, self._known, MARKED
        has_known = bool(known)
        fresh = 0
        while self._at < len(queue):
            node = queue[self._at]
            if most is not None and node not in touched:
                fresh += 1
                if fresh > most:
                    return
            self._at += 1
            nexts: list[Edge | None] = []
            for edge in node.next_functions:
                before = edge[0]
                if before is None:
                    nexts.append(None)
                    continue
                if type(before) in marked:
                    edge = past_copies(*edge)
                    before = edge[0]
                nexts.append(edge)
                if before not in edges and not (has_known and before in known):
                    edges[before] = ()
                    queue.append(before)
            edges[node] = tuple(nexts)

    def walked(self) -> list[Any]:
        """The nodes whose edges are known, in the order in which they were reached."""
        return self._queue[: self._at]


def own_part(
    walk: Walk, roots: Sequence[Any], is_own: Callable[[Any], bool], is_others: Callable[[Any], bool]
) -> list[Any]:
    """The nodes of a walk that one of several captures records.

    Those that belong to another one are left out, with what is reached through them alone, as long as
    that does not lead back to a node of this one.

    Args:
        walk: It has reached everything.
        roots: Where it started.
        is_own: Whether a node was made by this capture.
        is_others: Whether it was made by another one.
    """
    edges = walk.edges
    found: dict[Any, None] = {}
    beyond: dict[Any, None] = {}
    waiting = list(roots)
    while waiting:
        queue: list[Any] = []
        for node in waiting:
            if node not in found:
                (beyond if is_others(node) and not is_own(node) else found)[node] = None
                queue.append(node)
        queue = [node for node in queue if node in found]
        for node in queue:
            for edge in edges.get(node, ()):
                if edge is not None and edge[0] not in found:
                    before = edge[0]
                    if is_others(before) and not is_own(before):
                        beyond[before] = None
                    else:
                        found[before] = None
                        queue.append(before)
        waiting = _back_again(edges, beyond, found, is_own)
    return list(found)


def _back_again(
    edges: dict[Any, Edges], beyond: dict[Any, None], found: dict[Any, None], is_own: Callable[[Any], bool]
) -> list[Any]:
    """Nodes of one's own that are reached through those of others."""
    again: dict[Any, None] = {}
    queue = list(beyond)
    for node in queue:
        for edge in edges.get(node, ()):
            if edge is None or edge[0] in beyond or edge[0] in found or edge[0] in again:
                continue
            if is_own(edge[0]):
                again[edge[0]] = None
            else:
                beyond[edge[0]] = None
                queue.append(edge[0])
    return list(again)
