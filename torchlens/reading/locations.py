"""Places in the source as people read them: on the way to a call, and where a capture was asked for.

Reads  the frames of the records, and the text of functions, which a capture stores.
Rule   no source file is read: the text is that of the function as it was when it ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Final, TypeVar

import attrs

from projections.errors import over_events
from projections.source.sites import FRAME
from torchlens.reading.fields import Record
from torchlens.reading.view import View

__all__ = ["FuncCallLocation", "innermost_own", "location_of", "locations", "place_in_model", "place_of_op"]

T = TypeVar("T")

INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
"""Folders that packages are installed in."""

LIBRARY: Final = re.compile(r"/lib(64)?/python3\.\d+t?/|\\Lib\\(asyncio|concurrent|multiprocessing)\\")
"""Folders of Python's own library."""

LINES: Final = 7
"""Lines on either side of a call, unless the capture was asked for more or fewer."""

MARK: Final = "---> "

BACKSLASH: Final = "\\"


@attrs.frozen
class FuncCallLocation:
    """A place in the source on the way to a call.

    ``file``, ``line_number`` and the names are always known. What is text is None where there is no source, and for
    the user's frame that asked for the capture unless ``CaptureOptions(save_code_context=True)`` stored it.
    """

    file: str
    line_number: int
    func_name: str
    func_qualname: str
    code_firstlineno: int
    col_offset: int | None  # None where the interpreter gives no columns
    trace: View = attrs.field(repr=False, eq=False)

    @property
    def source_text(self) -> str | None:
        """The text of the whole function."""
        return self.trace.source_text(self.file, self.code_firstlineno, self.func_qualname)

    @property
    def source_loading_enabled(self) -> bool:
        """Whether the text of the function is stored, so that it can be read."""
        return self.source_text is not None

    @property
    def call_line(self) -> str | None:
        """The line of the call, without its indentation."""
        lines, at = self.around(0)
        return lines[at].strip() if lines else None

    @property
    def source_context(self) -> str | None:
        """The lines around the call, as far as they are of the function."""
        lines, _ = self.around()
        return "\n".join(lines) if lines else None

    @property
    def code_context_labeled(self) -> str | None:
        """The same with an arrow at the line of the call."""
        lines, at = self.around()
        marked = [f"{MARK if place == at else ' ' * len(MARK)}{line}" for place, line in enumerate(lines)]
        return "\n".join(marked) if marked else None

    @property
    def num_context_lines(self) -> int | None:
        """How many lines ``source_context`` has."""
        lines, _ = self.around()
        return len(lines) or None

    @property
    def func_signature(self) -> str | None:
        """Parameters of the function and what it returns, as the source has them; None for a lambda."""
        found = self.trace.syntax_of(self.file, self.code_firstlineno, self.func_qualname)
        return None if found is None else found.signature

    @property
    def func_docstring(self) -> str | None:
        """What the function says of itself."""
        found = self.trace.syntax_of(self.file, self.code_firstlineno, self.func_qualname)
        return None if found is None else found.docstring

    def around(self, count: int | None = None) -> tuple[list[str], int]:
        """Lines around the call and the place of its own among them; no lines where there is no source."""
        text = self.source_text
        lines = [] if text is None else text.removesuffix("\n").split("\n")
        at = self.line_number - self.code_firstlineno
        if not 0 <= at < len(lines):
            return [], 0
        if count is None:
            asked = dict(self.trace.tables.fact("options")).get("source_context_lines")
            count = asked if type(asked) is int and asked >= 0 else LINES
        first = max(0, at - count)
        return lines[first : at + count + 1], at - first

    @property
    def brief(self) -> str:
        """File and line, without folders: "model.py:17"."""
        return f"{self.file.replace(BACKSLASH, '/').rpartition('/')[2]}:{self.line_number}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line_number} in {self.func_qualname}"


def locations(record: Record) -> list[FuncCallLocation]:
    """The frames on the way to a call and, last, the user's frame that asked for the capture; none for no call."""
    frames = record.read("code_context")
    caller = record.trace.tables.fact("called_from") if frames else None
    return [location_of(record.trace, frame) for frame in (*frames, *(() if caller is None else (caller,)))]


def location_of(trace: View, frame: tuple[Any, ...]) -> FuncCallLocation:
    return FuncCallLocation(**dict(zip(FRAME, frame, strict=True)), trace=trace)


def innermost_own(places: Sequence[T], file: Callable[[T], str]) -> T | None:
    """The last place outside installed packages and Python's library; the very last where all are inside, None where
    there are none."""
    for place in reversed(places):
        if not is_installed(file(place)):
            return place
    return places[-1] if places else None


def place_of_op(view: View, row: int, table: str = "ops") -> FuncCallLocation | None:
    """The line of the user's at which an op was called; None for row -1, and where its place is not known."""
    frames = view.table(table).value("code_context", row) if row >= 0 else ()
    with over_events():
        frame = innermost_own(frames, lambda frame: frame[0])
        return None if frame is None else location_of(view, frame)


def place_in_model(view: View, row: int) -> str | None:
    """The same in brief, "model.py:17"."""
    place = place_of_op(view, row)
    return None if place is None else place.brief


def is_installed(file: str) -> bool:
    """Whether a file is of an installed package, or of Python's own library; judged by its path alone."""
    return not INSTALLED.isdisjoint(PurePath(file).parts) or LIBRARY.search(file) is not None
