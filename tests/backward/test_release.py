"""What backward passes hold is let go of: with the trace, root first, and with no help of the garbage collector."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal import JournalError
from journal.events import NodeFired, NodesFound, PassFinalized, PassOpened
from tests import programs
from tests.backward.observing import events_of, require_closed_in_order
from tests.work import set_aside
from torchlens.backward.hooks import Tape
from torchlens.backward.triggers import Backwards
from torchlens.errors import BackwardRefused

KEEP = tl.CaptureOptions(save_grads=True)
READY = tl.CaptureOptions(backward_ready=True)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held_memory() -> int:
    """Bytes that objects hold now, without the thousands of freed tuples of each length that Python keeps for the next.

    A full collection lets go of those; what is frozen meanwhile it does not look at, so it frees nothing else.
    """
    gc.freeze()
    gc.collect()
    gc.unfreeze()
    return tracemalloc.get_traced_memory()[0]


def model_of(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


class Marked(torch.autograd.Function):
    """Its node can be referred to weakly, as those that torch implements cannot."""

    nodes: ClassVar[list[weakref.ref[Any]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Marked.nodes.append(weakref.ref(ctx))
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class WithMark(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of()

    def forward(self, x: Tensor) -> Tensor:
        return Marked.apply(self.inner(x))  # type: ignore[no-any-return]


ENDS = ("cleanup", "dropped", "disarmed")


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("options", [tl.CaptureOptions(), KEEP, READY])
@pytest.mark.parametrize("way", ["whole", "failed", "graph", "unannounced", "never"])
def test_the_graph_is_freed_with_the_trace(end: str, options: tl.CaptureOptions, way: str) -> None:
    Marked.nodes.clear()
    x = torch.ones(2, 4, requires_grad=True)
    trace = tl.trace(WithMark(), x, capture=options)
    seen = [weakref.ref(trace), weakref.ref(trace.backwards), *Marked.nodes]
    loss = trace.output.sum()
    if way == "whole":
        trace.backward(loss)
    elif way == "failed":
        trace.backward(loss)
        with pytest.raises(RuntimeError, match="second time"):
            trace.backward(loss)
    elif way == "graph":
        torch.autograd.grad((trace.output**2).sum(), x, create_graph=True)
    elif way == "unannounced":
        torch.ops.aten._backward(loss, [], None, False, False)
    del loss
    if end == "cleanup":
        trace.cleanup()
    elif end == "disarmed":
        assert trace.backwards is not None
        trace.backwards.disarm()
    del trace
    if way == "unannounced" and end == "dropped":
        tl.trace(model_of(), torch.ones(1, 4)).cleanup()  # the pass that was open is closed as something else begins
    assert [held() for held in seen] == [None] * len(seen)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", [tl.CaptureOptions(), KEEP, READY])
def test_a_training_loop_stays_as_large_as_it_is(options: tl.CaptureOptions) -> None:
    Marked.nodes.clear()
    model = WithMark()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        trace = tl.trace(model, x, capture=options)
        trace.backward(trace.output.pow(2).sum())
        assert trace.tables.head
        optimizer.step()
        trace.cleanup()

    for _ in range(30):
        step()
    tracemalloc.start()
    try:
        for _ in range(20):
            step()
        before = held_memory()
        for _ in range(200):
            step()
        after = held_memory()
    finally:
        tracemalloc.stop()
        set_aside()  # again, after ``held_memory``
    assert [held() for held in Marked.nodes] == [None] * 250
    # A step makes hundreds of kilobytes. What may grow: this test's list, and tables of weak references now and then.
    assert after - before < 200 * 500


LONG = """
    import sys
    import torch
    from torch import nn
    import torchlens as tl
    from journal.events import NodeFired, NodesFound

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            x = x * self.w
            for _ in range(int(sys.argv[1])):
                x = x * 1.0
            return x

    asked = sys.argv[2] == "asked"
    trace = tl.trace(Loop(), torch.ones(1), save="none", capture=tl.CaptureOptions(save_grads=asked))
    trace.backward(trace.output.sum()) if asked else trace.output.sum().backward()
    events = [stamped.event for stamped in trace.events()]
    found = [event for event in events if isinstance(event, NodesFound)]
    fired = sum(isinstance(event, NodeFired) for event in events)
    assert found[-1].is_cut is not asked
    assert fired == sum(len(event.nodes) for event in found)
    assert fired > int(sys.argv[1]) if asked else 1000 < fired < 30_000
    trace.returned = None
    trace.cleanup()
    print("freed")
"""


@pytest.mark.slow
def test_a_graph_of_sixty_thousand_nodes_is_walked_told_and_freed() -> None:
    assert programs.run(LONG, 60_000, "asked").stdout == "freed\n"


def test_a_deep_graph_that_nobody_asked_to_be_walked_is_cut_and_freed() -> None:
    assert programs.run(LONG, 45_000, "plain").stdout == "freed\n"


OUTLIVING = """
    import torch, torchlens as tl
    from torchlens.backward import deep

    model = torch.nn.Linear(2, 2)
    for way in ("cleaned up", "dropped", "refused"):
        trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(save_grads=True))
        loss = trace.output.sum() if way != "refused" else torch.ones(1, requires_grad=True).sum()
        for _ in range(60_000):
            loss = loss * 1.0
        try:
            trace.backward(loss)
        except tl.TorchLensError as refusal:
            assert refusal.code == "loss_not_connected"
        if way == "dropped":
            del trace
        else:
            trace.cleanup()
        assert len(deep._held) == 1
        del loss
        assert len(deep._held) == 1  # not as the tensor goes
        again = tl.trace(model, torch.ones(1, 2))
        assert not deep._held
        again.cleanup()
        print(way, flush=True)
"""


def test_a_deep_loss_that_outlives_its_trace_is_freed_without_a_crash() -> None:
    assert programs.run(OUTLIVING).stdout == "cleaned up\ndropped\nrefused\n"


# -- when the journal cannot take what there is to say


def refuse(*given: Any, **named: Any) -> Any:
    raise JournalError(code="journal_write_failed", problem="the disk is full", remedy="make room")


def test_a_journal_that_refuses_lets_the_users_backward_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_of()
    trace = tl.trace(model, torch.ones(2, 4), capture=KEEP, journal=tmp_path / "a.journal")
    monkeypatch.setattr(trace.journal, "continue_stream", refuse)
    trace.output.sum().backward(retain_graph=True)
    assert model[0].weight.grad is not None  # type: ignore[index]  # a sequence of layers
    with pytest.raises(JournalError) as caught:
        trace.backward(trace.output.sum())
    assert caught.value.code == "journal_write_failed"
    assert events_of(trace, PassOpened) == []
    monkeypatch.undo()
    trace.cleanup()


def test_a_disk_that_fills_while_the_engine_runs_costs_the_user_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(100)])
    trace = tl.trace(model, torch.ones(2, 4), capture=KEEP, journal=tmp_path / "a.journal")
    monkeypatch.setattr("journal.stream_writer.Writer.cut_chunks", refuse)
    trace.output.sum().backward(retain_graph=True)
    assert all(parameter.grad is not None for parameter in model.parameters())
    monkeypatch.undo()
    with pytest.raises(JournalError) as caught:
        trace.backward(trace.output.sum())
    assert caught.value.code == "journal_write_failed"
    trace.cleanup()
    loaded = tl.load(tmp_path / "a.journal")
    assert len(loaded.ops.compute) == 100
    loaded.cleanup()


def test_what_goes_wrong_in_a_hook_of_ours_lets_the_users_backward_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    trace = tl.trace(model, torch.ones(2, 4), capture=KEEP)
    assert isinstance(trace.backwards, Backwards)
    diary = trace.backwards.diary
    assert diary is not None
    monkeypatch.setattr("torchlens.backward.hooks.Tape.tell", refuse)
    with pytest.raises(JournalError):
        trace.backward(trace.output.sum(), retain_graph=True)
    assert model[0].weight.grad is not None  # type: ignore[index]  # a sequence of layers
    assert diary.refusal is not None
    assert not diary.passes
    monkeypatch.undo()
    trace.output.sum().backward()
    require_closed_in_order(trace)
    assert len(events_of(trace, PassFinalized)) == 1
    assert trace.autograd.backward_passes[0].status == "incomplete"
    trace.cleanup()


def fail_at_the_third_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a hook of ours raise once the engine is on its way."""
    tell, told = Tape.tell, list[int]()

    def failing(tape: Tape, node: int, *given: Any, **named: Any) -> None:
        told.append(node)
        if len(told) == 3:
            raise RuntimeError("out of memory")
        tell(tape, node, *given, **named)

    monkeypatch.setattr(Tape, "tell", failing)


def test_a_pass_that_could_not_be_recorded_to_its_end_reads_as_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(model_of(), torch.ones(2, 4), capture=KEEP)
    loss = trace.output.sum()
    loss.backward(retain_graph=True)
    assert trace.health.notes == ()
    fail_at_the_third_gradient(monkeypatch)
    loss.backward(retain_graph=True)  # nothing is raised here
    whole, cut = trace.autograd.backward_passes
    assert (whole.status, whole.incomplete_reason) == ("ok", None)
    assert (cut.status, cut.incomplete_reason) == ("incomplete", "RuntimeError: out of memory")
    assert 0 < cut.num_grad_fn_calls < whole.num_grad_fn_calls
    assert cut.closed_by == "trigger_return"
    told = "backward pass 2 is incomplete, and no pass after it was recorded: RuntimeError: out of memory"
    assert trace.health.notes == (told,)
    assert not trace.health.is_clean
    assert told in str(trace.health)
    trace.check_metadata_invariants()
    trace.cleanup()


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ZeroDivisionError


class RaisingLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 4), model_of()

    def forward(self, x: Tensor) -> Any:
        return self.rest(Raising.apply(self.first(x)))


def test_a_pass_that_raised_when_it_was_recorded_no_more_does_not_name_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = tl.trace(RaisingLast(), torch.ones(2, 4), capture=KEEP)
    fail_at_the_third_gradient(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        trace.output.sum().backward()
    (made,) = trace.autograd.backward_passes
    assert (made.status, made.incomplete_reason) == ("error", "RuntimeError: out of memory")
    assert made.raised_in is None
    trace.cleanup()


def test_what_is_no_error_of_ours_is_told_by_a_code_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(model_of(), torch.ones(2, 4), capture=KEEP)
    fail_at_the_third_gradient(monkeypatch)
    for _ in range(2):  # also of a pass that was not recorded at all
        with pytest.raises(BackwardRefused, match="out of memory") as caught:
            trace.backward(trace.output.sum(), retain_graph=True)
        assert caught.value.code == "backward_recording_failed"
        assert type(caught.value.__cause__) is RuntimeError
    assert len(trace.autograd.backward_passes) == 1
    trace.cleanup()


def test_passes_of_a_journal_on_disk_read_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    trace = tl.trace(model_of(), torch.ones(2, 4), capture=KEEP, journal=tmp_path / "a.journal")
    loss = trace.output.sum()
    trace.backward(loss, retain_graph=True)
    after_one = list(trace.events())
    other = tl.trace(model_of(), torch.ones(2, 4), journal=tmp_path / "a.journal")  # between two passes
    other.cleanup()
    trace.backward(loss)
    events = [(stamped.at, stamped.event) for stamped in trace.events()]
    assert events[: len(after_one)] == [(stamped.at, stamped.event) for stamped in after_one]
    trace.cleanup()
    loaded = tl.load(tmp_path / "a.journal", capture=0)
    assert [(stamped.at, stamped.event) for stamped in loaded.events()] == events
    assert len(events_of(loaded, NodeFired)) == 2 * len(events_of(loaded, NodeFired, 0))
    assert len(events_of(loaded, NodesFound)) == 1
    loaded.cleanup()


FORKED = """
    import os
    import warnings
    import torch
    import torchlens as tl

    warnings.simplefilter("ignore")
    model = torch.nn.Linear(2, 2)
    trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(save_grads=True))
    loss = trace.output.sum()
    child = os.fork()
    if child == 0:
        loss.backward()
        os._exit(0 if model.weight.grad is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    trace.backward(loss)
    assert len(trace.autograd.backward_passes) <= 1
    trace.cleanup()
    print("done")
"""


def test_a_forked_child_runs_its_backward_and_records_nothing() -> None:
    assert programs.run(FORKED).stdout == "done\n"


def test_under_create_graph_a_backward_leaves_the_cycle_that_torch_warns_of_and_no_other() -> None:
    model = model_of()
    trace = tl.trace(model, torch.ones(2, 4), capture=KEEP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trace.backward(trace.output.pow(2).sum(), create_graph=True)
    held = weakref.ref(trace)
    trace.cleanup()
    model.zero_grad(set_to_none=True)
    gc.disable()
    del trace
    assert held() is None
    gc.enable()
