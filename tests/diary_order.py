"""What holds of the backward diary of any capture, made up or real.

Gives  ``check_diary``, which raises where an order is broken that ``journal/events/backward.py`` promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from journal.events import (
    DESCRIPTION,
    BackwardDispatched,
    CaptureSettled,
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    EngineEntered,
    Event,
    GradientKept,
    GradientObserved,
    MakersSeen,
    ModelDescribed,
    NodeFired,
    NodesFound,
    NodesMade,
    OpExecuted,
    ParameterSeen,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from journal.lifecycle import PASS, PassState, PassStep
from journal.machine import Machine

NODE = DESCRIPTION.index("grad_node")

OF_PASS = (
    BackwardDispatched,
    EngineEntered,
    GradientObserved,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassJournaled,
    PassScavenged,
    PassFinalized,
)


class Diary:
    """What a diary has told so far."""

    def __init__(self) -> None:
        self.settled = False
        self.num_parameters = 0
        self.forward: set[int] = set()  # nodes of the forward's values
        self.opened: list[PassOpened] = []
        self.machines: list[Machine[PassState]] = []
        self.tasks: dict[int, int] = {}  # by pass
        self.told: dict[int, Any] = {}
        self.made: dict[int, int] = {}  # pass by node
        self.named: set[int] = set()  # by edges and roots
        self.fired: set[tuple[int, int]] = set()  # pass, node
        self.waiting: dict[int, GradientObserved] = {}  # by event, those without a payload
        self.num_tokens = 0
        self.left: set[int] = set()  # tokens
        self.unwitnessed: set[str] = set()

    @property
    def open(self) -> list[int]:
        return [number for number, machine in enumerate(self.machines) if machine.state is PassState.OPEN]

    def around(self, number: int) -> Iterator[int]:
        """The passes around one."""
        parent = self.opened[number].parent
        while parent is not None:
            yield parent
            parent = self.opened[parent].parent

    def take(self, at: int, event: Event) -> None:
        if isinstance(event, OF_PASS):
            assert 0 <= event.pass_number < len(self.opened)
        match event:
            case CaptureSettled():
                self.settled = True
            case ModelDescribed(parameters=parameters):
                self.num_parameters = len(parameters)
            case ParameterSeen():
                self.num_parameters += 1
            case OpExecuted(outputs=outputs):
                self.forward |= {row[NODE] for row in outputs if row[NODE] is not None}
            case CheckpointEntered(token=token):
                assert not self.settled
                assert token == self.num_tokens
                self.num_tokens += 1
            case CheckpointLeft(token=token, num_packed=num_packed):
                assert not self.settled
                assert 0 <= token < self.num_tokens
                assert token not in self.left
                assert num_packed >= 0
                self.left.add(token)
            case CheckpointUnpacked():
                self.unpack(event)
            case CheckpointUnwitnessed(reason=reason):
                assert reason not in self.unwitnessed
                self.unwitnessed.add(reason)
            case PassOpened():
                self.open_pass(event)
            case EngineEntered(pass_number=number, task=task):
                assert number not in self.tasks
                assert task not in self.tasks.values()
                assert not any(of == number for of, _ in self.fired)
                self.tasks[number] = task
            case NodesFound(nodes=nodes):
                self.tell(nodes)
            case NodesMade(pass_number=number, nodes=nodes):
                assert self.opened[number].create_graph
                assert self.machines[number].state is PassState.JOURNALED
                assert all(row[6] is not None for row in nodes)
                self.tell(nodes)
                self.made |= dict.fromkeys([row[0] for row in nodes], number)
            case NodeFired():
                self.fire(event)
            case GradientObserved(pass_number=number, node=node, payload=payload):
                assert node in self.told
                assert (number, node) not in self.fired
                if payload is None:
                    self.waiting[at] = event
            case GradientKept(of=of):
                found = self.waiting.pop(of)
                assert self.machines[found.pass_number].state is PassState.JOURNALED
            case MakersSeen(pass_number=number, entries=entries):
                assert self.opened[number].create_graph
                assert [sequence for sequence, _ in entries] == sorted([sequence for sequence, _ in entries])
                assert {node for _, node in entries} <= {None, *self.told}
            case BackwardDispatched():
                self.dispatch(event)
            case PassJournaled():
                self.journal(event)
            case PassScavenged(pass_number=number):
                assert not any(outer in self.open for outer in self.around(number))
                self.machines[number].step(PassStep.SCAVENGE)
            case PassFinalized(pass_number=number):
                self.machines[number].step(PassStep.FINALIZE)
            case _:
                pass

    def open_pass(self, event: PassOpened) -> None:
        assert self.settled
        assert event.pass_number == len(self.opened)
        assert event.parent is None or event.parent in self.open
        assert (event.task is not None) == (event.trigger == "implicit")
        assert len(event.seeds) == len(event.roots)
        assert event.accumulates or event.trigger == "autograd_grad"
        if event.task is not None:
            assert event.task not in self.tasks.values()
            self.tasks[event.pass_number] = event.task
        self.named |= {edge[0] for edge, _ in event.roots if edge is not None}
        self.opened.append(event)
        self.machines.append(Machine(PASS, PassState.OPEN))

    def tell(self, nodes: Sequence[Any]) -> None:
        for number, _, _, _, edges, leaf, sequence in nodes:
            assert number not in self.told
            assert leaf is None or leaf >= -self.num_parameters
            assert leaf is None or (sequence is None and not edges)
            self.told[number] = edges
            self.named |= {edge[0] for edge in edges if edge is not None}

    def unpack(self, event: CheckpointUnpacked) -> None:
        number, node = event.pass_number, event.node
        assert 0 <= event.token < self.num_tokens
        assert (number is None) is not self.settled
        if number is not None:
            assert number in self.tasks
            assert self.machines[number].state is PassState.OPEN
            assert (number, node) not in self.fired

    def fire(self, event: NodeFired) -> None:
        number, node = event.pass_number, event.node
        assert node in self.told
        assert (number, node) not in self.fired
        assert number in self.tasks
        assert self.machines[number].state is PassState.OPEN
        assert not [inner for inner in self.open if number in self.around(inner)] or event.duration_ns is None
        assert event.sequence is None or (self.opened[number].create_graph and event.sequence[0] <= event.sequence[1])
        self.fired.add((number, node))

    def dispatch(self, event: BackwardDispatched) -> None:
        number = event.pass_number
        assert self.opened[number].has_census
        assert self.machines[number].state is PassState.OPEN
        assert event.node is None or event.node in self.told
        assert event.node is None or not event.is_elsewhere

    def journal(self, event: PassJournaled) -> None:
        number = event.pass_number
        assert not [inner for inner in self.open if number in self.around(inner)]
        assert event.closed_by != "engine_drain" or event.drain_queued
        assert (event.exception is not None) == (event.closed_by == "engine_error")
        assert event.raised_in is None or (number, event.raised_in) in self.fired
        self.machines[number].step(PassStep(event.closed_by))


def check_diary(events: Sequence[Event], *, is_whole: bool = True) -> Diary:
    """Hold the events of a capture against the promises of its backward diary.

    Args:
        events: From the header on; each stands at its number.
        is_whole: Whether the process that captured had said everything.
    """
    diary = Diary()
    for at, event in enumerate(events):
        diary.take(at, event)
    if is_whole:
        known = diary.forward | diary.told.keys()
        assert diary.named <= known
        assert known == set(range(len(known)))
        assert {machine.state for machine in diary.machines} <= {PassState.FINALIZED}
    return diary
