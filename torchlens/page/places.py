"""Places in the source with some lines around, from the text that the capture stored.

Rule  no source file is read. What is beyond the bounds is a place without lines, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from journal.errors import JournalError
from projections import CaptureTables
from projections.errors import over_events
from torchlens.page.cells import number_of
from torchlens.printable import cut
from torchlens.reading.locations import innermost_own, location_of
from torchlens.reading.view import View

__all__ = ["Places"]

AROUND: Final = 3
"""Lines on either side."""

WIDEST: Final = 160
"""Characters of a line."""

LONGEST_PATH: Final = 1000

MOST: Final = 20_000
"""Places that have lines."""


class Places:
    """The places of ops, each once, by number.

    Args:
        view: Whose they are.
        tables: Its tables.
    """

    def __init__(self, view: View, tables: CaptureTables) -> None:
        self.view = view
        self.listed: list[dict[str, Any]] = []
        self.of_cell: dict[int, tuple[Sequence[Any], int | None]] = {}  # by id: most cells of a column are shared
        self.of_frames: dict[Sequence[Any], int | None] = {}
        self.of_frame: dict[Any, int] = {}
        self.texts: dict[tuple[str, int, str], tuple[str, ...]] = {}
        self.sources = {
            (code.file, code.first_line, code.qualname): code.source
            for code in reversed(tables.forward.words.codes)
            if code.source is not None
        }
        self.num_left_out = 0

    def number(self, frames: Sequence[Any]) -> int | None:
        """The number of the user's line among the frames on the way to a call; None where there are none."""
        known = self.of_cell.get(id(frames))
        if known is None:
            with over_events():
                if frames not in self.of_frames:
                    frame = innermost_own(frames, lambda one: one[0])
                    self.of_frames[frames] = None if frame is None else self.put(frame)
                known = self.of_cell[id(frames)] = (frames, self.of_frames[frames])
        return known[1]

    def put(self, frame: Any) -> int:
        found = self.of_frame.get(frame)
        if found is None:
            found = self.of_frame[frame] = len(self.listed)
            self.listed.append(self.told(frame))
        return found

    def told(self, frame: Any) -> dict[str, Any]:
        place = location_of(self.view, frame)
        return {
            "file": cut(place.file, LONGEST_PATH),
            "line": number_of(place.line_number),
            "function": cut(place.func_qualname, LONGEST_PATH),
            "lines": self.lines(place.file, place.code_firstlineno, place.func_qualname, place.line_number),
        }

    def lines(self, file: str, first: int, function: str, line: int) -> list[list[Any]]:
        """Number and text of the lines around one."""
        text = self.text(file, first, function)
        at = line - first
        if not 0 <= at < len(text):
            return []
        if len(self.listed) >= MOST:
            self.num_left_out += 1
            return []
        begin = max(0, at - AROUND)
        return [[first + begin + n, shown(one)] for n, one in enumerate(text[begin : at + AROUND + 1])]

    def text(self, file: str, first: int, function: str) -> tuple[str, ...]:
        """The lines of a function; none where its text is not to be had."""
        key = (file, first, function)
        if key not in self.texts:
            source = self.sources.get(key)
            try:
                data = b"" if source is None else bytes(self.view.journal.payload(self.view.stream, source))
            except JournalError:  # lost or damaged, as after a power cut
                data = b""
            text = data.decode(errors="replace").removesuffix("\n")
            self.texts[key] = tuple(text.split("\n")) if text else ()
        return self.texts[key]


def shown(line: str) -> str:
    return cut(line[: 2 * WIDEST].expandtabs(4), WIDEST)
