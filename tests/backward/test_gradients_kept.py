"""The gradients that a pass keeps are those that torch computes, bit for bit, and keeping them changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

import torchlens as tl
from journal.events import GradientObserved, NodesFound, PassJournaled
from tests.backward.observing import events_of, kept, live_edges, require_closed_in_order, require_fired_once, same
from tests.differentiating import loss_of
from torchlens.reading.failed import TraceCaptureError
from torchlens.testing import Program, assert_tracing_changes_nothing, programs


def require_kept_as_torch_computes(trace: tl.Trace) -> None:
    """The gradient of every op's output, against ``torch.autograd.grad`` with respect to the live edges."""
    loss = loss_of(trace)
    if loss is None:
        return
    edges = live_edges(trace)
    asked = [GradientEdge(node, slot) for (_, slot), node in edges.items()]
    try:
        found = torch.autograd.grad(loss, asked, retain_graph=True, allow_unused=True)
    except RuntimeError:  # torch refuses: what a node needs was written, or a checkpoint gives no single gradients
        return
    expected = dict(zip(edges, found, strict=True))
    trace.backward(loss)
    at = len(events_of(trace, PassJournaled)) - 1
    made = kept(trace, at)
    gatherers = {row[0] for event in events_of(trace, NodesFound) for row in event.nodes if row[6] is None}
    for edge, gradient in expected.items():
        assert same(made.get(edge), gradient), edge
    assert {node for node, _ in made} - {node for node, _ in edges} <= gatherers


@given(program=programs())
@settings(max_examples=40)
def test_the_gradient_of_every_op_is_what_torch_computes(program: Program) -> None:
    model, args, kwargs = program.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trace = tl.trace(model, list(args), kwargs, capture=tl.CaptureOptions(save_grads=True))
        except TraceCaptureError:
            return  # a program that raises by itself
        try:
            require_kept_as_torch_computes(trace)
            require_closed_in_order(trace)
            require_fired_once(trace)
        finally:
            trace.cleanup()


@given(program=programs())
@settings(max_examples=30)
def test_keeping_gradients_changes_nothing_for_the_caller(program: Program) -> None:
    assert_tracing_changes_nothing(program.build, capture=tl.CaptureOptions(save_grads=True)).cleanup()


WRITTEN_BEHIND = Program.parse("""
model(train=False, seed=0, returns='one')
a = given('float32')
def block_1():
    pass
def main():
    a = block_1(a, a)
    a = write_view(a, a)
    a = user_hooks(a, a)
    with no_grad():
        a = relu_(a, a)
""")
"""It returns a view that torch lets nobody ask for its autograd node."""


@given(program=programs())
@example(program=WRITTEN_BEHIND)
@settings(max_examples=10)
def test_keeping_gradients_on_disk_changes_nothing_for_the_caller(program: Program, tmp_path: Path) -> None:
    options = tl.CaptureOptions(save_grads=True)
    assert_tracing_changes_nothing(program.build, capture=options, journal=tmp_path / "run.journal").cleanup()


class ManyKinds(nn.Module):
    """Slots, views, in-place writes, a frozen part, a shared weight, dropout off and a detached middle."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.norm, self.conv = nn.LayerNorm(6), nn.Conv1d(2, 2, 3, padding=1)
        self.rnn = nn.LSTM(6, 6, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.shared(x).chunk(2, dim=1)
        left = self.shared(left.contiguous()).relu_()
        right = torch.nn.functional.dropout(self.frozen(right), training=False).contiguous()
        values, _ = torch.cat([left, right], 1).sort(dim=1)
        mixed, _ = self.attention(values, values, values)
        rolled, _ = self.rnn(self.norm(mixed) + values.detach())
        small = self.conv(rolled[:, :2])
        small[:, 0] += 1
        return small * small.max()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_gradients_of_many_kinds_of_ops_are_kept_in_memory_and_on_disk(where: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    journal = tmp_path / "run.journal" if where == "disk" else None
    options = tl.CaptureOptions(save_grads=True)
    trace = tl.trace(ManyKinds(), torch.randn(3, 4, 6, requires_grad=True), capture=options, journal=journal)
    require_kept_as_torch_computes(trace)
    before = {edge: gradient.clone() for edge, gradient in kept(trace, 1).items()}
    trace.cleanup()
    if journal is not None:
        loaded = tl.load(journal)
        after = kept(loaded, 1)
        assert before.keys() == after.keys()
        assert all(same(before[edge], after[edge]) for edge in before)
        loaded.cleanup()


def test_a_gradient_is_kept_as_it_passed_whatever_is_written_to_it_later() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    trace = tl.trace(model, torch.ones(2, 3), capture=tl.CaptureOptions(save_grads=True))

    def spoils(sent: tuple[Tensor | None, ...], arrived: tuple[Tensor, ...]) -> None:
        arrived[0].mul_(100)

    edges = live_edges(trace)
    handle = edges[max(edges)].register_hook(spoils)
    trace.backward(trace.output.pow(2).sum())
    handle.remove()
    assert torch.equal(kept(trace)[max(edges)], trace.output * 2)
    trace.cleanup()


@pytest.fixture
def looped() -> Iterator[tl.Trace]:
    torch.manual_seed(0)
    trace = tl.trace(nn.Linear(3, 3), torch.ones(2, 3), capture=tl.CaptureOptions(save_grads=True))
    yield trace
    trace.cleanup()


def test_a_pass_may_keep_more_or_less_than_the_capture_was_asked_for(looped: tl.Trace) -> None:
    loss = looped.output.sum()
    looped.backward(loss, retain_graph=True, save_grads=False)
    with looped.capture_backward(save_grads=True):
        loss.backward(retain_graph=True)
    assert kept(looped, 0) == {}
    assert len(kept(looped, 1)) == 3
    bare = tl.trace(nn.Linear(3, 3), torch.ones(2, 3))
    bare.backward(bare.output.sum(), save_grads=True)
    assert len(kept(bare)) == 3
    bare.cleanup()


def test_what_a_leaf_gets_is_told_also_where_nothing_is_kept(looped: tl.Trace) -> None:
    looped.backward(looped.output.sum(), save_grads=False)
    shapes = sorted(event.like[0] for event in events_of(looped, GradientObserved))
    assert shapes == [(3,), (3, 3)]


def test_expanded_gradients_take_the_memory_of_one_element(looped: tl.Trace) -> None:
    looped.backward(looped.output.sum())
    handles: Any = looped.handles
    sizes = [tensor.untyped_storage().nbytes() for tensor in handles.copies.values()]
    assert min(sizes) == 4


@pytest.mark.parametrize("when", ["in the forward", "after it"])
def test_a_gradient_is_told_as_its_tensor_got_it_whatever_hooks_stand_before_the_node(when: str) -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.seen = y = self.fc(x)
            y.retain_grad()
            y.register_hook(lambda grad: grad * 3)
            if when == "in the forward":
                self.hook()
            result: Tensor = self.head(y.sin())
            return result

        def hook(self) -> None:
            node: Any = self.seen.grad_fn
            node.register_prehook(lambda grads: (grads[0] * 2,))
            node.register_prehook(lambda grads: (grads[0] + 1,))

    model, x = Hooked(), torch.randn(3, 4, requires_grad=True)
    trace = tl.trace(model, x, capture=tl.CaptureOptions(save_grads=True))
    seen = model.seen
    if when == "after it":
        model.hook()
    trace.backward(trace.output.sum())
    assert seen.grad is not None
    assert torch.equal(trace["linear_1_1"].grad, seen.grad)
    assert x.grad is not None
    assert torch.equal(x.grad, (seen.grad * 2 + 1) @ model.fc.weight)  # in the order in which they were put on
    assert torch.equal(trace["input_1"].grad, x.grad)


def test_what_is_added_to_a_parameter_is_told_behind_hooks_before_its_node() -> None:
    model = nn.Linear(4, 2)
    gatherer = torch.autograd.graph.get_gradient_edge(model.weight).node
    gatherer.register_prehook(lambda grads: (grads[0] * 2,))
    trace = tl.trace(model, torch.randn(3, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    (record,) = trace.params["weight"].grads
    assert model.weight.grad is not None
    assert torch.equal(record.grad, model.weight.grad)
