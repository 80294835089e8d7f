"""The elements of two tensors compared, for tensor_error.py.

Rule   they are widened some at a time, so that a comparison takes little memory however large the tensors are. Elements
       that lie in memory alike on both sides, as those of two views made by ``expand`` or ``unfold``, are compared once
       each, and count as often as they are elements.
Rule   whole numbers are compared as such: two that are the same in double precision are not the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch

from torchlens import compat
from torchlens.measuring import measured
from torchlens.questions.tensor_error import Parted
from torchlens.tensors import overlaps, told_in_memory

__all__ = ["measured", "of_tensors"]

BLOCK: Final = 1 << 20
"""Elements that are widened together."""

MOST: Final = 1 << 32
"""Elements of views that are compared one by one where they overlap, and not alike."""

EXACT: Final = 2.0**62
"""Whole numbers that are closer in double precision are subtracted exactly."""


def of_tensors(one: Any, other: Any, rtol: float, atol: float) -> Parted | None:
    """How two tensors differ; None where their elements cannot be looked at, or are not as many."""
    with compat.NoTorchFunction(), torch.no_grad():
        try:
            pair = [plain(each) for each in (one, other)]
        except (RuntimeError, TypeError):  # a class or layout that does not tell its elements
            return None
        a, b = pair
        if a.shape != b.shape:
            return None
        weights = None
        if any(overlaps(each) for each in pair):
            if a.stride() == b.stride():
                (a, weights), (b, _) = told_in_memory(a), told_in_memory(b)
            elif a.numel() > MOST:
                return None
        return joined([of_block(*block, rtol, atol) for block in blocks(a, b, weights)])


def of_block(a: Any, b: Any, weights: Any, rtol: float, atol: float) -> Parted:
    apart = distances(a, b)
    a, b = wide(a), wide(b)
    finite = torch.isfinite(a) & torch.isfinite(b)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    odd = ~finite & ~same
    apart = torch.where(finite, apart, 0.0)
    size = torch.where(finite, a, 0.0).abs()
    beyond = (apart > atol + rtol * size) | odd
    most = float(apart.max()) if apart.numel() else None
    if weights is not None:
        roots = weights.to(torch.float64).sqrt()
        apart, size = apart * roots, size * roots
    return Parted(
        apart=math.inf if bool(odd.any()) else length(apart),
        size=length(size),
        max_abs=most,
        num_beyond=int(beyond.sum() if weights is None else weights[beyond].sum()),
        basis="payload",
    )


def joined(parts: list[Parted]) -> Parted:
    """Of several blocks, as one."""
    return Parted(
        apart=math.hypot(*(part.apart for part in parts)),
        size=math.hypot(*(part.size for part in parts)),
        max_abs=max((part.max_abs for part in parts if part.max_abs is not None), default=None),
        num_beyond=sum(part.num_beyond for part in parts),
        basis="payload",
    )


def blocks(a: Any, b: Any, weights: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Both tensors in parts of at most ``BLOCK`` elements, and how often each element counts."""
    if a.numel() <= BLOCK:
        yield a, b, weights
        return
    inner = a.numel() // a.shape[0]
    step = max(1, BLOCK // inner)
    for start in range(0, a.shape[0], step):
        end = min(start + step, a.shape[0])
        part = None if weights is None else weights[start:end]
        if inner > BLOCK:
            yield from blocks(a[start], b[start], part)
        else:
            yield a[start:end], b[start:end], part


def plain(tensor: Any) -> Any:
    """The elements as one dense tensor."""
    found = compat.detach(tensor)
    if found.is_meta or found.is_nested:
        raise TypeError("its elements do not lie in one order")
    if found.is_quantized:
        found = compat.dequantized(found)
    if found.layout is not torch.strided:
        if found.numel() > MOST:
            raise TypeError("a dense copy would be too large")
        found = found.to_dense()
    return found


def wide(tensor: Any) -> Any:
    """In double precision, on the CPU."""
    return compat.to(tensor.cpu(), torch.complex128 if tensor.dtype.is_complex else torch.float64)


def distances(a: Any, b: Any) -> Any:
    """How far each element of one tensor is from that of the other, in double precision."""
    apart = (wide(b) - wide(a)).abs()
    if is_whole(a) and is_whole(b) and (a.dtype is torch.uint64) is (b.dtype is torch.uint64):
        exact = [(each.cpu().view if each.dtype is torch.uint64 else each.cpu().to)(torch.int64) for each in (a, b)]
        apart = torch.where(apart < EXACT, (exact[1] - exact[0]).to(torch.float64).abs(), apart)
    return apart


def is_whole(tensor: Any) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def length(magnitudes: Any) -> float:
    """The root of the sum of squares, without overflow on the way."""
    most = float(magnitudes.max()) if magnitudes.numel() else 0.0
    if most == 0.0:
        return 0.0
    return most * math.sqrt(float(((magnitudes / most) ** 2).sum()))
