"""Snapshots: where folds stood at some events of a stream, kept small.

Gives  the head of each fold's state and the lengths of its lists at every so many events; they are taken
       while the stream is folded, and kept as bytes in a cache.
Form   msgpack: ``[form, number of events, [[values of the head, lengths of the lists], ...]]``, fold by fold.
Rule   of a list that grows, its length says what it was, as long as somebody holds it further on: rows are in
       no snapshot. One that grew large is followed by the next one later, so all of them stay small
       beside the events.
Rule   a snapshot is believed when it is what this process itself has put there: then another version, another
       stream under the same number, damage or deceit change nothing but how far must be folded again.
Not    getting from a snapshot to an event behind it (window.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import attrs
import msgpack

from projections.cache import Cache, CacheKey, MemoryCache
from projections.fold import Fold, Folding, Source
from projections.split import is_container, parts

FORM: Final = 1

NAME: Final = "snapshots"

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
            [[form.stored(value) for form, value in zip(fold.split.forms.values(), head, strict=True)], lengths]
            for fold, head, lengths in zip(folds, snapshot.heads, snapshot.lengths, strict=True)
        ]
        return bytes(msgpack.packb([FORM, snapshot.at, states], strict_types=True, default=array_of))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def array_of(value: Any) -> list[Any]:
    """A tuple as msgpack writes it when it is strict about types."""
    if type(value) is tuple:
        return list(value)  # pyright: ignore[reportUnknownArgumentType] - items of any kind
    raise TypeError(f"a {type(value).__qualname__} in a head")


def decode(folds: Sequence[Fold[Any]], data: bytes) -> Snapshot | None:
    """The snapshot of these folds that bytes hold; None where they hold none."""
    try:
        walk = msgpack.Unpacker(None, max_buffer_size=max(1, len(data)))
        walk.feed(data)
        walk.skip()  # lengths that claim more than there is are found before anything is made for them
        whole: Any = msgpack.unpackb(data, use_list=False, max_map_len=0, max_ext_len=0)
        form, at, stored = parts(whole, 3)
        if form != FORM or not is_count(at):
            return None
        heads: list[tuple[Any, ...]] = []
        lengths: list[tuple[int, ...]] = []
        for fold, state in zip(folds, parts(stored, len(folds)), strict=True):
            values, sizes = parts(state, 2)
            forms = fold.split.forms.values()
            values = parts(values, len(forms))
            heads.append(tuple([form.read(value) for form, value in zip(forms, values, strict=True)]))
            lengths.append(parts(sizes, len(fold.split.grown)))
            if not all(map(is_count, lengths[-1])):
                return None
    # msgpack: ValueError and its kin for bad bytes, its own UnpackException for bytes that end too soon
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException):
        return None
    return Snapshot(at, tuple(heads), tuple(lengths))


def is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def version_of(folds: Sequence[Fold[Any]]) -> int:
    """A number that is another one when a fold, its version, or a field of its state is another one."""
    text = "\n".join([str(FORM), *[f"{fold.name} {fold.version}: {fold.split.text}" for fold in folds]])
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big")


class Snapshots:
    """The snapshots of one stream.

    Args:
        folds: The folds.
        cache: Where their bytes are kept; in memory, by default.
        stream: Number of the stream, which a cache may need to tell it from others.
        spacing: Events between two of them.
    """

    def __init__(
        self, folds: Sequence[Fold[Any]], cache: Cache | None = None, stream: int = 0, spacing: int = SPACING
    ) -> None:
        self.folds: Final = folds
        self.cache: Final[Cache] = MemoryCache() if cache is None else cache
        self.stream: Final = stream
        self.spacing: Final = spacing
        self.version: Final = version_of(folds)
        self.heads: list[int] = []  # ascending
        self.digests: dict[int, bytes] = {}
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
        key = self.key(at)
        if self.cache.get(key) != data:
            self.cache.put(key, data)
        self.heads.append(at)
        self.digests[at] = digest(data)
        self.due = at + max(self.spacing, len(data) // BYTES_PER_EVENT if len(data) > LARGE else 0)

    def key(self, at: int) -> CacheKey:
        return CacheKey(NAME, self.version, self.stream, at)

    def nearest(self, at: int) -> int:
        """The number of events of the last snapshot that was taken at or before ``at``; 0 where there is none."""
        place = bisect_right(self.heads, at)
        return self.heads[place - 1] if place else 0

    def following(self, at: int) -> int | None:
        """The number of events of the first snapshot behind ``at``."""
        place = bisect_right(self.heads, at)
        return self.heads[place] if place < len(self.heads) else None

    def latest(self, at: int) -> Snapshot:
        """The last snapshot at or before ``at`` that is still what was put there, or that before the first event.

        Those that are not are forgotten.
        """
        while near := self.nearest(at):
            data = self.cache.get(self.key(near))
            if data is not None and digest(data) == self.digests[near]:
                snapshot = decode(self.folds, data)
                if snapshot is not None:
                    return snapshot
            self.heads.remove(near)
        return snapshot_of(self.folds, Folding(self.folds))  # before the first event


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
