"""The rows of the backward fold, read by name, are what the events of a diary tell."""

from __future__ import annotations

from hypothesis import given

from journal.events import Event, GradientObserved, NodeFired, PassOpened
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams


@given(capture_streams(backward=True))
def test_firings_and_gradients_are_those_of_the_events(events: list[Event]) -> None:
    state = tables_of(events).forward.backward
    told = [(at, each) for at, each in enumerate(events) if isinstance(each, NodeFired)]
    assert [(one.at, state.numbers[one.node], one.pass_number) for one in state.firings()] == [
        (at, each.node, each.pass_number) for at, each in told
    ]
    seen = [(at, each) for at, each in enumerate(events) if isinstance(each, GradientObserved)]
    assert [(one.at, state.numbers[one.node], bool(one.is_input), one.slot) for one in state.observed()] == [
        (at, each.node, each.side == "input", each.slot) for at, each in seen
    ]
    assert [state.firing(fire) for fire in range(len(told))] == list(state.firings())
    assert [state.gradient(number) for number in range(len(seen))] == list(state.observed())
    passes = [at for at, each in enumerate(events) if isinstance(each, PassOpened)]
    assert [state.opened_at(number) for number in range(len(passes))] == passes
