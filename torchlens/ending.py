"""How a capture ended, told from its journal alone, and the call it ended in.

Reads  the capture table, and what single events tell of a call (``projections.call_facts``); source text is a payload.
Gives  a ``Postmortem``.
Rule   no source file is read and no torch is needed: the process that died may have been on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import attrs

from journal import JournalError, StreamInfo
from journal.lease import writing_process
from projections.call_facts import CallFacts, TensorFacts, call_facts
from projections.sites import Frame
from torchlens.facade import Trace
from torchlens.journal_view import JournalView, open_journal

__all__ = ["CallMade", "Place", "Postmortem", "postmortem"]

ADVICE: Final = 'capture with tl.JournalOptions(path, durability="event") to know the call that a process dies in'


@attrs.frozen
class Place:
    """A line of source on the way to a call."""

    file: str
    line: int
    function: str  # qualified name
    text: str | None  # the line as it was when it ran, without indentation; None where it was not to be had


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
class Postmortem:
    """How a capture ended.

    Attributes:
        path, capture, name, model: Which capture it is: its number among those of the journal, and what it is of.
        status: ``complete``, ``halted``, ``aborted_nonfinite``, ``failed``, ``interrupted``, or ``unfinished``: its
            process died, or runs.
        writer: The process that writes the journal now, where the capture may still be going on; None otherwise.
        is_announced: Whether calls were announced before they were made, as ``durability="event"`` does.
        call: The call in progress at the end, or the one that raised; None where there was none, or it is not known.
        around: The calls in progress that ``call`` was made inside of, outermost first.
        last_op: The last call that had returned.
        halt_reason: Why the forward was left on purpose; None otherwise.
        error_type, error_message: What the forward was ended by; None where by nothing.
        num_events: How many events there are.
        opened_ns, last_ns: When the capture was opened, and its last event; since the epoch.
    """

    path: str
    capture: int
    name: str | None
    model: str
    status: str
    writer: int | None
    is_announced: bool
    call: CallMade | None
    around: tuple[CallMade, ...]
    last_op: CallMade | None
    halt_reason: str | None
    error_type: str | None
    error_message: str | None
    num_events: int
    opened_ns: int
    last_ns: int

    @property
    def died(self) -> bool:
        """Whether the process ended before the capture did."""
        return self.status == "unfinished" and self.writer is None

    @property
    def is_well(self) -> bool:
        """Whether nothing went wrong, as far as one can see."""
        return self.status in ("complete", "halted") or self.writer is not None

    @property
    def verdict(self) -> str:
        """How it ended, in a sentence without its full stop."""
        if self.status == "complete":
            return "the capture is complete: the forward returned"
        if self.status == "halted":
            return f"the forward was left on purpose: {self.halt_reason}"
        if self.status == "aborted_nonfinite":
            where = "" if self.last_op is None else f", after {self.last_op.function}"
            return f"the forward was left at a value that is not finite{where}"
        if self.status in ("failed", "interrupted"):
            return self.said_of_error()
        if self.writer is not None:
            where = "" if self.call is None else f", and is in {self.call.function}"
            return f"process {self.writer} writes this journal: the capture may be going on{where}"
        return self.said_of_death()

    def said_of_error(self) -> str:
        error = ": ".join(filter(None, (self.error_type, self.error_message)))
        if self.call is None:
            return f"the forward was ended by {error}, which no torch call had raised"
        raised = ": ".join(filter(None, (self.call.raised, self.call.message)))
        end = "" if raised == error else f"; the forward was ended by {error}"
        return f"{self.call.function} raised {raised}{end}"

    def said_of_death(self) -> str:
        if self.call is not None:
            return f"the process died in {self.call.function}"
        if self.is_announced:
            return "the process died between two calls, in code that is not recorded"
        if self.last_op is None:
            return f"the process died before a call was committed, the first one if calls are announced; {ADVICE}"
        last = self.last_op.function
        return f"the process died after {last}, the last call committed; the one after it is not known: {ADVICE}"


def postmortem(path: str | os.PathLike[str], capture: int | str | None = None) -> Postmortem:
    """Tell how a capture ended and, where its process died or a call raised, which call it was in.

    Args:
        path: Directory of the journal.
        capture: Its number among the captures of the journal, from the end if negative, or its name; the last one by
            default.

    Raises:
        JournalError: ``journal_holds_none``, ``capture_unknown``, ``capture_ambiguous``, and what opening a
            journal raises.
    """
    with open_journal(path) as view:
        found = looked_at(view, capture)
        # A writer that ended, or began, while its capture was being read looks dead at the first look.
        return looked_at(view, capture) if found.died else found


def looked_at(view: JournalView, capture: int | str | None) -> Postmortem:
    writer = writing_process(Path(view.path))  # asked before reading: what is read is then at least as old
    number, info, is_last = asked_for(view, capture)
    return told(view.trace(info), view.path, number, writer if is_last else None)


def asked_for(view: JournalView, capture: int | str | None) -> tuple[int, StreamInfo, bool]:
    """Number and stream of the capture that is meant, and whether it is the last one."""
    streams = view.capture_streams
    if not streams:
        raise JournalError(
            code="journal_holds_none",
            problem=f"the journal {view.path!r} holds no capture",
            remedy="give a journal that a capture was written to",
            path=view.path,
            captures=0,
        )
    info = streams[-1] if capture is None else view.chosen(capture)
    return streams.index(info), info, info == streams[-1]


def told(trace: Trace, path: str, number: int, writer: int | None) -> Postmortem:
    """What the records of a capture tell, and the process that wrote its journal just before they were read."""
    fact = trace.tables.fact
    head = trace.tables.head
    first = next(trace.events(0, 1))
    last = next(trace.events(head - 1, head))
    since = fact("wall_time_ns") - first.time_ns
    status, in_progress, raised = fact("status"), fact("calls_in_progress"), fact("raised_event")

    def made(event: int) -> CallMade:
        return call_made(trace, call_facts(trace.tables.forward, event, trace.tables.orphans.context), since)

    calls = [made(event) for event in in_progress] if status == "unfinished" else []
    executed = fact("last_executed_event")
    call = made(raised) if raised is not None else calls[-1] if calls else None
    return Postmortem(
        path=path,
        capture=number,
        name=fact("name"),
        model=fact("model_class_name"),
        status=status,
        writer=writer if status == "unfinished" else None,
        is_announced=fact("last_started_event") is not None,
        call=call,
        around=tuple(calls[:-1]),
        last_op=None if executed is None else made(executed),
        halt_reason=fact("halt_reason"),
        error_type=fact("error_type"),
        error_message=fact("error_message"),
        num_events=head,
        opened_ns=fact("wall_time_ns"),
        last_ns=since + last.time_ns,
    )


def call_made(trace: Trace, facts: CallFacts, since: int) -> CallMade:
    return CallMade(
        function=facts.func_qualname,
        args=facts.args,
        kwargs=facts.kwargs,
        tensors=facts.tensors,
        settings=facts.settings,
        modules=facts.modules,
        places=tuple(place_of(trace, frame) for frame in facts.frames),
        begun_ns=since + facts.time_ns,
        event=facts.event,
        label=label_at(trace, facts.event),
        raised=facts.exception,
        message=facts.message,
    )


def place_of(trace: Trace, frame: Frame) -> Place:
    file, line, _, function, first_line, _ = frame
    try:
        text = trace.source_text(file, first_line, function)
    except JournalError:  # lost or damaged, as after a power cut
        text = None
    lines = [] if text is None else text.split("\n")
    at = line - first_line
    return Place(file, line, function, lines[at].strip() if 0 <= at < len(lines) else None)


def label_at(trace: Trace, event: int) -> str | None:
    """Label of the op that an event made, of its first result where it has several; None for one on an island."""
    ops = trace.tables.ops
    events: list[Any] = list(ops.column("event"))
    return ops.value("label", events.index(event)) if event in events else None
