"""What several tests capture, and the calls of a capture, ready to be made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchlens as tl
from projections.structure.memory import Executed
from torchlens.errors import TorchLensError
from torchlens.replay.replaying import Replay
from torchlens.replay.restoring import ParameterBefore


class Double(torch.autograd.Function):
    """A function of the model's own, which is not watched inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def replay_of(trace: tl.Trace) -> Replay:
    def known(number: int) -> ParameterBefore | None:
        found = trace.handles.parameter(number)  # type: ignore[union-attr]  # a live trace
        return None if found is None else ParameterBefore(found.detach().clone(), 0, found.requires_grad)

    return Replay(trace, known)


def calls_of(model: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[Replay, list[Executed]]:
    replay = replay_of(tl.trace(model, list(args), **options))
    return replay, list(replay.memory.executed())


def refusal(act: Callable[[], Any], of: type[TorchLensError]) -> str:
    """The code with which an act is refused."""
    with pytest.raises(of) as caught:
        act()
    return caught.value.code
