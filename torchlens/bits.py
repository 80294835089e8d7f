"""Whether two tensors are the same, bit for bit, and by how much they are not."""

from __future__ import annotations

import re
from typing import Final

import torch
from torch import Tensor

from torchlens import compat
from torchlens.tensors import DTYPE_WORD

TOLERANCES: Final = {
    torch.float64: (1e-10, 1e-7),
    torch.complex128: (1e-10, 1e-7),
    torch.float32: (1e-5, 1.3e-6),
    torch.complex64: (1e-5, 1.3e-6),
    torch.bfloat16: (1e-5, 1.6e-2),
    torch.float16: (1e-5, 1e-3),
}
"""Absolute and relative tolerance where a kernel is not deterministic: those of ``torch.testing.assert_close``, with
a looser one for sums in float64; every other dtype has none."""


COUNTED: Final = frozenset(
    dtype for dtype, word in DTYPE_WORD.items() if not re.fullmatch(r"bits.*|u?int[1-7]|float4.*", word)
)
"""The dtypes that torch compares and converts; of the others it only moves the bits."""


def countable(tensor: Tensor) -> Tensor:
    """The tensor as it is or, if torch cannot compute with its dtype, its bits as whole numbers in the same memory."""
    if tensor.dtype in COUNTED:
        return tensor
    return tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16)


def elements(tensor: Tensor) -> list[Tensor]:
    """A tensor of any kind as dense ones that hold all there is of it; of one on ``meta`` there is nothing."""
    tensor = compat.detach(tensor)
    if tensor.is_meta:
        return []
    tensor = countable(tensor)
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return [part for held in compat.held_parts(tensor) for part in elements(held)]
    tensor = compat.resolve_conj(compat.resolve_neg(tensor))
    return [torch.view_as_real(tensor)] if tensor.is_complex() else [tensor]


def parts_of(one: Tensor, other: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The elements of two tensors side by side; on an axis along which all are one in memory in both, one stands for
    all, so that what takes four bytes and has 10**12 elements is compared as four bytes."""
    return [one_of_both(*both) for both in zip(elements(one), elements(other), strict=False)]


def one_of_both(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    if one.shape == other.shape:
        for axis, strides in enumerate(zip(one.stride(), other.stride(), strict=True)):
            if strides == (0, 0) and one.shape[axis] > 1:
                one, other = one.narrow(axis, 0, 1), other.narrow(axis, 0, 1)
    return one, other


def same_form(one: Tensor, other: Tensor) -> str | None:
    """What differs in shape, dtype, layout or device, in words; None for nothing."""
    for name in ("is_nested", "layout", "dtype", "device"):
        found, wanted = getattr(one, name), getattr(other, name)
        if found != wanted:
            return f"{name} is {found} and not {wanted}"
    if not one.is_nested and one.shape != other.shape:
        return f"shape is {tuple(one.shape)} and not {tuple(other.shape)}"
    return None


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one form and the same bits; NaN is NaN, whatever its bits."""
    if same_form(one, other) is not None:
        return False
    with torch.no_grad():
        return all(a.shape == b.shape and not bool(differing(a, b).any()) for a, b in parts_of(one, other))


def differing(one: Tensor, other: Tensor) -> Tensor:
    """Which elements of two dense tensors of one form have other bits, as a mask."""
    if not one.dtype.is_floating_point:
        return one != other
    if one.dtype.itemsize == 1:  # torch compares no eight-bit floats
        return one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)
    unequal = (one != other) & ~(one.isnan() & other.isnan())
    return unequal | ((one == other) & (one.signbit() != other.signbit()))  # 0.0 and -0.0 are equal, and not the same


def is_close(one: Tensor, other: Tensor, atol: float | None, rtol: float | None) -> bool:
    """Whether two tensors of one form agree within a tolerance; by default that of their dtype."""
    if same_form(one, other) is not None:
        return False
    absolute, relative = TOLERANCES.get(one.dtype, (0.0, 0.0))
    with torch.no_grad():
        return all(
            a.shape == b.shape
            and torch.allclose(
                a.to(torch.float64),
                b.to(torch.float64),
                atol=absolute if atol is None else atol,
                rtol=relative if rtol is None else rtol,
                equal_nan=True,
            )
            for a, b in parts_of(one, other)
        )


def gap(one: Tensor, other: Tensor) -> str:
    """By how much two tensors differ, in words."""
    form = same_form(one, other)
    if form is not None:
        return form
    count, total, largest = 0, 0, 0.0
    with torch.no_grad():
        for whole, (a, b) in zip(elements(one), parts_of(one, other), strict=False):
            if a.shape != b.shape:
                return f"shape is {tuple(a.shape)} and not {tuple(b.shape)}"
            mask = differing(a, b)
            each = whole.numel() // max(a.numel(), 1)  # elements that one stands for
            count, total = count + int(mask.sum()) * each, total + whole.numel()
            if bool(mask.any()):
                far = (a[mask].to(torch.float64) - b[mask].to(torch.float64)).abs().nan_to_num(float("inf"))
                largest = max(largest, float(far.max()))
    return f"{count} of {total} elements differ, by at most {largest:.3g}"
