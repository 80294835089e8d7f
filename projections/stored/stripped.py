"""A stream without the payloads that a saved artifact leaves out.

Reads  the events that name payloads.
Gives  the payloads that a row names, each with its kind; and the rows as they would be had some kinds not been kept.
Rule   a call that drew still names the state it drew from, of which there are no bytes any more.
Rule   every event keeps its number: one that tells of nothing but such a payload is replaced by a ``LeftOut``.
Not    which kinds are left out: the level of the artifact says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from journal.events import (
    ArgumentsKept,
    BufferSeen,
    BufferWritten,
    CodeSeen,
    ConstantKept,
    ConstantSeen,
    Event,
    GeneratorsKept,
    GradientKept,
    GradientObserved,
    InputSeen,
    LeftOut,
    OpExecuted,
    PayloadKept,
    Row,
    TransformKept,
    ValueReread,
)
from projections.folds.fold import Source
from projections.structure.details import OUTPUTS, PAYLOAD, RNG, field

PayloadKind: TypeAlias = Literal[
    "activation", "transformed", "gradient", "argument", "generator", "source", "constant", "run_constant"
]
"""What a payload is of: a value that an op returned, what ``save=`` made of one, a gradient, what a call was given, the
state of a random generator, the text of a function, a tensor that no recorded call made, and the same as it is kept for
a run of the recorded calls."""

Named: TypeAlias = Iterator[tuple[PayloadKind, int]]

SOURCE: Final = field(CodeSeen, "source")
TENSORS: Final = field(ArgumentsKept, "tensors")
CONSTANT: Final = field(ConstantKept, "kept")
STATES: Final = field(GeneratorsKept, "states")
OBSERVED: Final = field(GradientObserved, "payload")

DESCRIBED: Final[Mapping[int, tuple[int, PayloadKind]]] = {
    kind.type_id: (field(kind, "description"), "constant" if kind is ConstantSeen else "activation")
    for kind in (InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten)
}
"""By type, where the description of a value stands, and of which kind its payload is."""

REFERENCES: Final[Mapping[int, tuple[int, PayloadKind]]] = {
    PayloadKept.type_id: (field(PayloadKept, "payload"), "activation"),
    TransformKept.type_id: (field(TransformKept, "payload"), "transformed"),
    GradientKept.type_id: (field(GradientKept, "payload"), "gradient"),
}
"""By type of an event that tells of nothing but one payload, where its reference stands, and of which kind it is."""


def named_by(row: Row) -> Named:
    """Number and kind of each payload that an event names."""
    kind: int = row[0]
    if kind == OpExecuted.type_id:
        for description in row[OUTPUTS]:
            if description[PAYLOAD] is not None:
                yield "activation", description[PAYLOAD][0]
        if row[RNG] is not None:
            yield "generator", row[RNG]
    elif kind in DESCRIBED:
        place, what = DESCRIBED[kind]
        if row[place][PAYLOAD] is not None:
            yield what, row[place][PAYLOAD][0]
    elif kind in REFERENCES:
        place, what = REFERENCES[kind]
        yield what, row[place][0]
    elif kind == CodeSeen.type_id:
        if row[SOURCE] is not None:
            yield "source", row[SOURCE]
    elif kind == GradientObserved.type_id:
        if row[OBSERVED] is not None:
            yield "gradient", row[OBSERVED][0]
    elif kind == ArgumentsKept.type_id:
        for kept in row[TENSORS]:
            if kept is not None:
                yield "argument", kept[0][0]
    elif kind == ConstantKept.type_id:
        yield "run_constant", row[CONSTANT][0][0]
    elif kind == GeneratorsKept.type_id:
        for _, number in row[STATES]:
            yield "generator", number


# -- taken out


def without_any(row: Row) -> Row:
    """What stands for an event that tells of payloads alone."""
    return (LeftOut.type_id, row[1], NAMES[row[0]])


NAMES: Final[Mapping[int, str]] = {
    kind.type_id: kind.event_name
    for kind in (PayloadKept, TransformKept, GradientKept, ArgumentsKept, ConstantKept, GeneratorsKept)
}


def with_field(row: Row, place: int, value: Any) -> Row:
    return (*row[:place], value, *row[place + 1 :])


def undescribed(description: Sequence[Any]) -> tuple[Any, ...]:
    """The description of a value of which nothing was kept."""
    return (*description[:PAYLOAD], None, *description[PAYLOAD + 1 :])


def without_description(row: Row) -> Row:
    place, _ = DESCRIBED[row[0]]
    return row if row[place][PAYLOAD] is None else with_field(row, place, undescribed(row[place]))


def without_activations(row: Row) -> Row:
    outputs = row[OUTPUTS]
    if all(description[PAYLOAD] is None for description in outputs):
        return row
    return with_field(row, OUTPUTS, tuple(map(undescribed, outputs)))


Strip: TypeAlias = Callable[[Row], Row]

STRIPS: Final[Mapping[PayloadKind, Mapping[type[Event], Strip]]] = {
    "activation": {
        OpExecuted: without_activations,
        **dict.fromkeys((InputSeen, ValueReread, BufferSeen, BufferWritten), without_description),
        PayloadKept: without_any,
    },
    "constant": {ConstantSeen: without_description},
    "run_constant": {ConstantKept: without_any},
    "transformed": {TransformKept: without_any},
    "gradient": {
        GradientObserved: lambda row: with_field(row, OBSERVED, None),
        GradientKept: without_any,
    },
    "argument": {ArgumentsKept: without_any},
    "generator": {GeneratorsKept: without_any},  # a call keeps the number of its state: that it drew is a fact
    "source": {CodeSeen: lambda row: with_field(row, SOURCE, None)},
}
"""By kind of payload, what each event becomes that names one."""

PAYLOAD_KINDS: Final[tuple[PayloadKind, ...]] = tuple(STRIPS)


class Stripped:
    """A stream as it would be had some kinds of payloads not been kept: a ``Source``.

    Args:
        source: The stream.
        left_out: The kinds.
    """

    def __init__(self, source: Source, left_out: Iterable[PayloadKind]) -> None:
        self.source: Final = source
        self.strips: Final[dict[int, tuple[Strip, ...]]] = {}
        for what in left_out:
            for kind, strip in STRIPS[what].items():
                self.strips[kind.type_id] = (*self.strips.get(kind.type_id, ()), strip)

    def head(self) -> int:
        return self.source.head()

    def rows(self, start: int, stop: int | None = None) -> Iterator[Sequence[Row]]:
        for run in self.source.rows(start, stop):
            yield [self.stripped(row) if row[0] in self.strips else row for row in run]

    def row(self, at: int) -> Row:
        return self.stripped(self.source.row(at))

    def payload(self, number: int) -> bytes | None:
        return self.source.payload(number)

    def stripped(self, row: Row) -> Row:
        for strip in self.strips.get(row[0], ()):
            row = strip(row)
        return row
