"""Requests that were not called, not put together, or contradict each other are refused with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from torchlens.errors import ConfigurationError

X = torch.ones(1, 2)


@pytest.mark.parametrize("function", [tl.stats_only, tl.func, tl.label, tl.where, tl.SaveOptions])
def test_a_function_of_this_package_is_no_predicate(function: Any) -> None:
    name = function.__name__
    with pytest.raises(ConfigurationError, match=rf"save=tl.{name}\(\.\.\.\)") as refused:
        tl.trace(nn.ReLU(), X, save=function)
    assert refused.value.code == "save_predicate_type_invalid"
    with pytest.raises(ConfigurationError, match=rf"save_grads=tl.{name}\(\.\.\.\)") as refused:
        tl.CaptureOptions(save_grads=function)
    assert refused.value.code == "save_grads_type_invalid"


@pytest.mark.parametrize(
    "mixed",
    [
        lambda one: one | tl.func("relu"),
        lambda one: one & "relu",
        lambda one: one - tl.func("relu"),
        lambda one: "relu" | one,
        lambda one: ~one,
    ],
)
def test_statistics_are_combined_inside(mixed: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigurationError, match="combine inside") as refused:
        mixed(tl.stats_only())
    assert refused.value.code == "statistics_mixed"


def test_what_autograd_keeps_is_not_asked_of_a_forward_without_autograd() -> None:
    with pytest.raises(ConfigurationError, match="measure_autograd_memory") as refused:
        tl.CaptureOptions(inference_only=True, measure_autograd_memory=True)
    assert refused.value.code == "inference_only_conflict"


@pytest.mark.parametrize(("asked", "x", "advises"), [("nan", -1.0, False), (True, -1.0, False), (True, 0.0, True)])
def test_the_other_raise_on_nan_is_advised_where_it_helps(asked: Any, x: float, advises: bool) -> None:
    with pytest.raises(tl.TraceCaptureError) as refused:
        tl.trace(torch.log, torch.full((2,), x), capture=tl.CaptureOptions(raise_on_nan=asked))
    assert ("raise_on_nan='nan'" in refused.value.remedy) is advises
    assert refused.value.partial_trace.first_nonfinite().label == "log_1_1"


def test_a_value_that_is_not_served_yet_reads_as_it_was_written() -> None:
    with pytest.raises(ConfigurationError, match="scope='intervention' is not available"):
        tl.validate(nn.ReLU(), X, scope="intervention")  # type: ignore[arg-type]  # that is refused


def test_what_holds_no_events_is_named_by_its_type() -> None:
    with pytest.raises(ConfigurationError, match=r"time_travel\(\) got int, which"):
        tl.time_travel(5)  # type: ignore[arg-type]  # that is refused
