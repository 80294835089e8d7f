"""Columns of the table of autograd nodes: one row per node that a backward pass found or made.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``grad_fns``.
Rule   parents are towards the loss, children towards the leaves: gradients flow from parents to children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from journal.errors import JournalError
from projections.columnar.sequences import Classes, Computed, Each, Named, Picked, Ragged
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.forward import Forward, once
from projections.records.makers import some

FLAT: Final = 1 << 23
EACH: Final = 1 << 9
"""Labels that a whole column of neighbours of neighbours may have, and as many more for each node."""


def per_grad_fn(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward.autograd)), one)

    return make


def of_class(place: int) -> Maker[Forward]:
    """Something of a node's class: its name, its import path, whether it is of a Python function."""

    def make(forward: Forward) -> Column:
        classes = forward.backward.classes
        return [classes[kind][place] for kind in forward.autograd.kinds]

    return make


# -- origin


def origin_pass(forward: Forward, row: int) -> int | None:
    """The pass under which the engine made it, from 1."""
    is_made = forward.autograd.folded[row] in forward.autograd.order.creators
    if not is_made:
        return None
    _, fire = forward.autograd.creator(row)
    number = forward.autograd.told_by[row] if fire == NOWHERE else forward.autograd.fire_passes[fire]
    return number + 1


def creator(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """Something of the node that made it; None where that is none, or not known."""

    def read(forward: Forward, row: int) -> Any:
        node = forward.autograd.creator(row).node
        return None if node == NOWHERE else one(forward, node)

    return per_grad_fn(read)


# -- modules


@once
def addresses_of_places(forward: Forward, _whole: int) -> Sequence[tuple[str, ...]]:
    """By place, the addresses of its modules; only of places that some node has."""
    containment, words = forward.containment, forward.words
    shown: dict[int, int] = {}
    for node, place in enumerate(containment.places):
        if place > 0:
            shown.setdefault(place, node)
    made: list[tuple[str, ...]] = [()] * len(containment.outer)  # by now it has all of them
    for place, node in shown.items():
        made[place] = tuple([words.module_path(module) for module in containment.path(node)])
    return made


def modules(forward: Forward) -> Column:
    places = forward.containment.places
    classes = Classes.by(places)
    addresses = addresses_of_places(forward, 0)
    return Picked([addresses[places[row]] if places[row] > 0 else () for row in classes.first], classes)


def module_address(forward: Forward) -> Column:
    return [found[-1] if found else None for found in modules(forward)]


# -- the op, and the parameter


def op_label(forward: Forward, row: int) -> str | None:
    op = forward.pairing.op_of[row]
    return None if op == NOWHERE else forward.labels.op[op]


def inner_label(forward: Forward, row: int) -> str | None:
    op = forward.inner_of[row]
    return None if op == NOWHERE else forward.labels.op[op]


def paired_rows(forward: Forward) -> Column:
    """Op rows that share one of its outputs, by output, then in order."""
    made: list[tuple[int, ...]] = [()] * len(forward.autograd)
    for (node, _), rows in sorted(forward.pairing.at.items()):
        made[node] = (*made[node], *rows)
    return made


def param_address(forward: Forward, row: int) -> str | None:
    number = forward.pairing.leaf_params[row]
    return None if number == NOWHERE else forward.words.parameters[number].address


# -- edges


def parent_rows(forward: Forward) -> Ragged[int]:
    return forward.autograd.parents


def child_rows(forward: Forward) -> Ragged[int]:
    return forward.autograd.children


def named(read: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    return lambda forward: Named(forward.autograd.labels, read(forward))


class Across(Computed[tuple[str, ...]]):
    """Labels that are reached from each row by a step there and one back, itself left out.

    Args:
        labels: Label by row.
        there: Rows a step there.
        back: Rows a step back.
    """

    __slots__ = ("back", "there")

    def __init__(self, labels: Sequence[str], there: Ragged[int], back: Ragged[int]) -> None:
        def one(row: int) -> tuple[str, ...]:
            found = set(chain.from_iterable(back[other] for other in there[row]))
            found.discard(row)
            return tuple([labels[other] for other in sorted(found)])

        super().__init__(len(there), one)
        self.there = there
        self.back = back

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        lengths = self.back.lengths()
        size = sum(map(lengths.__getitem__, self.there.items))
        if size > FLAT + EACH * len(self):
            raise JournalError(
                code="records_too_large",
                problem=f"the neighbours of the neighbours of {len(self)} autograd nodes would be {size} labels",
                remedy="read them of single nodes",
                weight=size,
                told=len(self),
            )
        return super().__iter__()


def across(there: Callable[[Forward], Ragged[int]], back: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    return lambda forward: Across(forward.autograd.labels, there(forward), back(forward))


def some_across(there: Callable[[Forward], Ragged[int]], back: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    """Whether another row is reached by a step there and one back: each step back leads to the row too."""

    def make(forward: Forward) -> Column:
        is_shared = [count > 1 for count in back(forward).lengths()]
        return [any(map(is_shared.__getitem__, rows)) for rows in there(forward)]

    return make


# -- firings


def call_labels(forward: Forward, row: int) -> tuple[str, ...]:
    autograd = forward.autograd
    return tuple([autograd.call_label(fire) for fire in autograd.fires_of[row]])


def durations(forward: Forward, row: int) -> list[int | None]:
    return [forward.backward.durations[fire] for fire in forward.autograd.fires_of[row]]


def backward_duration(forward: Forward, row: int) -> float | None:
    """Seconds of its only firing; None where there are several, or none that was timed."""
    found = durations(forward, row)
    return found[0] / 1e9 if len(found) == 1 and found[0] is not None else None


def total_backward_duration(forward: Forward, row: int) -> float | None:
    """Seconds over its firings; None where there is none, or one was not timed."""
    found = [time for time in durations(forward, row) if time is not None]
    return sum(found) / 1e9 if found and len(found) == forward.autograd.fires_of.length(row) else None


def has_saved_call(forward: Forward, row: int) -> bool:
    autograd = forward.autograd
    return any(fire in autograd.arrived or fire in autograd.left for fire in autograd.fires_of[row])


GRAD_FNS: Final[dict[str, Maker[Forward]]] = {
    "grad_fn_object_id": lambda forward: forward.autograd.numbers,
    "class_name": of_class(0),
    "class_qualname": of_class(1),
    "label": lambda forward: forward.autograd.labels,
    "type": lambda forward: [forward.autograd.types[kind] for kind in forward.autograd.kinds],
    "type_index": lambda forward: forward.autograd.type_indexes,
    "ordinal_index": lambda forward: range(len(forward.autograd)),
    "step_index": lambda forward: range(1, 1 + len(forward.autograd)),
    "is_custom": of_class(2),
    "order": lambda forward: forward.autograd.orders,
    "origin_backward_pass": per_grad_fn(origin_pass),
    "differentiates": creator(lambda forward, node: forward.autograd.labels[node]),
    "creator_object_id": creator(lambda forward, node: forward.autograd.numbers[node]),
    "modules": modules,
    "module_address": module_address,
    "module_membership_source": per_grad_fn(lambda forward, row: forward.containment.source(row)),
    "has_op": per_grad_fn(lambda forward, row: forward.pairing.op_of[row] != NOWHERE),
    "op_label": per_grad_fn(op_label),
    "inner_of": per_grad_fn(inner_label),
    "param_address": per_grad_fn(param_address),
    "parents": named(parent_rows),
    "children": named(child_rows),
    "siblings": across(parent_rows, child_rows),
    "co_parents": across(child_rows, parent_rows),
    "has_parents": some(parent_rows),
    "has_children": some(child_rows),
    "has_siblings": some_across(parent_rows, child_rows),
    "has_co_parents": some_across(child_rows, parent_rows),
    "num_calls": lambda forward: forward.autograd.fires_of.lengths(),
    "call_labels": per_grad_fn(call_labels),
    "has_saved_call": per_grad_fn(has_saved_call),
    "backward_duration": per_grad_fn(backward_duration),
    "total_backward_duration": per_grad_fn(total_backward_duration),
    # plumbing
    "op_row": lambda forward: forward.pairing.op_of,
    "op_rows": paired_rows,
    "param_row": lambda forward: forward.pairing.leaf_params,
    "parent_rows": parent_rows,
    "child_rows": child_rows,
    "call_rows": lambda forward: forward.autograd.fires_of,
    "pass_row": lambda forward: forward.autograd.told_by,
    "is_gatherer": lambda forward: [forward.autograd.state.sequences[node] is None for node in forward.autograd.folded],
    "is_made": lambda forward: forward.autograd.is_made,
    "creator_row": per_grad_fn(lambda forward, row: forward.autograd.creator(row).node),
    "creator_call_row": per_grad_fn(lambda forward, row: forward.autograd.creator(row).fire),
}
"""How each column of the table of autograd nodes is made, in order."""
