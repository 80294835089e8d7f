"""A backward pass and its close: journaled, scavenged, finalized, each once.

Rule   a pass steps its machine (``journal.lifecycle.PASS``) and appends the event of the step where that led to a new
       state. While the engine runs in this thread, or the pass within which this one ran is not over, a pass
       is journaled and the rest waits; that the engine has drained means nothing to one that was closed before.
Not    when a pass is over (engine.py, diary.py), or what is taken out of the engine (diary.py).
"""

from __future__ import annotations

import threading
from functools import partial
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
from torchlens import compat
from torchlens.backward.hooks import Tape
from torchlens.capture.template import path_of
from torchlens.errors import message_of

__all__ = ["Pass"]

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
        "parent",
        "sequences",
        "tape",
        "task",
        "thread",
        "trigger",
        "writer",
    )

    def __init__(self, tape: Tape, writer: StreamWriter, at: At, trigger: Trigger, parent: Pass | None) -> None:
        self.tape = tape
        self.writer = writer
        self.at = at
        self.trigger = trigger
        self.parent = parent
        self.thread = threading.get_ident()
        self.task: int | None = None  # the engine's graph task, once it is known
        self.drain_queued = False
        self.entries: frozenset[int] = frozenset()  # the nodes that may be the first to fire
        self.memory = Memory()
        self.lost: str | None = None  # what kept the rest of it from being recorded
        self.gave: list[Any] = []  # under create_graph, the nodes from which those that it made are reached
        self.sequences = (0, 0)  # under create_graph: the next node's number as it began, and as it ended
        self.makers: list[tuple[int, Any]] = []  # what ``making.Makers`` noted
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
        if self.machine.step(step) is not Verdict.ALLOW:
            return
        tape, append = self.tape, self.writer.append
        left = [(node, start) for node, start in tape.begun.items() if start is not None]
        for node, start in left:
            missing = tape.missing.get(node, ())
            append(
                NodeFired(pass_number=tape.number, node=node, duration_ns=None, missing=missing, sequence=None), start
            )
        append(
            PassJournaled(
                pass_number=tape.number,
                closed_by=CLOSED_BY[step],
                drain_queued=self.drain_queued,
                exception=None if error is None else path_of(type(error)),
                message=None if error is None else message_of(error),
                raised_in=left[-1][0] if left and error is not None and self.lost is None else None,
                incomplete_reason=self.lost,
                peak_memory=self.memory.peak(),
            )
        )

    def step(self, step: PassStep) -> None:
        """Take one of the two later steps, if it is time.

        Raises:
            IllegalTransition: When it was taken before, or the one before it was not.
        """
        if self.machine.step(step) is Verdict.ALLOW:
            event = PassScavenged if step is PassStep.SCAVENGE else PassFinalized
            self.writer.append(event(pass_number=self.number))

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
