"""``journal follow|prune|export`` and choosing captures: what is printed, written and refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from journal import open_for_reading, open_for_writing
from journal.events import InputSeen
from tests.programs import PATIENCE, run, surroundings
from tests.strategies import branched
from tests.torchlens.command import printed
from torchlens.cli import main

BRANCHED_AT = 5
"""Events that the branch has from its parent: up to its input, the first op."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five captures, ``step 0`` to ``step 4``; 1 and 3 are tagged ``odd``, 3 also ``best``; then a branch of 3 behind
    its input."""
    path = tmp_path_factory.mktemp("cli") / "many.journal"
    for number in range(5):
        tags = [*(["odd"] if number % 2 else []), *(["best"] if number == 3 else [])]
        x = torch.full((2,), float(number))
        tl.trace(nn.ReLU(), x, journal=path, name=f"step {number}", tags=tags).cleanup()
    one = open_for_writing(path)
    assert isinstance(list(one.events(3))[BRANCHED_AT - 1].event, InputSeen)
    one.open_stream(branched(3, BRANCHED_AT, "what if"))
    one.close()
    return path


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[Any]:
    return [json.loads(line) for line in printed(capsys, *arguments).splitlines()]


def names(capsys: pytest.CaptureFixture[str], path: Path, *arguments: object) -> list[str]:
    return [row["name"] for row in json.loads(printed(capsys, "journal", "captures", path, "--json", *arguments))]


# Choosing ---------------------------------------------------------------------------------------------


def test_captures_shows_tags_and_takes_one(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(printed(capsys, "journal", "captures", many, "--json", "--tag", "odd"))
    assert [(row["capture"], row["name"], row["tags"]) for row in rows] == [
        (1, "step 1", ["odd"]),
        (3, "step 3", ["odd", "best"]),
    ]
    assert names(capsys, many, "--tag", "odd", "--limit", 1) == ["step 1"]
    assert names(capsys, many, "--tag", "none such") == []
    assert "odd, best" in printed(capsys, "journal", "captures", many)


@pytest.mark.parametrize("chosen", ["1", "-5", "step 1"])
def test_a_capture_is_chosen_by_number_from_either_end_or_by_name(
    many: Path, capsys: pytest.CaptureFixture[str], chosen: str
) -> None:
    for command in ("events", "follow", "export"):
        extra = ["--json"] if command != "export" else []
        found = lines(capsys, "journal", command, many, "--capture", chosen, *extra)
        assert found[0]["body"]["label"] == "step 1"
        assert {line["stream"] for line in found} == {1}


# Follow -----------------------------------------------------------------------------------------------


def test_follow_prints_a_sealed_journal_and_ends(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "journal", "follow", many, "--json")
    assert [line["seq"] for line in found] == list(range(len(found)))
    assert {line["stream"] for line in found} == set(range(6))
    text = printed(capsys, "journal", "follow", many, "--capture", "step 2")
    assert text == printed(capsys, "journal", "events", many, "--capture", "step 2")
    whole = printed(capsys, "journal", "follow", many).splitlines()
    assert len(whole) == len(found)
    assert whole[-1].split()[:2] == ["5", str(BRANCHED_AT)]
    assert "stream_opened" in whole[-1]


def test_follow_shows_each_event_of_another_process_as_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "live.journal"
    command = [sys.executable, "-m", "torchlens", "journal", "follow", str(path), "--timeout", str(PATIENCE), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings()) as follower:
        assert follower.stdout is not None
        time.sleep(0.3)  # it begins before there is a journal
        live = tl.trace(nn.ReLU(), torch.ones(2), journal=path)
        expected = len(list(live.events()))
        shown = [json.loads(follower.stdout.readline()) for _ in range(expected)]
        assert [line["at"] for line in shown] == list(range(expected))
        live.cleanup()  # seals, which ends it
        assert follower.stdout.read() == ""
        assert follower.wait(PATIENCE) == 0


def test_follow_refuses_what_is_not_there_and_what_is_no_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no journal")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        for extra in ([], ["--timeout", "0.1"]):
            assert main(["journal", "follow", str(path), *extra]) == 1
            assert "[journal_not" in capsys.readouterr().err


# Prune ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ([], ["step 0", "step 1", "step 2", "step 3", "step 4", "what if"]),
        (["--capture", "0", "--capture", "step 4"], ["step 0", "step 4"]),
        (["--tag", "odd"], ["step 1", "step 3"]),
        (["--keep-last", "2"], ["step 3", "step 4", "what if"]),  # the branch brings its parent along
        (["--keep-last", "1"], ["step 3", "what if"]),
        (["--tag", "odd", "--capture", "-2"], ["step 1", "step 3", "step 4"]),
    ],
)
def test_prune_keeps_what_was_chosen_with_equal_fingerprints(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], choice: Sequence[str], kept: list[str]
) -> None:
    before = {file: file.read_bytes() for file in many.rglob("*") if file.is_file() and file.name != "lock.mdb"}
    facts = json.loads(printed(capsys, "journal", "prune", many, tmp_path / "kept", *choice, "--json"))
    assert names(capsys, tmp_path / "kept") == kept
    assert (facts["streams"], facts["payloads_missing"]) == (len(kept), 0)
    with tl.open_journal(many) as old, tl.open_journal(tmp_path / "kept") as new:
        for name in kept:
            assert new.capture(name).fingerprint == old.capture(name).fingerprint
            assert torch.equal(new.capture(name).ops[0].out, old.capture(name).ops[0].out)
        assert [one.seq for one in new.journal.since(0)] == list(range(facts["events"]))
        assert not new.is_unfinished_copy
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        (["--capture", "9"], "capture_unknown"),
        (["--capture", "no such"], "capture_unknown"),
        (["--tag", "no such"], "capture_unknown"),
        (["--keep-last", "0"], "option_value_invalid"),
    ],
)
def test_prune_refuses_a_choice_that_names_nothing_and_makes_nothing(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], choice: Sequence[str], code: str
) -> None:
    assert main(["journal", "prune", str(many), str(tmp_path / "kept"), *choice]) == 1
    assert f"[{code}]" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_prune_refuses_a_place_where_something_is(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(many)
    before = sorted(many.rglob("*"))
    for target in (many, tmp_path, tmp_path / "file", many / "cache" / "kept", tmp_path / "link" / "kept"):
        assert main(["journal", "prune", str(many), str(target)]) == 1
        assert "[target_taken]" in capsys.readouterr().err
    assert sorted(many.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert "events" in printed(capsys, "journal", "prune", many, tmp_path / "empty")


def test_an_unfinished_copy_shows_as_one(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, signal, sys; from journal import open_for_reading; from journal.copying import StreamCopy; "
        "run = StreamCopy.run; "
        "StreamCopy.run = lambda self: os.kill(os.getpid(), signal.SIGKILL) if self.stream == 2 else "
        "(run(self), self.target.commit()); "
        f"open_for_reading({str(many)!r}).copy_to({str(tmp_path / 'half')!r})"
    )
    run(code, ends=-9)
    assert json.loads(printed(capsys, "journal", "info", tmp_path / "half", "--json"))["unfinished_copy"] is True
    assert main(["journal", "captures", str(tmp_path / "half")]) == 0
    shown = capsys.readouterr()
    assert "did not end" in shown.err
    assert "step 1" in shown.out
    with tl.open_journal(tmp_path / "half") as view:
        assert "unfinished copy" in repr(view)


# Export -----------------------------------------------------------------------------------------------


def test_export_writes_every_event_as_a_json_line(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, "journal", "export", many, "--jsonl")
    assert found == lines(capsys, "journal", "export", many)
    assert printed(capsys, "journal", "export", many, "--output", tmp_path / "out.jsonl") == ""
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == found
    assert lines(capsys, "journal", "export", many, "--json") == found
    reading = open_for_reading(many)
    stamped = list(reading.since(0))
    assert [(line["stream"], line["at"], line["seq"], line["time_ns"], line["type"]) for line in found] == [
        (one.stream, one.at, one.seq, one.time_ns, one.event.event_name) for one in stamped
    ]
    assert {line["version"] for line in found} == {1}
    assert all(list(line["body"]) == list(one.event.fields) for line, one in zip(found, stamped, strict=True))
    reading.close()


def test_an_export_replaces_a_file_only_when_asked(
    many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("mine")
    assert main(["journal", "export", str(many), "--output", str(path)]) == 1
    said = capsys.readouterr().err
    assert "export_path_exists" in said
    assert "--overwrite" in said
    assert path.read_text() == "mine"
    printed(capsys, "journal", "export", many, "--output", path, "--overwrite")
    assert path.read_text().startswith("{")


def test_export_of_a_branch_reads_through_its_parent(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "journal", "export", many, "--capture", "what if")
    assert [(line["stream"], line["at"]) for line in found] == [
        *((3, at) for at in range(BRANCHED_AT)),
        (5, BRANCHED_AT),
    ]


def test_what_json_does_not_have_is_exported_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.journal"
    tl.trace(lambda x: x.clamp(max=float("inf"), min=float("-inf")), torch.ones(2), journal=path).cleanup()
    exported = printed(capsys, "journal", "export", path)
    assert '"inf"' in exported
    assert '"-inf"' in exported
    for line in exported.splitlines():
        json.loads(line, parse_constant=lambda text: pytest.fail(text))


def test_an_empty_journal_exports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_for_writing(tmp_path / "j").close()
    assert printed(capsys, "journal", "export", tmp_path / "j") == ""


def test_these_commands_run_without_torch(many: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from torchlens.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["follow", many], ["export", many, "--jsonl"], ["prune", many, tmp_path / "kept"]):
        done = run(code, "journal", *arguments)
        assert done.stderr == ""
        assert done.stdout
