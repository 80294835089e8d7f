"""Snapshots: where folds stood at some events of a stream, kept small.

Gives  the head of each fold's state and the lengths of its lists at every so many events; they are taken
       while the stream is folded, and kept as bytes in memory.
Form   msgpack: ``[number of events, [[values of the head, lengths of the lists], ...]]``, fold by fold.
Rule   of a list that grows, its length says what it was, as long as somebody holds it further on: rows are in
       no snapshot. One that grew large is followed by the next one later, so all of them stay small
       beside the events.
Not    getting from a snapshot to an event behind it (window.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import attrs
import msgpack

from projections.folds.fold import Fold, Folding, Source
from projections.folds.split import is_container

SPACING: Final = 4096
"""Events between two snapshots."""

LARGE: Final = 1 << 14
"""Bytes from which on a snapshot is large. No honest capture has one: its stack is as deep as its modules nest."""

BYTES_PER_EVENT: Final = 4
"""What large snapshots may take; a stored event takes some hundreds."""


@attrs.define(frozen=True)
class Snapshot:
    """Where some folds stood after the first ``at`` events."""

    at: int
    heads: tuple[tuple[Any, ...], ...]  # per fold: the fields of its head
    lengths: tuple[tuple[int, ...], ...]  # per fold: of the lists that grow

    @property
    def size(self) -> int:
        """Number of items in the heads."""
        return sum([len(value) for head in self.heads for value in head if is_container(value)])


def snapshot_of(folds: Sequence[Fold[Any]], folding: Folding) -> Snapshot:
    """Where a folding stands now."""
    pairs = list(zip(folds, folding.states, strict=True))
    return Snapshot(
        folding.at,
        tuple([fold.split.head_of(state) for fold, state in pairs]),
        tuple([fold.split.lengths_of(state) for fold, state in pairs]),
    )


def encode(folds: Sequence[Fold[Any]], snapshot: Snapshot) -> bytes | None:
    """A snapshot as bytes; None where a head holds what has no exact stored form."""
    try:
        states = [
            [[stored.tuples_of(value) for stored, value in zip(fold.split.stored.values(), head, strict=True)], lengths]
            for fold, head, lengths in zip(folds, snapshot.heads, snapshot.lengths, strict=True)
        ]
        return bytes(msgpack.packb([snapshot.at, states], strict_types=True, default=as_array))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def as_array(value: Any) -> list[Any]:
    """A tuple as msgpack writes it when it is strict about types."""
    if type(value) is tuple:
        return list(value)  # pyright: ignore[reportUnknownArgumentType] - items of any kind
    raise TypeError(f"a {type(value).__qualname__} in a head")


def decode(folds: Sequence[Fold[Any]], data: bytes) -> Snapshot:
    """The snapshot of these folds that ``encode`` wrote."""
    at, states = msgpack.unpackb(data, use_list=False)
    heads = [
        tuple([stored.value_of(value) for stored, value in zip(fold.split.stored.values(), values, strict=True)])
        for fold, (values, _) in zip(folds, states, strict=True)
    ]
    return Snapshot(at, tuple(heads), tuple([lengths for _, lengths in states]))


class Snapshots:
    """The snapshots of one stream.

    Args:
        folds: The folds.
        spacing: Events between two of them.
    """

    def __init__(self, folds: Sequence[Fold[Any]], spacing: int = SPACING) -> None:
        self.folds: Final = folds
        self.spacing: Final = spacing
        self.heads: Final[list[int]] = []  # ascending
        self.taken: Final[dict[int, bytes]] = {}  # by head
        self.due = spacing  # number of events at which the next one is taken

    def advance(self, folding: Folding, source: Source, stop: int) -> None:
        """Fold the events up to, not including, ``stop``, and take the snapshots that fall due."""
        if folding.at >= stop:
            return
        for run in source.rows(folding.at, stop):
            start = 0
            while folding.at < self.due <= folding.at + len(run) - start:
                cut = start + self.due - folding.at
                folding.take(run[start:cut])
                start = cut
                self.take(folding)
            folding.take(run[start:] if start else run)

    def take(self, folding: Folding) -> None:
        """Keep where a folding stands."""
        at = folding.at
        data = encode(self.folds, snapshot_of(self.folds, folding))
        if data is None:  # what cannot be stored now hardly can a little later
            self.due = at + max(self.spacing, at)
            return
        self.heads.append(at)
        self.taken[at] = data
        self.due = at + max(self.spacing, len(data) // BYTES_PER_EVENT if len(data) > LARGE else 0)

    def nearest(self, at: int) -> int:
        """The number of events of the last snapshot that was taken at or before ``at``; 0 where there is none."""
        place = bisect_right(self.heads, at)
        return self.heads[place - 1] if place else 0

    def following(self, at: int) -> int | None:
        """The number of events of the first snapshot behind ``at``."""
        place = bisect_right(self.heads, at)
        return self.heads[place] if place < len(self.heads) else None

    def latest(self, at: int) -> Snapshot:
        """The last snapshot at or before ``at``, or that before the first event."""
        near = self.nearest(at)
        return decode(self.folds, self.taken[near]) if near else snapshot_of(self.folds, Folding(self.folds))
