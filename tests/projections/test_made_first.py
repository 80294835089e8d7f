"""Rows that made one another, in an order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.folds.graph import NOWHERE
from projections.structure.made_first import makers_first


@given(st.lists(st.integers(NOWHERE, 9), max_size=10))
def test_each_row_comes_once_and_behind_what_made_it_unless_they_made_one_another(given: list[int]) -> None:
    makers = [maker if maker < len(given) else NOWHERE for maker in given]
    order = list(makers_first(makers))
    assert sorted(order) == list(range(len(makers)))
    for row, maker in enumerate(makers):
        if maker != NOWHERE and row not in chain_of(makers, maker):
            assert order.index(maker) < order.index(row)


@given(st.lists(st.integers(NOWHERE, 9), max_size=10))
def test_rows_that_stand_behind_what_made_them_stay_as_they_are(given: list[int]) -> None:
    makers = [maker if maker < row else NOWHERE for row, maker in enumerate(given)]
    assert list(makers_first(makers)) == list(range(len(makers)))


def chain_of(makers: list[int], row: int) -> set[int]:
    """A row, and what made it, and what made that."""
    found: set[int] = set()
    while row != NOWHERE and row not in found:
        found.add(row)
        row = makers[row]
    return found
