"""Labels, orders and places of autograd nodes, on real captures: the worked examples that a reader learns them from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from projections.promises import invariants


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(self.fc(x))
        return x


@contextmanager
def traced(model: nn.Module, *inputs: Tensor) -> Iterator[tl.Trace]:
    trace = tl.trace(model, inputs if len(inputs) > 1 else inputs[0])
    try:
        yield trace
        assert invariants.check(trace.tables) == []
    finally:
        trace.cleanup()


def labels(trace: tl.Trace) -> list[str]:
    return [node.label for node in trace.autograd.grad_fns]


def out(trace: tl.Trace) -> Tensor:
    found: Tensor = trace["output_1"].out
    return found


def test_nodes_are_numbered_breadth_first_from_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with traced(model, torch.ones(5, 4)) as trace:
        trace.backward(out(trace).sum())
        assert [
            (node.label, node.class_name, node.op_label, node.param_address) for node in trace.autograd.grad_fns
        ] == [
            ("sum_back_1_1", "SumBackward0", None, None),
            ("addmm_back_1_2", "AddmmBackward0", "linear_2_3", None),
            ("accumulategrad_back_1_3", "AccumulateGrad", None, "2.bias"),
            ("relu_back_1_4", "ReluBackward0", "relu_1_2", None),
            ("t_back_1_5", "TBackward0", None, None),
            ("addmm_back_2_6", "AddmmBackward0", "linear_1_1", None),
            ("accumulategrad_back_2_7", "AccumulateGrad", None, "2.weight"),
            ("accumulategrad_back_3_8", "AccumulateGrad", None, "0.bias"),
            ("t_back_2_9", "TBackward0", None, None),
            ("accumulategrad_back_4_10", "AccumulateGrad", None, "0.weight"),
        ]


def test_a_loop_does_not_show_in_the_labels_and_a_second_pass_numbers_what_is_new() -> None:
    with traced(Looped(), torch.ones(2, 4)) as trace:
        result = out(trace)
        result.sum().backward(retain_graph=True)
        first = [
            "sum_back_1_1",
            "tanh_back_1_2",
            "addmm_back_1_3",
            "accumulategrad_back_1_4",
            "tanh_back_2_5",
            "t_back_1_6",
            "addmm_back_2_7",
            "accumulategrad_back_2_8",
            "t_back_2_9",
        ]
        assert labels(trace) == first
        (result**2).mean().backward()
        assert labels(trace) == [*first, "mean_back_1_10", "pow_back_1_11"]
        nodes = trace.autograd.grad_fns
        assert nodes["tanh_back_1_2"].op_label == "tanh_1_2:2"
        assert nodes["tanh_back_2_5"].op_label == "tanh_1_2:1"
        assert nodes["accumulategrad_back_1_4"].parents == ["addmm_back_1_3", "addmm_back_2_7"]
        assert nodes["addmm_back_1_3"].call_labels == ["addmm_back_1_3:1", "addmm_back_1_3:2"]
        assert nodes["sum_back_1_1"].call_labels == ["sum_back_1_1:1"]
        assert nodes["mean_back_1_10"].call_labels == ["mean_back_1_10:1"]


MADE = (
    ("mul_back_1_13", "pow_back_1_2"),
    ("mul_back_2_14", "pow_back_1_2"),
    ("pow_back_2_15", "pow_back_1_2"),
    ("tanhbackward_back_1_16", "tanh_back_1_3"),
    ("mm_back_1_17", "addmm_back_1_4"),
    ("t_back_3_18", "addmm_back_1_4"),
    ("tanhbackward_back_2_19", "tanh_back_2_6"),
    ("mm_back_2_20", "addmm_back_2_8"),
    ("t_back_4_21", "addmm_back_2_8"),
)


def test_nodes_that_a_pass_makes_are_numbered_firing_by_firing_and_those_of_user_code_are_of_order_one() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with traced(Looped(), x) as trace:
        (gradient,) = torch.autograd.grad((out(trace) ** 2).sum(), x, create_graph=True)
        made = list(trace.autograd.grad_fns)[12:]
        assert tuple((node.label, node.differentiates) for node in made) == MADE
        assert {(node.order, node.origin_backward_pass) for node in made} == {(2, 1)}
        gradient.pow(2).sum().backward()
        assert labels(trace)[21:] == ["sum_back_2_22", "pow_back_3_23"]
        assert [node.order for node in trace.autograd.grad_fns] == [1] * 12 + [2] * 9 + [1] * 2
        passes = trace.autograd.backward_passes
        assert [one.order for one in passes] == [1, 2]
        assert [one.origin_backward_pass for one in passes] == [None, 1]
        assert [one.order_attribution_coverage for one in passes] == [1.0, 1.0]
        del gradient


def test_the_third_order_is_one_above_the_second() -> None:
    x = torch.full((2, 4), 0.5, requires_grad=True)
    with traced(Looped(), x) as trace:
        (first,) = torch.autograd.grad(out(trace).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        second.sum().backward()
        orders = [node.order for node in trace.autograd.grad_fns]
        assert set(orders) == {1, 2, 3}
        assert [one.order for one in trace.autograd.backward_passes] == [1, 2, 3]
        assert [one.order_attribution_coverage for one in trace.autograd.backward_passes] == [1.0] * 3
        for node in trace.autograd.grad_fns:
            if node.order and node.order > 1:
                assert trace.autograd.grad_fns[node.differentiates].order == node.order - 1
        del first, second


class Shared(nn.Module):
    """A value that goes two ways: the engine adds the gradients that come back, in no node's own work."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x)
        return self.act(y) * y


def test_the_sum_of_gradients_that_meet_is_made_by_the_node_that_ran() -> None:
    x = torch.full((3,), 0.5, requires_grad=True)
    with traced(Shared(), x) as trace:
        (gradient,) = torch.autograd.grad(out(trace).sum(), x, create_graph=True)
        nodes = trace.autograd.grad_fns
        (added,) = [node for node in nodes if node.class_name == "AddBackward0"]
        assert added.order == 2
        assert added.differentiates in {"tanh_back_1_3", "mul_back_1_2"}
        assert trace.autograd.last_backward_pass.order_attribution_coverage == 1.0
        del gradient


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.blk(x)
        return self.fc(x) * 2


PLACES: dict[str, tuple[tuple[str, ...], Any]] = {
    "sum_back_1_1": ((), None),
    "pow_back_1_2": ((), None),
    "mul_back_1_3": ((), "paired"),  # at root level, though what it was given came out of a module
    "addmm_back_1_4": (("fc",), "paired"),
    "accumulategrad_back_1_5": (("fc",), "paired"),
    "tanh_back_1_6": (("blk", "blk.1"), "paired"),
    "t_back_1_7": (("fc",), "inferred"),
    "addmm_back_2_8": (("blk", "blk.0"), "paired"),
}


def test_nodes_belong_in_the_modules_of_their_ops_and_those_of_the_loss_nowhere() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    with traced(Nested(), x) as trace:
        (out(trace) ** 2).sum().backward()
        nodes = trace.autograd.grad_fns
        assert {
            node.label: (tuple(node.modules), node.module_membership_source) for node in list(nodes)[: len(PLACES)]
        } == PLACES
        assert {tuple(node.modules) for node in nodes if node.class_name == "TBackward0"} == {
            ("fc",),
            ("blk", "blk.0"),
        }
        (clone,) = [node for node in nodes if node.op_label == "input_1"]
        assert (tuple(clone.modules), clone.module_membership_source) == ((), "paired")
        assert nodes[clone.children[0]].module_membership_source in (None, "paired")  # the caller's own leaf
        assert tuple(nodes[clone.children[0]].modules) == ()


def test_what_a_pass_took_in_a_module_call_is_the_time_of_its_nodes() -> None:
    with traced(Nested(), torch.ones(2, 4)) as trace:
        assert trace.module_calls["fc:1"].backward_duration is None
        out(trace).sum().backward()
        inner = [trace.module_calls[label].backward_duration for label in ("blk.0:1", "blk.1:1")]
        assert None not in inner
        assert trace.module_calls["blk:1"].backward_duration == pytest.approx(sum(inner))
        assert trace.modules["blk"].total_backward_duration == pytest.approx(
            sum(trace.module_calls[label].backward_duration for label in ("blk:1", "blk:2"))
        )
