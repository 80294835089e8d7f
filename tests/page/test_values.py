"""Statistics of a page are those of the records, within bounds, and what was left out is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from torchlens.page import values as values_module
from torchlens.page.cells import number_of
from torchlens.page.data import page_data
from torchlens.reading.statistics import Statistics


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def captured(save_grads: Any = None, **options: Any) -> tl.Trace:
    trace = tl.trace(model(), torch.rand(3, 4), **options)
    return trace.backward(trace.output.sum(), save_grads=save_grads)


def said(data: dict[str, Any]) -> str:
    return dict(data["facts"]).get("statistics", "")


def assert_same(told: Mapping[str, Any], known: Statistics) -> None:
    assert told["count"] == known.count
    assert (told["nan"], told["inf"]) == (known.num_nan, known.num_inf)
    assert (told.get("min"), told.get("max"), told.get("mean"), told.get("std")) == (
        *(known.min, known.max),
        *(known.mean, known.std),
    )


def test_every_kept_tensor_has_the_statistics_of_its_record_and_a_histogram() -> None:
    trace = captured(save_grads=True)
    data = page_data(trace)
    for row, op in enumerate(trace.ops):
        told = data["values"][data["ops"]["values"][row]]
        assert_same(told, op.stats)
        assert sum(told["bars"]) == told["count"]
        assert (told["low"], told["high"]) == (told["min"], told["max"])
    for row, gradient in enumerate(trace.autograd.gradients):
        assert_same(data["values"][data["gradients"]["values"][row]], gradient.stats)
    assert said(data) == f"of {len(data['values'])} tensors"


def test_torch_has_as_many_threads_after_a_page_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    page_data(captured())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_an_output_has_the_statistics_of_the_op_whose_value_it_is() -> None:
    data = page_data(captured())
    assert data["ops"]["values"][-1] == data["ops"]["values"][-2]


def test_statistics_that_were_kept_need_no_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = captured(save=tl.stats_only(), save_grads=tl.stats_only())
    monkeypatch.setattr(trace, "activation", None)
    data = page_data(trace, statistics="kept")
    for row, op in enumerate(trace.ops):
        assert_same(data["values"][data["ops"]["values"][row]], op.stats)
    for row, gradient in enumerate(trace.autograd.gradients):
        assert_same(data["values"][data["gradients"]["values"][row]], gradient.stats)
    assert not any("bars" in told for told in data["values"])


@pytest.mark.parametrize("asked", [False, "kept"])
def test_payloads_are_looked_at_only_when_asked(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = captured(save_grads=True)
    monkeypatch.setattr(trace, "activation", None)
    monkeypatch.setattr(trace, "gradient", None)
    data = page_data(trace, statistics=asked)
    assert data["values"] == []
    assert set(data["ops"]["values"]) == {None}
    assert said(data) == ""


def test_what_is_not_finite_is_counted_and_no_number_of_the_page() -> None:
    trace = tl.trace(lambda x: x / x, torch.tensor([0.0, 1.0, torch.inf]))
    data = page_data(trace)
    first, second = (data["values"][data["ops"]["values"][row]] for row in (0, 1))
    assert (first["inf"], first["max"], sum(first["bars"])) == (1, 1.0, 2)
    assert (second["nan"], second["count"], second["mean"]) == (2, 3, 1.0)
    assert "bars" not in second


@pytest.mark.parametrize(
    ("bound", "limit", "kept", "why"),
    [
        ("MOST_TENSORS", 2, 2, "beyond what a page looks at"),
        ("MOST_BYTES", 24 + 24 + 48, 2, "beyond what a page looks at"),
        ("SECONDS", -1.0, 0, "after -1 seconds"),
    ],
)
def test_the_smallest_are_looked_at_until_it_is_enough(
    bound: str, limit: float, kept: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = captured()
    whole = page_data(trace)
    monkeypatch.setattr(values_module, bound, limit)
    data = page_data(trace)
    assert len(data["values"]) == kept
    assert said(data).endswith(f"{len(whole['values']) - kept} tensors left out: {why}")
    sizes = sorted(op.activation_memory for op in trace.ops if not op.is_output)
    known = [
        op.activation_memory for op, number in zip(trace.ops, data["ops"]["values"], strict=True) if number is not None
    ]
    assert set(known) <= set(sizes[:kept])


def test_what_is_not_to_be_had_is_counted() -> None:
    trace = captured()
    trace.handles.close()  # type: ignore[union-attr]  # a live trace
    data = page_data(trace)
    assert data["values"] == []
    assert "left out: not to be had" in said(data)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((1, 1), (-0.5, -0.5), (2**53 - 1, 2**53 - 1), (2**60, float(2**60)), (10**400, None), (True, None)),
        *((float("nan"), None), (float("inf"), None), ("1", None), (None, None)),
    ],
)
def test_a_number_is_one_that_any_program_reads(value: Any, shown: Any) -> None:
    made = number_of(value)
    assert (made, type(made)) == (shown, type(shown))
