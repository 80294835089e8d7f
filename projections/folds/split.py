"""How the state of a fold is split: a small head, and rows that only grow.

A state is a class of ``attrs`` whose fields say how they change, where they stand::

    stack: list[int] = head(list)  # running calls, outermost first
    rows: list[int] = appended("ops", width=WIDTH)
    current: list[int] = overwritten(log="moved")

Gives  the declarations; from them, the head and the lengths of a state, and a state as it once was.
Rule   of a list that grows, handlers read items and slices, append and extend, and replace items where it is
       declared so; of a dict to first rows they get and set defaults. Nothing else, since something else may
       stand in for them (window.py).
Rule   a plain value (a number, a text, a tuple of these) can only be replaced and is of the head without
       saying so; a list or a dict must say what it is. A field that does not is refused when its fold is made.
Not    folding against rows that are known (window.py), or the bytes of a head (snapshots.py).
"""

from __future__ import annotations

import typing
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from journal.checks import Check, check_of

HOW: Final = "how it changes"
"""Under this name a field's metadata has its declaration."""

Moves: TypeAlias = "dict[int, list[tuple[int, int]]]"
"""By position in an overwritten list: each event that overwrote the cell, with what stood there before."""


@attrs.define(frozen=True)
class Appended:
    """A list that is only appended to, so that its length says what it was."""

    counts: str | None  # what people call its rows; None where they are no record
    width: int  # items per row


@attrs.define(frozen=True)
class FirstOf:
    """A dict from a key to the row, in another list, that had it first. A key comes with its row."""

    rows: str


@attrs.define(frozen=True)
class Overwritten:
    """A list whose cells are also replaced; ``log`` has what they were."""

    log: str


@attrs.define(frozen=True)
class Log:
    """What the cells of an overwritten list were before."""


@attrs.define(frozen=True)
class Head:
    """A small list or dict that is changed in place."""


def new_list() -> list[Any]:
    return []


def new_dict() -> dict[Any, Any]:
    return {}


def head(factory: Callable[[], Any]) -> Any:
    """A field of the head that is a list or a dict: small at any time, however long the stream."""
    return attrs.field(factory=factory, metadata={HOW: Head()})


def appended(counts: str | None = None, *, width: int = 1, start: tuple[Any, ...] = ()) -> Any:
    """A list that is only appended to.

    Args:
        counts: What one of its rows is, for people, in the plural.
        width: How many of its items are one row.
        start: What stands in it before the first event.
    """
    return attrs.field(factory=lambda: list(start), metadata={HOW: Appended(counts, width)})


def first_of(rows: str) -> Any:
    """A dict that leads from a key to its first row in the list ``rows``."""
    return attrs.field(factory=new_dict, metadata={HOW: FirstOf(rows)})


def overwritten(*, log: str) -> Any:
    """A list that is appended to and whose cells are replaced; who replaces one notes it in the field ``log``."""
    return attrs.field(factory=new_list, metadata={HOW: Overwritten(log)})


def moves() -> Any:
    """The log of an overwritten list."""
    return attrs.field(factory=new_dict, metadata={HOW: Log()})


class Stored:
    """What a field of the head may hold, and how it is stored: a list as an array, a dict as an array of pairs."""

    def __init__(self, hint: Any) -> None:
        self.origin = typing.get_origin(hint)
        if self.origin is list:
            hint = arrays_of(typing.get_args(hint)[0])
        elif self.origin is dict:
            hint = arrays_of(tuple.__class_getitem__(typing.get_args(hint)))
        self.fits: Check = check_of(hint)

    @property
    def is_container(self) -> bool:
        return self.origin in (list, dict)

    def tuples_of(self, value: Any) -> Any:
        """The value as plain tuples.

        Raises:
            TypeError: When it is not what the field declares, so that it might come back as something else.
        """
        if self.origin is list:
            value = tuple(value)
        elif self.origin is dict:
            value = tuple(value.items())
        if not self.fits(value):
            raise TypeError(f"a {type(value).__name__} where the head has something else")
        return value

    def value_of(self, stored: Any) -> Any:
        """The value from plain tuples."""
        if self.origin is list:
            return list(stored)
        return dict(stored) if self.origin is dict else stored


def arrays_of(item: Any) -> Any:
    """The type of tuples of any length."""
    return tuple.__class_getitem__((item, ...))


class Split:
    """The declarations of one state class, read.

    Attributes:
        head: Names of the fields of the head.
        grown: Names of the lists that grow, whose lengths tell what they were.
        how: What each field declares, by name.

    Raises:
        TypeError: When a field says nothing of itself and is no plain value, or names a field that is not there.
    """

    def __init__(self, state: type[Any]) -> None:
        if not attrs.has(state):
            raise TypeError(f"{state.__qualname__} is no class of attrs, so its fields say nothing of themselves")
        hints = typing.get_type_hints(state)
        self.state = state
        self.how: dict[str, Any] = {}
        self.stored: dict[str, Stored] = {}
        for field in attrs.fields(state):
            how = field.metadata.get(HOW)
            stored = Stored(hints[field.name])
            if how is None and (stored.is_container or not is_plain(hints[field.name])):
                raise TypeError(f"{state.__qualname__}.{field.name} does not say how it changes")
            self.how[field.name] = Head() if how is None else how
            if isinstance(self.how[field.name], Head):
                self.stored[field.name] = stored
        self.head: tuple[str, ...] = tuple(self.stored)
        self.grown = tuple(name for name, how in self.how.items() if isinstance(how, Appended | Overwritten))
        for name, how in self.how.items():
            named = how.rows if isinstance(how, FirstOf) else how.log if isinstance(how, Overwritten) else name
            if named not in self.how:
                raise TypeError(f"{state.__qualname__}.{name} names {named!r}, which is no field")

    def head_of(self, state: Any) -> tuple[Any, ...]:
        """The values of the head, copied."""
        return tuple([copied(getattr(state, name)) for name in self.head])

    def lengths_of(self, state: Any) -> tuple[int, ...]:
        """How long each list that grows is."""
        return tuple([len(getattr(state, name)) for name in self.grown])

    def counts(self, lengths: Sequence[int]) -> dict[str, int]:
        """Number of records of each kind, given the lengths of the lists."""
        made: dict[str, int] = {}
        for name, length in zip(self.grown, lengths, strict=True):
            how = self.how[name]
            if isinstance(how, Appended) and how.counts is not None:
                made[how.counts] = length // how.width
        return made

    def put_together(self, values: Sequence[Any], others: Mapping[str, Any]) -> Any:
        """A state from the values of its head, which are copied, and all other fields."""
        made = self.state.__new__(self.state)
        for name, value in zip(self.head, values, strict=True):
            setattr(made, name, copied(value))
        for name, value in others.items():
            setattr(made, name, value)
        return made

    def as_it_was(self, later: Any, at: int, values: Sequence[Any], lengths: Sequence[int]) -> Any:
        """The state after the first ``at`` events, from one further on, which stays untouched.

        Args:
            later: The state further on.
            at: Number of events.
            values: The head then.
            lengths: The lengths then.
        """
        length_of = dict(zip(self.grown, lengths, strict=True))
        fields: dict[str, Any] = {}
        for name, how in self.how.items():
            match how:
                case Appended():
                    fields[name] = getattr(later, name)[: length_of[name]]
                case FirstOf(rows=rows):
                    known: dict[str, int] = getattr(later, name)
                    fields[name] = {key: row for key, row in known.items() if row < length_of[rows]}
                case Overwritten(log=log):
                    cells: list[int] = getattr(later, name)[: length_of[name]]
                    before: Moves = {}
                    for cell, entries in getattr(later, log).items():
                        place = bisect_left(entries, (at,))
                        if place:
                            before[cell] = entries[:place]
                        if place < len(entries) and cell < len(cells):
                            cells[cell] = entries[place][1]
                    fields[name], fields[log] = cells, before
                case _:
                    pass
        return self.put_together(values, fields)


def copied(value: Any) -> Any:
    return value.copy() if is_container(value) else value


def is_container(value: Any) -> bool:
    return type(value) in (list, dict)


def is_plain(hint: Any) -> bool:
    """Whether a type is of values that can only be replaced: numbers, texts, choices, tuples of these."""
    if isinstance(hint, str | typing.ForwardRef):  # a type within itself, as that of any stored value
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return hint in (int, float, bool, str, bytes, type(None))
    if origin is typing.Literal:
        return True
    return origin not in (list, dict, set) and all(part is Ellipsis or is_plain(part) for part in inner)
