"""The elements of kept activations compared by value: the greatest so many, and those beyond a bound.

Reads  one site at a time, so that the memory it takes is that of one activation and of the candidates.
Rule   a ranking is exact: in 64-bit integers where all values are whole, else in double precision, which holds every
       narrower float. A bound is compared as torch does, so that the mask is that of ``op.out > above``. NaN never
       ranks.
Not    which sites are compared, or what the answer is combined with (projections.queries).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

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
        if number == 0:
            return dict.fromkeys(population, array("q"))
        best: list[Tensor] = []
        for _, _, numbers in self.each(population, by):
            ranked = numbers[numbers.isnan().logical_not_()]
            best.append(torch.topk(ranked, min(number, len(ranked)), largest=largest, sorted=False).values)
        bar = torch.topk(joined(best), number, largest=largest).values[-1]
        better: dict[int, Tensor] = {}
        level: dict[int, Tensor] = {}
        for row, positions, own in self.each(population, by):
            numbers = own.to(bar.dtype)
            better[row] = positions[numbers > bar if largest else numbers < bar]
            level[row] = positions[numbers == bar][:number]
        left = number - sum(map(len, better.values()))
        made: dict[int, Mask] = {}
        for row, positions in better.items():
            equal = level[row][:left]
            left -= len(equal)
            made[row] = self.mask(row, torch.cat((positions, equal)).sort().values)
        return made

    def beyond(self, population: Choice, above: float | None, below: float | None, by: By) -> Mapping[int, Mask]:
        made: dict[int, Mask] = {}
        for row, positions, numbers in self.each(population, by, ranked=False):
            inside = numbers.isnan().logical_not_()
            if above is not None:
                inside &= numbers > above
            if below is not None:
                inside &= numbers < below
            made[row] = self.mask(row, positions[inside])
        return made

    def mask(self, row: int, positions: Tensor) -> Mask:
        if len(positions) == torch.Size(self.trace.table("ops").value("shape", row)).numel():
            return ALL
        return array("q", positions.tolist())

    def each(self, population: Choice, by: By, *, ranked: bool = True) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each site of a population: its row, and positions and numbers of the elements that count.

        With ``ranked``, the numbers are such that those of different sites compare exactly.
        """
        for row, mask in population.items():
            numbers = self.numbers(row, by)
            if ranked:
                numbers = numbers.to(torch.float64 if numbers.is_floating_point() else torch.int64)
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
            if flat.is_floating_point() and flat.element_size() == 1:
                flat = flat.float()  # torch does not compare such short floats
            flat = flat.abs() if by == "abs" and flat.dtype != torch.bool else flat
            if flat.is_complex():
                raise unresolvable(
                    "value_criterion_invalid",
                    f"the elements of {label!r} are complex, which have no order",
                    'compare them by="abs"',
                    label=label,
                )
            return flat

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


def joined(numbers: list[Tensor]) -> Tensor:
    """All numbers in one tensor: whole ones as they are, else in double precision."""
    if all(part.dtype == torch.int64 for part in numbers):
        return torch.cat(numbers)
    return torch.cat([part.double() for part in numbers])
