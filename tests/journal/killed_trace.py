"""The killed writer that traces a model in a loop, and what its captures must have left."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import torchlens as tl
from journal.events import EVENTS_BY_NAME
from tests.journal.writers import telling
from tests.nursery import Job, Said


class Small(nn.Module):
    """Something of everything that a capture writes: buffers, writes in place, branches, payloads small and large."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu_()
        if x.sum() > 0:
            x = x + 1
        x += 1
        out: Tensor = self.head(x.mean((2, 3)))
        return torch.dropout(out, 0.5, True)


def prepare() -> None:
    """The first capture of a process looks at all of torch."""
    torch.set_num_threads(1)
    tl.trace(nn.Tanh(), torch.ones(2)).cleanup()


def options_of(path: str, durability: str, sync: str) -> tl.JournalOptions:
    return tl.JournalOptions(path, durability=durability, sync=sync)  # type: ignore[arg-type]


def write_traces(job: Job) -> None:
    """Without end: trace a step, keep the path open for some of the next ones, clean up."""
    say = telling(job)
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = Small()
    held: list[tl.Trace] = []
    for number in range(1 << 30):
        x = torch.randn(2, 3, 40, 40)
        trace = tl.trace(model, x, journal=options_of(job.path, job.durability, job.sync), name=f"trace {number}")
        say("opened")
        say("told", trace.stream, trace.journal.head(trace.stream))
        held.append(trace)
        if number % 3 == 2:
            say("closing")
            while held:
                held.pop().cleanup()
            say("closed")


def kinds(trace: tl.Trace) -> list[str]:
    return [stamped.event.event_name for stamped in trace.events()]


def whole_capture(durability: str) -> list[str]:
    """The types of the events of a capture that nobody kills."""
    if durability not in WHOLE:
        WHOLE[durability] = whole_kinds(durability)
    return WHOLE[durability]


WHOLE: dict[str, list[str]] = {}


def whole_kinds(durability: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        trace = tl.trace(
            Small(), torch.randn(2, 3, 40, 40), journal=options_of(f"{folder}/w.journal", durability, "none")
        )
        found = kinds(trace)
        trace.cleanup()
    return found


def check_traces(path: str, durability: str, said: Sequence[Said]) -> None:
    """Each capture is a prefix of a whole one, its records fit together, its activations are there."""
    whole = whole_capture(durability)
    assert set(whole) <= set(EVENTS_BY_NAME)
    told = {one.numbers[0] for one in said if one.word == "told"}
    try:
        view = tl.open_journal(path)
    except tl.TorchLensError:
        assert not told
        return
    with view:
        for trace in view.captures:
            found = kinds(trace)
            assert found == whole[: len(found)]
            if trace.stream in told:
                assert trace.status == "complete"
                assert len(found) == len(whole)
            trace.check_metadata_invariants()
            check_activations(trace)
            trace.cleanup()


def check_activations(trace: tl.Trace) -> None:
    for op in trace.ops:
        out: Any = op.out
        assert out.shape == op.shape
        assert bool(out.isfinite().all())
