"""Columns from what is known of one row, of its event, or of a class of rows that share it.

Gives  makers of columns: each takes a function that gives a cell, and holds the column in the cheapest way that its
       cells allow (columnar/sequences.py).
Not    what stands in the cells (ops.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from projections.columnar.sequences import Classes, Deferred, Each, Named, Picked, Ragged
from projections.columnar.tables import Column, Maker
from projections.forward import Forward
from projections.structure.details import Brief


def some(read: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    """A column of whether a row has any of these rows."""
    return lambda forward: list(map(bool, read(forward).lengths()))


def per_row(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward)), one)

    return make


def per_call(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """The same of the table of module calls."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward.calls)), one)

    return make


def fact(one: Callable[[Forward], Any]) -> Maker[Forward]:
    """A column of the one row of the capture table."""

    def make(forward: Forward) -> Column:
        return [one(forward)]

    return make


def total(values: Iterable[Any]) -> Any:
    """Their sum; None where one is unknown."""
    held = list(values)
    return None if None in held else sum(held)


def from_brief(name: str) -> Maker[Forward]:
    """A column that is a field of the details' shared part."""

    def make(forward: Forward) -> Column:
        return Deferred(
            len(forward),
            lambda row: getattr(forward.detail(row).brief, name),
            lambda: of_briefs(forward, attrgetter(name)),
        )

    return make


def of_briefs(forward: Forward, read: Callable[[Brief], Any]) -> Column:
    briefs, classes = forward.details.briefs, forward.brief_classes
    return Picked([read(briefs[row]) for row in classes.first], classes)


def from_brief_by(read: Callable[[Brief], Any]) -> Maker[Forward]:
    """A column worked out from the details' shared part."""

    def make(forward: Forward) -> Column:
        return Deferred(len(forward), lambda row: read(forward.detail(row).brief), lambda: of_briefs(forward, read))

    return make


def from_call(read: Callable[[Forward, int, Any], Any], missing: Any) -> Maker[Forward]:
    """A column read from the event of each call, the same for calls that were given the same (``Forward.given``).

    Args:
        read: Gives the value from the forward, a row of the call and its event.
        missing: Value of the rows that are no call.
    """

    def make(forward: Forward) -> Column:
        rows = forward.rows

        def one(row: int) -> Any:
            return missing if rows.function[row] < 0 else read(forward, row, forward.source.row(rows.event[row]))

        def every() -> Column:
            classes, events = forward.given
            held = [
                missing if event is None else read(forward, row, event)
                for row, event in zip(classes.first, events, strict=True)
            ]
            return Picked(held, classes)

        return Deferred(len(rows), one, every)

    return make


def of_classes(read: Callable[[Forward], Classes], one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column that is the same for the rows of a class, worked out for the first row of each."""

    def make(forward: Forward) -> Column:
        classes = read(forward)
        return Picked([one(forward, row) for row in classes.first], classes)

    return make


def from_event(kind: Callable[[int], bool], read: Callable[[Forward, int, Any], Any], missing: Any) -> Maker[Forward]:
    """A column read from the event of each row of some kinds; ``missing`` for all other rows.

    Args:
        kind: Whether a row with this function number has the value.
        read: Gives the value from the forward, the row and its event.
        missing: Value of the others.
    """

    def make(forward: Forward) -> Column:
        rows = forward.rows

        def one(row: int) -> Any:
            if not kind(rows.function[row]):
                return missing
            return read(forward, row, forward.source.row(rows.event[row]))

        def every() -> Column:
            made = [missing] * len(rows)
            own = [row for row, function in enumerate(rows.function) if kind(function)]
            if not own:
                return Picked([missing], Classes.by(made))
            for position, event in forward.scan([rows.event[row] for row in own]):
                made[own[position]] = read(forward, own[position], event)
            return made

        return Deferred(len(rows), one, every)

    return make


def labels_of(read: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    """A column of op labels from a column of op rows."""
    return lambda forward: Named(forward.labels.op, read(forward))


def flags(read: Callable[[Forward], Sequence[int]]) -> Maker[Forward]:
    """A column that is True at some rows."""

    def make(forward: Forward) -> Column:
        made = [False] * len(forward)
        for row in read(forward):
            made[row] = True
        return made

    return make


def of_function(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column that depends on the function alone."""
    return of_classes(
        lambda forward: forward.function_classes, lambda forward, row: one(forward, forward.rows.function[row])
    )


def of_call(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column that depends on the enclosing module call alone."""
    return of_classes(lambda forward: forward.call_classes, one)


def of_layer(read: Callable[[Forward], Sequence[Any]]) -> Maker[Forward]:
    """A column that an op has from its layer."""
    return lambda forward: Picked(read(forward), forward.layer_classes)
