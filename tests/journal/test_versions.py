"""Versions of events: what an old one wrote is read for good, and what a newer one wrote is refused by name.

No event has a second version yet; the test-only one of ``tests/journal/evolving.py`` stands for those to come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from journal import At, Event, Journal, JournalError, LmdbJournal, Seq, StreamId, open_for_reading
from journal.events import EVENTS_BY_NAME, BranchTaken
from journal.upcasting import UPCASTERS, upcaster
from journal.wire import FORMAT, Chunk
from projections.folds.fold import Fold, Folding
from projections.folds.split import appended
from tests.golden import GOLDENS, manifest
from tests.hostile import chunk, edited, sealed
from tests.journal import evolving
from tests.programs import run
from tests.strategies import opened
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource

BRANCH = BranchTaken(value=1, result=True, site=2, call=3)

LATEST = 3


@pytest.fixture
def tested() -> Iterator[type[Event]]:
    """The event at its latest version, for one test."""
    yield evolving.register(LATEST)
    evolving.forget()


def test_two_classes_of_events_have_no_one_name(tested: type[Event]) -> None:
    before = list(EVENTS_BY_NAME)
    with pytest.raises(JournalError) as refused:
        evolving.register(LATEST)
    assert (refused.value.code, refused.value.fields["name"]) == ("event_name_taken", evolving.NAME)
    assert list(EVENTS_BY_NAME) == before


def append_as(version: int, path: Path) -> None:
    """Let another process, which knows the event at this version, append a stream."""
    run("import sys; from tests.journal.evolving import append; append(sys.argv[1], int(sys.argv[2]))", path, version)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal to which each version of the package has appended a stream: 0.1, 0.2 and 0.3."""
    path = tmp_path_factory.mktemp("grown") / "run.journal"
    for version in range(1, LATEST + 1):
        append_as(version, path)
    return path


def digests(path: Path) -> dict[str, str]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "lock.mdb")
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# -- every version ever shipped ------------------------------------------------------------------------


def shipped() -> dict[str, type[Event]]:
    return {name: cls for name, cls in EVENTS_BY_NAME.items() if cls.__module__.startswith("journal.")}


@pytest.mark.parametrize("name", shipped())
def test_an_upcaster_leads_from_each_version_of_an_event_to_the_next(name: str) -> None:
    present = EVENTS_BY_NAME[name].event_version
    assert [step for of, step in sorted(UPCASTERS) if of == name] == list(range(1, present))


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden.name for golden in GOLDENS])
def test_what_was_shipped_is_still_known(golden: Path) -> None:
    stored = manifest(golden)["events"]
    present = {name: cls.event_version for name, cls in shipped().items()}
    assert set(stored) <= set(present), "an event that was released is never removed"
    assert [name for name, version in stored.items() if version > present[name]] == []


def test_every_version_before_the_present_one_has_its_golden_journal() -> None:
    kept = {(name, version) for golden in GOLDENS for name, version in manifest(golden)["events"].items()}
    due = {(name, version) for name, cls in shipped().items() for version in range(1, cls.event_version + 1)}
    assert due - kept == set()


# -- the whole path of an old version --------------------------------------------------------------------


@attrs.define
class Seen:
    """What a fold over the tested events gathers."""

    found: list[tuple[int, ...]] = appended()


def read_as_latest(journal: Journal, stream: StreamId, tested: Any) -> None:
    """The stream through every door."""
    due = tested(**evolving.STORED[LATEST])
    rows = [row for run in journal.rows(stream) for row in run]
    assert rows[1:] == [due.row(time_ns) for time_ns in (10, 20, 30)]
    assert [row for run in journal.rows(stream, 2, 3) for row in run] == [due.row(20)]
    assert [item.event for item in journal.events(stream)][1:] == [due] * 3

    def handler(state: Seen, at: int, type_id: int, time_ns: int, low: int, high: int, length: int) -> None:
        state.found.append((at, low, high, length))

    folding = Folding([Fold("tested", version=1, initial=Seen, handlers={tested: handler})])
    folding.advance(StreamSource(journal, stream), journal.head(stream))
    assert folding.states[0].found == [(at, 7, 4, 5) for at in (1, 2, 3)]

    trace = Trace(journal, stream)
    assert trace.status == "unfinished"
    assert trace.tables.head == 4
    assert [item.event for item in trace.events()][1:] == [due] * 3


@pytest.mark.parametrize("version", range(1, LATEST + 1))
def test_what_another_process_wrote_at_any_version_reads_as_the_latest(
    grown: Path, tested: type[Event], version: int
) -> None:
    before = digests(grown)
    journal = open_for_reading(grown)
    stream = StreamId(version - 1)
    assert journal.streams()[stream].opened.written_by == f"0.{version}"
    read_as_latest(journal, stream, tested)
    journal.close()
    assert digests(grown) == before


def test_appending_at_the_latest_version_leaves_the_old_streams_as_they_were(tmp_path: Path, tested: Any) -> None:
    path = tmp_path / "run.journal"
    append_as(1, path)
    stored = chunks(path)
    journal = LmdbJournal(path)
    writer = journal.open_stream(opened(written_by="0.3"))
    writer.append(tested(**evolving.STORED[LATEST]), 10)
    writer.close()
    journal.close()
    assert chunks(path)[: len(stored)] == stored
    journal = open_for_reading(path)
    read_as_latest(journal, StreamId(0), tested)
    journal.close()


def chunks(path: Path) -> list[bytes]:
    with edited(path) as (txn, databases):
        return [bytes(value) for _, value in txn.cursor(db=databases["events"])]


# -- what is newer ---------------------------------------------------------------------------------------


def refusal(journal: Journal, stream: int) -> JournalError:
    """The error of a stream's events, the same through every door."""
    doors = (
        lambda: list(journal.rows(StreamId(stream))),
        lambda: list(journal.events(StreamId(stream))),
        lambda: Trace(journal, StreamId(stream)).tables,
    )
    errors: list[JournalError] = []
    for door in doors:
        with pytest.raises(JournalError) as refused:
            door()
        errors.append(refused.value)
    assert len({str(error) for error in errors}) == 1
    return errors[0]


def test_a_version_that_is_not_known_is_refused_and_the_other_streams_are_read(grown: Path) -> None:
    cls: Any = evolving.register(1)
    try:
        journal = open_for_reading(grown)
        assert [item.event for item in journal.events(StreamId(0))][1:] == [cls(**evolving.STORED[1])] * 3
        for stream, version in ((1, "0.2"), (2, "0.3")):
            error = refusal(journal, stream)
            assert (error.code, error.fields["written_by"]) == ("event_version_newer", version)
            assert f"({version})" in error.remedy
        journal.close()
    finally:
        evolving.forget()


def test_an_event_that_is_not_known_is_refused_and_names_the_version_of_its_stream(grown: Path) -> None:
    journal = open_for_reading(grown)
    for stream, version in enumerate(("0.1", "0.2", "0.3")):
        error = refusal(journal, stream)
        assert (error.code, error.fields["written_by"], error.fields["name"]) == ("event_unknown", version, "tested")
        assert [item.event.event_name for item in journal.events(StreamId(stream), 0, 1)] == ["stream_opened"]
    assert [info.opened.written_by for info in journal.streams()] == ["0.1", "0.2", "0.3"]
    journal.close()


def put(journal: Any, stream: int, written_by: str, types: Any) -> None:
    """A stream of a header and one event, which the types say is of another kind than it is here."""
    shelf = journal.shelf
    for at, row in enumerate((opened(written_by=written_by).row(0), BRANCH.row(1))):
        named = types if at else None
        data = chunk([row], seq=shelf.next_seq, stream=stream, at=at, types=named)
        shelf.add(Chunk(Seq(shelf.next_seq), StreamId(stream), At(at), 1, (), data))


NEWER = {
    "event_unknown": ((BranchTaken.type_id, "time_travelled", 1),),
    "event_version_newer": ((BranchTaken.type_id, "branch_taken", 2),),
    "event_upcaster_missing": ((BranchTaken.type_id, "branch_taken", 0),),
}


@pytest.mark.parametrize("code", NEWER)
def test_in_any_journal_the_version_of_the_very_stream_is_named(any_journal: Any, code: str) -> None:
    put(any_journal, 0, "9.1", NEWER[code])
    put(any_journal, 1, "9.2", ((BranchTaken.type_id, "branch_taken", 1),))
    any_journal.shelf.written_by = "9.2"
    error = refusal(any_journal, 0)
    assert (error.code, error.fields["written_by"]) == (code, "9.1")
    assert [item.event for item in any_journal.events(StreamId(1), 1)] == [BRANCH]
    assert [info.head for info in any_journal.streams()] == [2, 2]


def test_where_the_header_itself_is_newer_the_journal_says_who_wrote_it(any_journal: Any) -> None:
    shelf = any_journal.shelf
    header = opened(written_by="9.1").row(0)
    data = chunk([header], seq=shelf.next_seq, types=((header[0], "stream_opened", 7),))
    shelf.add(Chunk(Seq(shelf.next_seq), StreamId(0), At(0), 1, (), data))
    shelf.written_by = "9.2"
    error = refusal(any_journal, 0)
    assert (error.code, error.fields["written_by"]) == ("event_version_newer", "9.2")
    with pytest.raises(JournalError) as refused:
        any_journal.streams()
    assert refused.value.code == "event_version_newer"


def test_a_chunk_of_a_later_format_names_the_version_too(any_journal: Any) -> None:
    shelf = any_journal.shelf
    shelf.add(Chunk(Seq(shelf.next_seq), StreamId(0), At(0), 1, (), sealed((FORMAT + 1, "anything"))))
    shelf.written_by = "9.2"
    error = refusal(any_journal, 0)
    assert (error.code, error.fields["written_by"]) == ("journal_newer", "9.2")
    assert "(9.2)" in error.remedy


def test_a_journal_of_a_later_format_is_refused_as_a_whole_and_names_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    append_as(1, path)
    with edited(path) as (txn, databases):
        txn.put(b"format", (FORMAT + 1).to_bytes(8, "big"), db=databases["meta"])
    before = digests(path)
    for door in (open_for_reading, LmdbJournal):
        with pytest.raises(JournalError) as refused:
            door(path)
        assert (refused.value.code, refused.value.fields["written_by"]) == ("journal_newer", "0.1")
    assert {name: digest for name, digest in digests(path).items() if name != "writer.lease"} == {
        name: digest for name, digest in before.items() if name != "writer.lease"
    }


# -- mistakes of whoever changes an event ----------------------------------------------------------------


def test_two_upcasters_for_one_step_are_refused(tested: type[Event]) -> None:
    with pytest.raises(JournalError) as refused:
        upcaster("tested", from_version=1)(lambda fields: fields)
    assert refused.value.code == "upcaster_taken"


@pytest.mark.parametrize(("name", "version"), [("tested", 0), ("tested", 3), ("tested", 4), ("no_such_event", 1)])
def test_an_upcaster_from_a_version_that_leads_nowhere_is_refused(tested: type[Event], name: str, version: int) -> None:
    with pytest.raises(JournalError) as refused:
        upcaster(name, from_version=version)(lambda fields: fields)
    assert refused.value.code == "upcaster_misplaced"
    assert (name, version) not in UPCASTERS
