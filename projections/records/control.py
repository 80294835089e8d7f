"""Columns that say which conditionals ops decided and ran in, and those of the table of conditionals.

Reads  a ``Forward`` and its ``Conditionals``.
Gives  makers for the tables of ops, layers and conditionals.
Rule   an island is in no conditional: it stands in no table that a conditional could name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from projections.columnar.ordered import by_key
from projections.columnar.sequences import Classes, Each, Picked
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.forward import Forward
from projections.source.syntax import CONDITIONAL, Role
from projections.structure.conditionals import Conditional, Evaluation, Ran, Truth

Per = Callable[[Forward, int], Any]


# -- ops


def where_branched(one: Per, missing: Any) -> Maker[Forward]:
    """A column of the op table that is the same for every row where no truth was taken."""

    def make(forward: Forward) -> Column:
        if not forward.rows.branches:
            return Picked([missing], Classes([0] * len(forward), [0][: len(forward)]))
        return Each(forward, range(len(forward)), one)

    return make


def of_truth(read: Callable[[Truth], Any], missing: Any) -> Maker[Forward]:
    """A column of what the truth of an op was taken for: for a conditional, if it ever was, else the first time."""

    def one(forward: Forward, row: int) -> Any:
        told = forward.conditionals.truths.get(row)
        if told is None:
            return missing
        return read(next((truth for truth in told if truth.context in CONDITIONAL), told[0]))

    return where_branched(one, missing)


def terminal_bool_for(forward: Forward, row: int) -> tuple[str, int] | None:
    """Id of the conditional and the arm that the truth of an op decided first."""
    for truth in forward.conditionals.truths.get(row, ()):
        if truth.conditional != NOWHERE and not forward.orphaned:
            return (forward.conditional_ids[truth.conditional], truth.arm)
    return None


def ran(forward: Forward, row: int) -> list[Ran]:
    return [] if forward.orphaned else forward.conditionals.ran_row(row)


def branch_stack(forward: Forward, row: int) -> tuple[tuple[int, str], ...]:
    """The arms that an op ran in, outermost first: number of the conditional and name of the arm."""
    every = forward.conditionals.all
    return tuple([(one.conditional, every[one.conditional].branching.name(one.arm)) for one in bodies(forward, row)])


def bodies(forward: Forward, row: int) -> list[Ran]:
    return [one for one in ran(forward, row) if one.role == "body"]


def in_conditionals(forward: Forward, row: int) -> tuple[tuple[str, int, str, str], ...]:
    every, ids = forward.conditionals.all, forward.conditional_ids
    return tuple(
        [
            (ids[one.conditional], one.arm, every[one.conditional].branching.arms[one.arm], one.role)
            for one in ran(forward, row)
        ]
    )


def arm_children(forward: Forward, row: int) -> dict[int, dict[str, tuple[str, ...]]]:
    """By conditional and arm, the children that ran there while the op did not."""
    found = forward.conditionals
    made: dict[int, dict[str, list[str]]] = {}
    if forward.orphaned or not found.all:
        return {}
    for child in forward.children[row]:
        for one in bodies(forward, child):
            evaluation = found.evaluation_of(child, one)
            if evaluation is not None and not found.is_in(row, one, evaluation):
                name = found.all[one.conditional].branching.name(one.arm)
                made.setdefault(one.conditional, {}).setdefault(name, []).append(forward.labels.op[child])
    arms_of = {number: {name: tuple(labels) for name, labels in arms.items()} for number, arms in made.items()}
    return by_key({number: by_key(arms) for number, arms in arms_of.items()})


OPS: Final[dict[str, Maker[Forward]]] = {
    "is_terminal_conditional_bool": of_truth(lambda truth: truth.context in CONDITIONAL, False),
    "conditional_context_kind": of_truth(lambda truth: truth.context, None),
    "conditional_wrapper_kind": of_truth(lambda truth: truth.wrapper, None),
    "terminal_bool_for": where_branched(terminal_bool_for, None),
    "conditional_branch_stack": where_branched(branch_stack, ()),
    "conditional_branch_depth": where_branched(lambda forward, row: len(bodies(forward, row)), 0),
    "in_conditionals": where_branched(in_conditionals, ()),
    "conditional_arm_children": where_branched(arm_children, {}),
}
"""How the columns of ops about conditionals are made."""


# -- layers


def layer_conditionals(forward: Forward, layer: int) -> tuple[tuple[str, int, str, str], ...]:
    """Those of the passes, each once."""
    rows = forward.layer_ops[layer]
    return tuple(dict.fromkeys([told for row in rows for told in in_conditionals(forward, row)]))


def stack_passes(forward: Forward, layer: int) -> tuple[tuple[tuple[tuple[int, str], ...], tuple[int, ...]], ...]:
    """Pairs of the arms around some passes, and these passes."""
    found: dict[tuple[tuple[int, str], ...], list[int]] = {}
    for index, row in enumerate(forward.layer_ops[layer], 1):
        found.setdefault(branch_stack(forward, row), []).append(index)
    return tuple([(stack, tuple(passes)) for stack, passes in found.items()])


# -- the table


def per_conditional(one: Callable[[Forward, Conditional], Any]) -> Maker[Forward]:
    def make(forward: Forward) -> Column:
        every = forward.conditionals.all
        return Each(forward, range(len(every)), lambda forward, number: one(forward, every[number]))

    return make


def per_arm(one: Callable[[Forward, Conditional, Evaluation, int], Any]) -> Maker[Forward]:
    """A column of tuples, one for each pass, with something of each arm."""

    def cell(forward: Forward, conditional: Conditional) -> tuple[tuple[Any, ...], ...]:
        arms = range(len(conditional.branching.arms))
        return tuple(
            [
                tuple([one(forward, conditional, evaluation, arm) for arm in arms])
                for evaluation in conditional.evaluations
            ]
        )

    return per_conditional(cell)


def edge(role: Role) -> Callable[[Forward, Conditional, Evaluation, int], Any]:
    def one(forward: Forward, conditional: Conditional, evaluation: Evaluation, arm: int) -> tuple[str, str] | None:
        found = evaluation.entered.get((arm, role))
        return None if found is None else (forward.labels.op[found[0]], forward.labels.op[found[1]])

    return one


def tested_row(forward: Forward, conditional: Conditional, evaluation: Evaluation, arm: int) -> int:
    return evaluation.rows.get(arm, NOWHERE)


def tested_label(forward: Forward, conditional: Conditional, evaluation: Evaluation, arm: int) -> str | None:
    row = tested_row(forward, conditional, evaluation, arm)
    return forward.labels.op[row] if row >= 0 else None


def fired_indexes(forward: Forward, conditional: Conditional) -> tuple[int | None, ...]:
    """Per pass the arm that was taken; None where none was, or it is not known."""
    every = [conditional.fired(evaluation) for evaluation in conditional.evaluations]
    return tuple([fired.index(True) if True in fired else None for fired in every])


def fired_kinds(forward: Forward, conditional: Conditional) -> tuple[str | None, ...]:
    arms = conditional.branching.arms
    return tuple([None if index is None else arms[index] for index in fired_indexes(forward, conditional)])


def source_file(forward: Forward, conditional: Conditional) -> str:
    return forward.words.codes[conditional.key[1]].file


TABLE: Final[dict[str, Maker[Forward]]] = {
    "id": lambda forward: forward.conditional_ids,
    "ordinal_index": per_conditional(lambda forward, one: one.number),
    "kind": per_conditional(
        lambda forward, one: "if" if one.syntax.tests[one.branching.tests[0]].context == "if_test" else "ifexp"
    ),
    "num_passes": per_conditional(lambda forward, one: len(one.evaluations)),
    "arm_kinds": per_conditional(lambda forward, one: one.branching.arms),
    "num_arms": per_conditional(lambda forward, one: len(one.branching.arms)),
    "num_elifs": per_conditional(lambda forward, one: one.branching.arms.count("elif")),
    "has_elif": per_conditional(lambda forward, one: "elif" in one.branching.arms),
    "has_else": per_conditional(lambda forward, one: "else" in one.branching.arms),
    "test_texts": per_conditional(
        lambda forward, one: tuple([one.syntax.text(one.syntax.tests[test].span) for test in one.branching.tests])
    ),
    "source_file": per_conditional(source_file),
    "source_line": per_conditional(lambda forward, one: one.branching.start[0]),
    "source_location": per_conditional(lambda forward, one: f"{source_file(forward, one)}:{one.branching.start[0]}"),
    "func_qualname": per_conditional(lambda forward, one: forward.words.codes[one.key[1]].qualname),
    "module_address": per_conditional(lambda forward, one: forward.words.module_path(one.key[0])),
    "fired_arm_indexes": per_conditional(fired_indexes),
    "fired_arm_kinds": per_conditional(fired_kinds),
    "terminal_bool_op_labels": per_arm(tested_label),
    "bool_values": per_arm(lambda forward, one, evaluation, arm: one.value(evaluation, arm)),
    "conditions_evaluated": per_arm(lambda forward, one, evaluation, arm: one.is_evaluated(evaluation, arm)),
    "fired": per_conditional(lambda forward, one: tuple([one.fired(evaluation) for evaluation in one.evaluations])),
    "evaluation_entry_edges": per_arm(edge("evaluation")),
    "execution_entry_edges": per_arm(edge("body")),
    "terminal_bool_rows": per_arm(tested_row),
}
"""How each column of the table of conditionals is made, in order."""
