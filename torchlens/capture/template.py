"""A Python value as plain data with its tensors taken out: the slow path, for what is no plain argument.

The tags are those of ``journal.events.template``. Nothing of the user's runs here: no ``repr``, no
property, no iteration of an unknown object.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from journal.events import template as tag

PLAIN: Final = frozenset((int, float, str, bool, type(None)))
MAX_DEPTH: Final = 12
MAX_LEAF_DEPTH: Final = 64
MAX_ITEMS: Final = 1024
MAX_TEXT: Final = 4096
BIGGEST: Final = 1 << 63

Take = Callable[[Tensor], Any]
"""Called with each tensor met, in order."""


def encode(value: Any, take: Take, depth: int = 0, above: frozenset[int] = frozenset()) -> Any:
    """``value`` as a template; ``take`` receives its tensors in the order of their holes.

    What is nested deeper than ``MAX_DEPTH``, or holds itself (``above`` has the ids on the way), is cut.
    """
    kind = type(value)
    if kind in PLAIN:
        if kind is str and len(value) > MAX_TEXT:
            return (tag.LONG_TEXT, value[:MAX_TEXT], len(value))
        return (tag.BIG_INT, str(value)) if kind is int and not -BIGGEST <= value < BIGGEST else value
    if isinstance(value, Tensor):
        take(value)
        return tag.HOLE
    if depth >= MAX_DEPTH or id(value) in above:
        return (tag.DEEP,)
    above = above | {id(value)}
    if kind is slice:
        return (tag.SLICE, *(encode(part, take, depth + 1, above) for part in (value.start, value.stop, value.step)))
    if kind is tuple:
        return _items(tag.TUPLE, value, take, depth, above)
    if kind is list:
        return _items(tag.LIST, value, take, depth, above)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple(value)
    if isinstance(value, enum.Enum):
        return (tag.ENUM, path_of(kind), value.name)
    if isinstance(value, bool | int | float | str):  # a subclass, such as a number with a unit
        return encode(_base_value(value), take, depth, above)
    if isinstance(value, dict | UserDict | tuple | deque | set | frozenset) or dataclasses.is_dataclass(value):
        return _container(value, take, depth, above)
    return _other(value)


def _base_value(value: Any) -> Any:
    if isinstance(value, int):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, float) else str.__str__(value)


def _items(mark: int, items: Any, take: Take, depth: int, above: frozenset[int]) -> Any:
    if len(items) > MAX_ITEMS and all(type(item) in PLAIN for item in items):
        return (tag.LONG, mark, tuple(encode(item, take, depth + 1, above) for item in list(items)[:16]), len(items))
    return (mark, *(encode(item, take, depth + 1, above) for item in items))


def _container(value: Any, take: Take, depth: int, above: frozenset[int]) -> Any:
    kind = type(value)
    if isinstance(value, torch.Size):
        return (tag.SIZE, *value)
    if kind is dict or kind is OrderedDict or isinstance(value, UserDict):
        flat: list[Any] = [tag.DICT]
        for key, item in value.items():
            flat.append(encode(key, take, depth + 1, above))
            flat.append(encode(item, take, depth + 1, above))
        return tuple(flat)
    fields = field_names(value)
    if fields is not None:
        parts = tuple(encode(item, take, depth + 1, above) for _, item in children(value))
        return (tag.NAMED, path_of(kind), tuple(name for name, _ in children(value)), *parts)
    if isinstance(value, dict):
        return _container(dict(value), take, depth, above)
    if isinstance(value, set | frozenset):
        plain = [encode(item, take, depth + 1, above) for item in value]
        return (tag.SET, *sorted(plain, key=repr))
    return _items(tag.TUPLE if isinstance(value, tuple) else tag.LIST, value, take, depth, above)


def _other(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return (tag.CALLABLE, f"functools.partial({callable_path(value.func)})")
    if isinstance(value, _CALLABLES):
        return (tag.CALLABLE, callable_path(value))
    kind = type(value)
    # Only numpy's scalars are asked for their text: that of a foreign object may run anything.
    text = str(value)[:100] if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0 else ""
    return (tag.OPAQUE, path_of(kind), text)


_CALLABLES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    type,
)

_SIMPLE: Final[dict[type, Callable[[Any], Any]]] = {
    torch.dtype: lambda value: (tag.DTYPE, str(value).removeprefix("torch.")),
    torch.device: lambda value: (tag.DEVICE, str(value)),
    torch.memory_format: lambda value: (tag.MEMORY_FORMAT, str(value).removeprefix("torch.")),
    torch.layout: lambda value: (tag.LAYOUT, str(value).removeprefix("torch.")),
    type(Ellipsis): lambda value: (tag.ELLIPSIS,),
    complex: lambda value: (tag.COMPLEX, value.real, value.imag),
    range: lambda value: (tag.RANGE, value.start, value.stop, value.step),
    bytes: lambda value: (tag.BYTES, len(value)),
    torch.Size: lambda value: (tag.SIZE, *value),
    torch.Generator: lambda value: (tag.GENERATOR, str(value.device)),
}


def path_of(kind: type) -> str:
    return spelled(f"{kind.__module__}.{kind.__qualname__}")


def spelled(name: str) -> str:
    """A name with halves of surrogate pairs spelled out, which UTF-8 does not have, as in every text of an event."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def callable_path(value: Any) -> str:
    """Import path of a callable as far as it knows its own name; nothing is called."""
    owner = getattr(value, "__module__", None) or "builtins"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__qualname__)
    return f"{owner}.{name}"


def field_names(value: Any) -> tuple[str, ...] | None:
    """Field names of a named tuple, a torch return type, a dataclass or a model output; None for others."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is not None:
            return tuple(names)
        if type(value).__module__ == "torch.return_types":
            return structseq_fields(type(value))
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return None


@functools.lru_cache(maxsize=256)
def structseq_fields(kind: type) -> tuple[str, ...]:
    count = int(getattr(kind, "n_sequence_fields", 0))
    members = [name for name, item in vars(kind).items() if isinstance(item, types.MemberDescriptorType)]
    return tuple(members[:count])


def children(value: Any) -> list[tuple[Any, Any]]:
    """Keys and items of a container, as found and without running code of the user's; [] for anything else."""
    if isinstance(value, dict | UserDict):  # a model output is a dict whose unset fields are left out
        return list(value.items())
    names = field_names(value)
    if names is not None:
        if isinstance(value, tuple):
            return list(zip(names, value, strict=False))
        held = getattr(value, "__dict__", {})
        return [(name, held.get(name, None) if name in held else getattr(value, name, None)) for name in names]
    if isinstance(value, tuple | list | deque):
        return list(enumerate(value))
    return []


def leaves(value: Any, path: tuple[Any, ...] = (), *, deep: bool = False) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors of a nested value with the path of each, depth first.

    Args:
        value: Anything.
        path: Path of ``value`` itself.
        deep: Look into the attributes of unknown objects too, such as a key/value cache.
    """
    stack: list[tuple[tuple[Any, ...], Any]] = [(path, value)]
    seen: set[int] = set()
    while stack:
        here, item = stack.pop()
        if isinstance(item, Tensor):
            yield here, item
            continue
        if type(item) in PLAIN or len(here) > MAX_LEAF_DEPTH + len(path):
            continue
        inner = children(item)
        if not inner and deep and _may_hold_tensors(item):
            inner = [(name, part) for name, part in vars(item).items() if not name.startswith("__")]
        if inner:
            if id(item) in seen:
                continue
            seen.add(id(item))
            stack.extend(((*here, plain_key(key)), part) for key, part in reversed(inner))


def plain_key(key: Any) -> str | int:
    """A container key as a path element; a key that is no text or number is named by its type."""
    if type(key) in (str, int):
        return key
    return str(key) if isinstance(key, str) else f"<{type(key).__name__}>"


def _may_hold_tensors(item: Any) -> bool:
    kind = type(item)
    return (
        hasattr(item, "__dict__")
        and not isinstance(item, _CALLABLES)
        and not isinstance(item, nn.Module | types.ModuleType | torch.Generator)
        and not kind.__module__.startswith(("torch", "builtins", "logging", "threading"))
    )
