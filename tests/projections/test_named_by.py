"""A moment's tables with the names of a later head: rows stand where they stand there, and facts are those of then."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import Event
from projections import CaptureTables, Projector
from projections.build import FOLDS
from projections.columns import VERSIONS
from projections.folds.backward import BACKWARD
from tests.projections.encoded import encode
from tests.projections.making import Made, source_of
from tests.projections.test_snapshots import folded, projector_of, spacings
from tests.strategies import capture_streams

NAMES = {
    "ops": ("label", "layer_label", "label_short", "raw_label", "layer_type", "type_index", "pass_index", "event"),
    "layers": ("layer_label", "layer_label_short", "layer_type", "type_index"),
    "module_calls": ("call_label", "address", "call_index"),
    "orphans": ("label", "event"),
    "backward_passes": ("pass_index", "trigger"),
    "grad_fn_calls": ("call_label", "backward_pass_index"),
}
"""Columns whose cells are for good once there is a row."""


def named(events: list[Event], at: int, spacing: int = 4096) -> tuple[CaptureTables, CaptureTables]:
    """The tables after some events, by the names of the head, and those of the head."""
    projector = projector_of(events, spacing)
    tables = projector.tables()
    return projector.at(at).named_by(tables), tables


@given(capture_streams(), spacings, st.integers(0, 200))
@settings(deadline=None)
def test_rows_and_names_are_a_first_part_of_those_of_the_head(events: list[Event], spacing: int, at: int) -> None:
    then, tables = named(events, at, spacing)
    for name, columns in NAMES.items():
        count = len(then.table(name))
        for column in columns:
            assert list(then.table(name).column(column)) == list(tables.table(name).column(column))[:count]
    moment = projector_of(events, spacing).at(at)
    assert len(then.ops) == moment.ops_in(tables) == bisect_left(tables.forward.rows.event, min(at, len(events)))
    assert len(then.ops) + len(then.orphans) == moment.counts["ops"]
    assert len(then.module_calls) == moment.calls_in(tables)


@given(capture_streams(), spacings, st.integers(0, 200))
@settings(deadline=None)
def test_autograd_nodes_keep_their_label_and_the_order_of_the_head(events: list[Event], spacing: int, at: int) -> None:
    then, tables = named(events, at, spacing)
    whole = dict(zip(tables.grad_fns.column("grad_fn_object_id"), tables.grad_fns.column("label"), strict=True))
    numbers = list(then.grad_fns.column("grad_fn_object_id"))
    assert list(then.grad_fns.column("label")) == [whole[number] for number in numbers]
    assert numbers == [number for number in whole if number in set(numbers)]
    assert set(numbers) == set(folded(events, min(at, len(events))).states[FOLDS.index(BACKWARD)].numbers)


@given(capture_streams(), st.integers(0, 200))
@settings(deadline=None, max_examples=50)
def test_every_column_is_made_at_any_event_and_reads_no_later_one(events: list[Event], at: int) -> None:
    """Folded from a stream that ends there, and named by the head, the tables are the same: nothing leaks back."""
    at = min(at, len(events))
    then, tables = named(events, at)
    cut = Projector(source_of(events[:at]))
    assert encode(then) == encode(cut.at(at).named_by(tables) if at < len(events) else cut.tables())


@given(capture_streams())
@settings(deadline=None, max_examples=25)
def test_at_the_head_these_are_the_tables_of_the_head(events: list[Event]) -> None:
    then, tables = named(events, len(events))
    assert then is tables
    assert set(then.all) == set(VERSIONS)


def test_an_op_that_only_a_later_event_ties_to_the_forward_stands_where_it_will_stand() -> None:
    """By the events up to it alone it is an island, and what runs after it would be numbered without it."""
    made = Made()
    x = made.input("x")
    loose = made.op("arange")
    before = len(made.events)
    joined = made.op("add", x, loose)
    made.returns(joined)
    then, tables = named(made.events, before)
    assert list(then.ops.column("label")) == ["input_1", "arange_1_1"]
    assert list(tables.ops.column("label"))[:3] == ["input_1", "arange_1_1", "add_1_2"]
    alone = projector_of(made.events, 4096).at(before).tables
    assert list(alone.ops.column("label")) == ["input_1"]


def test_a_layer_is_named_by_all_its_passes_and_counts_those_that_there_were() -> None:
    made = Made()
    x = made.input("x")
    first = made.op("tanh", x, site="loop")
    before = len(made.events)
    second = made.op("tanh", first, site="loop")
    made.returns(second)
    then, _ = named(made.events, before)
    assert list(then.ops.column("label")) == ["input_1", "tanh_1_1:1"]
    assert list(then.layers.column("num_passes")) == [1, 1]
    assert then.ops.value("children", 1) == ()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_before_the_forward_there_is_no_op(at: int) -> None:
    made = Made()
    made.returns(made.op("relu", made.input("x")))
    then, _ = named(made.events, at)
    assert len(then.ops) == len(then.layers) == 0
    assert then.fact("status") == "unfinished"
