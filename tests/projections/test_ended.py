"""One answer to why a forward ended and to what a row is, whoever asks."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings

from journal.events import Event
from projections.accounts.ended import Ended, ended
from projections.accounts.roles import role_of, roles_of
from projections.build import CaptureTables
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams

FACTS: dict[str, Any] = {
    "halt_reason": "enough",
    "nonfinite_reason": "1 NaN element",
    "error_type": "some.place.Odd",
    "error_message": "no",
    "calls_in_progress": (),
}


class Told:
    """Facts of a capture that claims every reason at once, as what is not to be trusted may."""

    def __init__(self, **facts: str | None) -> None:
        self.facts = {**FACTS, **facts}

    def fact(self, name: str) -> Any:
        return self.facts[name]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"status": "complete"}, None),
        ({"status": "halted"}, Ended("halted", "enough")),
        ({"status": "aborted_nonfinite"}, Ended("aborted_nonfinite", "1 NaN element")),
        ({"status": "failed"}, Ended("some.place.Odd", "no")),
        ({"status": "interrupted", "error_message": None}, Ended("some.place.Odd", None)),
        ({"status": "unfinished", "error_type": None, "error_message": None}, Ended("unfinished", None)),
    ],
)
def test_the_status_decides_which_reason_counts(facts: dict[str, Any], said: Ended | None) -> None:
    assert ended(cast("CaptureTables", Told(**facts))) == said


def test_a_class_is_told_without_its_module_where_it_is_told_in_short() -> None:
    assert Ended("some.place.Odd", None).short == "Odd"
    assert Ended("halted", "enough").short == "halted"


@settings(max_examples=30)
@given(events=capture_streams())
def test_every_row_has_the_one_role_that_its_columns_tell(events: list[Event]) -> None:
    tables = tables_of(events)
    for table in (tables.ops, tables.layers):
        roles = roles_of(table)
        assert roles == [role_of(table, row) for row in range(len(table))]
        for role in ("input", "output", "buffer"):
            assert [one == role for one in roles] == [bool(flag) for flag in table.column(f"is_{role}")]
    told = list(tables.ops.column("is_compute_op"))
    assert [role == "op" for role in roles_of(tables.ops)] == told
