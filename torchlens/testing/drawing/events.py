"""Single events, well-typed but meaningless, as hypothesis draws them.

Rule   they come from the annotations of the event classes, so that a new class is covered by being there.
"""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, Union

from hypothesis import strategies as st

from journal.events import EVENTS_BY_NAME, Event

__all__ = ["any_event", "events_of", "plain_values"]

INTEGERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


def plain_values(max_leaves: int = 6) -> st.SearchStrategy[Any]:
    """Anything that a body may hold; no NaN, which equals nothing."""
    leaves = st.one_of(
        st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False), TEXTS, st.binary(max_size=8), st.just(())
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4).map(lambda items: tuple(items)), max_leaves=max_leaves
    )


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that event classes declare."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    # Python 3.10 leaves the name of a type inside `tuple[...]` as text.
    if isinstance(hint, str | typing.ForwardRef) or (origin in (Union, types.UnionType) and bytes in inner):
        return plain_values()
    if isinstance(hint, typing.NewType):
        return values_of(hint.__supertype__)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(part) for part in inner])
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values_of(inner[0]), max_size=3).map(lambda items: tuple(items))
    if origin is tuple:
        return st.tuples(*[values_of(part) for part in inner])
    plain = {int: INTEGERS, str: TEXTS, bool: st.booleans(), type(None): st.none(), float: st.floats(allow_nan=False)}
    return plain[hint]


def events_of(cls: type[Event]) -> st.SearchStrategy[Event]:
    """Events of one class, well-typed but meaningless."""
    hints = typing.get_type_hints(cls)
    return st.fixed_dictionaries({field: values_of(hints[field]) for field in cls.fields}).map(
        lambda fields: cls(**fields)
    )


def any_event() -> st.SearchStrategy[Event]:
    """An event of any class."""
    return st.sampled_from(sorted(EVENTS_BY_NAME)).flatmap(lambda name: events_of(EVENTS_BY_NAME[name]))
