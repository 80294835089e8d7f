"""A disk that refuses: a save ends with a code, leaves what was there, and leaves nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.artifacts.making import load, refused, save, several
from tests.disk import no_file_longer_than
from torchlens.tlspec import staging

BIG = several([bytes(200_000)])


def content(path: Path) -> bytes:
    return bytes(load(path)[1].bytes(0))


@pytest.mark.parametrize("room", [0, 100, 5000, 150_000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, room: int) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))
    with no_file_longer_than(room):
        refused(lambda: save(path, BIG, overwrite=True), "bundle_save_failed")
    assert content(path) == b"old"
    assert os.listdir(tmp_path) == ["a.tlspec"]
    save(path, BIG, overwrite=True)
    assert len(content(path)) == 200_000


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system is asked to say no."""
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))
    mkdir = os.mkdir

    def refusing(at: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if "staging" in str(at):
            raise PermissionError(13, "Permission denied", str(at))
        mkdir(at, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", refusing)
    error = refused(lambda: save(path, BIG, overwrite=True), "bundle_save_failed")
    assert "Permission denied" in str(error)
    assert content(path) == b"old"


def test_a_path_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(lambda: save(tmp_path / "file" / "a.tlspec", []), "bundle_save_failed")


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    refused(lambda: save(tmp_path / ("x" * 250), []), "bundle_save_failed")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_what_fails_at_the_end_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(staging, "renameat2", None)
    monkeypatch.setattr(os, call, failing)
    refused(lambda: save(path, BIG, overwrite=True), "bundle_save_failed")
    monkeypatch.undo()
    assert content(path) == b"old"
    assert os.listdir(tmp_path) == ["a.tlspec"]
