"""Small models that together bring about every kind of event, for the golden journal.

They hold no module of torch's own and call none of its functions that are written in Python: those would put the
paths of an installation into the call sites. ``tools/golden.py`` runs them.
"""

from __future__ import annotations

import contextlib
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


OFFSET = torch.tensor([0.25, 0.5, 0.75])
"""Made before every forward."""


def taking(x: Tensor) -> Tensor:
    """Takes a number and an array out of tensors, and writes through the array."""
    y = (x + OFFSET) * x.sum().item()
    y.numpy()[0] = 2.0
    return y.exp()


def unwatched(x: Tensor) -> Tensor:
    """One call that no wrapper sees."""
    return torch.relu(torch._C._nn.gelu(x))


def written_beside(x: Tensor) -> Tensor:
    """A result whose memory another thread writes, which is no recorded call."""
    y = x * 2
    writer = threading.Thread(target=y.fill_, args=(7,), name="writer")
    writer.start()
    writer.join()
    return y


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


def bent(x: Tensor) -> Tensor:
    return torch.tanh(x) * x


class Refusing(torch.autograd.Function):
    """Doubles, and has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient")


def refusing(x: Tensor) -> Tensor:
    return torch.tanh(Refusing.apply(x))


# What is run behind a capture: its live trace, and the tensor that it was given ----------------------


def once(trace: Any, x: Tensor) -> None:
    trace.backward(trace.output.sum())


def twice(trace: Any, x: Tensor) -> None:
    """Every gradient is kept, then those of some of the graph are returned."""
    trace.backward(trace.output.sum(), save_grads=True, retain_graph=True)
    torch.autograd.grad(trace.output.prod(), x)


def second_order(trace: Any, x: Tensor) -> None:
    """A graph of the backward, and a pass over that."""
    (first,) = torch.autograd.grad(trace.output.pow(2).sum(), x, create_graph=True)
    with trace.capture_backward(save_grads=True):
        first.sum().backward()


def nested(trace: Any, x: Tensor) -> None:
    """A hook runs the engine within the engine."""
    output, seen = trace.output, list[Tensor]()

    def once_more(gradient: Tensor) -> None:
        if not seen:
            seen.append(gradient)
            torch.autograd.grad(output, x, torch.ones_like(output), retain_graph=True)

    x.register_hook(once_more)
    output.sum().backward(retain_graph=True)


def failing(trace: Any, x: Tensor) -> None:
    with contextlib.suppress(ValueError):
        trace.backward(trace.output.sum())


def unannounced(trace: Any, x: Tensor) -> None:
    """The engine itself, past every function that may be replaced."""
    loss = trace.output.sum()
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, accumulate_grad=True)
