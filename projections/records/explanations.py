"""The table of what has no gradient, with the reason in words.

Reads  ``Reasons``.
Gives  the makers of the columns that ``columns.py`` lists under ``explanations``.
Rule   a reason is one of ``absence.Reason``; one that is ``detached`` names where, as ``detached at detach_1_2``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker
from projections.folds.graph import INPUT, NOWHERE, OUTPUT
from projections.forward import Forward
from projections.records.absence import Absence, Reason, Reasons
from projections.records.passes import EXCEPTION, INCOMPLETE_REASON, closed
from projections.structure.rows import is_buffer

One = Callable[[Reasons, Absence], Any]


def each(one: One) -> Maker[Reasons]:
    def make(reasons: Reasons) -> Column:
        return Each(reasons, range(len(reasons.absences)), lambda found, row: one(found, found.absences[row]))

    return make


def subject(reasons: Reasons, absence: Absence) -> str:
    return name_of_param(reasons.forward, absence.row) if absence.is_param else reasons.forward.labels.op[absence.row]


def at(reasons: Reasons, absence: Absence) -> str | None:
    """Op label or parameter address of where the gradient was taken off; None where that is no such thing."""
    cut = absence.cut
    if cut.row != NOWHERE:
        return reasons.forward.labels.op[cut.row]
    return None if cut.parameter == NOWHERE else name_of_param(reasons.forward, cut.parameter)


def name_of_param(forward: Forward, number: int) -> str:
    return forward.words.parameters[number].address


def reason(reasons: Reasons, absence: Absence) -> str:
    name = absence.cut.reason
    return f"detached at {at(reasons, absence)}" if name == "detached" else name


def text(reasons: Reasons, absence: Absence) -> str:
    only = reasons.flow.only
    asked = "" if only is None else f" of backward pass {only + 1}"
    return f"{subject(reasons, absence)} has no gradient{asked}: {SAID[absence.cut.reason](reasons, absence)}"


def of_itself(absence: Absence) -> bool:
    """Whether the gradient was taken off at the subject itself."""
    return absence.row == (absence.cut.parameter if absence.is_param else absence.cut.row)


def called(reasons: Reasons, absence: Absence) -> str:
    """Where the gradient was taken off, as a sentence begins."""
    return "it" if of_itself(absence) else str(at(reasons, absence))


def no_grad(reasons: Reasons, absence: Absence) -> str:
    return f"{called(reasons, absence)} ran while gradients were off"


def detached(reasons: Reasons, absence: Absence) -> str:
    return f"{called(reasons, absence)} takes what it is given off the graph"


def frozen(reasons: Reasons, absence: Absence) -> str:
    if absence.cut.row != NOWHERE and absence.cut.parameter != NOWHERE:
        taken = name_of_param(reasons.forward, absence.cut.parameter)
        return f"{taken} required none when {reasons.forward.labels.op[absence.cut.row]} took it"
    if absence.cut.number != NOWHERE:
        return f"it required none any more when backward pass {absence.cut.number + 1} came to it"
    if of_itself(absence):
        return f"it is {kind_of(reasons.forward, absence)} that requires none"
    return f"it is made from {at(reasons, absence)}, and nothing that it is made from requires one"


def kind_of(forward: Forward, absence: Absence) -> str:
    function = INPUT if absence.is_param else forward.rows.function[absence.row]
    if absence.is_param:
        return "a parameter"
    if function == INPUT:
        return "an input"
    if is_buffer(function):
        return "a buffer"
    return "a returned tensor" if function == OUTPUT else "a new tensor"


def not_differentiable(reasons: Reasons, absence: Absence) -> str:
    cut, forward = absence.cut, reasons.forward
    if cut.row == NOWHERE:
        return f"what is made from it gave none in backward pass {cut.number + 1}"
    dtype = forward.details.briefs[cut.row].dtype
    if cut.number != NOWHERE:
        return f"{called(reasons, absence)} gave none to what it is made from, in backward pass {cut.number + 1}"
    if not reasons.is_continuous(cut.row):
        return f"{called(reasons, absence)} is {dtype}, which has no derivative"
    return f"{called(reasons, absence)} has no derivative, or is not told to autograd"


def not_upstream(reasons: Reasons, absence: Absence) -> str:
    what = "no loss of a recorded backward pass was" if reasons.flow.only is None else "what that began with was not"
    return f"{what} made from it"


def failed(reasons: Reasons, absence: Absence) -> str:
    number, forward = absence.cut.number, reasons.forward
    event = closed(forward, number)
    if event is None:
        return f"backward pass {number + 1} has not come to its end"
    if event[EXCEPTION] is None and event[INCOMPLETE_REASON] is not None:
        return f"backward pass {number + 1} was recorded in part: {event[INCOMPLETE_REASON]}"
    where = reasons.flow.facts(number).raised_in
    return f"backward pass {number + 1} raised{f' in {where}' if where else ''} before it came there"


def graph_freed(reasons: Reasons, absence: Absence) -> str:
    number = absence.cut.number
    where = reasons.flow.facts(number).raised_in
    return f"backward pass {number + 1} {f'failed in {where}' if where else 'failed'}: graph freed by an earlier one"


def not_kept(reasons: Reasons, absence: Absence) -> str:
    """A pass leads there, and has left nothing: it could not keep it, did not work it out, or was not asked to."""
    number = absence.cut.number
    facts, name = reasons.flow.facts(number), f"backward pass {number + 1}"
    if absence.is_param:
        if not facts.accumulates:
            return f"{name} was run by torch.autograd.grad, which adds nothing to parameters"
        if facts.names_inputs:
            return f"{name} was run with inputs=, which left it out"
    elif reasons.met[absence.row].how == "unasked" and (facts.names_inputs or not facts.accumulates):
        return f"{name} was asked with inputs= for other gradients alone, and did not work it out"
    if facts.is_transient:
        return f"{name} ran over batched gradients, which are not kept"
    return f"{name} was not asked to keep it"


def always(what: str) -> One:
    return lambda reasons, absence: what


SAID: Final[dict[Reason, One]] = {
    "no_grad section": no_grad,
    "detached": detached,
    "frozen": frozen,
    "never called": always("no op took it"),
    "not upstream of the loss": not_upstream,
    "not in the graph": always(
        "what is made from it has one, and its own node is not in the graph that was found: a write through a view puts"
        " the node of the whole tensor in its place, and a large graph is not always followed to its end"
    ),
    "not differentiable": not_differentiable,
    "graph freed": graph_freed,
    "not saved by policy": not_kept,
    "backward failed": failed,
    "no backward yet": always("no backward pass is recorded"),
}


EXPLANATIONS: Final[dict[str, Maker[Reasons]]] = {
    "subject": each(subject),
    "kind": each(lambda reasons, absence: "parameter" if absence.is_param else "op"),
    "reason": each(reason),
    "at": each(at),
    "text": each(text),
    "pass_index": each(lambda reasons, absence: None if absence.cut.number == NOWHERE else absence.cut.number + 1),
    "row": each(lambda reasons, absence: absence.row),
    "at_row": each(lambda reasons, absence: absence.cut.row),
}
"""How each column of the table of explanations is made, in order."""
