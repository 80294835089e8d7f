"""Verifying a journal: whether all of it is as it was written, told by a process that may die of asking.

A damaged map can end the process that reads it (SIGBUS, SIGSEGV, an assertion of LMDB), so the scan
(scan.py) runs in a child, which tells what it finds through a pipe. How the child ends is part of the answer.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import attrs
import msgpack

from journal.damages import LISTED, TOLD_NOTES, Counts, Damage
from journal.directories import found_at
from journal.errors import JournalError

PROGRAM: Final = "import sys; sys.path[:] = sys.argv[2:]; from journal.scan import main; main(sys.argv[1])"

LONGEST_ANSWER: Final = 4 << 20
"""More than all that a scan may tell."""

FROM_OUTSIDE: Final = frozenset([signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
"""Signals that say nothing of the journal: somebody, or a system short of memory, ended the scan."""


@attrs.define(frozen=True, slots=True, kw_only=True)
class Report:
    """What `verify` found.

    Attributes:
        path: Directory of the journal.
        events: Events looked at.
        commits: Commits looked at.
        streams: Streams looked at.
        payloads: Payloads whose bytes were looked for.
        payload_bytes: How many bytes they have.
        is_sealed: Whether its last writer closed it.
        damages: What is not as it was written, the first thousand.
        omitted: Number of damages beyond those.
        unread: What a newer version wrote: whole, but not understood here.
        notes: What is worth knowing and no damage.
    """

    path: str
    events: int = 0
    commits: int = 0
    streams: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    is_sealed: bool = False
    damages: tuple[Damage, ...] = ()
    omitted: int = 0
    unread: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every byte that means anything is as it was written."""
        return not self.damages


def verify(path: str | os.PathLike[str], *, timeout: float | None = None) -> Report:
    """Look at every event and payload of a journal, in a child process.

    Nothing is written but LMDB's table of readers. A journal that is being written can be verified; its page structure
    is left out then.

    Args:
        path: Directory of the journal.
        timeout: Seconds after which to give up; never, by default.

    Raises:
        JournalError: `journal_not_found`, `journal_not_a_journal`, `journal_newer`, `journal_open_failed`,
            `journal_read_failed`, `scan_timed_out`, `scan_failed`.
    """
    folder = found_at(path)
    end = None if timeout is None else time.monotonic() + timeout
    with tempfile.TemporaryFile() as errors:
        child = start(folder, errors)
        assert child.stdout is not None
        try:
            heard = list(messages(child, end))
            child.stdout.close()  # one that would say more is not waited for
            status = child.wait(None if end is None else max(0.0, end - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as exc:
            raise JournalError(
                code="scan_timed_out",
                problem=f"the journal {str(folder)!r} was not verified within {timeout} seconds",
                remedy="give it more time, or none",
                path=str(folder),
                timeout=timeout,
            ) from exc
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        return report(folder, heard, status, last_words(errors))


# The child ----------------------------------------------------------------------------------------


def start(folder: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", PROGRAM, str(folder), *trusted_path()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
        )
    except (OSError, ValueError) as exc:
        raise failed(folder, f"it could not be started: {exc}") from exc


def trusted_path() -> list[str]:
    """Where the child looks for modules: where this process found them, but not wherever it happens to stand.

    Entries for the current directory are left out. If this package itself was found there, it comes last.
    """
    here = os.path.realpath(os.curdir)
    given = [entry for entry in sys.path if os.path.isabs(entry) and os.path.realpath(entry) != here]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return given if own in given else [*given, own]


def messages(child: subprocess.Popen[bytes], end: float | None) -> Iterator[list[Any]]:
    """What the child tells, until it ends or tells too much.

    Raises:
        TimeoutError: at ``end``, by the monotonic clock.
    """
    assert child.stdout is not None
    answer = msgpack.Unpacker(None, max_buffer_size=LONGEST_ANSWER)
    left = LONGEST_ANSWER
    while left > 0:
        rest = None if end is None else max(0.0, end - time.monotonic())
        if not select.select([child.stdout], [], [], rest)[0]:
            raise TimeoutError
        data = os.read(child.stdout.fileno(), 1 << 16)
        if not data:
            return
        left -= len(data)
        answer.feed(data)
        yield from answer


def last_words(errors: IO[bytes]) -> str:
    """The end of what the child wrote to standard error: an assertion of LMDB says what it met."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def report(folder: Path, heard: list[list[Any]], status: int, said: str) -> Report:
    """What was heard, and how the child ended, as an answer."""
    damages: list[Damage] = []
    unread: list[Damage] = []
    notes: list[str] = []
    counts: Counts | None = None
    for word, *rest in heard:
        match word:
            case "damage":
                damages.append(Damage(**rest[0]))
            case "unread":
                unread.append(Damage(**rest[0]))
            case "note":
                notes.append(rest[0])
            case "end":
                counts = Counts(*rest)
            case _:
                code, problem, remedy = rest
                raise JournalError(code=code, problem=problem, remedy=remedy, path=str(folder))
    if counts is None:
        if status >= 0 or -status in FROM_OUTSIDE:
            ending = f"status {status}" if status >= 0 else name_of(-status)
            raise failed(folder, f"it ended with {ending} before it was done. {said}".rstrip(". "))
        problem = f"the scan died of {name_of(-status)}: data.mdb is damaged, or was cut while it was read. {said}"
        damages.append(Damage(code="scan_died", problem=problem.rstrip(". ")))
        counts = Counts()
    return Report(
        path=str(folder),
        events=counts.events,
        commits=counts.commits,
        streams=counts.streams,
        payloads=counts.payloads,
        payload_bytes=counts.payload_bytes,
        is_sealed=counts.is_sealed,
        damages=tuple(damages[: LISTED + 1]),
        omitted=counts.omitted,
        unread=tuple(unread[:TOLD_NOTES]),
        notes=tuple(notes[:TOLD_NOTES]),
    )


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def failed(folder: Path, why: str) -> JournalError:
    return JournalError(
        code="scan_failed",
        problem=f"the process that scans the journal {str(folder)!r} gave no answer: {why}",
        remedy="try again, with more memory if there was little; the journal itself was not found damaged",
        path=str(folder),
    )
