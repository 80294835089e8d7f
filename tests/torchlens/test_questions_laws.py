"""Questions of a capture over every capture that could have happened: they answer, or refuse by code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import torchlens as tl
from journal import MemoryJournal
from journal.events import Event, StreamId
from torchlens.errors import TorchLensError
from torchlens.testing.drawing.streams import capture_streams, write_stream


def made_up(events: list[Event]) -> tl.Trace:
    journal = MemoryJournal()
    write_stream(journal, events).close()
    return tl.Trace(journal, StreamId(0))


def asked(question: Callable[[], Any]) -> Any:
    """What a question gives; None where it is refused."""
    try:
        return question()
    except TorchLensError:  # which has a code
        return None


@settings(max_examples=60)
@given(capture_streams(), st.data())
def test_every_question_is_answered_or_refused_by_code(events: list[Event], data: st.DataObject) -> None:
    trace = made_up(events)
    found = asked(trace.first_nonfinite)
    if found is not None:
        assert str(found)
        assert bool(found) is (found.at is not None)
        assert bool(found) is (found.verdict in ("first", "first_seen"))
        if found:
            assert found.num_nan or found.num_inf
            assert 0 <= found.at < len(events)
    if len(trace.ops):
        row = data.draw(st.integers(0, len(trace.ops) - 1))
        chain = asked(lambda: trace.why(row))
        if chain is not None:
            assert chain.subject == trace.ops[row].label
            assert len(str(chain).splitlines()) <= 42
    for record in trace.autograd.gradients:
        chain = asked(lambda record=record: trace.why(record))
        if chain is not None:
            assert chain.kind == "gradient"
    for call in trace.autograd.grad_fn_calls:
        asked(lambda call=call: str(trace.why(call)))


@settings(max_examples=40)
@given(capture_streams(backward=True))
def test_a_capture_differs_from_itself_in_nothing(events: list[Event]) -> None:
    found = asked(lambda: tl.first_difference(made_up(events), made_up(events), rtol=0, atol=0))
    assert not found
    if found is not None:
        assert not found.only_first
        assert not found.only_second
        assert found.verdict in ("clean", "clean_as_seen", "not_checked")
        assert bool(found.unexamined) is (found.verdict == "clean_as_seen") or found.verdict == "not_checked"


@settings(max_examples=40)
@given(capture_streams(), capture_streams())
def test_any_two_captures_are_compared_each_op_once(one: list[Event], other: list[Event]) -> None:
    first, second = made_up(one), made_up(other)
    found = asked(lambda: tl.first_difference(first, second))
    if found is not None:
        assert len(found.ops) + len(found.only_first) == len(first.ops)
        assert len(found.ops) + len(found.only_second) == len(second.ops)
        assert str(found)
