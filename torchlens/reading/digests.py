"""A digest of a capture's parameters, worked out when it is read.

Reads  the parameters themselves where they are as the capture left them, else what it kept of them.
Rule   equal for equal addresses, shapes, dtypes and elements, on whatever device and with whatever strides these lie.
Rule   the elements are summed, as words of bits, and some words looked at one by one: so any one element that changes
       changes the digest, and reading is all that it costs. It is no proof against somebody who wants two
       models to look alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from torchlens import compat
from torchlens.errors import PayloadUnavailableError
from torchlens.tensors import contiguous_bytes

__all__ = ["digest_of"]

SAMPLED: Final = 256
"""Words of eight bytes that are looked at one by one, evenly spread."""

WORD: Final = 8


def digest_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of tensors and their names, in order: 64 hexadecimal digits.

    Raises:
        PayloadUnavailableError: ``statistics_unavailable``, for a tensor that stands for others.
    """
    digest = hashlib.sha256()
    with torch.no_grad(), compat.NoTorchFunction(), compat.without_modes():
        for name, tensor in named:
            digest.update(f"{name}\n{tuple(tensor.shape)}\n{tensor.dtype}\n".encode("utf-8", "backslashreplace"))
            for part in readable(name, tensor):
                words, rest = words_of(part)
                digest.update(f"{int(words.sum())}\n".encode())
                digest.update(sample(words))
                digest.update(contiguous_bytes(rest) or b"")
    return digest.hexdigest()


def readable(name: str, tensor: Tensor) -> list[Tensor]:
    """The elements of a tensor with a name."""
    try:
        return elements_of(tensor)
    except (RuntimeError, TypeError) as exc:
        raise PayloadUnavailableError(
            code="statistics_unavailable",
            problem=f"the elements of parameter {name!r} cannot be looked at: {exc}",
            remedy="compare the tensors that it holds",
            address=name,
        ) from exc


def elements_of(tensor: Tensor) -> list[Tensor]:
    """The elements of a tensor of any kind; none of what has none, as on ``meta``, or of a fake tensor."""
    if tensor.is_meta or compat.is_fake(tensor):
        return []
    return compat.held_parts(tensor)


def words_of(part: Tensor) -> tuple[Tensor, Tensor]:
    """The elements of a dense tensor, in the order of its axes: as whole numbers of eight bytes each, and what is left
    over, as bytes. Added up so they are read as fast as memory gives them."""
    plain = compat.contiguous(compat.resolve_conj(compat.resolve_neg(part))).reshape(-1)
    flat = (torch.view_as_real(plain).reshape(-1) if plain.is_complex() else plain).view(torch.uint8)
    if flat.storage_offset() % WORD:
        flat = compat.clone(flat)
    whole = len(flat) // WORD * WORD
    return flat[:whole].view(torch.int64), flat[whole:]


def sample(words: Tensor) -> Any:
    """Some of the words, as bytes: the first, the last, and others evenly between."""
    last = len(words) - 1
    count = min(SAMPLED, last + 1)
    places = [place * last // max(1, count - 1) for place in range(count)]
    return contiguous_bytes(words[torch.tensor(places, dtype=torch.int64, device=words.device)])
