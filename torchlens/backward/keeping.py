"""How a backward pass keeps a gradient: as a copy in memory, or as bytes of the stream.

Rule   the hook that keeps one runs in the engine: what is on a device is copied there, and waits until the run is over.
       No dispatch mode hears of the copies, the user's no more than our own.
Not    which gradients are kept (policy.py).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TypeAlias

from torch import Tensor

from journal.events import At, GradientKept, PayloadRef
from journal.protocol import StreamWriter
from torchlens import compat
from torchlens.capture.thorough import Copies
from torchlens.copying import clone, copy_of

__all__ = ["Keep", "Waiting", "in_memory", "in_stream", "keep_waiting", "nothing_kept"]

Keep: TypeAlias = "Callable[[Tensor], PayloadRef | None]"
"""Keeps a gradient; None where it waits, or cannot be kept."""

Waiting: TypeAlias = "list[tuple[int, Tensor]]"
"""Numbers of the events that tell of gradients, and these, which wait on their devices."""


def in_memory(writer: StreamWriter, held: MutableMapping[int, Tensor]) -> Keep:
    """Keep copies under payload numbers of the stream."""
    reserve = writer.reserve

    def keep(gradient: Tensor) -> PayloadRef:
        copy = own_copy(gradient)
        number = reserve()
        held[number] = copy
        return (number, 0, None)

    return unheard(keep)


def in_stream(writer: StreamWriter, held: dict[int, Tensor], waiting: Waiting) -> Keep:
    """Store bytes, and hold what has none; what is on a device joins those that wait."""
    copies = Copies(writer.reserve, writer.store, held)

    def keep(gradient: Tensor) -> PayloadRef | None:
        if not gradient.is_cpu:  # to wait for it now would stop the engine
            waiting.append((writer.next_at(), own_copy(gradient)))
            return None
        return copies.keep(compat.detach(gradient), own=False)[0]

    return unheard(keep)


def keep_waiting(writer: StreamWriter, held: dict[int, Tensor], waiting: Waiting) -> None:
    """Store the gradients that have waited, and tell of each."""
    copies = Copies(writer.reserve, writer.store, held)
    for at, gradient in waiting:
        with compat.past_modes(gradient):
            payload = copies.keep(gradient, own=True)[0]
        writer.append(GradientKept(of=At(at), payload=payload))
    waiting.clear()


def unheard(keep: Keep) -> Keep:
    """Keep in the same way, with no dispatch mode on."""

    def keep_unheard(gradient: Tensor) -> PayloadRef | None:
        with compat.past_modes(gradient):
            return keep(gradient)

    return keep_unheard


def nothing_kept(gradient: Tensor) -> None:
    """A gradient that lives only while a transform runs cannot be kept."""


def own_copy(gradient: Tensor) -> Tensor:
    """A copy that nobody else has, cut from the graph."""
    plain = compat.detach(gradient) if gradient.requires_grad else gradient
    if type(plain) is Tensor and plain.is_contiguous():
        return clone(plain)
    return copy_of(plain)
