"""Conditionals, their passes, and the arms each had: what was tested, what that came to, which arm was taken.

Reads  the cells of a row of the table of conditionals.
Gives  ``Conditional``, and its passes and arms as plain values, which hold no fact of their own.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

import attrs

from projections.errors import over_events
from torchlens.errors import AmbiguousReadError
from torchlens.printable import amount
from torchlens.reading.fields import Field, Record
from torchlens.reading.records.links import Module, module_at

__all__ = ["Conditional", "ConditionalArm", "ConditionalPass"]

T = TypeVar("T")

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


class SinglePass(Generic[T]):
    """Something of the only pass of a conditional; refused with ``conditional_pass_ambiguous`` where it has several."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, cls: type) -> SinglePass[T]: ...

    @overload
    def __get__(self, owner: Conditional, cls: type) -> T: ...

    def __get__(self, owner: Conditional | None, cls: type) -> SinglePass[T] | T:
        if owner is None:
            return self
        passes = owner.passes
        if len(passes) != 1:
            raise AmbiguousReadError(
                code="conditional_pass_ambiguous",
                problem=f"{owner.id!r} was evaluated {len(passes)} times, each time with its own {self.name}",
                remedy=f"ask one of them: conditional.passes[k].{self.name}",
                id=owner.id,
                num_passes=len(passes),
                field=self.name,
            )
        made: T = getattr(passes[0], self.name)
        return made


class Conditional(Record):
    """An if with its elifs and else, or a conditional expression, that the truth of a tensor had a part in.

    One in a loop is one record with several passes. What decides without a tensor (``self.training``, ``x.item() > 0``)
    is not seen.
    """

    __slots__ = ()
    table_name = "conditionals"

    id = Field[str]("``cond_`` and the label of the layer that was tested first.")
    ordinal_index = Field[int]("Position in ``trace.conditionals``.")
    kind = Field[str]("``if``, or ``ifexp`` for a conditional expression.")
    num_passes = Field[int]("How often it was evaluated.")
    arm_kinds = Field[tuple[str, ...]]("Its arms: ``then``, ``elif``, ``else``.")
    num_arms = Field[int]("How many arms it has.")
    num_elifs = Field[int]("How many elifs it has.")
    has_elif = Field[bool]("Whether it has an elif.")
    has_else = Field[bool]("Whether it has an else.")
    test_texts = Field[tuple[str, ...]]("Source text of its tests, one for each arm but the else.")
    fired_arm_kinds = Field[tuple[str | None, ...]](
        "Kind of the arm taken, by pass; None where none was, or it is not known."
    )
    source_file = Field[str]("File it stands in.")
    source_line = Field[int]("Line it starts on.")
    source_location = Field[str]("File and line.")
    func_qualname = Field[str]("Function it stands in.")
    module_address = Field[str]("Address of the innermost module whose forward ran it.")

    arms = SinglePass[tuple[ConditionalArm, ...]]("The arms of its only pass.")
    fired_arm = SinglePass[ConditionalArm | None]("The arm that its only pass took; None where none, or not known.")
    fired_arm_index = SinglePass[int | None]("Number of that arm.")
    fired_arm_kind = SinglePass[str | None]("Kind of that arm.")

    @property
    def passes(self) -> tuple[ConditionalPass, ...]:
        """Each evaluation, with its arms and the one that was taken."""
        with over_events():
            return passes_of(self)

    @property
    def module(self) -> Module | None:
        """The innermost module whose forward ran it."""
        return module_at(self.trace, self.module_address)

    def about(self) -> str:
        passes = self.read("num_passes")
        return f" {self.read('kind')} at line {self.read('source_line')}, {amount(passes, 'pass')}"
