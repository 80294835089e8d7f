"""Rows of other versions: lifted to the present one, a version at a time, or refused with the version that reads them.

Rule  a type or version that this process does not know is refused, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from journal.errors import JournalError, malformed, writer_of
from journal.events import EVENTS_BY_NAME, event_class
from journal.events.base import Row

UNREADABLE: Final = frozenset(("event_unknown", "event_upcaster_missing", "event_version_newer"))
"""Codes of events that another version of this package reads."""

Upcaster = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Fields of one version, in order, to the fields of the next."""

UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {}

UpcasterT = TypeVar("UpcasterT", bound=Upcaster)


def upcaster(name: str, *, from_version: int) -> Callable[[UpcasterT], UpcasterT]:
    """Register the step that lifts event ``name`` from ``from_version`` to the version after it.

    Raises:
        JournalError: `upcaster_misplaced`, when the event has no such step; `upcaster_taken`.
    """

    def register(step: UpcasterT) -> UpcasterT:
        cls = EVENTS_BY_NAME.get(name)
        if cls is None or not 1 <= from_version < cls.event_version:
            known = "no event has that name" if cls is None else f"its versions are 1 to {cls.event_version}"
            raise JournalError(
                code="upcaster_misplaced",
                problem=f"nothing is lifted from version {from_version} of event {name!r}: {known}",
                remedy="raise the version of the class first; an upcaster leads from each version to the next",
                name=name,
                from_version=from_version,
            )
        if (name, from_version) in UPCASTERS:
            raise JournalError(
                code="upcaster_taken",
                problem=f"two upcasters lift event {name!r} from version {from_version}",
                remedy="keep one: what a released version meant does not change",
                name=name,
                from_version=from_version,
            )
        UPCASTERS[name, from_version] = step
        plan_for.cache_clear()
        return step

    return register


Lifts: TypeAlias = "dict[int, tuple[int, int, tuple[Upcaster, ...]]]"
"""By stored type number: the number here, the row length here, the steps."""


@attrs.define(frozen=True, slots=True)
class Plan:
    """How to read the rows of a chunk with one table of types."""

    widths: dict[int, int]  # row length by stored type number; -1 where only an upcaster knows
    lifts: Lifts | None  # None: rows stand as stored


@lru_cache(maxsize=256)
def plan_for(table: tuple[tuple[int, str, int], ...], written_by: str | None) -> Plan:
    widths: dict[int, int] = {}
    lifts: Lifts = {}
    same = True
    for kind, name, version in table:
        cls = EVENTS_BY_NAME.get(name)
        if cls is None:
            raise unreadable("event_unknown", f"event {name!r} is not known here", name, version, written_by)
        if version > cls.event_version:
            problem = f"event {name!r} has version {version}; this package knows up to {cls.event_version}"
            raise unreadable("event_version_newer", problem, name, version, written_by)
        steps = [UPCASTERS.get((name, step)) for step in range(version, cls.event_version)]
        if kind in widths or version < 1 or None in steps:
            problem = f"nothing lifts event {name!r} from version {version} to {cls.event_version}"
            raise unreadable("event_upcaster_missing", problem, name, version, written_by)
        width = len(cls.fields) + 2
        widths[kind] = -1 if steps else width
        lifts[kind] = (cls.type_id, width, tuple(step for step in steps if step is not None))
        same = same and kind == cls.type_id and not steps
    return Plan(widths, None if same else lifts)


def lifted(rows: Sequence[Row], lifts: Lifts) -> Sequence[Row]:
    made: list[Row] = []
    for row in rows:
        kind, width, steps = lifts[row[0]]
        fields = row[2:]
        try:
            for step in steps:
                fields = step(fields)
        except Exception as exc:  # an upcaster meets whatever was stored
            raise malformed("event_malformed", f"a row of {event_class(kind).event_name} cannot be lifted") from exc
        if len(fields) + 2 != width:
            raise malformed("event_malformed", f"a row of {event_class(kind).event_name} has {len(fields) + 2} fields")
        made.append((kind, row[1], *fields))
    return made


def unreadable(code: str, problem: str, name: str, version: int, written_by: str | None) -> JournalError:
    return JournalError(
        code=code,
        problem=problem,
        remedy=f"read this journal with {writer_of(written_by)} or a later one",
        name=name,
        version=version,
        written_by=written_by,
    )
