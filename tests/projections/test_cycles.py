"""Items are in one component where each is reached from the other, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.picture.cycles import components

ITEMS = st.integers(0, 6)


@given(st.sets(st.tuples(ITEMS, ITEMS), max_size=14))
def test_items_of_a_component_are_those_that_reach_each_other(edges: set[tuple[int, int]]) -> None:
    reached = {(item, item) for item in range(7)} | edges
    for middle in range(7):
        reached |= {(a, c) for a in range(7) for c in range(7) if {(a, middle), (middle, c)} <= reached}
    found = components(7, edges)
    for one in range(7):
        for other in range(7):
            assert (found[one] == found[other]) == ({(one, other), (other, one)} <= reached)


def test_a_long_chain_takes_no_stack() -> None:
    found = components(5000, [(item, item + 1) for item in range(4999)])
    assert len(set(found)) == 5000
    assert set(components(5000, [(item, (item + 1) % 5000) for item in range(5000)])) == {0}
