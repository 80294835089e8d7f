"""What is read while the autograd engine runs is what stood before, as the side that writes the passes says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torchlens as tl


class Diary:
    """Stands for the side that writes passes: says how far may be read, and counts what it was asked."""

    def __init__(self) -> None:
        self.stop: int | None = None
        self.reads = 0
        self.is_armed = True

    def readable(self) -> int | None:
        self.reads += 1
        return self.stop

    def disarm(self) -> None:
        self.is_armed = False


@pytest.fixture
def trace() -> Iterator[tl.Trace]:
    made = tl.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))
    yield made
    made.cleanup()


def test_tables_end_where_the_diary_says_and_go_on_when_it_says_no_more(trace: tl.Trace) -> None:
    whole = trace.tables
    cut = whole.ops.value("event", whole.ops.column("label").index("relu_1_2"))
    diary = trace.backwards = Diary()
    diary.stop = cut
    assert trace.tables.head == cut
    assert trace.ops.labels == ("input_1", "linear_1_1")
    diary.stop = None
    assert trace.tables.head == whole.head
    assert trace.ops.labels == tuple(whole.ops.column("label"))
    assert diary.reads > 3


def test_the_same_tables_are_given_while_nothing_may_be_read_further(trace: tl.Trace) -> None:
    before = trace.tables
    diary = trace.backwards = Diary()
    diary.stop = before.head
    assert trace.tables is before


def test_a_cleanup_disarms_the_diary_and_lets_go_of_it(trace: tl.Trace) -> None:
    diary = trace.backwards = Diary()
    trace.cleanup()
    assert not diary.is_armed
    assert trace.backwards is None
