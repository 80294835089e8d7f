"""The small language of ``making.py`` for backward passes: what a test says of a pass, as the events of a diary.

    passes = Passes(made.returns(value))
    addmm = passes.node("AddmmBackward0", weight)
    loss = passes.node("SumBackward0", addmm)
    passes.run(loss)

``run`` is a whole pass, in which every node fires that the root leads to. Step by step::

    passes.open(loss)
    passes.find(loss, addmm)
    passes.enter()
    passes.fire(loss)
    passes.observe(addmm, payload=3)
    passes.fire(addmm)
    passes.close()

Nodes of ops have the numbers that the forward gave them.

Not    passes that hypothesis draws (testing/drawing/passes.py), or behind a real capture (tests/backward/by_hand.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from journal.events import (
    BackwardDispatched,
    EngineEntered,
    Event,
    GradientKept,
    GradientObserved,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from projections import CaptureTables, Projector
from tests.projections.making import Made, Rows, source_of

FIRE_NS = 100
"""Time that every firing takes."""

LIKE = ((2, 4), "float32", "cpu")


class Node:
    """An autograd node in the making."""

    def __init__(self, number: int, class_name: str, behind: Sequence[Node | tuple[Node, int] | None], **known: Any):
        self.number = number
        self.class_name = class_name
        self.behind = behind
        self.leaf: int | None = known.get("leaf")
        self.sequence: int | None = known.get("sequence")
        self.is_custom: bool = known.get("is_custom", False)

    def told(self) -> Any:
        edges = tuple(
            None if edge is None else (edge[0].number, edge[1]) if isinstance(edge, tuple) else (edge.number, 0)
            for edge in self.behind
        )
        name = self.class_name
        return (self.number, name, f"torch.autograd.graph.{name}", self.is_custom, edges, self.leaf, self.sequence)


class Passes:
    """Backward passes behind a made-up forward.

    Args:
        made: The forward. Events are added to it.
        first: Number of the first node that the forward does not tell.
    """

    def __init__(self, made: Made, first: int = 100) -> None:
        self.made = made
        self.next = first
        self.known: set[int] = set()
        self.running: list[int] = []
        self.num_passes = 0
        self.task = 0

    def add(self, *events: Event) -> None:
        self.made.add(*events)

    def node(
        self, class_name: str, *behind: Node | tuple[Node, int] | None, number: int | None = None, **known: Any
    ) -> Node:
        """A node with those behind it; one that the forward does not tell of gets the next number."""
        if number is None:
            number, self.next = self.next, self.next + 1
        return Node(number, class_name, behind, **known)

    # -- a pass

    def open(self, *roots: Node, trigger: Any = "autograd_backward", **known: Any) -> int:
        """A pass begins; one that runs already is around it."""
        number = self.num_passes
        facts: dict[str, Any] = {
            "frame": None,
            "policy": None,
            "parent": self.running[-1] if self.running else None,
            "thread": "MainThread",
            "task": None,
            "roots": tuple(((root.number, 0), ((), "float32", "cpu")) for root in roots),
            "seeds": (None,) * len(roots),
            "inputs": None,
            "retain_graph": False,
            "create_graph": False,
            "accumulates": True,
            "is_transient": False,
            "has_census": False,
        }
        self.add(PassOpened(pass_number=number, trigger=trigger, **{**facts, **known}))
        self.num_passes += 1
        self.running.append(number)
        return number

    def find(self, *nodes: Node, is_cut: bool = False) -> None:
        """Of these nodes those that were not told yet are found."""
        new = [node for node in nodes if node.number not in self.known]
        self.known.update(node.number for node in new)
        told = tuple(node.told() for node in new)
        self.add(NodesFound(pass_number=self.running[-1], nodes=told, is_cut=is_cut))

    def walk(self, *roots: Node) -> None:
        """All nodes that the roots lead to are found, breadth first."""
        self.find(*breadth_first(roots))

    def enter(self) -> None:
        self.add(EngineEntered(pass_number=self.running[-1], task=self.task))
        self.task += 1

    def fire(self, *nodes: Node, made: tuple[int, int] | None = None, timed: bool = True) -> None:
        for node in nodes:
            self.add(
                NodeFired(
                    pass_number=self.running[-1],
                    node=node.number,
                    duration_ns=FIRE_NS if timed else None,
                    missing=(),
                    sequence=made,
                )
            )

    def observe(self, node: Node, payload: int | None = None, slot: int = 0, side: Any = "output") -> int:
        """A gradient is seen; gives the number of the event."""
        self.add(
            GradientObserved(
                pass_number=self.running[-1],
                node=node.number,
                side=side,
                slot=slot,
                like=LIKE,
                payload=None if payload is None else (payload, 0, None),
            )
        )
        return len(self.made.events) - 1

    def dispatch(self, operator: str, node: Node | None = None, *shapes: tuple[int, ...], **known: Any) -> None:
        """An operator runs in a node; ``shapes`` are those of what it was given."""
        facts: dict[str, Any] = {"is_elsewhere": False, "grad_enabled": False, "outputs": (), "settings": None}
        self.add(
            BackwardDispatched(
                pass_number=self.running[-1],
                operator=operator,
                node=None if node is None else node.number,
                inputs=tuple((shape, "float32") for shape in shapes),
                **{**facts, **known},
            )
        )

    def keep(self, of: int, payload: int) -> None:
        self.add(GradientKept(of=of, payload=(payload, 0, None)))  # type: ignore[arg-type]  # a plain number stands for one

    def make(self, *nodes: Node, by: int | None = None) -> None:
        """A pass made nodes: the one that runs, or that of this number, which is over."""
        self.known.update(node.number for node in nodes)
        number = self.running[-1] if by is None else by
        self.add(NodesMade(pass_number=number, nodes=tuple(node.told() for node in nodes)))

    def see_makers(self, *entries: tuple[int, Node | None], by: int | None = None) -> None:
        told = tuple((number, None if node is None else node.number) for number, node in entries)
        self.add(MakersSeen(pass_number=self.running[-1] if by is None else by, entries=told))

    def journal(self, closed_by: Any = "trigger_return", **known: Any) -> int:
        """The first step of the close; gives the pass."""
        number = self.running.pop()
        facts: dict[str, Any] = {
            "drain_queued": False,
            "exception": None,
            "message": None,
            "raised_in": None,
            "incomplete_reason": None,
            "peak_memory": None,
        }
        self.add(PassJournaled(pass_number=number, closed_by=closed_by, **{**facts, **known}))
        return number

    def finalize(self, number: int) -> None:
        """The steps behind the first one."""
        self.add(PassScavenged(pass_number=number), PassFinalized(pass_number=number))

    def close(self, closed_by: Any = "trigger_return", **known: Any) -> None:
        self.finalize(self.journal(closed_by, **known))

    def run(self, root: Node, **known: Any) -> None:
        """A whole pass: every node that the root leads to fires."""
        self.open(root, **known)
        self.walk(root)
        self.enter()
        self.fire(*breadth_first((root,)))
        self.close()

    # -- reading

    def source(self, run: int = 256) -> Rows:
        return source_of(self.made.events, run)

    def tables(self) -> CaptureTables:
        return Projector(self.source()).tables()


def breadth_first(roots: Sequence[Node]) -> Iterator[Node]:
    reached = {root.number for root in roots}
    queue = list(roots)
    for node in queue:
        yield node
        for edge in node.behind:
            towards = edge[0] if isinstance(edge, tuple) else edge
            if towards is not None and towards.number not in reached:
                reached.add(towards.number)
                queue.append(towards)


def grad_fn_labels(tables: CaptureTables) -> list[str]:
    return list(tables.grad_fns.column("label"))


def of_grad_fn(tables: CaptureTables, label: str, column: str) -> Any:
    """A cell of the table of autograd nodes."""
    return tables.grad_fns.value(column, grad_fn_labels(tables).index(label))
