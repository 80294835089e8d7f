"""The elements of kept activations compared by value: the greatest so many, and those beyond a bound.

Reads  one site at a time, so that the memory it takes is that of one activation and of the candidates.
Rule   numbers are compared exactly, as Python compares them, with each other and with bounds: whole ones in 64-bit
       integers, floats in double precision, which holds every narrower float, and both as what they are. NaN never
       ranks. The magnitude of -2**63 counts as that of its successor.
Not    which sites are compared, or what the answer is combined with (projections.queries).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from projections.masks import ALL, Choice, Mask, Whole, whole
from projections.queries import By, Scores, unresolvable
from torchlens.errors import SelectionError
from torchlens.reading.selection import Site, positions_of
from torchlens.reading.view import View
from torchlens.tensors import has_plain_memory

__all__ = ["Values"]


class Values:
    """The values of one trace, as rankings of them need them."""

    def __init__(self, trace: View) -> None:
        self.trace = trace

    def everything(self, by: By) -> Choice:
        ops = self.trace.table("ops")
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
        ops = self.trace.table("ops")
        if isinstance(by, str):
            saved = ops.column("has_saved_activation")
            rows = [row for row in population if not saved[row]]
        else:
            rows = [row for row in population if self.scored(row, by) is None]
        return tuple([ops.value("label", row) for row in rows])

    def size(self, population: Choice, by: By) -> int:
        return sum(int(numbers.isnan().logical_not_().sum()) for _, _, numbers in self.each(population, by))

    def first(self, population: Choice, number: int, by: By, *, largest: bool) -> Mapping[int, Mask]:
        chosen: dict[int, list[int]] = {row: [] for row in population}
        if number:
            pools = {dtype: Pool(number, largest=largest) for dtype in (torch.int64, torch.float64)}
            for row, positions, numbers in self.each(population, by):
                pools[numbers.dtype].add(row, positions, numbers)
            found = [element for pool in pools.values() for element in pool.best()]
            sign = -1 if largest else 1
            found.sort(key=lambda element: (sign * element[0], element[1:]))
            for _, row, position in found[:number]:
                chosen[row].append(position)
        return {row: self.mask(row, sorted(positions)) for row, positions in chosen.items()}

    def beyond(self, population: Choice, above: float | None, below: float | None, by: By) -> Mapping[int, Mask]:
        made: dict[int, Mask] = {}
        for row, positions, numbers in self.each(population, by):
            inside = numbers.isnan().logical_not_()
            if above is not None:
                inside &= greater(numbers, above)
            if below is not None:
                inside &= less(numbers, below)
            made[row] = self.mask(row, positions[inside].tolist())
        return made

    def mask(self, row: int, positions: list[int]) -> Mask:
        if len(positions) == torch.Size(self.trace.table("ops").value("shape", row)).numel():
            return ALL
        return array("q", positions)

    def each(self, population: Choice, by: By) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each site of a population: its row, and positions and numbers of the elements that count."""
        for row, mask in population.items():
            numbers = self.numbers(row, by)
            if isinstance(mask, Whole):
                yield row, torch.arange(len(numbers)), numbers
            else:
                positions = positions_of(mask)
                yield row, positions, numbers[positions]

    def numbers(self, row: int, by: By) -> Tensor:
        """The numbers that a site is compared by, one a flattened element."""
        label = self.trace.table("ops").value("label", row)
        tensor: Tensor | None = self.trace.activation(row) if isinstance(by, str) else self.scored(row, by)
        assert tensor is not None  # the population was looked through
        if not has_plain_memory(tensor):
            raise unresolvable(
                "no_index_space",
                f"the elements of {label!r} have no fixed places",
                "leave it out of within=",
                label=label,
            )
        with torch.no_grad():
            flat = tensor.detach().reshape(-1).cpu()
            if flat.dtype == torch.uint64:
                raise unresolvable(
                    "value_criterion_invalid",
                    f"the elements of {label!r} are uint64, which torch does not compare",
                    "leave it out of within=",
                    label=label,
                )
            if flat.is_complex() and by == "abs":
                flat = flat.abs()
            if flat.is_complex():
                raise unresolvable(
                    "value_criterion_invalid",
                    f"the elements of {label!r} are complex, which have no order",
                    'compare them by="abs"',
                    label=label,
                )
            wide = flat.to(torch.float64 if flat.is_floating_point() else torch.int64)
            if by != "abs":
                return wide
            return wide.abs() if wide.is_floating_point() else wide.clamp(min=-MOST).abs()  # -2**63 has no magnitude

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


class Pool:
    """The best elements met so far, of one dtype: a number of them, and for a while some more."""

    def __init__(self, number: int, *, largest: bool) -> None:
        self.number = number
        self.largest = largest
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []  # numbers, rows and positions
        self.size = 0
        self.bar: Tensor | None = None  # what is no better comes too late

    def add(self, row: int, positions: Tensor, numbers: Tensor) -> None:
        if self.bar is not None:
            kept = numbers > self.bar if self.largest else numbers < self.bar
        elif numbers.is_floating_point():
            kept = numbers.isnan().logical_not_()
        else:
            kept = None
        if kept is not None:
            numbers, positions = numbers[kept], positions[kept]
        if len(numbers):
            self.parts.append((numbers, torch.full_like(positions, row), positions))
            self.size += len(numbers)
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
        return list(zip(numbers.tolist(), rows.tolist(), positions.tolist(), strict=True))


SLACK: Final = 4096
"""Elements that are gathered before they are sorted."""


def greater(numbers: Tensor, bound: float) -> Tensor:
    """Which numbers are greater than a bound, as Python compares them: exactly, whole numbers with floats too."""
    if numbers.dtype == torch.int64:
        if abs(bound) == math.inf or not LEAST <= math.floor(bound) <= MOST:
            return torch.full_like(numbers, bound < 0, dtype=torch.bool)
        return numbers > math.floor(bound)
    nearest = nearest_float(bound)
    return numbers >= nearest if nearest > bound else numbers > nearest


def less(numbers: Tensor, bound: float) -> Tensor:
    """Which numbers are less than a bound, likewise."""
    if numbers.dtype == torch.int64:
        if abs(bound) == math.inf or not LEAST <= math.ceil(bound) <= MOST:
            return torch.full_like(numbers, bound > 0, dtype=torch.bool)
        return numbers < math.ceil(bound)
    nearest = nearest_float(bound)
    return numbers <= nearest if nearest < bound else numbers < nearest


LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1


def nearest_float(bound: float) -> float:
    """The float that a number is rounded to; an infinite one where it is too great."""
    try:
        return float(bound)
    except OverflowError:
        return math.inf if bound > 0 else -math.inf
