"""Text from a journal as a terminal may show it.

A stored name may hold anything, also what moves the cursor, recolours, or turns the direction of writing.
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with every character that does more than show itself spelled out: an escape as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
