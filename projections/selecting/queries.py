"""Selectors by value: the greatest elements, and those beyond a bound, of what a capture kept.

They are resolved against one trace, which hands in the ranking: this package knows no tensor. ``resolve`` works out
any selector in which they stand, element by element.

Rule   ties go to the earlier site, then to the earlier position in the flattened tensor; what is no number
       never ranks. Bounds are strict. Where nothing says within what, the population is every value that was kept,
       once each.
Not    how values are compared (torchlens.reading.ranking), or how elements combine (masks.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final, Protocol, TypeAlias, runtime_checkable

import attrs

from projections.errors import SelectionError
from projections.selecting import masks
from projections.selecting.masks import Choice, Mask
from projections.selecting.selector import (
    AllOf,
    AnyOf,
    Compound,
    LiveFacts,
    Not,
    Record,
    Selector,
    Tables,
    Verdict,
    selector_argument,
)

By: TypeAlias = "str | Scores"

Share: TypeAlias = Callable[[int], int]
"""How many elements are chosen of so many that rank: never more than these, and no fewer of more."""

WORDS: Final = ("value", "abs")


@runtime_checkable
class Scores(Protocol):
    """Anything that scores the elements of sites, such as a table of attributions."""

    def scores_of(self, site: Any) -> Any:
        """Scores of a site's elements, a tensor of its shape; None where it has none."""
        ...


@runtime_checkable
class Resolved(Protocol):
    """A selection: sites of one trace."""

    trace: Any
    kind: Any  # "activation", or that of whose elements no values are compared

    @property
    def choice(self) -> Choice: ...


class Ranking(Protocol):
    """Compares the values of one trace."""

    trace: Any

    def everything(self, by: By) -> Choice:
        """Every value that was kept, once each; where something scores sites, those that it scores."""
        ...

    def missing(self, population: Choice, by: By) -> tuple[str, ...]:
        """Labels of the sites whose values, or scores, are not there."""
        ...

    def first(self, population: Choice, share: Share, by: By, *, largest: bool) -> tuple[int, Mapping[int, Mask]]:
        """The greatest, or smallest, elements: how many rank, and a mask for each site. Each site is read once."""
        ...

    def beyond(self, population: Choice, above: float | None, below: float | None, by: By) -> Mapping[int, Mask]:
        """The elements beyond both bounds. A mask for each site."""
        ...


def unresolvable(reason: str, problem: str, remedy: str, **facts: Any) -> SelectionError:
    return SelectionError(code="selection_unresolvable", problem=problem, remedy=remedy, **{"reason": reason, **facts})


def reads_values(selector: Selector) -> SelectionError:
    return SelectionError(
        code="selector_reads_values",
        problem=f"{selector!r} asks for values, which are there when a trace is finished",
        remedy="resolve it with trace[selector]; save= and stop_after= take selectors of ops",
        selector=repr(selector),
    )


def refuse_values(selector: Selector) -> None:
    """Refuse a selector by value where ops are chosen while the model runs."""
    if selector.reads_values:
        raise reads_values(selector)


@attrs.frozen(repr=False)
class ByValue(Compound):
    """Elements by their value, within a population."""

    within: Selector | Resolved | None
    by: By

    @property
    def reads_values(self) -> bool:
        return True

    def parts(self) -> tuple[Selector, ...]:
        return (self.within,) if isinstance(self.within, Selector) else ()

    def live(self, facts: LiveFacts) -> Verdict:
        raise reads_values(self)

    def found(self, tables: Tables, record: Record) -> set[int]:
        raise reads_values(self)

    def choose(self, population: Choice, ranking: Ranking) -> Mapping[int, Mask]:
        """The chosen elements, a mask for each site of the population."""
        raise NotImplementedError

    def population(self, tables: Tables, record: Record, ranking: Ranking) -> Choice:
        """The sites whose elements are compared.

        Raises:
            SelectionError: ``selection_unresolvable``, where one of them was not kept, ``population_not_covered``,
                where one has no scores, ``selection_trace_mismatch``, or ``selection_kind_incompatible``.
        """
        if self.within is None:
            return ranking.everything(self.by)
        if isinstance(self.within, Selector):
            population: Choice = resolve(self.within, tables, record, ranking)
        elif self.within.kind != "activation":
            raise SelectionError(
                code="selection_kind_incompatible",
                problem=f"{self!r} compares the values of activations, within a selection of {self.within.kind}s",
                remedy="give within= activations; gradients are read one by one, site.grad",
            )
        elif self.within.trace is ranking.trace:
            population = self.within.choice
        else:
            raise SelectionError(
                code="selection_trace_mismatch",
                problem=f"{self!r} compares the sites of another trace",
                remedy="give within= a selector, or resolve it in this trace",
            )
        missing = ranking.missing(population, self.by)
        if missing and not isinstance(self.by, str):
            raise SelectionError(
                code="population_not_covered",
                problem=f"{self.by!r} has no scores for {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}",
                remedy="narrow within= to what is scored, or leave it out",
                labels=missing,
            )
        if missing:
            raise unresolvable(
                "value_not_saved",
                f"{self!r} compares {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}, not kept",
                "capture with a save= that matches them, or leave within= out to compare what was kept",
                labels=missing,
            )
        return population

    def arguments(self) -> str:
        return f"within={self.within!r}, by={self.by!r}"

    def __repr__(self) -> str:
        return f"{self.word}({self.arguments()})"


@attrs.frozen(repr=False)
class TopK(ByValue):
    """The so many greatest elements, or the smallest."""

    word: ClassVar[str] = "top_k"

    k: int
    largest: bool

    def choose(self, population: Choice, ranking: Ranking) -> Mapping[int, Mask]:
        size, chosen = ranking.first(
            population, lambda size: self.k if self.k <= size else 0, self.by, largest=self.largest
        )
        if self.k > size:
            raise unresolvable(
                "population_too_small",
                f"{self!r} asks for {self.k} of {size} elements",
                "ask for fewer, or widen within=",
                k=self.k,
                population=size,
            )
        return chosen

    def arguments(self) -> str:
        return f"{super().arguments()}, k={self.k}, largest={self.largest}"


@attrs.frozen(repr=False)
class TopFraction(ByValue):
    """A share of the elements, the greatest or the smallest."""

    word: ClassVar[str] = "top_fraction"

    fraction: float
    largest: bool

    def choose(self, population: Choice, ranking: Ranking) -> Mapping[int, Mask]:
        """As many as the fraction says, as it is written: 0.07 of 100 are 7, and not the 8 that floats give."""
        fraction = Fraction(str(self.fraction))
        return ranking.first(population, lambda size: math.ceil(fraction * size), self.by, largest=self.largest)[1]

    def arguments(self) -> str:
        return f"{super().arguments()}, fraction={self.fraction}, largest={self.largest}"


@attrs.frozen(repr=False)
class Beyond(ByValue):
    """The elements above a bound, below one, or between two."""

    word: ClassVar[str] = "threshold"

    above: float | None
    below: float | None

    def choose(self, population: Choice, ranking: Ranking) -> Mapping[int, Mask]:
        return ranking.beyond(population, self.above, self.below, self.by)

    def arguments(self) -> str:
        return f"{super().arguments()}, above={self.above}, below={self.below}"


def resolve(selector: Selector, tables: Tables, record: Record, ranking: Ranking) -> dict[int, Mask]:
    """Which elements a selector means: of an op it matches all, unless values are asked for.

    Raises:
        SelectionError: ``selection_unresolvable``, with the reason in its fields; what resolving the parts raises.
    """
    if not selector.reads_values:
        return masks.whole(selector.found(tables, record))

    def size(row: int) -> int:
        return math.prod(tables.ops.value("shape", row) or ())

    if isinstance(selector, ByValue):
        return dict(sorted(selector.choose(selector.population(tables, record, ranking), ranking).items()))
    if isinstance(selector, Not):
        of = resolve(selector.of, tables, record, ranking)
        return masks.complement(of, range(len(tables.ops)), size)
    if isinstance(selector, AnyOf | AllOf):
        first, *others = [resolve(part, tables, record, ranking) for part in selector.of]
        for other in others:
            if isinstance(selector, AnyOf):
                first = masks.union(first, other, size)
            else:
                first = masks.intersection(first, other)
        return first
    return masks.whole(selector.found(tables, record))  # it cannot ask for values of what ran nearby, and refuses


def top_k(
    within: Selector | Resolved | str | None = None, k: int = 1, *, by: By = "value", largest: bool = True
) -> Selector:
    """The k greatest elements of the kept activations: ``trace[tl.top_k(tl.func("relu"), k=10)]``.

    Args:
        within: Whose elements are compared: a selector, a label, a selection, or None for everything that was kept.
        k: How many, over all sites together.
        by: ``"value"``, ``"abs"``, or something that scores sites.
        largest: The greatest; False for the smallest.

    Every site that was compared is in the selection, with a mask of the elements chosen in it. Ties go to the earlier
    site, then to the earlier position; NaN never ranks.

    Raises:
        SelectionError: ``selection_unresolvable``, now or when it is resolved; ``fields["reason"]`` says why.
    """
    if type(k) is not int or k < 0:
        raise criterion(f"k={k!r} is no number of elements", "pass a whole number, 0 or more")
    return TopK(population_argument(within, "top_k"), by_argument(by), k, side_argument(largest))


def top_fraction(
    within: Selector | Resolved | str | None = None,
    fraction: float = 0.01,
    *,
    by: By = "value",
    largest: bool = True,
) -> Selector:
    """A share of the elements of the kept activations, the greatest: ``ceil(fraction * how many rank)`` of them.

    Args:
        within: As for ``top_k``.
        fraction: From 0 to 1.
        by: As for ``top_k``.
        largest: The greatest; False for the smallest.

    Raises:
        SelectionError: ``selection_unresolvable``, now or when it is resolved; ``fields["reason"]`` says why.
    """
    if not is_number(fraction) or not 0 <= fraction <= 1:
        raise criterion(f"fraction={fraction!r} is no share of a whole", "pass a number from 0 to 1")
    return TopFraction(population_argument(within, "top_fraction"), by_argument(by), fraction, side_argument(largest))


def threshold(
    within: Selector | Resolved | str | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    by: By = "value",
) -> Selector:
    """The elements of the kept activations that are greater than ``above`` and less than ``below``.

    Args:
        within: As for ``top_k``.
        above, below: The bounds, themselves left out; at least one.
        by: As for ``top_k``.

    Raises:
        SelectionError: ``selection_unresolvable``, now or when it is resolved; ``fields["reason"]`` says why.
    """
    given = [bound for bound in (above, below) if bound is not None]
    if not given:
        raise criterion("a threshold needs a bound", "pass above=, below= or both")
    if not all(is_number(bound) for bound in given):
        raise criterion(f"above={above!r}, below={below!r} are no bounds", "pass numbers")
    return Beyond(population_argument(within, "threshold"), by_argument(by), above, below)


def population_argument(given: object, name: str) -> Selector | Resolved | None:
    if given is None or (isinstance(given, Resolved) and not isinstance(given, Selector)):
        return given
    return selector_argument(given, name)


def by_argument(given: object) -> By:
    if isinstance(given, Scores) or (isinstance(given, str) and given in WORDS):
        return given
    raise criterion(
        f"by={given!r} names no order", 'pass "value", "abs", or something with scores_of(site), a tensor of scores'
    )


def side_argument(given: object) -> bool:
    if isinstance(given, bool):
        return given
    raise criterion(f"largest={given!r} says neither the greatest nor the smallest", "pass True or False")


def is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given == given  # NaN is no number


def criterion(problem: str, remedy: str) -> SelectionError:
    return unresolvable("value_criterion_invalid", problem, remedy)
