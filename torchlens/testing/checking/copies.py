"""A model with its arguments, copied as often as it is to run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from torchlens.capture.template import leaves
from torchlens.errors import CompatibilityError
from torchlens.tracing.request import arguments

__all__ = ["Called", "copied", "copies", "named_inputs"]

Called: TypeAlias = "tuple[Any, tuple[Any, ...], dict[str, Any]]"
"""A model with its positional and keyword arguments."""


def copies(model: Any, input_args: Any, input_kwargs: Mapping[str, Any] | None) -> Callable[[], Called]:
    """What gives the model and its arguments as they are now, copied anew at each call.

    Tensors that share memory, in the model, in the arguments or between the two, share it in the copy.

    Raises:
        CompatibilityError: ``model_not_copied``.
    """
    args, kwargs = arguments(input_args, input_kwargs)
    held = copied((model, tuple(args), dict(kwargs)))
    return lambda: copied(held)


def copied(called: Called) -> Called:
    try:
        return copy.deepcopy(called)
    except Exception as exc:  # whatever a part of a model raises when it is copied
        raise CompatibilityError(
            code="model_not_copied",
            problem=f"the check runs copies of the model and its arguments, and copying them raised {exc}",
            remedy="hand over tensors that no graph holds, x.detach(); a model that cannot be copied is checked by "
            "assert_tracing_changes_nothing(build), which is given a function that builds it",
        ) from exc


def named_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors of arguments by name: ``input.0``, and ``input.x`` for one given by name."""
    found = [*leaves(tuple(args)), *leaves(dict(kwargs))]
    return [(".".join(("input", *map(str, path))), tensor) for path, tensor in found]
