"""Why a forward did not run to its end, and where: at an op, or in a call that is no op.

Reads  the facts of the capture, the columns of ops, and the event of the call.

Rule   the status decides which of the reasons counts: what it was left for on purpose, the value that is not finite, or
       what was raised.
Rule   a call that did not return is no record, and neither is one on an island: such a call is told from its event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.accounts.call_facts import CallFacts, call_facts
from projections.build import CaptureTables
from projections.columnar.tables import Table

__all__ = ["Ended", "broken_call", "call_in_progress", "ended", "left_at"]


class Ended(NamedTuple):
    """How a forward ended that did not return."""

    kind: str
    """The class of what ended it, where something was raised; else the status."""

    message: str | None
    """What is said of it: the reason, the finding, or the message of what was raised; None where nothing is."""

    @property
    def short(self) -> str:
        """The kind, a class without its module."""
        return self.kind.rpartition(".")[2]


def ended(tables: CaptureTables) -> Ended | None:
    """How a forward ended; None where it returned."""
    fact = tables.fact
    status: str = fact("status")
    if status == "complete":
        return None
    if status == "halted":
        return Ended(status, fact("halt_reason"))
    if status == "aborted_nonfinite":
        return Ended(status, fact("nonfinite_reason"))
    kind, message = fact("error_type"), fact("error_message")
    if kind is None and call_in_progress(tables) is not None and (call := broken_call(tables)) is not None:
        message = f"{call.func_qualname} has not returned"
    return Ended(kind or status, message)


def left_at(tables: CaptureTables, table: Table[Any]) -> int | None:
    """Row of the op that the forward was left at for its value, which is not finite; None where there is none."""
    stop = tables.fact("nonfinite_stop")
    if stop is None:
        return None
    made = zip(table.column("event"), table.column("value"), strict=True)
    return next((row for row, one in enumerate(made) if one == tuple(stop[:2])), None)


def call_in_progress(tables: CaptureTables) -> int | None:
    """Event of the innermost announced call that has not returned, of a forward that nothing else ended."""
    if tables.fact("status") not in ("unfinished", "interrupted"):
        return None
    running: tuple[int, ...] = tables.fact("calls_in_progress")
    return running[-1] if running else None


def broken_call(tables: CaptureTables) -> CallFacts | None:
    """The torch call that ended the forward, or in which its process ended, and that is no op; None where none did."""
    event: int | None = tables.fact("raised_event")
    if event is None and tables.fact("nonfinite_stop") is not None:  # of an op that is on an island
        event = None if left_at(tables, tables.ops) is not None else tables.fact("nonfinite_stop")[0]
    if event is None:
        event = call_in_progress(tables)
    return None if event is None else call_facts(tables.forward, event, tables.orphans.context)
