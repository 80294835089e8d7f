"""Parts of a tree are alike where they are equal all the way down, as a comparison of whole trees says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from projections.accounts.alike import kinds, runs

TREES = st.recursive(
    st.sampled_from("ab").map(lambda name: (name, ())),
    lambda inner: st.tuples(st.sampled_from("ab"), st.lists(inner, max_size=3).map(tuple)),
    max_leaves=12,
)


def laid_out(tree: Any) -> tuple[list[Any], list[list[int]], list[str]]:
    """The parts of a tree, each before those below it: as trees, the numbers of those right below, and what each is."""
    parts, below = [tree], [[]]
    for number, part in enumerate(parts):
        for inner in part[1]:
            below[number].append(len(parts))
            parts.append(inner)
            below.append([])
    return parts, below, [part[0] for part in parts]


@given(TREES)
def test_parts_have_one_kind_where_they_are_equal_trees(tree: Any) -> None:
    parts, below, own = laid_out(tree)
    found = kinds(below, own)
    for one, kind in zip(parts, found, strict=True):
        for other, its in zip(parts, found, strict=True):
            assert (kind == its) == (one == other)


@given(st.lists(st.integers(0, 2)))
def test_runs_are_all_items_in_order_each_of_one_kind_and_as_long_as_can_be(found: list[int]) -> None:
    made = runs(list(enumerate(found)), found)
    assert [item for run in made for item in run] == list(enumerate(found))
    assert all(len({kind for _, kind in run}) == 1 for run in made)
    assert all(one[0][1] != other[0][1] for one, other in pairwise(made))
