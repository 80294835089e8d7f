"""Tensors to payload bytes and back."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any, Final

import torch
import xxhash
from torch import Tensor, nn

from torchlens import compat
from torchlens.errors import PayloadUnavailableError

DTYPE_WORD: Final[dict[torch.dtype, str]] = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}
"""The word an event carries for each dtype."""


STRIDED: Final = torch.strided

DTYPE_BY_WORD: Final = {word: dtype for dtype, word in DTYPE_WORD.items()}

ADOPTED: Final = 2
"""A tensor lies in the payload it is read from where that is at most so many times its size: else it is copied, so that
a small view does not hold a large payload."""


def like_of(tensor: Tensor) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and device, as events have them; shape () where there is no one shape, as of a nested tensor."""
    shape: tuple[int, ...] = ()
    if type(tensor) is Tensor:
        try:
            shape = tuple(tensor.shape)
        except RuntimeError:  # to ask each whether it is nested takes longer
            if not tensor.is_nested:
                raise
    elif not tensor.is_nested:
        shape = tuple(int(size) for size in tensor.shape)
    return (shape, DTYPE_WORD[tensor.dtype], "cpu" if tensor.is_cpu else str(tensor.device))


OWN_CLASSES: Final = frozenset((Tensor, nn.Parameter))
"""Classes of tensors that lie in their own memory, where it is any."""


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie in strided memory of its own.

    Those of a sparse, quantised, nested, meta or fake one do not, nor those of a subclass that stands for others.
    """
    if tensor.layout is not STRIDED or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    return type(tensor) in OWN_CLASSES or not compat.is_wrapper(tensor)


def is_freed(tensor: Tensor) -> bool:
    """Whether the storage is too small to have the elements, as once it was resized: torch reads on, whatever is there.

    Never of a tensor without plain memory.
    """
    return has_plain_memory(tensor) and exceeds_storage(tensor)


def exceeds_storage(plain: Tensor) -> bool:
    count = plain.numel()
    if not count:
        return False
    end = count if plain.is_contiguous() else reach(plain.shape, plain.stride())
    return compat.num_stored_bytes(plain) < (plain.storage_offset() + end) * plain.element_size()


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from a tensor's first one to its last one in memory, both included; 0 if it has none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def overlaps(tensor: Tensor) -> bool:
    """Whether it has more elements than the memory from its first one to its last one, as after ``expand``."""
    if not has_plain_memory(tensor):
        return False
    return tensor.numel() > reach(tensor.shape, tensor.stride())


def copied_bytes(tensor: Tensor) -> int:
    """Bytes that a copy takes, in which elements that are one in memory are one; 0 for what has no plain memory."""
    if not has_plain_memory(tensor):
        return 0
    return min(tensor.numel(), reach(tensor.shape, tensor.stride())) * tensor.element_size()


def one_of_each(tensor: Tensor) -> Tensor:
    """The tensor with one element along every axis on which all are one in memory."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = compat.narrow(tensor, axis, 0, 1)
    return tensor


def dense_bytes(tensor: Tensor) -> tuple[Any, tuple[int, ...] | None, bool] | None:
    """The tensor's elements as one buffer, without a copy where they lie densely in CPU memory.

    Returns:
        The buffer (valid while ``tensor`` lives and is not written), the strides in elements under which
        the tensor's shape reads it (None: contiguous), and whether the buffer is the tensor's own memory.
        None for a kind of tensor whose elements are no plain memory (``has_plain_memory``), and where it was freed.
    """
    if not has_plain_memory(tensor) or exceeds_storage(tensor):
        return None
    if compat.num_modes():  # a mode, as that of fake tensors, may make something else of what it is asked for
        with compat.past_modes(tensor):
            return plain_bytes(tensor)
    return plain_bytes(tensor)


def plain_bytes(tensor: Tensor) -> tuple[Any, tuple[int, ...] | None, bool] | None:
    """``dense_bytes`` of a tensor with plain memory."""
    if not tensor.is_contiguous() and overlaps(tensor):
        return bytes_of_each(compat.detach(tensor))
    own = True
    if not tensor.is_cpu:
        tensor, own = compat.to(compat.detach(tensor), "cpu"), False
    if compat.is_neg(tensor):
        tensor, own = compat.resolve_neg(tensor), False
    if tensor.dtype.is_complex and compat.is_conj(tensor):
        tensor, own = compat.resolve_conj(tensor), False
    strides: tuple[int, ...] | None = None
    if not tensor.is_contiguous():
        if dense_in_memory(tensor):
            strides = tuple(tensor.stride())
        else:
            tensor, own = compat.contiguous(compat.detach(tensor)), False
    size = tensor.nbytes
    if size == 0:
        return b"", strides, False
    address = compat.data_ptr(tensor)
    if not address:  # a subclass made something of it that has no memory
        return None
    data = (ctypes.c_char * size).from_address(address)
    if not own:
        data.owner = tensor  # type: ignore[attr-defined]  # the caller does not hold this one
    return data, strides, own


def bytes_of_each(tensor: Tensor) -> tuple[Any, tuple[int, ...], bool] | None:
    """``dense_bytes`` of a tensor whose elements are one in memory in part: such elements are stored once."""
    small = one_of_each(tensor)
    if overlaps(small):
        strides = tuple(tensor.stride())
        small = compat.as_strided(small, (reach(small.shape, small.stride()),), (1,))
    else:
        spread = zip(contiguous_strides(tuple(small.shape)), tensor.stride(), tensor.shape, strict=True)
        strides = tuple([0 if stride == 0 and size > 1 else dense for dense, stride, size in spread])
    small = compat.contiguous(small)
    packed = plain_bytes(small)
    if packed is None:
        return None
    data, _, own = packed
    if own:
        data.owner = small
    return data, strides, False


FEW_BYTES: Final = 1 << 26
REPEATS: Final = 64
"""Bytes, and times the bytes that it is a copy of, up to which every element of a copy is written out."""


def is_mostly_repeats(tensor: Tensor) -> bool:
    """Whether a copy with every element would have over 64 MiB, and over 64 times the bytes that it is a copy of."""
    nbytes = tensor.numel() * tensor.element_size()
    return nbytes > FEW_BYTES and nbytes > REPEATS * copied_bytes(tensor)


def contiguous_bytes(tensor: Tensor) -> Any | None:
    """The tensor's elements in the order of its axes, as a buffer of its own.

    None as for ``dense_bytes``, and where there would be little but repetitions in it (``is_mostly_repeats``).
    """
    if not has_plain_memory(tensor) or exceeds_storage(tensor) or is_mostly_repeats(tensor):
        return None
    with compat.NoTorchFunction(), compat.past_modes(tensor) if compat.num_modes() else contextlib.nullcontext():
        tensor = compat.resolve_conj(compat.resolve_neg(compat.detach(tensor)))
        tensor = compat.contiguous(tensor)
        packed = plain_bytes(tensor)
    if packed is None:
        return None
    data, _, own = packed
    if own:
        data.owner = tensor
    return data


def digest_of(tensor: Tensor) -> str | None:
    """XXH3-128 of a tensor's elements in the order of its axes; of a sparse or quantized one, of all that it holds.

    None where they are in no memory that can be read.
    """
    data = contiguous_bytes(tensor)
    if data is not None:
        return xxhash.xxh3_128_hexdigest(data)
    try:
        parts = compat.held_parts(tensor)
    except (RuntimeError, TypeError):  # as of a subclass that stands for others
        return None
    digest = xxhash.xxh3_128()
    for part in parts:
        data = contiguous_bytes(part)
        if data is None:
            return None
        digest.update(f"{tuple(part.shape)} {part.dtype} ".encode())
        digest.update(data)
    return digest.hexdigest() if parts else None


def dense_in_memory(tensor: Tensor) -> bool:
    """Whether the elements fill one run of memory without gap or overlap, in some order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def from_payload(
    data: bytes | memoryview, dtype: str, shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None
) -> Tensor:
    """A tensor of its own from payload bytes.

    Args:
        data: The stored bytes, as ``Journal.payload`` gives them. Where they may be written to they are given up: the
            tensor may lie in them, so nobody else may write there any more. Others are copied.
        dtype: Word of ``DTYPE_WORD``.
        shape: Sizes of the axes.
        offset: First element within ``data``.
        strides: In elements; None where contiguous.

    Raises:
        PayloadUnavailableError: ``payload_shape_mismatch``, when the bytes cannot hold such a tensor.
    """
    kind = DTYPE_BY_WORD.get(dtype)
    count = 1
    for size in shape:
        count *= size
    if kind is None or offset < 0 or min(shape, default=0) < 0:
        raise _mismatch(dtype, shape)
    if count == 0:
        return compat.empty(shape, dtype=kind)
    flat_strides = strides if strides is not None else contiguous_strides(shape)
    if len(flat_strides) != len(shape) or min(flat_strides, default=0) < 0:
        raise _mismatch(dtype, shape)
    end = offset + reach(shape, flat_strides)
    item = compat.empty((), dtype=kind).element_size()
    if end * item > len(data):
        raise _mismatch(dtype, shape)
    window = memoryview(data)[offset * item : end * item]
    is_adopted = not window.readonly and len(window) * ADOPTED >= len(data)
    flat = compat.from_buffer(window if is_adopted else bytearray(window), dtype=kind)
    return compat.as_strided(flat, shape, flat_strides)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor of this shape."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _mismatch(dtype: str, shape: tuple[int, ...]) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="payload_shape_mismatch",
        problem=f"the stored bytes do not hold a {dtype} tensor of shape {tuple(shape)}",
        remedy="check the journal; a file that was edited or cut reads like this",
        dtype=dtype,
        shape=tuple(shape),
    )


def told_apart(plain: Tensor) -> tuple[Tensor, int]:
    """A dense tensor with one element along axes on which all are one in memory, and for how many one stands."""
    if not overlaps(plain):
        return plain, 1
    small = one_of_each(plain)
    return small, plain.numel() // small.numel()


def told_in_memory(plain: Tensor) -> tuple[Tensor, Tensor]:
    """The elements of a dense tensor as they lie in memory, each once, and how many elements each of them is."""
    stored = in_memory(plain)
    counts = compat.to(multiplicities(plain.shape, plain.stride()), plain.device)
    is_there = compat.truths(counts)
    return compat.chosen(stored, is_there), compat.chosen(counts, is_there)


def in_memory(plain: Tensor) -> Tensor:
    """A dense tensor; of one that overlaps the memory from its first element to its last one."""
    return compat.as_strided(plain, (reach(plain.shape, plain.stride()),), (1,)) if overlaps(plain) else plain


def multiplicities(shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """How many elements of a tensor each place of its memory is, from the first to the last; whole numbers."""
    counts = compat.ones(1, dtype=torch.int64)
    for size, stride in zip(shape, strides, strict=True):
        if stride == 0:
            counts = compat.times(counts, size)
        elif size > 1:  # the places move by the stride: each is a sum of so many of those before, one per stride
            count = counts.numel() + (size - 1) * stride
            rows = -(-count // stride)
            spread = compat.viewed(compat.zeros(rows * stride, dtype=torch.int64), rows, stride)
            compat.add_to(compat.narrow(compat.viewed(spread, -1), 0, 0, counts.numel()), counts)
            sums = compat.running_sum(spread, 0)
            if rows > size:
                earlier = compat.clone(compat.narrow(sums, 0, 0, rows - size))
                compat.add_to(compat.narrow(sums, 0, size, rows - size), earlier, alpha=-1)
            counts = compat.narrow(compat.viewed(sums, -1), 0, 0, count)
    return counts
