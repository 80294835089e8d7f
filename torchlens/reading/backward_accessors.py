"""The typed collections of the backward: passes, autograd nodes, their firings, and gradients.

They are accessors as those of the forward are. Positions count from 0; passes, and what follows a colon, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NoReturn, TypeVar

from typing_extensions import Self

from projections.selecting.selector import Selector, is_count
from torchlens.errors import AmbiguousReadError, LookupRefused
from torchlens.printable import aligned, amount, printable
from torchlens.reading.accessors import Accessor
from torchlens.reading.gradient_sites import matching_firings
from torchlens.reading.lookup import KINDS, listed, whole
from torchlens.reading.view import View

__all__ = ["BackwardPassAccessor", "GradFnAccessor", "GradFnCallAccessor", "GradientAccessor", "has_pass"]

R = TypeVar("R")


class ByPass(Accessor[R]):
    """Records that each belong to a backward pass.

    Args:
        of: What they are all of, where that is one thing.
    """

    pass_column: ClassVar[str] = "backward_pass_index"

    def __init__(self, trace: View, rows: Sequence[int] | None = None, of: str | None = None) -> None:
        super().__init__(trace, rows)
        self.of = of

    def for_pass(self, number: int) -> R:
        """The member of a backward pass; the first pass is 1.

        Raises:
            LookupRefused: ``backward_pass_unknown``, where there is none; it names the passes that have one.
            AmbiguousReadError: ``gradient_pass_ambiguous``, where the pass has several.
        """
        rows = self.rows_of_pass(number)
        if not rows:
            self.none_in(number)
        if len(rows) > 1:
            self.several_in(number, len(rows))
        return self.record(rows[0])

    def in_pass(self, number: int) -> Self:
        """The members of a backward pass; refused with ``backward_pass_unknown`` where the trace has no such pass."""
        if not has_pass(self.trace, number):
            self.none_in(number)
        return type(self)(self.trace, self.rows_of_pass(number), self.of)

    def rows_of_pass(self, number: object) -> list[int]:
        numbers = self.trace.table(self.table_name).column(self.pass_column)
        wanted = whole(number)
        return [] if wanted is None else [row for row in self.rows if numbers[row] == wanted]

    def none_in(self, number: object) -> NoReturn:
        kind, recorded = KINDS[self.table_name], len(self.trace.table("backward_passes"))
        passes = tuple(dict.fromkeys(self.column(self.pass_column)))
        if has_pass(self.trace, number):
            what = f"no {kind}" if self.of is None else f"no {kind} of {self.of!r}"
            problem = f"backward pass {number} has {what}"
        else:
            told = f"{recorded} are recorded" if recorded > 1 else f"{recorded or 'none'} is recorded"
            problem = f"there is no backward pass {number!r}: {told}"
        raise LookupRefused(
            code="backward_pass_unknown",
            problem=problem,
            remedy=f"ask for one that has: {listed(passes)}"
            if passes
            else "ask for a pass that trace.autograd.backward_passes has",
            key=number,
            passes=passes,
        )

    def several_in(self, number: int, count: int) -> NoReturn:
        of = "" if self.of is None else f" of {self.of!r}"
        raise AmbiguousReadError(
            code="gradient_pass_ambiguous",
            problem=f"backward pass {number} has {amount(count, KINDS[self.table_name])}{of}",
            remedy=f"take one of in_pass({number}), or ask by position",
            backward_pass_index=number,
            count=count,
        )


def has_pass(trace: View, number: object) -> bool:
    """Whether the trace has a backward pass of this number, from 1."""
    wanted = whole(number)
    return wanted is not None and 1 <= wanted <= len(trace.table("backward_passes"))


class Numbered(ByPass[R]):
    """Those whose only name is the number of their pass."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The number of the pass of each member, as text."""
        return tuple(map(str, self.column(self.pass_column)))

    def row_of(self, key: str) -> int | None:
        number = int(key) if is_count(key) else 0
        rows = self.rows_of_pass(number) if str(number) == key else []
        if len(rows) > 1:
            self.several_in(number, len(rows))
        return rows[0] if rows else None

    def labelled(self, key: str) -> R:
        row = self.row_of(key)
        if row is None:
            self.trace.index().missing(key, self.table_name)
        return self.record(row)


class BackwardPassAccessor(Numbered[R]):
    """Backward passes in the order in which they began, by position, or by number through ``for_pass``; printed, a line
    for each."""

    table_name = "backward_passes"
    pass_column = "pass_index"

    def __str__(self) -> str:
        rows = () if self.trace.projector is None else self.rows[:MOST_PRINTED]
        if not rows:
            return repr(self)
        table = self.trace.table(self.table_name)
        cells = [tuple(PRINTED), *(tuple(str(table.value(name, row)) for name in PRINTED.values()) for row in rows)]
        more = [f"... and {len(self) - len(rows)} more"] if len(self) > len(rows) else []
        return "\n".join((*aligned(cells), *more))


MOST_PRINTED: Final = 20
"""Lines of a printed collection."""

PRINTED: Final[Mapping[str, str]] = {
    "pass": "pass_index",
    "status": "status",
    "trigger": "trigger",
    "firings": "num_grad_fn_calls",
    "save_grads": "save_grads_policy",
}
"""What is printed of a backward pass, and the columns that tell it."""


class GradientAccessor(Numbered[R]):
    """Saved gradients of ops, and what was added to those of parameters, saved or not, by position or by pass."""

    table_name = "gradients"

    @property
    def ops(self) -> Self:
        """Those of ops."""
        return self.of_kind("op")

    @property
    def params(self) -> Self:
        """Those of parameters: what each pass added."""
        return self.of_kind("param")

    @property
    def saved(self) -> Self:
        """Those that were kept; of ops all are."""
        return self.having("is_saved")

    def of_kind(self, kind: str) -> Self:
        kinds = self.trace.table(self.table_name).column("owner_kind")
        return type(self)(self.trace, [row for row in self.rows if kinds[row] == kind], self.of)

    def __repr__(self) -> str:
        if self.trace.projector is None:
            return super().__repr__()
        owners, passes = self.column("owner")[:5], self.column(self.pass_column)[:5]
        shown = printable(", ".join(f"{owner} in pass {number}" for owner, number in zip(owners, passes, strict=True)))
        more = ", ..." if len(self) > 5 else ""
        return f"<{amount(len(self), KINDS[self.table_name])}{': ' + shown + more if owners else ''}>"


class ByPart(Accessor[R]):
    """Those that a part of their label names too, where only one has it."""

    def labelled(self, key: str) -> R:
        row = self.row_of(key)
        part = key.casefold()
        if row is None and part:
            found = [row for row, label in zip(self.rows, self.labels, strict=True) if part in label.casefold()]
            row = self.trace.index().only(key, self.table_name, tuple(found)) if found else None
        if row is None or (self.chosen is not None and row not in self.chosen):
            self.trace.index().missing(key, self.table_name)
        return self.record(row)


class GradFnAccessor(ByPart[R]):
    """Autograd nodes in the order in which they were found, by label, by a call's label, or by a part of a label."""

    table_name = "grad_fns"

    def row_of(self, key: str) -> int | None:
        row, index = super().row_of(key), self.trace.index()
        label = key.rpartition(":")[0]
        if row is None and label in index.door("grad_fns"):
            call = index.pass_token(key, index.door)
            row = None if call is None else self.trace.table("grad_fn_calls").value("grad_fn_row", call.row)
        return row

    @property
    def with_op(self) -> Self:
        """Those that differentiate an op of the forward."""
        return self.having("has_op")

    @property
    def without_op(self) -> Self:
        """Those that do not: of the loss, of transposed weights, of parameters."""
        return self.having("has_op", wanted=False)

    @property
    def fired(self) -> Self:
        """Those that the engine ran."""
        return self.having("num_calls")

    def matching(self, selector: Selector) -> Self:
        """Those with a firing at which something passed that a selector means: ``tl.grad_fn("addmm")``,
        ``tl.without_op()``; see ``grad_fn_calls.matching``."""
        firings = matching_firings(selector, self.trace.tables, self.trace.records)
        nodes = self.trace.table("grad_fn_calls").column("grad_fn_row")
        found = {nodes[call] for call in firings}
        return type(self)(self.trace, [row for row in self.rows if row in found])

    @property
    def custom(self) -> Self:
        """Those of a Python ``torch.autograd.Function``."""
        return self.having("is_custom")


class GradFnCallAccessor(ByPass[R], ByPart[R]):
    """Firings in their order, by call label, by the label of a node that fired once, or by a part of a label."""

    table_name = "grad_fn_calls"

    def row_of(self, key: str) -> int | None:
        row = super().row_of(key)
        if row is not None:
            return row
        index = self.trace.index()
        label, colon, token = key.rpartition(":")
        node = index.door("grad_fns").get(label if colon else key)
        if node is None:
            return None
        calls = tuple(self.trace.table("grad_fns").value("call_rows", node[0]))
        if not colon:
            return index.only(key, "grad_fn_calls", calls) if calls else None
        if token == "last" and calls:
            return calls[-1]
        if is_count(token):
            index.pass_out_of_range(key, label, len(calls), has_all=False)
        return None

    def matching(self, selector: Selector) -> Self:
        """Those at which a gradient passed that a selector means, kept or not.

        Args:
            selector: Of nodes, their sides and passes (``tl.grad_fn("addmm") & tl.in_backward_pass(2)``), or of ops,
                which means the firings of their nodes.

        Raises:
            SelectionError: ``gradient_sites_unavailable`` before any backward pass.
        """
        found = set(matching_firings(selector, self.trace.tables, self.trace.records))
        return type(self)(self.trace, [row for row in self.rows if row in found], self.of)

    @property
    def saved(self) -> Self:
        """Those of which a gradient was kept."""
        return self.having("is_saved")
