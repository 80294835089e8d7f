"""A program, run: each recorded call with the tensors of this run, in the modes that it had.

Reads  steps of a ``Program``, tensors for its inputs, parameters and buffers.
Gives  the tensors that the forward would return, and what was compared on the way.
Rule   tensors flow from call to call as they do in the model: views stay views, a write is seen under every name, and
       results hang on the autograd graph.
Rule   what Python took out of tensors is taken again and compared. The first difference is remembered, and the run
       goes on along the recorded path; with ``strict`` it ends there.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from journal.events import MODE_AUTOCAST, MODE_GRAD, MODE_INFERENCE
from journal.events import template as tag
from projections.columnar.arguments import is_whole
from projections.structure.memory import Described, Executed
from projections.structure.program import (
    Asked,
    BufferRead,
    BufferSet,
    Constant,
    Given,
    ParameterMade,
    Program,
    Reread,
    Step,
    Truth,
)
from torchlens import compat
from torchlens.capture.functions import generator_of
from torchlens.capture.inputs import copied
from torchlens.capture.replayable import memory_digest_of
from torchlens.capture.taking import ADDRESSES, HELD, LENDING
from torchlens.capture.template import encode, leaves, path_of
from torchlens.errors import PathDivergenceError, TorchLensError, message_of
from torchlens.generators import RandomState
from torchlens.reading.run_result import Divergence, Draws, PathFaithfulness
from torchlens.reading.view import View
from torchlens.replay.arguments import call_arguments
from torchlens.replay.replaying import AUTOCAST_DEVICES, defaults_of, in_defaults, spot_of
from torchlens.replay.restoring import Image, laid_out
from torchlens.running.contract import is_same
from torchlens.running.functions import ANSWERING, HANDING_OUT, OF_OBJECTS, function_of, is_writing
from torchlens.running.obstacles import place_of
from torchlens.tensors import DTYPE_BY_WORD, digest_of, has_plain_memory

__all__ = ["Call", "Execution", "Heard", "calls_of", "constants_of"]


class Call(NamedTuple):
    """A recorded call, looked up once."""

    function: Callable[..., Any] | None  # None: its results are constants
    simple: tuple[tuple[int, Any], ...] | None  # where arguments are tensors and plain values alone: place and value
    draws: bool
    is_making: bool  # it is given no tensor, so that torch's defaults decide
    own_generator: bool  # it is given a generator of the model's own


def calls_of(program: Program) -> dict[int, Call]:
    """Every call of a program, by event."""
    return {step.event: call_of(step) for step in program.steps if isinstance(step, Executed)}


def call_of(step: Executed) -> Call:
    values = (*step.args, *step.kwargs)
    function = None
    if step.inputs or all(map(is_whole, values)):
        function = function_of(step.func_name, step.func_qualname, str(step.is_opaque) if step.is_opaque else None)
    simple = None
    if not step.kwargs and all(not isinstance(value, tuple) or value == tag.HOLE for value in step.args):
        simple = tuple((place, value) for place, value in enumerate(step.args) if value != tag.HOLE)
    own = any(isinstance(value, tuple) and value[:1] == (tag.GENERATOR,) for value in values)
    return Call(function, simple, step.rng is not None, not step.inputs, own)


def constants_of(view: View, program: Program) -> dict[int, Tensor]:
    """Fresh tensors for the values that no call makes, by value; those on one storage share memory as they did."""
    wanted = [step for step in program.steps if isinstance(step, Constant)]
    by_storage: dict[int, list[Constant]] = {}
    made: dict[int, Tensor] = {}
    for step in wanted:
        tensor = view.kept(program.constants[step.value]).to(step.like.device)
        made[step.value] = tensor
        if step.like.storage is not None and has_plain_memory(tensor) and type(tensor) is Tensor:
            made[step.value] = as_it_lay(tensor, step.like)
            by_storage.setdefault(step.like.storage, []).append(step)
    for steps in by_storage.values():
        if len(steps) > 1 and not any(is_scattered(step.like) for step in steps):
            image = Image([spot_of(step.like) for step in steps], made[steps[0].value].device)
            for step in steps:
                image.write(spot_of(step.like), made[step.value])
            made |= {step.value: image.tensor(spot_of(step.like)) for step in steps}
    for step in wanted:
        tensor = made[step.value]
        is_written = step.like.storage is not None and step.like.storage in program.memory.writes
        if step.like.requires_grad and not is_written and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_()
    return made


SCATTERED: Final = 64
"""Places in memory for each element, from the first to the last, beyond which a tensor is not laid out as it lay."""


def is_scattered(like: Described) -> bool:
    here = spot_of(like)
    return here.reach > 4096 + SCATTERED * math.prod(like.shape)


def as_it_lay(tensor: Tensor, like: Described) -> Tensor:
    """A kept tensor with the strides that it had; a view that picks few elements of much memory lies densely."""
    return tensor if is_scattered(like) else laid_out(tensor, spot_of(like))


RAISED: Final = object()
"""Stands for the answer of what raised."""


class Heard:
    """Told of each step of a run; does nothing."""

    def before(self, step: Executed, tensors: list[Tensor]) -> None:
        """A call is about to be made."""

    def after(self, step: Step, tensors: list[Tensor]) -> None:
        """A step was taken, which gave these tensors."""


class Execution:
    """One run.

    Args:
        view: The capture.
        program: What to run.
        calls: Its calls, looked up.
        inputs: Tensors by value.
        parameters: Those that are used, by number.
        buffers: By number; they are written.
        draws: Whether calls draw fresh random numbers or those that were recorded.
        strict: Refuse at the first difference.
        doubt: Why the run cannot be verified, where that is known before.
        heard: Told of each step.
    """

    def __init__(
        self,
        view: View,
        program: Program,
        calls: Mapping[int, Call],
        *,
        inputs: Mapping[int, Tensor],
        parameters: Mapping[int, Tensor],
        buffers: Mapping[int, Tensor],
        draws: Draws,
        strict: bool,
        doubt: Divergence | None,
        heard: Heard,
    ) -> None:
        self.view: Final = view
        self.program: Final = program
        self.calls: Final = calls
        self.values: Final[dict[int, Tensor]] = dict(inputs)
        self.constants: Final = constants_of(view, program)
        self.parameters: Final = dict(parameters)
        self.buffers: Final = dict(buffers)
        self.draws: Final[Draws] = draws
        self.strict: Final = strict
        self.heard: Final = heard
        self.modes: Modes | None = None
        self.num_checks = 0
        self.has_drawn = False
        self.divergence = doubt
        self.faithfulness: PathFaithfulness = "verified" if doubt is None else "unverifiable"
        self.buffers_written: Final[dict[int, None]] = {}

    # -- the whole

    def run(self) -> list[Tensor]:
        """Take every step; the tensors that the forward returned.

        Raises:
            PathDivergenceError: ``call_structure_mismatch``, ``run_call_raised``; with ``strict`` also the codes of
                ``differs``.
        """
        program = self.program
        assert program.returned is not None  # preflight would have refused
        assert program.started is not None
        values = self.values
        with Modes(program.started[3]) as modes:
            self.modes = modes
            for step, last in zip(program.steps, program.let_go, strict=True):
                if isinstance(step, Executed):
                    modes.enter(step.mode, step.autocast)
                    self.call(step)
                else:
                    self.heard.after(step, self.take(step))
                for value in last:
                    values.pop(value, None)
            return [self.tensor(value) for value in program.returned[1]]

    def tensor(self, number: int) -> Tensor:
        return self.values[number] if number >= 0 else self.parameters[-1 - number]

    # -- calls

    def call(self, step: Executed) -> None:
        call = self.calls[step.event]
        given = [self.tensor(number) for number in step.inputs]
        self.heard.before(step, given)
        if call.function is None:
            results = [self.constant(step, slot) for slot in range(len(step.outputs))]
        else:
            results = self.called(step, call, given)
        self.num_checks += 1
        if len(results) != len(step.outputs):
            raise PathDivergenceError(
                code="call_structure_mismatch",
                problem=f"{step.func_qualname} gave {len(results)} tensors, and {len(step.outputs)} were recorded",
                remedy="the recorded path does not lead on from here; capture the model anew with these inputs",
                event=step.event,
                place=place_of(self.view, self.program.sites.get(step.event)),
            )
        for slot, (tensor, output) in enumerate(zip(results, step.outputs, strict=True)):
            self.values[step.first + slot] = tensor
            if not tensor.is_nested and tuple(tensor.shape) != output.shape:
                problem = f"{step.func_qualname} gave shape {tuple(tensor.shape)} and not {output.shape}"
                place = place_of(self.view, self.program.sites.get(step.event))
                self.unsure(Divergence("result_shape_differs", problem, step.event, place))
        self.heard.after(step, results)

    def called(self, step: Executed, call: Call, given: list[Tensor]) -> list[Tensor]:
        function = call.function
        assert function is not None
        try:
            if call.simple is not None and not call.draws and not call.is_making:
                args: list[Any] = list(given)
                for place, value in call.simple:
                    args.insert(place, value)
                returned = function(*args)
            else:
                args, kwargs = call_arguments(step.args, step.kwargs, given)
                with contextlib.ExitStack() as stack:
                    if call.is_making:
                        stack.enter_context(in_defaults(function, kwargs, defaults_of(step)))
                    if call.draws:
                        self.has_drawn = True
                        if self.draws == "recorded" or call.own_generator:
                            stack.enter_context(self.recorded_state(step, args, kwargs))
                    returned = function(*args, **kwargs)
        except TorchLensError:
            raise
        except Exception as error:
            raise PathDivergenceError(
                code="run_call_raised",
                problem=f"{step.func_qualname} raised {type(error).__name__} in this run, and did not when it was "
                f"recorded: {message_of(error)[:200]}"
                + ("" if self.divergence is None else f"; before, {self.divergence}"),
                remedy="see the cause; the recorded path holds for inputs with which the model goes the same way",
                event=step.event,
                place=place_of(self.view, self.program.sites.get(step.event)),
            ) from error
        return [tensor for _, tensor in leaves(returned)] or [given[position] for position in step.written]

    def constant(self, step: Executed, slot: int) -> Tensor:
        """The result of a call that was given what is no plain data, as it was kept."""
        like = step.outputs[slot]
        tensor: Tensor = self.view.kept(self.program.constants[step.first + slot]).to(like.device)
        return as_it_lay(tensor, like) if has_plain_memory(tensor) else tensor

    @contextlib.contextmanager
    def recorded_state(self, step: Executed, args: list[Any], kwargs: dict[str, Any]) -> Iterator[None]:
        """The generator that the call draws from as it stood then; put back after the call."""
        assert step.rng is not None
        generator = generator_of(tuple(args), kwargs)
        before = compat.generator_state(generator)
        state = bytearray(self.view.journal.payload(self.view.stream, step.rng))
        generator.set_state(torch.frombuffer(state, dtype=torch.uint8))
        try:
            yield
        finally:
            generator.set_state(before)

    # -- what is no call

    def take(self, step: Step) -> list[Tensor]:
        """Take a step that is no call; the tensors that it gave a number."""
        match step:
            case Given(value=value):
                return [self.values[value]]
            case Constant(value=value):
                made = self.values[value] = self.constants.pop(value)
            case Reread(value=value, of=of):
                made = self.values[value] = self.values[of]
            case BufferRead(value=value, buffer=number):
                made = self.values[value] = self.buffers[number]
            case BufferSet():
                return self.set_buffer(step)
            case ParameterMade(number=number, source=source):
                made = self.parameters[number] = self.made(step, source)
            case Truth(inputs=(number,)):
                self.num_checks += 1
                found = self.answered(step, "bool", lambda: compat.truth(self.tensor(number)))
                if found is not step.result and found is not RAISED:
                    self.differs(
                        step, "scalar_bool_divergence", f"the truth of a tensor is {found} and was {step.result}"
                    )
                return []
            case Asked():
                self.ask(step)
                return []
            case _:
                return []
        return [made]

    def set_buffer(self, step: BufferSet) -> list[Tensor]:
        number = step.buffer
        self.buffers_written[number] = None
        if step.how == "reassign":
            assert step.source is not None  # preflight would have refused
            self.buffers[number] = self.values[step.source]
        elif number not in self.buffers and step.source is not None:
            self.buffers[number] = self.values[step.source]
        self.values[step.value] = self.buffers[number]
        return [self.buffers[number]]

    def made(self, step: ParameterMade, source: int | None) -> Tensor:
        """A parameter that the model does not register: made during the forward, or kept."""
        if source is not None:
            return nn.Parameter(self.values[source], requires_grad=step.requires_grad)
        tensor: Tensor = self.view.kept(self.program.constants[-1 - step.number])
        return tensor.requires_grad_(step.requires_grad)

    # -- what Python took

    def ask(self, step: Asked) -> None:
        given = [self.tensor(number) for number in step.inputs]
        if step.exception is not None:
            self.ask_for_exception(step, given)
            return
        self.num_checks += 1
        key = (step.func_name, step.func_qualname)
        if step.func_name in ADDRESSES:
            self.looked_at_memory(step, f"{step.func_qualname} gave an address")
        elif step.digest is not None or key in HANDING_OUT:
            look = memory_digest_of if step.func_name in LENDING else digest_of
            found = look(given[0]) if given else None
            if found is None or step.digest is None:
                self.looked_at_memory(step, f"{step.func_qualname} gave what has no bytes to compare")
            elif found != step.digest:
                if key == (HELD.func_name, HELD.qualname):
                    self.looked_at_memory(step, "other numbers were written to memory that Python had in hand")
                else:
                    self.differs(
                        step, "taken_value_divergence", f"{step.func_qualname} gives other numbers than it did"
                    )
        else:
            self.ask_for_answer(step, given)

    def ask_for_answer(self, step: Asked, given: list[Tensor]) -> None:
        key = (step.func_name, step.func_qualname)
        function = ANSWERING.get(key) or function_of(*key, step.opaque)
        assert function is not None  # preflight would have refused
        args, kwargs = call_arguments(step.args, step.kwargs, given)
        answer = self.answered(step, step.func_qualname, lambda: encode(function(*args, **kwargs), lambda tensor: None))
        if answer is RAISED:
            return
        is_fact = key in OF_OBJECTS
        if is_fact and any(self.is_from_outside(number) for number in step.inputs):
            self.looked_at_memory(step, f"{step.func_qualname} was asked of what a run has a copy of")
        elif not is_same(answer, step.result):
            told = f"{step.func_qualname} gives {answer} and gave {step.result}"
            self.looked_at_memory(step, told) if is_fact else self.differs(step, "taken_value_divergence", told)

    def is_from_outside(self, number: int) -> bool:
        """Whether a value lies in the memory of a buffer, a constant or a written parameter: runs copy these."""
        if number < 0:
            return -1 - number in self.program.written
        like = self.program.memory.describe(number)
        return like is not None and like.storage is not None and like.storage in self.outside

    @functools.cached_property
    def outside(self) -> frozenset[int | None]:
        """Storages of buffers and constants."""
        return frozenset(step.like.storage for step in self.program.steps if isinstance(step, Constant | BufferRead))

    def looked_at_memory(self, step: Asked, problem: str) -> None:
        self.unsure(Divergence("memory_looked_at", problem, step.at, place_of(self.view, step.site)))

    def answered(self, step: Asked | Truth, name: str, ask: Callable[[], Any]) -> Any:
        """The answer of a tensor; ``RAISED`` where it gives none now, as one of two elements has no truth."""
        try:
            return ask()
        except TorchLensError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it raises, it did not
            raised = f"{name} raises {type(error).__name__}, and did not: {message_of(error)[:200]}"
            self.differs(step, "call_outcome_divergence", raised)
            return RAISED

    def ask_for_exception(self, step: Asked, given: list[Tensor]) -> None:
        """Whether a call that raised, and whose exception the model caught, raises again."""
        key = (step.func_name, step.func_qualname)
        function = ANSWERING.get(key) or function_of(*key, step.opaque)
        hangs_on_graph = any(tensor.requires_grad for tensor in given) and is_writing(*key)
        if function is None or hangs_on_graph or not all(map(is_whole, (*step.args, *step.kwargs))):
            problem = f"{step.func_qualname} raised {step.exception}, and cannot be asked whether it would again"
            self.unsure(Divergence("outcome_not_asked", problem, step.at, place_of(self.view, step.site)))
            return
        self.num_checks += 1
        if self.raises(step, function, given):
            return
        assert self.modes is not None  # a run is within them
        assert self.program.started is not None
        # The modes that it raised in are not told: they are those of the last call, or those around the forward.
        self.modes.enter(self.program.started[3], ())
        if self.raises(step, function, given):
            return
        self.differs(step, "call_outcome_divergence", f"{step.func_qualname} raised {step.exception}, and does not now")

    def raises(self, step: Asked, function: Callable[..., Any], given: list[Tensor]) -> bool:
        """Whether a call raises, as things stand, what it raised; it leaves nothing behind."""
        args, kwargs = call_arguments(step.args, step.kwargs, spared(given))
        generators = RandomState()
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # whatever it raises is the answer
            return path_of(type(error)) == step.exception
        finally:
            generators.restore()
        return False

    def differs(self, step: Asked | Truth, code: str, problem: str) -> None:
        """Python would have got something else than it did."""
        found = Divergence(code, problem, step.at, place_of(self.view, step.site))
        if self.faithfulness != "diverged":
            self.divergence = found
        self.faithfulness = "diverged"
        if self.strict:
            raise refused(found)

    def unsure(self, found: Divergence) -> None:
        """Python may have looked at something that is not as it was, or that cannot be compared."""
        if self.faithfulness == "verified":
            self.faithfulness = "unverifiable"
            self.divergence = found


def spared(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors for a call that may write to them and leave nothing: copies, but of those on the graph."""
    with compat.NoTorchFunction():
        copies, _, _ = copied(tuple(tensors), {})
    return [one if one.requires_grad else copy for one, copy in zip(tensors, copies, strict=True)]


def refused(found: Divergence) -> PathDivergenceError:
    return PathDivergenceError(
        code=found.code,
        problem=f"the model would not have gone the recorded way: {found}",
        remedy="leave strict out to have the result of the recorded path; capture the model anew with these inputs",
        event=found.event,
        place=found.place,
    )


class Modes:
    """Grad, inference and autocast modes, changed where the next call had others.

    A run within ``torch.no_grad()`` makes no graph where the capture did not run in it, and the model did not ask for
    gradients itself; likewise ``torch.inference_mode()``.

    Args:
        around: The modes around the forward as it was recorded.
    """

    def __init__(self, around: int) -> None:
        self.no_grad: Final = bool(around & MODE_GRAD) and not torch.is_grad_enabled()
        self.inference: Final = not around & MODE_INFERENCE and torch.is_inference_mode_enabled()
        self.stack = contextlib.ExitStack()
        self.now: tuple[int, tuple[tuple[str, str], ...]] | None = None

    def __enter__(self) -> Modes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()

    def enter(self, mode: int, autocast: tuple[tuple[str, str], ...]) -> None:
        if self.now == (mode, autocast):
            return
        self.stack.close()
        self.now = (mode, autocast)
        enter = self.stack.enter_context
        enter(torch.inference_mode(bool(mode & MODE_INFERENCE) or self.inference))
        enter(torch.set_grad_enabled(bool(mode & MODE_GRAD) and not self.no_grad))
        dtypes = {device: DTYPE_BY_WORD[word] for device, word in autocast} if mode & MODE_AUTOCAST else {}
        for device in AUTOCAST_DEVICES:
            if device in dtypes:
                enter(torch.autocast(device, dtypes[device], cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                enter(torch.autocast(device, enabled=False))
