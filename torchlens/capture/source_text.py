"""The source text of code that runs: the text it was compiled from, or none.

Gives  the text of a code object, from its first line to its last one.
Rule   a file that was touched after this process began may have been changed since it was imported, and may be
       imported again. Its text is compiled (never run), and counts for a code object only if it gives that very code;
       so it is with text that is of no file, such as a notebook's cell. A file that was last touched before is what was
       imported.
Rule   what cannot be checked (text that does not compile, or is beyond ``MOST_CHECKED``; code that something rewrote on
       its way from the text) has no text: a wrong one is worse.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final

MAX_SOURCE: Final = 1 << 20
"""Longest source text kept of one function, in characters."""

MOST_CHECKED: Final = 1 << 22
"""Longest text that is compiled to check it, in characters."""

MOST_FILES: Final = 32
"""Texts whose compiled code is remembered: those met last."""

MARGIN: Final = 0.1
"""Seconds that the time of a file and that of a process are told less finely than this machine's clock."""

FUTURES: Final = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""Flags of a code object that its text may lack: a notebook's cells share them."""

Compiled = dict[tuple[str, int], list[CodeType]]
"""Code objects by name and first line."""


def source_of(code: CodeType) -> bytes | None:
    """Source text from the function's first line to its last one; None where it is not to be had for certain."""
    lines = lines_of(code.co_filename)
    if not lines or not (is_older(code.co_filename) or is_compiled_from(code, lines)):
        return None
    last = max((line for line in last_lines(code) if line is not None), default=code.co_firstlineno)
    text = "".join(lines[code.co_firstlineno - 1 : last])
    return text[:MAX_SOURCE].encode("utf-8", "replace") if text else None


def lines_of(file: str) -> Sequence[str]:
    """The lines of a file as it is now."""
    linecache.checkcache(file)
    return linecache.getlines(file)


def is_older(file: str) -> bool:
    """Whether a file was last touched before this process began: its text, and where it is."""
    entry: Any = linecache.cache.get(file)
    path = entry[3] if entry is not None and len(entry) == 4 else file
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return max(status.st_mtime, status.st_ctime) < began() - MARGIN


@functools.cache
def began() -> float:
    """When this process began, in seconds since the epoch; where that is not told, when the machine did."""
    booted = time.time() - time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        process = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        return booted
    return process if booted - 1 <= process <= time.time() else booted


_CHECKED: Final[OrderedDict[tuple[str, int], tuple[Sequence[str], Compiled]]] = OrderedDict()
"""By file and flags: its lines, and what they compile to."""


def is_compiled_from(code: CodeType, lines: Sequence[str]) -> bool:
    """Whether compiling a text gives this code."""
    key = (code.co_filename, code.co_flags & FUTURES)
    known = _CHECKED.get(key)
    if known is None or known[0] is not lines:
        known = _CHECKED[key] = (lines, compiled(lines, *key))
    _CHECKED.move_to_end(key)
    while len(_CHECKED) > MOST_FILES:
        _CHECKED.popitem(last=False)
    return code in known[1].get((code.co_name, code.co_firstlineno), ())


def compiled(lines: Sequence[str], file: str, futures: int) -> Compiled:
    """Every code object of a text; none where it does not compile."""
    made: Compiled = {}
    if sum(map(len, lines)) > MOST_CHECKED:
        return made
    flags = futures | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook's cell; it changes no function
    try:
        with warnings.catch_warnings():  # of an odd escape in somebody's text
            warnings.simplefilter("ignore")
            whole = compile("".join(lines), file, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return made
    for code in inner_code(whole):
        made.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return made


def inner_code(code: CodeType) -> Iterator[CodeType]:
    stack = [code]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(item for item in here.co_consts if isinstance(item, CodeType))


def last_lines(code: CodeType) -> Iterator[int | None]:
    """Lines on which something of a code object ends."""
    for here in inner_code(code):
        if hasattr(here, "co_positions"):
            for _, end_line, _, _ in here.co_positions():
                yield end_line
        else:
            for _, _, line in here.co_lines():
                yield line
