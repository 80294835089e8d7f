"""A capture whose last op gives infinity, for tests that go to look for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import torchlens as tl

__all__ = ["capture_faulty"]


class Faulty(nn.Module):
    """Its last op gives infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.out = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.fc(x))
        return torch.log(self.out(hidden) * 0)


def capture_faulty(path: Path) -> Path:
    """Write a journal with one capture of it and a backward; gives the path."""
    torch.manual_seed(0)
    trace = tl.trace(Faulty(), torch.randn(3, 4), journal=path, capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    trace.cleanup()
    return path
