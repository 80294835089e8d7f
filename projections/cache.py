"""Results of folding, kept so that they need not be worked out again: the need, stated where it is felt.

Gives  what a projection asks of a cache. Where the bytes lie is another's business.
Rule   a cache may forget anything at any time, and what it gives is believed only after it was checked:
       nothing is ever read from it that folding the events anew would not give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class CacheKey(NamedTuple):
    """What a kept result is of. Another version of the projection, or another head, is another result."""

    projection: str
    version: int
    stream: int
    head: int  # number of events it was made from


class Cache(Protocol):
    """Bytes by key."""

    def get(self, key: CacheKey) -> bytes | None:
        """What was kept under this key, whole as it was put; None where nothing is, or it is damaged."""
        ...

    def put(self, key: CacheKey, data: bytes) -> None:
        """Keep bytes under a key. What cannot be kept is not: a cache is no promise."""
        ...

    def heads(self, projection: str, version: int, stream: int) -> Sequence[int]:
        """The heads for which something is kept, ascending."""
        ...


class MemoryCache:
    """A cache that ends with the process."""

    def __init__(self) -> None:
        self.data: dict[CacheKey, bytes] = {}

    def get(self, key: CacheKey) -> bytes | None:
        return self.data.get(key)

    def put(self, key: CacheKey, data: bytes) -> None:
        self.data[key] = data

    def heads(self, projection: str, version: int, stream: int) -> Sequence[int]:
        return sorted([key.head for key in self.data if key[:3] == (projection, version, stream)])
