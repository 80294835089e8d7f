"""What kept backward passes from being told as they were: interrupts, deep graphs, odd gradients, full disks."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal.events import GradientObserved, PassJournaled, PassOpened
from tests.backward.observing import events_of, require_closed_in_order
from torchlens import compat
from torchlens.backward.diary import Diary
from torchlens.errors import BackwardRefused
from torchlens.testing import check_trace

KEEP = tl.CaptureOptions(save_grads=True)
READY = tl.CaptureOptions(backward_ready=True)


def model_of(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


def inputs(width: int = 4) -> Tensor:
    return torch.ones(2, width, requires_grad=True)


def summary(trace: tl.Trace) -> list[tuple[str, str | None]]:
    return [(each.status, each.closed_by) for each in trace.autograd.backward_passes]


# -- interrupts


class Interrupting:
    """Raises KeyboardInterrupt as one of the Python functions that run inside begins, in this thread: Python looks for
    signals there. Not as a generator goes on, which it also does to be closed, where Python throws away what is raised.

    The collector is off meanwhile: it calls functions too, and when is a matter of what other tests left behind.
    """

    def __init__(self, at: int) -> None:
        self.left = at
        self.came = False

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        self.left -= event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if self.left == 0 and not self.came:
            self.came = True
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupting:
        gc.disable()
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()


@pytest.mark.parametrize("options", [tl.CaptureOptions(), KEEP, READY])
def test_an_interrupt_at_any_moment_leaves_a_pass_that_is_closed_once_and_a_trace_that_goes_on(
    options: tl.CaptureOptions,
) -> None:
    model, x = model_of(), inputs()
    at, seen = 1, set()
    while True:
        trace = tl.trace(model, x, capture=options)
        loss = trace.output.sum()
        interrupting = Interrupting(at)
        with contextlib.suppress(KeyboardInterrupt), interrupting:
            loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        opened = events_of(trace, PassOpened)
        seen.add(len(opened))
        require_closed_in_order(trace)
        assert [event.pass_number for event in opened] == list(range(len(opened)))
        assert len(events_of(trace, PassJournaled)) == len(opened)
        assert summary(trace)[-1] == ("ok", "trigger_return")
        if interrupting.came:
            assert all(each in {("error", "engine_error"), ("ok", "trigger_return")} for each in summary(trace))
        trace.check_metadata_invariants()
        if not interrupting.came:
            break
        at += 7
    assert seen >= {1, 2}


def test_a_pass_whose_engine_was_never_reached_tells_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    trace = tl.trace(model_of(), inputs(), capture=KEEP)
    loss = trace.output.sum()
    with monkeypatch.context() as patch:
        patch.setattr("torchlens.backward.diary.Diary._tell_and_hook", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loss.backward(retain_graph=True)
    loss.backward()
    first, second = trace.autograd.backward_passes
    assert (first.status, first.error_type, first.num_grad_fn_calls) == ("error", "builtins.KeyboardInterrupt", 0)
    assert second.status == "ok"


def test_a_pass_in_whose_opening_something_failed_is_closed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    trace = tl.trace(model_of(), inputs(), capture=KEEP)
    loss = trace.output.sum()
    with monkeypatch.context() as patch:
        patch.setattr("torchlens.backward.diary.Diary._tell_and_hook", failing)
        loss.backward(retain_graph=True)
    (told,) = trace.autograd.backward_passes
    assert told.status != "ok" or told.incomplete_reason is not None
    assert "ValueError" in str(told.incomplete_reason)
    require_closed_in_order(trace)


class SelfDifferentiating(torch.autograd.Function):
    """A way back that differentiates what it has just made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():  # type: ignore[no-untyped-call]  # torch does not annotate it
            product = x * gradients[0]
            (slope,) = torch.autograd.grad(product.exp().sum(), product, create_graph=True)
        return slope * product


def test_what_a_run_made_that_was_recorded_no_more_is_of_the_order_of_its_maker_and_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass tells what it made breadth first: the slope before the exponential whose firing made it."""

    def lost() -> int:
        node: Any = compat.running_node()
        if node.name() == "SelfDifferentiatingBackward":
            raise MemoryError("none left")
        return compat.sequence_number()

    monkeypatch.setattr("torchlens.backward.hooks._next_number", lost)
    x = inputs()
    function: Any = SelfDifferentiating
    trace = tl.trace(lambda x: function.apply(x * 2), x)
    torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    assert [one.status for one in trace.autograd.backward_passes] == ["incomplete"]
    nodes = trace.autograd.grad_fns
    exponential = next(node for node in nodes if node.type == "exp")
    slope = next(node for node in nodes if node.differentiates == exponential.label)
    assert (exponential.order, slope.order) == (2, 3)
    trace.check_metadata_invariants()


class RaisingLate(SelfDifferentiating):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        SelfDifferentiating.backward(ctx, *gradients)
        raise ZeroDivisionError


@pytest.mark.parametrize("function", [SelfDifferentiating, RaisingLate])
def test_what_a_firing_made_is_told_of_it_also_where_it_raised_in_the_end(function: Any) -> None:
    x = inputs()
    trace = tl.trace(lambda x: function.apply(x * 2), x)
    with contextlib.suppress(ZeroDivisionError):
        torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    outer, inner = trace.autograd.backward_passes
    assert (outer.status == "error") == (function is RaisingLate)
    nodes = trace.autograd.grad_fns
    own, exponential = (next(node for node in nodes if kind in node.class_name) for kind in (function.__name__, "Exp"))
    assert (exponential.order, exponential.differentiates, exponential.origin_backward_pass) == (2, own.label, 1)
    assert (inner.order, inner.origin_backward_pass) == (2, 1)
    trace.check_metadata_invariants()


def test_a_node_that_could_not_be_told_is_named_as_nobodys_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run within the firing fails to tell its nodes, and they run all the same."""
    tell, opened = Diary._tell_and_hook, list[Any]()

    def failing(diary: Diary, made: Any, *given: Any) -> None:
        opened.append(made)
        if len(opened) == 2:
            raise MemoryError("none left")
        tell(diary, made, *given)

    monkeypatch.setattr(Diary, "_tell_and_hook", failing)
    x = inputs()
    function: Any = SelfDifferentiating
    trace = tl.trace(lambda x: function.apply(x * 2), x)
    torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    assert [one.status for one in trace.autograd.backward_passes] == ["incomplete"] * 2
    check_trace(trace)


def test_a_pass_during_which_the_trace_is_disarmed_is_incomplete() -> None:
    model = model_of()
    trace = tl.trace(model, inputs(), capture=KEEP)
    weight = model[0].weight
    taken = weight.register_hook(lambda gradient: trace.autograd.disarm())
    trace.output.sum().backward()
    taken.remove()
    (told,) = trace.autograd.backward_passes
    assert (told.status, told.closed_by) == ("incomplete", "sync_point")
    assert "disarmed" in str(told.incomplete_reason)
    trace.check_metadata_invariants()


def test_a_trace_whose_recording_failed_is_freed_though_its_refusal_was_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    def seen() -> weakref.ref[tl.Trace]:
        trace = tl.trace(model_of(), inputs(), capture=KEEP)
        loss = trace.output.sum()
        with monkeypatch.context() as patch:
            patch.setattr("torchlens.backward.diary.Diary._tell_and_hook", failing)
            loss.backward(retain_graph=True)
        for _ in range(2):
            with pytest.raises(BackwardRefused, match="ValueError") as raised:
                trace.backward(loss)
            assert raised.value.code == "backward_recording_failed"
            assert isinstance(raised.value.__cause__, ValueError)
        return weakref.ref(trace)

    held = seen()
    gc.collect()
    assert held() is None


# -- deep graphs


def test_a_kept_graph_far_behind_the_output_is_walked_to_the_output() -> None:
    trace = tl.trace(model_of(), inputs(), capture=KEEP)
    loss = trace.output.sum()
    for _ in range(31_000):
        loss = loss * 1.0
    loss.backward()
    (told,) = trace.autograd.backward_passes
    assert (told.trigger, told.status) == ("autograd_backward", "ok")
    trace.cleanup()


# -- odd gradients


class Nested(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        nested = self.inner(torch.nested.as_nested_tensor([x[:1], x[1:]], layout=self.layout))
        return nested.values() if self.layout is torch.jagged else nested.to_padded_tensor(0.0)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_gradients_that_have_no_one_shape_are_told_without_one(layout: torch.layout) -> None:
    trace = tl.trace(Nested(layout), torch.ones(3, 4, requires_grad=True), capture=KEEP)
    trace.output.sum().backward()
    (told,) = trace.autograd.backward_passes
    assert (told.status, told.incomplete_reason) == ("ok", None)
    assert () in {tuple(event.like[0]) for event in events_of(trace, GradientObserved)}
    trace.check_metadata_invariants()


class Asked(Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Asked.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Handing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.tanh(self.inner(x))
        made.register_hook(lambda gradient: gradient.as_subclass(Asked))
        return made * 2


def test_a_gradient_of_a_subclass_is_told_without_asking_the_subclass() -> None:
    counts = []
    for is_traced in (False, True):
        model, x = Handing(), inputs()
        trace = tl.trace(model, x, capture=KEEP) if is_traced else None
        out = model(x) if trace is None else trace.output
        Asked.calls = 0
        out.sum().backward()
        counts.append(Asked.calls)
    assert counts[0] == counts[1]
