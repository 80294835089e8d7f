"""Where each value is described, and which values tell what was written to the memory it lies in.

Reads  InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten, OpExecuted, FunctionSeen, PayloadKept.
Gives  ``Memory``: descriptions by value, values that stand for a write by storage, calls by event.
Rule   a result that is one of the arguments its call wrote tells what that memory holds from then on; so does a buffer
       version that was written.
Not    bytes: a description names the payload, and whoever has tensors puts them together (``torchlens``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from journal.events import (
    DESCRIPTION,
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    FunctionSeen,
    InputSeen,
    OpExecuted,
    PayloadKept,
    PayloadRef,
    Row,
    ValueReread,
)
from projections.errors import contradictory
from projections.folds.fold import Source
from projections.folds.retention import plain_ref
from projections.structure.details import OUTPUTS, field


class Described(NamedTuple):
    """A value's tensor without its elements; the fields are those of ``DESCRIPTION``."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    layout: str | None
    strides: tuple[int, ...] | None
    offset: int
    storage: int | None
    view_of: int | None
    same_as: int | None
    requires_grad: bool
    grad_fn: str | None
    grad_slot: int | None
    grad_node: int | None
    path: tuple[Any, ...]
    payload: PayloadRef | None
    tensor_class: str | None


class Executed(NamedTuple):
    """One call as its event tells it, the function by name."""

    event: int
    func_name: str
    func_qualname: str
    is_opaque: bool
    mode: int
    args: tuple[Any, ...]
    kwargs: tuple[Any, ...]
    inputs: tuple[int, ...]
    writers: tuple[int | None, ...] | None
    written: tuple[int, ...]
    first: int
    outputs: tuple[Described, ...]
    autocast: tuple[tuple[str, str], ...]
    rng: int | None


class Lazy(NamedTuple):
    """What a tensor does to its elements when they are read: torch conjugates and negates by a mark on the tensor."""

    conjugates: bool = False
    negates: bool = False


PLAIN: Final = Lazy()

CONJUGATES: Final = frozenset(("conj", "_conj", "H", "mH", "adjoint"))
"""Functions whose result, where it shares the memory of a complex argument, reads it conjugated."""


def described(description: Sequence[Any]) -> Described:
    """A stored description with its fields by name."""
    if len(description) != len(DESCRIPTION):
        raise contradictory("a value is not described in full")
    made = Described(*description)
    strides = None if made.strides is None else tuple(made.strides)
    payload = None if made.payload is None else plain_ref(made.payload)
    return made._replace(shape=tuple(made.shape), strides=strides, path=tuple(made.path), payload=payload)


ENDS_IN_DESCRIPTION: Final = {cls.type_id for cls in (InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten)}
NAME: Final = field(FunctionSeen, "func_name")
QUALNAME: Final = field(FunctionSeen, "qualname")
IS_OPAQUE: Final = field(FunctionSeen, "opaque")
SOURCE: Final = field(BufferWritten, "source")
OP: Final = OpExecuted.type_id
FUNCTION: Final = FunctionSeen.type_id
WRITTEN: Final = BufferWritten.type_id
KEPT: Final = PayloadKept.type_id


class Memory:
    """Values, the memory they lie in, and calls, of the first ``head`` events of a stream.

    Args:
        source: The stream.
        head: Number of events taken into account; all of them by default.
    """

    def __init__(self, source: Source, head: int | None = None) -> None:
        self.source: Final = source
        self.calls: Final[list[int]] = []  # events of the calls, in order
        self.places: Final[dict[int, tuple[int, int]]] = {}  # by value: its event, and its position among the results
        self.kept: Final[dict[int, PayloadRef]] = {}  # payloads that were kept after the value's own event
        self.functions: Final[list[tuple[str, str, bool]]] = []
        self.writes: Final[dict[int, list[int]]] = {}  # by storage: the values that stand for a write, ascending
        self.versions: Final[dict[int, list[int]]] = {}  # by source value: the buffer versions written by it
        self.lazy: Final[dict[int, Lazy]] = {}  # by value, where it is not plain
        at = 0
        for run in source.rows(0, source.head() if head is None else head):
            for row in run:
                self.take(at, row)
                at += 1

    def take(self, at: int, row: Row) -> None:
        kind: int = row[0]
        if kind == OP:
            call = self.read(at, row)
            self.calls.append(at)
            for slot, output in enumerate(call.outputs):
                self.places[call.first + slot] = (at, slot)
                if output.view_of is not None:
                    self.views(call.func_name, output, call.first + slot)
                if output.same_as is not None and output.same_as in call.written:
                    self.wrote(output.storage, call.first + slot)
        elif kind in ENDS_IN_DESCRIPTION:
            value: int = row[2]
            self.places[value] = (at, -1)
            if kind == WRITTEN:
                self.wrote(described(row[-1]).storage, value)
                source: int | None = row[SOURCE]
                if source is not None:
                    self.versions.setdefault(source, []).append(value)
        elif kind == FUNCTION:
            self.functions.append((row[NAME], row[QUALNAME], row[IS_OPAQUE]))
        elif kind == KEPT:
            self.kept[row[2]] = plain_ref(row[3])

    def views(self, func_name: str, output: Described, value: int) -> None:
        """A result that shares memory reads it as its argument does, but for a few functions."""
        assert output.view_of is not None
        before = made = self.lazy.get(output.view_of, PLAIN)
        if func_name in CONJUGATES and output.dtype.startswith("complex"):
            made = before._replace(conjugates=not before.conjugates)
        elif func_name == "_neg_view":
            made = before._replace(negates=not before.negates)
        elif func_name in ("real", "imag") and before.conjugates:
            made = Lazy(negates=before.negates != (func_name == "imag"))
        if made != PLAIN:
            self.lazy[value] = made

    def wrote(self, storage: int | None, value: int) -> None:
        if storage is not None:
            self.writes.setdefault(storage, []).append(value)

    def read(self, at: int, row: Row) -> Executed:
        """A call from its row."""
        given: dict[str, Any] = dict(zip(OpExecuted.fields, row[2:], strict=True))
        if not 0 <= given["function"] < len(self.functions):
            raise contradictory("a call of a function that no event tells of")
        name, path, opaque = self.functions[int(given["function"])]
        return Executed(
            event=at,
            func_name=name,
            func_qualname=path,
            is_opaque=opaque,
            mode=given["mode"],
            args=given["args"],
            kwargs=given["kwargs"],
            inputs=tuple(given["inputs"]),
            writers=None if given["writers"] is None else tuple(given["writers"]),
            written=tuple(given["written"] or ()),
            first=given["first"],
            outputs=tuple(map(described, given["outputs"])),
            autocast=tuple(given["autocast"] or ()),
            rng=given["rng"],
        )

    def call(self, at: int) -> Executed:
        """The call of an event."""
        return self.read(at, self.source.row(at))

    def executed(self) -> Iterator[Executed]:
        """Every call, in order."""
        return map(self.call, self.calls)

    def describe(self, value: int) -> Described | None:
        """What is known of a value; None where no event tells of it."""
        place = self.places.get(value)
        if place is None:
            return None
        at, slot = place
        row = self.source.row(at)
        if slot < 0:
            found = described(row[-1])
        else:
            found = described(row[OUTPUTS][slot])
        late = self.kept.get(value)
        return found if late is None else found._replace(payload=late)

    def writes_between(self, storage: int, after: int, before: int) -> list[int]:
        """The values that stand for a write to this memory, made after one value and before another."""
        values = self.writes.get(storage, [])
        return values[bisect_right(values, after) : bisect_left(values, before)]

    def versions_by(self, call: Executed) -> list[int]:
        """Buffer versions that a call wrote."""
        made = range(call.first, call.first + len(call.outputs))
        return [version for value in made for version in self.versions.get(value, ())]
