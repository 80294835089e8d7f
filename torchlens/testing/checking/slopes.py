"""Gradients held against differences: whether a model's backward is the derivative of its forward, and where it is not.

Reads  a model and its arguments, as copies in float64.
Rule   each tensor is moved a little along one random direction, forth and back. The change of a weighted sum of the
       outputs is the slope that its gradient must have in that direction.
Rule   a tensor that no gradient came to has the gradient 0: where the outputs move with it, that one is wrong.
Rule   where the slopes on the two sides differ, the model has an edge there, such as that of a relu at 0; nothing can
       be said, and the tensor is left out.
Rule   a wrong tensor is looked for in the modules: the innermost ones are told that go wrong by themselves, on the
       arguments that they had.
Source central differences; Nocedal and Wright, Numerical Optimization, 2006, section 8.1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from torchlens.capture.template import leaves
from torchlens.errors import TorchLensWarning, ValidationError
from torchlens.generators import RandomState, seed_all
from torchlens.testing.checking.copies import Called, copied, copies, named_inputs
from torchlens.testing.given import require_seed, require_tolerance
from torchlens.validation.default_loss import weighted

__all__ = ["check_gradients"]

STEP: Final = 1e-6
"""About the third root of float64's precision, at which a central difference is off least."""

SIDES: Final = 1e-3
"""Slopes of the two sides that differ by more, relative to the larger, are those of an edge."""


class Slope(NamedTuple):
    """What was found of one tensor."""

    name: str
    by_gradient: float
    by_difference: float
    has_edge: bool


def check_gradients(
    model: Any,
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    seed: int = 0,
) -> tuple[str, ...]:
    """The backward of the model is the derivative of its forward, by every parameter and floating input.

    It costs two forwards in float64 for each of them, and one backward.

    Args:
        model: As for ``tl.trace``; a copy in float64 is run.
        input_args: As for ``tl.trace``; floating tensors are taken in float64, and all of them as requiring gradients.
        input_kwargs: As for ``tl.trace``.
        rtol: By how much of the slope by difference the slope by gradient may be off.
        atol: And by how much besides.
        seed: Of the directions, and of the random generators before each run.

    Returns:
        Names of what was compared: addresses of parameters, and ``input.0`` or ``input.x`` for what was given by
        place or name. What stood at an edge, or does not reach an output, is not among them.

    Warns:
        TorchLensWarning: ``gradients_at_edge``, where every tensor stood at an edge and none was compared.

    Raises:
        ValidationError: ``gradients_not_compared``, where the outputs are not finite or depend on nothing.
        ConfigurationError: ``testing_argument_invalid``.
        ValidationError: ``gradient_wrong``; ``exc.fields["tensors"]`` has the names of what has another slope,
            ``fields["modules"]`` the addresses of the innermost modules that are wrong by themselves, "" for the model,
            ``fields["functions"]`` the own autograd functions that ran in these.
        CompatibilityError: ``model_not_copied``.
    """
    require_tolerance(rtol=rtol, atol=atol)
    require_seed(seed)
    called = widened(copies(model, input_args, input_kwargs)())
    streams = RandomState()
    try:
        slopes = list(slopes_of(called, seed))
        wrong = [one for one in slopes if not one.has_edge and not is_near(one, rtol, atol)]
        if not wrong:
            compared = tuple([one.name for one in slopes if not one.has_edge])
            if not compared:
                tell_nothing_compared(called, seed, slopes)
            return compared
        at = [call for call in first_calls(called, seed) if goes_wrong(call.called, seed, rtol, atol)]
        inner = [call for call in at if not any(is_inside(other.address, call.address) for other in at)]
        functions = sorted({name for call in inner for name in own_functions(call.called, seed)})
    finally:
        streams.restore()
    told = "; ".join(
        f"{one.name} has {one.by_gradient:.6g} by its gradient, {one.by_difference:.6g} by difference"
        for one in wrong[:5]
    )
    modules = tuple([call.address for call in inner])
    names = ", ".join([name or "the model itself" for name in modules])
    blame = f"; wrong by itself: {names}" if names else ""
    blame += f", in which {', '.join(functions)} ran" if functions else ""
    raise ValidationError(
        code="gradient_wrong",
        problem=f"the backward is not the derivative of the forward by {len(wrong)} of {len(slopes)} tensors: "
        f"{told}{blame}",
        remedy="mend the backward of the function that is named; a detach(), no_grad() or straight-through estimate "
        "on the way makes them differ on purpose",
        tensors=tuple([one.name for one in wrong]),
        modules=modules,
        functions=tuple(functions),
    )


def tell_nothing_compared(called: Called, seed: int, slopes: Sequence[Slope]) -> None:
    """Refuse, or warn, where no slope could be held against a gradient."""
    total = total_of(copied(called), seed)
    if not slopes or total is None:
        raise ValidationError(
            code="gradients_not_compared",
            problem="no gradient was compared: no parameter and no floating input reaches an output through autograd",
            remedy="give floating inputs, or a model with parameters; what runs under no_grad() has no gradient",
        )
    if not math.isfinite(float(total.detach())):
        raise ValidationError(
            code="gradients_not_compared",
            problem=f"no gradient was compared: the outputs sum to {float(total.detach())}, and have no slope",
            remedy="give inputs and parameters for which the outputs are finite; "
            "tl.trace(model, x).first_nonfinite() tells where they stop to be",
        )
    names = ", ".join([one.name for one in slopes[:5]])
    warnings.warn(
        TorchLensWarning(
            code="gradients_at_edge",
            problem=f"no gradient was compared: the model has an edge by each of {len(slopes)} tensors ({names})",
            remedy="move the inputs away from edges, such as zeros before a relu; hypothesis.assume() passes over them",
        ),
        stacklevel=3,
    )


def is_near(one: Slope, rtol: float, atol: float) -> bool:
    return abs(one.by_gradient - one.by_difference) <= atol + rtol * abs(one.by_difference)


def is_inside(address: str, other: str) -> bool:
    """Whether a module stands below another one."""
    return address != other and (not other or address.startswith(f"{other}."))


def goes_wrong(called: Called, seed: int, rtol: float, atol: float) -> bool:
    return any(not one.has_edge and not is_near(one, rtol, atol) for one in slopes_of(called, seed))


# Slopes -------------------------------------------------------------------------------------------------------------


def widened(called: Called) -> Called:
    """The same in float64, everything floating requiring gradients."""
    model, args, kwargs = called
    if isinstance(model, nn.Module):
        model.double()
    wide: dict[int, Tensor] = {}  # one tensor given twice stays one

    def widen(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return wide.setdefault(id(tensor), tensor.detach().double().requires_grad_())

    return model, rebuilt(tuple(args), widen), rebuilt(dict(kwargs), widen)


def rebuilt(value: Any, of_tensor: Callable[[Tensor], Tensor]) -> Any:
    """The same lists, tuples and dicts, and something for each tensor in them."""
    if isinstance(value, Tensor):
        return of_tensor(value)
    if type(value) is dict:
        return {key: rebuilt(item, of_tensor) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([rebuilt(item, of_tensor) for item in value])
    return value


def variables(called: Called) -> dict[str, Tensor]:
    """What the outputs may depend on, by name; a tensor with two names by the first."""
    model, args, kwargs = called
    named: list[tuple[str, Tensor]] = list(model.named_parameters()) if isinstance(model, nn.Module) else []
    named += named_inputs(args, kwargs)
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in named:
        if tensor.is_floating_point() and tensor.requires_grad and tensor.is_leaf and tensor.numel():
            found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def slopes_of(called: Called, seed: int) -> Iterator[Slope]:
    """One slope of each variable that reaches an output: by a gradient, or as the outputs show when it is moved."""
    base = copied(called)
    of = variables(base)
    total = total_of(base, seed)
    if total is None or not of:
        return
    gradients = torch.autograd.grad(total, list(of.values()), allow_unused=True)
    start = float(total.detach())
    directions = torch.Generator().manual_seed(seed)
    for (name, tensor), gradient in zip(of.items(), gradients, strict=True):
        way = torch.randn(tensor.shape, generator=directions, dtype=torch.float64).to(tensor.device)
        way /= way.norm()
        ahead, behind = moved(called, seed, name, STEP * way), moved(called, seed, name, -STEP * way)
        right, left = (ahead - start) / STEP, (start - behind) / STEP
        # What is left of the digits after the subtraction.
        noise = 1e-15 * max(abs(start), 1.0) / STEP * 100
        has_edge = not math.isfinite(right - left) or abs(right - left) > SIDES * max(abs(right), abs(left)) + noise
        by_difference = (right + left) / 2
        if gradient is not None:
            yield Slope(name, float((gradient * way).sum()), by_difference, has_edge)
        elif not has_edge and abs(by_difference) > noise:  # it reaches an output, and no gradient tells of it
            yield Slope(name, 0.0, by_difference, has_edge=False)


def moved(called: Called, seed: int, name: str, by: Tensor) -> float:
    """The weighted sum with one variable moved."""
    there = copied(called)
    with torch.no_grad():
        variables(there)[name].add_(by)
    total = total_of(there, seed)
    return math.nan if total is None else float(total.detach())


def total_of(called: Called, seed: int) -> Tensor | None:
    """The weighted sum of all that is returned; None where nothing depends on anything."""
    model, args, kwargs = called
    given = {id(tensor): tensor.clone() for _, tensor in leaves((args, kwargs))}  # a leaf may not be written
    args, kwargs = (rebuilt(value, lambda tensor: given.get(id(tensor), tensor)) for value in (args, kwargs))
    seed_all(seed)
    with torch.enable_grad():
        return weighted(model(*args, **kwargs))


# Where ----------------------------------------------------------------------------------------------------------------


class FirstCall(NamedTuple):
    """A module with the arguments that it had when it was first called."""

    address: str
    called: Called


def first_calls(called: Called, seed: int) -> Sequence[FirstCall]:
    """Every module of the model that was called, the model itself with it."""
    model, *_ = here = copied(called)
    if not isinstance(model, nn.Module):
        return [FirstCall("", called)]
    met: dict[str, FirstCall] = {}

    def meet(address: str, module: nn.Module) -> Any:
        def hook(one: nn.Module, args: Any, kwargs: Any) -> None:
            if address not in met:
                met[address] = FirstCall(address, widened((one, unbound(args), unbound(kwargs))))

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    hooks = [meet(address, module) for address, module in model.named_modules() if address]
    total_of(here, seed)
    for hook in hooks:
        hook.remove()
    return [FirstCall("", called), *met.values()]


def unbound(value: Any) -> Any:
    """The same on no graph, as it is now."""
    return rebuilt(value, lambda tensor: tensor.detach().clone())


def own_functions(called: Called, seed: int) -> set[str]:
    """Names of the user's autograd functions in the graph of a call."""
    total = total_of(copied(called), seed)
    waiting: list[Any] = [] if total is None else [total.grad_fn]
    met: set[Any] = set()
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found.add(type(node).__name__.removesuffix("Backward"))
        waiting.extend([edge for edge, _ in node.next_functions])
    return found
