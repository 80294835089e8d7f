"""What ``save=`` names by a text or a position: terms that match what ``trace[...]`` would find.

Reads  the keys of the finished tables, in the order of ``torchlens.reading.lookup``.
Gives  selectors; none is decided while the model runs, so every candidate is held until it has ended.
Rule   where ``trace[...]`` must find one record and refuses several, a save request keeps the ops of all of them.
Not    selectors that people combine (projections.selecting.selector); a text that names a module becomes one of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from projections import CaptureTables
from projections.selecting.selector import AnyOf, Label, LiveFacts, Record, Selector, Tables, Term, Verdict
from torchlens.errors import LookupRefused
from torchlens.reading.absent import absences, absent_name
from torchlens.reading.lookup import Index

__all__ = ["AtPosition", "Named", "unmatched", "what_there_is"]

DOORS = ("layers", "ops", "modules", "module_calls", "params", "buffers")
"""Collections in the order in which they are looked through; no op stands for a parameter."""


class Requested(Term):
    """A term that needs the finished tables."""

    __slots__ = ()

    @property
    def undecided(self) -> bool:
        return True

    @property
    def varies(self) -> bool:
        return True

    def live(self, facts: LiveFacts) -> Verdict:
        return None


@attrs.frozen(repr=False)
class AtPosition(Requested):
    """The op at a position of ``trace.ops``, from the end if negative."""

    position: int

    def found(self, tables: Tables, record: Record) -> set[int]:
        if not isinstance(tables, CaptureTables):  # what is on an island has no place in trace.ops
            return set()
        count = len(tables.ops)
        return {self.position % count} if -count <= self.position < count else set()

    def __repr__(self) -> str:
        return repr(self.position)


@attrs.frozen(repr=False)
class Named(Requested):
    """The ops of what a text names: a layer, an op, a module, a call of it, a buffer; else those whose keys hold it."""

    text: str

    def found(self, tables: Tables, record: Record) -> set[int]:
        if not isinstance(tables, CaptureTables):
            return set()
        index = Index(tables)
        canonical = index.canonical(self.text)
        for key, door in ((canonical, index.door), (canonical.casefold(), index.folded_door)):
            for name in DOORS:
                rows = door(name).get(key)
                if rows:
                    return {op for row in rows for op in ops_of(tables, name, row)}
            try:
                found = index.pass_token(key, door)
            except LookupRefused:  # such a pass there was not
                return set()
            if found is not None:
                return {op for row in found.rows for op in ops_of(tables, found.table, row)}
        return index.holding(self.text)

    def __repr__(self) -> str:
        return repr(self.text)


@attrs.frozen(repr=False)
class LabelOrModule(Selector):
    """What a text names that is a module's address and may be a label, too: the label's op, if there is one."""

    text: str
    module: Selector

    def parts(self) -> tuple[Selector, ...]:
        return (Label(self.text), self.module)

    @property
    def undecided(self) -> bool:
        return True

    def live(self, facts: LiveFacts) -> Verdict:
        return False if all(part.live(facts) is False for part in self.parts()) else None

    def found(self, tables: Tables, record: Record) -> set[int]:
        return Named(self.text).found(tables, record)

    def __repr__(self) -> str:
        return repr(self.text)


def ops_of(tables: CaptureTables, table: str, row: int) -> Iterable[int]:
    """The op rows that a row of a collection stands for."""
    if table == "layers":
        rows: Iterable[int] = tables.layers.value("op_rows", row)
    elif table == "modules":
        calls = tables.modules.value("call_rows", row)
        rows = [op for call in calls for op in tables.module_calls.value("output_op_rows", call)]
    elif table == "module_calls":
        rows = tables.module_calls.value("output_op_rows", row)
    elif table == "params":
        rows = ()
    elif table == "buffers":
        rows = tables.buffers.value("version_rows", row)
    else:
        rows = (row,)
    return rows


def unmatched(request: Selector, tables: CaptureTables) -> Iterator[Selector]:
    """The texts and positions in a request, each asked for by itself, that name no op."""
    for part in request.of if isinstance(request, AnyOf) else (request,):
        if isinstance(part, Requested | LabelOrModule) and not part.rows(tables):
            yield part


def what_there_is(request: Selector, tables: CaptureTables, of: str = "trace") -> str:
    """The remedy of a request that matched nothing: what it names that the capture has not, and what looks like it.

    Args:
        request: What was asked for.
        tables: What there is.
        of: How the caller comes to a trace of it.
    """
    index = Index(tables)
    texts = [part.text for part in unmatched(request, tables) if isinstance(part, Named)]
    absent = dict.fromkeys((*absences(request, index), *(absent_name(text, index) for text in texts)))
    return "; ".join((*absent, f"check the name; {of}.ops.labels and .modules.labels list what there is"))
