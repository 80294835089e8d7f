"""Saving: what stands at a path is the artifact of before or the new one, and nothing is left beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journal.lifecycle import ArtifactState
from tests.artifacts.making import fill, load, refused, save, several
from torchlens.tlspec import staging
from torchlens.tlspec.staging import Staging

EXCHANGE = pytest.mark.parametrize("can_exchange", [True, False])


@pytest.fixture(autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that exchanges two folders in one step, or on one that does not."""
    if "can_exchange" in request.fixturenames and not request.getfixturevalue("can_exchange"):
        monkeypatch.setattr(staging, "renameat2", None)


def content(path: Path) -> bytes:
    return bytes(load(path)[1].bytes(0))


@EXCHANGE
def test_an_artifact_is_there_when_it_is_published_and_nothing_else_is(tmp_path: Path, can_exchange: bool) -> None:
    path = tmp_path / "deep" / "a.tlspec"
    with Staging(path) as one:
        fill(one.folder, several([b"one"]))
        assert not path.exists()
        one.publish()
        assert one.machine.state is ArtifactState.RENAMED
    assert content(path) == b"one"
    assert os.listdir(path.parent) == ["a.tlspec"]
    assert sorted(os.listdir(path)) == ["manifest.json", "payloads", "records.msgpack"]


@EXCHANGE
def test_what_stands_there_is_replaced_only_if_that_was_asked(tmp_path: Path, can_exchange: bool) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"one"]))
    refused(lambda: save(path, several([b"two"])), "bundle_save_failed")
    assert content(path) == b"one"
    save(path, several([b"two"]), overwrite=True)
    assert content(path) == b"two"
    save(path, several([b"three"]), overwrite=True)
    assert content(path) == b"three"
    assert os.listdir(tmp_path) == ["a.tlspec"]


@EXCHANGE
@pytest.mark.parametrize("kind", ["file", "link", "folder", "empty"])
def test_only_an_artifact_is_replaced(tmp_path: Path, kind: str, can_exchange: bool) -> None:
    path, other = tmp_path / "a.tlspec", tmp_path / "b"
    other.mkdir()
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.mkdir()
    if kind == "folder":
        (path / "mine").write_text("mine")
    for overwrite in (True, False):
        refused(lambda overwrite=overwrite: save(path, [], overwrite=overwrite), "bundle_save_failed")
    assert sorted(os.listdir(tmp_path)) == ["a.tlspec", "b"]


@pytest.mark.parametrize("what", ["another manifest", "a note", "a note among payloads"])
def test_a_folder_with_anything_else_in_it_is_not_replaced(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.tlspec"
    if what == "another manifest":
        path.mkdir()
        (path / "manifest.json").write_text('{"name": "an extension of a browser"}')
    else:
        save(path, several([b"one"]))
    mine = path / ("payloads" if what == "a note among payloads" else "") / "mine.txt"
    mine.write_text("mine")
    error = refused(lambda: save(path, several([b"two"]), overwrite=True), "bundle_save_failed")
    assert ("manifest.json" if what == "another manifest" else "mine.txt") in str(error)
    assert mine.read_text() == "mine"


def test_an_artifact_that_is_damaged_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"one"]))
    data = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(data[:-20])
    save(path, several([b"two"]), overwrite=True)
    assert content(path) == b"two"


def test_a_directory_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    path = tmp_path / "linked" / "a.tlspec"
    save(path, several([b"one"]))
    save(path, several([b"two"]), overwrite=True)
    assert content(path) == b"two"


def test_a_disk_that_does_not_answer_for_the_place_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tlspec"
    real = os.fsync

    def failing(file: int) -> None:
        if path.exists():
            raise OSError(5, "input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", failing)
    error = refused(lambda: save(path, several([b"one"])), "bundle_save_failed")
    assert "stands at its place" in str(error)
    assert content(path) == b"one"


@EXCHANGE
def test_what_comes_to_stand_there_meanwhile_stays(tmp_path: Path, can_exchange: bool) -> None:
    path = tmp_path / "a.tlspec"
    with Staging(path) as one:
        fill(one.folder, several([b"late"]))
        save(path, several([b"first"]))
        refused(one.publish, "bundle_save_failed")
    assert content(path) == b"first"
    assert os.listdir(tmp_path) == ["a.tlspec"]


def test_a_save_that_is_left_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tlspec"
    with pytest.raises(ZeroDivisionError), Staging(path) as one:
        raise ZeroDivisionError(fill(one.folder, several([b"one"])))
    assert one.machine.state is ArtifactState.ABANDONED
    with Staging(path) as one:
        fill(one.folder, several([b"one"]))
    assert one.machine.state is ArtifactState.ABANDONED
    assert os.listdir(tmp_path) == []


# Leftovers ---------------------------------------------------------------------------------------------


def left_behind(path: Path, name: str) -> Path:
    """What a process leaves that dies while it saves."""
    around = path.parent / f".{path.name}.{name * 16}.staging"
    (around / "artifact").mkdir(parents=True)
    (around / "writer.lease").write_text("1")
    return around


def test_the_next_save_sweeps_what_dead_processes_left_and_nothing_else(tmp_path: Path) -> None:
    left_behind(tmp_path / "other.tlspec", "0")
    mine = [tmp_path / name for name in (".a.tlspec.staging", ".a.00.staging", "x.0000000000000000.staging")]
    for one in mine:
        one.mkdir()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / ".l.1111111111111111.staging"
    link.symlink_to(tmp_path / "elsewhere")
    with Staging(tmp_path / "live.tlspec") as live:
        fill(live.folder, [])
        save(tmp_path / "a.tlspec", [])
        live.publish()
    kept = {one.name for one in (*mine, link)}
    assert {*os.listdir(tmp_path)} == {"a.tlspec", "live.tlspec", "elsewhere", *kept}


def test_what_was_moved_aside_is_read_there_and_put_back_by_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))
    around = left_behind(path, "0")
    os.rename(path, around / "replaced")
    assert not path.exists()
    assert content(path) == b"old"
    save(tmp_path / "b.tlspec", [])
    assert path.exists()
    assert content(path) == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.tlspec", "b.tlspec"]


def test_where_the_second_step_is_refused_the_first_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tlspec"
    save(path, several([b"old"]))
    monkeypatch.setattr(staging, "renameat2", None)
    rename = os.rename

    def refusing(source: Path, target: Path) -> None:
        if source.name == "artifact":
            raise PermissionError("not this one")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refusing)
    with Staging(path, overwrite=True) as one:
        fill(one.folder, several([b"new"]))
        with pytest.raises(PermissionError):
            one.publish()
        assert one.machine.state is ArtifactState.SYNCED
    assert content(path) == b"old"
    assert os.listdir(tmp_path) == ["a.tlspec"]


def test_what_comes_to_stand_there_between_the_steps_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "a.tlspec", tmp_path / "other"
    save(path, several([b"old"]))
    save(other, several([b"somebody else's"]))
    monkeypatch.setattr(staging, "renameat2", None)
    rename = os.rename

    def overtaken(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name == "replaced" and other.exists():
            rename(other, path)

    monkeypatch.setattr(os, "rename", overtaken)
    save(path, several([b"new"]), overwrite=True)
    assert content(path) == b"new"
    assert os.listdir(tmp_path) == ["a.tlspec"]


@pytest.mark.parametrize("path", ["", "/", "a\0b", 7, None])
def test_what_is_no_path_is_refused(path: object) -> None:
    refused(lambda: Staging(path), "artifact_path_invalid")  # type: ignore[arg-type]
