"""Whether a capture checkpointed, as it was witnessed: tokens, where they were unpacked, and what is missing.

Reads  a ``Forward``: in it what the checkpoint fold made, the nodes and firings of backward passes, and their ops.
Gives  the summary, a fact of the capture, and ``saw_checkpointing``, which is what other projections ask.
Rule   a reentrant checkpoint has no token: it shows by the class of its autograd node, and is told as a flag.
Rule   any flag withdraws the verdict: then what was witnessed is true, and there may have been more.
Not    which call packed what: a tensor is packed before its call has returned.
"""

from __future__ import annotations

from typing import Any, Final

from projections.columnar.ordered import by_key
from projections.columnar.tables import Maker
from projections.errors import contradictory
from projections.folds.graph import NOWHERE
from projections.forward import Forward
from projections.records.makers import fact
from projections.records.ops import site_keys

REENTRANT_NODE: Final = "CheckpointFunctionBackward"
"""Class of the autograd node that a reentrant checkpoint is, torch's own and those made after it."""

FLAGS: Final[dict[str, str]] = {
    "classifier_unavailable": "classifier_unavailable",
    "patch_unavailable": "patch_unavailable",
    "exotic_subclass": "exotic_subclass",
    "hook_identity": "hook_identity_unpreserved",
    "paused": "unwitnessed_checkpoint_enter",
    "other_thread": "unwitnessed_checkpoint_enter",
    "inside_engine": "unwitnessed_checkpoint_enter",
    "unmatched_backward": "unmatched_backward",
}
"""The flag of each reason."""

REENTRANT_FLAG: Final = "reentrant_node_discovered"
CUT_FLAG: Final = "discovery_cut"

OBSERVED: Final = "checkpoint_invocations_observed"
NONE_OBSERVED: Final = "no_checkpoint_invocation_observed"
INCOMPLETE: Final = "evidence_incomplete"


def has_reentrant_node(forward: Forward) -> bool:
    """Whether a backward pass met the node of a reentrant checkpoint."""
    return any(name == REENTRANT_NODE for name, _, _ in forward.backward.classes)


def saw_checkpointing(forward: Forward) -> bool:
    """Whether this capture was seen to checkpoint: some token, or the node of a reentrant checkpoint."""
    return bool(forward.checkpoints.entered) or has_reentrant_node(forward)


def spans(forward: Forward) -> list[tuple[int, int]]:
    """Of each checkpoint with a token the events that it was entered and left at; one that was not left has none."""
    entered, left = forward.checkpoints.entered, forward.checkpoints.left
    return [(entered[token], at) for token, at in zip(left[0::3], left[2::3], strict=True)]


def flags(forward: Forward) -> tuple[str, ...]:
    """What was not witnessed, each flag once, in the order in which it showed; a reason of a later version as it is."""
    found = [FLAGS.get(reason, reason) for reason in forward.checkpoints.reasons]
    if has_reentrant_node(forward):
        found.append(REENTRANT_FLAG)
    elif forward.backward.cuts:  # there may be one where no walk has come
        found.append(CUT_FLAG)
    return tuple(dict.fromkeys(found))


def verdict(forward: Forward) -> str:
    if flags(forward):
        return INCOMPLETE
    return OBSERVED if forward.checkpoints.entered else NONE_OBSERVED


def witness(forward: Forward) -> dict[str, Any] | None:
    """The summary; None before a checkpoint, a flag or a backward pass."""
    made, flagged = forward.checkpoints, flags(forward)
    count = len(made.entered)
    if not count and not flagged and not forward.autograd.num_passes:
        return None
    found = {
        "token_count": count,
        "tokens": dict(enumerate(map(by_key, tokens(forward)), 1)),
        "degrade_flags": flagged,
        "verdict": verdict(forward),
    }
    return by_key(found)


def tokens(forward: Forward) -> list[dict[str, Any]]:
    """Of each token what it packed, None where that was not told, and what is known of where that was unpacked."""
    made = forward.checkpoints
    packed: list[int | None] = [None] * len(made.entered)
    for token, num_packed in zip(made.left[0::3], made.left[1::3], strict=True):
        if packed[token] is not None:
            raise contradictory(f"checkpoint {token} is left twice")
        packed[token] = num_packed
    counts = [0] * len(packed)
    windows: list[list[tuple[int, str | None, int | None]]] = [[] for _ in packed]
    sites: list[dict[str, None]] = [{} for _ in packed]
    autograd, keys = forward.autograd, None
    fired = {(autograd.fire_rows[fire], number): fire for fire, number in enumerate(autograd.fire_passes)}
    for token, number, node in zip(made.unpacked[0::3], made.unpacked[1::3], made.unpacked[2::3], strict=True):
        counts[token] += 1
        row = NOWHERE if node == NOWHERE else autograd.row_of(node)
        if number != NOWHERE:
            if number >= autograd.num_passes:
                raise contradictory(f"checkpoint {token} is unpacked in backward pass {number}, which was not opened")
            fire = fired.get((row, number))
            label = None if row == NOWHERE else autograd.labels[row]
            windows[token].append((1 + number, label, None if fire is None else autograd.call_indexes[fire]))
        op = NOWHERE if row == NOWHERE else forward.pairing.op_of[row]
        if op != NOWHERE:
            keys = keys or site_keys(forward)
            sites[token][keys[op]] = None
    return [
        {
            "pack_count": packed[token],
            "unpack_evidence_count": counts[token],
            "site_key_candidates": tuple(sites[token]),
            "window_evidence": tuple(windows[token]),
        }
        for token in range(len(packed))
    ]


CAPTURE: Final[dict[str, Maker[Forward]]] = {"checkpoint_invocation_witness": fact(witness)}
"""The fact of the capture table that is made here."""
