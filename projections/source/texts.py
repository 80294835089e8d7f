"""The source text of the functions that a stream names, parsed when somebody asks, each once.

Reads  what CodeSeen events tell, and the payloads that hold the texts.
Gives  for code and a place in it, the ``Syntax`` that tells what stands there.
Rule   code without a name of its own (a lambda, a comprehension) is read in the named function around it, where that
       was met too; else by itself.
Rule   texts beyond ``MOST`` bytes in all are read as none; which these are follows from the events alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from projections.folds.fold import Source
from projections.folds.vocabulary import Code, Site, Vocabulary
from projections.source.syntax import Syntax, parse

MOST: Final = 1 << 19
"""Bytes that are parsed for one capture. The functions of a large model together have a third of it."""

NEAR: Final = 64
"""Functions of a file that are looked at to find the one around a place: those that start right before it."""

Key = tuple[int, int, str]
"""Payload, first line, name."""


class Texts:
    """The texts of one capture.

    Args:
        source: The stream.
        words: What it names.
    """

    def __init__(self, source: Source, words: Vocabulary) -> None:
        self.source = source
        self.codes: Sequence[Code] = words.codes
        self.parsed: dict[Key, Syntax | None] = {}
        self.found: dict[tuple[int, int], Syntax | None] = {}

    @cached_property
    def sizes(self) -> dict[Key, int]:
        """Lines of each text that is parsed when somebody asks."""
        made: dict[Key, int] = {}
        sizes: dict[int, tuple[int, int]] = {}  # bytes and lines by payload
        left = MOST
        for code in self.codes:
            key = key_of(code)
            if key is None or key in made:
                continue
            if key[0] not in sizes:
                text = self.source.payload(key[0])
                sizes[key[0]] = (-1, 0) if text is None else (len(text), text.count(b"\n") + 1)
            size, lines = sizes[key[0]]
            if 0 <= size <= left:
                left -= size
                made[key] = lines
        return made

    @cached_property
    def named(self) -> dict[str, list[tuple[int, int]]]:
        """By file: first line and number of each named function with a text, ascending."""
        made: dict[str, list[tuple[int, int]]] = {}
        for number, code in enumerate(self.codes):
            if not code.name.startswith("<") and key_of(code) in self.sizes:
                made.setdefault(code.file, []).append((code.first_line, number))
        for functions in made.values():
            functions.sort()
        return made

    def of(self, number: int) -> Syntax | None:
        """The syntax of a code's own text."""
        if not 0 <= number < len(self.codes):
            return None
        code = self.codes[number]
        key = key_of(code)
        if key is None or key not in self.sizes:
            return None
        if key not in self.parsed:
            text = self.source.payload(key[0])
            self.parsed[key] = None if text is None else parse(text, code.first_line, code.name)
        return self.parsed[key]

    def at_site(self, site: Site) -> Syntax | None:
        """The syntax in which a call site stands."""
        return self.at(site.code, site.span[0]) if site.span else None

    def at(self, number: int, line: int) -> Syntax | None:
        """The syntax in which a line of a code stands."""
        if (number, line) not in self.found:
            self.found[number, line] = self.look(number, line)
        return self.found[number, line]

    def look(self, number: int, line: int) -> Syntax | None:
        if not 0 <= number < len(self.codes):
            return None
        code = self.codes[number]
        if code.name.startswith("<"):
            functions = self.named.get(code.file, [])
            end = bisect_right(functions, (line, len(self.codes)))
            for first, other in reversed(functions[max(0, end - NEAR) : end]):
                key = key_of(self.codes[other])
                if key is not None and line < first + self.sizes[key]:
                    around = self.of(other)
                    if around is not None:
                        return around
        return self.of(number)


def key_of(code: Code) -> Key | None:
    return None if code.source is None else (code.source, code.first_line, code.name)
