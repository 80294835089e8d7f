"""C slots that filling a name of the class of tensors in Python fills along, and that were empty before.

``tensor[...]`` is a mapping's in C. Whoever sets ``__getitem__`` on the class in Python makes it a sequence as well:
CPython fills both slots by that name, also of subclasses, and putting the name back does not empty the other one. To
torch a sequence is a list of numbers: ``torch.tensor([a, b])`` of two tensors without axes would ask for their length
and raise, in every program from the first capture on.

Source  CPython, Objects/typeobject.c, ``update_one_slot``; the layout of a class is that of Include/cpython/object.h.
Rule    nothing is written unless what lies where the slot must be is what CPython says is in the slot.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

__all__ = ["SequenceSlots"]

POINTER: Final = ctypes.sizeof(ctypes.c_void_p)

SEQUENCE: Final = object.__basicsize__ + 11 * POINTER
"""Where a class says where its slots of a sequence are: behind an object's head, its size, and ten other members."""


MADE_IN_PYTHON: Final = 1 << 9
"""Flag of a class: ``Py_TPFLAGS_HEAPTYPE``."""


class Slot(NamedTuple):
    """A slot of a sequence.

    Attributes:
        name: The name by which it is filled.
        number: What ``PyType_GetSlot`` calls it.
        place: Its place among those of a sequence.
    """

    name: str
    number: int
    place: int


FILLED_ALONG: Final = (Slot("__getitem__", 44, 3), Slot("__setitem__", 39, 5))
"""``sq_item`` and ``sq_ass_item``."""


class SequenceSlots:
    """The slots that a class has empty, to be emptied whenever its names have been set.

    Args:
        kind: A class made in Python. On anything but CPython nothing is done.
    """

    def __init__(self, kind: type) -> None:
        self.kind: Final = kind
        self._held: Any = None
        self.empty: tuple[Slot, ...] = ()
        if sys.implementation.name == "cpython":
            self._held = ctypes.pythonapi.PyType_GetSlot
            self._held.argtypes, self._held.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
            self.empty = tuple(slot for slot in FILLED_ALONG if not self._held(kind, slot.number))

    def clear(self) -> None:
        """Empty what was filled since, of the class and of those below that have these names from it."""
        for slot in self.empty:
            held = self._held(self.kind, slot.number)
            if held and cell_of(self.kind, slot).value == held:
                for kind in below(self.kind, slot.name):
                    cell_of(kind, slot).value = None


def cell_of(kind: type, slot: Slot) -> ctypes.c_void_p:
    """Where a class has a slot; a class made in Python has room for all of them."""
    start: int = ctypes.c_void_p.from_address(id(kind) + SEQUENCE).value  # type: ignore[assignment]  # as said
    return ctypes.c_void_p.from_address(start + slot.place * POINTER)


def below(kind: type, name: str) -> Iterator[type]:
    """A class, and those made in Python that come from it and have a name from it; some perhaps more than once."""
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        yield one
        found: list[type] = type.__subclasses__(one)
        waiting += [inner for inner in found if inner.__flags__ & MADE_IN_PYTHON and name not in vars(inner)]
