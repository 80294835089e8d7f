"""Two foldings of one table: every difference is found, once, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections import CaptureTables, build
from projections.columnar.comparison import LABEL_FIELDS, TableDifference, differences
from projections.columnar.decoding import PackedTable, unpack_table
from projections.columnar.tables import Maker
from projections.records.ops import OPS
from projections.stored.encoding import Encoder, packed
from tests.projections.making import Made
from tests.strategies import plain_values


def chain(*functions: str) -> CaptureTables:
    made = Made()
    x = made.input("x")
    for function in functions:
        x = made.op(function, x)
    return made.returns(x).tables()


def ops(*functions: str) -> PackedTable:
    tables = chain(*functions)
    return unpack_table(packed(Encoder(tables).table(tables.ops)))


def with_column(monkeypatch: pytest.MonkeyPatch, name: str, cells: list[Any]) -> PackedTable:
    """The op table of a chain whose column ``name`` has these cells."""
    with monkeypatch.context() as patch:
        patch.setitem(OPS, name, constant(cells))
        return ops(*["relu"] * (len(cells) - 2))


def constant(cells: list[Any]) -> Maker[Any]:
    return lambda forward: cells


def test_a_table_does_not_differ_from_itself() -> None:
    assert list(differences(ops("relu", "tanh"), ops("relu", "tanh"))) == []


@given(
    st.lists(plain_values(), min_size=3, max_size=6).flatmap(
        lambda cells: st.tuples(
            st.just(cells), st.lists(plain_values(), min_size=len(cells), max_size=len(cells)), st.data()
        )
    )
)
def test_just_the_cells_that_differ_are_told(given: tuple[list[Any], list[Any], st.DataObject]) -> None:
    before, others, data = given
    changed = data.draw(st.sets(st.integers(0, len(before) - 1)))
    after = [others[row] if row in changed else cell for row, cell in enumerate(before)]
    with pytest.MonkeyPatch.context() as patch:
        found = list(differences(with_column(patch, "event", before), with_column(patch, "event", after)))
    labels = ["input_1", *[f"relu_{row}_{row}" for row in range(1, len(before) - 1)], "output_1"]
    assert found == [
        TableDifference("ops", labels[row], "event", "changed", before[row], after[row])
        for row in range(len(before))
        if different(before[row], after[row])
    ]


def different(one: Any, other: Any) -> bool:
    """Whether two values differ, 1 and True and 1.0 among them."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) != len(other) or any(map(different, one, other))
    return type(one) is not type(other) or bool(one != other)


def test_a_field_of_one_side_alone_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ops("relu", "tanh")
    columns = {**OPS, "colour": constant(["red"] * 4)}
    monkeypatch.setattr(build, "OPS", {name: maker for name, maker in columns.items() if name != "address"})
    other = ops("relu", "tanh")
    assert list(differences(plain, other)) == [
        TableDifference("ops", None, "address", "removed"),
        TableDifference("ops", None, "colour", "added"),
    ]
    assert {(one.field, one.change) for one in differences(other, plain)} == {
        ("address", "added"),
        ("colour", "removed"),
    }


def test_with_as_many_records_as_before_each_is_compared_with_the_one_in_its_place() -> None:
    found = list(differences(ops("relu", "tanh"), ops("relu", "sigmoid")))
    assert TableDifference("ops", "sigmoid_1_2", "label", "changed", "tanh_1_2", "sigmoid_1_2") in found
    assert TableDifference("ops", "relu_1_1", "children", "changed", ("tanh_1_2",), ("sigmoid_1_2",)) in found
    assert {one.change for one in found} == {"changed"}


def test_with_other_records_each_is_compared_with_the_one_of_its_label() -> None:
    found = list(differences(ops("relu", "tanh"), ops("relu", "tanh", "cos")))
    whole = [one for one in found if one.field is None]
    assert whole == [TableDifference("ops", "cos_1_3", None, "added")]
    assert TableDifference("ops", "output_1", "parents", "changed", ("tanh_1_2",), ("cos_1_3",)) in found
    back = list(differences(ops("relu", "tanh", "cos"), ops("relu", "tanh")))
    assert [one for one in back if one.field is None] == [TableDifference("ops", "cos_1_3", None, "removed")]


def test_the_field_that_names_a_record_is_there_in_every_table() -> None:
    tables = chain("relu").all
    assert all(field in tables[table].names for table, field in LABEL_FIELDS.items())
    assert set(tables) - set(LABEL_FIELDS) == {"capture"}
