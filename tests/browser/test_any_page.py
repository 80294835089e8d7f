"""Pages of data that no small capture has: deep, wide, empty, unordered, without events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.amounts import BYTES, FLOPS, TIMES
from tests.browser.made_up import made_up, page_of

CASES: dict[str, dict[str, Any]] = {
    "no op at all": made_up([-1], [], []),
    "one op, no event": made_up([-1], [0], [], events=False),
    "module in module, six hundred deep": made_up(
        [row - 1 for row in range(600)], list(range(600)), [(row, row + 1) for row in range(599)]
    ),
    "twenty thousand ops that read one": made_up([-1], [0] * 20_000, [(0, row) for row in range(1, 20_000)]),
    "edges to itself, backwards and round about": made_up(
        [-1, 0, 0, 1],
        [0, 1, 1, 2, 3, 3, 0],
        [(0, 0), (1, 0), (0, 1), (4, 1), (2, 5), (5, 2), (3, 4), (4, 3), (6, 1), (1, 6)],
    ),
    "every op reads every earlier one": made_up([-1], [0] * 60, [(a, b) for b in range(60) for a in range(b)]),
    "rows that name no row": made_up([-1, 7, 1], [0, 9, -1], [(0, 99), (-1, 2), (1, 2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_any_data_of_the_form_makes_a_page_that_can_be_used(
    name: str, tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    data = CASES[name]
    page = open_page(page_of(data, tmp_path / "page.html"))
    page.select_option("#depth", index=page.locator("#depth option").count() - 1)
    shown = page.evaluate("window.torchlens.shown()")
    assert len(shown) == len(set(shown))
    assert page.evaluate("window.torchlens.overlaps()") == 0
    if data["ops"]["label"]:
        last = data["texts"][-1]
        page.fill("#search", last)
        page.keyboard.press("Enter")
        assert page.evaluate("window.torchlens.selected()") == last
        assert page.evaluate("label => window.torchlens.where(label).inSight", last)
    for key in ("ArrowDown", "ArrowUp", "Shift+ArrowUp", "f", "<", "<", ",", ">", "c", "o"):
        page.keyboard.press(key)
    page.click("[data-tab=moment]")
    page.click("#first")
    assert page.evaluate("window.torchlens.moment().position") == 0


def test_a_page_without_the_events_of_backward_passes_says_so_and_plays_the_forward(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    data = made_up([-1], [0, 0, 0], [(0, 1), (1, 2)])
    data["texts"] += ["backward 1", "ok", "relu_back_1"]
    passes, ok, node = range(len(data["texts"]) - 3, len(data["texts"]))
    data["events"]["has_diary"] = False
    data["passes"] = {"label": [passes], "status": [ok], "trigger": [None], "begun": [None], "ended": [None]}
    data["firings"] = {
        "pass": [0],
        "event": [None],
        "node": [node],
        "type": [node],
        "op": [1],
        "param": [None],
        "time": [0.5],
    }
    data["gradients"] |= {
        "op": [1],
        "param": [None],
        "pass": [0],
        "event": [None],
        "shape": [None],
        "values": [0],
        "kept": [True],
    }
    data["values"] = [{"min": -1.0, "max": 2.0, "bars": [1, 0, 3], "low": -1.0, "high": 2.0}]
    page = open_page(page_of(data, tmp_path / "page.html"))
    page.click("#first")
    page.keyboard.press(".")
    assert page.evaluate("window.torchlens.moment()") == {
        "position": 1,
        "ran": ["relu_0"],
        "dotted": [],  # the gradient is of an op that has not run
        "running": [],
        "fired": [],
        "gradients": [[0, "relu_1"]],
    }
    page.click("[data-tab=moment]")
    assert "no events of backward passes" in page.inner_text("#panel .body")
    page.fill("#search", "relu_1")
    page.keyboard.press("Enter")
    assert "gradient, backward 1" in page.inner_text("#panel .body")
    assert page.locator("#panel .histogram rect").count() == 3


def test_amounts_are_said_as_python_says_them(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    data = made_up([-1], [0] * max(len(BYTES), len(FLOPS), len(TIMES)), [])
    examples = {"memory": BYTES, "FLOPs": FLOPS, "time": TIMES}
    for name, table in examples.items():
        data["ops"][name.lower()][: len(table)] = [number for number, _ in table]
    page = open_page(page_of(data, tmp_path / "page.html"))
    for row in range(len(data["ops"]["label"])):
        page.fill("#search", f"relu_{row}")
        page.keyboard.press("Enter")
        names, texts = page.locator("#panel dt").all_inner_texts(), page.locator("#panel dd").all_inner_texts()
        told = dict(zip(names, texts, strict=True))
        for name, table in examples.items():
            assert told[name] == (table[row][1] if row < len(table) else "not known"), (name, row)
