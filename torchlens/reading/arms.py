"""One pass of a conditional, and the arms it had: what was tested, what that came to, which arm was taken.

Reads  the cells of a row of the table of conditionals.
Gives  plain values; they hold no fact of their own.
"""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["ConditionalArm", "ConditionalPass"]

Edge = tuple[str, str]


@attrs.frozen
class ConditionalArm:
    """An arm of a conditional, in one pass.

    Attributes:
        kind: ``then``, ``elif`` or ``else``.
        terminal_bool_op_label: The op whose truth was taken last for its test; None for an else, and where no op's was.
        bool_value_at_run: What its test came to; None where it was not asked, or what decided was not seen.
        condition_evaluated: Whether its test was asked.
        fired: Whether it was taken; None where that is not known.
        evaluation_entry_edge: Op outside and op inside, by which its test was entered; None where it computes nothing.
        execution_entry_edge: Op outside and op inside, by which the arm was entered; None where no op ran in it.
    """

    kind: str
    terminal_bool_op_label: str | None
    bool_value_at_run: bool | None
    condition_evaluated: bool
    fired: bool | None
    evaluation_entry_edge: Edge | None
    execution_entry_edge: Edge | None


@attrs.frozen
class ConditionalPass:
    """One evaluation of a conditional.

    Attributes:
        pass_index: Which one, from 1.
        arms: Its arms, in the order of the source.
        fired_arm_index: The arm that was taken; None where none was, or it is not known: ``arms[k].fired`` tells which.
    """

    pass_index: int
    arms: tuple[ConditionalArm, ...]
    fired_arm_index: int | None

    @property
    def fired_arm(self) -> ConditionalArm | None:
        """The arm that was taken."""
        return None if self.fired_arm_index is None else self.arms[self.fired_arm_index]

    @property
    def fired_arm_kind(self) -> str | None:
        """Its kind."""
        return None if self.fired_arm is None else self.fired_arm.kind


PER_ARM = (
    "terminal_bool_op_labels",
    "bool_values",
    "conditions_evaluated",
    "fired",
    "evaluation_entry_edges",
    "execution_entry_edges",
)
"""The columns that have a cell for each pass and arm, in the order of an arm's attributes behind its kind."""


def passes_of(record: Any) -> tuple[ConditionalPass, ...]:
    """The passes of a conditional's row."""
    kinds, fired = record.read("arm_kinds"), record.read("fired_arm_indexes")
    columns = [record.read(name) for name in PER_ARM]
    return tuple(
        ConditionalPass(
            number + 1,
            tuple(ConditionalArm(kind, *(column[number][arm] for column in columns)) for arm, kind in enumerate(kinds)),
            index,
        )
        for number, index in enumerate(fired)
    )
