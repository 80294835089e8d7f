"""Captures by what a backward needs: options that contradict each other, forwards without a graph, recordings."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal.events import PassOpened
from torchlens.errors import BackwardRefused, CaptureError, ConfigurationError, LookupRefused, TorchLensError

X = torch.ones(5, 4)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


class OpensGrad(nn.Module):
    """Turns gradients on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            made: Tensor = self.fc(x)
        return made


ALL = ["linear_1_1", "relu_1_2", "linear_2_3"]


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(TorchLensError) as caught:
        act()
    return caught.value.code


# -- options that contradict each other


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"inference_only": True, "save_grads": True}, "inference_only_conflict"),
        ({"inference_only": True, "save_grads": "relu"}, "inference_only_conflict"),
        ({"inference_only": True, "backward_ready": True}, "inference_only_conflict"),
        ({"backward_ready": True, "detach_saved_activations": True}, "backward_ready_conflict"),
        ({"save_grads": True, "backward_ready": False}, "backward_capture_conflict"),
        ({"save_grads": tl.grad_fn(), "backward_ready": False}, "backward_capture_conflict"),
        ({"backward_ready": "yes"}, "option_value_invalid"),
        ({"backward_ready": 1}, "option_value_invalid"),
    ],
    ids=repr,
)
def test_options_that_contradict_each_other_are_refused_as_they_are_made(options: dict[str, Any], code: str) -> None:
    assert refused(lambda: tl.CaptureOptions(**options)) == code


@pytest.mark.parametrize(
    "options",
    [
        {"inference_only": True, "save_grads": False, "backward_ready": False},
        {"inference_only": True, "save_grads": []},
        {"save_grads": "none", "backward_ready": False},
        {"save_grads": True, "backward_ready": True},
        {"save_grads": True, "detach_saved_activations": True},
    ],
    ids=repr,
)
def test_options_that_agree_are_taken(options: dict[str, Any]) -> None:
    assert tl.trace(chain(), X, capture=tl.CaptureOptions(**options)).status == "complete"


def test_a_backward_that_must_be_possible_needs_activations_in_memory(tmp_path: Path) -> None:
    ready = tl.CaptureOptions(backward_ready=True)
    assert refused(lambda: tl.trace(chain(), X, capture=ready, storage=tl.to_disk(tmp_path / "no"))) == (
        "backward_ready_conflict"
    )
    assert not (tmp_path / "no").exists()
    both = tl.to_disk(tmp_path / "both", retain_in_memory=True)
    trace = tl.trace(chain(), X, capture=ready, storage=both)
    assert trace.backward(trace["output_1"].out.sum()).has_backward_pass


@pytest.mark.parametrize(
    ("transform", "raw", "fits"),
    [
        (lambda x: x.detach(), False, False),
        (lambda x: x > 0, False, False),
        (lambda x: x.detach(), True, True),
        (lambda x: x.mean(), False, True),
    ],
)
def test_what_is_kept_in_place_of_an_activation_stays_on_the_graph(
    transform: Callable[[Tensor], Any], raw: bool, fits: bool
) -> None:
    save = tl.SaveOptions(tl.func("relu"), transform=transform, raw=raw)
    ready = tl.CaptureOptions(backward_ready=True)
    if fits:
        trace = tl.trace(chain(), X, save=save, capture=ready)
        assert trace.backward(trace.output.sum()).has_backward_pass
    else:
        with pytest.raises(tl.errors.SaveTransformError) as caught:
            tl.trace(chain(), X, save=save, capture=ready)
        assert caught.value.code == "transform_not_differentiable"
        assert caught.value.fields["label"] == "relu_1_2"
    assert tl.trace(chain(), X, save=save).status == "complete"


# -- forwards without a graph

NO_GRAPH: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Any]], tl.CaptureOptions | None]] = {
    "torch.no_grad()": (torch.no_grad, None),
    "torch.inference_mode()": (torch.inference_mode, None),
    "inference_only=True": (contextlib.nullcontext, tl.CaptureOptions(inference_only=True)),
}


@pytest.mark.parametrize("cause", NO_GRAPH)
def test_a_forward_without_a_graph_refuses_a_backward_and_names_the_cause(cause: str) -> None:
    mode, options = NO_GRAPH[cause]
    with mode():
        trace = tl.trace(chain(), X, capture=options)
    assert trace.inference_only
    loss = torch.ones(1, requires_grad=True).sum()
    for ask in (
        lambda: trace.backward(trace.output.sum()),
        lambda: trace.backward(loss),
        lambda: trace.capture_backward().__enter__(),
    ):
        with pytest.raises(BackwardRefused) as caught:
            ask()
        assert caught.value.code == "backward_inference_only"
        assert cause in caught.value.problem
    assert not trace.has_backward_pass


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_asking_for_gradients_does_not_turn_them_on(mode: Callable[[], Any]) -> None:
    with mode():
        trace = tl.trace(chain(), X, capture=tl.CaptureOptions(save_grads=True))
    assert refused(lambda: trace.backward(trace.output.sum())) == "backward_inference_only"


@pytest.mark.parametrize("save_grads", [None, True])
def test_a_forward_that_turns_gradients_on_keeps_its_backward(save_grads: Any) -> None:
    with torch.no_grad():
        trace = tl.trace(OpensGrad(), X, capture=tl.CaptureOptions(save_grads=save_grads))
    assert not trace.inference_only
    trace.backward(trace.output.sum())
    assert [one.trigger for one in trace.autograd.backward_passes] == ["backward"]
    assert [op.label for op in trace.saved_grad_ops] == (["linear_1_1"] if save_grads else [])


# -- backward_ready


@pytest.mark.parametrize("cause", ["torch.no_grad()", "torch.inference_mode()"])
def test_a_backward_that_must_be_possible_is_refused_with_the_capture(cause: str) -> None:
    with NO_GRAPH[cause][0](), pytest.raises(BackwardRefused) as caught:
        tl.trace(chain(), X, capture=tl.CaptureOptions(backward_ready=True))
    assert caught.value.code == "backward_inference_only"
    assert cause in caught.value.problem
    assert caught.value.partial_trace.status == "complete"


def off_the_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.relu(x)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (chain().requires_grad_(False), X),
        (torch.relu, X),
        (off_the_graph, torch.ones(2, requires_grad=True)),
        (lambda x: x.detach() * 2, torch.ones(2, requires_grad=True)),
    ],
)
def test_a_forward_that_no_gradient_can_come_back_to_is_refused(model: Any, x: Tensor) -> None:
    assert refused(lambda: tl.trace(model, x, capture=tl.CaptureOptions(backward_ready=True))) == "loss_not_connected"
    assert tl.trace(model, x).status == "complete"


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (chain(), X),
        (chain().requires_grad_(False), torch.ones(5, 4, requires_grad=True)),
        (torch.relu, torch.ones(2, requires_grad=True)),
        (lambda x: x, torch.ones(2, requires_grad=True)),
        (lambda x: (x * torch.ones(2, requires_grad=True)).sum(), torch.ones(2)),
    ],
)
def test_where_a_gradient_can_come_back_the_capture_is_ready(model: Any, x: Tensor) -> None:
    trace = tl.trace(model, x, capture=tl.CaptureOptions(backward_ready=True))
    assert trace.backward_ready
    assert trace.backward(trace.output.sum()).has_backward_pass
    assert not trace.saved_grad_ops


def test_a_ready_capture_whose_gradients_are_asked_for_keeps_them() -> None:
    options = tl.CaptureOptions(backward_ready=True, save_grads=tl.func("relu"))
    trace = tl.trace(chain(), X, capture=options)
    assert trace.backward(trace.output.sum()).saved_grad_ops.labels == ("relu_1_2",)


# -- captures that did not end by themselves


def test_a_halted_capture_is_backpropagated_from_what_was_kept() -> None:
    trace = tl.trace(chain(), X, stop_after="1", capture=tl.CaptureOptions(save_grads=True))
    assert trace.halted
    trace.backward(trace["relu_1_2"].out.sum())
    assert [op.label for op in trace.saved_grad_ops] == ["linear_1_1", "relu_1_2"]


def fails(x: Tensor) -> Tensor:
    torch.ones(4, requires_grad=True).mul(x).relu()
    raise ValueError("no")


def test_a_failed_capture_is_backpropagated_from_what_ran() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(fails, X, capture=tl.CaptureOptions(save_grads=True))
    trace = caught.value.partial_trace
    trace.backward(trace["relu_1"].out.sum())
    assert [op.label_short for op in trace.saved_grad_ops] == ["ones_1", "mul_1", "relu_1"]


# -- recordings


def recorded(**options: Any) -> tl.Recording:
    return tl.record(chain(), X, save=tl.func("relu"), **options)


def test_a_recording_without_a_request_follows_no_backward() -> None:
    recording = recorded()
    assert refused(lambda: recording.backward(recording.output.sum())) == "recording_backward_not_requested"
    trace = recording.to_trace()
    for ask in (lambda: trace.backward(trace.output.sum()), lambda: trace.capture_backward().__enter__()):
        assert refused(ask) == "recording_backward_not_requested"
    recording.output.sum().backward()
    assert not trace.has_backward_pass
    assert not any(isinstance(stamped.event, PassOpened) for stamped in trace.events())


def test_a_recording_without_a_request_hooks_nothing_and_leaves_torch_alone() -> None:
    gc.collect()  # traces of other tests that a cycle of an error's holds
    before = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    recording = recorded()
    assert torch.autograd._engine_run_backward is before  # type: ignore[attr-defined]
    assert recording.output.grad_fn.metadata == {}


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"backward_ready": True}, []),
        ({"save_grads": False}, []),
        ({"default_grad": False}, []),
        ({"default_grad": True}, ALL),
        ({"save_grads": True}, ALL),
        ({"save_grads": "relu", "default_grad": True}, ["relu_1_2"]),
        ({"save_grads": tl.grad_fn("addmm")}, ["linear_1_1", "linear_2_3"]),
        ({"capture": tl.CaptureOptions(save_grads="relu")}, ["relu_1_2"]),
        (
            {"capture": tl.CaptureOptions(backward_ready=True), "default_grad": True},
            ALL,
        ),
    ],
    ids=repr,
)
def test_a_recording_keeps_what_it_was_asked_for(options: dict[str, Any], labels: list[str]) -> None:
    recording = recorded(**options)
    assert recording.backward(recording.output.sum()) is recording
    trace = recording.to_trace()
    assert [op.label for op in trace.saved_grad_ops] == labels
    (only,) = trace.autograd.backward_passes
    assert (only.trigger, only.implicit) == ("recording_backward", False)
    assert only.backward_call_context.file == __file__


def test_the_backward_of_a_recording_takes_what_torchs_takes() -> None:
    recording = recorded(backward_ready=True, default_grad=True)
    out, trace = recording.output, recording.to_trace()
    weight = trace.params[0].handle
    recording.backward(out, gradient=torch.full_like(out, 3.0), inputs=[weight], retain_graph=True)
    (made,) = trace.autograd.backward_passes
    assert made.root_grad_arguments[0]["shape"] == tuple(out.shape)
    assert made.inputs_subset is not None
    assert torch.equal(weight.grad, torch.autograd.grad(out, weight, torch.full_like(out, 3.0))[0])


@pytest.mark.parametrize(
    ("standing", "asked", "labels"),
    [
        ({"backward_ready": True}, {"save_grads": tl.func("relu")}, ["relu_1_2"]),
        ({"backward_ready": True}, {"default_grad": True}, ALL),
        ({"save_grads": "relu"}, {"default_grad": True}, ["relu_1_2"]),
        ({"save_grads": "relu"}, {"save_grads": False, "default_grad": True}, []),
        ({"default_grad": True}, {"default_grad": False}, []),
    ],
)
def test_a_backward_of_a_recording_may_be_asked_otherwise(
    standing: dict[str, Any], asked: dict[str, Any], labels: list[str]
) -> None:
    recording = recorded(**standing)
    recording.backward(recording.output.sum(), **asked)
    assert [op.label for op in recording.to_trace().saved_grad_ops] == labels


def test_the_gradients_of_a_recording_are_those_of_a_trace() -> None:
    recording = recorded(save_grads=True)
    trace = tl.trace(chain(), X, save=tl.func("relu"), capture=tl.CaptureOptions(save_grads=True))
    for _ in range(2):
        recording.backward(recording.output.sum(), retain_graph=True)
        trace.backward(trace.output.sum(), retain_graph=True)
    one, other = recording.grad_records, gradients_of(trace)
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        assert (mine.backward_pass_index, mine.shape, mine.dtype) == (
            theirs.backward_pass_index,
            theirs.shape,
            theirs.dtype,
        )
        assert torch.equal(mine.grad, theirs.grad)
    label = recording[0].label
    assert [record.backward_pass_index for record in recording.grad_by_label(label)] == [1, 2]
    assert torch.equal(recording.grad_by_label(label)[0].grad, trace["relu_1_2"].autograd.grads[0].grad)
    assert {record.backward_pass_index for record in recording.grad_by_pass(2)} == {2}
    with pytest.raises(LookupRefused) as caught:
        recording.grad_by_pass(3)
    assert caught.value.code == "backward_pass_unknown"
    with pytest.raises(LookupRefused) as caught:
        recording.grad_by_label("relu_9_raw")
    assert caught.value.code == "record_lookup_not_found"


def gradients_of(trace: tl.Trace) -> list[Any]:
    return [trace.record("gradients", row) for row in range(len(trace.table("gradients")))]


def test_a_recording_that_was_stopped_refuses_a_backward_and_its_trace_does_not() -> None:
    recording = recorded(save_grads=True, stop_after="1")
    assert refused(lambda: recording.backward(recording[0].out.sum())) == "recording_backward_halted"
    trace = recording.to_trace()
    assert trace.backward(trace["relu_1_2"].out.sum()).has_backward_pass


def test_a_recording_of_a_failure_refuses_a_backward() -> None:
    recording = tl.record(fails, X, save="all", save_grads=True, on_forward_error="return_partial")
    with pytest.raises(CaptureError) as caught:
        recording.backward(recording[0].out.sum())
    assert caught.value.code == "recording_backward_failed"


def test_a_recording_without_a_graph_names_the_cause() -> None:
    with torch.no_grad():
        recording = recorded(save_grads=True)
    with pytest.raises(BackwardRefused) as caught:
        recording.backward(recording.output.sum())
    assert caught.value.code == "backward_inference_only"
    assert "torch.no_grad()" in caught.value.problem


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"default_grad": 1}, "option_value_invalid"),
        ({"save_grads": 1.5}, "save_grads_type_invalid"),
        ({"backward_ready": "yes"}, "option_value_invalid"),
        ({"save_grads": True, "capture": tl.CaptureOptions(save_grads="relu")}, "option_group_keyword_conflict"),
        ({"backward_ready": True, "capture": tl.CaptureOptions(backward_ready=True)}, "option_group_keyword_conflict"),
        ({"backward_ready": True, "capture": tl.CaptureOptions(inference_only=True)}, "inference_only_conflict"),
        ({"default_grad": True, "capture": tl.CaptureOptions(inference_only=True)}, "inference_only_conflict"),
    ],
    ids=repr,
)
def test_what_a_recording_is_asked_of_gradients_is_checked(options: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        recorded(**options)
    assert caught.value.code == code


def test_a_pass_of_a_recording_is_checked_too() -> None:
    recording = recorded(save_grads=True)
    assert refused(lambda: recording.backward(recording.output.sum(), default_grad=1)) == "option_value_invalid"  # type: ignore[arg-type]
    recording.cleanup()
    assert refused(lambda: recording.backward(X.sum())) == "trace_cleaned_up"


# -- where gradients go


@pytest.mark.parametrize("where", ["journal", "storage"])
def test_gradients_are_written_where_activations_are(tmp_path: Path, where: str) -> None:
    path = tmp_path / "run.journal"
    options = tl.CaptureOptions(save_grads=True, detach_saved_activations=True)
    given: Any = {"journal": path} if where == "journal" else {"storage": tl.to_disk(path)}
    trace = tl.trace(chain(), X, capture=options, **given)
    trace.backward(trace.output.sum(), retain_graph=True)
    trace.backward((trace.output**2).sum(), save_grads=tl.grad_fn("relu"))
    memory = tl.trace(chain(), X, capture=options)
    memory.backward(memory.output.sum(), retain_graph=True)
    memory.backward((memory.output**2).sum(), save_grads=tl.grad_fn("relu"))
    assert trace.handles is not None
    assert not trace.handles.copies  # type: ignore[attr-defined]  # nothing is held beside its bytes
    trace.cleanup()
    loaded = tl.load(path)
    assert len(loaded.table("gradients")) == len(memory.table("gradients"))
    for stored, held in zip(gradients_of(loaded), gradients_of(memory), strict=True):
        assert stored.is_saved == held.is_saved
        assert not held.is_saved or torch.equal(stored.grad, held.grad)
    call = loaded.autograd.grad_fn_calls.in_pass(2).saved[0]
    assert torch.equal(call.grad_outputs[0], memory.autograd.grad_fn_calls[call.call_label].grad_outputs[0])
    loaded.cleanup()
