"""A stored template as the Python value it stands for, as far as reading goes.

Numbers, text and containers come back as themselves. What has no plain form (a callable, an opaque
object, a value too large to keep) comes as text that says what it was. Tensors in it stay a placeholder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from journal.events import template as tag
from projections.arguments import text_of

__all__ = ["python_value", "python_values", "torch_dtype", "torch_dtypes"]

CONTAINERS: Final[dict[int, Callable[[list[Any]], Any]]] = {
    tag.TUPLE: tuple,
    tag.LIST: list,
    tag.SET: set,
    tag.SIZE: tuple,
    tag.SLICE: lambda parts: slice(*parts),
    tag.RANGE: lambda parts: range(*parts),
    tag.COMPLEX: lambda parts: complex(*parts),
}


def python_value(template: Any) -> Any:
    """The value of one template."""
    if not isinstance(template, tuple) or not template:
        return template if template != tag.HOLE else "Tensor"
    kind = template[0]
    if kind in CONTAINERS:
        try:
            return CONTAINERS[kind]([python_value(item) for item in template[1:]])
        except (TypeError, ValueError):  # a member that cannot be hashed, a number that came as text, a step of 0
            return text_of(template)
    if kind == tag.DICT:
        keys = [python_value(key) for key in template[1::2]]
        try:
            return dict(zip(keys, map(python_value, template[2::2]), strict=True))
        except TypeError:  # a key that cannot be hashed
            return text_of(template)
    if kind == tag.DTYPE:
        return torch_dtype(template[1])
    if kind == tag.BIG_INT:
        return int(template[1])
    if kind == tag.ELLIPSIS:
        return ...
    return text_of(template)


def python_values(pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The values of named templates, by name."""
    return {name: python_value(template) for name, template in pairs}


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
