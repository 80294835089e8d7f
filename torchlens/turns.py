"""One capture at a time in a process, since it has one set of wrappers.

A thread waits for the capture of another one. Not where it would wait for itself: within a capture of its own, in a
thread that a captured forward has started, or in work that it has handed to a pool, and may be waiting for. Which way
work comes to a thread cannot always be known (a queue, a pool of another kind); so a long wait says that it is one.
Who changes a model around captures, and puts it back, takes ``several`` turns.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from torchlens.capture.callsite import OWN_CODE
from torchlens.errors import CaptureError, TorchLensWarning

__all__ = ["Starts", "is_free", "is_within", "leave_child", "several", "turn"]

LONG_WAIT: Final = 30.0
"""Seconds after which a thread that waits for its turn says so, once."""

_running = threading.Lock()
_owner: int | None = None
_holder: int | None = None  # the thread inside ``several``; None for none
_turn = 0  # counts them
_started: dict[int, threading.Thread] = {}  # by id, those that the forward started or gave work, and so on from those


def is_free() -> bool:
    """Whether no capture runs."""
    return not _running.locked()


def is_within() -> bool:
    """Whether this thread is the one of the running capture, or one that its forward has started or given work."""
    ours = _owner == threading.get_ident() or id(threading.current_thread()) in _started
    return ours and _running.locked()  # who was interrupted at the end of its turn may have left its name


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait until no other capture runs, and let none run meanwhile.

    Raises:
        CaptureError: ``reentrant_trace``, where that would be to wait for oneself.
    """
    global _owner, _turn
    with contextlib.nullcontext() if _holder == threading.get_ident() and not is_within() else taken():
        try:
            _owner = threading.get_ident()
            _turn += 1
            yield
        finally:
            _owner = None
            _started.clear()


@contextlib.contextmanager
def several() -> Iterator[None]:
    """Wait until no other capture runs, and let this thread alone capture meanwhile.

    Who changes a model around captures and puts it back hands it to no other thread's in between.

    Raises:
        CaptureError: ``reentrant_trace``, as for ``turn``.
    """
    global _holder
    if _holder == threading.get_ident() and not is_within():
        yield
        return
    with taken():
        try:
            _holder = threading.get_ident()
            yield
        finally:
            _holder = None


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """The lock, held, unless it is this thread's own captured forward that asks for it."""
    if is_within():
        mine = _owner == threading.get_ident()
        raise CaptureError(
            code="reentrant_trace",
            problem="a capture is already running in this thread"
            if mine
            else "a forward that is being captured has started this thread or its work, and may be waiting for it",
            remedy="let the outer capture finish, or call the model without capturing it",
        )
    if not is_free():
        wait_or_tell()
    with _running:
        yield


def wait_or_tell() -> None:
    """Wait for the running capture, and warn where that is long: it may be waiting for this thread."""
    if _running.acquire(timeout=LONG_WAIT):
        _running.release()
        return
    whose = (_owner, _holder)
    owner = next((thread.name for thread in threading.enumerate() if thread.ident in whose), "another thread")
    warnings.warn(
        TorchLensWarning(
            code="capture_waits",
            problem=f"thread {threading.current_thread().name!r} has waited {LONG_WAIT:.0f} s for the capture that "
            f"runs in {owner!r}",
            remedy="if that forward waits for what this thread does, neither will end: capture before or after it, or "
            "call the model without capturing it",
            owner=owner,
        ),
        stacklevel=7,
    )


def leave_child() -> None:
    """In a forked child: the lock may have been held by a thread that is not here."""
    global _running, _owner, _holder
    _running, _owner, _holder = threading.Lock(), None, None
    _started.clear()


class Starts:
    """While it is installed, threads that the forward starts are noted, and those of pools while they do its work."""

    def __init__(self) -> None:
        self._start: Callable[[threading.Thread], None] | None = None
        self._submit: Any = None

    def install(self) -> None:
        self._start = plain_start = threading.Thread.start
        plain_submit: Any = ThreadPoolExecutor.submit
        self._submit = plain_submit

        def start(thread: threading.Thread) -> Any:
            if is_within():
                _started[id(thread)] = thread
            return plain_start(thread)

        def submit(pool: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_within():
                fn = functools.partial(_given, fn, _turn)
            return plain_submit(pool, fn, *args, **kwargs)

        _put(functools.wraps(plain_start)(start), functools.wraps(plain_submit)(submit))

    def restore(self) -> None:
        if self._start is not None and self._submit is not None:
            _put(self._start, self._submit)


def _given(fn: Callable[..., Any], number: int, /, *args: Any, **kwargs: Any) -> Any:
    """Do what the forward of a turn has given to a pool. Work that outlives its turn is nobody's."""
    thread = threading.current_thread()
    is_new = number == _turn and not is_free() and id(thread) not in _started
    if is_new:
        _started[id(thread)] = thread
    try:
        return fn(*args, **kwargs)
    finally:
        if is_new:
            _started.pop(id(thread), None)


OWN_CODE.add(_given.__code__)


def _put(start: Callable[[threading.Thread], None], submit: Any) -> None:
    """Methods of ours for the length of a capture, or the originals."""
    threading.Thread.start = start  # type: ignore[assignment, method-assign]  # as said
    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]  # as said
