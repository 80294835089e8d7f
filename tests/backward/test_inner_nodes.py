"""Inner nodes: the work of every node that a call made is charged to the op of that call, and to its module."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from tests.counting import bare
from tests.counting import traced as traced_as_built
from torchlens.errors import BackwardRefused
from torchlens.reading.failed import TraceCaptureError
from torchlens.testing import Program, programs

READY = tl.CaptureOptions(backward_ready=True)


def differentiated(model: Callable[..., Any], *args: Tensor) -> tl.Trace:
    trace = tl.trace(model, list(args), capture=READY, save="none")
    trace.backward(trace.output.sum())
    assert trace.check_metadata_invariants()
    return trace


def by_op(trace: tl.Trace) -> dict[str, int]:
    return {
        label: int(flops) for label, flops in trace.autograd.backward_passes[0].flops_attribution.flops_by_op().items()
    }


def homeless(trace: tl.Trace) -> dict[str, int]:
    """FLOPs of firings that are charged to no op."""
    account = trace.autograd.backward_passes[0].flops_attribution
    return {row.grad_fn_label: int(row.flops) for row in account.rows if row.flops and row.op_label is None}


def test_the_work_of_a_linear_layer_on_a_batch_of_matrices_is_that_of_its_op_and_module() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    trace = differentiated(model, torch.randn(2, 5, 4))
    assert by_op(trace) == {"linear_2_3": 720, "linear_1_1": 480}
    addmm, view = trace.autograd.grad_fns["addmm_back_1_3"], trace.autograd.grad_fns["view_back_1_2"]
    assert (view.op_label, view.inner_of) == ("linear_2_3", None)
    assert (addmm.has_op, addmm.op_label, addmm.inner_of) == (False, None, "linear_2_3")
    assert "inside linear_2_3" in repr(addmm)
    assert {op.op_label for op in trace.autograd.dispatched_ops.find("aten.mm")} == {"linear_2_3", "linear_1_1"}
    tree = tl.report.cost_tree(trace)
    assert [(row.row_id, row.self_backward_flops) for row in tree] == [
        ("self:1", 0),
        ("0:1", 480),
        ("1:1", 0),
        ("2:1", 720),
        ("::unattributed", 0),
    ]


def test_what_gathers_a_gradient_and_what_makes_a_loss_are_inner_nodes_of_no_op() -> None:
    trace = tl.trace(nn.Linear(4, 6), torch.randn(2, 5, 4), capture=READY)
    trace.backward((trace.output @ torch.randn(6, 2)).sum())
    apart = [node.class_name for node in trace.autograd.grad_fns if not node.has_op and node.inner_of is None]
    loss = ["MmBackward0", "SumBackward0", "UnsafeViewBackward0", "ViewBackward0"]
    assert sorted(apart) == ["AccumulateGrad", "AccumulateGrad", *loss]


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (grad @ x.transpose(-1, -2)) @ x


class Odd(nn.Module):
    """Calls that make several nodes: products that broadcast, a layer that runs twice, an ``einsum``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shared = nn.Parameter(torch.randn(4, 6)), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(self.shared(x @ self.weight))
        z = torch.einsum("bij,bkj->bik", y, Doubling.apply(y))
        return torch.matmul(z.expand(3, *z.shape), y)


def test_products_that_broadcast_shared_layers_and_functions_of_ones_own_are_charged_to_their_calls() -> None:
    trace = differentiated(Odd(), torch.randn(2, 5, 4))
    assert homeless(trace) == {}
    found = by_op(trace)
    assert [label for label in found if label.startswith("linear")] == ["linear_1_2:2", "linear_1_2:1"]
    assert found["linear_1_2:1"] == found["linear_1_2:2"] == 2 * 2 * (2 * 5) * 6 * 6
    assert found["matmul_1_1"] == 2 * (2 * 5) * 4 * 6, "its input needs no gradient"
    assert found["doubling_1_3"] == 2 * 2 * (2 * 5 * 5 * 6)


def test_attention_is_charged_to_the_calls_that_it_is_made_of() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    trace = differentiated(Attending(), torch.randn(2, 5, 8))
    assert homeless(trace) == {}
    assert {label.partition("_")[0] for label in by_op(trace)} == {"linear", "bmm"}


def gpt2() -> tuple[nn.Module, Tensor]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=16)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, ids: Tensor) -> Tensor:
            return self.model(ids).logits

    return Logits().eval(), torch.randint(0, 40, (2, 7))


def encoder() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(3, 5, 8, requires_grad=True)


@pytest.mark.parametrize("build", [encoder, gpt2])
def test_modules_have_the_work_that_torchs_own_counter_gives_them(
    build: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    model, x = build()
    with FlopCounterMode(display=False) as counted:
        loss = model(x).sum()
        loss.backward()
    trace = differentiated(model, x)
    assert homeless(trace) == {}
    tree = tl.report.cost_tree(trace)
    assert tree.rows[0].subtree_backward_flops == tree.executed_flops > 0
    right = {name.partition(".")[2]: sum(told.values()) for name, told in counted.get_flop_counts().items()}
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name in right]
    assert linears
    for name in linears:
        assert tree[f"{name}:1"].subtree_forward_backward_flops == right[name], name


def test_what_was_made_before_the_forward_is_charged_to_no_op_of_it() -> None:
    weight = nn.Parameter(torch.randn(4, 4))

    class Closed(nn.Module):
        def __init__(self, *, is_late: bool) -> None:
            super().__init__()
            self.linear, self.made, self.is_late = nn.Linear(4, 4), [weight @ weight], is_late

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) @ self.made[0] if self.is_late else self.linear(x @ self.made[0])

    early = differentiated(Closed(is_late=False), torch.randn(2, 5, 4))
    assert sum(homeless(early).values()) == 320 + 256, "nor is it told from that which the first call made"
    late = differentiated(Closed(is_late=True), torch.randn(2, 5, 4))
    assert list(homeless(late).values()) == [256]


def test_a_reentrant_checkpoint_is_no_inner_node_of_what_follows_it() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.norm = (
                nn.Linear(4, 8),
                nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
                nn.LayerNorm(8),
            )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(checkpoint(self.inner, self.first(x), use_reentrant=True))
            return out

    trace = differentiated(Checkpointed(), torch.randn(8, 4))
    (node,) = [node for node in trace.autograd.grad_fns if node.class_name == "CheckpointFunctionBackward"]
    assert (node.has_op, node.inner_of) == (False, None)
    assert by_op(trace) == {"linear_1_1": 512}
    assert homeless(trace)[node.label] == 1024, "it runs the forward again"
    tree = tl.report.cost_tree(trace)
    assert tree["norm:1"].self_backward_flops == 0
    assert tree[node.label].self_recompute_flops == 1024


@given(program=programs())
@settings(max_examples=40)
def test_all_work_behind_an_op_is_charged_to_an_op(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if bare(program.build) is None:
                return
        except Exception:  # noqa: BLE001  # a program that raises by itself
            return
        try:
            trace = traced_as_built(program.build)
        except (TraceCaptureError, BackwardRefused):  # of a leaf made on the way no capture knows
            return
        nodes = {node.label: node for node in trace.autograd.grad_fns}
        behind, waiting = set[str](), [label for label, node in nodes.items() if node.has_op]
        while waiting:
            label = waiting.pop()
            if label not in behind:
                behind.add(label)
                waiting += [one for one in nodes[label].children if nodes[one].has_op or not nodes[one].is_custom]
        for op in trace.autograd.dispatched_ops.counted:
            if op.grad_fn_label in behind and nodes[op.grad_fn_label].order == 1:
                assert op.op_label is not None, op
        for node in nodes.values():
            assert node.inner_of is None or (node.label in behind and not node.has_op)
        assert trace.check_metadata_invariants()
        trace.cleanup()
