"""A backward pass and its close: journaled, scavenged, finalized, each once.

Rule   a pass steps its machine (``journal.lifecycle.PASS``) and appends the event of the step where that led to a new
       state. While the engine runs in this thread, or the pass within which this one ran is not over, a pass
       is journaled and the rest waits; that the engine has drained means nothing to one that was closed before.
       An interrupt may come wherever a function of Python's begins: what was taken is told once all the same.
Not    when a pass is over (engine.py, diary.py), or what is taken out of the engine (diary.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any
from weakref import ref

from journal.events import (
    At,
    ClosedBy,
    Event,
    NodeFired,
    PassFinalized,
    PassJournaled,
    PassScavenged,
    Trigger,
)
from journal.lifecycle import PASS, PassState, PassStep
from journal.machine import Input, Machine, Verdict
from journal.protocol import StreamWriter
from journal.wire import require_storable
from torchlens import compat
from torchlens.backward.hooks import Tape
from torchlens.capture.template import path_of
from torchlens.errors import message_of

__all__ = ["Pass", "is_inside", "surely"]

CLOSED_BY: dict[PassStep, ClosedBy] = {
    PassStep.TRIGGER_RETURN: "trigger_return",
    PassStep.ENGINE_DRAIN: "engine_drain",
    PassStep.SYNC_POINT: "sync_point",
    PassStep.ENGINE_ERROR: "engine_error",
}


class Pass:
    """One pass of one capture.

    Args:
        tape: What its hooks append to.
        writer: Of the capture's stream.
        at: Number of its ``PassOpened``.
        trigger: What opened it.
        parent: The innermost pass of the capture that ran already.
        opener: What will close it; None for an implicit pass.
    """

    __slots__ = (
        "__weakref__",
        "at",
        "drain_queued",
        "entries",
        "gave",
        "lost",
        "machine",
        "makers",
        "memory",
        "numbers",
        "opener",
        "parent",
        "sequences",
        "tape",
        "task",
        "thread",
        "trigger",
        "untold",
        "writer",
    )

    def __init__(
        self, tape: Tape, writer: StreamWriter, at: At, trigger: Trigger, parent: Pass | None, opener: object
    ) -> None:
        self.tape = tape
        self.writer = writer
        self.at = at
        self.trigger = trigger
        self.parent = parent
        self.opener = opener
        self.untold: list[tuple[Event, int | None]] = []  # of a step that was taken, while an interrupt may come
        self.thread = threading.get_ident()
        self.task: int | None = None  # the engine's graph task, once it is known
        self.drain_queued = False
        self.entries: frozenset[int] = frozenset()  # the nodes that may be the first to fire
        self.numbers: dict[Any, int] = {}  # of the nodes that it was told of as it was opened
        self.memory = Memory()
        self.lost: str | None = None  # what kept the rest of it from being recorded
        self.gave: list[Any] = []  # under create_graph, the nodes from which those that it made are reached
        self.sequences = (0, 0)  # under create_graph: the next node's number as it began, and as it ended
        self.makers: list[tuple[int, Any]] = []  # what ``dispatching.Dispatches`` noted
        self.machine: Machine[PassState] = Machine(PASS, PassState.OPEN, partial(verdict, ref(self)))

    @property
    def state(self) -> PassState:
        return self.machine.state

    @property
    def number(self) -> int:
        return self.tape.number

    @property
    def is_open(self) -> bool:
        return self.machine.state is PassState.OPEN

    def is_within_open(self) -> bool:
        """Whether a pass within which it ran is open."""
        outer = self.parent
        while outer is not None:
            if outer.is_open:
                return True
            outer = outer.parent
        return False

    def journal(self, step: PassStep, error: BaseException | None = None) -> None:
        """Close it, if it is open.

        Raises:
            IllegalTransition: When it was closed before by anything but a drain.
        """
        tape = self.tape
        left = [(node, start) for node, start in tape.begun.items() if start is not None]
        events: list[tuple[Event, int | None]] = []
        for node, start in left:
            missing = tape.missing.get(node, ())
            made = self._made_until_it_raised(node) if error is not None else None
            fired = NodeFired(pass_number=tape.number, node=node, duration_ns=None, missing=missing, sequence=made)
            events.append((fired, start))
        closed = PassJournaled(
            pass_number=tape.number,
            closed_by=CLOSED_BY[step],
            drain_queued=self.drain_queued,
            exception=None if error is None else path_of(type(error)),
            message=None if error is None else message_of(error),
            raised_in=left[-1][0] if left and error is not None and self.lost is None else None,
            incomplete_reason=self.lost,
            peak_memory=self.memory.peak(),
        )
        self._take(step, [*events, (closed, None)])

    def _made_until_it_raised(self, node: int) -> tuple[int, int] | None:
        """Numbers of the nodes that were made from when a node began until the engine gave up; None if not noted."""
        first, behind = (self.tape.sequences or {}).get(node), self.sequences[1]
        return None if first is None or self.lost is not None or behind < first else (first, behind)

    def step(self, step: PassStep) -> None:
        """Take one of the two later steps, if it is time.

        Raises:
            IllegalTransition: When it was taken before, or the one before it was not.
        """
        event = PassScavenged if step is PassStep.SCAVENGE else PassFinalized
        self._take(step, [(event(pass_number=self.number), None)])

    def _take(self, step: PassStep, events: list[tuple[Event, int | None]]) -> None:
        """Take a step, if it is time, and tell it."""
        self.tell()
        machine = self.machine
        before = machine.state
        try:
            machine.step(step)
        finally:
            if machine.state is not before:
                self.untold = events
        self.tell()

    def tell(self) -> None:
        """Append the events of the steps that were taken, each once: also those that an interrupt has left untold."""
        while self.untold:
            event, time = self.untold[0]
            surely(self.writer, event, time, partial(self.untold.pop, 0))

    def may(self, step: PassStep) -> bool:
        """Whether the step would be taken now."""
        return self.machine.allows(step) and verdict(ref(self), self.state, step) is Verdict.ALLOW


def verdict(held: ref[Pass], state: PassState, given: Event | Input) -> Verdict:
    """What a pass says to a step that its table allows. It is held weakly: its machine is its own."""
    if given is PassStep.ENGINE_DRAIN and state is not PassState.OPEN:
        return Verdict.IGNORE
    made = held()
    if given in (PassStep.SCAVENGE, PassStep.FINALIZE) and (
        is_inside() or (made is not None and made.is_within_open())
    ):
        return Verdict.DEFER
    return Verdict.ALLOW


def surely(writer: StreamWriter, event: Event, time: int | None, then: Callable[[], object]) -> At:
    """Append an event, and do what follows from that also where an interrupt comes right after it.

    Args:
        writer: Of the stream.
        event: What is appended.
        time: When it was; None for now.
        then: What follows; no function of Python's, for an interrupt may come as one begins.
    """
    row, pending = event.row(monotonic_ns() if time is None else time), writer.pending
    require_storable(row)
    at = writer.next_at()
    is_appended = False
    try:
        pending.append(row)
        is_appended = True
    finally:
        if is_appended or (pending and pending[-1] is row):
            then()
    if len(pending) >= writer.chunk_size:
        writer.flush()
    return at


class Memory:
    """What is allocated on the accelerator, as it was and at most since then.

    Torch keeps one highest mark for the process, which is the user's to reset: it tells of a pass that raised it.
    """

    __slots__ = ("before", "mark")

    def __init__(self) -> None:
        self.before, self.mark = compat.accelerator_memory() or (0, 0)

    def peak(self) -> int | None:
        """Bytes; None without an accelerator, and where less was allocated than at some time before."""
        now = compat.accelerator_memory()
        if now is None or now[1] <= self.mark:
            return None
        return now[1] - self.before


def is_inside() -> bool:
    """Whether the engine runs in this thread."""
    return compat.running_task() != -1
