"""What ``make demo`` leaves to look at."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.page.examples import recurrent
from tests.page.test_writing import data_in
from tools import demo


def test_the_demo_leaves_a_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    demo.leave(recurrent(), folder)
    data = data_in((folder / "page.html").read_text(encoding="utf-8"))
    assert (data["title"], len(data["passes"]["label"])) == ("recurrent loop", 2)
    assert (folder / "page.html").as_uri() in capsys.readouterr().out
    with open(folder / "ops.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(data["ops"]["label"])
    assert "recurrent" in (folder / "summary.txt").read_text().lower()
