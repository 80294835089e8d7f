"""Backward passes that hypothesis draws, behind a capture that it drew, as a live diary would append them.

Gives  ``DrawnPasses``, which goes on with a capture that has settled: passes that nest, raise, run unannounced, make
       nodes under ``create_graph``, or are left unfinished.
Rule   A node is numbered when it is first met, in the order of the walk, and told once; a pass's walk is told before
       any of its nodes fires; what a firing observed stands before it; what is nested stands within.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs
from hypothesis import strategies as st

from journal.events import (
    At,
    BackwardDispatched,
    CheckpointUnpacked,
    ClosedBy,
    EngineEntered,
    Event,
    Figures,
    GradientKept,
    GradientObserved,
    GradientStatisticsTaken,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
    Side,
    Trigger,
)

Key: TypeAlias = "tuple[str, int, int]"
"""A node: ("op", n, 0) of call n, ("behind", n, k) behind its input k, ("leaf", n, 0) of a leaf, ("made", n, 0)."""

Edge: TypeAlias = "tuple[Key, int] | None"

TRIGGERS: tuple[Trigger, ...] = ("backward", "recording_backward", "autograd_backward", "autograd_grad", "implicit")
FRAME = ("train.py", 8, "step", "Trainer.step", 3, None)
WORKER = "worker"

Outcome = Literal["returned", "raised", "drained", "showed"]
"""How a pass ends: its call returned or raised, the engine told its end, or something else showed it."""


class Building(Protocol):
    """The capture that passes go on with; see ``streams.py``."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    events: list[Event]
    shapes: list[tuple[int, ...]]
    num_parameters: int
    num_nodes: int
    num_tokens: int
    node_of: dict[int, tuple[int, int]]  # node and output, by value that a call gave
    inputs_of: list[tuple[int, ...]]  # by node
    names_of: list[str]  # class by node

    def pick(self, options: Sequence[Any]) -> Any: ...
    def chance(self) -> bool: ...
    def figures(self) -> Figures | None: ...
    def add(self, event: Event) -> None: ...
    def payload(self) -> tuple[int, int, None] | None: ...


OPERATORS: Final = (
    ("aten.mm.default", (((2, 4), "float32"), ((4, 3), "float32")), (((2, 3), "float32"),), None),
    ("aten.threshold_backward.default", (((2, 3), "float32"),) * 2, (((2, 3), "float32"),), None),
    (
        "aten.convolution_backward.default",
        (((1, 2, 4, 4), "float32"), ((1, 3, 6, 6), "float32"), ((2, 3, 3, 3), "float32")),
        (((1, 3, 6, 6), "float32"), ((2, 3, 3, 3), "float32"), ((2,), "float32")),
        ((2,), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, True, True)),
    ),
)
"""Operators as a census tells them: name, inputs, outputs, settings."""


@attrs.define
class Node:
    """A node as it is told, with its edges by key."""

    name: str
    edges: tuple[Edge, ...]
    leaf: int | None
    sequence: int | None
    num_outputs: int = 1


@attrs.define
class Pass:
    """A pass that is not finalized."""

    number: int
    parent: Pass | None
    creates: bool
    has_census: bool = False
    is_open: bool = True
    first_sequence: int = 0
    waiting: list[At] = attrs.Factory(list)  # gradients that wait on their device


@attrs.define
class DrawnPasses:
    """Goes on with a capture that has settled."""

    building: Building
    graph: dict[Key, Node] = attrs.Factory(dict)
    numbers: dict[Key, int] = attrs.Factory(dict)
    told: set[Key] = attrs.Factory(set)
    num_passes: int = 0
    num_tasks: int = 0
    num_made: int = 0
    sequence: int = 0
    unfinalized: list[Pass] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        """The graph of the forward: the nodes of its calls, some behind their inputs, and those of leaves."""
        building = self.building
        for number, inputs in enumerate(building.inputs_of):
            key = ("op", number, 0)
            edges: list[Edge] = []
            for place, value in enumerate(inputs):
                edge = self.edge_to(value)
                if edge is not None and building.chance():
                    behind = ("behind", number, place)
                    self.graph[behind] = Node("TBackward0", (edge,), None, 4 * number + place)
                    edge = (behind, 0)
                edges.append(edge)
            slots = [slot for node, slot in building.node_of.values() if node == number]
            outputs = 1 + max(slots, default=0)
            self.graph[key] = Node(building.names_of[number], tuple(edges), None, 4 * number + 3, outputs)
            self.numbers[key] = number
        self.sequence = 4 * building.num_nodes

    def edge_to(self, value: int) -> Edge:
        """Where the gradient of an argument goes on to."""
        known = self.building.node_of.get(value)
        if known is not None:
            return (("op", known[0], 0), known[1])
        if value > 0:  # the first input needs a gradient, the other tensors do not
            return None
        key = ("leaf", value, 0)
        self.graph.setdefault(key, Node("AccumulateGrad", (), value, None))
        return (key, 0)

    # nodes

    def walked(self, roots: Sequence[Key]) -> list[Key]:
        """Everything that is reached, breadth first."""
        found = dict.fromkeys(roots)
        queue = list(found)
        for key in queue:
            for edge in self.graph[key].edges:
                if edge is not None and edge[0] not in found:
                    found[edge[0]] = None
                    queue.append(edge[0])
        return queue

    def number(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.numbers.setdefault(key, len(self.numbers))

    def row(self, key: Key) -> tuple[Any, ...]:
        node, numbers = self.graph[key], self.numbers
        edges = [None if edge is None or edge[0] not in numbers else (numbers[edge[0]], edge[1]) for edge in node.edges]
        qualname = f"torch.autograd.function.{node.name}" if node.sequence is not None else node.name
        return (numbers[key], node.name, qualname, node.name == "OwnBackward", tuple(edges), node.leaf, node.sequence)

    def find(self, opened: Pass, keys: Sequence[Key], *, is_cut: bool = False) -> None:
        """Tell of nodes that were not told, in one event or several."""
        new = [key for key in keys if key not in self.told]
        self.told.update(new)
        size = self.building.pick((1000, 2))
        for start in range(0, len(new), size) or (range(1) if is_cut else ()):
            part = tuple([self.row(key) for key in new[start : start + size]])
            is_last = start + size >= len(new)
            self.building.add(NodesFound(pass_number=opened.number, nodes=part, is_cut=is_cut and is_last))

    def in_order(self, keys: Sequence[Key]) -> list[Key]:
        """An order in which the engine may run them: none before all that send to it."""
        found, left = set(keys), dict.fromkeys(keys, 0)
        for key in keys:
            for edge in dict.fromkeys([edge[0] for edge in self.graph[key].edges if edge is not None]):
                if edge in found:
                    left[edge] += 1
        ready = [key for key in keys if not left[key]]
        made: list[Key] = []
        while ready:
            key = ready.pop()
            made.append(key)
            for edge in dict.fromkeys([edge[0] for edge in self.graph[key].edges if edge is not None]):
                if edge in found:
                    left[edge] -= 1
                    if not left[edge]:
                        ready.append(edge)
        return made

    # passes

    def run(self, parent: Pass | None = None, depth: int = 0) -> bool:
        """One pass, from its beginning to what is said of its end; whether it went well."""
        building = self.building
        trigger: Trigger = building.pick(TRIGGERS)
        is_implicit = trigger == "implicit"
        made = [key for key in self.graph if key[0] == "made"]
        candidates = made if made and building.chance() else sorted(self.graph)
        roots = list(dict.fromkeys([building.pick(candidates) for _ in range(building.draw(st.integers(1, 2)))]))
        reached = self.walked(roots)
        creates = not is_implicit and building.draw(st.integers(0, 2)) == 0
        if not is_implicit and len(reached) > 2 and building.draw(st.integers(0, 9)) == 0:
            met = reached[: len(reached) // 2]
            is_cut = True
        else:
            met, is_cut = reached, False
        if not is_implicit:
            self.number(met)
        accumulates = trigger != "autograd_grad"
        like = self.like(roots[0], 0)
        task = self.num_tasks if is_implicit else None
        has_census = not is_implicit and building.chance()
        opened = Pass(self.num_passes, parent, creates, has_census, first_sequence=self.sequence)
        self.num_passes += 1
        self.unfinalized.append(opened)
        inputs = None
        if not accumulates or building.draw(st.integers(0, 4)) == 0:
            inputs = ((self.numbers[met[-1]], 0), None) if not is_implicit else None
        building.add(
            PassOpened(
                pass_number=opened.number,
                trigger=trigger,
                frame=FRAME if trigger in ("backward", "recording_backward") else None,
                policy=building.pick((None, "True", 'func("relu")')),
                parent=None if parent is None else parent.number,
                thread=building.pick(("MainThread", WORKER)),
                task=task,
                roots=() if is_implicit else tuple([((self.numbers[key], 0), like) for key in roots if key in met]),
                seeds=() if is_implicit else tuple([building.pick((None, like)) for key in roots if key in met]),
                inputs=inputs,
                retain_graph=building.chance(),
                create_graph=creates,
                accumulates=accumulates,
                is_transient=trigger == "autograd_grad" and opened.number % 2 == 1,
                has_census=opened.has_census,
            )
        )
        if is_implicit:
            self.num_tasks += 1
        else:
            self.find(opened, met, is_cut=is_cut)
            self.dispatch(opened, None)  # the gradient that torch makes for the root
        fired, raised_in = self.fire(opened, self.in_order(met), is_implicit, depth)
        if not accumulates and inputs is not None and raised_in is None and inputs[0] is not None:
            self.returned(opened, met[-1], fired)
        outcome: Outcome = "raised" if raised_in is not None else "returned"
        if is_implicit:
            outcome = "showed" if raised_in is not None else building.pick(("drained", "showed"))
        self.close(opened, outcome, raised_in)
        return raised_in is None

    def fire(self, opened: Pass, keys: Sequence[Key], is_implicit: bool, depth: int) -> tuple[set[Key], Key | None]:
        """Run nodes; those that ran, and the one that raised."""
        building = self.building
        ran: set[Key] = set()
        fails_at = building.draw(st.integers(0, 24))
        count = len(keys) if building.chance() else building.draw(st.integers(0, len(keys)))  # `inputs=` needs fewer
        for place, key in enumerate(keys[:count]):
            if is_implicit and key not in self.told:
                found = self.walked([key])
                self.number(found)
                self.find(opened, found)
            if not ran and not is_implicit:
                building.add(EngineEntered(pass_number=opened.number, task=self.num_tasks))
                self.num_tasks += 1
            ran.add(key)
            node, first = self.graph[key], self.sequence
            for slot in range(node.num_outputs):
                if node.leaf is not None or building.draw(st.integers(0, 2)) == 0:
                    self.observe(opened, key, "output", slot)
            nests = depth < 2 and building.draw(st.integers(0, 11 - 6 * depth)) == 0
            fails = nests and not self.run(opened, depth + 1) and building.chance()  # else it is caught there
            if fails or place == fails_at:
                return ran, key
            if building.num_tokens and building.chance():
                token, number = building.pick(range(building.num_tokens)), self.numbers[key]
                building.add(CheckpointUnpacked(token=token, pass_number=opened.number, node=number))
            if building.draw(st.integers(0, 5)) == 0:
                self.observe(opened, key, "input", 0)
            self.sequence += 2 * opened.creates
            self.dispatch(opened, key)
            building.add(
                NodeFired(
                    pass_number=opened.number,
                    node=self.numbers[key],
                    duration_ns=1000 + place,
                    missing=(node.num_outputs - 1,) if node.num_outputs > 1 and building.chance() else (),
                    sequence=(first, self.sequence) if opened.creates else None,
                )
            )
            self.dispatch(opened, key)  # where gradients meet
        return ran, None

    def dispatch(self, opened: Pass, key: Key | None) -> None:
        """Operators that run in a node, or in none, where the pass has a census."""
        building = self.building
        if not opened.has_census:
            return
        for name, inputs, outputs, settings in building.pick(((), OPERATORS[:1], OPERATORS[1:])):
            building.add(
                BackwardDispatched(
                    pass_number=opened.number,
                    operator=name,
                    node=None if key is None else self.numbers[key],
                    is_elsewhere=key is None and building.chance(),
                    grad_enabled=opened.creates,
                    inputs=inputs,
                    outputs=outputs,
                    settings=settings,
                )
            )

    def like(self, key: Key, slot: int) -> tuple[tuple[int, ...], str, str]:
        values = [value for value, place in self.building.node_of.items() if place == (key[1], slot)]
        shape = self.building.shapes[values[0]] if key[0] == "op" and values else (2, 3)
        return (shape, "float32", "cpu")

    def observe(self, opened: Pass, key: Key, side: Side, slot: int) -> None:
        building = self.building
        shape, dtype, device = self.like(key, slot)
        waits = building.draw(st.integers(0, 5)) == 0
        building.add(
            GradientObserved(
                pass_number=opened.number,
                node=self.numbers[key],
                side=side,
                slot=slot,
                like=(shape, dtype, "cuda:0" if waits else device),
                payload=None if waits else building.payload(),
            )
        )
        at = At(len(building.events) - 1)
        if waits and building.chance():
            opened.waiting.append(at)
        elif waits and building.chance():
            building.add(GradientStatisticsTaken(of=at, figures=building.figures()))

    def returned(self, opened: Pass, key: Key, fired: set[Key]) -> None:
        """A gradient that the engine gave for a node which did not run."""
        leaf = self.graph[key].leaf
        if key not in fired and (leaf is None or leaf >= 0):
            self.observe(opened, key, "output", 0)

    def close(self, opened: Pass, outcome: Outcome, raised_in: Key | None) -> None:
        building, number = self.building, opened.number
        ways: dict[Outcome, ClosedBy] = {
            "returned": "trigger_return",
            "raised": "engine_error",
            "drained": "engine_drain",
            "showed": "sync_point",
        }
        if raised_in is not None:
            building.add(
                NodeFired(pass_number=number, node=self.numbers[raised_in], duration_ns=None, missing=(), sequence=None)
            )
        fails = outcome == "raised"
        building.add(
            PassJournaled(
                pass_number=number,
                closed_by=ways[outcome],
                drain_queued=outcome in ("drained", "showed"),
                exception="builtins.RuntimeError" if fails else None,
                message="no gradient" if fails else None,
                raised_in=self.numbers[raised_in] if fails and raised_in is not None else None,
                peak_memory=building.pick((None, 4096)),
                incomplete_reason=building.pick((None, "JournalError: the disk is full")),
            )
        )
        opened.is_open = False
        if opened.parent is None:
            self.go_on()

    def go_on(self) -> None:
        """Take the last two steps of all that have ended, the innermost first."""
        for each in reversed(self.unfinalized):
            for at in each.waiting:
                payload = self.building.payload()
                if payload is not None:
                    self.building.add(GradientKept(of=at, payload=payload))
            if each.creates:
                self.make(each)
            self.building.add(PassScavenged(pass_number=each.number))
            self.building.add(PassFinalized(pass_number=each.number))
        self.unfinalized.clear()

    def make(self, opened: Pass) -> None:
        """The nodes that a pass made: a chain from the gradient that it gave, some of it onto the forward's graph."""
        building = self.building
        numbers = range(opened.first_sequence, self.sequence)
        chosen = sorted(building.draw(st.sets(st.sampled_from(numbers), max_size=3))) if numbers else []
        edge: Edge = None
        made: list[Key] = []
        onto = [key for key in self.graph if key in self.told]
        for sequence in chosen:
            key = ("made", self.num_made, 0)
            self.num_made += 1
            name = building.pick(("MulBackward0", "OwnBackward"))
            self.graph[key] = Node(name, (edge, (building.pick(onto), 0)), None, sequence)
            edge = (key, 0)
            made.append(key)
        self.number(made[::-1])
        self.told.update(made)
        if made:
            rows = tuple([self.row(key) for key in made[::-1]])
            building.add(NodesMade(pass_number=opened.number, nodes=rows))
        if numbers and building.chance():
            told = sorted(self.numbers[key] for key in self.told)
            entries = tuple([(number + 1, building.pick((None, *told))) for number in list(numbers)[:4]])
            building.add(MakersSeen(pass_number=opened.number, entries=entries))
