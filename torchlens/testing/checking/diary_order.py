"""What holds of the backward diary of any capture, made up or real.

Gives  ``check_diary``, which refuses where an order is broken that ``journal/events/backward.py`` promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from journal.events import (
    DESCRIPTION,
    BackwardDispatched,
    BufferSeen,
    BufferWritten,
    CaptureSettled,
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    ConstantSeen,
    EngineEntered,
    Event,
    GradientKept,
    GradientObserved,
    GradientStatisticsTaken,
    InputSeen,
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
    SavedForBackward,
    ValueReread,
)
from journal.lifecycle import PASS, PassState, PassStep
from journal.machine import Machine
from torchlens.testing.checking.refusing import require

__all__ = ["DiaryOrder", "check_diary"]

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


class DiaryOrder:
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
            require(0 <= event.pass_number < len(self.opened), "it is of a pass that was not opened")
        match event:
            case CaptureSettled():
                self.settled = True
            case ModelDescribed(parameters=parameters):
                self.num_parameters = len(parameters)
            case ParameterSeen():
                self.num_parameters += 1
            case OpExecuted(outputs=rows):
                self.describe(rows)
            case InputSeen() | ConstantSeen() | BufferSeen() | BufferWritten() | ValueReread():
                self.describe([event.description])
            case CheckpointEntered(token=token):
                require(not self.settled, "a checkpoint is entered after the capture has settled")
                require(token == self.num_tokens, "checkpoints are not numbered in the order they are entered")
                self.num_tokens += 1
            case CheckpointLeft(token=token, num_packed=num_packed):
                require(not self.settled, "a checkpoint is left after the capture has settled")
                require(0 <= token < self.num_tokens, "a checkpoint is left that was not entered")
                require(token not in self.left, "a checkpoint is left twice")
                require(num_packed >= 0, "a checkpoint has packed fewer tensors than none")
                self.left.add(token)
            case CheckpointUnpacked():
                self.unpack(event)
            case CheckpointUnwitnessed(reason=reason):
                require(reason not in self.unwitnessed, "a reason why a checkpoint was not witnessed is told twice")
                self.unwitnessed.add(reason)
            case PassOpened():
                self.open_pass(event)
            case EngineEntered(pass_number=number, task=task):
                require(number not in self.tasks, "the engine is entered twice in one pass")
                require(task not in self.tasks.values(), "two passes run under one engine task")
                require(not any(of == number for of, _ in self.fired), "a node fired before the engine was entered")
                self.tasks[number] = task
            case NodesFound(nodes=nodes):
                self.tell(nodes)
            case NodesMade(pass_number=number, nodes=nodes):
                require(self.opened[number].create_graph, "a pass that records no graph tells of nodes that it made")
                require(
                    self.machines[number].state is PassState.JOURNALED, "nodes are made in a pass that is not journaled"
                )
                require(all(row[6] is not None for row in nodes), "a made node has no sequence number")
                self.tell(nodes)
                self.made |= dict.fromkeys([row[0] for row in nodes], number)
            case NodeFired():
                self.fire(event)
            case GradientObserved(pass_number=number, node=node, payload=payload):
                require(node in self.told, "a node is spoken of that was not told")
                require((number, node) not in self.fired, "a node that has fired is spoken of again in the same pass")
                if payload is None:
                    self.waiting[at] = event
            case GradientKept(of=of):
                require(of in self.waiting, "a gradient is kept that did not wait")
                found = self.waiting.pop(of)
                require(
                    self.machines[found.pass_number].state is PassState.JOURNALED,
                    "a gradient is kept late in a pass that is not journaled",
                )
            case GradientStatisticsTaken(of=of):
                require(of in self.waiting, "statistics are told of a gradient that was not to be kept")
                del self.waiting[of]
            case SavedForBackward(node=node):
                require(node in self.forward, "a node keeps something and is that of no value")
            case MakersSeen(pass_number=number, entries=entries):
                require(self.opened[number].create_graph, "a pass that records no graph tells of nodes that it made")
                require(
                    [sequence for sequence, _ in entries] == sorted([sequence for sequence, _ in entries]),
                    "makers are out of order",
                )
                require({node for _, node in entries} <= {None, *self.told}, "a maker was not told")
            case BackwardDispatched():
                self.dispatch(event)
            case PassJournaled():
                self.journal(event)
            case PassScavenged(pass_number=number):
                require(
                    not any(outer in self.open for outer in self.around(number)),
                    "a pass is scavenged while one around it is open",
                )
                self.machines[number].step(PassStep.SCAVENGE)
            case PassFinalized(pass_number=number):
                self.machines[number].step(PassStep.FINALIZE)
            case _:
                pass

    def describe(self, rows: Sequence[Any]) -> None:
        self.forward |= {node for row in rows if isinstance(node := row[NODE], int)}

    def open_pass(self, event: PassOpened) -> None:
        require(self.settled, "a pass opens before the capture has settled")
        require(event.pass_number == len(self.opened), "passes are not numbered in the order they open")
        require(event.parent is None or event.parent in self.open, "the pass around it is not open")
        require(
            (event.task is not None) == (event.trigger == "implicit"),
            "a pass has a task where it is not implicit, or none where it is",
        )
        require(len(event.seeds) == len(event.roots), "there are not as many seeds as roots")
        require(
            event.accumulates or event.trigger == "autograd_grad",
            "a pass that is no torch.autograd.grad does not accumulate",
        )
        if event.task is not None:
            require(event.task not in self.tasks.values(), "two passes run under one engine task")
            self.tasks[event.pass_number] = event.task
        self.named |= {edge[0] for edge, _ in event.roots if edge is not None}
        self.opened.append(event)
        self.machines.append(Machine(PASS, PassState.OPEN))

    def tell(self, nodes: Sequence[Any]) -> None:
        for number, _, _, _, edges, leaf, sequence in nodes:
            require(number not in self.told, "a node is told twice")
            require(leaf is None or leaf >= -self.num_parameters, "a leaf is a parameter that was not described")
            require(leaf is None or (sequence is None and not edges), "a leaf has edges, or a sequence number")
            self.told[number] = edges
            self.named |= {edge[0] for edge in edges if edge is not None}

    def unpack(self, event: CheckpointUnpacked) -> None:
        number, node = event.pass_number, event.node
        require(0 <= event.token < self.num_tokens, "a checkpoint is unpacked that was not entered")
        require(
            (number is None) is not self.settled, "a checkpoint is unpacked in a pass before the capture has settled"
        )
        if number is not None:
            require(number in self.tasks, "a checkpoint is unpacked where the engine was not entered")
            require(
                self.machines[number].state is PassState.OPEN, "a checkpoint is unpacked in a pass that is not open"
            )
            require((number, node) not in self.fired, "a checkpoint is unpacked in a node that has fired")

    def fire(self, event: NodeFired) -> None:
        number, node = event.pass_number, event.node
        require(node in self.told, "a node is spoken of that was not told")
        require((number, node) not in self.fired, "a node that has fired is spoken of again in the same pass")
        require(number in self.tasks, "a node fires where the engine was not entered")
        require(self.machines[number].state is PassState.OPEN, "something runs in a pass that is not open")
        require(
            not [inner for inner in self.open if number in self.around(inner)] or event.duration_ns is None,
            "a node ended while a pass within it is open",
        )
        require(
            event.sequence is None or (self.opened[number].create_graph and event.sequence[0] <= event.sequence[1]),
            "sequence numbers were made where no graph is recorded, or backwards",
        )
        self.fired.add((number, node))

    def dispatch(self, event: BackwardDispatched) -> None:
        number = event.pass_number
        require(self.opened[number].has_census, "an operator is told in a pass without a census")
        require(self.machines[number].state is PassState.OPEN, "something runs in a pass that is not open")
        require(event.node is None or event.node in self.told, "an operator ran in a node that was not told")
        require(event.node is None or not event.is_elsewhere, "an operator ran in a node of this capture and elsewhere")

    def journal(self, event: PassJournaled) -> None:
        number = event.pass_number
        require(
            not [inner for inner in self.open if number in self.around(inner)],
            "a pass ends while one within it is open",
        )
        require(
            event.closed_by != "engine_drain" or event.drain_queued, "a pass was closed by a drain that was not queued"
        )
        require(
            (event.exception is not None) == (event.closed_by == "engine_error"),
            "a pass has an exception and was not closed by it, or the other way round",
        )
        require(
            event.raised_in is None or (number, event.raised_in) in self.fired, "the node that raised did not begin"
        )
        self.machines[number].step(PassStep(event.closed_by))


def check_diary(events: Sequence[Event], *, is_whole: bool = True) -> DiaryOrder:
    """Hold the events of a capture against the promises of its backward diary.

    Args:
        events: From the header on; each stands at its number.
        is_whole: Whether the process that captured had said everything.
    """
    diary = DiaryOrder()
    for at, event in enumerate(events):
        diary.take(at, event)
    if is_whole:
        known = diary.forward | diary.told.keys()
        require(diary.named <= known, "a node that is named by an edge or root was never told")
        require(known == set(range(len(known))), "nodes are not numbered without gaps")
        require({machine.state for machine in diary.machines} <= {PassState.FINALIZED}, "a pass is not finalized")
    return diary
