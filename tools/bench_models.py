"""The models whose tracing is timed: many small calls, a real convolutional net, a real transformer, a long loop.

Imports no tracing tool, so that another one's process can build the very same models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

Model = tuple[nn.Module, Any]
"""A module in eval mode and its single argument."""


class Loop(nn.Module):
    """``num_ops`` calls from two lines of code; the calls do next to nothing, so what they cost is the tracing."""

    def __init__(self, num_ops: int) -> None:
        super().__init__()
        self.rounds = num_ops // 2

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.rounds):
            x = torch.tanh(x)
            x = torch.mul(x, 0.5)
        return x


def mlp100() -> Model:
    layers = [layer for _ in range(50) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(8, 64)


def resnet18() -> Model:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(depths=[2, 2, 2, 2], layer_type="basic", hidden_sizes=[64, 128, 256, 512], embedding_size=64)
    return ResNetModel(config), torch.randn(1, 3, 224, 224)


def gpt2() -> Model:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config()
    return GPT2Model(config), torch.randint(config.vocab_size, (1, 128))


MODELS: Final[dict[str, Callable[[], Model]]] = {"mlp100": mlp100, "resnet18": resnet18, "gpt2": gpt2}


def build(name: str) -> Model:
    """The model called ``name``, or ``loopN`` for a loop of N calls; the same weights and input every time."""
    torch.manual_seed(0)
    if name.startswith("loop"):
        return Loop(int(name.removeprefix("loop"))), torch.randn(8)
    model, x = MODELS[name]()
    return model.eval(), x
