"""A stored template as the Python value it stands for, as far as reading goes.

Numbers, text and containers come back as themselves. What has no plain form (a callable, an opaque
object, a value too large to keep) comes as text that says what it was. Tensors in it stay a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from journal.events import template as tag
from projections.columnar.arguments import flat_kwargs, text_of

__all__ = ["given_values", "python_value", "python_values", "torch_dtype", "torch_dtypes"]

CONTAINERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    tag.TUPLE: tuple,
    tag.LIST: list,
    tag.SET: set,
    tag.SIZE: tuple,
    tag.SLICE: lambda parts: slice(*parts),
    tag.RANGE: lambda parts: range(*parts),
    tag.COMPLEX: lambda parts: complex(*parts),
}


def python_value(template: Any, tensors: Iterator[Any] | None = None) -> Any:
    """The value of one template.

    Args:
        template: What stands for it.
        tensors: What to put into the places of tensors, in order. A named tuple, dataclass or model output then comes
            as a dictionary of its fields, and not as text.
    """
    if not isinstance(template, tuple) or not template:
        if template != tag.HOLE:
            return template
        return "Tensor" if tensors is None else next(tensors, None)
    kind = template[0]
    if kind == tag.NAMED and tensors is not None:
        return {name: python_value(item, tensors) for name, item in zip(template[2], template[3:], strict=False)}
    if kind in CONTAINERS:
        items = [python_value(item, tensors) for item in template[1:]]
        try:
            return CONTAINERS[kind](items)
        except (TypeError, ValueError):  # a member that cannot be hashed, a number that came as text, a step of 0
            return text_of(template)
    if kind == tag.DICT:
        keys = [python_value(key) for key in template[1::2]]
        values = [python_value(item, tensors) for item in template[2::2]]
        try:
            return dict(zip(keys, values, strict=True))
        except TypeError:  # a key that cannot be hashed
            return text_of(template)
    if kind == tag.DTYPE:
        return torch_dtype(template[1])
    if kind in TORCH_WORDS:
        return torch_word(template)
    if kind == tag.BIG_INT:
        return int(template[1])
    if kind == tag.ELLIPSIS:
        return ...
    return text_of(template)


def given_values(args: tuple[Any, ...], kwargs: tuple[Any, ...], tensors: Iterator[Any]) -> tuple[list[Any], Any]:
    """Positional and keyword arguments of a call from their templates and, in order, their tensors."""
    positional = [python_value(template, tensors) for template in args]
    return positional, {name: python_value(item, tensors) for name, item in flat_kwargs(kwargs)}


def python_values(pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The values of named templates, by name."""
    return {name: python_value(template) for name, template in pairs}


TORCH_WORDS: Final = {tag.DEVICE: "device", tag.MEMORY_FORMAT: "memory_format", tag.LAYOUT: "layout"}
"""The class of torch whose values a tag stands for."""


def torch_word(template: Any) -> Any:
    """The device, memory format or layout that a template names; its text where there is no torch, or no such thing."""
    try:
        import torch  # for cost: tables are read without torch
    except ModuleNotFoundError:
        return text_of(template)
    kind, word = template[0], str(template[1])
    if kind == tag.DEVICE:
        try:
            return torch.device(word)
        except RuntimeError:
            return text_of(template)
    found = vars(torch).get(word)
    return found if isinstance(found, getattr(torch, TORCH_WORDS[kind])) else text_of(template)


def torch_dtype(word: str) -> Any:
    """The dtype that a word of the tables names; the word itself where there is no torch to ask."""
    try:
        import torch  # for cost: tables are read without torch
    except ModuleNotFoundError:
        return word
    found = vars(torch).get(str(word))  # not getattr: some names of torch import a package when they are asked for
    return found if isinstance(found, torch.dtype) else word


def torch_dtypes(words: tuple[str | None, ...]) -> tuple[Any, ...]:
    return tuple(None if word is None else torch_dtype(word) for word in words)
