"""What holds of the tables of every capture that could have happened."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import CaptureSettled, Event, OpExecuted
from journal.lifecycle import CaptureState, state_after
from projections import COLUMNS, CaptureTables, Projector, fingerprint
from projections.columnar import sequences
from projections.columns import IMPLIED
from projections.folds.fold import Fold
from projections.promises import invariants
from projections.stored.encoding import Encoder
from tests.projections.encoded import decode, encode
from tests.projections.making import Made, source_of
from tests.strategies import capture_streams

cuts = st.integers(0, 200)


def tables_of(events: list[Event], run: int = 256) -> CaptureTables:
    return Projector(source_of(events, run)).tables()


@given(capture_streams())
def test_the_same_events_give_the_same_tables(events: list[Event]) -> None:
    assert encode(tables_of(events)) == encode(tables_of(events))


@given(capture_streams(), st.integers(1, 9))
def test_how_events_come_in_runs_does_not_matter(events: list[Event], run: int) -> None:
    assert fingerprint(tables_of(events, run)) == fingerprint(tables_of(events))


@given(capture_streams(), st.lists(cuts, max_size=4))
def test_a_fold_may_stop_anywhere_and_go_on(events: list[Event], stops: list[int]) -> None:
    projector = Projector(source_of(events))
    for stop in sorted(stops):
        projector.tables(stop)
    assert fingerprint(projector.tables()) == fingerprint(tables_of(events))


@given(capture_streams(), cuts)
def test_tables_at_a_prefix_are_the_tables_of_the_prefix(events: list[Event], cut: int) -> None:
    at = cut % (len(events) + 1)
    projector = Projector(source_of(events))
    projector.tables()
    assert fingerprint(projector.tables(at)) == fingerprint(tables_of(events[:at]))


@given(capture_streams(), cuts)
def test_tables_stay_as_they_were_when_the_stream_grows(events: list[Event], cut: int) -> None:
    at = cut % (len(events) + 1)
    projector = Projector(source_of(events))
    early = projector.tables(at)
    projector.tables()
    assert fingerprint(early) == fingerprint(tables_of(events[:at]))


STATUS: Final = {
    CaptureState.COMPLETED: "complete",
    CaptureState.HALTED: "halted",
    CaptureState.ABORTED: "aborted_nonfinite",
    CaptureState.FAILED: "failed",
    CaptureState.INTERRUPTED: "interrupted",
}
"""What the capture table calls the state that a capture ended in; in every earlier one it is unfinished."""


@given(capture_streams(), cuts)
def test_how_a_capture_ended_is_what_its_machine_says(events: list[Event], cut: int) -> None:
    seen = events[: cut % (len(events) + 1)]
    tables = tables_of(seen)
    ended = state_after(CaptureState.IDLE, [type(event) for event in seen if not isinstance(event, CaptureSettled)])
    assert tables.fact("status") == STATUS.get(ended, "unfinished")
    settled = state_after(CaptureState.IDLE, map(type, seen)) is CaptureState.SETTLED
    assert tables.fact("is_settled") is settled


@given(capture_streams())
def test_tables_are_made_once_per_head(events: list[Event]) -> None:
    projector = Projector(source_of(events))
    assert projector.tables() is projector.tables()
    assert projector.tables().head == len(events)


def undone(value: Any) -> Any:
    """A cell as it comes back from its bytes: minus zero is zero."""
    return value + 0.0 if type(value) is float else value


@given(capture_streams())
def test_encoding_tables_and_decoding_them_gives_their_columns_back(events: list[Event]) -> None:
    tables = tables_of(events)
    assert decode(encode(tables)) == {
        name: {
            column: [undone(cell) for cell in table.column(column)]
            for column in table.names
            if column not in IMPLIED.get(name, ())
        }
        for name, table in tables.all.items()
    }


@given(capture_streams())
def test_the_bytes_of_a_column_are_those_of_its_cells_however_it_is_held(events: list[Event]) -> None:
    tables = tables_of(events)
    held, plain = Encoder(tables), Encoder(tables)
    for table in tables.all.values():
        for name, column in held.table(table).columns.items():
            if (table.name, name) != ("ops", "label"):  # whose labels cannot be rows of themselves
                assert column == plain.cells(list(table.column(name))), (table.name, name)


@given(capture_streams(max_steps=25))
def test_every_promise_is_kept(events: list[Event]) -> None:
    assert invariants.check(tables_of(events)) == []


@given(capture_streams(), cuts)
def test_every_promise_is_kept_at_every_prefix(events: list[Event], cut: int) -> None:
    assert invariants.check(tables_of(events[: cut % (len(events) + 1)])) == []


@given(capture_streams())
def test_one_cell_is_what_the_whole_column_has(events: list[Event]) -> None:
    whole, single = tables_of(events), tables_of(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "SMALL", 0)
        patch.setattr(sequences, "FEW", 1 << 30)
        cells = {
            (table.name, name, row): table.value(name, row)
            for table in single.all.values()
            for name in table.names
            for row in range(len(table))
        }
    assert cells == {
        (table.name, name, row): cell
        for table in whole.all.values()
        for name in table.names
        for row, cell in enumerate(table.column(name))
    }


@given(capture_streams())
@settings(max_examples=20)
def test_a_column_is_as_long_as_its_table(events: list[Event]) -> None:
    for table in tables_of(events).all.values():
        assert {len(table.column(name)) for name in table.names} <= {len(table)}


def test_every_column_is_explained_and_none_is_missing() -> None:
    tables = Made().tables()
    assert {name: table.names for name, table in tables.all.items()} == {
        name: tuple(columns) for name, columns in COLUMNS.items()
    }


def test_no_event_at_all_gives_empty_tables() -> None:
    tables = tables_of([])
    assert {len(table) for name, table in tables.all.items() if name != "capture"} == {0}
    assert tables.fact("status") == "unfinished"
    assert len(fingerprint(tables)) == 64


def test_a_handler_that_shifts_a_field_is_refused_when_the_fold_is_made() -> None:
    def shifted(state: Any, at: int, type_id: int, time_ns: int, site: int, *rest: Any) -> None: ...

    with pytest.raises(TypeError, match="OpExecuted"):
        Fold("wrong", version=1, initial=dict, handlers={OpExecuted: shifted})
