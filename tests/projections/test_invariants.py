"""Every promise is kept by sound tables and notices the breach that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from projections import CaptureTables, invariants
from tests.projections.making import two_blocks


def sound() -> CaptureTables:
    return two_blocks().tables()


def change(table: str, column: str, row: int, value: Any) -> Callable[[CaptureTables], None]:
    """Put a wrong value into one cell."""

    def spoil(tables: CaptureTables) -> None:
        made = list(tables.table(table).column(column))
        made[row] = value
        tables.table(table).made[column] = made

    return spoil


def test_sound_tables_keep_every_promise() -> None:
    assert invariants.check(sound()) == []


@pytest.mark.parametrize(
    ("promise", "spoil"),
    [
        ("parents_and_children_mirror_each_other", change("ops", "child_rows", 0, ())),
        ("parents_come_first", change("ops", "parent_rows", 1, (3,))),
        ("labels_are_unique", change("ops", "label", 1, "input_1")),
        ("passes_are_dense", change("ops", "pass_index", 1, 5)),
        ("every_op_is_in_a_layer", change("layers", "op_rows", 0, ())),
        ("layers_are_one_kind", change("ops", "func_name", 1, "tanh")),
        ("steps_never_fall", change("ops", "step_index", 1, 7)),
        ("modules_nest", change("module_calls", "op_rows", 1, ())),
        ("ops_know_their_calls", change("ops", "modules", 1, ("blk:1",))),
        ("every_output_has_a_parent", change("ops", "parent_rows", -1, ())),
        ("inputs_have_no_parents", change("ops", "parents", 0, ("relu_1_1:1",))),
        ("buffer_versions_are_dense", change("ops", "buffer_pass", -2, 1)),
        ("counts_add_up", change("capture", "num_ops", 0, 1)),
        ("keys_lead_back", change("ops", "lookup_keys", 0, (0, "nothing"))),
        ("boundaries_agree", change("ops", "output_of_module_calls", 1, ())),
    ],
)
def test_a_promise_that_is_broken_is_found(promise: str, spoil: Callable[[CaptureTables], None]) -> None:
    tables = sound()
    spoil(tables)
    assert promise in {finding.promise for finding in invariants.check(tables)}


def test_every_promise_has_a_breach_here() -> None:
    parameters = test_a_promise_that_is_broken_is_found.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [name for name, _ in parameters] == [promise.__name__ for promise in invariants.PROMISES]
