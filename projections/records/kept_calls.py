"""Columns of what was kept beside the calls: arguments, generator states, what pre-hooks were given, an optimizer.

Reads  a ``Forward``.
Gives  makers of columns of ops, module calls and parameters; columns.py lists them with the others.
Rule   a column says which event tells; the payloads are read from it when a record's field is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from journal.events import DESCRIPTION, GeneratorsKept, ModuleEntered, OptimizerGiven, PreHooksStarted, Row
from journal.events import template as tag
from projections.columnar.arguments import flat_kwargs, is_tuple
from projections.columnar.sequences import Deferred
from projections.columnar.tables import Column
from projections.folds.graph import NOWHERE, ROOT_MODULE
from projections.forward import Forward, exactly
from projections.structure.details import ARGS, DTYPE, INPUTS, KWARGS, OUTPUTS, SHAPE, WRITERS, field

STATES: Final = field(GeneratorsKept, "states")
OPTIMIZED: Final = field(OptimizerGiven, "parameters")
OFFSET: Final = DESCRIPTION.index("offset")
STRIDES: Final = DESCRIPTION.index("strides")

CALLED: Final = tuple(field(ModuleEntered, name) for name in ("args", "kwargs", "inputs", "writers"))
GIVEN: Final = tuple(field(PreHooksStarted, name) for name in ("args", "kwargs", "inputs", "writers"))


# -- ops


def arguments_event(forward: Forward) -> Column:
    """The event that tells what was kept of each row's arguments; NOWHERE for none."""
    found = forward.beside.arguments
    return [found.get(at, NOWHERE) if wanted else NOWHERE for at, wanted in calls(forward)]


def has_saved_args(forward: Forward) -> Column:
    return [event != NOWHERE for event in arguments_event(forward)]


def calls(forward: Forward) -> Iterator[tuple[int, bool]]:
    """The event of each row, and whether it is a call."""
    return ((at, function >= 0) for at, function in zip(forward.rows.event, forward.rows.function, strict=True))


def rng_states(forward: Forward) -> Column:
    """Device and payload number of the states before a call: of all generators, or of the one it drew from.

    That of a generator which the call was given stands under ``generator``.
    """
    found, events = forward.beside.generators, forward.rows.event

    def one(row: int) -> tuple[Any, ...]:
        if forward.rows.function[row] < 0:
            return ()
        kept, detail = found.get(events[row]), forward.detail(row)
        states: tuple[Any, ...] = () if kept is None else tuple(forward.source.row(kept)[STATES])
        if detail.rng is None:
            return states
        if is_given_generator(forward.source.row(events[row])):
            return (*states, ("generator", detail.rng))
        return states or ((detail.brief.device, detail.rng),)

    return Deferred(len(forward), one, lambda: list(map(one, range(len(forward)))))


def is_given_generator(event: Row) -> bool:
    """Whether a generator is among the arguments of a call."""
    templates = (*event[ARGS], *event[KWARGS][1::2])
    return any(template[:1] == (tag.GENERATOR,) for template in templates if is_tuple(template))


def layout(forward: Forward, value: int) -> tuple[Any, ...] | None:
    """What a value is of the memory that it lies in; None where that is not known."""
    if value < 0:
        parameter = forward.words.parameters[-1 - value]
        return (parameter.shape, parameter.dtype, None, 0)
    at = forward.constants.get(value)
    row = forward.value_rows.get(value)
    if at is not None:
        given = forward.source.row(at)[-1]
    elif row is not None:
        event = forward.source.row(forward.rows.event[row])
        given = event[OUTPUTS][forward.rows.slot[row]] if forward.rows.function[row] >= 0 else event[-1]
    else:
        return None
    return (tuple(given[SHAPE]), given[DTYPE], given[STRIDES], given[OFFSET])


def read_otherwise(forward: Forward) -> Iterator[tuple[int, int, int]]:
    """Uses of a row under another name for its memory, which shows another part: row, child, place among its inputs."""
    rows = forward.rows
    own = [row for row, function in enumerate(rows.function) if function >= 0]
    for position, event in forward.scan([rows.event[row] for row in own]):
        child, writers = own[position], event[WRITERS]
        for place, writer in enumerate(writers or ()):
            if writer is None:
                continue
            row = forward.value_rows.get(writer)
            if row is not None and layout(forward, writer) != layout(forward, event[INPUTS][place]):
                yield row, child, place


def out_variations(forward: Forward) -> Column:
    """Per row, child rows that saw another tensor than its value, and at which place of their inputs."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row, child, place in read_otherwise(forward):
        found.setdefault(row, []).append((child, place))
    return [tuple(found.get(row, ())) for row in range(len(forward))]


def has_out_variations(forward: Forward) -> Column:
    made = [False] * len(forward)
    for row, _, _ in read_otherwise(forward):
        made[row] = True
    return made


# -- module calls


def call_arguments_event(forward: Forward, call: int) -> int:
    return forward.beside.arguments.get(forward.calls.event[call], NOWHERE)


def hooks_event(forward: Forward, call: int) -> int:
    return forward.beside.hooked.get(call, NOWHERE)


def hooks_arguments_event(forward: Forward, call: int) -> int:
    event = hooks_event(forward, call)
    return NOWHERE if event == NOWHERE else forward.beside.arguments.get(event, NOWHERE)


def had_pre_hook_input_change(forward: Forward, call: int) -> bool | None:
    """Whether the forward was given something else than the module's pre-hooks; None for a root that has any."""
    event = hooks_event(forward, call)
    if event != NOWHERE:
        before = as_given(forward.source.row(event), GIVEN)
        return before != as_given(forward.source.row(forward.calls.event[call]), CALLED)
    module = forward.calls.module[call]
    return None if module == ROOT_MODULE and forward.words.modules[module].forward_pre_hooks else False


def as_given(event: Row, fields: Sequence[int]) -> tuple[Any, ...]:
    """Arguments by place and by name, and per tensor the value it was and whoever wrote its memory last."""
    args, kwargs, inputs, writers = (event[place] for place in fields)
    return (
        exactly(args),
        exactly(sorted(flat_kwargs(kwargs), key=itemgetter(0))),
        inputs,
        writers or (None,) * len(inputs),
    )


# -- parameters


def has_optimizer(forward: Forward) -> Column:
    """Whether the optimizer that was given steps each parameter; None where none was."""
    count, event = len(forward.words.parameters), forward.beside.optimizer
    if event is None:
        return [None] * count
    stepped = frozenset(forward.source.row(event)[OPTIMIZED])
    return [number in stepped for number in range(count)]
