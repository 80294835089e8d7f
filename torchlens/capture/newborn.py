"""Which tensors came into being during a forward: told by the collector's list of young objects, which is in order.

The collector is held off during a capture, so whatever is made meanwhile stands in its youngest generation behind what
was there before. Asked only of tensors that no call of the capture returned, and of the first ``MAX_LOOKS`` of those:
each look copies that list.
"""

from __future__ import annotations

import gc
from typing import Any, Final

from torch import Tensor

__all__ = ["Newborn"]

MAX_LOOKS: Final = 32


class Newborn:
    """Tensors made since this was made."""

    __slots__ = ("_ids", "_looks", "_mark")

    def __init__(self) -> None:
        self._mark: list[Any] = []  # known by where it stands among the young
        self._ids: set[int] = set()  # of those found so far; no older tensor can have one of these
        self._looks = 0

    def has(self, tensor: Tensor) -> bool:
        """Whether this tensor is one of them; False, too, where the collector has run, and after ``MAX_LOOKS``."""
        if id(tensor) in self._ids:
            return True
        if self._looks == MAX_LOOKS:
            return False
        self._looks += 1
        mark, found = self._mark, []
        for item in reversed(gc.get_objects(generation=0)):
            if item is mark:
                break
            if issubclass(type(item), Tensor):  # not isinstance, which would ask the object
                found.append(id(item))
        else:
            found.clear()  # it was moved on: the young may be older than we are
        self._ids.update(found)
        self._mark = []
        return id(tensor) in self._ids
