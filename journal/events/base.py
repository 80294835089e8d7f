"""What every event is: a frozen class with a name and a version, and the numbers it may speak of.

An event body holds plain values only, so that it can be stored, and it refers to other things by
numbers that count from the start of its stream, so that streams can be copied and branched without
rewriting a body. The class is the schema: its fields, in order, are the stored row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, NewType, TypeAlias, TypeVar, cast

import attrs
from typing_extensions import dataclass_transform

from journal.errors import JournalError

Seq = NewType("Seq", int)
"""Number of an event within its journal, from 0 without gaps."""

StreamId = NewType("StreamId", int)
"""Number of a stream within its journal, from 0."""

At = NewType("At", int)
"""Number of an event within its stream, from 0 without gaps."""

Value = NewType("Value", int)
"""Number of a tensor value within a capture: an input, a result of a call, a buffer version or a constant."""

Plain: TypeAlias = "bool | int | float | str | bytes | tuple[Plain, ...] | None"
"""What a body may hold."""

Row: TypeAlias = tuple[Any, ...]
"""An event as it is stored: type number, time in ns, then the fields in the order of the class."""


class Event:
    """Base of all event classes. Not an event itself."""

    __slots__ = ()

    event_name: ClassVar[str]
    event_version: ClassVar[int]
    type_id: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]

    def row(self, time_ns: int) -> Row:
        """The stored form of this event, taken at ``time_ns`` of the monotonic clock."""
        return (self.type_id, time_ns, *(getattr(self, field) for field in self.fields))


EventClass = TypeVar("EventClass", bound=type[Event])

_BY_NAME: Final[dict[str, type[Event]]] = {}
_BY_ID: Final[list[type[Event]]] = []

EVENTS_BY_NAME: Final[Mapping[str, type[Event]]] = MappingProxyType(_BY_NAME)
"""Every registered event class by its stored name."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(name: str, *, version: int) -> Callable[[EventClass], EventClass]:
    """Make a class an event type: frozen, slotted, keyword-only, registered under ``name``.

    A released name keeps its sense for good. A changed set of fields is the next ``version`` and one
    upcaster from the version before (``journal.wire``).
    """

    def register(cls: EventClass) -> EventClass:
        made = attrs.define(cls, frozen=True, slots=True, kw_only=True)
        if name in _BY_NAME:
            raise JournalError(
                code="event_name_taken",
                problem=f"two event classes are named {name!r}",
                remedy="give the new class a name of its own",
                name=name,
            )
        made.event_name = name
        made.event_version = version
        made.type_id = len(_BY_ID)
        made.fields = tuple(field.name for field in attrs.fields(cast(Any, made)))
        _BY_NAME[name] = made
        _BY_ID.append(made)
        return made

    return register


def event_class(type_id: int) -> type[Event]:
    """The class whose rows start with ``type_id`` in this process."""
    return _BY_ID[type_id]


@attrs.define(frozen=True, slots=True)
class Stamped:
    """An event with its place: what readers of a journal get."""

    seq: Seq
    stream: StreamId
    at: At
    time_ns: int
    event: Event
