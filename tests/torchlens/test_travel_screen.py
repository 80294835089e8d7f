"""``torchlens travel`` at a terminal, as a person uses it: keys are pressed, and the screen is read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.torchlens.faulty import capture_faulty
from tests.torchlens.terminal import Terminal


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_faulty(tmp_path_factory.mktemp("screen") / "run.journal")


@pytest.fixture
def terminal(journal: Path) -> Iterator[Terminal]:
    with Terminal([sys.executable, "-m", "torchlens", "travel", str(journal)]) as made:
        made.until("quit")
        yield made


def test_stepping_moves_the_mark_and_what_is_shown(terminal: Terminal) -> None:
    terminal.until("before the first event")
    terminal.press("jj ")
    terminal.until("event 2 of")
    terminal.press("k")
    terminal.until("event 1 of")
    terminal.press("G")
    terminal.until("pass_finalized")
    terminal.press("g")
    terminal.until("before the first of")
    terminal.press("q")
    assert terminal.end() == 0


def test_the_first_infinity_is_found_and_its_line_shown(terminal: Terminal) -> None:
    terminal.press("f")
    shown = terminal.until("first not finite: activation of log_1_5")
    assert "6 infinite" in shown
    terminal.press("\x1b")
    terminal.until(lambda text: "first not finite" not in text and "--->" in text and "torch.log(self.out(" in text)
    terminal.press("w")
    terminal.until(lambda text: "mul_1_4" in text and "why" in text)
    terminal.press("q")
    assert terminal.end() == 0


def test_what_is_sought_is_typed_and_sought_again(terminal: Terminal) -> None:
    terminal.press("/")
    terminal.until("next: func(")
    terminal.press('func("linear")\r')
    terminal.until("linear_1_1: ")  # statistics, and bars
    terminal.until("####")
    terminal.press("n")
    terminal.until("linear_2_3: ")
    terminal.press("n")
    terminal.until("no_event_matches")
    terminal.press("p")
    terminal.until("linear_1_1: ")
    terminal.press(":")
    terminal.until(lambda text: "\n:" in text)
    terminal.press("seek nowhere\r")
    terminal.until("travel_argument_invalid")
    terminal.press("c")
    terminal.until("ops linear_1_1 came")
    terminal.press(":")
    terminal.until(lambda text: "\n:" in text)
    terminal.press("quit\r")
    assert terminal.end() == 0


def test_the_line_of_keys_fits_on_a_plain_terminal(journal: Path) -> None:
    with Terminal([sys.executable, "-m", "torchlens", "travel", str(journal)], columns=80, rows=24) as terminal:
        shown = terminal.until(lambda text: "h help  q quit" in " ".join(text.split("\n")[-1:]))
        assert "NaN" in shown.split("\n")[-1]
        terminal.press("q")
        assert terminal.end() == 0


def test_a_small_terminal_is_no_reason_to_fail(journal: Path) -> None:
    with Terminal([sys.executable, "-m", "torchlens", "travel", str(journal)], columns=40, rows=12) as terminal:
        terminal.until("before the f")
        terminal.press("j")
        terminal.until("event 0 ")
        terminal.press("q")
        assert terminal.end() == 0


def test_a_capture_that_is_written_grows_on_the_screen(tmp_path: Path) -> None:
    path = tmp_path / "live.journal"
    trace = tl.trace(nn.Linear(3, 2), torch.ones(1, 3), journal=tl.JournalOptions(path, durability="event"))
    before = trace.num_events
    with Terminal([sys.executable, "-m", "torchlens", "travel", str(path)]) as terminal:
        terminal.until(f"of {before}")
        trace.backward(trace.output.sum())
        terminal.until(f"of {trace.num_events}")
        terminal.press("G")
        terminal.until("pass_finalized")
        terminal.press("q")
        assert terminal.end() == 0
    trace.cleanup()
