"""Tests for plain values, made from the types that event classes declare."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Literal, Union, cast

from journal.events import event_class

Check = Callable[[Any], bool]


@cache
def checks_of(kind: int) -> tuple[Check, ...]:
    """One test per field of an event class, from its annotation."""
    cls = event_class(kind)
    hints = typing.get_type_hints(cls)
    return tuple(check_of(hints[field]) for field in cls.fields)


def check_of(hint: Any) -> Check:
    """A test for plain values of a type that event classes declare."""
    if hint is None or hint is type(None):
        return is_none
    if isinstance(hint, typing.NewType):
        return check_of(hint.__supertype__)
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return exact(hint)
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is Literal:
        return one_of(frozenset(inner))
    if origin in (Union, types.UnionType):
        kinds = frozenset(kind for part in inner if (kind := bare_kind(part)) is not None)
        return any_of(kinds, tuple(check_of(part) for part in inner if bare_kind(part) is None))
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            kind = bare_kind(inner[0])
            if kind is not None:
                return tuple_of_kind(frozenset([kind]))
            return is_tuple if is_plain(inner[0]) else tuple_of(check_of(inner[0]))
        return shape_of(tuple(check_of(part) for part in inner))
    return is_any


def bare_kind(hint: Any) -> type | None:
    """The one type that values of a hint have, where there is one: a set of these is tested faster than many checks."""
    if hint is None:
        return type(None)
    if isinstance(hint, typing.NewType):
        return bare_kind(hint.__supertype__)
    return hint if isinstance(hint, type) and typing.get_origin(hint) is None else None


def is_plain(hint: Any) -> bool:
    """Whether a type is the recursive one that every stored value has: its name, or the union itself.

    Python 3.10 leaves the name inside ``tuple[...]`` as text; later ones make a reference of it.
    """
    return isinstance(hint, str | typing.ForwardRef) or (
        typing.get_origin(hint) is not None and bytes in typing.get_args(hint)
    )


def as_tuple(value: Any) -> tuple[Any, ...] | None:
    if type(cast("object", value)) is not tuple:
        return None
    items: tuple[Any, ...] = value
    return items


def is_any(value: object) -> bool:
    return True


def is_none(value: object) -> bool:
    return value is None


def is_tuple(value: object) -> bool:
    return isinstance(value, tuple)


def exact(kind: type) -> Check:
    return lambda value: type(value) is kind


def one_of(choices: frozenset[Hashable]) -> Check:
    return lambda value: isinstance(value, str) and value in choices


def any_of(kinds: frozenset[type], checks: tuple[Check, ...]) -> Check:
    """A test for one of some types, or one of some other checks."""
    if not checks:
        return lambda value: type(value) in kinds
    if len(checks) == 1:
        return lambda value: type(value) in kinds or checks[0](value)
    return lambda value: type(value) in kinds or any(check(value) for check in checks)


def tuple_of_kind(kinds: frozenset[type]) -> Check:
    def fits(value: object) -> bool:
        items = as_tuple(value)
        return items is not None and kinds.issuperset(map(type, items))

    return fits


def tuple_of(check: Check) -> Check:
    def fits(value: object) -> bool:
        items = as_tuple(value)
        return items is not None and all(map(check, items))

    return fits


def shape_of(checks: tuple[Check, ...]) -> Check:
    def fits(value: object) -> bool:
        items = as_tuple(value)
        if items is None or len(items) != len(checks):
            return False
        return all(check(item) for check, item in zip(checks, items, strict=True))

    return fits
