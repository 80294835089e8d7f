"""Call sites as people read them: the frames of a chain with file, line and function.

Reads  the codes and sites that the vocabulary fold has collected, and frames that an event tells of itself.
Gives  frames outermost first, each a flat tuple in the order of ``FRAME``.
Not    source text, which is a payload.
"""

from __future__ import annotations

from typing import Final

from journal.events import Frame
from projections.errors import contradictory
from projections.folds.vocabulary import Vocabulary

FRAME: Final = (
    "file",
    "line_number",
    "func_name",
    "func_qualname",
    "code_firstlineno",
    "col_offset",  # None where the interpreter gives no columns
)


def whole_frame(told: object) -> Frame:
    """A frame that an event tells of, as such.

    Raises:
        JournalCorrupt: ``events_contradictory``, where it has not the parts of one.
    """
    match told:
        case (str(file), int(line), str(name), str(qualname), int(first_line), int() | None as column):
            return file, line, name, qualname, first_line, column
        case _:
            raise contradictory("a place in the code is not described in full")


def frames(words: Vocabulary, site: int | None) -> list[Frame]:
    """The frames of a call site, outermost first. A site is called from one that was seen before it."""
    chain: list[Frame] = []
    while site is not None and 0 <= site < len(words.sites):
        place = words.sites[site]
        code = words.codes[place.code]
        span = place.span
        column = span[2] if len(span) == 4 else None
        chain.append((code.file, span[0], code.name, code.qualname, code.first_line, column))
        if place.caller is not None and place.caller >= site:
            raise contradictory(f"call site {site} is called from {place.caller}, which comes after it")
        site = place.caller
    chain.reverse()
    return chain
