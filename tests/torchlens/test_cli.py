"""The command line: what it prints for people and for programs, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from journal.events import BranchTaken
from tests.hostile import chunk, writing
from tests.programs import ROOT, run
from tests.strategies import opened
from tests.torchlens.command import printed
from torchlens.cli import main

BRANCH = BranchTaken(value=0, result=True, site=0, call=0).row(0)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures: ``first`` and one without a name."""
    path = tmp_path_factory.mktemp("cli") / "two.journal"
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    tl.trace(model, torch.ones(2, 4), journal=path, name="first", tags=["a"]).cleanup()
    tl.trace(model, torch.ones(3, 4), journal=path, save="none").cleanup()
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_info_counts_what_the_journal_holds(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "journal", "info", journal)
    assert (facts["captures"], facts["streams"]) == (2, 2)
    assert facts["events"] == sum(info.head for info in tl.open_journal(journal).streams)
    assert facts["bytes_on_disk"] > 0
    assert facts["environment"]["torch"] == torch.__version__
    text = printed(capsys, "journal", "info", journal)
    assert str(journal) in text
    assert "2" in text


def test_captures_has_a_line_for_each(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "journal", "captures", journal)
    assert [(row["capture"], row["name"], row["model"], row["status"], row["ops"]) for row in rows] == [
        (0, "first", "Sequential", "complete", 2),
        (1, rows[1]["name"], "Sequential", "complete", 2),
    ]
    assert len(answer(capsys, "journal", "captures", journal, "--limit", 1)) == 1
    lines = printed(capsys, "journal", "captures", journal).splitlines()
    assert len(lines) == 3
    assert "first" in lines[1]


def test_events_are_one_json_document_a_line(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "journal", "events", journal, "--capture", "first", "--json").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["at"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "stream_opened"
    assert events[0]["body"]["label"] == "first"
    assert events[-1]["type"] == "capture_settled"
    text = printed(capsys, "journal", "events", journal, "--capture", 0, "--start", 2, "--limit", 3).splitlines()
    assert [line.split()[0] for line in text] == ["2", "3", "4"]
    assert "model_described" in text[0]


def test_ops_shows_each_op(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "journal", "ops", journal, "--capture", "1")
    assert [row["op"] for row in rows] == ["input_1", "linear_1_1", "relu_1_2", "output_1"]
    assert rows[1]["shape"] == [3, 6]
    assert rows[1]["parents"] == ["input_1"]
    assert not any(row["kept"] for row in rows)
    assert len(answer(capsys, "journal", "ops", journal, "--capture", 0, "--limit", 2)) == 2
    text = printed(capsys, "journal", "ops", journal, "--capture", "first")
    assert "linear_1_1" in text
    assert "(2, 6)" in text


def test_a_capture_that_cannot_be_read_is_told_and_keeps_no_other_from_being_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.journal"
    tl.trace(nn.ReLU(), torch.ones(2), journal=path, name="first").cleanup()
    with writing(path) as made:  # as a newer version of this package would
        made.rows([opened(label="newer", written_by="9.1").row(0)], stream=1)
        place = {"seq": made.shelf.next_seq, "stream": 1, "at": 1}
        made.add(chunk([BRANCH], **place, types=((BRANCH[0], "time_travelled", 1),)), 1, stream=1)
    tl.trace(nn.ReLU(), torch.ones(2), journal=path, name="last").cleanup()
    for form in ((), ("--json",)):
        assert main(["journal", "captures", str(path), *form]) == 1
        shown = capsys.readouterr()
        assert [name in shown.out for name in ("first", "newer", "last", "unreadable")] == [True] * 4
        assert shown.err.startswith("torchlens: capture 1: ")
        assert "(9.1)" in shown.err
        assert "[event_unknown]" in shown.err
    assert printed(capsys, "journal", "ops", path, "--capture", "last")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ops"], "capture_not_chosen"),
        (["ops", "--capture", "7"], "capture_unknown"),
        (["events", "--capture", "no such"], "capture_unknown"),
    ],
)
def test_a_capture_that_is_not_clear_is_refused(
    journal: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], code: str
) -> None:
    command, *rest = arguments
    assert main(["journal", command, str(journal), *rest]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"[{code}]" in shown.err


@pytest.mark.parametrize("command", ["info", "captures", "events", "ops"])
def test_what_is_no_journal_is_refused_by_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "file").write_text("not a journal")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        assert main(["journal", command, str(path)]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("torchlens: ")
        assert "[journal_not" in shown.err


@pytest.mark.parametrize("arguments", [["journal"], ["journal", "ops"], ["journal", "ops", "x", "--limit", "-1"]])
def test_a_wrong_command_line_shows_how_it_is_used(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: torchlens" in capsys.readouterr().err


def test_values_that_json_does_not_have_come_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.journal"
    tl.trace(lambda x: x.clamp(max=float("inf")), torch.ones(2), journal=path).cleanup()
    lines = printed(capsys, "journal", "events", path, "--json").splitlines()
    assert any('"inf"' in line for line in lines)
    assert all(json.loads(line) for line in lines)


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(script, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_journal_is_read_without_torch(journal: Path) -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        from torchlens.cli import main
        for command, *rest in (("info",), ("captures",), ("ops", "--capture", "0"), ("events", "--capture", "0")):
            print(command, flush=True)
            assert main(["journal", command, sys.argv[1], "--json", *rest]) == 0
    """
    done = run(script, journal)
    assert done.stderr == ""
    answers = re.split(r"^(?:info|captures|ops|events)\n", done.stdout, flags=re.MULTILINE)
    assert answers[0] == ""
    assert [bool(answer) for answer in answers[1:]] == [True] * 4


def test_a_reader_that_stops_early_ends_it_quietly(journal: Path) -> None:
    command = f"{sys.executable} -u -m torchlens journal events {journal} --capture 0"
    done = shell(f"bash -c 'set -o pipefail; {command} | head -1'")
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture whose name has letters that not every terminal has."""
    path = tmp_path_factory.mktemp("cli") / "foreign.journal"
    tl.trace(nn.ReLU(), torch.ones(2), journal=path, name="größe ✓").cleanup()
    return path


@pytest.mark.parametrize("command", ["info", "captures", "events", "ops"])
def test_letters_that_the_terminal_lacks_are_escaped(foreign: Path, command: str) -> None:
    done = shell(f"PYTHONIOENCODING=ascii {sys.executable} -m torchlens journal {command} {foreign} | cat")
    assert done.stderr == ""
    assert done.stdout


def test_an_answer_that_cannot_be_written_is_told_in_a_line(journal: Path) -> None:
    for command in ("info", "captures", "events --capture 0", "ops --capture 0 --json"):
        done = shell(f"{sys.executable} -m torchlens journal {command} {journal} > /dev/full")
        assert done.returncode == 1
        assert done.stderr.startswith("torchlens: the answer could not be written")
        assert len(done.stderr.splitlines()) == 1
    assert shell(f"{sys.executable} -m torchlens journal info {journal} >&-").stderr == ""


def test_numbers_of_any_size_are_taken(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("captures", "events", "ops"):
        chosen = () if command == "captures" else ("--capture", 0)
        assert printed(capsys, "journal", command, journal, "--limit", 10**30, *chosen)
    assert main(["journal", "ops", str(journal), "--capture", "9" * 5000]) == 1
    assert "[capture_unknown]" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["captures", "ops"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_terminal_loses_columns_and_no_ends_of_labels(
    journal: Path, command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchlens.commands.printing.width_of_output", lambda: width)
    chosen = [] if command == "captures" else ["--capture", "first"]
    shown = printed(capsys, "journal", command, journal, *chosen)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for text in ("complete", "first") if command == "captures" else ("linear_1_1", "relu_1_2", "output_1"):
        assert text in shown


def test_summary_is_that_of_the_trace(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "journal", "summary", journal, "--capture", "first")
    with tl.open_journal(journal) as view:
        assert shown == f"{view.capture('first').summary()}\n"


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert tl.__version__ in capsys.readouterr().out
