"""What a selector matched in one trace: an ordered tuple of sites.

A site stands for the whole activation of one op; it answers for that op. A selection belongs to the
trace it was resolved in and is not stored: keep the selector and resolve it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from torchlens.errors import SelectionError
from torchlens.lookup import at_position, sliced
from torchlens.printable import printable
from torchlens.records import Op
from torchlens.view import View

__all__ = ["Provenance", "Selection", "Site"]


class Provenance(NamedTuple):
    """How a site came to be selected."""

    relation: str  # "selector", "passes", "union", "intersection", "difference", "complement"
    source: str  # the selector or key, as text


class Site:
    """The activation of one op, as something a selector points at."""

    __slots__ = ("provenance", "row", "trace")

    kind = "activation"

    def __init__(self, trace: View, row: int, provenance: Provenance) -> None:
        self.trace = trace
        self.row = row
        self.provenance = provenance

    @property
    def op(self) -> Op:
        """The op whose activation this is."""
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

        return torch.ones(self.shape, dtype=torch.bool)

    @property
    def label(self) -> str:
        """Label of its op."""
        return self.op.label

    @property
    def out(self) -> Any:
        """The saved activation of its op."""
        return self.op.out

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its op's activation."""
        return self.op.shape

    @property
    def site_key(self) -> str:
        """Structural address of its op."""
        return self.op.site_key

    @property
    def selected_count(self) -> int:
        """How many elements are selected."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Site):
            return NotImplemented
        return self.row == other.row and self.trace is other.trace

    def __hash__(self) -> int:
        return hash((id(self.trace), self.row))

    def __repr__(self) -> str:
        return f"<Site {printable(self.label)} {self.shape}>"


class Selection(Sequence[Site]):
    """Sites of one trace, each once, in the order of ``trace.ops``.

    ``len`` counts sites; its truth says whether any element is selected. ``|``, ``&``, ``-`` and ``~`` combine
    selections of one trace.
    """

    __slots__ = ("sites", "source", "trace")

    def __init__(self, trace: View, rows: Iterable[int], source: str, relation: str = "selector") -> None:
        provenance = Provenance(relation, source)
        self.trace = trace
        self.source = source
        self.sites = tuple(Site(trace, row, provenance) for row in sorted(set(rows)))

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
                problem=f"{self.source} matched no site of this trace",
                remedy="widen the selector; trace.ops.labels lists what there is",
                source=self.source,
            )
        return self.sites[0]

    def where(self, test: Callable[[Op], bool]) -> Selection:
        """The sites for whose op ``test`` is true."""
        return Selection(self.trace, (site.row for site in self.sites if test(site.op)), self.source)

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

    def __or__(self, other: Selection) -> Selection:
        return self.combined(other, set(self.rows) | set(self.of_same_trace(other).rows), "union", "|")

    def __and__(self, other: Selection) -> Selection:
        return self.combined(other, set(self.rows) & set(self.of_same_trace(other).rows), "intersection", "&")

    def __sub__(self, other: Selection) -> Selection:
        return self.combined(other, set(self.rows) - set(self.of_same_trace(other).rows), "difference", "-")

    def __invert__(self) -> Selection:
        every = set(range(len(self.trace.table("ops"))))
        return Selection(self.trace, every - set(self.rows), f"~({self.source})", "complement")

    def combined(self, other: Selection, rows: Iterable[int], relation: str, sign: str) -> Selection:
        return Selection(self.trace, rows, f"({self.source}) {sign} ({other.source})", relation)

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
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        return self.trace is other.trace and self.rows == other.rows

    def __hash__(self) -> int:
        return hash((id(self.trace), self.rows))

    def __repr__(self) -> str:
        count = len(self.sites)
        shown = printable(", ".join(self.labels()[:5])) + (", ..." if count > 5 else "")
        return f"<Selection of {count} site{'' if count == 1 else 's'}{': ' + shown if count else ''}>"
