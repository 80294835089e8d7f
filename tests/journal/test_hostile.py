"""Journals that somebody made up: whatever stands in them, reading ends with events or with a coded error.

LMDB finds nothing wrong with them and every checksum is right. What comes of their records is tested in
``tests/torchlens/test_hostile_reading.py``.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal import At, JournalError, LmdbJournal, Seq, StreamId, open_for_reading
from journal.events import BranchTaken, CodeSeen, StreamOpened
from journal.wire import FORMAT, MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, Chunk, Located
from tests.hostile import Outcomes, chunk, edited, let_go, read_journal, sealed, write, writing
from tests.programs import PATIENCE, run
from tests.strategies import opened
from tests.work import at_most

BRANCH = BranchTaken(value=1, result=True, site=2, call=3)
OPENED = opened().row(0)
TABLE = ((BranchTaken.type_id, "branch_taken", 1),)
PLACE = (0, 0, 0, 4, b"d" * 16)

MALFORMED = {"chunk_malformed", "event_malformed"}
NEWER = {"event_unknown", "event_version_newer", "event_upcaster_missing", "journal_newer"}


def holding(path: Path, data: bytes, count: int = 1) -> Path:
    """A journal with a sound first event and then this chunk."""
    with writing(path) as made:
        made.rows([OPENED])
        made.add(data, count)
    return path


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """No made-up journal keeps its reader for long."""
    with at_most(20):
        yield


# -- chunks


def of_envelope(**changed: Any) -> bytes:
    """A chunk of one event with one part of its envelope changed."""
    named: dict[str, Any] = {"seq": 1, "at": 1, **changed}
    return chunk([BRANCH.row(0)], **named)


ENVELOPES: dict[str, bytes] = {
    "another stream": of_envelope(stream=7),
    "another first event": of_envelope(at=0),
    "a first event far on": of_envelope(at=2**62),
    "a negative first event": of_envelope(at=-1),
    "a seq beyond 63 bits": of_envelope(seq=2**63),
    "no events": of_envelope(count=0),
    "more events than there are": of_envelope(count=2),
    "a count beyond all": of_envelope(count=2**40),
    "a type twice": of_envelope(types=TABLE * 2),
    "a type of no version": of_envelope(types=((0, "branch_taken", 0),)),
    "a type of a version beyond 63 bits": of_envelope(types=((0, "branch_taken", 2**63),)),
    "a negative type": of_envelope(types=((-1, "branch_taken", 1),)),
    "an unknown type": of_envelope(types=((0, "nothing_known", 1),)),
    "a later version": of_envelope(types=((BranchTaken.type_id, "branch_taken", 2**40),)),
    "4,096 unknown types": of_envelope(types=tuple((number, f"t{number}", 1) for number in range(4096))),
    "more types than there may be": of_envelope(types=tuple((number, "branch_taken", 1) for number in range(5000))),
    "types that are text": of_envelope(types="types"),
    "a name that is a path": of_envelope(types=((0, "../../x", 1),)),
    "a name that moves the cursor": of_envelope(types=((0, "\x1b[2J", 1),)),
    "a payload beyond the last": of_envelope(payloads=(1, ((1, 0, 0, 4, b""),))),
    "a negative offset": of_envelope(payloads=(1, ((0, 0, -1, 4, b""),))),
    "a size beyond 63 bits": of_envelope(payloads=(1, ((0, 0, 0, 2**63, b""),))),
    "a digest too long": of_envelope(payloads=(1, ((0, 0, 0, 4, b"d" * 17),))),
    "a digest that is text": of_envelope(payloads=(1, ((0, 0, 0, 4, "digest"),))),
    "an envelope of a later format": sealed((FORMAT + 1,)),
    "an envelope of an earlier format": sealed((0, 1, 0, 1, 1, TABLE, (0, ()), b"")),
    "nothing at all": sealed(b""),
    "a map": sealed({"format": 1}),
}


@pytest.mark.parametrize("what", ENVELOPES)
def test_an_envelope_that_says_what_is_not_so_is_refused(tmp_path: Path, what: str) -> None:
    found = read_journal(holding(tmp_path / "j", ENVELOPES[what]))
    assert found["open"] is None
    assert found["events 0"] in MALFORMED | NEWER
    assert found["rows 0"] == found["events 0"]


BODIES: dict[str, bytes] = {
    "an array that claims 2**32 items": b"\xdd\xff\xff\xff\xff",
    "nested arrays that claim as many": b"\xdd\xff\xff\xff\xff" * 1000,
    "a map that claims 2**32 pairs": b"\xdf\xff\xff\xff\xff",
    "text that claims 2**32 bytes": b"\xdb\xff\xff\xff\xff",
    "bytes that claim 2**32 bytes": b"\xc6\xff\xff\xff\xff",
    "an extension": b"\xc7\x05\x01hello",
    "a time of msgpack": b"\xd6\xff\x00\x00\x00\x00",
    "nesting to a million": b"\x91" * 1_000_000 + b"\xc0",
    "a million empty arrays": b"\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000,
    "a million empty maps": b"\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000,
    "a million small arrays": b"\xdd\x00\x0f\x42\x40" + b"\x91\xc0" * 1_000_000,
    "half a surrogate pair": b"\x91\xa3\xed\xa0\x80",
    "bytes behind the end": b"\x90\x90",
    "nothing": b"",
}


@pytest.mark.parametrize("what", BODIES)
def test_a_body_takes_no_more_than_a_small_multiple_of_its_own_size(tmp_path: Path, what: str) -> None:
    body = BODIES[what]
    path = holding(tmp_path / "j", chunk((), seq=1, at=1, count=1, types=TABLE, body=body))
    tracemalloc.start()
    try:
        found = read_journal(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found["rows 0"], found["events 0"]) == ("event_malformed", "event_malformed")
    assert most < 100 * len(body) + 4_000_000


@pytest.mark.parametrize("depth", [1, 100, 200, 500, 1000, 1024, 5000])
def test_nesting_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    row = bytes([0x96, BranchTaken.type_id, 0]) + b"\x91" * depth + b"\xc0\xc3\x02\x03"
    found = read_journal(holding(tmp_path / "j", chunk((), seq=1, at=1, count=1, types=TABLE, body=b"\x91" + row)))
    assert found["rows 0"] in (None, "event_malformed")
    assert found["events 0"] == "event_malformed"


def test_a_chunk_longer_than_any_is_refused_unread(tmp_path: Path) -> None:
    data = sealed(b"\xc6" + struct.pack(">I", MAX_CHUNK_BYTES) + bytes(MAX_CHUNK_BYTES))
    assert read_journal(holding(tmp_path / "j", data))["events 0"] == "chunk_malformed"


def test_as_many_events_as_a_chunk_may_hold_are_read(tmp_path: Path) -> None:
    path = holding(tmp_path / "j", chunk([BRANCH.row(0)] * MAX_CHUNK_ROWS, seq=1, at=1), MAX_CHUNK_ROWS)
    assert read_journal(path)["events 0"] is None


ROWS: dict[str, tuple[Any, ...]] = {
    "a time that is no number": (BranchTaken.type_id, float("nan"), 1, True, 2, 3),
    "no time": (BranchTaken.type_id,),
    "a field too many": (*BRANCH.row(0), 4),
    "a field too few": BRANCH.row(0)[:-1],
    "a truth that is a number": (BranchTaken.type_id, 0, 1, 1, 2, 3),
    "a type that is text": ("branch_taken", 0, 1, True, 2, 3),
    "a type that is an array": ((0,), 0, 1, True, 2, 3),
}


@pytest.mark.parametrize("what", ROWS)
def test_a_row_of_another_shape_is_malformed(tmp_path: Path, what: str) -> None:
    path = holding(tmp_path / "j", chunk([ROWS[what]], seq=1, at=1, types=TABLE))
    assert read_journal(path)["events 0"] == "event_malformed"


@given(number=st.sampled_from((-(2**63), -1, 2**31, 2**53, 2**62, 2**64 - 1)), time_ns=st.integers(-(2**63), 2**64 - 1))
@settings(max_examples=20)
def test_numbers_of_any_size_are_only_numbers(
    tmp_path_factory: pytest.TempPathFactory, number: int, time_ns: int
) -> None:
    event = BranchTaken(value=number, result=True, site=number, call=number)
    path = write(tmp_path_factory.mktemp("numbers") / "j", [OPENED, event.row(time_ns)])
    journal = open_for_reading(path)
    assert [(item.time_ns, item.event) for item in journal.events(StreamId(0), 1)] == [(time_ns, event)]
    journal.close()


# -- streams


HEADERS: dict[str, StreamOpened] = {
    "its own parent": opened(kind="branch", parent=1, branched_at=1),
    "a parent that comes later": opened(kind="branch", parent=2, branched_at=1),
    "a parent that is not there": opened(kind="branch", parent=99, branched_at=1),
    "a negative parent": opened(kind="branch", parent=-1, branched_at=1),
    "a parent without a place": opened(kind="branch", parent=0, branched_at=None),
    "no parent": opened(kind="branch", parent=None, branched_at=1),
    "a place that the parent never had": opened(kind="branch", parent=0, branched_at=2**62),
    "a negative place": opened(kind="branch", parent=0, branched_at=-5),
    "a parent beyond 63 bits": opened(kind="branch", parent=2**64 - 1, branched_at=2**64 - 1),
    "a capture with a parent": opened(kind="capture", parent=1, branched_at=1),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_stream_of_an_impossible_parent_is_read_or_refused(tmp_path: Path, what: str) -> None:
    with writing(tmp_path / "j") as made:
        made.rows([OPENED, BRANCH.row(1)])
        made.rows([HEADERS[what].row(0), BRANCH.row(1)], stream=1)
        made.rows([OPENED, BRANCH.row(1)], stream=2)
    found = read_journal(tmp_path / "j")
    assert found["events 0"] is None
    assert found["events 2"] is None


def test_streams_that_are_each_others_parents_are_read_or_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as made:
        for stream, parent in enumerate((1, 0, 3, 4, 2)):
            made.rows([opened(kind="branch", parent=parent, branched_at=2).row(0), BRANCH.row(1)], stream=stream)
    read_journal(tmp_path / "j")


def test_a_stream_that_begins_with_another_event_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "j", [BRANCH.row(0), OPENED])
    assert read_journal(path)["streams"] == "stream_malformed"


def test_a_stream_number_far_beyond_the_others_is_told_and_takes_no_memory(tmp_path: Path) -> None:
    with writing(tmp_path / "j") as made:
        made.rows([OPENED], stream=2**62)
    assert read_journal(tmp_path / "j")["streams"] == "stream_unknown"


# -- the databases


def two(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}Q", *numbers)


ENTRIES: dict[str, tuple[str, bytes, bytes]] = {
    "an index entry over a gap": ("index", two(0, 2**40), two(1, 1)),
    "an index entry to no chunk": ("index", two(0, 2), two(2**40, 5)),
    "an index entry with as many events as there are numbers": ("index", two(0, 1), two(1, 2**64 - 1)),
    "an index entry to the chunk before": ("index", two(0, 1), two(0, 1)),
    "an index key too short": ("index", b"\xff", two(1, 1)),
    "an index entry too short": ("index", two(0, 1), b""),
    "a chunk of one byte": ("events", two(1), b"\x00"),
    "an empty chunk": ("events", two(1), b""),
    "a key that is no number": ("events", b"../../x", b"x"),
    "a commit too short": ("commits", two(1), b"short"),
    "a commit with numbers beyond all": (
        "commits",
        two(1),
        two(*[2**64 - 1] * 4) + bytes(32),
    ),
    "a format of four bytes": ("meta", b"format", b"\0\0\0\1"),
    "a later format": ("meta", b"format", two(2**64 - 1)),
    "no id": ("meta", b"id", b""),
    "an author that is no text": ("meta", b"written_by", b"\xff\x1b[2J" * 1000),
    "an unknown state": ("meta", b"state", b"nonsense"),
}


@pytest.mark.parametrize("what", ENTRIES)
def test_an_entry_that_is_made_up_is_read_around_or_refused(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "j", [OPENED])
    with writing(path) as made:  # a second chunk, in a second commit
        made.heads[0] = 1
        made.rows([BRANCH.row(1)])
    name, key, value = ENTRIES[what]
    with edited(path) as (txn, databases):
        assert txn.put(key, value, db=databases[name])
    read_journal(path)
    found = Outcomes()
    again = found.of("write", lambda: LmdbJournal(path))
    if again is not None:
        found.of("append", lambda: again.open_stream(opened()).close())
        found.of("close", again.close)
    let_go(path)
    read_journal(path)


def test_payload_places_that_are_made_up_read_as_lost_or_damaged(tmp_path: Path) -> None:
    places = [
        Located(0, 0, 0, 4, b""),
        Located(1, 0, 2, 4, b"d"),  # over the one before
        Located(2, 0, 2**62, 4, b"d" * 16),
        Located(3, 0, 0, 2**62, b"d" * 16),
        Located(4, 2**62, 0, 4, b"d" * 16),
        Located(5, 0, 2**62, 2**62, b"d" * 15),
        Located(0, 0, 0, 8, b"twice"),
    ]
    with writing(tmp_path / "j") as made:
        made.shelf.payloads.write(b"12345678")
        made.rows([OPENED])
        data = chunk([BRANCH.row(0)], seq=1, at=1, payloads=(6, tuple(places)))
        made.shelf.add(Chunk(Seq(1), StreamId(0), At(1), 1, (), data))
        made.heads[0] = 2
    journal = open_for_reading(tmp_path / "j")
    for number in range(6):
        with pytest.raises(JournalError) as refused:
            journal.payload(StreamId(0), number)
        assert refused.value.code in ("payload_lost", "payload_damaged")
    journal.close()


# -- the directory


def replaced(path: Path, by: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    by(path)


def sound(tmp_path: Path) -> Path:
    return write(tmp_path / "j", [OPENED, BRANCH.row(1)], [b"some bytes"])


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to the zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to(path.parents[1] / "precious"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a directory": Path.mkdir,
    "nothing": lambda path: None,
    "random bytes": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "a hole of a terabyte": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


NAMES = ("data.mdb", "lock.mdb", "writer.lease", "segments/000000.seg", "HEAD", "HEAD.partial", "cache")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", INSTEAD)
def test_something_else_in_the_place_of_a_file_is_not_waited_for_nor_written_through(
    tmp_path: Path, name: str, what: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"do not touch" * 1000)
    path = sound(tmp_path)
    replaced(path / name, INSTEAD[what])
    done = within(PATIENCE, lambda: (read_journal(path), written_to(path)))
    assert done, "it waits"
    assert precious.read_bytes() == b"do not touch" * 1000


def written_to(path: Path) -> Outcomes:
    found = Outcomes()
    journal = found.of("write", lambda: LmdbJournal(path, sync="none"))
    if journal is not None:
        writer = found.of("begin", lambda: journal.open_stream(opened()))
        if writer is not None:
            found.of("keep", lambda: writer.keep(b"x" * 100_000))
        found.of("close", journal.close)
    let_go(path)
    return found


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether the work ends in time; what it raises is raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that asked
            failed.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return not thread.is_alive()


def test_the_first_head_is_not_written_through_a_link_that_was_put_there_while_the_journal_was_open(
    tmp_path: Path,
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"do not touch")
    journal = LmdbJournal(tmp_path / "j")
    journal.open_stream(opened())
    (tmp_path / "j" / "HEAD.partial").symlink_to(precious)
    journal.close()
    assert precious.read_bytes() == b"do not touch"
    assert not (tmp_path / "j" / "HEAD").is_symlink()
    assert read_journal(tmp_path / "j")["open"] is None


@pytest.mark.parametrize("by", ["a link", "a file"])
def test_segments_that_are_no_directory_are_refused(tmp_path: Path, by: str) -> None:
    path = sound(tmp_path)
    (path / "segments").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "000007.seg").write_bytes(b"do not remove")
    if by == "a link":
        (path / "segments").symlink_to(tmp_path / "elsewhere")
    else:
        (path / "segments").write_bytes(b"")
    for found in (read_journal(path)["open"], written_to(path)["write"]):
        assert found == "journal_not_a_journal"
    assert (tmp_path / "elsewhere" / "000007.seg").read_bytes() == b"do not remove"


def test_a_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "j")
    assert read_journal(tmp_path / "link")["events 0"] is None


def test_nothing_in_a_journal_is_run_or_looked_up_by_name(tmp_path: Path) -> None:
    """Files named like modules lie in the journal and in the working directory; names in it look like paths."""
    names = ("../../x", "/etc/passwd", "%s%n", "$(touch hit)", "`touch hit`", "__import__('os')", "\0")
    rows = [opened(label=name, tags=names, written_by=name).row(0) for name in names[:1]]
    rows += [CodeSeen(number=0, file=name, qualname=name, name=name, first_line=1, source=0).row(0) for name in names]
    path = write(tmp_path / "j", rows, [b"raise SystemExit('run')"])
    for name in ("lmdb", "msgpack", "xxhash", "attrs", "torch", "sitecustomize", "codec"):
        (path / f"{name}.py").write_text("import pathlib; pathlib.Path(__file__).with_name('hit').touch()")
    script = (
        "import sys; from pathlib import Path; from tests.hostile import read_journal; "
        "found = read_journal(Path('.')); assert found['open'] is None and found['events 0'] is None, found"
    )
    done = run(script, options=("-P" if sys.version_info >= (3, 11) else "-B",), cwd=path, ends=None)
    if sys.version_info >= (3, 11):  # before, Python itself puts the working directory first
        assert (done.returncode, done.stderr) == (0, "")
        assert not list(tmp_path.rglob("hit"))
    assert read_journal(path)["events 0"] is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j"]
