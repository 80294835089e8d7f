"""Titles of open modules stand where no line passes, and where every place is crossed, above the lines."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torchlens.models import refusal
from tests.viz.hand_made import small
from torchlens.errors import RenderingError
from torchlens.viz import Graphviz, Look
from torchlens.viz.dot import dot_of, placed_by
from torchlens.viz.placing import Box, NoLayout, Title, line_of, title_in, titles_in

NUMBERS = st.integers(0, 120).map(float)
LINES = st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=5), max_size=6)
ROOM = Box(20, 40, 100, 60)


def struck(title: Title, wide: float, lines: list[Any]) -> set[int]:
    """Lines that come into the box of a title, of 400 places along each piece."""
    return {
        number
        for number, line in enumerate(lines)
        for (x0, y0), (x1, y1) in pairwise(line)
        for step in range(401)
        if abs(x0 + (x1 - x0) * step / 400 - title.x) <= wide / 2
        and abs(y0 + (y1 - y0) * step / 400 - title.y) <= (ROOM.high - ROOM.low) / 2
    }


@given(LINES, st.integers(5, 80).map(float))
def test_a_title_stays_in_its_room_and_counts_at_least_the_lines_that_pass_behind_it(
    lines: list[Any], wide: float
) -> None:
    (title,) = titles_in([(ROOM, wide)], lines)
    assert ROOM.left <= title.x - wide / 2
    assert title.x + wide / 2 <= ROOM.right
    assert len(struck(title, wide, lines)) <= title.crossed


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), st.integers(5, 80).map(float))
def test_no_place_in_the_room_is_crossed_by_fewer_lines(spans: list[tuple[float, float]], wide: float) -> None:
    taken = [(min(span), max(span), number) for number, span in enumerate(spans)]
    title = title_in(ROOM, wide, taken)
    for quarter in range(int(4 * (ROOM.right - wide - ROOM.left)) + 1):
        left = ROOM.left + quarter / 4
        crossed = sum(low < left + wide and left < high for low, high, _ in taken)
        assert crossed >= title.crossed
        if crossed == title.crossed:
            assert left >= title.x - wide / 2 - 0.25  # and of equal ones it is the first
            break


def test_an_edge_is_followed_from_arrow_to_arrow() -> None:
    line = line_of("s,0,0 e,40,10 10,0 20,0 20,10 30,10")
    assert (line[0], line[1], line[-2], line[-1]) == ((0, 0), (10, 0), (30, 10), (40, 10))
    assert (20.0, 5.0) in [(round(x, 2), round(y, 2)) for x, y in line]  # the middle of the curve


@pytest.mark.parametrize("layout", ["", "[]", "{}", '{"lp": "1,1"}', '{"lp": "0,0", "objects": [{"name": "n0"}]}'])
def test_what_is_no_layout_is_told_as_a_failure_of_the_program(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoLayout, match="no layout"):
        placed_by(lambda source: layout.encode(), small(), Look())
    monkeypatch.setattr(Graphviz, "run", lambda *_: layout.encode())
    drawn = Graphviz("graphviz-pure")
    assert refusal(lambda: drawn.render(small(), Look(), "svg", dpi=96), RenderingError) == (
        "visualization_renderer_failed"
    )


def test_a_place_that_is_not_of_numbers_comes_into_no_source() -> None:
    def place(source: str) -> bytes:
        layout = json.loads(Graphviz("graphviz-pure").run(source, "-Kdot", "-Tjson0"))
        layout["objects"][-1]["pos"] = '1,1"] evil ['
        return json.dumps(layout).encode()

    placed = placed_by(place, small(), Look())
    with pytest.raises(NoLayout, match="not of numbers"):
        dot_of(small(), Look(), placed)


def test_a_title_that_lines_cross_at_every_place_gets_more_room() -> None:
    widths: list[int] = []

    def place(source: str) -> bytes:
        widths.append(source.count('WIDTH="'))
        made = json.loads(Graphviz("graphviz-pure").run(source, "-Kdot", "-Tjson0"))
        if len(widths) == 1:  # as if a line led along the room of each title
            y = made["objects"][0]["lp"].partition(",")[2]
            made["edges"][0]["pos"] = f"0,{y} 300,{y} 600,{y} 900,{y}"
        return json.dumps(made).encode()

    assert placed_by(place, small(), Look()).crossed == []
    assert len(widths) == 2
