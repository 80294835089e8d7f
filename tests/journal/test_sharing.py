"""Joining and leaving a journal, whatever comes between: nobody is locked out by it."""

from __future__ import annotations

import gc
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from journal import LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.integrity import verify
from journal.lease import is_held
from journal.sharing import OPEN, leave_dropped
from tests.interrupting import is_interrupted
from tests.journal.small import branch
from tests.strategies import opened


def labels(path: Path) -> list[str | None]:
    one = open_for_reading(path)
    found = [info.opened.label for info in one.streams()]
    one.close()
    return found


def write_one(path: Path, label: str) -> None:
    one = open_for_writing(path, sync="none")
    one.open_stream(opened(label)).append(branch(1))
    one.close()


def written(path: Path) -> LmdbJournal:
    """A journal with something that no commit has stored."""
    one = open_for_writing(path, sync="none", durability="close")
    writer = one.open_stream(opened("first"))
    writer.keep(b"x" * 40_000)
    writer.keep(b"small")
    writer.append(branch(1))
    return one


# Interrupts -------------------------------------------------------------------------------------------

each_line = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
"""Every so many lines are interrupted."""


@each_line
@pytest.mark.parametrize("is_read", [False, True])
def test_an_interrupt_anywhere_in_closing_leaves_a_journal_that_can_be_closed(
    tmp_path: Path, is_read: bool, stride: int
) -> None:
    for stop in count(0, stride):
        path = tmp_path / str(stop)
        one = written(path)
        reading = open_for_reading(path) if is_read else None
        interrupted = is_interrupted(one.close, stop)
        one.close()
        assert not is_held(path)
        assert (str(path) in OPEN) == is_read
        write_one(path, "second")
        if reading is not None:
            assert [info.opened.label for info in reading.streams()] == ["first", "second"]
            reading.close()
        assert labels(path) == ["first", "second"]
        if not interrupted:
            break
    assert stop > 50
    report = verify(path)
    assert (report.ok, report.is_sealed, report.events) == (True, True, 4)


def test_an_interrupt_anywhere_in_closing_the_last_reader_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write_one(path, "first")
    for stop in count():
        reading = open_for_reading(path)
        interrupted = is_interrupted(reading.close, stop)
        assert labels(path) == ["first"]
        reading.close()
        assert str(path) not in OPEN
        if not interrupted:
            break


@each_line
@pytest.mark.parametrize("before", ["nothing", "journal", "reader"])
def test_an_interrupt_anywhere_in_opening_keeps_nobody_out(tmp_path: Path, before: str, stride: int) -> None:
    for stop in count(0, stride):
        path = tmp_path / str(stop)
        if before != "nothing":
            write_one(path, "first")
        reading = open_for_reading(path) if before == "reader" else None
        interrupted = is_interrupted(lambda path=path: open_for_writing(path, sync="none"), stop)  # type: ignore[misc]
        gc.collect()
        leave_dropped()
        assert not is_held(path)
        if reading is not None:
            assert len(reading.streams()) == 1
        write_one(path, "last")
        assert labels(path)[-1] == "last"
        if reading is not None:
            assert reading.head(StreamId(1)) == 2
            reading.close()
        assert str(path) not in OPEN
        if not interrupted:
            break
    assert stop > 50


def test_a_thread_that_cannot_be_started_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("journal.flushing.FLUSHER.thread", None)
        patched.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            open_for_writing(tmp_path / "j")
        assert not is_held(tmp_path / "j")
    write_one(tmp_path / "j", "first")
    assert labels(tmp_path / "j") == ["first"]
