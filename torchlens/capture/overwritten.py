"""Values that were written where no wrapper looks after they were kept: the record is of before, and is told so.

Reads  what a keeper holds: the value as it was made, or its very memory and the count of its writes then.
Rule   torch counts writes of its own, also those of other threads and by private ways. Memory that was handed out, as
       by ``numpy()``, can be written without being counted: what was kept of it is a copy, and is compared.
Not    what was stored as bytes alone, or what is gone by the time of asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from torchlens import compat
from torchlens.bits import same_bits
from torchlens.capture.keeping import Keeper

__all__ = ["Asked", "counted_writes", "overwritten"]

Asked = tuple[int, Tensor, int | None]
"""A value, the live tensor that stands for it, and the number of its storage."""


def overwritten(keeper: Keeper, asked: Iterable[Asked]) -> Iterator[int]:
    """Which of these values are not what they were when they were kept."""
    for value, live, storage in asked:
        pinned = keeper.pins.get(value)
        if pinned is None:
            continue
        kept, version = pinned
        if (version is not None and compat.version_of(kept) != version) or (
            storage in keeper.exposed and kept is not live and not same_bits(kept, live)
        ):
            yield value


def counted_writes(keeper: Keeper) -> Iterator[int]:
    """Which of all values that are held were written, as torch counts, since they were."""
    for value, (kept, version) in keeper.pins.items():
        if value >= 0 and version is not None and compat.version_of(kept) != version:
            yield value
