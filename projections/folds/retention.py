"""Which payload each op has.

Reads  PayloadKept, TransformKept, StatisticsTaken; the description of a value holds the payload kept with it.
Gives  payload references by value, what was made of values before it was kept, and statistics taken instead.
Rule   an output has the payload of the row it was returned from, an ``identity`` row that of its value.
Not    payload bytes, or whether they can still be read: the journal knows.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import attrs

from journal.events import PayloadKept, PayloadRef, StatisticsTaken, TransformKept
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.split import appended


class Transformed(NamedTuple):
    """What was made of a value's activation and kept."""

    shape: tuple[int, ...]
    dtype: str
    payload: PayloadRef


class Figures(NamedTuple):
    """Statistics of a tensor's elements; all but the counts are of the finite ones, None where there is none."""

    size: int  # how many elements; ``count`` is a method of tuples
    num_nan: int
    num_inf: int
    min: float | int | None  # of complex elements, of the magnitudes
    max: float | int | None
    mean: float | None
    std: float | None  # divided by the number of finite elements


@attrs.define(slots=True)
class Kept:
    """Payloads that were kept after the event of their value, and those that were made of one."""

    values: list[int] = appended()
    payloads: list[PayloadRef] = appended("late_payloads")  # of the value at the same place
    made_of: list[int] = appended()
    made: list[Transformed] = appended("transformed_payloads")  # of the value at the same place
    measured_of: list[int] = appended()
    measured: list[Figures | None] = appended("statistics")  # of the value at the same place

    def by_value(self) -> dict[int, PayloadRef]:
        """The payload of each such value; of several, the one kept last."""
        return dict(zip(self.values, self.payloads, strict=True))

    def made_by_value(self) -> dict[int, Transformed]:
        """What was made of each such value; of several, the one made last."""
        return dict(zip(self.made_of, self.made, strict=True))

    def measured_by_value(self) -> dict[int, Figures | None]:
        """The statistics of each such value; of several, those taken last."""
        return dict(zip(self.measured_of, self.measured, strict=True))


def payload_kept(kept: Kept, at: int, type_id: int, time_ns: int, value: int, payload: Any) -> None:
    kept.payloads.append(plain_ref(payload))
    kept.values.append(value)


def transform_kept(
    kept: Kept, at: int, type_id: int, time_ns: int, value: int, shape: tuple[int, ...], dtype: str, payload: Any
) -> None:
    kept.made.append(Transformed(tuple(shape), dtype, plain_ref(payload)))
    kept.made_of.append(value)


def statistics_taken(kept: Kept, at: int, type_id: int, time_ns: int, value: int, figures: Any) -> None:
    kept.measured.append(plain_figures(figures))
    kept.measured_of.append(value)


def plain_figures(figures: Any) -> Figures | None:
    """Statistics as they are stored, checked: a reader counts and compares with them."""
    if figures is None:
        return None
    count, num_nan, num_inf, *numbers = figures
    if len(numbers) != 4 or any(type(each) is not int or each < 0 for each in (count, num_nan, num_inf)):
        raise contradictory("statistics are told that are none")
    if num_nan + num_inf > count or any(each is not None and type(each) not in (int, float) for each in numbers):
        raise contradictory("statistics are told that no elements have")
    return Figures(count, num_nan, num_inf, *numbers)


def cell_of(figures: Figures | None) -> tuple[Any, ...] | None:
    """The same as a cell of a table: a plain tuple."""
    return None if figures is None else tuple(figures)


def plain_ref(payload: Any) -> PayloadRef:
    """A payload reference whose strides are a plain tuple, also where the capture handed in sizes of its own type."""
    number, first, strides = payload
    return (number, first, None if strides is None else tuple(strides))


RETENTION: Final = Fold(
    "retention",
    version=2,
    initial=Kept,
    handlers={PayloadKept: payload_kept, StatisticsTaken: statistics_taken, TransformKept: transform_kept},
)
