"""The option classes: frozen, every default in one place."""

from __future__ import annotations

import difflib
import inspect
import numbers
import os
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import attrs

from journal.lmdb_journal import Durability
from journal.lmdb_opening import Sync
from projections.selecting.selector import Selector
from torchlens.errors import ConfigurationError

__all__ = [
    "CaptureOptions",
    "DiskStorage",
    "JournalOptions",
    "SaveMode",
    "SaveOptions",
    "StatisticsOnly",
    "stats_only",
    "to_disk",
]

SaveMode: TypeAlias = Literal["reference", "copy"]


def unavailable(argument: str, value: str | None = None) -> ConfigurationError:
    """The refusal of an option or keyword, or of a value of one, that this version does not serve yet."""
    return ConfigurationError(
        code="option_not_available",
        problem=f"{argument}={'' if value is None else repr(value)} is not available in this version",
        remedy="leave it out; edits and replay arrive with later versions (CHANGELOG.md)",
        argument=argument,
    )


@attrs.define(frozen=True, slots=True)
class StatisticsOnly:
    """A request for statistics in place of payloads; made by ``stats_only``.

    Attributes:
        select: Of which activations or gradients; whatever ``save=`` or ``save_grads=`` takes. None is all of them.
    """

    select: Any = None

    def mixed(self, other: object) -> Any:
        """Refuse to be put together with something else.

        Raises:
            ConfigurationError: ``statistics_mixed``.
        """
        raise ConfigurationError(
            code="statistics_mixed",
            problem="tl.stats_only(...) was combined with something else, and a capture keeps payloads or statistics",
            remedy='combine inside it: tl.stats_only(tl.func("relu") | tl.module("fc"))',
            argument=None,
        )

    __and__ = __or__ = __sub__ = __rand__ = __ror__ = __rsub__ = mixed

    def __invert__(self) -> Any:
        self.mixed(None)


def made_by_call(item: Any) -> str | None:
    """The name of a function of this package that was given where what it makes was wanted; None for all else."""
    module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    is_ours = isinstance(module, str) and module.partition(".")[0] in ("journal", "projections", "torchlens")
    if not is_ours or not isinstance(item, FunctionType | type) or not isinstance(name, str):
        return None
    return None if "." in name else name


def stats_only(select: Any = None) -> StatisticsOnly:
    """For ``save=`` and ``save_grads=``: keep statistics of what it names, and no tensor.

    They are read at ``op.stats`` and at the ``.stats`` of a gradient's record, and are the same, bit for bit, as those
    worked out of a kept payload. Taking them goes through the elements three times, and waits for the device that they
    are on.

    Args:
        select: Which; whatever ``save=`` (``save_grads=``) takes. None is all of them.

    Example:
        >>> import torch, torchlens as tl
        >>> trace = tl.trace(torch.nn.ReLU(), torch.tensor([[-1.0, 3.0]]), save=tl.stats_only(tl.func("relu")))
        >>> trace["relu_1_1"].stats.max
        3.0
    """
    return StatisticsOnly(select)


def keeps_gradients(asked: Any) -> bool:
    """Whether ``save_grads=`` asks for any gradient."""
    if isinstance(asked, StatisticsOnly):
        return asked.select is None or keeps_gradients(asked.select)
    is_nothing = (
        asked is None or asked is False or (isinstance(asked, (str, list, tuple)) and asked in ("none", [], ()))
    )
    return not is_nothing


def backward_ready_conflict(problem: str) -> ConfigurationError:
    """The refusal of ``backward_ready`` beside something that keeps activations off the graph."""
    return ConfigurationError(
        code="backward_ready_conflict",
        problem=f"{problem}, and backward_ready=True keeps them on it",
        remedy="leave one of them out",
    )


def require_switch(argument: str, value: Any) -> None:
    """Refuse what is neither True, False nor left out."""
    if value is not None and not isinstance(value, bool):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"{argument}={value!r} is neither True nor False",
            remedy="pass one of these, or leave it out",
            argument=argument,
        )


def _gradients(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    items = value if isinstance(value, (list, tuple)) else (value,)
    for item in items:
        uncalled = made_by_call(item)
        if uncalled is not None:
            raise save_grads_invalid(item, uncalled)
        if (
            isinstance(item, (StatisticsOnly, str, numbers.Integral, Selector))
            or callable(item)
            or (item is None and item is value)
        ):
            continue
        raise save_grads_invalid(item)


def save_grads_invalid(item: Any, uncalled: str | None = None) -> ConfigurationError:
    """The refusal of what names no gradients; ``uncalled`` is a function of this package that was not called."""
    if uncalled is not None:
        return ConfigurationError(
            code="save_grads_type_invalid",
            problem=f"save_grads= got the function {uncalled} itself",
            remedy=f"call it, and pass what it gives: save_grads=tl.{uncalled}(...)",
            received_type=type(item).__name__,
        )
    shown = f"{item!r} in a list" if isinstance(item, (str, bool)) else type(item).__name__
    return ConfigurationError(
        code="save_grads_type_invalid",
        problem=f"save_grads= got {shown}",
        remedy="pass True, False or None alone; or a selector, a label, a module address, a position in trace.ops, "
        "part of a label, a predicate over ops, or a list of these",
        received_type=type(item).__name__,
    )


def _invalid(
    attribute: attrs.Attribute[Any], problem: str, remedy: str, *, code: str = "option_value_invalid"
) -> ConfigurationError:
    """The refusal of a value that an option does not take."""
    return ConfigurationError(code=code, problem=problem, remedy=remedy, argument=attribute.name)


def _seed(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32):
        raise ConfigurationError(
            code="random_seed_invalid",
            problem=f"random_seed={value!r} is no whole number from 0 to 2**32 - 1",
            remedy="pass such a number, or None to draw from the generators as they stand",
            argument="random_seed",
        )


def _switch(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise _invalid(attribute, f"{attribute.name}={value!r} is neither True nor False", "pass True or False")


def _count(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise _invalid(attribute, f"{attribute.name}={value!r} is no number of lines", "pass a whole number from 0 on")


def _optimizer(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    groups = getattr(value, "param_groups", None)
    if value is not None and not (isinstance(groups, list) and all("params" in group for group in groups)):
        raise _invalid(
            attribute,
            f"optimizer= got {type(value).__name__}, which has no groups of parameters",
            "pass an optimizer of torch.optim, or None",
        )


def _one_of(*words: str | bool) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not any(value is word or (isinstance(word, str) and value == word) for word in words):
            raise _invalid(
                attribute,
                f"{attribute.name}={value!r} is none of {', '.join(map(str, words))}",
                f"pass one of {', '.join(map(repr, words))}",
            )

    return check


def _budget(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None or value == "auto":
        return
    is_share = isinstance(value, float) and 0 < value <= 1
    if is_share or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return
    raise _invalid(
        attribute,
        f"save_budget={value!r} is no ceiling",
        'pass bytes as an int, a share of the free memory as a float up to 1.0, "auto", or None for no ceiling',
        code="save_budget_invalid",
    )


def _mode(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in get_args(SaveMode):
        raise _invalid(
            attribute,
            f"mode={value!r} is neither 'reference' nor 'copy'",
            "pass one of these; values are those of the moment the op returned in both",
            code="save_mode_invalid",
        )


def _dtype(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    import torch  # for cost: a journal is read without torch

    if value is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise _invalid(
            attribute,
            f"dtype={value!r} is no floating point dtype",
            "pass one, such as torch.float16; activations of whole numbers and bools keep their own",
        )


def _device(value: Any) -> Any:
    import torch  # for cost: a journal is read without torch

    if value is None:
        return None
    try:
        device = torch.device(value)
        torch.empty(0, device=device)  # whether it is there
    except (RuntimeError, TypeError, AssertionError) as exc:
        problem = f"{type(exc).__name__}: {exc}".partition("\n")[0]
    else:
        if device.type != "meta":
            return device
        problem = "it holds no values"
    raise ConfigurationError(
        code="output_device_invalid",
        problem=f"activations cannot be held on device={value!r}: {problem}",
        remedy='pass "cpu", "cuda", or None to leave each where it was made',
        argument="device",
    )


def _callable(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not callable(value):
        raise _invalid(
            attribute, f"{attribute.name}={value!r} cannot be called", "pass a function from a tensor to a tensor"
        )


C = TypeVar("C")


def _telling_unknown(options: type[C]) -> type[C]:
    """A class of options that refuses a keyword it does not have by code, with what looks like it."""
    made: Callable[..., None] = vars(options)["__init__"]
    names = [name for name in inspect.signature(made).parameters if name != "self"]

    @wraps(made)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            near = difflib.get_close_matches(unknown[0], names, n=1)
            raise ConfigurationError(
                code="option_unknown",
                problem=f"{options.__name__} has no option {', '.join(map(repr, unknown))}",
                remedy=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}",
                keywords=tuple(unknown),
                suggestions=tuple(near),
            )
        made(self, *args, **kwargs)

    setattr(options, "__init__", checked)  # noqa: B010, what attrs made is typed as fixed
    return options


@_telling_unknown
@attrs.define(frozen=True, slots=True)
class SaveOptions:
    """Which activations are kept, and how: ``tl.trace(model, x, save=tl.SaveOptions("encoder", dtype=torch.float16))``.

    What ``transform`` and ``dtype`` make of an activation is read at ``op.transformed_out``; ``op.out`` is what the op
    returned, or refuses.

    Attributes:
        select: Which; whatever ``save=`` takes. None is every one.
        dtype: Floating point dtype that floating point activations are kept in.
        device: Device that they are held on, such as ``"cpu"``; None leaves each where it was made.
        transform: What to keep of each: a function from a tensor to a tensor, called as the op returns. It is
            given the activation itself, on its graph unless that is cut; it may not write to it, and draws no
            random numbers that the model would then not get.
        raw: Keep the activation too, beside what was made of it.
        mode: ``"reference"`` holds the model's own tensors, which costs no copy, and copies one before the model writes
            to its memory; a view keeps all of its memory, and one that is written after the capture is refused.
            ``"copy"`` copies each as it is kept, which costs its bytes again and a copy's time, and nothing that is
            written later reaches it. Values are those of the moment the op returned in both.
    """

    select: Any = None
    dtype: Any = attrs.field(default=None, kw_only=True, validator=_dtype)
    device: Any = attrs.field(default=None, kw_only=True, converter=_device)
    transform: Callable[[Any], Any] | None = attrs.field(default=None, kw_only=True, validator=_callable)
    raw: bool = attrs.field(default=False, kw_only=True, validator=_switch)
    mode: SaveMode = attrs.field(default="reference", kw_only=True, validator=_mode)


@_telling_unknown
@attrs.define(frozen=True, kw_only=True, slots=True)
class CaptureOptions:
    """How a forward pass is captured.

    Attributes:
        random_seed: Seed torch, Python and NumPy with this for the forward and put their state back after
            it. None draws from the generators as a bare call would.
        detach_saved_activations: Cut saved activations from the autograd graph.
        inference_only: Run the forward without an autograd graph.
        keep_orphans: Show ops that touch neither input nor output at ``trace.orphans``.
        measure_autograd_memory: Look, when the forward has ended, at what autograd kept for the backward.
        save_budget: Most bytes that kept activations may hold on each device, shared memory counted once; the forward
            is left when they hold more. Bytes as an int, a share of the free memory as a float up to 1.0, ``"auto"``
            for a share of 0.8 once more than 64 MiB are held, or None for no ceiling.
        verify_capture: Count what torch's dispatcher runs and account for each operator, so that ``trace.health`` can
            say whether anything was missed. The forward takes several times as long.
        raise_on_nan: Stop at the first op that returns, or writes into an argument or a buffer, a value that is not
            finite. ``"nan"`` stops at a NaN alone: masks are often made of infinities. Inputs and parameters are not
            looked at, nor what has no elements here, as a tensor on ``meta``.
        save_code_context: Store what the source says of the modules' classes (``module.class_docstring``,
            ``.forward_signature`` and the like), and the text of the function that asked for the capture. The text of
            the functions that call torch is stored in any case.
        source_context_lines: Lines on either side of a call that ``source_context`` and ``code_context_labeled`` show.
        save_arg_values: Keep what each torch call and module call was given, as it was then.
        save_rng_states: Keep the states of torch's random generators before each call.
        optimizer: Say of each parameter whether this optimizer steps it.
        save_grads: Which gradients backward passes keep, or of which statistics (``tl.stats_only(...)``): True those of
            all ops and what each parameter gets; None or False none, so that only what ran is told; else a selector,
            also of gradients and autograd nodes (``tl.grad``, ``tl.grad_fn``, ``tl.in_backward_pass``, ...), a label, a
            module address, a predicate over finished ops, or a list of these. ``trace.backward(loss, save_grads=...)``
            replaces it for one pass.
        backward_ready: Refuse the capture where no backward could follow, notice every run of the autograd engine,
            also one that comes past torch's Python functions, and have every operator of the others told
            (``BackwardPass.aten_ops``). None is False; False itself contradicts ``save_grads``.
        replayable: Tell what ``trace.run`` needs to run the recorded calls without the model's code: what Python took
            out of tensors, the elements of what no call makes, and digests of what went in and came out.
    """

    random_seed: int | None = attrs.field(default=None, validator=_seed)
    detach_saved_activations: bool = attrs.field(default=False, validator=_switch)
    inference_only: bool = attrs.field(default=False, validator=_switch)
    keep_orphans: bool = attrs.field(default=False, validator=_switch)
    measure_autograd_memory: bool = attrs.field(default=False, validator=_switch)
    save_budget: str | float | int | None = attrs.field(default="auto", validator=_budget)
    verify_capture: bool = attrs.field(default=False, validator=_switch)
    raise_on_nan: bool | Literal["nan"] = attrs.field(default=False, validator=_one_of(False, True, "nan"))
    save_code_context: bool = attrs.field(default=False, validator=_switch)
    source_context_lines: int = attrs.field(default=7, validator=_count)
    save_arg_values: bool = attrs.field(default=False, validator=_switch)
    save_rng_states: bool = attrs.field(default=False, validator=_switch)
    optimizer: Any = attrs.field(default=None, validator=_optimizer)
    save_grads: Any = attrs.field(default=None, validator=_gradients)
    backward_ready: bool | None = attrs.field(default=None, validator=attrs.validators.optional(_switch))
    replayable: bool = attrs.field(default=False, validator=_switch)

    def __attrs_post_init__(self) -> None:
        keeps = keeps_gradients(self.save_grads)
        if self.inference_only and (self.backward_ready or keeps):
            raise ConfigurationError(
                code="inference_only_conflict",
                problem="inference_only=True leaves no autograd graph, and "
                f"{'save_grads=' if keeps else 'backward_ready=True'} asks for a backward",
                remedy="leave one of them out",
            )
        if self.inference_only and self.measure_autograd_memory:
            raise ConfigurationError(
                code="inference_only_conflict",
                problem="inference_only=True leaves no autograd graph, and measure_autograd_memory=True asks what that "
                "keeps",
                remedy="leave one of them out",
            )
        if self.backward_ready and self.detach_saved_activations:
            raise backward_ready_conflict("detach_saved_activations=True cuts activations from the autograd graph")
        if self.backward_ready is False and keeps:
            raise ConfigurationError(
                code="backward_capture_conflict",
                problem="save_grads= asks for gradients of a backward, and backward_ready=False for none",
                remedy="leave backward_ready out, or pass True",
            )


@_telling_unknown
@attrs.define(frozen=True, slots=True)
class JournalOptions:
    """Where a capture is written and what a crash may cost.

    Attributes:
        path: Directory of the journal; made if missing, appended to if present.
        durability: When events are committed: at the ``"close"`` of the capture, in a ``"batch"`` of bounded
            size and age, or every ``"event"`` before the next op starts.
        sync: What a commit flushes to the disk: ``"events"``, ``"all"`` (payload bytes too) or ``"none"``.
    """

    path: str | os.PathLike[str]
    durability: Durability = attrs.field(default="batch", kw_only=True, validator=_one_of(*get_args(Durability)))
    sync: Sync = attrs.field(default="events", kw_only=True, validator=_one_of(*get_args(Sync)))


@_telling_unknown
@attrs.define(frozen=True, slots=True)
class DiskStorage:
    """Kept activations go to a new journal, and from there alone they are read; made by ``to_disk``.

    Attributes:
        path: Directory of the journal, where nothing is yet.
        retain_in_memory: Hold the tensors too.
    """

    path: str | os.PathLike[str]
    retain_in_memory: bool = attrs.field(default=False, kw_only=True, validator=_switch)


def to_disk(path: str | os.PathLike[str], *, retain_in_memory: bool = False) -> DiskStorage:
    """For ``storage=``: stream kept activations to a new journal at ``path``, so that they take no memory.

    An activation is read back from its bytes, cut from the autograd graph; ``trace.output`` is what the model returned,
    on the graph. What waits for its final label is held in memory until the forward has ended, and what has no bytes to
    store, as a sparse tensor, for as long as the trace is: ``trace.health.unstored`` names it.

    Args:
        path: Where nothing is yet.
        retain_in_memory: Hold the tensors too, on their graph.

    Example:
        >>> trace = tl.trace(model, x, save=tl.in_module("encoder"), storage=tl.to_disk("encoder.journal"))
    """
    return DiskStorage(path, retain_in_memory=retain_in_memory)
