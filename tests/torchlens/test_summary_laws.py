"""The amounts of a summary add up, at every level and however it is cut, whatever the program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from projections.accounts.summing import ADDITIVE
from tests.differentiating import traced
from torchlens.reading.summary import WIDTH, Summary
from torchlens.testing import Program, programs

BOTH = tl.CaptureOptions(backward_ready=True, measure_autograd_memory=True)

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "level": st.sampled_from(["auto", "module", "op"]),
        "fold_repeats": st.sampled_from([True, False, "auto"]),
        "max_rows": st.sampled_from([1, 3, None]),
        "filter": st.sampled_from(["relu|Linear", ".*", "nothing"]),
        "flop_convention": st.sampled_from(["fma1", "fma2"]),
    },
)


def require_sums(summary: Summary) -> None:
    for name in ADDITIVE:
        total = summary.totals[name]
        shown = [getattr(row, f"self_{name}") or 0 for row in summary.rows]
        parts = [*shown, summary.hidden[name] or 0, summary.outside[name] or 0]
        if total is None:
            assert not any(parts), name
        else:
            assert math.isclose(math.fsum(parts), total, rel_tol=1e-9, abs_tol=1e-12), name


@settings(max_examples=30)
@given(program=programs(), options=st.lists(OPTIONS, min_size=3, max_size=5), depth=st.sampled_from([0, 1, 2, "all"]))
def test_rows_and_what_is_hidden_and_what_belongs_to_none_are_the_totals(
    program: Program, options: list[dict[str, Any]], depth: int | str
) -> None:
    trace = traced(program, capture=BOTH)
    if trace is None:
        return
    for asked in (*options, {"level": "module", "depth": depth}):
        summary = trace.summary(**asked)
        require_sums(summary)
        assert max(map(len, summary.splitlines())) <= WIDTH
        assert asked.get("max_rows") is None or len(summary.rows) <= asked["max_rows"]


@settings(max_examples=15)
@given(program=programs())
def test_a_row_within_is_what_it_has_and_what_the_rows_below_have(program: Program) -> None:
    trace = traced(program, capture=BOTH)
    if trace is None:
        return
    for fold in (True, False):
        rows = trace.summary("module", depth="all", max_rows=None, fold_repeats=fold).rows
        for row, below in families(rows):
            for name in ADDITIVE:
                whole = [getattr(row, f"self_{name}") or 0, *(getattr(one, name) or 0 for one in below)]
                assert math.isclose(math.fsum(whole), getattr(row, name) or 0, rel_tol=1e-9, abs_tol=1e-12), name


def families(rows: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Each row, and the rows right below it."""
    for number, row in enumerate(rows):
        below: list[Any] = []
        for other in rows[number + 1 :]:
            if other.depth <= row.depth:
                break
            if other.depth == row.depth + 1:
                below.append(other)
        yield row, below


@settings(max_examples=10)
@given(program=programs(without=("raises", "wrong_shape")))
def test_a_journal_gives_the_same_summary(program: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    model, args, kwargs = program.build()
    path = tmp_path_factory.mktemp("summed") / "one.journal"
    try:
        trace = tl.trace(model, args, kwargs, journal=path)
    except tl.TorchLensError:
        return
    there = [trace.summary(level) for level in ("module", "op")]
    trace.cleanup()
    read = tl.load(path)
    assert [read.summary(level) for level in ("module", "op")] == there
    read.cleanup()


def test_an_artifact_gives_the_same_summary_and_the_same_graph(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    trace = tl.trace(model, torch.randn(3, 4), capture=BOTH)
    trace.backward(trace.output.sum())
    trace.save(tmp_path / "one.tlspec")
    read = tl.load(tmp_path / "one.tlspec")
    for level in ("module", "op"):
        here, there = (one.summary(level, columns=["+backward_flops", "+backward_time"]) for one in (trace, read))
        require_sums(there)
        assert there.rows == here.rows
        assert there.outside == here.outside
    assert tl.export.to_json(read, graph="combined") == tl.export.to_json(trace, graph="combined")


def test_a_shared_module_and_a_tied_weight_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) + self.first(x)

    trace = tl.trace(Tied(), torch.ones(2, 4))
    for level in ("module", "op"):
        summary = trace.summary(level)
        require_sums(summary)
        assert summary.totals["params"] == 16
        assert sum(row.self_params for row in summary.rows) == 16
