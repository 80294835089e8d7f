"""What autograd kept for the backward, looked at when the forward has ended.

A node tells which tensors it saved through handles; looking at one neither unpacks it, so that nothing is computed
again under a checkpoint, nor puts a hook on it, so that torch still notices a write to what was saved.
Hooks that are pushed around the forward were rejected: torch then checks no versions, and those of the model take
the place of ours.

A call may make several nodes. Those that are no result's own belong to the call through whose node they are reached.
What a hook made of a tensor (a checkpoint, an offload) counts as far as it is a tensor; a node that writes through a
view, and one of a C++ extension, do not tell. What a backward within the forward freed is not there any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from journal.events import SavedForBackward
from torchlens import compat
from torchlens.capture.template import leaves

Entry = tuple[int, int, int, int, str | None]


def saved_for_backward(
    nodes: dict[Any, int], first: int, owned: Mapping[str, Iterable[Tensor]]
) -> Iterator[SavedForBackward]:
    """What the nodes of a capture's results kept, one event for each.

    Args:
        nodes: The nodes, with their numbers.
        first: Sequence number that the first node of the forward could have.
        owned: The tensors that were there before the forward, by what they were; of several that share memory the
            first says whose it is.
    """
    looking = Looking(owned)
    inner: set[Any] = set()
    for node, number in nodes.items():
        entries: list[Entry] = []
        untold = None
        for each in belonging(node, nodes, first, inner):
            found = looking.kept_by(each)
            if isinstance(found, str):
                untold = untold or found
            else:
                entries += found
        yield SavedForBackward(node=number, tensors=None if untold else tuple(entries), untold=untold)


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


class Looking:
    """The storages that were met, by address: all that nodes hold are alive, so each has its own.

    Args:
        owned: As in ``saved_for_backward``.
    """

    def __init__(self, owned: Mapping[str, Iterable[Tensor]]) -> None:
        self.numbers: dict[int, int] = {}
        self.owners: dict[int, str] = {}
        for owner, tensors in owned.items():
            for tensor in tensors:
                address = compat.storage_or_none(tensor)
                if address is not None:
                    self.owners.setdefault(address, owner)

    def kept_by(self, node: Any) -> list[Entry] | str:
        """An entry for each tensor that a node kept; the name of what does not tell, where something does not."""
        held = compat.saved_by(node)
        if held is None:
            return type(node).__name__
        entries: list[Entry] = []
        for _, tensor in leaves(held):
            entry = self.entry_of(tensor)
            if entry is None:
                kind = type(tensor)
                return f"{tensor.layout}".removeprefix("torch.") + " tensor" if kind is Tensor else kind.__name__
            entries.append(entry)
        return entries

    def entry_of(self, tensor: Tensor) -> Entry | None:
        """Storage, its bytes, first byte, bytes and owner of a tensor; None for one without plain memory."""
        address = compat.storage_or_none(tensor)
        if address is None:
            return None
        number, size = self.numbers.setdefault(address, len(self.numbers)), compat.untyped_storage(tensor).nbytes()
        item = tensor.element_size()
        first = int(tensor.storage_offset()) * item
        return (number, size, first, tensor.numel() * item, self.owners.get(address))
