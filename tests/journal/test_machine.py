"""State machines: every step that is in no table is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from journal import CaptureState, IllegalTransition
from journal.events import (
    CaptureRequested,
    CaptureSettled,
    Event,
    ForwardHalted,
    ForwardInterrupted,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    OpExecuted,
    PayloadKept,
)
from journal.lifecycle import (
    ARTIFACT,
    CAPTURE,
    CAPTURE_INPUTS,
    WRITER,
    ArtifactState,
    WriterState,
    WriterStep,
    state_after,
)
from journal.machine import Input, Machine, Verdict, inputs_of, name_of

TABLES: dict[str, tuple[Mapping[tuple[Any, Input], Any], type[Enum]]] = {
    "artifact": (ARTIFACT, ArtifactState),
    "capture": (CAPTURE, CaptureState),
    "writer": (WRITER, WriterState),
}
PRESENT = [(name, *step) for name, (table, _) in TABLES.items() for step in table]
MISSING = [
    (name, state, given)
    for name, (table, states) in TABLES.items()
    for state in states
    for given in sorted(inputs_of(table), key=name_of)
    if (state, given) not in table
]
ENDS = {
    ForwardReturned: CaptureState.COMPLETED,
    ForwardHalted: CaptureState.HALTED,
    ForwardRaised: CaptureState.FAILED,
    ForwardInterrupted: CaptureState.INTERRUPTED,
}


@pytest.mark.parametrize(("name", "state", "given"), PRESENT)
def test_a_step_of_the_table_is_taken(name: str, state: Enum, given: Input) -> None:
    table, _ = TABLES[name]
    machine: Machine[Any] = Machine(table, state)
    assert machine.allows(given)
    assert machine.step(given) is Verdict.ALLOW
    assert machine.state is table[state, given]


@pytest.mark.parametrize(("name", "state", "given"), MISSING)
def test_a_step_that_is_missing_is_refused_with_state_and_event(name: str, state: Enum, given: Input) -> None:
    machine: Machine[Any] = Machine(TABLES[name][0], state)
    assert not machine.allows(given)
    with pytest.raises(IllegalTransition) as refused:
        machine.step(given)
    assert refused.value.code == "illegal_transition"
    assert refused.value.fields["state"] == state.value
    assert refused.value.fields["event"] == name_of(given)
    assert state.value in str(refused.value)
    assert name_of(given) in str(refused.value)
    assert machine.state is state


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_met_from_the_first(name: str) -> None:
    table, states = TABLES[name]
    met = {next(iter(states))}
    for _ in states:
        met |= {after for (before, _), after in table.items() if before in met}
    assert met == set(states)


@pytest.mark.parametrize("end", ENDS)
def test_a_forward_ends_once_keeps_payloads_and_settles(end: type[Event]) -> None:
    course = [CaptureRequested, ForwardStarted, OpExecuted, end]
    assert state_after(CaptureState.IDLE, course) is ENDS[end]
    assert state_after(CaptureState.IDLE, [*course, PayloadKept]) is ENDS[end]
    assert state_after(CaptureState.IDLE, [*course, PayloadKept, CaptureSettled]) is CaptureState.SETTLED


@pytest.mark.parametrize("end", [ForwardRaised, ForwardInterrupted])
def test_a_capture_may_fail_while_preparing(end: type[Event]) -> None:
    assert state_after(CaptureState.IDLE, [CaptureRequested, end]) is ENDS[end]


def test_only_inputs_move_a_capture() -> None:
    assert OpExecuted not in CAPTURE_INPUTS
    assert state_after(CaptureState.RUNNING, [OpExecuted]) is CaptureState.RUNNING
    assert state_after(CaptureState.IDLE, [CaptureRequested]) is CaptureState.PREPARING


def test_a_guard_may_put_an_event_off_or_drop_it() -> None:
    verdicts = [Verdict.DEFER, Verdict.IGNORE, Verdict.ALLOW]
    asked: list[Any] = []

    def guard(state: CaptureState, given: Any) -> Verdict:
        asked.append((state, given))
        return verdicts[len(asked) - 1]

    machine = Machine(CAPTURE, CaptureState.PREPARING, guard)
    raised = ForwardRaised(exception="builtins.ValueError", message="no")
    assert machine.step(raised) is Verdict.DEFER
    assert machine.step(raised) is Verdict.IGNORE
    assert machine.state is CaptureState.PREPARING
    assert machine.step(raised) is Verdict.ALLOW
    assert machine.state is CaptureState.FAILED
    assert asked == [(CaptureState.PREPARING, raised)] * 3
    with pytest.raises(IllegalTransition):
        machine.step(WriterStep.SEAL)
    assert len(asked) == 3
