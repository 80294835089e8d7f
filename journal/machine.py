"""A state machine is a table: (state, input) to the next state.

Rule  A pair that stands in no table is refused with both names; a guard may put an input off or drop it.
Not   what the states mean (lifecycle.py), or that a step is journaled: the writer appends the event it stepped on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from journal.errors import IllegalTransition
from journal.events.base import Event

State = TypeVar("State", bound=Enum)

Input: TypeAlias = "type[Event] | Enum"
"""What a table is keyed by: the class of the event that moves the machine, or a named step."""

Table: TypeAlias = "Mapping[tuple[State, Input], State]"


class Verdict(Enum):
    """What a guard says about an input that the table allows."""

    ALLOW = "allow"
    DEFER = "defer"  # legal, but not now: the state stays and the caller asks again
    IGNORE = "ignore"  # legal, but out of date: the state stays for good


Guard: TypeAlias = "Callable[[State, Event | Enum | type[Event]], Verdict]"


class Machine(Generic[State]):
    """One running machine.

    Args:
        table: Every legal step.
        state: Where it starts.
        guard: Asked before each step that the table allows.
    """

    __slots__ = ("guard", "state", "table")

    def __init__(self, table: Table[State], state: State, guard: Guard[State] | None = None) -> None:
        self.table = table
        self.state = state
        self.guard = guard

    def allows(self, given: Event | Input) -> bool:
        """Whether the table has a step from the present state."""
        return (self.state, key_of(given)) in self.table

    def step(self, given: Event | Input) -> Verdict:
        """Take one step.

        Raises:
            IllegalTransition: `illegal_transition`, when the table has no such step; the state stays.
        """
        after = self.table.get((self.state, key_of(given)))
        if after is None:
            raise refusal(self.table, self.state, given)
        verdict = Verdict.ALLOW if self.guard is None else self.guard(self.state, given)
        if verdict is Verdict.ALLOW:
            self.state = after
        return verdict


def key_of(given: Event | Input) -> Input:
    """The input a table knows ``given`` by."""
    return type(given) if isinstance(given, Event) else given


def inputs_of(table: Table[Any]) -> frozenset[Input]:
    """Everything that moves the machine from some state."""
    return frozenset(given for _, given in table)


def refusal(table: Table[State], state: State, given: Event | Input) -> IllegalTransition:
    """The error for a step that is not in the table."""
    name = name_of(key_of(given))
    legal = sorted(name_of(key) for before, key in table if before is state)
    return IllegalTransition(
        code="illegal_transition",
        problem=f"{name} may not follow in the state {state.value!r}",
        remedy=f"from here {', '.join(legal)} may follow" if legal else "nothing follows this state; begin a new one",
        state=state.value,
        event=name,
        legal=tuple(legal),
    )


def name_of(key: Input) -> str:
    return str(key.value) if isinstance(key, Enum) else key.__name__
