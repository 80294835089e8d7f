"""Captures that differ in the occasion alone: what they share is the same, and encoding it once changes nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.events import DESCRIPTION, Event, InputSeen, OpExecuted, ParameterSeen, Row, StreamOpened
from projections import COLUMNS, CaptureTables, Projector
from projections.accounts.twins import MOST, Twins, likeness
from projections.columns import OCCASION
from projections.records.ops import OPS
from projections.stored.encoding import Encoder, packed
from tests.projections.making import Made, Rows
from tests.strategies import capture_streams

numbers = st.integers(0, 1 << 40)
names = st.sampled_from([None, "", "step 1", "relu_1_1", "input_1"])


@st.composite
def twins(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """The rows of a capture, and those of one that happened at another time, in other memory and under another name."""
    events = draw(capture_streams())
    return [draw_row(draw, event) for event in events], [draw_row(draw, event) for event in events]


def draw_row(draw: st.DrawFn, event: Event) -> Row:
    if isinstance(event, OpExecuted):
        outputs = tuple([elsewhere(draw, given) for given in event.outputs])
        event = attrs.evolve(event, duration_ns=draw(numbers), outputs=outputs)
    elif event.fields[-1:] == ("description",) and not isinstance(event, ParameterSeen):
        event = attrs.evolve(event, description=elsewhere(draw, event.description))
    if isinstance(event, StreamOpened):
        event = attrs.evolve(
            event,
            label=draw(names),
            tags=tuple(draw(st.lists(st.sampled_from("abc"), max_size=2))),
            wall_time_ns=draw(numbers),
            written_by=draw(st.sampled_from(["0.1", "0.2"])),
            environment=draw(st.sampled_from([(), (("python", "3.11"),)])),
        )
    return event.row(draw(numbers))


def elsewhere(draw: st.DrawFn, description: Any) -> Any:
    """A description of the same value in another storage."""
    told = dict(zip(DESCRIPTION, description, strict=True))
    return tuple({**told, "storage": draw(st.integers(0, 9))}.values())


def tables_of(rows: list[Row]) -> CaptureTables:
    return Projector(Rows(rows)).tables()


def encoded(tables: CaptureTables) -> dict[str, bytes]:
    encoder = Encoder(tables)
    return {name: packed(encoder.table(table)) for name, table in tables.all.items()}


@given(twins())
def test_only_the_columns_of_the_occasion_differ_between_twins(rows: tuple[list[Row], list[Row]]) -> None:
    one, other = map(tables_of, rows)
    assert likeness(rows[0]) == likeness(rows[1])
    first, second = Encoder(one), Encoder(other)
    for name, table in one.all.items():
        before, after = first.table(table).columns, second.table(other.table(name)).columns
        assert {column for column in before if before[column] != after[column]} <= OCCASION[name]


@given(twins())
def test_encoding_what_twins_share_once_gives_the_same_bytes(rows: tuple[list[Row], list[Row]]) -> None:
    held = Twins()
    for one in rows:
        tables = tables_of(one)
        made = held.encoded(one, tables)
        assert {name: packed(table) for name, table in made.items()} == encoded(tables)


@given(capture_streams(), st.data())
def test_another_event_is_another_capture(events: list[Event], data: st.DataObject) -> None:
    rows = [event.row(0) for event in events]
    cut = data.draw(st.integers(1, len(rows)))
    assert likeness(rows[: cut - 1]) != likeness(rows[:cut])


def test_arguments_that_are_equal_but_of_other_types_make_other_captures() -> None:
    def scaled(by: Any) -> list[Row]:
        made = Made()
        made.op("mul", made.input("x"), plain=(by,))
        return [event.row(0) for event in made.events]

    assert len({likeness(scaled(by)) for by in (1, 1.0, True)}) == 3


def test_twins_are_encoded_once_and_only_the_last_captures_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for: list[object] = []

    def counted(forward: Any) -> Any:
        made_for.append(forward)
        return [0] * len(forward)

    monkeypatch.setitem(OPS, "slot", counted)
    held = Twins()

    def encode(length: int) -> None:
        made = Made()
        x = made.input("x")
        for _ in range(length):
            x = made.op("relu", x)
        rows = [event.row(0) for event in made.returns(x).events]
        held.encoded(rows, tables_of(rows))

    for length in (1, 2, 1, 2, 2):
        encode(length)
    assert len(made_for) == 2
    for length in range(3, 3 + MOST):
        encode(length)
    assert len(held.held) == MOST
    encode(1)
    assert len(made_for) == 2 + MOST + 1


def test_every_table_says_which_of_its_columns_tell_of_the_occasion() -> None:
    assert {table: columns <= set(COLUMNS[table]) for table, columns in OCCASION.items()} == dict.fromkeys(
        COLUMNS, True
    )


def test_rows_that_hold_what_has_no_bytes_have_no_twin() -> None:
    assert likeness([(InputSeen.type_id, 0, object())]) is None
    rows = [event.row(0) for event in Made().events]
    held = Twins()
    held.encoded(None, tables_of(rows))
    assert not held.held
