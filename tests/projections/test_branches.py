"""A branch is projected as the capture it left, told by its own header."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from journal import Event, MemoryJournal
from journal.events import ArgumentsKept, GeneratorsKept, GradientKept, GradientStatisticsTaken
from projections import CaptureTables, Projector
from tests.projections.encoded import decode, encode
from tests.strategies import branched, capture_streams, write_stream
from torchlens.reading.source import StreamSource

HEADER_FACTS = {"name", "trace_label", "tags", "stream_kind", "written_by", "environment"}
"""Facts of the capture table that the header says."""

NUMBERED = {
    *("event", "func_call_id", "left_event", "closed_event"),
    *("started_event", "ended_event", "halted_at", "last_started_event", "last_executed_event", "raised_event"),
    *("arguments_event", "hooks_event", "hooks_arguments_event"),
    *("calls_in_progress", "decompositions", "nonfinite_stop"),
}
"""Columns that hold event numbers."""


def facts_apart(tables: CaptureTables) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of all tables, and those that the header says, apart."""
    found: dict[str, Any] = decode(encode(tables))
    said = {name: found["capture"].pop(name) for name in HEADER_FACTS & found["capture"].keys()}
    return found, said


@given(events=capture_streams(), data=st.data())
def test_a_branch_has_the_tables_of_its_parents_prefix_but_for_its_header(
    events: list[Event], data: st.DataObject
) -> None:
    journal = MemoryJournal()
    parent = write_stream(journal, events)
    cut = data.draw(st.integers(1, len(events)))
    header = attrs.evolve(branched(parent.stream, cut, "what if"), tags=("branch",), written_by="0.2.0")
    branch = journal.open_stream(header, 5)
    found, said = facts_apart(Projector(StreamSource(journal, branch.stream)).tables())
    prefix, _ = facts_apart(Projector(StreamSource(journal, parent.stream)).tables(cut))
    assert found == prefix
    assert (said["trace_label"], said["tags"], said["written_by"]) == (["what if"], [("branch",)], ["0.2.0"])


def moved(event: Event, cut: int) -> Event:
    """The event as a branch that is left at ``cut`` tells it, where it speaks of another behind that."""
    refers = (ArgumentsKept, GeneratorsKept, GradientKept, GradientStatisticsTaken)
    if isinstance(event, refers) and event.of >= cut:
        return attrs.evolve(event, of=event.of + 1)
    return event


@given(events=capture_streams(), cut=st.integers(1, 40))
def test_what_follows_on_a_branch_is_projected_as_it_would_be_on_the_capture(events: list[Event], cut: int) -> None:
    """Event numbers behind the branch point are one higher, for the header: fields that hold them are left out."""
    journal = MemoryJournal()
    parent = write_stream(journal, events)
    branch = journal.open_stream(branched(parent.stream, min(cut, len(events))), 5)
    for at, event in enumerate(events[min(cut, len(events)) :], start=min(cut, len(events))):
        branch.append(moved(event, cut), 1000 * at)
    found, _ = facts_apart(Projector(StreamSource(journal, branch.stream)).tables())
    whole, _ = facts_apart(Projector(StreamSource(journal, parent.stream)).tables())
    for name, columns in whole.items():
        differing = {column for column, cells in columns.items() if found[name][column] != cells}
        assert differing <= NUMBERED, name
