"""Events that no capture writes: well-formed one by one, they do not fit together.

Anyone may have written a journal. Whatever it holds, reading it ends: with records, or with a coded error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.errors import JournalCorrupt, TorchLensError
from journal.events import CallSiteSeen, Event, InputSeen, ModelDescribed, ModuleEntered, OpExecuted, Row
from projections import CaptureTables, Projector, fingerprint
from projections.promises import invariants
from tests.projections.making import Rows, source_of, two_blocks
from tests.work import at_most

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 7, 2**31, 2**62, -(2**63), 1.5, "", "x", b"ab"),
    *((), (1,), ((),), (0, 0, None), (3, 1), (7,)),
)


def whole() -> list[Row]:
    return list(source_of(two_blocks().events).all)


def read_everything(tables: CaptureTables) -> None:
    for table in tables.all.values():
        for name in table.names:
            for row in range(len(table)):
                table.value(name, row)
    assert tables.keys is not None
    fingerprint(tables)
    invariants.check(tables)


def changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, tuple) and value and draw.random() < 0.75:
        place = draw.randrange(len(value))
        return (*value[:place], changed(value[place], draw), *value[place + 1 :])
    return draw.choice(ODD)


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_any_change_to_the_events_gives_records_or_a_coded_error(draw: random.Random) -> None:
    rows = whole()
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(rows))
        row = rows[at]
        field = draw.randrange(2, len(row))
        rows[at] = (*row[:field], changed(row[field], draw), *row[field + 1 :])
        if draw.random() < 0.1:
            del rows[draw.randrange(len(rows))]
    with at_most(10):
        try:
            read_everything(Projector(Rows(rows)).tables())
        except TorchLensError as exc:
            assert exc.code in ("events_contradictory", "encoding_type_refused")  # noqa: PT017 - both ends are right


def spoilt(cls: type[Event], change: Callable[[Row], Row]) -> CaptureTables:
    """The tables of sound events of which those of one class are changed."""
    return Projector(Rows([change(row) if row[0] == cls.type_id else row for row in whole()])).tables()


def with_field(cls: type[Event], name: str, value: Any) -> Callable[[Row], Row]:
    place = 2 + cls.fields.index(name)
    return lambda row: (*row[:place], value, *row[place + 1 :])


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (InputSeen, "value", 2**40),  # would take a list of as many numbers
        (OpExecuted, "first", 2**40),
        (OpExecuted, "inputs", (999,)),
        (OpExecuted, "outputs", 5),
        (ModuleEntered, "inputs", (999,)),
        (CallSiteSeen, "caller", 0),  # the first site would be called from itself
        (ModelDescribed, "modules", tuple((at, "A", "m.A", 1, True, (), (), (), ()) for at in "ab")),
    ],
)
def test_numbers_that_name_nothing_are_told_and_take_no_memory(cls: type[Event], field: str, value: Any) -> None:
    with pytest.raises(JournalCorrupt) as refused:
        read_everything(spoilt(cls, with_field(cls, field, value)))
    assert refused.value.code == "events_contradictory"


def test_a_name_that_is_no_column_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Projector(Rows(whole())).tables().ops.column("nonsense")
