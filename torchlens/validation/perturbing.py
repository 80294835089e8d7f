"""Other values for a tensor that a call is given, to see whether the call reads it.

Rule  values of a whole number stay within what each row already held, as long as that says something: they may be
      indexes, and a kernel need not check them. Beyond that only where it is known to be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

SEED: Final = 20_011


def others(now: Tensor, *, careful: bool) -> Iterator[Tensor]:
    """Tensors of the form of ``now`` with other values, the most telling first.

    Args:
        now: The values there are.
        careful: Stay within the range of what there is: a kernel may not check its arguments.
    """
    if now.numel() == 0:
        return
    kind = now.dtype
    if kind is torch.bool:
        yield ~now
        yield torch.arange(now.numel(), device=now.device).reshape(now.shape) % 2 == 0
    elif kind.is_floating_point or kind.is_complex:
        yield from other_numbers(now, careful=careful)
    else:
        yield from other_whole_numbers(now, careful=careful)


def other_numbers(now: Tensor, *, careful: bool) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    wide = torch.complex64 if now.dtype.is_complex else torch.float32
    if careful:
        low, high = float(now.to(torch.float32).min()), float(now.to(torch.float32).max())
        drawn = torch.rand(now.shape, generator=generator) * (high - low) + low
        yield drawn.to(now.device, now.dtype)
        yield now * 0.5
        return
    drawn = torch.randn(now.shape, generator=generator, dtype=wide)
    yield drawn.to(now.device, now.dtype)
    yield (drawn.abs() * 0.5 + 0.25).to(now.device, now.dtype)
    yield (drawn * 1000).to(now.device, now.dtype)
    yield torch.zeros_like(now)
    yield torch.full_like(now, 3)
    yield torch.full_like(now, float("nan"))


def other_whole_numbers(now: Tensor, *, careful: bool) -> Iterator[Tensor]:
    rows = now if now.dim() else now.reshape(1)
    yield rows.flip(-1).reshape(now.shape)
    yield rows.roll(1, -1).reshape(now.shape)
    yield rows.amin(-1, keepdim=True).expand_as(rows).reshape(now.shape)
    yield rows.amax(-1, keepdim=True).expand_as(rows).reshape(now.shape)
    if not careful:
        for step in (1, -1, 7):
            yield now + step
        yield torch.zeros_like(now)
