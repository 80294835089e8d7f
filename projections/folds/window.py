"""A window: the events behind a snapshot, folded again where the rows are known already.

A folding that came further on has every row that these events made. So the lists of the states that are
folded here hold nothing: each knows how long it is by now and reads its items from the list further on.
Only the head is made anew, event by event.

Rule  a cell that was overwritten later is read as it was: what this window wrote, else what the log says
      of the time before it.
Note  Heads are kept at short distances on the way, so that going back a little costs little.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, overload

from journal.events import Row
from projections.columnar.sequences import place
from projections.folds.fold import Fold, Folding, Source
from projections.folds.snapshots import Snapshot, snapshot_of
from projections.folds.split import FirstOf, Log, Moves, Overwritten

Item = TypeVar("Item")

MARKS: Final = 64
"""Events between two heads that are kept within a window."""


class Grown(Sequence[Item]):
    """The first items of a list that has grown since. To append what follows there is to become longer.

    Args:
        items: The list further on.
        length: How many of them there are.
    """

    __slots__ = ("items", "length")

    def __init__(self, items: list[Item], length: int) -> None:
        self.items = items
        self.length = length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return self.items[slice(*index.indices(self.length))]
        return self.items[index if 0 <= index < self.length else place(index, self.length)]

    def append(self, _item: Item) -> None:
        self.length += 1

    def extend(self, items: Sequence[Item]) -> None:
        self.length += len(items)

    def __iadd__(self, items: Sequence[Item]) -> Grown[Item]:
        self.length += len(items)
        return self


class Cells(Grown[int]):
    """The same of a list whose cells were overwritten since.

    Args:
        items: The list further on.
        length: How many items there are.
        log: What its cells were before they were overwritten.
        at: The event from which on the log tells of later times.
    """

    __slots__ = ("at", "log", "written")

    def __init__(self, items: list[int], length: int, log: Moves, at: int) -> None:
        super().__init__(items, length)
        self.log = log
        self.at = at
        self.written: dict[int, int] = {}

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[cell] for cell in range(*index.indices(self.length))]
        cell = place(index, self.length)
        if cell in self.written:
            return self.written[cell]
        if cell in self.log:
            entries = self.log[cell]
            first = bisect_left(entries, (self.at,))
            if first < len(entries):
                return entries[first][1]
        return self.items[cell]

    def __setitem__(self, index: int, item: int) -> None:
        self.written[place(index, self.length)] = item


class Firsts:
    """The keys that were there when a list of rows was shorter, with the first row of each.

    Args:
        known: The dict further on.
        rows: The list as it is by now. Keys of rows to come are not there.
    """

    __slots__ = ("known", "rows")

    def __init__(self, known: dict[str, int], rows: Sequence[Any]) -> None:
        self.known = known
        self.rows = rows

    def get(self, key: str, missing: int | None = None) -> int | None:
        row = self.known.get(key)
        return row if row is not None and row < len(self.rows) else missing

    def setdefault(self, key: str, row: int) -> int | None:
        return self.get(key, row)


def seen_from(fold: Fold[Any], later: Any, at: int, values: Sequence[Any], lengths: Sequence[int]) -> Any:
    """A fold's state after ``at`` events to fold on from, on the rows of its state further on.

    Args:
        fold: The fold.
        later: Its state further on.
        at: Number of events.
        values: The head then.
        lengths: The lengths then.
    """
    fields: dict[str, Any] = {}
    for name, length in zip(fold.split.grown, lengths, strict=True):
        how, items = fold.split.how[name], getattr(later, name)
        if isinstance(how, Overwritten):
            fields[name] = Cells(items, length, getattr(later, how.log), at)
        else:
            fields[name] = Grown(items, length)
    for name, how in fold.split.how.items():
        if isinstance(how, FirstOf):
            fields[name] = Firsts(getattr(later, name), fields[how.rows])
        elif isinstance(how, Log):
            fields[name] = {}
    return fold.split.put_together(values, fields)


class Window:
    """The events behind one snapshot, folded again as far as somebody asked.

    Args:
        folds: The folds.
        start: The snapshot.
        later: A folding of the same stream that came further than anybody will ask.
    """

    def __init__(self, folds: Sequence[Fold[Any]], start: Snapshot, later: Folding) -> None:
        self.folds: Final = folds
        self.start: Final = start
        self.later: Final = later
        self.events: list[Row] = []  # from the snapshot on
        self.marks: list[Snapshot] = [start]  # ascending
        self.folding = self.folding_from(start)

    def folding_from(self, mark: Snapshot) -> Folding:
        states = [
            seen_from(fold, state, mark.at, head, lengths)
            for fold, state, head, lengths in zip(self.folds, self.later.states, mark.heads, mark.lengths, strict=True)
        ]
        return Folding(self.folds, mark.at, states)

    def snapshot(self, source: Source, at: int, stop: int) -> Snapshot:
        """Where the folds stood after ``at`` events.

        Args:
            source: The stream.
            at: Number of events, those of the window's start or more.
            stop: Events before this one may be read ahead.
        """
        mark = self.marks[bisect_right(self.marks, at, key=lambda mark: mark.at) - 1]
        if not mark.at <= self.folding.at <= at:
            self.folding = self.folding_from(mark)
        self.read(source, at, stop)
        first, newest = self.start.at, self.marks[-1]
        while (here := self.folding.at) < at:
            due = newest.at + max(MARKS, newest.size)
            to = min(at, due)
            self.folding.take(self.events[here - first : to - first])
            if to == due:
                newest = snapshot_of(self.folds, self.folding)
                self.marks.append(newest)
        return snapshot_of(self.folds, self.folding)

    def read(self, source: Source, at: int, stop: int) -> None:
        """Have the events before ``at``."""
        wanted = at - self.start.at
        if len(self.events) < wanted:
            runs: Iterable[Sequence[Row]] = source.rows(self.start.at + len(self.events), stop)
            for run in runs:
                self.events += run
                if len(self.events) >= wanted:
                    break
