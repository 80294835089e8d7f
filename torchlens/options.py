"""The option classes: frozen, every default in one place."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from torchlens.errors import ConfigurationError

__all__ = ["CaptureOptions", "JournalOptions"]


def _later(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and value is not False:
        raise ConfigurationError(
            code="option_not_available",
            problem=f"{attribute.name}= is not available in this version",
            remedy="leave it out; gradients, edits and replay arrive with later versions (CHANGELOG.md)",
            argument=attribute.name,
        )


def _seed(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32):
        raise ConfigurationError(
            code="random_seed_invalid",
            problem=f"random_seed={value!r} is no whole number from 0 to 2**32 - 1",
            remedy="pass such a number, or None to draw from the generators as they stand",
            argument="random_seed",
        )


@attrs.define(frozen=True, kw_only=True, slots=True)
class CaptureOptions:
    """How a forward pass is captured.

    Attributes:
        random_seed: Seed torch, Python and NumPy with this for the forward and put their state back after
            it. None draws from the generators as a bare call would.
        detach_saved_activations: Cut saved activations from the autograd graph.
        inference_only: Run the forward without an autograd graph.
        keep_orphans: Show operations that touch neither input nor output at ``trace.orphans``.
        save_grads, backward_ready, replayable: Refused until gradients and replay are available.
    """

    random_seed: int | None = attrs.field(default=None, validator=_seed)
    detach_saved_activations: bool = False
    inference_only: bool = False
    keep_orphans: bool = False
    save_grads: Any = attrs.field(default=None, validator=_later)
    backward_ready: bool = attrs.field(default=False, validator=_later)
    replayable: bool = attrs.field(default=False, validator=_later)


@attrs.define(frozen=True, slots=True)
class JournalOptions:
    """Where a capture is written and what a crash may cost.

    Attributes:
        path: Folder of the journal; made if missing, appended to if present.
        durability: When events are committed: at the ``"close"`` of the capture, in a ``"batch"`` of bounded
            size and age, or every ``"event"`` before the next operation starts.
        sync: What a commit flushes to the disk: ``"events"``, ``"all"`` (payload bytes too) or ``"none"``.
    """

    path: str
    durability: Literal["close", "batch", "event"] = attrs.field(
        default="batch", kw_only=True, validator=attrs.validators.in_(("close", "batch", "event"))
    )
    sync: Literal["events", "all", "none"] = attrs.field(
        default="events", kw_only=True, validator=attrs.validators.in_(("events", "all", "none"))
    )
