"""What exists only in the process that captured: live tensors by value number and autograd nodes by node number."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchlens import compat
from torchlens.errors import PayloadUnavailableError
from torchlens.tensors import contiguous_bytes


class Handles:
    """The live side of one capture, pinned until ``close``."""

    __slots__ = ("_nodes", "_pins", "_reserved")

    def __init__(
        self, pins: dict[int, tuple[Tensor, int | None]], nodes: dict[Any, int], reserved: dict[int, int]
    ) -> None:
        self._pins = pins
        self._nodes = nodes
        self._reserved = reserved

    def tensor(self, value: int) -> Tensor | None:
        """A copy of the value as it was made, on its autograd graph; None where it is not held here.

        A copy, so that a change to what is returned reaches neither the model's graph nor another record.

        Raises:
            PayloadUnavailableError: ``activation_overwritten``, when the held memory was written after the capture.
        """
        pinned = self._pins.get(value)
        if pinned is None:
            return None
        tensor, version = pinned
        if version is not None and compat.version_of(tensor) != version:
            raise PayloadUnavailableError(
                code="activation_overwritten",
                problem="the memory of this activation was written in place after the capture ended",
                remedy="clone what the model returned before changing it, or capture with a journal, which copies",
                value=value,
            )
        return compat.copied(tensor)

    def lend(self, number: int) -> Any | None:
        """The elements of the payload with this number, as a copied journal holds them; None where they are not held.

        What was overwritten after the capture is not held, nor what has no plain memory.
        """
        value = self._reserved.get(number)
        try:
            tensor = None if value is None else self.tensor(value)
        except PayloadUnavailableError:
            return None
        return None if tensor is None else contiguous_bytes(tensor)

    def node(self, number: int) -> Any:
        """The autograd node with this capture-local number; None where it is not held."""
        for node, held in self._nodes.items():
            if held == number:
                return node
        return None

    def close(self) -> None:
        """Let go of everything. Nodes go newest first: a deep graph freed from its oldest node overflows the stack."""
        self._pins.clear()
        nodes = list(self._nodes)
        self._nodes.clear()
        while nodes:
            nodes.pop()
