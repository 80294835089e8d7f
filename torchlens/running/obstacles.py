"""What of a capture cannot be run again without the model's code, found before anything runs.

Reads  the program of a capture, and which payloads can be had.
Gives  one ``Diagnostic`` for each cause and place, in the order of the forward; none where it can be run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from journal.errors import JournalError
from journal.events import template as tag
from projections.columnar.arguments import is_whole, tagged
from projections.errors import over_events
from projections.source.sites import frames
from projections.structure.memory import Described, Executed
from projections.structure.program import Asked, BufferSet, Constant, Hidden, ParameterMade, Program, Step, program_of
from torchlens.errors import PayloadUnavailableError, RunCapabilityUnavailableError
from torchlens.reading.locations import innermost_own, location_of
from torchlens.reading.run_result import Diagnostic
from torchlens.reading.view import View
from torchlens.running.functions import ANSWERING, HANDING_OUT, function_of

__all__ = ["CAUSES", "place_of", "preflight", "program_for", "refusal"]

CAUSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "not_replayable": "the capture was made without CaptureOptions(replayable=True)",
        "trace_of_run": "it is the trace of a run; the capture that was run can be run again",
        "artifact_not_runnable": "the artifact was saved at a level that does not keep what a run needs",
        "forward_not_returned": "the forward did not come to its end",
        "missing_callable_ref": "a call ran code that is not torch's, or that this version of torch does not have",
        "unseen_tensor": "a tensor was made during the forward where no call was seen",
        "constant_not_kept": "a tensor from outside was not kept, or its bytes are not here",
        "argument_not_kept": "an argument was too large, too deep or too foreign to be kept",
        "generator_state_not_kept": "the state of a random generator is not here",
        "tensor_subclass": "a tensor has a class of its own, which may do anything",
        "hidden_write": "memory was written past torch, as through a NumPy array",
        "memory_exchanged": "a parameter or buffer was put on other memory through .data",
        "result_not_kept": "what the forward returned holds something that was not kept",
    }
)
"""What each cause means; docs/running.md lists them."""

MOST: Final = 64
"""Most places told."""

PLAIN_CLASSES: Final = frozenset((None, "torch.nn.parameter.Parameter"))


def preflight(view: View) -> list[Diagnostic]:
    """Why the capture cannot be run; [] where it can.

    At most 64 places are told.
    """
    with over_events():
        return found_in(view, program_for(view))


def program_for(view: View) -> Program:
    """The program of a capture, without the backward passes behind it."""
    forward = view.tables.forward
    return program_of(forward.source, view.tables.head)


def refusal(diagnostics: list[Diagnostic]) -> RunCapabilityUnavailableError:
    """The refusal of what would need to run this."""
    more = len(diagnostics) - 1
    return RunCapabilityUnavailableError(
        code="sparse_preflight_failed",
        problem=f"the recorded calls cannot be run without the model: {diagnostics[0]}"
        + (f"; and {more} more" if more else ""),
        remedy="capture with CaptureOptions(replayable=True) and without what fields['diagnostics'] names; "
        "trace.save(path) at another level keeps the records",
        diagnostics=tuple(diagnostics),
    )


def found_in(view: View, program: Program) -> list[Diagnostic]:
    if view.is_of_run:
        return [Diagnostic("trace_of_run", CAUSES["trace_of_run"], None, None)]
    if not view.has_option("replayable"):
        return [Diagnostic("not_replayable", CAUSES["not_replayable"], None, None)]
    if view.artifact is not None and not view.artifact.keeps("run_constant"):
        problem = f'{CAUSES["artifact_not_runnable"]}: "{view.artifact.level}"'
        return [Diagnostic("artifact_not_runnable", problem, None, None)]
    if view.artifact is not None and view.artifact.device is not None and view.artifact.device.type == "meta":
        problem = f"{CAUSES['constant_not_kept']}: all were put on map_location='meta', which keeps no elements"
        return [Diagnostic("constant_not_kept", problem, None, None)]
    if program.returned is None or program.started is None or program.witnessed is None:
        return [Diagnostic("forward_not_returned", CAUSES["forward_not_returned"], None, None)]
    found: list[Diagnostic] = []
    for code, problem, at, site in causes(view, program):
        found.append(Diagnostic(code, problem, at, place_of(view, site)))
        if len(found) >= MOST:
            break
    return found


Cause = tuple[str, str, "int | None", "int | None"]
"""Code, problem, event, call site."""


def causes(view: View, program: Program) -> Iterator[Cause]:
    for step in program.steps:
        yield from causes_of(view, program, step)
    assert program.returned is not None  # asked before
    lost = first_lost(program.returned[0])
    if lost is not None:
        yield "result_not_kept", f"{CAUSES['result_not_kept']}: {lost}", None, None


def causes_of(view: View, program: Program, step: Step) -> Iterator[Cause]:
    match step:
        case Executed():
            yield from causes_of_call(view, program, step)
        case Asked(exception=None):
            key = (step.func_name, step.func_qualname)
            if key not in HANDING_OUT and key not in ANSWERING and function_of(*key, step.opaque) is None:
                yield "missing_callable_ref", missing(step.func_qualname, step.opaque), step.at, step.site
            elif not all(map(is_whole, (*step.args, *step.kwargs))):
                yield "argument_not_kept", f"{step.func_qualname}: {CAUSES['argument_not_kept']}", step.at, step.site
        case Constant(inside=True):
            by = "" if step.made_by is None else f", by {step.made_by}"
            yield "unseen_tensor", CAUSES["unseen_tensor"] + by, step.at, None
        case Constant(at=at, value=value, like=like):
            if not is_kept(view, program, value):
                yield "constant_not_kept", f"{CAUSES['constant_not_kept']}: {shown(like)}", at, None
            yield from odd_class(like, at, None)
        case ParameterMade(number=number, source=None):
            if not is_kept(view, program, -1 - number):
                yield "constant_not_kept", f"{CAUSES['constant_not_kept']}: parameter {number}", step.at, None
        case BufferSet(source=None, how="reassign"):
            yield "memory_exchanged", CAUSES["memory_exchanged"], step.at, None
        case Hidden():
            yield "hidden_write", CAUSES["hidden_write"], step.at, None
        case _:
            pass


def causes_of_call(view: View, program: Program, call: Executed) -> Iterator[Cause]:
    at, site, path = call.event, program.sites.get(call.event), call.func_qualname
    kept_anyway = not call.inputs and all(
        is_kept(view, program, call.first + slot) for slot in range(len(call.outputs))
    )
    if not all(map(is_whole, (*call.args, *call.kwargs))):
        if not kept_anyway:
            yield "argument_not_kept", f"{path}: {CAUSES['argument_not_kept']}", at, site
    elif function_of(call.func_name, path, str(call.is_opaque) if call.is_opaque else None) is None:
        yield "missing_callable_ref", missing(path, str(call.is_opaque) if call.is_opaque else None), at, site
    if call.rng is not None and size_of(view, call.rng) is None:
        yield "generator_state_not_kept", f"{path}: {CAUSES['generator_state_not_kept']}", at, site
    for output in call.outputs:
        yield from odd_class(output, at, site)
    if call.writers is not None and any(
        writer is not None and number < 0 and is_moved(program, number, writer)
        for number, writer in zip(call.inputs, call.writers, strict=True)
    ):
        yield "memory_exchanged", CAUSES["memory_exchanged"], at, site


def is_moved(program: Program, number: int, writer: int) -> bool:
    """Whether a parameter's reader hangs on a value that did not write to its memory, and that it was not made of."""
    like = program.memory.describe(writer)
    if like is None or like.storage is None or writer in program.memory.writes.get(like.storage, ()):
        return False
    made = (step for step in program.steps if isinstance(step, ParameterMade))
    return all(step.number != -1 - number or step.source != writer for step in made)


def missing(path: str, opaque: str | None) -> str:
    return f"{path} is {opaque or 'no function that this version of torch has'}"


def odd_class(like: Described, at: int, site: int | None) -> Iterator[Cause]:
    if like.tensor_class not in PLAIN_CLASSES:
        yield "tensor_subclass", f"{CAUSES['tensor_subclass']}: {like.tensor_class}", at, site


def shown(like: Described) -> str:
    return f"{like.dtype} of shape {like.shape}"


def is_kept(view: View, program: Program, value: int) -> bool:
    """Whether what was kept of a value, or of a parameter by a negative number, can be had."""
    kept = program.constants.get(value)
    if kept is None:
        return False
    number = kept[0][0]
    if view.handles is not None and view.handles.copy(number) is not None:
        return True
    return size_of(view, number) is not None


def size_of(view: View, payload: int) -> int | None:
    try:
        return view.journal.payload_size(view.stream, payload)
    except (JournalError, PayloadUnavailableError):
        return None


LOST: Final[Mapping[int, str]] = {
    tag.LONG: "a long list",
    tag.LONG_TEXT: "a long text",
    tag.TEXT: "a text that is no UTF-8",
    tag.DEEP: "a container nested too deep",
    tag.BYTES: "bytes",
}
"""By tag, what is cut short: a result that holds such cannot be put together."""


def first_lost(template: Any) -> str | None:
    """What of a result was not kept, in words; None where everything was."""
    waiting = [template]
    while waiting:
        parts = tagged(waiting.pop())
        if parts and parts[0] in LOST:
            return LOST[parts[0]]
        if parts and parts[0] == tag.OPAQUE and str(parts[1:2]).startswith("('numpy.") and not is_whole(parts):
            return str(parts[1])
        waiting += parts[1:] if parts and parts[0] not in (tag.OPAQUE, tag.CALLABLE) else ()
    return None


def place_of(view: View, site: int | None) -> str | None:
    """A call site in words: "model.py:17 in Net.forward"; None where it is not known."""
    frame = innermost_own(frames(view.tables.forward.words, site), lambda frame: frame[0])
    if frame is None:
        return None
    place = location_of(view, frame)
    return f"{place.brief} in {place.func_qualname}"
