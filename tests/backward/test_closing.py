"""How a pass closes: each step once, in order, whatever happens while and after the engine runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

import torchlens as tl
from journal import IllegalTransition
from journal.events import At, NodeFired, PassFinalized, PassJournaled, PassOpened, PassScavenged
from journal.lifecycle import PASS, PassState, PassStep
from journal.machine import Machine, Verdict, inputs_of
from tests.backward.observing import events_of, names, require_closed_in_order, require_fired_once
from torchlens import compat
from torchlens.backward.closing import Pass
from torchlens.backward.diary import Diary
from torchlens.backward.hooks import Tape
from torchlens.backward.policy import NOTHING
from torchlens.backward.triggers import Backwards

# -- the table


WAYS_IN = (PassStep.TRIGGER_RETURN, PassStep.ENGINE_DRAIN, PassStep.SYNC_POINT, PassStep.ENGINE_ERROR)


@given(st.sampled_from(list(PassState)), st.sampled_from(list(PassStep)))
def test_every_pair_of_state_and_step_is_in_the_table_or_refused(state: PassState, step: PassStep) -> None:
    machine = Machine(PASS, state)
    if (state, step) in PASS:
        assert machine.step(step) is Verdict.ALLOW
        assert machine.state is PASS[state, step]
    else:
        with pytest.raises(IllegalTransition) as caught:
            machine.step(step)
        assert caught.value.code == "illegal_transition"
        assert machine.state is state


@given(st.lists(st.sampled_from(list(PassStep)), max_size=12))
def test_no_way_through_the_table_takes_a_step_twice(steps: list[PassStep]) -> None:
    machine = Machine(PASS, PassState.OPEN)
    moved: list[PassState] = []
    for step in steps:
        if machine.allows(step):
            before = machine.state
            machine.step(step)
            if machine.state is not before:
                moved.append(machine.state)
    assert moved == [PassState.JOURNALED, PassState.SCAVENGED, PassState.FINALIZED][: len(moved)]


def test_the_table_knows_every_step_and_every_way_in_journals() -> None:
    assert inputs_of(PASS) == frozenset(PassStep)
    assert {PASS[PassState.OPEN, way] for way in WAYS_IN} == {PassState.JOURNALED}


class Kept:
    """Stands for a stream's writer: remembers what was appended."""

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.chunk_size = 256

    def next_at(self) -> At:
        return At(len(self.pending))


def made_pass() -> tuple[Pass, Kept]:
    kept = Kept()
    tape = Tape(0, [], 256, lambda: None, lambda gradient: None, NOTHING)
    return Pass(tape, kept, At(0), "implicit", None, None), kept  # type: ignore[arg-type]  # as much of one as is used


@given(st.lists(st.sampled_from(list(PassStep)), max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_whatever_is_asked_of_a_pass_its_events_are_each_told_once_and_in_order(
    steps: list[PassStep], inside: list[bool]
) -> None:
    made, kept = made_pass()
    with pytest.MonkeyPatch.context() as patch:
        for step, engine_runs in zip(steps, inside, strict=False):
            patch.setattr(compat, "running_task", lambda runs=engine_runs: 7 if runs else -1)
            before = made.state
            allowed = (before, step) in PASS
            try:
                if step in WAYS_IN:
                    made.journal(step)
                else:
                    made.step(step)
            except IllegalTransition:
                assert not allowed
                assert made.state is before
                continue
            assert allowed
            if engine_runs and step not in WAYS_IN:
                assert made.state is before  # put off
            if step is PassStep.ENGINE_DRAIN and before is not PassState.OPEN:
                assert made.state is before  # out of date
    told = [row[0] for row in kept.pending]
    assert told == [event.type_id for event in (PassJournaled, PassScavenged, PassFinalized)][: len(told)]


# -- real runs


class Broken(Exception):
    """The user's."""


class Grabs(torch.autograd.Function):
    """Runs the engine from within its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.detach())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.clone().requires_grad_()
            (found,) = torch.autograd.grad((inner * 2).sum(), inner)
        return gradient * found


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(Grabs.apply(self.first(x))))  # type: ignore[no-any-return]


def traced(**options: Any) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Nested(), torch.ones(2, 3), capture=tl.CaptureOptions(**options))


def diary_of(trace: tl.Trace) -> Diary:
    assert isinstance(trace.backwards, Backwards)
    assert trace.backwards.diary is not None
    return trace.backwards.diary


def test_a_run_within_a_node_is_a_pass_with_its_parent_and_is_finalized_first() -> None:
    trace = traced(save_grads=True)
    trace.backward(trace.output.sum())
    outer, inner = events_of(trace, PassOpened)
    assert (outer.parent, inner.parent, inner.trigger) == (None, 0, "autograd_grad")
    order = [(type(s.event), s.event.pass_number) for s in trace.events() if isinstance(s.event, (PassOpened, *ENDS))]
    assert order == [
        *((PassOpened, 0), (PassOpened, 1), (PassJournaled, 1), (PassJournaled, 0)),
        *((PassScavenged, 1), (PassFinalized, 1), (PassScavenged, 0), (PassFinalized, 0)),
    ]
    require_fired_once(trace)
    trace.cleanup()


ENDS = (PassJournaled, PassScavenged, PassFinalized)


def test_a_run_within_a_users_hook_is_a_pass_within_the_one_that_runs() -> None:
    trace = traced()
    weight, side = trace.params[0].handle, trace.ops["tanh_1_3"].out.sum()

    def hook(gradient: Tensor) -> None:
        torch.autograd.grad(side, weight, retain_graph=True)

    for hooked in (trace.output, trace.output.sum()):  # before the first node of ours fires, and after some have
        handle = hooked.register_hook(hook)
        trace.backward(hooked.sum(), retain_graph=True)
        handle.remove()
    assert [event.parent for event in events_of(trace, PassOpened)] == [None, 0, 1, 0, None, 4, 5, 4]
    require_closed_in_order(trace)
    trace.cleanup()


class Recurses(torch.autograd.Function):
    """Runs the engine within its backward, and that run another one, as deep as it is told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.depth:
            with torch.enable_grad():
                inner = gradient.detach().clone().requires_grad_()
                Recurses.apply(inner, ctx.depth - 1).sum().backward()
        return gradient, None


def test_runs_nested_deeper_than_one_thread_of_the_engine_goes_keep_their_parents() -> None:
    model = nn.Linear(2, 2)
    trace = tl.trace(lambda x: Recurses.apply(model(x), 70), torch.ones(1, 2))
    trace.backward(trace.output.sum())
    opened = events_of(trace, PassOpened)
    assert [event.parent for event in opened] == [None, *range(70)]
    assert len({event.thread for event in opened}) == 2  # torch hands on to a thread of its own at depth 60
    assert diary_of(trace).refusal is None
    require_closed_in_order(trace)
    require_fired_once(trace)
    trace.cleanup()


def test_a_read_from_within_the_engine_gives_what_stood_before_and_finalizes_nothing() -> None:
    trace = traced(save_grads=True)
    out = trace.output
    before = trace.tables.head
    seen: list[tuple[int, int]] = []

    def hook(gradient: Tensor) -> None:
        assert trace.ops.labels
        seen.append((trace.tables.head, len(events_of(trace, PassFinalized))))

    handle = out.register_hook(hook)
    trace.backward(out.sum())
    handle.remove()
    assert seen == [(before, 0)]
    assert trace.tables.head > before
    require_closed_in_order(trace)
    trace.cleanup()


def test_a_read_from_another_thread_ends_where_the_pass_that_runs_began() -> None:
    trace = traced()
    out = trace.output
    before = trace.tables.head
    heads: list[int] = []

    def read() -> None:
        heads.append(trace.tables.head)

    def hook(gradient: Tensor) -> None:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()

    handle = out.register_hook(hook)
    out.sum().backward()
    handle.remove()
    assert heads == [before]
    require_closed_in_order(trace)
    trace.cleanup()


@pytest.mark.parametrize("end", ["cleanup", "disarm"])
def test_a_trace_may_be_let_go_of_while_the_engine_runs_over_it(end: str) -> None:
    trace = traced(save_grads=True)
    out, weight = trace.output, trace.params[0].handle
    lets_go: Callable[[], None] = trace.cleanup if end == "cleanup" else diary_of(trace).disarm

    def hook(gradient: Tensor) -> None:
        lets_go()

    out.register_hook(hook)
    out.sum().backward()
    assert weight.grad is not None
    trace.cleanup()


def raw_backward(loss: Tensor) -> None:
    torch.ops.aten._backward(loss, [], None, True, False)


def failing_of(out: Tensor) -> Any:
    def hook(gradient: Tensor) -> None:
        raise Broken("x")

    return out.register_hook(hook)


class FailsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise Broken("late")


class Late(nn.Module):
    """Fails in its backward after some of its nodes have fired."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(FailsLate.apply(self.first(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("what_comes", ["read", "trigger", "other run"])
def test_an_unannounced_run_that_failed_is_closed_by_what_comes_next(what_comes: str) -> None:
    trace = tl.trace(Late(), torch.ones(2, 3), capture=tl.CaptureOptions(save_grads=True))
    loss = trace.output.sum()
    with pytest.raises(Broken):
        raw_backward(loss)
    assert diary_of(trace).passes[0].is_open
    if what_comes == "read":
        assert trace.ops.labels
    else:
        with pytest.raises(Broken):
            loss.backward(retain_graph=True) if what_comes == "trigger" else raw_backward(loss)
    first = events_of(trace, PassJournaled)[0]
    assert (first.closed_by, first.drain_queued, first.pass_number) == ("sync_point", True, 0)
    unfinished = [event for event in events_of(trace, NodeFired, 0) if event.duration_ns is None]
    assert [names(trace)[event.node] for event in unfinished] == ["FailsLateBackward"]
    assert trace.ops.labels
    require_closed_in_order(trace)
    trace.cleanup()


def test_what_the_engine_says_of_a_run_that_was_closed_changes_nothing() -> None:
    trace = traced(save_grads=True)
    raw_backward(trace.output.sum())
    diary = diary_of(trace)
    task = events_of(trace, PassOpened)[0].task
    assert task is not None
    assert trace.ops.labels
    head = trace.tables.head
    diary.drained(0, task)
    diary.drained(5, task)
    assert trace.tables.head == head
    trace.cleanup()


# -- in any order


class Backwarding(RuleBasedStateMachine):
    """Two traces, of which one stands on the other, and runs of every kind over them, also those that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[tl.Trace] = []
        self.side = torch.zeros(())

    @initialize(first=st.booleans(), second=st.booleans())
    def capture(self, first: bool, second: bool) -> None:
        torch.manual_seed(0)
        lower = tl.trace(Nested(), torch.ones(2, 3), capture=tl.CaptureOptions(save_grads=first))
        upper = tl.trace(nn.Linear(2, 2), lower.output, capture=tl.CaptureOptions(save_grads=second))
        self.traces = [lower, upper]
        self.side = lower.ops["tanh_1_3"].out.sum()

    def loss(self, which: int) -> Tensor:
        out: Tensor = self.traces[which].output
        return out.sum()

    @rule(which=st.sampled_from([0, 1]))
    def plain(self, which: int) -> None:
        self.loss(which).backward(retain_graph=True)

    @rule(through=st.sampled_from([0, 1]))
    def asked(self, through: int) -> None:
        self.traces[through].backward(self.loss(1), retain_graph=True)

    @rule(which=st.sampled_from([0, 1]))
    def gradient(self, which: int) -> None:
        torch.autograd.grad(self.loss(which), self.traces[0].output, retain_graph=True)

    @rule(which=st.sampled_from([0, 1]))
    def unannounced(self, which: int) -> None:
        raw_backward(self.loss(which))

    @rule(which=st.sampled_from([0, 1]), announced=st.booleans())
    def fails(self, which: int, announced: bool) -> None:
        handle = failing_of(self.traces[0].output)
        loss = self.loss(which)
        with pytest.raises(Broken):
            loss.backward(retain_graph=True) if announced else raw_backward(loss)
        handle.remove()

    @rule(which=st.sampled_from([0, 1]), announced=st.booleans())
    def nests(self, which: int, announced: bool) -> None:
        def hook(gradient: Tensor) -> None:
            self.side.backward(retain_graph=True) if announced else raw_backward(self.side)
            assert self.traces[0].ops.labels

        handle = self.traces[which].output.register_hook(hook)
        self.loss(which).backward(retain_graph=True)
        handle.remove()

    @rule(which=st.sampled_from([0, 1]))
    def stale(self, which: int) -> None:
        diary = diary_of(self.traces[which])
        for opened in events_of(self.traces[which], PassOpened):
            if opened.pass_number not in diary.passes:
                diary.drained(opened.pass_number, opened.task or 0)

    @rule(which=st.sampled_from([0, 1]))
    def reads(self, which: int) -> None:
        assert self.traces[which].ops.labels
        assert not diary_of(self.traces[which]).passes
        require_closed_in_order(self.traces[which])

    @precondition(lambda self: self.traces)
    @invariant()
    def nothing_went_wrong(self) -> None:
        for trace in self.traces:
            assert diary_of(trace).refusal is None

    def teardown(self) -> None:
        for trace in self.traces:
            assert trace.ops.labels
            require_closed_in_order(trace)
            require_fired_once(trace)
            trace.cleanup()


TestBackwarding = Backwarding.TestCase
TestBackwarding.settings = settings(max_examples=20, stateful_step_count=10, deadline=None)
