"""Words for people: text from a journal as it may be shown, and counts as one says them.

A stored name may hold anything, also what moves the cursor, recolours, or turns the direction of writing.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every character that does more than show itself spelled out: an escape as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut(text: str, width: int) -> str:
    """At most so many printable characters of a text; a shorter one whole."""
    shown = printable(text[: width + 1])  # spelling out only lengthens
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def amount(number: int, what: str) -> str:
    """So many of something, as ``1 pass`` or ``1,024 ops``."""
    ending = "" if number == 1 else "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{ending}"
