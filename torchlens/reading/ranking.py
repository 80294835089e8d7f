"""The elements of kept activations compared by value: the greatest so many, and those beyond a bound.

Reads  one site at a time, so that the memory it takes is that of one activation and of the candidates.
Rule   numbers are compared exactly, as Python compares them, with each other and with bounds: whole ones in 64-bit
       integers, those of uint64 less 2**63, floats in double precision, which holds every narrower float, and all as
       what they are. NaN never ranks. The magnitude of -2**63 counts as that of its successor.
Not    which sites are compared, or what the answer is combined with (projections.selecting.queries).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor

from projections.selecting import masks
from projections.selecting.masks import ALL, Choice, Mask, Whole, whole
from projections.selecting.queries import By, Scores, unresolvable
from torchlens.bits import COUNTED
from torchlens.errors import SelectionError
from torchlens.reading.selection import Site, positions_of
from torchlens.reading.view import View
from torchlens.tensors import has_plain_memory, overlaps

__all__ = ["Values"]


class Values:
    """The values of one trace, as rankings of them need them."""

    def __init__(self, trace: View) -> None:
        self.trace = trace
        self.ops = trace.table("ops")

    def everything(self, by: By) -> Choice:
        ops = self.ops
        if not isinstance(by, str):
            return whole(row for row in range(len(ops)) if self.scored(row, by) is not None)
        first: dict[int, int] = {}
        for row, (value, is_saved) in enumerate(
            zip(ops.column("value"), ops.column("has_saved_activation"), strict=True)
        ):
            if is_saved:
                first.setdefault(value, row)
        return whole(first.values())

    def missing(self, population: Choice, by: By) -> tuple[str, ...]:
        ops = self.ops
        if isinstance(by, str):
            saved = ops.column("has_saved_activation")
            rows = [row for row in population if not saved[row]]
        else:
            rows = [row for row in population if self.scored(row, by) is None]
        return tuple([ops.value("label", row) for row in rows])

    def first(
        self, population: Choice, share: Callable[[int], int], by: By, *, largest: bool
    ) -> tuple[int, Mapping[int, Mask]]:
        most = share(sum(masks.count(mask, self.count(row)) for row, mask in population.items()))
        pools: dict[tuple[torch.dtype, int], Pool] = {}
        size = 0
        for row, positions, numbers in self.each(population, by):
            ranks = numbers.rank()
            size += len(numbers.held) if ranks is None else int(ranks.sum())
            if most:
                pool = pools.setdefault((numbers.held.dtype, numbers.less), Pool(most, numbers.less, largest=largest))
                pool.add(row, positions, numbers.held, ranks)
        chosen: dict[int, list[int]] = {row: [] for row in population}
        found = [element for pool in pools.values() for element in pool.best()]
        sign = -1 if largest else 1
        found.sort(key=lambda element: (sign * element[0], element[1:]))
        for _, row, position in found[: share(size)]:
            chosen[row].append(position)
        return size, {row: self.mask(row, sorted(positions)) for row, positions in chosen.items()}

    def beyond(self, population: Choice, above: float | None, below: float | None, by: By) -> Mapping[int, Mask]:
        made: dict[int, Mask] = {}
        for row, positions, numbers in self.each(population, by):
            ranks = numbers.rank()
            inside = torch.ones_like(numbers.held, dtype=torch.bool) if ranks is None else ranks
            if above is not None:
                inside &= greater(numbers, above)
            if below is not None:
                inside &= less(numbers, below)
            places = inside.nonzero().reshape(-1)
            made[row] = self.mask(row, (places if positions is None else positions[places]).tolist())
        return made

    def count(self, row: int) -> int:
        """How many elements a site has."""
        return math.prod(self.ops.value("shape", row) or ())

    def mask(self, row: int, positions: list[int]) -> Mask:
        return ALL if len(positions) == self.count(row) else array("q", positions)

    def each(self, population: Choice, by: By) -> Iterator[tuple[int, Tensor | None, Numbers]]:
        """Each site of a population: its row, the positions of the elements that count, None for all, and their
        numbers."""
        for row, mask in population.items():
            numbers = self.numbers(row, by)
            if isinstance(mask, Whole):
                yield row, None, numbers
            else:
                positions = positions_of(mask)
                yield row, positions, numbers._replace(held=numbers.held[positions])

    def numbers(self, row: int, by: By) -> Numbers:
        """The numbers that a site is compared by, one a flattened element."""
        tensor: Tensor | None = self.trace.activation(row) if isinstance(by, str) else self.scored(row, by)
        assert tensor is not None  # the population was looked through
        if not has_plain_memory(tensor):
            label = self.ops.value("label", row)
            raise unresolvable(
                "no_index_space",
                f"the elements of {label!r} have no fixed places",
                "leave it out of within=",
                label=label,
            )
        if tensor.numel() > MOST_SPREAD and overlaps(tensor):
            raise self.incomparable(row, f"{tensor.numel()} in less memory, too many to tell apart", "narrow within=")
        with torch.no_grad():
            flat = tensor.detach().reshape(-1).cpu()
            if flat.is_complex() and by == "abs":
                flat = flat.abs()
            if flat.is_complex():
                raise self.incomparable(row, "complex, which have no order", 'compare them by="abs"')
            if flat.dtype not in COUNTED:
                word = str(flat.dtype).removeprefix("torch.")
                raise self.incomparable(row, f"{word}, of which torch only moves the bits", "leave it out of within=")
            if flat.dtype is torch.uint64:
                return Numbers(flat.view(torch.int64) ^ LEAST, HALF)
            wide = flat.to(torch.float64 if flat.is_floating_point() else torch.int64)
            if by == "abs":
                wide = wide.abs() if wide.is_floating_point() else wide.clamp(min=-MOST).abs()  # see the rule
            return Numbers(wide, 0)

    def incomparable(self, row: int, why: str, remedy: str) -> SelectionError:
        label = self.ops.value("label", row)
        return unresolvable("value_criterion_invalid", f"the elements of {label!r} are {why}", remedy, label=label)

    def scored(self, row: int, by: Scores | str) -> Tensor | None:
        """A site's scores; None where it has none."""
        assert not isinstance(by, str)
        site = Site.of(self.trace, row, source=repr(by))
        scores = by.scores_of(site)
        if scores is None:
            return None
        if not isinstance(scores, Tensor) or tuple(scores.shape) != tuple(site.shape):
            raise SelectionError(
                code="by_score_invalid",
                problem=f"{by!r} scores {site.label!r} with something other than a tensor of shape {site.shape}",
                remedy="give one score for each element",
                label=site.label,
            )
        return scores


class Numbers(NamedTuple):
    """What elements are compared by, as torch can order it: int64 or float64."""

    held: Tensor
    less: int  # what is missing from each: torch orders no uint64, and less 2**63 each of these is an int64

    def rank(self) -> Tensor | None:
        """Which of them are numbers, as a mask; None for all."""
        return self.held.isnan().logical_not_() if self.held.is_floating_point() else None


class Pool:
    """The best elements met so far, of one kind of numbers: so many of them, and for a while some more."""

    def __init__(self, number: int, less: int, *, largest: bool) -> None:
        self.number = number
        self.less = less  # see Numbers
        self.largest = largest
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []  # numbers, rows and positions
        self.size = 0
        self.bar: Tensor | None = None  # what is no better comes too late

    def add(self, row: int, positions: Tensor | None, numbers: Tensor, ranks: Tensor | None) -> None:
        """Elements of one site.

        Args:
            row: It.
            positions: Where they are in it; None for all of it, in order.
            numbers: What they are compared by.
            ranks: Which of these are numbers; None for all.
        """
        if self.bar is not None:
            ranks = numbers > self.bar if self.largest else numbers < self.bar
        places = torch.arange(len(numbers)) if ranks is None else ranks.nonzero().reshape(-1)
        if len(places):
            positions = places if positions is None else positions[places]
            self.parts.append((numbers[places], torch.full_like(positions, row), positions))
            self.size += len(places)
            if self.size > 2 * self.number + SLACK:
                self.prune()

    def prune(self) -> None:
        """Keep the best; of equal ones those that came first."""
        numbers, rows, positions = map(torch.cat, zip(*self.parts, strict=True))
        order = torch.sort(numbers, descending=self.largest, stable=True).indices[: self.number]
        self.parts = [(numbers[order], rows[order], positions[order])]
        self.size = len(order)
        if self.size == self.number:
            self.bar = numbers[order[-1]]

    def best(self) -> list[tuple[float, int, int]]:
        """Number, row and position of each, the best first."""
        if not self.parts:
            return []
        self.prune()
        numbers, rows, positions = self.parts[0]
        whole = [number + self.less for number in numbers.tolist()] if self.less else numbers.tolist()
        return list(zip(whole, rows.tolist(), positions.tolist(), strict=True))


MOST_SPREAD: Final = 1 << 28
"""Elements that are spread out one by one where many are one in memory, as after ``expand``: in two gigabytes."""

SLACK: Final = 4096
"""Elements that are gathered before they are sorted."""


def greater(numbers: Numbers, bound: float) -> Tensor:
    """Which numbers are greater than a bound, as Python compares them: exactly, whole numbers with floats too."""
    held = numbers.held
    if held.dtype == torch.int64:
        if abs(bound) == math.inf or not LEAST <= math.floor(bound) - numbers.less <= MOST:
            return torch.full_like(held, bound < numbers.less, dtype=torch.bool)
        return held > math.floor(bound) - numbers.less
    nearest = nearest_float(bound)
    return held >= nearest if nearest > bound else held > nearest


def less(numbers: Numbers, bound: float) -> Tensor:
    """Which numbers are less than a bound, likewise."""
    held = numbers.held
    if held.dtype == torch.int64:
        if abs(bound) == math.inf or not LEAST <= math.ceil(bound) - numbers.less <= MOST:
            return torch.full_like(held, bound > numbers.less, dtype=torch.bool)
        return held < math.ceil(bound) - numbers.less
    nearest = nearest_float(bound)
    return held <= nearest if nearest < bound else held < nearest


LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1
HALF: Final = 1 << 63
"""Half of what a uint64 can be."""


def nearest_float(bound: float) -> float:
    """The float that a number is rounded to; an infinite one where it is too great."""
    try:
        return float(bound)
    except OverflowError:
        return math.inf if bound > 0 else -math.inf
