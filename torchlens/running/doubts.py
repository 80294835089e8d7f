"""Why a run cannot be verified, seen before it begins: what Python can look at around the calls is not as it was.

Reads  the given tensors, the modes around the run, the parameters, the live model, and what was recorded.
Gives  one ``Divergence`` for each that differs. The recorded calls can be made all the same.
Not    what a run is refused for (``contract``), or what Python took out of tensors (``executing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import Tensor, nn

from journal.events import MODE_AUTOCAST, MODE_GRAD, MODE_INFERENCE
from journal.events import template as tag
from projections.columnar.arguments import is_whole, tagged, text_of
from projections.structure.program import Asked, BufferSet, Given, Program
from torchlens import compat
from torchlens.capture.copied import MARK
from torchlens.capture.facts import modes_around, settings_around
from torchlens.capture.taking import FACTS, LENDING, fact_of
from torchlens.capture.template import path_of
from torchlens.reading.run_result import Divergence
from torchlens.reading.view import View
from torchlens.running.contract import Bound
from torchlens.running.living import of_outside
from torchlens.running.state import State
from torchlens.tensors import DTYPE_BY_WORD, STRIDED, contiguous_strides

__all__ = ["doubts"]

MODES = ((MODE_GRAD, "grad"), (MODE_INFERENCE, "inference"), (MODE_AUTOCAST, "autocast"))


def doubts(view: View, program: Program, given: Bound, state: State, *, is_fresh: bool) -> list[Divergence]:
    """What is not as it was, in the order in which it is told of.

    Args:
        view: The capture.
        program: What is run.
        given: Its inputs.
        state: Its parameters and buffers.
        is_fresh: Calls draw fresh random numbers.
    """
    return [
        *of_inputs(program, given),
        *of_sharing(program, given),
        *of_objects(program),
        *of_modes(program),
        *(() if state.living is None else (*state.living.differences, *of_outside(view))),
        *of_state(view, program, state),
        *of_generators(program, is_fresh=is_fresh),
        *of_threads(program),
        *of_foreign_modes(program),
    ]


def of_inputs(program: Program, given: Bound) -> Iterator[Divergence]:
    asked = {step.func_name for step in program.steps if isinstance(step, Asked)}
    facts = [name for name in FACTS if name in asked]
    for step in program.steps:
        if isinstance(step, Given):
            name = ".".join(map(str, step.path)) or "the input"
            with compat.NoTorchFunction():
                original, copy = given.originals[step.value], given.tensors[step.value]
                found = list(differences(step, original))
                if asked & LENDING and lies_elsewhere(original, copy):
                    found.append("is part of a larger memory, which Python looked at")
                found += [
                    f"is none whose {fact} is that of a new tensor, and Python asked for it"
                    for fact in facts
                    if fact_of(fact, original) != fact_of(fact, copy)
                ]
            for problem in found:
                yield Divergence("input_form_differs", f"{name} {problem}", step.at, None)


def differences(step: Given, tensor: Tensor) -> Iterator[str]:
    """What Python can ask of a tensor that is not as it was, but for what a run is refused for."""
    like = step.like
    if tensor.requires_grad != like.requires_grad:
        yield f"has requires_grad={tensor.requires_grad}, and had {like.requires_grad}"
    if like.layout is None and tensor.layout is STRIDED and not tensor.is_nested:
        strides = tuple(tensor.stride())
        if tensor.is_contiguous():
            # Those of a contiguous tensor are recorded as None: of axes of length 1 they may be any.
            if like.strides is not None or strides != contiguous_strides(tuple(tensor.shape)):
                yield f"has strides {strides}, and had {like.strides or 'those of a contiguous tensor'}"
        elif strides != like.strides:
            yield f"has strides {strides}, and had {like.strides or 'those of a contiguous tensor'}"
    kind = type(tensor)
    own = sorted(vars(tensor).keys() - {MARK}) if kind is Tensor else ()
    if own:  # which the copy that the capture's model was given had not
        yield f"has attributes of its own, as {own[0]!r}"
    if isinstance(tensor, nn.Parameter):  # the capture's model was given a copy, which is none
        yield "is a parameter, and the model was given a tensor"
    elif (None if kind is Tensor else path_of(kind)) != like.tensor_class:
        yield f"is a {path_of(kind)}, and was a {like.tensor_class or 'torch.Tensor'}"


def of_sharing(program: Program, given: Bound) -> Iterator[Divergence]:
    """Inputs that lie in one memory with others than they did, or otherwise: what is written to one is seen in both."""
    steps = [step for step in program.steps if isinstance(step, Given)]
    before = neighbours([(step.value, step.like.storage, step.like.offset * size_of(step)) for step in steps])
    tensors = [given.originals[step.value] for step in steps]
    now = neighbours(
        [
            (step.value, memory, 0 if memory is None else int(tensor.storage_offset()) * size_of(step))
            for step, tensor, memory in zip(steps, tensors, map(compat.storage_or_none, tensors), strict=True)
        ]
    )
    for step in steps:
        if before[step.value] != now[step.value]:
            name = ".".join(map(str, step.path)) or "the input"
            counts = len(now[step.value]), len(before[step.value])
            problem = f"{name} shares memory with {counts[0]} other inputs, and did with {counts[1]}"
            problem += ", otherwise placed" if counts[0] == counts[1] else ""
            yield Divergence("input_form_differs", problem, step.at, None)


def size_of(step: Given) -> int:
    """Bytes of an element."""
    return DTYPE_BY_WORD[step.like.dtype].itemsize


def neighbours(tensors: list[tuple[int, int | None, int]]) -> dict[int, set[tuple[int, int]]]:
    """For each of several tensors, of which value, memory and first byte are told, the others in its memory: value, and
    bytes from its first one to theirs."""
    by_memory: dict[int | None, list[tuple[int, int]]] = {}
    for value, memory, first in tensors:
        by_memory.setdefault(memory, []).append((value, first))
    return {
        value: {(other, at - first) for other, at in by_memory[memory] if memory is not None and other != value}
        for value, memory, first in tensors
    }


def of_objects(program: Program) -> Iterator[Divergence]:
    """Arguments of which a capture keeps no more than class, name or length, so that any other passes for them."""
    assert program.started is not None  # preflight would have refused
    args, kwargs, _, _ = program.started
    waiting: list[Any] = [*args, *kwargs]
    while waiting:
        template = waiting.pop(0)
        parts = tagged(template) or ()
        if parts and (parts[0] in CUT or (parts[0] == tag.OPAQUE and not is_whole(parts)) or is_nameless(parts)):
            problem = f"an argument is told as {text_of(template)[:80]} alone, and cannot be compared"
            yield Divergence("input_not_compared", problem, None, None)
            return
        waiting += parts[1:] if parts and parts[0] not in (tag.OPAQUE, tag.CALLABLE) else ()


CUT: Final = frozenset((tag.LONG, tag.LONG_TEXT, tag.DEEP, tag.BYTES))
"""Tags of what is cut short."""


def is_nameless(parts: tuple[Any, ...]) -> bool:
    """Whether a function has a name that others have too, as that of a lambda or a closure."""
    return parts[0] == tag.CALLABLE and ("<" in parts[1] or parts[1].startswith("functools.partial("))


def lies_elsewhere(tensor: Tensor, copy: Tensor) -> bool:
    """Whether a tensor lies otherwise in its memory than the copy that a run is given."""
    if compat.storage_or_none(tensor) is None or compat.storage_or_none(copy) is None:
        return False
    here, there = compat.untyped_storage(tensor), compat.untyped_storage(copy)
    return tensor.storage_offset() != copy.storage_offset() or here.nbytes() != there.nbytes()


def of_modes(program: Program) -> Iterator[Divergence]:
    assert program.started is not None  # preflight would have refused
    then, now = program.started[3], modes_around()
    assert program.witnessed is not None
    for bit, name in MODES:
        if (then ^ now) & bit:
            problem = f"{name} mode is {'on' if now & bit else 'off'} around the run, and was not around the capture"
            yield Divergence("ambient_mode_differs", problem, None, None)
    before, found = program.witnessed.settings, dict(settings_around())
    for name in (*before, *(name for name in found if name not in before)):
        if before.get(name) != found.get(name):
            is_now, was = (told.get(name, "torch's own") for told in (found, before))
            problem = f"{name} is {is_now} around the run, and was {was} around the capture"
            yield Divergence("ambient_mode_differs", problem, None, None)


def of_state(view: View, program: Program, state: State) -> Iterator[Divergence]:
    """Parameters that have another form than the recorded ones, which Python can ask for."""
    words = view.tables.forward.words
    layouts = {} if program.witnessed is None else program.witnessed.layouts
    for number, tensor in state.parameters.items():
        row = words.parameters[number]
        if tensor.requires_grad is not row.requires_grad:
            problem = f"{row.address} has requires_grad={tensor.requires_grad}, and had {row.requires_grad}"
            yield Divergence("state_form_differs", problem, None, None)
        elif tensor.layout is STRIDED and strides_of(tensor) != layouts.get(number):
            yield Divergence("state_form_differs", f"{row.address} has other strides than it had", None, None)
    yield from of_shared_state(view, program, state)


def of_shared_state(view: View, program: Program, state: State) -> Iterator[Divergence]:
    """Parameters and buffers that lay in one memory, which the forward writes, and lie apart in this state."""
    words = view.tables.forward.words
    assert program.witnessed is not None  # preflight would have refused
    held = {-1 - number: tensor for number, tensor in state.parameters.items()} | state.buffers
    writing = {-1 - number for number in program.written}
    writing |= {step.buffer for step in program.steps if isinstance(step, BufferSet) and step.how != "reassign"}
    for group in program.witnessed.shared:
        members = [number for number in group if number in held]
        if not writing.isdisjoint(members) and len({compat.storage_or_none(held[number]) for number in members}) > 1:
            rows = [words.buffers[number] if number >= 0 else words.parameters[-1 - number] for number in members]
            names = " and ".join(row.address for row in rows)
            problem = f"{names} lay in one memory, which the forward writes, and lie apart now"
            yield Divergence("state_form_differs", problem, None, None)


def strides_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Those of a tensor that is not contiguous; None otherwise, as a capture tells them."""
    return None if tensor.is_contiguous() else tuple(tensor.stride())


def of_generators(program: Program, *, is_fresh: bool) -> Iterator[Divergence]:
    assert program.witnessed is not None  # preflight would have refused
    for name in program.witnessed.generators:
        if name != "torch":
            yield Divergence("numbers_were_drawn", f"numbers that {name} drew are told as constants", None, None)
        elif is_fresh:
            problem = 'the model set the state of torch\'s generator, which draws="recorded" alone gives again'
            yield Divergence("generator_was_set", problem, None, None)


def of_threads(program: Program) -> Iterator[Divergence]:
    """What other threads took out of the forward's tensors, which they may have handed to it."""
    assert program.witnessed is not None  # preflight would have refused
    for path in program.witnessed.taken_elsewhere:
        yield Divergence("taken_elsewhere", f"another thread took something by {path}", None, None)


def of_foreign_modes(program: Program) -> Iterator[Divergence]:
    """Modes that may have made another thing of calls than torch does, which a run calls alone."""
    assert program.witnessed is not None  # preflight would have refused
    for path in program.witnessed.modes:
        yield Divergence("mode_of_its_own", f"calls were made in a {path}, and a run makes them without", None, None)
