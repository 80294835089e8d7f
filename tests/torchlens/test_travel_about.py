"""What an event is about is told of every event that says it, by the cursor and by the panes alike."""

from __future__ import annotations

import typing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import torchlens as tl
from journal import MemoryJournal
from journal.events import EVENTS_BY_NAME, At, Event, ForwardAborted, StreamId, StreamOpened, Value
from torchlens.debugger.panes import event_line, record_lines, records_at, value_lines
from torchlens.debugger.session import Session
from torchlens.testing.drawing.streams import capture_streams, write_stream
from torchlens.travel.about import TELLS_MORE_OF, told_by

MAKERS = {"input_seen", "constant_seen", "value_reread", "buffer_seen", "buffer_written"}
"""Events whose ``value`` is one that they make themselves."""

ELSEWHERE = {StreamOpened, ForwardAborted}
"""The first names an event of another stream; the second a value of the event that it names, which is nearer."""


def fields_of(cls: type[Event], kind: Any) -> list[str]:
    """The fields of a class that hold one number of a kind."""
    hints = typing.get_type_hints(cls)
    return [name for name in cls.fields if kind in (hints[name], *typing.get_args(hints[name]))]


@pytest.mark.parametrize("name", EVENTS_BY_NAME)
def test_an_event_class_with_the_number_of_another_event_is_listed(name: str) -> None:
    cls = EVENTS_BY_NAME[name]
    if cls in ELSEWHERE:
        return
    assert fields_of(cls, At) == ([TELLS_MORE_OF[cls]] if cls in TELLS_MORE_OF else [])


@settings(max_examples=80)
@given(capture_streams())
def test_whatever_names_an_event_a_value_or_a_node_is_about_that(events: list[Event]) -> None:
    journal = MemoryJournal()
    write_stream(journal, events).close()
    trace = tl.Trace(journal, StreamId(0))
    cursor = tl.time_travel(trace)
    shown = {value for table in (trace.tables.ops, trace.tables.orphans) for value in table.context.value_rows}
    for stamped in trace.events():
        event, about = stamped.event, told_by(trace, stamped)
        where = cursor.seek(stamped.at).where()
        other = getattr(event, TELLS_MORE_OF.get(type(event), ""), None)
        if other is not None:
            assert (about.at, about.event) == (other, events[other])
            there = cursor.seek(other).where()
            assert (where.labels, where.node, where.backward_pass) == (there.labels, there.node, there.backward_pass)
            cursor.seek(stamped.at)
        value = getattr(event, "value", None)
        if value in shown and fields_of(type(event), Value) and event.event_name not in MAKERS:
            assert len(about.sites) == 1
            assert trace.table(about.sites[0][0]).value("value", about.sites[0][1]) == value
            assert where.labels == about.labels(trace.tables)
            assert where.labels[0] in event_line(trace, stamped, 0)
            assert next(records_at(trace, stamped)).read("value") == value
        if getattr(about.event, "node", None) is not None and about.node >= 0:
            assert where.node == trace.tables.forward.autograd.labels[about.node]
        if about.pass_number is not None:
            assert f"pass {about.pass_number + 1}" in event_line(trace, stamped, 0)
        assert record_lines(cursor)


def told_statistics() -> tl.Trace:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    trace = tl.trace(
        model, torch.ones(1, 2), save=tl.stats_only(), capture=tl.CaptureOptions(save_grads=tl.stats_only())
    )
    return trace.backward(trace.output.sum())


def test_statistics_are_told_with_the_op_or_the_gradient_that_they_are_of() -> None:
    trace = told_statistics()
    session = Session(tl.time_travel(trace))
    (line,) = session.answer("next statistics_taken")
    assert line.endswith("input_1")
    session.answer("next")
    assert session.cursor.where().labels == ("linear_1_1",)
    assert session.cursor.where().module == "0:1"
    assert session.cursor.where().place is not None
    assert any(text.startswith("linear_1_1: ") for text in value_lines(session.cursor))
    record = "\n".join(record_lines(session.cursor))
    assert "figures" in record  # what the event says itself
    (line,) = session.answer("next gradient_statistics_taken")
    assert "pass 1" in line
    where = session.cursor.where()
    assert where.backward_pass == 1
    assert where.node is not None
    assert where.node in line
    assert any(text.startswith("gradient of ") for text in value_lines(session.cursor))
    assert session.answer("why")[0].startswith("gradient of ")


def test_a_module_that_is_entered_is_named_in_the_list_of_events() -> None:
    session = Session(tl.time_travel(tl.trace(nn.Sequential(nn.ReLU()), torch.ones(1))))
    assert session.answer("next module_entered")[0].endswith("self:1")
    assert session.answer("next")[0].endswith("0:1")
    assert session.answer("next module_left")[0].endswith("0:1")


def test_a_branch_over_a_parameter_names_it() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gate if self.gate else x

    cursor = tl.time_travel(tl.trace(Gated(), torch.ones(1))).next("branch_taken")
    assert cursor.where().parameter == "gate"
    assert cursor.event is not None
    assert event_line(cursor.whole, cursor.event, 0).endswith("gate")
