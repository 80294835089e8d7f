"""The journal on disk: chunks in LMDB, payloads in segment files, one writing process.

Not   what stands where in its directory (lmdb_layout.py).
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from journal.copying import copy_streams, onto_itself
from journal.directories import path_of, require_free
from journal.environment import Seat, closed
from journal.errors import JournalError
from journal.events.base import StreamId
from journal.events.capture import StreamOpened
from journal.lmdb_opening import Sync
from journal.protocol import Copied
from journal.sharing import DROPPED, enter, leave
from journal.stream_writer import CHUNK_ROWS, Writer
from journal.user import JournalUser

Durability: TypeAlias = Literal["close", "batch", "event"]


class LmdbJournal(JournalUser):
    """One user of a journal directory.

    Args:
        path: Directory of the journal; made when it is missing and the user may write.
        durability: When to commit: "close" when a stream closes, "batch" at 4,096 events, 64 MiB or half a
            second, "event" at every event.
        sync: What a commit flushes to the disk: "events", "all" (payload bytes too) or "none". What is
            committed survives the death of the process under each of them.
        readonly: Open what exists, beside a writer in another process or in this one.

    Raises:
        JournalError: `journal_not_found`, `journal_not_a_journal`, `journal_newer`, `journal_locked`,
            `journal_open_failed`, `journal_write_failed`.
        JournalCorrupt: `journal_truncated`, `journal_rolled_back`, `head_malformed`, and for writing
            `commit_malformed`, `head_missing`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "batch",
        sync: Sync = "events",
        readonly: bool = False,
    ) -> None:
        self.durability: Durability = durability
        self.readonly = readonly
        self.closed = False
        self.seat = Seat(writing=not readonly)
        self.dropped = weakref.finalize(self, DROPPED.append, self.seat)
        self.dropped.atexit = False
        self.environment = enter(path_of(path), self.seat, sync)
        super().__init__(self.environment)

    @property
    def path(self) -> str:
        return str(self.environment.folder)

    @property
    def id(self) -> bytes:
        return self.environment.id

    def open_stream(self, opened: StreamOpened, time_ns: int | None = None) -> Writer:
        self.check_writable()
        return self.begin(opened, time_ns, self.chunk_size, self.durability)

    def continue_stream(self, stream: StreamId) -> Writer:
        self.check_writable()
        return self.go_on(stream, self.chunk_size, self.durability)

    @property
    def chunk_size(self) -> int:
        return 1 if self.durability == "event" else CHUNK_ROWS

    def copy_to(self, path: str | os.PathLike[str]) -> Copied:
        self.check()
        if os.path.realpath(path_of(path)) == os.path.realpath(self.environment.folder):
            raise onto_itself()  # before it is opened for writing
        with open_copy(path) as target:
            return copy_streams(self, target)

    def check(self) -> None:
        super().check()
        if self.closed:
            raise closed(self.environment.folder)

    def check_writable(self) -> None:
        self.check()
        if self.readonly:
            raise JournalError(
                code="journal_read_only",
                problem=f"{self.path!r} was opened for reading",
                remedy="open it for writing",
                path=self.path,
            )

    def close(self) -> None:
        if self.closed or self.environment.is_forked:
            return
        self.close_writers()
        self.let_go(storing=True)

    def abandon(self) -> None:
        """Let go of the journal, whatever the disk says: what no commit has stored is lost, unless others write too."""
        if not self.closed and not self.environment.is_forked:
            self.let_go(storing=False)

    def let_go(self, storing: bool) -> None:
        leave(self.seat, storing=storing)
        self.closed = True
        self.dropped.detach()


def open_for_writing(
    path: str | os.PathLike[str], *, durability: Durability = "batch", sync: Sync = "events"
) -> LmdbJournal:
    """Open or make the journal at ``path``; see `LmdbJournal`."""
    return LmdbJournal(path, durability=durability, sync=sync)


def open_for_reading(path: str | os.PathLike[str]) -> LmdbJournal:
    """Open the journal at ``path`` as it is and as it grows; see `LmdbJournal`."""
    return LmdbJournal(path, readonly=True)


@contextmanager
def open_copy(path: str | os.PathLike[str]) -> Generator[LmdbJournal]:
    """The journal at ``path`` as the target of a copy: what was copied may be relied on when this ends.

    A disk that refuses even to end it keeps neither the lease nor the memory of what it refused: nobody else could.
    """
    target = LmdbJournal(path, durability="close", sync="all")
    try:
        yield target
    finally:
        try:
            target.close()
        except BaseException:
            target.abandon()
            raise


@contextmanager
def open_new(path: str | os.PathLike[str], source: str | os.PathLike[str]) -> Generator[LmdbJournal]:
    """A journal that is made from the one at ``source``; where that fails, nothing is left at ``path``.

    Raises:
        JournalError: `target_taken`, `journal_path_invalid`, and what opening for writing raises.
    """
    folder = require_free(path, source)
    try:
        target = LmdbJournal(folder, durability="close", sync="all")  # the old one may be removed after this
    except JournalError as exc:
        if exc.code != "journal_locked":  # else what is there is another's
            shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        yield target
        target.close()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # while the lease is held: half a copy would look like a whole one
        target.abandon()
        raise
