"""What a verb was given, as a request that the driver carries out.

Takes  a model, the arguments of its forward, and the options of the verbs, as a user wrote them.
Gives  a ``Request``, or one part of it; whatever cannot be captured, saved or stopped at is refused here.
Rule   nothing runs the model, and nothing is left to decide when it runs.
Not    how a capture is done (driver.py), or what a text of ``save=`` means in finished tables (requested.py).
"""

from __future__ import annotations

import functools
import numbers
import os
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import attrs
from torch import Tensor, nn

from journal import Journal, MemoryJournal, open_for_writing
from journal.directories import require_free
from projections.folds.vocabulary import ROOT
from projections.selecting.queries import refuse_values
from projections.selecting.selector import (
    ANY_CALL,
    LAST_CALL,
    RAW_TAIL,
    AnyOf,
    ModuleOutput,
    Selector,
    in_label_form,
    is_count,
    label,
    module,
    names_gradients,
    where,
)
from torchlens import compat
from torchlens.capture.facts import Facts
from torchlens.capture.keeping import Holding
from torchlens.capture.model import FunctionModel, address_of
from torchlens.capture.plan import Stop, asked, checked, runs_code
from torchlens.capture.template import leaves
from torchlens.errors import CompatibilityError, ConfigurationError, NotYetKnown
from torchlens.options import (
    CaptureOptions,
    DiskStorage,
    JournalOptions,
    SaveOptions,
    StatisticsOnly,
    backward_ready_conflict,
    made_by_call,
    save_grads_invalid,
)
from torchlens.tracing.requested import AtPosition, LabelOrModule, Named

__all__ = [
    "Request",
    "arguments",
    "gradients_of",
    "gradients_text",
    "holding_of",
    "journal_of",
    "model_of",
    "name_of",
    "new_journal",
    "refuse_variants",
    "selection_of",
    "selector_for",
    "stop_of",
    "tags_of",
    "text_of",
]


@attrs.define(slots=True, frozen=True)
class Request:
    """A resolved request: everything checked, nothing left to decide."""

    model: nn.Module
    forward: Callable[..., Any]  # what is called with the arguments
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: CaptureOptions
    save: Selector | bool
    save_text: str
    how: SaveOptions
    holding: Holding
    stop: Stop | None
    name: str | None
    tags: tuple[str, ...]
    save_grads_text: str | None = None  # which gradients are to be kept, as text; None for none
    follows_backward: bool = True  # whether backward passes are recorded
    only_statistics: bool = False  # statistics are kept in place of payloads
    also_called: str | None = None  # address of the model within a wrapper that was taken off

    @property
    def follows_every_run(self) -> bool:
        """Whether each run of the engine over the forward's nodes is to be noticed, whole and whatever starts it."""
        return self.save_grads_text is not None or bool(self.options.backward_ready)


def model_of(model: Any) -> tuple[nn.Module, Callable[..., Any], str | None]:
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


def refuse_variants(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for _, tensor in leaves((args, kwargs), deep=True):
        if tensor.is_meta or tensor.is_nested or compat.is_functional_wrapper(tensor):
            kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else "functional"
            raise CompatibilityError(
                code="unsupported_tensor_variant",
                problem=f"an input is a {kind} tensor",
                remedy="pass dense tensors with values",
                kind=kind,
            )


def selection_of(save: Any, root: nn.Module) -> Selector | bool:
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
            raise names_gradients(item)
        refuse_values(item)
        return item
    if isinstance(item, str) and item not in ("", "all", "none"):
        return _named(item, root)
    if isinstance(item, StatisticsOnly):
        raise statistics_mixed(item, "save")
    if isinstance(item, Tensor):
        raise ConfigurationError(
            code="layers_to_save_type_invalid",
            problem="save= got a tensor",
            remedy="put all inputs into one list, tl.trace(model, [a, b]), and select with save=",
        )
    uncalled = made_by_call(item)
    if uncalled is not None:
        raise ConfigurationError(
            code="save_predicate_type_invalid",
            problem=f"save= got the function {uncalled} itself",
            remedy=f"call it, and pass what it gives: save=tl.{uncalled}(...)",
            received_type=type(item).__name__,
        )
    if callable(item) and not isinstance(item, (type, nn.Module)):
        return where(checked(item), name_hint=getattr(item, "__qualname__", None))
    if isinstance(item, numbers.Integral) and not isinstance(item, bool):
        return AtPosition(int(item))
    raise ConfigurationError(
        code="save_predicate_type_invalid",
        problem=f"save= got {_shown(item)}",
        remedy='pass None, "all" or "none" alone; or a selector, a label, a module address, a position in trace.ops, '
        "part of a label, a predicate, or a list of these",
        received_type=type(item).__name__,
    )


def statistics_mixed(item: StatisticsOnly, argument: str) -> ConfigurationError:
    """The refusal of statistics of some sites beside payloads of others."""
    return ConfigurationError(
        code="statistics_mixed",
        problem=f"{argument}= got {text_of(item)} inside something else, and a capture keeps payloads or statistics",
        remedy=f"pass {argument}=tl.stats_only(...) alone, with all that is asked for inside it; payloads give the same"
        " statistics, so keep payloads where some are wanted",
        argument=argument,
    )


def _shown(item: Any) -> str:
    if not isinstance(item, str):
        return type(item).__name__
    return f"{item!r} in a list" if item else "an empty text"


def selector_for(item: Any, model: Any) -> Selector:
    """What one item of ``save=`` asks for in a model."""
    return _one_save(item, model_of(model)[0])


def _named(text: str, root: nn.Module) -> Selector:
    """What a text of ``save=`` asks for: a module by its address decides while the model runs, all else afterwards."""
    found = _module_named(text, root)
    if found is not None:
        return LabelOrModule(text, found) if in_label_form(text) else found
    return label(text) if text.endswith(RAW_TAIL) else Named(text)


def _module_named(text: str, root: nn.Module) -> Selector | None:
    """The module, or call of one, that a text is an address of; None for any other text."""
    for name, call in ((text, ""), _call_in(text)):
        address = ROOT if name == ROOT else address_of(root, name)
        if address is not None:
            return module(f"{address}{call}")
    return None


def _call_in(text: str) -> tuple[str, str]:
    """The address in a call label, and the colon and number after it; no address in any other text."""
    name, colon, token = text.rpartition(":")
    return (name, f"{colon}{token}") if is_count(token) else ("", "")


def text_of(request: Any) -> str:
    if isinstance(request, (list, tuple)):
        return "[" + ", ".join(text_of(item) for item in request) + "]"
    if isinstance(request, SaveOptions):
        asked = [
            f"{field.name}={text_of(value)}"
            for field in attrs.fields(SaveOptions)
            if (value := getattr(request, field.name)) != field.default
        ]
        return f"SaveOptions({', '.join(asked)})"
    if isinstance(request, StatisticsOnly):
        return f"stats_only({'' if request.select is None else text_of(request.select)})"
    if request is None or isinstance(request, (str, int, Selector)) or type(request).__module__ == "torch":
        return repr(request)
    return getattr(request, "__qualname__", type(request).__qualname__)


def stop_of(stop: Any, root: nn.Module) -> Stop | None:
    if stop is None:
        return None
    if isinstance(stop, str):
        named = _module_named(stop, root)
        if named is not None and stop.rpartition(":")[0] != ROOT != stop:
            return _stop_at(named, stop, module=stop)
        _refuse_stop(stop, root)
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
        return _exploratory(stop, text_of(stop))
    raise ConfigurationError(
        code="stop_after_type_invalid",
        problem=f"stop_after= got {type(stop).__name__}",
        remedy="pass a module address, a function name, a selector or a predicate",
        received_type=type(stop).__name__,
    )


def _refuse_stop(text: str, root: nn.Module) -> None:
    """Refuse a text that no op can match before the forward has ended."""
    base, _, token = text.rpartition(":")
    if token in (LAST_CALL, ANY_CALL) and base != ROOT and address_of(root, base) is not None:
        raise ConfigurationError(
            code="stop_after_site_not_live",
            problem=f"{text!r}: which call of a module is its last is not known while the model runs",
            remedy=f"name one call, {base + ':1'!r}, or the first, {base!r}; to stop at none, leave stop_after= out",
            site=text,
        )
    owned = dict(chain(root.named_parameters(remove_duplicate=False), root.named_buffers(remove_duplicate=False)))
    if text == ROOT or base == ROOT or text in owned:
        what = "a parameter or buffer" if text in owned else "the whole model"
        raise ConfigurationError(
            code="stop_after_names_no_op",
            problem=f"stop_after={text!r} names {what}, after which no forward is left early",
            remedy="name a module or a function, pass tl.func(...) or a predicate; for a whole forward leave it out",
            site=text,
        )


def _stop_at(selector: Selector, text: str, *, module: str | None = None) -> Stop:
    def matches(facts: Facts) -> bool:
        answer = asked(selector, facts)
        if answer is None and not selector.names_modules:  # a predicate in it reads what is not known yet
            raise _not_live(text)
        return answer is True

    return Stop(text=text, matches=matches, module=module, runs_code=runs_code(selector))


def _exploratory(predicate: Callable[[Facts], Any], text: str) -> Stop:
    ask = checked(predicate)

    def matches(facts: Facts) -> bool:
        try:
            return ask(facts)
        except NotYetKnown as exc:
            raise _not_live(text) from exc

    return Stop(text=text, matches=matches, exploratory=True, runs_code=True)


def _not_live(text: str) -> ConfigurationError:
    return ConfigurationError(
        code="stop_after_site_not_live",
        problem=f"{text} is not known as an op returns: it needs final labels, or what runs afterwards",
        remedy="pass a module address, a function name, tl.func(...) or a predicate",
        site=text,
    )


def name_of(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ConfigurationError(
            code="name_type_invalid",
            problem=f"a name or tag is {type(name).__name__}",
            remedy="pass text",
            received_type=type(name).__name__,
        )
    return name


def tags_of(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise ConfigurationError(
            code="tags_type_invalid",
            problem=f"tags={tags!r} is one text, which would be taken letter by letter",
            remedy=f"pass a list: tags=[{tags!r}]",
            received_type="str",
        )
    if not isinstance(tags, Iterable):
        raise ConfigurationError(
            code="tags_type_invalid",
            problem=f"tags= got {type(tags).__name__}",
            remedy="pass a list of texts, or leave it out",
            received_type=type(tags).__name__,
        )
    return tuple(name_of(tag) or "" for tag in tags)


def holding_of(storage: Any) -> Holding:
    """Which tensors stay in memory beside their bytes."""
    if storage is not None and not isinstance(storage, DiskStorage):
        raise ConfigurationError(
            code="storage_type_invalid",
            problem=f"storage= got {type(storage).__name__}",
            remedy="pass tl.to_disk(path)",
            received_type=type(storage).__name__,
        )
    return "graph" if storage is None else "all" if storage.retain_in_memory else "nothing"


def gradients_of(asked: Any) -> Selector | bool:
    """What ``save_grads=`` asks for: all gradients, none, or those that a selector matches.

    Raises:
        ConfigurationError: ``save_grads_type_invalid``.
        SelectionError: ``selector_reads_values``.
    """
    if isinstance(asked, StatisticsOnly):
        asked = True if asked.select is None else asked.select
    if asked is None or isinstance(asked, bool):
        return asked is True
    if isinstance(asked, str) and asked in ("all", "none"):
        return asked == "all"
    if isinstance(asked, (list, tuple)):
        parts = tuple(map(_one_gradient, asked))
        return parts[0] if len(parts) == 1 else AnyOf(parts) if parts else False
    return _one_gradient(asked)


def _one_gradient(item: Any) -> Selector:
    if isinstance(item, StatisticsOnly):
        raise statistics_mixed(item, "save_grads")
    if isinstance(item, Selector):
        refuse_values(item)
        return item
    if isinstance(item, str) and item not in ("", "all", "none"):
        return Named(item)
    if isinstance(item, numbers.Integral) and not isinstance(item, bool):
        return AtPosition(int(item))
    if callable(item) and not isinstance(item, (type, nn.Module, Tensor)):
        return where(asked_of_finished(item), name_hint=getattr(item, "__qualname__", None))
    raise save_grads_invalid(item)


def asked_of_finished(predicate: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """A predicate of the user's, asked about finished ops, whose answer must be True or False."""

    def matches(op: Any) -> bool:
        answer = predicate(op)
        if not isinstance(answer, bool):
            raise ConfigurationError(
                code="predicate_return_invalid",
                problem=f"the predicate returned {type(answer).__name__}, not a bool",
                remedy="return True or False",
                received_type=type(answer).__name__,
            )
        return answer

    return matches


def gradients_text(options: CaptureOptions, storage: Any) -> str | None:
    """Which gradients a capture is to keep, as text; None for none.

    Raises:
        ConfigurationError: ``backward_ready_conflict``, where activations are held on the disk alone.
        TorchLensError: What ``gradients_of`` raises.
    """
    if options.backward_ready and holding_of(storage) == "nothing":
        raise backward_ready_conflict("storage=tl.to_disk(path) holds activations on the disk alone")
    asked = gradients_of(options.save_grads)
    if asked is False:
        return None
    is_all = asked is True and not isinstance(options.save_grads, StatisticsOnly)
    return "True" if is_all else text_of(options.save_grads)


def new_journal(storage: DiskStorage, journal: Any) -> Journal:
    if journal is not None:
        raise ConfigurationError(
            code="storage_argument_conflict",
            problem="storage= and journal= both say where the activations go",
            remedy="leave one out: journal= appends, and holds what is on the autograd graph too; storage= makes a new "
            "journal, and holds nothing",
        )
    return open_for_writing(require_free(storage.path))


def journal_of(journal: Any) -> Journal:
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
