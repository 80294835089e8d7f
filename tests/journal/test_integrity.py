"""What `verify` finds: everything that is not as it was written, and nothing else, without dying of it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import journal.environment
import journal.head
import journal.integrity
import journal.scan
import journal.scan_payloads
from journal import CaptureState, Event, JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.damages import LISTED, Damages
from journal.events import BranchTaken, StreamOpened
from journal.head import SLOT_BYTES, SLOTS, Head, read_head, write_head
from journal.integrity import Report, trusted_path, verify
from journal.lease import Lease, is_held
from journal.lineage import FROM_NOTHING
from journal.lmdb_layout import COMMIT, ONE, TWO
from journal.recovery import recover
from journal.scan import scan
from journal.shelf import Shelf
from journal.wire import FORMAT, ChunkPacker, Located, read_envelope
from tests.journal.damaging import Change, codes_of, outcomes
from tests.journal.small import SEALING, all_of, branch, code_of, entries, flip, hashes, put, write_small
from tests.programs import PATIENCE, ROOT, started
from tests.strategies import capture_streams, opened, payload_bytes, write_stream


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("integrity") / "written.journal"
    write_small(path)
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    """A small journal, to be damaged."""
    shutil.copytree(written, tmp_path / "run.journal")
    return tmp_path / "run.journal"


def codes(report: Report) -> set[str]:
    return {damage.code for damage in report.damages}


def program(text: str) -> str:
    """A program for the child that verifies, which does something else first."""
    return "import sys; sys.path[:] = sys.argv[2:]\n" + textwrap.dedent(text) + "\nmain(sys.argv[1])\n"


# What is whole ------------------------------------------------------------------------------------------


@given(st.lists(capture_streams(), min_size=1, max_size=3))
@settings(max_examples=25)
def test_whatever_was_captured_verifies(tmp_path_factory: pytest.TempPathFactory, streams: list[list[Event]]) -> None:
    path = tmp_path_factory.mktemp("captured") / "j"
    one = LmdbJournal(path, sync="none")
    writers = [write_stream(one, events) for events in streams]
    for writer in writers:
        writer.close()
    one.close()
    assert codes_of(path) == []


def test_a_report_says_what_was_looked_at(path: Path) -> None:
    before = hashes(path)
    report = verify(path)
    assert report == Report(
        path=str(path), events=76, commits=12, streams=4, payloads=12, payload_bytes=480, is_sealed=True
    )
    assert report.ok
    assert {name: of for name, of in hashes(path).items() if name != "lock.mdb"} == {
        name: of for name, of in before.items() if name != "lock.mdb"
    }


def test_what_a_killed_writer_left_over_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    script = """
        import os, signal, sys
        from journal import open_for_writing
        from tests.journal.small import branch, opened
        one = open_for_writing(sys.argv[1])
        writer = one.open_stream(opened())
        writer.keep(b"named")
        writer.append(branch(0))
        writer.keep(b"never named" * 10)
        writer.commit()
        writer.keep(b"not committed" * 10)
        one.environment.segments.push()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with started(script, path) as ended:
        assert ended.wait() == -signal.SIGKILL
    report = verify(path)
    assert report.ok
    assert not report.is_sealed
    assert (report.events, report.payloads) == (2, 2)
    assert report.notes == ("segments/000000.seg has 130 bytes at its end that no event names",)


def test_a_payload_that_is_known_to_be_lost_is_a_note(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "j")
    writer = one.open_stream(opened())
    writer.keep(payload_bytes(3))
    writer.kept[0] = Located(0, 0, 0, 13, b"")
    writer.append(branch(0))
    writer.commit()
    assert code_of(lambda: one.payload(StreamId(0), 0)) == "payload_lost"
    assert one.payload_size(StreamId(0), 0) == 13
    one.close()
    report = verify(tmp_path / "j")
    assert report.ok
    assert "the bytes of 1 payloads are known to be lost since the journal was recovered" in report.notes


def test_an_event_of_a_later_version_is_told_and_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(BranchTaken, "event_version", 2)
        one = open_for_writing(path)
        writer = one.open_stream(opened())
        writer.append(branch(0))
        one.close()
    report = verify(path)
    assert report.ok
    assert [unread.code for unread in report.unread] == ["event_version_newer"]
    assert report.unread[0].stream == 4


# What is damaged ----------------------------------------------------------------------------------------


def flips(path: Path, name: str, places: list[int], seed: int) -> list[Change]:
    chance = random.Random(seed)
    return [(name, place, chance.randrange(8)) for place in places]


def cuts(path: Path, name: str, count: int, seed: int) -> list[Change]:
    size = (path / name).stat().st_size
    return [(name, place, None) for place in random.Random(seed).sample(range(size), min(count, size))]


def undetected(path: Path, changes: list[Change]) -> tuple[list[object], int]:
    """Changes that no scan found and that changed what the journal says; and how many were found."""
    whole = all_of(path)
    missed: list[object] = []
    found = 0
    for change, codes_found, said in outcomes(path, changes):
        found += bool(codes_found)
        if not codes_found and said != whole:
            missed.append((change, said))
    return missed, found


def test_any_byte_that_is_changed_is_found_or_means_nothing(path: Path) -> None:
    size = (path / "data.mdb").stat().st_size
    places = random.Random(7).sample(range(size), 1200)
    metas = [page + offset for page in (0, 4096) for offset in range(168)]
    changes = [
        *flips(path, "data.mdb", places + metas, 1),
        *flips(path, "HEAD", [place + offset for place in SLOTS for offset in range(SLOT_BYTES)], 2),
        *flips(path, "segments/000000.seg", list(range(480)), 3),
        *cuts(path, "data.mdb", 60, 4),
        *cuts(path, "segments/000000.seg", 30, 5),
        *cuts(path, "HEAD", 10, 6),
    ]
    missed, found = undetected(path, changes)
    assert missed == []
    assert found > 2 * SLOT_BYTES + 480 + 30 + 10 + 200


@pytest.mark.slow
def test_bytes_all_over_the_pages_in_use_are_found_or_mean_nothing(path: Path) -> None:
    """The meta pages, and the page of the last entry of each database, in the newest copy or an older one; every
    thirteenth byte, which falls on each place of a field in turn."""
    data = (path / "data.mdb").read_bytes()
    pages = {0, 1}
    for database in (b"meta", b"events", b"index", b"commits"):
        pages.add(data.rfind(b"".join(entries(path, database)[-1])) // 4096)
    assert min(pages) == 0, "each was found"
    places = [page * 4096 + offset for page in sorted(pages) for offset in range(page % 13, 4096, 13)]
    missed, found = undetected(path, flips(path, "data.mdb", places, 8))
    assert missed == []
    assert found > 80


@pytest.mark.parametrize("seed", range(6))
def test_pages_that_change_places_are_found(path: Path, seed: int) -> None:
    whole = all_of(path)
    data = (path / "data.mdb").read_bytes()
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    one, other = random.Random(seed).sample(range(len(pages)), 2)
    pages[one], pages[other] = pages[other], pages[one]
    (path / "data.mdb").write_bytes(b"".join(pages))
    report = verify(path)
    assert not report.ok or all_of(path) == whole


@pytest.mark.parametrize("name", ["HEAD", "segments/000000.seg", "segments"])
def test_a_file_that_is_gone_is_found(path: Path, name: str) -> None:
    shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    assert codes(verify(path)) == {"head_missing" if name == "HEAD" else "payload_lost"}


@pytest.mark.parametrize("name", ["lock.mdb", "writer.lease"])
def test_a_file_that_holds_nothing_may_be_gone(path: Path, name: str) -> None:
    whole = all_of(path)
    (path / name).unlink()
    assert verify(path).ok
    assert all_of(path) == whole


def older_data_file(path: Path) -> None:
    data = (path / "data.mdb").read_bytes()
    one = open_for_writing(path)
    one.open_stream(opened())
    one.close()
    (path / "data.mdb").write_bytes(data)


def older_meta_pages(path: Path) -> None:
    data = (path / "data.mdb").read_bytes()
    one = open_for_writing(path)
    one.open_stream(opened())
    one.close()
    (path / "data.mdb").write_bytes(data[:8192] + (path / "data.mdb").read_bytes()[8192:])


def another_data_file(path: Path) -> None:
    write_small(path.parent / "other")
    shutil.copy(path.parent / "other" / "data.mdb", path / "data.mdb")


def damaged_slot(path: Path) -> None:
    flip(path / "HEAD", SLOTS[0] + 20)


def cut_head(path: Path) -> None:
    os.truncate(path / "HEAD", 4096)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (older_data_file, {"journal_rolled_back"}),
        (older_meta_pages, {"pages_damaged", "journal_rolled_back"}),
        (another_data_file, {"journal_rolled_back"}),
        (damaged_slot, {"head_malformed"}),
        (cut_head, {"head_malformed"}),
    ],
)
def test_what_speaks_against_head_is_found(path: Path, damage: Callable[[Path], None], expected: set[str]) -> None:
    damage(path)
    assert codes(verify(path)) & expected


def test_an_empty_journal_is_whole(tmp_path: Path) -> None:
    open_for_writing(tmp_path / "empty").close()
    assert verify(tmp_path / "empty") == Report(path=str(tmp_path / "empty"))


def test_a_head_of_a_later_format_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = read_head(path)
    assert head is not None
    (path / "HEAD").unlink()
    with monkeypatch.context() as later:
        later.setattr(journal.head, "FORMAT", FORMAT + 1)
        write_head(path, head, durable=False)
    assert code_of(lambda: verify(path)) == "journal_newer"


def test_a_seal_that_is_cut_short_leaves_a_whole_journal(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    one = open_for_writing(path)
    one.open_stream(opened())
    one.environment.commit()
    for place, step in enumerate(("write_head", "put")):
        with monkeypatch.context() as full:
            full.setattr(*((journal.environment, step) if step == "write_head" else (one.environment, step)), refuse)
            assert code_of(one.close) == "journal_write_failed"
        shutil.copytree(path, tmp_path / f"copy{place}")
        report = verify(tmp_path / f"copy{place}")
        assert (report.ok, report.is_sealed) == (True, False)
    one.close()
    assert verify(path).is_sealed


def test_who_verifies_while_another_process_seals_is_never_told_of_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    times = 0
    with started(SEALING, path, 100) as sealing:
        while sealing.poll() is None:
            if (path / "HEAD").exists():
                assert codes_of(path) == []
                times += 1
    assert sealing.returncode == 0
    assert times > 10


def swapped(path: Path, database: bytes, one: int, other: int) -> None:
    found = entries(path, database)
    put(path, database, (found[one][0], found[other][1]), (found[other][0], found[one][1]))


def test_chunks_that_change_places_are_found(path: Path) -> None:
    swapped(path, b"events", 3, 5)
    report = verify(path)
    assert {"chunk_malformed", "commit_malformed"} <= codes(report)
    assert report.damages[0].seq == ONE.unpack(entries(path, b"events")[3][0])[0]


@pytest.mark.parametrize("database", [b"events", b"index", b"commits"])
@pytest.mark.parametrize("place", [0, 4, -1])
def test_an_entry_that_is_gone_is_found(path: Path, database: bytes, place: int) -> None:
    key = entries(path, database)[place][0]
    put(path, database, (key, None))
    expected = {b"events": "chunk_missing", b"index": "index_malformed", b"commits": "commit_malformed"}[database]
    assert expected in codes_of(path)


@pytest.mark.parametrize("database", [b"index", b"commits"])
def test_entries_that_change_places_are_found(path: Path, database: bytes) -> None:
    swapped(path, database, 2, 3)
    expected = {b"index": "index_malformed", b"commits": "commit_malformed"}[database]
    assert set(codes_of(path)) == {expected}


def test_one_wrong_chain_is_told_once(path: Path) -> None:
    key, value = entries(path, b"commits")[4]
    put(path, b"commits", (key, value[:-1] + bytes([value[-1] ^ 1])))
    assert codes_of(path) == ["commit_malformed"]


@pytest.mark.parametrize("field", range(5))
@pytest.mark.parametrize("place", [0, 7, -1])
def test_every_field_of_a_commit_counts(path: Path, field: int, place: int) -> None:
    key, value = entries(path, b"commits")[place]
    fields = list(COMMIT.unpack(value))
    fields[field] = bytes(32) if field == 4 else fields[field] + 1
    put(path, b"commits", (key, COMMIT.pack(*fields)))
    assert "commit_malformed" in codes_of(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"format", ONE.pack(0)),
        (b"state", b"resting"),
        (b"state", b"opened"),
        (b"state", None),
        (b"written_by", b"9.9.9"),
        (b"written_by", None),
        (b"id", bytes(16)),
    ],
)
def test_every_entry_of_meta_counts(path: Path, key: bytes, value: bytes | None) -> None:
    put(path, b"meta", (key, value))
    assert set(codes_of(path)) & {"meta_malformed", "commit_malformed"}


@pytest.mark.parametrize(
    ("database", "key", "value", "code"),
    [
        (b"index", TWO.pack(99, 0), TWO.pack(0, 1), "index_malformed"),
        (b"index", TWO.pack(99, 0), b"short", "index_malformed"),
        (b"events", ONE.pack(5000), b"no chunk", "chunk_checksum"),
        (b"commits", ONE.pack(5000), b"no commit", "commit_malformed"),
    ],
)
def test_an_entry_too_many_is_found(path: Path, database: bytes, key: bytes, value: bytes, code: str) -> None:
    put(path, database, (key, value))
    assert code in codes_of(path)


def rewrite(path: Path, **changes: Any) -> None:
    """Give the last chunk other contents, under a chain that fits: what a wrong writer could write."""
    key, data = entries(path, b"events")[-1]
    envelope = read_envelope(data)
    parts = [FORMAT, envelope.first_seq, envelope.stream, envelope.first_at, envelope.count, envelope.types]
    made = {"payloads": (envelope.payload_end, envelope.payloads), "body": envelope.body, **changes}
    packer = ChunkPacker()
    raw = packer.pack((*parts, made["payloads"], made["body"]))
    data = raw + journal.wire.zlib.crc32(raw).to_bytes(4, "little")
    commits = entries(path, b"commits")
    (_, before), (last, value) = commits[-2:]
    first, count, segment, length, _ = COMMIT.unpack(value)
    identity = dict(entries(path, b"meta"))[b"id"]
    chain = hashlib.sha256(COMMIT.unpack(before)[4] + identity + ONE.pack(first) + data).digest()
    put(path, b"events", (key, data))
    put(path, b"commits", (last, COMMIT.pack(first, count, segment, length, chain)))
    write_head(path, Head(identity, first + count, segment, length, chain), durable=False)


def test_a_rewritten_chunk_is_whole_if_it_says_the_same(path: Path) -> None:
    rewrite(path)
    assert codes_of(path) == []


def test_an_event_of_the_wrong_types_is_found_under_a_right_chain(path: Path) -> None:
    envelope = read_envelope(entries(path, b"events")[-1][1])
    rows = [list(row) for row in envelope.rows()]
    rows[-1][2] = "no number"
    rewrite(path, body=ChunkPacker().pack(rows))
    assert codes_of(path) == ["event_malformed"]


def test_a_second_header_is_found_under_a_right_chain(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "j")
    writer = one.open_stream(opened())
    writer.append(opened())
    one.close()
    assert codes_of(tmp_path / "j") == ["stream_malformed"]


@pytest.mark.parametrize("parent", [(0, 99), (0, None), (None, 0), (7, 0), (1, 0)])
def test_a_branch_of_what_is_not_there_is_found(
    tmp_path: Path, parent: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shelf, "begun", lambda self, header: (FROM_NOTHING, CaptureState.IDLE))  # refuses none
    one = open_for_writing(tmp_path / "j")
    one.open_stream(opened())
    header = opened().row(0)
    fields = dict(zip(StreamOpened.fields, header[2:], strict=True))
    one.open_stream(StreamOpened(**{**fields, "kind": "branch", "parent": parent[0], "branched_at": parent[1]}))
    one.close()
    assert "stream_malformed" in codes_of(tmp_path / "j")


@pytest.mark.parametrize("case", ["twice", "beyond", "shared", "digest", "elsewhere"])
def test_payloads_that_cannot_be_where_they_are_said_to_be_are_found(path: Path, case: str) -> None:
    envelope = read_envelope(entries(path, b"events")[-1][1])
    (place,) = envelope.payloads
    places: list[Located] = {
        "twice": [place, place],
        "beyond": [place._replace(offset=10**6)],
        "shared": [place._replace(offset=place.offset - 1)],
        "digest": [place._replace(digest=b"short")],
        "elsewhere": [place._replace(segment=3)],
    }[case]
    rewrite(path, payloads=(envelope.payload_end, places))
    expected = {"twice": "payload_misplaced", "shared": "payload_misplaced", "digest": "chunk_malformed"}
    assert expected.get(case, "payload_lost") in codes_of(path)


def test_a_segment_behind_a_link_is_lost_to_verify_and_recover_as_to_reading(path: Path, tmp_path: Path) -> None:
    segment = path / "segments" / "000000.seg"
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    one = open_for_reading(path)
    assert code_of(lambda: one.payload(StreamId(0), 0)) == "payload_lost"
    one.close()
    assert set(codes_of(path)) == {"payload_lost"}
    assert recover(path, tmp_path / "new").payloads == 0


def test_no_more_payload_bytes_are_read_than_there_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = read_envelope(entries(path, b"events")[-1][1])
    place = envelope.payloads[0]
    places = [place._replace(number=place.number + extra) for extra in range(200)]
    rewrite(path, payloads=(envelope.payload_end + 200, places))
    read: list[int] = []
    digest_at = journal.scan_payloads.digest_at
    monkeypatch.setattr(journal.scan_payloads, "digest_at", lambda *given: read.append(given[2]) or digest_at(*given))
    assert codes_of(path).count("payload_misplaced") == 199
    assert sum(read) == 480


def test_damages_beyond_a_thousand_are_counted(tmp_path: Path) -> None:
    one = open_for_writing(tmp_path / "j", sync="none")
    writer = one.open_stream(opened())
    for number in range(LISTED + 234):
        writer.keep(b"x")
        writer.append(branch(number))
    one.close()
    (tmp_path / "j" / "segments" / "000000.seg").unlink()
    report = verify(tmp_path / "j")
    assert len(report.damages) == LISTED
    assert report.omitted == 234
    assert not report.ok


def test_a_disk_that_cannot_be_read_is_told_and_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal.scan, "find_head", refuse)
    told: list[Any] = []
    scan(path, Damages(told.append))
    assert [part[:2] for part in told] == [("refused", "journal_read_failed")]


def test_what_the_scan_did_not_expect_is_a_damage_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for raised in (ZeroDivisionError("odd"), MemoryError()):

        def refuse(*given: object, raised: BaseException = raised) -> None:
            raise raised

        monkeypatch.setattr(journal.scan, "scan_head", refuse)
        assert codes_of(path) == ["scan_broke_off"]


# The child ----------------------------------------------------------------------------------------------


def test_a_map_that_is_cut_while_it_is_read_kills_the_child_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cutting = """
        import os, journal.scan
        from journal.scan import main
        read = journal.scan.Events.scan
        def scan(self):
            self.found.damage("pages_damaged", "told before it dies")
            os.truncate(sys.argv[1] + "/data.mdb", 8192)
            read(self)
        journal.scan.Events.scan = scan
    """
    monkeypatch.setattr(journal.integrity, "PROGRAM", program(cutting))
    report = verify(path)
    assert [damage.code for damage in report.damages] == ["pages_damaged", "scan_died"]
    assert "SIGBUS" in report.damages[-1].problem


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("sys.exit(3)", "status 3"),
        ("raise ValueError('what went wrong')", "what went wrong"),
    ],
)
def test_a_scan_that_is_ended_from_outside_says_nothing_of_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    monkeypatch.setattr(journal.integrity, "PROGRAM", program(f"import os\n{does}"))
    with pytest.raises(JournalError) as refused:
        verify(path)
    assert refused.value.code == "scan_failed"
    assert says in refused.value.problem


def test_a_scan_that_cannot_be_started_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(path / "no python"))
    assert code_of(lambda: verify(path)) == "scan_failed"


@pytest.mark.parametrize("does", ["time.sleep(600)", "os.close(1); time.sleep(600)"])
def test_a_scan_takes_no_longer_than_it_may(path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    monkeypatch.setattr(journal.integrity, "PROGRAM", program(f"import os, time\n{does}"))
    begun = time.monotonic()
    assert code_of(lambda: verify(path, timeout=0.3)) == "scan_timed_out"
    assert time.monotonic() - begun < PATIENCE


def test_modules_of_the_current_directory_are_not_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile").mkdir()
    for name in ("lmdb", "msgpack", "attrs", "resource", "journal"):
        (tmp_path / "hostile" / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path / "hostile")
    for entry in ("", ".", str(tmp_path / "hostile")):
        with monkeypatch.context() as standing:
            standing.syspath_prepend(entry)
            assert verify(path).ok
    assert not (tmp_path / "ran").exists()


def test_the_child_finds_this_package_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert trusted_path()[-1] == str(ROOT)
    assert "" not in trusted_path()


def test_a_made_up_journal_gets_no_more_memory_than_the_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hungry = """
        import journal.scan
        from journal.scan import main
        journal.scan.scan_head = lambda *given: bytearray(journal.scan.MEMORY_LIMIT)
    """
    monkeypatch.setattr(journal.integrity, "PROGRAM", program(hungry))
    assert codes(verify(path)) == {"scan_broke_off"}


@pytest.mark.parametrize(
    ("kind", "code"),
    [("missing", "journal_not_found"), ("file", "journal_not_a_journal"), ("directory", "journal_not_a_journal")],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, kind: str, code: str) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("no journal")
    if kind == "directory":
        place.mkdir()
    assert code_of(lambda: verify(place)) == code


@pytest.mark.parametrize("content", [b"", b"no database", bytes(65536), os.urandom(65536)])
def test_a_data_file_of_something_else_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    assert codes(verify(tmp_path)) == {"pages_damaged"}


# Beside a writer ----------------------------------------------------------------------------------------


def test_a_journal_that_is_being_written_gives_no_false_alarm(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    script = """
        import sys
        from journal import open_for_writing
        from tests.journal.small import branch, opened
        one = open_for_writing(sys.argv[1], durability="event", sync="none")
        print("begun", flush=True)
        while True:
            writer = one.open_stream(opened())
            for number in range(300):
                writer.keep(bytes([number % 7]) * number)
                writer.append(branch(number))
            writer.close()
    """
    with started(script, path) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "begun\n"
        seen = [verify(path) for _ in range(4)]
    assert [report.damages for report in seen] == [()] * 4
    assert all("being written" in report.notes[0] for report in seen)
    assert seen[0].events < seen[-1].events
    last = verify(path)
    assert last.ok
    assert not any("structure" in note for note in last.notes)


def test_a_writer_that_comes_while_the_pages_are_read_gives_no_false_alarm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify_pages(folder: str) -> list[str]:
        one = open_for_writing(folder)
        one.open_stream(opened())
        one.close()
        return ["a page changed while it was read"]

    monkeypatch.setattr("lmdb.verify.verify", verify_pages)
    told: list[Any] = []
    scan(path, Damages(told.append))
    assert [word for word, *_ in told] == ["note", "end"]
    assert "written meanwhile" in told[0][1]


def test_a_writer_that_comes_while_events_are_read_gives_no_false_alarm(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared with HEAD is the state that was read, which says `sealed`, and not what was appended since."""
    script = """
        import os, sys
        from journal import open_for_writing
        from tests.strategies import opened
        one = open_for_writing(sys.argv[1])
        one.open_stream(opened())
        one.environment.commit()
        os._exit(0)
    """
    read = journal.scan.Events.scan

    def scan_and_let_write(events: journal.scan.Events) -> None:
        read(events)
        with started(script, path) as writing:
            assert writing.wait() == 0

    monkeypatch.setattr(journal.scan.Events, "scan", scan_and_let_write)
    assert codes_of(path) == []
    assert entries(path, b"meta") != []


def test_looking_for_a_writer_keeps_none_out(path: Path) -> None:
    looking = os.open(path / "writer.lease", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    begun = time.monotonic()
    assert code_of(lambda: Lease(path)) == "journal_locked"
    assert time.monotonic() - begun < PATIENCE
    os.close(looking)
    assert not is_held(path)
    lease = Lease(path)
    assert is_held(path)
    lease.release()
    assert not is_held(path)


def test_who_writes_a_journal_may_verify_it(path: Path) -> None:
    one = open_for_writing(path)
    one.open_stream(opened())
    report = verify(path)
    assert report.ok
    assert "being written" in report.notes[0]
    one.close()
