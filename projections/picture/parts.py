"""What a picture is made of: nodes, edges and clusters, as plain values.

Gives  ``Picture`` and its parts. Whoever draws needs nothing else, and no part needs whoever draws.
Rule   a node stands for rows of one table, an edge for edges of the records, a cluster for module calls, modules, or
       a stretch that repeats. What is not drawn is counted in ``hidden``.
Rule   texts are for people and may be cut; ``key``, ``table`` and ``rows`` say exactly what something is.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

NodeKind: TypeAlias = Literal[
    "input", "output", "op", "buffer", "param", "module", "grad_fn", "failed", "ops", "grad_fns", "params"
]
"""``module``: one drawn closed; ``failed``: the call that ended the forward and is no op; ``ops``, ``grad_fns``,
``params``: several in a row, drawn as one."""

EdgeKind: TypeAlias = Literal["forward", "backward", "pair", "buffer_write", "repeat", "recurrent"]
"""``pair`` joins an op and its grad_fn; ``repeat`` leads from one of folded siblings to the next, ``recurrent`` from a
pass of a loop to a later one."""

Mark: TypeAlias = Literal[
    "saved",
    "grad",
    "inplace",
    "opaque",
    "internal_source",
    "bool",
    "halted",
    "nonfinite",
    "failed",
    "orphan",
    "checkpointed",
    "made",
]
"""``bool``: Python took its truth, and a line tells which way; ``halted``: the forward was stopped behind it;
``nonfinite``: it was left at its value, which has NaN or infinite elements; ``failed``: it raised, or was the last to
fire in a backward pass that did; ``made``: by a backward pass."""

RED: Final = frozenset[Mark](("failed", "nonfinite"))
"""The marks of where a forward or backward pass went wrong."""


@attrs.frozen(kw_only=True)
class Node:
    """Something drawn.

    Attributes:
        key: Names it among all nodes, and in every picture of the same records.
        kind: What it is.
        title: Its name, short.
        lines: More about it.
        table: The table that ``rows`` are of; "" for a call that is no op.
        rows: What it stands for, in order.
        cluster: Position of the cluster that it is in; -1 for none.
        passes: Of each row, how many passes it has (rolled), or how often it fired (a grad_fn).
        times: Equal siblings that it stands for by itself; those that a cluster around it stands for are not in it.
        ops: Ops that it stands for, those inside of it among them.
        grad_fns: Autograd nodes, likewise.
        marks: What else is to be seen, of each equal sibling.
    """

    key: str
    kind: NodeKind
    title: str
    lines: tuple[str, ...] = ()
    table: str
    rows: tuple[int, ...]
    cluster: int = -1
    passes: int = 1
    times: int = 1
    ops: int = 1
    grad_fns: int = 0
    marks: frozenset[Mark] = frozenset()


@attrs.frozen(kw_only=True)
class Edge:
    """From one node to another, by position; a ``repeat`` or ``recurrent`` edge may lead back to where it is from.

    Attributes:
        source, target: Positions of the nodes.
        kind: What it is.
        label: A text to draw at it; None for none.
        count: Edges of the records that it stands for.
    """

    source: int
    target: int
    kind: EdgeKind = "forward"
    label: str | None = None
    count: int = 1


@attrs.frozen(kw_only=True)
class Cluster:
    """A box around nodes and other clusters; it stands behind the one that it is in.

    Attributes:
        key: Names it among all clusters.
        title: Its name, short.
        lines: More about it.
        parent: Position of the cluster around it; -1 for none.
        table: ``module_calls`` or ``modules``; "" for a stretch that repeats.
        rows: The rows of that table that it stands for.
        times: Equal siblings that it stands for.
        passes: Calls of the module, where loops are rolled.
    """

    key: str
    title: str
    lines: tuple[str, ...] = ()
    parent: int = -1
    table: str
    rows: tuple[int, ...] = ()
    times: int = 1
    passes: int = 1


@attrs.frozen(kw_only=True)
class Picture:
    """Records as nodes, edges and clusters; equal records give an equal picture.

    Attributes:
        title: What it is a picture of.
        caption: Lines about the whole: how it ended, what is hidden.
        nodes, edges, clusters: What is drawn, in order.
        hidden: How many of what is in closed modules or left out: pairs of a word and a number.
    """

    title: str
    caption: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    hidden: tuple[tuple[str, int], ...] = ()
