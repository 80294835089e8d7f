"""What is read of passes that the engine ran: gradients by op, layer, module, parameter; in a run and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import PayloadUnavailableError
from torchlens.reading.facade import RECORDS

KEEP = tl.CaptureOptions(save_grads=True)


class Model(nn.Module):
    """A loop, a call with two results, a call that returns what it was given, a write in place, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(2, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            x = torch.tanh(self.fc(x))
        left, right = self.drop(x).chunk(2, 1)
        both = torch.relu_(left + right)
        return self.head(self.frozen(both)), right


def code_of(read: Callable[[], object]) -> str:
    with pytest.raises(tl.TorchLensError) as caught:
        read()
    return str(caught.value.code)


@pytest.fixture
def given() -> Iterator[tuple[tl.Trace, Tensor]]:
    """A trace with one backward pass of all gradients, and the input."""
    x = torch.randn(5, 4, requires_grad=True)
    trace = tl.trace(Model(), x, capture=KEEP)
    head, right = trace.output
    trace.backward(head.sum() + (right**2).sum(), retain_graph=True)
    yield trace, x
    trace.cleanup()


def test_every_op_that_required_a_gradient_reads_one(given: tuple[tl.Trace, Tensor]) -> None:
    trace, x = given
    for op in trace.ops:
        if op.requires_grad:
            assert op.grad.shape == op.shape, op.label
    assert trace["input_1"].grad is not x.grad
    assert torch.equal(trace["input_1"].grad, x.grad)
    assert {op.label for op in trace.ops if op.num_saved_grads} == set(trace.saved_grad_ops.labels)


def test_passes_of_a_layer_have_gradients_of_their_own(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    layer = trace.layers["tanh_1_2"]
    first, second = layer.ops
    assert not torch.equal(first.grad, second.grad)
    assert first.autograd.grad_fn != second.autograd.grad_fn
    assert trace[first.autograd.grad_fn_label].op == first
    assert code_of(lambda: layer.grad) == "layer_pass_ambiguous"
    assert layer.total_gradient_memory == first.gradient_memory + second.gradient_memory == 2 * 80


def test_results_of_one_call_share_a_node_and_have_gradients_of_their_own(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    left, right = trace.ops["chunk_1_4"], trace.ops["chunk_2_5"]
    assert left.autograd.grad_fn == right.autograd.grad_fn
    assert left.grad.shape == right.grad.shape == (5, 2)
    assert not torch.equal(left.grad, right.grad)
    firing = left.autograd.grad_fn.calls[0]
    assert all(map(torch.equal, firing.grad_outputs, (left.grad, right.grad)))
    assert [record.grad_fn_call for record in left.autograd.grads] == [firing]


def test_outputs_and_module_calls_read_the_gradient_of_what_they_returned(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    head, right = trace.output_ops
    assert torch.equal(head.grad, trace.module_calls["head:1"].grad)
    assert torch.equal(right.grad, trace.ops["chunk_2_5"].grad)
    assert [grad.shape for grad in trace.module_calls["self:1"].grads] == [(5, 3), (5, 2)]
    assert trace.modules["head"].total_output_gradient_memory == 5 * 3 * 4
    assert trace.modules["fc"].total_backward_duration > 0
    assert code_of(lambda: trace.modules["fc"].grad) == "module_call_ambiguous"


def test_parameters_tell_what_each_pass_added(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    before = {param.address: param.grads[0].grad for param in trace.params if param.has_grad}
    assert set(before) == {"fc.weight", "fc.bias", "head.weight", "head.bias"}
    (trace.output[0] * 2).sum().backward(retain_graph=True)
    torch.autograd.grad(trace.output[0].sum(), trace.params["head.weight"].handle)
    for address, first in before.items():
        param = trace.params[address]
        added = [record.grad for record in param.grads]
        assert [record.backward_pass_index for record in param.grads] == [1, 2]
        assert torch.equal(added[0], first)
        assert torch.allclose(param.grad, added[0] + added[1])
    assert [one.trigger for one in trace.autograd.backward_passes] == ["backward", "autograd_backward", "autograd_grad"]
    assert len(trace.params["frozen.weight"].grads) == 0


def test_what_is_read_while_the_engine_runs_is_what_stood_before(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    seen: list[Any] = []
    loss = (trace.output[0] * 3).sum()
    hook = trace.output[0].register_hook(
        lambda _: seen.append((trace.autograd.num_backward_passes, len(trace.ops["linear_3_9"].autograd.grads)))
    )
    loss.backward()
    hook.remove()
    assert seen == [(1, 1)]
    assert trace.autograd.num_backward_passes == 2
    assert code_of(lambda: trace.ops["linear_3_9"].grad) == "gradient_pass_ambiguous"


def test_without_save_grads_everything_is_told_but_the_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    trace = tl.trace(model, torch.randn(5, 4))
    trace.backward(trace.output.sum())
    assert trace.autograd.num_grad_fn_calls == trace.autograd.num_grad_fns == 10
    assert trace.autograd.last_backward_pass is not None
    assert trace.autograd.last_backward_pass.save_grads_policy is None
    assert len(trace.saved_grad_ops) == trace.saved_gradient_memory == 0
    with pytest.raises(PayloadUnavailableError, match="that one kept no gradient") as caught:
        trace.ops["relu_1_2"].grad  # noqa: B018  # the refusal is asked for
    assert caught.value.code == "gradient_not_saved"
    assert [record.is_saved for param in trace.params for record in param.grads] == [False] * 4
    assert not trace.ops["relu_1_2"].save_grads
    trace.cleanup()


def test_a_refused_gradient_gives_the_reason_of_its_explanation() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    trace = tl.trace(model, torch.ones(1, 2), capture=KEEP)
    trace.backward(trace.ops["relu_1_2"].out.sum())
    for label in ("linear_2_3", "output_1", "input_1"):
        told = trace.autograd.explain(label)
        assert told is not None
        with pytest.raises(PayloadUnavailableError) as caught:
            trace.ops[label].grad  # noqa: B018  # the refusal is asked for
        assert (caught.value.problem, caught.value.fields["reason"]) == (told.text, told.reason)
        with pytest.raises(PayloadUnavailableError):
            trace.ops[label].autograd.grad_for(bwd=1)
    trace.cleanup()


def test_an_op_on_an_island_has_no_record_and_its_node_has_what_arrived() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.side = (self.scale * 2).sum()
            out: Tensor = self.fc(x)
            return out

    model = Beside()
    trace = tl.trace(model, torch.ones(1, 3), capture=tl.CaptureOptions(save_grads=True, keep_orphans=True))
    trace.backward(trace.output.sum() + model.side)
    scaled = trace.orphans[0]
    assert (scaled.func_name, scaled.has_grad, len(scaled.autograd.grads)) == ("__mul__", False, 0)
    with pytest.raises(PayloadUnavailableError, match="on an island") as caught:
        scaled.grad  # noqa: B018  # the refusal is asked for
    assert caught.value.code == "gradient_not_saved"
    (arrived,) = scaled.autograd.grad_fn.calls[0].grad_outputs
    assert torch.equal(arrived, torch.ones(3))
    assert trace.saved_grad_ops.labels == ("linear_1_1",)
    assert torch.equal(trace.params["scale"].grads[0].grad, torch.full((3,), 2.0))
    trace.cleanup()


def test_events_are_read_as_far_as_tables_are(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    seen: list[int] = []
    before = sum(1 for _ in trace.events())
    hook = trace.output[0].register_hook(lambda _: seen.append(sum(1 for _ in trace.events())))
    trace.output[0].sum().backward()
    hook.remove()
    assert seen == [before]
    assert sum(1 for _ in trace.events()) > before


def test_a_disarmed_trace_hears_of_no_further_pass(given: tuple[tl.Trace, Tensor]) -> None:
    trace, _ = given
    trace.autograd.disarm()
    trace.autograd.disarm()
    trace.output[0].sum().backward()
    assert trace.autograd.num_backward_passes == 1
    assert trace.ops["linear_1_1:1"].num_saved_grads == 1


def test_a_journal_gives_the_records_and_gradients_of_the_process_that_captured(tmp_path: Path) -> None:
    path = str(tmp_path / "run.journal")
    asked = attrs.evolve(KEEP, backward_ready=True)
    trace = tl.trace(Model(), torch.randn(5, 4, requires_grad=True), capture=asked, journal=path)
    head, right = trace.output
    trace.backward(head.sum() + (right**2).sum())
    mine = {name: told(trace, name) for name in BACKWARD}
    gradients = {op.label: op.grad for op in trace.saved_grad_ops}
    trace.cleanup()
    again = tl.load(path)
    assert {name: told(again, name) for name in BACKWARD} == mine
    assert again.saved_grad_ops.labels == tuple(gradients)
    assert all(torch.equal(op.grad, gradients[op.label]) for op in again.saved_grad_ops)
    assert again.autograd.last_backward_pass is not None
    again.cleanup()


BACKWARD = ("backward_passes", "grad_fns", "grad_fn_calls", "dispatched_ops", "gradients")


def told(trace: tl.Trace, table: str) -> list[dict[str, str]]:
    """Every field of every record, live ones and tensors left out."""
    kind = RECORDS[table]
    apart = {"trace", "handle", "grad_outputs", "grad_inputs", "grad", "backward_duration"}
    names = [name for name in dir(kind(trace, 0)) if name not in apart]
    rows = range(len(trace.table(table)))
    return [{name: repr(getattr(kind(trace, row), name)) for name in names} for row in rows]
