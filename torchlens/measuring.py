"""Statistics of a tensor's elements: how many, how many not finite, their range, mean and spread.

Rule   the same elements in the same order give the same bits, on any device, machine and number of threads, and
       however they lie in memory: statistics taken in place of a payload are those of the payload.
Note   elements that are one in memory, as after ``expand`` and ``unfold``, are looked at once and count as often as
       they are elements: what that takes is bounded by the memory, whatever the shape says.
Note   "Halving": a sum is made of elements in double precision. Blocks of them are added to the first block, element
       by element, then the second half of that to the first, until few are left, which Python adds exactly
       (``math.fsum``). A reduction of torch's adds in an order that depends on threads, vector width and strides.
Not    how they are stored (journal/events/statistics.py), or read (reading/statistics.py).
"""

from __future__ import annotations

import cmath
import math
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from journal.events import Figures
from torchlens import compat
from torchlens.tensors import in_memory, overlaps, told_apart, told_in_memory

__all__ = ["Extent", "Histogram", "extent_of", "histogram_of", "measured", "measured_with_histogram", "nonfinite_in"]

BLOCK: Final = 1 << 15
"""Elements that are widened together; more would be shared out to threads, which costs more than it gains."""

FEW: Final = 256
"""Elements that Python adds up itself."""

TINY, HUGE = 2.0**-400, 2.0**400
"""Beyond these a square leaves the range of double precision, and elements are scaled by a power of two."""

DOUBLES: Final = (torch.float64, torch.complex128)
"""The dtypes that reach beyond."""


class Extent(NamedTuple):
    """How far elements reach; of complex ones, the range is that of magnitudes. Minus zero is zero."""

    size: int  # number of elements
    num_nan: int
    num_inf: int
    min: float | int | None  # of the finite ones; None where there is none
    max: float | int | None

    @property
    def num_nonfinite(self) -> int:
        return self.num_nan + self.num_inf


class Histogram(NamedTuple):
    """How many of the finite elements lie in each of some parts of their range, which are equally wide."""

    smallest: float
    largest: float
    counts: tuple[int, ...]  # the last part has its upper end in it


class Elements(NamedTuple):
    """The finite elements of a part of a tensor in the order of its axes, of complex ones the magnitudes."""

    finite: Tensor
    num_nan: int
    num_inf: int
    each: int  # for how many elements each stands
    counts: Tensor | None  # and each of the finite ones by itself; None where for no more

    @property
    def size(self) -> int:
        finite = self.finite.numel() if self.counts is None else int(compat.number_of(compat.total(self.counts)))
        return (finite + self.num_nan + self.num_inf) * self.each


Rows: TypeAlias = "tuple[list[Elements], int]"
"""The rows of a tensor, and the power of two by which the magnitudes among them were multiplied."""


def extent_of(tensor: Tensor) -> Extent | None:
    """How far a tensor's elements reach; None where they cannot be looked at.

    Of a tensor that stores some of its elements, as a sparse one, these are looked at and counted.
    """
    with compat.NoTorchFunction():
        try:
            found = rows_of(tensor)
            return None if found is None else reached(*found)
        except (RuntimeError, TypeError):  # a class, layout or dtype of which torch does not tell what looking takes
            return None


def nonfinite_in(tensor: Tensor) -> tuple[int, int] | None:
    """How many elements are NaN, and how many infinite, as ``extent_of`` counts them; sooner where all are finite.

    Whole numbers, quantised ones too, are not looked at.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0, 0
    with compat.NoTorchFunction():
        if is_shown_finite(tensor):
            return 0, 0
    extent = extent_of(tensor)
    return None if extent is None else (extent.num_nan, extent.num_inf)


def is_shown_finite(tensor: Tensor) -> bool:
    """Whether the sum of the elements is a number, which proves that each is; an overflow proves nothing."""
    if tensor.is_meta or compat.is_functional_wrapper(tensor):
        return False
    try:
        parts = [in_memory(told_apart(part)[0]) for part in compat.stored_elements(tensor)]
        return all(cmath.isfinite(compat.number_of(compat.total(part))) for part in parts)
    except (RuntimeError, TypeError):  # a class or dtype of which torch makes no sum
        return False


def measured(tensor: Tensor) -> Figures | None:
    """The statistics of a tensor's elements, as an event has them; None as for ``extent_of``.

    Mean and standard deviation are those of the finite elements; the latter divides by their number.
    """
    with compat.NoTorchFunction():
        try:
            found = rows_of(tensor)
            if found is None:
                return None
            rows, scale = found
            extent = reached(rows, scale)
            return (*extent, *moments(rows, scale, extent))
        except (RuntimeError, TypeError):  # as in extent_of
            return None


def histogram_of(tensor: Tensor, parts: int) -> Histogram | None:
    """The finite elements, of complex ones the magnitudes, counted in so many parts of their range.

    None where they cannot be looked at, there is none, or all are the same.
    """
    with compat.NoTorchFunction():
        try:
            found = rows_of(tensor)
            return None if found is None else histogram(*found, reached(found[0], 0), parts)
        except (RuntimeError, TypeError):  # as in extent_of
            return None


def measured_with_histogram(tensor: Tensor, parts: int) -> tuple[Figures | None, Histogram | None]:
    """What ``measured`` and ``histogram_of`` give, from one look at the elements."""
    with compat.NoTorchFunction():
        try:
            found = rows_of(tensor)
            if found is None:
                return None, None
            rows, scale = found
            extent = reached(rows, scale)
            inner = reached(rows, 0) if scale else extent
            return (*extent, *moments(rows, scale, extent)), histogram(rows, scale, inner, parts)
        except (RuntimeError, TypeError):  # as in extent_of
            return measured(tensor), None


def histogram(rows: list[Elements], scale: int, extent: Extent, parts: int) -> Histogram | None:
    """The histogram of elements that reach as far as ``extent`` says, scaled as they are."""
    if extent.min is None or extent.max is None:
        return None
    low, high = float(extent.min), float(extent.max)
    if low == high or not math.isfinite(high - low):
        return None
    counts = [0] * parts
    for row in rows:
        inside = counted(row, parts, low, high)
        counts = [had + more * row.each for had, more in zip(counts, inside, strict=True)]
    return Histogram(unscaled(low, scale), unscaled(high, scale), tuple(counts))


def counted(row: Elements, parts: int, low: float, high: float) -> list[int]:
    """How many elements lie in each part of a range."""
    wide = compat.to(row.finite, torch.float64)
    if row.counts is None:
        inside = compat.bins_of(wide, parts, low, high)
    else:
        wide, weights = compat.to(wide, "cpu"), compat.to(compat.to(row.counts, "cpu"), torch.float64)
        inside = compat.weighted_bins_of(wide, parts, range=(low, high), weight=weights).hist
    return [int(more) for more in compat.numbers_of(inside)]


# -- elements in a row


def rows_of(tensor: Tensor) -> Rows | None:
    """The elements; those that are one in memory are there once."""
    if tensor.is_meta or compat.is_functional_wrapper(tensor):
        return None
    plain = [in_a_row(part) for part in compat.stored_elements(tensor)]
    scale = 0
    if plain and plain[0][0].dtype.is_complex:
        scale = scale_for([compat.viewed(compat.real_parts(part), -1) for part, _, _ in plain])
        plain = [(magnitudes(part, scale), each, counts) for part, each, counts in plain]
    return [counted_in(*part) for part in plain], scale


def counted_in(plain: Tensor, each: int, counts: Tensor | None) -> Elements:
    """The finite elements among some, each with how many it is."""
    finite, num_nan, num_inf = finite_in(plain)
    if counts is None or finite is plain:
        return Elements(finite, num_nan, num_inf, each, counts)
    left = compat.chosen(counts, compat.is_finite(plain))
    num_nan = sum(compat.numbers_of(compat.chosen(counts, compat.is_nan(plain))))
    num_all, num_finite = (int(compat.number_of(compat.total(part))) for part in (counts, left))
    return Elements(finite, num_nan, num_all - num_finite - num_nan, each, left)


def in_a_row(plain: Tensor) -> tuple[Tensor, int, Tensor | None]:
    """The elements in the order of the axes, for how many each stands, and of how many each by itself."""
    if plain.is_quantized:
        plain = compat.dequantized(plain)
    plain, each = told_apart(plain)
    counts = None
    if overlaps(plain):
        plain, counts = told_in_memory(plain)
        counts = counts if plain.device.type in ("cpu", "cuda") else compat.to(counts, "cpu")
    if plain.device.type not in ("cpu", "cuda"):  # there may be no double precision
        plain = compat.to(plain, "cpu")
    plain = compat.contiguous(compat.resolve_conj(compat.resolve_neg(plain)))
    kind = plain.dtype
    if kind is torch.bool:
        plain = compat.viewed(plain, torch.uint8)
    elif kind.is_complex and kind.itemsize < 8:  # torch has few functions for it
        plain = compat.to(plain, torch.complex64)
    elif kind.is_floating_point and kind.itemsize == 1:
        plain = compat.to(plain, torch.float32)
    elif not kind.is_floating_point and not kind.is_complex and not kind.is_signed and kind is not torch.uint8:
        plain = compat.to(plain, torch.int64 if kind.itemsize < 8 else torch.float64)
    return compat.viewed(plain, -1), each, counts


def magnitudes(plain: Tensor, scale: int) -> Tensor:
    """Of complex elements, scaled, by operations that are exact or rounded once, so that they are the same anywhere."""
    parts = scaled(compat.to(compat.real_parts(plain), torch.float64), scale)
    squares = compat.times(parts, parts)
    added = compat.added(compat.narrow(squares, 1, 0, 1), compat.narrow(squares, 1, 1, 1))
    return compat.viewed(compat.square_root(added), -1)


def finite_in(plain: Tensor) -> tuple[Tensor, int, int]:
    """The finite elements, how many others are NaN, and how many infinite."""
    if not plain.numel() or all(map(math.isfinite, ends_of(plain))):  # a NaN would be both ends
        return plain, 0, 0
    finite = compat.chosen(plain, compat.is_finite(plain))
    num_nan = int(compat.number_of(compat.count_nonzero(compat.is_nan(plain))))
    return finite, num_nan, plain.numel() - finite.numel() - num_nan


def scale_for(rows: list[Tensor]) -> int:
    """By which power of two the elements are multiplied so that their squares stay in range; 0 for most."""
    found = [finite_in(row)[0] for row in rows if row.dtype in DOUBLES]
    largest = max((abs(end) for row in found if row.numel() for end in ends_of(row)), default=0.0)
    return 0 if largest == 0.0 or TINY < largest < HUGE else -math.frexp(largest)[1]


def scaled(wide: Tensor, scale: int) -> Tensor:
    if not scale:
        return wide
    half = scale // 2  # two to the power of all of it may be no number
    return compat.times(compat.times(wide, 2.0**half), 2.0 ** (scale - half))


def unscaled(number: float, scale: int) -> float:
    """A number as it was; infinite where that is beyond the numbers there are, as a magnitude of two large parts is."""
    try:
        return math.ldexp(number, -scale)
    except OverflowError:
        return math.inf


# -- range


def reached(rows: list[Elements], scale: int) -> Extent:
    ends = [end for row in rows if row.finite.numel() for end in ends_of(row.finite)]
    if scale:
        ends = [unscaled(end, scale) for end in ends]
    return Extent(
        sum(row.size for row in rows),
        sum(row.num_nan * row.each for row in rows),
        sum(row.num_inf * row.each for row in rows),
        min(ends) + 0 if ends else None,
        max(ends) + 0 if ends else None,
    )


def ends_of(plain: Tensor) -> tuple[float, float]:
    low, high = compat.smallest_and_largest(plain)
    return compat.number_of(low) + 0, compat.number_of(high) + 0  # minus zero and nothing is zero


# -- mean and spread


def moments(rows: list[Elements], scale: int, extent: Extent) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the finite elements; None where there is none."""
    count = extent.size - extent.num_nonfinite
    if not count:
        return None, None
    further = 0 if scale else scale_for([row.finite for row in rows])
    mean = math.fsum(row.each * total(row, further) for row in rows) / count
    square = math.fsum(row.each * total(row, further, mean) for row in rows) / count
    scale += further
    return unscaled(mean, scale) + 0.0, unscaled(math.sqrt(square), scale)


def total(row: Elements, scale: int, mean: float | None = None) -> float:
    """The sum of elements, or of the squares of how far each is from the mean; see "Halving" in the header."""
    finite, counts = row.finite, row.counts
    size = finite.numel()
    if not size:
        return 0.0
    gathered: Tensor | None = None
    for start in range(0, size, BLOCK):
        length = min(BLOCK, size - start)
        block = compat.narrow(finite, 0, start, length)
        wide = scaled(compat.to(block, torch.float64), scale)
        if mean is not None:
            apart = compat.subtracted(wide, mean)
            wide = compat.times(apart, apart)
        if counts is not None:
            wide = compat.times(wide, compat.to(compat.narrow(counts, 0, start, length), torch.float64))
        if gathered is None:
            gathered = compat.clone(wide) if size > BLOCK else wide
        else:
            compat.add_to(compat.narrow(gathered, 0, 0, length), wide)
    assert gathered is not None
    return halved(gathered)


def halved(wide: Tensor) -> float:
    left: list[float] = []
    size = wide.numel()
    while size > FEW:
        half = size // 2
        if size % 2:
            left.append(compat.number_of(compat.narrow(wide, 0, size - 1, 1)))
        wide = compat.added(compat.narrow(wide, 0, 0, half), compat.narrow(wide, 0, half, half))
        size = half
    return math.fsum([*compat.numbers_of(wide), *left])
