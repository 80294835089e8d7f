"""Columns that tell of gradients: the table of their records, and what other records say of theirs.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``gradients``; columns of ops, layers, modules, module
       calls, parameters and buffers, and facts of the capture, by name.
Rule   without a backward pass these say at once that there is nothing: no event is read for it.
Rule   the time of a module call is that of the nodes that belong to ops inside it, or stand between these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from projections.columnar.sequences import Classes, Each, Picked
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.folds.retention import cell_of
from projections.forward import Forward, once
from projections.records.makers import fact, per_row

# -- the table


def per_record(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read, from the number of the observed gradient."""

    def make(forward: Forward) -> Column:
        return Each(forward, [owned.gradient for owned in forward.gradients.owned], one)

    return make


def of_owner(name: str) -> Maker[Forward]:
    return lambda forward: [getattr(owned, name) for owned in forward.gradients.owned]


def owner_kind(forward: Forward) -> Column:
    return ["op" if owned.param == NOWHERE else "param" for owned in forward.gradients.owned]


def owner(forward: Forward) -> Column:
    """Op label or address of the parameter."""
    labels, parameters = forward.labels.op, forward.words.parameters
    return [
        labels[owned.op] if owned.param == NOWHERE else parameters[owned.param].address
        for owned in forward.gradients.owned
    ]


def node_row(forward: Forward, gradient: int) -> int:
    return forward.autograd.rows[forward.autograd.gradient_fact(gradient, 0)]


GRADIENTS: Final[dict[str, Maker[Forward]]] = {
    "owner_kind": owner_kind,
    "owner": owner,
    "ordinal": of_owner("ordinal"),
    "backward_pass_index": per_record(lambda forward, gradient: forward.autograd.gradient_fact(gradient, 1) + 1),
    "grad_fn_label": per_record(lambda forward, gradient: forward.autograd.labels[node_row(forward, gradient)]),
    "slot": per_record(lambda forward, gradient: forward.autograd.gradient_fact(gradient, 3)),
    "shape": per_record(lambda forward, gradient: forward.autograd.like(gradient)[0]),
    "dtype": per_record(lambda forward, gradient: forward.autograd.like(gradient)[1]),
    "device_ref": per_record(lambda forward, gradient: forward.autograd.like(gradient)[2]),
    "memory": per_record(lambda forward, gradient: forward.autograd.nbytes(gradient)),
    "is_saved": per_record(lambda forward, gradient: forward.autograd.payloads[gradient] is not None),
    "payload_ref": per_record(lambda forward, gradient: forward.autograd.payloads[gradient]),
    "has_stored_stats": per_record(lambda forward, gradient: gradient in forward.autograd.figures),
    "figures": per_record(lambda forward, gradient: cell_of(forward.autograd.figures.get(gradient))),
    "timestamp": per_record(lambda forward, gradient: forward.timestamp(forward.autograd.gradient_fact(gradient, 5))),
    # plumbing
    "op_row": of_owner("op"),
    "param_row": of_owner("param"),
    "grad_fn_row": per_record(node_row),
    "call_row": per_record(lambda forward, gradient: forward.autograd.fire_of[gradient]),
    "pass_row": per_record(lambda forward, gradient: forward.autograd.gradient_fact(gradient, 1)),
    "event": per_record(lambda forward, gradient: forward.autograd.gradient_fact(gradient, 4)),
}
"""How each column of the table of gradients is made, in order."""


# -- ops and layers


def has_gradients(forward: Forward) -> bool:
    """Whether there are records. Ops on islands have none: the table is that of the others, and of parameters."""
    return bool(forward.backward.payloads) and not forward.orphaned


def where_passes(wanted: Callable[[Forward], bool], one: Callable[[Forward, int], Any], missing: Any) -> Maker[Forward]:
    """A column of op rows that has one value throughout where passes have told nothing for it."""
    every = per_row(one)

    def make(forward: Forward) -> Column:
        if not wanted(forward):
            return Picked([missing], Classes.by([None] * len(forward)))
        return every(forward)

    return make


def records_of(forward: Forward, row: int) -> Sequence[int]:
    return forward.gradients.of_op.get(row, ())


def saved_records_of(forward: Forward, row: int) -> Sequence[int]:
    """Of them those whose payload was kept."""
    return forward.gradients.saved_of_op.get(row, ())


def of_first(one: Callable[[Forward, int], Any]) -> Callable[[Forward, int], Any]:
    """Something of the first gradient of an op; None where it has none."""

    def read(forward: Forward, row: int) -> Any:
        records = records_of(forward, row)
        return one(forward, forward.gradients.owned[records[0]].gradient) if records else None

    return read


def gradient_memory(forward: Forward, row: int) -> int:
    owned = forward.gradients.owned
    return sum([forward.autograd.nbytes(owned[record].gradient) for record in saved_records_of(forward, row)])


def grad_fn_label(forward: Forward, row: int) -> str | None:
    node = forward.pairing.node_of[row]
    return None if node == NOWHERE else forward.autograd.labels[node]


def has_nodes(forward: Forward) -> bool:
    return len(forward.autograd) > 0


def save_grads(forward: Forward) -> Column:
    if dict(forward.course.options).get("save_grads") is True:
        return Picked([True], Classes.by([None] * len(forward)))
    return where_passes(has_gradients, lambda forward, row: bool(saved_records_of(forward, row)), False)(forward)


OPS: Final[Mapping[str, Maker[Forward]]] = {
    "num_saved_grads": where_passes(has_gradients, lambda forward, row: len(saved_records_of(forward, row)), 0),
    "has_grad": where_passes(
        has_gradients, lambda forward, row: bool(saved_records_of(forward, forward.origin(row))), False
    ),
    "save_grads": save_grads,
    "grad_shape": where_passes(
        has_gradients, of_first(lambda forward, gradient: forward.autograd.like(gradient)[0]), None
    ),
    "grad_dtype": where_passes(
        has_gradients, of_first(lambda forward, gradient: forward.autograd.like(gradient)[1]), None
    ),
    "gradient_memory": where_passes(has_gradients, gradient_memory, 0),
    "grad_fn_label": where_passes(has_nodes, grad_fn_label, None),
}
"""How each column of the op table that tells of gradients is made, in order."""

OPS_PLUMBING: Final[Mapping[str, Maker[Forward]]] = {
    "grad_fn_row": where_passes(has_nodes, lambda forward, row: forward.pairing.node_of[row], NOWHERE),
    "gradient_rows": where_passes(has_gradients, lambda forward, row: tuple(records_of(forward, row)), ()),
    "gradient_node_row": where_passes(has_nodes, lambda forward, row: forward.arrivals.nodes[row], NOWHERE),
    "gradient_pass_rows": where_passes(has_nodes, lambda forward, row: forward.arrivals.of_op[row], ()),
}


def memory_of(forward: Forward, rows: Iterable[int]) -> int:
    """Bytes of the saved gradients of some op rows."""
    return sum([gradient_memory(forward, row) for row in rows]) if has_gradients(forward) else 0


# -- module calls


@once
def times_in_calls(forward: Forward, _whole: int) -> Sequence[tuple[int, int]]:
    """By module call, how many firings belong directly to it, and the time of those in ns."""
    made = [(0, 0)] * len(forward.calls)
    if made:
        calls = call_of_nodes(forward, 0)
        for row, duration in zip(forward.autograd.fire_rows, forward.backward.durations, strict=True):
            if calls[row] != NOWHERE and duration is not None:
                count, time = made[calls[row]]
                made[calls[row]] = (count + 1, time + duration)
    return made


@once
def call_of_nodes(forward: Forward, _whole: int) -> Sequence[int]:
    """By node, the module call of its op, or of that behind which it stands; NOWHERE for none, and for a leaf."""
    ran = [NOWHERE if op == NOWHERE else forward.rows.call[op] for op in forward.pairing.op_of]
    return forward.containment.inherited(ran)


@once
def times_inside(forward: Forward, _whole: int) -> Sequence[tuple[int, int]]:
    """By module call, how many timed firings belong to it and the calls inside it, and the time of those in ns."""
    made = list(times_in_calls(forward, 0))
    for call in range(len(made) - 1, 0, -1):  # a call stands behind the one around it
        outer = forward.calls.parent[call]
        if outer >= 0:
            made[outer] = (made[outer][0] + made[call][0], made[outer][1] + made[call][1])
    return made


def call_duration(forward: Forward, call: int) -> float | None:
    """Seconds that the nodes of ops inside took, over all passes; None where none was timed."""
    if not forward.autograd.num_fires:
        return None
    count, time = times_inside(forward, 0)[call]
    return time / 1e9 if count else None


def shown(forward: Forward, rows: Iterable[int]) -> list[int]:
    """The op rows whose gradients some rows show, each once: those of outputs are of the ops that they come from."""
    return list(dict.fromkeys(map(forward.origin, rows)))


def output_gradients(forward: Forward, call: int) -> int:
    return memory_of(forward, shown(forward, forward.output_rows_of(call)))


def internal_gradients(forward: Forward, call: int) -> int:
    leaving = set(shown(forward, forward.output_rows_of(call)))
    return memory_of(forward, [row for row in forward.rows_inside(call) if row not in leaving])


def durations_of_calls(forward: Forward, calls: Sequence[int]) -> float | None:
    """The same of some calls, one inside another counted once."""
    if not forward.autograd.num_fires:
        return None
    own = set(calls)
    found = [times_inside(forward, 0)[call] for call in calls if own.isdisjoint(forward.enclosing(call))]
    return sum([time for _, time in found]) / 1e9 if any(count for count, _ in found) else None


# -- parameters


def increments(forward: Forward, param: int) -> Sequence[int]:
    return forward.gradients.of_param.get(param, ()) if has_gradients(forward) else ()


def of_increment(one: Callable[[Forward, int], Any]) -> Callable[[Forward, int], Any]:
    """Something of the last increment of a parameter; None where it has none."""

    def read(forward: Forward, param: int) -> Any:
        records = increments(forward, param)
        return one(forward, forward.gradients.owned[records[-1]].gradient) if records else None

    return read


def param_gradient_memory(forward: Forward, param: int) -> int:
    found = of_increment(lambda forward, gradient: forward.autograd.nbytes(gradient))(forward, param)
    return found or 0


def gatherer(forward: Forward, param: int) -> int:
    return forward.pairing.gatherers.get(param, NOWHERE) if has_nodes(forward) else NOWHERE


def gatherer_label(forward: Forward, param: int) -> str | None:
    node = gatherer(forward, param)
    return None if node == NOWHERE else forward.autograd.labels[node]


# -- the capture


def saved_grad_rows(forward: Forward) -> list[int]:
    return sorted(forward.gradients.saved_of_op) if has_gradients(forward) else []


def saved_gradient_memory(forward: Forward) -> int:
    """Bytes of the kept gradients, each once however many rows share it."""
    if not has_gradients(forward):
        return 0
    autograd = forward.autograd
    return sum([autograd.nbytes(gradient) for gradient, kept in enumerate(autograd.payloads) if kept is not None])


def saved_grad_ops(forward: Forward) -> tuple[str, ...]:
    labels = forward.labels.op
    return tuple([labels[row] for row in saved_grad_rows(forward)])


CAPTURE: Final[Mapping[str, Maker[Forward]]] = {
    "saved_grad_ops": fact(saved_grad_ops),
    "saved_gradient_memory": fact(saved_gradient_memory),
    "saved_grad_rows": fact(lambda forward: tuple(saved_grad_rows(forward))),
}
"""How each fact about the gradients of a capture is made, in order."""
