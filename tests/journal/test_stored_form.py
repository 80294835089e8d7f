"""The stored form: every event survives its bytes, old versions are lifted, and bad bytes are refused by code."""

from __future__ import annotations

import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import At, Event, JournalCorrupt, JournalError, Row, Seq, StreamId, plain, upcasting, wire
from journal.events import (
    EVENTS_BY_NAME,
    BranchTaken,
    CodeSeen,
    FunctionSeen,
    ModuleLeft,
    OpExecuted,
    StreamOpened,
    event_class,
)
from journal.events.template import BIG_INT, DEEP, DICT, LONG_TEXT, OPAQUE, SET, TEXT
from journal.wire import Chunk, ChunkPacker, Located, event_of, read_envelope
from tests.journal import evolving
from tests.journal.small import code_of
from tests.strategies import any_event, events_of, opened

BRANCH = BranchTaken(value=1, result=True, site=2, call=3)
PLACE = Located(0, 1, 2, 3, b"d" * 16)


def pack(rows: list[Row], payload_end: int = 0, payloads: tuple[Located, ...] = ()) -> Chunk:
    return ChunkPacker().chunk(rows, Seq(10), StreamId(2), At(4), payload_end, payloads)


def returned(value: Any) -> Any:
    """What a value in the body of an event reads back as."""
    (row,) = read_envelope(pack([ModuleLeft(call=0, result=value, outputs=()).row(0)]).data).rows()
    event = event_of(row)
    assert isinstance(event, ModuleLeft)
    return event.result


def sealed(parts: object) -> bytes:
    """Any message, with the checksum of a chunk."""
    data: bytes = parts if isinstance(parts, bytes) else msgpack.packb(parts)
    return data + zlib.crc32(data).to_bytes(4, "little")


# Laws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVENTS_BY_NAME)
def test_every_event_survives_its_bytes(name: str) -> None:
    @given(events_of(EVENTS_BY_NAME[name]), st.integers(0, 2**63))
    def law(event: Event, time_ns: int) -> None:
        (row,) = read_envelope(pack([event.row(time_ns)]).data).rows()
        assert row == event.row(time_ns)
        assert event_of(row) == event

    law()


@given(st.lists(any_event(), min_size=1, max_size=8))
def test_a_chunk_gives_its_rows_and_its_place(events: list[Event]) -> None:
    rows = [event.row(at) for at, event in enumerate(events)]
    envelope = read_envelope(pack(rows, 1, (PLACE,)).data)
    assert list(envelope.rows()) == rows
    assert (envelope.first_seq, envelope.stream, envelope.first_at, envelope.count) == (10, 2, 4, len(rows))
    assert (envelope.payload_end, envelope.payloads) == (1, (PLACE,))
    assert {(kind, name) for kind, name, _ in envelope.types} == {(type(e).type_id, e.event_name) for e in events}


class Foreign:
    """Nothing that msgpack knows; would fail if its text were asked for."""

    def __repr__(self) -> str:
        raise AssertionError


ODD = {
    "an integer beyond 64 bits": (2**64, (BIG_INT, str(2**64))),
    "a negative one": (-(2**63) - 1, (BIG_INT, str(-(2**63) - 1))),
    "one of more digits than Python writes": (1 << 40_000, (BIG_INT, hex(1 << 40_000))),
    "half a surrogate pair": ("a\ud800b", (TEXT, "a\\ud800b")),
    "a foreign object": (Foreign(), (OPAQUE, f"{__name__}.Foreign", "")),
    "a numpy scalar": (np.float32(1.5), (OPAQUE, "numpy.float32", "1.5")),
    "a numpy array": (np.zeros(3), (OPAQUE, "numpy.ndarray", "")),
    "a set": ({1}, (SET, 1)),
    "a dict": ({"a": 1, 2: None}, (DICT, "a", 1, 2, None)),
    "a list": ([1, [2]], (1, (2,))),
    "a buffer": (bytearray(b"ab"), b"ab"),
}


@pytest.mark.parametrize("what", ODD)
def test_a_value_without_a_stored_form_is_replaced_by_its_template_alone(what: str) -> None:
    value, template = ODD[what]
    assert returned(value) == template
    assert returned((1, value, ("x", value))) == (1, template, ("x", template))
    assert returned((Foreign(), value))[1] == template  # on the slow path, too


def test_only_the_event_with_the_odd_value_changes() -> None:
    rows = [BRANCH.row(1), ModuleLeft(call=0, result=2**70, outputs=(3,)).row(2), BRANCH.row(3)]
    assert list(read_envelope(pack(rows).data).rows()) == [
        rows[0],
        ModuleLeft(call=0, result=(BIG_INT, str(2**70)), outputs=(3,)).row(2),
        rows[2],
    ]


def test_a_field_that_is_text_stays_text() -> None:
    event = CodeSeen(number=0, file="\udcff.py", qualname="q", name="n", first_line=1, source=None)
    (row,) = read_envelope(pack([event.row(0)]).data).rows()
    read = event_of(row)
    assert isinstance(read, CodeSeen)
    assert read.file == "\\udcff.py"


def test_a_value_nested_too_deep_is_cut_off() -> None:
    value: Any = ()
    for _ in range(5000):
        value = (value,)
    depth, read = 0, returned(value)
    while read and read != (DEEP,):
        depth, read = depth + 1, read[0]
    assert read == (DEEP,)
    assert depth == plain.MAX_DEPTH


def test_nan_is_kept() -> None:
    assert str(returned(float("nan"))) == "nan"


def test_rows_that_pack_to_much_are_cut_into_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SPLIT_BYTES", 2000)
    rows = [ModuleLeft(call=number, result="x" * 300, outputs=()).row(0) for number in range(40)]
    read: list[Row] = []
    while len(read) < len(rows):
        chunk = pack(rows[len(read) :])
        assert 1 <= chunk.count < 10
        read.extend(read_envelope(chunk.data).rows())
    assert read == rows


def test_an_event_that_is_too_large_keeps_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_CHUNK_BYTES", 400_000)
    read = returned(("x" * 500_000, 7))
    assert read == ((LONG_TEXT, "x" * 65536, 500_000), 7)


def test_an_event_that_fits_in_no_form_of_its_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_CHUNK_BYTES", 400_000)
    header = opened(environment=tuple((f"k{number}", "v" * 100) for number in range(3000)))
    assert code_of(lambda: pack([header.row(0)])) == "event_too_large"
    long = opened(environment=(("k", "v" * 500_000),))
    (row,) = read_envelope(pack([long.row(0)]).data).rows()
    assert event_of(row).environment == (("k", "v" * 65536),)  # type: ignore[attr-defined]


# Versions -------------------------------------------------------------------------------------------


@pytest.fixture
def tested() -> Iterator[type[Event]]:
    """An event class at its third version, for one test."""
    yield evolving.register(3)
    evolving.forget()


def stored(types: list[tuple[int, str, int]], rows: list[tuple[Any, ...]], count: int | None = None) -> bytes:
    body = msgpack.packb(rows)
    return sealed((wire.FORMAT, 0, 0, 0, len(rows) if count is None else count, types, (0, ()), body))


@pytest.mark.parametrize(
    ("version", "fields"), [(1, (47, "seven")), (2, (7, 4, "seven")), (3, (7, 4, 5))], ids=["1", "2", "3"]
)
def test_an_old_version_reads_as_the_present_one(tested: Any, version: int, fields: tuple[Any, ...]) -> None:
    data = stored([(900, "tested", version), (7, "branch_taken", 1)], [(900, 5, *fields), (7, 6, 1, True, 2, 3)])
    rows = read_envelope(data).rows()
    assert [event_of(row) for row in rows] == [tested(low=7, high=4, length=5), BRANCH]
    assert [row[1] for row in rows] == [5, 6]
    assert [row[0] for row in rows] == [tested.type_id, BranchTaken.type_id]


def test_an_old_row_that_cannot_be_lifted_is_malformed(tested: Any) -> None:
    for fields in [(), (1,), ("x", "y"), (1, 2, 3)]:
        assert code_of(read_envelope(stored([(0, "tested", 1)], [(0, 0, *fields)])).rows) == "event_malformed"


def test_a_version_that_nothing_lifts_is_refused(tested: Any) -> None:
    del upcasting.UPCASTERS["tested", 2]
    upcasting.plan_for.cache_clear()
    assert code_of(read_envelope(stored([(0, "tested", 1)], [(0, 0, 1, "x")])).rows) == "event_upcaster_missing"


def test_type_numbers_of_another_process_mean_what_its_table_says() -> None:
    data = stored([(77, "branch_taken", 1)], [(77, 5, 1, True, 2, 3)])
    assert [event_of(row) for row in read_envelope(data).rows()] == [BRANCH]


def test_an_unknown_event_is_refused_and_names_the_version_that_wrote_it() -> None:
    envelope = read_envelope(stored([(0, "time_travelled", 1)], [(0, 0)]))
    with pytest.raises(JournalError) as refused:
        envelope.rows("9.1")
    assert refused.value.code == "event_unknown"
    assert refused.value.fields["name"] == "time_travelled"
    assert "9.1" in str(refused.value)


def test_a_newer_version_is_refused_and_names_the_version_that_wrote_it() -> None:
    envelope = read_envelope(stored([(0, "branch_taken", 2)], [(0, 0, 1, True, 2, 3, 4)]))
    with pytest.raises(JournalError) as refused:
        envelope.rows("9.1")
    assert refused.value.code == "event_version_newer"
    assert "9.1" in str(refused.value)


def test_a_later_format_is_refused() -> None:
    assert code_of(lambda: read_envelope(sealed((wire.FORMAT + 1, "anything")))) == "journal_newer"


# Hostile bytes --------------------------------------------------------------------------------------

VALID = pack([BRANCH.row(1), opened().row(2)], 1, (PLACE,)).data


def read_all(data: bytes) -> None:
    for row in read_envelope(data).rows():
        event_of(row)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused_by_code(data: bytes) -> None:
    assert code_of(lambda: read_all(data)) in {"chunk_malformed", "chunk_checksum"}
    assert code_of(lambda: read_all(sealed(data))) in {"chunk_malformed", "journal_newer"}


@given(st.integers(0, len(VALID) - 1), st.integers(1, 255))
def test_one_changed_byte_is_found_by_the_checksum(place: int, change: int) -> None:
    data = bytearray(VALID)
    data[place] ^= change
    assert code_of(lambda: read_all(bytes(data))) == "chunk_checksum"


@given(st.integers(0, len(VALID) - 5), st.integers(0, 4), st.binary(max_size=6))
def test_changed_bytes_with_a_right_checksum_are_refused_by_code_or_well_typed(
    place: int, removed: int, put_in: bytes
) -> None:
    """Whoever can write a checksum can write an event; nothing but our own errors may come of it."""
    data = VALID[:-4][:place] + put_in + VALID[:-4][place + removed :]
    assert outcome(sealed(data)) in {
        "read",
        "chunk_malformed",
        "event_malformed",
        "event_unknown",
        "event_version_newer",
        "event_upcaster_missing",
        "journal_newer",
    }


def outcome(data: bytes) -> str:
    try:
        read_all(data)
    except JournalError as refused:
        return refused.code
    return "read"


@pytest.mark.parametrize(
    "parts",
    [
        None,
        7,
        (),
        (wire.FORMAT,),
        (wire.FORMAT, 0, 0, 0, 1, (), (0, ())),
        (wire.FORMAT, -1, 0, 0, 1, (), (0, ()), b""),
        (wire.FORMAT, 0, 0, 0, 0, (), (0, ()), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1 << 40, (), (0, ()), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (("x", 1, 1),), (0, ()), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (), (0,), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (), (0, ((0, 0, 0, 0, b""),)), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (), (1, ((0, 0, -1, 0, b""),)), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (), (1, ((0, 0, 0, 0, "text"),)), b"\x90"),
        (wire.FORMAT, 0, 0, 0, 1, (), (0, ()), "text"),
        (True, 0, 0, 0, 1, (), (0, ()), b"\x90"),
    ],
)
def test_an_envelope_of_another_shape_is_malformed(parts: object) -> None:
    assert code_of(lambda: read_envelope(sealed(parts))) == "chunk_malformed"


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (1, 2),
        ((),),
        ((0,),),
        ((0, 0, 1, True, 2),),
        ((0, 0, 1, True, 2, 3, 4),),
        ((1, 0, 1, True, 2, 3),),
        ((True, 0, 1, True, 2, 3),),
        ((0, 0.5, 1, True, 2, 3),),
        (("0", 0, 1, True, 2, 3),),
        (((0,), 0, 1, True, 2, 3),),
        ({1: 2},),
        (bytes((0, 0, 1, 1, 2, 3)),),
        ("000000",),
    ],
)
def test_rows_of_another_shape_are_malformed(rows: Any) -> None:
    data = stored([(0, "branch_taken", 1)], list(rows), max(1, len(rows)))
    assert code_of(read_envelope(data).rows) == "event_malformed"


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (BranchTaken, "result", 1),
        (BranchTaken, "site", True),
        (BranchTaken, "call", None),
        (FunctionSeen, "qualname", b"bytes"),
        (StreamOpened, "kind", "other"),
        (StreamOpened, "tags", ("a", 1)),
        (StreamOpened, "environment", (("python",),)),
        (OpExecuted, "outputs", ((), 3)),
        (OpExecuted, "inputs", (None,)),
    ],
)
def test_a_field_of_another_type_is_malformed(cls: type[Event], field: str, value: object) -> None:
    @given(events_of(cls))
    def law(event: Event) -> None:
        row = list(event.row(0))
        row[2 + cls.fields.index(field)] = value
        (read,) = read_envelope(pack([tuple(row)]).data).rows()
        with pytest.raises(JournalCorrupt) as refused:
            event_of(read)
        assert refused.value.code == "event_malformed"
        assert field in str(refused.value)

    law()


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff" * 1000,  # arrays that claim 2**32 items, nested
        b"\xdc\xff\xff" * 1000,
        b"\xdf\xff\xff\xff\xff" * 1000,
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xd9\xff",
        b"\xc7\x05\x01hello",
        b"\xd4\x01x",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc1",
        b"\xa2\xff\xff",
    ],
)
def test_lengths_that_no_bytes_stand_behind_cost_nothing(bomb: bytes) -> None:
    data = sealed((wire.FORMAT, 0, 0, 0, 1, (), (0, ()), bomb))
    tracemalloc.start()
    try:
        assert code_of(read_envelope(data).rows) == "event_malformed"
        assert code_of(lambda: read_envelope(sealed(bomb))) == "chunk_malformed"
        assert tracemalloc.get_traced_memory()[1] < 64 * len(data) + 200_000
    finally:
        tracemalloc.stop()


def test_every_class_in_the_registry_is_found_by_its_number() -> None:
    assert [event_class(kind).type_id for kind in range(len(EVENTS_BY_NAME))] == list(range(len(EVENTS_BY_NAME)))
    assert sys.getsizeof(BRANCH) < 100  # slotted
