"""The loss that is differentiated where nobody says which: of all that a model returned.

Rule   complex elements count by both their parts; elements of sparse and nested tensors count as those of dense ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchlens.capture.template import leaves

__all__ = ["weighted"]


def weighted(output: Any) -> Tensor | None:
    """A loss of every differentiable tensor in what a model returned, each element with a weight of its own.

    A plain sum would give a softmax or a normalized layer no gradient at all.
    """
    terms: list[Tensor] = []
    found = [tensor for _, tensor in leaves(output, deep=True) if tensor.requires_grad]
    for tensor in [part for whole in found for part in (whole.unbind() if whole.is_nested else (whole,))]:
        plain = tensor.to_dense() if tensor.layout != torch.strided else tensor
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        wide = plain if plain.dtype in (torch.float32, torch.float64) else plain.float()
        weights = torch.cos(torch.arange(wide.numel(), dtype=wide.dtype, device=wide.device)).reshape(wide.shape)
        terms.append((wide * weights).sum())
    if not terms:
        return None
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term.to(loss.device)
    return loss
