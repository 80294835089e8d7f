"""Activation checkpoints, folded: tokens of the forward, what was unpacked of them, and what was not witnessed.

Reads  CheckpointEntered, CheckpointLeft, CheckpointUnpacked, CheckpointUnwitnessed.
Gives  one row per token, per token that was left and per unpacked tensor, as flat numbers; the reasons, in order.
Not    what follows from them (records/checkpoint_witness.py).
"""

from __future__ import annotations

from typing import Final

import attrs

from journal.events import CheckpointEntered, CheckpointLeft, CheckpointUnpacked, CheckpointUnwitnessed
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.graph import NOWHERE
from projections.folds.split import appended


@attrs.define(slots=True)
class Checkpoints:
    """What the fold has made so far."""

    entered: list[int] = appended("checkpoints")  # by token, its event
    left: list[int] = appended(width=3)  # token, number of tensors that were packed, event
    unpacked: list[int] = appended(width=3)  # token, pass and number of the node, NOWHERE for none
    reasons: list[str] = appended()

    def frozen(self) -> Checkpoints:
        """As it stands now, untouched by what is folded later."""
        return Checkpoints(*[getattr(self, field.name).copy() for field in attrs.fields(Checkpoints)])


def require_token(made: Checkpoints, token: int) -> None:
    if not 0 <= token < len(made.entered):
        raise contradictory(f"checkpoint {token} was not entered")


def checkpoint_entered(made: Checkpoints, at: int, type_id: int, time_ns: int, token: int) -> None:
    if token != len(made.entered):
        raise contradictory(f"checkpoint {token} is entered as number {len(made.entered)}")
    made.entered.append(at)


def checkpoint_left(made: Checkpoints, at: int, type_id: int, time_ns: int, token: int, num_packed: int) -> None:
    require_token(made, token)
    if num_packed < 0:
        raise contradictory(f"checkpoint {token} has packed {num_packed} tensors")
    made.left += (token, num_packed, at)


def checkpoint_unpacked(
    made: Checkpoints, at: int, type_id: int, time_ns: int, token: int, pass_number: int | None, node: int | None
) -> None:
    require_token(made, token)
    if (pass_number is not None and pass_number < 0) or (node is not None and node < 0):
        raise contradictory(f"checkpoint {token} is unpacked in no pass, or at no node")
    made.unpacked += (token, NOWHERE if pass_number is None else pass_number, NOWHERE if node is None else node)


def checkpoint_unwitnessed(made: Checkpoints, at: int, type_id: int, time_ns: int, reason: str) -> None:
    made.reasons.append(reason)


CHECKPOINTS: Final = Fold(
    "checkpoints",
    version=1,
    initial=Checkpoints,
    handlers={
        CheckpointEntered: checkpoint_entered,
        CheckpointLeft: checkpoint_left,
        CheckpointUnpacked: checkpoint_unpacked,
        CheckpointUnwitnessed: checkpoint_unwitnessed,
    },
)
