"""Words for people: text from a journal as a terminal may show it, in a line or a table, and counts as one says them.

A stored name may hold anything, also what moves the cursor, recolours, or turns the direction of writing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["aligned", "amount", "cut", "printable"]


def printable(text: str) -> str:
    """The text with every character that does more than show itself spelled out: an escape as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut(text: str, width: int) -> str:
    """At most so many printable characters of a text; a shorter one whole."""
    shown = printable(text[: width + 1])  # spelling out only lengthens
    return shown if len(shown) <= width else shown[: width - 1] + "…"


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


def amount(number: int, what: str) -> str:
    """So many of something, as ``1 pass`` or ``1,024 ops``."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"
