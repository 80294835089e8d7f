"""Joining and leaving a journal, whatever comes between: nobody is locked out by it."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

from journal import LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.integrity import verify
from journal.lease import Lease, is_held
from journal.recovery import recover
from journal.sharing import OPEN, leave_dropped
from tests.disk import no_file_longer_than
from tests.interrupting import is_interrupted
from tests.journal.small import branch, code_of
from tests.programs import run
from tests.strategies import opened
from torchlens import open_journal


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

each_line = pytest.mark.parametrize("stride", [23])
"""Every so many lines are interrupted; 1, which takes minutes, is for changes of how a journal is opened or closed."""


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


# A disk that refuses ----------------------------------------------------------------------------------------


def write_long(path: Path) -> None:
    one = open_for_writing(path, sync="none")
    for label in ("first", "second"):
        writer = one.open_stream(opened(label))
        for number in range(3000):
            writer.append(branch(number))
        writer.keep(bytes(300_000))
        writer.append(branch(0))
    one.close()


def test_a_copy_that_a_full_disk_ends_keeps_nobody_out_and_may_be_made_again(tmp_path: Path) -> None:
    write_long(tmp_path / "j")
    one = open_for_reading(tmp_path / "j")
    with no_file_longer_than(32 << 10):
        assert code_of(lambda: one.copy_to(tmp_path / "copy")) == "journal_write_failed"
        assert not is_held(tmp_path / "copy")
        assert str(tmp_path / "copy") not in OPEN
    one.copy_to(tmp_path / "copy")
    one.close()
    report = verify(tmp_path / "copy")
    assert (report.ok, report.is_sealed, report.streams) == (True, True, 2)


@pytest.mark.parametrize("room", [4 << 10, 32 << 10, 400_000])
def test_pruning_that_a_full_disk_ends_leaves_nothing_and_may_be_done_again(tmp_path: Path, room: int) -> None:
    write_long(tmp_path / "j")
    with open_journal(tmp_path / "j") as view:
        with no_file_longer_than(room):
            assert code_of(lambda: view.prune(tmp_path / "new")) in ("journal_write_failed", "journal_open_failed")
        assert not (tmp_path / "new").exists()
        assert view.prune(tmp_path / "new").events == 6004


def test_a_user_that_a_full_disk_did_not_let_go_leaves_when_there_is_room(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "j", sync="none", durability="close")
    writer = one.open_stream(opened("first"))
    for number in range(20_000):
        writer.append(branch(number))
    del writer
    one.writers.clear()
    one.environment.writers[StreamId(0)].user = None
    with no_file_longer_than(32 << 10):
        del one
        gc.collect()
        leave_dropped()
        assert is_held(tmp_path / "j")
    leave_dropped()
    assert not is_held(tmp_path / "j")
    assert verify(tmp_path / "j").events == 20_001


# A path that means another journal now ------------------------------------------------------------------------


def test_a_reader_stays_with_its_journal_when_another_one_takes_the_path(tmp_path: Path) -> None:
    path = tmp_path / "j"
    one = open_for_writing(path, sync="none")
    one.open_stream(opened("old")).close()
    reading = open_for_reading(path)
    shutil.rmtree(path)
    script = """
        import sys
        from journal import open_for_writing
        from tests.strategies import opened
        other = open_for_writing(sys.argv[1])
        for label in ("new", "newer"):
            other.open_stream(opened(label))
        other.close()
    """
    run(script, path)
    one.close()
    assert [info.opened.label for info in reading.streams()] == ["old"]
    reading.close()
    assert labels(path) == ["new", "newer"]


def test_who_makes_a_journal_while_another_does_is_told_that_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one makes its files between any two looks at the path."""
    path = tmp_path / "j"
    path.mkdir()
    look = Path.iterdir

    def made_meanwhile(self: Path) -> Iterator[Path]:
        (path / "data.mdb").touch()
        return look(self)

    holder = Lease(path)
    monkeypatch.setattr(Path, "iterdir", made_meanwhile)
    assert code_of(lambda: open_for_writing(path)) == "journal_locked"
    holder.release()


# Paths that the system refuses --------------------------------------------------------------------------------


def test_a_name_that_is_too_long_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    write_one(tmp_path / "j", "first")
    long = tmp_path / ("x" * 300)
    for act in (
        lambda: open_for_reading(long),
        lambda: open_for_writing(long),
        lambda: verify(long),
        lambda: recover(long, tmp_path / "new"),
        lambda: recover(tmp_path / "j", long),
    ):
        assert code_of(act) == "journal_open_failed"
    with open_journal(tmp_path / "j") as view:
        assert code_of(lambda: view.prune(long)) == "journal_open_failed"


def test_a_directory_that_may_not_be_looked_into_is_refused_wherever_it_is_given(tmp_path: Path) -> None:
    write_one(tmp_path / "closed" / "j", "first")
    write_one(tmp_path / "j", "first")
    script = """
        import os, sys
        from pathlib import Path
        from journal import JournalError, open_for_reading, recover, verify
        closed, whole = Path(sys.argv[1]), Path(sys.argv[2])
        os.chmod(closed, 0)
        if os.geteuid() == 0:
            for above in closed.parents[:-2]:
                os.chmod(above, 0o755)
            os.setuid(65534)
        for act in (
            lambda: open_for_reading(closed / "j"),
            lambda: verify(closed / "j"),
            lambda: verify(closed),
            lambda: recover(closed / "j", closed.parent / "new"),
            lambda: recover(whole, closed / "new"),
        ):
            try:
                act()
            except JournalError as exc:
                print(exc.code)
    """
    said = run(script, tmp_path / "closed", tmp_path / "j").stdout.split()
    os.chmod(tmp_path / "closed", 0o755)
    assert said == ["journal_open_failed"] * 5
