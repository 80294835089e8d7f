"""A recorder that also tells what a run of the recorded calls needs, without the model's code.

Told are, beside the calls: what Python took out of tensors (numbers, lists, answers, arrays), so that a run can see
whether it would take the same; the elements of what no recorded call makes; memory that was written past torch after
it had been handed out; and, when the forward has ended, digests of what it was given and returned.

A class of its own, so that a capture that did not ask pays nothing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor

from journal.events import ConstantKept, ForwardWitnessed, ValueTaken, WrittenUnseen
from projections.columnar.arguments import is_whole
from torchlens import compat, generators
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import Function, generator_of
from torchlens.capture.recorder import SHARES_OUTSIDE, Recorder
from torchlens.capture.template import MAX_TEXT, PLAIN, children, encode, leaves, path_of, plain_key
from torchlens.capture.thorough import Copies, ThoroughRecorder, ThoroughWitness
from torchlens.capture.witness import WitnessRecorder
from torchlens.tensors import digest_of
from torchlens.undoing import undo

Told = tuple[int, "str | None"]
"""A number and a digest, as the events have them."""

TAKING_METHODS: Final = (
    *("item", "tolist", "__int__", "__float__", "__index__", "__complex__"),
    *("equal", "allclose", "is_nonzero", "is_conj", "is_neg", "is_inference", "__repr__", "__format__"),
)
"""Methods of tensors that give something that is no tensor: it depends on elements, or on what no record has.

A truth is told in any case.
"""

TAKING_FUNCTIONS: Final = ("equal", "allclose", "is_nonzero", "is_conj", "is_neg", "is_inference")
"""The same among the functions of ``torch``."""

READING: Final = frozenset(("numpy", "__array__", "__dlpack__"))
"""Ways of handing out memory that are there to be read."""

LENDING: Final = frozenset(("untyped_storage", "storage", "__reduce_ex__"))
"""Those that hand out all of a tensor's memory, not its elements alone; the last is how a tensor is pickled."""

ADDRESSES: Final = frozenset(("data_ptr",))
"""Those that say where it is. Whether anything was read there cannot be seen."""

COPYING: Final = frozenset((copy.copy.__code__, copy.deepcopy.__code__))
"""Code that pickles a tensor to make another of it at once."""

TOLD_CLASSES: Final[dict[type, str]] = {OrderedDict: "collections.OrderedDict", deque: "collections.deque"}
"""Containers of the standard library that a template shows as a plain dict or list."""


def memory_digest_of(tensor: Tensor) -> str | None:
    """XXH3-128 of all of a tensor's memory; as ``digest_of`` where it has none to look at."""
    memory = _memory_of(tensor)
    return digest_of(tensor if memory is None else memory)


class ReplayableRecorder(Recorder):
    """Listener of a capture that is to be run again without its model.

    Args:
        constants: Where tensors go that are kept in any case.
        transient: Numbers of the buffers that no state dict of the model holds.
    """

    # No slots: see ThoroughRecorder.

    def __init__(self, *args: Any, constants: Copies, transient: frozenset[int], **options: Any) -> None:
        super().__init__(*args, **options)
        self._constants = constants
        self._transient = transient
        self._handed_out: dict[int, tuple[Tensor, str]] = {}  # by storage: its bytes, and their digest when last seen
        self._given: list[Told] = []
        self._parameters: tuple[Told, ...] = ()
        self._buffers: list[Told] = []
        self._asked: dict[str, Function] = {}
        self._result: Any = None
        self._drawn: tuple[str, ...] = ()
        self._stood: dict[str, bytes] = {}  # by device: the state of its generator after the last draw
        self._drawing: tuple[str, torch.Generator] | None = None  # what the running call draws from
        self._is_set = False  # whether the forward set such a state itself

    @property
    def state_digests(self) -> tuple[Sequence[Told], Sequence[Told]]:
        return self._parameters, self._buffers

    # -- what Python takes

    def watching(self) -> AbstractContextManager[Any]:
        with self.working():
            self._parameters = tuple([(number, digest_of(one)) for number, one in enumerate(self._params)])
        stack = contextlib.ExitStack()
        stack.enter_context(super().watching())
        stack.enter_context(self._listening_to_takers())
        stack.enter_context(self._looking_at_generators())
        return stack

    @contextlib.contextmanager
    def _listening_to_takers(self) -> Iterator[None]:
        """Every way of taking a number out of a tensor tells of it."""
        places: list[tuple[Any, str, Any]] = []
        try:
            for owner, path, names in (
                (Tensor, "torch.Tensor", (*TAKING_METHODS, "__reduce_ex__")),
                (torch, "torch", TAKING_FUNCTIONS),
            ):
                for name in names:
                    original = getattr(owner, name)
                    places.append((owner, name, original if name in vars(owner) else None))
                    setattr(owner, name, self._taker(name, f"{path}.{name}", original))
            yield
        finally:
            undo([functools.partial(_put_back, *place) for place in places])

    def _taker(self, name: str, path: str, original: Callable[..., Any]) -> Callable[..., Any]:
        function = Function(name, path, original)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.is_listening() and sys._getframe(1).f_code not in COPYING:
                with compat.NoTorchFunction():
                    self._took(function, args, kwargs, result, sys._getframe(1))
            return result

        OWN_CODE.add(call.__code__)
        call.__wrapped__ = original  # type: ignore[attr-defined]  # as functools.wraps does
        return call

    def _took(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, frame: Any) -> None:
        """Tell what Python took: a number or an answer as it is, what is larger by the digest of its tensor."""
        inputs: list[int] = []
        tensors: list[Tensor] = []
        self._look_at(args, kwargs)
        template, named = self.take(args, kwargs, inputs, tensors)
        is_plain = type(result) in PLAIN or isinstance(result, complex)
        if isinstance(result, str) and len(result) > MAX_TEXT:  # a template would cut it
            is_plain = False
        look = memory_digest_of if function.func_name in LENDING else digest_of
        with self.working():
            digest = None if is_plain or not tensors or function.func_name in ADDRESSES else look(tensors[0])
        self.note(
            ValueTaken(
                function=self._function(function),
                site=self.sites.at(frame),
                call=self.call,
                args=template,
                kwargs=named,
                inputs=tuple(inputs),
                result=encode(result, _ignore) if is_plain else None,
                digest=digest,
            )
        )

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or not self.is_listening():
            return super().called(function, args, kwargs)
        if self._handed_out:
            self._look_at(args, kwargs)
        result = super().called(function, args, kwargs)
        if type(result) in PLAIN and result is not None and any(True for _ in leaves((args, kwargs))):
            with compat.NoTorchFunction():  # such as ``torch.ops.aten.equal``
                self._took(function, args, kwargs, result, sys._getframe(1))
        return result

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        if self._handed_out and self.is_listening():
            self._look_at(args, kwargs)
        return super().applied(function, args, kwargs, watched)

    def asked_truth(self, tensor: Any, result: bool) -> None:
        if self._handed_out and self.is_listening():
            self._look_at((tensor,), {})
        super().asked_truth(tensor, result)

    # -- memory that is handed out

    def escaping(self, tensor: Any, name: str) -> None:
        super().escaping(tensor, name)
        if not self.is_listening() or not isinstance(tensor, Tensor):
            return
        with compat.NoTorchFunction():
            if name in READING or name in LENDING or name in ADDRESSES:
                function = self._asked.setdefault(name, Function(name, f"torch.Tensor.{name}", getattr(Tensor, name)))
                self._took(function, (tensor,), {}, tensor, sys._getframe(2))
            self._hand_out(tensor)

    def _hand_out(self, tensor: Tensor) -> None:
        """From now on the memory of a tensor may be written by what is no call."""
        storage = self._storage_number(self.known_or_met(tensor))
        if storage is None or storage in self._handed_out:
            return
        with self.working():
            memory = _memory_of(tensor)
            digest = None if memory is None else digest_of(memory)
        if memory is not None and digest is not None:
            self._handed_out[storage] = memory, digest

    def _look_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell of tensors whose memory was written since it was handed out, before they are used."""
        if not self._handed_out:
            return
        with compat.NoTorchFunction():
            for _, tensor in leaves((args, kwargs)):
                value = self.value_of(tensor)
                storage = None if value is None else self._storage_number(value)
                if value is not None and storage in self._handed_out and self._has_changed(storage):
                    self.note(WrittenUnseen(value=value))

    def _has_changed(self, storage: int) -> bool:
        """Whether memory that was handed out is not what it was; from now on it is what it is now."""
        memory, before = self._handed_out[storage]
        with self.working():
            now = digest_of(memory) or before
        self._handed_out[storage] = memory, now
        return now != before

    def _was_written(self, inputs: list[int], tensors: list[Tensor], written: list[int], first: int) -> None:
        if self._handed_out:  # by a call, as is told
            for position in written:
                storage = self._storage_number(inputs[position])
                if storage in self._handed_out:
                    self._has_changed(storage)
        super()._was_written(inputs, tensors, written, first)

    # -- what no recorded call makes

    def _meet(self, tensor: Tensor) -> int:
        before = self.values
        value = super()._meet(tensor)
        if value >= before and id(tensor) not in self._buffer_by_id:
            self._keep_constant(value, tensor)
        return value

    def _read_buffer(self, buffer: Tensor, number: int) -> int:
        is_first = number not in self._buffer_versions
        value = super()._read_buffer(buffer, number)
        if is_first:
            with self.working():
                self._buffers.append((number, digest_of(buffer)))
            if number in self._transient:
                self._keep_constant(value, buffer)
        return value

    def meet_parameter(self, parameter: Tensor, module: int | None, attribute: str | None) -> int:
        number = super().meet_parameter(parameter, module, attribute)
        if id(parameter) not in self._parameter_sources:
            self._keep_constant(number, parameter)
        return number

    def _executed(
        self,
        function: Function,
        template: tuple[Any, ...],
        named: tuple[Any, ...],
        inputs: list[int],
        tensors: list[Tensor],
        result: Any,
        *rest: Any,
    ) -> None:
        first = self.values
        super()._executed(function, template, named, inputs, tensors, result, *rest)
        self._has_drawn()
        if self.values == first or inputs:
            return
        made = [tensor for _, tensor in leaves(result)]
        if function.func_name in SHARES_OUTSIDE:
            for tensor in made:
                self._hand_out(tensor)
        if not all(map(is_whole, (*template, *named))):
            for slot, tensor in enumerate(made):
                self._keep_constant(first + slot, tensor)

    def _keep_constant(self, value: int, tensor: Tensor) -> None:
        with self.working():
            kept = self._constants.keep(tensor, own=False)
        self.note(ConstantKept(value=value, kept=kept))

    # -- the forward as a whole

    def take_input(self, tensor: Tensor, path: tuple[Any, ...], *, was_parameter: bool) -> None:
        before = self.values
        super().take_input(tensor, path, was_parameter=was_parameter)
        if self.values != before:
            with self.working():
                self._given.append((before, digest_of(tensor)))

    def module_called(
        self, number: int, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = super().module_called(number, original, args, kwargs)
        if not self.stack and self.is_listening():
            self._result = result
        return result

    def returned(self, tensor: Tensor) -> int:
        self._look_at((tensor,), {})
        return super().returned(tensor)

    def ended(self, results: Sequence[tuple[int, Tensor]]) -> None:
        super().ended(results)
        with self.working():
            outputs = tuple([(value, digest_of(tensor)) for value, tensor in results])
        self.note(
            ForwardWitnessed(
                inputs=tuple(self._given),
                outputs=outputs,
                containers=tuple(_renamed(self._result, ())),
                parameters=self._parameters,
                buffers=tuple(self._buffers),
                generators=self._drawn,
                layouts=tuple(
                    (number, tuple(parameter.stride()))
                    for number, parameter in enumerate(self._params)
                    if parameter.layout is torch.strided and not parameter.is_contiguous()
                ),
            )
        )
        self._result = None

    def clear_numbers(self) -> None:
        super().clear_numbers()
        self._handed_out.clear()

    @contextlib.contextmanager
    def _looking_at_generators(self) -> Iterator[None]:
        """Numbers that Python's and NumPy's generators give go into the recorded arguments, and are drawn once."""
        before = _other_generators()
        with self.working():
            self._stood.update(generators.states())
        try:
            yield
        finally:
            after = _other_generators()
            drawn = tuple(name for name, state in after.items() if before.get(name, state) != state)
            self._drawn = (*drawn, "torch") if self._is_set else drawn

    def _keep_random_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """As for any capture; torch's generators must stand where the last draw left them."""
        device = _drawn_from(args, kwargs)
        if device is not None:
            generator = generator_of(args, kwargs)
            state = self._state_of(generator)
            if self._stood.setdefault(device, state) != state:
                self._is_set = True
            self._drawing = device, generator
        return super()._keep_random_state(args, kwargs)

    def _has_drawn(self) -> None:
        """A call has ended; remember where it left the generator, if it drew from one."""
        if self._drawing is not None:
            device, generator = self._drawing
            self._stood[device], self._drawing = self._state_of(generator), None

    def _state_of(self, generator: torch.Generator) -> bytes:
        with self.working():
            return generators.state_of(generator)


def _drawn_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The device whose generator a call draws from; None for a generator of the model's own."""
    generator = generator_of(args, kwargs)
    if any(value is generator for value in (*args, *kwargs.values())):
        return None
    return str(generator.device)


def _other_generators() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tobytes(), *rest)
    return states


def _memory_of(tensor: Tensor) -> Tensor | None:
    """All of a tensor's memory as bytes, without a copy; None for what has no plain memory."""
    try:
        storage = compat.untyped_storage(compat.detach(tensor))
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    except RuntimeError:
        return None


def _renamed(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Containers that a template shows as a plain dict or list: their places, and their classes."""
    kind = type(value)
    if kind in TOLD_CLASSES:
        yield path, TOLD_CLASSES[kind]
    elif isinstance(value, dict | UserDict) and kind is not dict and not hasattr(value, "__dataclass_fields__"):
        yield path, path_of(kind)
    if len(path) < 12:
        for key, item in children(value):
            if type(item) not in PLAIN and not isinstance(item, Tensor):
                yield from _renamed(item, (*path, plain_key(key)))


def _put_back(owner: Any, name: str, original: Any) -> None:
    if original is not None:
        setattr(owner, name, original)
    elif name in vars(owner):  # it has it from a base
        delattr(owner, name)


def _ignore(tensor: Tensor) -> None:
    return None


class ReplayableThorough(ReplayableRecorder, ThoroughRecorder):
    """Arguments or generator states are kept, too."""


class ReplayableWitness(ReplayableRecorder, WitnessRecorder):
    """Operators are accounted for, or looked at, too."""


class ReplayableThoroughWitness(ReplayableRecorder, ThoroughWitness):
    """Both."""


OWN_CODE.update(
    method.__code__
    for method in (ReplayableRecorder.called, ReplayableRecorder.applied, ReplayableRecorder.module_called)
)
