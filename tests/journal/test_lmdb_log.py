"""The journal on disk: who may open it, when it commits, and what it does when the disk refuses."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

import journal.environment
import journal.flushing
import journal.lmdb_opening
from journal import IllegalTransition, JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing, payloads
from journal.environment import COMMIT_ROWS, Environment
from journal.events import BranchTaken
from journal.lifecycle import WriterState, WriterStep
from journal.lmdb_journal import Durability
from journal.lmdb_layout import COMMIT, ONE, TWO
from journal.lmdb_opening import Sync
from journal.sharing import OPEN, leave_dropped
from journal.stream_writer import Writer
from journal.wire import Chunk
from tests.disk import no_file_longer_than
from tests.journal.small import branch, code_of, entries, hashes, put
from tests.programs import PATIENCE, run
from tests.strategies import opened, payload_bytes


def fill(writer: Writer, count: int) -> None:
    for number in range(count):
        writer.append(branch(number))


def committed(one: LmdbJournal) -> int:
    """Number of events that a reader in another process sees."""
    with one.environment.reading() as txn:
        return one.environment.last_commit(txn)[0]


def values(one: LmdbJournal, stream: int = 0) -> list[int]:
    events = [stamped.event for stamped in one.events(StreamId(stream), 1)]
    return [event.value for event in events if isinstance(event, BranchTaken)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


OVERTAKING = """
import sys
import lmdb
from journal.lmdb_layout import ONE
with lmdb.open(sys.argv[1], max_dbs=8) as env, env.begin(write=True) as txn:
    txn.put(ONE.pack(int(sys.argv[2])), b"theirs", db=env.open_db(b"events", txn=txn))
"""
"""A program that writes an event without having asked whether another one writes."""


# One environment per path and process -----------------------------------------------------------------


def test_a_reader_in_the_process_sees_what_no_commit_has_reached(path: Path) -> None:
    writing = open_for_writing(path, durability="close")
    writer = writing.open_stream(opened())
    fill(writer, 10)
    reading = open_for_reading(path)
    assert committed(writing) == 0
    assert values(reading) == list(range(10))
    writing.close()
    assert values(reading) == list(range(10))
    reading.close()


def test_several_captures_append_to_one_path_and_the_last_seals_it(path: Path) -> None:
    first, second = open_for_writing(path), open_for_writing(path)
    writers = [first.open_stream(opened("a")), second.open_stream(opened("b"))]
    fill(writers[0], 3)
    fill(writers[1], 4)
    first.close()
    assert second.environment.machine.state is WriterState.WRITING
    fill(writers[1], 5)
    assert [info.head for info in second.streams()] == [4, 10]
    second.close()
    assert second.environment.machine.state is WriterState.SEALED
    with pytest.raises(IllegalTransition):
        second.environment.machine.step(WriterStep.APPEND)


def test_a_path_is_one_journal_however_it_is_written(path: Path, tmp_path: Path) -> None:
    one = open_for_writing(path)
    (tmp_path / "link").symlink_to(path)
    others = [open_for_writing(tmp_path / "link"), open_for_reading(tmp_path / "x" / ".." / "run.journal")]
    assert {other.environment for other in others} == {one.environment}
    for each in (one, *others):
        each.close()


def test_a_writer_may_join_readers_and_leave_them(path: Path) -> None:
    open_for_writing(path).close()
    reading = open_for_reading(path)
    for stream in range(2):
        writing = open_for_writing(path)
        fill(writing.open_stream(opened()), 5)
        assert values(reading, stream) == list(range(5))
        writing.close()
        assert values(reading, stream) == list(range(5))
    assert code_of(lambda: reading.open_stream(opened())) == "journal_read_only"
    reading.close()


def test_a_sealed_journal_can_be_appended_to_again(path: Path) -> None:
    for stream in range(3):
        writing = open_for_writing(path)
        writer = writing.open_stream(opened())
        assert writer.stream == stream
        assert writer.keep(payload_bytes(stream)) == 0
        fill(writer, 4)
        writing.close()
    reading = open_for_reading(path)
    stamped = [one for stream in range(3) for one in reading.events(StreamId(stream))]
    assert [one.seq for one in stamped] == list(range(15))
    assert [bytes(reading.payload(StreamId(stream), 0)) for stream in range(3)] == [payload_bytes(n) for n in range(3)]
    reading.close()


def test_a_closed_journal_refuses_and_closing_twice_is_nothing(path: Path) -> None:
    one, other = open_for_writing(path), open_for_writing(path)
    one.close()
    one.close()
    assert code_of(one.streams) == "journal_closed"
    assert code_of(lambda: one.open_stream(opened())) == "journal_closed"
    writer = other.open_stream(opened())
    other.close()
    assert code_of(lambda: writer.append(branch(1))) == "journal_closed"


def test_a_user_who_asks_for_more_gets_it_for_all(path: Path) -> None:
    weak = open_for_writing(path, sync="none")
    writer = weak.open_stream(opened())
    fill(writer, 3)
    strong = open_for_writing(path, sync="all")
    assert weak.environment.sync == "all"
    assert weak.environment.env.flags()["sync"]
    fill(writer, 3)
    weak.close()
    assert values(strong) == [0, 1, 2, 0, 1, 2]
    strong.close()


# What is no journal -----------------------------------------------------------------------------------


def make_file(path: Path) -> None:
    path.write_text("x")


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("x")


def make_garbage(path: Path) -> None:
    path.mkdir()
    (path / "data.mdb").write_bytes(b"x" * 20_000)


def make_other_lmdb(path: Path) -> None:
    with lmdb.open(str(path), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")


@pytest.mark.parametrize("make", [make_file, make_folder, make_garbage, make_other_lmdb])
def test_what_is_no_journal_is_refused_and_left_alone(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    assert code_of(lambda: open_for_reading(path)) == "journal_not_a_journal"
    assert code_of(lambda: open_for_writing(path)) == "journal_not_a_journal"
    if path.is_dir():
        assert {file.name for file in path.iterdir()} <= {"notes.txt", "data.mdb", "lock.mdb", "writer.lease"}


def test_a_missing_journal_is_made_for_writing_and_not_found_for_reading(path: Path) -> None:
    assert code_of(lambda: open_for_reading(path)) == "journal_not_found"
    assert not path.exists()
    open_for_writing(path / "deep").close()
    assert open_for_reading(path / "deep").streams() == []
    path.joinpath("empty").mkdir()
    open_for_writing(path / "empty").close()


def test_a_newer_journal_is_refused_and_names_its_version(path: Path) -> None:
    writing = open_for_writing(path)
    writing.open_stream(opened())
    writing.close()
    put(path, b"meta", (b"format", ONE.pack(99)))
    for open_it in (open_for_reading, open_for_writing):
        with pytest.raises(JournalError) as refused:
            open_it(path)
        assert refused.value.code == "journal_newer"
        assert "0.1.0" in str(refused.value)


def tamper(path: Path, what: str) -> None:
    (_, before), (key, chunk) = entries(path, b"events")[1:3]
    changes: dict[str, tuple[bytes, bytes, bytes | None]] = {
        "a chunk is missing": (b"events", key, None),
        "a chunk is another one": (b"events", key, before),
        "a chunk has a wrong byte": (b"events", key, bytes([chunk[0] ^ 1]) + chunk[1:]),
        "a chunk is empty": (b"events", key, b""),
        "a place is malformed": (b"index", TWO.pack(0, 1), b"short"),
        "a place has no header": (b"index", TWO.pack(0, 0), TWO.pack(1, 1)),
        "a stream is missing": (b"index", TWO.pack(3, 0), TWO.pack(0, 1)),
    }
    database, *change = changes[what]
    put(path, database, tuple(change))


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("a chunk is missing", "chunk_missing"),
        ("a chunk is another one", "chunk_malformed"),
        ("a chunk has a wrong byte", "chunk_checksum"),
        ("a chunk is empty", "chunk_malformed"),
        ("a place is malformed", "journal_not_a_journal"),
        ("a place has no header", "chunk_malformed"),
        ("a stream is missing", "stream_unknown"),
    ],
)
def test_a_damaged_journal_is_refused_by_code(path: Path, what: str, code: str) -> None:
    writing = open_for_writing(path)
    writer = writing.open_stream(opened())
    fill(writer, 700)
    writing.close()
    tamper(path, what)
    reading = open_for_reading(path)
    assert code_of(lambda: [values(reading, info.stream) for info in reading.streams()]) == code
    reading.close()


def test_a_damaged_commit_stops_writing_and_not_reading(path: Path) -> None:
    writing = open_for_writing(path)
    fill(writing.open_stream(opened()), 3)
    writing.close()
    put(path, b"commits", (ONE.pack(1 << 40), b"short"))
    assert code_of(lambda: open_for_writing(path)) == "journal_not_a_journal"
    reading = open_for_reading(path)
    assert values(reading) == [0, 1, 2]
    reading.close()


# When it commits --------------------------------------------------------------------------------------


def test_event_commits_every_event(path: Path) -> None:
    one = open_for_writing(path, durability="event", sync="none")
    writer = one.open_stream(opened())
    assert writer.chunk_size == 1
    for number in range(5):
        writer.append(branch(number))
        assert committed(one) == 2 + number
    one.close()


def test_close_commits_when_asked_and_when_the_stream_closes(path: Path) -> None:
    one = open_for_writing(path, durability="close", sync="none")
    writer = one.open_stream(opened())
    fill(writer, 3 * COMMIT_ROWS)
    assert committed(one) == 0
    writer.commit()
    assert committed(one) == 3 * COMMIT_ROWS + 1
    fill(writer, 3)
    writer.close()
    assert committed(one) == 3 * COMMIT_ROWS + 4
    one.close()


def test_batch_commits_by_number_by_bytes_and_by_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_for_writing(path, sync="none")
    writer = one.open_stream(opened())
    fill(writer, COMMIT_ROWS)
    assert committed(one) >= COMMIT_ROWS - 256
    monkeypatch.setattr(journal.environment, "COMMIT_BYTES", 1000)
    writer.keep(bytes(1000))
    writer.append(branch(1))
    writer.flush()
    assert committed(one) == writer.next_at()
    writer.pending.append(branch(2).row(0))
    end = time.monotonic() + PATIENCE
    while committed(one) < writer.next_at() and time.monotonic() < end:
        time.sleep(0.05)
    assert committed(one) == writer.next_at() == COMMIT_ROWS + 3
    one.close()


def test_a_journal_that_cannot_be_flushed_keeps_no_other_from_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal.flushing, "COMMIT_SECONDS", 0.01)
    failing, other = open_for_writing(path), open_for_writing(tmp_path / "other.journal")
    writer = other.open_stream(opened())
    failures: list[int] = []

    def fail() -> None:
        failures.append(1)
        raise OverflowError

    monkeypatch.setattr(failing.environment, "flush_waiting", fail)
    end = time.monotonic() + PATIENCE
    while len(failures) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    fill(writer, 3)
    while committed(other) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(failures) >= 3
    assert committed(other) == 4
    failing.close()
    other.close()


def test_each_commit_carries_the_chain(path: Path) -> None:
    one = open_for_writing(path, durability="close", sync="none")  # none is made by the clock
    for _ in range(2):
        writer = one.open_stream(opened())
        for _ in range(3):
            fill(writer, 300)
            writer.commit()
    one.close()
    meta, stored, commits = dict(entries(path, b"meta")), dict(entries(path, b"events")), entries(path, b"commits")
    identity, chain, next_seq = meta[b"id"], bytes(32), 0
    assert meta[b"state"] == b"sealed"
    assert len(commits) == 6
    for last, entry in commits:
        first, count, _, _, found = COMMIT.unpack(entry)
        assert first == next_seq
        assert ONE.unpack(last)[0] == first + count - 1
        chunks = [data for seq, data in stored.items() if first <= ONE.unpack(seq)[0] < first + count]
        chain = hashlib.sha256(chain + identity + ONE.pack(first) + b"".join(chunks)).digest()
        assert found == chain
        next_seq = first + count
    assert next_seq == 2 * 901


def test_all_flushes_payload_bytes_before_the_event_that_names_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    put = Environment.put
    for sync_file in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, sync_file, lambda file: steps.append(Path(os.readlink(f"/proc/self/fd/{file}")).name))
    monkeypatch.setattr(Environment, "put", lambda self, *given: (steps.append("commit"), put(self, *given))[1])
    kinds: list[Sync] = ["none", "events", "all"]
    for sync in kinds:
        steps.clear()
        one = open_for_writing(path, sync=sync)
        writer = one.open_stream(opened())
        writer.keep(b"x")
        fill(writer, 1)
        writer.commit()
        assert steps == (["000000.seg", "segments", "commit"] if sync == "all" else ["commit"])
        one.close()


# When the disk refuses --------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["batch", "close", "event"])
def test_what_the_disk_refuses_is_kept_and_written_later(path: Path, durability: Durability) -> None:
    one = open_for_writing(path, durability=durability, sync="none")
    writer = one.open_stream(opened())
    writer.keep(b"before")
    with no_file_longer_than(64 << 10):
        for number in range(5000):
            writer.pending.append(branch(number).row(0))
        assert code_of(writer.commit) == "journal_write_failed"
        assert code_of(lambda: writer.keep(bytes(1 << 20))) == "journal_write_failed"
        assert code_of(one.close) == "journal_write_failed"
    assert writer.keep(b"after") == 1
    writer.append(branch(5000))
    assert values(one) == list(range(5001))
    one.close()
    one = open_for_reading(path)
    assert values(one) == list(range(5001))
    assert [bytes(one.payload(StreamId(0), number)) for number in range(2)] == [b"before", b"after"]
    one.close()


@pytest.mark.parametrize("durability", ["batch", "close", "event"])
def test_a_patient_writer_is_told_by_commit_what_the_disk_refused(path: Path, durability: Durability) -> None:
    one = open_for_writing(path, durability=durability, sync="none")
    writer = one.open_stream(opened())
    writer.is_patient = True
    with no_file_longer_than(64 << 10):
        for number in range(5000):
            writer.append(branch(number))
        assert writer.store(bytes(1 << 20)) is None
        assert writer.keep(bytes(1 << 20)) == 0  # a number without bytes
        assert writer.store(b"small") is None  # the disk is asked no more
        assert writer.refusal is not None
        assert writer.refusal.code == "journal_write_failed"
        assert writer.num_unstored == 3
        assert code_of(lambda: one.payload(writer.stream, 0)) == "payload_not_stored"
        assert values(one) == list(range(5000))
        assert code_of(writer.commit) == "journal_write_failed"
        assert code_of(writer.close) == "journal_write_failed"
    writer.close()
    one.close()
    one = open_for_reading(path)
    assert values(one) == list(range(5000))
    one.close()


def test_gathered_payloads_can_be_read_though_the_disk_refuses_them(path: Path) -> None:
    one = open_for_writing(path, durability="close", sync="none")
    writer = one.open_stream(opened())
    with no_file_longer_than(0):
        numbers = [writer.keep(payload_bytes(number)) for number in range(20)]
        assert [bytes(one.payload(writer.stream, number)) for number in numbers] == list(map(payload_bytes, numbers))
    one.close()


def test_a_stream_whose_first_commit_is_refused_is_none(path: Path) -> None:
    one = open_for_writing(path, durability="event", sync="none")
    with no_file_longer_than(4096):
        assert code_of(lambda: one.open_stream(opened("refused"))) == "journal_write_failed"
        assert one.streams() == []
    writer = one.open_stream(opened("taken"))
    assert [(info.stream, info.opened.label) for info in one.streams()] == [(writer.stream, "taken")]
    one.close()
    one = open_for_reading(path)
    assert [info.opened.label for info in one.streams()] == ["taken"]
    one.close()


def test_a_writer_past_the_lease_is_noticed_and_not_written_over(path: Path) -> None:
    one = open_for_writing(path, durability="close")
    writer = one.open_stream(opened())
    writer.commit()
    fill(writer, 3)
    overtaken = committed(one)
    run(OVERTAKING, path, overtaken)
    with pytest.raises(JournalError) as refused:
        writer.commit()
    assert (refused.value.code, refused.value.fields["seq"]) == ("journal_overtaken", overtaken)
    with one.environment.env.begin(write=True) as txn:
        assert txn.pop(ONE.pack(overtaken), db=one.environment.events_db) == b"theirs"
    one.close()
    reading = open_for_reading(path)
    assert values(reading) == [0, 1, 2]
    reading.close()


def test_a_full_map_grows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.lmdb_opening, "MAP_SIZE", 256 << 10)
    one = open_for_writing(path, sync="none")
    writer = one.open_stream(opened())
    fill(writer, 100_000)
    writer.commit()
    assert one.environment.env.info()["map_size"] > 256 << 10
    assert values(one) == list(range(100_000))
    one.close()


def test_a_map_that_cannot_grow_is_told_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.lmdb_opening, "MAP_SIZE", 256 << 10)
    monkeypatch.setattr(journal.environment, "GREATEST_MAP_SIZE", 256 << 10)
    one = open_for_writing(path, durability="close", sync="none")
    writer = one.open_stream(opened())
    fill(writer, 50_000)
    assert code_of(writer.commit) == "journal_full"
    monkeypatch.undo()
    writer.commit()
    assert values(one) == list(range(50_000))
    one.close()


# Payload bytes ----------------------------------------------------------------------------------------


def test_segments_roll_and_every_payload_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "SEGMENT_BYTES", 100)
    for _ in range(2):
        one = open_for_writing(path, sync="none")
        writer = one.open_stream(opened())
        for number in range(20):
            writer.keep(payload_bytes(number))
        fill(writer, 1)
        one.close()
    assert len(list((path / "segments").iterdir())) > 5
    one = open_for_reading(path)
    for stream in range(2):
        for number in range(20):
            assert bytes(one.payload(StreamId(stream), number)) == payload_bytes(number)
    one.close()


def with_one_payload(path: Path) -> Path:
    one = open_for_writing(path)
    writer = one.open_stream(opened())
    writer.keep(payload_bytes(9))
    fill(writer, 1)
    one.close()
    return path / "segments" / "000000.seg"


def test_bytes_that_no_event_names_are_cut_off_when_writing_goes_on(path: Path) -> None:
    segment = with_one_payload(path)
    length = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"left over")
    (path / "segments" / "000001.seg").write_bytes(b"left over")
    open_for_reading(path).close()
    assert segment.stat().st_size > length  # a reader changes nothing
    one = open_for_writing(path)
    assert segment.stat().st_size == length
    assert [file.name for file in (path / "segments").iterdir()] == ["000000.seg"]
    assert bytes(one.payload(StreamId(0), 0)) == payload_bytes(9)
    one.close()


def test_room_that_a_killed_writer_asked_for_is_given_back_by_the_next(path: Path) -> None:
    run(
        """
        import os, signal, sys
        from journal import open_for_writing
        from tests.strategies import opened
        writer = open_for_writing(sys.argv[1]).open_stream(opened())
        writer.keep(bytes(40_000))
        writer.append(opened())
        writer.commit()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        path,
        ends=-9,
    )
    segment = path / "segments" / "000000.seg"
    if segment.stat().st_blocks * 512 < payloads.ALLOCATED_BYTES:
        pytest.skip("a file system that gives no room ahead")
    open_for_writing(path).close()
    assert segment.stat().st_size == 40_000
    assert segment.stat().st_blocks * 512 < 1 << 20


def test_a_segment_that_was_renamed_is_not_removed(path: Path) -> None:
    segment = with_one_payload(path)
    elsewhere = segment.with_name("000007.seg")
    segment.rename(elsewhere)
    assert code_of(lambda: open_for_writing(path)) == "segment_missing"
    elsewhere.rename(segment)
    one = open_for_writing(path)
    assert bytes(one.payload(StreamId(0), 0)) == payload_bytes(9)
    one.close()


@pytest.mark.parametrize("moved", ["the directory", "the link to it"])
def test_a_journal_whose_path_leads_elsewhere_writes_into_no_other(path: Path, tmp_path: Path, moved: str) -> None:
    if moved == "the directory":
        first, link = path, path
    else:
        first, link = tmp_path / "first", tmp_path / "latest"
        first.mkdir()
        link.symlink_to(first)
    old = open_for_writing(link)
    writer = old.open_stream(opened())
    kept = writer.keep(payload_bytes(3))
    writer.commit()
    elsewhere = tmp_path / "other"
    run(
        """
        import sys
        from journal import open_for_writing
        from tests.journal.test_lmdb_log import with_one_payload
        from pathlib import Path
        with_one_payload(Path(sys.argv[1]))
        """,
        elsewhere,
    )
    if moved == "the directory":
        path.rename(tmp_path / "away")
        elsewhere.rename(path)
    else:
        link.unlink()
        link.symlink_to(elsewhere)
    before = hashes(link / "segments")
    for _ in range(3):
        writer.keep(bytes(100_000))
    writer.pending.append(branch(1).row(0))
    assert code_of(writer.commit) == "journal_removed"
    assert hashes(link / "segments") == before
    assert bytes(old.payload(writer.stream, kept)) == payload_bytes(3)
    with_one = open_for_reading(link)
    assert bytes(with_one.payload(StreamId(0), 0)) == payload_bytes(9)
    with_one.close()
    old.environment.forget_waiting()
    writer.pending.clear()
    old.close()


def test_lost_and_damaged_bytes_are_told_apart_and_never_read_as_a_payload(path: Path) -> None:
    segment = with_one_payload(path)
    data = segment.read_bytes()
    one = open_for_reading(path)
    segment.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert code_of(lambda: one.payload(StreamId(0), 0)) == "payload_damaged"
    segment.write_bytes(data[:-1])
    assert code_of(lambda: one.payload(StreamId(0), 0)) == "payload_lost"
    one.close()
    segment.unlink()
    one = open_for_reading(path)
    assert code_of(lambda: one.payload(StreamId(0), 0)) == "payload_lost"
    assert one.payload_size(StreamId(0), 0) == len(data)
    assert values(one) == [0]
    one.close()


def test_a_payload_read_from_disk_is_the_readers_own(path: Path) -> None:
    with_one_payload(path)
    one = open_for_reading(path)
    view = one.payload(StreamId(0), 0)
    assert isinstance(view, memoryview)
    view[0] = 255
    assert bytes(one.payload(StreamId(0), 0)) == payload_bytes(9)
    one.close()


# Forks and exits --------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_and_the_parent_writes_on(path: Path) -> None:
    done = run(
        """
        import os, sys
        from journal import JournalError, open_for_reading, open_for_writing
        from tests.strategies import opened
        from journal.events import BranchTaken
        event = BranchTaken(value=1, result=True, site=0, call=0)
        one = open_for_writing(sys.argv[1])
        writer = one.open_stream(opened())
        if os.fork() == 0:
            for act in (
                lambda: writer.append(event), writer.flush, writer.commit, lambda: writer.keep(b""), one.streams,
                lambda: one.head(0), lambda: list(one.rows(0)), lambda: one.payload(0, 0),
                lambda: one.open_stream(opened()),
                lambda: open_for_writing(sys.argv[1]), lambda: open_for_reading(sys.argv[1]),
            ):
                try:
                    act()
                except JournalError as refused:
                    print(refused.code)
                else:
                    print("no refusal")
            writer.close()
            one.close()
            sys.exit()
        assert os.wait()[1] == 0
        writer.append(event)
        one.close()
        print([info.head for info in open_for_reading(sys.argv[1]).streams()])
        """,
        path,
    )
    assert done.stdout.split() == ["journal_forked"] * 11 + ["[2]"]


def test_a_forked_child_waits_for_no_lock_that_a_thread_of_the_parent_held(path: Path) -> None:
    done = run(
        """
        import os, signal, sys, threading
        from journal import JournalError, open_for_writing
        from tests.journal.small import branch
        from tests.strategies import opened
        one = open_for_writing(sys.argv[1])
        writer = one.open_stream(opened())
        for number in range(2000):
            writer.append(branch(number))
        writer.commit()
        rows = one.rows(0)
        next(rows)
        held, done = threading.Event(), threading.Event()
        def hold():
            with one.environment.lock, writer.counting, one.environment.segments.lock:
                held.set()
                done.wait()
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        if os.fork() == 0:
            signal.alarm(300)
            for act in (lambda: next(rows), writer.reserve, writer.next_at, lambda: writer.keep(b"")):
                try:
                    act()
                except JournalError as refused:
                    print(refused.code)
            sys.stdout.flush()
            os._exit(0)
        status = os.wait()[1]
        done.set()
        assert status == 0
        """,
        path,
    )
    assert done.stdout.split() == ["journal_forked"] * 4


def test_a_child_that_outlives_a_killed_parent_does_not_hold_the_lease(path: Path) -> None:
    run(
        """
        import os, signal, sys, time
        from journal import open_for_writing
        from tests.strategies import opened
        reading, writing = os.pipe()
        ending, staying = os.pipe()  # ends with this process
        parent = os.fork()
        if parent == 0:
            one = open_for_writing(sys.argv[1])
            one.open_stream(opened()).commit()
            if os.fork() == 0:
                os.close(staying)
                os.write(writing, b"x")
                os.read(ending, 1)
                os._exit(0)
            os.close(staying)
            time.sleep(600)
        os.read(reading, 1)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        one = open_for_writing(sys.argv[1])
        assert one.streams()[0].head == 1
        one.close()
        """,
        path,
    )


def test_a_process_that_ends_without_closing_seals_what_it_wrote(path: Path) -> None:
    run(
        """
        import sys
        from journal import open_for_writing
        from journal.events import BranchTaken
        from tests.strategies import opened
        writer = open_for_writing(sys.argv[1], durability="close").open_stream(opened())
        writer.keep(b"payload")
        for number in range(1000):
            writer.pending.append(BranchTaken(value=number, result=True, site=0, call=0).row(0))
        """,
        path,
    )
    assert (path / "writer.lease").read_bytes() == b""
    one = open_for_reading(path)
    assert values(one) == list(range(1000))
    assert bytes(one.payload(StreamId(0), 0)) == b"payload"
    one.close()


def test_small_payloads_gather_without_changing_places(tmp_path: Path) -> None:
    journal = open_for_writing(tmp_path / "many.journal")
    writer = journal.open_stream(opened())
    sizes = [100, 30_000, 40_000, 1, 0, 5, 100_000, 31_000] * 40
    kept = {writer.keep(bytes([number % 251]) * size): (number, size) for number, size in enumerate(sizes)}
    for number, (value, size) in kept.items():
        assert bytes(journal.payload(writer.stream, number)) == bytes([value % 251]) * size
    writer.close()
    journal.close()
    assert sum(file.stat().st_size for file in (tmp_path / "many.journal" / "segments").iterdir()) == sum(sizes)


# What is damaged -----------------------------------------------------------------------------------------


def with_two_commits(path: Path) -> None:
    for _ in range(2):
        one = open_for_writing(path)
        writer = one.open_stream(opened())
        writer.keep(payload_bytes(40))
        fill(writer, 400)
        one.close()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_data_file_that_was_cut_is_refused_before_it_is_mapped(path: Path, share: float) -> None:
    with_two_commits(path)
    data = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(data[: int(len(data) * share)])
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(path)) == "journal_truncated"  # type: ignore[misc]


@pytest.mark.parametrize("field", range(5))
def test_a_wrong_last_commit_cuts_off_no_payload(path: Path, field: int) -> None:
    with_two_commits(path)
    segment = path / "segments" / "000000.seg"
    before = segment.read_bytes()
    key, last = entries(path, b"commits")[-1]
    entry = list(COMMIT.unpack(last))
    entry[field] = bytes(32) if field == 4 else max(0, entry[field] - 1) if entry[field] else 1
    put(path, b"commits", (key, COMMIT.pack(*entry)))
    assert code_of(lambda: open_for_writing(path)) == "commit_malformed"
    assert segment.read_bytes() == before
    reading = open_for_reading(path)
    assert values(reading) == list(range(400))
    reading.close()


def test_segments_without_their_events_are_left_alone(path: Path) -> None:
    segment = with_one_payload(path)
    (path / "data.mdb").unlink()
    assert code_of(lambda: open_for_writing(path)) == "journal_not_a_journal"
    assert segment.stat().st_size == len(payload_bytes(9))


def test_a_stream_number_that_was_made_up_takes_no_memory(path: Path) -> None:
    with_two_commits(path)
    put(path, b"index", (TWO.pack(1 << 60, 0), TWO.pack(0, 1)))
    reading = open_for_reading(path)
    assert code_of(reading.streams) == "stream_unknown"
    reading.close()


@pytest.mark.parametrize("path", [None, 5, b"run.journal", "a\0b", "\ud800"])
def test_what_is_no_path_is_refused(path: object) -> None:
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(path)) == "journal_path_invalid"  # type: ignore[misc]


def test_a_path_that_the_system_refuses_is_told(tmp_path: Path) -> None:
    for open_it in (open_for_reading, open_for_writing):
        assert code_of(lambda open_it=open_it: open_it(tmp_path / ("x" * 300))) == "journal_open_failed"  # type: ignore[misc]


# What was removed, dropped or refused ------------------------------------------------------------------------


def test_a_journal_whose_directory_was_removed_begins_anew(path: Path) -> None:
    old = open_for_writing(path)
    writer = old.open_stream(opened("old"))
    fill(writer, 3)
    writer.commit()
    shutil.rmtree(path)
    new = open_for_writing(path)
    fill(new.open_stream(opened("new")), 4)
    new.close()
    reading = open_for_reading(path)
    assert [info.opened.label for info in reading.streams()] == ["new"]
    reading.close()
    assert values(old) == [0, 1, 2]  # what is open stays readable
    fill(writer, 1)
    assert code_of(writer.commit) == "journal_removed"
    assert values(old) == [0, 1, 2, 0]


def test_a_removed_journal_can_be_left_when_nothing_is_pending(path: Path) -> None:
    one = open_for_writing(path)
    writer = one.open_stream(opened())
    writer.close()
    shutil.rmtree(path)
    one.close()
    assert not path.exists()


def test_a_user_that_is_dropped_lets_go(path: Path) -> None:
    one = open_for_writing(path)
    one.open_stream(opened()).close()
    assert str(path) in OPEN
    del one
    gc.collect()
    end = time.monotonic() + PATIENCE
    while str(path) in OPEN and time.monotonic() < end:
        time.sleep(0.05)
    assert str(path) not in OPEN
    other = open_for_writing(path)
    assert [info.stream for info in other.streams()] == [0]
    other.close()


def test_a_user_is_held_while_a_stream_of_it_is_open(path: Path) -> None:
    writer = open_for_writing(path).open_stream(opened())
    gc.collect()
    leave_dropped()
    fill(writer, 3)
    writer.close()
    reading = open_for_reading(path)
    assert values(reading) == [0, 1, 2]
    gc.collect()
    leave_dropped()
    assert not any(seat.writing for seat in OPEN[str(path)].seats)
    reading.close()


def test_a_full_disk_does_not_keep_the_lease(path: Path) -> None:
    path.mkdir()
    with no_file_longer_than(0):
        assert code_of(lambda: open_for_writing(path)) == "journal_open_failed"
        assert code_of(lambda: open_for_writing(path)) == "journal_open_failed"
    open_for_writing(path).close()


@pytest.mark.parametrize("durability", ["batch", "close", "event"])
def test_a_stream_that_could_not_be_closed_is_closed_when_there_is_room(path: Path, durability: Durability) -> None:
    one = open_for_writing(path, durability=durability, sync="none")
    writer = one.open_stream(opened())
    with no_file_longer_than(64 << 10):
        for number in range(5000):
            writer.pending.append(branch(number).row(0))
        assert code_of(writer.close) == "journal_write_failed"
    end = time.monotonic() + PATIENCE
    while not writer.closed and time.monotonic() < end:
        time.sleep(0.05)
    assert writer.closed
    assert values(one) == list(range(5000))
    one.close()


def test_a_reader_needs_no_more_address_space_than_the_file(path: Path) -> None:
    with_two_commits(path)
    script = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        from journal import open_for_reading
        print([info.head for info in open_for_reading(sys.argv[1]).streams()])
    """
    assert run(script, path).stdout == "[401, 401]\n"


def test_opening_a_stream_does_not_look_at_all_that_wait(path: Path) -> None:
    class Counted(dict[StreamId, list[Chunk]]):
        walks = 0

        def __iter__(self) -> Iterator[StreamId]:
            Counted.walks += 1
            return super().__iter__()

    one = open_for_writing(path, durability="close", sync="none")
    one.environment.waiting.of = Counted()
    writers = [one.open_stream(opened()) for _ in range(100)]
    assert [writer.stream for writer in writers] == list(range(100))
    assert Counted.walks == 0
    one.close()
