"""The public verbs: options to a request, the request to the driver, a stream to a ``Trace``."""

from __future__ import annotations

import contextlib
import functools
import numbers
import os
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
from torch import Tensor, nn

from journal import Journal, JournalError, MemoryJournal, open_for_writing
from journal.directories import require_free
from projections.queries import refuse_values
from projections.selector import RAW_TAIL, AnyOf, ModuleOutput, Selector, in_label_form, label, module, where
from projections.vocabulary import ROOT
from torchlens import compat
from torchlens.capture.keeping import Holding
from torchlens.capture.model import FunctionModel, address_of
from torchlens.capture.plan import Facts, Stop, asked, checked
from torchlens.capture.template import leaves
from torchlens.errors import CompatibilityError, ConfigurationError, NotYetKnown, SelectionError, TorchLensWarning
from torchlens.options import CaptureOptions, DiskStorage, JournalOptions, SaveOptions, unavailable
from torchlens.reading.facade import Trace, TraceCaptureError, TraceJournalError
from torchlens.reading.lookup import is_number
from torchlens.reading.recording import Recording
from torchlens.tracing import driver
from torchlens.tracing.given_up import error_of
from torchlens.tracing.nonfinite import stopped
from torchlens.tracing.requested import AtPosition, Named

__all__ = ["record", "trace", "wrapped"]

wrapped = driver.wrapped

OnForwardError: TypeAlias = Literal["raise", "return_partial"]

DEFAULTS: Final = CaptureOptions()


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
            labels is held until the forward has ended. ``SaveOptions`` says how they are kept too.
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
        CaptureError: ``reentrant_trace``, inside another capture of this thread.
        JournalError: The journal cannot be written, seen before the model ran.
        TraceJournalError: A ``JournalError`` that was met while the model ran, which went on; ``exc.partial_trace``
            holds the capture.

    Example:
        >>> import torch, torchlens as tl
        >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> trace.ops.labels
        ('input_1', 'linear_1_1', 'output_1')
    """
    _refuse_unrouted(unrouted)
    if intervene is not None:
        raise unavailable("intervene")
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
    how = save if isinstance(save, SaveOptions) else SaveOptions(save)
    root, forward, also_called = _model(model)
    args, kwargs = arguments(input_args, input_kwargs)
    with compat.NoTorchFunction():
        _refuse_variants(args, kwargs)
    request = driver.Request(
        model=root,
        forward=forward,
        args=args,
        kwargs=kwargs,
        options=capture or DEFAULTS,
        save=_save(how.select, root),
        save_text=_text(save),
        how=how,
        holding=_holding(storage),
        stop=_stop(stop_after, root),
        name=_name(name),
        tags=_tags(tags),
        also_called=also_called,
    )
    held = _journal(journal) if storage is None else _new_journal(storage, journal)
    try:
        captured = driver.capture(held, request)
    except BaseException:
        with contextlib.suppress(JournalError):  # what ended the capture is told
            held.close()  # there will be no trace to do it
        raise
    held.lend(captured.stream, captured.handles)
    made = Trace(held, captured.stream, handles=captured.handles, output=captured.output)
    if captured.given_up is not None:
        error = error_of(captured.given_up, made.tables)
        error.partial_trace = made  # type: ignore[attr-defined]  # both classes have it
        raise error
    if isinstance(captured.error, (ConfigurationError, JournalError, SelectionError)):
        captured.error.partial_trace = made  # type: ignore[union-attr]  # an error takes any
        raise captured.error  # the request or the journal was at fault, not the model
    if captured.error is not None:
        raise TraceCaptureError.of(captured.error, made, captured.refusal) from captured.error
    if captured.aborted:
        raise stopped(made)
    if captured.refusal is not None:
        raise TraceJournalError.of(captured.refusal, made, captured.num_unstored) from captured.refusal
    if request.stop is not None and not captured.stopped:
        _never_stopped(request.stop)
    if isinstance(request.save, Selector) and (captured.unmatched or not captured.kept_any):
        part = ", ".join(map(repr, captured.unmatched)) if captured.kept_any else request.save_text
        warnings.warn(
            TorchLensWarning(
                code="save_matched_nothing",
                problem=f"save={part} matched no op" + ("" if captured.kept_any else ", so no activation was kept"),
                remedy="check the name; trace.ops.labels and trace.modules.labels list what there is",
            ),
            stacklevel=_outside(),
        )
    return made


def record(
    model: nn.Module | Callable[..., Any],
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    save: Any,
    stop_after: str | Selector | Callable[[Facts], bool] | None = None,
    on_forward_error: OnForwardError = "raise",
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
        stop_after, capture, journal, storage, backend, name, tags: As for ``trace``.

    Raises:
        ConfigurationError: ``recording_nothing_requested``, ``on_forward_error_invalid``.
        TorchLensError: What ``trace`` raises.

    Example:
        >>> import torch, torchlens as tl
        >>> recording = tl.record(torch.nn.Linear(2, 3), torch.ones(1, 2), save=tl.func("linear"))
        >>> recording[0].label, tuple(recording[0].out.shape)
        ('linear_2_raw', (1, 3))
    """
    select = save.select if isinstance(save, SaveOptions) else save
    if save is None or (isinstance(select, (str, list, tuple)) and (not select or select == "none")):
        raise ConfigurationError(
            code="recording_nothing_requested",
            problem=f"a recording is its kept activations, and save={_text(save)} keeps none",
            remedy='pass save= a selector, a label or "all"; for records alone, tl.trace(model, x, save="none")',
        )
    if on_forward_error not in get_args(OnForwardError):
        raise ConfigurationError(
            code="on_forward_error_invalid",
            problem=f"on_forward_error={on_forward_error!r} is none of {', '.join(get_args(OnForwardError))}",
            remedy='pass "raise", whose exception holds what came before, or "return_partial"',
            argument="on_forward_error",
        )
    try:
        made = trace(
            model,
            input_args,
            input_kwargs,
            capture=capture,
            save=save,
            stop_after=stop_after,
            journal=journal,
            backend=backend,
            name=name,
            tags=tags,
            storage=storage,
            **unrouted,
        )
    except TraceCaptureError as exc:
        if on_forward_error == "raise" or exc.partial_trace is None:
            raise
        made = exc.partial_trace
    return Recording(made)


def _outside() -> int:
    """How many frames up the caller of this file is, for a warning to point there."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


def _refuse_unrouted(unrouted: Mapping[str, Any]) -> None:
    if unrouted:
        names = ", ".join(sorted(unrouted))
        raise ConfigurationError(
            code="trace_forward_kwargs_unrouted",
            problem=f"a capture has no keyword {names}",
            remedy="put keywords of the model's forward into input_kwargs={...}, and capture options into capture=",
            keywords=tuple(sorted(unrouted)),
        )


def _model(model: Any) -> tuple[nn.Module, Callable[..., Any], str | None]:
    """The module to describe, wrappers taken off, what to call, and the module's address in the wrappers."""
    if compat.is_scripted(model):
        raise CompatibilityError(
            code="model_type_unsupported",
            problem="a scripted model runs no Python, so there is nothing to watch",
            remedy="capture the module it was scripted from; a scripted submodule is captured as one op",
        )
    if isinstance(model, nn.Module):
        outer = []
        while (inner := compat.inner_model(model)) is not None:
            outer.append("module" if inner is getattr(model, "module", None) else "_orig_mod")
            model = inner
        return model, model.__call__, ".".join(outer) or None
    if isinstance(model, types.MethodType) and isinstance(model.__self__, nn.Module):
        return model.__self__, model, None
    if compat.is_compiled_function(model):
        raise CompatibilityError(
            code="compiled_callable_unsupported",
            problem="a compiled function runs generated code, which is not watched",
            remedy="capture the function that was compiled",
        )
    if isinstance(model, (types.FunctionType, types.BuiltinFunctionType, functools.partial)) or (
        callable(model) and not isinstance(model, (type, Tensor))
    ):
        stand_in = FunctionModel(model)
        return stand_in, stand_in.__call__, None
    raise CompatibilityError(
        code="model_type_unsupported",
        problem=f"{type(model).__name__} is no model",
        remedy="pass an nn.Module, a method of one, or a function of tensors",
        received_type=type(model).__name__,
    )


def arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the forward, from what a verb was given."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigurationError(
            code="input_kwargs_type_invalid",
            problem=f"input_kwargs got {type(kwargs).__name__}",
            remedy="pass a dict; several positional arguments go into one list: tl.trace(model, [a, b])",
            received_type=type(kwargs).__name__,
        )
    named = {} if kwargs is None else dict(kwargs)
    if args is None:
        return (), named
    if isinstance(args, (list, tuple)) and not hasattr(args, "_fields"):
        return tuple(args), named
    return (args,), named


def _refuse_variants(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for _, tensor in leaves((args, kwargs), deep=True):
        if tensor.is_meta or tensor.is_nested or compat.is_functional_wrapper(tensor):
            kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else "functional"
            raise CompatibilityError(
                code="unsupported_tensor_variant",
                problem=f"an input is a {kind} tensor",
                remedy="pass dense tensors with values",
                kind=kind,
            )


def _save(save: Any, root: nn.Module) -> Selector | bool:
    if save is None or save == "all":
        return True
    if isinstance(save, str) and save == "none":
        return False
    if isinstance(save, (list, tuple)):
        parts = tuple(_one_save(item, root) for item in save)
        return parts[0] if len(parts) == 1 else AnyOf(parts) if parts else False
    return _one_save(save, root)


def _one_save(item: Any, root: nn.Module) -> Selector:
    if isinstance(item, Selector):
        if item.names_gradients:
            raise unavailable("a selector of gradients in save")
        refuse_values(item)
        return item
    if isinstance(item, str) and item not in ("", "all", "none"):
        return _named(item, root)
    if isinstance(item, Tensor):
        raise ConfigurationError(
            code="layers_to_save_type_invalid",
            problem="save= got a tensor",
            remedy="put all inputs into one list, tl.trace(model, [a, b]), and select with save=",
        )
    if callable(item) and not isinstance(item, (type, nn.Module)):
        return where(checked(item), name_hint=getattr(item, "__qualname__", None))
    if isinstance(item, numbers.Integral) and not isinstance(item, bool):
        return AtPosition(int(item))
    raise ConfigurationError(
        code="save_predicate_type_invalid",
        problem=f"save= got {repr(item) + ' beside others' if isinstance(item, str) else type(item).__name__}",
        remedy='pass None, "all" or "none" alone; or a selector, a label, a module address, a position in trace.ops, '
        "part of a label, a predicate, or a list of these",
        received_type=type(item).__name__,
    )


def selector_for(item: Any, model: Any) -> Selector:
    """What one item of ``save=`` asks for in a model."""
    return _one_save(item, _model(model)[0])


def _named(text: str, root: nn.Module) -> Selector:
    """What a text of ``save=`` asks for: a module by its address decides while the model runs, all else afterwards."""
    found = _module_named(text, root)
    if found is not None:
        return found
    return label(text) if text.endswith(RAW_TAIL) else Named(text)


def _module_named(text: str, root: nn.Module) -> Selector | None:
    """The module, or call of one, that a text is an address of; None for any other text."""
    name, colon, token = text.partition(":")
    address = ROOT if name == ROOT else address_of(root, name)
    return None if address is None or (colon and not is_number(token)) else module(f"{address}{colon}{token}")


def _text(request: Any) -> str:
    if isinstance(request, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in request) + "]"
    if isinstance(request, SaveOptions):
        asked = [
            f"{field.name}={_text(value)}"
            for field in attrs.fields(SaveOptions)
            if (value := getattr(request, field.name)) != field.default
        ]
        return f"SaveOptions({', '.join(asked)})"
    if request is None or isinstance(request, (str, int, Selector)) or type(request).__module__ == "torch":
        return repr(request)
    return getattr(request, "__qualname__", type(request).__qualname__)


def _stop(stop: Any, root: nn.Module) -> Stop | None:
    if stop is None:
        return None
    if isinstance(stop, str):
        named = _module_named(stop, root)
        if named is not None and stop.partition(":")[0] != ROOT:
            return _stop_at(named, stop, module=stop)
        if in_label_form(stop):
            raise _not_live(stop)
        return Stop(text=stop, matches=lambda facts: facts.func_name == stop)
    if isinstance(stop, Selector):
        refuse_values(stop)
        if stop.needs_labels or stop.waits_for_end or stop.ahead or stop.names_gradients:
            raise _not_live(repr(stop))
        alone = stop.address if isinstance(stop, ModuleOutput) and stop.address.partition(":")[0] != ROOT else None
        if alone is not None and _module_named(alone, root) is None:
            alone = None
        return _stop_at(stop, repr(stop), module=alone)
    if callable(stop):
        return _exploratory(stop, _text(stop))
    raise ConfigurationError(
        code="stop_after_type_invalid",
        problem=f"stop_after= got {type(stop).__name__}",
        remedy="pass a module address, a function name, a selector or a predicate",
        received_type=type(stop).__name__,
    )


def _stop_at(selector: Selector, text: str, *, module: str | None = None) -> Stop:
    def matches(facts: Facts) -> bool:
        answer = asked(selector, facts)
        if answer is None and not selector.names_modules:  # a predicate in it reads what is not known yet
            raise _not_live(text)
        return answer is True

    return Stop(text=text, matches=matches, module=module)


def _exploratory(predicate: Callable[[Facts], Any], text: str) -> Stop:
    ask = checked(predicate)

    def matches(facts: Facts) -> bool:
        try:
            return ask(facts)
        except NotYetKnown as exc:
            raise _not_live(text) from exc

    return Stop(text=text, matches=matches, exploratory=True)


def _not_live(text: str) -> ConfigurationError:
    return ConfigurationError(
        code="stop_after_site_not_live",
        problem=f"{text} is not known as an op returns: it needs final labels, or what runs afterwards",
        remedy="pass a module address, a function name, tl.func(...) or a predicate",
        site=text,
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


def _name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ConfigurationError(
            code="name_type_invalid",
            problem=f"a name or tag is {type(name).__name__}",
            remedy="pass text",
            received_type=type(name).__name__,
        )
    return name


def _tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise ConfigurationError(
            code="tags_type_invalid",
            problem=f"tags={tags!r} is one text, which would be taken letter by letter",
            remedy=f"pass a list: tags=[{tags!r}]",
            received_type="str",
        )
    return tuple(_name(tag) or "" for tag in tags)


def _holding(storage: Any) -> Holding:
    """Which tensors stay in memory beside their bytes."""
    if storage is not None and not isinstance(storage, DiskStorage):
        raise ConfigurationError(
            code="storage_type_invalid",
            problem=f"storage= got {type(storage).__name__}",
            remedy="pass tl.to_disk(path)",
            received_type=type(storage).__name__,
        )
    return "graph" if storage is None else "all" if storage.retain_in_memory else "nothing"


def _new_journal(storage: DiskStorage, journal: Any) -> Journal:
    if journal is not None:
        raise ConfigurationError(
            code="storage_argument_conflict",
            problem="storage= and journal= both say where the activations go",
            remedy="leave one out: journal= appends, and holds what is on the autograd graph too; storage= makes a new "
            "journal, and holds nothing",
        )
    return open_for_writing(require_free(storage.path))


def _journal(journal: Any) -> Journal:
    if journal is None:
        return MemoryJournal()
    options = journal if isinstance(journal, JournalOptions) else None
    if options is None and not isinstance(journal, (str, os.PathLike)):
        raise ConfigurationError(
            code="journal_type_invalid",
            problem=f"journal= got {type(journal).__name__}",
            remedy="pass a path or tl.JournalOptions(path, ...)",
            received_type=type(journal).__name__,
        )
    options = options or JournalOptions(os.fspath(journal))
    return open_for_writing(options.path, durability=options.durability, sync=options.sync)
