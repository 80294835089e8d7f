"""Tensors put back into memory as they lay: strides, overlap, and what shares memory with what.

A kernel may sum in another order where strides or alignment differ, so bits are reproduced only from
tensors that lie as the recorded ones did.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from torchlens import compat
from torchlens.bits import countable
from torchlens.tensors import contiguous_strides, reach

LINE: Final = 64
"""Bytes to which torch aligns memory on the CPU; offsets are kept within such a line."""


class Spot(NamedTuple):
    """Where a tensor lies in its storage."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    offset: int  # in elements

    @property
    def reach(self) -> int:
        """Elements from the first one to the last one, both included."""
        return reach(self.shape, self.strides)

    @property
    def span(self) -> tuple[int, int]:
        """First byte, and the byte behind the last one."""
        size = self.dtype.itemsize
        return self.offset * size, (self.offset + self.reach) * size


def spot(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None, offset: int) -> Spot:
    """A place; without strides the tensor is contiguous."""
    return Spot(dtype, shape, contiguous_strides(shape) if strides is None else strides, offset)


class ParameterBefore(NamedTuple):
    """A parameter as it stood before the forward."""

    tensor: Tensor  # its elements, cut from the graph, with the strides that it has
    offset: int  # of it in its storage, in elements
    requires_grad: bool


class Image:
    """A fresh piece of memory in which tensors get the places that they had in one storage.

    Args:
        places: All places that will be asked for.
        device: Where the memory is.
    """

    def __init__(self, places: list[Spot], device: torch.device) -> None:
        spans = [span for span in (here.span for here in places) if span[0] < span[1]]
        first = min((start for start, _ in spans), default=0)
        self.start = first - first % LINE
        size = max((stop for _, stop in spans), default=self.start) - self.start
        self.bytes = torch.zeros(size, dtype=torch.uint8, device=device)

    def tensor(self, here: Spot) -> Tensor:
        """The tensor at a place."""
        made = torch.empty(0, dtype=here.dtype, device=self.bytes.device)
        offset = here.offset - self.start // here.dtype.itemsize if here.reach else 0
        return made.set_(compat.untyped_storage(self.bytes), offset, here.shape, here.strides)

    def write(self, here: Spot, values: Tensor) -> None:
        """Put values at a place."""
        overwrite(self.tensor(here), values)


def overwrite(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor these elements, also where several of its elements are one in memory."""
    if tensor.numel() == 0:
        return
    tensor, values = countable(tensor), countable(values)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:  # all of it is one element: there may be 10**12 of that
            tensor, values = tensor.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    if not may_overlap(tensor):
        tensor.copy_(values)
        return
    here = Spot(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), 0)
    where = torch.arange(here.reach, device=tensor.device).as_strided(here.shape, here.strides)
    memory(tensor)[where.reshape(-1)] = values.reshape(-1)


def memory(tensor: Tensor) -> Tensor:
    """The memory from a tensor's first element to its last one, in one row."""
    here = Spot(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), 0)
    return tensor.as_strided((here.reach,), (1,))


def may_overlap(tensor: Tensor) -> bool:
    """Whether some of its elements may be one in memory, as after ``expand``."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def cells_of(tensor: Tensor) -> Tensor:
    """The memory of a tensor with each of its elements once."""
    return memory(tensor) if may_overlap(tensor) else tensor


def laid_out(values: Tensor, here: Spot, conjugates: bool = False, negates: bool = False) -> Tensor:
    """A fresh tensor with these elements, at a place in memory of its own.

    Args:
        values: The elements, as they read.
        here: Where it is to lie.
        conjugates: Whether it reads its memory conjugated.
        negates: Whether it reads its memory negated.
    """
    values = compat.resolve_conj(compat.resolve_neg(values))
    if conjugates:
        return laid_out(values.conj(), here, negates=negates).conj()
    if negates:
        return compat.neg_view(laid_out(-values, here))
    image = Image([here], values.device)
    made = image.tensor(here)
    overwrite(made, values)
    return made
