"""Writing all of a buffer to a file: one call of the system may take less, by a signal or at the end of the room."""

from __future__ import annotations

import os
from typing import Any


def write_all_at(file: int, data: Any, offset: int) -> None:
    """Write a contiguous buffer.

    Args:
        file: Descriptor of a file.
        data: Any buffer, as arrays of ctypes and numpy are too.
        offset: Where in the file its first byte goes.

    Raises:
        OSError: where the rest was refused, too.
    """
    view = memoryview(data)
    done = os.pwrite(file, data, offset)
    while done < view.nbytes:  # a signal, or more than one call may write
        done += os.pwrite(file, flat(view)[done:], offset + done)


def flat(view: memoryview) -> memoryview:
    try:
        return view.cast("B")
    except TypeError:  # a format that cast does not know, as ctypes arrays have
        return memoryview(view.tobytes())
