"""How a capture went: what was asked for, when its phases began and ended, how it ended.

Reads  the events of a capture's life.
Gives  one small record, replaced field by field as the capture goes on.
Rule   a branch has the header of the capture it left and its own: its own gives name, tags, kind and wall time,
       the first one the time that durations count from.
Not    what the forward did (graph.py).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs

from journal.events import (
    CaptureCalled,
    CaptureRequested,
    CaptureSettled,
    ExceptionTraced,
    ForwardAborted,
    ForwardHalted,
    ForwardInterrupted,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    OpExecuted,
    OpLeft,
    OpRaised,
    OpStarted,
    Plain,
    StreamOpened,
)
from projections.folds.fold import Fold

Status: TypeAlias = Literal["complete", "halted", "aborted_nonfinite", "failed", "interrupted", "unfinished"]


@attrs.define(slots=True)
class Course:
    """What the course fold has made so far."""

    name: str | None = None
    tags: tuple[str, ...] = ()
    kind: str = "capture"
    written_by: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    wall_time_ns: int = 0
    backend: str = ""
    model_class: str = ""
    model_qualname: str = ""
    options: tuple[tuple[str, Plain], ...] = ()
    save: str = ""
    stop_after: str | None = None
    random_seed: int | None = None
    mode: int | None = None
    opened_ns: int | None = None
    requested_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    settled_ns: int | None = None
    status: Status = "unfinished"
    started_at: int | None = None  # events by number
    ended_at: int | None = None
    halted_at: int | None = None
    halt_reason: str | None = None
    nonfinite: tuple[int, int, int, int] | None = None  # event, value, NaN and infinite elements of what aborted it
    error_type: str | None = None
    error_message: str | None = None
    raised_ops: int = 0  # calls that raised, whether or not the model went on
    raised_calls: int = 0
    last_started: int | None = None  # event of the last announced call, where calls are announced
    in_progress: tuple[int, ...] = ()  # events of the announced calls that have not ended, outermost first
    last_executed: int | None = None  # event of the last torch call that returned
    raised: int | None = None  # event of the call that raised, until the forward is seen to go on
    torch_restored: bool | None = None
    called_at: int | None = None  # event that tells where the capture was asked for
    traced_at: int | None = None  # event that tells the way of what ended the forward
    raised_call: int | None = None  # innermost module call that was left by an exception, until the forward goes on


def stream_opened(
    course: Course,
    at: int,
    type_id: int,
    time_ns: int,
    kind: str,
    label: str | None,
    tags: tuple[str, ...],
    _parent: int | None,
    _branched_at: int | None,
    wall_time_ns: int,
    written_by: str,
    environment: tuple[tuple[str, str], ...],
) -> None:
    course.kind = kind
    course.name = label
    course.tags = tags
    course.wall_time_ns = wall_time_ns
    course.written_by = written_by
    course.environment = tuple([(name, value) for name, value in environment])
    if course.opened_ns is None:  # a branch's header comes after events of another process, perhaps, and its clock
        course.opened_ns = time_ns


def capture_requested(
    course: Course,
    at: int,
    type_id: int,
    time_ns: int,
    backend: str,
    model_class: str,
    model_qualname: str,
    options: tuple[tuple[str, Any], ...],
    save: str,
    stop_after: str | None,
) -> None:
    course.backend = backend
    course.model_class = model_class
    course.model_qualname = model_qualname
    course.options = tuple([(name, value) for name, value in options])
    course.save = save
    course.stop_after = stop_after
    course.requested_ns = time_ns


def forward_started(
    course: Course,
    at: int,
    type_id: int,
    time_ns: int,
    _args: Any,
    _kwargs: Any,
    _inputs: Any,
    mode: int,
    random_seed: int | None,
) -> None:
    course.mode = mode
    course.random_seed = random_seed
    course.started_ns = time_ns
    course.started_at = at


def end(course: Course, status: Status, at: int, time_ns: int) -> None:
    course.status = status
    course.ended_at = at
    course.ended_ns = time_ns


def forward_returned(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    end(course, "complete", at, time_ns)


def forward_halted(course: Course, at: int, type_id: int, time_ns: int, _at: int, reason: str, _outputs: Any) -> None:
    end(course, "halted", at, time_ns)
    course.halted_at = _at
    course.halt_reason = reason


def forward_aborted(
    course: Course, at: int, type_id: int, time_ns: int, _at: int, value: int, num_nan: int, num_inf: int
) -> None:
    end(course, "aborted_nonfinite", at, time_ns)
    course.nonfinite = (_at, value, num_nan, num_inf)


def forward_raised(course: Course, at: int, type_id: int, time_ns: int, exception: str, message: str) -> None:
    end(course, "failed", at, time_ns)
    course.error_type = exception
    course.error_message = message


def forward_interrupted(course: Course, at: int, type_id: int, time_ns: int, exception: str) -> None:
    end(course, "interrupted", at, time_ns)
    course.error_type = exception


def capture_settled(course: Course, at: int, type_id: int, time_ns: int, torch_restored: bool) -> None:
    course.settled_ns = time_ns
    course.torch_restored = torch_restored


def capture_called(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.called_at = at


def exception_traced(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.traced_at = at


def op_started(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.last_started = at
    course.in_progress = (*course.in_progress, at)
    course.raised = course.raised_call = None


def op_executed(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.last_executed = at
    course.raised = course.raised_call = None
    if course.in_progress:
        course.in_progress = course.in_progress[:-1]


def op_left(course: Course, at: int, type_id: int, time_ns: int, _started: int) -> None:
    course.in_progress = course.in_progress[:-1]


def op_raised(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.raised_ops += 1
    course.raised = at
    course.raised_call = None
    course.in_progress = course.in_progress[:-1]


def module_went_on(course: Course, at: int, type_id: int, time_ns: int, *_rest: Any) -> None:
    course.raised = course.raised_call = None


def module_raised(course: Course, at: int, type_id: int, time_ns: int, call: int, _exception: str) -> None:
    course.raised_calls += 1
    if course.raised_call is None:
        course.raised_call = call


COURSE: Final = Fold(
    "course",
    version=3,
    initial=Course,
    handlers={
        StreamOpened: stream_opened,
        CaptureRequested: capture_requested,
        CaptureCalled: capture_called,
        ExceptionTraced: exception_traced,
        ForwardStarted: forward_started,
        ForwardReturned: forward_returned,
        ForwardHalted: forward_halted,
        ForwardAborted: forward_aborted,
        ForwardRaised: forward_raised,
        ForwardInterrupted: forward_interrupted,
        CaptureSettled: capture_settled,
        OpStarted: op_started,
        OpExecuted: op_executed,
        OpLeft: op_left,
        OpRaised: op_raised,
        ModuleEntered: module_went_on,
        ModuleLeft: module_went_on,
        ModuleRaised: module_raised,
    },
)
