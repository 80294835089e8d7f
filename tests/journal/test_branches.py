"""Branches as they are stored: what another process reads, and headers that were made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal import At, LmdbJournal, Seq, StreamId, open_for_reading, open_for_writing
from journal.events import BranchTaken, StreamOpened
from journal.lmdb_layout import ONE, TWO
from journal.wire import ChunkPacker
from tests.journal.small import branch, code_of, put
from tests.strategies import branched, opened
from tests.work import at_most


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


def test_a_branch_is_opened_on_a_stream_of_an_earlier_process_and_read_by_a_later_one(path: Path) -> None:
    with_parent = open_for_writing(path)
    parent = with_parent.open_stream(opened())
    kept = parent.keep(b"of the parent")
    for number in range(1, 700):
        parent.append(branch(number))
    with_parent.close()
    before = sum(file.stat().st_size for file in (path / "segments").iterdir())
    with_branch = open_for_writing(path)
    writer = with_branch.open_stream(branched(parent.stream, 300, "what if"))
    own = writer.keep(b"own")
    writer.append(branch(-1))
    with_branch.close()
    reading = open_for_reading(path)
    values = [one.event.value for one in reading.events(writer.stream) if isinstance(one.event, BranchTaken)]
    assert values == [*range(1, 300), -1]
    assert bytes(reading.payload(writer.stream, kept)) == b"of the parent"
    assert bytes(reading.payload(writer.stream, own)) == b"own"
    assert [(info.opened.label, info.head) for info in reading.streams()] == [(None, 700), ("what if", 302)]
    assert sum(file.stat().st_size for file in (path / "segments").iterdir()) == before + len(b"own")
    reading.close()


def put_headers(path: Path, headers: list[tuple[StreamOpened, int]]) -> None:
    """Streams of a header each, at the number given, behind one stream of three events."""
    one = open_for_writing(path)
    writer = one.open_stream(opened())
    writer.append(branch(1))
    writer.append(branch(2))
    one.close()
    packer = ChunkPacker()
    chunks, places = [], []
    for number, (header, at) in enumerate(headers, start=1):
        chunk = packer.chunk([header.row(0)], Seq(2 + number), StreamId(number), At(at), 0, ())
        chunks.append((ONE.pack(2 + number), chunk.data))
        places.append((TWO.pack(number, at), TWO.pack(2 + number, 1)))
    put(path, b"events", *chunks)
    put(path, b"index", *places)


@pytest.mark.parametrize(
    ("header", "at"),
    [
        (branched(1, 2), 2),  # of itself
        (branched(2, 2), 2),  # of a later stream
        (branched(-1, 2), 2),
        (branched(None, 2), 2),
        (branched(0, 4), 4),  # beyond its parent
        (branched(0, 2), 3),  # elsewhere than it says
        (branched(0, 2), 0),
        (branched(0, None), 2),
        (opened(), 2),  # a capture that begins with its third event
    ],
)
def test_a_branch_of_no_earlier_stream_or_of_no_event_of_it_is_malformed(
    path: Path, header: StreamOpened, at: int
) -> None:
    put_headers(path, [(header, at)])
    reading = open_for_reading(path)
    questions: list[Callable[[LmdbJournal], Any]] = [lambda one: one.streams()]
    if at:
        questions += [lambda one: list(one.rows(StreamId(1))), lambda one: one.payload(StreamId(1), 0)]
    for ask in questions:
        assert code_of(lambda ask=ask: ask(reading)) == "stream_malformed"  # type: ignore[misc]
    assert len(list(reading.events(StreamId(0)))) == 3
    reading.close()


def test_two_branches_of_each_other_are_malformed(path: Path) -> None:
    put_headers(path, [(branched(2, 2), 2), (branched(1, 2), 2)])
    reading = open_for_reading(path)
    for stream in (1, 2):
        found = code_of(lambda stream=stream: list(reading.events(StreamId(stream))))  # type: ignore[misc]
        assert found == "stream_malformed"
    reading.close()


def test_a_made_up_chain_of_any_length_is_read_in_bounded_time(path: Path) -> None:
    """Every branch leaves at event 2, so that the last reads two events through ten thousand parents."""
    put_headers(path, [(branched(number - 1, 2), 2) for number in range(1, 10_001)])
    reading = open_for_reading(path)
    with at_most(20):
        assert [one.at for one in reading.events(StreamId(10_000))] == [0, 1, 2]
        assert len(reading.streams()) == 10_001
    reading.close()


def test_a_branch_of_a_damaged_stream_tells_of_the_damage(path: Path) -> None:
    put_headers(path, [(branched(0, 2), 2)])
    put(path, b"events", (ONE.pack(1), b"damaged"))
    reading = open_for_reading(path)
    assert code_of(lambda: list(reading.events(StreamId(1)))) == "chunk_checksum"
    assert [one.at for one in reading.events(StreamId(1), 2)] == [2]
    reading.close()
