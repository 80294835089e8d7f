"""Other values for a tensor that a call is given, to see whether the call reads it.

Rule  values of a whole number stay within what each row already held, as long as that says something: they may be
      indexes, and a kernel need not check them. Beyond that only where it is known to be checked.
Rule  values are made in a dtype that torch computes in, and are then cast to the one asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from torchlens.bits import COUNTED, countable

SEED: Final = 20_011


def others(now: Tensor, *, careful: bool) -> Iterator[Tensor]:
    """Tensors of the shape and dtype of ``now`` with other values, the most telling first.

    Args:
        now: The values there are.
        careful: Stay within the range of what there is: a kernel may not check its arguments.
    """
    if now.numel() == 0:
        return
    kind, plain = now.dtype, countable(now)
    if plain is not now:
        yield from (values.view(kind) for values in other_whole_numbers(plain, careful=True))
    elif kind is torch.bool:
        yield ~now
        yield torch.arange(now.numel(), device=now.device).reshape(now.shape) % 2 == 0
    elif kind.is_complex:
        pairs = torch.view_as_real(now.to(WIDE.get(kind, kind)))
        yield from (torch.view_as_complex(values).to(kind) for values in other_numbers(pairs, careful=careful))
    elif kind.is_floating_point:
        yield from (values.to(kind) for values in other_numbers(now.to(WIDE.get(kind, kind)), careful=careful))
    else:
        yield from (values.to(kind) for values in other_whole_numbers(now.to(torch.int64), careful=careful))


WIDE: Final = {
    dtype: torch.complex64 if dtype.is_complex else torch.float32
    for dtype in COUNTED
    if (dtype.is_floating_point and dtype.itemsize < 4) or (dtype.is_complex and dtype.itemsize < 8)
}
"""In which dtype values are made for one that torch has few functions for."""


def other_numbers(now: Tensor, *, careful: bool) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    if careful:
        low, high = float(now.min()), float(now.max())
        drawn = torch.rand(now.shape, generator=generator) * (high - low) + low
        yield drawn.to(now.device, now.dtype)
        yield now * 0.5
        return
    drawn = torch.randn(now.shape, generator=generator).to(now.device, now.dtype)
    yield drawn
    yield drawn.abs() * 0.5 + 0.25
    yield drawn * 1000
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
