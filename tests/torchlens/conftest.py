"""One small model that has something of everything a reader looks up, captured in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.lin(x))


class Scale(nn.Module):
    """Reads a buffer and returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(4))
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> None:
        self.seen = x * self.factor


class Worked(nn.Module):
    """``fc`` is called three times, ``blk`` twice, ``head`` once; a chunk has two slots; one add."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.blk = Block()
        self.also = self.blk
        self.scale = Scale()
        self.head = nn.Linear(2, 3)
        self.unused = nn.Linear(2, 2)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.fc(x))
        x = self.blk(x)
        x = self.blk(x)
        self.scale(x)
        left, right = x.chunk(2, 1)
        out: Tensor = self.head(left + right)
        return out


def capture(**options: object) -> tl.Trace:
    torch.manual_seed(0)
    return tl.trace(Worked(), torch.randn(2, 4), **options)


@pytest.fixture(scope="module")
def worked() -> tl.Trace:
    """A live trace of ``Worked``; tests only read it."""
    return capture()


@pytest.fixture(scope="module")
def worked_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with one capture of ``Worked``."""
    path = tmp_path_factory.mktemp("worked") / "one.journal"
    capture(journal=path).cleanup()
    return path


@pytest.fixture
def loaded(worked_path: Path) -> Iterator[tl.Trace]:
    """The same, read from its journal."""
    trace = tl.load(worked_path)
    yield trace
    trace.cleanup()
