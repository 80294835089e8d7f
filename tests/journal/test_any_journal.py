"""What every journal promises: the one in memory and the one on disk pass the same suite.

The state machine at the end drives both side by side, against plain lists.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

import journal.chunk_list
import journal.environment
import journal.flushing
import journal.lmdb_journal
import journal.payloads
import journal.sharing
import journal.shelf
import journal.stream_writer
import journal.user
from journal import (
    At,
    CaptureState,
    Event,
    IllegalTransition,
    Journal,
    JournalError,
    LmdbJournal,
    MemoryJournal,
    StreamId,
)
from journal.events import (
    BranchTaken,
    CaptureRequested,
    CaptureSettled,
    ForwardRaised,
    OpExecuted,
    StreamOpened,
)
from journal.lifecycle import CAPTURE_INPUTS, state_after
from journal.stream_writer import Writer
from tests.interrupting import is_interrupted
from tests.journal.small import branch
from tests.programs import PATIENCE
from tests.strategies import any_event, branched, capture_streams, opened, payload_bytes, payloads_named, write_stream
from tests.work import at_most


def branch_row(number: int) -> tuple[Any, ...]:
    return branch(number).row(number)


def read(journal: Journal, stream: StreamId, start: int = 0, stop: int | None = None) -> list[Event]:
    return [stamped.event for stamped in journal.events(stream, start, stop)]


# Laws -----------------------------------------------------------------------------------------------


@given(events=capture_streams(), flushes=st.sets(st.integers(0, 40)))
def test_what_was_appended_is_read_back_in_order(any_journal: Journal, events: list[Event], flushes: set[int]) -> None:
    header = events[0]
    assert isinstance(header, StreamOpened)
    writer = any_journal.open_stream(header)
    for at, event in enumerate(events[1:], start=1):
        for number in payloads_named(event):
            writer.keep(payload_bytes(number))
        assert writer.next_at() == at
        assert writer.append(event, 1000 * at) == at
        if at in flushes:
            writer.flush()
        assert any_journal.head(writer.stream) == at + 1
    stamped = list(any_journal.events(writer.stream))
    assert [one.event for one in stamped] == events
    assert [one.at for one in stamped] == list(range(len(events)))
    assert [one.time_ns for one in stamped[1:]] == [1000 * at for at in range(1, len(events))]
    assert [row for run in any_journal.rows(writer.stream) for row in run] == [
        one.event.row(one.time_ns) for one in stamped
    ]


@given(
    events=st.lists(any_event().filter(lambda event: type(event) not in CAPTURE_INPUTS), max_size=12),
    flushes=st.sets(st.integers(1, 12)),
    start=st.integers(0, 14),
    stop=st.integers(0, 14) | st.none(),
)
def test_reading_a_part_gives_that_part(
    any_journal: Journal, events: list[Event], flushes: set[int], start: int, stop: int | None
) -> None:
    header = opened()
    writer = any_journal.open_stream(header)
    for at, event in enumerate(events, start=1):
        writer.append(event)
        if at in flushes:
            writer.flush()
    assert read(any_journal, writer.stream, start, stop) == [header, *events][start:stop]
    rows = [row for run in any_journal.rows(writer.stream, start, stop) for row in run]
    assert [row[0] for row in rows] == [event.type_id for event in [header, *events][start:stop]]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_seqs_are_dense_over_all_streams_of_a_journal(any_journal: Journal, steps: list[tuple[int, bool]]) -> None:
    writers = [any_journal.open_stream(opened()) for _ in range(3)]
    for number, flush in steps:
        writers[number].append(branch(number))
        if flush:
            writers[number].flush()
    stamped = [one for info in any_journal.streams() for one in any_journal.events(info.stream)]
    assert sorted(one.seq for one in stamped) == list(range(len(stamped)))
    for info in any_journal.streams():
        seqs = [one.seq for one in stamped if one.stream == info.stream]
        assert seqs == sorted(seqs)


@given(st.lists(st.binary(max_size=40) | st.none(), max_size=10))
def test_a_payload_is_what_was_kept(any_journal: Journal, payloads: list[bytes | None]) -> None:
    writer = any_journal.open_stream(opened())
    for number, data in enumerate(payloads):
        assert (writer.reserve() if data is None else writer.keep(data)) == number
        if number % 3 == 2:
            writer.append(branch(number))
            writer.flush()
    for number, data in enumerate(payloads):
        assert any_journal.payload_size(writer.stream, number) == (None if data is None else len(data))
        if data is not None:
            assert bytes(any_journal.payload(writer.stream, number)) == data


@given(capture_streams())
def test_every_payload_that_an_event_names_is_there(any_journal: Journal, events: list[Event]) -> None:
    writer = write_stream(any_journal, events)
    for event in read(any_journal, writer.stream):
        for number in payloads_named(event):
            assert bytes(any_journal.payload(writer.stream, number)) == payload_bytes(number)


@given(events=capture_streams(), data=st.data())
def test_a_branch_reads_as_its_parent_up_to_the_branch_point_and_as_itself_from_there(
    any_journal: Journal, events: list[Event], data: st.DataObject
) -> None:
    parent = write_stream(any_journal, events)
    cut = data.draw(st.integers(1, len(events)))
    header = branched(parent.stream, cut)
    writer = any_journal.open_stream(header, 7)
    assert writer.next_at() == any_journal.head(writer.stream) == cut + 1
    assert writer.state is state_after(CaptureState.IDLE, map(type, events[:cut]))
    for at, event in enumerate(events[cut:], start=cut):
        assert writer.append(event, 1000 * at) == at + 1
    stamped = list(any_journal.events(writer.stream))
    assert [one.event for one in stamped] == [*events[:cut], header, *events[cut:]]
    assert [one.at for one in stamped] == list(range(len(events) + 1))
    assert stamped[:cut] == list(any_journal.events(parent.stream, 0, cut))
    assert {one.stream for one in stamped[cut:]} == {writer.stream}
    rows = [row for run in any_journal.rows(writer.stream) for row in run]
    assert rows[:cut] + rows[cut + 1 :] == [row for run in any_journal.rows(parent.stream) for row in run]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(rows) + 2), st.integers(0, len(rows) + 2))))
    assert read(any_journal, writer.stream, start, stop) == [one.event for one in stamped[start:stop]]
    assert [row for run in any_journal.rows(writer.stream, start, stop) for row in run] == rows[start:stop]


@given(events=capture_streams(), cut=st.integers(1, 60))
def test_a_branch_has_every_payload_that_its_events_name(any_journal: Journal, events: list[Event], cut: int) -> None:
    parent = write_stream(any_journal, events)
    cut = min(cut, len(events))
    writer = any_journal.open_stream(branched(parent.stream, cut))
    own = writer.keep(b"of the branch")
    parent.keep(b"of the parent alone")
    assert own >= 1 + max([number for event in events[:cut] for number in payloads_named(event)], default=-1)
    for event in read(any_journal, writer.stream, 0, cut):
        for number in payloads_named(event):
            assert bytes(any_journal.payload(writer.stream, number)) == payload_bytes(number)
    assert bytes(any_journal.payload(writer.stream, own)) == b"of the branch"
    with pytest.raises(JournalError) as refused:
        any_journal.payload(writer.stream, own + 1)
    assert refused.value.code == "payload_unknown"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=25), st.integers(0, 40))
def test_since_gives_the_events_of_all_streams_in_the_order_of_seq(
    any_journal: Journal, steps: list[tuple[int, int]], start: int
) -> None:
    writers = [any_journal.open_stream(opened()) for _ in range(3)]
    before = next(any_journal.events(writers[0].stream)).seq  # the journal holds the streams of other examples
    for number, what in steps:
        chosen = writers[number % len(writers)]
        if what == 0:
            chosen.flush()
        elif what == 1:
            writers.append(any_journal.open_stream(branched(chosen.stream, chosen.next_at())))
        else:
            chosen.append(branch(number))
    stamped = list(any_journal.since(before))
    assert [one.seq for one in stamped] == list(range(before, before + len(stamped)))
    own = [one for writer in writers for one in any_journal.events(writer.stream) if one.stream == writer.stream]
    assert stamped == sorted(own, key=lambda one: one.seq)
    assert list(any_journal.since(before + start)) == stamped[start:]
    for writer in writers:
        writer.close()


# Branches -------------------------------------------------------------------------------------------


def test_what_a_parent_gets_after_the_branch_stays_its_own(any_journal: Journal) -> None:
    parent = any_journal.open_stream(opened())
    parent.append(branch(1))
    writer = any_journal.open_stream(branched(parent.stream, 2))
    parent.append(branch(2))
    writer.append(branch(3))
    assert read(any_journal, parent.stream, 1) == [branch(1), branch(2)]
    assert read(any_journal, writer.stream, 1) == [branch(1), branched(parent.stream, 2), branch(3)]
    assert [(info.opened.kind, info.head) for info in any_journal.streams()] == [("capture", 3), ("branch", 4)]


def test_a_branch_of_a_branch_reads_through_both(any_journal: Journal) -> None:
    """Where the second branches off before the first begins, nothing of the first belongs to it."""
    root = any_journal.open_stream(opened())
    for number in range(1, 600):
        root.append(branch(number))
    first = any_journal.open_stream(branched(root.stream, 500))
    first.append(branch(-1))
    late = any_journal.open_stream(branched(first.stream, 502))
    early = any_journal.open_stream(branched(first.stream, 300))
    numbers = [branch(number) for number in range(1, 500)]
    after = [branched(root.stream, 500), branch(-1)]
    assert read(any_journal, late.stream, 1) == [*numbers, *after, branched(first.stream, 502)]
    assert read(any_journal, early.stream, 1) == [*numbers[:299], branched(first.stream, 300)]


def test_a_long_chain_of_branches_is_read_without_recursion(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    kept = writer.keep(b"of the first")
    writer.append(branch(0))
    for number in range(1, 3000):
        writer = any_journal.open_stream(branched(writer.stream, number + 1))
    with at_most(10):
        assert any_journal.head(writer.stream) == 3001
        assert sum(isinstance(event, StreamOpened) for event in read(any_journal, writer.stream)) == 3000
        assert bytes(any_journal.payload(writer.stream, kept)) == b"of the first"
        assert len(any_journal.streams()) == 3000


@pytest.mark.parametrize("at", [0, -1, 3, 1 << 70, None])
def test_a_branch_point_outside_the_parent_is_refused(any_journal: Journal, at: int | None) -> None:
    parent = any_journal.open_stream(opened())
    parent.append(branch(1))
    with pytest.raises(JournalError) as refused:
        any_journal.open_stream(branched(parent.stream, at))
    assert refused.value.code == "branch_point_invalid"
    assert len(any_journal.streams()) == 1


def test_a_header_that_does_not_say_where_it_branches_is_refused(any_journal: Journal) -> None:
    any_journal.open_stream(opened())
    for header, code in (
        (branched(None, 1), "branch_point_invalid"),
        (attrs.evolve(opened(), branched_at=At(1)), "branch_point_invalid"),
        (branched(StreamId(7), 1), "stream_unknown"),
        (branched(StreamId(1), 1), "stream_unknown"),  # its own number
    ):
        with pytest.raises(JournalError) as refused:
            any_journal.open_stream(header)
        assert refused.value.code == code


# Following ------------------------------------------------------------------------------------------


def test_news_changes_with_whatever_is_appended_and_with_nothing_else(any_journal: Journal) -> None:
    marks = [any_journal.news()]
    writer = any_journal.open_stream(opened())
    assert any_journal.is_written()
    marks.append(any_journal.news())
    writer.append(branch(1))
    marks.append(any_journal.news())
    assert len(set(marks)) == 3
    list(any_journal.since(0))
    mark = any_journal.news()
    list(any_journal.since(0))
    assert any_journal.news() == mark


# Appending ------------------------------------------------------------------------------------------


def test_rows_may_be_appended_straight_to_the_pending_list(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    for number in range(1, 1001):
        writer.pending.append(branch_row(number))
        if len(writer.pending) >= writer.chunk_size:
            writer.flush()
    assert writer.next_at() == any_journal.head(writer.stream) == 1001
    assert read(any_journal, writer.stream, 1) == [branch(number) for number in range(1, 1001)]


def test_rows_read_back_are_plain_tuples(any_journal: Journal) -> None:
    class Size(tuple[int, ...]):
        """As torch.Size is."""

    writer = any_journal.open_stream(opened())
    kept = writer.keep(b"1")
    event = OpExecuted(
        function=0,
        site=0,
        call=0,
        thread=0,
        duration_ns=1,
        mode=0,
        args=((),),
        kwargs=(),
        inputs=(0,),
        writers=None,
        written=None,
        first=1,
        outputs=((Size((2, 3)), "float32", (kept, 0, None)),),
        container=None,
        autocast=None,
        rng=None,
    )
    writer.pending.append(event.row(5))
    (row,) = next(iter(any_journal.rows(writer.stream, 1)))
    assert row == event.row(5)
    assert type(row[2 + OpExecuted.fields.index("outputs")][0][0]) is tuple


def test_the_time_of_an_event_is_now_unless_it_is_given(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    before = time.monotonic_ns()
    writer.append(branch(1))
    writer.append(branch(2), 7)
    first, second = any_journal.events(writer.stream, 1)
    assert before <= first.time_ns <= time.monotonic_ns()
    assert second.time_ns == 7


def test_events_of_several_threads_are_all_there_each_thread_in_order(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    done = threading.Event()

    def run(thread: int) -> None:
        for number in range(2000):
            writer.pending.append(BranchTaken(value=number, result=True, site=thread, call=0).row(0))

    def flush() -> None:
        while not done.is_set():
            at = writer.next_at()
            writer.flush()
            assert writer.next_at() >= at

    flusher = threading.Thread(target=flush)
    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(3)]
    flusher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    flusher.join()
    events = read(any_journal, writer.stream, 1)
    assert len(events) == writer.next_at() - 1 == 6000
    for thread in range(3):
        values = [event.value for event in events if isinstance(event, BranchTaken) and event.site == thread]
        assert values == list(range(2000))


WRITING = (
    journal.chunk_list,
    journal.environment,
    journal.flushing,
    journal.lmdb_journal,
    journal.sharing,
    journal.shelf,
    journal.stream_writer,
    journal.user,
)
"""What a flush passes through, but the packing of chunks and the writing of payload bytes."""


def test_an_interrupt_anywhere_in_a_flush_loses_and_doubles_nothing(any_journal: Journal) -> None:
    """Interrupts a flush at its first line, its second, and so on, in this package's code.

    Not where a with statement stands: its line is met again on leaving, before the lock is given back, and
    Python looks for no interrupt there; nor at a bare try, which no with around it covers, and the same holds.
    """
    files = {module.__file__ for module in WRITING}
    writer = any_journal.open_stream(opened())
    appended = 1
    for stop in range(10_000):
        for _ in range(3):
            writer.pending.append(branch_row(appended))
            appended += 1
        kept = writer.keep(payload_bytes(stop))
        was_cut = is_interrupted(writer.commit, stop, files)
        assert writer.next_at() == appended or was_cut
        if not was_cut:
            break
    else:
        pytest.fail("a flush of 10,000 lines")
    writer.commit()
    assert writer.next_at() == any_journal.head(writer.stream) == appended
    stamped = list(any_journal.events(writer.stream))
    assert [one.event for one in stamped[1:]] == [branch(number) for number in range(1, appended)]
    assert [one.seq for one in stamped] == list(range(appended))
    for number in range(kept + 1):
        assert bytes(any_journal.payload(writer.stream, number)) == payload_bytes(number)


KEEPING = (journal.payloads, journal.shelf, journal.stream_writer)
"""What a payload passes through."""


@pytest.mark.parametrize("size", [50, 100_000])
def test_an_interrupt_anywhere_in_keeping_a_payload_damages_no_other(
    any_journal: Journal, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above; what is kept is small or long, meets what has gathered or nothing, and begins a segment or not."""
    monkeypatch.setattr(journal.payloads, "SEGMENT_BYTES", 150_000)
    monkeypatch.setattr(journal.payloads, "GATHERED_BYTES", 200)
    files = {module.__file__ for module in KEEPING}
    writer = any_journal.open_stream(opened())
    kept: dict[int, bytes] = {}
    for gathered, room, flush in ((0, 0, True), (1, 0, False), (4, 0, False), (0, 1, True), (1, 1, False)):
        for stop in range(1000):
            for number in range(2 * room):
                data = bytes([number]) * 80_000
                kept[writer.keep(data)] = data
            for number in range(gathered):
                data = bytes([number, stop % 256]) * 25
                kept[writer.keep(data)] = data
            writer.append(branch(stop))
            was_cut = is_interrupted(lambda: writer.keep(bytes(size)), stop, files)
            if flush:
                writer.flush()
            for number in (3, 4):
                data = bytes([number, stop % 256]) * 25
                kept[writer.keep(data)] = data
            if not was_cut:
                break
        else:
            pytest.fail("a payload of 1,000 lines")
    writer.commit()
    for number, data in kept.items():
        assert bytes(any_journal.payload(writer.stream, number)) == data
    assert len(list(any_journal.events(writer.stream))) == writer.next_at()


# The capture's machine ------------------------------------------------------------------------------


def test_an_illegal_event_is_refused_and_not_appended(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    assert writer.state is CaptureState.IDLE
    with pytest.raises(IllegalTransition) as refused:
        writer.append(CaptureSettled(torch_restored=True))
    assert refused.value.fields["state"] == "idle"
    assert refused.value.fields["event"] == "CaptureSettled"
    assert writer.state is CaptureState.IDLE
    assert any_journal.head(writer.stream) == 1


def test_a_legal_event_moves_the_capture(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    writer.append(
        CaptureRequested(
            backend="torch", model_class="M", model_qualname="m.M", options=(), save="all", stop_after=None
        )
    )
    assert writer.state is CaptureState.PREPARING
    writer.append(ForwardRaised(exception="builtins.ValueError", message="no"))
    writer.append(CaptureSettled(torch_restored=True))
    assert writer.state is CaptureState.SETTLED


# Streams, payloads and refusals ---------------------------------------------------------------------


def test_streams_are_listed_with_their_headers_and_heads(any_journal: Journal) -> None:
    assert any_journal.streams() == []
    writers = [any_journal.open_stream(opened(label)) for label in ("one", "two")]
    writers[1].append(branch(1))
    assert [(info.stream, info.opened.label, info.head) for info in any_journal.streams()] == [
        (0, "one", 1),
        (1, "two", 2),
    ]


def test_a_payload_is_a_copy_of_any_contiguous_buffer(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    array = (ctypes.c_float * 3)(1.0, 2.0, 3.0)
    buffers = [bytearray(b"abc"), memoryview(b"abcdef")[2:4], array, b""]
    before = [memoryview(buffer).tobytes() for buffer in buffers]
    numbers = [writer.keep(buffer) for buffer in buffers]
    buffers[0][0] = 0
    array[1] = 9.0
    writer.append(branch(1))
    assert [bytes(any_journal.payload(writer.stream, number)) for number in numbers] == before


@pytest.mark.parametrize("flush", [False, True])
def test_a_payload_that_is_not_there_is_refused_by_its_cause(any_journal: Journal, flush: bool) -> None:
    writer = any_journal.open_stream(opened())
    number = writer.reserve()
    if flush:
        writer.append(branch(1))
        writer.flush()
    with pytest.raises(JournalError) as refused:
        any_journal.payload(writer.stream, number)
    assert refused.value.code == "payload_not_stored"
    for unknown in (number + 1, -1):
        with pytest.raises(JournalError) as refused:
            any_journal.payload(writer.stream, unknown)
        assert refused.value.code == "payload_unknown"


@pytest.mark.parametrize("stream", [0, 7, -1])
def test_an_unknown_stream_is_refused(any_journal: Journal, stream: int) -> None:
    for ask in (
        any_journal.head,
        lambda which: list(any_journal.rows(which)),
        lambda which: any_journal.payload(which, 0),
    ):
        with pytest.raises(JournalError) as refused:
            ask(StreamId(stream))
        assert refused.value.code == "stream_unknown"


def test_a_closed_writer_appends_no_more_and_closing_twice_is_nothing(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    writer.append(branch(1))
    writer.close()
    writer.close()
    for refuse in (lambda: writer.append(branch(2)), lambda: writer.keep(b"x")):
        with pytest.raises(JournalError) as refused:
            refuse()
        assert refused.value.code == "stream_closed"
    writer.pending.append(branch_row(3))
    with pytest.raises(JournalError) as refused:
        writer.flush()
    assert refused.value.code == "stream_closed"
    assert any_journal.head(writer.stream) == 2


def test_an_event_that_has_a_number_is_stored_though_another_thread_closes(
    any_journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = any_journal.open_stream(opened())
    row = BranchTaken.row
    met, closed = threading.Event(), threading.Event()

    def late(event: BranchTaken, time_ns: int) -> Any:
        met.set()
        assert closed.wait(PATIENCE)
        return row(event, time_ns)

    said: list[object] = []

    def append() -> None:
        try:
            said.append(writer.append(branch(7)))
        except JournalError as exc:
            said.append(exc.code)

    monkeypatch.setattr(BranchTaken, "row", late)
    thread = threading.Thread(target=append)
    thread.start()
    assert met.wait(PATIENCE)
    writer.close()
    closed.set()
    thread.join()
    assert said == ["stream_closed"]
    assert any_journal.head(writer.stream) == 1


def test_events_of_threads_that_append_until_the_writer_closes_are_those_that_have_a_number(
    any_journal: Journal,
) -> None:
    for _ in range(10):
        writer = any_journal.open_stream(opened())
        told: list[int] = []

        def append(writer: Any = writer, told: list[int] = told) -> None:
            with suppress(JournalError):
                while True:
                    writer.append(branch(1))
                    told.append(1)

        threads = [threading.Thread(target=append) for _ in range(2)]
        for thread in threads:
            thread.start()
        writer.close()
        for thread in threads:
            thread.join()
        assert any_journal.head(writer.stream) == 1 + len(told)
        assert not writer.pending


@pytest.mark.parametrize(
    ("change", "time_ns"),
    [
        ({}, 1 << 64),
        ({}, 1 << 63),
        ({}, -(1 << 63) - 1),
        ({}, 1.5),
        ({}, "x"),
        ({"site": "abc"}, 1),
        ({"call": None}, 1),
    ],
)
def test_an_event_that_would_not_read_back_is_refused_when_it_is_appended(
    any_journal: Journal, change: Any, time_ns: Any
) -> None:
    writer = any_journal.open_stream(opened())
    with pytest.raises(JournalError) as refused:
        writer.append(attrs.evolve(branch(1), **change), time_ns)
    assert refused.value.code == "row_malformed"
    assert not writer.pending
    writer.append(branch(2), (1 << 63) - 1)
    writer.append(branch(3), -(1 << 63))
    assert read(any_journal, writer.stream, 1) == [branch(2), branch(3)]


def test_a_row_whose_time_has_no_stored_form_is_refused_by_code(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    writer.pending.append(branch(1).row(1 << 64))
    with pytest.raises(JournalError) as refused:
        writer.flush()
    assert refused.value.code == "row_malformed"
    writer.pending.clear()


def test_a_row_that_is_not_of_its_class_is_refused_before_it_is_stored(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    writer.pending.append((BranchTaken.type_id, 0, 1))
    with pytest.raises(JournalError) as refused:
        writer.flush()
    assert refused.value.code == "row_malformed"
    writer.pending.clear()


# Both, side by side ---------------------------------------------------------------------------------


Payloads = dict[int, bytes | None]
"""What the payloads of a stream should be, by number."""


class SideBySide(RuleBasedStateMachine):
    """Two journals and lists of what they should hold."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryJournal()
        self.lmdb = LmdbJournal(self.folder / "j", sync="none")
        self.writers: dict[StreamId, tuple[Writer, Writer]] = {}
        self.held: dict[StreamId, list[Event]] = {}
        self.payloads: dict[StreamId, tuple[Payloads, Payloads]] = {}

    @rule(target=streams)
    def open_stream(self) -> StreamId:
        header = opened(str(len(self.held)))
        pair = (self.memory.open_stream(header), self.lmdb.open_stream(header))
        return self.began(pair, [header], ({}, {}))

    @rule(target=streams, parent=streams, data=st.data())
    def open_branch(self, parent: StreamId, data: st.DataObject) -> StreamId:
        cut = data.draw(st.integers(1, len(self.held[parent])))
        header = branched(parent, cut)
        pair = (self.memory.open_stream(header), self.lmdb.open_stream(header))
        # Where its payloads begin is told by the chunk of the branch point, and the two may have cut chunks otherwise.
        known, other = (
            {number: data for number, data in payloads.items() if number < writer.payload_end}
            for payloads, writer in zip(self.payloads[parent], pair, strict=True)
        )
        return self.began(pair, [*self.held[parent][:cut], header], (known, other))

    def began(self, pair: tuple[Writer, Writer], held: list[Event], payloads: tuple[Payloads, Payloads]) -> StreamId:
        assert pair[0].stream == pair[1].stream == len(self.held)
        stream = pair[0].stream
        self.writers[stream], self.held[stream], self.payloads[stream] = pair, held, payloads
        return stream

    @rule(stream=streams, event=any_event())
    def append(self, stream: StreamId, event: Event) -> None:
        outcomes: list[object] = []
        for writer in self.writers.get(stream, ()):
            try:
                outcomes.append(writer.append(event, 5))
            except IllegalTransition as refused:  # noqa: PERF203 - what each of the two says is compared
                outcomes.append(refused.fields)
        if outcomes:
            assert outcomes[0] == outcomes[1]
            if outcomes[0] == len(self.held[stream]):
                self.held[stream].append(event)

    @rule(stream=streams, count=st.integers(1, 300))
    def append_rows(self, stream: StreamId, count: int) -> None:
        for writer in self.writers.get(stream, ()):
            writer.pending.extend(branch_row(number) for number in range(count))
        if stream in self.writers:
            self.held[stream].extend(branch(number) for number in range(count))

    @rule(stream=streams, data=st.binary(max_size=20) | st.none())
    def keep(self, stream: StreamId, data: bytes | None) -> None:
        for writer, payloads in zip(self.writers.get(stream, ()), self.payloads[stream], strict=False):
            due = writer.payload_end
            number = writer.reserve() if data is None else writer.keep(data)
            assert number == due == len(payloads)
            payloads[number] = data

    @rule(stream=streams)
    def flush(self, stream: StreamId) -> None:
        for writer in self.writers.get(stream, ()):
            writer.flush()

    @rule(stream=streams)
    def commit(self, stream: StreamId) -> None:
        for writer in self.writers.get(stream, ()):
            writer.commit()

    @rule(stream=streams)
    def close(self, stream: StreamId) -> None:
        self.append_rows(stream, 1)  # what no event names after is not kept
        for writer in self.writers.pop(stream, ()):
            writer.close()

    @rule(stream=streams)
    def go_on(self, stream: StreamId) -> None:
        if stream not in self.writers:
            pair = (self.memory.continue_stream(stream), self.lmdb.continue_stream(stream))
            assert [writer.next_at() for writer in pair] == [len(self.held[stream])] * 2
            assert pair[0].state is pair[1].state
            self.writers[stream] = pair

    @precondition(lambda self: not self.writers)
    @rule(readonly=st.booleans())
    def open_again(self, readonly: bool) -> None:
        self.lmdb.close()
        if readonly:
            with_reader = LmdbJournal(self.folder / "j", readonly=True)
            assert len(with_reader.streams()) == len(self.held)
            with_reader.close()
        self.lmdb = LmdbJournal(self.folder / "j", sync="none")

    @rule(stream=streams, start=st.integers(0, 400), length=st.integers(0, 400))
    def read_part(self, stream: StreamId, start: int, length: int) -> None:
        for one in (self.memory, self.lmdb):
            assert read(one, stream, start, start + length) == self.held[stream][start : start + length]

    @rule(stream=streams, number=st.integers(0, 5))
    def read_payload(self, stream: StreamId, number: int) -> None:
        for one, known in zip((self.memory, self.lmdb), self.payloads[stream], strict=True):
            if known.get(number) is not None:
                assert bytes(one.payload(stream, number)) == known[number]
                continue
            with pytest.raises(JournalError) as refused:
                one.payload(stream, number)
            assert refused.value.code == ("payload_not_stored" if number in known else "payload_unknown")

    @invariant()
    def heads_agree(self) -> None:
        for one in (self.memory, self.lmdb):
            assert [info.head for info in one.streams()] == [len(events) for events in self.held.values()]

    def teardown(self) -> None:
        for one in (self.memory, self.lmdb):
            stamped = [each for stream in self.held for each in one.events(stream) if each.stream == stream]
            assert sorted(each.seq for each in stamped) == list(range(len(stamped)))
            assert sorted(stamped, key=lambda each: each.seq) == list(one.since(0))
            one.close()
        shutil.rmtree(self.folder)


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
