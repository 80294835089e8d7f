"""A capture that somebody made up is run to an end or refused by code, whatever stands in its events."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchlens as tl
from journal import Event, MemoryJournal
from journal.errors import TorchLensError
from tests.strategies import capture_streams, plain_values, write_stream
from torchlens.running import preflight


def refused_or_done(act: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return act()
    except TorchLensError:
        return None


def look_at(events: list[Event]) -> None:
    journal = MemoryJournal()
    try:
        writer = write_stream(journal, events)
        trace = tl.Trace(journal, writer.stream)
    except (TorchLensError, AssertionError, LookupError, TypeError, ValueError):
        return  # no journal holds such, or what writes these names no payload of it
    refused_or_done(lambda: preflight(trace))
    ready = refused_or_done(lambda: trace.readiness)
    refused_or_done(lambda: trace.load_state_dict({}))
    for inputs in (torch.ones(2, 3), [torch.ones(2, 3), torch.ones(4)], [torch.ones(()), torch.ones(2, 1, 5)]):
        refused_or_done(lambda inputs=inputs: trace.run(inputs=inputs))  # type: ignore[misc]  # bound now
    refused_or_done(lambda: trace.make_again(0))
    if ready is not None and ready.diagnostics:
        assert refused_or_done(lambda: trace.run(inputs=torch.ones(2, 3))) is None
    refused_or_done(trace.cleanup)


@given(capture_streams(endings=("returned",)))
@settings(max_examples=30)
def test_a_made_up_capture_is_run_or_refused(events: list[Event]) -> None:
    look_at(events)


@given(capture_streams(endings=("returned",), min_steps=3), st.data())
@settings(max_examples=60)
def test_a_capture_with_something_changed_is_run_or_refused(events: list[Event], data: st.DataObject) -> None:
    events = list(events)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(events) - 1))
        fields = type(events[at]).fields
        if fields:
            field = data.draw(st.sampled_from(fields))
            value = data.draw(plain_values() | st.sampled_from([getattr(one, field, 0) for one in events]))
            events[at] = attrs.evolve(events[at], **{field: value})
    look_at(events)


def test_a_scattered_constant_takes_no_more_memory_than_its_elements() -> None:
    table = torch.zeros(1 << 20)[:: 1 << 18]
    trace = tl.trace(lambda x: x + table, torch.ones(4), capture=tl.CaptureOptions(replayable=True))
    assert torch.equal(trace.run(inputs=torch.ones(4)).output, torch.ones(4))


@pytest.mark.parametrize("path", ["os.system", "torch.load", "torch.ops.aten.from_file", "builtins.eval"])
def test_a_stored_name_is_a_key_of_closed_tables_and_nothing_else(path: str) -> None:
    from torchlens.running.functions import function_of

    assert function_of(path.rpartition(".")[2], path, None) is None
