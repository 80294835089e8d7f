"""Columns that tell of operators that ran in backward passes: the table of them, and what other records say of theirs.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``dispatched_ops``; columns of firings and passes, and
       facts of the capture, by name.
Rule   a pass is counted where everything that it ran was told: it was announced, a census was taken of it, and it came
       to its end. The capture is counted where each of its passes is. What is not counted is None, and never 0.
Rule   the engine runs operators with grad mode off, save under ``create_graph``, and a checkpoint runs its forward
       again with it on: where the capture was seen to checkpoint, what ran with it on is recompute. It stays in the
       firing that it ran in. Else it is not known, and never 0: a forward may be run again in ways that nothing tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from journal.events import PassOpened
from projections.autograd.executed import Dispatched, Families
from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.formulas.flops import LARGEST
from projections.formulas.operator_flops import family_of
from projections.forward import Forward, once
from projections.records import checkpoint_witness
from projections.records.makers import fact, total
from projections.records.passes import CREATE_GRAPH, is_implicit, opened, per_pass, status
from projections.records.whole import inference_only
from projections.structure.details import field

BackwardState: TypeAlias = Literal["backward_observed", "grad_enabled_unobserved", "grad_disabled"]

Evidence: TypeAlias = Literal["measured", "formula_exact", "unknown"]

HAS_CENSUS: Final = field(PassOpened, "has_census")


# -- the table


def per_operator(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward.executed)), one)

    return make


def told(one: Callable[[Dispatched], Any]) -> Maker[Forward]:
    """Something of the event."""
    return per_operator(lambda forward, row: one(forward.executed.told[row]))


def of_node(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """Something of the node that ran; None for one of which this capture was not told."""

    def read(forward: Forward, row: int) -> Any:
        node = forward.executed.nodes[row]
        return None if node == NOWHERE else one(forward, node)

    return per_operator(read)


def op_label(forward: Forward, node: int) -> str | None:
    op = forward.charged_op(node)
    return None if op == NOWHERE else forward.labels.op[op]


def call_index(forward: Forward, row: int) -> int | None:
    fire = forward.executed.fires[row]
    return None if fire == NOWHERE else forward.autograd.call_indexes[fire]


def ordinals(forward: Forward) -> Column:
    """By operator, its position among those of its pass."""
    made = [0] * len(forward.executed)
    for rows in forward.executed.in_passes:
        for place, row in enumerate(rows):
            made[row] = place
    return made


def shapes(operands: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([tuple(shape) for shape, _ in operands])


def dtypes(operands: Iterable[Any]) -> tuple[str, ...]:
    return tuple([dtype for _, dtype in operands])


DISPATCHED_OPS: Final[dict[str, Maker[Forward]]] = {
    "name": told(lambda call: call.name),
    "family": told(lambda call: family_of(call.name)),
    "backward_pass_index": lambda forward: [number + 1 for number in forward.executed.passes],
    "ordinal_in_pass": ordinals,
    "grad_fn_label": of_node(lambda forward, node: forward.autograd.labels[node]),
    "call_index": per_operator(call_index),
    "op_label": of_node(op_label),
    "is_elsewhere": told(lambda call: call.is_elsewhere),
    "grad_enabled": told(lambda call: call.grad_enabled),
    "input_shapes": told(lambda call: shapes(call.inputs)),
    "input_dtypes": told(lambda call: dtypes(call.inputs)),
    "output_shapes": told(lambda call: shapes(call.outputs)),
    "output_dtypes": told(lambda call: dtypes(call.outputs)),
    "flops": told(lambda call: call.flops),
    # plumbing
    "grad_fn_row": lambda forward: forward.executed.nodes,
    "call_row": lambda forward: forward.executed.fires,
    "pass_row": lambda forward: forward.executed.passes,
    "event": lambda forward: forward.executed.events,
}
"""How each column of the table of operators is made, in order."""


# -- which passes are counted


def has_census(forward: Forward, number: int) -> bool:
    return bool(opened(forward, number)[HAS_CENSUS])


HOW: Final = {
    "error": "raised before it finished",
    "incomplete": "could not be recorded to its end",
    "unfinished": "has not come to its end",
}
"""What is said of a pass that is not counted for its status."""


def why_uncounted(forward: Forward, number: int) -> str | None:
    """What keeps a pass from being counted, in words; None for one that is."""
    name = f"backward pass {number + 1}"
    if is_implicit(forward, number):
        return f"nothing announced {name}, so no census was taken of it"
    if not has_census(forward, number):
        if dict(forward.course.options).get("backward_ready"):
            return f"no census was taken of {name}: this torch does not tell which autograd node runs"
        return f"no census was taken of {name}: the capture was made without backward_ready=True"
    how = status(forward, number)
    if how != "ok":
        return f"{name} {HOW[how]}"
    return f"{name} tells more work than any run can do" if forward.executed.in_all[number] > LARGEST else None


@once
def reasons(forward: Forward, _whole: int) -> Sequence[str | None]:
    """``why_uncounted`` of every pass."""
    return [why_uncounted(forward, number) for number in range(forward.autograd.num_passes)]


def if_counted(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """Something of each pass; None where it is not counted."""
    return per_pass(lambda forward, number: None if why_uncounted(forward, number) else one(forward, number))


# -- recompute


@once
def recomputed(forward: Forward, _whole: int) -> Sequence[int | None]:
    """By firing, the FLOPs of what ran a forward again; None where that is not known."""
    executed, why, passes = forward.executed, reasons(forward, 0), forward.autograd.fire_passes
    if not checkpoint_witness.saw_checkpointing(forward):
        return [None] * len(passes)
    makes_graph = [bool(opened(forward, number)[CREATE_GRAPH]) for number in range(forward.autograd.num_passes)]
    return [
        executed.flops([row for row in rows if executed.told[row].grad_enabled])
        if why[number] is None and not makes_graph[number]
        else None
        for number, rows in zip(passes, executed.in_fires, strict=True)
    ]


@once
def recomputed_in_passes(forward: Forward, _whole: int) -> Sequence[int | None]:
    """The same by pass."""
    known, counted = recomputed(forward, 0), reasons(forward, 0)
    found = [[known[fire] for fire in fires] for fires in forward.autograd.fires_in]
    return [total(part) if why is None else None for part, why in zip(found, counted, strict=True)]


PASSES: Final[dict[str, Maker[Forward]]] = {
    "executed_flops": if_counted(lambda forward, number: forward.executed.in_all[number]),
    "executed_reason": per_pass(why_uncounted),
    "unattributed_flops": if_counted(
        lambda forward, number: forward.executed.flops(forward.executed.unattributed(number))
    ),
    "recompute_flops": lambda forward: recomputed_in_passes(forward, 0),
    "uncounted_families": if_counted(lambda forward, number: forward.executed.uncounted(forward.executed.own(number))),
    "has_census": per_pass(has_census),
    "dispatched_rows": lambda forward: forward.executed.in_passes,
    "unattributed_rows": per_pass(lambda forward, number: tuple(forward.executed.unattributed(number))),
    "other_trace_rows": per_pass(lambda forward, number: tuple(forward.executed.of_others(number))),
}
"""How each column of passes that tells of their operators is made, in order."""


# -- firings


def per_counted_fire(one: Callable[[Forward, Sequence[int]], Any]) -> Maker[Forward]:
    """Something of the operators of each firing; None where its pass is not counted."""

    def make(forward: Forward) -> Column:
        why, passes = reasons(forward, 0), forward.autograd.fire_passes
        return [
            one(forward, rows) if why[number] is None else None
            for number, rows in zip(passes, forward.executed.in_fires, strict=True)
        ]

    return make


FIRES: Final[dict[str, Maker[Forward]]] = {
    "flops": per_counted_fire(lambda forward, rows: forward.executed.flops(rows)),
    "recompute_flops": lambda forward: recomputed(forward, 0),
    "uncounted_families": per_counted_fire(lambda forward, rows: forward.executed.uncounted(rows)),
    "num_counted_ops": per_counted_fire(
        lambda forward, rows: sum([forward.executed.told[row].flops is not None for row in rows])
    ),
    "dispatched_rows": lambda forward: forward.executed.in_fires,
}
"""How each column of firings that tells of their operators is made, in order."""


# -- the capture


def state(forward: Forward) -> BackwardState:
    """Whether a backward was observed; if none was, whether one could be."""
    if forward.autograd.num_passes:
        return "backward_observed"
    return "grad_disabled" if inference_only(forward) else "grad_enabled_unobserved"


NO_BACKWARD: Final[Mapping[BackwardState, str]] = {
    "grad_disabled": "no backward could be: the forward made no autograd graph",
    "grad_enabled_unobserved": "a backward could be, and none was observed",
}


def reason(forward: Forward) -> str | None:
    """Why what the backward passes executed is not known, or known without a count; None where each is counted."""
    if not forward.autograd.num_passes:
        return NO_BACKWARD[state(forward)]
    why = [one for one in reasons(forward, 0) if one is not None]
    if not why:
        return "more work than any run can do is told" if sum(forward.executed.in_all) > LARGEST else None
    return why[0] if len(why) == 1 else f"{why[0]}; {len(why)} passes are not counted"


def executed_flops(forward: Forward) -> int | None:
    """Over all passes; 0 where none could be."""
    if state(forward) == "grad_disabled":
        return 0
    return sum(forward.executed.in_all) if reason(forward) is None else None


def evidence(forward: Forward) -> Evidence:
    """How what the backward passes executed is known."""
    if state(forward) == "grad_disabled":
        return "formula_exact"
    return "measured" if reason(forward) is None else "unknown"


def recompute_flops(forward: Forward) -> int | None:
    """Over all passes; None where it is not known of one, or the passes are not counted."""
    if state(forward) == "grad_disabled":
        return 0
    return total(recomputed_in_passes(forward, 0)) if reason(forward) is None else None


def uncounted_families(forward: Forward) -> Families:
    """Over all operators that were told, whether or not their pass is counted."""
    executed = forward.executed
    return executed.uncounted([row for row, call in enumerate(executed.told) if not call.is_elsewhere])


CAPTURE: Final[dict[str, Maker[Forward]]] = {
    "backward_state": fact(state),
    "executed_flops": fact(executed_flops),
    "executed_evidence": fact(evidence),
    "executed_reason": fact(reason),
    "recompute_flops": fact(recompute_flops),
    "uncounted_families": fact(uncounted_families),
}
"""How each fact about what the backward passes of a capture executed is made, in order."""
