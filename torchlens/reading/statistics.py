"""Statistics of activations and gradients: those that were kept in place of a payload, or worked out of one.

Reads  the figures of a row, else its payload.
Rule   both ways give the same numbers, bit for bit (measuring.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from projections.errors import over_events
from torchlens.errors import PayloadUnavailableError
from torchlens.printable import amount
from torchlens.reading.view import View, no_torch

__all__ = ["Statistics", "reach", "statistics_of", "statistics_of_gradient"]


@attrs.frozen
class Statistics:
    """What is known of a tensor's elements without having them.

    ``min``, ``max``, ``mean`` and ``std`` are of the finite elements, None where there is none; of complex ones they
    are those of magnitudes. Minus zero is zero. Of a sparse tensor, the elements that it stores count.
    """

    count: int  # elements
    num_nan: int
    num_inf: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None  # standard deviation, divided by the number of finite elements

    @property
    def num_finite(self) -> int:
        """How many elements are finite."""
        return self.count - self.num_nan - self.num_inf

    @property
    def is_finite(self) -> bool:
        """Whether all elements are."""
        return not self.num_nan and not self.num_inf

    def __str__(self) -> str:
        said = reach(self.num_nan, self.num_inf, self.min, self.max)
        if self.num_nan or self.num_inf:
            said += f", of {amount(self.count, 'element')}"
        return said if self.mean is None or self.std is None else f"{said}, mean {self.mean:.6g}, std {self.std:.6g}"


def reach(num_nan: int, num_inf: int, low: float | None, high: float | None) -> str:
    """How far the elements of a tensor reach, in words: those not finite, and the range of the others."""
    parts = [f"{num_nan} NaN"] if num_nan else []
    parts += [f"{num_inf} infinite"] if num_inf else []
    if low is not None and high is not None:
        parts.append(f"{low:.6g} to {high:.6g}" if not parts else f"finite from {low:.6g} to {high:.6g}")
    return ", ".join(parts) or "no elements"


def statistics_of(view: View, row: int, table: str) -> Statistics:
    """Those of an op's activation.

    Raises:
        PayloadUnavailableError: ``statistics_unavailable``, for elements that cannot be looked at; and what reading the
            activation raises, where there is neither.
    """
    ops = view.table(table)
    kept = ops.value("figures", row) if ops.value("has_stored_stats", row) else ()
    return told(ops.value("label", row), kept, lambda: view.activation(row, table))


def statistics_of_gradient(view: View, row: int) -> Statistics:
    """Those of a row of the gradients; refused likewise."""
    gradients = view.table("gradients")
    kept = gradients.value("figures", row) if gradients.value("has_stored_stats", row) else ()
    return told(f"the gradient of {gradients.value('owner', row)}", kept, lambda: view.gradient(row))


def told(of: str, kept: Any, read: Callable[[], Any]) -> Statistics:
    """From what was kept (`journal.events.Figures`; () where that is nothing), else from what reading gives."""
    if kept == ():
        tensor = read()
        try:
            from torchlens.measuring import measured  # for cost: records are read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        kept = measured(tensor)
    if kept is None:
        raise PayloadUnavailableError(
            code="statistics_unavailable",
            problem=f"the elements of {of} cannot be looked at: it has none, or its class does not tell them",
            remedy="look at what it was made from, or at what is made of it",
            label=of,
        )
    with over_events():
        return Statistics(*kept)
