"""The elements of two tensors compared, for tensor_error.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchlens import compat
from torchlens.measuring import measured
from torchlens.questions.tensor_error import Parted

__all__ = ["measured", "of_tensors"]


def of_tensors(one: Any, other: Any, rtol: float, atol: float) -> Parted | None:
    """How two tensors differ; None where their elements cannot be looked at, or are not as many."""
    with compat.NoTorchFunction(), torch.no_grad():
        try:
            pair = [wide(each) for each in (one, other)]
        except (RuntimeError, TypeError):  # a class or layout that does not tell its elements
            return None
        a, b = pair
        if a.shape != b.shape:
            return None
        finite = torch.isfinite(a) & torch.isfinite(b)
        same = (a == b) | (torch.isnan(a) & torch.isnan(b))
        odd = int((~finite & ~same).sum())
        apart = torch.where(finite, b - a, 0.0).abs()
        size = torch.where(finite, a, 0.0).abs()
        beyond = int((apart > atol + rtol * size).sum()) + odd
        return Parted(
            apart=math.inf if odd else length(apart),
            size=length(size),
            max_abs=float(apart.max()) if apart.numel() else None,
            num_beyond=beyond,
            basis="payload",
        )


def wide(tensor: Any) -> Any:
    """The elements in double precision, on the CPU, in the order of the axes."""
    plain = compat.detach(tensor)
    if plain.is_meta or plain.is_nested:
        raise TypeError("its elements do not lie in one order")
    if plain.is_quantized:
        plain = compat.dequantized(plain)
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return compat.to(plain.cpu(), torch.complex128 if plain.dtype.is_complex else torch.float64)


def length(magnitudes: Any) -> float:
    """The root of the sum of squares, without overflow on the way."""
    most = float(magnitudes.max()) if magnitudes.numel() else 0.0
    if most == 0.0:
        return 0.0
    return most * math.sqrt(float(((magnitudes / most) ** 2).sum()))
