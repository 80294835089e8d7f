"""Parameters or buffers as they stood when a forward began: whether one is still what it was.

Reads  the tensor itself, its storage, how often torch counts that it was written, and a digest where one was taken.
Rule   nothing is held: a tensor or storage that is gone is not what it was.
Not    writes that torch does not count, as through ``.data`` or an array: they are seen by a digest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from weakref import ref

from torch import Tensor

from torchlens import compat
from torchlens.tensors import digest_of, is_freed

__all__ = ["Stood"]


class Stood:
    """Tensors at one moment, by number.

    Args:
        tensors: As they stand now.
    """

    __slots__ = ("digests", "memories", "tensors", "versions")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors: Final[list[ref[Tensor]]] = list(map(ref, tensors))
        self.versions: Final = compat.versions_of(tensors)
        self.memories: Final = compat.memories_of(tensors)
        self.digests: Mapping[int, str | None] = MappingProxyType({})

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Go on with those that came later, as they stand now."""
        self.tensors.extend(map(ref, tensors))
        self.versions.extend(compat.versions_of(tensors))
        self.memories.extend(compat.memories_of(tensors))

    def still(self, number: int) -> Tensor | None:
        """The tensor with this number, if it is what it was as far as can be seen; None otherwise."""
        tensor = self.tensors[number]() if number < len(self.tensors) else None
        if tensor is None or is_freed(tensor) or compat.versions_of([tensor]) != [self.versions[number]]:
            return None
        (memory,) = compat.memories_of([tensor])
        return tensor if memory is self.memories[number] and self.agrees(number, tensor) else None

    def agrees(self, number: int, tensor: Tensor) -> bool:
        """Whether a tensor has the elements that the one with this number had; True where no digest was taken."""
        known = self.digests.get(number)
        return known is None or digest_of(tensor) == known
