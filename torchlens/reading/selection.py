"""What a selector matched in one trace: an ordered tuple of sites.

A site is the activation of one op, or its gradient, or some of its elements; it answers for that op. A selection
belongs to the trace it was resolved in and is not stored: keep the selector and resolve it again.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

from projections.selecting import masks
from projections.selecting.masks import ALL, Choice, Mask, Whole
from projections.selecting.selector import Selector
from torchlens.errors import SelectionError
from torchlens.printable import amount, printable
from torchlens.reading.absent import absences
from torchlens.reading.gradient_sites import gradient_rows, kinds_mixed
from torchlens.reading.lookup import at_position, sliced
from torchlens.reading.records import Op
from torchlens.reading.view import View

__all__ = ["Kind", "Provenance", "Selection", "Site", "positions_of"]

Kind: TypeAlias = Literal["activation", "gradient"]
"""Which of an op's tensors a site is. Sites of two kinds are never of one selection."""


class Provenance(NamedTuple):
    """How a site came to be selected."""

    relation: str  # "selector", "passes", "union", "intersection", "difference", "complement"
    source: str  # the selector or key, as text


class Site:
    """The activation of one op or its gradient, or some of its elements, as something a selector points at."""

    __slots__ = ("elements", "kind", "provenance", "row", "trace")

    def __init__(
        self, trace: View, row: int, elements: Mask, provenance: Provenance, kind: Kind = "activation"
    ) -> None:
        self.trace = trace
        self.row = row
        self.elements = elements
        self.provenance = provenance
        self.kind: Kind = kind

    @classmethod
    def of(cls, trace: View, row: int, *, source: str) -> Site:
        """The whole activation of an op."""
        return cls(trace, row, ALL, Provenance("selector", source))

    @property
    def op(self) -> Op:
        """The op whose activation or gradient this is."""
        return Op(self.trace, self.row)

    @property
    def key(self) -> tuple[str, int]:
        """Label of its layer and number of its pass, from 1."""
        ops = self.trace.table("ops")
        return ops.value("layer_label", self.row), ops.value("pass_index", self.row)

    @property
    def mask(self) -> Any:
        """Which elements are selected: a new bool tensor of the site's shape, all true for a whole site."""
        import torch  # for cost

        if isinstance(self.elements, Whole):
            return torch.ones(self.shape, dtype=torch.bool)
        made = torch.zeros(self.shape, dtype=torch.bool)
        made.view(-1)[positions_of(self.elements)] = True
        return made

    @property
    def label(self) -> str:
        """Label of its op."""
        return self.op.label

    @property
    def out(self) -> Any:
        """The saved activation of its op, whole."""
        return self.op.out

    @property
    def grad(self) -> Any:
        """The saved gradient of its op, whole."""
        return self.op.grad

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its op's activation, which a gradient of it has too."""
        return self.op.shape

    @property
    def site_key(self) -> str:
        """Structural address of its op."""
        return self.op.site_key

    @property
    def selected_count(self) -> int:
        """How many elements are selected."""
        return masks.count(self.elements, math.prod(self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Site):
            return NotImplemented
        mine, theirs = (self.row, self.kind, self.elements), (other.row, other.kind, other.elements)
        return self.trace is other.trace and mine == theirs

    def __hash__(self) -> int:
        return hash((id(self.trace), self.row))

    def __repr__(self) -> str:
        some = "" if isinstance(self.elements, Whole) else f", {self.selected_count} elements"
        what = "" if self.kind == "activation" else f", {self.kind}"
        return f"<Site {printable(self.label)} {self.shape}{what}{some}>"


def positions_of(elements: array[int]) -> Any:
    """Some elements' positions as a tensor."""
    import torch  # for cost

    return torch.frombuffer(elements, dtype=torch.int64) if elements else torch.empty(0, dtype=torch.int64)


MOST_SHOWN: Final = 4096
"""Letters of the text of what was combined; in a loop it would double each time."""


def shortened(source: str) -> str:
    return source if len(source) <= MOST_SHOWN else f"{source[:MOST_SHOWN]}..."


class Selection(Sequence[Site]):
    """Sites of one trace, each once, in the order of ``trace.ops``.

    ``len`` counts sites; its truth says whether any element is selected. A site whose elements were taken away one
    by one stays, with none; one that was taken away whole goes. ``|``, ``&``, ``-`` and ``~`` combine
    selections of one trace.
    """

    __slots__ = ("kind", "selector", "sites", "source", "trace")

    def __init__(
        self,
        trace: View,
        rows: Iterable[int] | Choice,
        source: str,
        relation: str = "selector",
        selector: Selector | None = None,
        kind: Kind = "activation",
    ) -> None:
        provenance = Provenance(relation, source)
        choice = rows if isinstance(rows, Mapping) else masks.whole(rows)
        self.trace = trace
        self.source = source
        self.selector = selector
        self.kind: Kind = kind
        self.sites = tuple(Site(trace, row, elements, provenance, kind) for row, elements in sorted(choice.items()))

    @property
    def choice(self) -> Choice:
        """The elements of each op row."""
        return {site.row: site.elements for site in self.sites}

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(site.row for site in self.sites)

    @property
    def ops(self) -> list[Op]:
        """The op of each site."""
        return [site.op for site in self.sites]

    def labels(self) -> tuple[str, ...]:
        """The op label of each site."""
        return tuple(site.label for site in self.sites)

    def first(self) -> Site:
        """The first site; refused with ``site_table_empty`` where there is none."""
        if not self.sites:
            raise SelectionError(
                code="site_table_empty",
                problem=f"{self.source} matched no site of this trace{self.why_empty()}",
                remedy="widen the selector; trace.ops.labels lists what there is",
                source=self.source,
            )
        return self.sites[0]

    def where(self, test: Callable[[Op], bool]) -> Selection:
        """The sites for whose op ``test`` is true."""
        left = {site.row: site.elements for site in self.sites if test(site.op)}
        return Selection(self.trace, left, self.source, kind=self.kind)

    def __len__(self) -> int:
        return len(self.sites)

    def __bool__(self) -> bool:
        return any(site.selected_count for site in self.sites)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> list[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | list[Site]:
        if isinstance(index, slice):
            return list(sliced(self.sites, index, "site"))
        return self.sites[at_position(index, len(self.sites), "site")]

    def size(self, row: int) -> int:
        return math.prod(self.trace.table("ops").value("shape", row) or ())

    def __or__(self, other: Selection) -> Selection:
        return self.combined(other, masks.union(self.choice, self.of_same_trace(other).choice, self.size), "union", "|")

    def __and__(self, other: Selection) -> Selection:
        both = masks.intersection(self.choice, self.of_same_trace(other).choice)
        return self.combined(other, both, "intersection", "&")

    def __sub__(self, other: Selection) -> Selection:
        left = masks.difference(self.choice, self.of_same_trace(other).choice, self.size)
        return self.combined(other, left, "difference", "-")

    def __invert__(self) -> Selection:
        tables = self.trace.tables
        all_rows = range(len(tables.ops)) if self.kind == "activation" else gradient_rows(tables)
        others = masks.complement(self.choice, all_rows, self.size)
        return Selection(self.trace, others, shortened(f"~({self.source})"), "complement", kind=self.kind)

    def combined(self, other: Selection, choice: Choice, relation: str, sign: str) -> Selection:
        source = shortened(f"({self.source}) {sign} ({other.source})")
        return Selection(self.trace, choice, source, relation, kind=self.kind)

    def of_same_trace(self, other: Selection) -> Selection:
        if not isinstance(other, Selection):
            raise SelectionError(
                code="selection_operand_invalid",
                problem=f"a selection cannot be combined with a {type(other).__name__}",
                remedy="resolve it first: trace[selector] gives a selection",
                operand=type(other).__name__,
            )
        if other.trace is not self.trace:
            raise SelectionError(
                code="selection_trace_mismatch",
                problem="the two selections belong to different traces",
                remedy="resolve both selectors in the same trace",
            )
        if other.kind != self.kind:
            raise kinds_mixed(f"a selection of {self.kind}s and one of {other.kind}s")
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        return self.trace is other.trace and self.kind == other.kind and self.choice == other.choice

    def __hash__(self) -> int:
        return hash((id(self.trace), self.rows))

    def __repr__(self) -> str:
        count = len(self.sites)
        shown = printable(", ".join(self.labels()[:5])) + (", ..." if count > 5 else "")
        why = printable(self.why_empty())
        return f"<Selection of {amount(count, 'site')}{': ' + shown if count else why}>"

    def why_empty(self) -> str:
        """What the selector names that the trace has not, as the end of a sentence; nothing where it matched."""
        if self.sites or self.selector is None:
            return ""
        found = list(dict.fromkeys(absences(self.selector, self.trace.index())))
        return ": " + "; ".join(found) if found else ""
