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

from journal.environment import Environment, Seat
from journal.errors import JournalError
from journal.flushing import FLUSHER
from journal.lmdb_opening import Sync

OPEN: Final[dict[str, Environment]] = {}
INHERITED: Final[dict[str, Environment]] = {}
"""Environments of the process this one was forked from. They are held, since letting go would close them, and
their paths cannot be opened here, since LMDB takes them for open."""

GUARDS: Final = [RLock()]
"""The lock around OPEN, in a list since a forked process needs a new one."""

DROPPED: Final[deque[Seat]] = deque()
"""Seats of users that were collected without having been closed. A finalizer only notes them, since it may run
anywhere, inside any lock; the next user of a journal leaves for them, or the flushing thread."""


def enter(path: Path, seat: Seat, sync: Sync) -> Environment:
    """Join the environment of a path, or open it."""
    try:
        with GUARDS[0]:
            key = os.path.realpath(path)
            if key in INHERITED and not INHERITED[key].is_removed():
                INHERITED[key].check()
            environment = OPEN.get(key)
            if environment is not None and not environment.seats:  # an interrupt fell into the last one's leaving
                dismiss(environment)
            if environment is None or environment.env is None or environment.is_removed():
                environment = seat.environment = Environment(path, sync)
                environment.open(seat.writing)
                OPEN[key] = environment
            else:
                seat.environment = environment
                if seat.writing:
                    environment.write_too(sync)
            environment.seats.add(seat)
            leave_dropped()
            return environment
    except BaseException:
        with suppress(JournalError):
            leave(seat)
        leave_dropped()
        raise


def leave(seat: Seat, *, storing: bool = True) -> None:
    """Leave an environment: the last writer seals the journal, the last user closes it.

    What fails or is interrupted is gone on with by the next call, and one that was through changes nothing.

    Args:
        seat: Of who leaves, and may not have come to join.
        storing: Whether the last writer stores what waits. Else it is lost, and leaving asks nothing of the disk.
    """
    with GUARDS[0]:
        environment = seat.environment
        if environment is None or environment.is_forked:
            return
        if seat.writing and not any(other.writing for other in environment.seats if other is not seat):
            if storing:
                environment.seal()
            else:
                environment.give_up()
        environment.seats.discard(seat)
        if not environment.seats:
            dismiss(environment)


def dismiss(environment: Environment) -> None:
    """Close an environment that nobody uses, and only then forget it: LMDB opens no file twice."""
    environment.shut()
    key = os.path.realpath(environment.folder)
    if OPEN.get(key) is environment:  # else its directory was removed, and made anew by another
        del OPEN[key]


def leave_dropped() -> None:
    """Leave for those who were collected unclosed. What fails is tried again by the next call, and told at exit."""
    with GUARDS[0]:
        for _ in range(len(DROPPED)):
            try:
                leave(DROPPED[0])
            except JournalError:  # noqa: PERF203 - one that fails keeps no other from leaving
                DROPPED.rotate(-1)
            else:
                DROPPED.popleft()


def leave_all() -> None:
    """At exit: everything pending is committed and every journal sealed."""
    first: JournalError | None = None
    for environment in list(OPEN.values()):
        try:
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
