"""Payloads of one capture: which values are kept, and how each keeps the bits it had when it was made.

A value is kept by reference to its live tensor, so that it stays connected to the autograd graph and
costs no copy. Before anything writes to memory that a kept value shares, the value gets a connected copy
of its own (``before_write``). With a store for bytes, they are written at once, and the tensor is held
only where the graph needs it; a view of bytes already written, and not changed since, writes none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from journal.events import PayloadRef
from torchlens import compat
from torchlens.capture.budget import Budget
from torchlens.copying import copy_of, saved_copy
from torchlens.handles import made_of
from torchlens.tensors import copied_bytes, dense_bytes, reach

Pin = tuple[Tensor, int | None]
"""A held tensor and the version of its memory when it was held."""

Holding: TypeAlias = Literal["graph", "all", "nothing"]
"""Which tensors stay in memory when their bytes are stored: those on an autograd graph, all, or none."""

_untyped_storage = compat.untyped_storage  # a name of this module is found faster than an attribute of another


class Keeper:
    """Payloads of one capture.

    Args:
        reserve: Gives the number of a payload whose tensor stays in this process.
        store: Stores bytes and gives their payload number, or None where the disk refuses: those stay in memory, as
            all do without a store.
        detach: Cut kept values from the autograd graph.
        holding: Which tensors stay in memory when their bytes are stored.
        budget: How many bytes may be held; without one, any.

    Attributes:
        leave: Told why the forward should not go on. It returns: what was to be kept is kept first.
    """

    __slots__ = (
        "_budget",
        "_by_storage",
        "_detach",
        "_is_full",
        "_regions",
        "_reserve",
        "_room",
        "_stays_all",
        "_stays_connected",
        "_store",
        "exposed",
        "kept_any",
        "leave",
        "pins",
        "reserved",
    )

    takes_constants: ClassVar = True
    """Whether a constant, which is no op, is kept as ops are."""

    def __init__(
        self,
        reserve: Callable[[], int],
        store: Callable[[Any], int | None] | None,
        *,
        detach: bool,
        holding: Holding = "graph",
        budget: Budget | None = None,
    ) -> None:
        self._reserve = reserve
        self._store = store
        self._detach = detach
        self._stays_all = holding == "all"
        self._stays_connected = holding == "graph" and not detach
        self._budget = Budget(None) if budget is None else budget
        self._room = self._budget.room
        self._is_full = False  # a ceiling was crossed
        self.leave: Callable[[Any], None] = _go_on
        self.pins: dict[int, Pin] = {}
        self.reserved: dict[int, int] = {}  # key in pins by payload number, where no bytes are stored
        self.kept_any = False
        self.exposed: set[int] = set()  # storages whose memory was handed out: bytes stored before may be stale
        self._by_storage: dict[int, list[int]] = {}
        # Per storage number the newest stored bytes: payload, first element, element count, dtype.
        self._regions: dict[int, tuple[int, int, int, torch.dtype]] = {}

    def keep(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> PayloadRef | None:
        """Keep ``tensor`` as the payload of ``value``; None where something else was kept in its place.

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
        if self._stays_all or (self._stays_connected and tensor.requires_grad):
            self.pin(value, tensor, storage, private=private)
        return ref

    def let_go(self) -> None:
        """Nothing more is kept: undo the circle with the listener, so that both are freed at once."""
        self.leave = _go_on

    def keep_held(self, value: int, storage: int | None) -> PayloadRef | None:
        """Keep a value that was pinned until it was known to be wanted.

        One that was copied meanwhile stands on memory of its own: what was stored of its former memory is not its.
        """
        tensor, _ = self.pins.pop(value)
        if storage is not None and value in self._by_storage.get(storage, ()):
            return self.keep(value, tensor, storage)
        return self.keep_own(value, tensor)

    def keep_own(self, value: int, tensor: Tensor) -> PayloadRef | None:
        """Keep a tensor that nothing else shares memory with, as ``keep`` does."""
        self.kept_any = True
        return self._kept_own(value, tensor)

    def _kept_own(self, key: int, tensor: Tensor) -> PayloadRef:
        ref = None if self._store is None else self._stored(tensor, None)
        if ref is None or self._stays_all or (self._stays_connected and tensor.requires_grad):
            self.pins[key] = (compat.detach(tensor) if self._detach else tensor, compat.version_of(tensor))
            self._charge(key, tensor)
        if ref is not None:
            return ref
        number = self._reserve()
        self.reserved[number] = key
        return (number, 0, None)

    def pin(self, value: int, tensor: Tensor, storage: int | None, *, private: bool = False) -> None:
        """Hold the live tensor of ``value``; copy it first where its memory could change unseen."""
        version = compat.version_of(tensor)
        if private or version is None or storage is None or isinstance(tensor, nn.Parameter):
            if self._has_room_for(value, tensor) or version is None:
                tensor = connected_copy(tensor)
                version = compat.version_of(tensor)
        else:
            held = self._by_storage.get(storage)
            if held is None:
                self._by_storage[storage] = [value]
                self._room -= _untyped_storage(tensor).nbytes()
                if self._room < 0:
                    self._look(value, tensor)
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
            if pinned is not None and self._has_room_for(value, pinned[0]):
                copy = connected_copy(pinned[0])
                self.pins[value] = (copy, compat.version_of(copy))

    def release(self, value: int) -> None:
        """Let go of a value that is not wanted after all."""
        self.pins.pop(value, None)

    def _charge(self, key: int, tensor: Tensor) -> None:
        """Count a tensor that is held on memory of its own; one that has no plain memory is not counted."""
        with contextlib.suppress(RuntimeError):
            self._room -= _untyped_storage(tensor).nbytes()
        if self._room < 0:
            self._look(key, tensor)

    def _has_room_for(self, key: int, tensor: Tensor) -> bool:
        """Count a copy that is about to be made; whether there is room for it. If not, the forward is left, and none is
        made any more."""
        if self._is_full:
            return False
        nbytes = copied_bytes(tensor)
        self._room -= nbytes
        return self._room >= 0 or self._look(key, tensor, nbytes)

    def _look(self, key: int, latest: Tensor, copying: int = 0) -> bool:
        """The room is used up: there is more of it, or the forward is left.

        Args:
            key: What is being kept.
            latest: Its tensor, held from now on, or what is about to be copied.
            copying: Bytes of that copy.
        """
        held = ((value, tensor) for value, (tensor, _) in self.pins.items())
        pieces = ((key, latest), *held) if not copying else held
        copies = [(value_of(key), str(latest.device), copying)] if copying else ()
        shortage = self._budget.used_up(((value_of(number), tensor) for number, tensor in pieces), copies)
        self._room = self._budget.room
        if shortage is not None:
            self._is_full = True
            self.leave(shortage)
        return shortage is None

    def _stored(self, tensor: Tensor, storage: int | None) -> PayloadRef | None:
        assert self._store is not None
        region = None if storage is None or storage in self.exposed else self._regions.get(storage)
        if region is not None:
            number, first, count, dtype = region
            offset = int(tensor.storage_offset()) - first
            inside = offset >= 0 and offset + reach(tensor.shape, tensor.stride()) <= count
            if (
                tensor.dtype is dtype
                and inside
                and not compat.is_neg(tensor)
                and not (dtype.is_complex and compat.is_conj(tensor))
            ):
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


def value_of(key: int) -> int:
    """The value behind a key of the pins."""
    return key if key >= 0 else made_of(key)


def _go_on(why: Any) -> None:
    """Nobody listens."""


def connected_copy(tensor: Tensor) -> Tensor:
    """A copy with memory of its own, on the same autograd graph, strides kept where torch can."""
    try:
        if tensor.requires_grad and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            with torch.enable_grad():
                return saved_copy(tensor)
        return saved_copy(tensor)
    except RuntimeError:  # torch refuses to say where a view made in no_grad mode stands on the graph
        return copy_of(compat.detach(tensor))
