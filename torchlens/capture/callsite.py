"""Where a call stands in the source: the frames up to the innermost module's forward, as numbers.

Taking a site must be cheap, so frames are compared by code object and instruction first; only a chain
not met before is resolved to source spans. Two instructions of one expression (a ``while`` test is
compiled twice) have one span and so are one site. Positions and source text are found once per code
object and process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any, Final

import attrs

from journal.events import CallSiteSeen, CodeSeen, Row
from torchlens import compat
from torchlens.capture.source_text import source_of

OWN_CODE: Final[set[CodeType]] = set()
"""Code objects of the recorder itself, which are left out of every chain; each registers its own."""

CODE_SEEN: Final = CodeSeen.type_id
CALL_SITE_SEEN: Final = CallSiteSeen.type_id


@attrs.define(slots=True)
class _Code:
    """What is known of a code object, for all captures of this process."""

    code: CodeType
    spans: tuple[tuple[int | None, int | None, int | None, int | None], ...] | None
    source: bytes | None


_KNOWN: Final[dict[int, _Code]] = {}  # by id; the entry keeps the code object alive


class CallSites:
    """The call sites of one capture.

    Args:
        append: Takes the row of each new ``CodeSeen`` and ``CallSiteSeen``, before the event that names the site.
        keep: Stores bytes and gives their payload number.
        stop: Code object of the function that runs a module's forward: where a chain ends.
    """

    __slots__ = ("_append", "_by_chain", "_by_frames", "_codes", "_keep", "_stop", "root")

    def __init__(self, append: Callable[[Row], Any], keep: Callable[[bytes], int], stop: CodeType) -> None:
        self._append = append
        self._keep = keep
        self._stop = stop
        self.root: CodeType = stop  # the frame right under the root's forward, where a chain may end sooner
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_chain: dict[tuple[Any, ...], int] = {}
        self._codes: dict[int, int] = {}

    def at(self, frame: FrameType | None) -> int:
        """Number of the call site whose innermost frame is ``frame``."""
        key: list[int] = []
        stop, root = self._stop, self.root
        here = frame
        while here is not None:
            code = here.f_code
            if code is stop or code is root:
                break
            key.append(id(code))
            key.append(here.f_lasti)
            here = here.f_back
        chain = tuple(key)
        found = self._by_frames.get(chain)
        return self._resolve(frame, chain) if found is None else found

    def see(self, code: CodeType) -> None:
        """Have the text of code that no site names."""
        self._code(code)

    def close(self) -> None:
        """Let go of what appends and stores; nothing is resolved any more. Twice is nothing."""
        with contextlib.suppress(AttributeError):
            del self._append, self._keep

    def _resolve(self, frame: FrameType | None, chain: tuple[int, ...]) -> int:
        frames: list[tuple[CodeType, int]] = []
        here = frame
        while here is not None and here.f_code is not self._stop and here.f_code is not self.root:
            code = here.f_code
            known(code)  # keeps it alive, so that its id stays its own
            if code not in OWN_CODE and code.co_filename != compat.MODULE_CALL_FILE:
                frames.append((code, here.f_lasti))
            here = here.f_back
        site: int | None = None
        for code, instruction in reversed(frames):
            site = self._site(code, span_of(code, instruction), site)
        if site is None:  # called from no Python frame of the model, as a hook made of a builtin is
            site = self._site(self._stop, (0, 0), None)
        self._by_frames[chain] = site
        return site

    def _site(self, code: CodeType, span: tuple[int, ...], caller: int | None) -> int:
        number = self._code(code)
        key = (number, span, caller)
        found = self._by_chain.get(key)
        if found is None:
            found = self._by_chain[key] = len(self._by_chain)
            self._append((CALL_SITE_SEEN, monotonic_ns(), found, number, span, caller))
        return found

    def _code(self, code: CodeType) -> int:
        found = self._codes.get(id(code))
        if found is None:
            entry = known(code)
            source = None if entry.source is None else self._keep(entry.source)
            found = self._codes[id(code)] = len(self._codes)
            qualname = getattr(code, "co_qualname", code.co_name)
            file, line = code.co_filename, code.co_firstlineno
            self._append((CODE_SEEN, monotonic_ns(), found, file, qualname, code.co_name, line, source))
        return found


def known(code: CodeType) -> _Code:
    """The process-wide entry of a code object."""
    entry = _KNOWN.get(id(code))
    if entry is None:
        positions = getattr(code, "co_positions", None)  # absent before Python 3.11
        spans = tuple(positions()) if positions is not None else None
        entry = _KNOWN[id(code)] = _Code(code, spans, source_of(code))
    return entry


def span_of(code: CodeType, instruction: int) -> tuple[int, ...]:
    """Line, end line, column, end column of an instruction; line and offset where there are no columns."""
    spans = known(code).spans
    if spans is not None and 0 <= instruction // 2 < len(spans):
        line, end_line, column, end_column = spans[instruction // 2]
        if line is not None and end_line is not None and column is not None and end_column is not None:
            return (line, end_line, column, end_column)
    return (line_of(code, instruction), instruction)


def line_of(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
