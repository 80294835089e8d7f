"""Payloads kept otherwise than as they are: copied at once, moved to a device, or changed before they are kept.

A change (``transform``, ``dtype``) makes a payload of its own, beside the activation or in its place: an activation
reads as what the op returned, or not at all. Or nothing is kept but statistics (``stats_only``).

Gives  a ``Keeper``, and in ``made`` the events that are to be told.
Rule   a change that raises, gives no tensor or writes to what it was given ends the forward; the activation it was
       to change is kept as it is, unless it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from journal.events import Event, PayloadRef, StatisticsTaken, TransformKept, Value
from torchlens import compat
from torchlens.capture.keeping import Keeper, connected_copy
from torchlens.copying import each_element
from torchlens.handles import made_of
from torchlens.measuring import measured
from torchlens.tensors import DTYPE_WORD

Change = Callable[[Tensor], Any]


class ChangeFailed(NamedTuple):
    """A change that could not be made."""

    value: int
    problem: str  # what the change did: "raised ValueError: ..."
    cause: Exception | None = None
    is_cut: bool = False  # the change worked, and left the autograd graph


class ChangingKeeper(Keeper):
    """A keeper that copies, moves or changes.

    Args:
        copies: Copy each kept value at once, so that nothing that is written later can reach it.
        device: Where kept values are held; None for where each was made.
        change: What is made of each; None for nothing.
        raw: Keep the activation beside what is made of it.
        connected: What is made of an activation that is on the autograd graph must be on it, where it is kept instead.
        others: As for ``Keeper``.
    """

    __slots__ = ("_change", "_connected", "_copies", "_device", "_raw", "made")

    takes_constants: ClassVar = False  # what is no op has nothing made of it

    def __init__(
        self,
        *args: Any,
        copies: bool,
        device: torch.device | None,
        change: Change | None,
        raw: bool,
        connected: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)
        self._copies = copies
        self._device = device
        self._change = change
        self._raw = raw
        self._connected = connected and not raw
        self.made: list[Event] = []

    def keep(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> PayloadRef | None:
        self.kept_any = True
        if self._change is not None and not self._wants_raw_beside(value, tensor, self._change):
            return None
        moved = self._moved(tensor)
        if moved is tensor:
            return super().keep(value, tensor, storage, private=private)
        return self._kept_own(value, moved)

    def keep_own(self, value: int, tensor: Tensor) -> PayloadRef | None:
        self.kept_any = True
        if self._change is not None and not self._wants_raw_beside(value, tensor, self._change):
            return None
        return self._kept_own(value, self._moved(tensor))

    def pin(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> None:
        super().pin(value, tensor, storage, private=private or self._copies)

    def _wants_raw_beside(self, value: int, tensor: Tensor, change: Change) -> bool:
        """Keep what the change makes of a tensor; whether the tensor itself is to be kept too."""
        version = compat.version_of(tensor)
        try:
            made = change(compat.detach(tensor) if self._detach else tensor)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            self.leave(ChangeFailed(value, f"raised {type(error).__name__}: {error}", error))
            return compat.version_of(tensor) == version
        if compat.version_of(tensor) != version:
            self.leave(ChangeFailed(value, "wrote to the activation it was given"))
            return False
        if not isinstance(made, Tensor):
            self.leave(ChangeFailed(value, f"returned {type(made).__name__}, not a tensor"))
            return True
        if self._connected and tensor.requires_grad and not made.requires_grad:
            self.leave(ChangeFailed(value, f"gave a tensor of {made.dtype} off the autograd graph", is_cut=True))
            return True
        made = self._moved(made)
        if shares_memory(made, tensor):
            made = connected_copy(made)  # a part of it would keep all of its memory, and follow what is written there
        shape = () if made.is_nested else tuple(made.shape)
        payload = self._kept_own(made_of(value), made)
        self.made.append(TransformKept(value=Value(value), shape=shape, dtype=DTYPE_WORD[made.dtype], payload=payload))
        return self._raw

    def _moved(self, tensor: Tensor) -> Tensor:
        device = self._device
        if device is None or (tensor.device.type == device.type and device.index in (None, tensor.device.index)):
            return tensor
        given = compat.detach(tensor) if self._detach else tensor
        return each_element(given, lambda elements: compat.to(elements, device))


class MeasuringKeeper(ChangingKeeper):
    """A keeper of statistics: it holds no tensor and stores no bytes once it has taken those of a value."""

    __slots__ = ()

    takes_constants: ClassVar = True

    def keep(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> PayloadRef | None:
        return self.keep_own(value, tensor)

    def keep_own(self, value: int, tensor: Tensor) -> PayloadRef | None:
        self.kept_any = True
        self.made.append(StatisticsTaken(value=Value(value), figures=measured(tensor)))
        return None


def shares_memory(one: Tensor, other: Tensor) -> bool:
    address = compat.storage_or_none(one)
    return one is other if address is None else address == compat.storage_or_none(other)
