"""What ``make demo`` leaves to look at."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import torchlens as tl
from tests.page.examples import recurrent
from tests.page.test_writing import data_in
from tools import demo
from torchlens.viz import programs


@pytest.fixture(scope="module")
def trace() -> tl.Trace:
    return recurrent()


def test_the_demo_leaves_a_page_a_picture_and_an_artifact_and_says_where(
    trace: tl.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    demo.leave(trace, folder)
    data = data_in((folder / "page.html").read_text(encoding="utf-8"))
    assert (data["title"], len(data["passes"]["label"])) == ("recurrent loop", 2)
    with open(folder / "ops.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(data["ops"]["label"])
    assert "recurrent" in (folder / "summary.txt").read_text().lower()
    picture = (folder / "graph.svg").read_text()
    assert picture.lstrip().startswith("<?xml")
    assert "AccumulateGrad" in picture
    assert len(tl.load(folder / "gpt2.tlspec").ops) == len(trace.ops)
    told = capsys.readouterr().out
    assert "loaded back: 22 ops, and nothing differs" in told
    assert all((folder / name).as_uri() in told for name in ("page.html", "graph.svg"))


def test_the_demo_goes_on_where_nothing_draws(
    trace: tl.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "where_is", lambda name: None)
    assert demo.draw(trace, tmp_path / "graph.svg") is None
    assert "No picture" in capsys.readouterr().out
    assert not (tmp_path / "graph.svg").exists()


def test_an_artifact_that_says_something_else_is_told(
    trace: tl.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tl.trace(lambda x: x * 2, torch.ones(2))
    monkeypatch.setattr(tl, "load", lambda path, lazy: other)
    with pytest.raises(AssertionError):
        demo.save(trace, tmp_path / "gpt2.tlspec")
    assert "DIFFERENT" in capsys.readouterr().out
