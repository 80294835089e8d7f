"""Recorded calls, made again: the function by its recorded name, its arguments from templates and kept values.

Reads  a capture's events through ``Memory``, and values from live tensors or stored bytes.
Gives  per call the tensors it was given, as they lay in memory, and what the function returns for these or others.
Rule   a call is given memory of its own, so making it again changes nothing that was recorded.
Rule   what an event does not hold is refused with a code (``ReplayRefused``), never guessed.
Not    the order in which an edit spreads, or what a result should be compared with (validation/checking.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from journal.errors import JournalError
from journal.events import MODE_GRAD, MODE_INFERENCE
from projections.structure.memory import PLAIN, Described, Executed, Memory
from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.functions import generator_of
from torchlens.capture.template import leaves
from torchlens.copying import copy_of
from torchlens.errors import PayloadUnavailableError, ReplayRefused
from torchlens.reading.view import View
from torchlens.replay.arguments import call_arguments
from torchlens.replay.restoring import Image, ParameterBefore, Spot, laid_out, spot
from torchlens.tensors import DTYPE_BY_WORD, has_plain_memory

AUTOCAST_DEVICES: Final = ("cpu", "cuda")


class Defaults(NamedTuple):
    """What torch takes where a call names none; no event tells of it."""

    dtype: torch.dtype | None  # of floating point; None for that of now
    device: str | None  # likewise


class Remade(NamedTuple):
    """What a call gave when it was made again."""

    tensors: list[Tensor]  # what it was given, and may have written
    results: list[Tensor]  # in the order of the recorded outputs


class Replay:
    """The calls of one capture.

    Args:
        view: The capture.
        parameter: Gives a parameter by number as it stood before the forward; None where it is not known.
    """

    def __init__(self, view: View, parameter: Callable[[int], ParameterBefore | None]) -> None:
        self.view: Final = view
        self.memory: Final = Memory(view.tables.forward.source, view.tables.head)
        self.parameter: Final = parameter

    # -- what is called

    def function(self, call: Executed) -> Callable[..., Any]:
        """The function of a call, from the closed list of those that a capture watches.

        Raises:
            ReplayRefused: ``replay_call_opaque``; ``replay_function_unknown``, when it is in no such list.
        """
        if call.is_opaque:
            raise ReplayRefused(
                code="replay_call_opaque",
                problem=f"{call.func_qualname} was not watched inside, and is code of the model's own",
                remedy="run the model again; only calls of torch's functions can be made without it",
                func_qualname=call.func_qualname,
            )
        known = wrap.wrappers().function(call.func_name, call.func_qualname)
        found: Any = compat.op_at(call.func_qualname) if known is None else known.original
        if found is None:
            raise ReplayRefused(
                code="replay_function_unknown",
                problem=f"{call.func_qualname} is no function that this version of torch has",
                remedy="use the version of torch that the capture was made with; load the operators it used",
                func_qualname=call.func_qualname,
            )
        return found

    # -- what it was given

    def value(self, number: int) -> Tensor:
        """The elements of a value as it was made, cut from the autograd graph.

        Raises:
            ReplayRefused: ``replay_value_not_kept``, when the capture kept none, or they were overwritten since.
        """
        described = self.memory.describe(number)
        if described is None:
            raise self.not_kept(number, "no event tells of it")
        try:
            held = None if self.view.handles is None else self.view.handles.tensor(number)
            if held is not None:
                return compat.detach(held)
            if described.payload is not None:
                made: Tensor = self.view.stored(described.payload, described.dtype, described.shape)
                return made
        except (PayloadUnavailableError, JournalError) as exc:
            raise self.not_kept(number, exc.problem) from exc
        raise self.not_kept(number, "it was not saved")

    def not_kept(self, number: int, why: str) -> ReplayRefused:
        """The refusal to give a call what is not here, with what would have kept it."""
        if number < 0:
            what = f"parameter {self.view.tables.forward.words.parameters[-1 - number].address!r}"
            remedy = (
                "make calls again in the process that captured, while the model has not changed; or save with "
                "include_weights=True, or capture with save_arg_values=True"
            )
        else:
            ops = self.view.table("ops")
            rows = list(ops.column("value"))
            what = f"what {ops.value('label', rows.index(number))} gave" if number in rows else f"value {number}"
            remedy = (
                "capture with save='all', or with save_arg_values=True, and save artifacts with what calls were given"
            )
        return ReplayRefused(
            code="replay_value_not_kept",
            problem=f"{what} is not here to be given to the call: {why}",
            remedy=remedy,
            number=number,
        )

    def elements(self, number: int) -> tuple[Tensor, Spot | None]:
        """The elements of a value or, by a negative number, of a parameter, and their place.

        The place is None for what has no strided memory.
        """
        if number < 0:
            known = self.parameter(-1 - number)
            if known is None:
                raise self.not_kept(number, "its value before the forward is not known")
            tensor = known.tensor
            if not is_plain(tensor):
                return tensor, None
            return tensor, spot(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), known.offset)
        tensor, described = self.value(number), self.memory.describe(number)
        assert described is not None  # value would have refused
        return tensor, spot_of(described) if is_plain(tensor) else None

    def inputs(self, call: Executed) -> list[Tensor]:
        """What a call was given, as fresh tensors: a value that is given twice is one tensor.

        Raises:
            ReplayRefused: ``replay_value_not_kept``; ``replay_memory_unknown``, when memory was written in a way
                that the events do not tell in full.
        """
        with torch.inference_mode(mode=False), torch.no_grad():
            return self.lay_out(call)

    def lay_out(self, call: Executed) -> list[Tensor]:
        numbers = list(dict.fromkeys(call.inputs))
        shared: dict[int, list[int]] = {}
        if call.written or call.writers is not None:
            for number in numbers:
                storage = self.storage(call, number)
                if storage is not None:
                    shared.setdefault(storage, []).append(number)
        made: dict[int, Tensor] = {}
        for storage, members in shared.items():
            writes = self.memory.writes_between(storage, min(members), call.first)
            if len(members) > 1 or writes:
                made |= self.together(members, writes)
        for number in numbers:
            if number not in made:
                tensor, here = self.elements(number)
                lazy = self.memory.lazy.get(number, PLAIN)
                made[number] = copy_of(tensor) if here is None else laid_out(tensor, here, *lazy)
        return [made[number] for number in call.inputs]

    def storage(self, call: Executed, number: int) -> int | None:
        """The storage of an argument. That of a parameter is told by what wrote to it; None before anything did."""
        if number >= 0:
            described = self.memory.describe(number)
            return None if described is None else described.storage
        writer = None if call.writers is None else call.writers[call.inputs.index(number)]
        if writer is None:
            return None
        described = self.memory.describe(writer)
        if described is None or described.storage is None:
            return None
        if writer not in self.memory.writes.get(described.storage, ()):  # the parameter was put on other memory
            raise unknown(number)
        return described.storage

    def together(self, members: Sequence[int], writes: Sequence[int]) -> dict[int, Tensor]:
        """Tensors of one storage, with everything that was written to it since they were made, in its order."""
        parts: list[tuple[int, Tensor, Spot]] = []
        for number in sorted({*members, *writes}):
            tensor, here = self.elements(number)
            if here is None or number in self.memory.lazy:
                raise unknown(number)
            parts.append((number, tensor, here))
        image = Image([here for _, _, here in parts], parts[0][1].device)
        for _, tensor, here in parts:
            image.write(here, tensor)
        places = {number: here for number, _, here in parts}
        return {number: image.tensor(places[number]) for number in members}

    # -- making it again

    def run(self, call: Executed, tensors: Sequence[Tensor], defaults: Defaults | None = None) -> Remade:
        """Make a call again, in the modes and from the random state that it had.

        Args:
            call: The call.
            tensors: What to give it, as ``inputs`` does; those it writes are changed.
            defaults: The default dtype and device; those of now by default.

        Raises:
            ReplayRefused: As ``function``, and ``replay_argument_lost``.
            Exception: Whatever the function raises for these tensors.
        """
        function = self.function(call)
        given = self.with_grad(call, tensors)
        args, kwargs = call_arguments(call.args, call.kwargs, given)
        with self.modes(call), self.random_state(call, args, kwargs), in_defaults(function, kwargs, defaults):
            returned = function(*args, **kwargs)
        results = [tensor for _, tensor in leaves(returned)] or [given[position] for position in call.written]
        return Remade(given, results)

    def with_grad(self, call: Executed, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, asking for a gradient where the recorded ones did: kernels are chosen by that.

        Those that the call writes stay plain, since a leaf that wants a gradient may not be written.
        """
        if not call.mode & MODE_GRAD or call.mode & MODE_INFERENCE:
            return list(tensors)
        written = {id(tensors[position]) for position in call.written}
        if any(self.shares(tensor, tensors[position]) for position in call.written for tensor in tensors):
            written.update(map(id, tensors))
        for number, tensor in zip(call.inputs, tensors, strict=True):
            if id(tensor) in written or not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            known = self.parameter(-1 - number) if number < 0 else None
            described = self.memory.describe(number)
            wants = any(one.requires_grad for one in (known, described) if one is not None)
            if wants and not tensor.is_neg() and not (tensor.is_complex() and tensor.is_conj()):
                tensor.requires_grad_()
        return list(tensors)

    @staticmethod
    def shares(one: Tensor, other: Tensor) -> bool:
        """Whether another tensor lies in the same storage."""
        address = compat.storage_or_none(one)
        return one is not other and address is not None and address == compat.storage_or_none(other)

    @staticmethod
    @contextlib.contextmanager
    def modes(call: Executed) -> Iterator[None]:
        """Grad, inference and autocast modes as they were for the call."""
        dtypes = {device: DTYPE_BY_WORD[word] for device, word in call.autocast}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(bool(call.mode & MODE_INFERENCE)))
            stack.enter_context(torch.set_grad_enabled(bool(call.mode & MODE_GRAD)))
            for device in AUTOCAST_DEVICES:
                if device in dtypes:
                    stack.enter_context(torch.autocast(device, dtypes[device], cache_enabled=False))
                elif torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield

    @contextlib.contextmanager
    def random_state(self, call: Executed, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
        """The generator that the call draws from as it stood before the call, and put back after it."""
        if call.rng is None:
            yield
            return
        generator = generator_of(tuple(args), kwargs)
        before = compat.generator_state(generator)
        try:
            state = bytearray(self.view.journal.payload(self.view.stream, call.rng))
        except JournalError as exc:
            raise self.not_kept(call.first, f"the state of its random generator cannot be read: {exc.problem}") from exc
        generator.set_state(torch.frombuffer(state, dtype=torch.uint8))
        try:
            yield
        finally:
            generator.set_state(before)


@contextlib.contextmanager
def in_defaults(function: Callable[..., Any], kwargs: dict[str, Any], defaults: Defaults | None) -> Iterator[None]:
    """Torch's default dtype for a while; the device goes to the arguments, as a device context puts it there."""
    if defaults is None:
        yield
        return
    if defaults.device is not None and kwargs.get("device") is None and function in compat.takes_default_device():
        kwargs["device"] = torch.device(defaults.device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(defaults.dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def defaults_of(call: Executed) -> Defaults:
    """The default dtype and device under which a call that names none would give what was recorded."""
    found = (DTYPE_BY_WORD[output.dtype] for output in call.outputs)
    numbers = [dtype.to_real() for dtype in found if dtype.is_floating_point or dtype.is_complex]
    return Defaults(numbers[0] if numbers else None, call.outputs[0].device if call.outputs else None)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but elements in strided memory."""
    return type(tensor) is Tensor and has_plain_memory(tensor)


def spot_of(described: Described) -> Spot:
    return spot(DTYPE_BY_WORD[described.dtype], described.shape, described.strides, described.offset)


def unknown(number: int) -> ReplayRefused:
    what = f"value {number}" if number >= 0 else f"parameter {-1 - number}"
    return ReplayRefused(
        code="replay_memory_unknown",
        problem=f"what lay in the memory of {what} at the call does not follow from the events",
        remedy="nothing to do: memory exchanged through .data, or written under a conjugate view, is not put together",
        number=number,
    )
