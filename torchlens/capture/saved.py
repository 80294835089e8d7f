"""What autograd kept for the backward, looked at when the forward has ended.

A node tells which tensors it saved through handles; looking at one neither unpacks it, so that nothing is computed
again under a checkpoint, nor puts a hook on it, so that torch still notices a write to what was saved.
Hooks that are pushed around the forward were rejected: torch then checks no versions, and those of the model take
the place of ours.

A call may make several nodes. Those that are no result's own belong to the call through whose node they are reached.
What a hook made of a tensor (a checkpoint, an offload) counts as far as it is a tensor; a node that writes through a
view, and one of a C++ extension, do not tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from journal.events import SavedForBackward
from torchlens import compat
from torchlens.capture.template import leaves

Entry = tuple[int, int, int, int]


def saved_for_backward(nodes: dict[Any, int], first: int) -> Iterator[SavedForBackward]:
    """What the nodes of a capture's results kept, one event for each.

    Args:
        nodes: The nodes, with their numbers.
        first: Sequence number that the first node of the forward could have.
    """
    storages: dict[int, int] = {}
    inner: set[Any] = set()
    for node, number in nodes.items():
        entries: list[Entry] | None = []
        for each in belonging(node, nodes, first, inner):
            found = kept_by(each, storages)
            entries = None if entries is None or found is None else entries + found
        yield SavedForBackward(node=number, tensors=None if entries is None else tuple(entries))


def belonging(node: Any, nodes: dict[Any, int], first: int, inner: set[Any]) -> Iterator[Any]:
    """A node, and those behind it that the same call made: no result's own, made in this forward, not met before."""
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        for before, _ in here.next_functions:
            if before is None or before in nodes or before in inner or not compat.made_since(before, first):
                continue
            if len(nodes) + len(inner) < compat.MAX_TOUCHED_NODES:
                inner.add(before)
                stack.append(before)


def kept_by(node: Any, storages: dict[int, int]) -> list[Entry] | None:
    """Storage, its bytes, first byte and bytes of each tensor that a node kept; None where it does not tell."""
    held = compat.saved_by(node)
    if held is None:
        return None
    entries: list[Entry] = []
    for _, tensor in leaves(held):
        entry = entry_of(tensor, storages)
        if entry is None:
            return None
        entries.append(entry)
    return entries


def entry_of(tensor: Tensor, storages: dict[int, int]) -> Entry | None:
    """None for a tensor without plain memory."""
    address = compat.storage_or_none(tensor)
    if address is None:
        return None
    number, size = storages.setdefault(address, len(storages)), compat.untyped_storage(tensor).nbytes()
    item = tensor.element_size()
    return (number, size, int(tensor.storage_offset()) * item, tensor.numel() * item)
