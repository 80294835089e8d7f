"""One whole capture: prepared, run, ended one of five ways, put back, settled.

The only place that sees both the writing side and the projections: values whose wanting depends on final
labels are held during the forward, and asked about when it has ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import torch
from torch import Tensor

from journal import JournalError
from journal.events import (
    At,
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
    OptimizerGiven,
    PayloadKept,
    StreamId,
    StreamOpened,
    Value,
)
from journal.lifecycle import CaptureState
from journal.protocol import Journal, StreamWriter
from projections.selecting.selector import Selector
from torchlens import collector, compat, turns
from torchlens.backward.diary import ForwardLeft
from torchlens.backward.triggers import Backwards
from torchlens.capture import checkpoints as checkpointing
from torchlens.capture import wrap
from torchlens.capture.budget import Budget
from torchlens.capture.changing import ChangingKeeper, MeasuringKeeper
from torchlens.capture.checkpoints import Checkpoints, Evidence
from torchlens.capture.facts import modes_around
from torchlens.capture.handlers import Handlers
from torchlens.capture.inputs import argument_names, copied
from torchlens.capture.keeping import Keeper
from torchlens.capture.model import DescribedModel, FunctionModel, Instrumented, describe
from torchlens.capture.outside import Outside
from torchlens.capture.places import calling, described_classes, described_function, frame_at, way_of
from torchlens.capture.plan import Plan, request_failed, runs_code
from torchlens.capture.recorder import GivenUp, Halt, Recorder
from torchlens.capture.replayable import (
    ReplayableRecorder,
    ReplayableThorough,
    ReplayableThoroughWitness,
    ReplayableWitness,
)
from torchlens.capture.saved import saved_for_backward
from torchlens.capture.sweep import Sweep
from torchlens.capture.template import encode, leaves, path_of
from torchlens.capture.thorough import Copies, ThoroughRecorder, ThoroughWitness
from torchlens.capture.witness import Nonfinite, WitnessRecorder
from torchlens.copying import each_element
from torchlens.errors import CaptureError, CompatibilityError, SelectionError, message_of
from torchlens.generators import seeded
from torchlens.handles import Handles
from torchlens.options import CaptureOptions, SaveOptions
from torchlens.reading.facade import MISSING, Trace
from torchlens.reading.records import Op
from torchlens.stood import Stood
from torchlens.tracing.left import Why, class_of, problem_of
from torchlens.tracing.request import Request
from torchlens.tracing.requested import unmatched
from torchlens.undoing import undo
from torchlens.version import VERSION

__all__ = ["BACKEND", "Captured", "capture", "environment", "wrapped"]

BACKEND: Final = "torch"

LATER: Final = frozenset(name for name in dir(Op) if not name.startswith("_")) - {
    *("out", "grad", "grads", "gradient_records", "input_activations", "trace", "row", "read", "about", "table_name")
}
"""What a predicate may ask of a finished op: all it tells but values."""


@attrs.define(slots=True)
class Captured:
    """What a capture leaves behind."""

    stream: StreamId
    handles: Handles
    backwards: Backwards | None = None  # None where the capture did not come to its end
    output: Any = MISSING  # what the model returned, where its forward came to its end
    error: Exception | None = None  # what the model raised
    refusal: JournalError | None = None  # what the journal could not take
    num_unstored: int = 0  # payloads of these
    stopped: bool = False
    aborted: bool = False  # a value was not finite, and the request forbids that
    has_graph: bool = False  # whether what ran or was returned is on an autograd graph, where backward_ready asks that
    kept_any: bool = False  # whether any payload was kept
    given_up: Why | None = None  # why the forward was left, where the save request could not be served
    unmatched: tuple[Selector, ...] = ()  # texts and positions of the save request that name no op


_numbers = iter(range(1, sys.maxsize))
_kept_on = 0


def _in_forked_child() -> None:
    """A child forked while a capture ran in another thread has neither that thread nor its capture."""
    turns.leave_child()
    checkpointing.leave_child()
    wrap.leave_child(keep_wrappers=bool(_kept_on))


os.register_at_fork(after_in_child=_in_forked_child)


def capture(journal: Journal, request: Request) -> Captured:
    """Run the model once with recording on.

    Raises:
        CaptureError: ``reentrant_trace``, inside a running capture of this thread, or of one whose forward has
            started this thread. A capture in any other thread is waited for.
        CompatibilityError: ``autograd_memory_unavailable``, where it is to be measured and torch does not tell it.
    """
    if request.options.measure_autograd_memory and not compat.TELLS_SAVED:
        raise CompatibilityError(
            code="autograd_memory_unavailable",
            problem="this version of torch shows no saved tensor without unpacking it, which may compute it again",
            remedy="leave out measure_autograd_memory=True, or use a newer torch",
        )
    with turns.turn(), collector.paused():
        return _capture(journal, request)


@contextlib.contextmanager
def wrapped() -> Iterator[None]:
    """Keep torch's wrappers in place across the captures inside, so that each saves putting them on and off.

    Between captures a wrapped function tests one name and calls the original.
    """
    global _kept_on  # counts nested contexts
    _kept_on += 1
    try:
        with contextlib.nullcontext() if turns.is_within() else turns.turn():
            if not wrap.wrappers().installed:
                wrap.wrappers().install()
        yield
    finally:
        _kept_on -= 1
        if not _kept_on and turns.is_free():
            undo([wrap.wrappers().remove])


def _capture(journal: Journal, request: Request) -> Captured:
    requested = _requested(request)  # what raises here leaves no stream behind
    writer = journal.open_stream(opening(request.name, request.tags))
    writer.is_patient = True  # a full disk is no reason to leave a forward half way
    try:
        writer.append(requested)
        captured = _run(journal, writer, request)
    except BaseException as error:
        with contextlib.suppress(JournalError):  # what ended the capture is told, and closing is tried again
            if writer.state in (CaptureState.PREPARING, CaptureState.RUNNING):
                _tell_left(writer, error)
            writer.close()
        raise
    try:
        writer.close()
    except JournalError as exc:
        captured.refusal = exc
    captured.num_unstored = writer.num_unstored
    if writer.num_unstored:
        captured.refusal = captured.refusal or writer.refusal
    return captured


def _tell_left(writer: StreamWriter, error: BaseException) -> None:
    """End a capture that was left by no event: what raised is not the model, but what prepares its forward."""
    if isinstance(error, Exception):
        writer.append(ForwardRaised(exception=path_of(type(error)), message=message_of(error)))
    else:
        writer.append(ForwardInterrupted(exception=path_of(type(error))))
    writer.append(CaptureSettled(torch_restored=_is_restored()))


def _is_restored() -> bool:
    return wrap.are_gone() or bool(_kept_on)


def opening(label: str | None, tags: tuple[str, ...]) -> StreamOpened:
    """The event that opens the stream of a capture which this process makes now."""
    return StreamOpened(
        kind="capture",
        label=label,
        tags=tags,
        parent=None,
        branched_at=None,
        wall_time_ns=time.time_ns(),
        written_by=VERSION,
        environment=environment(),
    )


def environment() -> tuple[tuple[str, str], ...]:
    """Versions and platform of this process, as a stream tells them."""
    return (
        ("python", platform.python_version()),
        ("torch", str.__str__(torch.__version__)),  # plain text: it is a class of its own
        ("platform", sys.platform),
    )


def _run(journal: Journal, writer: StreamWriter, request: Request) -> Captured:
    options = request.options
    described = describe(request.model, also_called=request.also_called)
    writer.append(described.event)
    keeper = _keeper(writer, request, on_disk=journal.path is not None)
    plan = Plan(request.save, described.names, described.buffer_addresses, LATER, request.stop)
    copies = Copies(writer.reserve, None if journal.path is None else writer.store)
    recorder = _recorder(writer, keeper, plan, options, copies, described)
    if request.follows_every_run:
        recorder.most_nodes = sys.maxsize  # asked for explicitly: every node is looked at
    handles = Handles(keeper.pins, recorder.nodes, keeper.reserved, recorder.functions, copies.held)
    captured = Captured(writer.stream, handles)
    stood = Stood(described.parameters), Stood(described.buffers)
    of_inputs = 0
    _tell_source(recorder, described, request)
    checkpoints = Checkpoints(recorder)
    with seeded(options.random_seed), torch.no_grad() if options.inference_only else contextlib.nullcontext():
        with compat.NoTorchFunction():
            args, kwargs, parameters = copied(request.args, request.kwargs)
            paths = argument_names(_forward_of(request), len(args))
            # Held, so that the memory of one that the model lets go of is not taken for another's.
            given = list(leaves((args, kwargs), deep=True)) if options.measure_autograd_memory else []
        with _watched(request, described, recorder, checkpoints) as watched:
            try:
                with compat.NoTorchFunction():
                    _take_inputs(recorder, request, args, kwargs, paths, parameters)
                    of_inputs = len(recorder.nodes)
                if recorder.halt is not None:
                    raise recorder.halt
                if recorder.leaving is not None:
                    raise GivenUp(recorder.leaving)
                output = _called(recorder, request.forward, args, kwargs)
                with compat.NoTorchFunction():
                    _returned(recorder, output)
                captured.output = output
            except Nonfinite as found:
                captured.aborted = True
                writer.append(
                    ForwardAborted(
                        at=At(found.at),
                        value=Value(found.value),
                        num_nan=found.num_nan,
                        num_inf=found.num_inf,
                    )
                )
            except Halt as halt:
                writer.append(ForwardHalted(at=At(halt.at), reason=halt.reason, outputs=halt.outputs))
                with compat.NoTorchFunction():
                    recorder.ended(halt.results)
            except GivenUp as given_up:
                kind = path_of(class_of(given_up.why))
                writer.append(ForwardRaised(exception=kind, message=problem_of(given_up.why)))
            except Exception as error:  # noqa: BLE001  # whatever the model raises is the caller's to see
                captured.error = error
                recorder.tell_failed_elsewhere(error)
                _tell_way(recorder, error)
                writer.append(ForwardRaised(exception=path_of(type(error)), message=message_of(error)))
            except BaseException as error:
                writer.append(ForwardInterrupted(exception=path_of(type(error))))
                raise
            checkpoints.tell_end()
            stood[0].add(recorder.parameters[len(described.parameters) :])
            stood[0].digests, stood[1].digests = map(dict, recorder.state_digests)
            handles.adopt(watched.modules, described.buffer_names, stood, recorder.outside)
            if options.optimizer is not None:
                recorder.note(_stepped(options.optimizer, recorder.parameters))
    captured.stopped = plan.stopping is not None
    if options.measure_autograd_memory:
        owned = {"parameter": described.parameters, "buffer": described.buffers, "input": [one for _, one in given]}
        with compat.NoTorchFunction():
            for event in saved_for_backward(recorder.nodes, recorder.first_node, owned):
                writer.append(event)
    _settle(journal, writer, recorder, plan, captured)
    captured.backwards = _backwards(journal, writer.stream, recorder, handles, request, checkpoints.evidence)
    if options.backward_ready:
        returned = (tensor.requires_grad for _, tensor in leaves(captured.output, deep=True))
        captured.has_graph = len(recorder.nodes) > of_inputs or any(returned)
    captured.kept_any = keeper.kept_any
    captured.given_up = recorder.leaving
    keeper.let_go()
    plan.let_go()
    return captured


def _backwards(
    journal: Journal,
    stream: StreamId,
    recorder: Recorder,
    handles: Handles,
    request: Request,
    evidence: Evidence,
) -> Backwards:
    """What will record the backward passes of a capture whose forward has ended."""
    options = request.options
    left = ForwardLeft(
        journal,
        stream,
        recorder.nodes,
        recorder.first_node,
        compat.sequence_number(),
        handles.parameters,
        recorder.leaves,
        handles.copies,
        evidence,
    )
    without = None
    if options.inference_only:
        without = "it was captured with inference_only=True"
    elif compat.inference_enabled():
        without = "it was captured under torch.inference_mode()"
    elif not compat.grad_enabled():
        without = "it was captured under torch.no_grad()"
    return Backwards(
        left,
        is_wanted=request.follows_backward,
        is_standing=request.follows_every_run,
        has_census=options.backward_ready is True and compat.HAS_RUNNING_NODE,
        without_graph=without,
    )


def _keeper(writer: StreamWriter, request: Request, *, on_disk: bool) -> Keeper:
    """What keeps payloads as the request says."""
    how, options = request.how, request.options
    store = writer.store if on_disk else None
    detach, budget = options.detach_saved_activations, Budget(options.save_budget)  # type: ignore[arg-type]  # validated
    change = _change(how)
    if request.only_statistics:
        return MeasuringKeeper(
            writer.reserve, None, detach=detach, budget=budget, copies=False, device=None, change=None, raw=False
        )
    if change is None and how.device is None and how.mode == "reference":
        return Keeper(writer.reserve, store, detach=detach, holding=request.holding, budget=budget)
    return ChangingKeeper(
        writer.reserve,
        store,
        detach=detach,
        holding=request.holding,
        budget=budget,
        copies=how.mode == "copy",
        device=how.device,
        change=change,
        raw=how.raw,
        connected=options.backward_ready is True,
    )


def _change(how: SaveOptions) -> Callable[[Tensor], Any] | None:
    """What is made of each activation; None for nothing."""
    transform, dtype = how.transform, how.dtype
    if dtype is None:
        return transform

    def change(tensor: Tensor) -> Any:
        made = tensor if transform is None else transform(tensor)
        if isinstance(made, Tensor) and made.is_floating_point():
            return each_element(made, lambda elements: compat.to(elements, dtype))
        return made

    return change


def _recorder(
    writer: StreamWriter,
    keeper: Keeper,
    plan: Plan,
    options: CaptureOptions,
    copies: Copies,
    described: DescribedModel,
) -> Recorder:
    """The plain recorder, unless the request asks for what costs more."""
    witnesses = options.verify_capture or options.raise_on_nan is not False
    keeps = options.save_arg_values or options.save_rng_states
    asked: dict[str, Any] = {"flight": writer.chunk_size == 1}
    if witnesses:
        asked["verify"] = options.verify_capture
        asked["forbidden"] = {False: None, True: "nonfinite", "nan": "nan"}[options.raise_on_nan]
    if keeps:
        asked["copies"] = copies if options.save_arg_values else None
        asked["generators"] = options.save_rng_states
    if options.replayable:
        asked["constants"] = copies
        asked["transient"] = described.transient_buffers
        asked["modules"] = described.modules
        asked["outside"] = Outside(described.modules)
    kind: Callable[..., Recorder] = RECORDERS[options.replayable, keeps, witnesses]
    return kind(next(_numbers), writer, keeper, plan, compat.sequence_number(), **asked)


RECORDERS: Final = {
    (False, False, False): Recorder,
    (False, True, False): ThoroughRecorder,
    (False, False, True): WitnessRecorder,
    (False, True, True): ThoroughWitness,
    (True, False, False): ReplayableRecorder,
    (True, True, False): ReplayableThorough,
    (True, False, True): ReplayableWitness,
    (True, True, True): ReplayableThoroughWitness,
}
"""What listens, by whether the capture is to be run again, keeps what calls were given, and looks at operators."""


def _stepped(optimizer: Any, parameters: list[Tensor]) -> OptimizerGiven:
    """Which of the parameters an optimizer steps."""
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return OptimizerGiven(
        class_qualname=path_of(type(optimizer)),
        parameters=tuple(number for number, parameter in enumerate(parameters) if id(parameter) in ids),
    )


def _requested(request: Request) -> CaptureRequested:
    kind = type(request.model)
    named: Any = request.model.fn if isinstance(request.model, FunctionModel) else kind
    name = getattr(named, "__name__", type(named).__name__)
    return CaptureRequested(
        backend=BACKEND,
        model_class=name,
        model_qualname=f"{getattr(named, '__module__', kind.__module__)}.{getattr(named, '__qualname__', name)}",
        options=tuple(
            (field.name, encode(value, _nothing))
            for field in attrs.fields(CaptureOptions)
            if field.name != "save_grads" and (value := getattr(request.options, field.name)) != field.default
        )
        + _gradients_requested(request.save_grads_text),
        save=request.save_text,
        stop_after=None if request.stop is None else request.stop.text,
    )


def _gradients_requested(text: str | None) -> tuple[tuple[str, Any], ...]:
    """The option, as stored: True for all gradients, else the text of what was asked for; nothing for none."""
    return () if text is None else (("save_grads", True if text == "True" else text),)


def _tell_source(recorder: Recorder, described: DescribedModel, request: Request) -> None:
    """Say where the capture was asked for and, on request, what the source says of the modules' classes."""
    caller = calling()
    if caller is not None:
        recorder.note(CaptureCalled(frame=frame_at(caller.f_code, caller.f_lasti)))
    if not request.options.save_code_context:
        return
    if caller is not None:
        recorder.sites.see(caller.f_code)
    if isinstance(request.model, FunctionModel):
        recorder.note(described_function(request.model.fn))
    else:
        for told in described_classes(described.modules):
            recorder.note(told)


def _tell_way(recorder: Recorder, error: BaseException) -> None:
    """Say through which lines of the model an exception came, and keep the text of these functions."""
    way = way_of(error, lambda code: code is _called.__code__)
    if way:
        for code, _ in way:
            recorder.sites.see(code)
        recorder.note(ExceptionTraced(frames=tuple(frame_at(*place) for place in way)))


@contextlib.contextmanager
def _watched(
    request: Request, described: DescribedModel, recorder: Recorder, checkpoints: Checkpoints
) -> Iterator[Instrumented]:
    """Wrappers on torch and on the model; on every way out all is as it was."""
    wrappers = wrap.wrappers()
    sweep = Sweep(takes=request.options.replayable)
    handlers, starts = Handlers(), turns.Starts()
    enters_root = request.forward == request.model.__call__
    instrumented = Instrumented(
        described,
        recorder,
        enters_root=enters_root,
        found=sweep.over_model,
        tells_source=request.options.save_code_context,
    )
    if request.options.verify_capture:
        compat.load_compiler()
    noted = compat.compiler_notes()
    limit = sys.getrecursionlimit()
    deeper = limit * 3 + 500
    try:
        sys.setrecursionlimit(deeper)  # each call of the model is some frames deeper here
        if not wrappers.installed:
            wrappers.install()
        sweep.over_globals()
        sweep.over_model(described.modules)
        if isinstance(request.model, FunctionModel):
            sweep.over_function(vars(request.model), "fn")
        instrumented.install()
        handlers.install()
        checkpoints.install()
        starts.install()
        yield instrumented
    finally:

        def leave_torch() -> None:
            if not _kept_on and wrappers.dirty:
                wrappers.remove()
            if not wrappers.dirty:
                compat.note_anew(table for name, table in compat.compiler_notes().items() if name not in noted)

        def leave_limit() -> None:
            if sys.getrecursionlimit() == deeper:
                sys.setrecursionlimit(limit)

        steps = (
            functools.partial(wrap.listen, None),
            starts.restore,
            checkpoints.restore,
            handlers.restore,
            instrumented.restore,
            sweep.restore,
            leave_torch,
            lambda: sweep.put_back(instrumented.modules),
            leave_limit,
        )
        try:
            undo(steps)
        except Exception as error:
            raise CaptureError(
                code="restoring_failed",
                problem=f"the forward has ended, and not all could be put back: {type(error).__name__}: "
                f"{message_of(error)}",
                remedy="see the cause; make the model anew before it is used again",
            ) from error


def _called(recorder: Recorder, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The forward, with every wrapped call heard."""
    wrap.listen(recorder)
    try:
        with recorder.watching():
            return recorder.module_called(0, forward, args, kwargs)
    except Exception:
        if recorder.left is not None:  # caught by the model, which made something else of it
            raise recorder.left from None
        raise
    finally:
        wrap.listen(None)
        recorder.tell_of_others()


def _nothing(tensor: Tensor) -> None:
    return None


def _take_inputs(
    recorder: Recorder,
    request: Request,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    paths: list[tuple[str | int, ...]],
    parameters: set[int],
) -> None:
    """Give every tensor of the arguments its value number and say that the forward starts."""
    for path, item in zip(paths, args, strict=True):
        for where, tensor in leaves(item, path, deep=True):
            recorder.take_input(tensor, where, was_parameter=id(tensor) in parameters)
    for name, item in kwargs.items():
        for where, tensor in leaves(item, (name,), deep=True):
            recorder.take_input(tensor, where, was_parameter=id(tensor) in parameters)
    inputs: list[int] = []
    template, named = recorder.take(args, kwargs, inputs, [])
    recorder.note(
        ForwardStarted(
            args=template,
            kwargs=named,
            inputs=tuple(inputs),
            mode=modes_around(),
            random_seed=request.options.random_seed,
        )
    )


def _forward_of(request: Request) -> Callable[..., Any]:
    """The function whose signature names the arguments, before it is wrapped."""
    if isinstance(request.model, FunctionModel):
        return request.model.fn
    return request.model.forward if request.forward == request.model.__call__ else request.forward


def _returned(recorder: Recorder, result: Any) -> None:
    """Say what the forward returned, with the tensors in it, also those inside a cache object."""
    outputs: list[tuple[int, Tensor]] = []
    paths: list[tuple[Any, ...]] = []
    for path, tensor in leaves(result, deep=True):
        outputs.append((recorder.returned(tensor), tensor))
        paths.append(path)
    values = tuple(value for value, _ in outputs)
    recorder.note(ForwardReturned(result=encode(result, _nothing), outputs=values, paths=tuple(paths)))
    recorder.ended(outputs)


def _settle(journal: Journal, writer: StreamWriter, recorder: Recorder, plan: Plan, captured: Captured) -> None:
    """Decide what was held for want of final labels, then end the stream."""
    recorder.tell_made()
    for value, payload in plan.kept_at_exit.items():
        if payload is not None:
            writer.append(PayloadKept(value=Value(value), payload=payload))
    undecided = recorder.held - plan.kept_at_exit.keys()
    if plan.selector is not None and undecided:
        finished = Trace(journal, writer.stream)
        values = finished.table("ops").column("value")
        try:
            rows = plan.selector.rows(finished.tables, finished.records)
        except Exception as error:  # a label of several passes, say, or what a predicate raises
            if not isinstance(error, SelectionError) and not runs_code(plan.selector):
                raise
            captured.error = captured.error or request_failed(error, plan.selector)
            rows = ()
        recorder.settle(values[row] for row in rows)
        captured.unmatched = tuple(unmatched(plan.selector, finished.tables))
    writer.append(CaptureSettled(torch_restored=_is_restored()))
