"""Text for people: what is cut, put under each other and counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchlens.printable import aligned, amount, cut, printable, shapes_text

ROWS = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(st.text(), min_size=width, max_size=width)))


@given(st.text(), st.integers(1, 40))
def test_a_cut_text_is_printable_and_of_so_many_characters(text: str, width: int) -> None:
    shown = cut(text, width)
    assert shown.isprintable()
    assert len(shown) <= width
    whole = printable(text)
    assert shown == whole if len(whole) <= width else shown == whole[: width - 1] + "…"


@given(ROWS, st.sets(st.integers(0, 3)))
def test_cells_stand_under_each_other(rows: list[list[str]], right: set[int]) -> None:
    lines = aligned(rows, right=right)
    assert len(lines) == len(rows)
    widths = [max(len(printable(row[column])) for row in rows) for column in range(len(rows[0]))] if rows else []
    for line, row in zip(lines, rows, strict=True):
        assert line.isprintable()
        assert len(line) <= sum(widths) + 2 * (len(widths) - 1)
        begins = 0
        for column, (cell, width) in enumerate(zip(map(printable, row), widths, strict=True)):
            place = line.ljust(sum(widths) + 2 * len(widths))[begins : begins + width]
            assert place == (cell.rjust(width) if column in right else cell.ljust(width))
            begins += width + 2


def test_a_table_reads_from_the_left_and_numbers_from_the_right() -> None:
    assert aligned([("name", "count", "of"), ("relu", "7", "a"), ("\x1b[0m", "1,024", "b")], right=[1]) == [
        "name     count  of",
        "relu         7  a",
        "\\x1b[0m  1,024  b",
    ]
    assert aligned([]) == []


def test_an_amount_is_one_or_several() -> None:
    assert [amount(1, "pass"), amount(2, "pass"), amount(1024, "op")] == ["1 pass", "2 passes", "1,024 ops"]


def test_the_first_of_some_shapes_is_told_and_how_many_more_there_are() -> None:
    assert shapes_text((2, 3), 1) == "(2, 3)"
    assert shapes_text((4,), 3) == "(4,) +2"
    assert shapes_text(None, 2) == "? +1"
