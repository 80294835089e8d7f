"""What holds of a capture at any of its events, from whatever snapshots it is worked out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.errors import JournalCorrupt
from journal.events import Event, ForwardHalted, ModuleEntered, ModuleLeft, OpExecuted, Row
from projections import Projector
from projections.build import FOLDS, Moment
from projections.folds.fold import Fold, Folding, Source
from projections.folds.graph import NESTED
from projections.folds.snapshots import BYTES_PER_EVENT, LARGE, decode, encode, snapshot_of
from projections.folds.split import Appended, FirstOf, Head, Overwritten, Split, first_of
from projections.folds.window import MARKS
from tests.projections.encoded import encode as encode_tables
from tests.projections.making import Made, Rows, source_of, two_blocks
from tests.projections.test_foreign_events import changed, whole
from tests.strategies import capture_streams

SPACINGS: Final = (1, 2, 3, 7)

spacings = st.sampled_from(SPACINGS)
places = st.lists(st.integers(0, 200), min_size=1, max_size=5)


def folded(events: Sequence[Event], at: int | None = None) -> Folding:
    """The folds over a prefix, event by event from the first."""
    folding = Folding(FOLDS)
    folding.advance(source_of(events), len(events) if at is None else at)
    return folding


def projector_of(events: Sequence[Event], spacing: int) -> Projector:
    """A projector that has folded the stream."""
    projector = Projector(source_of(events, 5), spacing=spacing)
    projector.at(len(events))
    return projector


def told(moment: Moment) -> tuple[Any, ...]:
    """Everything that a moment says at once."""
    return moment.snapshot, moment.head, moment.counts, moment.made, moment.running, moment.facts


# Laws ---------------------------------------------------------------------------------------------


@given(capture_streams(), spacings, places)
@settings(deadline=None)
def test_the_head_and_the_lengths_at_an_event_are_those_of_folding_up_to_it(
    events: list[Event], spacing: int, ats: list[int]
) -> None:
    projector = projector_of(events, spacing)
    for at in ats:
        moment = projector.at(at)
        assert moment.head == min(at, len(events))
        assert moment.snapshot == snapshot_of(FOLDS, folded(events, moment.head))


@given(capture_streams(), spacings, places)
@settings(deadline=None)
def test_the_states_at_an_event_are_those_of_folding_up_to_it(
    events: list[Event], spacing: int, ats: list[int]
) -> None:
    projector = projector_of(events, spacing)
    for at in ats:
        moment = projector.at(at)
        assert moment.states() == list(folded(events, moment.head).states)


@given(capture_streams(), spacings, places)
@settings(deadline=None)
def test_what_a_window_reads_is_what_folding_up_to_there_has(events: list[Event], spacing: int, ats: list[int]) -> None:
    projector = projector_of(events, spacing)
    for at in ats:
        reads_as_folded(projector, events, projector.at(at).head)


def reads_as_folded(projector: Projector, events: Sequence[Event], at: int) -> None:
    """The states of the last window, item by item and key by key."""
    assert projector.window is not None
    for fold, seen, state in zip(FOLDS, projector.window.folding.states, folded(events, at).states, strict=True):
        for name, how in fold.split.how.items():
            found, wanted = getattr(seen, name), getattr(state, name)
            if isinstance(how, FirstOf):
                assert {key: found.get(key) for key in found.known} == {key: wanted.get(key) for key in found.known}
            elif isinstance(how, Appended | Overwritten):
                assert [found[place] for place in range(len(found))] == wanted == found[:]
            elif isinstance(how, Head):
                assert found == wanted


@given(capture_streams(), spacings, st.integers(0, 200))
@settings(deadline=None, max_examples=50)
def test_the_tables_at_an_event_are_those_of_the_events_before_it(events: list[Event], spacing: int, at: int) -> None:
    moment = projector_of(events, spacing).at(at)
    assert encode_tables(moment.tables) == encode_tables(Projector(source_of(events[:at])).tables())
    assert moment.tables.head == moment.head


@given(capture_streams(), spacings, spacings, places, st.integers(0, 200))
@settings(deadline=None)
def test_a_moment_depends_neither_on_the_spacing_nor_on_what_was_read_before(
    events: list[Event], one: int, other: int, before: list[int], at: int
) -> None:
    used, fresh = projector_of(events, one), projector_of(events, other)
    for earlier in before:
        used.at(earlier)
    assert told(used.at(at)) == told(fresh.at(at))


@given(capture_streams(), spacings, st.data())
@settings(deadline=None, max_examples=50)
def test_every_step_forward_and_back_leads_to_where_a_jump_leads(
    events: list[Event], spacing: int, data: st.DataObject
) -> None:
    projector = projector_of(events, spacing)
    at = data.draw(st.integers(0, len(events)))
    for step in data.draw(st.lists(st.sampled_from((-1, 1)), max_size=12)):
        at = max(0, min(len(events), at + step))
        assert told(projector.at(at)) == told(projector_of(events, 7).at(at))


@given(capture_streams(), spacings, places, st.integers(0, 200))
@settings(deadline=None, max_examples=50)
def test_moments_of_a_stream_that_grows_are_those_of_the_whole_stream(
    events: list[Event], spacing: int, heads: list[int], at: int
) -> None:
    rows = source_of(events).all
    source = Rows(rows[:0])
    projector = Projector(source, spacing=spacing)
    early: list[Moment] = []
    for length in sorted(heads):
        source.all = rows[:length]
        early.append(projector.at(at))
    source.all = rows
    projector.tables()
    for moment in [*early, projector.at(at)]:
        assert told(moment) == told(projector_of(events, 7).at(moment.head))
        assert moment.states() == list(folded(events, moment.head).states)


@given(capture_streams(), st.integers(0, 200))
def test_rows_at_an_event_are_the_first_rows_at_the_head(events: list[Event], at: int) -> None:
    then, now = folded(events, at), folded(events)
    for fold, early, late in zip(FOLDS, then.states, now.states, strict=True):
        for name, how in fold.split.how.items():
            if isinstance(how, Appended):
                items = getattr(early, name)
                assert getattr(late, name)[: len(items)] == items


@given(capture_streams(), st.integers(0, 200))
def test_a_snapshot_survives_its_bytes(events: list[Event], at: int) -> None:
    snapshot = snapshot_of(FOLDS, folded(events, at))
    data = encode(FOLDS, snapshot)
    assert data is not None
    assert decode(FOLDS, data) == snapshot


@given(capture_streams(), st.integers(0, 200))
@settings(deadline=None)
def test_counts_are_what_the_tables_at_that_event_have(events: list[Event], at: int) -> None:
    moment = projector_of(events, 3).at(at)
    tables, counts = moment.tables, moment.counts
    assert counts["ops"] == len(tables.ops) + len(tables.orphans)
    assert counts["module_calls"] == len(tables.module_calls)
    assert counts["params"] == len(tables.params)
    assert counts["buffers"] == len(tables.buffers)
    assert moment.facts.status == tables.fact("status")
    left = [event is not None and event >= 0 for event in tables.module_calls.column("left_event")]
    assert counts["left_module_calls"] == sum(left)
    if counts["module_calls"] == counts["left_module_calls"]:
        assert moment.running == ()


@given(capture_streams(), st.integers(0, 200))
@settings(deadline=None)
def test_a_row_of_the_tables_at_the_head_exists_from_its_event_on(events: list[Event], at: int) -> None:
    projector = projector_of(events, 3)
    tables, moment = projector.tables(), projector.at(at)
    there = [event < moment.head for event in tables.forward.rows.event]
    assert there == [row < moment.ops_in(tables) for row in range(len(tables.ops))]
    entered = [event < moment.head for event in tables.forward.calls.event]
    assert entered == [call < moment.calls_in(tables) for call in range(len(tables.module_calls))]


def test_a_head_that_has_no_stored_form_is_not_kept_and_changes_nothing() -> None:
    made = two_blocks()
    rows = list(source_of(made.events).all)
    rows[1] = (*rows[1][:-1], object())  # stop_after, as only an object in memory could have it
    projector = Projector(Rows(rows), spacing=2)
    projector.tables()
    assert projector.snapshots.taken == {}
    assert projector.at(20).counts == projector_of(made.events, 3).at(20).counts


# What it costs ------------------------------------------------------------------------------------


def steps(count: int) -> Made:
    """A long loop of one block."""
    made = Made({"fc": "Linear"}, {"fc.weight": (4, 4)})
    x = made.input("x")
    while len(made.events) < count:
        with made.call("fc", x, site="call") as call:
            call.returns(made.op("linear", x, "fc.weight", site="linear"))
        x = made.op("relu_", call.output, site="relu", writes=0)
    return made.returns(x)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of events of every run that is folded."""
    runs: list[int] = []
    take = Folding.take

    def count(folding: Folding, run: Sequence[Row]) -> None:
        runs.append(len(run))
        take(folding, run)

    monkeypatch.setattr(Folding, "take", count)
    return runs


def test_an_event_costs_the_distance_to_the_snapshot_before_it(taken: list[int]) -> None:
    made = steps(5000)
    projector = Projector(made.source(), spacing=500)
    projector.tables()
    for at in (4999, 1001, 3500, 499, 2):
        taken.clear()
        projector.at(at)
        assert sum(taken) == (at - 1) % 500 + 1


def test_a_step_costs_next_to_nothing_either_way(taken: list[int]) -> None:
    made = steps(5000)
    projector = Projector(made.source(), spacing=2000)
    projector.tables()
    projector.at(3800)
    for at in range(3799, 2100, -1):
        taken.clear()
        projector.at(at)
        assert sum(taken) <= MARKS + 1
    for at in [*range(2101, 2300), 3790, 2500, 3000]:
        taken.clear()
        projector.at(at)
        assert sum(taken) <= MARKS + 1


def test_a_moment_in_the_past_folds_no_further_than_the_stream_was_folded(taken: list[int]) -> None:
    projector = Projector(steps(5000).source(), spacing=500)
    projector.at(1000)
    assert sum(taken) == 1000 + 500  # once for the rows, then behind the snapshot at 500


def endless(count: int) -> list[Row]:
    """Module calls that are entered and never left: a head as long as the stream."""
    rows = whole()[:3]
    enter = ModuleEntered(module=0, site=None, args=(), kwargs=(), inputs=(), writers=None)
    return [*rows, *[enter.row(at) for at in range(count)]]


def test_snapshots_stay_small_beside_the_events_whatever_the_events_do() -> None:
    rows = endless(NESTED)
    projector = Projector(Rows(rows), spacing=500)
    projector.at(len(rows))
    sizes = list(map(len, projector.snapshots.taken.values()))
    largest = max(sizes)
    assert largest > 3 * LARGE  # the head was as large as that
    assert sum([size for size in sizes if size > LARGE]) <= BYTES_PER_EVENT * len(rows) + largest
    assert projector.at(15_000).running == tuple(range(15_000 - 3))


# Events that do not fit together ------------------------------------------------------------------


def outcome(source: Source, at: int, spacing: int | None) -> list[Any] | str:
    """The states after some events; or the code of the refusal. Folded from the first where there is no spacing."""
    try:
        if spacing is None:
            projector = Projector(source)
            projector.advance(at)
            return list(projector.folding.states)
        return Projector(source, spacing=spacing).at(at).states()
    except JournalCorrupt as exc:
        return exc.code
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        return "events_contradictory"


@given(st.randoms(use_true_random=False), spacings)
@settings(max_examples=300, deadline=None)
def test_events_that_do_not_fit_together_give_what_folding_them_gives(draw: random.Random, spacing: int) -> None:
    rows = whole()
    for _ in range(draw.choice((1, 2, 3))):
        at = draw.randrange(len(rows))
        field = draw.randrange(2, len(rows[at]))
        rows[at] = (*rows[at][:field], changed(rows[at][field], draw), *rows[at][field + 1 :])
    if draw.random() < 0.3:
        rows.insert(draw.randrange(len(rows)), draw.choice(rows))  # an event that comes twice
    at = draw.randrange(len(rows) + 1)
    assert outcome(Rows(rows), at, spacing) == outcome(Rows(rows), at, None)


def test_a_moment_before_events_that_do_not_fit_is_there_all_the_same() -> None:
    rows = [row if row[0] != OpExecuted.type_id else (*row[:10], (999,), *row[11:]) for row in whole()]
    first = next(at for at, row in enumerate(rows) if row[0] == OpExecuted.type_id)
    projector = Projector(Rows(rows), spacing=2)
    with pytest.raises(JournalCorrupt) as refused:
        projector.tables()
    assert refused.value.code == "events_contradictory"
    assert projector.at(first).counts["ops"] == 1
    assert projector.at(first - 1).head == first - 1


def test_a_call_that_is_left_and_was_not_entered_is_told() -> None:
    rows = [*whole(), ModuleLeft(call=99, result=None, outputs=()).row(0)]
    with pytest.raises(JournalCorrupt) as refused:
        Projector(Rows(rows)).tables()
    assert refused.value.code == "events_contradictory"


# Worked examples ----------------------------------------------------------------------------------


def test_a_moment_says_what_ran_and_what_the_last_event_made() -> None:
    made = two_blocks()
    projector = Projector(made.source(), spacing=4)
    relu = next(at for at, event in enumerate(made.events) if isinstance(event, OpExecuted))
    before, after = projector.at(relu), projector.at(relu + 1)
    assert before.running == (0, 1, 2)  # the root, blk, blk.act
    assert (before.counts["ops"], after.counts["ops"]) == (1, 2)
    assert after.made == {"ops": range(1, 2)}
    assert after.facts.status == "unfinished"
    assert after.tables.ops.column("label") == ["input_1", "relu_1_1"]
    end = projector.at(len(made.events))
    assert end.running == ()
    assert end.facts.status == "complete"
    assert end.counts["left_module_calls"] == end.counts["module_calls"] == 5
    tables = projector.tables()
    assert [before.ops_in(tables), after.ops_in(tables), end.ops_in(tables)] == [1, 2, len(tables.ops)]
    assert [before.calls_in(tables), end.calls_in(tables)] == [3, 5]


def test_before_the_first_event_there_is_nothing() -> None:
    projector = Projector(two_blocks().source())
    assert projector.at(-3).head == 0
    moment = projector.at(0)
    assert set(moment.counts.values()) == {0}
    assert moment.made == {}
    assert moment.running == ()
    assert len(moment.tables.ops) == 0


def handed_through() -> list[Event]:
    """A value that two modules hand through, one inside the other, and then a third; read by an op in between."""
    made = Made({"outer": "Wrapper", "outer.same": "Identity", "last": "Identity"})
    x = made.input("x")
    with made.call("outer", x) as outer:
        with made.call("outer.same", x) as inner:
            made.op("relu", x)
            inner.returns(x)
        made.op("relu", x)
        outer.returns(x)  # it has a row of the inner one by now, and gets none of its own
    with made.call("last", x) as last:
        last.returns(x)
    return made.returns(made.op("tanh", x)).events


def out_of_turn() -> list[Event]:
    """The result of one thread's call is told before that of another's, which has the smaller number."""
    made = Made()
    x = made.input("x")
    one = made.op("relu", x)
    other = made.op("tanh", x)
    made.returns(made.op("add", one, other), made.op("sub", one, other))
    calls = [at for at, event in enumerate(made.events) if isinstance(event, OpExecuted)]
    made.events[calls[0]], made.events[calls[1]] = made.events[calls[1]], made.events[calls[0]]
    return made.events


@pytest.mark.parametrize("spacing", [*SPACINGS, 1000])
@pytest.mark.parametrize("made", [handed_through, out_of_turn], ids=lambda made: made.__name__)
def test_a_value_stands_elsewhere_only_afterwards(made: Callable[[], list[Event]], spacing: int) -> None:
    events = made()
    projector = projector_of(events, spacing)
    for at in [*range(len(events) + 1), *range(len(events), -1, -1)]:
        moment = projector.at(at)
        assert moment.states() == list(folded(events, at).states)
        assert moment.snapshot == snapshot_of(FOLDS, folded(events, at))
        reads_as_folded(projector, events, at)


def test_calls_told_out_of_turn_are_linked_by_their_values() -> None:
    tables = Projector(source_of(out_of_turn())).tables()
    linked = dict(zip(tables.ops.column("label"), tables.ops.column("parents"), strict=True))
    assert linked["add_1_3"] == linked["sub_1_4"] == ("relu_1_2", "tanh_1_1")


def test_a_halted_forward_says_so_from_that_event_on() -> None:
    made = two_blocks()
    cut = next(at for at, event in enumerate(made.events) if isinstance(event, OpExecuted)) + 1
    halted = [
        *made.events[:cut],
        ForwardHalted(at=cut - 1, reason="relu", outputs=(1,)),  # type: ignore[arg-type]  # a plain number stands for one
    ]
    projector = projector_of(halted, 2)
    assert projector.at(cut).facts.status == "unfinished"
    assert projector.at(cut + 1).facts.halt_reason == "relu"
    assert projector.at(cut + 1).made == {"ops": range(2, 3)}  # the output


# Declarations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.name)
def test_every_field_of_a_state_is_declared(fold: Fold[Any]) -> None:
    fields = [field.name for field in attrs.fields(type(fold.initial()))]
    assert list(fold.split.how) == fields
    assert set(fold.split.head).isdisjoint(fold.split.grown)


def test_kinds_of_rows_are_counted_once_each() -> None:
    kinds = [kind for fold in FOLDS for kind in fold.split.counts([0] * len(fold.split.grown))]
    assert len(kinds) == len(set(kinds))
    assert {"ops", "module_calls", "left_module_calls", "params", "buffers", "functions", "call_sites"} <= set(kinds)


def test_a_list_that_does_not_say_how_it_changes_is_refused_when_the_fold_is_made() -> None:
    @attrs.define(slots=True)
    class Passes:
        open: int = 0
        fired: list[int] = attrs.Factory(list)

    with pytest.raises(TypeError, match=r"Passes\.fired does not say"):
        Fold("passes", version=1, initial=Passes, handlers={})


@pytest.mark.parametrize("hint", [set[int], dict[str, int], "Made", tuple[list[int], ...]])
def test_only_plain_values_are_of_the_head_without_saying_so(hint: Any) -> None:
    state = attrs.make_class("State", {"field": attrs.field(default=None, type=hint)})
    state.__module__ = __name__
    with pytest.raises(TypeError, match="does not say"):
        Split(state)


def test_a_declaration_that_names_no_field_is_refused() -> None:
    @attrs.define(slots=True)
    class Lost:
        first: dict[str, int] = first_of("rows")

    with pytest.raises(TypeError, match="names 'rows'"):
        Split(Lost)


def test_a_state_that_is_no_class_of_attrs_is_refused() -> None:
    with pytest.raises(TypeError, match="no class of attrs"):
        Fold("wrong", version=1, initial=dict, handlers={})
