"""What is asked for first and by a wrong name is answered with the right one, and collections print what they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.torchlens.command import printed
from torchlens.errors import ConfigurationError, TorchLensWarning


def model() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 2))


@pytest.fixture
def twice() -> tl.Trace:
    trace = tl.trace(model(), torch.ones(3, 4), capture=tl.CaptureOptions(save_grads=tl.func("tanh")))
    trace.backward(trace.output.sum(), retain_graph=True)
    trace.output.sum().backward()
    return trace


# -- names that are nearly right


@pytest.mark.parametrize(
    ("options", "near"),
    [
        (lambda: tl.CaptureOptions(save_grad=True), "save_grads"),  # type: ignore[call-arg]
        (lambda: tl.SaveOptions("relu", dtypes=torch.half), "dtype"),  # type: ignore[call-arg]
        (lambda: tl.JournalOptions("run.journal", durable="event"), "durability"),  # type: ignore[call-arg]
        (lambda: tl.CaptureOptions(zzz=1), None),  # type: ignore[call-arg]
    ],
    ids=["capture", "save", "journal", "nothing near"],
)
def test_an_option_that_there_is_not_is_refused_with_the_one_it_looks_like(
    options: Callable[[], Any], near: str | None
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options()
    assert caught.value.code == "option_unknown"
    assert (f"did you mean {near!r}?" if near else "save_grads") in str(caught.value)


def test_a_backward_without_a_loss_is_refused_by_code(twice: tl.Trace) -> None:
    recording = tl.record(model(), torch.ones(3, 4), save="all", save_grads=True)
    for run in (twice.backward, recording.backward):
        with pytest.raises(ConfigurationError, match="no loss was given") as caught:
            run()
        assert caught.value.code == "loss_type_invalid"
    assert twice.autograd.num_backward_passes == 2


def test_a_trace_says_of_what_its_autograd_has_that_it_is_there(twice: tl.Trace) -> None:
    for name in ("backward_passes", "grad_fns", "gradients", "explain"):
        with pytest.raises(AttributeError, match=rf"it is trace\.autograd\.{name}$"):
            getattr(twice, name)


@pytest.mark.parametrize(
    ("asked", "near"),
    [(tl.in_module("1.0"), None), (tl.in_module("tanh"), None), ("0.tanh", None), (tl.module("1 "), "1")],
    ids=str,
)
def test_a_selector_of_gradients_that_matched_nothing_says_what_is_not_there(asked: Any, near: str | None) -> None:
    with pytest.warns(TorchLensWarning, match="no (label or )?module") as told:
        tl.trace(model(), torch.ones(3, 4), capture=tl.CaptureOptions(save_grads=asked))
    assert near is None or f"did you mean {near!r}?" in str(told[0].message)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": nn.Linear(4, 4)}) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block["attn"](x)  # type: ignore[index]
        return x


@pytest.mark.parametrize("asked", [tl.in_module("attn"), tl.module("ATTN")], ids=str)
@pytest.mark.parametrize(
    "request_of",
    [lambda asked: {"save": asked}, lambda asked: {"capture": tl.CaptureOptions(save_grads=asked)}],
    ids=["save", "save_grads"],
)
def test_the_end_of_an_address_is_near_it(asked: Any, request_of: Callable[[Any], dict[str, Any]]) -> None:
    with pytest.warns(TorchLensWarning, match=r"did you mean 'blocks\.0\.attn'\?"):
        trace = tl.trace(Blocks(), torch.ones(3, 4), **request_of(asked))
    assert "did you mean 'blocks.0.attn'?" in repr(trace[asked])


# -- collections


def test_all_gradients_stand_in_one_table(twice: tl.Trace) -> None:
    every = twice.autograd.gradients
    assert [one.owner_kind for one in every.ops] == ["op", "op"]
    assert [(one.owner.label, one.backward_pass_index) for one in every.ops] == [("tanh_1_2", 1), ("tanh_1_2", 2)]
    assert len(every.params) == 2 * len(twice.params) == len(every) - 2
    assert list(every.in_pass(2).ops) == [twice["tanh_1_2"].autograd.grads[1]]
    assert list(every.saved) == list(every.ops)
    frame = every.to_pandas()
    of_weight = frame[frame.owner == "1.weight"]
    assert list(of_weight.owner_kind) == ["param", "param"]
    assert list(of_weight.backward_pass_index) == [1, 2]
    assert list(of_weight["shape"]) == [(2, 6), (2, 6)]


def test_a_recording_has_the_same_table() -> None:
    recording = tl.record(model(), torch.ones(3, 4), save="all", save_grads=True)
    recording.backward(recording.output.sum())
    assert list(recording.grad_records) == list(recording.to_trace().autograd.gradients) != []


def test_what_was_passed_by_place_is_the_number_of_the_pass(twice: tl.Trace) -> None:
    autograd = twice["tanh_1_2"].autograd
    assert torch.equal(autograd.grad_for(2), autograd.grad_for(bwd=2))


def test_printed_passes_are_a_line_each(twice: tl.Trace) -> None:
    head, first, second = str(twice.autograd.backward_passes).splitlines()
    assert head.split() == ["pass", "status", "trigger", "firings", "save_grads"]
    assert first.split()[:3] == ["1", "ok", "backward"]
    assert second.split()[:3] == ["2", "ok", "autograd_backward"]
    assert str(tl.trace(model(), torch.ones(3, 4)).autograd.backward_passes) == "<0 backward passes>"


def test_a_gradient_shows_whose_it_is_and_in_which_pass(twice: tl.Trace) -> None:
    grads = twice["tanh_1_2"].autograd.grads
    assert repr(grads) == "<2 gradient records: tanh_1_2 in pass 1, tanh_1_2 in pass 2>"
    assert repr(grads[1]) == "<GradientRecord of tanh_1_2 in pass 2, (3, 6) float32>"
    assert repr(twice.params["1.bias"].grads[0]) == "<GradientRecord of 1.bias in pass 1, (2,) float32, not kept>"


def test_what_is_printed_of_a_trace_that_is_cleaned_up_is_no_error(twice: tl.Trace) -> None:
    every = twice.autograd.gradients
    held = (every, every[0], twice.autograd.backward_passes)
    twice.cleanup()
    assert all("cleaned up" in text for one in held for text in (str(one), repr(one)))


# -- tables on a narrow terminal


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("not this time")


def test_a_failed_pass_keeps_its_error_where_the_table_has_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tl.trace(model(), torch.ones(3, 4), journal=tmp_path / "j", name="once")
    trace.backward(trace.output.sum(), retain_graph=True)
    with pytest.raises(RuntimeError, match="not this time"):
        Refusing.apply(trace.output).sum().backward()  # type: ignore[no-untyped-call]
    trace.cleanup()
    for width in (60, 80):
        monkeypatch.setattr("torchlens.commands.printing.width_of_output", lambda width=width: width)
        lines = printed(capsys, "journal", "passes", tmp_path / "j").splitlines()
        assert max(map(len, lines)) <= width
        assert [line for line in lines if "builtins.RuntimeError" in line] == [lines[3]]
        rest = " ".join(map(str.strip, lines[3:]))
        assert rest.startswith("error: builtins.RuntimeError; raised in: refusing_back_")
        assert "left out for want of room: " in rest
        assert "--json" in rest


def test_labels_of_ops_are_never_broken_over_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    trace = tl.trace(layer, torch.randn(2, 3, 8), journal=tmp_path / "j")
    labels = trace.ops.labels
    trace.cleanup()
    for width in (60, 80):
        monkeypatch.setattr("torchlens.commands.printing.width_of_output", lambda width=width: width)
        lines = printed(capsys, "journal", "ops", tmp_path / "j").splitlines()
        assert max(map(len, lines)) <= width
        assert [label for label in labels if not any(line.split()[:1] == [label] for line in lines)] == []
