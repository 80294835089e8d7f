"""What is told of two captures that were compared: the first difference, and every pair with its error.

Gives  ``FirstDifference``, with a ``Compared`` for each pair; as text, some lines.
Not    how they are compared (differing.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from projections.folds.vocabulary import ROOT
from torchlens.errors import ConfigurationError
from torchlens.printable import aligned, amount, printable
from torchlens.questions.tensor_error import Basis
from torchlens.questions.verdict import Verdict
from torchlens.reading.locations import FuncCallLocation
from torchlens.reading.tabular import frame_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Compared", "ComparedKind", "FirstDifference", "Kind", "argument_invalid"]

Kind: TypeAlias = Literal["only_first", "only_second", "record", "payload", "statistics", "gradient"]
ComparedKind: TypeAlias = Literal["op", "gradient", "module_call"]

SHOWN: Final = 5
"""Blocks that the text form names."""

NAMED: Final = 8
"""Most names of what was not compared that the text form has."""


@attrs.frozen
class Compared:
    """An op, a gradient or a module call that both captures have."""

    kind: ComparedKind
    label: str  # in the first capture: of the op or call, or whose gradient it is
    other_label: str  # in the second
    at: int  # number of the event in the first
    other_at: int
    backward_pass: int | None  # of a gradient, from 1
    dtypes: tuple[str, str]  # on both sides; of a module call, of its first output
    error: float | None  # relative; None where it was not compared
    inherited: float | None  # that of what it was made from; None where not all of that was compared
    max_abs: float | None  # largest difference of two finite elements
    num_beyond: int  # elements that differ by more than the tolerance; of a module call, of its outputs
    basis: Basis | None  # what was compared; None where nothing was

    @property
    def added(self) -> float | None:
        """The error that it adds: its own less what it inherits; None where one is not known."""
        if self.error is None or self.inherited is None:
            return None
        if math.isinf(self.error):
            return 0.0 if math.isinf(self.inherited) else math.inf
        return self.error - self.inherited

    @property
    def differs(self) -> bool:
        """Whether some element is beyond the tolerance."""
        return self.num_beyond > 0


@attrs.frozen(repr=False)
class FirstDifference:
    """The first difference of two captures; false where none was found.

    ``verdict`` is ``first``, or ``first_seen`` where something before it was not compared; where none was found,
    ``clean``, ``clean_as_seen`` or ``not_checked``. What is told of the difference is None where there is none.
    """

    verdict: Verdict
    unexamined: tuple[str, ...]  # names of what was not compared, before it; of all where none was found
    kind: Kind | None
    label: str | None  # of the op in the first capture, or whose gradient it is; None where only the second has it
    other_label: str | None
    at: int | None  # number of its event in the first capture
    other_at: int | None
    module: str | None  # label of the innermost module call around it; None at the root
    place: FuncCallLocation | None  # where the op was called
    backward_pass: int | None
    field: str | None  # of a record, the field that differs
    before: Any  # what it holds in the first
    after: Any
    first: Compared | None  # of a payload, statistics or a gradient: the pair
    ops: tuple[Compared, ...]  # all pairs of ops, in order
    gradients: tuple[Compared, ...]  # all pairs of gradients, in order
    blocks: tuple[Compared, ...]  # all pairs of module calls, in order of entry
    only_first: tuple[str, ...]  # labels of ops that the second capture has not
    only_second: tuple[str, ...]
    rtol: float
    atol: float

    def __bool__(self) -> bool:
        return self.kind is not None

    @property
    def num_examined(self) -> int:
        """How many activations and gradients were compared."""
        return sum(each.basis is not None for each in (*self.ops, *self.gradients))

    def worst(self, count: int = SHOWN) -> tuple[Compared, ...]:
        """The module calls that add most error, most first; those of which it is known. A call counts what the calls
        inside it add; that of the root, which counts everything, is left out.

        Args:
            count: How many at most.

        Raises:
            ConfigurationError: ``difference_argument_invalid``.
        """
        if type(count) is not int or count < 0:
            raise argument_invalid(f"count={count!r} is no whole number from 0 on", f"pass one, such as {SHOWN}")
        known = [block for block in self.blocks if block.added is not None and block.label.rpartition(":")[0] != ROOT]
        return tuple(sorted(known, key=lambda block: -(block.added or 0.0))[:count])

    def to_pandas(self) -> pandas.DataFrame:
        """One row per op, gradient and module call that both have, in this order; needs pandas."""
        rows = (*self.ops, *self.gradients, *self.blocks)
        names = [field.name for field in attrs.fields(Compared)]
        columns = {name: [getattr(row, name) for row in rows] for name in (*names, "added")}
        return frame_of(columns, len(rows))

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in self.lines())

    __repr__ = __str__

    def lines(self) -> Iterator[str]:
        tolerance = f"rtol {self.rtol:g}, atol {self.atol:g}"
        if self.kind is None:
            yield f"no difference in {amount(self.num_examined, 'tensor')} ({tolerance})"
        else:
            during = "" if self.backward_pass is None else f" in backward pass {self.backward_pass}"
            where = (f" at {self.place.brief}" if self.place is not None else "") + (
                f" in {self.module}" if self.module else ""
            )
            seen = "" if self.verdict == "first" else " seen"
            yield f"first difference{seen}: {self.said()}{during}{where}"
            if self.first is not None and self.first.error is not None:
                yield f"  {self.figures(self.first)} ({tolerance})"
        if self.only_first or self.only_second:
            counts = amount(len(self.only_first), "op"), amount(len(self.only_second), "op")
            yield f"  only in the first: {counts[0]}; only in the second: {counts[1]}"
        worst = [block for block in self.worst() if (block.added or 0.0) > 0] if self.kind is not None else []
        if worst:
            yield "  relative error that module calls add to that of what they were given, most first:"
            yield from (f"    {line}" for line in aligned([added_by(block) for block in worst]))
        if self.unexamined:
            named = ", ".join(self.unexamined[:NAMED])
            more = f" and {len(self.unexamined) - NAMED} more" if len(self.unexamined) > NAMED else ""
            yield f"  not compared{'' if self.kind is None else ' before it'}: {named}{more}"

    def said(self) -> str:
        label = self.label if self.label == self.other_label else f"{self.label}, which is {self.other_label} there,"
        if self.kind == "only_first":
            return f"{self.label} is only in the first"
        if self.kind == "only_second":
            return f"{self.other_label} is only in the second"
        if self.kind == "record":
            return f"{label} has {self.field} {self.before!r} in the first and {self.after!r} in the second"
        return f"{'the gradient of ' if self.kind == 'gradient' else ''}{label} differs"

    def figures(self, pair: Compared) -> str:
        beyond = (
            f"{amount(pair.num_beyond, 'element')} beyond the tolerance" if pair.basis == "payload" else "statistics"
        )
        most = "" if pair.max_abs is None else f", at most by {pair.max_abs:.3g}"
        given = "" if pair.inherited is None else f", of which {error_text(pair.inherited)} is inherited"
        return f"{beyond}{most}; relative error {error_text(pair.error)}{given}"


def added_by(block: Compared) -> tuple[str, str, str, str]:
    """The cells of a line about a module call that adds error."""
    return (
        block.label,
        f"adds {error_text(block.added)}",
        f"given {error_text(block.inherited)}",
        f"gives {error_text(block.error)}",
    )


def error_text(error: float | None) -> str:
    """A relative error in words."""
    if error is None:
        return "unknown"
    return "without bound (NaN or infinity in one alone)" if math.isinf(error) else f"{error:.3g}"


def argument_invalid(problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(code="difference_argument_invalid", problem=problem, remedy=remedy)
