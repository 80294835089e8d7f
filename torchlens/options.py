"""The option classes: frozen, every default in one place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, get_args

import attrs

from journal.lmdb_journal import Durability
from journal.lmdb_opening import Sync
from torchlens.errors import ConfigurationError

__all__ = ["CaptureOptions", "JournalOptions"]


def unavailable(argument: str) -> ConfigurationError:
    """The refusal of an option or keyword that this version does not serve yet."""
    return ConfigurationError(
        code="option_not_available",
        problem=f"{argument}= is not available in this version",
        remedy="leave it out; gradients, edits and replay arrive with later versions (CHANGELOG.md)",
        argument=argument,
    )


def _later(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and value is not False:
        raise unavailable(attribute.name)


def _seed(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32):
        raise ConfigurationError(
            code="random_seed_invalid",
            problem=f"random_seed={value!r} is no whole number from 0 to 2**32 - 1",
            remedy="pass such a number, or None to draw from the generators as they stand",
            argument="random_seed",
        )


def _switch(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"{attribute.name}={value!r} is neither True nor False",
            remedy="pass True or False",
            argument=attribute.name,
        )


def _one_of(*words: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in words:
            raise ConfigurationError(
                code="option_value_invalid",
                problem=f"{attribute.name}={value!r} is none of {', '.join(words)}",
                remedy=f"pass one of {', '.join(map(repr, words))}",
                argument=attribute.name,
            )

    return check


@attrs.define(frozen=True, kw_only=True, slots=True)
class CaptureOptions:
    """How a forward pass is captured.

    Attributes:
        random_seed: Seed torch, Python and NumPy with this for the forward and put their state back after
            it. None draws from the generators as a bare call would.
        detach_saved_activations: Cut saved activations from the autograd graph.
        inference_only: Run the forward without an autograd graph.
        keep_orphans: Show ops that touch neither input nor output at ``trace.orphans``.
        save_grads, backward_ready, replayable: Refused until gradients and replay are available.
    """

    random_seed: int | None = attrs.field(default=None, validator=_seed)
    detach_saved_activations: bool = attrs.field(default=False, validator=_switch)
    inference_only: bool = attrs.field(default=False, validator=_switch)
    keep_orphans: bool = attrs.field(default=False, validator=_switch)
    save_grads: Any = attrs.field(default=None, validator=_later)
    backward_ready: bool = attrs.field(default=False, validator=_later)
    replayable: bool = attrs.field(default=False, validator=_later)


@attrs.define(frozen=True, slots=True)
class JournalOptions:
    """Where a capture is written and what a crash may cost.

    Attributes:
        path: Directory of the journal; made if missing, appended to if present.
        durability: When events are committed: at the ``"close"`` of the capture, in a ``"batch"`` of bounded
            size and age, or every ``"event"`` before the next op starts.
        sync: What a commit flushes to the disk: ``"events"``, ``"all"`` (payload bytes too) or ``"none"``.
    """

    path: str | os.PathLike[str]
    durability: Durability = attrs.field(default="batch", kw_only=True, validator=_one_of(*get_args(Durability)))
    sync: Sync = attrs.field(default="events", kw_only=True, validator=_one_of(*get_args(Sync)))
