"""A writer killed at any point: what was committed is there, in order, with its payloads, and the next may write.

The writers are those of ``writers.py``, the check is that of ``killing.py``; ``tools/crash.py`` runs both for as long
as one likes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.events import BranchTaken
from journal.payloads import SMALL_BYTES
from tests.journal.killing import (
    MODES,
    PROGRAMS,
    TRACING,
    WRITERS,
    Tally,
    check,
    check_events,
    kill_at_calls,
    kill_at_random,
)
from tests.journal.writers import append
from tests.nursery import Job, Nursery
from tests.strategies import opened

SEED = 7


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(WRITERS) as one:
        yield one


@pytest.fixture(scope="module")
def nursery_with_torch() -> Iterator[Nursery]:
    with Nursery(TRACING) as one:
        yield one


@pytest.mark.parametrize(("durability", "sync"), MODES)
def test_a_killed_writer_leaves_what_it_appended_up_to_a_commit(
    nursery: Nursery, tmp_path: Path, durability: str, sync: str
) -> None:
    found = kill_at_random(nursery, tmp_path, "streams", durability, sync, kills=5, seed=SEED)
    assert found.kills == 5
    assert found.events > 0


@pytest.mark.parametrize(("durability", "sync"), [("close", "all"), ("batch", "events"), ("event", "none")])
def test_a_writer_may_be_killed_before_any_of_its_calls(
    nursery: Nursery, tmp_path: Path, durability: str, sync: str
) -> None:
    """While the journal is made, filled over several segments, sealed, and opened again."""
    found = kill_at_calls(nursery, tmp_path, durability, sync, points=40, seed=SEED)
    assert found.kills >= 30
    assert found.unmade > 0
    assert found.events > 0


@pytest.mark.parametrize(("durability", "sync"), [("close", "none"), ("batch", "events"), ("event", "none")])
def test_a_killed_loop_of_traces_leaves_whole_captures_and_a_prefix_of_one(
    nursery_with_torch: Nursery, tmp_path: Path, durability: str, sync: str
) -> None:
    found = kill_at_random(nursery_with_torch, tmp_path, "traces", durability, sync, kills=4, seed=SEED)
    assert found.kills == 4
    assert found.events > 0


# That the check can fail ------------------------------------------------------------------------------


def written(path: Path) -> int:
    one = open_for_writing(path, sync="none")
    writer = one.open_stream(opened("7.0.0"))
    for number in range(30):
        append(writer, 0, number)
    one.close()
    return 31


def test_the_check_finds_what_is_missing_and_what_is_too_much(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "run.journal"
    head = written(path)
    assert check(str(path), (), head, Tally()) == head
    for before in (head - 1, head + 1):
        with pytest.raises(AssertionError, match="events, where a commit ended at"):
            check(str(path), (), before, Tally())


def test_the_check_finds_a_gap_and_a_torn_payload(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    written(path)
    one = open_for_writing(path, sync="none")
    writer = one.open_stream(opened("7.0.1"))
    append(writer, 0, 1)  # number 0 is missing
    with pytest.raises(AssertionError):
        check_events(one)
    one.close()
    other = tmp_path / "torn.journal"
    written(other)
    segment = other / "segments" / "000000.seg"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    reading = open_for_reading(other)
    with pytest.raises(JournalError, match="payload_damaged"):
        check_events(reading)
    reading.close()


# What a crash leaves to the next ------------------------------------------------------------------------


def test_a_writer_killed_before_its_first_commit_leaves_a_journal_that_can_be_written(
    tmp_path: Path, nursery: Nursery
) -> None:
    """Its large payloads are in a segment already, which no commit names yet."""
    path = tmp_path / "run.journal"
    made = open_for_writing(path)
    made.close()
    (path / "segments" / "000000.seg").write_bytes(bytes(2 * SMALL_BYTES))
    one = open_for_writing(path)
    writer = one.open_stream(opened("7.0.0"))
    append(writer, 0, 0)
    one.close()
    reading = open_for_reading(path)
    assert check_events(reading) == 2
    reading.close()


def test_a_writer_killed_before_the_first_page_leaves_what_can_be_made_again(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.mkdir()
    (path / "data.mdb").touch()
    with pytest.raises(JournalError) as refused:
        open_for_reading(path)
    assert refused.value.code == "journal_not_a_journal"
    written(path)


def test_a_second_writing_process_is_refused_until_the_first_is_gone(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "run.journal"
    child = nursery.start(Job(str(path), f"{path}.said", PROGRAMS["streams"], "batch", "none", SEED))
    child.wait_for("committed")
    os.kill(child.pid, signal.SIGSTOP)  # so that it does not let go by itself
    with pytest.raises(JournalError) as refused:
        open_for_writing(path)
    assert refused.value.code == "journal_locked"
    assert refused.value.fields["holder"] == child.pid
    assert str(child.pid) in str(refused.value)
    reading = open_for_reading(path)
    with pytest.raises(JournalError) as refused:
        open_for_writing(path)
    assert refused.value.code == "journal_locked"
    assert reading.streams()
    child.kill()
    open_for_writing(path).close()
    reading.close()


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "run.journal"
    child = nursery.start(Job(str(path), f"{path}.said", PROGRAMS["streams"], "batch", "none", SEED))
    said = child.wait_for("committed")
    reading = open_for_reading(path)
    heads = []
    for _ in range(5):
        heads.append(check_events(reading, is_written=True))
        said = child.wait_for("committed", after=said)
    assert heads == sorted(heads)
    assert heads[-1] > heads[0]
    child.kill()
    reading.close()


# What a power cut may do to segments ---------------------------------------------------------------------
# A power cut cannot be had here. With sync="events" it may take bytes of segments that no flush has reached: the
# tail of a file, or pages of it, which then read as zeros.


def answer(reading: LmdbJournal, number: int, expected: bytes) -> str:
    try:
        found = bytes(reading.payload(StreamId(0), number))
    except JournalError as refused:
        return refused.code
    return "whole" if found == expected else "wrong"


AFTER = {
    "tail lost": {"whole", "payload_lost"},
    "pages of zeros": {"whole", "payload_damaged"},
    "file lost": {"payload_lost"},
    "nothing but zeros": {"payload_damaged"},
}
"""What reading the payloads says."""


@pytest.mark.parametrize("damage", AFTER)
def test_bytes_that_did_not_reach_the_disk_read_as_lost_or_damaged_and_the_events_stay(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "run.journal"
    sizes = [(4096 * number) % 70_000 + 1 for number in range(60)]
    payloads = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    one = open_for_writing(path, sync="events")
    writer = one.open_stream(opened("power"))
    for number, data in enumerate(payloads):
        writer.keep(data)
        writer.append(BranchTaken(value=number, result=True, site=0, call=0))
    one.close()
    segment = path / "segments" / "000000.seg"
    data = segment.read_bytes()
    page = 4096
    if damage == "tail lost":
        segment.write_bytes(data[: len(data) // 2])
    elif damage == "pages of zeros":
        pages = [data[at : at + page] for at in range(0, len(data), page)]
        segment.write_bytes(b"".join(bytes(len(one)) if at % 3 == 1 else one for at, one in enumerate(pages)))
    elif damage == "file lost":
        segment.unlink()
    else:
        segment.write_bytes(bytes(len(data)))
    reading = open_for_reading(path)
    assert [each.event.value for each in reading.events(StreamId(0), 1)] == list(range(60))  # type: ignore[attr-defined]
    answers = {answer(reading, number, expected) for number, expected in enumerate(payloads)}
    reading.close()
    assert answers == AFTER[damage]
    next_writer = open_for_writing(path)  # what is named is not cut off, and what comes next is whole
    writer = next_writer.open_stream(opened("after"))
    writer.keep(b"whole")
    writer.append(BranchTaken(value=0, result=True, site=0, call=0))
    assert bytes(next_writer.payload(writer.stream, 0)) == b"whole"
    next_writer.close()
    reading = open_for_reading(path)
    assert bytes(reading.payload(writer.stream, 0)) == b"whole"
    reading.close()
