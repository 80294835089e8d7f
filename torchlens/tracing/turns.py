"""One capture at a time in a process, since it has one set of wrappers.

A thread waits for the capture of another one. Not where it would wait for itself: within a capture of its own, or in
a thread that a captured forward has started and may be waiting for.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torchlens.errors import CaptureError

__all__ = ["Starts", "is_free", "is_within", "leave_child", "turn"]

_running = threading.Lock()
_owner: int | None = None
_started: dict[int, threading.Thread] = {}  # by id, the threads that the forward started, and those started by them


def is_free() -> bool:
    """Whether no capture runs."""
    return not _running.locked()


def is_within() -> bool:
    """Whether this thread is the one of the running capture, or one that its forward has started."""
    ours = _owner == threading.get_ident() or id(threading.current_thread()) in _started
    return ours and _running.locked()  # who was interrupted at the end of its turn may have left its name


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait until no other capture runs, and let none run meanwhile.

    Raises:
        CaptureError: ``reentrant_trace``, where that would be to wait for oneself.
    """
    global _owner
    if is_within():
        mine = _owner == threading.get_ident()
        raise CaptureError(
            code="reentrant_trace",
            problem="a capture is already running in this thread"
            if mine
            else "a forward that is being captured has started this thread, and may be waiting for it",
            remedy="let the outer capture finish, or call the model without capturing it",
        )
    with _running:
        try:
            _owner = threading.get_ident()
            yield
        finally:
            _owner = None
            _started.clear()


def leave_child() -> None:
    """In a forked child: the lock may have been held by a thread that is not here."""
    global _running, _owner
    _running, _owner = threading.Lock(), None
    _started.clear()


class Starts:
    """While it is installed, threads that the forward starts are noted; ``restore`` ends that."""

    def __init__(self) -> None:
        self._original: Callable[[threading.Thread], None] | None = None

    def install(self) -> None:
        self._original = original = threading.Thread.start

        def start(thread: threading.Thread) -> Any:
            if is_within():
                _started[id(thread)] = thread
            return original(thread)

        _put(functools.wraps(original)(start))

    def restore(self) -> None:
        if self._original is not None:
            _put(self._original)


def _put(start: Callable[[threading.Thread], None]) -> None:
    threading.Thread.start = start  # type: ignore[assignment, method-assign]  # a method of ours for the length of a capture
