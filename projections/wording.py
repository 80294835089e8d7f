"""Words for people: text from a journal as it may be shown, and counts and amounts as one says them.

A stored name may hold anything, also what moves the cursor, recolours, or turns the direction of writing.

Rule   an amount has one unit and as many digits wherever it is said; torchlens/page/front/src/format.ts says the same.
"""

from __future__ import annotations

from typing import Final

PREFIXES: Final = ("", "K", "M", "G", "T", "P")


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


def bytes_text(number: int) -> str:
    """Memory, in units of 1024: ``1.5 KB``."""
    size = float(number)
    if abs(size) < 1024:
        return f"{int(number)} B"
    for prefix in PREFIXES[1:4]:
        size /= 1024
        if abs(size) < 1023.95:  # what would print as 1024.0 is one of the next
            return f"{size:.1f} {prefix}B"
    return f"{size / 1024:.1f} TB"


def time_text(seconds: float) -> str:
    """A time, in ns, us, ms, s, min or h."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if size * factor < 999.5:  # what would print as 1000 is one of the next
            return f"{seconds * factor:.3g} {unit}"
    if size < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if size < 3600 else f"{seconds / 3600:.1f} h"


def thousands(number: int) -> str:
    """A count with three digits, in the largest unit of a thousand of which there is one: ``1.23 M``."""
    size = float(number)
    if abs(size) < 1000:
        return str(int(number))
    for prefix in PREFIXES[1:]:
        size /= 1000
        if abs(size) < 999.5:  # what would print as 1000 is one of the next
            return f"{size:.3g} {prefix}"
    return f"{size:,.0f} {PREFIXES[-1]}"


def work_text(number: int, unit: str) -> str:
    """Work in a unit, as ``1.46 KFLOPs``."""
    said = thousands(number)
    return f"{said}{unit}" if " " in said else f"{said} {unit}"
