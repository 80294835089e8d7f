"""``torchlens view``: writes the page of a capture, says where, and opens it where there is a browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.page.test_writing import data_in
from tests.programs import run
from tests.torchlens.command import printed
from torchlens.cli import main
from torchlens.commands.view import file_name


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "run.journal"
    tl.trace(nn.Linear(2, 3), torch.rand(1, 2), journal=path, name="first").cleanup()
    tl.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.rand(1, 2), journal=path, name="../a b").cleanup()
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was told to open."""
    told: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda address: told.append(address) or True)
    return told


def test_the_page_is_written_where_it_was_asked_for(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    page = tmp_path / "page.html"
    told = printed(capsys, "view", journal, "--capture", "first", "--output", page, "--no-open")
    assert told == f"{page}\n"
    assert data_in(page.read_text())["title"] == "first"
    assert asked == []


def test_the_page_is_opened_from_a_folder_of_its_own(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page = Path(printed(capsys, "view", journal, "--capture", "1").strip())
    assert page.parent.parent == tmp_path
    assert page.name == "a_b.html"
    assert page.parent.stat().st_mode & 0o077 == 0
    assert asked == [page.as_uri()]


@pytest.mark.parametrize("found", ["none", "refused"])
def test_where_there_is_no_browser_the_place_is_told_all_the_same(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", refuse if found == "refused" else lambda address: False)
    page = tmp_path / "page.html"
    assert main(["view", str(journal), "--capture", "0", "--output", str(page)]) == 0
    shown = capsys.readouterr()
    assert (shown.out, page.exists()) == (f"{page}\n", True)
    assert "no browser" in shown.err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a screen")
def test_a_machine_without_a_screen_starts_no_browser(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["view", str(journal), "--capture", "0", "--output", str(tmp_path / "page.html")]) == 0
    assert asked == []
    assert "no browser" in capsys.readouterr().err


def test_a_file_that_is_there_is_replaced_only_when_asked(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    given = ("view", str(journal), "--capture", "0", "--output", str(page), "--no-open")
    assert main(given) == 1
    assert "is there already" in capsys.readouterr().err
    printed(capsys, *given, "--overwrite")
    assert page.read_text() != "mine"


def test_an_artifact_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tl.trace(nn.Linear(2, 3), torch.rand(1, 2), name="saved").save(tmp_path / "saved.tlspec")
    page = tmp_path / "page.html"
    printed(capsys, "view", tmp_path / "saved.tlspec", "--output", page, "--no-open")
    data = data_in(page.read_text())
    assert (data["title"], data["events"]["has_diary"]) == ("saved", False)
    assert len(data["values"]) == 2


def test_a_path_that_holds_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("no.journal", "journal"), ("no.tlspec", "artifact")):
        assert main(["view", str(tmp_path / name), "--no-open"]) == 1
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_which_capture_must_be_said_where_there_are_several(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(journal), "--no-open"]) == 1
    assert "2 captures" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("tiny GPT-2", "tiny_GPT-2.html"),
        ("../../etc/passwd", "etc_passwd.html"),
        ("\u202e\0", "page.html"),
        ("x" * 200, "x" * 60 + ".html"),
    ],
)
def test_the_name_of_a_page_is_one_that_any_file_system_takes(label: str, name: str) -> None:
    assert file_name(label) == name


def test_a_page_is_made_without_torch(journal: Path, tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        from torchlens.cli import main
        sys.exit(main(["view", sys.argv[1], "--capture", "1", "--output", sys.argv[2], "--no-open"]))
    """
    run(code, journal, tmp_path / "page.html")
    data = data_in((tmp_path / "page.html").read_text())
    assert data["values"] == []
    assert ["statistics", "3 tensors left out: torch is not installed here"] in data["facts"]
    assert len(data["ops"]["label"]) == 4


def test_what_is_refused_says_the_flags_of_the_command(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("there")
    assert main(["view", str(journal), "--capture", "0", "--output", str(page), "--no-open"]) == 1
    assert "or --overwrite " in capsys.readouterr().err
    assert main(["view", str(tmp_path / "nothere")]) == 1
    assert "neither a journal nor an artifact at" in capsys.readouterr().err
