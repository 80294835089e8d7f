"""What a call was given and what it returned, read from templates.

A template is a Python value as plain data with its tensors taken out (``journal.events.template``).
Everything here walks one with a stack of its own, so that depth is bounded by memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

from journal.events import template as tag
from journal.events.template import HOLE

Step: TypeAlias = "tuple[str, int | str]"
"""One step into a container: ("TupleIndex", 1), ("ListIndex", 0), ("DictKey", "k"), ("NamedField", "values")."""

Path: TypeAlias = "tuple[Step, ...]"

HOLDERS: Final = frozenset((tag.TUPLE, tag.LIST, tag.DICT, tag.NAMED, tag.SLICE, tag.SET))
"""Tags of values that may hold tensors."""

SLICE_PARTS: Final = ("start", "stop", "step")

LONGEST: Final = 80
"""Characters of a value's text in a summary."""


def members(template: Any) -> Sequence[tuple[Step, Any]]:
    """The parts of a container template with the step to each; nothing for any other value."""
    parts = tagged(template)
    if not parts or parts[0] not in HOLDERS:
        return ()
    kind = parts[0]
    if kind == tag.DICT:
        return [(("DictKey", key_text(key)), item) for key, item in zip(parts[1::2], parts[2::2], strict=False)]
    if kind == tag.NAMED:
        names = parts[2] if len(parts) > 2 and is_tuple(parts[2]) else ()  # else nothing that a capture writes
        return [(("NamedField", name), item) for name, item in zip(names, parts[3:], strict=False)]
    if kind == tag.SLICE:
        return [(("NamedField", name), item) for name, item in zip(SLICE_PARTS, parts[1:], strict=False)]
    step = "ListIndex" if kind == tag.LIST else "TupleIndex"
    return [((step, index), item) for index, item in enumerate(parts[1:])]


def tagged(template: Any) -> tuple[Any, ...] | None:
    """The parts of a template that does not stand for itself; () for a tensor."""
    return template if is_tuple(template) else None


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def key_text(key: Any) -> int | str:
    """A dictionary key as part of a path."""
    return key if isinstance(key, int | str) and not isinstance(key, bool) else text_of(key)


def holes(template: Any) -> Iterator[Path]:
    """Path of each tensor in a template, in the order in which the tensors are listed."""
    stack: list[tuple[Path, Any]] = [((), template)]
    while stack:
        path, here = stack.pop()
        if tagged(here) == HOLE:
            yield path
            continue
        stack.extend([((*path, step), item) for step, item in reversed(members(here))])


def has_hole(template: Any) -> bool:
    return next(holes(template), None) is not None


def argument_paths(args: Sequence[Any], kwargs: Sequence[Any]) -> list[tuple[int | str, tuple[int | str, ...]]]:
    """Per tensor argument, in order: its position or name, and the keys and positions inside that argument."""
    named = zip(kwargs[0::2], kwargs[1::2], strict=True)
    return [
        (argument, tuple([key for _, key in path]))
        for argument, template in (*enumerate(args), *named)
        for path in holes(template)
    ]


def flat_kwargs(kwargs: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """Name and value of each keyword argument."""
    return tuple(zip(kwargs[0::2], kwargs[1::2], strict=True))


def step_into(template: Any, path: Sequence[Any]) -> Path:
    """The steps that lead along keys and positions into a template; plain indexes where it does not go so deep."""
    steps: list[Step] = []
    here = template
    for key in path:
        found = members(here)
        match = next(((step, item) for step, item in found if step[1] == key), None)
        if match is None and isinstance(key, int) and key < len(found):
            match = found[key]  # a field of a named tuple by its position
        if match is None:
            steps.append(("TupleIndex", key) if isinstance(key, int) else ("DictKey", key_text(key)))
            here = None
        else:
            steps.append(match[0])
            here = match[1]
    return tuple(steps)


def text_of(template: Any, tensors: Iterator[str] | None = None) -> str:
    """A template as people would write the value.

    Args:
        template: What to write.
        tensors: Texts of the tensors, in order; "Tensor" where there are none.
    """
    parts: list[str] = []
    stack: list[Any] = [_Value(template)]
    while stack:
        here = stack.pop()
        if not isinstance(here, _Value):
            parts.append(here)
            continue
        inner = tagged(here.value)
        if inner is None:
            parts.append(repr(here.value))
        elif not inner:
            parts.append("Tensor" if tensors is None else next(tensors, "Tensor"))
        else:
            stack.extend(reversed(_pieces(inner)))
    return "".join(parts)


class _Value:
    """A template still to be written; everything else on the stack is text."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _pieces(value: tuple[Any, ...]) -> list[Any]:
    """Texts and inner values of a tagged value, in writing order."""
    kind = value[0]
    if kind == tag.DICT:
        pairs = [(_Value(key), ": ", _Value(item)) for key, item in zip(value[1::2], value[2::2], strict=True)]
        return ["{", *_joined(pairs), "}"]
    if kind == tag.NAMED:
        fields = [(f"{name}=", _Value(item)) for name, item in zip(value[2], value[3:], strict=False)]
        return [value[1].rpartition(".")[2], "(", *_joined(fields), ")"]
    if kind in _BRACKETS:
        before, after = _BRACKETS[kind]
        trailing = [","] if kind == tag.TUPLE and len(value) == 2 else []
        return [before, *_joined([(_Value(item),) for item in value[1:]]), *trailing, after]
    return [_leaf_text(value)]


_BRACKETS: Final = {
    tag.TUPLE: ("(", ")"),
    tag.LIST: ("[", "]"),
    tag.SET: ("{", "}"),
    tag.SLICE: ("slice(", ")"),
    tag.RANGE: ("range(", ")"),
    tag.SIZE: ("torch.Size([", "])"),
    tag.COMPLEX: ("complex(", ")"),
}


def _joined(groups: Sequence[Sequence[Any]]) -> list[Any]:
    return [piece for index, pieces in enumerate(groups) for piece in ((", ",) if index else ()) + tuple(pieces)]


def _leaf_text(value: tuple[Any, ...]) -> str:
    kind = value[0]
    if kind in (tag.DTYPE, tag.MEMORY_FORMAT, tag.LAYOUT):
        return f"torch.{value[1]}"
    if kind == tag.DEVICE:
        return f"device({value[1]!r})"
    if kind == tag.GENERATOR:
        return f"Generator(device={value[1]!r})"
    if kind in (tag.BIG_INT, tag.CALLABLE):
        return str(value[1])
    if kind == tag.OPAQUE:
        return f"<{value[1]}{': ' + value[2] if value[2] else ''}>"
    if kind == tag.TEXT:
        return f"'{value[1]}'"
    if kind == tag.LONG_TEXT:
        return f"{value[1][:LONGEST]!r}... ({value[2]} characters)"
    if kind == tag.LONG:
        inner = ", ".join(map(text_of, value[2]))
        return f"[{inner}, ... ({value[3]} items)]"
    if kind == tag.BYTES:
        return f"<{value[1]} bytes>"
    if kind == tag.ENUM:
        return f"{value[1].rpartition('.')[2]}.{value[2]}"
    return "..."


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def arguments_text(args: Sequence[Any], tensors: Iterator[str]) -> str:
    """Positional arguments in one line."""
    return ", ".join([shortened(text_of(template, tensors)) for template in args])


def keywords_text(kwargs: Sequence[Any], tensors: Iterator[str]) -> str:
    """Keyword arguments in one line."""
    return ", ".join([f"{name}={shortened(text_of(template, tensors))}" for name, template in flat_kwargs(kwargs)])


NUMPY_SCALARS: Final = {
    path: name
    for name in (
        *("bool_", "int8", "int16", "int32", "int64", "longlong", "uint8", "uint16", "uint32", "uint64", "ulonglong"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
    for path in (f"numpy.{name}", f"numpy.{name.rstrip('_')}")
}
"""Name of each of numpy's scalar types whose text tells the value in full, by the path that is stored."""

WHOLE: Final = frozenset(
    (
        *(tag.TUPLE, tag.LIST, tag.DICT, tag.SLICE, tag.SET, tag.SIZE, tag.RANGE, tag.COMPLEX),
        *(tag.DTYPE, tag.DEVICE, tag.ELLIPSIS, tag.MEMORY_FORMAT, tag.LAYOUT, tag.BIG_INT, tag.GENERATOR),
    )
)
"""Tags of templates that tell a value in full, once what is in them does."""


def is_whole(template: Any) -> bool:
    """Whether a template tells its value in full, so that a call can be given it again."""
    waiting = [template]
    while waiting:
        parts = tagged(waiting.pop())
        if not parts:
            continue
        kind = parts[0]
        if kind == tag.OPAQUE and len(parts) == 3:
            if str(parts[1]) not in NUMPY_SCALARS or not parts[2]:
                return False
        elif kind == tag.NAMED and len(parts) > 2:
            if not str(parts[1]).startswith("torch.return_types."):
                return False
            waiting += parts[3:]
        elif kind in WHOLE:
            waiting += parts[1:]
        else:
            return False
    return True
