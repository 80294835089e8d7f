"""Stored columns that hold what they never do are refused as they are read."""

from __future__ import annotations

import pytest

from projections.errors import EncodingError
from projections.stored.artifact_tables import checked


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("layer_row", "linear_1_1"),
        ("layer_row", True),
        ("layer_row", (1,)),
        ("param_rows", -1),
        ("output_op_rows", 10**6),
        ("saved_grad_rows", {"a": 1}),
        ("written_rows", float("nan")),
        ("version_rows", ("x",)),
        ("grad_outputs_figures", "input_1"),
        ("reason", {}),
        ("subject", ()),
    ],
)
def test_a_column_by_which_rows_are_found_holds_nothing_else(name: str, cell: object) -> None:
    with pytest.raises(EncodingError) as caught:
        checked(name, [cell])
    assert caught.value.code == "encoding_malformed"


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("layer_row", [0, None, -1]),
        ("param_rows", [(), (1, 2), None]),
        ("terminal_bool_rows", [((1, -1), (None,))]),
        ("figures", [None, (1, 2.0)]),
        ("reason", [None, "detached"]),
        ("shape", ["anything", 1, ()]),
    ],
)
def test_what_they_do_hold_is_read(name: str, cells: list[object]) -> None:
    assert checked(name, cells) is cells
