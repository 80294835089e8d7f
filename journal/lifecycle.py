"""The tables of the machines: a capture, a backward pass, the writer of a journal, the save of an artifact.

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
    PassOpened,
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
        (CaptureState.SETTLED, PassOpened): CaptureState.SETTLED,
    }
)

CAPTURE_INPUTS: Final[frozenset[Input]] = inputs_of(CAPTURE)


class PassState(Enum):
    """How far the close of a backward pass has come."""

    OPEN = "open"
    JOURNALED = "journaled"
    SCAVENGED = "scavenged"
    FINALIZED = "finalized"


class PassStep(Enum):
    """What moves it: one of four ways in, then two steps that wait while the engine runs."""

    TRIGGER_RETURN = "trigger_return"  # the call that ran the engine returned
    ENGINE_DRAIN = "engine_drain"  # the engine told its end; of a run that was closed before, this changes nothing
    SYNC_POINT = "sync_point"  # something else showed that the run is over
    ENGINE_ERROR = "engine_error"  # the call that ran the engine raised
    SCAVENGE = "scavenge"
    FINALIZE = "finalize"


PASS: Final[Mapping[tuple[PassState, Input], PassState]] = MappingProxyType(
    {
        (PassState.OPEN, PassStep.TRIGGER_RETURN): PassState.JOURNALED,
        (PassState.OPEN, PassStep.ENGINE_DRAIN): PassState.JOURNALED,
        (PassState.OPEN, PassStep.SYNC_POINT): PassState.JOURNALED,
        (PassState.OPEN, PassStep.ENGINE_ERROR): PassState.JOURNALED,
        (PassState.JOURNALED, PassStep.ENGINE_DRAIN): PassState.JOURNALED,
        (PassState.SCAVENGED, PassStep.ENGINE_DRAIN): PassState.SCAVENGED,
        (PassState.FINALIZED, PassStep.ENGINE_DRAIN): PassState.FINALIZED,
        (PassState.JOURNALED, PassStep.SCAVENGE): PassState.SCAVENGED,
        (PassState.SCAVENGED, PassStep.FINALIZE): PassState.FINALIZED,
    }
)
"""`PassJournaled`, `PassScavenged` and `PassFinalized` tell the steps that led to a new state."""


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


class ArtifactState(Enum):
    """How far the save of an artifact has come."""

    STAGED = "staged"  # its folder is there, beside its place, and files are written
    WRITTEN = "written"
    SYNCED = "synced"  # all of it has reached the disk
    ASIDE = "aside"  # what stood at its place was moved away: between this and the next step nothing is there
    RENAMED = "renamed"  # it stands at its place
    ABANDONED = "abandoned"


class ArtifactStep(Enum):
    """What moves it."""

    WRITE = "write"  # the last file, which is the manifest
    SYNC = "sync"
    RENAME = "rename"  # to where nothing is
    EXCHANGE = "exchange"  # with what is there, in one step of the system
    SET_ASIDE = "set_aside"  # where the system has no such step: the first of two, which a crash may part
    PUT_BACK = "put_back"
    FAIL = "fail"


ARTIFACT: Final[Mapping[tuple[ArtifactState, Input], ArtifactState]] = MappingProxyType(
    {
        (ArtifactState.STAGED, ArtifactStep.WRITE): ArtifactState.WRITTEN,
        (ArtifactState.STAGED, ArtifactStep.FAIL): ArtifactState.ABANDONED,
        (ArtifactState.WRITTEN, ArtifactStep.SYNC): ArtifactState.SYNCED,
        (ArtifactState.WRITTEN, ArtifactStep.FAIL): ArtifactState.ABANDONED,
        (ArtifactState.SYNCED, ArtifactStep.RENAME): ArtifactState.RENAMED,
        (ArtifactState.SYNCED, ArtifactStep.EXCHANGE): ArtifactState.RENAMED,
        (ArtifactState.SYNCED, ArtifactStep.SET_ASIDE): ArtifactState.ASIDE,
        (ArtifactState.SYNCED, ArtifactStep.FAIL): ArtifactState.ABANDONED,
        (ArtifactState.ASIDE, ArtifactStep.RENAME): ArtifactState.RENAMED,
        (ArtifactState.ASIDE, ArtifactStep.PUT_BACK): ArtifactState.SYNCED,
    }
)
"""A process that dies leaves the state it was in. In all but the last two the artifact's folder is a leftover, which
the next save removes; ``aside`` it also undoes, and until then what was moved away is read where it is."""


def state_after(state: CaptureState, events: Iterable[type[Event]]) -> CaptureState:
    """The state of a capture after these events; a pair outside the table, which no writer stores, changes nothing."""
    for event in events:
        state = CAPTURE.get((state, event), state)
    return state
