"""A capture that somebody made up is run to an end or refused by code, whatever stands in its events."""

from __future__ import annotations

import re
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
from torchlens.running.functions import function_of


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


@pytest.mark.parametrize("path", ["os.system", "torch.load", "torch.ops.aten.save", "builtins.eval"])
def test_a_stored_name_is_a_key_of_closed_tables_and_nothing_else(path: str) -> None:
    assert function_of(path.rpartition(".")[2], path, None) is None


REACHING = re.compile(r"save|file|^_?print$|socket|send|recv|all_?reduce|all_?gather|scatter_tensor|broadcast_$")
REACHED = frozenset(("filename", "file", "path", "url", "host", "port", "command", "group_name", "process_group"))
FOREIGN = re.compile(r"classes\.(c10d|dist_|profiler)|RRef|Future")


def test_no_operator_of_the_closed_tables_reaches_a_file_a_process_or_the_network() -> None:
    known = 0
    for schema in torch._C._jit_get_all_schemas():
        space, name = schema.name.split("::")
        if function_of(name, f"torch.ops.{space}.{name}", None) is None:
            continue
        known += 1
        types = [str(argument.type) for argument in (*schema.arguments, *schema.returns)]
        names = {argument.name for argument in schema.arguments if "str" in str(argument.type)}
        if REACHING.search(name) or REACHED & names or any(map(FOREIGN.search, types)):
            pytest.fail(str(schema))
    assert known > 1000


def test_no_watched_function_is_given_a_file() -> None:
    named = ("torch.from_file", "torch.save", "torch.load", "torch.Tensor.share_memory_")
    assert not [path for path in named if function_of(path.rpartition(".")[2], path, None) is not None]
