"""How far two tensors are apart, as numbers: of one pair, of several as if they were one, and of their statistics.

Rule   the *error* is relative: the length (the root of the sum of squares, in double precision) of the difference,
       divided by the length of the first. Elements that are the same infinity, or NaN on both sides, differ by
       nothing; where one side alone has them the error is infinite.
Not    how elements are compared (elements.py, which needs torch).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["Basis", "Parted", "of_figures", "relative"]

Basis: TypeAlias = Literal["payload", "statistics"]
"""What was compared."""


class Parted(NamedTuple):
    """How two tensors differ."""

    apart: float  # length of the difference; infinite where one side alone is not finite
    size: float  # length of the first
    max_abs: float | None
    num_beyond: int
    basis: Basis

    @property
    def error(self) -> float:
        return relative([self])


def relative(parts: Iterable[Parted]) -> float:
    """The relative error of tensors taken as one."""
    found = list(parts)
    apart, size = math.hypot(*(part.apart for part in found)), math.hypot(*(part.size for part in found))
    if apart == 0.0:
        return 0.0
    return math.inf if size == 0.0 or math.isinf(apart) else apart / size


def of_figures(one: Any, other: Any, rtol: float, atol: float) -> Parted:
    """Statistics compared: counts must be the same, range, mean and deviation within the tolerance. The error is
    that of these four numbers."""
    counts = sum(x != y for x, y in zip(one[:3], other[:3], strict=True))
    pairs = [(x, y) for x, y in zip(one[3:], other[3:], strict=True) if x is not None and y is not None]
    odd = counts + sum((x is None) != (y is None) for x, y in zip(one[3:], other[3:], strict=True))
    apart = [abs(y - x) for x, y in pairs]
    beyond = sum(gap > atol + rtol * abs(x) for gap, (x, _) in zip(apart, pairs, strict=True)) + odd
    size = math.hypot(*(float(x) for x, _ in pairs))
    return Parted(math.inf if odd else math.hypot(*apart), size, max(apart, default=None), beyond, "statistics")
