"""Interrupts at a chosen line of this project's code."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import journal

PACKAGE = str(Path(journal.__file__).parent)


def is_interrupted(act: Callable[[], object], stop: int, files: Collection[str | None] | None = None) -> bool:
    """Run ``act`` with an interrupt before line ``stop`` of those that it runs in the journal, or in some files of it;
    whether it has as many.

    Not where a with statement or a bare try stands: such a line is met again on leaving, where Python looks for no
    interrupt.
    """
    lines = 0

    def trace(frame: FrameType, what: str, arg: object) -> Any:
        nonlocal lines
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or (files is not None and file not in files):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if what == "line" and not line.lstrip().startswith(("with ", "try:")):
            lines += 1
            if lines > stop:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
