"""What exists only in the process that captured: live tensors, autograd nodes, functions, and the model itself.

Each is known by the number that the stream gives it. Tensors and nodes are pinned until ``close``; the model is not:
its modules and parameters are held weakly and are None once they are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping
from itertools import islice
from typing import Any, Protocol
from weakref import ref

from torch import Tensor, nn

from torchlens import compat
from torchlens.capture.outside import Met, Outside
from torchlens.copying import copy_of, saved_copy
from torchlens.errors import PayloadUnavailableError
from torchlens.stood import Stood
from torchlens.tensors import contiguous_bytes, is_freed


def made_of(value: int) -> int:
    """Under which number the pins hold what was made of a value before it was kept: values count from 0 up."""
    return -1 - value


_latest: tuple[list[ref[nn.Module]], Stood, Stood] | None = None
"""The references of the latest capture: an object has one that all share, so the next capture of a model makes none."""


def release(nodes: dict[Any, int]) -> None:
    """Let go of autograd nodes, the newest first: a deep graph freed from its oldest node overflows the stack."""
    held = sorted(nodes, key=compat.sequence_of)
    nodes.clear()
    while held:
        held.pop()


class Watched(Protocol):
    """A watched function, as far as it is needed here."""

    @property
    def original(self) -> Any:
        """What the wrapper calls."""
        ...


class Handles:
    """The live side of one capture.

    Args:
        pins: Held tensors and the versions of their memory, by value number.
        nodes: Number of each autograd node, in order.
        reserved: Value number by payload number, of payloads that have no stored bytes.
        functions: Number of each function that was called, in order.
        copies: Tensors kept beside the calls, by payload number.
    """

    __slots__ = (
        "_buffers",
        "_copies",
        "_functions",
        "_modules",
        "_nodes",
        "_parameters",
        "_pins",
        "_reserved",
        "_stood_buffers",
        "outside",
    )

    def __init__(
        self,
        pins: dict[int, tuple[Tensor, int | None]],
        nodes: dict[Any, int],
        reserved: dict[int, int],
        functions: Mapping[Any, int],
        copies: dict[int, Tensor],
    ) -> None:
        self._pins = pins
        self._nodes = nodes
        self._reserved = reserved
        self._functions = functions
        self._copies = copies
        self._modules: list[ref[nn.Module]] = []
        self._parameters = Stood(())
        self._stood_buffers = Stood(())
        self._buffers: list[tuple[int, str]] = []
        self.outside: Mapping[int, Met] = {}  # what the forward took from outside, in a replayable capture

    def adopt(
        self,
        modules: Iterable[nn.Module],
        buffers: Iterable[tuple[int, str]],
        stood: tuple[Stood, Stood],
        outside: Outside | None,
    ) -> None:
        """Remember the model as the capture leaves it.

        Args:
            modules: Its modules, by number; those that it does not register behind them.
            buffers: Module number and attribute of each buffer.
            stood: Its parameters, likewise by number, and its buffers, as the forward began with them.
            outside: What the forward took from outside; None where that is not known.
        """
        global _latest  # one model's worth
        self._modules = list(map(ref, modules))
        self._parameters, self._stood_buffers = stood
        self._buffers = list(buffers)
        self.outside = {} if outside is None else outside.met
        _latest = self._modules, *stood

    def module(self, number: int) -> nn.Module | None:
        """The module with this number; None once it is gone."""
        return self._modules[number]() if number < len(self._modules) else None

    def parameter(self, number: int) -> Tensor | None:
        """The parameter with this number; None once it is gone."""
        held = self._parameters.tensors
        return held[number]() if number < len(held) else None

    @property
    def parameters(self) -> list[ref[Tensor]]:
        """The parameters, by number."""
        return self._parameters.tensors

    @property
    def copies(self) -> dict[int, Tensor]:
        """Tensors that have no stored bytes and are no values, by payload number."""
        return self._copies

    def is_as_captured(self, number: int) -> bool:
        """Whether the parameter with this number is as the forward began with it, as far as can be seen."""
        return self._parameters.still(number) is not None

    def buffer_as_captured(self, number: int) -> Tensor | None:
        """The buffer with this number if it is as the forward began with it, as far as can be seen; None otherwise."""
        return self._stood_buffers.still(number)

    def is_buffer(self, number: int, tensor: Tensor) -> bool:
        """Whether a tensor has the elements of the buffer with this number; True where that cannot be told."""
        return self._stood_buffers.agrees(number, tensor)

    def buffer(self, number: int) -> Tensor | None:
        """What stands under the name of the buffer with this number now; None where its module is gone."""
        if number >= len(self._buffers):
            return None
        owner, name = self._buffers[number]
        module = self.module(owner)
        return None if module is None else compat.own_buffers(module).get(name)

    def function(self, number: int) -> Any:
        """The function with this number, as torch has it without a capture; None where there is none."""
        watched: Watched | None = next(islice(self._functions, number, None), None)
        return None if watched is None else watched.original

    def tensor(self, value: int) -> Tensor | None:
        """A copy of the value as it was made, on its autograd graph; None where it is not held here.

        A copy, so that a change to what is returned reaches neither the model's graph nor another record.

        Raises:
            PayloadUnavailableError: ``activation_overwritten``, when the held memory was written since it was kept.
        """
        tensor = self.held(value)
        if tensor is None:
            return None
        try:
            return saved_copy(tensor)
        except RuntimeError:  # torch refuses to say where a view that was written through stands on the graph
            return copy_of(compat.detach(tensor))

    def held(self, value: int) -> Tensor | None:
        """The very tensor that is held of a value, to be read at once; None where none is.

        Raises:
            PayloadUnavailableError: ``activation_overwritten``, when its memory was written or freed since it was kept.
        """
        pinned = self._pins.get(value)
        if pinned is None:
            return None
        tensor, version = pinned
        if is_freed(tensor):
            raise PayloadUnavailableError(
                code="activation_overwritten",
                problem="the memory of this activation was freed since it was kept: its storage was resized",
                remedy="clone what the model returned before it is freed, or capture with a journal, which copies",
                value=value,
            )
        if version is not None and compat.version_of(tensor) != version:
            raise PayloadUnavailableError(
                code="activation_overwritten",
                problem="the memory of this activation was written in place since it was kept",
                remedy="clone what the model returned before changing it, or capture with a journal, which copies",
                value=value,
            )
        return tensor

    def set_apart(self, storages: Container[int | None]) -> None:
        """Hold copies of the values in these storages, which somebody is about to write past the count of writes."""
        for value, (tensor, _) in list(self._pins.items()):
            if compat.storage_or_none(tensor) in storages:
                with contextlib.suppress(PayloadUnavailableError):  # stays refused, since the count was passed already
                    made = self.tensor(value)
                    if made is not None:
                        self._pins[value] = made, compat.version_of(made)

    def transformed(self, value: int) -> Tensor | None:
        """A copy of what was made of the value before it was kept; None where it is not held here.

        Raises:
            PayloadUnavailableError: ``activation_overwritten``.
        """
        return self.tensor(made_of(value))

    def copy(self, number: int) -> Tensor | None:
        """A copy of the tensor that was kept as payload ``number`` beside a call; None where it is not held here."""
        held = self._copies.get(number)
        return None if held is None else copy_of(held)

    def lend(self, number: int) -> Any | None:
        """The elements of the payload with this number, as a copied journal holds them; None where they are not held.

        What was overwritten since is not held, nor what has no plain memory. They are to be read at once: where they
        lie in one run of memory it is that of the tensor that is held.
        """
        value = self._reserved.get(number)
        try:
            tensor = self._copies.get(number) if value is None else self.held(value)
        except PayloadUnavailableError:
            return None
        return None if tensor is None else contiguous_bytes(tensor)

    def node(self, number: int) -> Any:
        """The autograd node with this capture-local number; None where it is not held."""
        return next(islice(self._nodes, number, None), None)

    def close(self) -> None:
        """Let go of everything."""
        self._pins.clear()
        self._functions = {}
        self._copies.clear()
        self._modules, self._buffers, self.outside = [], [], {}
        self._parameters, self._stood_buffers = Stood(()), Stood(())
        release(self._nodes)
