"""What follows from the events of the witness: verdicts, counts, and where each operator belongs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from journal import JournalCorrupt, MemoryJournal
from journal.events import (
    CallEscaped,
    Event,
    OperatorsDispatched,
    OperatorSeen,
    OpExecuted,
    ThreadCalled,
)
from projections import CaptureTables, Projector
from tests.strategies import capture_streams, write_stream
from torchlens.reading.source import StreamSource


def tables_of(events: list[Event]) -> CaptureTables:
    journal = MemoryJournal()
    writer = write_stream(journal, events)
    return Projector(StreamSource(journal, writer.stream)).tables()


@given(capture_streams())
def test_every_counted_operator_is_accounted_for_expected_or_not(events: list[Event]) -> None:
    fact = tables_of(events).fact
    if not fact("verifies_capture"):
        assert fact("num_dispatched") is fact("num_escapes") is fact("capture_verified") is None
        return
    told = sum(len(event.calls) for event in events if isinstance(event, OperatorsDispatched))
    parts = ("num_accounted", "num_expected_opaque", "num_unaccounted")
    assert fact("num_dispatched") == told == sum(fact(part) for part in parts)
    assert fact("num_escapes") == sum(isinstance(event, CallEscaped) for event in events)


@given(capture_streams())
def test_what_is_called_verified_has_nothing_against_it_and_says_why(events: list[Event]) -> None:
    fact = tables_of(events).fact
    assert fact("capture_verification_reason")
    if fact("capture_verified"):
        assert fact("num_escapes") == 0
        assert fact("unaccounted") == fact("threads") == fact("unseen_rows") == ()
        assert fact("status") in ("complete", "halted")


@given(capture_streams())
def test_a_decomposition_stands_at_the_op_whose_event_it_names(events: list[Event]) -> None:
    tables = tables_of(events)
    at = tables.ops.column("event")
    for row, operators in tables.fact("decompositions"):
        assert isinstance(events[at[row]], OpExecuted)
        assert tables.ops.value("slot", row) == 0
        assert all(0 <= operator < len(tables.fact("operators")) for operator in operators)


@given(capture_streams())
def test_an_op_has_a_reason_just_where_it_is_opaque(events: list[Event]) -> None:
    ops = tables_of(events).ops
    assert [reason is not None for reason in ops.column("opaque_reason")] == list(ops.column("is_opaque"))


@given(capture_streams())
def test_the_threads_are_told_as_the_events_have_them(events: list[Event]) -> None:
    told = [event for event in events if isinstance(event, ThreadCalled)]
    assert [thread[0] for thread in tables_of(events).fact("threads")] == [event.thread for event in told]


@pytest.mark.parametrize(
    "event",
    [
        OperatorsDispatched(owner="nobody", by=None, function=None, calls=((3, True, (), ()),)),
        CallEscaped(operator=-1, site=0, call=0, candidates=(), bound=()),
    ],
)
@given(events=capture_streams(endings=["unfinished"]))
def test_an_operator_that_was_not_named_is_refused(event: Any, events: list[Event]) -> None:
    named = sum(isinstance(known, OperatorSeen) for known in events)
    if isinstance(event, OperatorsDispatched):
        event = OperatorsDispatched(owner="nobody", by=None, function=None, calls=((named, True, (), ()),))
    with pytest.raises(JournalCorrupt) as refused:
        tables_of([*events, event])
    assert refused.value.code == "events_contradictory"
