"""A trace's health and its first NaN are of one mind: on any program, wherever the value is and however it was kept."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens.capture.template import leaves
from torchlens.errors import BackwardRefused
from torchlens.generators import seed_all
from torchlens.measuring import extent_of, nonfinite_in
from torchlens.testing import Program, programs, tensors

SAVES: Final[dict[str, Any]] = {
    "all": None,
    "statistics": tl.stats_only(),
    "some": tl.func("linear") | tl.func("relu") | tl.func("mul"),
    "none": "none",
}


def planted(program: Program, value: float, place: int) -> tuple[Any, Any, Any]:
    """A program, and one of its inputs, parameters or buffers with such an element; as it is where none takes it."""
    model, args, kwargs = program.build()
    given_to = [tensor for _, tensor in leaves((args, kwargs), deep=True)]
    where = [each for each in (*given_to, *model.parameters(), *model.buffers()) if takes(each)]
    if where:
        with torch.no_grad():
            where[place % len(where)].view(-1)[place % where[place % len(where)].numel()] = value
    return model, args, kwargs


def takes(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and tensor.is_contiguous() and not tensor.is_inference()


def captured(program: Program, value: float, place: int, **options: Any) -> tl.Trace | None:
    """A trace of it, with what its backward left; None for a program that raises by itself."""
    model, args, kwargs = planted(program, value, place)
    seed_all(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trace = tl.trace(model, list(args), kwargs, **options)
        except tl.TraceCaptureError:
            return None
        terms = [tensor.float().sum() for _, tensor in leaves(trace.output) if takes(tensor) and tensor.requires_grad]
        if terms:
            try:
                trace.backward(torch.stack(terms).sum())
            except (BackwardRefused, RuntimeError):  # what a node needs was written
                pass
    return trace


def require_one_mind(trace: tl.Trace) -> None:
    values, gradients, first = trace.health.nonfinite, trace.health.gradients, trace.first_nonfinite()
    if not first:
        assert not values.labels
        assert not gradients.found
    elif first.kind == "gradient":
        assert not values.labels
        assert gradients.first is not None
        found = gradients.first
        assert (found.pass_index, found.num_nan, found.num_inf) == (first.backward_pass, first.num_nan, first.num_inf)
    elif first.label in trace.ops.labels and first.kind != "argument":
        assert values.first == first.label
    if values.checked or gradients.checked:
        assert first.verdict != "not_checked"


@given(
    program=programs(),
    value=st.sampled_from([float("nan"), float("inf"), 3e38, 0.0]),
    place=st.integers(0, 1000),
    save=st.sampled_from(sorted(SAVES)),
    grads=st.sampled_from([False, True, tl.stats_only()]),
)
@settings(max_examples=60)
def test_health_and_the_first_nonfinite_name_the_same(
    program: Program, value: float, place: int, save: str, grads: Any
) -> None:
    trace = captured(program, value, place, save=SAVES[save], capture=tl.CaptureOptions(save_grads=grads))
    if trace is not None:
        try:
            require_one_mind(trace)
        finally:
            trace.cleanup()


@given(
    program=programs(without=["noise_in_place"]),  # which reads uninitialised memory
    value=st.sampled_from([float("nan"), float("inf"), 0.0]),
    place=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_statistics_in_place_of_tensors_give_the_same_health(program: Program, value: float, place: int) -> None:
    whole = captured(program, value, place, capture=tl.CaptureOptions(save_grads=True))
    brief = captured(program, value, place, save=tl.stats_only(), capture=tl.CaptureOptions(save_grads=tl.stats_only()))
    if whole is None or brief is None:
        assert whole is brief
        return
    try:
        assert brief.health.nonfinite == whole.health.nonfinite
        assert brief.health.gradients == whole.health.gradients
    finally:
        whole.cleanup()
        brief.cleanup()


class Trapped(nn.Module):
    """An infinity in the forward, a NaN in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.log(x), torch.sqrt(x * 0)).sum()


def test_health_reads_statistics_that_were_kept_in_place_of_tensors(tmp_path: Path) -> None:
    options = tl.CaptureOptions(save_grads=tl.stats_only())
    x = torch.zeros(3, requires_grad=True)
    trace = tl.trace(Trapped(), x, save=tl.stats_only(), capture=options, journal=tmp_path / "run.journal")
    trace.backward(trace.output)
    trace.cleanup()
    with tl.open_journal(tmp_path / "run.journal") as view:
        (read,) = view.captures
        require_one_mind(read)
        health = read.health
        assert (health.nonfinite.verdict, health.nonfinite.first) == ("found", "log_1_2")
        assert health.nonfinite.unchecked == 0
        assert health.gradients.verdict == "found"
        found = [(each.label, each.num_nan, each.num_inf) for each in health.gradients.found]
        assert found[:2] == [("mul_1_3", 0, 3), ("input_1", 3, 0)]


@given(st.data(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]))
def test_the_quick_look_counts_as_the_thorough_one(data: st.DataObject, dtype: torch.dtype) -> None:
    tensor = data.draw(tensors(st.sampled_from([(3,), (2, 5), (0,), (1,)]), nonfinite=True)).to(dtype)
    wide = tensor.expand(4, *tensor.shape)
    for each in (tensor, wide, wide.transpose(0, -1), tensor[..., ::2], tensor.detach().to_sparse()):
        extent = extent_of(each)
        assert extent is not None
        assert nonfinite_in(each) == (extent.num_nan, extent.num_inf)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_sum_that_overflows_is_not_taken_for_an_infinity(dtype: torch.dtype) -> None:
    assert nonfinite_in(torch.full((4,), torch.finfo(dtype).max, dtype=dtype)) == (0, 0)
