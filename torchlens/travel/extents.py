"""The tensors of a capture in the order of its events, each with how far its elements reach.

Reads  events with values, kept arguments and observed gradients; of each what was kept of it, once.
Gives  ``Seen``, one after the other.
Rule   what a call was given comes before what it returned. Statistics are taken as they are; a payload is read when the
       first tensor that lies in it comes, for all that do. One tensor at a time is in memory.
Note   a parameter has no event: its elements are known from the kept arguments of a call, or while it lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from journal import JournalError
from journal.events import (
    ArgumentsKept,
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    GradientObserved,
    InputSeen,
    ModuleEntered,
    OpExecuted,
    PreHooksStarted,
    ValueReread,
)
from projections.details import DTYPE, OUTPUTS, PAYLOAD, SHAPE, field
from projections.errors import over_events
from projections.forward import Forward
from projections.graph import IDENTITY, OUTPUT
from projections.retention import plain_ref
from torchlens.errors import PayloadUnavailableError
from torchlens.reading.view import View, no_torch

__all__ = ["Extents", "Kind", "Seen"]

Kind: TypeAlias = Literal["value", "argument", "gradient"]

SINGLE: Final = {cls.type_id for cls in (InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten)}
CALLED: Final = {cls.type_id for cls in (ModuleEntered, PreHooksStarted)}
OP: Final = OpExecuted.type_id
OBSERVED: Final = GradientObserved.type_id
FIRST: Final = field(OpExecuted, "first")
TENSORS: Final = field(ArgumentsKept, "tensors")


class Seen(NamedTuple):
    """A tensor, when it was seen."""

    event: int
    kind: Kind
    number: int  # of the value, the place among the arguments, or which observed gradient
    extent: Any  # torchlens.measuring.Extent; None where nothing was kept of it, or it cannot be looked at


class Extents:
    """How far the tensors of a capture reach.

    Args:
        view: The capture.

    Raises:
        PayloadUnavailableError: ``torch_not_installed``.
    """

    def __init__(self, view: View) -> None:
        try:
            from torchlens import measuring  # for cost: records are read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        self.view: Final = view
        self.forward: Final[Forward] = view.tables.forward
        self.measuring: Final = measuring
        self.ahead: dict[int, Any] = {}  # by value, of those that lie in a payload that was read
        self.shared: Final = shared_payloads(self.forward)
        self.num_read = 0  # payloads

    def seen(self) -> Iterator[Seen]:
        """Every tensor that an event tells of."""
        forward, at, gradient = self.forward, 0, 0
        kept_arguments = forward.beside.arguments
        for run in forward.source.rows(0, forward.head):
            for row in run:
                kind = row[0]
                if kept_arguments and (kind == OP or kind in CALLED) and at in kept_arguments:
                    yield from self.arguments(at, kept_arguments[at])
                if kind == OP:
                    for slot, described in enumerate(row[OUTPUTS]):
                        yield Seen(at, "value", row[FIRST] + slot, self.of_value(row[FIRST] + slot, described))
                elif kind in SINGLE:
                    yield Seen(at, "value", row[2], self.of_value(row[2], row[-1]))
                elif kind == OBSERVED:
                    yield Seen(at, "gradient", gradient, self.of_gradient(gradient))
                    gradient += 1
                at += 1

    def arguments(self, at: int, told: int) -> Iterator[Seen]:
        for place, kept in enumerate(self.forward.source.row(told)[TENSORS]):
            yield Seen(at, "argument", place, None if kept is None else self.of_kept(kept))

    def of_value(self, value: int, described: Any) -> Any:
        """Of a value, from its description."""
        forward = self.forward
        if value in forward.measured:
            return self.of_figures(forward.measured[value])
        if value in self.ahead:
            return self.ahead.pop(value)
        ref = forward.payloads.get(value, described[PAYLOAD])
        if ref is None:
            return None
        ref = plain_ref(ref)
        handles = self.view.handles
        try:
            held = None if handles is None else handles.tensor(value)
        except PayloadUnavailableError:  # overwritten since
            held = None
        if held is not None:
            self.num_read += 1
            return self.measuring.extent_of(held)
        return self.of_stored(value, ref, described[DTYPE], tuple(described[SHAPE]))

    def of_stored(self, value: int, ref: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Of stored bytes, which are read once for all values that lie in them."""
        from torchlens.tensors import from_payload  # for cost: records are read without torch

        self.num_read += 1
        try:
            with over_events():
                data = self.view.journal.payload(self.view.stream, ref[0])
                found = self.measuring.extent_of(from_payload(data, dtype, shape, *ref[1:]))
                for other, (_, *place), kind, sizes in self.shared.pop(ref[0], ()):
                    if other != value:
                        self.ahead[other] = self.measuring.extent_of(from_payload(data, kind, sizes, *place))
        except (PayloadUnavailableError, JournalError) as exc:
            if exc.code == "events_contradictory":
                raise
            return None  # not stored, lost, or damaged
        return found

    def of_gradient(self, gradient: int) -> Any:
        """Of an observed gradient."""
        autograd = self.forward.autograd
        if gradient in autograd.figures:
            return self.of_figures(autograd.figures[gradient])
        ref = autograd.payloads[gradient]
        shape, dtype, _ = autograd.like(gradient)
        return None if ref is None else self.of_kept((ref, shape, dtype))

    def of_kept(self, kept: Any) -> Any:
        return self.read(lambda: self.view.kept(kept))

    def of_figures(self, figures: Any) -> Any:
        return None if figures is None else self.measuring.Extent(*figures[:5])

    def read(self, tensor: Any) -> Any:
        """Of what reading gives; None where it is not to be had any more."""
        self.num_read += 1
        try:
            return self.measuring.extent_of(tensor())
        except (PayloadUnavailableError, JournalError) as exc:
            if exc.code == "events_contradictory":
                raise
            return None


def shared_payloads(forward: Forward) -> dict[int, list[tuple[int, Any, str, tuple[int, ...]]]]:
    """By payload in which several values lie, these: value, reference, dtype and shape."""
    refs, found = forward.payload_refs, dict[int, int]()
    shared: dict[int, list[tuple[int, Any, str, tuple[int, ...]]]] = {}
    for row, ref in enumerate(refs):
        if ref is None or forward.rows.function[row] in (OUTPUT, IDENTITY):  # these show the value of another row
            continue
        first = found.setdefault(ref[0], row)
        if first != row:
            for each in (first, row) if ref[0] not in shared else (row,):
                brief, value = forward.detail(each).brief, forward.rows.value[each]
                shared.setdefault(ref[0], []).append((value, refs[each], str(brief.dtype), brief.shape or ()))
    return shared
