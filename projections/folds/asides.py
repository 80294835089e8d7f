"""What stands beside the calls of a forward because it was asked for: arguments, generator states, an optimizer, hooks.

Reads  ArgumentsKept, GeneratorsKept, OptimizerGiven, PreHooksStarted, ModuleEntered.
Gives  the events that tell of them, by the event or the module call that they belong to.
Not    what those events say: it is read from them when a record is.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from journal.events import ArgumentsKept, GeneratorsKept, ModuleEntered, OptimizerGiven, PreHooksStarted
from projections.folds.fold import Fold
from projections.folds.split import appended, head


@attrs.define(slots=True)
class Asides:
    """What the fold has made so far. Flat lists of pairs, the second of which is an event."""

    arguments: list[int] = appended(width=2)  # event of the call, event that tells what was kept of its arguments
    generators: list[int] = appended(width=2)  # event of the call, event that tells the generators' states before it
    hooked: list[int] = appended(width=2)  # module call, event that tells what its pre-hooks were given
    waiting: dict[int, int] = head(dict)  # module whose pre-hooks run: that event
    calls: int = 0
    optimizer: int | None = None  # event that tells of the optimizer


def arguments_kept(asides: Asides, at: int, type_id: int, time_ns: int, of: int, _tensors: Any) -> None:
    asides.arguments += (of, at)


def generators_kept(asides: Asides, at: int, type_id: int, time_ns: int, of: int, _states: Any) -> None:
    asides.generators += (of, at)


def pre_hooks_started(asides: Asides, at: int, type_id: int, time_ns: int, module: int, *_rest: Any) -> None:
    asides.waiting[module] = at


def module_entered(asides: Asides, at: int, type_id: int, time_ns: int, module: int, *_rest: Any) -> None:
    call = asides.calls
    asides.calls = call + 1
    if asides.waiting:
        event = asides.waiting.pop(module, None)
        if event is not None:
            asides.hooked += (call, event)


def optimizer_given(asides: Asides, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    asides.optimizer = at


ASIDES: Final = Fold(
    "asides",
    version=1,
    initial=Asides,
    handlers={
        ArgumentsKept: arguments_kept,
        GeneratorsKept: generators_kept,
        ModuleEntered: module_entered,
        OptimizerGiven: optimizer_given,
        PreHooksStarted: pre_hooks_started,
    },
)
