"""A recorder that also keeps what calls were given: tensors as they were at the call, and generator states before it.

A class of its own, so that a capture that did not ask pays nothing. Tensors are copied when the call has returned,
unless it may write to an argument: then before it. So a call whose inner calls are the ops mostly costs no copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

from journal.events import ArgumentsKept, At, GeneratorsKept, KeptTensor
from torchlens import compat, generators
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.facts import shape_of
from torchlens.capture.functions import Function
from torchlens.capture.recorder import Recorder
from torchlens.capture.template import leaves
from torchlens.capture.witness import WitnessRecorder
from torchlens.copying import copy_of
from torchlens.tensors import DTYPE_WORD, dense_bytes

_get_ident: Final = threading.get_ident


class Copies:
    """Tensors kept as they were, apart from the model's graph.

    Args:
        reserve: Gives the number of a payload that stays in this process.
        store: Stores bytes and gives their payload number, or None where the disk refuses; None without a disk.
        held: Where tensors are held that have no stored bytes, by payload number.
    """

    __slots__ = ("held", "reserve", "store")

    def __init__(
        self,
        reserve: Callable[[], int],
        store: Callable[[Any], int | None] | None,
        held: dict[int, Tensor] | None = None,
    ) -> None:
        self.reserve = reserve
        self.store = store
        self.held = {} if held is None else held

    def keep(self, tensor: Tensor, *, own: bool) -> KeptTensor:
        """Keep a tensor as it is now; ``own`` where nobody else has its memory."""
        shape, dtype = shape_of(tensor), DTYPE_WORD[tensor.dtype]
        packed = None if self.store is None else dense_bytes(tensor)
        if packed is not None and self.store is not None:
            data, strides, _ = packed
            number = self.store(data)
            if number is not None:
                return ((number, 0, strides), shape, dtype)
        number = self.reserve()
        self.held[number] = tensor if own else copy_of(compat.detach(tensor))
        return ((number, 0, None), shape, dtype)


Before = tuple[dict[int, Tensor], tuple[tuple[str, bytes], ...]]
"""What was taken before a call: copies of what it may write, by id of the tensor, and the generators' states."""


class ThoroughRecorder(Recorder):
    """Listener of a capture that asked for the arguments or for the generators' states.

    Args:
        copies: Where tensors go; None where arguments were not asked for.
        generators: Whether the generators' states were asked for.
    """

    # No slots: a class with some could not be one with the witness.

    def __init__(self, *args: Any, copies: Copies | None, generators: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._copies = copies
        self._generators = generators
        self._before: list[Before] = []  # of the calls that run, outermost first
        self._states: dict[str, tuple[bytes, int]] = {}  # by device: the state kept last, and its payload
        self._executed_at = -1

    # -- calls

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or _get_ident() != self.thread:
            return super().called(function, args, kwargs)
        writes = "out" in kwargs or (function.writes is not None and bool(function.writes(args, kwargs)))
        self._before.append(self._taken(args, kwargs, writes=writes))
        try:
            return super().called(function, args, kwargs)
        finally:
            self._before.pop()

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        if self.paused or _get_ident() != self.thread or watched:
            return super().applied(function, args, kwargs, watched)
        self._before.append(self._taken(args, kwargs, writes=True))
        try:
            return super().applied(function, args, kwargs, watched)
        finally:
            self._before.pop()

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, writes: bool) -> Before:
        copies: dict[int, Tensor] = {}
        states: tuple[tuple[str, bytes], ...] = ()
        with self.working():
            if writes and self._copies is not None:
                found = {id(tensor): tensor for _, tensor in leaves((args, kwargs))}
                copies = {key: copy_of(compat.detach(tensor)) for key, tensor in found.items()}
            if self._generators:
                states = generators.states()
        return copies, states

    def _executed(
        self,
        function: Function,
        template: tuple[Any, ...],
        named: tuple[Any, ...],
        inputs: list[int],
        tensors: list[Tensor],
        *rest: Any,
    ) -> None:
        before = self.values
        self._executed_at = -1
        try:
            super()._executed(function, template, named, inputs, tensors, *rest)
        finally:  # also where the forward is left right after the call
            if self.values != before:
                at = self._executed_at if self._executed_at >= 0 else self.writer.next_at() - 1
                copies, states = self._before[-1]
                self._keep(At(at), tensors, copies)
                if states:
                    self.note(GeneratorsKept(of=At(at), states=tuple(self._state(*state) for state in states)))

    def _was_written(self, inputs: list[int], tensors: list[Tensor], written: list[int], first: int) -> None:
        self._executed_at = self.writer.next_at() - 1  # events of buffers may follow
        super()._was_written(inputs, tensors, written, first)

    # -- modules

    def module_called(
        self, number: int, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.paused or _get_ident() != self.thread or self._copies is None:
            return super().module_called(number, original, args, kwargs)

        def begun(*args: Any, **kwargs: Any) -> Any:
            entered = At(self.writer.next_at() - 1)
            tensors: list[Tensor] = []
            self.take(args, kwargs, [], tensors)
            self._keep(entered, tensors, {})
            return original(*args, **kwargs)

        return super().module_called(number, begun, args, kwargs)

    def pre_hooks_started(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[At, list[Tensor]]:
        at, tensors = super().pre_hooks_started(number, args, kwargs)
        self._keep(at, tensors, {})
        return at, tensors

    # -- keeping

    def _keep(self, of: At, tensors: list[Tensor], copies: dict[int, Tensor]) -> None:
        keeper = self._copies
        if keeper is None:
            return
        with self.working():
            kept = tuple(keeper.keep(copies.get(id(tensor), tensor), own=id(tensor) in copies) for tensor in tensors)
        self.note(ArgumentsKept(of=of, tensors=kept))

    def _state(self, device: str, state: bytes) -> tuple[str, int]:
        """Where a state is kept: most calls draw nothing, and share the one before."""
        known = self._states.get(device)
        if known is None or known[0] != state:
            known = self._states[device] = (state, self.writer.keep(state))
        return device, known[1]


class ThoroughWitness(ThoroughRecorder, WitnessRecorder):
    """Both: what keeping asks of torch is not put down to the model."""


OWN_CODE.update(
    method.__code__ for method in (ThoroughRecorder.called, ThoroughRecorder.applied, ThoroughRecorder.module_called)
)
OWN_CODE.update(code for code in ThoroughRecorder.module_called.__code__.co_consts if hasattr(code, "co_code"))
