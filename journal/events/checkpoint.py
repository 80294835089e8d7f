"""Activation checkpoints as they were met: entered and left in the forward, and unpacked in backward passes.

Tokens count the non-reentrant checkpoints that the forward entered in its own thread, from 0. What was saved for the
backward while a checkpoint was the innermost one is computed again there: packed in the forward, unpacked where a node
asks for it. Which call packed what is in none of these events: a tensor is packed before its call has returned.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from journal.events.base import Event, event

Unwitnessed: TypeAlias = Literal[
    "classifier_unavailable",  # this version of torch has no class by which a checkpoint is known
    "patch_unavailable",  # checkpoints could not be heard where they are entered, or not to the end
    "exotic_subclass",  # a class derived from that of checkpoints was entered
    "hook_identity",  # an attribute of the hook could not be carried over to what would have stood for it
    "paused",  # a checkpoint was entered in a region that is not recorded
    "other_thread",  # it was entered in another thread than the forward's
    "inside_engine",  # it was entered in a backward within the forward
    "unmatched_backward",  # a run of the engine unpacked what a checkpoint had packed, and is no recorded pass
]
"""Why something about checkpoints was not witnessed."""


@event("checkpoint_entered", version=1)
class CheckpointEntered(Event):
    """The forward entered a checkpoint: what is saved for the backward from now on is computed again there."""

    token: int  # 0, 1, 2, ... in order of this event


@event("checkpoint_left", version=1)
class CheckpointLeft(Event):
    """A checkpoint was left, or was open still when the forward had ended."""

    token: int
    num_packed: int  # tensors that were saved for the backward in it, but in no other one inside


@event("checkpoint_unpacked", version=1)
class CheckpointUnpacked(Event):
    """A tensor that was packed in a checkpoint was asked for, and is computed again if it was not in this run.

    Within a pass it precedes the `NodeFired` of the firing that asked.
    """

    token: int
    pass_number: int | None  # None for a run of the engine within the forward
    node: int | None  # that ran; None where this capture has no number for it


@event("checkpoint_unwitnessed", version=1)
class CheckpointUnwitnessed(Event):
    """Something about checkpoints was not witnessed; told once for each reason."""

    reason: Unwitnessed
