"""What ran beside or below the recorded calls: operators of the dispatcher, escaped calls, other threads.

Reads  OperatorSeen, OperatorsDispatched, CallEscaped, ThreadCalled, ValueOverwritten.
Gives  the operators by number, what ran for which call, the escapes, the threads and the values written past all
       calls, in order.
Not    what follows from them for the trust in a capture (records/health.py).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import attrs

from journal.events import CallEscaped, OperatorsDispatched, OperatorSeen, Owner, ThreadCalled, ValueOverwritten
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.split import appended


class Ran(NamedTuple):
    """Operators that ran while one call was open."""

    owner: Owner
    by: int | None  # event of the op that accounts for them
    function: int | None
    operators: tuple[int, ...]


class Escape(NamedTuple):
    """An operator that ran past the wrappers."""

    operator: int
    site: int
    call: int
    candidates: tuple[str, ...]
    bound: tuple[str, ...]


class Thread(NamedTuple):
    """A thread that called torch during the forward and was not recorded."""

    name: str
    num_calls: int
    functions: tuple[tuple[str, int], ...]


@attrs.define(slots=True)
class Witnessed:
    """What the witness fold has made so far."""

    operators: list[str] = appended("operators")
    ran: list[Ran] = appended()
    escapes: list[Escape] = appended("escapes")
    threads: list[Thread] = appended("threads")
    overwritten: list[int] = appended()

    def frozen(self) -> Witnessed:
        """As it stands now, untouched by what is folded later."""
        return Witnessed(*[getattr(self, field.name).copy() for field in attrs.fields(Witnessed)])


def operator_seen(seen: Witnessed, at: int, type_id: int, time_ns: int, _number: int, name: str) -> None:
    seen.operators.append(name)


def operators_dispatched(
    seen: Witnessed,
    at: int,
    type_id: int,
    time_ns: int,
    owner: Owner,
    by: int | None,
    function: int | None,
    calls: tuple[Any, ...],
) -> None:
    operators = tuple([call[0] for call in calls])
    require_known(seen, *operators)
    seen.ran.append(Ran(owner, by, function, operators))


def call_escaped(
    seen: Witnessed,
    at: int,
    type_id: int,
    time_ns: int,
    operator: int,
    site: int,
    call: int,
    candidates: tuple[str, ...],
    bound: tuple[str, ...],
) -> None:
    require_known(seen, operator)
    seen.escapes.append(Escape(operator, site, call, tuple(candidates), tuple(bound)))


def thread_called(
    seen: Witnessed,
    at: int,
    type_id: int,
    time_ns: int,
    thread: str,
    num_calls: int,
    functions: tuple[tuple[str, int], ...],
) -> None:
    seen.threads.append(Thread(thread, num_calls, tuple([(name, count) for name, count in functions])))


def value_overwritten(seen: Witnessed, at: int, type_id: int, time_ns: int, value: int) -> None:
    seen.overwritten.append(value)


def require_known(seen: Witnessed, *operators: int) -> None:
    """Refuse numbers of operators that no event has named."""
    known = len(seen.operators)
    for operator in operators:
        if not 0 <= operator < known:
            raise contradictory(f"operator {operator} ran, and was not named")


WITNESS: Final = Fold(
    "witness",
    version=1,
    initial=Witnessed,
    handlers={
        OperatorSeen: operator_seen,
        OperatorsDispatched: operators_dispatched,
        CallEscaped: call_escaped,
        ThreadCalled: thread_called,
        ValueOverwritten: value_overwritten,
    },
)
