"""Made-up backward passes for hypothesis, behind a made-up capture.

Gives  ``add_passes``, which lets the engine run over the nodes of a capture, in ways in which it could have.
Rule   Passes are dense and nodes told once, before anything else names them; a pass inside another one ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import attrs
from hypothesis import strategies as st

from journal.events import (
    At,
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
from journal.events.backward import ClosedBy, Trigger

T = TypeVar("T")

NEST = 2
"""Passes that are inside each other here."""

LIKES = (((2, 3), "float32", "cpu"), ((), "float64", "cpu"))

TRIGGERS: tuple[Trigger, ...] = ("backward", "recording_backward", "autograd_backward", "autograd_grad", "implicit")

FRAME = ("train.py", 3, "step", "step", 1, 4)

Edge = tuple[int, int] | None


class Capture(Protocol):
    """A capture in the making."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    events: list[Event]
    num_nodes: int
    num_parameters: int

    def pick(self, options: Sequence[T]) -> T: ...
    def chance(self) -> bool: ...
    def add(self, event: Event) -> None: ...
    def payload(self) -> tuple[int, int, None] | None: ...


@attrs.define
class Running:
    """Passes in the making."""

    capture: Capture
    edges: dict[int, tuple[Edge, ...]] = attrs.Factory(dict)  # by node
    names: dict[int, str] = attrs.Factory(dict)
    leaves: dict[int, int] = attrs.Factory(dict)
    sequences: dict[int, int] = attrs.Factory(dict)
    told: set[int] = attrs.Factory(set)
    next_node: int = 0
    next_sequence: int = 1
    num_passes: int = 0
    open: list[tuple[int, bool]] = attrs.Factory(list)  # passes, and whether they make a graph

    def node(self, name: str, *edges: Edge, number: int | None = None) -> int:
        if number is None:
            number, self.next_node = self.next_node, self.next_node + 1
        self.edges[number], self.names[number] = edges, name
        self.sequences[number] = self.next_sequence
        self.next_sequence += 1
        return number

    def forward(self) -> None:
        """The graph that the forward built: each op's node, with what is between it and those before it."""
        capture = self.capture
        self.next_node = capture.num_nodes
        leaves: list[int] = []
        for number in range(capture.num_parameters):
            leaf = self.node("AccumulateGrad")
            self.leaves[leaf] = -1 - number
            leaves.append(leaf)
        for number in range(capture.num_nodes):
            behind: list[Edge] = [None, *((before, 0) for before in range(number)), *((leaf, 0) for leaf in leaves)]
            edges = [capture.pick(behind) for _ in range(capture.draw(st.integers(0, 2)))]
            if capture.chance():
                edges.append((self.node("TBackward0", capture.pick(behind)), 0))
            self.node(capture.pick(("ReluBackward0", "FnBackward")), *edges, number=number)

    def anywhere(self) -> Edge:
        return self.capture.pick([None, *((number, 0) for number in sorted(self.edges))])

    def row(self, number: int) -> Any:
        name, leaf = self.names[number], self.leaves.get(number)
        sequence = None if name == "AccumulateGrad" else self.sequences[number]
        return (number, name, f"torch.{name}", name == "FnBackward", self.edges[number], leaf, sequence)

    def reached(self, root: int) -> list[int]:
        found = dict.fromkeys((root,))
        queue = [root]
        for number in queue:
            for edge in self.edges[number]:
                if edge is not None and edge[0] not in found:
                    found[edge[0]] = None
                    queue.append(edge[0])
        return queue

    def run(self) -> None:
        """One pass, and those inside it."""
        capture, number = self.capture, self.num_passes
        trigger = capture.pick(TRIGGERS)
        makes_graph = capture.chance() and trigger != "implicit"
        root = capture.pick(sorted(self.edges))
        if capture.chance():
            root = self.node("SumBackward0", (root, 0))
        self.num_passes += 1
        self.begin(number, trigger, root, makes_graph=makes_graph)
        reached = self.reached(root)
        new = [node for node in reached if node not in self.told]
        self.told.update(new)
        cut = capture.draw(st.integers(0, len(new)))
        for part in (new[:cut], new[cut:]):
            self.add(NodesFound, number, nodes=tuple(map(self.row, part)), is_cut=False)
        if capture.chance():
            self.add(EngineEntered, number, task=number)
        self.open.append((number, makes_graph))
        made: list[int] = []
        seen: list[tuple[int, int | None]] = []
        waiting: list[At] = []
        for node in reached[: capture.draw(st.integers(0, len(reached)))]:
            self.fire(number, node, made, seen, waiting)
        self.open.pop()
        made = [node for node in made if node not in self.told]  # the others were found by a pass inside this one
        self.told.update(made)
        if made:
            self.add(NodesMade, number, nodes=tuple(map(self.row, reversed(made))))
            self.add(MakersSeen, number, entries=tuple(seen))
        self.end(number, waiting)

    def add(self, cls: Callable[..., Event], number: int, **fields: Any) -> None:
        self.capture.add(cls(pass_number=number, **fields))

    def begin(self, number: int, trigger: Trigger, root: int, *, makes_graph: bool) -> None:
        capture, is_implicit = self.capture, trigger == "implicit"
        self.add(
            PassOpened,
            number,
            trigger=trigger,
            frame=FRAME if trigger == "backward" else None,
            policy=capture.pick((None, "True")),
            parent=self.open[-1][0] if self.open else None,
            thread="MainThread",
            task=number if is_implicit else None,
            roots=() if is_implicit else (((root, 0), LIKES[1]),),
            seeds=() if is_implicit else (capture.pick((None, LIKES[1])),),
            inputs=capture.pick((None, ((root, 0),), (None,))),
            retain_graph=capture.chance(),
            create_graph=makes_graph,
            accumulates=trigger != "autograd_grad",
        )

    def fire(
        self, number: int, node: int, made: list[int], seen: list[tuple[int, int | None]], waiting: list[At]
    ) -> None:
        """A node runs; under ``create_graph`` it makes some, and the engine makes one behind it."""
        capture = self.capture
        self.observe(number, node, waiting)
        first = self.next_sequence
        if len(self.open) < NEST and capture.draw(st.integers(0, 5)) == 0:
            self.run()
        if self.open[-1][1]:
            made += [self.node("MulBackward0", self.anywhere()) for _ in range(capture.draw(st.integers(0, 2)))]
        span = (first, self.next_sequence) if capture.chance() else None
        missing = capture.pick(((), (0,)))
        duration = capture.pick((None, 500))
        self.add(NodeFired, number, node=node, duration_ns=duration, missing=missing, sequence=span)
        if self.open[-1][1] and capture.chance():
            made.append(self.node("AddBackward0", (capture.pick(sorted(self.told)), 0)))
            seen.append((self.next_sequence, capture.pick((None, node))))

    def observe(self, number: int, node: int, waiting: list[At]) -> None:
        capture = self.capture
        for side, slot in capture.pick(((), (("output", 0),), (("output", 1), ("output", 0)), (("input", 0),))):
            payload = capture.payload()
            like = capture.pick(LIKES)
            self.add(GradientObserved, number, node=node, side=side, slot=slot, like=like, payload=payload)
            if payload is None:
                waiting.append(At(len(capture.events) - 1))

    def end(self, number: int, waiting: list[At]) -> None:
        capture = self.capture
        if not self.open and capture.draw(st.integers(0, 5)) == 0:
            return
        closed_by: ClosedBy = capture.pick(("trigger_return", "engine_drain", "sync_point", "engine_error"))
        failed = closed_by == "engine_error"
        self.add(
            PassJournaled,
            number,
            closed_by=closed_by,
            drain_queued=capture.chance(),
            exception="builtins.RuntimeError" if failed else None,
            message="no" if failed else None,
            raised_in=capture.pick((None, *sorted(self.told))) if failed else None,
            peak_memory=capture.pick((None, 64)),
        )
        if capture.chance():
            for of in waiting:
                payload = capture.payload()
                if payload is not None:
                    capture.add(GradientKept(of=of, payload=payload))
            self.add(PassScavenged, number)
            if capture.chance():
                self.add(PassFinalized, number)


def add_passes(capture: Capture, most: int = 3) -> None:
    """Passes over a capture that is settled and has some node."""
    running = Running(capture)
    running.forward()
    for _ in range(capture.draw(st.integers(1, most))):
        running.run()
