"""One environment per path and process: shared by its users, let go by the last, disowned by a forked child.

Rule  The last user that writes seals the journal, the last one of all closes it.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Final

from journal.environment import Environment
from journal.errors import JournalError
from journal.flushing import FLUSHER
from journal.lmdb_opening import Sync

OPEN: Final[dict[str, Environment]] = {}
INHERITED: Final[dict[str, Environment]] = {}
"""Environments of the process this one was forked from. They are held, since letting go would close them, and
their paths cannot be opened here, since LMDB takes them for open."""

GUARDS: Final = [RLock()]
"""The lock around OPEN, in a list since a forked process needs a new one."""

DROPPED: Final[deque[tuple[Environment, bool]]] = deque()
"""Users that were collected without having been closed. A finalizer only notes them, since it may run anywhere,
inside any lock; the next user of a journal lets go for them, or the flushing thread."""


def enter(path: Path, writing: bool, sync: Sync) -> Environment:
    """Join the environment of a path, or open it."""
    with GUARDS[0]:
        key = os.path.realpath(path)
        if key in INHERITED and not INHERITED[key].is_removed():
            INHERITED[key].check()
        environment = OPEN.get(key)
        if environment is None or environment.is_removed():
            environment = Environment(path, writing, sync)
            OPEN[key] = environment
        elif writing:
            environment.write_too(sync)
        environment.users += 1
        environment.writing_users += writing
        leave_dropped()
        return environment


def leave(environment: Environment, writing: bool) -> None:
    """Let go of an environment: the last writer seals the journal, the last user closes it."""
    with GUARDS[0]:
        if writing and environment.writing_users == 1:
            environment.seal()
        environment.writing_users -= writing
        environment.users -= 1
        if environment.users == 0:
            environment.shut()
            key = os.path.realpath(environment.folder)
            if OPEN.get(key) is environment:  # else its directory was removed, and made anew by another
                del OPEN[key]
        elif writing and environment.writing_users == 0:
            environment.read_only()


def leave_dropped() -> None:
    """Let go for those who were collected unclosed. What fails is tried again at exit, where it is told."""
    with GUARDS[0]:
        while DROPPED:
            environment, writing = DROPPED.popleft()
            if not environment.is_forked:
                with suppress(JournalError):
                    leave(environment, writing)


def leave_all() -> None:
    """At exit: everything pending is committed and every journal sealed."""
    first: JournalError | None = None
    for environment in list(OPEN.values()):
        try:
            if environment.writing_users:
                environment.seal()
            environment.shut()
        except JournalError as exc:  # noqa: PERF203 - one journal that fails keeps no other from being sealed
            first = first or exc
    OPEN.clear()
    if first is not None:
        raise first


def disown() -> None:
    """In a forked child: its journals are the parent's."""
    for key, environment in OPEN.items():
        environment.disown()
        INHERITED[key] = environment
    OPEN.clear()
    GUARDS[0] = RLock()
    FLUSHER.reset()


FLUSHER.also = leave_dropped
atexit.register(leave_all)
os.register_at_fork(after_in_child=disown)
