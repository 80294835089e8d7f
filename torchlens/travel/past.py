"""A trace as it stood after some of its events: the same records, those that were there by then.

Reads  a trace, the moment after so many of its events, and the tables of its head.
Gives  a ``PastTrace``: every collection, field and lookup of a trace.
Rule   things are named as they are named at the head of the stream, so that a label means one op at any event. Which
       rows there are, and every fact about them, is what the events up to there tell.
Note   nothing is folded before something is read; ``moment`` alone costs some milliseconds at most, ``tables`` and the
       records what folding that many events costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NoReturn

from journal.events import Stamped
from projections import CaptureTables, Moment, Projector
from torchlens import collector
from torchlens.errors import LookupRefused, RunCapabilityUnavailableError
from torchlens.printable import amount, printable
from torchlens.reading.facade import MISSING, Trace
from torchlens.reading.lookup import Found, Index
from torchlens.reading.view import LiveBackwards, View

__all__ = ["PastTrace"]


class PastIndex(Index):
    """The lookup keys of a trace in the past. What comes later is told as that, and not taken for something like it.

    Args:
        tables: The tables as they were.
        whole: The trace of everything.
        position: Number of events that have happened.
    """

    def __init__(self, tables: CaptureTables, whole: Trace, position: int) -> None:
        super().__init__(tables)
        self.whole: Final = whole
        self.position: Final = position

    def find(self, key: str) -> Found:
        found = self.exact(key)
        if found is None:
            self.refuse_later(key)
        return found or super().find(key)

    def missing(self, key: str, table: str | None = None) -> NoReturn:
        self.refuse_later(key)
        super().missing(key, table)

    def pass_out_of_range(self, key: str, base: str, count: int, *, has_all: bool = True) -> NoReturn:
        self.refuse_later(key)
        super().pass_out_of_range(key, base, count, has_all=has_all)

    def refuse_later(self, key: str) -> None:
        """Refuse what is not there yet.

        Raises:
            LookupRefused: ``record_comes_later``.
        """
        at = self.event_of(key)
        if at is None:
            return
        raise LookupRefused(
            code="record_comes_later",
            problem=f"{key!r} {self.coming(at)}",
            remedy=f"go there first, cursor.seek({at}) (in a script: seek {at}); cursor.whole has it at any place",
            key=key,
            at=at,
        )

    def later(self, key: str) -> str | None:
        at = self.event_of(key)
        return None if at is None else f"{key!r} {self.coming(at)}"

    def coming(self, at: int) -> str:
        here = f"stands at {self.position - 1}" if self.position else "is before the first"
        return f"comes at event {at}; the cursor {here}"

    def event_of(self, key: str) -> int | None:
        """Number of the event, behind the cursor, at which something comes; None for what there never is."""
        try:
            found = self.whole.index().exact(key)
        except LookupRefused:  # ambiguous, or a pass that there never is
            return None
        if found is None:
            return None
        tables, at = self.whole.tables, None
        if found.table == "layers":
            at = tables.ops.value("event", tables.layers.value("op_rows", found.row)[0])
        elif found.table in ("ops", "module_calls", "grad_fn_calls"):
            at = tables.table(found.table).value("event", found.row)
        return at if at is not None and at >= self.position else None


class PastTrace(Trace):
    """A trace as it stood after its first ``position`` events.

    Args:
        whole: The trace.
        position: Number of events.
    """

    def __init__(self, whole: Trace, position: int) -> None:
        self.whole = whole
        self.position = position
        View.__init__(self, whole.journal, whole.stream, whole.handles, projector=whole.projector)
        self.returned = whole.returned
        self.looked_at = self.looked_at_gradients = None

    @property
    def projector(self) -> Projector | None:
        """What folds the stream: that of the trace, so that it is gone when the trace was cleaned up."""
        return self.whole.projector

    @projector.setter
    def projector(self, given: Projector | None) -> None:
        """A trace in the past has none of its own."""

    @cached_property
    def moment(self) -> Moment:
        """What there was, without the tables: counts, what the last event made, what was running."""
        self.whole.require_open()
        assert self.whole.projector is not None  # else it is not open
        with collector.paused():
            return self.whole.projector.at(self.position)

    @cached_property
    def named(self) -> CaptureTables:
        """The tables, named by the head as it was when they were first read."""
        head = self.whole.tables
        with collector.paused():
            return self.moment.named_by(head)

    @property
    def tables(self) -> CaptureTables:
        self.whole.require_open()
        return self.named

    def index(self) -> Index:
        tables = self.tables
        if self.indexed is None or self.indexed[0] is not tables:
            self.indexed = (tables, PastIndex(tables, self.whole, self.position))
        return self.indexed[1]

    @property
    def num_events(self) -> int:
        return self.position

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Stamped]:
        return self.whole.events(start, self.position if stop is None else min(stop, self.position))

    @property
    def output(self) -> Any:
        if self.moment.facts.status != "complete":
            self.returned = MISSING
        return super().output

    def live_backwards(self) -> LiveBackwards:
        raise RunCapabilityUnavailableError(
            code="run_capability_unavailable",
            problem=f"this trace shows the capture after its first {amount(self.position, 'event')}, and a backward "
            "pass goes on from the last one",
            remedy="run the backward on the trace itself, or on the loss",
        )

    def check_metadata_invariants(self) -> bool:
        """As of any trace, with the labels that the events up to here give: a label from the head may name a pass of a
        layer that had no other yet."""
        alone = PastTrace(self.whole, self.position)
        alone.named = self.moment.tables
        return Trace.check_metadata_invariants(alone)

    @property
    def is_cleaned_up(self) -> bool:
        return self.whole.is_cleaned_up

    def cleanup(self) -> None:
        """Nothing: a trace in the past holds neither tensors nor a journal of its own."""

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), "num_events", "position", "whole"} - {"named", "projector"})

    def __repr__(self) -> str:
        if self.is_cleaned_up:
            return repr(self.whole)
        ops = amount(self.num_ops, "op")
        return printable(f"<Trace {self.trace_label} after {amount(self.position, 'event')}: {ops}, {self.status}>")
