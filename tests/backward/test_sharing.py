"""One run over several captures, runs of several threads, and runs in which torch transforms the gradients."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from journal.events import GradientObserved, NodeFired, NodesFound, PassJournaled, PassOpened
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
from torchlens.backward.triggers import Backwards

KEEP = tl.CaptureOptions(save_grads=True)


def linear(seed: int, inside: int = 3, outside: int = 3) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inside, outside)


def refusal_of(trace: tl.Trace) -> Exception | None:
    assert isinstance(trace.backwards, Backwards)
    assert trace.backwards.diary is not None
    return trace.backwards.diary.refusal


# -- several captures


def test_captures_that_share_a_run_each_tell_their_own_part_of_it() -> None:
    left = tl.trace(linear(0), torch.ones(2, 3), capture=KEEP)
    right = tl.trace(linear(1), torch.ones(2, 3), capture=KEEP)
    left.backward((left.output * right.output).sum())
    for trace, trigger in ((left, "backward"), (right, "autograd_backward")):
        assert [event.trigger for event in events_of(trace, PassOpened)] == [trigger]
        assert sorted(fired(trace)) == sorted(
            ["SumBackward0", "MulBackward0", "AddmmBackward0", "TBackward0", "AccumulateGrad", "AccumulateGrad"]
        )
        require_closed_in_order(trace)
        require_fired_once(trace)
    left.cleanup()
    right.cleanup()


def test_one_capture_on_the_output_of_another_leads_back_to_it() -> None:
    lower = tl.trace(linear(0), torch.ones(2, 3), capture=KEEP)
    upper = tl.trace(linear(1, 3, 2), torch.relu(lower.output), capture=KEEP)
    upper.backward(upper.output.sum())
    assert "ReluBackward0" in fired(upper)  # between the two, and reached first from the upper one
    assert fired(lower).count("AddmmBackward0") == 1
    assert fired(upper).count("AddmmBackward0") == 1
    told = {row[0] for event in events_of(lower, NodesFound) for row in event.nodes}
    edges = {edge for event in events_of(lower, NodesFound) for row in event.nodes for edge in row[4] if edge}
    assert {number for number, _ in edges} <= told
    upper.cleanup()
    lower.cleanup()


def test_a_weight_that_two_captures_use_gets_its_gradient_in_both() -> None:
    model = linear(0)
    first = tl.trace(model, torch.ones(2, 3), capture=KEEP)
    second = tl.trace(model, torch.zeros(2, 3), capture=KEEP)
    (first.output.sum() + second.output.sum()).backward()
    for trace in (first, second):
        leaves = {row[5] for event in events_of(trace, NodesFound) for row in event.nodes if row[6] is None}
        assert leaves == {-1, -2}
    assert same(model.weight.grad, next(g for g in kept(first).values() if g.shape == model.weight.shape))
    first.cleanup()
    second.cleanup()


def test_many_captures_of_which_one_is_meant_leave_the_others_silent() -> None:
    model = linear(0)
    traces = [tl.trace(model, torch.ones(2, 3)) for _ in range(5)]
    traces[2].output.sum().backward()
    assert [len(events_of(trace, PassOpened)) for trace in traces] == [0, 0, 1, 0, 0]
    for trace in traces:
        trace.cleanup()


def test_several_losses_are_the_roots_of_one_pass() -> None:
    trace = tl.trace(linear(0), torch.ones(2, 3))
    with trace.capture_backward():
        torch.autograd.backward([trace.output.sum(), trace.output.mean(), torch.ones((), requires_grad=True) * 2])
    (opened,) = events_of(trace, PassOpened)
    assert [edge is not None and names(trace)[edge[0]] for edge, _ in opened.roots] == [
        *("SumBackward0", "MeanBackward0", "MulBackward0")
    ]
    trace.cleanup()


# -- parts of a graph


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.reentrant = linear(0), linear(1), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=self.reentrant))  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_as_it_does_bare(reentrant: bool) -> None:  # as pytest gives it
    model, x = Checkpointed(reentrant=reentrant), torch.ones(2, 3, requires_grad=True)
    model(x).sum().backward()
    bare = parameter_gradients(model)
    model.zero_grad(set_to_none=True)
    trace = tl.trace(model, x, capture=KEEP)
    trace.backward(trace.output.sum())
    assert all(map(same, bare, parameter_gradients(model)))
    parents = [event.parent for event in events_of(trace, PassOpened)]
    assert parents == ([None, 0] if reentrant else [None])
    require_closed_in_order(trace)
    require_fired_once(trace)
    trace.cleanup()


def test_only_the_nodes_on_the_way_fire() -> None:
    model = nn.Sequential(linear(0), nn.Tanh(), linear(1))
    trace = tl.trace(model, torch.ones(2, 3), capture=KEEP)
    trace.backward(trace.output.sum(), inputs=[model[2].weight])
    assert set(fired(trace)) == {"SumBackward0", "AddmmBackward0", "TBackward0", "AccumulateGrad"}
    (opened,) = events_of(trace, PassOpened)
    assert opened.inputs is not None
    assert [edge is not None and names(trace)[edge[0]] for edge in opened.inputs] == ["AccumulateGrad"]
    trace.cleanup()


def test_gradients_add_up_over_passes_and_each_pass_tells_its_own() -> None:
    model = linear(0)
    trace = tl.trace(model, torch.ones(2, 3), capture=KEEP)
    for factor in (1.0, 2.0):
        trace.backward(trace.output.sum() * factor, retain_graph=True)
    first, second = kept(trace, 0), kept(trace, 1)
    shared = [edge for edge in first if first[edge].shape == model.weight.shape]
    assert same(first[shared[0]] * 2, second[shared[0]])
    assert same(model.weight.grad, first[shared[0]] * 3)
    trace.cleanup()


# -- threads


def test_runs_of_several_threads_over_one_capture_are_passes_of_their_own() -> None:
    trace = tl.trace(nn.Sequential(*[linear(n) for n in range(8)]), torch.ones(2, 3), capture=KEEP)
    losses = [trace.output.sum() * factor for factor in range(1, 5)]
    start = threading.Barrier(len(losses))

    def run(loss: Tensor) -> None:
        start.wait()
        for _ in range(5):
            torch.autograd.grad(loss, [*trace_parameters], retain_graph=True)

    trace_parameters = [param.handle for param in trace.params]
    threads = [threading.Thread(target=run, args=(loss,), name=f"worker {n}") for n, loss in enumerate(losses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trace.ops.labels
    assert refusal_of(trace) is None
    require_closed_in_order(trace)
    require_fired_once(trace)
    opened = events_of(trace, PassOpened)
    assert len(opened) == 20
    assert {event.thread for event in opened} == {f"worker {n}" for n in range(4)}
    fires: dict[int, int] = {}
    for event in events_of(trace, NodeFired):
        fires[event.pass_number] = fires.get(event.pass_number, 0) + 1
    assert len(set(fires.values())) == 1
    trace.cleanup()


# -- transformed gradients


def test_batched_gradients_are_told_and_not_kept() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    trace = tl.trace(nn.Sequential(linear(0), nn.Tanh()), x, capture=KEEP)
    seeds = torch.eye(6).reshape(6, 2, 3)
    (rows,) = torch.autograd.grad(trace.output, x, seeds, is_grads_batched=True, retain_graph=True)
    expected = torch.stack([torch.autograd.grad(trace.output, x, seed, retain_graph=True)[0] for seed in seeds])
    assert torch.equal(rows, expected)
    assert kept(trace, 0) == {}
    assert {event.like[0] for event in events_of(trace, GradientObserved, 0)} == {(2, 3)}
    assert kept(trace, 1)
    assert refusal_of(trace) is None
    trace.cleanup()


def test_a_function_transform_over_a_loss_of_the_capture_goes_through() -> None:
    trace = tl.trace(linear(0), torch.ones(2, 3), capture=KEEP)
    out = trace.output

    def scaled(factor: Tensor) -> Tensor:
        return (out * factor).sum()

    assert torch.allclose(torch.func.grad(scaled)(torch.ones(())), out.sum())
    jacobian: Any = torch.func.jacrev(lambda factor: out.flatten() * factor)(torch.ones(()))
    assert torch.equal(jacobian, out.flatten())
    assert trace.ops.labels
    assert refusal_of(trace) is None
    require_closed_in_order(trace)
    trace.backward(out.sum())
    trace.cleanup()


def test_a_run_within_a_captured_forward_is_part_of_that_forward() -> None:
    lower = tl.trace(linear(0), torch.ones(2, 3), capture=KEEP)
    held = lower.output

    class Differentiates(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                (found,) = torch.autograd.grad(held.sum(), held, retain_graph=True)
            torch.ops.aten._backward(held.sum(), [], None, True, False)
            return x + found

    upper = tl.trace(Differentiates(), torch.ones(2, 3))
    assert events_of(lower, PassOpened) == []
    assert events_of(upper, PassOpened) == []
    lower.backward(held.sum())
    assert [event.closed_by for event in events_of(lower, PassJournaled)] == ["trigger_return"]
    upper.cleanup()
    lower.cleanup()


def test_a_gradient_that_a_hook_of_the_users_changed_is_kept_as_it_flowed_on() -> None:
    trace = tl.trace(nn.Sequential(linear(0), nn.Tanh()), torch.ones(2, 3), capture=KEEP)
    trace.output.register_hook(lambda gradient: gradient * 10)
    trace.backward(trace.output.sum())
    assert any(torch.equal(gradient, torch.full((2, 3), 10.0)) for gradient in kept(trace).values())
    trace.cleanup()


def test_a_node_of_another_capture_that_is_a_constant_here_opens_no_pass_of_this_one() -> None:
    lower = tl.trace(linear(0), torch.ones(2, 3), capture=KEEP)
    held = lower.output

    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + held

    upper = tl.trace(Adds(), torch.ones(2, 3), capture=KEEP)
    lower.backward(held.sum(), retain_graph=True)
    torch.ops.aten._backward(held.sum(), [], None, True, False)
    assert [event.trigger for event in events_of(lower, PassOpened)] == ["backward", "implicit"]
    assert events_of(upper, PassOpened) == []
    upper.backward(upper.output.sum())
    assert len(events_of(upper, PassOpened)) == 1
    upper.cleanup()
    lower.cleanup()
