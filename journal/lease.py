"""The right to write a journal: a lock on a file, freed by the kernel when its process ends, however it ends.

Note  Whoever asks whether it is held has it for an instant, so the first refusal of the lock is not the last word.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from journal.errors import JournalError

LEASE: Final = "writer.lease"

LEASE_SECONDS: Final = 0.1
"""So long a lease that is held is waited for."""


class Lease:
    """The right to write a journal: a lock on a file, freed by the kernel when its process ends, however it ends.

    Raises:
        JournalError: `journal_locked`, naming the holder.
    """

    def __init__(self, folder: Path) -> None:
        self.file = open(folder / LEASE, "rb+", buffering=0, opener=made)  # noqa: SIM115 - open while the lease is held
        try:
            self.take()
            self.file.truncate(0)
            os.pwrite(self.file.fileno(), str(os.getpid()).encode(), 0)
        except BlockingIOError as exc:
            holder = os.pread(self.file.fileno(), 64, 0).decode("ascii", "replace").strip() or "unknown"
            self.file.close()
            raise JournalError(
                code="journal_locked",
                problem=f"the journal {str(folder)!r} is being written by process {holder}",
                remedy="wait until it has closed the journal, or open it for reading",
                path=str(folder),
                holder=int(holder) if holder.isdecimal() else None,
            ) from exc
        except BaseException:
            self.file.close()  # which frees the lock: a full disk must not keep it
            raise

    def take(self) -> None:
        deadline = time.monotonic() + LEASE_SECONDS
        while True:
            try:
                return fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LEASE_SECONDS / 20)

    def release(self) -> None:
        """Give it back. It may be done again, also after an interrupt: a file object closes its descriptor once."""
        if not self.file.closed:
            with suppress(OSError):
                self.file.truncate(0)
            self.file.close()

    def disown(self) -> None:
        """In a forked child: let the lock be the parent's alone, which would otherwise outlive it here."""
        self.file.close()


def made(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def writing_process(folder: Path) -> int | None:
    """Number of the process that writes a journal now, 0 where it does not say; None where none does."""
    try:
        file = os.open(folder / LEASE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 64, 0)
        return int(holder) if holder.isdigit() else 0
    except OSError:  # a file system without such locks, where nothing can be written either
        return None
    finally:
        os.close(file)
    return None


def is_held(folder: Path) -> bool:
    """Whether a process holds the lease of a journal; one that was killed does not."""
    return writing_process(folder) is not None
