"""HEAD says with what a journal was sealed; one that lacks it, or goes another way, is refused when it is opened."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal.environment
import journal.head
from journal import StreamId, open_for_reading, open_for_writing
from journal.head import LENGTH, SLOT_BYTES, SLOTS, Head, find_head, read_head, write_head
from journal.integrity import verify
from journal.wire import FORMAT
from tests.journal.small import SEALING, all_of, branch, code_of, entries, flip, put, write_small
from tests.programs import started
from tests.strategies import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_small(tmp_path / "run.journal")
    return tmp_path / "run.journal"


def state_of(path: Path) -> bytes:
    return dict(entries(path, b"meta"))[b"state"]


def test_head_says_with_what_the_journal_was_sealed(path: Path) -> None:
    one = open_for_reading(path)
    with one.environment.reading() as txn:
        assert read_head(path) == Head(one.environment.id, *one.environment.last_commit(txn))
    events = sum(info.head for info in one.streams())
    one.close()
    head = read_head(path)
    assert head is not None
    assert (head.next_seq, head.segment, head.length) == (events, 0, 12 * 40)


def test_head_is_written_only_when_something_was_appended(path: Path) -> None:
    before = (path / "HEAD").read_bytes()
    open_for_writing(path).close()
    assert (path / "HEAD").read_bytes() == before
    one = open_for_writing(path)
    one.open_stream(opened())
    one.close()
    assert (path / "HEAD").read_bytes() != before
    assert not (path / "HEAD.partial").exists()


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5, unique=True), st.booleans())
def test_head_says_what_was_written_last_and_keeps_what_was_written_before(
    tmp_path: Path, seqs: list[int], durable: bool
) -> None:
    heads = [
        Head(b"i" * 16, seq, 1, 2, hashlib.sha256(bytes([place])).digest()) for place, seq in enumerate(sorted(seqs))
    ]
    (tmp_path / "HEAD").unlink(missing_ok=True)
    for place, head in enumerate(heads):
        write_head(tmp_path, head, durable=durable)
        found = find_head(tmp_path)
        assert found is not None
        assert (found.head, found.is_torn) == (head, False)
        if place > 0:  # a write that was torn leaves the one before
            whole = (tmp_path / "HEAD").read_bytes()
            flip(tmp_path / "HEAD", found.place + place)
            torn = find_head(tmp_path)
            assert torn is not None
            assert (torn.head, torn.is_torn) == (heads[place - 1], True)
            (tmp_path / "HEAD").write_bytes(whole)


@pytest.mark.parametrize("room", [0, SLOT_BYTES - 1, SLOT_BYTES, LENGTH - 1])
def test_a_disk_that_fills_while_the_first_head_is_written_leaves_none(tmp_path: Path, room: int) -> None:
    head = Head(b"i" * 16, 1, 0, 0, bytes(32))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_head(tmp_path, head, durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_head(tmp_path) is None
    write_head(tmp_path, head, durable=False)
    assert read_head(tmp_path) == head


def test_a_journal_that_nothing_was_appended_to_has_no_head(tmp_path: Path) -> None:
    open_for_writing(tmp_path / "empty").close()
    assert not (tmp_path / "empty" / "HEAD").exists()
    open_for_reading(tmp_path / "empty").close()


def test_an_older_data_file_is_refused_however_it_is_opened(path: Path) -> None:
    old = (path / "data.mdb").read_bytes()
    one = open_for_writing(path)
    one.open_stream(opened())
    one.close()
    (path / "data.mdb").write_bytes(old)
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(path)) == "journal_rolled_back"  # type: ignore[misc]


def test_a_meta_page_that_lmdb_passes_over_is_missed_by_head(path: Path) -> None:
    """LMDB keeps its last two states; where the numbers of both are wrong by a bit, it opens one that is older."""
    old = (path / "data.mdb").read_bytes()
    one = open_for_writing(path, sync="none")
    one.open_stream(opened())
    one.close()
    new = (path / "data.mdb").read_bytes()
    for page in (0, 4096):  # as a disk that lost the last writes of the meta pages, and of nothing else
        assert old[page : page + 4096] != new[page : page + 4096]
        new = new[:page] + old[page : page + 4096] + new[page + 4096 :]
    (path / "data.mdb").write_bytes(new)
    assert code_of(lambda: open_for_reading(path)) == "journal_rolled_back"


def test_a_state_without_its_seal_holds_the_same_events(path: Path) -> None:
    """The seal is a transaction of its own: LMDB may fall back before it, and nothing is lost."""
    one = open_for_writing(path)
    one.open_stream(opened())
    one.environment.commit()
    metas = (path / "data.mdb").read_bytes()[:8192]
    one.close()
    whole = all_of(path)
    data = (path / "data.mdb").read_bytes()
    assert data[:8192] != metas
    (path / "data.mdb").write_bytes(metas + data[8192:])
    assert state_of(path) == b"writing"
    assert all_of(path) == whole


def test_a_data_file_of_another_journal_is_refused(path: Path, tmp_path: Path) -> None:
    write_small(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "data.mdb", path / "data.mdb")
    assert code_of(lambda: open_for_reading(path)) == "journal_rolled_back"


def test_a_copy_that_went_its_own_way_is_refused(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy")
    for each, count in ((path, 3), (tmp_path / "copy", 4)):
        one = open_for_writing(each)
        writer = one.open_stream(opened())
        for number in range(count):
            writer.append(branch(number))
        one.close()
    shutil.copy(tmp_path / "copy" / "data.mdb", path / "data.mdb")
    assert code_of(lambda: open_for_reading(path)) == "journal_rolled_back"


@pytest.mark.parametrize("place", SLOTS)
def test_every_byte_of_both_slots_of_head_counts(path: Path, place: int) -> None:
    whole = (path / "HEAD").read_bytes()
    for offset in range(place, place + SLOT_BYTES):
        flip(path / "HEAD", offset, offset % 8)
        assert code_of(lambda: open_for_reading(path)) == "head_malformed"
        (path / "HEAD").write_bytes(whole)
    flip(path / "HEAD", place)
    assert code_of(lambda: open_for_writing(path)) == "head_malformed"


@pytest.mark.parametrize("length", [0, 1, 84, 4096, 8191, 8193])
def test_a_head_that_is_cut_is_malformed(path: Path, length: int) -> None:
    os.truncate(path / "HEAD", length)
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(path)) == "head_malformed"  # type: ignore[misc]


def test_a_head_with_two_damaged_slots_says_nothing(path: Path) -> None:
    for place in SLOTS:
        flip(path / "HEAD", place)
    assert code_of(lambda: read_head(path)) == "head_malformed"


def test_a_slot_that_was_torn_while_it_was_written_is_no_damage(path: Path) -> None:
    """What a power cut in the middle of a seal leaves: the events, no seal, and half of a slot."""
    one = open_for_writing(path)
    one.open_stream(opened())
    one.environment.commit()
    before = read_head(path)
    cut = path.parent / "cut"
    shutil.copytree(path, cut)
    one.close()
    found = find_head(path)
    assert found is not None
    slot = (path / "HEAD").read_bytes()[found.place : found.place + SLOT_BYTES // 2]
    with (cut / "HEAD").open("r+b") as file:
        file.seek(found.place)
        file.write(slot)
    assert find_head(cut) == (before, 4096 - found.place, True)
    again = open_for_writing(cut)
    again.open_stream(opened())
    again.close()
    found = find_head(cut)
    assert found is not None
    assert not found.is_torn


def test_a_head_that_is_no_file_is_not_waited_for(path: Path) -> None:
    (path / "HEAD").unlink()
    os.mkfifo(path / "HEAD")
    assert code_of(lambda: open_for_reading(path)) == "journal_not_a_journal"


def test_a_head_of_a_later_format_is_refused_as_newer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = read_head(path)
    assert head is not None
    with monkeypatch.context() as later:
        later.setattr(journal.head, "FORMAT", FORMAT + 1)
        (path / "HEAD").unlink()
        write_head(path, head, durable=False)
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(path)) == "journal_newer"  # type: ignore[misc]


def test_a_sealed_journal_without_head_is_read_and_not_written(path: Path) -> None:
    (path / "HEAD").unlink()
    open_for_reading(path).close()
    assert code_of(lambda: open_for_writing(path)) == "head_missing"


def test_a_head_whose_data_file_is_gone_is_no_place_for_a_new_journal(path: Path) -> None:
    (path / "data.mdb").unlink()
    assert code_of(lambda: open_for_writing(path)) == "journal_not_a_journal"
    assert not (path / "data.mdb").exists()


def test_a_seal_that_ends_before_or_after_head_can_be_done_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    one = open_for_writing(path)
    one.open_stream(opened())
    with monkeypatch.context() as full:
        full.setattr(journal.environment, "write_head", refuse)
        assert code_of(one.close) == "journal_write_failed"
    with monkeypatch.context() as full:
        full.setattr(one.environment, "put", refuse)
        assert code_of(one.close) == "journal_write_failed"
    shutil.copytree(path, tmp_path / "copy")  # as a kill would leave it
    assert (state_of(tmp_path / "copy"), read_head(tmp_path / "copy")) == (b"writing", read_head(path))
    open_for_reading(tmp_path / "copy").close()
    open_for_writing(tmp_path / "copy").close()
    one.close()
    assert state_of(path) == b"sealed"


def test_who_opens_while_another_process_seals_is_never_told_of_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    times = 0
    with started(SEALING, path, 150) as sealing:
        while sealing.poll() is None:
            if (path / "HEAD").exists():
                open_for_reading(path).close()
                times += 1
    assert sealing.returncode == 0
    assert times > 10
    one = open_for_reading(path)
    assert len(one.streams()) == 150
    one.close()


@pytest.mark.parametrize("length", [0, SLOT_BYTES, LENGTH])
def test_a_broken_head_of_a_journal_that_was_not_sealed_is_made_anew_by_its_next_writer(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / "j"
    one = open_for_writing(path)
    one.open_stream(opened()).append(branch(1))
    one.close()
    put(path, b"meta", (b"state", b"writing"))
    (path / "HEAD").write_bytes(b"\1" * length)
    assert code_of(lambda: open_for_reading(path)) == "head_malformed"
    two = open_for_writing(path)
    two.open_stream(opened()).append(branch(1))
    two.close()
    assert read_head(path) is not None
    open_for_reading(path).close()
    report = verify(path)
    assert (report.ok, report.is_sealed, report.events) == (True, True, 4)


def test_a_disk_that_is_full_when_a_journal_is_sealed_leaves_it_as_it_was(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        one = open_for_writing(tmp_path / "j", sync="none")
        writer = one.open_stream(opened())
        writer.append(branch(1))
        writer.close()
        with suppress(OSError), open(tmp_path / "rest", "wb", buffering=0) as rest:
            while True:
                rest.write(bytes(1024))
        size = (tmp_path / "rest").stat().st_size
        os.truncate(tmp_path / "rest", (size - 1) // 4096 * 4096)  # one page is free
        assert code_of(one.close) == "journal_write_failed"
        assert not (tmp_path / "j" / "HEAD").exists()
        reading = open_for_reading(tmp_path / "j")
        assert reading.head(StreamId(0)) == 2
        reading.close()
        (tmp_path / "rest").unlink()
        one.close()
        assert read_head(tmp_path / "j") is not None
        assert verify(tmp_path / "j").is_sealed
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
