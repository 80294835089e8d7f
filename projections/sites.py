"""Call sites as people read them: the frames of a chain with file, line and function.

Reads  the codes and sites that the vocabulary fold has collected.
Gives  frames outermost first, each a flat tuple in the order of ``FRAME``.
Not    source text, which is a payload.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from projections.vocabulary import Vocabulary

FRAME: Final = (
    "file",
    "line_number",
    "func_name",
    "func_qualname",
    "code_firstlineno",
    "col_offset",  # None where the interpreter gives no columns
)

Frame: TypeAlias = "tuple[str, int, str, str, int, int | None]"


def frames(words: Vocabulary, site: int | None) -> list[Frame]:
    """The frames of a call site, outermost first."""
    chain: list[Frame] = []
    while site is not None and 0 <= site < len(words.sites):
        place = words.sites[site]
        code = words.codes[place.code]
        span = place.span
        column = span[2] if len(span) == 4 else None
        chain.append((code.file, span[0], code.name, code.qualname, code.first_line, column))
        site = place.caller
    chain.reverse()
    return chain
