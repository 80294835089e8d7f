"""What a bare forward saves for its backward, told by torch's own hooks: a second witness of ``saved_for_backward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchlens.capture.template import leaves

Outcome = Any


class Held(NamedTuple):
    """Bytes of the storages that were saved, each once, by whose they were before."""

    nobodys: int
    models: int
    inputs: int


def held_by(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Held, Outcome]:
    """Run a model and add up what torch saves meanwhile, what the forward frees again included."""
    saved: list[Tensor] = []  # strongly held, so that no memory is used twice

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outcome = model(*args, **kwargs)
    module = model if isinstance(model, nn.Module) else nn.Module()
    models = {address(tensor) for tensor in (*module.parameters(), *module.buffers())}
    inputs = {address(tensor) for _, tensor in leaves((args, kwargs), deep=True)}
    sizes = {address(tensor): tensor.untyped_storage().nbytes() for tensor in saved}
    return Held(
        sum(size for at, size in sizes.items() if at not in models and at not in inputs),
        sum(size for at, size in sizes.items() if at in models),
        sum(size for at, size in sizes.items() if at in inputs and at not in models),
    ), outcome


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
