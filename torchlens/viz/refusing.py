"""The words of refusals here: a value as it was given, and what could have been given instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from torchlens.printable import cut

__all__ = ["MOST_LETTERS", "one_of", "quoted"]

MOST_LETTERS: Final = 64
"""Letters of a value or name in a message: a word that was mistyped shows whole, and the message stays one line. A
name of ours has no more, so what is cut off of a longer one could not have made it a better match."""


def quoted(value: object) -> str:
    """A value as Python writes it, printable and cut."""
    return cut(repr(value), MOST_LETTERS)


def one_of(given: object, allowed: Iterable[str], other: str = "") -> str:
    """A remedy: which words there are, the one that looks like what was given first.

    Args:
        given: What was given in place of one.
        allowed: The words.
        other: What may be done besides.
    """
    words = list(allowed)
    near = difflib.get_close_matches(given[:MOST_LETTERS], words, n=1) if isinstance(given, str) else []
    told = f"did you mean {near[0]!r}? " if near else ""
    return f"{told}give one of {', '.join(map(repr, words))}" + (f", {other}" if other else "")
