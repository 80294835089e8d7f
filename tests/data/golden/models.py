"""Small models that together bring about every kind of event, for the golden journal.

They hold no module of torch's own and call none of its functions that are written in Python: those would put the
paths of an installation into the call sites. ``tools/golden.py`` runs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Conv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, before * after * 9).reshape(after, before, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.weight, padding=1)


class Linear(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, before * after).reshape(after, before))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Norm(nn.Module):
    """Batch norm in training: its buffers are written inside a kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.batch_norm(x, None, None, self.mean, self.var, True, 0.1, 1e-5, False)


class ConvNet(nn.Module):
    """Conv, norm, in-place relu, pool, linear; two outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Conv(1, 2)
        self.norm = Norm(2)
        self.head = Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.relu_(self.norm(self.conv(x)))
        x = torch.max_pool2d(x, 2).flatten(1)
        logits = self.head(x)
        return {"logits": logits, "top": logits.max(1).values}


class Flight(ConvNet):
    """The same after a call that returns no tensor."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        rows = torch.unbind(x[:0])
        return super().forward(x + len(rows))


class Step(nn.Module):
    """One turn of the loop; counts its calls in a buffer, by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        self.count = self.count + 1
        return torch.tanh(self.lin(h) + x)


class Loop(nn.Module):
    """One module three times round a loop that asks a tensor whether to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.step = Step()
        self.tied = self.step

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        for _ in range(3):
            h = self.step(x, h)
            if h.sum() > 100:
                break
        return h


class Hidden(nn.Module):
    """A module and a parameter in a plain list, which the model does not register; draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [Linear(3, 3)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(self.parts[0](x), 0.5, True)


class Broken(nn.Module):
    """A part that raises and is survived, then a call that raises and is not."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.odd(x)
        except ValueError:
            x = x * 2
        return x.reshape(5, 7)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"no {x.dim()} axes")


class Interrupted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.sin(x)
        raise KeyboardInterrupt


SCALE = torch.tensor([1.0, 2.0, 3.0])


def constants(x: Tensor, *, bias: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Tensors from outside, odd arguments, several results, and a view whose memory is written later."""
    first = x[0]
    parts = x.to(torch.float64).split_with_sizes([1, 2], dim=-1)
    x.add_(1)
    return first, [part * SCALE[:1] + bias for part in parts]


def unwatched(x: Tensor) -> Tensor:
    """One call that no wrapper sees."""
    return torch.relu(torch._C._nn.gelu(x))


def with_a_helper(model: nn.Module) -> nn.Module:
    """The model, with another thread that calls torch when its forward begins."""

    def beside(module: nn.Module, args: Any) -> None:
        helper = threading.Thread(target=lambda: torch.exp(torch.zeros(1)), name="helper")
        helper.start()
        helper.join()

    model.register_forward_pre_hook(beside)
    return model


def with_a_pre_hook(model: nn.Module) -> nn.Module:
    """The model, with a pre-hook that changes nothing."""
    model.register_forward_pre_hook(lambda module, args: args)
    return model


def asked(trace: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A capture that is asked for here, since the place where it was is part of it."""
    return trace(*arguments, **options)
