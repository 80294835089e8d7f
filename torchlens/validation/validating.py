"""Validating: the model is captured, and what was recorded is held against the model and against itself.

Rule   a failure means that something was recorded wrongly, or that the model does not do the same twice. It is mended
       where it was recorded; no check gives way.
Rule   model, generators and arguments are afterwards as they were (model_state.py).
Not    how one call is checked (checking.py), how a backward is (gradient_checks.py), or what reasons there are
       (findings.py).
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from torch import Tensor, nn

from journal.errors import JournalError
from projections.promises import invariants
from torchlens import api, compat, turns
from torchlens.bits import gap, is_close, same_bits
from torchlens.capture.inputs import copied
from torchlens.capture.template import encode, leaves
from torchlens.copying import copy_of
from torchlens.errors import ConfigurationError, PayloadUnavailableError, TorchLensWarning
from torchlens.generators import RandomState, seeded
from torchlens.handles import Handles
from torchlens.options import CaptureOptions, require_switch, unavailable
from torchlens.reading.facade import Trace
from torchlens.replay.replaying import Replay
from torchlens.replay.restoring import ParameterBefore
from torchlens.tracing.request import arguments, model_of
from torchlens.validation.checking import Checking
from torchlens.validation.differentiating import Runs
from torchlens.validation.findings import EXCUSES, FAILURES, SKIPS, Check, ValidationReport
from torchlens.validation.gradient_checks import Tolerance, backward_checks, non_leaf_checks
from torchlens.validation.kernels import varies_on
from torchlens.validation.model_state import ModelState

__all__ = ["EXCUSES", "FAILURES", "SKIPS", "Check", "ValidationReport", "last_validation_failure", "report", "validate"]

Scope: TypeAlias = Literal["forward", "saved", "backward"]

SCOPES: Final = ("forward", "saved", "backward")
LATER: Final = ("intervention", "receptive_field")

_last_failure: ValidationReport | None = None


def validate(
    model: nn.Module | Callable[..., Any],
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    scope: Scope = "forward",
    random_seed: int | None = None,
    validate_metadata: bool = True,
    loss_fn: Callable[[Any], Tensor] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    validate_layer_grads: bool | None = None,
    layer_grad_atol: float | None = None,
    layer_grad_rtol: float | None = None,
) -> bool:
    """Capture the model and check what was recorded; True where every check passed.

    Where one failed, one ``TorchLensWarning`` (``validation_failed``) says so, and ``last_validation_failure()`` has
    the report. Where nothing could be found out of a backward, the warning's code is
    ``backward_validation_no_module_output_evidence``, ``backward_validation_non_leaf_parameter`` or
    ``backward_validation_nothing_differentiable``. Arguments and errors are those of ``report``.

    Example:
        >>> import torch, torchlens as tl
        >>> tl.validate(torch.nn.Linear(2, 3), torch.ones(1, 2))
        True
    """
    global _last_failure  # the door to what a bool cannot say
    found = report(
        model,
        input_args,
        input_kwargs,
        scope=scope,
        random_seed=random_seed,
        validate_metadata=validate_metadata,
        loss_fn=loss_fn,
        atol=atol,
        rtol=rtol,
        validate_layer_grads=validate_layer_grads,
        layer_grad_atol=layer_grad_atol,
        layer_grad_rtol=layer_grad_rtol,
    )
    if not found:
        _last_failure = found
        warnings.warn(warning_of(found), stacklevel=2)
    return bool(found)


def warning_of(found: ValidationReport) -> TorchLensWarning:
    """What ``validate`` says where it gives False: that something is wrong, or that nothing could be found out."""
    reasons = {check.reason for check in found.failures}
    if reasons == {"no_module_output_evidence"}:
        return TorchLensWarning(
            code="backward_validation_no_module_output_evidence",
            problem=unverifiable(found),
            remedy="pass validate_layer_grads=False to check the gradients of parameters alone, or wrap the model in a "
            "module",
        )
    if reasons == {"non_leaf_parameter"}:
        return TorchLensWarning(
            code="backward_validation_non_leaf_parameter",
            problem=f"{unverifiable(found)} ({', '.join(check.record for check in found.failures[:3])})",
            remedy="validate a fresh copy of the model, whose parameters were made from nothing",
        )
    if reasons == {"nothing_differentiable"}:
        return TorchLensWarning(
            code="backward_validation_nothing_differentiable",
            problem=unverifiable(found),
            remedy="let some parameter or input require a gradient, and make the loss of what was made from it",
        )
    return TorchLensWarning(
        code="validation_failed",
        problem=found.headline(),
        remedy="see tl.validation.last_validation_failure().summary(); unless the model itself does not do the "
        "same twice, something was recorded wrongly: report it with the model",
    )


def unverifiable(found: ValidationReport) -> str:
    why = FAILURES[found.failures[0].reason or ""]
    return f"the backward of {found.model_class_name} cannot be checked, which is not to say that it is wrong: {why}"


def last_validation_failure() -> ValidationReport | None:
    """The report of the last ``tl.validate`` in this process that gave False; None before there was one."""
    return _last_failure


@turns.several()
def report(
    model: nn.Module | Callable[..., Any],
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    scope: Scope = "forward",
    random_seed: int | None = None,
    validate_metadata: bool = True,
    loss_fn: Callable[[Any], Tensor] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    validate_layer_grads: bool | None = None,
    layer_grad_atol: float | None = None,
    layer_grad_rtol: float | None = None,
) -> ValidationReport:
    """Capture the model with everything saved, check what was recorded, and tell every check.

    Args:
        model: As for ``tl.trace``.
        input_args: As for ``tl.trace``.
        input_kwargs: As for ``tl.trace``.
        scope: ``"forward"`` compares the outputs with a bare forward, and makes every call again; ``"saved"`` leaves
            the bare forward out. ``"backward"`` compares the gradients of the parameters, of the inputs and of what
            modules returned with those of runs without recording, and what nodes sent with what arrived.
        random_seed: Seed for every run; by default each begins with the generators as they stand.
        validate_metadata: Check the invariants of the records, too.
        loss_fn: Of ``"backward"`` alone: makes the loss, a tensor with one element, of what the model returned. By
            default a sum over every differentiable tensor in it, each element with a weight of its own.
        atol: Absolute tolerance where a kernel, or a gradient, is not the same twice; by default that of the dtype.
            Everything else must agree bit for bit.
        rtol: Relative tolerance, likewise.
        validate_layer_grads: Of ``"backward"`` alone: False leaves out the gradients of what modules returned.
        layer_grad_atol: As ``atol``, for these gradients; by default ``atol``.
        layer_grad_rtol: As ``rtol``, likewise.

    Returns:
        The report. It is true where nothing failed.

    Raises:
        ConfigurationError: ``validation_scope_unknown``; ``option_not_available`` for a scope that comes later;
            ``validation_option_conflict`` for an option that the scope has no use for; ``loss_fn_result_invalid``;
            ``validation_model_uninitialized`` for a lazy module that has not run; and what ``tl.trace`` raises. What
            the model or ``loss_fn`` raises without recording is raised as it is.
    """
    require_scope(scope)
    of_backward = {
        "loss_fn": loss_fn,
        "validate_layer_grads": validate_layer_grads,
        "layer_grad_atol": layer_grad_atol,
        "layer_grad_rtol": layer_grad_rtol,
    }
    require_of_use(scope, of_backward)
    options = CaptureOptions(random_seed=random_seed)
    if scope == "backward":
        tolerance = Tolerance(atol, rtol)
        layers = Tolerance(
            *(
                own if own is not None else of
                for own, of in zip((layer_grad_atol, layer_grad_rtol), tolerance, strict=True)
            )
        )
        with_layers = validate_layer_grads is not False
        return backward_report(
            model,
            input_args,
            input_kwargs,
            seed=random_seed,
            loss_fn=loss_fn,
            tolerance=tolerance,
            layer_tolerance=layers if with_layers else None,
            invariants=invariant_checks if validate_metadata else None,
        )
    state, generators = ModelState(module_of(model)), RandomState()
    trace: Trace | None = None
    try:
        trace = api.trace(model, input_args, input_kwargs, capture=options)
        live(trace).set_apart(state.storages())
        trace.autograd.disarm()  # a bare forward may run the engine, too
        state.restore()
        generators.restore()
        checks: list[Check] = []
        if scope == "forward":
            forward = BareForward(model, input_args, input_kwargs, random_seed, state, generators)
            checks += output_checks(trace, forward, atol=atol, rtol=rtol)
        checks += call_checks(trace, state, atol=atol, rtol=rtol)
        if validate_metadata:
            checks += invariant_checks(trace)
        return ValidationReport(trace.model_class_name, scope, tuple(checks))
    finally:
        state.restore()
        generators.restore()
        if trace is not None:
            trace.cleanup()


def require_scope(scope: str) -> None:
    if scope in LATER:
        raise unavailable("scope", scope)
    if scope not in SCOPES:
        raise ConfigurationError(
            code="validation_scope_unknown",
            problem=f"scope={scope!r} is none of {', '.join(SCOPES)}",
            remedy='pass "forward", or leave it out; "saved" leaves the bare forward out, "backward" is for gradients',
            argument="scope",
        )


def require_of_use(scope: str, of_backward: Mapping[str, Any]) -> None:
    """Refuse options that say something about gradients where none are looked at."""
    for name, value in of_backward.items():
        if value is None:
            continue
        if scope != "backward":
            raise ConfigurationError(
                code="validation_option_conflict",
                problem=f'{name}= says something about gradients, and scope="{scope}" looks at none',
                remedy='pass scope="backward" with it, or leave it out',
                argument=name,
            )
        if name.startswith("layer_grad") and of_backward["validate_layer_grads"] is False:
            raise ConfigurationError(
                code="validation_option_conflict",
                problem=f"{name}= is for gradients of what modules returned, and validate_layer_grads=False leaves "
                "them out",
                remedy="leave one of them out",
                argument=name,
            )
    require_switch("validate_layer_grads", of_backward["validate_layer_grads"])
    loss_fn = of_backward["loss_fn"]
    if loss_fn is not None and not callable(loss_fn):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"loss_fn= got {type(loss_fn).__name__}, which cannot be called",
            remedy="pass a function of what the model returned, such as lambda output: output.sum()",
            argument="loss_fn",
        )


def backward_report(
    model: Any,
    input_args: Any,
    input_kwargs: Mapping[str, Any] | None,
    *,
    seed: int | None,
    loss_fn: Callable[[Any], Tensor] | None,
    tolerance: Tolerance,
    layer_tolerance: Tolerance | None,
    invariants: Callable[[Trace], Iterable[Check]] | None,
) -> ValidationReport:
    """What there is to say of the backward of a model."""
    root, forward, _ = model_of(model)
    name = type(root).__name__ if module_of(model) is not None else getattr(model, "__name__", type(model).__name__)
    checks = non_leaf_checks(root)
    if not checks:
        args, kwargs = arguments(input_args, input_kwargs)
        state, generators = ModelState(module_of(model)), RandomState()
        runs = Runs(model, forward, root, args, kwargs, loss_of=loss_fn, seed=seed, state=state, generators=generators)
        try:
            checks = backward_checks(runs, tolerance=tolerance, layer_tolerance=layer_tolerance, invariants=invariants)
        finally:
            runs.restore()
    return ValidationReport(name, "backward", tuple(checks))


def module_of(model: Any) -> nn.Module | None:
    """The module whose state a forward may change."""
    if isinstance(model, types.MethodType):
        model = model.__self__
    return model if isinstance(model, nn.Module) else None


class Returned(NamedTuple):
    """What a bare forward returned."""

    structure: str  # around the tensors
    tensors: dict[tuple[Any, ...], Tensor]  # by path, as they were then: their memory may be put back

    def is_same(self, other: Returned) -> bool:
        return list(self.tensors) == list(other.tensors) and all(
            same_bits(one, other.tensors[path]) for path, one in self.tensors.items()
        )


class BareForward:
    """The forward without recording, each time from the same model and generators."""

    def __init__(
        self,
        model: Callable[..., Any],
        input_args: Any,
        input_kwargs: Mapping[str, Any] | None,
        seed: int | None,
        state: ModelState,
        generators: RandomState,
    ) -> None:
        self.model = model
        self.args, self.kwargs = arguments(input_args, input_kwargs)
        self.seed = seed
        self.state = state
        self.generators = generators

    def __call__(self) -> Returned:
        with compat.NoTorchFunction():
            args, kwargs, _ = copied(self.args, self.kwargs)
        try:
            with seeded(self.seed):
                made = self.model(*args, **kwargs)
            with compat.NoTorchFunction():
                found = {path: copy_of(compat.detach(tensor)) for path, tensor in leaves(made, deep=True)}
            return Returned(structure_of(made), found)
        finally:
            self.state.restore()
            self.generators.restore()


def output_checks(
    trace: Trace, forward: BareForward, *, atol: float | None = None, rtol: float | None = None
) -> Iterator[Check]:
    """Each recorded output against what a bare forward returns."""
    failures: dict[tuple[Any, ...], str] = {}
    try:
        found = dict(recorded_outputs(trace))
    except (PayloadUnavailableError, JournalError) as refusal:
        yield Check("output", "output", outcome="failed", reason="output_not_readable", detail=refusal.problem)
        return
    result = forward()
    wanted = result.tensors
    may_vary = any(kernel_may_vary(trace))
    for path in dict.fromkeys((*found, *wanted)):
        one, other = found.get(path), wanted.get(path)
        if one is None or other is None:
            failures[path] = "the trace has no such output" if one is None else "the bare forward returned none there"
        elif not same_bits(one, other) and not (may_vary and is_close(one, other, atol, rtol)):
            failures[path] = gap(one, other)
    recorded = structure_of(trace.output)
    if not failures and recorded != result.structure:
        failures[()] = f"the trace returned {recorded[:100]} and the bare forward {result.structure[:100]}"
    reason = "outputs_differ"
    if failures and not result.is_same(forward()):
        reason = "model_not_deterministic"
    for path in dict.fromkeys((*found, *failures)):
        name = ".".join(("output", *map(str, path)))
        if path in failures:
            yield Check("output", name, outcome="failed", reason=reason, detail=failures[path])
        else:
            yield Check("output", name)


def recorded_outputs(trace: Trace) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor that the forward returned, by path, as the trace has it; a returned parameter is the live one."""
    returned = dict(leaves(trace.output, deep=True))
    rows = iter(trace.tables.fact("output_rows"))
    for path, tensor in returned.items():
        if isinstance(tensor, nn.Parameter):  # has no output op
            yield path, tensor
        else:
            row = next(rows, None)
            if row is not None:
                yield path, trace.activation(row)


def structure_of(value: Any) -> str:
    """The containers and plain values around the tensors of what a forward returned."""
    return repr(encode(value, lambda tensor: None))


def kernel_may_vary(trace: Trace) -> Iterator[bool]:
    """Whether some call ran a kernel that torch documents as not deterministic."""
    ops = trace.tables.ops
    for name, device in zip(ops.column("func_name"), ops.column("device_ref"), strict=True):
        yield varies_on(str(device), name)


def live(trace: Trace) -> Handles:
    assert isinstance(trace.handles, Handles)  # a capture of this process
    return trace.handles


def call_checks(
    trace: Trace, state: ModelState, *, atol: float | None = None, rtol: float | None = None
) -> Iterator[Check]:
    """Every call made again, and again with other values of each parent."""
    handles = live(trace)

    def parameter(number: int) -> ParameterBefore | None:
        found = handles.parameter(number)
        return None if found is None else state.known(found)

    with compat.NoTorchFunction():
        replay = Replay(trace, parameter)
        checking = Checking(replay, names_of(trace), atol=atol, rtol=rtol)
        for call in replay.memory.executed():
            yield from checking.of(call)
    for label in trace.health.unseen_tensors:
        yield Check("reexecution", label, None, None, "skipped", "made_unseen")


def names_of(trace: Trace) -> Callable[[int], str]:
    """Label of the op that made a value, or address of a parameter."""
    tables = trace.tables
    names: dict[int, str] = {}
    for table in (tables.ops, tables.orphans):
        for value, label in zip(table.column("value"), table.column("label"), strict=True):
            names.setdefault(value, label)
    addresses = tables.params.column("address")

    def name(number: int) -> str:
        if number < 0:
            return str(addresses[-1 - number])
        return names.get(number, f"constant {number}")

    return name


def invariant_checks(trace: Trace) -> Iterator[Check]:
    """Every promise that the records keep."""
    findings = invariants.check(trace.tables)
    for promise in invariants.PROMISES:
        name = invariants.promise_name(promise)
        broken = [finding for finding in findings if finding.promise == name]
        if broken:
            yield Check("invariant", name, outcome="failed", reason="invariant_broken", detail=invariants.told(broken))
        else:
            yield Check("invariant", name)
