"""``tl.summary``: one forward of a model, told as a summary, and the model left as it was found.

Rule   nothing of the run stays: parameters, buffers, attributes, hooks, training flags, gradients and the state of the
       random generators are put back, also where the forward raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from torchlens import turns
from torchlens.api import trace
from torchlens.errors import ConfigurationError, message_of
from torchlens.generators import RandomState
from torchlens.reading.summary import Summary
from torchlens.reading.summary_options import ONE_CALL, USUAL, SummaryAsked, SummaryLevel, options_of
from torchlens.signatures import takes
from torchlens.tracing.request import model_of
from torchlens.undoing import undo
from torchlens.validation.model_state import ModelState
from torchlens.validation.validating import module_of

__all__ = ["summary"]

ExecutionMode: TypeAlias = Literal["eval", "train", "same"]
GradMode: TypeAlias = Literal["off", "same"]

SEED: Final = 0
"""Of the values of inputs that are made up."""


@takes(SummaryAsked, USUAL)
def summary(
    model: Any,
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    level: SummaryLevel = "auto",
    input_size: Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]] | None = None,
    execution_mode: ExecutionMode = "eval",
    grad_mode: GradMode = "off",
    **options: Unpack[SummaryAsked],
) -> Summary:
    """What a model is and does, from one forward that leaves no trace in it.

    The forward runs in eval mode without autograd, and keeps no activation. Afterwards the model, its training flags,
    hooks, buffers and gradients, and the random generators of torch, Python and NumPy are as they were, bit for bit,
    also where it raised. For that the parameters and buffers are copied first.

    Args:
        model: As for ``tl.trace``.
        input_args: As for ``tl.trace``.
        input_kwargs: As for ``tl.trace``.
        level: As for ``trace.summary``.
        input_size: In place of inputs: the shape of one tensor, a list of shapes of positional arguments, or shapes of
            keyword arguments by name. Their values are normal and the same at each call, in the dtype and on the device
            of the model's first floating or complex parameter, else float32 on the CPU.
        execution_mode: ``"eval"``, ``"train"``, or ``"same"`` for modes as they are, in which modules stay that a plain
            function calls.
        grad_mode: ``"off"``, or ``"same"`` for grad mode as it is.
        options: As for ``trace.summary``; checked before the model runs.

    Raises:
        ConfigurationError: What ``trace.summary`` raises for its options; ``summary_option_conflict``, for
            ``input_size`` beside inputs; ``summary_option_invalid``; ``validation_model_uninitialized``, for a lazy
            module that has not run.
        TraceCaptureError: ``model_raised``; what ran before stands in ``exc.partial_trace.summary()``.
        TorchLensError: What else ``tl.trace`` raises.

    Example:
        >>> import torch, torchlens as tl
        >>> tl.summary(torch.nn.Sequential(torch.nn.Linear(4, 2)), input_size=(3, 4)).totals["flops"]
        Flops('54 FLOPs')
    """
    options_of({"level": level, **options}, ("input_args", "input_kwargs", *ONE_CALL))
    require("execution_mode", execution_mode, get_args(ExecutionMode))
    require("grad_mode", grad_mode, get_args(GradMode))
    model_of(model)  # which refuses what is no model, before anything is made up
    root = module_of(model)
    if input_size is not None:
        if input_args is not None or input_kwargs is not None:
            raise ConfigurationError(
                code="summary_option_conflict",
                problem="input_size= stands beside inputs",
                remedy="give inputs, or sizes of inputs to make up",
                argument="input_size",
            )
        input_args, input_kwargs = made_up(input_size, root)
    with turns.several():
        state, generators = ModelState(root), RandomState()
        try:
            if root is not None and execution_mode != "same":
                root.train(execution_mode == "train")
            with torch.no_grad() if grad_mode == "off" else contextlib.nullcontext():
                made = trace(model, input_args, input_kwargs, save="none")
        finally:
            undo([state.restore, generators.restore])
    try:
        return made.summary(level, **options)
    finally:
        made.cleanup()


def require(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(
            code="summary_option_invalid",
            problem=f"{name} is {value!r}",
            remedy=f"give one of {', '.join(choices)}",
            argument=name,
        )


# Inputs that are made up -------------------------------------------------------------------------------


def made_up(size: Any, model: nn.Module | None) -> tuple[list[Tensor] | None, dict[str, Tensor] | None]:
    """Positional and keyword arguments of these shapes."""
    parameters = () if model is None else model.parameters()
    like = next((one for one in parameters if one.is_floating_point() or one.is_complex()), None)
    dtype, device = (torch.float32, torch.device("cpu")) if like is None else (like.dtype, like.device)
    generator = torch.Generator().manual_seed(SEED)

    def tensor(shape: Any) -> Tensor:
        if not is_shape(shape):
            raise ConfigurationError(
                code="summary_option_invalid",
                problem=f"input_size is {size!r}",
                remedy="give a shape, such as (1, 3, 224, 224), a list of shapes, or shapes by keyword",
                argument="input_size",
            )
        try:
            return torch.randn(tuple(shape), generator=generator).to(device, dtype)
        except (RuntimeError, TypeError, MemoryError) as exc:  # of more elements than there is memory or numbers for
            why, _, _ = message_of(exc).partition("\n")
            raise ConfigurationError(
                code="summary_option_invalid",
                problem=f"there is no tensor of input_size {tuple(shape)!r} to be had here: {why}",
                remedy="give smaller sizes, or inputs of your own",
                argument="input_size",
            ) from exc

    if isinstance(size, Mapping):
        return None, {name: tensor(shape) for name, shape in size.items()}
    shapes = [size] if is_shape(size) or not isinstance(size, Sequence) else size
    return [tensor(shape) for shape in shapes], None


def is_shape(value: Any) -> bool:
    is_listed = isinstance(value, Sequence) and not isinstance(value, str)
    return is_listed and all(type(one) is int and one >= 0 for one in value)
