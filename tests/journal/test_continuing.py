"""Going on with a stream whose writer was closed: as if it had never been, in both journals."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import (
    CaptureState,
    Event,
    IllegalTransition,
    Journal,
    JournalError,
    StreamId,
    follow,
    open_for_reading,
    open_for_writing,
    recover,
    verify,
)
from journal.events import CaptureRequested, CaptureSettled, ForwardRaised, PassFinalized, StreamOpened
from journal.lifecycle import state_after
from tests.disk import no_file_longer_than
from tests.journal.small import branch, code_of
from tests.programs import PATIENCE
from tests.strategies import branched, capture_streams, opened, payload_bytes, payloads_named


def read(journal: Journal, stream: StreamId) -> list[Event]:
    return [stamped.event for stamped in journal.events(stream)]


def write_in_parts(journal: Journal, events: list[Event], cuts: set[int]) -> StreamId:
    """Append a capture with its payloads; before each event of ``cuts`` its writer is closed, and another goes on."""
    header = events[0]
    assert isinstance(header, StreamOpened)
    writer = journal.open_stream(header)
    for at, event in enumerate(events[1:], start=1):
        if at in cuts:
            state = writer.state
            writer.close()
            writer = journal.continue_stream(writer.stream)
            assert (writer.next_at(), writer.state) == (at, state)
        for number in payloads_named(event):
            assert writer.keep(payload_bytes(number)) == number
        assert writer.append(event, 1000 * at) == at
    writer.close()
    return writer.stream


# Laws -----------------------------------------------------------------------------------------------


@given(events=capture_streams(), cuts=st.sets(st.integers(1, 60)))
def test_a_stream_that_was_continued_reads_as_one_that_was_not(
    any_journal: Journal, events: list[Event], cuts: set[int]
) -> None:
    stream = write_in_parts(any_journal, events, cuts)
    stamped = list(any_journal.events(stream))
    assert [one.event for one in stamped] == events
    assert [one.at for one in stamped] == list(range(len(events)))
    for event in events:
        for number in payloads_named(event):
            assert bytes(any_journal.payload(stream, number)) == payload_bytes(number)


@settings(max_examples=40)
@given(events=capture_streams(), cut=st.integers(1, 60))
def test_another_process_goes_on_where_the_last_one_ended(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], cut: int
) -> None:
    """Nothing is known there but what the journal holds."""
    path = tmp_path_factory.mktemp("journals") / "j"
    cut = min(cut, len(events) - 1)
    one = open_for_writing(path, sync="none")
    stream = write_in_parts(one, events[:cut], set())
    one.close()
    one = open_for_writing(path, sync="none")
    writer = one.continue_stream(stream)
    assert writer.next_at() == cut
    assert writer.state is state_after(CaptureState.IDLE, map(type, events[:cut]))
    assert writer.opened == events[0]
    for event in events[cut:]:
        for number in payloads_named(event):
            assert writer.keep(payload_bytes(number)) == number
        writer.append(event)
    one.close()
    reading = open_for_reading(path)
    assert read(reading, stream) == events
    reading.close()


@given(
    events=capture_streams(min_steps=3),
    cuts=st.sets(st.integers(1, 40), min_size=1, max_size=4),
    data=st.data(),
)
def test_branches_of_a_stream_that_goes_on_keep_what_they_had(
    any_journal: Journal, events: list[Event], cuts: set[int], data: st.DataObject
) -> None:
    """A branch begins in each part, and goes on by itself while its parent does."""
    stops = [*sorted(cut for cut in cuts if cut < len(events)), len(events)]
    stream = write_in_parts(any_journal, events[: stops[0]], set())
    branches: list[tuple[StreamId, list[Event]]] = []
    for start, stop in zip(stops, stops[1:] or [stops[0]], strict=False):
        at = data.draw(st.integers(1, start))
        header = branched(stream, at)
        writer = any_journal.open_stream(header)
        assert writer.state is state_after(CaptureState.IDLE, map(type, events[:at]))
        writer.append(branch(start))
        writer.close()
        branches.append((writer.stream, [*events[:at], header, branch(start)]))
        parent = any_journal.continue_stream(stream)
        for event in events[start:stop]:
            for number in payloads_named(event):
                assert parent.keep(payload_bytes(number)) == number
            parent.append(event)
        parent.close()
    for number, (of, expected) in enumerate(branches):
        writer = any_journal.continue_stream(of)
        assert writer.state is state_after(CaptureState.IDLE, map(type, expected))
        writer.append(branch(-number))
        writer.close()
        assert read(any_journal, of) == [*expected, branch(-number)]
    assert read(any_journal, stream) == events[: stops[-1]]


@settings(max_examples=10)
@given(events=capture_streams(), cuts=st.sets(st.integers(1, 60)), more=st.integers())
def test_a_copy_of_a_continued_stream_is_whole_and_may_be_continued(
    tmp_path_factory: pytest.TempPathFactory, any_journal: Journal, events: list[Event], cuts: set[int], more: int
) -> None:
    folder = tmp_path_factory.mktemp("journals")
    stream = write_in_parts(any_journal, events, cuts)
    there = any_journal.copy_to(folder / "copy").numbers[stream]
    target = open_for_writing(folder / "copy", sync="none")
    writer = target.continue_stream(there)
    assert writer.state is state_after(CaptureState.IDLE, map(type, events))
    writer.append(branch(more % 7))
    target.close()
    assert verify(folder / "copy").ok
    recovered = recover(folder / "copy", folder / "recovered")
    assert (recovered.events_lost, recovered.unchained) == (0, 0)
    for path in (folder / "copy", folder / "recovered"):
        reading = open_for_reading(path)
        assert read(reading, there) == [*events, branch(more % 7)]
        for event in events:
            for number in payloads_named(event):
                assert bytes(reading.payload(there, number)) == payload_bytes(number)
        reading.close()


# Payloads -------------------------------------------------------------------------------------------


def test_a_payload_number_is_not_given_twice_though_no_event_tells_of_it(any_journal: Journal) -> None:
    """As of a tensor that is held live: what holds it goes by the number."""
    writer = any_journal.open_stream(opened())
    writer.append(branch(1))
    given = [writer.keep(b"first"), writer.reserve(), writer.reserve()]
    writer.close()
    for _ in range(3):
        writer = any_journal.continue_stream(writer.stream)
        given.append(writer.reserve())
        writer.close()
    assert given == list(range(6))


class Held:
    """Tensors that the capturing process holds, by payload number."""

    def __init__(self, tensors: dict[int, bytes]) -> None:
        self.tensors = tensors

    def lend(self, number: int) -> bytes | None:
        return self.tensors.get(number)


def test_a_copy_borrows_what_was_reserved_before_and_after_it_was_continued(
    any_journal: Journal, tmp_path: Path
) -> None:
    writer = any_journal.open_stream(opened())
    stream = writer.stream
    held = Held({writer.reserve(): b"an activation"})
    any_journal.lend(stream, held)
    writer.append(branch(1))
    writer.close()
    for name in (b"a gradient", b"another one"):
        writer = any_journal.continue_stream(stream)
        held.tensors[writer.reserve()] = name
        writer.append(branch(2))
        writer.close()
    copied = any_journal.copy_to(tmp_path / "copy")
    assert (copied.payloads, copied.payloads_missing) == (3, 0)
    reading = open_for_reading(tmp_path / "copy")
    lent = [bytes(reading.payload(copied.numbers[stream], number)) for number in range(3)]
    assert lent == [b"an activation", b"a gradient", b"another one"]
    reading.close()


# One writer -----------------------------------------------------------------------------------------


def test_a_stream_has_one_writer(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    assert code_of(lambda: any_journal.continue_stream(writer.stream)) == "stream_open"
    writer.close()
    second = any_journal.continue_stream(writer.stream)
    assert code_of(lambda: any_journal.continue_stream(writer.stream)) == "stream_open"
    assert code_of(lambda: writer.append(branch(1))) == "stream_closed"
    writer.close()  # is nothing, also to who goes on
    assert second.append(branch(2)) == 1
    second.close()
    assert any_journal.head(writer.stream) == 2


@pytest.mark.parametrize("stream", [0, 7, -1])
def test_a_stream_that_is_not_there_is_not_continued(any_journal: Journal, stream: int) -> None:
    assert code_of(lambda: any_journal.continue_stream(StreamId(stream))) == "stream_unknown"


def test_a_continued_capture_takes_what_may_follow_and_nothing_else(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    writer.close()
    writer = any_journal.continue_stream(writer.stream)
    with pytest.raises(IllegalTransition) as refused:
        writer.append(CaptureSettled(torch_restored=True))
    assert refused.value.fields["state"] == "idle"
    assert any_journal.head(writer.stream) == 1


def test_threads_that_continue_one_stream_are_let_in_one_after_the_other(any_journal: Journal) -> None:
    writer = any_journal.open_stream(opened())
    stream = writer.stream
    writer.close()
    appended, codes = [0, 0, 0, 0], set[str]()

    def go_on(number: int) -> None:
        for _ in range(30):
            try:
                writer = any_journal.continue_stream(stream)
            except JournalError as refused:
                codes.add(refused.code)
                continue
            writer.append(branch(number))
            writer.close()
            appended[number] += 1

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(appended) > 0
    assert codes <= {"stream_open"}
    assert sorted(event.value for event in read(any_journal, stream)[1:]) == [  # type: ignore[attr-defined]
        number for number, count in enumerate(appended) for _ in range(count)
    ]


# On disk --------------------------------------------------------------------------------------------


def test_who_may_not_write_may_not_continue(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "j", sync="none")
    stream = one.open_stream(opened()).stream
    reading = open_for_reading(tmp_path / "j")
    assert code_of(lambda: reading.continue_stream(stream)) == "journal_read_only"
    asking = f"from journal import open_for_writing; open_for_writing({str(tmp_path / 'j')!r})"
    refused = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=False)
    assert "journal_locked" in refused.stderr
    one.close()
    assert code_of(lambda: one.continue_stream(stream)) == "journal_closed"
    assert code_of(lambda: reading.continue_stream(stream)) == "journal_read_only"
    reading.close()


def test_users_of_one_journal_hand_a_stream_on(tmp_path: Path) -> None:
    """The next capture of a loop appends while the live trace of the last one adds a backward pass."""
    first, second = (open_for_writing(tmp_path / "j", sync="none") for _ in range(2))
    writer = first.open_stream(opened("first"))
    writer.close()
    other = second.open_stream(opened("second"))
    assert code_of(lambda: first.continue_stream(other.stream)) == "stream_open"
    going_on = second.continue_stream(writer.stream)
    first.close()  # whose writer was another one
    going_on.append(branch(1))
    other.append(branch(2))
    second.close()
    assert code_of(lambda: going_on.append(branch(3))) == "journal_closed"
    reading = open_for_reading(tmp_path / "j")
    assert [info.head for info in reading.streams()] == [2, 2]
    assert not reading.is_written()
    reading.close()


def test_a_sealed_journal_is_written_and_sealed_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    one = open_for_writing(path, sync="none")
    stream = one.open_stream(opened()).stream
    one.close()
    for number in range(3):
        assert verify(path).is_sealed
        one = open_for_writing(path, sync="none")
        writer = one.continue_stream(stream)
        writer.append(branch(number))
        writer.commit()
        report = verify(path)
        assert report.ok
        assert not report.is_sealed
        one.close()
    assert verify(path).events == 4


def test_continuing_without_appending_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "j"
    one = open_for_writing(path, sync="none")
    stream = one.open_stream(opened()).stream
    one.close()
    before = (path / "HEAD").read_bytes(), verify(path).commits
    one = open_for_writing(path, sync="none")
    one.continue_stream(stream).close()
    one.close()
    assert ((path / "HEAD").read_bytes(), verify(path).commits) == before


def test_what_another_process_appended_meanwhile_is_gone_on_from(tmp_path: Path) -> None:
    """A reader holds the journal open here, and with it what was known of the stream."""
    path = tmp_path / "j"
    one = open_for_writing(path, sync="none")
    writer = one.open_stream(opened())
    stream = writer.stream
    held = [writer.reserve() for _ in range(5)]
    writer.close()
    reading = open_for_reading(path)
    one.close()
    script = f"""
from journal import StreamId, open_for_writing
from tests.journal.small import branch
one = open_for_writing({str(path)!r}, sync="none")
writer = one.continue_stream(StreamId(0))
assert writer.keep(b"there") == 0
writer.append(branch(1))
one.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    one = open_for_writing(path, sync="none")
    writer = one.continue_stream(stream)
    assert writer.next_at() == 2
    assert writer.reserve() > max(held)
    writer.append(branch(2))
    one.close()
    assert read(reading, stream) == [opened(), branch(1), branch(2)]
    assert bytes(reading.payload(stream, 0)) == b"there"
    reading.close()


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_writer_that_a_full_disk_kept_from_closing_goes_on(tmp_path: Path, is_patient: bool) -> None:
    one = open_for_writing(tmp_path / "j", sync="none", durability="close")
    writer = one.open_stream(opened())
    writer.is_patient = is_patient
    count = 20_000
    with no_file_longer_than(32 << 10):
        for number in range(count):
            writer.append(branch(number))
        assert code_of(writer.close) == "journal_write_failed"
    again = one.continue_stream(writer.stream)
    assert again is writer
    assert again.append(branch(count)) == count + 1
    again.close()
    assert code_of(lambda: again.append(branch(0))) == "stream_closed"
    one.close()
    assert verify(tmp_path / "j").events == count + 2


# Following ------------------------------------------------------------------------------------------


SETTLED: Final[list[Event]] = [
    opened(),
    CaptureRequested(backend="torch", model_class="M", model_qualname="m.M", options=(), save="all", stop_after=None),
    ForwardRaised(exception="builtins.ValueError", message="no"),
    CaptureSettled(torch_restored=True),
]
"""The shortest capture that settles."""


def test_following_a_capture_goes_on_through_a_backward_pass_and_ends_behind_it(any_journal: Journal) -> None:
    """While the journal is written on: a pass that is open is waited for, one that is finalized is not."""
    stream = write_in_parts(any_journal, SETTLED, set())
    other = any_journal.open_stream(opened())  # somebody writes
    assert len(list(follow(any_journal, stream, timeout=PATIENCE))) == 4
    writer = any_journal.continue_stream(stream)
    writer.append(branch(1))
    followed = follow(any_journal, stream, timeout=PATIENCE)
    got = [next(followed) for _ in range(5)]
    later = threading.Timer(0.3, lambda: writer.append(PassFinalized(pass_number=0)))
    later.start()
    got += list(followed)
    later.join()
    assert [one.at for one in got] == list(range(6))
    assert other.state is CaptureState.IDLE
