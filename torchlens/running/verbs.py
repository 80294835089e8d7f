"""``trace.run``, ``trace.readiness`` and ``trace.load_state_dict``."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple, get_args

import torch
from torch import Tensor

from projections.errors import over_events
from projections.structure.program import BufferRead, Program
from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import RUN, Function
from torchlens.errors import (
    CaptureOutcomeError,
    ConfigurationError,
    RunCapabilityUnavailableError,
    TorchLensWarning,
)
from torchlens.generators import seeded
from torchlens.options import require_switch, unavailable
from torchlens.reading.facade import Trace
from torchlens.reading.raw import raw_input
from torchlens.reading.run_result import Diagnostic, Draws, NumericAttestation, Readiness, RunReport, RunResult
from torchlens.reading.view import View, if_there
from torchlens.running.containers import rebuilt
from torchlens.running.contract import Bound, bound
from torchlens.running.doubts import doubts
from torchlens.running.executing import Call, Execution, Heard, calls_of
from torchlens.running.obstacles import found_in, program_for, refusal
from torchlens.running.retelling import Retelling
from torchlens.running.state import State, bound_state, embedded, sources_of, state_of
from torchlens.tensors import digest_of

__all__ = ["load_state_dict", "readiness", "require_runnable", "run"]


class Prepared(NamedTuple):
    """A capture that was looked at."""

    head: int
    program: Program
    calls: dict[int, Call]
    draws: bool
    diagnostics: list[Diagnostic]


_prepared: Final[weakref.WeakKeyDictionary[View, Prepared]] = weakref.WeakKeyDictionary()


def prepared(view: View) -> Prepared:
    """The program of a capture, looked up once."""
    tables = view.tables
    known = _prepared.get(view)
    if known is None or known.head != tables.head:
        with over_events():
            program = program_for(view)
            diagnostics = found_in(view, program)
            calls = {} if diagnostics else calls_of(program)
            known = _prepared[view] = Prepared(
                tables.head, program, calls, any(call.draws for call in calls.values()), diagnostics
            )
    return known


def readiness(view: View) -> Readiness:
    """Whether a trace can be run; see ``Trace.readiness``."""
    diagnostics = tuple(prepared(view).diagnostics)
    provider = "live" if view.handles is not None else "journal" if view.artifact is None else "artifact"
    with over_events():
        sources = sources_of(view)
    return Readiness("unavailable" if diagnostics else "ready", provider, sources, diagnostics)


def require_runnable(view: View) -> None:
    """Refuse to save what could not be run from where it is saved.

    Raises:
        RunCapabilityUnavailableError: ``halted_capture_not_runnable``, ``sparse_preflight_failed``.
        CaptureOutcomeError: ``capture_incomplete``, for a forward that did not come to its end.
    """
    status = view.tables.fact("status")
    if status == "halted":
        raise RunCapabilityUnavailableError(
            code="halted_capture_not_runnable",
            problem="the forward was left on purpose, so what would be run is not the whole of it",
            remedy='capture without stop_after=, or save at another level, such as "portable"',
        )
    if status != "complete":
        raise CaptureOutcomeError(
            code="capture_incomplete",
            problem=f"the forward did not come to its end ({status}), so there is nothing to run",
            remedy='capture again, or save at another level, such as "portable"',
            status=status,
        )
    diagnostics = prepared(view).diagnostics
    if diagnostics:
        raise refused_by(diagnostics) if view.is_of_run else refusal(diagnostics)


def load_state_dict(view: View, state_dict: Any) -> None:
    """Give the runs of a trace their parameters and buffers; see ``Trace.load_state_dict``."""
    with over_events():
        view.given_state = None if state_dict is None else bound_state(view, state_dict)


def run(
    view: View,
    model: Any,
    inputs: Any,
    input_kwargs: Mapping[str, Any] | None,
    *,
    seed: int | None,
    draws: str,
    strict: bool,
    fast: bool,
) -> RunResult:
    """Run the recorded calls; see ``Trace.run``. Within another capture that is one op, not watched inside."""
    listener = wrap.listening()
    if listener is not None and listener.is_listening():

        def again(inputs: Any, input_kwargs: Mapping[str, Any] | None) -> Any:
            made.append(run(view, model, inputs, input_kwargs, seed=seed, draws=draws, strict=strict, fast=fast))
            return made[0].output, dict(made[0].buffers)

        made: list[RunResult] = []
        function = Function("run", "torchlens.Trace.run", again, opaque=RUN)
        listener.applied(function, (inputs, input_kwargs), {}, False)
        return made[0]
    if model is not None:
        raise unavailable("model")
    require_switch("strict", strict)
    require_switch("fast", fast)
    require_seed(seed)
    if draws not in get_args(Draws):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"draws={draws!r} is none of {', '.join(get_args(Draws))}",
            remedy='pass "fresh", or "recorded" for the random numbers of the capture',
            argument="draws",
        )
    ready = prepared(view)
    if ready.diagnostics:
        raise refused_by(ready.diagnostics)
    program = ready.program
    args, kwargs = arguments(view, inputs, input_kwargs)
    with over_events():
        given = bound(program, args, kwargs)
        told = None if fast else Retelling(view, seed, recorded=draws == "recorded")
        try:
            with in_turn(view, seed, draws=ready.draws), seeded(seed):
                state = state_of(view, program, generator(seed))
                found = doubts(view, program, given, state, is_fresh=draws == "fresh")
                execution = Execution(
                    view,
                    program,
                    ready.calls,
                    inputs=given.tensors,
                    parameters=state.parameters,
                    buffers=state.buffers,
                    draws=draws,  # type: ignore[arg-type]  # looked at above
                    strict=strict,
                    doubt=next(iter(found), None),
                    heard=told or Heard(),
                )
                untouched = not found and is_as_captured(program, given) and state_digests(program, state)
                outputs = execution.run()
            report = report_of(view, program, given, state, execution, outputs, seed, untouched)
            output = output_of(program, outputs)
            words = view.tables.forward.words
            written = {words.buffers[number].address: execution.buffers[number] for number in execution.buffers_written}
            trace = None
            if report.path_faithfulness == "diverged":
                warn_diverged(report)
            elif told is not None:
                trace = told.trace(output)
        finally:
            if told is not None:
                told.close_unless_read()
    return RunResult(output, trace, report, written)


_drawing = threading.RLock()


def in_turn(view: View, seed: int | None, *, draws: bool) -> AbstractContextManager[object]:
    """Have other threads wait where a run draws random numbers or sets generators, which are the process's."""
    if draws or seed is not None or (view.handles is None and view.given_state is None and embedded(view) is None):
        return _drawing
    return nullcontext()


def leave_child() -> None:
    """In a forked child: the lock may have been held by a thread that is not here."""
    global _drawing
    _drawing = threading.RLock()


os.register_at_fork(after_in_child=leave_child)


def require_seed(seed: Any) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"seed={seed!r} is no whole number from 0 to 2**32 - 1",
            remedy="pass such a number, or None to draw from the generators as they stand",
            argument="seed",
        )


def refused_by(diagnostics: list[Diagnostic]) -> RunCapabilityUnavailableError:
    """Why a trace cannot be run: that it was not captured for that, or what is in the way."""
    if diagnostics[0].code == "trace_of_run":
        return RunCapabilityUnavailableError(
            code="run_capability_unavailable",
            problem=f"this trace cannot be run: {diagnostics[0].problem}",
            remedy="call run of the trace that gave this one",
        )
    if diagnostics[0].code not in ("artifact_not_runnable", "not_replayable"):
        return refusal(diagnostics)
    return RunCapabilityUnavailableError(
        code="run_capability_unavailable",
        problem=f"this trace cannot be run: {diagnostics[0].problem}",
        remedy="capture with capture=tl.CaptureOptions(replayable=True)"
        + (', and save with level="runnable"' if diagnostics[0].code == "artifact_not_runnable" else ""),
    )


def generator(seed: int | None) -> torch.Generator:
    """What random parameters are drawn from: one of the seed's own, else torch's, which then moves on."""
    return torch.default_generator if seed is None else torch.Generator().manual_seed(seed)


def arguments(view: View, inputs: Any, input_kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the forward is given: what the caller gives, or what the capture was given, if that was kept.

    Raises:
        ConfigurationError: ``run_input_missing``, ``input_kwargs_type_invalid``.
    """
    from torchlens.tracing.request import arguments as split  # for cost: it brings the writing side

    if inputs is not None or input_kwargs is not None:
        return split(inputs, input_kwargs)
    known = if_there(lambda: raw_input(view))
    if known is None:
        raise ConfigurationError(
            code="run_input_missing",
            problem="no inputs were given, and the capture's own were not kept",
            remedy="pass inputs=, as the second argument of tl.trace",
        )
    return tuple(known.args), dict(known.kwargs)


def is_as_captured(program: Program, given: Bound) -> bool:
    """Whether a run is given, bit for bit, what the capture was given."""
    witnessed = program.witnessed
    if witnessed is None:
        return False
    return all(
        digest is not None and value in given.originals and digest_of(given.originals[value]) == digest
        for value, digest in witnessed.inputs.items()
    )


def state_digests(program: Program, state: State) -> bool:
    """Whether parameters and buffers are, bit for bit, those that the capture began with."""
    witnessed = program.witnessed
    assert witnessed is not None  # asked before
    read = {step.buffer for step in program.steps if isinstance(step, BufferRead) and step.version == 1}
    return all(is_known(witnessed.parameters.get(number), one) for number, one in state.parameters.items()) and all(
        number in state.buffers and is_known(witnessed.buffers.get(number), state.buffers[number]) for number in read
    )


def is_known(digest: str | None, tensor: Tensor) -> bool:
    """Whether a tensor has the elements that a digest is of; not where there is none, as of a sparse one."""
    return digest is not None and digest_of(tensor) == digest


def report_of(
    view: View,
    program: Program,
    given: Bound,
    state: State,
    execution: Execution,
    outputs: list[Tensor],
    seed: int | None,
    untouched: bool,
) -> RunReport:
    assert program.witnessed is not None  # preflight would have refused
    assert program.returned is not None
    draws: Draws | None = execution.draws if execution.has_drawn else None
    words = view.tables.forward.words
    return RunReport(
        path_faithfulness=execution.faithfulness,
        numeric_attestation=attestation(program, outputs, is_same=untouched and draws != "fresh"),
        state_source=state.source,
        seed=seed,
        draws=draws,
        num_checks=given.num_checks + execution.num_checks,
        divergence=execution.divergence,
        buffers_written=tuple(words.buffers[number].address for number in execution.buffers_written),
    )


def attestation(program: Program, outputs: list[Tensor], *, is_same: bool) -> NumericAttestation:
    assert program.witnessed is not None
    assert program.returned is not None
    if not is_same:
        return "not_applicable"
    known = [program.witnessed.outputs.get(value) for value in program.returned[1]]
    if None in known:
        return "not_present"
    with compat.NoTorchFunction():
        found = [digest_of(tensor) for tensor in outputs]
    return "attested" if found == known else "numeric_attestation_failed"


def output_of(program: Program, outputs: list[Tensor]) -> Any:
    assert program.returned is not None
    assert program.witnessed is not None
    template, _, paths = program.returned
    by_path = {tuple(path): tensor for path, tensor in zip(paths, outputs, strict=True)}
    return rebuilt(template, by_path, program.witnessed.containers)


def warn_diverged(report: RunReport) -> None:
    warnings.warn(
        TorchLensWarning(
            code="run_path_diverged",
            problem=f"the model would not have gone the recorded way with these inputs: {report.divergence}",
            remedy="the result is that of the recorded path; capture the model anew, or pass strict=True to refuse",
        ),
        stacklevel=4,
    )


OWN_CODE.update((run.__code__, Trace.run.__code__))
