"""Runs of the autograd engine are told to the captures whose nodes they reach, and change nothing for the caller."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal.events import (
    EngineEntered,
    GradientObserved,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassJournaled,
    PassOpened,
)
from tests.backward.observing import (
    events_of,
    fired,
    kept,
    names,
    parameter_gradients,
    require_closed_in_order,
    require_fired_once,
    same,
)
from torchlens.backward import engine
from torchlens.errors import BackwardRefused, ConfigurationError, RunCapabilityUnavailableError, TraceCleanedUpError


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def traced(model: nn.Module | None = None, x: Tensor | None = None, **options: object) -> tl.Trace:
    given = torch.linspace(-1, 1, 8).reshape(2, 4) if x is None else x
    return tl.trace(model or small(), given, capture=tl.CaptureOptions(**options))  # type: ignore[arg-type]


# -- the example


def test_a_backward_is_told_from_the_walk_to_the_last_step_of_its_close() -> None:
    trace = traced(save_grads=True)
    assert trace.backward(trace[trace.output_layers[0]].out.sum()) is trace
    (opened,) = events_of(trace, PassOpened)
    assert (opened.trigger, opened.policy, opened.accumulates, opened.parent) == ("backward", "True", True, None)
    assert opened.frame is not None
    assert opened.frame[0] == __file__
    (found,) = events_of(trace, NodesFound)
    assert [row[1] for row in found.nodes] == [
        *("SumBackward0", "AddmmBackward0", "AccumulateGrad", "TanhBackward0", "TBackward0", "AddmmBackward0"),
        *("AccumulateGrad", "AccumulateGrad", "TBackward0", "AccumulateGrad"),
    ]
    assert [row[5] for row in found.nodes if row[1] == "AccumulateGrad"] == [-4, -3, -2, -1]
    assert opened.roots == (((found.nodes[0][0], 0), ((), "float32", "cpu")),)
    assert sorted(fired(trace)) == sorted(row[1] for row in found.nodes)
    assert len(events_of(trace, EngineEntered)) == 1
    (end,) = events_of(trace, PassJournaled)
    assert (end.closed_by, end.exception, end.drain_queued) == ("trigger_return", None, False)
    require_closed_in_order(trace)
    trace.cleanup()


def test_what_leads_back_from_a_read_activation_has_no_node_of_our_copy() -> None:
    trace = traced()
    trace.output.sum().backward(retain_graph=True)
    without = names(trace)
    trace.backward(trace.ops["tanh_1_2"].out.sum(), retain_graph=True)
    assert "CloneBackward0" not in names(trace).values()
    assert [name for number, name in names(trace).items() if number not in without] == ["SumBackward0"]
    trace.cleanup()


# -- triggers


def test_each_trigger_is_told_apart() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    trace = traced(x=x, save_grads=True)
    loss = trace.output.sum()
    trace.backward(loss, retain_graph=True)
    with trace.capture_backward():
        loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    torch.autograd.backward([loss, trace.output.mean()], retain_graph=True)
    torch.autograd.grad(loss, x, retain_graph=True)
    assert [event.trigger for event in events_of(trace, PassOpened)] == [
        *("backward", "recording_backward", "autograd_backward", "autograd_backward", "autograd_grad")
    ]
    assert [event.accumulates for event in events_of(trace, PassOpened)] == [True, True, True, True, False]
    assert [len(event.roots) for event in events_of(trace, PassOpened)] == [1, 1, 1, 2, 1]
    assert [event.frame is None for event in events_of(trace, PassOpened)] == [False, False, True, True, True]
    require_closed_in_order(trace)
    trace.cleanup()


def test_seeds_are_told_where_they_were_given() -> None:
    trace = traced()
    out = trace.output
    out.backward(torch.ones_like(out), retain_graph=True)
    out.sum().backward(retain_graph=True)
    torch.autograd.backward([out.sum(), out], [None, torch.ones_like(out)])
    like = ((2, 3), "float32", "cpu")
    assert [event.seeds for event in events_of(trace, PassOpened)] == [(like,), (None,), (None, like)]
    trace.cleanup()


def test_under_grad_what_an_endpoint_got_is_told_though_it_did_not_fire() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    model = small()
    trace = traced(model, x, save_grads=True)
    out = trace.output
    to_x, to_out, to_weight = torch.autograd.grad((out**2).sum(), [x, out, model[0].weight])
    assert not any(event.node for event in events_of(trace, NodeFired) if names(trace)[event.node] == "AccumulateGrad")
    observed = {event.node: event for event in events_of(trace, GradientObserved)}
    gatherers = {row[5]: row[0] for event in events_of(trace, NodesFound) for row in event.nodes if row[6] is None}
    gradients = kept(trace)
    assert same(gradients[gatherers[None], 0], to_x)
    assert gatherers[-1] not in observed  # nothing was added to the parameter's gradient
    assert any(same(gradient, to_out) for gradient in gradients.values())
    assert to_weight.shape == model[0].weight.shape
    trace.cleanup()


def test_a_pure_endpoint_is_told_from_what_the_engine_returned() -> None:
    trace = traced(save_grads=True)
    out = trace.output
    (returned,) = torch.autograd.grad((out**2).sum(), out)
    assert "AddmmBackward0" not in fired(trace)
    assert same(next(iter(kept(trace).values())), returned)
    trace.cleanup()


def test_a_kept_activation_as_an_endpoint_stands_for_its_op() -> None:
    trace = traced(save_grads=True, backward_ready=True)
    hidden = trace["tanh_1_2"]
    copy = hidden.out
    (returned,) = torch.autograd.grad((copy**2).sum(), [copy])
    (made,) = trace.autograd.backward_passes
    assert made.inputs_subset == (hidden.autograd.grad_fn.label,)
    assert same(hidden.grad, returned)
    trace.cleanup()


def test_a_kept_activation_that_the_loss_goes_past_too_is_named_and_tells_no_gradient_of_its_op() -> None:
    trace = traced(save_grads=True, backward_ready=True)
    hidden = trace["tanh_1_2"]
    copy = hidden.out
    torch.autograd.grad((copy**2).sum() + trace.output.sum(), [copy])
    (made,) = trace.autograd.backward_passes
    assert made.inputs_subset == (hidden.autograd.grad_fn.label,)
    assert not hidden.autograd.grads
    trace.cleanup()


def backward_in_script(tensor: Tensor) -> Tensor:
    tensor.sum().backward()
    return tensor


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_backward_is_a_pass_that_the_engine_drained() -> None:
    trace = traced(save_grads=True)
    torch.jit.script(backward_in_script)(trace.output)
    assert [event.trigger for event in events_of(trace, PassOpened)] == ["implicit"]
    assert len(trace.ops) > 0  # a read from outside finalizes
    (end,) = events_of(trace, PassJournaled)
    assert (end.closed_by, end.drain_queued) == ("engine_drain", True)
    require_closed_in_order(trace)
    trace.cleanup()


def test_runs_past_torchs_python_code_are_passes_of_their_own() -> None:
    trace = traced(save_grads=True)
    loss = trace.output.sum()
    for _ in range(2):
        torch.ops.aten._backward(loss, [], None, True, False)
    assert [event.trigger for event in events_of(trace, PassOpened)] == ["implicit", "implicit"]
    assert len({event.task for event in events_of(trace, PassOpened)}) == 2
    assert len(trace.ops) > 0  # a read from outside finalizes
    require_closed_in_order(trace)
    require_fired_once(trace)
    assert [event.closed_by for event in events_of(trace, PassJournaled)] == ["engine_drain", "engine_drain"]
    assert kept(trace, 0).keys() == kept(trace, 1).keys()
    trace.cleanup()


def test_without_a_request_for_gradients_such_a_run_goes_by() -> None:
    trace = traced()
    torch.ops.aten._backward(trace.output.sum(), [], None, False, False)
    assert events_of(trace, PassOpened) == []
    trace.cleanup()


def test_a_backward_of_something_else_is_no_pass() -> None:
    model = small()
    trace = traced(model)
    model(torch.ones(2, 4)).sum().backward()
    torch.ones(2, requires_grad=True).sum().backward()
    assert events_of(trace, PassOpened) == []
    trace.cleanup()


# -- refusals


def test_a_loss_that_reaches_nothing_is_refused_and_torch_is_not_asked() -> None:
    model = small()
    trace = traced(model)
    other = model(torch.ones(2, 4)).sum()
    for loss in (other, torch.ones(()), trace.output.sum().detach()):
        with pytest.raises(BackwardRefused) as caught:
            trace.backward(loss)
        assert caught.value.code == "loss_not_connected"
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ConfigurationError) as wrong:
        trace.backward([trace.output.sum()])
    assert wrong.value.code == "loss_type_invalid"
    assert events_of(trace, PassOpened) == []
    trace.backward(trace.output.sum())
    trace.cleanup()


@pytest.mark.parametrize(
    ("context", "cause"), [(torch.no_grad, "torch.no_grad()"), (torch.inference_mode, "torch.inference_mode()")]
)
def test_a_capture_without_a_graph_refuses_naming_what_kept_it_off(context: Callable[[], object], cause: str) -> None:
    with context():  # type: ignore[attr-defined]
        trace = traced()
    with pytest.raises(BackwardRefused, match=cause.replace("(", r"\(").replace(")", r"\)")) as caught:
        trace.backward(trace.output.sum())
    assert caught.value.code == "backward_inference_only"
    trace.cleanup()


def test_an_inference_only_capture_names_its_option() -> None:
    trace = traced(inference_only=True)
    with pytest.raises(BackwardRefused, match="inference_only=True") as caught:
        trace.capture_backward()
    assert caught.value.code == "backward_inference_only"
    trace.cleanup()


def test_a_forward_that_turns_grad_back_on_keeps_its_backward() -> None:
    class TurnsOn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                return self.inner(x)  # type: ignore[no-any-return]

    with torch.no_grad():
        trace = traced(TurnsOn())
    trace.backward(trace.output.sum())
    assert len(events_of(trace, PassOpened)) == 1
    trace.cleanup()


def test_where_nothing_requires_a_gradient_no_loss_is_connected() -> None:
    model = small().requires_grad_(False)
    trace = traced(model)
    with pytest.raises(BackwardRefused) as caught:
        trace.backward(torch.ones((), requires_grad=True))
    assert caught.value.code == "loss_not_connected"
    trace.cleanup()


def test_a_trace_read_from_a_journal_has_no_graph_and_a_cleaned_one_nothing(tmp_path: Path) -> None:
    trace = tl.trace(small(), torch.ones(2, 4), journal=tmp_path / "a.journal")
    loss = trace.output.sum()
    trace.cleanup()
    with pytest.raises(TraceCleanedUpError):
        trace.backward(loss)
    loaded = tl.load(tmp_path / "a.journal")
    with pytest.raises(RunCapabilityUnavailableError) as caught:
        loaded.backward(loss)
    assert caught.value.code == "run_capability_unavailable"
    loaded.cleanup()


def test_a_disarmed_trace_hears_of_nothing_and_refuses() -> None:
    trace = traced(save_grads=True)
    loss = trace.output.sum()
    assert trace.backwards is not None
    trace.backwards.disarm()
    loss.backward(retain_graph=True)
    torch.ops.aten._backward(loss, [], None, False, False)
    assert events_of(trace, PassOpened) == []
    with pytest.raises(BackwardRefused) as caught:
        trace.backward(loss)
    assert caught.value.code == "backward_disarmed"
    trace.cleanup()


# -- what torch does stays as it is


def test_torch_has_its_function_back_when_the_last_trace_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    for name in ("_armed", "_replaced"):  # as if no other test had left a trace that is still held
        monkeypatch.setattr(engine, name, [])

    def held() -> tuple[Any, Any]:
        return torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward  # type: ignore[attr-defined]

    before = held()
    first, second = traced(), traced()
    assert not any(map(operator.is_, held(), before))
    first.cleanup()
    assert not any(map(operator.is_, held(), before))
    del second  # without a cleanup
    gc.collect()
    assert all(map(operator.is_, held(), before))


def test_gradients_of_parameters_are_bit_for_bit_those_of_a_bare_backward() -> None:
    model, x = small(), torch.linspace(-1, 1, 8).reshape(2, 4)
    model(x).pow(2).sum().backward()
    bare = parameter_gradients(model)
    for options in ({}, {"save_grads": True}):
        model.zero_grad(set_to_none=True)
        trace = traced(model, x, **options)
        trace.backward(trace.output.pow(2).sum())
        assert all(map(same, bare, parameter_gradients(model)))
        trace.cleanup()


class Broken(Exception):
    """The user's."""


def test_what_a_users_hook_raises_passes_unchanged_and_the_trace_goes_on() -> None:
    trace = traced(save_grads=True)
    error = Broken("in a hook")

    def raises(gradient: Tensor) -> None:
        raise error

    handle = trace.output.register_hook(raises)
    with pytest.raises(Broken) as caught:
        trace.backward(trace.output.sum(), retain_graph=True)
    assert caught.value is error
    handle.remove()
    trace.backward(trace.output.sum())
    first, second = events_of(trace, PassJournaled)
    assert (first.closed_by, first.message) == ("engine_error", "in a hook")
    assert first.exception == f"{__name__}.Broken"
    assert second.closed_by == "trigger_return"
    require_closed_in_order(trace)
    trace.cleanup()


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise Broken("in a Function")


def test_an_error_in_a_node_names_it() -> None:
    trace = traced()
    with pytest.raises(Broken):
        Failing.apply(trace.output).sum().backward()
    (end,) = events_of(trace, PassJournaled)
    assert end.raised_in is not None
    assert names(trace)[end.raised_in] == "FailingBackward"
    last = events_of(trace, NodeFired)[-1]
    assert (last.node, last.duration_ns) == (end.raised_in, None)
    trace.cleanup()


def test_a_freed_graph_is_torchs_own_error_and_a_pass() -> None:
    trace = traced()
    loss = trace.output.sum()
    trace.backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        trace.backward(loss)
    assert [event.closed_by for event in events_of(trace, PassJournaled)] == ["trigger_return", "engine_error"]
    require_closed_in_order(trace)
    trace.cleanup()


# -- create_graph


def test_nodes_that_a_run_makes_are_told_with_what_leads_to_their_makers() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    trace = traced(x=x)
    (gradient,) = torch.autograd.grad((trace.output**2).sum(), x, create_graph=True)
    (made,) = events_of(trace, NodesMade)
    assert {"TanhBackwardBackward0", "MmBackward0", "PowBackward0"} <= {row[1] for row in made.nodes}
    windows = [event.sequence for event in events_of(trace, NodeFired)]
    assert all(window is not None and window[0] <= window[1] for window in windows)
    (seen,) = events_of(trace, MakersSeen)
    assert all(node in names(trace) for _, node in seen.entries if node is not None)
    gradient.pow(2).sum().backward()
    assert [event.create_graph for event in events_of(trace, PassOpened)] == [True, False]
    assert "TanhBackwardBackward0" in [
        {row[0]: row[1] for row in made.nodes}.get(event.node) for event in events_of(trace, NodeFired, 1)
    ]
    require_closed_in_order(trace)
    trace.cleanup()
