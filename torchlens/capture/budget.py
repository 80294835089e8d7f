"""How many bytes a capture may hold: a ceiling for each device, looked at before memory runs out.

Reads  the held tensors, and how much memory a device has free.
Gives  ``Shortage`` where a ceiling was crossed: the device, what is held and what was allowed.
Rule   a piece of memory counts once, whatever number of views of it are held.
Note   The hot path subtracts the bytes of each new piece of memory from ``room`` and does nothing else until that
       is used up. Only then are devices told apart and asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchlens import compat

Asked: TypeAlias = Literal["auto"] | float | int | None
"""A share of the free memory of each device, a number of bytes for each, or no ceiling."""

AUTO: Final = 0.8
"""Share of the free memory that "auto" allows: the rest is for what the model computes with."""

UNASKED: Final = 64 << 20
"""Bytes that may be held before the share of "auto" is worked out: asking costs as much as ten ops."""

NO_END: Final = 1 << 62

MOST_NAMED: Final = 5
"""How many of the largest pieces of memory are named."""

MEMORY_INFO: Final = Path("/proc/meminfo")
CONTAINER: Final = Path("/sys/fs/cgroup")


class Shortage(NamedTuple):
    """A ceiling was crossed."""

    device: str
    held: int
    allowed: int
    largest: tuple[tuple[int, int], ...]  # value and bytes of the largest pieces of memory


class Budget:
    """The ceilings of one capture."""

    __slots__ = ("_allowed", "asked", "room")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._allowed: dict[str, int] = {}  # by device, from when it was first asked
        self.room = NO_END if asked is None else asked if isinstance(asked, int) else UNASKED if asked == "auto" else 0

    def used_up(
        self, held: Iterable[tuple[int, Tensor]], copies: Iterable[tuple[int, str, int]] = ()
    ) -> Shortage | None:
        """Look at what is held, and give new room or say which ceiling was crossed.

        Args:
            held: Every value that is held, with its tensor.
            copies: What is about to be held on memory of its own: value, device and bytes.
        """
        room = NO_END
        found = pieces_of(held)
        wanted: dict[str, list[tuple[int, int]]] = {}
        for value, device, size in copies:
            wanted.setdefault(device, []).append((value, size))
        for device in found.keys() | wanted.keys():
            pieces = found.get(device, [])
            if device not in self._allowed:
                self._allowed[device] = self._ceiling(device, sum(size for _, size in pieces))
            pieces = pieces + wanted.get(device, [])
            nbytes = sum(size for _, size in pieces)
            left = self._allowed[device] - nbytes
            if left < 0:
                self.room = NO_END  # it is told once
                largest = sorted(pieces, key=lambda piece: -piece[1])[:MOST_NAMED]
                return Shortage(device, nbytes, self._allowed[device], tuple(largest))
            room = min(room, left)
        self.room = room
        return None

    def _ceiling(self, device: str, held: int) -> int:
        if isinstance(self.asked, int):
            return self.asked
        free = free_bytes(device)
        share = self.asked if isinstance(self.asked, float) else AUTO
        return NO_END if free is None else int((free + held) * share)


def pieces_of(held: Iterable[tuple[int, Tensor]]) -> dict[str, list[tuple[int, int]]]:
    """The pieces of memory that are held, by device: the first value on each, and its bytes. Sparse kinds have none."""
    seen: set[int] = set()
    found: dict[str, list[tuple[int, int]]] = {}
    for value, tensor in held:
        address = compat.storage_or_none(tensor)
        if address is not None and address not in seen:
            seen.add(address)
            found.setdefault(str(tensor.device), []).append((value, compat.untyped_storage(tensor).nbytes()))
    return found


def free_bytes(device: str) -> int | None:
    """Memory that a device can still give; None where it does not say."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device != "cpu":
        return None
    found = [bytes_ for bytes_ in (_available(), _left_in_container()) if bytes_ is not None]
    return min(found) if found else None


def _available() -> int | None:
    try:
        for line in MEMORY_INFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _left_in_container() -> int | None:
    """What the limit of a control group, version 2, leaves; None without one."""
    try:
        limit = (CONTAINER / "memory.max").read_text().strip()
        return int(limit) - int((CONTAINER / "memory.current").read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None
