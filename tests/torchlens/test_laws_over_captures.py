"""Laws over real captures: the same events give the same records, wherever they are kept and however folded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from journal import Journal, MemoryJournal, Row, StreamId, open_for_writing
from journal.events import StreamOpened
from projections import Projector, fingerprint
from projections.accounts.twins import likeness
from projections.build import FOLDS
from projections.columns import OCCASION
from projections.folds.fold import Folding
from projections.stored.encoding import Encoder
from tests.golden import payloads
from tests.programs import run
from torchlens.testing import Program, programs

EVERYTHING = Program.parse("""
model(train=True, seed=0, returns='nested')
a = given('float32')
b = given('float64')
@containers
def block_1():
    a = linear(a, b)
    a = batch_norm(a, b)
    b = dropout(a, a)
    if positive(a):
        a = add(a, b)
    else:
        a = reflected(a, b)
@keywords
def main():
    for _ in range(3):
        a = block_1(a, b)
        c = relu_(a, a)
    b = view(a, a)
    b = write_view(b, a)
    c = chunk(b, a)
    c = maximum(c, a)
    c = identity(c, a)
    c = dead_code(c, a)
    while small(a, 2):
        a = gru(a, c)
    with autocast():
        b = attention(a, c)
    b = write_buffer(b, a)
    b = assign_buffer(b, a)
    c = own_function(c, b)
""")
"""Something of all that a capture can hold."""


def kept(program: Program, **options: Any) -> tl.Trace:
    """A trace of the program, the partial one where its model raises."""
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    np.random.seed(program.seed)
    try:
        return tl.trace(*program.build(), **options)
    except tl.TraceCaptureError as raised:
        return raised.partial_trace


class Held:
    """Rows as a source of folds."""

    def __init__(self, rows: Sequence[Row], trace: tl.Trace | None = None) -> None:
        self.held = rows
        self.trace = trace

    def head(self) -> int:
        return len(self.held)

    def rows(self, start: int, stop: int | None = None) -> Iterable[Sequence[Row]]:
        yield self.held[start:stop]

    def row(self, at: int) -> Row:
        return self.held[at]

    def payload(self, number: int) -> bytes | None:
        return None if self.trace is None else bytes(self.trace.journal.payload(self.trace.stream, number))


def rows_of(trace: tl.Trace) -> list[Row]:
    return [row for run in trace.journal.rows(trace.stream) for row in run]


@given(programs())
@settings(max_examples=40)
def test_records_keep_their_promises_on_every_model(program: Program) -> None:
    trace = kept(program)
    trace.check_metadata_invariants()
    assert trace.outcome.status in ("complete", "failed")


WRITTEN_AND_HANDED_ON = Program.parse("""
model(train=False, seed=0, returns='one')
a = given('float32')
@containers
def block_1():
    a = write_view(a, a)
    a = tanh(a, a)
def main():
    for _ in range(2):
        a = block_1(b, a)
""")
"""A module returns a tensor whose memory it wrote through a view, and the model goes on with it."""


class Handing(nn.Module):
    """Modules that hand on what no op made as it is: a tensor of the model's own, and one written through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.hand = nn.Identity()
        self.halve = Halving()
        self.own = [torch.ones(3)]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x + self.own[0]
        own = self.hand(self.own[0])
        halved = self.hand(self.halve(x * 2))
        halved[1:].neg_()
        return own + x, before * self.own[0], halved + own, own


class Halving(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:1].mul_(0.5)
        return x


def test_what_an_op_uses_is_told_also_where_no_op_returned_it_as_it_is() -> None:
    again = kept(WRITTEN_AND_HANDED_ON)
    again.check_metadata_invariants()
    assert again.ops["getitem_1_1:2"].edge_uses == (("mul_1_2:1", "getitem_1_1:2", "positional", (0,)),)
    trace = tl.trace(Handing(), torch.ones(3))
    trace.check_metadata_invariants()
    uses = {op.label: [(use[0], use[3]) for use in op.edge_uses] for op in trace.ops if op.func_name == "__add__"}
    assert uses == {
        "add_1_1": [("input_1", (0,))],
        "add_2_8": [("identity_1_2:1", (0,)), ("input_1", (1,))],
        "add_3_10": [("neg_1_7", (0,)), ("identity_1_2:1", (1,))],
    }
    assert trace.ops["neg_1_7"].has_out_variations
    assert trace.ops["output_4"].parents == ("identity_1_2:1",)
    assert trace.to_pandas().shape[0] == len(trace.ops)


def test_a_module_hands_on_also_what_was_written_before_through_a_view() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer = nn.Sequential(nn.Identity())
            self.halve = Halving()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * 1
            h[:1].mul_(0.5)
            return self.halve(self.outer(h)) + 1

    trace = tl.trace(Model(), torch.ones(3))
    trace.check_metadata_invariants()
    assert [(op.label, op.parents) for op in trace.ops if op.func_name == "identity"] == [
        ("identity_1_4", ("mul_2_3",)),
    ]
    assert torch.equal(trace.ops["identity_1_4"].out, torch.tensor([0.5, 1, 1]))
    assert trace.ops["identity_1_4"].modules == ("outer:1", "outer.0:1")
    assert trace.ops["getitem_2_5"].parents == ("identity_1_4",)
    assert trace.ops["add_1_7"].parents == ("mul_3_6",), "what a module wrote is no longer what it was given"


@given(program=programs())
@settings(max_examples=25)
def test_equal_runs_have_equal_records_wherever_they_are_kept(program: Program, tmp_path: Path) -> None:
    """But for times, and for what the allocator decided."""
    first = kept(program, save=[])
    stored = kept(program, save=[], journal=tmp_path / "run.journal")
    assert likeness(rows_of(first)) == likeness(rows_of(stored))
    mine, theirs = (Encoder(trace.tables) for trace in (first, stored))
    for name, table in first.tables.all.items():
        ours, other = mine.table(table).columns, theirs.table(stored.tables.all[name]).columns
        assert {column for column in ours if ours[column] != other[column]} <= OCCASION[name]
    mark, stream = stored.fingerprint, stored.stream
    stored.cleanup()
    with tl.open_journal(tmp_path / "run.journal") as view:
        assert view.capture(stream).fingerprint == mark


PLACES = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)
"""Events by their place in a capture, in parts of ten thousand: how many it has may differ from run to run."""


@given(programs(), PLACES)
@settings(max_examples=25)
def test_a_fold_in_pieces_is_the_fold_at_once(program: Program, places: list[int]) -> None:
    rows = rows_of(kept(program))
    at_once = fingerprint(Projector(Held(rows)).tables())
    source = Held(rows)
    projector = Projector(source)
    for place in sorted(places):
        source.held = rows[: len(rows) * place // 10_000]
        projector.tables()
    source.held = rows
    assert fingerprint(projector.tables()) == at_once


@given(programs(), PLACES, st.sampled_from([1, 7, 50, 1000]))
@settings(max_examples=25)
def test_a_capture_at_any_event_is_what_folding_up_to_there_gives(
    program: Program, places: list[int], spacing: int
) -> None:
    rows = rows_of(kept(program))
    projector = Projector(Held(rows), spacing=spacing)
    projector.tables()
    for at in [len(rows) * place // 10_000 for place in places]:
        assert fingerprint(projector.at(at).tables) == fingerprint(Projector(Held(rows[:at])).tables())
        assert projector.at(at).states() == folded(rows[:at])


CAPTURES: dict[str, Callable[[], tl.Trace]] = {
    "complete": lambda: kept(EVERYTHING),
    "halted": lambda: kept(EVERYTHING, stop_after="block_1:2"),
    "failed": lambda: kept(Program.parse(f"{EVERYTHING}\n    a = raises(a, a)")),
}


@pytest.mark.parametrize("status", CAPTURES)
def test_a_capture_that_ended_in_any_way_is_at_every_event_what_folding_up_to_there_gives(status: str) -> None:
    trace = CAPTURES[status]()
    assert trace.outcome.status == status
    rows = rows_of(trace)
    for spacing in (1, 50):
        projector = Projector(Held(rows, trace), spacing=spacing)
        projector.tables()
        assert len(projector.snapshots.heads) == len(rows) // spacing
        for at in [*range(0, len(rows) + 1, 53), *range(len(rows), 0, -97)]:
            assert fingerprint(projector.at(at).tables) == fingerprint(Projector(Held(rows[:at], trace)).tables())
            assert projector.at(at).states() == folded(rows[:at])


def folded(rows: Sequence[Row]) -> list[Any]:
    """The states of the folds, row by row from the first."""
    folding = Folding(FOLDS)
    folding.take(rows)
    return list(folding.states)


def copied(trace: tl.Trace, journal: Journal) -> StreamId:
    """The events and payloads of a trace, each event with its time, in a stream of another journal."""
    stamped = list(trace.journal.events(trace.stream))
    opened = stamped[0].event
    assert isinstance(opened, StreamOpened)
    writer = journal.open_stream(opened, stamped[0].time_ns)
    for data in payloads(trace.journal, trace.stream):
        _ = writer.reserve() if data is None else writer.keep(data)
    for one in stamped[1:]:
        writer.append(one.event, one.time_ns)
    writer.close()
    return writer.stream


def test_memory_disk_and_another_process_agree(tmp_path: Path) -> None:
    trace = kept(EVERYTHING, save=[])
    memory = MemoryJournal()
    assert tl.Trace(memory, copied(trace, memory)).fingerprint == trace.fingerprint
    path = tmp_path / "run.journal"
    disk = open_for_writing(path)
    copied(trace, disk)
    disk.close()
    script = f"import torchlens as tl; print(tl.load({str(path)!r}).fingerprint)"
    assert run(script).stdout.strip() == trace.fingerprint


@pytest.mark.parametrize("durability", ["close", "batch", "event"])
def test_a_journaled_capture_reads_back_as_it_was(tmp_path: Path, durability: Any) -> None:
    live = kept(EVERYTHING, journal=tl.JournalOptions(str(tmp_path / "run.journal"), durability=durability))
    values = {op.label: op.out for op in live.ops if op.has_saved_activation}
    mark = live.fingerprint
    live.cleanup()
    loaded = tl.load(tmp_path / "run.journal")
    assert loaded.fingerprint == mark
    assert loaded.ops.labels
    for label, value in values.items():
        assert torch.equal(loaded.ops[label].out, value), label
    with pytest.raises(tl.TorchLensError) as refused:
        _ = loaded.output
    assert refused.value.code == "output_not_stored"
    loaded.cleanup()


def test_captures_of_one_journal_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "many.journal"
    model = nn.Linear(2, 2)
    traces = [tl.trace(model, torch.full((1, 2), float(k)), journal=path, name=f"run {k}") for k in range(3)]
    assert [trace["input_1"].out[0, 0].item() for trace in traces] == [0, 1, 2]
    with tl.open_journal(path) as view:
        assert [capture.trace_label for capture in view.captures] == ["run 0", "run 1", "run 2"]
        assert [capture["input_1"].out[0, 0].item() for capture in view.captures] == [0, 1, 2]
    for trace in traces:
        trace.cleanup()


def test_a_capture_killed_in_a_kernel_leaves_a_partial_trace(tmp_path: Path) -> None:
    path = tmp_path / "killed.journal"
    script = f"""
        import os, signal, torch, torchlens as tl
        class Dies(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 4)
            def forward(self, x):
                for k in range(1000):
                    x = torch.tanh(self.fc(x))
                    if k == 700:
                        os.kill(os.getpid(), signal.SIGKILL)
                return x
        tl.trace(Dies(), torch.ones(2, 4), journal=tl.JournalOptions({str(path)!r}, durability="event", sync="none"))
    """
    run(script, ends=-9)
    trace = tl.load(path)
    assert trace.outcome.status == "unfinished"
    assert not trace.output_layers
    assert trace.ops.labels[-1] == "tanh_1_2:701"
    assert torch.equal(trace.ops[-1].out, torch.tanh(trace.ops[-2].out))
    trace.check_metadata_invariants()
    trace.cleanup()
    again = tl.trace(nn.Linear(4, 4), torch.ones(1, 4), journal=path)  # the next capture goes on after it
    assert again.outcome.status == "complete"
    with tl.open_journal(path) as view:
        assert [capture.outcome.status for capture in view.captures] == ["unfinished", "complete"]
    again.cleanup()


def test_a_moment_is_asked_for_by_a_number_of_events() -> None:
    trace = tl.trace(torch.nn.ReLU(), torch.ones(2))
    head = trace.tables.head
    assert trace.as_of(head).counts["ops"] == len(trace.ops)
    assert trace.as_of(0).counts["ops"] == 0
    assert repr(trace.as_of(0)) == "<Moment after 0 events: 0 ops, 0 module calls running>"
    for beyond in (-1, head + 1):
        with pytest.raises(tl.errors.IndexOutOfRange) as refused:
            trace.as_of(beyond)
        assert refused.value.code == "event_out_of_range"
    for odd in (1.5, "3", None, True):
        with pytest.raises(tl.errors.ConfigurationError) as misunderstood:
            trace.as_of(odd)  # type: ignore[arg-type]  # refused
        assert misunderstood.value.code == "event_count_type_invalid"
    trace.cleanup()
