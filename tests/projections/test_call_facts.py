"""Which calls a capture ended in, and what an event tells of a call."""

from __future__ import annotations

import pytest
from hypothesis import given

from journal.errors import JournalCorrupt
from journal.events import (
    Event,
    ForwardInterrupted,
    ForwardRaised,
    FunctionSeen,
    ModuleEntered,
    ModuleLeft,
    OpExecuted,
    OpLeft,
    OpRaised,
    OpStarted,
)
from journal.events.template import DTYPE, HOLE
from projections import Projector
from projections.accounts.call_facts import TELLING, TensorFacts, call_facts
from tests.projections.making import Made, source_of
from tests.strategies import capture_streams


@given(capture_streams())
def test_the_calls_in_progress_are_those_announced_and_not_ended(events: list[Event]) -> None:
    announced = any(isinstance(event, OpStarted) for event in events)
    begun: list[int] = []
    for at, event in enumerate(events):
        if isinstance(event, OpStarted):
            begun.append(at)
        elif announced and isinstance(event, OpExecuted | OpRaised | OpLeft):
            begun.pop()
    fact = Projector(source_of(events)).tables().fact
    assert fact("calls_in_progress") == tuple(begun)
    assert fact("last_executed_event") == max(
        (at for at, event in enumerate(events) if isinstance(event, OpExecuted)), default=None
    )


@given(capture_streams(endings=["raised", "interrupted"]))
def test_the_call_that_raised_is_the_last_one_after_which_nothing_went_on(events: list[Event]) -> None:
    expected = None
    for at in reversed(range(len(events))):
        if isinstance(events[at], OpRaised):
            expected = at
            break
        if isinstance(events[at], OpExecuted | OpStarted | ModuleEntered | ModuleLeft):
            break
    assert any(isinstance(event, ForwardRaised | ForwardInterrupted) for event in events)
    assert Projector(source_of(events)).tables().fact("raised_event") == expected


@given(capture_streams())
def test_every_event_that_tells_of_a_call_can_be_read(events: list[Event]) -> None:
    forward = Projector(source_of(events)).tables().forward
    functions = {event.number: event.qualname for event in events if isinstance(event, FunctionSeen)}
    for at, event in enumerate(events):
        if isinstance(event, TELLING):
            facts = call_facts(forward, at)
            assert facts.func_qualname == functions[event.function]  # type: ignore[attr-defined]  # all of TELLING have
            assert len(facts.tensors) == len(event.inputs)  # type: ignore[attr-defined]
            assert facts.modules[0] == "self:1"
            assert facts.frames
            assert (facts.exception is None) is not isinstance(event, OpRaised)


def test_arguments_are_told_apart_and_shapes_are_those_of_the_announcement() -> None:
    made = Made()
    x = made.input("x", shape=(2, 3))
    made.start()
    made.op("relu", x)
    at = len(made.events)
    started = OpStarted(
        function=0,
        site=0,
        call=0,
        args=(HOLE, 2, (DTYPE, "int64")),
        kwargs=("out", HOLE, "alpha", 0.5),
        inputs=(x, x),
        shapes=(((7,), "int64"), ((8, 9), "bool")),
    )
    made.add(started)
    facts = call_facts(made.tables().forward, at)
    assert facts.args == "Tensor(shape=(7,), dtype=int64), 2, torch.int64"
    assert facts.kwargs == "out=Tensor(shape=(8, 9), dtype=bool), alpha=0.5"
    assert facts.tensors == (TensorFacts("0", (7,), "int64"), TensorFacts("out", (8, 9), "bool"))
    assert facts.settings == (("1", "2"), ("2", "torch.int64"), ("alpha", "0.5"))
    assert call_facts(made.tables().forward, at - 1).tensors == (TensorFacts("0", (2, 3), "float32"),)


def test_an_event_that_tells_of_no_call_is_refused() -> None:
    made = Made()
    made.input("x")
    with pytest.raises(JournalCorrupt) as refused:
        call_facts(made.tables().forward, 0)
    assert refused.value.code == "events_contradictory"
