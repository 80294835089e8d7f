"""Copies of streams: equal to read, with the same bodies, and honest about what could not be copied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import journal.copying
import journal.payloads
from journal import Event, Journal, JournalError, LmdbJournal, MemoryJournal, Row, StreamId, open_for_reading
from journal.copying import copy_streams
from journal.events import StreamOpened
from journal.stream_writer import Writer
from journal.user import JournalUser
from journal.wire import Envelope, packed_rows
from tests.journal.small import branch, code_of
from tests.programs import run
from tests.strategies import branched, capture_streams, opened, payload_bytes, payloads_named, write_stream


def new(where: str, path: Path) -> Any:
    return MemoryJournal() if where == "memory" else LmdbJournal(path, sync="none")


def events_of(one: Journal, stream: int) -> list[tuple[int, int, Event]]:
    return [(stamped.at, stamped.time_ns, stamped.event) for stamped in one.events(StreamId(stream))]


def chunks_of(one: JournalUser, stream: int) -> list[Envelope]:
    which = StreamId(stream)
    return list(one.shelf.envelopes(which, one.shelf.origin(which).at, None))


def same_but_for_parents(events: Sequence[tuple[int, int, Event]]) -> list[tuple[int, int, Event]]:
    return [
        (at, time_ns, attrs.evolve(event, parent=None) if isinstance(event, StreamOpened) else event)
        for at, time_ns, event in events
    ]


def stored(folder: Path) -> dict[str, bytes]:
    """Every file of a journal but the table of its readers."""
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "lock.mdb"}


# Laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["memory", "lmdb"])
@settings(max_examples=40)
@given(captures=st.lists(capture_streams(), min_size=1, max_size=3), data=st.data())
def test_a_copy_reads_as_its_original(
    any_journal: Any,
    to: str,
    captures: list[list[Event]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    target = new(to, tmp_path_factory.mktemp("copy") / "copy.journal")
    numbers: list[StreamId] = []
    for events in captures:
        if numbers and data.draw(st.booleans()):
            parent = data.draw(st.sampled_from(numbers))
            header = branched(parent, data.draw(st.integers(1, any_journal.head(parent))), "branch")
            writer = any_journal.open_stream(header)
            writer.keep(b"own")
            writer.append(branch(1))
        else:
            writer = write_stream(any_journal, events)
        if data.draw(st.booleans()):
            writer.flush()
        numbers.append(writer.stream)
    chosen = data.draw(st.lists(st.sampled_from(numbers), unique=True, min_size=1))
    for copies in (1, 2):
        copied = copy_streams(any_journal, target, chosen)
        assert set(chosen) <= copied.numbers.keys()
        assert copied.payloads_missing == 0
        for stream, there in copied.numbers.items():
            found, wanted = events_of(target, there), events_of(any_journal, stream)
            assert same_but_for_parents(found) == same_but_for_parents(wanted)
            for event in (one[2] for one in wanted):
                for number in payloads_named(event):
                    assert bytes(target.payload(there, number)) == payload_bytes(number)
            opened_here, opened_there = any_journal.streams()[stream].opened, target.streams()[there].opened
            assert opened_there.parent == (None if opened_here.parent is None else copied.numbers[opened_here.parent])
        assert len(target.streams()) == copies * copied.streams
    stamped = list(target.since(0))
    assert [one.seq for one in stamped] == list(range(len(stamped)))
    target.close()


@given(sizes=st.lists(st.integers(1, 40), max_size=60))
def test_joined_chunks_hold_the_same_bytes_and_are_full(any_journal: Any, sizes: list[int]) -> None:
    writer = any_journal.open_stream(opened())
    for size in sizes:
        for number in range(size):
            writer.append(branch(number))
        writer.keep(payload_bytes(size))
        writer.flush()
    target = MemoryJournal()
    there = copy_streams(any_journal, target, [writer.stream]).numbers[writer.stream]
    before, after = chunks_of(any_journal, writer.stream), chunks_of(target, there)
    assert b"".join(map(packed_rows, after)) == b"".join(map(packed_rows, before))
    assert after[0].count == 1
    assert all(one.count + other.count > 256 for one, other in pairwise(after[1:]))
    assert after[-1].payload_end == before[-1].payload_end


# What is copied ---------------------------------------------------------------------------------------


def test_a_journal_in_memory_becomes_one_on_disk(tmp_path: Path) -> None:
    memory = MemoryJournal()
    writer = memory.open_stream(opened("one"))
    kept = writer.keep(b"payload")
    writer.append(branch(1))  # pending, and copied all the same
    copied = memory.copy_to(tmp_path / "new" / "run.journal")
    assert (copied.streams, copied.events, copied.payloads, copied.payload_bytes) == (1, 2, 1, 7)
    with pytest.raises(AttributeError):
        copied.events = 3  # type: ignore[misc]
    with_copy = open_for_reading(tmp_path / "new" / "run.journal")
    assert events_of(with_copy, 0) == events_of(memory, 0)
    assert bytes(with_copy.payload(StreamId(0), kept)) == b"payload"
    assert with_copy.unfinished_copies() == []
    with_copy.close()


def test_a_copy_goes_behind_what_a_journal_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    for label in ("one", "two"):
        memory = MemoryJournal()
        memory.open_stream(opened(label)).append(branch(1))
        assert memory.copy_to(path).numbers == {0: 0 if label == "one" else 1}
    reading = open_for_reading(path)
    assert [(info.opened.label, info.head) for info in reading.streams()] == [("one", 2), ("two", 2)]
    reading.close()


def test_a_branch_brings_along_what_it_reads_through(tmp_path: Path) -> None:
    memory = MemoryJournal()
    streams: list[Writer] = [memory.open_stream(opened(str(number))) for number in range(3)]
    streams.append(memory.open_stream(branched(2, 1, "first")))
    streams.append(memory.open_stream(branched(3, 2, "second")))
    target = MemoryJournal()
    assert copy_streams(memory, target, [StreamId(4), StreamId(1)]).numbers == {1: 0, 2: 1, 3: 2, 4: 3}
    assert [info.opened.parent for info in target.streams()] == [None, None, 1, 2]
    assert len(list(target.events(StreamId(3)))) == 3


def test_a_stream_committed_event_by_event_is_compacted(tmp_path: Path) -> None:
    one = LmdbJournal(tmp_path / "a", durability="event", sync="none")
    writer = one.open_stream(opened())
    for number in range(600):
        writer.append(branch(number))
    one.copy_to(tmp_path / "b")
    other = open_for_reading(tmp_path / "b")
    assert (len(chunks_of(one, 0)), [chunk.count for chunk in chunks_of(other, 0)]) == (601, [1, 256, 256, 88])
    one.close()
    other.close()


def test_a_header_that_is_renumbered_is_the_only_body_that_changes(tmp_path: Path) -> None:
    memory = MemoryJournal()
    for _ in range(2):
        memory.open_stream(opened())
    writer = memory.open_stream(branched(1, 1))
    writer.append(branch(1))
    target = MemoryJournal()
    copy_streams(memory, target, [writer.stream])
    for before, after in ((0, 0), (2, 1)):
        found, wanted = chunks_of(target, after), chunks_of(memory, before)
        assert [one.body for one in found[1:]] == [one.body for one in wanted[1:]]
    rows: list[Row] = [chunks_of(one, number)[0].rows()[0] for one, number in ((memory, 2), (target, 1))]
    assert [(rows[0][at], rows[1][at]) for at in range(len(rows[0])) if rows[0][at] != rows[1][at]] == [(1, 0)]


# Payloads ---------------------------------------------------------------------------------------------


def test_long_payloads_are_copied_piece_by_piece(
    any_journal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (journal.copying, journal.payloads):
        monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    longest = 0
    write_at = journal.payloads.Segments.write_at

    def watched(self: Any, data: Any, offset: int) -> None:
        nonlocal longest
        longest = max(longest, memoryview(data).nbytes)
        write_at(self, data, offset)

    writer = any_journal.open_stream(opened())
    sizes = [0, 1, 999, 1000, 1001, 40_000, 5, 123_457]
    for size in sizes:
        writer.keep(os.urandom(size))
    writer.append(branch(1))
    writer.flush()
    if any_journal.path is not None:
        any_journal.shelf.commit()
        monkeypatch.setattr(journal.payloads.Segments, "write_at", watched)
    copied = any_journal.copy_to(tmp_path / "copy")
    assert (copied.payloads, copied.payload_bytes) == (len(sizes), sum(sizes))
    assert longest <= 2000  # small ones gather
    reading = open_for_reading(tmp_path / "copy")
    for number in range(len(sizes)):
        assert bytes(reading.payload(StreamId(0), number)) == bytes(any_journal.payload(writer.stream, number))
    reading.close()


@pytest.mark.parametrize("piece", [10, 4 << 20])
def test_a_lost_or_damaged_payload_stays_lost_and_the_others_are_copied(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (journal.copying, journal.payloads):
        monkeypatch.setattr(module, "PIECE_BYTES", piece)
    one = LmdbJournal(tmp_path / "a", sync="none")
    writer = one.open_stream(opened())
    for number in range(4):
        writer.keep(bytes([number]) * 100)
    writer.append(branch(1))
    one.close()
    segment = tmp_path / "a" / "segments" / "000000.seg"
    data = bytearray(segment.read_bytes()[:350])  # the last is lost
    data[150] ^= 1
    segment.write_bytes(data)
    source = open_for_reading(tmp_path / "a")
    copied = source.copy_to(tmp_path / "b")
    assert (copied.payloads, copied.payload_bytes, copied.payloads_missing) == (2, 200, 2)
    first, second = open_for_reading(tmp_path / "b"), MemoryJournal()
    copy_streams(first, second)
    readers: list[Journal] = [first, second]
    for reader in readers:
        for number in (0, 2):
            assert bytes(reader.payload(StreamId(0), number)) == bytes([number]) * 100
        for number in (1, 3):
            with pytest.raises(JournalError) as refused:
                reader.payload(StreamId(0), number)
            assert refused.value.code == "payload_lost"
        reader.close()
    source.close()


def test_what_was_reserved_is_lent_where_it_can_be(any_journal: Any, tmp_path: Path) -> None:
    class Held:
        def lend(self, number: int) -> bytes | None:
            return None if number == 2 else bytes([number] * 3)

    writer = any_journal.open_stream(opened())
    assert [writer.reserve(), writer.keep(b"kept"), writer.reserve(), writer.reserve()] == [0, 1, 2, 3]
    writer.append(branch(1))
    assert any_journal.lender(writer.stream) is None
    held = Held()
    any_journal.lend(writer.stream, held)
    assert any_journal.lender(writer.stream) is held
    copied = any_journal.copy_to(tmp_path / "copy")
    assert (copied.payloads, copied.payloads_missing) == (3, 1)
    reading = open_for_reading(tmp_path / "copy")
    found = [bytes(reading.payload(StreamId(0), number)) for number in (0, 1, 3)]
    assert found == [b"\0\0\0", b"kept", b"\3\3\3"]
    assert code_of(lambda: reading.payload(StreamId(0), 2)) == "payload_not_stored"
    assert code_of(lambda: reading.payload(StreamId(0), 4)) == "payload_unknown"
    reading.close()


# Refusals, and copies that do not end ------------------------------------------------------------------


def test_a_journal_is_not_copied_into_itself(tmp_path: Path) -> None:
    one = LmdbJournal(tmp_path / "a", sync="none")
    one.open_stream(opened())
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path / "link"):
        assert code_of(lambda path=path: one.copy_to(path)) == "copy_onto_itself"  # type: ignore[misc]
    one.close()
    reading = open_for_reading(tmp_path / "a")
    assert code_of(lambda: reading.copy_to(tmp_path / "a")) == "copy_onto_itself"
    memory = MemoryJournal()
    assert code_of(lambda: copy_streams(memory, memory)) == "copy_onto_itself"
    reading.close()


def test_an_unknown_stream_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    memory, target = MemoryJournal(), LmdbJournal(tmp_path / "a", sync="none")
    memory.open_stream(opened())
    assert code_of(lambda: copy_streams(memory, target, [StreamId(0), StreamId(1)])) == "stream_unknown"
    assert (target.streams(), target.unfinished_copies()) == ([], [])
    target.close()


def test_a_copy_that_fails_is_marked_and_so_is_what_is_copied_from_it(tmp_path: Path) -> None:
    one = LmdbJournal(tmp_path / "a", sync="none")
    for _ in range(2):
        writer = one.open_stream(opened())
        for number in range(3):
            writer.append(branch(number))
            writer.flush()
    target = LmdbJournal(tmp_path / "b", sync="none")
    target.open_stream(opened()).append(branch(7))
    find = one.shelf.find
    one.shelf.find = lambda stream, at: b"damaged" if (stream, at) == (1, 2) else find(stream, at)  # type: ignore[method-assign]
    assert code_of(lambda: copy_streams(one, target)) == "chunk_checksum"
    one.close()
    target.close()
    for _ in range(2):
        reading = open_for_reading(tmp_path / "b")
        assert reading.unfinished_copies() == [1]
        reading.close()
        LmdbJournal(tmp_path / "b").close()
    reading = open_for_reading(tmp_path / "b")
    copy = LmdbJournal(tmp_path / "c", sync="none")
    copy_streams(reading, copy, [StreamId(0)])
    assert copy.unfinished_copies() == []  # it was there before
    copy_streams(reading, copy, [StreamId(1)])
    assert copy.unfinished_copies() == [2]
    copy_streams(reading, copy)
    assert copy.unfinished_copies() == [2, 6]
    reading.close()
    copy.close()


def test_a_copy_whose_process_is_killed_is_marked_and_its_source_untouched(tmp_path: Path) -> None:
    one = LmdbJournal(tmp_path / "a", sync="none")
    for _ in range(3):
        writer = one.open_stream(opened())
        for number in range(1000):
            writer.append(branch(number))
            writer.keep(bytes(100))
    one.close()
    before = stored(tmp_path / "a")
    run(
        """
        import os, signal, sys
        import journal.environment
        from journal import open_for_reading
        journal.environment.COMMIT_ROWS = 500
        commits = []
        put = journal.environment.Environment.put
        def killed(*given):
            put(*given)
            commits.append(1)
            if len(commits) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
        journal.environment.Environment.put = killed
        open_for_reading(sys.argv[1]).copy_to(sys.argv[2])
        """,
        tmp_path / "a",
        tmp_path / "b",
        ends=-9,
    )
    reading = open_for_reading(tmp_path / "b")
    assert reading.unfinished_copies() == [0]
    assert 0 < sum(info.head for info in reading.streams()) < 3003
    reading.close()
    assert stored(tmp_path / "a") == before


def test_a_target_that_another_process_writes_is_refused_with_its_number(tmp_path: Path) -> None:
    held = LmdbJournal(tmp_path / "b", sync="none")
    held.open_stream(opened())
    out = run(
        """
        import sys
        from journal import JournalError, MemoryJournal
        from tests.strategies import opened
        memory = MemoryJournal()
        memory.open_stream(opened())
        try:
            memory.copy_to(sys.argv[1])
        except JournalError as refused:
            print(refused.code, refused.fields["holder"])
        """,
        tmp_path / "b",
    ).stdout
    assert out.split() == ["journal_locked", str(os.getpid())]
    held.close()


def test_a_forked_child_neither_copies_nor_follows(tmp_path: Path) -> None:
    out = run(
        """
        import os, sys
        from journal import JournalError, MemoryJournal, open_for_writing
        from journal.copying import copy_streams
        from journal.following import follow
        from tests.strategies import opened
        one = open_for_writing(sys.argv[1])
        one.open_stream(opened()).commit()
        begun = follow(one)
        next(begun)
        memory = MemoryJournal()
        if os.fork() == 0:
            for act in (
                lambda: next(begun), lambda: next(follow(one)), lambda: list(one.since(0)), one.news, one.is_written,
                lambda: one.copy_to(sys.argv[2]), lambda: copy_streams(one, memory),
                lambda: memory.copy_to(sys.argv[1]),
            ):
                try:
                    act()
                except JournalError as refused:
                    print(refused.code)
                else:
                    print("no refusal")
            sys.exit()
        assert os.wait()[1] == 0
        one.close()
        """,
        tmp_path / "a",
        tmp_path / "b",
    ).stdout
    assert out.split() == ["journal_forked"] * 8
