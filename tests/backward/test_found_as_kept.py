"""What ``save_grads=`` keeps is what the same selector finds afterwards: in gradients of ops, and in firings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import torchlens as tl
from projections.selecting.backward_terms import about
from tests.backward.test_policy import MODELS, Asks, asked, two_passes


def saved_ops(trace: tl.Trace) -> list[str]:
    return [op.label for op in trace.ops if op.autograd.num_saved_grads]


def saved_firings(trace: tl.Trace) -> tuple[str, ...]:
    return tuple(trace.autograd.grad_fn_calls.saved.labels)


def found_ops(trace: tl.Trace, selector: tl.Selector) -> list[str]:
    return [site.op.label for site in trace[selector]]


@pytest.mark.filterwarnings("ignore:save_grads")  # not every model has every op
@pytest.mark.parametrize("model", MODELS)
@given(asks=asked)
@settings(max_examples=25)
def test_what_a_selector_keeps_is_what_it_finds(model: str, asks: Asks) -> None:
    selector = asks[0]
    trace = two_passes(model, selector)
    assert saved_firings(trace) == trace.autograd.grad_fn_calls.matching(selector).labels
    if about(selector) in ("op", "gradient"):
        found = found_ops(trace, selector if about(selector) == "gradient" else tl.grad(selector))
        assert set(found) <= set(saved_ops(trace))  # ops whose values share a place have its gradient all alike
        assert places(trace, found) == places(trace, saved_ops(trace))


def places(trace: tl.Trace, labels: list[str]) -> set[tuple[int, int]]:
    ops = [trace.ops[label] for label in labels]
    return {(op.read("gradient_node_row"), op.read("grad_slot") or 0) for op in ops}


class Scaled(nn.Module):
    """Makes a leaf of its own, which stands at no node."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = torch.ones(4, requires_grad=True)
        return torch.relu(self.fc(x)) * self.scale


def scaled(save_grads: Any) -> tuple[tl.Trace, torch.Tensor]:
    torch.manual_seed(0)
    model = Scaled()
    trace = tl.trace(model, torch.randn(2, 4), capture=tl.CaptureOptions(save_grads=save_grads))
    return trace, model.scale


@pytest.mark.parametrize("selector", [tl.grad("ones_1_1"), tl.grad("relu_1_3"), tl.in_backward_pass(1)], ids=repr)
def test_gradients_of_leaves_and_those_that_were_returned_are_found(selector: tl.Selector) -> None:
    trace, scale = scaled(selector)
    relu = trace["relu_1_3"].autograd.grad_fn_handle
    torch.autograd.grad(trace.output.sum(), [scale, torch.autograd.graph.GradientEdge(relu, 0)])
    assert saved_ops(trace)
    assert saved_ops(trace) == found_ops(trace, selector)


def test_the_gradient_of_a_leaf_is_found_where_a_backward_gathered_it() -> None:
    trace, scale = scaled(True)
    trace.backward(trace.output.sum())
    (site,) = trace[tl.grad("ones_1_1")]
    assert torch.equal(site.grad, scale.grad)


def test_what_gathers_the_gradient_of_a_leaf_differentiates_no_op_and_is_chosen_as_such() -> None:
    trace, _ = scaled(tl.without_op())
    trace.backward(trace.output.sum())
    calls = trace.autograd.grad_fn_calls
    assert saved_firings(trace) == calls.matching(tl.without_op()).labels
    assert {call.label for call in calls.saved} == set(trace.autograd.grad_fns.without_op.labels)
    assert saved_ops(trace) == ["ones_1_1"]


def test_a_firing_is_found_by_the_results_whose_gradients_came() -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).split(2)[1]

    trace = tl.trace(Split(), torch.ones(4, requires_grad=True), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    calls = trace.autograd.grad_fn_calls
    assert len(calls.matching(tl.func("split") & tl.output(1))) == 1
    assert len(calls.matching(tl.func("split") & tl.output(0))) == 0
