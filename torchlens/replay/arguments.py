"""A stored template as the very Python value, so that the call it was given to can be made again.

Reads  templates (``journal.events.template``) and the tensors that go into their places.
Rule   nothing is imported and no attribute looked up by a stored name, save in closed lists of torch's own words.
Not    reading for people, which shows also what was not kept (reading/values.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from journal.events import template as tag
from projections.columnar.arguments import NUMPY_SCALARS, flat_kwargs, text_of
from torchlens.errors import ReplayRefused
from torchlens.reading import values
from torchlens.tensors import DTYPE_BY_WORD

MEMORY_FORMATS: Final = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.memory_format)
}
LAYOUTS: Final = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.layout)
}
RETURN_TYPES: Final = {
    f"torch.return_types.{name}": value
    for name, value in vars(torch.return_types).items()
    if isinstance(value, type) and issubclass(value, tuple)
}
CONTAINERS: Final[dict[int, Callable[[list[Any]], Any]]] = {**values.CONTAINERS, tag.SIZE: torch.Size}

LEAVES: Final[dict[int, Callable[[Any], Any]]] = {
    tag.DTYPE: DTYPE_BY_WORD.__getitem__,
    tag.DEVICE: torch.device,
    tag.MEMORY_FORMAT: MEMORY_FORMATS.__getitem__,
    tag.LAYOUT: LAYOUTS.__getitem__,
    tag.BIG_INT: int,
    tag.GENERATOR: torch.Generator,
}


def call_arguments(
    args: Sequence[Any], kwargs: Sequence[Any], tensors: Sequence[Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a call.

    Args:
        args: Templates of the positional arguments.
        kwargs: Name, template, name, template, ....
        tensors: The tensors of both, in order.

    Raises:
        ReplayRefused: ``replay_argument_lost``, where a value was too large, too deep or too foreign to be kept.
    """
    waiting = iter(tensors)
    plain = [argument(template, waiting) for template in args]
    return plain, {name: argument(template, waiting) for name, template in flat_kwargs(kwargs)}


def argument(template: Any, tensors: Iterator[Tensor]) -> Any:
    """The value of one template, its tensors taken from ``tensors``."""
    if not isinstance(template, tuple):
        return template
    if template == tag.HOLE:
        tensor = next(tensors, None)
        if tensor is None:  # as where a tensor is the key of a dict, which no capture writes
            raise lost(template)
        return tensor
    kind, *parts = template
    try:
        if kind in CONTAINERS:
            return CONTAINERS[kind]([argument(part, tensors) for part in parts])
        if kind == tag.DICT:
            pairs = [argument(part, tensors) for part in parts]
            return dict(zip(pairs[0::2], pairs[1::2], strict=True))
        if kind == tag.ELLIPSIS:
            return ...
        if kind in LEAVES:
            return LEAVES[kind](parts[0])
        if kind == tag.NAMED:
            return RETURN_TYPES[parts[0]]([argument(part, tensors) for part in parts[2:]])
        if kind == tag.OPAQUE:
            return numpy_scalar(*parts)
    except (LookupError, TypeError, ValueError, RuntimeError) as exc:
        raise lost(template) from exc
    raise lost(template)


def numpy_scalar(path: str, text: str) -> Any:
    """A scalar of numpy's from its text, which tells it exactly; one of the types that there are."""
    name = NUMPY_SCALARS[path]
    made = getattr(sys.modules["numpy"], name)
    if name == "bool_":
        return made({"True": True, "False": False}[text])
    return made(complex(text) if name.startswith("complex") else text)


def lost(template: Any) -> ReplayRefused:
    return ReplayRefused(
        code="replay_argument_lost",
        problem=f"the argument {text_of(template)[:80]} was not kept in a form that gives it back",
        remedy="give the call plain arguments; numbers, text, dtypes, slices and short containers are kept whole",
    )
