"""How a capture ended, told from its journal alone, and the call it ended in.

Reads  the tables of the capture and of its backward passes, and what single events tell of a call
       (reading/calls_made.py).
Gives  a ``Postmortem``.
Rule   no source file is read and no torch is needed: the process that died may have been on another machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from journal import StreamInfo
from journal.lease import writing_process
from torchlens.journals.journal_view import JournalView, holds_none, open_journal
from torchlens.reading.calls_made import CallMade, Place, call_at, failure_of, place_of
from torchlens.reading.facade import Trace

__all__ = ["PassBegun", "Postmortem", "postmortem"]

ADVICE: Final = 'capture with tl.JournalOptions(path, durability="event") to know the call that a process dies in'


@attrs.frozen
class PassBegun:
    """A backward pass that had not ended.

    Attributes:
        pass_index: Its number, from 1.
        trigger: What began it.
        around: Numbers of the passes that it was begun inside of, outermost first.
        place: Where it was asked for through the trace; None for plain torch calls.
        num_fired: How many nodes had fired in it.
        last_fired: Label of the last node that fired, in it or before it in a pass around it; None where none had.
    """

    pass_index: int
    trigger: str
    around: tuple[int, ...]
    place: Place | None
    num_fired: int
    last_fired: str | None

    def __str__(self) -> str:
        return f"backward pass {self.pass_index}, begun by {self.trigger}"


@attrs.frozen
class Postmortem:
    """How a capture ended.

    Attributes:
        path, capture, name, model: Which capture it is: its number among those of the journal, and what it is of.
        status: ``complete``, ``halted``, ``aborted_nonfinite``, ``failed``, ``interrupted``, or ``unfinished``: its
            process died, or runs.
        is_settled: Whether the capture came to its own end: after the forward, all is put back and decided.
        writer: The process that writes the journal now, where the capture may still be going on; None otherwise.
        is_started: Whether the forward had begun.
        is_announced: Whether calls were announced before they were made, as ``durability="event"`` does.
        call: The call in progress at the end, or the one that raised; None where there was none, or it is not known.
        raised_in: Labels of the module calls in which something was raised that ended the forward, the root's first.
        raised_at: From the root's forward to the line that raised it; () where nothing did, or that is not known.
        around: The calls in progress that ``call`` was made inside of, outermost first.
        last_op: The last call that had returned.
        backward: The backward pass in progress at the end, the innermost of several; None where all had ended.
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
    is_settled: bool
    writer: int | None
    is_started: bool
    is_announced: bool
    call: CallMade | None
    raised_in: tuple[str, ...]
    raised_at: tuple[Place, ...]
    around: tuple[CallMade, ...]
    last_op: CallMade | None
    backward: PassBegun | None
    halt_reason: str | None
    error_type: str | None
    error_message: str | None
    num_events: int
    opened_ns: int
    last_ns: int

    @property
    def died(self) -> bool:
        """Whether the process ended before the capture did."""
        return (self.status == "unfinished" or self.backward is not None) and self.writer is None

    @property
    def is_well(self) -> bool:
        """Whether nothing went wrong, as far as one can see."""
        ended_well = self.status in ("complete", "halted") and self.is_settled and self.backward is None
        return ended_well or self.writer is not None

    @property
    def verdict(self) -> str:
        """How it ended, in a sentence without its full stop."""
        if self.backward is not None:
            return self.said_of_backward(self.backward)
        if self.status in ("complete", "halted") and not self.is_settled:
            return self.said_of_cleanup()
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
        if not self.is_started:
            return f"the capture was ended before its forward began, by {error}"
        if self.call is None:
            where = f", raised at {self.raised_at[-1]}" if self.raised_at else ""
            return f"the forward was ended by {error}, which no torch call had raised{where}"
        raised = ": ".join(filter(None, (self.call.raised, self.call.message)))
        end = "" if raised == error else f"; the forward was ended by {error}"
        return f"{self.call.function} raised {raised}{end}"

    def said_of_cleanup(self) -> str:
        ended = "the forward returned" if self.status == "complete" else "the forward was left on purpose"
        if self.writer is not None:
            return f"{ended}, and process {self.writer} may be ending the capture"
        return f"{ended}, but the capture did not come to its end: what follows was interrupted or failed"

    def said_of_backward(self, begun: PassBegun) -> str:
        last = "before a node had fired" if begun.last_fired is None else f"after {begun.last_fired} had fired"
        if self.writer is not None:
            return f"process {self.writer} writes this journal: {begun} may be going on, {last}"
        return f"the process died in {begun}, {last}, the last node that was committed"

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
    return told(view.trace(info), view.path, number, writer, is_last=is_last)


def asked_for(view: JournalView, capture: int | str | None) -> tuple[int, StreamInfo, bool]:
    """Number and stream of the capture that is meant, and whether it is the last one."""
    streams = view.capture_streams
    if not streams:
        raise holds_none(view.path)
    info = streams[-1] if capture is None else view.chosen(capture)
    return streams.index(info), info, info == streams[-1]


def told(trace: Trace, path: str, number: int, writer: int | None, *, is_last: bool) -> Postmortem:
    """What the records of a capture tell, and the process that wrote its journal just before they were read.

    Only the last capture may be running its forward; a backward pass may run over any.
    """
    fact = trace.tables.fact
    head = trace.tables.head
    first = next(trace.events(0, 1))
    last = next(trace.events(head - 1, head))
    since = fact("wall_time_ns") - first.time_ns
    status, settled, in_progress = fact("status"), fact("is_settled"), fact("calls_in_progress")
    calls = [call_at(trace, event) for event in in_progress] if status == "unfinished" else []
    executed = fact("last_executed_event")
    failure = None if fact("error_type") is None else failure_of(trace)
    backward = pass_begun(trace)
    call = calls[-1] if calls else None if failure is None else failure.call
    return Postmortem(
        path=path,
        capture=number,
        name=fact("name"),
        model=fact("model_class_name"),
        status=status,
        is_settled=settled,
        writer=writer if backward is not None or (is_last and (status == "unfinished" or not settled)) else None,
        is_started=fact("started_event") is not None,
        is_announced=fact("last_started_event") is not None,
        call=call,
        raised_in=() if failure is None else failure.modules,
        raised_at=() if failure is None else failure.places,
        around=tuple(calls[:-1]),
        last_op=None if executed is None else call_at(trace, executed),
        backward=backward,
        halt_reason=fact("halt_reason"),
        error_type=fact("error_type"),
        error_message=fact("error_message"),
        num_events=head,
        opened_ns=fact("wall_time_ns"),
        last_ns=since + last.time_ns,
    )


def pass_begun(trace: Trace) -> PassBegun | None:
    """The innermost backward pass whose end is not told."""
    passes, calls = trace.tables.backward_passes, trace.tables.grad_fn_calls
    row = next((row for row in reversed(range(len(passes))) if passes.value("closed_event", row) < 0), None)
    if row is None:
        return None
    around: list[int] = []
    outer = passes.value("outer_row", row)
    while outer >= 0:
        around.append(outer)
        outer = passes.value("outer_row", outer)
    fired = [max(calls_in, default=-1) for calls_in in (passes.value("call_rows", one) for one in (row, *around))]
    last = max(fired)
    frame = passes.value("backward_call_context", row)
    return PassBegun(
        pass_index=row + 1,
        trigger=passes.value("trigger", row),
        around=tuple([one + 1 for one in reversed(around)]),
        place=None if frame is None else place_of(trace, frame),
        num_fired=len(passes.value("call_rows", row)),
        last_fired=None if last < 0 else calls.value("call_label", last),
    )
