"""What autograd kept for the backward: the sizes are those of the saved tensors, and looking changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from torchlens import compat

MEASURED = tl.CaptureOptions(measure_autograd_memory=True)


def measured(model: Any, *args: Tensor, **kwargs: Any) -> tl.Trace:
    return tl.trace(model, list(args), capture=MEASURED, save="none", **kwargs)


@pytest.fixture
def mlp() -> tl.Trace:
    return measured(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(5, 4))


def test_an_op_tells_what_its_node_saved(mlp: tl.Trace) -> None:
    told = {op.label: (op.autograd_memory, op.num_autograd_tensors) for op in mlp.compute_ops}
    assert told == {
        "linear_1_1": (4 * 20, 1),  # its input, for the gradient of the weight; the input itself needs none
        "relu_1_2": (4 * 30, 1),  # its result
        "linear_2_3": (4 * (30 + 18), 2),  # its input and its weight
    }
    assert repr(mlp.ops["linear_1_1"].autograd_memory) == "Bytes('80 B')"
    assert mlp.ops["input_1"].autograd_memory is None


def test_a_sum_counts_memory_once_that_several_keep(mlp: tl.Trace) -> None:
    assert mlp.total_autograd_memory == 4 * (20 + 30 + 18), "the result of the relu is the input of the second layer"
    assert mlp.modules["1"].total_autograd_memory == 4 * 30
    assert mlp.modules["2"].total_autograd_memory == 4 * (30 + 18)
    assert mlp.module_calls["self:1"].autograd_memory == mlp.total_autograd_memory
    assert mlp.layers["relu_1_2"].total_autograd_memory == mlp.layers["relu_1_2"].autograd_memory == 4 * 30


def test_the_passes_of_a_layer_keep_their_own_and_share_a_weight() -> None:
    layer = nn.Linear(3, 3)

    def loop(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(layer(x))
        return x

    trace = measured(loop, torch.rand(2, 3, requires_grad=True))
    assert trace["tanh_1_2"].total_autograd_memory == 4 * 4 * 6
    assert trace["linear_1_1"].autograd_memory == 4 * (6 + 9)
    assert trace["linear_1_1"].total_autograd_memory == 4 * (4 * 6 + 9)


def test_nothing_is_told_where_it_was_not_asked_or_autograd_was_off() -> None:
    model, x = nn.Linear(2, 2), torch.rand(1, 2)
    unasked = tl.trace(model, x)
    assert unasked.ops[1].autograd_memory is unasked.ops[1].num_autograd_tensors is None
    assert unasked.total_autograd_memory is unasked.modules["self"].total_autograd_memory is None
    with torch.no_grad():
        off = tl.trace(model, x, capture=tl.CaptureOptions(measure_autograd_memory=True))
    assert off.ops[1].autograd_memory is off.total_autograd_memory is None


def test_what_needs_no_gradient_keeps_nothing() -> None:
    trace = measured(torch.exp, torch.rand(3))
    assert (trace.ops[1].autograd_memory, trace.ops[1].num_autograd_tensors) == (0, 0)
    assert trace.total_autograd_memory == 0


def test_a_tensor_that_is_handed_on_is_kept_by_the_call_that_made_it() -> None:
    trace = measured(lambda x: F.dropout(x.exp(), 0.5, training=False), torch.rand(3, requires_grad=True))
    assert [op.autograd_memory for op in trace.compute_ops] == [12, 0]


def test_inner_nodes_belong_to_the_call_that_made_them() -> None:
    trace = measured(F.cross_entropy, torch.rand(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3]))
    (op,) = trace.compute_ops
    assert op.grad_fn_class_name == "NllLossBackward0"
    assert op.autograd_memory >= 4 * 20 + 8 * 4, "the log-softmax behind it, which is no op of its own, and the targets"


def test_several_results_tell_what_their_call_kept_and_sums_count_it_once() -> None:
    trace = measured(lambda x: x.max(1)[0] + x.max(1)[1], torch.rand(3, 4, requires_grad=True))
    values, indices = trace.ops["max_1_1"], trace.ops["max_2_2"]
    assert values.autograd_memory == indices.autograd_memory == 8 * 3
    assert trace.total_autograd_memory == 2 * 8 * 3


def test_a_checkpoint_keeps_its_inputs_and_is_not_run_again() -> None:
    runs: list[int] = []

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def inner(self, x: Tensor) -> Tensor:
            runs.append(1)
            return torch.tanh(self.layer(x))

        def forward(self, x: Tensor) -> Tensor:
            out = checkpoint(self.inner, x, use_reentrant=False)
            assert isinstance(out, Tensor)
            return out.exp()

    trace = measured(Checkpointed(), torch.rand(2, 4, requires_grad=True))
    assert {op.func_name: op.autograd_memory for op in trace.compute_ops if op.func_name in ("tanh", "linear")} == {
        "linear": 4 * 8,
        "tanh": 4 * 8,  # the same
    }
    assert trace.ops["exp_1_3"].autograd_memory == 4 * 8
    assert len(runs) == 1
    trace.output.sum().backward()
    assert len(runs) == 2


def test_what_a_hook_makes_of_a_tensor_counts_as_far_as_it_is_one() -> None:
    def packed(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: ("half", kept.half()), lambda kept: kept[1].float()):
            return x.exp()

    trace = measured(packed, torch.rand(3, requires_grad=True))
    assert {op.func_name: op.autograd_memory for op in trace.compute_ops}["exp"] == 6


def test_looking_leaves_the_check_of_versions_as_it_is() -> None:
    x = torch.rand(3, requires_grad=True)
    out = measured(lambda x: x.exp().exp(), x).output
    out.sum().backward()
    assert x.grad is not None
    trace = measured(torch.exp, torch.rand(3, requires_grad=True))
    with torch.no_grad():
        trace.output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trace.output.sum().backward()


def test_a_write_through_a_view_does_not_tell() -> None:
    def write(x: Tensor) -> Tensor:
        out = torch.zeros(2, 3)
        out[0] = x
        return out * x

    trace = measured(write, torch.rand(3, requires_grad=True))
    assert trace.ops["setitem_1_2"].autograd_memory is None
    assert trace.ops["mul_1_3"].autograd_memory is not None


def test_a_graph_that_the_forward_freed_keeps_nothing() -> None:
    def force(x: Tensor) -> Tensor:
        energy = (x**2).sum()
        (gradient,) = torch.autograd.grad(energy, x)
        return gradient

    trace = measured(force, torch.rand(3, requires_grad=True))
    assert trace.ops["pow_1_1"].autograd_memory == 0


def test_a_failed_and_a_stored_forward_tell_it_too(tmp_path: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        raise ValueError(x.exp().sum())

    with pytest.raises(tl.TraceCaptureError) as failed:
        measured(lambda x: broken(x.exp()), torch.rand(3, requires_grad=True), journal=tmp_path / "j")
    assert failed.value.partial_trace is not None
    failed.value.partial_trace.cleanup()
    again = tl.load(tmp_path / "j")
    assert again.status == "failed"
    assert again.options == {"measure_autograd_memory": True}
    assert [op.autograd_memory for op in again.compute_ops] == [12, 12, 0]
    again.cleanup()


def test_it_is_refused_where_torch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "TELLS_SAVED", False)
    with pytest.raises(tl.errors.CompatibilityError) as refused:
        measured(torch.exp, torch.rand(3))
    assert refused.value.code == "autograd_memory_unavailable"
    assert tl.trace(torch.exp, torch.rand(3)).num_ops == 1
