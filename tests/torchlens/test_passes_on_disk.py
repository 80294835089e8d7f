"""Backward passes of live traces in their journals: the order of what real runs tell, and how commands show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from journal import Event, open_for_reading, open_for_writing, verify
from journal.events import PassOpened
from projections import Projector
from tests.strategies import branched
from tests.torchlens.command import printed
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource
from torchlens.testing.checking.diary_order import DiaryOrder, check_diary


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, how: str) -> Tensor:
        x = torch.tanh(x)
        if how == "raises":
            x = Raising.apply(x)
        if how == "checkpointed":
            x = checkpoint(lambda x: torch.sin(x).exp(), x, use_reentrant=True)
        return self.head(torch.relu(x).chunk(1)[0])


def sums(trace: Trace, x: Tensor) -> None:
    trace.backward(trace.output.sum(), save_grads=True)


def twice(trace: Trace, x: Tensor) -> None:
    trace.output.sum().backward(retain_graph=True)
    torch.autograd.grad(trace.output.prod(), x)


def second_order(trace: Trace, x: Tensor) -> None:
    (first,) = torch.autograd.grad(trace.output.pow(2).sum(), x, create_graph=True)
    with trace.capture_backward():
        first.pow(2).sum().backward()


def nested(trace: Trace, x: Tensor) -> None:
    output, seen = trace.output, list[Tensor]()

    def once_more(gradient: Tensor) -> None:
        if not seen:
            seen.append(gradient)
            torch.autograd.grad(output, x, torch.ones_like(output), retain_graph=True)

    x.register_hook(once_more)
    trace.output.sum().backward(retain_graph=True)


def failing(trace: Trace, x: Tensor) -> None:
    with pytest.raises(ValueError, match="no gradient"):
        trace.backward(trace.output.sum())


def past_torchs_python(trace: Trace, x: Tensor) -> None:
    scripted = torch.jit.script(run_backward)
    scripted(trace.output.sum())


def run_backward(loss: Tensor) -> None:
    loss.backward()


RUNS: dict[str, tuple[str, Callable[[Trace, Tensor], None], int]] = {
    "sums": ("plain", sums, 1),
    "twice": ("plain", twice, 2),
    "second order": ("plain", second_order, 2),
    "nested": ("plain", nested, 2),
    "reentrant": ("checkpointed", sums, 2),
    "failing": ("raises", failing, 1),
}
"""How the forward goes, what runs behind it, and how many passes that is."""


def run_on(path: Path | None, name: str) -> tuple[Trace, list[Event]]:
    how, act, _ = RUNS[name]
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    trace = tl.trace(Net(), [x, how], journal=path, name=name)
    act(trace, x)
    return trace, [stamped.event for stamped in trace.events()]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_what_a_real_backward_tells_keeps_the_order(tmp_path: Path, name: str, on_disk: bool) -> None:
    trace, events = run_on(tmp_path / "j" if on_disk else None, name)
    diary = check_diary(events)
    assert len(diary.opened) == RUNS[name][2]
    trace.cleanup()
    if on_disk:
        reading = open_for_reading(tmp_path / "j")
        assert [stamped.event for stamped in reading.events(reading.streams()[0].stream)] == events
        reading.close()
        assert verify(tmp_path / "j").ok


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture for each of the runs."""
    path = tmp_path_factory.mktemp("passes") / "j"
    for name in RUNS:
        run_on(path, name)[0].cleanup()
    return path


def rows_of(capsys: pytest.CaptureFixture[str], journal: Path, name: str) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = json.loads(printed(capsys, "journal", "passes", journal, "--capture", name, "--json"))
    return said


def test_passes_shows_each_backward_pass(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows_of(capsys, journal, "sums")
    assert (row["pass"], row["trigger"], row["status"], row["closed_by"]) == (1, "backward", "ok", "trigger_return")
    assert (row["within"], row["order"], row["error"]) == (None, 1, None)
    assert row["firings"] > 5
    rows = rows_of(capsys, journal, "nested")
    assert [(row["pass"], row["trigger"], row["within"]) for row in rows] == [
        (1, "autograd_backward", None),
        (2, "autograd_grad", 1),
    ]
    assert [row["order"] for row in rows_of(capsys, journal, "second order")] == [1, 2]
    (row,) = rows_of(capsys, journal, "failing")
    assert (row["status"], row["error"]) == ("error", "builtins.ValueError")
    assert row["raised_in"].startswith("raising_back_")
    text = printed(capsys, "journal", "passes", journal, "--capture", "twice", "--limit", 1)
    assert "autograd_backward" in text
    assert "autograd_grad" not in text


def test_export_has_the_events_of_passes_as_json(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "journal", "export", journal, "--capture", "nested", "--jsonl").splitlines()
    documents = [json.loads(line) for line in lines]
    kinds = [one["type"] for one in documents]
    assert kinds.count("pass_opened") == kinds.count("pass_finalized") == 2
    assert kinds.index("capture_settled") < kinds.index("pass_opened")
    opened = [one["body"] for one in documents if one["type"] == "pass_opened"]
    assert [one["parent"] for one in opened] == [None, 0]


def test_summary_tells_the_passes(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 passes" in printed(capsys, "journal", "summary", journal, "--capture", "twice")
    assert "1 pass (1 failed)" in printed(capsys, "journal", "summary", journal, "--capture", "failing")


# Inside a pass ----------------------------------------------------------------------------------------


def moments(events: list[Event]) -> Iterator[tuple[int, DiaryOrder]]:
    """Each number of events from the settlement on, and what the diary had told by then."""
    begun = next(at for at, event in enumerate(events) if isinstance(event, PassOpened))
    for at in range(begun, len(events) + 1):
        yield at, check_diary(events[:at], is_whole=False)


@pytest.mark.parametrize("name", RUNS)
def test_a_capture_as_of_an_event_inside_a_pass_shows_what_had_been_told(journal: Path, name: str) -> None:
    with tl.open_journal(journal) as view:
        trace = view.capture(name)
        events = [stamped.event for stamped in trace.events()]
        for at, diary in moments(events):
            tables = trace.projector.tables(at=at)
            passes = tables.backward_passes
            assert len(passes) == len(diary.opened)
            assert len(tables.grad_fns) == len(diary.told)
            assert len(tables.grad_fn_calls) == len(diary.fired)
            assert [status == "unfinished" for status in passes.column("status")] == [
                number in diary.open for number in range(len(diary.opened))
            ]
            moment = trace.as_of(at)
            assert moment.head == at


@pytest.mark.parametrize("name", ["nested", "failing"])
def test_a_branch_may_be_left_inside_a_pass_and_goes_on_by_itself(journal: Path, tmp_path: Path, name: str) -> None:
    reading = open_for_reading(journal)
    copied = reading.copy_to(tmp_path / "j").numbers
    stream = next(info.stream for info in reading.streams() if info.opened.label == name)
    events = [stamped.event for stamped in reading.events(stream)]
    reading.close()
    one = open_for_writing(tmp_path / "j", sync="none")
    parent = copied[stream]
    begun = next(at for at, event in enumerate(events) if isinstance(event, PassOpened))
    for cut in range(begun, len(events)):
        writer = one.open_stream(branched(parent, cut))
        branch, whole = (Projector(StreamSource(one, stream)) for stream in (writer.stream, parent))
        for table, column in (("grad_fns", "label"), ("grad_fn_calls", "call_label"), ("backward_passes", "status")):
            cells = [list(tables.all[table].column(column)) for tables in (branch.tables(), whole.tables(cut))]
            assert cells[0] == cells[1]
        for event in events[cut:]:
            writer.append(event)
        writer.close()
        for table, column in (("grad_fn_calls", "call_label"), ("backward_passes", "closed_by")):
            cells = [list(tables.all[table].column(column)) for tables in (branch.tables(), whole.tables())]
            assert cells[0] == cells[1]
    one.close()


def test_a_sparse_gradient_is_named_where_only_the_process_that_captured_has_it(tmp_path: Path) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    how = tl.CaptureOptions(save_grads=True)
    trace = tl.trace(model, torch.tensor([1, 2]), journal=tmp_path / "sparse", capture=how)
    trace.backward(trace.output.sum())
    assert trace.params["weight"].grads[0].grad.is_sparse
    assert trace.health.unstored_gradients == ("weight",)
    assert "gradients of 1 of the ops and parameters" in str(trace.health)
    trace.cleanup()
    read = tl.load(tmp_path / "sparse")
    assert read.health.unstored_gradients == ("weight",)
    with pytest.raises(tl.TorchLensError, match=r"Embedding\(sparse=False\)") as caught:
        _ = read.params["weight"].grads[0].grad
    assert caught.value.code == "gradient_not_stored"
    assert read.params["weight"].grads.to_pandas()["grad"].tolist() == [None]
