"""The tensors of a capture in the order of its events, each with how far its elements reach.

Reads  events with values, kept arguments and observed gradients; what was kept of each (reading/extents.py), once.
Gives  ``Seen``, one after the other.
Rule   what a call was given comes before what it returned. A payload is read when the first tensor that lies in it
       comes, for all that do. One tensor at a time is in memory.
Note   a parameter has no event: its elements are known from the kept arguments of a call, or while it lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from journal.events import (
    ArgumentsKept,
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    GradientObserved,
    InputSeen,
    ModuleEntered,
    OpExecuted,
    PreHooksStarted,
    ValueReread,
)
from projections.structure.details import DTYPE, OUTPUTS, PAYLOAD, SHAPE, field
from torchlens.reading.extents import Extents

__all__ = ["Kind", "Seen", "seen_in"]

Kind: TypeAlias = Literal["value", "argument", "gradient"]

SINGLE: Final = {cls.type_id for cls in (InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten)}
CALLED: Final = {cls.type_id for cls in (ModuleEntered, PreHooksStarted)}
OP: Final = OpExecuted.type_id
OBSERVED: Final = GradientObserved.type_id
FIRST: Final = field(OpExecuted, "first")
TENSORS: Final = field(ArgumentsKept, "tensors")


class Seen(NamedTuple):
    """A tensor, when it was seen."""

    at: int  # number of the event
    kind: Kind
    number: int  # of the value, the place among the arguments, or which observed gradient
    extent: Any  # torchlens.measuring.Extent; None where nothing was kept of it, or it cannot be looked at


def seen_in(extents: Extents, start: int = 0, stop: int | None = None) -> Iterator[Seen]:
    """Every tensor that an event of a capture tells of, of the events from ``start`` to before ``stop``."""
    forward, at = extents.forward, start
    gradient = -1  # of backward passes nothing is asked before one comes
    kept_arguments = forward.beside.arguments
    for run in forward.source.rows(start, forward.head if stop is None else min(stop, forward.head)):
        for row in run:
            kind = row[0]
            if kept_arguments and (kind == OP or kind in CALLED) and at in kept_arguments:
                for place, kept in enumerate(forward.source.row(kept_arguments[at])[TENSORS]):
                    yield Seen(at, "argument", place, None if kept is None else extents.of_kept(kept))
            if kind == OP:
                for slot, described in enumerate(row[OUTPUTS]):
                    yield of_value(extents, at, row[FIRST] + slot, described)
            elif kind in SINGLE:
                yield of_value(extents, at, row[2], row[-1])
            elif kind == OBSERVED:
                if gradient < 0:
                    gradient = bisect_left([one.at for one in forward.backward.observed()], at)
                yield Seen(at, "gradient", gradient, extents.of_gradient(gradient))
                gradient += 1
            at += 1


def of_value(extents: Extents, at: int, value: int, described: Any) -> Seen:
    """A value, as its event describes it."""
    extent = extents.of_value(value, described[PAYLOAD], described[DTYPE], described[SHAPE])
    return Seen(at, "value", value, extent)
