"""The thread that flushes: what has waited for half a second in any journal of this process is committed.

Rule  What fails is tried again by the next flush of the writer, which says what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event as Signal
from threading import Thread
from typing import Final, Protocol

COMMIT_SECONDS: Final = 0.5


class Flushed(Protocol):
    """What the thread flushes."""

    def flush_waiting(self) -> None: ...


class Flusher:
    """One thread a process, which flushes and commits what has waited for half a second in any journal."""

    def __init__(self) -> None:
        self.also: Callable[[], None] = lambda: None  # what else is done each time, by who shares environments
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child, where the thread is the parent's."""
        self.kept: set[Flushed] = set()
        self.wanted = Signal()
        self.thread: Thread | None = None

    def keep(self, environment: Flushed) -> None:
        self.kept.add(environment)
        self.wanted.set()
        if self.thread is None or not self.thread.is_alive():
            self.thread = Thread(target=self.run, name="journal-flush", daemon=True)
            self.thread.start()

    def leave(self, environment: Flushed) -> None:
        self.kept.discard(environment)
        if not self.kept:
            self.wanted.clear()

    def run(self) -> None:
        while True:
            self.wanted.wait()
            time.sleep(COMMIT_SECONDS)
            for flush in (self.also, *(environment.flush_waiting for environment in tuple(self.kept))):
                with suppress(Exception):  # whatever it is, the other journals are to be flushed on
                    flush()


FLUSHER: Final = Flusher()
