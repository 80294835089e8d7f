"""Statistics that a request keeps in place of payloads."""

from __future__ import annotations

from typing import TypeAlias

from journal.events.base import At, Event, Value, event

Figures: TypeAlias = tuple[int, int, int, "float | int | None", "float | int | None", "float | None", "float | None"]
"""Of the elements of a tensor: how many, how many NaN, how many infinite; of the finite ones, or their magnitudes where
they are complex, the smallest, the largest, mean and standard deviation (by their number), None where there is none."""


@event("statistics_taken", version=1)
class StatisticsTaken(Event):
    """Statistics of a value were taken as it was made, in place of its payload."""

    value: Value
    figures: Figures | None  # None where the elements cannot be looked at


@event("gradient_statistics_taken", version=1)
class GradientStatisticsTaken(Event):
    """The same of a gradient."""

    of: At  # the `GradientObserved`
    figures: Figures | None
