"""What ``trace.summary()`` shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.printable import amount


def cells(text: str) -> list[list[str]]:
    """The lines of the tree, as words."""
    lines = text.splitlines()
    first, last = (number for number, line in enumerate(lines) if line.startswith("---"))
    return [line.split() for line in lines[first + 1 : last]]


def test_counts_read_as_one_says_them() -> None:
    assert [amount(number, "op") for number in (0, 1, 2048)] == ["0 ops", "1 op", "2,048 ops"]
    assert [amount(number, "pass") for number in (1, 2)] == ["1 pass", "2 passes"]


def test_a_summary_is_the_module_tree_with_totals(worked: tl.Trace) -> None:
    text = worked.summary()
    assert text.splitlines()[0] == "Worked | input (2, 4) float32 | complete"
    tree = cells(text)
    assert [line[:4] for line in tree] == [
        ["self", "(Worked)", "1", "15"],
        ["fc", "(Linear)", "3", "3"],
        ["blk", "(Block)", "2", "4"],
        ["lin", "(Linear)", "2", "2"],
        ["act", "(ReLU)", "2", "2"],
        ["scale", "(Scale)", "1", "1"],
        ["head", "(Linear)", "1", "1"],
        ["unused", "(Linear)", "-", "-"],
    ]
    assert "15 in 9 layers, 4 with several passes" in text
    assert "linear 6, tanh 3" in text
    assert "55 (52 trainable), 220 B" in text
    assert "no tensor" in text


def test_a_summary_fits_a_terminal(worked: tl.Trace) -> None:
    assert max(len(line) for line in worked.summary().splitlines()) <= 80


def test_depth_and_rows_bound_the_tree(worked: tl.Trace) -> None:
    shallow = worked.summary(depth=1)
    assert len(cells(shallow)) == 6
    assert "2 modules below are not shown" in shallow
    assert cells(worked.summary(max_rows=6)) == cells(shallow), "the deepest level is left out first"
    assert len(cells(worked.summary(max_rows=3))) == 3


def test_a_submodule_stands_below_the_module_that_holds_it() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleDict({"used": nn.ReLU(), "unused": nn.ReLU()})
            self.second = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first["used"](x))
            return out

    names = [line[0] for line in cells(tl.trace(Partly(), torch.ones(2)).summary())]
    assert names == ["self", "first", "used", "unused", "second"]


def test_a_very_long_name_is_cut() -> None:
    model = nn.Sequential()
    model.add_module("a" * 200, nn.ReLU())
    text = tl.trace(model, torch.ones(2)).summary()
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_plain_function_and_a_failed_capture_have_summaries() -> None:
    def model(x: Tensor) -> Tensor:
        raise ValueError

    assert "cos 1" in tl.trace(torch.cos, torch.ones(2)).summary()
    try:
        tl.trace(model, torch.ones(2))
    except tl.TraceCaptureError as exc:
        assert exc.partial_trace is not None  # noqa: PT017  # the trace inside is what is asked about
        text = exc.partial_trace.summary()
    assert "failed" in text.splitlines()[0]
    assert "none" in text


def test_a_trace_shows_itself_in_a_line(worked: tl.Trace) -> None:
    assert repr(worked) == "<Trace Worked: 15 ops, complete>"


def test_a_module_that_raised_is_not_said_to_have_returned_no_tensor() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(nn.Sequential(nn.Linear(4, 5), nn.Linear(6, 2)), torch.ones(1, 4))
    assert caught.value.partial_trace is not None
    summary = caught.value.partial_trace.summary()
    (raised,) = (line for line in summary.splitlines() if line.startswith("  1 (Linear)"))
    assert raised.split()[4] == "raised"
    assert "no tensor" not in summary
