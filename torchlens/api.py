"""The public verbs: a request to the driver (tracing/request.py makes it), a stream to a ``Trace``."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
from torch import nn

from journal import Journal, JournalError
from projections.selecting.selector import Selector
from torchlens import compat
from torchlens.capture.facts import Facts
from torchlens.capture.plan import Stop
from torchlens.errors import ConfigurationError, SelectionError, TorchLensError, TorchLensWarning
from torchlens.options import (
    CaptureOptions,
    DiskStorage,
    JournalOptions,
    SaveOptions,
    StatisticsOnly,
    require_switch,
    unavailable,
)
from torchlens.reading.facade import Trace
from torchlens.reading.failed import TraceCaptureError, TraceJournalError
from torchlens.reading.recording import GradientsAsked, Recording
from torchlens.tracing import driver
from torchlens.tracing.choosing import policies_of
from torchlens.tracing.left import error_of, stopped
from torchlens.tracing.request import (
    Request,
    arguments,
    gradients_text,
    holding_of,
    journal_of,
    model_of,
    name_of,
    new_journal,
    refuse_variants,
    selection_of,
    stop_of,
    tags_of,
    text_of,
)
from torchlens.tracing.requested import what_there_is

__all__ = ["record", "trace", "wrapped"]

wrapped = driver.wrapped

OnForwardError: TypeAlias = Literal["raise", "return_partial"]

DEFAULTS: Final = CaptureOptions()

ROUTES: Final = (("capture=", CaptureOptions, ""), ("save=", SaveOptions, ""), ("journal=", JournalOptions, "path, "))
"""Where the options stand that are no keywords of a verb: keyword, class, and what comes first in it."""


def trace(
    model: nn.Module | Callable[..., Any],
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    capture: CaptureOptions | None = None,
    save: Any = None,
    stop_after: str | Selector | Callable[[Facts], bool] | None = None,
    journal: str | os.PathLike[str] | JournalOptions | None = None,
    backend: str | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    storage: DiskStorage | None = None,
    intervene: Any = None,
    **unrouted: Any,
) -> Trace:
    """Run the model once and record every torch call of the forward pass.

    Args:
        model: A module, a method of one, or a plain function of tensors.
        input_args: The positional arguments: one tensor, or a list or tuple of arguments. Tensors are
            copied, and the copies stay on the caller's autograd graph.
        input_kwargs: The keyword arguments.
        capture: How to capture; see ``CaptureOptions``.
        save: Which activations are kept: None or ``"all"`` every one, ``[]`` or ``"none"`` none, else a
            selector, a label (of a layer: all its passes), a module address, part of a label, a position in
            ``trace.ops``, a predicate over ``Facts``, or a list of these. What can only be told by final
            labels is held until the forward has ended. ``SaveOptions`` says how they are kept too, and
            ``tl.stats_only(...)`` keeps statistics of them in their place.
        stop_after: Leave the forward right after a module (by address), a function (by name), or the
            first op that a selector or predicate matches.
        journal: Directory to append this capture to, or ``JournalOptions``; in memory by default.
        backend: ``"torch"`` or None.
        name: Name of the trace.
        tags: Words to find it by.
        storage: ``tl.to_disk(path)`` streams kept activations to a new journal and holds none in memory.
        intervene: Refused until edits are available.

    Returns:
        The trace. ``trace.output`` is what the model returned.

    Raises:
        TraceCaptureError: ``model_raised``, when the model raised; ``exc.partial_trace`` holds what came
            before, and the model's exception is the cause. ``nonfinite_value``, when ``raise_on_nan`` stopped it.
        ConfigurationError: A keyword or option is not accepted; the code says which.
        CompatibilityError: This kind of model or tensor cannot be captured.
        SaveBudgetExceededError: ``save_budget_exceeded``; ``exc.partial_trace`` holds what came before.
        SaveTransformError: ``save_transform_failed``; likewise.
        CaptureError: ``reentrant_trace``, inside another capture of this thread, or in a thread that its forward
            started.
        JournalError: The journal cannot be written, seen before the model ran.
        TraceJournalError: A ``JournalError`` that was met while the model ran, which went on; ``exc.partial_trace``
            holds the capture.

    Example:
        >>> import torch, torchlens as tl
        >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> trace.ops.labels
        ('input_1', 'linear_1_1', 'output_1')
    """
    return _traced(
        model,
        input_args,
        input_kwargs,
        unrouted,
        follows_backward=True,
        capture=capture,
        save=save,
        stop_after=stop_after,
        journal=journal,
        backend=backend,
        name=name,
        tags=tags,
        storage=storage,
        intervene=intervene,
    )


def _traced(
    model: Any,
    input_args: Any,
    input_kwargs: Any,
    unrouted: Mapping[str, Any],
    *,
    follows_backward: bool,
    capture: CaptureOptions | None,
    save: Any,
    stop_after: Any,
    journal: Any,
    backend: str | None,
    name: str | None,
    tags: Sequence[str],
    storage: DiskStorage | None,
    intervene: Any = None,
) -> Trace:
    """What ``trace`` gives; backward passes are recorded where ``follows_backward`` says so."""
    _refuse_unrouted(unrouted)
    if intervene is not None:
        raise unavailable("intervene")
    _refuse_settings(backend, capture)
    only_statistics = isinstance(save, StatisticsOnly)
    how = save if isinstance(save, SaveOptions) else SaveOptions(save.select if only_statistics else save)
    root, forward, also_called = model_of(model)
    args, kwargs = arguments(input_args, input_kwargs)
    with compat.NoTorchFunction():
        refuse_variants(args, kwargs)
    request = Request(
        model=root,
        forward=forward,
        args=args,
        kwargs=kwargs,
        options=capture or DEFAULTS,
        save=selection_of(how.select, root),
        save_text=text_of(save),
        how=how,
        holding=holding_of(storage),
        stop=stop_of(stop_after, root),
        name=name_of(name),
        tags=tags_of(tags),
        save_grads_text=gradients_text(capture or DEFAULTS, storage),
        follows_backward=follows_backward,
        only_statistics=only_statistics,
        also_called=also_called,
    )
    held = journal_of(journal) if storage is None else new_journal(storage, journal)
    captured = _captured(held, request)
    made = Trace(held, captured.stream, handles=captured.handles, output=captured.output)
    refused = _follow_backwards(made, captured, request)
    _raise_what_ended(captured, made, request)
    if refused is not None:
        raise refused
    if request.stop is not None and not captured.stopped:
        _never_stopped(request.stop)
    if isinstance(request.save, Selector) and (captured.unmatched or not captured.kept_any):
        _warn_unmatched(request, request.save, captured, made)
    return made


def record(
    model: nn.Module | Callable[..., Any],
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    save: Any,
    stop_after: str | Selector | Callable[[Facts], bool] | None = None,
    on_forward_error: OnForwardError = "raise",
    save_grads: Any = None,
    default_grad: bool | None = None,
    backward_ready: bool = False,
    capture: CaptureOptions | None = None,
    journal: str | os.PathLike[str] | JournalOptions | None = None,
    storage: DiskStorage | None = None,
    backend: str | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    **unrouted: Any,
) -> Recording:
    """Run the model once and keep some activations, for when a few of them are wanted and no graph.

    Nothing is worked out of the events until something is read.

    Args:
        model, input_args, input_kwargs: As for ``trace``.
        save: Which activations are kept, as for ``trace``; there must be something to keep.
        on_forward_error: What to do where the model raises: ``"raise"``, with what came before at the exception's
            ``.partial_trace``, or ``"return_partial"``, which gives the recording of that.
        save_grads, backward_ready: As in ``CaptureOptions``. Backward passes are recorded only where one of these or
            ``default_grad`` is given, here or in ``capture``.
        default_grad: Whether a backward pass keeps all gradients where ``save_grads`` does not say which.
        stop_after, capture, journal, storage, backend, name, tags: As for ``trace``.

    Raises:
        ConfigurationError: ``recording_nothing_requested``, ``on_forward_error_invalid``,
            ``option_group_keyword_conflict``.
        TorchLensError: What ``trace`` raises.

    Example:
        >>> import torch, torchlens as tl
        >>> recording = tl.record(torch.nn.Linear(2, 3), torch.ones(1, 2), save=tl.func("linear"))
        >>> recording[0].label, tuple(recording[0].out.shape)
        ('linear_2_raw', (1, 3))
    """
    select = save.select if isinstance(save, SaveOptions | StatisticsOnly) else save
    if save is None or (isinstance(select, (str, list, tuple)) and (not select or select == "none")):
        raise ConfigurationError(
            code="recording_nothing_requested",
            problem=f"a recording is its kept activations, and save={text_of(save)} keeps none",
            remedy='pass save= a selector, a label or "all"; for records alone, tl.trace(model, x, save="none")',
        )
    if on_forward_error not in get_args(OnForwardError):
        raise ConfigurationError(
            code="on_forward_error_invalid",
            problem=f"on_forward_error={on_forward_error!r} is none of {', '.join(get_args(OnForwardError))}",
            remedy='pass "raise", whose exception holds what came before, or "return_partial"',
            argument="on_forward_error",
        )
    options, asked = _with_gradients(capture, save_grads, default_grad, backward_ready)
    try:
        made = _traced(
            model,
            input_args,
            input_kwargs,
            unrouted,
            follows_backward=asked is not None,
            capture=options,
            save=save,
            stop_after=stop_after,
            journal=journal,
            backend=backend,
            name=name,
            tags=tags,
            storage=storage,
        )
    except TraceCaptureError as exc:
        if on_forward_error == "raise" or exc.partial_trace is None:
            raise
        made = exc.partial_trace
    return Recording(made, asked)


def _with_gradients(
    capture: Any, save_grads: Any, default_grad: Any, backward_ready: Any
) -> tuple[CaptureOptions, GradientsAsked | None]:
    """The options with what ``record`` was given besides; and what backward passes keep, None for no such pass."""
    _refuse_settings(None, capture)
    options = capture or DEFAULTS
    require_switch("default_grad", default_grad)
    given = {"save_grads": save_grads, "backward_ready": backward_ready or None}
    given = {name: value for name, value in given.items() if value is not None}
    twice = [name for name in given if getattr(options, name) is not None]
    if twice:
        raise ConfigurationError(
            code="option_group_keyword_conflict",
            problem=f"{' and '.join(twice)} stand in capture= and beside it",
            remedy="leave one of them out",
            keywords=tuple(twice),
        )
    options = attrs.evolve(options, **given)
    is_asked = options.save_grads is not None or options.backward_ready or default_grad is not None
    asked = GradientsAsked(options.save_grads, default_grad) if is_asked else None
    if asked is not None:
        options = attrs.evolve(options, save_grads=asked.standing)
    return options, asked


def _outside() -> int:
    """How many frames up the caller of this file is, for a warning to point there."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


def _refuse_unrouted(unrouted: Mapping[str, Any]) -> None:
    if unrouted:
        names = ", ".join(sorted(unrouted))
        routed = [
            f"{keyword}tl.{kind.__name__}({first}{', '.join(f'{name}={text_of(unrouted[name])}' for name in own)})"
            for keyword, kind, first in ROUTES
            if (own := sorted(unrouted.keys() & {field.name for field in attrs.fields(kind)} - {"path"}))
        ]
        raise ConfigurationError(
            code="trace_forward_kwargs_unrouted",
            problem=f"a capture has no keyword {names}",
            remedy=f"pass {' and '.join(routed)}; keywords of the model's forward go into input_kwargs={{...}}"
            if routed
            else f"{near_keyword(unrouted)}put keywords of the model's forward into input_kwargs={{...}}, and options"
            " of a capture into capture=",
            keywords=tuple(sorted(unrouted)),
        )


def _refuse_settings(backend: Any, capture: Any) -> None:
    if backend not in (None, driver.BACKEND):
        raise ConfigurationError(
            code="unknown_backend",
            problem=f"there is no backend named {backend!r}",
            remedy='pass backend="torch", or leave it out',
            backend=backend,
        )
    if capture is not None and not isinstance(capture, CaptureOptions):
        raise ConfigurationError(
            code="option_group_type_invalid",
            problem=f"capture= got {type(capture).__name__}",
            remedy="pass tl.options.CaptureOptions(...)",
            received_type=type(capture).__name__,
        )


def _captured(held: Journal, request: Request) -> driver.Captured:
    """The capture, lent the journal's handles; a journal that no trace will hold is closed."""
    try:
        captured = driver.capture(held, request)
    except BaseException:
        with contextlib.suppress(JournalError):  # what ended the capture is told
            held.close()
        raise
    held.lend(captured.stream, captured.handles)
    return captured


def _follow_backwards(made: Trace, captured: driver.Captured, request: Request) -> TorchLensError | None:
    """Have the trace know of its backward passes, and what they hold let go of with it; what was asked of them may be
    refused."""
    made.backwards = captured.backwards
    if captured.backwards is not None:
        weakref.finalize(made, captured.backwards.abandon).atexit = False
        try:
            if request.options.backward_ready:
                captured.backwards.require_possible(has_graph=captured.has_graph)
            captured.backwards.follow(policies_of(made), request.options.save_grads)
        except TorchLensError as error:
            error.partial_trace = made
            return error
    return None


def _raise_what_ended(captured: driver.Captured, made: Trace, request: Request) -> None:
    """Tell of what ended the capture early, or kept it from being stored; the exception holds the trace."""
    if captured.given_up is not None:
        error = error_of(captured.given_up, made.tables)
        error.partial_trace = made
        raise error
    if isinstance(captured.error, (ConfigurationError, JournalError, SelectionError)):
        captured.error.partial_trace = made
        raise captured.error  # the request or the journal was at fault, not the model
    if captured.error is not None:
        is_mapping = not request.kwargs and len(request.args) == 1 and isinstance(request.args[0], Mapping)
        hint = "the model was given one mapping; its items as keywords are tl.trace(model, input_kwargs=mapping)"
        raise TraceCaptureError.of(
            captured.error, made, captured.refusal, hint=hint if is_mapping else None
        ) from captured.error
    if captured.aborted:
        raise stopped(made)
    if captured.refusal is not None:
        raise TraceJournalError.of(captured.refusal, made, captured.num_unstored) from captured.refusal


def near_keyword(unrouted: Mapping[str, Any]) -> str:
    """Which keyword of ``trace`` the first unknown one looks like, as a question."""
    near = difflib.get_close_matches(sorted(unrouted)[0], inspect.signature(trace).parameters, 1)
    return f"did you mean {near[0]}=? Else " if near else ""


def _warn_unmatched(request: Request, save: Selector, captured: driver.Captured, made: Trace) -> None:
    part = ", ".join(map(repr, captured.unmatched)) if captured.kept_any else request.save_text
    warnings.warn(
        TorchLensWarning(
            code="save_matched_nothing",
            problem=f"save={part} matched no op" + ("" if captured.kept_any else ", so no activation was kept"),
            remedy=what_there_is(save, made.tables),
        ),
        stacklevel=_outside(),
    )


def _never_stopped(stop: Stop) -> None:
    if stop.exploratory:
        warnings.warn(
            TorchLensWarning(
                code="stop_after_never_fired_callable",
                problem=f"the forward ran to its end: {stop.text} never held",
                remedy="check the condition",
            ),
            stacklevel=_outside(),
        )
        return
    raise ConfigurationError(
        code="stop_after_never_fired",
        problem=f"the forward ran to its end: nothing matched stop_after={stop.text!r}",
        remedy="check the address or name; a condition that may not occur belongs in a predicate",
        site=stop.text,
    )
