"""The texts of a page: each once, printable, cut, and bounded in all.

Rule  what a journal says is text and may hold anything: what does more than show itself is spelled out (printable.py).
"""

from __future__ import annotations

from typing import Final

from torchlens.errors import CompatibilityError
from torchlens.printable import cut

__all__ = ["LONGEST", "Texts", "too_large"]

LONGEST: Final = 400
"""Characters of one text; more are cut."""

MOST: Final = 1 << 25
"""Characters of all texts together: of a hundred thousand ops, each with some hundreds of its own."""

MOST_GIVEN: Final = 1 << 28
"""Characters before texts are cut, equal ones counted each time: reading more takes long."""


class Texts:
    """Texts by number, in the order in which they were first met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.listed: list[str] = []
        self.size = 0
        self.given = 0

    def number(self, text: str | None, longest: int = LONGEST) -> int | None:
        """The number of a text; None of None.

        Raises:
            CompatibilityError: ``page_too_large``.
        """
        if text is None:
            return None
        self.given += len(text)
        if self.given > MOST_GIVEN:
            raise too_large(f"what is cut from texts of more than {MOST_GIVEN:,} characters")
        found = self.numbers.get(text)
        if found is None:
            shown = cut(text, longest)
            found = self.numbers.get(shown)
            if found is None:
                found = len(self.listed)
                self.numbers[shown] = found
                self.listed.append(shown)
                self.size += len(shown)
                if self.size > MOST:
                    raise too_large(f"texts of more than {MOST:,} characters")
            if text is not shown and len(text) <= LONGEST:
                self.numbers[text] = found
        return found


def too_large(what: str) -> CompatibilityError:
    """The refusal of a page that no browser would open."""
    return CompatibilityError(
        code="page_too_large",
        problem=f"the page would hold {what}",
        remedy="read the trace itself, or draw it with its modules closed: trace.draw()",
    )
