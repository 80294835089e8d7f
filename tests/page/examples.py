"""Traces to make pages of: what a person would open, small enough to be made again for each test file.

``EXAMPLES`` has one function for each; ``python -m tests.page.examples FOLDER`` writes the page of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchlens as tl


def gpt2() -> tl.Trace:
    """A small GPT-2 and the backward of its loss, every gradient kept."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
    model, tokens = GPT2LMHeadModel(config).eval(), torch.randint(64, (2, 12))
    trace = tl.trace(model, tokens, name="tiny GPT-2")
    loss = F.cross_entropy(trace.output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    return trace.backward(loss, save_grads=True)


def resnet18() -> tl.Trace:
    """A ResNet-18 on a small picture."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic")
    return tl.trace(ResNetModel(config).eval(), torch.rand(1, 3, 32, 32), name="ResNet-18")


class Recurrent(nn.Module):
    """The same lines, time after time."""

    def __init__(self, steps: int = 6) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)
        self.read = nn.Linear(8, 2)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        for _ in range(self.steps):
            state = torch.tanh(self.cell(state) + x)
        return self.read(state)


def recurrent() -> tl.Trace:
    """A loop of six steps, and two backward passes."""
    torch.manual_seed(0)
    trace = tl.trace(Recurrent(), torch.rand(3, 8), name="recurrent loop")
    trace.backward(trace.output.sum(), save_grads=True, retain_graph=True)
    return trace.backward(trace.output.square().sum(), save_grads=True)


class Mismatched(nn.Module):
    """Raises in its second layer: the shapes do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def failed() -> tl.Trace:
    """What ran before a model raised."""
    torch.manual_seed(0)
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Mismatched(), torch.rand(3, 4), name="failed")
    trace = caught.value.partial_trace
    assert isinstance(trace, tl.Trace)
    return trace


class NoWay(torch.autograd.Function):
    """Gives a value, and no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("no way <b>")


class OneWay(nn.Module):
    """Its backward raises in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return NoWay.apply(self.linear(x)).relu()


def failed_backward() -> tl.Trace:
    """A whole forward, and a backward pass that raised."""
    torch.manual_seed(0)
    trace = tl.trace(OneWay(), torch.rand(2, 4), name="one way")
    with pytest.raises(RuntimeError, match="no way"):
        trace.backward(trace.output.sum())
    return trace


class Chain(nn.Module):
    """Many ops in a row, in blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) * 0.5 + x
        return x


def chain(blocks: int = 1250) -> tl.Trace:
    """Five thousand ops, of which nothing was kept."""
    torch.manual_seed(0)
    return tl.trace(Chain(blocks), torch.rand(2, 4), save="none", name="chain")


EXAMPLES: Final[Mapping[str, Callable[[], tl.Trace]]] = MappingProxyType(
    {"gpt2": gpt2, "resnet18": resnet18, "recurrent": recurrent, "failed": failed, "chain": chain}
)


def write_all(folder: Path, **options: Any) -> list[Path]:
    """The page of each example."""
    folder.mkdir(parents=True, exist_ok=True)
    return [make().to_html(folder / f"{name}.html", overwrite=True, **options) for name, make in EXAMPLES.items()]


if __name__ == "__main__":
    for page in write_all(Path(sys.argv[1])):
        sys.stdout.write(f"{page}\n")
