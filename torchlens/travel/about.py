"""What an event is about: the event that it tells more of, ops, a node, a pass, a module call.

Reads  one event, and the tables of the head.
Gives  an ``About``.
Rule   an event that names another one (``TELLS_MORE_OF``) is about what that one is about; one that names a value,
       about what made the value; one that names a node, about the op which that differentiates.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs

from journal.events import (
    ArgumentsKept,
    Event,
    ForwardHalted,
    GeneratorsKept,
    GradientKept,
    GradientStatisticsTaken,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    OperatorsDispatched,
    OpLeft,
    Stamped,
)
from projections import CaptureTables
from projections.accounts.call_facts import module_labels
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from torchlens.reading.facade import Trace

__all__ = ["MODULE_CALLS", "About", "told_by"]

Site: TypeAlias = tuple[str, int]
"""``ops``, or ``orphans`` for an op on an island, and the row there."""

TELLS_MORE_OF: Final[Mapping[type[Event], str]] = MappingProxyType(
    {
        GradientKept: "of",
        GradientStatisticsTaken: "of",
        ArgumentsKept: "of",
        GeneratorsKept: "of",
        OpLeft: "started",
        OperatorsDispatched: "by",
        ForwardHalted: "at",
    }
)
"""The field with the number of the event that an event tells more of."""

MODULE_CALLS: Final = (ModuleEntered, ModuleLeft, ModuleRaised)
"""Events that a module call itself is told by."""


@attrs.frozen
class About:
    """What an event is about.

    Attributes:
        at: Number of the event itself or, where it tells more of another one, of that.
        event: The event of this number.
        sites: The ops that it made; else the one that made its value; else the one that its node differentiates.
        node: Row of its autograd node in ``grad_fns``; NOWHERE where it is about none.
        pass_number: Number of its backward pass, from 0; None outside any.
        call: Number of the module call that it is about or was made in; None where it tells of none.
        parameter: Number of the parameter that its value is, or whose gradient its node gathers; NOWHERE for others.
    """

    at: int
    event: Event
    sites: tuple[Site, ...]
    node: int
    pass_number: int | None
    call: int | None
    parameter: int

    def labels(self, tables: CaptureTables) -> tuple[str, ...]:
        """Labels of the ops, those on islands by their raw label."""
        return tuple(tables.table(name).value("label", row) for name, row in self.sites)

    def subject(self, tables: CaptureTables) -> str:
        """The same in a word or two: a node and its pass, ops, a module call, a parameter; empty where it is none."""
        if self.pass_number is not None:
            node = "" if self.node == NOWHERE else f"{tables.forward.autograd.labels[self.node]} in "
            return f"{node}pass {self.pass_number + 1}"
        if self.sites:
            return ", ".join(self.labels(tables))
        if self.parameter != NOWHERE:
            return tables.forward.words.parameters[self.parameter].address
        if isinstance(self.event, MODULE_CALLS):
            return "".join(module_labels(tables.forward, NOWHERE if self.call is None else self.call)[-1:])
        return ""


def told_by(trace: Trace, stamped: Stamped) -> About:
    """What an event of a capture is about."""
    with over_events():
        tables = trace.tables
        forward, event = tables.forward, stamped.event
        at: int = stamped.at
        more_of: int | None = getattr(event, TELLS_MORE_OF.get(type(event), ""), None)
        if more_of is not None:
            at, event = more_of, trace.event(more_of)
        node: int | None = getattr(event, "node", None)
        row = NOWHERE if node is None else forward.autograd.row_of(node)
        value: int | None = getattr(event, "value", None)
        parameter = NOWHERE
        if value is not None and value < 0:
            parameter = -1 - value
        elif row != NOWHERE:
            parameter = forward.pairing.leaf_params[row]
        return About(
            at=at,
            event=event,
            sites=made_at(tables, at) or holding(tables, value) or differentiated(tables, row),
            node=row,
            pass_number=getattr(event, "pass_number", None),
            call=entered_at(tables, at) if isinstance(event, ModuleEntered) else getattr(event, "call", None),
            parameter=parameter,
        )


def made_at(tables: CaptureTables, at: int) -> tuple[Site, ...]:
    """The ops that an event made."""
    found: list[Site] = []
    for table in (tables.ops, tables.orphans):
        events = table.context.rows.event
        found += [(table.name, row) for row in range(bisect_left(events, at), bisect_right(events, at))]
    return tuple(found)


def holding(tables: CaptureTables, value: int | None) -> tuple[Site, ...]:
    """The op that made a value; none for a parameter, and for a constant that no row shows."""
    for table in (tables.ops, tables.orphans):
        row = None if value is None else table.context.value_rows.get(value)
        if row is not None:
            return ((table.name, row),)
    return ()


def differentiated(tables: CaptureTables, node: int) -> tuple[Site, ...]:
    """The op that a node differentiates."""
    op: int = NOWHERE if node == NOWHERE else tables.grad_fns.value("op_row", node)
    return () if op == NOWHERE else (("ops", op),)


def entered_at(tables: CaptureTables, at: int) -> int | None:
    """Number of the module call that an event began."""
    events = tables.forward.calls.event
    call = bisect_left(events, at)
    return call if call < len(events) and events[call] == at else None
