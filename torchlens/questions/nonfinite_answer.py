"""What is told of the first tensor that is not finite.

Gives  ``FirstNonfinite``, with an ``Operand`` for each thing that the tensor was made from; as text, some lines.
Not    how it is found (nonfinite.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from torchlens.printable import amount, printable
from torchlens.questions.verdict import Verdict
from torchlens.reading.locations import FuncCallLocation
from torchlens.reading.statistics import reach

__all__ = ["NONFINITE", "FirstNonfinite", "Nonfinite", "Operand", "OperandKind", "Origin"]

Nonfinite: TypeAlias = Literal["nonfinite", "nan"]
"""What is looked for."""

NONFINITE: Final[tuple[Nonfinite, ...]] = ("nonfinite", "nan")
"""Infinity or NaN; NaN alone."""

Kind: TypeAlias = Literal["input", "activation", "buffer", "constant", "argument", "gradient"]
OperandKind: TypeAlias = Literal["activation", "parameter", "constant", "gradient"]
Origin: TypeAlias = Literal["made", "inherited", "given", "unknown"]

NAMED: Final = 8
"""Most names of what was not looked at that the text form has."""


@attrs.frozen
class Operand:
    """Something that a tensor was made from, and how far its elements reach."""

    kind: OperandKind
    label: str  # of the op, address of the parameter, or what the gradient is of
    num_nan: int | None  # None where it was not looked at
    num_inf: int | None
    min: float | int | None  # of the finite elements; None where there is none, or it was not looked at
    max: float | int | None

    @property
    def is_examined(self) -> bool:
        """Whether it was looked at."""
        return self.num_nan is not None

    def __str__(self) -> str:
        return printable(f"{self.label} ({self.kind}): {reached(self)}")


@attrs.frozen(repr=False)
class FirstNonfinite:
    """The first tensor that is not finite, in the order of events; false where none was found.

    ``verdict`` is ``first``, or ``first_seen`` where something before it was not looked at; where none was found,
    ``clean``, ``clean_as_seen`` or ``not_checked``. What is told of the tensor is None, or empty, where there is none.
    """

    verdict: Verdict
    num_examined: int  # tensors looked at
    unexamined: Sequence[str]  # names of what was not, before it; of all where none was found
    at: int | None = None  # number of its event
    kind: Kind | None = None
    label: str | None = None  # of the op, or address of the parameter, whose it is
    backward_pass: int | None = None  # from 1; None in the forward
    count: int | None = None  # its elements
    num_nan: int | None = None
    num_inf: int | None = None
    min: float | int | None = None  # of its finite elements; None where there is none
    max: float | int | None = None
    origin: Origin | None = None  # "made" here, "inherited", "given" from outside, or "unknown"
    made_by: tuple[str, ...] = ()  # ops that made it; of a gradient, firings that sent it, with their ops
    operands: tuple[Operand, ...] = ()  # what it was made from
    modules: tuple[str, ...] = ()  # labels of the module calls around the op, outermost first
    place: FuncCallLocation | None = None  # where the op was called; of a gradient, an op whose derivative sent it
    call_line: str | None = None  # that line of source; None where it is not known

    def __bool__(self) -> bool:
        return self.at is not None

    @property
    def remedy(self) -> str | None:
        """What to capture so that it is known where it was made; None where that is known, or nothing was found."""
        if self.origin != "unknown":
            return None
        missed = {operand.kind for operand in self.operands if not operand.is_examined}
        ways = [way for kinds, way in WAYS if missed & kinds]
        return f"capture again with {', and '.join(ways)}" if ways else None

    def __str__(self) -> str:
        return "\n".join(printable(line) for line in self.lines())

    __repr__ = __str__

    def lines(self) -> Iterator[str]:
        looked = f"{amount(self.num_examined, 'tensor')} looked at"
        if self.at is None:
            if self.verdict == "not_checked":
                yield "not checked: no tensor could be looked at"
            else:
                yield f"all finite: {looked}"
        else:
            during = "" if self.backward_pass is None else f" in backward pass {self.backward_pass}"
            seen = "" if self.verdict == "first" else " seen"
            yield f"first{seen} not finite: {self.kind} of {self.label}{during}, event {self.at}"
            yield f"  {reached(self)}, of {amount(self.count or 0, 'element')}"
            yield f"  {SAID[self.origin or 'unknown']}{': ' + ', '.join(self.made_by) if self.made_by else ''}"
            yield from (f"    {operand}" for operand in self.operands)
            if self.remedy is not None:
                yield f"    to know: {self.remedy}"
            if self.place is not None:
                yield f"  at {self.place}" + (f": {self.call_line}" if self.call_line else "")
            if self.modules:
                yield f"  in {' > '.join(self.modules)}"
        if self.unexamined:
            named = ", ".join(self.unexamined[:NAMED])
            more = f" and {len(self.unexamined) - NAMED} more" if len(self.unexamined) > NAMED else ""
            when = "" if self.at is None else " before it"
            yield f"  not looked at{when}: {named}{more}"


SAID: Final = {
    "made": "made here, of what holds none of these",
    "inherited": "inherited, by",
    "given": "given from outside",
    "unknown": "it is not known whether it was made here: not all that it was made from was looked at",
}


WAYS: Final[tuple[tuple[frozenset[OperandKind], str], ...]] = (
    (
        frozenset(("parameter", "constant")),
        "tl.CaptureOptions(save_arg_values=True), which keeps what calls were given, parameters too",
    ),
    (frozenset(("activation",)), 'a save= that names it ("all", or tl.stats_only())'),
    (frozenset(("gradient",)), "a save_grads= that names it"),
)
"""How what was not looked at is kept, by kind."""


def reached(one: Operand | FirstNonfinite) -> str:
    if one.num_nan is None or one.num_inf is None:
        return "not looked at"
    return reach(one.num_nan, one.num_inf, one.min, one.max)
