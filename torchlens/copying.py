"""Copies of tensors that stay on the autograd graph, with each element in memory copied once.

Rule   elements that are one in memory, as after ``expand`` or ``unfold``, are one in the copy: what takes 256 bytes
       as a view of a small tensor takes no more as a copy.
       the autograd nodes of a copy of a saved tensor are marked as no part of the model's graph.
Not    when a copy is made (capture/keeping.py), or its bytes (tensors.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn

from torchlens import compat
from torchlens.bits import countable
from torchlens.tensors import one_of_each, overlaps, reach

__all__ = ["copy_of", "each_element", "past_copies", "saved_copy"]

MARK: Final = "torchlens: of a copy"
"""Key in the metadata of the autograd nodes that exist only because a saved tensor was copied."""

MARKED: Final[set[type]] = set()
"""The classes of nodes that were marked so far; the metadata of others need not be looked at."""

MOST_NODES: Final = 16
"""More nodes than copying one tensor makes."""


def copy_of(tensor: Tensor) -> Tensor:
    """A copy on the same autograd graph, of the same class and with the same attributes; runs nothing of the user's."""
    kind = type(tensor)
    if kind is Tensor:
        return each_element(tensor, clone)
    with compat.NoTorchFunction():
        copy = each_element(tensor, clone)
        if kind is not nn.Parameter and type(copy) is not kind:
            copy = copy.as_subclass(kind)
    for name, value in vars(tensor).items() if kind is not nn.Parameter else ():
        copy.__dict__.setdefault(name, value)
    return copy


def clone(tensor: Tensor) -> Tensor:
    try:
        return compat.clone(tensor)
    except NotImplementedError:  # a dtype of which torch only moves the bits
        return compat.clone(countable(tensor)).view(tensor.dtype)


def saved_copy(tensor: Tensor) -> Tensor:
    """As ``copy_of``, of a tensor that was saved: the nodes of the copy are no part of the model's graph."""
    copy = copy_of(tensor)
    if copy.requires_grad:
        before, here = compat.node_of(tensor), compat.node_of(copy)
        for _ in range(MOST_NODES):
            if here is None or here is before or not here.next_functions:  # a leaf's node has none
                break
            here.metadata[MARK] = True
            MARKED.add(type(here))
            here = here.next_functions[0][0]
    return copy


def past_copies(node: Any, slot: int) -> tuple[Any, int]:
    """The node and output that a saved tensor was copied from, where this is one of a copy; else these."""
    while type(node) in MARKED and MARK in node.metadata:
        node, slot = node.next_functions[0]
    return node, slot


def each_element(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """What an elementwise function makes of a tensor, worked out once for elements that are one in memory."""
    if not overlaps(tensor):
        return make(tensor)
    small = one_of_each(tensor)
    if overlaps(small):  # windows that share elements: all that lies between the first one and the last one
        run = compat.as_strided(small, (reach(small.shape, small.stride()),), (1,))
        made = compat.as_strided(make(run), small.shape, small.stride())
    else:
        made = make(small)
    return compat.expand(made, tensor.shape)
