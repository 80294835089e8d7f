"""How sure an answer is that looks for the first of something.

Rule   what was not looked at counts where it comes before what was found, and all of it where nothing was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

__all__ = ["Verdict", "verdict_of"]

Verdict: TypeAlias = Literal["first", "first_seen", "clean", "clean_as_seen", "not_checked"]


def verdict_of(is_found: bool, num_examined: int, unexamined: Sequence[str]) -> Verdict:
    """The verdict, of whether something was found, how many things were looked at, and what was not."""
    if is_found:
        return "first_seen" if unexamined else "first"
    if not num_examined:
        return "not_checked"
    return "clean_as_seen" if unexamined else "clean"
