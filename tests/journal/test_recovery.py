"""What a damaged journal proves is saved into a new one, and nothing else is; the damaged one is not touched."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import journal.carving
from journal import Event, JournalError, LmdbJournal, MemoryJournal, StreamId, open_for_reading, open_for_writing
from journal.carving import PAGE_SIZES, DataFile, page_size_of
from journal.integrity import verify
from journal.lmdb_layout import COMMIT, ONE
from journal.recovery import recover
from journal.sharing import OPEN
from journal.wire import read_envelope
from projections import Projector, fingerprint
from tests.disk import no_file_longer_than
from tests.journal.damaging import codes_of
from tests.journal.small import branch, code_of, entries, flip, hashes, long_header, put, write_small
from tests.programs import run
from tests.strategies import capture_streams, opened, write_stream
from tests.work import at_most
from torchlens.reading.source import StreamSource


class Said(NamedTuple):
    """An event as a reader gets it, with its place."""

    seq: int
    stream: int
    at: int
    time_ns: int
    event: Event


def events_of(path: Path) -> list[Said]:
    """Every event in the order of the journal."""
    one = open_for_reading(path)
    said = [Said(*_fields(stamped)) for info in one.streams() for stamped in one.events(info.stream)]
    one.close()
    return sorted(said, key=lambda each: each.seq)


def _fields(stamped: object) -> tuple[object, ...]:
    return tuple(getattr(stamped, name) for name in Said._fields)


def payloads_of(path: Path) -> dict[tuple[int, int], bytes | str]:
    """The bytes of each payload, or the code with which they are refused."""
    one = open_for_reading(path)
    found: dict[tuple[int, int], bytes | str] = {}
    for info in one.streams():
        for number in range(one.environment.places(info.stream).end):
            try:
                found[info.stream, number] = bytes(one.payload(info.stream, number))
            except JournalError as exc:  # noqa: PERF203 - the code is what is compared
                found[info.stream, number] = exc.code
    one.close()
    return found


def ends_of(path: Path) -> list[int]:
    """The seqs at which the commits of a journal end."""
    return [ONE.unpack(key)[0] + 1 for key, _ in entries(path, b"commits")]


def chained(path: Path, data: bytes) -> int:
    """How many events the commits prove that stand in some bytes, told by looking for each piece of the journal."""
    chunks = entries(path, b"events")
    proven = 0
    for key, value in entries(path, b"commits"):
        first = COMMIT.unpack(value)[0]
        end = ONE.unpack(key)[0] + 1
        within = [chunk for seq, chunk in chunks if first <= ONE.unpack(seq)[0] < end]
        if key + value not in data or not all(chunk in data for chunk in within):
            break
        proven = end
    return proven


def there(path: Path, data: bytes) -> int:
    """How many events come before the first chunk that does not stand in some bytes."""
    missing = [ONE.unpack(seq)[0] for seq, chunk in entries(path, b"events") if chunk not in data]
    return min(missing, default=ends_of(path)[-1])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty commits of one to six hundred events in three streams, payloads of all sizes among them."""
    path = tmp_path_factory.mktemp("recovery") / "written.journal"
    chance = random.Random(3)
    one = open_for_writing(path, durability="close", sync="none")
    writers = [one.open_stream(long_header("a")), one.open_stream(opened("b")), one.open_stream(opened("c"))]
    for number in range(40):
        for writer in chance.sample(writers, 2):
            writer.keep(chance.randbytes(chance.choice([0, 10, 3000, 50_000])))
            for value in range(chance.choice([1, 20, 300])):
                writer.append(branch(value + number))
            writer.flush()
        one.environment.commit()
    one.close()
    return path


@pytest.fixture
def source(written: Path, tmp_path: Path) -> Path:
    """A journal, to be damaged."""
    shutil.copytree(written, tmp_path / "source.journal")
    return tmp_path / "source.journal"


# What is saved ------------------------------------------------------------------------------------------


@given(st.lists(capture_streams(), min_size=1, max_size=3))
@settings(max_examples=15)
def test_a_whole_journal_is_saved_whole(tmp_path_factory: pytest.TempPathFactory, streams: list[list[Event]]) -> None:
    folder = tmp_path_factory.mktemp("whole")
    one = LmdbJournal(folder / "old", sync="none")
    for writer in [write_stream(one, events) for events in streams]:
        writer.close()
    one.close()
    report = recover(folder / "old", folder / "new")
    assert events_of(folder / "new") == events_of(folder / "old")
    assert payloads_of(folder / "new") == payloads_of(folder / "old")
    assert codes_of(folder / "new") == []
    assert (report.events_lost, report.payloads_lost) == (0, 0)
    assert report.streams == len(streams)


def test_what_was_saved_says_so(source: Path, tmp_path: Path) -> None:
    report = recover(source, tmp_path / "new")
    whole = verify(source)
    assert (report.events, report.commits, report.streams) == (whole.events, whole.commits, whole.streams)
    assert (report.payloads, report.payload_bytes) == (whole.payloads, whole.payload_bytes)
    assert (report.path, report.source) == (str(tmp_path / "new"), str(source))
    assert report.source_id == dict(entries(source, b"meta"))[b"id"].hex()
    new = verify(tmp_path / "new")
    assert new.ok
    assert new.is_sealed
    assert dict(entries(tmp_path / "new", b"meta"))[b"id"].hex() != report.source_id


def test_stored_events_are_copied_byte_for_byte(source: Path, tmp_path: Path) -> None:
    recover(source, tmp_path / "new")
    old = [read_envelope(value) for _, value in entries(source, b"events")]
    new = [read_envelope(value) for _, value in entries(tmp_path / "new", b"events")]
    assert [(each.body, each.types, each.first_seq, each.stream, each.first_at, each.payload_end) for each in new] == [
        (each.body, each.types, each.first_seq, each.stream, each.first_at, each.payload_end) for each in old
    ]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9, 0.99])
def test_a_file_that_was_cut_gives_exactly_what_is_left_whole(
    written: Path, source: Path, tmp_path: Path, share: float
) -> None:
    data = (source / "data.mdb").read_bytes()
    data = data[: int(len(data) * share)]
    (source / "data.mdb").write_bytes(data)
    due = there(written, data)
    assert due > 0
    report = recover(source, tmp_path / "new")
    assert report.events == due
    assert report.events + report.events_lost == ends_of(written)[-1]
    assert report.unchained <= due - chained(written, data)
    assert events_of(tmp_path / "new") == events_of(written)[:due]
    assert verify(tmp_path / "new").ok


def leafless(data: bytes) -> bytes:
    """The file without its meta pages, its roots and every page above the leaves."""
    made = b""
    for number in range(len(data) // 4096):
        page = data[number * 4096 :][:4096]
        is_headed = int.from_bytes(page[:8], "little") == number
        made += bytes(4096) if is_headed and page[10] in (1, 8) else page
    return made


def test_everything_above_the_leaves_may_be_gone(written: Path, source: Path, tmp_path: Path) -> None:
    (source / "data.mdb").write_bytes(leafless((source / "data.mdb").read_bytes()))
    report = recover(source, tmp_path / "new")
    assert report.events_lost == 0
    assert events_of(tmp_path / "new") == events_of(written)
    assert payloads_of(tmp_path / "new") == payloads_of(written)


def test_the_id_is_found_without_head(written: Path, source: Path, tmp_path: Path) -> None:
    (source / "HEAD").unlink()
    recover(source, tmp_path / "new")
    assert events_of(tmp_path / "new") == events_of(written)


def test_the_id_is_found_in_head_alone(written: Path, source: Path, tmp_path: Path) -> None:
    identity = dict(entries(written, b"meta"))[b"id"]
    data = (source / "data.mdb").read_bytes()
    (source / "data.mdb").write_bytes(data.replace(identity, bytes(16)))
    recover(source, tmp_path / "new")
    assert events_of(tmp_path / "new") == events_of(written)
    (source / "HEAD").unlink()
    report = recover(source, tmp_path / "other")
    assert report.source_id == bytes(16).hex()
    assert report.events == report.unchained == ends_of(written)[-1]


@pytest.mark.parametrize("place", [0, 7, 30, -1])
def test_a_damaged_chunk_ends_the_prefix(written: Path, source: Path, tmp_path: Path, place: int) -> None:
    key, chunk = entries(source, b"events")[place]
    data = (source / "data.mdb").read_bytes()
    assert chunk in data
    (source / "data.mdb").write_bytes(data.replace(chunk, chunk[:30] + bytes([chunk[30] ^ 1]) + chunk[31:]))
    due = ONE.unpack(key)[0]
    if due == 0:
        assert code_of(lambda: recover(source, tmp_path / "new")) == "nothing_recoverable"
        return
    report = recover(source, tmp_path / "new")
    assert (report.events, report.events_lost) == (due, ends_of(written)[-1] - due)
    assert report.events - report.unchained == max(end for end in [0, *ends_of(written)] if end <= due)
    assert events_of(tmp_path / "new") == events_of(written)[:due]
    assert verify(tmp_path / "new").ok


def without_commits(path: Path, *places: int) -> None:
    """Damage every copy of some commits."""
    data = (path / "data.mdb").read_bytes()
    commits = entries(path, b"commits")
    for place in places:
        key, value = commits[place]
        assert key + value in data
        data = data.replace(key + value, key + value[:-1] + bytes([value[-1] ^ 1]))
    (path / "data.mdb").write_bytes(data)


@pytest.mark.parametrize("place", [0, 20, -1])
def test_one_damaged_commit_is_proven_by_what_follows_it(
    written: Path, source: Path, tmp_path: Path, place: int
) -> None:
    without_commits(source, place)
    assert recover(source, tmp_path / "new").unchained == 0
    assert events_of(tmp_path / "new") == events_of(written)


def test_the_last_commit_is_proven_by_head_alone(written: Path, source: Path, tmp_path: Path) -> None:
    without_commits(source, -1)
    (source / "HEAD").unlink()
    report = recover(source, tmp_path / "new")
    assert report.unchained == ends_of(written)[-1] - ends_of(written)[-2]


def test_behind_two_damaged_commits_events_are_saved_by_their_chunks(
    written: Path, source: Path, tmp_path: Path
) -> None:
    without_commits(source, 20, 21)
    report = recover(source, tmp_path / "new")
    assert report.events - report.unchained == ends_of(written)[19]
    assert events_of(tmp_path / "new") == events_of(written)


def test_events_after_the_last_commit_are_not_saved(source: Path, written: Path, tmp_path: Path) -> None:
    """Chunks that no commit ended with are those of a transaction that was cut: nothing says that they belong there."""
    last = entries(source, b"commits")[-1][0]
    put(source, b"commits", (last, None))
    without = [value for _, value in entries(written, b"commits")][-1]
    data = (source / "data.mdb").read_bytes()
    (source / "data.mdb").write_bytes(data.replace(without, bytes(len(without))))
    (source / "HEAD").unlink()
    report = recover(source, tmp_path / "new")
    assert report.events == ends_of(written)[-2]
    assert report.unchained == 0


def test_what_was_saved_projects_as_the_prefix_does(tmp_path: Path) -> None:
    streams: list[list[Event]] = []

    @given(st.lists(capture_streams(min_steps=8, max_steps=12, endings=["returned"]), min_size=4, max_size=4))
    @settings(max_examples=1, derandomize=True, database=None)
    def draw(drawn: list[list[Event]]) -> None:
        streams[:] = drawn

    draw()
    old = LmdbJournal(tmp_path / "old", durability="close", sync="none")
    for events in streams:
        write_stream(old, events).close()
    old.close()
    key = entries(tmp_path / "old", b"events")[-1][1]
    data = (tmp_path / "old" / "data.mdb").read_bytes()
    (tmp_path / "old" / "data.mdb").write_bytes(data.replace(key, bytes(len(key))))
    report = recover(tmp_path / "old", tmp_path / "new")
    assert (report.streams, report.events_lost) == (4, len(streams[3]) - 1)  # each header is a chunk of its own
    memory, new = MemoryJournal(), open_for_reading(tmp_path / "new")
    for events in streams:
        write_stream(memory, events).close()
    for info in new.streams():
        tables = [Projector(StreamSource(each, info.stream)).tables(info.head) for each in (memory, new)]
        assert fingerprint(tables[0]) == fingerprint(tables[1])
    new.close()


# Payloads -----------------------------------------------------------------------------------------------


def test_a_damaged_payload_is_known_to_be_lost_and_its_events_are_kept(
    written: Path, source: Path, tmp_path: Path
) -> None:
    segment = source / "segments" / "000000.seg"
    size = segment.stat().st_size
    flip(segment, size // 2)
    os.truncate(segment, size - 1)
    report = recover(source, tmp_path / "new")
    assert report.payloads_lost == 2
    assert events_of(tmp_path / "new") == events_of(written)
    before, after = payloads_of(written), payloads_of(tmp_path / "new")
    assert {name: data for name, data in after.items() if data != "payload_lost"}.items() <= before.items()
    assert list(after.values()).count("payload_lost") == 2
    one = open_for_reading(tmp_path / "new")
    for stream, number in [name for name, data in after.items() if data == "payload_lost"]:
        assert one.payload_size(StreamId(stream), number) == len(before[stream, number])
    one.close()
    new = verify(tmp_path / "new")
    assert new.ok
    assert any("2 payloads are known to be lost" in note for note in new.notes)
    again = recover(tmp_path / "new", tmp_path / "again")
    assert again.payloads_lost == 2
    assert payloads_of(tmp_path / "again") == after


def test_events_outlive_all_payloads(written: Path, source: Path, tmp_path: Path) -> None:
    shutil.rmtree(source / "segments")
    report = recover(source, tmp_path / "new")
    assert report.payloads == 0
    assert events_of(tmp_path / "new") == events_of(written)


def test_a_payload_is_copied_block_by_block(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "old", sync="none")
    writer = one.open_stream(opened())
    writer.keep(os.urandom(1 << 20) * 96)
    writer.append(branch(0))
    one.close()
    script = """
        import re, sys
        from pathlib import Path
        from journal.recovery import recover

        def peak():  # of this process in KiB; what getrusage tells is also that of the one it was started by
            return int(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])

        before = peak()
        print(recover(sys.argv[1], sys.argv[2]).payload_bytes, peak() - before)
    """
    payload_bytes, grown = map(int, run(script, tmp_path / "old", tmp_path / "new").stdout.split())
    assert payload_bytes == 96 << 20
    assert grown < 32 << 10
    assert verify(tmp_path / "new").ok


# The source and the target ------------------------------------------------------------------------------


def test_the_source_is_neither_written_nor_opened_by_lmdb(source: Path, tmp_path: Path) -> None:
    os.truncate(source / "data.mdb", (source / "data.mdb").stat().st_size * 3 // 4)
    (source / "lock.mdb").unlink()
    before = hashes(source)
    times = {file: file.stat().st_mtime_ns for file in [source, *source.rglob("*")]}
    recover(source, tmp_path / "new")
    assert hashes(source) == before
    assert {file: file.stat().st_mtime_ns for file in [source, *source.rglob("*")]} == times
    assert str(source) not in OPEN


def test_a_journal_that_is_being_written_gives_what_it_has_committed(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "old", durability="close")
    writer = one.open_stream(opened())
    for number in range(10):
        writer.append(branch(number))
    writer.commit()
    writer.append(branch(10))
    report = recover(tmp_path / "old", tmp_path / "new")
    one.close()
    assert report.events == 11
    assert verify(tmp_path / "new").ok


def test_a_target_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = hashes(tmp_path)
    for target in (
        tmp_path / "file",
        tmp_path / "full",
        tmp_path / "link",
        source,
        source / "new",
        source / "segments",
    ):
        assert code_of(lambda target=target: recover(source, target)) == "target_taken"  # type: ignore[misc]
    assert hashes(tmp_path) == before
    (tmp_path / "empty").mkdir()
    recover(source, tmp_path / "empty")
    recover(source, tmp_path / "deep" / "deeper")


def test_what_was_recovered_is_on_the_disk_when_recovery_ends(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")) or fdatasync(file)
    )
    assert recover(source, tmp_path / "new").payloads
    assert str(tmp_path / "new" / "segments" / "000000.seg") in flushed


@pytest.mark.parametrize("nbytes", [0, 8192, 100_000, 200_000])
def test_a_full_disk_leaves_nothing_behind(source: Path, tmp_path: Path, nbytes: int) -> None:
    with no_file_longer_than(nbytes):
        refused = code_of(lambda: recover(source, tmp_path / "new"))
    assert refused in ("journal_write_failed", "journal_open_failed")
    assert not (tmp_path / "new").exists()
    assert str(tmp_path / "new") not in OPEN
    recover(source, tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"no journal", bytes(100_000), random.Random(1).randbytes(100_000)])
def test_nothing_is_recovered_from_what_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "data.mdb").write_bytes(content)
    assert code_of(lambda: recover(tmp_path / "old", tmp_path / "new")) == "nothing_recoverable"
    assert code_of(lambda: recover(tmp_path / "nowhere", tmp_path / "new")) == "journal_not_found"
    assert code_of(lambda: recover(tmp_path, tmp_path / "new")) == "journal_not_a_journal"
    assert not (tmp_path / "new").exists()


# Other files than LMDB wrote here -----------------------------------------------------------------------


def node(key: bytes, value: bytes, flags: int = 0, length: int | None = None) -> bytes:
    length = len(value) if length is None else length
    made = struct.pack("<HHHH", length & 0xFFFF, length >> 16, flags, len(key)) + key + value
    return made + bytes(len(made) % 2)


def leaf(number: int, size: int, nodes: list[bytes]) -> bytes:
    places: list[int] = []
    body = b""
    for each in nodes:
        body = each + body
        places.append(size - len(body))
    lower = 16 + 2 * len(places)
    head = struct.pack("<QHHHH", number, 0, 2, lower, size - len(body)) + struct.pack(f"<{len(places)}H", *places)
    return head + bytes(size - len(head) - len(body)) + body


def laid_out(path: Path, size: int) -> bytes:
    """The pieces of a journal in pages of another size, without meta pages or roots."""
    pages = [bytes(size), bytes(size)]
    for _, chunk in entries(path, b"events"):
        count = -(-(len(chunk) + 16) // size)
        head = struct.pack("<QHHI", len(pages), 0, 4, count)
        whole = (head + chunk).ljust(count * size, b"\0")
        pages += [whole[at : at + size] for at in range(0, len(whole), size)]
    for key, value in entries(path, b"commits"):
        pages.append(leaf(len(pages), size, [node(key, value)]))
    identity = dict(entries(path, b"meta"))[b"id"]
    pages.append(leaf(len(pages), size, [node(b"format", ONE.pack(1)), node(b"id", identity)]))
    return b"".join(pages)


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_pages_may_have_any_size(source: Path, written: Path, tmp_path: Path, size: int) -> None:
    (source / "data.mdb").write_bytes(laid_out(written, size))
    (source / "HEAD").unlink()
    data = DataFile(source / "data.mdb")
    assert page_size_of(data) == size
    data.close()
    recover(source, tmp_path / "new")
    assert events_of(tmp_path / "new") == events_of(written)


def test_a_chunk_whose_page_lost_its_head_is_found_through_its_leaf(
    source: Path, written: Path, tmp_path: Path
) -> None:
    data = (source / "data.mdb").read_bytes()
    for _, chunk in entries(written, b"events"):
        at = data.find(chunk) - 16
        if at % 4096 == 0:
            data = data[:at] + bytes(16) + data[at + 16 :]
    (source / "data.mdb").write_bytes(data)
    recover(source, tmp_path / "new")
    assert events_of(tmp_path / "new") == events_of(written)


def test_copies_that_differ_are_each_tried(source: Path, written: Path, tmp_path: Path) -> None:
    """Pages of an older state, or of a transaction that was cut, hold other chunks and commits under the same seqs."""
    other = tmp_path / "other"
    shutil.copytree(written, other)
    one = open_for_writing(source)
    two = open_for_writing(other)
    for each, count in ((one, 30), (two, 60)):
        writer = each.open_stream(opened("mine" if each is one else "other"))
        for number in range(count):
            writer.append(branch(number))
        each.close()
    whole = events_of(source)
    decoys = b""
    begin = (source / "data.mdb").stat().st_size // 4096
    for key, chunk in entries(other, b"events"):
        if ONE.unpack(key)[0] >= ends_of(written)[-1]:
            count = -(-(len(chunk) + 16) // 4096)
            number = begin + len(decoys) // 4096
            decoys += (struct.pack("<QHHI", number, 0, 4, count) + chunk).ljust(count * 4096, b"\0")
    for key, value in entries(other, b"commits")[-2:]:
        decoys += leaf(begin + len(decoys) // 4096, 4096, [node(key, value)])
    with (source / "data.mdb").open("ab") as file:
        file.write(decoys)
    recover(source, tmp_path / "new")
    assert events_of(tmp_path / "new") == whole  # by HEAD
    (source / "HEAD").unlink()
    recover(source, tmp_path / "longer")
    assert events_of(tmp_path / "longer") == events_of(other)  # as long as nothing says which is the one


# Files that were made up --------------------------------------------------------------------------------


def test_pages_that_claim_each_other_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page says that a chunk of 64 MiB begins in it, which reaches over thousands of other pages."""
    (tmp_path / "old").mkdir()
    size, count = 4096, 2000
    begun = b"\x98\x01\x00\x00\x00\x01\x90\x92\x00\x90\xc6" + (count * size // 2).to_bytes(4, "big")
    pages = [struct.pack("<QHHI", page, 0, 4, 16384) + begun for page in range(count)]
    (tmp_path / "old" / "data.mdb").write_bytes(b"".join(page.ljust(size, b"\x01") for page in pages))
    read = 0
    pread = os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = pread(file, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    with at_most(20):
        assert code_of(lambda: recover(tmp_path / "old", tmp_path / "new")) == "nothing_recoverable"
    assert read < 2 * journal.carving.READ_FACTOR * count * size + (128 << 20)


def test_chunks_that_can_be_joined_in_many_ways_end_the_search(tmp_path: Path) -> None:
    """Two chunks for each of forty places: 2 to the 40 ways, and a commit that none of them proves."""
    packer = journal.wire.ChunkPacker()
    pages = [bytes(4096), bytes(4096)]
    for seq in range(40):
        for value in range(2):
            row = branch(value).row(0)
            chunk = packer.chunk([row], journal.Seq(seq), StreamId(0), journal.At(seq), 0, ()).data
            pages.append(leaf(len(pages), 4096, [node(ONE.pack(seq), chunk)]))
    commit = COMMIT.pack(0, 40, 0, 0, hashlib.sha256(b"nothing").digest())
    pages.append(leaf(len(pages), 4096, [node(ONE.pack(39), commit), node(b"id", bytes(16))]))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "data.mdb").write_bytes(b"".join(pages))
    with at_most(20):
        assert code_of(lambda: recover(tmp_path / "old", tmp_path / "new")) == "nothing_recoverable"


def test_nodes_that_share_their_bytes_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred pointers a page to the same node, whose value fills the page and begins as a chunk does."""
    size, count, pointers = 4096, 200, 200
    large = node(bytes(8), (b"\x98\x01" + bytes(size))[: size - 16 - 2 * pointers - 16])
    places = struct.pack(f"<{pointers}H", *[size - len(large)] * pointers)
    pages = [
        struct.pack("<QHHHH", page, 0, 2, 16 + len(places), size - len(large)) + places + large for page in range(count)
    ]
    assert {len(page) for page in pages} == {size}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "data.mdb").write_bytes(b"".join(pages))
    tried: list[int] = []
    read = journal.carving.read_envelope

    def counted(data: bytes) -> object:
        tried.append(len(data))
        return read(data)

    monkeypatch.setattr(journal.carving, "read_envelope", counted)
    assert code_of(lambda: recover(tmp_path / "old", tmp_path / "new")) == "nothing_recoverable"
    assert 0 < sum(tried) <= 2 * count * size


def test_payloads_that_are_named_over_and_over_are_not_copied_over_and_over(tmp_path: Path) -> None:
    write_small(tmp_path / "old")
    identity = dict(entries(tmp_path / "old", b"meta"))[b"id"]
    place = read_envelope(entries(tmp_path / "old", b"events")[-1][1]).payloads[0]
    packer = journal.wire.ChunkPacker()
    places = tuple(place._replace(number=number) for number in range(1000))
    chunk = packer.chunk([opened().row(0)], journal.Seq(0), StreamId(0), journal.At(0), 1000, places).data
    chain = hashlib.sha256(bytes(32) + identity + ONE.pack(0) + chunk).digest()
    pages = [bytes(4096), bytes(4096), struct.pack("<QHHI", 2, 0, 4, -(-(len(chunk) + 16) // 4096)) + chunk]
    pages[2] = pages[2].ljust(-(-len(pages[2]) // 4096) * 4096, b"\0")
    number = 2 + len(pages[2]) // 4096
    pages.append(leaf(number, 4096, [node(ONE.pack(0), COMMIT.pack(0, 1, 0, 0, chain)), node(b"id", identity)]))
    (tmp_path / "old" / "data.mdb").write_bytes(b"".join(pages))
    report = recover(tmp_path / "old", tmp_path / "new")
    assert report.payload_bytes <= 480
    assert report.payloads + report.payloads_lost == 1000


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_a_file_a_prefix_comes_of_it(
    written: Path, source: Path, tmp_path: Path, seed: int
) -> None:
    """Bits flipped, pages zeroed, swapped and cut: nothing is saved that was not there, and it verifies."""
    chance = random.Random(seed)
    data = bytearray((source / "data.mdb").read_bytes())
    for _ in range(chance.choice([1, 5, 30])):
        at = chance.randrange(len(data) // 4096) * 4096
        match chance.randrange(3):
            case 0:
                data[at + chance.randrange(4096)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + 4096] = bytes(4096)
            case _:
                other = chance.randrange(len(data) // 4096) * 4096
                data[at : at + 4096], data[other : other + 4096] = data[other : other + 4096], data[at : at + 4096]
    (source / "data.mdb").write_bytes(data)
    due = there(written, bytes(data))
    if due == 0:
        assert code_of(lambda: recover(source, tmp_path / "new")) == "nothing_recoverable"
        return
    report = recover(source, tmp_path / "new")
    assert report.events == due
    assert events_of(tmp_path / "new") == events_of(written)[: report.events]
    assert verify(tmp_path / "new").ok


def test_the_pieces_of_a_page_are_those_that_lmdb_reads(written: Path) -> None:
    data = DataFile(written / "data.mdb")
    carving = journal.carving.Carving(data)
    with lmdb.open(str(written), max_dbs=16, readonly=True) as env:
        assert carving.page_size == env.stat()["psize"]
    chunks = {chunk for _, chunk in entries(written, b"events")}
    assert chunks <= {data.chunk(piece) for pieces in carving.chunks.values() for piece in pieces}
    commits = {(ONE.unpack(key)[0] + 1, COMMIT.unpack(value)[4]) for key, value in entries(written, b"commits")}
    assert commits <= {tuple(commit) for found in carving.commits.values() for commit in found}
    assert carving.ids.most_common(1)[0][0] == dict(entries(written, b"meta"))[b"id"]
    data.close()


def test_a_recovery_whose_process_is_killed_is_marked(source: Path, tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        import journal.environment
        from journal.environment import Environment
        from journal.recovery import recover
        journal.environment.COMMIT_ROWS = 1
        commit = Environment.commit
        def once(self):
            commit(self)
            os.kill(os.getpid(), signal.SIGKILL)
        Environment.commit = once
        recover(sys.argv[1], sys.argv[2])
    """
    run(script, source, tmp_path / "new", ends=-9)
    one = open_for_reading(tmp_path / "new")
    assert one.unfinished_copies() == [0]
    one.close()
    recover(source, tmp_path / "whole")
    one = open_for_reading(tmp_path / "whole")
    assert one.unfinished_copies() == []
    one.close()
