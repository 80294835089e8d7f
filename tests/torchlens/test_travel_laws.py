"""A cursor, over made-up captures and over real ones: where it stands is all that it shows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from journal import MemoryJournal
from journal.events import Event
from projections import Selector
from projections.build import FOLDS
from projections.folds.fold import Folding
from projections.folds.snapshots import snapshot_of
from tests.projections.making import Rows
from tests.strategies import capture_streams, write_stream
from torchlens.reading.facade import Trace


@contextmanager
def over(events: list[Event]) -> Iterator[tl.Cursor]:
    """A cursor over a capture of these events."""
    journal = MemoryJournal()
    stream = write_stream(journal, events).stream
    trace = Trace(journal, stream)
    yield tl.time_travel(trace)
    trace.cleanup()


class Net(nn.Module):
    """A loop, a module that is called twice, a branch and a tensor that only later joins what the input leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.arange(4.0) + 1
        for _ in range(2):
            x = torch.tanh(self.fc(x))
        if x.sum() > -100:
            x = x * scale
        out: torch.Tensor = self.out(x)
        return out


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tl.Cursor]]:
    """Cursors over one real capture on disk with two backward passes, one of which makes a graph."""
    path = tmp_path_factory.mktemp("travel") / "j"
    torch.manual_seed(0)
    trace = tl.trace(Net(), torch.randn(3, 4), journal=path, capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum(), retain_graph=True)
    (weight,) = torch.autograd.grad((trace.output**2).mean(), [trace.params["fc.weight"].handle], create_graph=True)
    (weight**2).sum().backward()
    trace.cleanup()
    with tl.open_journal(path) as view:
        yield lambda: tl.time_travel(view.capture(0))


def at(cursor: tl.Cursor, part: float) -> tl.Cursor:
    return cursor.seek(part)


fractions = st.floats(0.0, 1.0)


# Where it stands --------------------------------------------------------------------------------------


def shows_the_fold(cursor: tl.Cursor) -> None:
    """What the cursor shows is the fold of the events that have happened: heads, and the rows."""
    stored = list(cursor.whole.events())
    folding = Folding(FOLDS)
    folding.advance(Rows([one.event.row(one.time_ns) for one in stored]), cursor.position)
    assert cursor.trace.moment.snapshot == snapshot_of(FOLDS, folding)
    assert cursor.trace.moment.states() == list(folding.states)
    assert list(cursor.trace.events()) == stored[: cursor.position]


@given(capture_streams(), fractions)
@settings(deadline=None)
def test_what_it_shows_is_the_fold_of_the_events_that_have_happened(events: list[Event], part: float) -> None:
    with over(events) as cursor:
        shows_the_fold(at(cursor, part))


@given(part=fractions)
@settings(deadline=None, max_examples=25)
def test_the_same_of_a_real_capture_and_its_backward_passes(real: Callable[[], tl.Cursor], part: float) -> None:
    shows_the_fold(at(real(), part))


@given(capture_streams(), fractions, st.data())
@settings(deadline=None)
def test_steps_back_undo_steps(events: list[Event], part: float, data: st.DataObject) -> None:
    with over(events) as cursor:
        before = at(cursor, part).position
        n = data.draw(st.integers(0, cursor.num_events - before))
        told, event = cursor.trace.moment.snapshot, cursor.event
        assert cursor.step(n).position == before + n
        cursor.back(n)
        assert (cursor.position, cursor.event, cursor.trace.moment.snapshot) == (before, event, told)


@given(capture_streams(), st.data())
@settings(deadline=None)
def test_to_seek_twice_is_to_seek_once_from_wherever(events: list[Event], data: st.DataObject) -> None:
    with over(events) as cursor:
        number = data.draw(st.integers(-len(events), len(events) - 1))
        at(cursor, data.draw(fractions))
        first = cursor.seek(number).position
        assert cursor.event is not None
        assert cursor.event.event == events[number]
        assert cursor.seek(number).position == first == number % len(events) + 1
        assert cursor.seek(cursor.event).position == first


@given(capture_streams())
@settings(deadline=None, max_examples=25)
def test_steps_meet_every_event_once(events: list[Event]) -> None:
    with over(events) as cursor:
        met = [cursor.step().event for _ in events]
        assert [one.event for one in met if one is not None] == events
        assert [one.at for one in met if one is not None] == list(range(len(events)))
        with pytest.raises(IndexError):
            cursor.step()
        assert [cursor.event, *(cursor.back().event for _ in events)] == [*reversed(met), None]
        with pytest.raises(IndexError):
            cursor.back()


# What it is sent to -----------------------------------------------------------------------------------


def matches(cursor: tl.Cursor, what: Any) -> list[int]:
    """Every event that ``next`` meets, from before the first."""
    cursor.seek(0.0)
    found: list[int] = []
    while True:
        try:
            cursor.next(what)
        except tl.errors.LookupRefused:
            return found
        assert cursor.event is not None
        found.append(cursor.event.at)


def moves_agree(cursor: tl.Cursor, what: Any, expected: list[int]) -> None:
    """All four moves, from every position, against the list of matches."""
    assert matches(cursor, what) == expected
    for position in range(cursor.num_events + 1):
        here = position - 1  # the event it stands on
        wanted = {
            "next": expected[bisect_right(expected, here) :][:1],
            "run_to": expected[bisect_left(expected, here) :][:1],
            "previous": expected[: bisect_left(expected, here)][-1:],
            "run_back_to": expected[: bisect_right(expected, here)][-1:],
        }
        for move, found in wanted.items():
            cursor.seek(position - 1 if position else 0.0)
            if found:
                getattr(cursor, move)(what)
                assert cursor.position == found[0] + 1
            else:
                with pytest.raises(KeyError):
                    getattr(cursor, move)(what)
                assert cursor.position == position


@given(capture_streams(), st.data())
@settings(deadline=None, max_examples=40)
def test_every_move_to_a_type_finds_what_reading_all_events_finds(events: list[Event], data: st.DataObject) -> None:
    kind = type(data.draw(st.sampled_from(events)))
    expected = [number for number, event in enumerate(events) if isinstance(event, kind)]
    with over(events) as cursor:
        moves_agree(cursor, data.draw(st.sampled_from([kind, kind.event_name])), expected)


@given(capture_streams())
@settings(deadline=None, max_examples=20)
def test_a_predicate_sees_the_event_and_the_capture_right_after_it(events: list[Event]) -> None:
    with over(events) as cursor:
        expected = [number for number in range(len(events)) if "ops" in cursor.seek(number).trace.moment.made]
        moves_agree(cursor, lambda event, trace: "ops" in trace.moment.made, expected)
        seen: list[tuple[int, int]] = []
        assert matches(cursor, lambda event, trace: seen.append((event.at, trace.position)) or False) == []
        assert seen == [(number, number + 1) for number in range(len(events))]


@given(capture_streams(backward=True))
@settings(deadline=None, max_examples=20)
def test_a_selector_finds_the_events_that_made_its_rows(events: list[Event]) -> None:
    with over(events) as cursor:
        tables = cursor.whole.tables
        made = sorted(set(tables.forward.rows.event))
        assert matches(cursor, tl.where(lambda op: True)) == made
        for row, label in enumerate(tables.ops.column("label")):
            cursor.seek(0.0).next(tl.label(label))
            assert label in cursor.trace.ops.labels
            assert len(cursor.trace.ops) == bisect_right(tables.forward.rows.event, tables.forward.rows.event[row])
            assert label not in cursor.back().trace.ops.labels


CHOSEN: list[Selector] = [
    tl.func("tanh"),
    tl.in_module("fc:2"),
    tl.module("out"),
    tl.grad("tanh_1_4:1"),
    tl.grad(tl.in_module("fc")) & tl.in_backward_pass(1),
    tl.grad_fn("tanh"),
    tl.func("tanh") | tl.grad("tanh_1_4:2"),
    ~tl.func("tanh"),
    tl.where(lambda op: op.num_children > 1),
]


@pytest.mark.parametrize("selector", CHOSEN, ids=repr)
def test_next_and_previous_find_the_same_events(real: Callable[[], tl.Cursor], selector: Selector) -> None:
    cursor = real()
    found = matches(cursor, selector)
    assert found
    moves_agree(cursor, selector, found)
    for number in found[:-1]:
        assert cursor.seek(number).next(selector).previous(selector).position == number + 1


@pytest.mark.parametrize("label", ["tanh_1_4:1", "linear_2_8", "mul_1_7"])
def test_a_gradient_is_there_from_its_event_on(real: Callable[[], tl.Cursor], label: str) -> None:
    cursor = real()
    for number in matches(cursor, tl.grad(label)):
        there = cursor.seek(number).trace.ops[label].num_saved_grads
        assert cursor.back().trace.ops[label].num_saved_grads == there - 1
    assert there == cursor.whole.ops[label].num_saved_grads


# The records there ------------------------------------------------------------------------------------


def test_the_records_hold_together_at_every_event(real: Callable[[], tl.Cursor], tmp_path: Path) -> None:
    cursor = real()
    whole = cursor.whole
    for _ in range(cursor.num_events):
        trace = cursor.step().trace
        assert trace.check_metadata_invariants()
        assert trace.ops.labels == whole.ops.labels[: len(trace.ops)]
        assert [node.label for node in trace.autograd.grad_fns] == [
            label for label in whole.autograd.grad_fns.labels if label in set(trace.autograd.grad_fns.labels)
        ]
        assert len(trace.autograd.grad_fn_calls) == trace.moment.counts["grad_fn_calls"]
    assert cursor.trace.fingerprint == whole.fingerprint


NAMES = {
    "ops": "label",
    "layers": "layer_label",
    "modules": "address",
    "module_calls": "call_label",
    "params": "address",
    "backward_passes": "pass_index",
    "grad_fns": "label",
    "grad_fn_calls": "call_label",
}
"""The column that names each record of a table for good."""


def changes_make_the_records(cursor: tl.Cursor) -> None:
    """Rows that came and cells that changed, event by event, are the rows and cells of the end; no cell jumps."""
    cells: dict[tuple[str, str | None, str], Any] = {}
    came: dict[str, list[str | None]] = {name: [] for name in NAMES}
    cursor.seek(0.0)
    for _ in range(cursor.num_events):
        for change in cursor.step().changed():
            if change.table not in NAMES:
                continue
            if change.field is None:
                assert change.how == "came"
                came[change.table].append(change.record)
            else:
                assert change.how == "changed"
                key = (change.table, change.record, change.field)
                assert cells.get(key, change.before) == change.before
                assert change.before != change.after
                cells[key] = change.after
    whole = cursor.whole.tables
    for name, column in NAMES.items():
        assert sorted(map(str, came[name])) == sorted(map(str, whole.table(name).column(column)))
    for (name, record, field), value in cells.items():
        table = whole.table(name)
        assert table.value(field, list(map(str, table.column(NAMES[name]))).index(str(record))) == value


def test_the_changes_of_all_events_together_make_the_records(real: Callable[[], tl.Cursor]) -> None:
    changes_make_the_records(real())


@given(capture_streams())
@settings(deadline=None, max_examples=15)
def test_the_same_of_made_up_captures(events: list[Event]) -> None:
    with over(events) as cursor:
        changes_make_the_records(cursor)


def test_a_module_that_is_called_before_one_that_stands_above_it_is_told_by_its_name() -> None:
    """What is called stands first, so its row moves up when it is entered."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm1d(2)
            self.second = nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(x + self.first.running_mean)

    trace = tl.trace(Late().eval(), torch.ones(2, 2))
    with tl.time_travel(trace) as cursor:
        changes_make_the_records(cursor)
    trace.cleanup()
