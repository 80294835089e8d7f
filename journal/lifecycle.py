"""The tables of the machines whose steps the journal keeps: a capture, and the writer of a journal.

The writer of a stream steps a capture's table before it appends. The status that the projections say is a
fold of its own, with the stop and the error behind it; it agrees with this table, which the laws hold it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from journal.events import (
    CaptureRequested,
    CaptureSettled,
    Event,
    ForwardAborted,
    ForwardHalted,
    ForwardInterrupted,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    PayloadKept,
    SavedForBackward,
)
from journal.machine import Input, inputs_of


class CaptureState(Enum):
    """How far a capture has come."""

    IDLE = "idle"
    PREPARING = "preparing"
    RUNNING = "running"
    COMPLETED = "completed"
    HALTED = "halted"
    ABORTED = "aborted"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SETTLED = "settled"


CAPTURE: Final[Mapping[tuple[CaptureState, Input], CaptureState]] = MappingProxyType(
    {
        (CaptureState.IDLE, CaptureRequested): CaptureState.PREPARING,
        (CaptureState.PREPARING, ForwardStarted): CaptureState.RUNNING,
        (CaptureState.PREPARING, ForwardRaised): CaptureState.FAILED,
        (CaptureState.PREPARING, ForwardInterrupted): CaptureState.INTERRUPTED,
        (CaptureState.RUNNING, ForwardReturned): CaptureState.COMPLETED,
        (CaptureState.RUNNING, ForwardHalted): CaptureState.HALTED,
        (CaptureState.RUNNING, ForwardAborted): CaptureState.ABORTED,
        (CaptureState.RUNNING, ForwardRaised): CaptureState.FAILED,
        (CaptureState.RUNNING, ForwardInterrupted): CaptureState.INTERRUPTED,
        (CaptureState.COMPLETED, PayloadKept): CaptureState.COMPLETED,
        (CaptureState.COMPLETED, SavedForBackward): CaptureState.COMPLETED,
        (CaptureState.HALTED, PayloadKept): CaptureState.HALTED,
        (CaptureState.HALTED, SavedForBackward): CaptureState.HALTED,
        (CaptureState.ABORTED, PayloadKept): CaptureState.ABORTED,
        (CaptureState.ABORTED, SavedForBackward): CaptureState.ABORTED,
        (CaptureState.FAILED, PayloadKept): CaptureState.FAILED,
        (CaptureState.FAILED, SavedForBackward): CaptureState.FAILED,
        (CaptureState.INTERRUPTED, PayloadKept): CaptureState.INTERRUPTED,
        (CaptureState.COMPLETED, CaptureSettled): CaptureState.SETTLED,
        (CaptureState.HALTED, CaptureSettled): CaptureState.SETTLED,
        (CaptureState.ABORTED, CaptureSettled): CaptureState.SETTLED,
        (CaptureState.FAILED, CaptureSettled): CaptureState.SETTLED,
        (CaptureState.INTERRUPTED, CaptureSettled): CaptureState.SETTLED,
    }
)

CAPTURE_INPUTS: Final[frozenset[Input]] = inputs_of(CAPTURE)


class WriterState(Enum):
    """What the one writer of a journal is doing."""

    OPENED = "opened"
    WRITING = "writing"
    SEALED = "sealed"


class WriterStep(Enum):
    """What moves it."""

    APPEND = "append"
    SEAL = "seal"
    REOPEN = "reopen"


WRITER: Final[Mapping[tuple[WriterState, Input], WriterState]] = MappingProxyType(
    {
        (WriterState.OPENED, WriterStep.APPEND): WriterState.WRITING,
        (WriterState.OPENED, WriterStep.SEAL): WriterState.SEALED,
        (WriterState.WRITING, WriterStep.APPEND): WriterState.WRITING,
        (WriterState.WRITING, WriterStep.SEAL): WriterState.SEALED,
        (WriterState.SEALED, WriterStep.REOPEN): WriterState.OPENED,
    }
)


def state_after(state: CaptureState, events: Iterable[type[Event]]) -> CaptureState:
    """The state of a capture after these events; a pair outside the table, which no writer stores, changes nothing."""
    for event in events:
        state = CAPTURE.get((state, event), state)
    return state
