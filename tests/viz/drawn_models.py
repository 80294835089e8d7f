"""Small models of many shapes, whose drawings are held against what must be true of any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # its usual name
from torch.utils.checkpoint import checkpoint

import torchlens as tl


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for _ in range(4):
            h = torch.tanh(self.cell(h) + x)
        return self.out(h)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu() if x.sum() > 0 else self.b(x)
        return y + self.b(y)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.encoder(x), self.encoder(x + 1)], 1))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.layers = nn.Sequential(*(Block(4) for _ in range(3)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x).relu()
        b = self.middle(F.max_pool2d(a, 2)).relu()
        return self.out(torch.cat([self.up(b), a], 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = self.lstm(x[:, None])
        return self.head(y[:, -1]), h


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.b, self.a(x), use_reentrant=False)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)  # type: ignore[operator]
        y = self.linear(x).add_(1)
        y[:, 0] = 0
        return y.mul_(2).add_(self.count)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x)
        values, indices = y.topk(2, dim=1)
        first, *others = y.split(2, 1)
        return {"values": values, "indices": indices, "sum": first + others[-1], "parts": tuple(others)}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x[:, None])


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def traced(make: Callable[[], nn.Module]) -> tl.Trace:
    """A trace of a model, of what ran of it where it fails; with a backward pass where it gives one tensor."""
    torch.manual_seed(0)
    x = torch.rand(2, 3, 8, 8) if make in (Residual, UNet) else torch.rand(2, 8)
    try:
        trace = tl.trace(make().train(False), x, capture=tl.CaptureOptions(save_grads=True))
    except tl.TraceCaptureError as exc:
        return exc.partial_trace
    if isinstance(trace.output, Tensor):
        trace.backward(trace.output.sum())
    return trace


MODELS: tuple[Callable[[], nn.Module], ...] = (
    *(Loop, Branches, Shared, Residual, UNet, Recurrent, Checkpointed, InPlace, Several, Attention, Failing, mlp),
)
