"""A test-only event that has three versions, so that what a version lives through can be tried before one is released.

1   number, name
2   low, high, name          the number's digits, apart
3   low, high, length        the name's length in its place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from journal import Event, LmdbJournal, checks, upcasting, wire
from journal.events import base
from journal.upcasting import upcaster
from tests.strategies import opened

NAME = "tested"

STORED: dict[int, dict[str, Any]] = {
    1: {"number": 47, "name": "seven"},
    2: {"low": 7, "high": 4, "name": "seven"},
    3: {"low": 7, "high": 4, "length": 5},
}
"""The same fact in each version."""


def register(version: int) -> type[Event]:
    """The class as it is at a version, with the upcasters that lead there."""
    make: dict[int, Callable[[], type[Event]]] = {1: first, 2: second, 3: third}
    made = make[version]()
    if version > 1:
        upcaster(NAME, from_version=1)(lambda fields: (fields[0] % 10, fields[0] // 10, fields[1]))
    if version > 2:
        upcaster(NAME, from_version=2)(lambda fields: (*fields[:2], len(fields[2])))
    return made


def first() -> type[Event]:
    @base.event(NAME, version=1)
    class Tested(Event):
        number: int
        name: str

    return Tested


def second() -> type[Event]:
    @base.event(NAME, version=2)
    class Tested(Event):
        low: int
        high: int
        name: str

    return Tested


def third() -> type[Event]:
    @base.event(NAME, version=3)
    class Tested(Event):
        low: int
        high: int
        length: int

    return Tested


def forget() -> None:
    """Take the class out of the registry again: later tests must not meet it."""
    cls = base._BY_NAME.pop(NAME)
    assert base._BY_ID.pop() is cls
    for step in (1, 2):
        upcasting.UPCASTERS.pop((NAME, step), None)
    for cached in (wire.local_widths, upcasting.plan_for, checks.checks_of):
        cached.cache_clear()


def append(path: str, version: int) -> None:
    """As a process of that version: append a stream with three of the event."""
    cls: Any = register(version)
    journal = LmdbJournal(path)
    writer = journal.open_stream(opened(written_by=f"0.{version}"))
    for time_ns in (10, 20, 30):
        writer.append(cls(**STORED[version]), time_ns)
    writer.close()
    journal.close()
