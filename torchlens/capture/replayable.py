"""A recorder that also tells what a run of the recorded calls needs, without the model's code.

Told are, beside the calls: what Python took out of tensors (numbers, lists, answers, arrays), so that a run can see
whether it would take the same; the elements of what no recorded call makes; memory that was written after it had been
handed out, by a call or past torch; and, when the forward has ended, digests of what it was given and returned, and
what other threads took meanwhile.

A class of its own, so that a capture that did not ask pays nothing.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from _thread import get_ident
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic_ns
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from journal.events import ConstantKept, ForwardWitnessed, ValueTaken, WrittenUnseen
from journal.events.template import LIST, LONG, TUPLE
from projections.columnar.arguments import is_whole
from torchlens import compat, generators
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.facts import settings_around
from torchlens.capture.functions import BUILTINS, Function, generator_of
from torchlens.capture.outside import Outside
from torchlens.capture.recorder import SHARES_OUTSIDE, Recorder
from torchlens.capture.taking import (
    ADDRESSES,
    COPYING,
    FACTS,
    HELD,
    LENDING,
    READING,
    fact_of,
    is_own,
    put_back,
    takers,
)
from torchlens.capture.template import MAX_TEXT, PLAIN, children, encode, leaves, path_of, plain_key
from torchlens.capture.thorough import Copies, ThoroughRecorder, ThoroughWitness
from torchlens.capture.witness import WitnessRecorder
from torchlens.capture.wrap import MISSING
from torchlens.tensors import digest_of
from torchlens.undoing import undo

Told = tuple[int, "str | None"]
"""A number and a digest, as the events have them."""

_function_mode_on = compat.function_mode_on
_num_modes = compat.num_modes

ANSWERS: Final = PLAIN | {complex}
"""Classes of what Python takes as it is."""

ASKED_ALIKE: Final = (*BUILTINS, functools.partial)
"""What a function of torch's is that is no Python code; an operator is called through a partial."""

TRUTH: Final = Function("__bool__", "torch.Tensor.__bool__", compat.truth)

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
        modules: The model's, whose attributes may be generators of NumPy's.
        outside: Remembers what is taken from outside.
    """

    # No slots: see ThoroughRecorder.

    def __init__(
        self,
        *args: Any,
        constants: Copies,
        transient: frozenset[int],
        outside: Outside,
        modules: Sequence[nn.Module],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._outside = outside
        self._constants = constants
        self._transient = transient
        self._modules = modules
        self._handed_out: dict[int, tuple[Tensor, str]] = {}  # by storage: its bytes, and their digest when last seen
        self._given: list[Told] = []
        self._parameters: tuple[Told, ...] = ()
        self._buffers: list[Told] = []
        self._shared: tuple[tuple[int, ...], ...] = ()
        self._settings: tuple[tuple[str, str], ...] = ()
        self._asked: dict[str, Function] = {}
        self._taken_elsewhere: dict[str, None] = {}  # import paths of what other threads took something with
        self._modes: dict[str, None] = {}  # classes of the modes of others that calls were made in
        self._written_elsewhere: dict[int, None] = {}  # values that other threads wrote to
        self._result: Any = None
        self._drawn: tuple[str, ...] = ()
        self._stood: dict[str, bytes] = {}  # by device: the state of its generator after the last draw
        self._drawing: tuple[str, torch.Generator] | None = None  # what the running call draws from
        self._is_set = False  # whether the forward set such a state itself

    @property
    def outside(self) -> Outside:
        return self._outside

    @property
    def state_digests(self) -> tuple[Sequence[Told], Sequence[Told]]:
        return self._parameters, self._buffers

    # -- what Python takes

    def watching(self) -> AbstractContextManager[Any]:
        with self.working():
            self._parameters = tuple([(number, digest_of(one)) for number, one in enumerate(self._params)])
            self._shared = _sharing([(-1 - number, one) for number, one in enumerate(self._params)], self._buffer_by_id)
            self._settings = settings_around()
        stack = contextlib.ExitStack()
        stack.enter_context(super().watching())
        stack.enter_context(self._listening_to_takers())
        stack.enter_context(self._looking_at_generators())
        return stack

    @contextlib.contextmanager
    def _listening_to_takers(self) -> Iterator[None]:
        """Every way of taking a number out of a tensor tells of it."""
        restore = takers().install()
        try:
            yield
        finally:
            restore()

    def taking(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        frame = sys._getframe(2)
        if frame.f_code in COPYING or is_own(frame):
            return function.original(*args, **kwargs)
        if not self.is_listening():
            self._took_elsewhere(function, args, kwargs)
            return function.original(*args, **kwargs)
        is_of_object = function.func_name in FACTS or function.func_name in ADDRESSES
        if is_of_object and args and isinstance(args[0], Tensor):  # told first: asking may be what changes it
            with compat.NoTorchFunction():
                self._note_taken(function, args, kwargs, frame, self._fact(function.func_name, args), None)
            with self.working():
                return function.original(*args, **kwargs)
        start = monotonic_ns()
        try:
            result = function.original(*args, **kwargs)
        except Exception as error:
            with compat.NoTorchFunction():
                self._call_raised(function, args, kwargs, error, start)
            raise
        with compat.NoTorchFunction():
            if function.func_name in READING:
                for _, tensor in leaves((args, kwargs)):
                    self._hand_out(tensor)
            self._took(function, args, kwargs, result, frame)
        return result

    def _fact(self, name: str, args: tuple[Any, ...]) -> Any:
        with self.working():
            return fact_of(name, args[0]) if name in FACTS else None

    def _took(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, frame: Any) -> None:
        """Tell what Python took: numbers and answers as they are, what is larger by the digest of its tensor."""
        is_plain = type(result) in ANSWERS or (type(result) is tuple and ANSWERS.issuperset(map(type, result)))
        if isinstance(result, str) and len(result) > MAX_TEXT:  # a template would cut it
            is_plain = False
        digest = None
        if not is_plain and function.func_name not in ADDRESSES:
            look = memory_digest_of if function.func_name in LENDING else digest_of
            with self.working():
                digest = next((look(tensor) for _, tensor in leaves((args, kwargs))), None)
        answer = encode(result, _ignore) if is_plain else None
        self._note_taken(function, args, kwargs, frame, answer, digest)

    def _note_taken(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
        answer: Any,
        digest: str | None,
    ) -> None:
        inputs: list[int] = []
        self._look_at(args, kwargs)
        template, named = self.take(args, kwargs, inputs, [])
        self.note(
            ValueTaken(
                function=self._function(function),
                site=self.sites.at(frame),
                call=self.call,
                args=template,
                kwargs=named,
                inputs=tuple(inputs),
                result=answer,
                digest=digest,
            )
        )

    def _took_elsewhere(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember that another thread took something out of tensors of this forward; what, is not told."""
        if get_ident() != self.thread:
            with compat.NoTorchFunction():
                if any(self._is_ours(tensor) for _, tensor in leaves((args, kwargs))):
                    self._taken_elsewhere[function.qualname] = None

    def _is_ours(self, tensor: Tensor) -> bool:
        """Whether a tensor is of this forward, or was made of one by another thread's call."""
        stray = self._strays.get(id(tensor))
        is_made_of_ours = stray is not None and stray.tensor() is tensor and bool(stray.inputs)
        return is_made_of_ours or self.value_of(tensor) is not None or id(tensor) in self._buffer_by_id

    def _called_elsewhere(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As for any capture; what such a call takes out of our tensors, or writes to them, is remembered."""
        with compat.NoTorchFunction():
            ours = [tensor for _, tensor in leaves((args, kwargs)) if self._is_ours(tensor)]
            versions = [compat.version_of(tensor) for tensor in ours]
        result = super()._called_elsewhere(function, args, kwargs)
        with compat.NoTorchFunction():
            if ours and _is_answer(result):
                self._taken_elsewhere[function.qualname] = None
            for tensor, version in zip(ours, versions, strict=True):
                value = self.value_of(tensor)
                if value is not None and compat.version_of(tensor) != version:
                    self._written_elsewhere[value] = None
        return result

    def tell_of_others(self) -> None:
        super().tell_of_others()
        for value in list(self._written_elsewhere):
            self.note(WrittenUnseen(value=value))

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or not self.is_listening():
            return super().called(function, args, kwargs)
        if self._handed_out:
            self._look_at(args, kwargs)
        if _function_mode_on() or _num_modes():
            self._look_at_modes()
        result = super().called(function, args, kwargs)
        if _is_answer(result) and any(True for _ in leaves((args, kwargs))):
            with compat.NoTorchFunction():  # such as ``torch.ops.aten.equal``
                self._took(function, args, kwargs, result, sys._getframe(1))
        elif type(result) is tuple and _has_answers(result) and _is_asked_alike(function, args, kwargs):
            with compat.NoTorchFunction():
                self._note_taken(function, args, kwargs, sys._getframe(1), encode(result, _ignore), None)
        return result

    def _look_at_modes(self) -> None:
        """Remember a mode that is not ours, nor one of torch's that change nothing: it may change what calls give."""
        for mode in (*compat.function_modes(), *compat.dispatch_modes()):
            kind = type(mode)
            if kind.__module__ not in compat.WATCHING_MODES and not kind.__module__.startswith("torchlens."):
                self._modes[path_of(kind)] = None

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        if self._handed_out and self.is_listening():
            self._look_at(args, kwargs)
        return super().applied(function, args, kwargs, watched)

    def asked_truth(self, tensor: Any, result: bool) -> None:
        if not self.is_listening():
            self._took_elsewhere(TRUTH, (tensor,), {})
        elif self._handed_out:
            self._look_at((tensor,), {})
        super().asked_truth(tensor, result)

    # -- memory that is handed out

    def escaping(self, tensor: Any, name: str) -> None:
        super().escaping(tensor, name)
        if not isinstance(tensor, Tensor):
            return
        function = self._asked.setdefault(name, Function(name, f"torch.Tensor.{name}", getattr(Tensor, name)))
        if not self.is_listening():
            self._took_elsewhere(function, (tensor,), {})
            return
        with compat.NoTorchFunction():
            if name in READING or name in LENDING or name in ADDRESSES:
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
        if self._handed_out:  # by a call, as is told: but Python may read it where it has it in hand
            for position in written:
                storage = self._storage_number(inputs[position])
                if storage in self._handed_out:
                    self._has_changed(storage)
                    digest = self._handed_out[storage][1]
                    self._note_taken(HELD, (tensors[position],), {}, _of_model(sys._getframe(1)), None, digest)
        super()._was_written(inputs, tensors, written, first)

    # -- what no recorded call makes

    def _meet(self, tensor: Tensor) -> int:
        before = self.values
        value = super()._meet(tensor)
        if value >= before and id(tensor) not in self._buffer_by_id:
            self._keep_constant(value, tensor)
            with self.working():
                self._outside.meet(value, tensor)
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
            with self.working():
                self._outside.meet(number, parameter)
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
        if function.func_name in SHARES_OUTSIDE and not _is_list(template):
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
                taken_elsewhere=tuple(self._taken_elsewhere),
                modes=tuple(self._modes),
                settings=self._settings,
                shared=self._shared,
            )
        )
        self._result = None

    def clear_numbers(self) -> None:
        super().clear_numbers()
        self._handed_out.clear()
        self._modules = ()
        self._outside.let_go()

    @contextlib.contextmanager
    def _looking_at_generators(self) -> Iterator[None]:
        """Numbers that Python's and NumPy's generators give go into the recorded arguments, and are drawn once."""
        owned = _numpy_generators(self._modules)
        before, stood = _other_generators(), list(map(_state_of_numpy, owned))
        with self.working():
            self._stood.update(generators.states())
        places = [(kind, name) for kind in (random.Random, random.SystemRandom) for name in ("random", "getrandbits")]
        held = [(*place, vars(place[0]).get(place[1], MISSING)) for place in places]
        drawn: dict[str, None] = {}
        try:
            for kind, name in places:
                setattr(kind, name, self._drawing_method(getattr(kind, name), drawn))
            yield
        finally:
            undo([functools.partial(put_back, *place) for place in held])
            after = _other_generators()
            drawn.update((name, None) for name, state in after.items() if before.get(name, state) != state)
            if stood != list(map(_state_of_numpy, owned)):
                drawn["numpy"] = None
            self._drawn = (*drawn, "torch") if self._is_set else tuple(drawn)

    def _drawing_method(self, original: Callable[..., Any], drawn: dict[str, None]) -> Callable[..., Any]:
        """A method by which each generator of Python's draws, that of ``random`` and all others."""

        def draw(*args: Any) -> Any:
            if self.is_listening() and not _is_importing():
                drawn["python"] = None
            return original(*args)

        return functools.wraps(original)(draw)

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


def _sharing(
    parameters: list[tuple[int, Tensor]], buffers: dict[int, tuple[int, Tensor]]
) -> tuple[tuple[int, ...], ...]:
    """Numbers of tensors that lie in one memory, by memory."""
    found: dict[int, list[int]] = {}
    for number, tensor in (*parameters, *buffers.values()):
        memory = compat.storage_or_none(tensor)
        if memory is not None:
            found.setdefault(memory, []).append(number)
    return tuple(tuple(numbers) for numbers in found.values() if len(numbers) > 1)


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


def _numpy_generators(modules: Sequence[nn.Module]) -> list[Any]:
    """Generators of NumPy's among the attributes of modules, each once."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    kinds = (numpy.random.Generator, numpy.random.RandomState)
    return list({id(held): held for one in modules for held in vars(one).values() if type(held) in kinds}.values())


def _state_of_numpy(generator: Any) -> Any:
    state = generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.bit_generator.state
    return _comparable(state)


def _comparable(state: Any) -> Any:
    """A state with its arrays as bytes: they compare by element."""
    if isinstance(state, dict):
        return {name: _comparable(part) for name, part in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


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


def _of_model(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one outwards, that is not of ours."""
    while frame is not None and is_own(frame):
        frame = frame.f_back
    return frame


def _is_answer(result: Any) -> bool:
    """Whether a call gave numbers or answers alone: None is what calls give that give nothing."""
    if type(result) in ANSWERS:
        return result is not None
    return type(result) is tuple and len(result) > 0 and ANSWERS.issuperset(map(type, result))


def _has_answers(result: tuple[Any, ...]) -> bool:
    """Whether a call gave numbers or answers beside tensors."""
    return any(item is not None and type(item) in ANSWERS for item in result)


def _is_importing() -> bool:
    """Whether a module is just being imported: what it draws is its own, as had it been imported before."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _is_asked_alike(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call can be made again to see what it gives: it is no Python code, draws and writes nothing."""
    draws = function.draws is not None and function.draws(args, kwargs)
    return not draws and function.writes is None and isinstance(function.original, ASKED_ALIKE)


def _is_list(template: tuple[Any, ...]) -> bool:
    """Whether a call's first argument is numbers, alone or in lists: a tensor made of such has memory of its own."""
    first = template[0] if template else ()
    return not isinstance(first, tuple) or first[:1] in ((LIST,), (TUPLE,), (LONG,))


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
    for method in (
        ReplayableRecorder.called,
        ReplayableRecorder.applied,
        ReplayableRecorder.module_called,
        ReplayableRecorder.taking,
    )
)
