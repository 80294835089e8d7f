"""The forward as a program: what happened in order, as far as it must happen again for the same results.

Reads  values as they come, calls and how they ended, buffer writes, what Python took, and what was kept for a run.
Gives  ``Program``: its steps, the values that each needs last, which parameters it writes.
Rule   a step names values and functions by what the events call them; nothing is looked up and nothing is run.
Not    whether it can be run here, or running it (``torchlens.running``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from journal.events import (
    BranchTaken,
    BufferSeen,
    BufferWritten,
    ConstantKept,
    ConstantSeen,
    ForwardReturned,
    ForwardStarted,
    ForwardWitnessed,
    InputSeen,
    OpExecuted,
    OpRaised,
    ParameterSeen,
    Row,
    ValueReread,
    ValueTaken,
    WrittenUnseen,
)
from projections.errors import contradictory
from projections.folds.fold import Source
from projections.folds.retention import plain_ref
from projections.structure.memory import Described, Executed, Memory, described


class Given(NamedTuple):
    """A tensor among the arguments of the forward."""

    at: int
    value: int
    path: tuple[Any, ...]
    like: Described


class Constant(NamedTuple):
    """A tensor that no recorded call made."""

    at: int
    value: int
    made_by: str | None
    inside: bool
    like: Described


class Reread(NamedTuple):
    """A value by another number."""

    at: int
    value: int
    of: int


class BufferRead(NamedTuple):
    """A buffer was read for the first time."""

    at: int
    value: int
    buffer: int
    version: int
    like: Described


class BufferSet(NamedTuple):
    """A buffer got a new value."""

    at: int
    value: int
    buffer: int
    how: str
    source: int | None


class ParameterMade(NamedTuple):
    """A parameter that the model does not register was used for the first time."""

    at: int
    number: int
    source: int | None  # what it was made of during the forward
    requires_grad: bool


class Asked(NamedTuple):
    """A call that gave no tensor: Python took something, or it raised."""

    at: int
    func_name: str
    func_qualname: str
    opaque: str | None
    args: tuple[Any, ...]
    kwargs: tuple[Any, ...]
    inputs: tuple[int, ...]
    site: int
    result: Any = None  # a template
    digest: str | None = None
    exception: str | None = None  # class of what it raised


class Truth(NamedTuple):
    """Python took the truth of a value."""

    at: int
    inputs: tuple[int]
    result: bool
    site: int


class Hidden(NamedTuple):
    """A value's memory was written by what is no recorded call."""

    at: int
    value: int


Step: TypeAlias = (
    "Given | Constant | Reread | BufferRead | BufferSet | ParameterMade | Executed | Asked | Truth | Hidden"
)


class Witnessed(NamedTuple):
    """What a run is held to, and built like."""

    inputs: dict[int, str | None]  # digest by value
    outputs: dict[int, str | None]
    containers: dict[tuple[Any, ...], str]  # class by path
    parameters: dict[int, str | None]  # digest by number
    buffers: dict[int, str | None]
    generators: tuple[str, ...]
    layouts: dict[int, tuple[int, ...]]  # strides by parameter
    taken_elsewhere: tuple[str, ...]  # import paths of what other threads took something by
    modes: tuple[str, ...]  # classes of modes of others
    settings: dict[str, str]  # around the forward
    shared: tuple[tuple[int, ...], ...]  # buffers, and -1 - n for parameter n, in one memory


@attrs.frozen
class Program:
    """One forward, to be run again.

    Attributes:
        memory: The same events by value and by storage.
        steps: What happens, in order.
        let_go: Per step the values that nothing needs after it.
        constants: What was kept of values that no call makes, and of parameters (-1 - n): payload, shape, dtype.
        started: Templates of the arguments, their tensors by value, and the modes around the forward.
        returned: Template, values and paths of what came back; None where it did not return.
        witnessed: None where the capture was not made to be run again.
        written: Numbers of the parameters whose memory is written.
        sites: By step of a call, the number of its call site.
    """

    memory: Memory
    steps: tuple[Step, ...]
    let_go: tuple[tuple[int, ...], ...]
    constants: dict[int, tuple[Any, tuple[int, ...], str]]
    started: tuple[Any, Any, tuple[int, ...], int] | None
    returned: tuple[Any, tuple[int, ...], tuple[Any, ...]] | None
    witnessed: Witnessed | None
    written: frozenset[int]
    sites: dict[int, int]


OP: Final = OpExecuted.type_id
KEPT: Final = ConstantKept.type_id
STARTED: Final = ForwardStarted.type_id
RETURNED: Final = ForwardReturned.type_id
WITNESSED: Final = ForwardWitnessed.type_id
SITE: Final = 2 + OpExecuted.fields.index("site")


def program_of(source: Source, head: int | None = None) -> Program:
    """The program of the first ``head`` events of a stream; of all by default.

    Args:
        source: The stream.
        head: How many events are taken into account.
    """
    memory = Memory(source, head)
    steps: list[Step] = []
    constants: dict[int, tuple[Any, tuple[int, ...], str]] = {}
    started: Any = None
    returned: Any = None
    witnessed: Witnessed | None = None
    sites: dict[int, int] = {}
    at = 0
    for run in source.rows(0, source.head() if head is None else head):
        for row in run:
            kind = row[0]
            if kind == OP:
                sites[at] = row[SITE]
                steps.append(memory.read(at, row))
            elif kind in STEPS:
                steps.append(STEPS[kind](at, row, memory))
            elif kind == KEPT:
                payload, shape, dtype = row[3]
                constants[row[2]] = (plain_ref(payload), tuple(shape), dtype)
            elif kind == STARTED:
                args, kwargs, inputs, mode, _ = row[2:]
                started = (tuple(args), tuple(kwargs), tuple(inputs), mode)
            elif kind == RETURNED:
                result, outputs, paths = row[2:]
                returned = (result, tuple(outputs), tuple(paths))
            elif kind == WITNESSED:
                witnessed = witnessed_of(row)
            at += 1
    came_back: tuple[int, ...] = () if returned is None else returned[1]
    held = {value for value in came_back if value >= 0}
    return Program(
        memory=memory,
        steps=tuple(steps),
        let_go=last_needed(steps, held),
        constants=constants,
        started=started,
        returned=returned,
        witnessed=witnessed,
        written=frozenset(written_parameters(steps)),
        sites=sites,
    )


def witnessed_of(row: Row) -> Witnessed:
    inputs, outputs, containers, parameters, buffers, generators, layouts, elsewhere, modes, *around = row[2:]
    settings, shared = around
    return Witnessed(
        dict(inputs),
        dict(outputs),
        {tuple(path): name for path, name in containers},
        dict(parameters),
        dict(buffers),
        tuple(generators),
        {number: tuple(strides) for number, strides in layouts},
        tuple(elsewhere),
        tuple(modes),
        dict(settings),
        tuple(tuple(numbers) for numbers in shared),
    )


def given(at: int, row: Row, memory: Memory) -> Given:
    value, path, _, description = row[2:]
    return Given(at, value, tuple(path), described(description))


def constant(at: int, row: Row, memory: Memory) -> Constant:
    value, made_by, inside, _, _, description = row[2:]
    return Constant(at, value, made_by, inside, described(description))


def reread(at: int, row: Row, memory: Memory) -> Reread:
    return Reread(at, row[2], row[3])


def buffer_read(at: int, row: Row, memory: Memory) -> BufferRead:
    value, buffer, version, description = row[2:]
    return BufferRead(at, value, buffer, version, described(description))


def buffer_set(at: int, row: Row, memory: Memory) -> BufferSet:
    value, buffer, _, how, source, _, _ = row[2:]
    return BufferSet(at, value, buffer, how, source)


def parameter_made(at: int, row: Row, memory: Memory) -> ParameterMade:
    number, _, _, source, description = row[2:]
    return ParameterMade(at, number, source, bool(description[4]))


def taken(at: int, row: Row, memory: Memory) -> Asked:
    function, site, _, args, kwargs, inputs, result, digest = row[2:]
    return Asked(
        at, *named(memory, function), tuple(args), tuple(kwargs), tuple(inputs), site, result=result, digest=digest
    )


def raised(at: int, row: Row, memory: Memory) -> Asked:
    function, site, _, args, kwargs, inputs, exception, _ = row[2:]
    return Asked(at, *named(memory, function), tuple(args), tuple(kwargs), tuple(inputs), site, exception=exception)


def named(memory: Memory, function: int) -> tuple[str, str, str | None]:
    """Name, import path, and why it was not watched inside, of a function by its number."""
    if not 0 <= function < len(memory.functions):
        raise contradictory("a call of a function that no event tells of")
    name, path, opaque = memory.functions[function]
    return name, path, str(opaque) if opaque else None


def truth(at: int, row: Row, memory: Memory) -> Truth:
    value, result, site, _ = row[2:]
    return Truth(at, (value,), result, site)


def hidden(at: int, row: Row, memory: Memory) -> Hidden:
    return Hidden(at, row[2])


STEPS: Final[dict[int, Any]] = {
    InputSeen.type_id: given,
    ConstantSeen.type_id: constant,
    ValueReread.type_id: reread,
    BufferSeen.type_id: buffer_read,
    BufferWritten.type_id: buffer_set,
    ParameterSeen.type_id: parameter_made,
    ValueTaken.type_id: taken,
    OpRaised.type_id: raised,
    BranchTaken.type_id: truth,
    WrittenUnseen.type_id: hidden,
}
"""By type of an event, the step that it is."""


def needed(step: Step) -> Iterator[int]:
    """The values that a step needs, and those that it makes."""
    match step:
        case Executed(inputs=inputs, first=first, outputs=outputs):
            yield from inputs
            yield from range(first, first + len(outputs))
        case Asked(inputs=inputs) | Truth(inputs=inputs):
            yield from inputs
        case Reread(value=value, of=of):
            yield from (value, of)
        case BufferSet(value=value, source=source):
            yield value
            if source is not None:
                yield source
        case ParameterMade(source=source):
            if source is not None:
                yield source
        case Given(value=value) | Constant(value=value) | BufferRead(value=value):
            yield value
        case Hidden():
            pass


def last_needed(steps: list[Step], held: set[int]) -> tuple[tuple[int, ...], ...]:
    """Per step the values that no later one needs, but for those that are held to the end."""
    seen = set(held)
    found: list[tuple[int, ...]] = []
    for step in reversed(steps):
        last = tuple(dict.fromkeys(value for value in needed(step) if value >= 0 and value not in seen))
        seen.update(last)
        found.append(last)
    return tuple(reversed(found))


def written_parameters(steps: list[Step]) -> Iterator[int]:
    """Parameters that are written, themselves or through another name for their memory."""
    owner: dict[int | None, int] = {}  # parameter by storage, as far as a result was seen to share it
    for step in steps:
        if not isinstance(step, Executed):
            continue
        for position in step.written:
            if position < len(step.inputs) and step.inputs[position] < 0:
                yield -1 - step.inputs[position]
        for output in step.outputs:
            if output.view_of is not None and output.view_of < 0 and output.storage is not None:
                owner.setdefault(output.storage, -1 - output.view_of)
            if output.same_as is not None and output.same_as in step.written and output.storage in owner:
                yield owner[output.storage]
