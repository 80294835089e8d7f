"""Masks: element by element, sets are combined; whole sites go whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.selecting import masks
from projections.selecting.masks import ALL, Choice, Mask, Whole

SIZES = {0: 3, 1: 1, 2: 4, 3: 0}
ROWS = range(len(SIZES))


def size(row: int) -> int:
    return SIZES[row]


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    rows = draw(st.sets(st.sampled_from(list(ROWS))))
    made: dict[int, Mask] = {}
    for row in sorted(rows):
        positions = st.sets(st.integers(0, max(0, SIZES[row] - 1)), max_size=SIZES[row])
        made[row] = draw(st.one_of(st.just(ALL), positions.map(masks.some)))
    return made


def elements(choice: Choice) -> set[tuple[int, int]]:
    return {
        (row, position)
        for row, mask in choice.items()
        for position in (range(SIZES[row]) if isinstance(mask, Whole) else mask)
    }


EVERY = elements(masks.whole(ROWS))


@given(choices(), choices(), choices())
def test_elements_combine_as_sets_do(a: Choice, b: Choice, c: Choice) -> None:
    assert elements(masks.union(a, b, size)) == elements(a) | elements(b)
    assert elements(masks.intersection(a, b)) == elements(a) & elements(b)
    assert elements(masks.difference(a, b, size)) == elements(a) - elements(b)
    assert elements(masks.complement(a, ROWS, size)) == EVERY - elements(a)
    left = masks.intersection(a, masks.union(b, c, size))
    assert elements(left) == elements(masks.union(masks.intersection(a, b), masks.intersection(a, c), size))


@given(choices(), choices())
def test_rows_stand_in_order_and_positions_ascend(a: Choice, b: Choice) -> None:
    for made in (masks.union(a, b, size), masks.intersection(a, b), masks.difference(a, b, size)):
        assert list(made) == sorted(made)
        assert all(isinstance(mask, Whole) or list(mask) == sorted(set(mask)) for mask in made.values())


def test_a_site_emptied_element_by_element_stays_and_one_taken_whole_goes() -> None:
    both = masks.some([0, 2])
    assert masks.difference({0: both}, {0: both}, size) == {0: masks.some([])}
    assert masks.intersection({0: both}, {0: masks.some([1])}) == {0: masks.some([])}
    assert masks.difference({0: both, 1: ALL}, {0: ALL}, size) == {1: ALL}
    assert masks.intersection({0: both}, {1: ALL}) == {}
    assert masks.union({0: both}, {0: masks.some([1])}, size) == {0: ALL}
    assert masks.count(both, 3) == 2
    assert masks.count(ALL, 3) == 3
