"""What ``trace[...]`` finds: a key, a selector, or a position.

Not   the order in which a key is tried (``torchlens.reading.lookup``), or what a selector means
      (``projections.selecting``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

from projections import Selector
from projections.selecting import masks
from projections.selecting.masks import Choice
from projections.selecting.queries import resolve
from projections.selecting.selector import label
from torchlens import collector
from torchlens.errors import LookupRefused, SelectionError, SiteAmbiguityError
from torchlens.reading.absent import absences
from torchlens.reading.facade.accessors import Collections
from torchlens.reading.fields import Record
from torchlens.reading.gradient_sites import resolve_gradients
from torchlens.reading.lookup import Found
from torchlens.reading.records import Op, Orphan
from torchlens.reading.selection import Kind, Selection
from torchlens.reading.view import View

__all__ = ["Lookups"]


class Lookups(Collections):
    """Finding records and sites."""

    @overload
    def __getitem__(self, key: slice) -> list[Op]: ...

    @overload
    def __getitem__(self, key: Selector) -> Selection: ...

    @overload
    def __getitem__(self, key: int) -> Op: ...

    @overload
    def __getitem__(self, key: str) -> Any: ...

    def __getitem__(self, key: int | slice | str | Selector) -> Any:
        """What a position, slice, label, address or selector names; the order is that of ``torchlens.reading.lookup``.

        Raises:
            LookupRefused: a ``KeyError`` with a code, when it names nothing, or several where one is needed.
            SelectionError: ``multipass_bare_label_ambiguous``, when a label selector names several passes.
        """
        if isinstance(key, str):
            return self.found(self.index().find(key))
        if isinstance(key, Selector):
            kind: Kind = "gradient" if key.names_gradients else "activation"
            return Selection(self, self.resolved(key), repr(key), selector=key, kind=kind)
        return self.ops[key]

    def find_sites(self, query: Selector | str, *, strict: bool = False, max_fanout: int = 8) -> Selection:
        """The sites that a selector matches, refused where they are more than expected.

        Args:
            query: A selector; a bare string means its label.
            strict: Refuse a bare string.
            max_fanout: Most sites the caller is ready for.

        Raises:
            SelectionError: ``max_fanout_invalid``.
            SiteAmbiguityError: ``site_fanout_exceeded``, when there are more; ``trace[query]`` has no such bound.
        """
        if isinstance(query, str) and not strict:
            query = label(query)
        if not isinstance(query, Selector):
            raise SelectionError(
                code="site_query_type_invalid",
                problem=f"sites are not found by {type(query).__name__}" + (" when strict" if strict else ""),
                remedy="give a selector, such as tl.label(...) or tl.func(...)",
                received_type=type(query).__name__,
            )
        if type(max_fanout) is not int or max_fanout < 0:
            raise SelectionError(
                code="max_fanout_invalid",
                problem=f"max_fanout={max_fanout!r} is no number of sites",
                remedy="pass a whole number, 0 or more",
                max_fanout=max_fanout,
            )
        sites = self[query]
        if len(sites) > max_fanout:
            raise SiteAmbiguityError(
                code="site_fanout_exceeded",
                problem=f"{query!r} matches {len(sites)} sites, more than max_fanout={max_fanout}",
                remedy=f"narrow it, pass max_fanout={len(sites)}, or use trace[selector]",
                count=len(sites),
                max_fanout=max_fanout,
            )
        return sites

    def __contains__(self, key: object) -> bool:
        """Whether a label or address names a record exactly, or a record is of this trace."""
        if isinstance(key, Record):
            return key.trace is self
        if isinstance(key, Selector):
            return bool(self[key])
        if not isinstance(key, str):
            return False
        try:
            return self.index().exact(key) is not None
        except LookupRefused:
            return False

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    # -- how

    def resolved(self, selector: Selector) -> Choice:
        """Which elements of which op rows a selector means: of their activations, or of their gradients."""
        if selector.names_gradients:
            return masks.whole(resolve_gradients(selector, self.tables, self.records))
        if not selector.reads_values:
            return masks.whole(selector.rows(self.tables, self.records))
        from torchlens.reading.ranking import Values  # for cost: a trace is read without torch

        try:
            with collector.paused():  # tensors and masks of many sites, and no cycle among them
                return resolve(selector, self.tables, self.records, Values(self))
        except SelectionError as exc:
            absent = "; ".join(dict.fromkeys(absences(selector, self.index())))
            if exc.fields.get("reason") != "population_too_small" or not absent:
                raise
            raise SelectionError(
                code=exc.code,
                problem=f"{exc.problem}: {absent}",
                remedy="name what there is: trace.ops.labels and trace.modules.labels list it",
                **{name: fact for name, fact in exc.fields.items() if name not in ("code", "remedy")},
            ) from exc

    @property
    def records(self) -> OpRecords:
        """What predicates are asked about."""
        return OpRecords(self)

    def found(self, found: Found) -> Record | Selection:
        if found.every:
            return Selection(self, found.rows, found.source, "passes")
        return self.record(found.table, found.row)


class OpRecords:
    """The op of a row, and of a row on an island, as predicates of selectors are asked about them."""

    def __init__(self, trace: View) -> None:
        self.trace = trace

    def __call__(self, row: int) -> Op:
        return Op(self.trace, row)

    def islands(self, row: int) -> Op:
        return Orphan(self.trace, row)
