"""Payloads of one capture: which values are kept, and how each keeps the bits it had when it was made.

A value is kept by reference to its live tensor, so that it stays connected to the autograd graph and
costs no copy. Before anything writes to memory that a kept value shares, the value gets a connected copy
of its own (``before_write``). With a store for bytes, they are written at once, and the tensor is held
only where the graph needs it; a view of bytes already written, and not changed since, writes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from journal.events import PayloadRef
from torchlens import compat
from torchlens.tensors import dense_bytes

Pin = tuple[Tensor, int | None]
"""A held tensor and the version of its memory when it was held."""


class Keeper:
    """Payloads of one capture.

    Args:
        reserve: Gives the number of a payload whose tensor stays in this process.
        store: Stores bytes and gives their payload number, or None where the disk refuses: those stay in memory, as
            all do without a store.
        detach: Cut kept values from the autograd graph.
    """

    __slots__ = ("_by_storage", "_detach", "_regions", "_reserve", "_store", "exposed", "kept_any", "pins", "reserved")

    def __init__(self, reserve: Callable[[], int], store: Callable[[Any], int | None] | None, *, detach: bool) -> None:
        self._reserve = reserve
        self._store = store
        self._detach = detach
        self.pins: dict[int, Pin] = {}
        self.reserved: dict[int, int] = {}  # value by payload number, where the tensor is held and no bytes are stored
        self.kept_any = False
        self.exposed: set[int] = set()  # storages whose memory was handed out: bytes stored before may be stale
        self._by_storage: dict[int, list[int]] = {}
        # Per storage number the newest stored bytes: payload, first element, element count, dtype.
        self._regions: dict[int, tuple[int, int, int, torch.dtype]] = {}

    def keep(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> PayloadRef:
        """Keep ``tensor`` as the payload of ``value``.

        Args:
            value: Number of the value.
            tensor: The live tensor, as the call returned it.
            storage: Storage number; None where the tensor has no storage.
            private: The memory is long-lived and the user's, as a buffer's is: copy now.
        """
        self.kept_any = True
        ref = None if self._store is None else self._stored(tensor, storage)
        if ref is None:
            self.pin(value, tensor, storage, private=private)
            number = self._reserve()
            self.reserved[number] = value
            return (number, 0, None)
        if tensor.requires_grad and not self._detach:
            self.pin(value, tensor, storage, private=private)
        return ref

    def pin(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> None:
        """Hold the live tensor of ``value``; copy it first where its memory could change unseen."""
        version = compat.version_of(tensor)
        if private or version is None or storage is None or isinstance(tensor, nn.Parameter):
            tensor = connected_copy(tensor)
            version = compat.version_of(tensor)
        else:
            held = self._by_storage.get(storage)
            if held is None:
                self._by_storage[storage] = [value]
            else:
                held.append(value)
        if self._detach:
            tensor = compat.detach(tensor)
        self.pins[value] = (tensor, version)

    def before_write(self, storage: int) -> None:
        """Something is about to write to this memory: give the values in it memory of their own."""
        self._regions.pop(storage, None)
        for value in self._by_storage.pop(storage, ()):
            pinned = self.pins.get(value)
            if pinned is not None:
                copy = connected_copy(pinned[0])
                self.pins[value] = (copy, compat.version_of(copy))

    def release(self, value: int) -> None:
        """Let go of a value that is not wanted after all."""
        self.pins.pop(value, None)

    def _stored(self, tensor: Tensor, storage: int | None) -> PayloadRef | None:
        assert self._store is not None
        region = None if storage is None or storage in self.exposed else self._regions.get(storage)
        if region is not None:
            number, first, count, dtype = region
            offset = int(tensor.storage_offset()) - first
            inside = offset >= 0 and offset + reach(tensor) <= count
            if tensor.dtype is dtype and inside and not tensor.is_neg() and not (dtype.is_complex and tensor.is_conj()):
                return (number, offset, None if tensor.is_contiguous() else tuple(tensor.stride()))
        packed = dense_bytes(tensor)
        if packed is None:
            return None
        data, strides, in_memory_order = packed
        stored = self._store(data)
        if stored is None:
            return None
        if storage is not None and in_memory_order:
            self._regions[storage] = (stored, int(tensor.storage_offset()), tensor.numel(), tensor.dtype)
        return (stored, 0, strides)


def reach(tensor: Tensor) -> int:
    """Elements from the tensor's first one to its last one in memory, both included; 0 if it has none."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def connected_copy(tensor: Tensor) -> Tensor:
    """A copy with memory of its own, on the same autograd graph, strides kept where torch can."""
    try:
        if tensor.requires_grad and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            with torch.enable_grad():
                return compat.copied(tensor)
        return compat.copied(tensor)
    except RuntimeError:  # torch refuses to say where a view made in no_grad mode stands on the graph
        return compat.copied(compat.detach(tensor))
