"""Columns that are not a plain list: rows of several values, values worked out when read, values read in bulk.

A column is any ``Sequence``. These keep a table of a million rows small: they hold a few flat lists, or
nothing at all, and make the value of a row when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import sub
from typing import Final, Generic, TypeVar, overload

from journal.errors import TorchLensError
from projections.errors import FAULTS, contradictory, fault_text, over_events

Item = TypeVar("Item")
Context = TypeVar("Context")

FEW: Final = 16
"""Single reads of a deferred column before it is filled as a whole."""

SMALL: Final = 4096
"""A deferred column this short is filled at the first read."""


class Ragged(Sequence[tuple[Item, ...]]):
    """Tuples of different lengths, as one flat list and the end of each.

    Args:
        items: All items, row after row.
        ends: Where each row ends, after a leading 0.
    """

    __slots__ = ("ends", "items")

    def __init__(self, items: Sequence[Item], ends: Sequence[int]) -> None:
        self.items = items
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[Item, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Item, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Item, ...] | list[tuple[Item, ...]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = place(index, len(self))
        return tuple(self.items[self.ends[row] : self.ends[row + 1]])

    def __iter__(self) -> Iterator[tuple[Item, ...]]:
        items, start = self.items, 0
        for end in self.ends[1:]:
            yield tuple(items[start:end])
            start = end

    def length(self, row: int) -> int:
        """Number of items of a row."""
        return self.ends[row + 1] - self.ends[row]

    def lengths(self) -> list[int]:
        """Number of items of every row."""
        return list(map(sub, self.ends[1:], self.ends))


class Computed(Sequence[Item], Generic[Item]):
    """Values worked out at each read.

    Args:
        size: Number of rows.
        one: Gives the value of a row.
    """

    __slots__ = ("one", "size")

    def __init__(self, size: int, one: Callable[[int], Item]) -> None:
        self.size = size
        self.one = one

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(self.size))]
        row = place(index, self.size)
        try:
            return self.one(row)
        except TorchLensError:
            raise
        except FAULTS as exc:
            raise contradictory(fault_text(exc)) from exc

    def __iter__(self) -> Iterator[Item]:
        with over_events():
            yield from map(self.one, range(self.size))


class Each(Computed[Item], Generic[Context, Item]):
    """Values worked out from a context and the number of each row, at each read.

    Args:
        context: What they are worked out from.
        numbers: One per row.
        each: Gives the value of a number.
    """

    __slots__ = ("context", "each", "numbers")

    def __init__(self, context: Context, numbers: Sequence[int], each: Callable[[Context, int], Item]) -> None:
        super().__init__(len(numbers), lambda row: each(context, numbers[row]))
        self.context = context
        self.numbers = numbers
        self.each = each

    def __iter__(self) -> Iterator[Item]:
        context, each = self.context, self.each
        with over_events():
            return iter([each(context, number) for number in self.numbers])


class Deferred(Sequence[Item], Generic[Item]):
    """Values that are cheapest all at once: a few reads are answered one by one, more fill the column.

    Args:
        size: Number of rows.
        one: Gives the value of a row.
        every: Gives the values of all rows.
    """

    __slots__ = ("every", "filled", "one", "reads", "size")

    def __init__(self, size: int, one: Callable[[int], Item], every: Callable[[], Sequence[Item]]) -> None:
        self.size = size
        self.one = one
        self.every = every
        self.filled: Sequence[Item] | None = None
        self.reads = 0

    def all(self) -> Sequence[Item]:
        if self.filled is None:
            with over_events():
                self.filled = self.every()
        return self.filled

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice) or self.filled is not None or self.size <= SMALL or self.reads >= FEW:
            return self.all()[index]
        self.reads += 1
        row = place(index, self.size)
        with over_events():
            return self.one(row)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.all())


class Classes:
    """Which class each row is in; classes are numbered by the first row of each.

    Args:
        of: Number of each row's class: 0, then at most one more than every number before.
        first: The first row of each class.
    """

    __slots__ = ("first", "of", "small")

    def __init__(self, of: Sequence[int], first: Sequence[int]) -> None:
        self.of = of
        self.first = first
        self.small: bytes | None = None

    @classmethod
    def by(cls, keys: Sequence[Hashable]) -> Classes:
        """Rows of equal keys are of one class."""
        first = dict(
            zip(reversed(keys), reversed(range(len(keys))), strict=True)
        )  # the first row is put last, and stays
        rows = sorted(first.values())
        number = {keys[row]: place for place, row in enumerate(rows)}
        return cls(list(map(number.__getitem__, keys)), rows)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.first)

    def small_numbers(self) -> bytes:
        """The numbers as bytes. There must be at most 256 classes."""
        if self.small is None:
            self.small = bytes(self.of)
        return self.small


class Picked(Computed[Item]):
    """Values that a row has from its class.

    Args:
        values: The value of each class.
        classes: Which class each row is in.
    """

    __slots__ = ("classes", "values")

    def __init__(self, values: Sequence[Item], classes: Classes) -> None:
        of = classes.of
        super().__init__(len(of), lambda row: values[of[row]])
        self.values = values
        self.classes = classes

    def __iter__(self) -> Iterator[Item]:
        return map(list(self.values).__getitem__, self.classes.of)


class Named(Sequence[tuple[str, ...]]):
    """Tuples of labels, as the rows that have them.

    Args:
        labels: Label by row.
        rows: The rows of each tuple.
    """

    __slots__ = ("labels", "rows")

    def __init__(self, labels: Sequence[str], rows: Ragged[int]) -> None:
        self.labels = labels
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | list[tuple[str, ...]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        labels = self.labels
        return tuple([labels[row] for row in self.rows[index]])

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        labels = self.labels
        return iter(Ragged([labels[row] for row in self.rows.items], self.rows.ends))


def place(index: int, count: int) -> int:
    """A position counted from the front; refused where there is none."""
    row = index + count if index < 0 else index
    if not 0 <= row < count:
        raise IndexError(index)
    return row


def picked(values: Sequence[Item], rows: Sequence[int]) -> Computed[Item]:
    """The value of a record's owner, for each record: ``values[rows[r]]``."""
    return Computed(len(rows), lambda row: values[rows[row]])
