"""Verifying and recovering journals whose streams are branches, copies, or the rest after pruning."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from journal import Journal, JournalError, LmdbJournal, MemoryJournal, StreamId, open_for_reading, open_for_writing
from journal.copying import copy_streams
from journal.events import BranchTaken, StreamOpened
from journal.integrity import verify
from journal.lmdb_layout import COPYING, ONE
from journal.recovery import recover
from tests.disk import no_file_longer_than
from tests.journal.small import put
from tests.strategies import branched, opened, payload_bytes

HEAD = 40


def filled(journal: Journal, header: StreamOpened, count: int) -> StreamId:
    writer = journal.open_stream(header)
    for number in range(count):
        writer.append(BranchTaken(value=writer.keep(payload_bytes(number)), result=True, site=number, call=0), number)
        if number % 7 == 0:
            writer.flush()
    writer.close()
    return writer.stream


def grown(journal: Journal) -> None:
    """A stream, two branches of it at different events, and a branch of a branch."""
    first = filled(journal, opened("first"), HEAD)
    for parent, at in ((first, 11), (first, HEAD + 1), (StreamId(1), 15)):
        filled(journal, branched(parent, at, "branch"), 9)


def contents(path: Path) -> list[list[object]]:
    journal = open_for_reading(path)
    found: list[list[object]] = []
    for info in journal.streams():
        found.append([(one.at, one.time_ns, one.event) for one in journal.events(info.stream)])
        found.append([bytes(journal.payload(info.stream, number)) for number in range(HEAD // 4)])
    journal.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = LmdbJournal(tmp_path / "run.journal", sync="none")
    grown(journal)
    journal.close()
    return tmp_path / "run.journal"


def test_a_journal_with_branches_is_found_whole(path: Path) -> None:
    report = verify(path)
    assert report.ok, report.damages
    assert (report.streams, report.events) == (4, 4 + HEAD + 27)


def test_a_recovered_journal_has_the_same_branches(path: Path, tmp_path: Path) -> None:
    recover(path, tmp_path / "again.journal")
    assert verify(tmp_path / "again.journal").ok
    assert contents(tmp_path / "again.journal") == contents(path)


def test_what_was_copied_is_found_whole(path: Path, tmp_path: Path) -> None:
    memory = MemoryJournal()
    grown(memory)
    memory.copy_to(tmp_path / "from_memory.journal")
    source = open_for_reading(path)
    source.copy_to(tmp_path / "from_disk.journal")
    source.copy_to(tmp_path / "from_disk.journal")  # appended to what is there
    target = open_for_writing(tmp_path / "pruned.journal")
    copy_streams(source, target, [StreamId(3)])  # brings its two parents along
    target.close()
    source.close()
    for name, streams in (("from_memory", 4), ("from_disk", 8), ("pruned", 3)):
        report = verify(tmp_path / f"{name}.journal")
        assert report.ok, report.damages
        assert report.streams == streams


def test_a_copy_that_has_not_ended_is_told_and_is_no_damage(path: Path) -> None:
    put(path, b"meta", (COPYING + ONE.pack(5), b""))
    report = verify(path)
    assert report.ok
    assert any("copy" in note for note in report.notes)


@pytest.mark.parametrize("key", [b"copyinG" + ONE.pack(5), COPYING + b"1", b"stat"])
def test_an_entry_that_no_writer_makes_is_damage(path: Path, key: bytes) -> None:
    put(path, b"meta", (key, b""))
    assert [damage.code for damage in verify(path).damages] == ["meta_malformed"]


def test_a_cut_journal_gives_back_branches_as_far_as_they_are_proven(path: Path, tmp_path: Path) -> None:
    whole = contents(path)
    moments = random.Random(3)
    size = (path / "data.mdb").stat().st_size
    for turn in range(6):
        broken = tmp_path / f"broken{turn}"
        broken.mkdir()
        for file in path.rglob("*"):
            if file.is_file():
                (broken / file.relative_to(path)).parent.mkdir(exist_ok=True)
                (broken / file.relative_to(path)).write_bytes(file.read_bytes())
        with (broken / "data.mdb").open("r+b") as data:
            data.seek(moments.randrange(2, size // 4096) * 4096)
            data.write(bytes(4096))
        recover(broken, tmp_path / f"again{turn}")
        assert verify(tmp_path / f"again{turn}").ok
        journal = open_for_reading(tmp_path / f"again{turn}")
        for info in journal.streams():
            events = [(one.at, one.time_ns, one.event) for one in journal.events(info.stream)]
            assert events == whole[2 * info.stream][: len(events)]
        journal.close()


def test_a_stream_that_was_refused_leaves_nothing_that_looks_damaged(tmp_path: Path) -> None:
    journal = open_for_writing(tmp_path / "j", durability="event", sync="none")
    with no_file_longer_than(28 << 10), pytest.raises(JournalError):
        journal.open_stream(opened())
    journal.close()
    report = verify(tmp_path / "j")
    assert report.ok, report.damages
    assert report.streams == 0
