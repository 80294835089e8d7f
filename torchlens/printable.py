"""Lines and tables of text for a terminal, whatever stands in them; and words for people, from projections.wording."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from projections.wording import amount, cut, printable

__all__ = ["aligned", "amount", "cut", "printable", "shapes_text"]


def shapes_text(first: Sequence[int] | None, count: int) -> str:
    """The first of some shapes, ``?`` where it is not known, and how many more there are: ``(2, 3) +1``."""
    return ("?" if first is None else f"{tuple(first)}") + (f" +{count - 1}" if count > 1 else "")


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """A printable line for each row, its cells under those of the others, two blanks apart.

    Args:
        rows: Of one length.
        right: Columns whose cells end where those of the others do, from 0; the cells of the rest begin there.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    made: list[list[str]] = []
    for number, column in enumerate(zip(*cells, strict=True)):
        put, width = (str.rjust if number in right else str.ljust), max(map(len, column))
        made.append([put(cell, width) for cell in column])
    return ["  ".join(line).rstrip() for line in zip(*made, strict=True)]
