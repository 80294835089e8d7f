"""What the questions about a first NaN and a first difference say where not all is known, and in which words."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(3, 4)
        with torch.no_grad():
            self.emb.weight[1] = torch.nan

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.emb(x))


X = torch.tensor([0, 1, 2])


def written(path: Path, **options: object) -> tl.Trace:
    tl.trace(Embedding(), X, journal=path, **options).cleanup()  # type: ignore[arg-type]  # options of any kind
    return tl.load(path)


def test_a_weight_that_was_not_looked_at_comes_with_what_keeps_it(tmp_path: Path) -> None:
    found = written(tmp_path / "a").first_nonfinite()
    assert (found.origin, found.label) == ("unknown", "embedding_1_1")
    assert found.remedy is not None
    assert "save_arg_values=True" in found.remedy
    assert f"to know: {found.remedy}" in str(found)
    kept = written(tmp_path / "b", capture=tl.CaptureOptions(save_arg_values=True)).first_nonfinite()
    assert kept.origin != "unknown"
    assert kept.remedy is None
    assert "to know" not in str(kept)


def test_an_activation_that_was_not_looked_at_comes_with_a_wider_save() -> None:
    trace = tl.trace(lambda x: torch.log(x - 1) * 2, torch.zeros(2), save=tl.func("mul"))
    found = trace.first_nonfinite()
    assert (found.verdict, found.origin) == ("first_seen", "unknown")
    assert found.remedy is not None
    assert "save= that names it" in found.remedy
    assert "save_arg_values" not in found.remedy
    trace.cleanup()


def test_where_nothing_is_found_there_is_no_remedy() -> None:
    assert tl.trace(nn.ReLU(), torch.ones(2)).first_nonfinite().remedy is None


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def pair(fill: float | None) -> tl.FirstDifference:
    torch.manual_seed(0)
    model = Stack()
    other = copy.deepcopy(model)
    with torch.no_grad():
        weight = other.blocks[1][0].weight  # type: ignore[index]  # a sequence
        if fill is None:
            weight.mul_(1.1)
        else:
            weight.fill_(fill)
    x = torch.linspace(-1, 1, 8).view(2, 4)
    return tl.first_difference(tl.trace(model, x), tl.trace(other, x))


def test_the_root_is_no_module_call_that_adds_error() -> None:
    found = pair(None)
    assert {block.label for block in found.worst(100)} == {b.label for b in found.blocks} - {"self:1"}
    lines = str(found).splitlines()
    start = next(place for place, line in enumerate(lines) if "module calls add" in line)
    assert lines[start + 1].split()[0].startswith("blocks.1")
    assert "given 0 " in lines[start + 1]
    assert "gives 0." in lines[start + 1]
    assert "self:1  adds" not in str(found)


def test_an_infinite_error_is_told_in_words() -> None:
    found = pair(math.nan)
    assert "inf" not in str(found).replace("infinity", "")
    assert "without bound" in str(found)


def test_a_journal_of_several_captures_is_asked_for_as_pairs(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    for _ in range(3):
        tl.trace(nn.ReLU(), torch.ones(2), journal=path).cleanup()
    with pytest.raises(tl.TorchLensError) as refused:
        tl.first_difference(path, path)
    assert refused.value.code == "journal_holds_many"
    assert f"first_difference(({str(path)!r}, 1), ({str(path)!r}, 2))" in refused.value.remedy
    assert "capture=" not in refused.value.remedy
    assert not tl.first_difference((str(path), 1), (str(path), 2))
