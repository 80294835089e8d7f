"""A torch call as it was begun, and the failure of a forward: told from single events, with places and their text.

Reads  what single events tell of a call (``projections.accounts.call_facts``); source text is a payload.
Gives  ``CallMade`` and ``Failure``.
Rule   no source file is read and no torch is needed: the process that died may have been on another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from journal.errors import JournalError
from journal.events import Frame
from projections.accounts.call_facts import CallFacts, TensorFacts, call_facts, module_labels
from projections.errors import over_events
from torchlens.printable import aligned, printable
from torchlens.reading.locations import innermost_own, location_of
from torchlens.reading.view import View

__all__ = ["CallMade", "Failure", "Place", "call_at", "failure_of", "place_of", "places_of"]


@attrs.frozen
class Place:
    """A line of source on the way to a call."""

    file: str
    line: int
    function: str  # qualified name
    text: str | None  # the line as it was when it ran, without indentation; None where it was not to be had

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@attrs.frozen
class CallMade:
    """A torch call that was begun."""

    function: str  # qualified name
    args: str  # the positional arguments as text, tensors by shape and dtype
    kwargs: str
    tensors: tuple[TensorFacts, ...]  # position or name, shape and dtype, as they were before the call
    settings: tuple[tuple[str, str], ...]  # position or name, and text, of each argument without a tensor
    modules: tuple[str, ...]  # labels of the module calls it was made in, the root's first
    places: tuple[Place, ...]  # from the root's forward to the line of the call
    begun_ns: int  # since the epoch
    event: int  # number in its stream of the event that tells of it
    label: str | None  # of the op it became; None where it became none, or one that nothing leads from or to yet
    raised: str | None  # qualified class of what it raised
    message: str | None

    @property
    def module(self) -> str | None:
        """Label of the innermost module call it was made in."""
        return self.modules[-1] if self.modules else None

    @property
    def place(self) -> Place | None:
        """The line of the call itself."""
        return self.places[-1] if self.places else None

    def __str__(self) -> str:
        return f"{self.function}({', '.join(filter(None, (self.args, self.kwargs)))})"


@attrs.frozen
class Failure:
    """What ended a forward, and where.

    Attributes:
        error_type, error_message: What the forward was ended by; the message is None for an interrupt. Of one that was
            left at a value that is not finite, the type is ``nonfinite_value``.
        call: The torch call that raised, or returned that value; None where the model's own code raised.
        is_of_call: Whether what ended the forward is what the call raised or returned. Else the model raised something
            else after it, as code does that turns one error into another.
        modules: Labels of the module calls it happened in, the root's first.
        places: From the root's forward to the line that raised; () where that is not known.
    """

    error_type: str
    error_message: str | None
    call: CallMade | None
    is_of_call: bool
    modules: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def module(self) -> str | None:
        """Label of the innermost module call."""
        return self.modules[-1] if self.modules else None

    @property
    def place(self) -> Place | None:
        """The line that raised."""
        return self.places[-1] if self.places else None

    @property
    def user_place(self) -> Place | None:
        """The innermost line outside installed packages and Python's library; ``place`` where all are inside."""
        return innermost_own(self.places, lambda place: place.file)

    @property
    def said(self) -> str:
        """Where it happened, in one line: the call with its operands, the module call and the user's line."""
        call = "" if self.call is None else f"in {self.call}"
        module = "" if self.module is None else f"in module call {self.module!r}"
        place = "" if self.user_place is None else f"at {self.user_place}"
        return printable(", ".join(filter(None, (call, module, place))))

    @property
    def error(self) -> str:
        """Class and message."""
        return ": ".join(filter(None, (self.error_type, self.error_message)))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and texts, for people."""
        yield "error", self.error
        if self.call is not None:
            yield "call", str(self.call)
            for tensor in self.call.tensors:
                yield f"  {tensor.argument}", f"shape {tensor.shape}, {tensor.dtype}"
            if not self.is_of_call:
                yield "  raised", ": ".join(filter(None, (self.call.raised, self.call.message)))
        if self.modules:
            yield "in", " > ".join(self.modules)
        for number, place in enumerate(reversed(self.places)):
            yield ("called from" if number else "at"), str(place)
            if place.text is not None:
                yield "", f"  {place.text}"

    def __str__(self) -> str:
        with over_events():  # a message that is no text, in records that somebody made up
            return "\n".join(aligned(list(self.lines())))


def failure_of(trace: View) -> Failure | None:
    """What ended the forward of a trace; None where nothing did."""
    fact = trace.tables.fact
    kind = fact("error_type")
    stop = fact("nonfinite_stop")
    if stop is not None:
        left = call_at(trace, stop[0])
        said = f"{left.label or left.function} returned {fact('nonfinite_reason')}"
        return Failure("nonfinite_value", said, left, is_of_call=True, modules=left.modules, places=left.places)
    if kind is None:
        return None
    raised = fact("raised_event")
    call = None if raised is None else call_at(trace, raised)
    message = fact("error_message")
    places = places_of(trace, fact("error_frames"))
    inner = fact("raised_call_row")
    modules = module_labels(trace.tables.forward, inner) if inner >= 0 else ()
    if call is not None:
        modules, places = call.modules, places or call.places
    return Failure(
        error_type=kind,
        error_message=message,
        call=call,
        is_of_call=call is not None and (call.raised, call.message) == (kind, message),
        modules=modules,
        places=places,
    )


def call_at(trace: View, event: int) -> CallMade:
    """The call that the event of this number tells of."""
    tables = trace.tables
    since = tables.fact("wall_time_ns") - next(trace.events(0, 1)).time_ns
    return made_of(trace, call_facts(tables.forward, event, tables.orphans.context), since)


def made_of(trace: View, facts: CallFacts, since: int) -> CallMade:
    return CallMade(
        function=facts.func_qualname,
        args=facts.args,
        kwargs=facts.kwargs,
        tensors=facts.tensors,
        settings=facts.settings,
        modules=facts.modules,
        places=places_of(trace, facts.frames),
        begun_ns=since + facts.time_ns,
        event=facts.event,
        label=label_at(trace, facts.event),
        raised=facts.exception,
        message=facts.message,
    )


def places_of(trace: View, frames: tuple[Frame, ...]) -> tuple[Place, ...]:
    return tuple(place_of(trace, frame) for frame in frames)


def place_of(trace: View, frame: Frame) -> Place:
    location = location_of(trace, frame)
    try:
        text = location.call_line
    except JournalError:  # lost or damaged, as after a power cut
        text = None
    return Place(location.file, location.line_number, location.func_qualname, text)


def label_at(trace: View, event: int) -> str | None:
    """Label of the op that an event made, of its first result where it has several; None for one on an island."""
    ops = trace.tables.ops
    events: list[Any] = list(ops.column("event"))
    return ops.value("label", events.index(event)) if event in events else None
