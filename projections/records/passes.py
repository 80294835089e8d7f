"""Columns of the table of backward passes: one row per run of the engine over nodes of this capture, as they began.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``backward_passes``, and facts of the capture.
Rule   a pass is ``ok`` when it came to its end, ``error`` when the engine failed, ``incomplete`` when not all that it
       did could be recorded, ``unfinished`` until its end is told.
       A run that nobody asked torch for can fail unseen: it did, if the engine was to tell its end and did not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from journal.events import PassJournaled, PassOpened, Row
from projections.columnar.ordered import by_key
from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker
from projections.folds.backward import FIRE_WIDTH, NODE_WIDTH, PASS_WIDTH
from projections.folds.graph import NOWHERE
from projections.forward import Forward, once
from projections.records.grad_fns import origin_pass
from projections.records.makers import fact
from projections.source.sites import whole_frame
from projections.structure.details import field

TRIGGER: Final = field(PassOpened, "trigger")
FRAME: Final = field(PassOpened, "frame")
POLICY: Final = field(PassOpened, "policy")
THREAD: Final = field(PassOpened, "thread")
ROOTS: Final = field(PassOpened, "roots")
SEEDS: Final = field(PassOpened, "seeds")
INPUTS: Final = field(PassOpened, "inputs")
RETAIN_GRAPH: Final = field(PassOpened, "retain_graph")
CREATE_GRAPH: Final = field(PassOpened, "create_graph")
ACCUMULATES: Final = field(PassOpened, "accumulates")
IS_TRANSIENT: Final = field(PassOpened, "is_transient")

CLOSED_BY: Final = field(PassJournaled, "closed_by")
DRAIN_QUEUED: Final = field(PassJournaled, "drain_queued")
EXCEPTION: Final = field(PassJournaled, "exception")
MESSAGE: Final = field(PassJournaled, "message")
RAISED_IN: Final = field(PassJournaled, "raised_in")
PEAK_MEMORY: Final = field(PassJournaled, "peak_memory")
INCOMPLETE_REASON: Final = field(PassJournaled, "incomplete_reason")

IMPLICIT: Final = "implicit"


def per_pass(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(forward.autograd.num_passes), one)

    return make


def opening(one: Callable[[Forward, Row], Any]) -> Maker[Forward]:
    """Something of the event that opened a pass."""
    return per_pass(lambda forward, number: one(forward, opened(forward, number)))


def closing(one: Callable[[Forward, Row], Any]) -> Maker[Forward]:
    """Something of the event that tells the end of a pass; None where there is none yet."""

    def read(forward: Forward, number: int) -> Any:
        event = closed(forward, number)
        return None if event is None else one(forward, event)

    return per_pass(read)


def opened(forward: Forward, number: int) -> Row:
    return forward.source.row(forward.backward.passes[number * PASS_WIDTH])


@once
def ends(forward: Forward, _whole: int) -> Sequence[int]:
    """By pass, the event that tells its end; NOWHERE for none."""
    made = [NOWHERE] * forward.autograd.num_passes
    closed = forward.backward.closed
    for number, event in zip(closed[0::3], closed[1::3], strict=True):
        made[number] = event
    return made


def closed(forward: Forward, number: int) -> Row | None:
    event = ends(forward, 0)[number]
    return None if event == NOWHERE else forward.source.row(event)


def is_implicit(forward: Forward, number: int) -> bool:
    return bool(opened(forward, number)[TRIGGER] == IMPLICIT)


def status(forward: Forward, number: int) -> str:
    event = closed(forward, number)
    if event is None:
        return "unfinished"
    silent = event[CLOSED_BY] == "sync_point" and event[DRAIN_QUEUED] and is_implicit(forward, number)
    if silent or event[CLOSED_BY] == "engine_error" or event[EXCEPTION] is not None:
        return "error"
    return "ok" if event[INCOMPLETE_REASON] is None else "incomplete"


def raised_in(forward: Forward, number: int) -> int:
    """The row of the node that raised; NOWHERE where none did, or that is not known.

    In anomaly mode the engine looks at what a node gave when the node has fired, and its message names the class.
    """
    event = closed(forward, number)
    if event is None or event[EXCEPTION] is None:
        return NOWHERE
    if event[RAISED_IN] is not None:
        return forward.autograd.row_of(event[RAISED_IN])
    fires = forward.autograd.fires_in[number]
    if not fires:
        return NOWHERE
    node = forward.autograd.fire_rows[fires[-1]]
    name = forward.autograd.state.classes[forward.autograd.kinds[node]][0]
    return node if f"'{name}'" in (event[MESSAGE] or "") else NOWHERE


def duration(forward: Forward, number: int) -> float | None:
    """Seconds until its end was told; where only something else showed that, until its last firing ended."""
    event = closed(forward, number)
    if event is None:
        return None
    began, ended = forward.backward.passes[number * PASS_WIDTH + 1], event[1]
    if event[CLOSED_BY] == "sync_point":
        fires, state = forward.autograd.fires_in[number], forward.backward
        times = [state.fires[fire * FIRE_WIDTH + 3] + (state.durations[fire] or 0) for fire in fires]
        if not times:
            return None
        ended = max(times)
    return float(ended - began) / 1e9


# -- roots


def meta(like: Any) -> dict[str, Any]:
    shape, dtype, device = like
    return by_key({"shape": tuple(shape), "dtype": dtype, "device": device})


def root_meta(forward: Forward, event: Row) -> tuple[Any, ...]:
    return tuple([meta(like) for _, like in event[ROOTS]])


def seeds(forward: Forward, event: Row) -> tuple[Any, ...]:
    return tuple([None if like is None else meta(like) for like in event[SEEDS]])


def root_ids(forward: Forward, event: Row) -> tuple[int | None, ...]:
    return tuple([None if edge is None else edge[0] for edge, _ in event[ROOTS]])


def raised_in_label(forward: Forward, number: int) -> str | None:
    node = raised_in(forward, number)
    return None if node == NOWHERE else forward.autograd.labels[node]


def label_of(forward: Forward, number: int | None) -> str | None:
    """Label of the node of a number; None where no pass told it."""
    row = NOWHERE if number is None else forward.autograd.row_of(number)
    return None if row == NOWHERE else forward.autograd.labels[row]


def roots(forward: Forward, event: Row) -> tuple[str | None, ...]:
    return tuple([label_of(forward, number) for number in root_ids(forward, event)])


def inputs_subset(forward: Forward, event: Row) -> tuple[str | None, ...] | None:
    if event[INPUTS] is None:
        return None
    return tuple([None if edge is None else label_of(forward, edge[0]) for edge in event[INPUTS]])


def engine_flags(forward: Forward, event: Row) -> dict[str, bool]:
    if event[TRIGGER] == IMPLICIT:
        return {}
    return by_key({"retain_graph": event[RETAIN_GRAPH], "create_graph": event[CREATE_GRAPH]})


def backward_call_context(forward: Forward, event: Row) -> Any:
    return None if event[FRAME] is None else whole_frame(event[FRAME])


# -- order


def order(forward: Forward, number: int) -> int | None:
    """The highest order among the nodes that fired; None where one is not decidable, and for an implicit pass."""
    if is_implicit(forward, number):
        return None
    autograd = forward.autograd
    found = [autograd.orders[autograd.fire_rows[fire]] for fire in autograd.fires_in[number]]
    known = [one for one in found if one is not None]
    return max(known) if known and len(known) == len(found) else None


def origin(forward: Forward, number: int) -> int | None:
    """The pass under which the engine made its nodes of the highest order, from 1; the last one, if several did."""
    highest = order(forward, number)
    if highest is None or highest == 1:
        return None
    autograd = forward.autograd
    fired = [autograd.fire_rows[fire] for fire in autograd.fires_in[number]]
    return max(made for row in fired if autograd.orders[row] == highest and (made := origin_pass(forward, row)))


@once
def attributions(forward: Forward, _whole: int) -> Sequence[tuple[int, int]]:
    """By pass, how many nodes it made, and of how many the order is known."""
    made = [(0, 0)] * forward.autograd.num_passes
    nodes, orders = forward.backward.nodes, forward.autograd.order.orders
    for node, (number, is_made) in enumerate(zip(nodes[1::NODE_WIDTH], nodes[2::NODE_WIDTH], strict=True)):
        if is_made:
            count, known = made[number]
            made[number] = (count + 1, known + (orders[node] is not None))
    return made


def coverage(forward: Forward, number: int) -> float:
    count, known = attributions(forward, 0)[number]
    return known / count if count else 1.0


def tasks(forward: Forward) -> Column:
    """The engine's number of each run; None where the engine did not come to fire a node."""
    made: list[int | None] = [None] * forward.autograd.num_passes
    entered = forward.backward.entered
    for number, task in zip(entered[0::2], entered[1::2], strict=True):
        made[number] = task
    return made


def is_cut(forward: Forward) -> Column:
    cut = set(forward.backward.cuts)
    return [number in cut for number in range(forward.autograd.num_passes)]


def outer_context(forward: Forward, number: int) -> int | None:
    outer = outer_row(forward, number)
    return None if outer == NOWHERE else outer + 1


def outer_row(forward: Forward, number: int) -> int:
    return forward.backward.passes[number * PASS_WIDTH + 2]


PASSES: Final[dict[str, Maker[Forward]]] = {
    "pass_index": lambda forward: range(1, 1 + forward.autograd.num_passes),
    "trigger": opening(lambda forward, event: event[TRIGGER]),
    "implicit": per_pass(is_implicit),
    "outer_context": per_pass(outer_context),
    "backward_call_context": opening(backward_call_context),
    "root_meta": opening(root_meta),
    "root_grad_fn_ids": opening(root_ids),
    "root_grad_fns": opening(roots),
    "root_grad_arguments": opening(seeds),
    "inputs_subset": opening(inputs_subset),
    "order": per_pass(order),
    "order_attribution_coverage": per_pass(coverage),
    "origin_backward_pass": per_pass(origin),
    "engine_flags": opening(engine_flags),
    "accumulates": opening(lambda forward, event: event[ACCUMULATES]),
    "is_transient": opening(lambda forward, event: event[IS_TRANSIENT]),
    "save_grads_policy": opening(lambda forward, event: event[POLICY]),
    "status": per_pass(status),
    "closed_by": closing(lambda forward, event: event[CLOSED_BY]),
    "error_type": closing(lambda forward, event: event[EXCEPTION]),
    "error_message": closing(lambda forward, event: event[MESSAGE]),
    "raised_in": per_pass(raised_in_label),
    "incomplete_reason": closing(lambda forward, event: event[INCOMPLETE_REASON]),
    "is_cut": is_cut,
    "num_grad_fn_calls": lambda forward: forward.autograd.fires_in.lengths(),
    "grad_fn_calls": per_pass(
        lambda forward, number: tuple([forward.autograd.call_label(fire) for fire in forward.autograd.fires_in[number]])
    ),
    "duration": per_pass(duration),
    "peak_memory": closing(lambda forward, event: event[PEAK_MEMORY]),
    "thread": opening(lambda forward, event: event[THREAD]),
    "timestamp": per_pass(lambda forward, number: forward.timestamp(forward.backward.passes[number * PASS_WIDTH + 1])),
    "graph_task": tasks,
    # plumbing
    "call_rows": lambda forward: forward.autograd.fires_in,
    "outer_row": per_pass(outer_row),
    "event": lambda forward: forward.backward.passes[0::PASS_WIDTH],
    "closed_event": lambda forward: ends(forward, 0),
}
"""How each column of the table of backward passes is made, in order."""


def with_op(forward: Forward) -> int:
    return sum([op != NOWHERE for op in forward.pairing.op_of]) if len(forward.autograd) else 0


def time_of_all(forward: Forward) -> float | None:
    """Seconds of the passes that began in no other; None where none of these has an end that was told."""
    outermost = (number for number in range(forward.autograd.num_passes) if outer_row(forward, number) == NOWHERE)
    times = [time for number in outermost if (time := duration(forward, number)) is not None]
    return sum(times) if times else None


def failures(forward: Forward) -> int:
    return sum([status(forward, number) == "error" for number in range(forward.autograd.num_passes)])


CAPTURE: Final[dict[str, Maker[Forward]]] = {
    "has_backward_pass": fact(lambda forward: forward.autograd.num_passes > 0),
    "num_backward_passes": fact(lambda forward: forward.autograd.num_passes),
    "num_failed_backward_passes": fact(failures),
    "backward_duration": fact(time_of_all),
    "num_grad_fns": fact(lambda forward: len(forward.autograd)),
    "num_grad_fns_with_op": fact(with_op),
    "num_grad_fns_without_op": fact(lambda forward: len(forward.autograd) - with_op(forward)),
    "num_grad_fn_calls": fact(lambda forward: forward.autograd.num_fires),
    "num_backward_edges": fact(lambda forward: len(forward.autograd.children.items)),
}
"""How each fact about the backward passes of a capture is made, in order."""
