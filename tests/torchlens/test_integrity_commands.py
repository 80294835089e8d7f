"""``torchlens journal verify`` and ``recover``, and a view's own `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from journal.sharing import OPEN
from tests.programs import run
from torchlens.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for number in range(2):
        tl.trace(
            nn.Linear(2, 3), torch.full((1, 2), float(number)), journal=tmp_path / "j", name=f"step {number}"
        ).cleanup()
    return tmp_path / "j"


def damage(path: Path) -> None:
    segment = path / "segments" / "000000.seg"
    data = bytearray(segment.read_bytes())
    data[3] ^= 1
    segment.write_bytes(data)


def test_a_whole_journal_is_said_to_be_whole(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "verify", str(path)]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (said["damages"], said["sealed"], said["streams"]) == ("none", "yes", "2")


def test_damage_is_listed_and_is_the_exit_status(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)
    assert main(["journal", "verify", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[0] == "payload_damaged"
    assert "segments/000000.seg, stream 0, payload 0" in lines[-1]


def test_a_report_is_json_for_programs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)
    assert main(["journal", "verify", "--json", "--timeout", "60", str(path)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    assert said["damages"] == [
        {
            "code": "payload_damaged",
            "problem": "the bytes of payload 0 of stream 0 do not match their digest",
            "file": "segments/000000.seg",
            "seq": None,
            "stream": 0,
            "number": 0,
        }
    ]


@pytest.mark.parametrize("asked", ["-1", "nan", "inf", "soon"])
def test_a_timeout_is_a_number_of_seconds(path: Path, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["journal", "verify", str(path), f"--timeout={asked}"])
    assert left.value.code == 2
    assert "--timeout" in capsys.readouterr().err


def test_what_is_no_journal_is_refused_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "verify", str(tmp_path / "nothing")]) == 1
    assert "[journal_not_found]" in capsys.readouterr().err


def test_the_commands_do_not_open_the_journal_themselves(path: Path, tmp_path: Path) -> None:
    script = f"""
import sys
from torchlens.cli import main
import lmdb
def refuse(where, **settings):
    assert not str(where).startswith({str(path)!r}), "opened"
    return opened(where, **settings)
opened, lmdb.open = lmdb.open, refuse
assert main(["journal", "verify", {str(path)!r}]) == 0
assert main(["journal", "recover", {str(path)!r}, {str(tmp_path / "new")!r}]) == 0
assert "torch" not in sys.modules
"""
    run(script)


def test_a_recovered_journal_gives_the_same_traces(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tl.open_journal(path) as old:
        before = [(trace.name, trace.fingerprint, trace["linear_1_1"].out.tolist()) for trace in old.captures]
    data = bytearray((path / "data.mdb").read_bytes())
    data[:8192] = bytes(8192)  # both meta pages
    (path / "data.mdb").write_bytes(data)
    assert main(["journal", "recover", "--json", str(path), str(tmp_path / "new")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["events_lost"], said["payloads_lost"], said["streams"]) == (0, 0, 2)
    with tl.open_journal(tmp_path / "new") as new:
        assert [(trace.name, trace.fingerprint, trace["linear_1_1"].out.tolist()) for trace in new.captures] == before
        assert new.verify().ok


def test_what_was_saved_is_shown(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path)
    assert main(["journal", "recover", str(path), str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert "payloads lost" in shown
    assert main(["journal", "recover", str(path), str(tmp_path / "new")]) == 1
    assert "[target_taken]" in capsys.readouterr().err
    assert main(["journal", "verify", str(tmp_path / "new")]) == 0
    assert "known to be lost" in capsys.readouterr().out


def test_a_view_verifies_its_journal(path: Path) -> None:
    with tl.open_journal(path) as journal:
        assert journal.verify() == journal.verify(timeout=60)
        assert journal.verify().ok
        damage(path)
        assert [each.code for each in journal.verify().damages] == ["payload_damaged"]
    assert str(path) not in OPEN
