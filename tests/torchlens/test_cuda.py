"""Captures on a CUDA device: what holds on the CPU holds there. Left out where there is none."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = "cuda:0"


class Mixed(nn.Module):
    """Convolutions, a norm in training, dropout, in-place writes, a loop, and one step on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x.relu_()
        for _ in range(2):
            x = torch.tanh(x) * 0.5
        x = self.drop(x)
        pooled = x.mean((2, 3))
        there = pooled.cpu() + 1
        out: Tensor = self.head(there.to(x.device))
        return out


def made() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Mixed().to(DEVICE), torch.randn(2, 3, 8, 8, device=DEVICE)


def states() -> tuple[Tensor, Tensor]:
    return torch.get_rng_state(), torch.cuda.get_rng_state()


def test_a_traced_run_gives_what_a_bare_one_does() -> None:
    bare, x = made()
    traced = copy.deepcopy(bare)
    torch.manual_seed(1)
    expected = bare(x)
    expected.sum().backward()
    after_bare = states()
    torch.manual_seed(1)
    trace = tl.trace(traced, x)
    trace.output.sum().backward()
    after_traced = states()
    assert torch.equal(trace.output, expected)
    for one, other in zip(after_bare, after_traced, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(bare.parameters(), traced.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(bare.buffers(), traced.buffers(), strict=True):
        assert torch.equal(one, other)
    assert trace.check_metadata_invariants()


def test_records_name_the_device_of_each_op() -> None:
    model, x = made()
    trace = tl.trace(model, x)
    assert trace["conv2d"].device_ref == DEVICE
    assert trace["cpu"].device_ref == "cpu"
    assert trace["cpu"].out.device.type == "cpu"
    assert trace["linear"].device_ref == DEVICE
    assert trace["conv2d"].out.device == torch.device(DEVICE)
    assert trace.params["conv.weight"].device_ref == DEVICE


def test_an_activation_is_what_it_was_before_a_later_write() -> None:
    model, x = made()
    trace = tl.trace(model, x)
    before, after = trace["batchnorm"].out, trace["relu"].out
    assert (before < 0).any()
    assert torch.equal(torch.relu(before), after)


def test_a_journal_gives_back_the_bits(tmp_path: Path) -> None:
    model, x = made()
    path = tmp_path / "run.journal"
    trace = tl.trace(model, x, journal=path)
    kept = {op.label: op.out.detach().cpu() for op in trace.saved_ops}
    marks = trace.fingerprint
    trace.cleanup()
    again = tl.load(path)
    assert again.fingerprint == marks
    for label, value in kept.items():
        assert torch.equal(again.ops[label].out.cpu(), value)
    again.cleanup()


def test_a_seed_seeds_the_device_and_puts_it_back() -> None:
    model, x = made()
    before = states()
    options = tl.CaptureOptions(random_seed=7)
    one, two = (tl.trace(copy.deepcopy(model), x, capture=options) for _ in range(2))
    assert torch.equal(one.output, two.output)
    for state, later in zip(before, states(), strict=True):
        assert torch.equal(state, later)


def test_autocast_is_recorded() -> None:
    model, x = made()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        trace = tl.trace(model, x)
    assert trace["conv2d"].dtype is torch.bfloat16
    assert trace.ops["conv2d_1_1"].func_autocast_state["cuda"] == "bfloat16"


def test_a_failed_kernel_leaves_the_names_of_its_operands() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(3, 3)  # on the CPU

    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Odd(), torch.ones(3, 3, device=DEVICE))
    assert caught.value.partial_trace.status == "failed"


# -- backward --------------------------------------------------------------------------------------------

KEPT = tl.CaptureOptions(save_grads=True)


@pytest.mark.parametrize("on_disk", [False, True])
def test_gradients_kept_on_the_device_are_torchs(tmp_path: Path, on_disk: bool) -> None:
    model, x = made()
    x.requires_grad_()
    trace = tl.trace(model, x, journal=tmp_path / "run.journal" if on_disk else None, capture=KEPT)
    loss = trace.output.square().sum()
    trace.backward(loss, retain_graph=True)
    kept = {op.label: op.grad for op in trace.saved_grad_ops}
    nodes = {label: trace.ops[label].autograd.grad_fn_handle for label in kept}
    edges = [torch.autograd.graph.GradientEdge(node, 0) for node in nodes.values()]
    expected = torch.autograd.grad(loss, edges)
    assert len(kept) > 8
    for (label, gradient), right in zip(kept.items(), expected, strict=True):
        assert gradient.device == right.device, label
        assert torch.equal(gradient, right), label
    assert torch.equal(trace["input_1"].autograd.grad_for(bwd=1), x.grad)
    first, second = trace.autograd.backward_passes
    assert (first.status, first.trigger, second.trigger) == ("ok", "backward", "autograd_grad")
    assert first.num_grad_fn_calls > len(kept)
    assert None not in trace.autograd.grad_fn_fire_timings.values()
    assert trace.check_metadata_invariants()
    trace.cleanup()


def test_a_gradient_that_waited_on_the_device_is_read_back_from_the_journal(tmp_path: Path) -> None:
    model, x = made()
    path = tmp_path / "run.journal"
    trace = tl.trace(model, x, journal=path, capture=KEPT)
    trace.backward(trace.output.sum())
    kept = {op.label: op.grad.cpu() for op in trace.saved_grad_ops}
    increments = {param.address: param.grads[0].grad.cpu() for param in trace.params}
    told = {type(each.event).__name__ for each in trace.events()}
    trace.cleanup()
    assert "GradientKept" in told
    again = tl.load(path)
    for label, gradient in kept.items():
        assert torch.equal(again.ops[label].grad.cpu(), gradient), label
    for address, gradient in increments.items():
        assert torch.equal(again.params[address].grads[0].grad.cpu(), gradient), address
    again.cleanup()


def test_parameter_gradients_are_those_of_a_bare_backward() -> None:
    bare, x = made()
    traced = copy.deepcopy(bare)
    torch.manual_seed(1)
    bare(x).square().sum().backward()
    torch.manual_seed(1)
    trace = tl.trace(traced, x, capture=KEPT)
    trace.backward(trace.output.square().sum())
    for one, other in zip(bare.parameters(), traced.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_an_error_on_a_thread_of_the_engine_reaches_the_caller() -> None:
    model, x = made()
    trace = tl.trace(model, x, capture=KEPT)
    loss = trace.output.sum()

    def refuse(gradient: Tensor) -> None:
        raise ValueError("not this one")

    trace["conv2d"].autograd.grad_fn_handle.register_prehook(lambda gradients: refuse(gradients[0]))
    with pytest.raises(ValueError, match="not this one"):
        trace.backward(loss)
    (failed,) = trace.autograd.backward_passes
    assert (failed.status, failed.closed_by) == ("error", "engine_error")
    trace.cleanup()


def test_create_graph_is_attributed_on_the_device() -> None:
    model, x = made()
    model.eval()
    x.requires_grad_()
    trace = tl.trace(model, x, capture=KEPT)
    (gradient,) = torch.autograd.grad(trace.output.square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    first, second = trace.autograd.backward_passes
    assert first.order_attribution_coverage == 1.0
    assert second.order == 2
    assert trace.check_metadata_invariants()
