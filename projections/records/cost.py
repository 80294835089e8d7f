"""What each call costs: its work and the memory it has to move, and the sums over layers, modules and all.

Reads  a ``Forward``, the event of a call, the parameters' descriptions.
Gives  makers of columns, ``OPS``, ``LAYERS`` and ``CAPTURE``, by name, in order; and sums over any op rows.
Rule   the cost is the call's. Each of its results tells all of it, as with its duration, and sums count a call once, at
       its first result. Inputs, outputs, buffers and what a module hands through cost nothing and have no record of it.
Rule   a sum over a layer or a module is None where a part is unknown; a sum over the whole capture is over what is
       known, beside the list of what is not.
Rule   traffic is what cannot be avoided: each argument is read once, each result written once; a result that is a
       view moves nothing.
Not    the formulas (formulas/flops.py), or times (ops.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from journal.events import Row
from projections.columnar.arguments import shortened
from projections.columnar.ordered import by_key
from projections.columnar.sequences import Classes, Deferred, Each, Picked
from projections.columnar.tables import Column, Maker, Table
from projections.folds.graph import OPAQUE
from projections.formulas.flops import (
    LARGEST,
    MOST_AXES,
    Call,
    Count,
    Operand,
    Reads,
    Rule,
    count,
    numel,
    rule_of,
    unknown,
)
from projections.forward import Forward, first_results, once, one_each
from projections.records.makers import fact, total
from projections.structure.details import (
    ARGS,
    DTYPE,
    INPUTS,
    KWARGS,
    LAYOUT,
    OUTPUTS,
    REQUIRES_GRAD,
    SHAPE,
    WRITERS,
    WRITTEN,
    is_alias,
    item_bytes,
)
from projections.structure.rows import is_op

TORCH: Final = "torch."
OPERATORS: Final = "torch.ops."
ATEN: Final = "torch.ops.aten."
"""Import paths that tell torch's own functions from those that somebody else gave the same name."""


class Cost(NamedTuple):
    """What a call costs; None where unknown.

    ``is_known`` is None for rows that are no call.
    """

    is_known: bool | None
    macs: int | None
    other: int | None
    forward: int | None
    backward: int | None
    evidence: str
    reason: str | None
    read: int | None
    written: int | None


FREE: Final = Cost(None, 0, 0, 0, 0, "formula_exact", None, 0, 0)
HANDED_THROUGH: Final = Cost(True, 0, 0, 0, 0, "formula_exact", None, 0, 0)
UNSEEN: Final = Cost(False, None, None, None, None, "unknown", "it was made where no wrapper looks", None, None)


class Given(NamedTuple):
    """A tensor argument: what a formula asks, its bytes, and what it is, so that none is read twice."""

    operand: Operand | None
    nbytes: int | None
    identity: int


# One call -----------------------------------------------------------------------------------------------


def cost_of_event(forward: Forward, function: int, event: Row) -> Cost:
    """What the call of this event costs."""
    name, path = forward.words.func_names[function], forward.words.func_qualnames[function]
    rule = rule_of(name) if is_torchs(path) else None
    if rule is None:
        why = forward.words.func_opaque[function]
        reason = f"no formula is known for {path}" if why is None else f"not watched inside: {shortened(why)}"
        return cost_from(unknown(reason), is_differentiable(event), None, None)
    given = arguments_of(forward, event)
    returned = [operand_of(described) for described in event[OUTPUTS]]
    if None in returned:
        return cost_from(unknown("the shape of a result is none"), is_differentiable(event), None, None)
    outputs = [operand for operand in returned if operand is not None]
    call = Call(name, event[ARGS], event[KWARGS], [argument.operand for argument in given], outputs)
    return cost_from(count(call), is_differentiable(event), *traffic(rule, given, event, outputs))


def is_torchs(path: str) -> bool:
    return path.startswith(TORCH) and (not path.startswith(OPERATORS) or path.startswith(ATEN))


def is_differentiable(event: Row) -> bool:
    """Whether a gradient can come back to the call."""
    return any(described[REQUIRES_GRAD] for described in event[OUTPUTS])


def cost_from(found: Count, differentiable: bool, read: int | None, written: int | None) -> Cost:
    is_known = found.evidence != "unknown"
    return Cost(
        is_known,
        found.macs,
        found.other if is_known else None,
        found.forward,
        found.backward if differentiable or not is_known else 0,
        found.evidence,
        found.reason,
        read,
        written,
    )


def arguments_of(forward: Forward, event: Row) -> list[Given]:
    numbers: Sequence[int] = event[INPUTS]
    writers = event[WRITERS]
    found: list[Given] = []
    for place, number in enumerate(numbers):
        if number < 0:
            parameter = forward.words.parameters[-1 - number]
            operand = operand_from(parameter.shape, parameter.requires_grad, None)
            found.append(Given(operand, parameter.nbytes, number))
            continue
        brief = forward.brief_of(number)
        operand = operand_from(brief.shape, bool(brief.requires_grad), brief.layout)
        writer = None if writers is None else writers[place]
        found.append(Given(operand, brief.nbytes, number if writer is None else writer))
    return found


def operand_of(described: Any) -> Operand | None:
    return operand_from(described[SHAPE], bool(described[REQUIRES_GRAD]), described[LAYOUT])


def operand_from(shape: Sequence[Any] | None, requires_grad: bool, layout: str | None) -> Operand | None:
    """An operand; None for a shape that no tensor has."""
    if shape is None or len(shape) > MOST_AXES or not all(type(size) is int and size >= 0 for size in shape):
        return None
    return Operand(tuple(shape), requires_grad, layout is None) if math.prod(shape) <= LARGEST else None


def traffic(
    rule: Rule, given: Sequence[Given], event: Row, outputs: Sequence[Operand]
) -> tuple[int | None, int | None]:
    """Bytes that are read and written; None where that cannot be told."""
    if not event[WRITTEN] and all(map(is_alias, event[OUTPUTS])):
        return 0, 0
    if rule.reads is Reads.A_PART or any(argument.operand is None for argument in given):
        return None, None
    if any(described[LAYOUT] is not None for described in event[OUTPUTS]):
        return None, None
    if any(
        argument.nbytes is None and not (argument.operand is None or argument.operand.is_dense) for argument in given
    ):
        return None, None
    sizes = {argument.identity: argument.nbytes or 0 for argument in given}
    written = 0
    for described, output in zip(event[OUTPUTS], outputs, strict=True):
        written += item_bytes(described[DTYPE], numel(output.shape))
    if rule.reads is Reads.NOTHING:
        return 0, written
    read = list(sizes.values())
    if rule.reads is Reads.SELECTED and read:
        read[0] = min(read[0], written)
    return sum(read), written


# Every call ---------------------------------------------------------------------------------------------


def cost_of_kind(function: int) -> Cost:
    """The cost of a row that is no call."""
    return UNSEEN if function <= OPAQUE else HANDED_THROUGH if is_op(function) else FREE


@once
def cost_of_row(forward: Forward, row: int) -> Cost:
    function = forward.rows.function[row]
    if function < 0:
        return cost_of_kind(function)
    return cost_of_event(forward, function, forward.source.row(forward.rows.event[row]))


class Costs(NamedTuple):
    """What every row costs, by class."""

    values: list[Cost]
    classes: Classes

    def of_rows(self) -> list[Cost]:
        return list(map(self.values.__getitem__, self.classes.of))


@once
def every_cost(forward: Forward, _whole: int) -> Costs:
    given, events = forward.given
    function = forward.rows.function
    first = first_results(forward, 0)
    classes = Classes.by([given.of[first[row]] if function[row] >= 0 else function[row] for row in range(len(forward))])
    values: list[Cost] = []
    for row in classes.first:
        event = events[given.of[first[row]]] if function[row] >= 0 else None
        values.append(cost_of_kind(function[row]) if event is None else cost_of_event(forward, function[row], event))
    return Costs(values, classes)


def of_cost(read: Callable[[Cost], Any]) -> Maker[Forward]:
    """A column of something of what each row costs."""

    def make(forward: Forward) -> Column:
        def every() -> Column:
            costs = every_cost(forward, 0)
            return Picked(list(map(read, costs.values)), costs.classes)

        return Deferred(len(forward), lambda row: read(cost_of_row(forward, row)), every)

    return make


def flops_total(cost: Cost) -> int | None:
    return None if cost.forward is None or cost.backward is None else cost.forward + cost.backward


def compute_record(cost: Cost) -> tuple[Any, ...] | None:
    """How a count comes about; None for what is no op."""
    return None if cost.is_known is None else (cost.macs, cost.other, cost.evidence, cost.reason)


def arithmetic_intensity(cost: Cost) -> float | None:
    """FLOPs for each byte moved; None where nothing is moved."""
    if cost.forward is None or cost.read is None or cost.written is None or not cost.read + cost.written:
        return None
    return cost.forward / (cost.read + cost.written)


# Sums ---------------------------------------------------------------------------------------------------


def of_passes(read: Callable[[Cost], int | None]) -> Maker[Table[Forward]]:
    """The sum over the passes of a layer."""

    def make(ops: Table[Forward]) -> Column:
        forward = ops.context
        return Each(
            forward,
            range(len(forward.groups.passes)),
            lambda context, layer: total([read(cost) for cost in costs_of(context, context.layer_ops[layer])]),
        )

    return make


def costs_of(forward: Forward, rows: Iterable[int]) -> Iterable[Cost]:
    values, classes = every_cost(forward, 0)
    return [values[classes.of[row]] for row in rows]


def inside(forward: Forward, rows: Iterable[int], read: Callable[[Cost], int | None]) -> int | None:
    """Something of the calls that made some op rows, each once, added; None where one is unknown."""
    made: int | None = total([read(cost) for cost in costs_of(forward, one_each(forward, rows))])
    return made


def flops_inside(forward: Forward, rows: Iterable[int]) -> int | None:
    return inside(forward, rows, lambda cost: cost.forward)


def flops_back_inside(forward: Forward, rows: Iterable[int]) -> int | None:
    """What the backward of those would take, as a rule."""
    return inside(forward, rows, lambda cost: cost.backward)


def macs_inside(forward: Forward, rows: Iterable[int]) -> int | None:
    return inside(forward, rows, lambda cost: cost.macs)


def over_capture(read: Callable[[Cost], int | None]) -> Maker[Forward]:
    """The sum over all calls of which it is known."""
    return fact(lambda forward: sum([read(cost) or 0 for cost in calls(forward)]))


def calls(forward: Forward) -> list[Cost]:
    first = first_results(forward, 0)
    return [cost for row, cost in enumerate(every_cost(forward, 0).of_rows()) if first[row] == row]


def flops_by_op_type(forward: Forward) -> dict[str, dict[str, int]]:
    """By layer type, over its calls: the known forward and backward FLOPs, how many calls, how many of them unknown."""
    first, costs = first_results(forward, 0), every_cost(forward, 0).of_rows()
    function, name_of = forward.rows.function, forward.names.layer_type
    made: dict[str, dict[str, int]] = {}
    for row, cost in enumerate(costs):
        if cost.is_known is None or first[row] != row:
            continue
        held = made.setdefault(name_of(function[row]), dict.fromkeys(("forward", "backward", "count", "unknown"), 0))
        held["forward"] += cost.forward or 0
        held["backward"] += cost.backward or 0
        held["count"] += 1
        held["unknown"] += not cost.is_known
    return by_key({kind: by_key(held) for kind, held in made.items()})


def unknown_ops(forward: Forward) -> tuple[str, ...]:
    labels = forward.labels.op
    costs = every_cost(forward, 0).of_rows()
    return tuple([label for label, cost in zip(labels, costs, strict=True) if cost.is_known is False])


def coverage(forward: Forward) -> dict[str, int]:
    """How many op rows are of each kind."""
    known = [cost.is_known for cost in every_cost(forward, 0).of_rows()]
    return by_key({"known": known.count(True), "not_applicable": known.count(None), "unknown": known.count(False)})


OPS: Final[dict[str, Maker[Forward]]] = {
    "flops_forward": of_cost(lambda cost: cost.forward),
    "macs_forward": of_cost(lambda cost: cost.macs),
    "flops_backward": of_cost(lambda cost: cost.backward),
    "flops_total": of_cost(flops_total),
    "compute_record": of_cost(compute_record),
    "bytes_read": of_cost(lambda cost: cost.read),
    "bytes_written": of_cost(lambda cost: cost.written),
    "arithmetic_intensity": of_cost(arithmetic_intensity),
}
"""How each column of the op table that tells a cost is made, in order."""

LAYERS: Final[dict[str, Maker[Table[Forward]]]] = {
    "total_flops_forward": of_passes(lambda cost: cost.forward),
    "total_flops_backward": of_passes(lambda cost: cost.backward),
    "total_macs_forward": of_passes(lambda cost: cost.macs),
}
"""How each sum over the passes of a layer is made, in order."""

CAPTURE: Final[dict[str, Maker[Forward]]] = {
    "total_flops_forward": over_capture(lambda cost: cost.forward),
    "total_flops_backward": over_capture(lambda cost: cost.backward),
    "total_macs_forward": over_capture(lambda cost: cost.macs),
    "flops_by_op_type": fact(flops_by_op_type),
    "unknown_flop_ops": fact(unknown_ops),
    "compute_coverage": fact(coverage),
}
"""How each fact about the whole capture's cost is made, in order."""
