"""Columns of the table of firings: one row for each time that the engine ran an autograd node, as they were told.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``grad_fn_calls``.
Rule   gradients arrive at a node's outputs, as the forward made it, from the loss side, and leave at its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from projections.autograd.arrivals import MISSING
from projections.columnar.sequences import Deferred, Each
from projections.columnar.tables import Column, Maker
from projections.folds.backward import FIRE_WIDTH
from projections.folds.retention import cell_of
from projections.forward import Forward, once


def per_fire(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(forward.autograd.num_fires), one)

    return make


@once
def ordinals_in_passes(forward: Forward, _whole: int) -> Sequence[int]:
    """By firing, its position among those of its pass."""
    made = [0] * forward.autograd.num_fires
    for fires in forward.autograd.fires_in:
        for ordinal, fire in enumerate(fires):
            made[fire] = ordinal
    return made


def event_of(forward: Forward, fire: int) -> int:
    return forward.backward.fires[fire * FIRE_WIDTH + 2]


def seconds(forward: Forward, fire: int) -> float | None:
    duration = forward.backward.durations[fire]
    return None if duration is None else duration / 1e9


def missing(forward: Forward, fire: int) -> tuple[int, ...]:
    return tuple(forward.source.row(event_of(forward, fire))[MISSING])


def is_saved(forward: Forward, fire: int) -> bool:
    return fire in forward.autograd.arrived or fire in forward.autograd.left


def kept(which: str, one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """Something of the kept gradients of a firing, by place; None for a place without one, and where none was kept."""

    def read(forward: Forward, fire: int) -> tuple[Any, ...] | None:
        found: dict[int, int] | None = getattr(forward.autograd, which).get(fire)
        if found is None:
            return None
        return tuple([one(forward, found[place]) if place in found else None for place in range(1 + max(found))])

    return per_fire(read)


def payload(forward: Forward, gradient: int) -> Any:
    return forward.autograd.payloads[gradient]


def like(forward: Forward, gradient: int) -> Any:
    return forward.autograd.like(gradient)


def figures(forward: Forward, gradient: int) -> Any:
    return cell_of(forward.autograd.figures[gradient])


def call_labels(forward: Forward) -> Column:
    autograd = forward.autograd
    return Deferred(autograd.num_fires, autograd.call_label, lambda: autograd.call_labels)


GRAD_FN_CALLS: Final[dict[str, Maker[Forward]]] = {
    "call_label": call_labels,
    "label": per_fire(lambda forward, fire: forward.autograd.labels[forward.autograd.fire_rows[fire]]),
    "call_index": lambda forward: forward.autograd.call_indexes,
    "backward_pass_index": lambda forward: [number + 1 for number in forward.autograd.fire_passes],
    "ordinal_in_pass": lambda forward: ordinals_in_passes(forward, 0),
    "grad_outputs": kept("arrived", payload),
    "grad_inputs": kept("left", payload),
    "grad_outputs_like": kept("arrived", like),
    "grad_inputs_like": kept("left", like),
    "grad_outputs_figures": kept("arrived_measured", figures),
    "grad_inputs_figures": kept("left_measured", figures),
    "is_saved": per_fire(is_saved),
    "missing_outputs": per_fire(missing),
    "backward_duration": per_fire(seconds),
    "timestamp": per_fire(lambda forward, fire: forward.timestamp(forward.backward.fires[fire * FIRE_WIDTH + 3])),
    # plumbing
    "grad_fn_row": lambda forward: forward.autograd.fire_rows,
    "pass_row": lambda forward: forward.autograd.fire_passes,
    "event": lambda forward: forward.backward.fires[2::FIRE_WIDTH],
}
"""How each column of the table of firings is made, in order."""
