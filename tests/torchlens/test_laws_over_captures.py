"""Laws over real captures: the same events give the same records, wherever they are kept and however folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from journal import Journal, MemoryJournal, Row, StreamId, open_for_writing
from journal.events import StreamOpened
from projections import Projector, fingerprint
from projections.build import FOLDS
from projections.fold import Folding
from tests.programs import run

STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda self, x: self.fc(x),
    "norm": lambda self, x: self.bn(x),
    "relu_": lambda self, x: torch.relu_(x * 1),
    "loop": lambda self, x: sum((torch.tanh(x) * k for k in range(3)), x),
    "view": lambda self, x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    "write": lambda self, x: (x * 2).index_fill_(1, torch.tensor([0]), 1.0),
    "chunk": lambda self, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "max": lambda self, x: x + x.max(1, keepdim=True).values,
    "drop": lambda self, x: self.drop(x),
    "same": lambda self, x: self.same(x),
    "branch": lambda self, x: x + 1 if x.sum() > 0 else x - 1,
    "dead": lambda self, x: (torch.ones(3).sum(), x.sin(), x)[2],
}


class Built(nn.Module):
    """A model of named steps."""

    def __init__(self, steps: Sequence[str]) -> None:
        super().__init__()
        self.steps = steps
        self.fc, self.bn, self.drop, self.same = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = STEPS[step](self, x)
        return x


models = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8).map(Built)


class Held:
    """Rows as a source of folds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.held = rows

    def head(self) -> int:
        return len(self.held)

    def rows(self, start: int, stop: int | None = None) -> Iterable[Sequence[Row]]:
        yield self.held[start:stop]

    def row(self, at: int) -> Row:
        return self.held[at]


def rows_of(trace: tl.Trace) -> list[Row]:
    return [row for run in trace.journal.rows(trace.stream) for row in run]


@given(models)
@settings(max_examples=25, deadline=None)
def test_records_keep_their_promises_on_every_model(model: Built) -> None:
    trace = tl.trace(model, torch.randn(3, 4))
    trace.check_metadata_invariants()
    assert trace.outcome.status == "complete"


@given(models, st.data())
@settings(max_examples=15, deadline=None)
def test_a_fold_in_pieces_is_the_fold_at_once(model: Built, data: st.DataObject) -> None:
    rows = rows_of(tl.trace(model, torch.randn(3, 4)))
    at_once = fingerprint(Projector(Held(rows)).tables())
    source = Held(rows)
    projector = Projector(source)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    for cut in cuts:
        source.held = rows[:cut]
        projector.tables()
    source.held = rows
    assert fingerprint(projector.tables()) == at_once


class Hands(nn.Module):
    """Writes in place, hands its input through modules, calls one block again and again, and may raise or go on."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.same, self.drop, self.norm = nn.GRUCell(4, 4), nn.Identity(), nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.wrapped = nn.Sequential(nn.Identity(), nn.Identity())

    def forward(self, x: Tensor, rounds: int) -> Tensor:
        h = torch.zeros(x.shape)
        for _ in range(rounds):
            h = self.wrapped(self.drop(self.same(self.cell(x, h))))
            h.mul_(0.5).add_(self.norm(x))
            h[:, 0] = nn.ReLU()(h)[:, 1]
            if h.sum() > 100:
                raise ValueError("too much")
        return h


def failed() -> tl.Trace:
    with pytest.raises(tl.TraceCaptureError) as refused:
        tl.trace(Hands().eval(), [torch.full((3, 4), 1e4), 3])
    return refused.value.partial_trace


CAPTURES: dict[str, Callable[[], tl.Trace]] = {
    "complete": lambda: tl.trace(Hands(), [torch.randn(3, 4), 3]),
    "halted": lambda: tl.trace(Hands(), [torch.randn(3, 4), 3], stop_after="wrapped"),
    "failed": failed,
}


@pytest.mark.parametrize("status", CAPTURES)
def test_a_real_capture_at_any_event_is_what_folding_up_to_there_gives(status: str) -> None:
    trace = CAPTURES[status]()
    assert trace.outcome.status == status
    rows = rows_of(trace)
    for spacing in (1, 7, 50, 1000):
        projector = Projector(Held(rows), spacing=spacing)
        projector.tables()
        assert len(projector.snapshots.heads) == len(rows) // spacing
        for at in [*range(0, len(rows) + 1, 9), *range(len(rows), 0, -17)]:
            assert fingerprint(projector.at(at).tables) == fingerprint(Projector(Held(rows[:at])).tables())
            assert projector.at(at).states() == folded(rows[:at])


def folded(rows: Sequence[Row]) -> list[Any]:
    """The states of the folds, row by row from the first."""
    folding = Folding(FOLDS)
    folding.take(rows)
    return list(folding.states)


def copied(trace: tl.Trace, journal: Journal) -> StreamId:
    """The events of a trace, each with its time, in a stream of another journal."""
    stamped = list(trace.journal.events(trace.stream))
    opened = stamped[0].event
    assert isinstance(opened, StreamOpened)
    writer = journal.open_stream(opened, stamped[0].time_ns)
    for one in stamped[1:]:
        writer.append(one.event, one.time_ns)
    writer.close()
    return writer.stream


def test_memory_disk_and_another_process_agree(tmp_path: Path) -> None:
    trace = tl.trace(Built(sorted(STEPS)), torch.randn(3, 4), save=[])
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
    model = Built(sorted(STEPS)).eval()
    x = torch.randn(3, 4)
    live = tl.trace(model, x, journal=tl.JournalOptions(str(tmp_path / "run.journal"), durability=durability))
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
    for odd in (-1, head + 1, 1.5, "3", None, True):
        with pytest.raises(tl.errors.IndexOutOfRange) as refused:
            trace.as_of(odd)  # type: ignore[arg-type]  # refused
        assert refused.value.code == "event_out_of_range"
    trace.cleanup()
