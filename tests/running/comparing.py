"""What the tests of runs compare: outputs, whatever container they come in, and inputs of the same form."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.bits import same_bits
from torchlens.capture.inputs import copied
from torchlens.capture.template import leaves
from torchlens.running import RunResult, Structure

REPLAYABLE = tl.CaptureOptions(replayable=True)


def seed_all(seed: int) -> None:
    """Seed every generator; draws of NumPy's legacy generator are what models make."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # the one that models draw from


def in_thread(work: Callable[[], Any]) -> Any:
    """What a function gives that another thread calls."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def plain(value: Any) -> Any:
    """A result with its structures as dictionaries, as the model's own objects are looked at."""
    if isinstance(value, Structure):
        return {name: plain(value[name]) for name in value._fields}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def tensors_of(value: Any) -> list[tuple[tuple[Any, ...], Tensor]]:
    return [(path, tensor.detach()) for path, tensor in leaves(plain(value), deep=True)]


def assert_same(found: Any, wanted: Any) -> None:
    """Two results have the same tensors in the same places, bit for bit; at least one."""
    one, other = tensors_of(found), tensors_of(wanted)
    assert [path for path, _ in one] == [path for path, _ in other]
    assert one
    for (path, tensor), (_, same) in zip(one, other, strict=True):
        assert same_bits(tensor, same), path


def others(value: Any, made: dict[int, Tensor] | None = None) -> Any:
    """Arguments of the same form with other elements; what was one tensor is one tensor."""
    made = {} if made is None else made
    if isinstance(value, Tensor):
        if id(value) not in made:
            fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            if value.is_floating_point():
                fresh.copy_(torch.randn(value.shape)).requires_grad_(value.requires_grad)
            else:
                fresh.copy_(value.flip(-1) if value.ndim else value)
            made[id(value)] = fresh
        return made[id(value)]
    if isinstance(value, dict):
        return {name: others(item, made) for name, item in value.items()}
    return type(value)(others(item, made) for item in value) if type(value) in (list, tuple) else value


def bare(model: nn.Module, args: Any, kwargs: Any, seed: int) -> Any:
    """What the model returns for copies of these arguments, or raises."""
    own_args, own_kwargs, _ = copied(tuple(args), dict(kwargs))
    seed_all(seed)
    try:
        return model(*own_args, **own_kwargs)
    except Exception as error:  # noqa: BLE001  # whatever the model raises
        return error


def ran(trace: tl.Trace, build: Callable[[], nn.Module], args: Any, kwargs: Any, seed: int) -> RunResult:
    """A run with the weights of a new model, so that no state of the capture's own is left in them."""
    trace.load_state_dict(build().state_dict(keep_vars=True))
    seed_all(seed)
    return trace.run(None, list(args), kwargs)
