"""The texts in pictures: short titles, names and shapes.

Rule   a title holds so much that nodes stay of one size: what is longer loses its middle.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from projections.wording import amount, printable

PARTS: Final = re.compile(r"(\d+)")
"""Where a name is split to see which numbers of it differ."""

WIDEST: Final = 34
"""Characters of a title or line."""

MOST_RANGES: Final = 4
"""Stretches of passes that are told at most."""


def short(text: str, width: int = WIDEST) -> str:
    """The text, printable, without its middle where it is long."""
    if len(text) > 4 * width:
        text = text[: 2 * width] + text[-2 * width :]
    shown = printable(text)
    if len(shown) <= width:
        return shown
    front = (width - 1) * 2 // 3
    return shown[:front] + "…" + shown[front + 1 - width :]


def wrapped(text: str, most: int, width: int = WIDEST) -> tuple[str, ...]:
    """The text in lines, printable, and no more of them than that."""
    lines = textwrap.wrap(printable(" ".join(text[: 4 * most * width].split())), width)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: width - 2]} …"]
    return tuple(lines)


def shape_text(shape: Sequence[int] | None, dtype: str | None) -> str | None:
    """``(2, 3) float32``; None where neither is known."""
    if shape is None:
        return dtype
    dims = f"({', '.join(map(str, shape))})" if len(shape) != 1 else f"({shape[0]},)"
    return f"{dims} {dtype}" if dtype else dims


def names_of(names: Sequence[str]) -> str:
    """One name for several: that of the first, and where it is another the end of that of the last."""
    first, last = names[0], names[-1]
    if first == last:
        return first
    ahead, _, end = last.rpartition(".")
    return f"{first} … {end if ahead == first.rpartition('.')[0] else last}"


def between(names: Sequence[str]) -> str:
    """One name for several that differ in numbers: ``layers.0…11.keys`` for the first, ..., ``layers.11.keys``."""
    first, last = PARTS.split(names[0]), PARTS.split(names[-1])
    if len(first) != len(last):
        return names_of(names)
    return "".join([one if one == other else f"{one}…{other}" for one, other in zip(first, last, strict=True)])


def counts_text(counts: Mapping[str, int]) -> str:
    """``8 ops, 12 grad_fns``: what there is none of is left out, unless there is nothing at all."""
    known = {word: number for word, number in counts.items() if number} or counts
    return ", ".join([amount(number, word[:-1]) for word, number in known.items()])


def ranges(numbers: Iterable[int]) -> str:
    """``1-3, 5``, and not too much of it."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(told) if len(told) <= MOST_RANGES else f"{', '.join(told[: MOST_RANGES - 1])}, …, {told[-1]}"
