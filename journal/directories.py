"""Paths of journals: as somebody gives them, where a journal is, and where one may be made from another.

Not   what else a directory must hold to be opened: the environment that opens it says so.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from journal.errors import JournalError


def path_of(path: str | os.PathLike[str]) -> Path:
    """The path as given, refused where no directory can have it."""
    try:
        found = Path(path)
        str(found).encode()
        with suppress(OSError):
            found.lstat()
    except (TypeError, ValueError) as exc:
        raise JournalError(
            code="journal_path_invalid",
            problem=f"{path!r} is no path of a journal: {exc}",
            remedy="give a text or a pathlib.Path",
            received_type=type(path).__name__,
        ) from exc
    return found


@contextmanager
def refusals(path: Path) -> Generator[None]:
    """Wraps what the system says of a name that is too long, or of a directory that may not be looked into."""
    try:
        yield
    except OSError as exc:
        raise JournalError(
            code="journal_open_failed",
            problem=f"{str(path)!r} cannot be looked at: {exc}",
            remedy="check the path, and the permissions on it and on every directory above",
            path=str(path),
        ) from exc


def found_at(path: str | os.PathLike[str]) -> Path:
    """The directory of the journal at a path, where there is one.

    Raises:
        JournalError: `journal_not_found`, `journal_not_a_journal`, `journal_path_invalid`, `journal_open_failed`.
    """
    folder = Path(os.path.abspath(path_of(path)))
    with refusals(folder):
        is_there = folder.exists()
        has_events = is_there and (folder / "data.mdb").is_file()
    if not is_there:
        raise JournalError(
            code="journal_not_found",
            problem=f"there is no journal at {str(folder)!r}",
            remedy="check the path; a journal is a directory",
            path=str(folder),
        )
    if not has_events and (folder / "manifest.json").is_file():
        raise JournalError(
            code="journal_not_a_journal",
            problem=f"{str(folder)!r} is no journal, but has the manifest of an artifact",
            remedy="tl.load(path) reads an artifact, and torchlens view PATH shows it; all events are in the journal"
            " that it was captured into",
            path=str(folder),
        )
    if not has_events:
        raise JournalError(
            code="journal_not_a_journal",
            problem=f"{str(folder)!r} is not a journal: it has no data.mdb",
            remedy="give the directory of a journal; one that has lost its data.mdb holds no events any more",
            path=str(folder),
        )
    return folder


def require_free(path: str | os.PathLike[str], source: str | os.PathLike[str] | None = None) -> Path:
    """Where a new journal may be made, perhaps from the one at ``source``: nothing is there, or an empty directory.

    Raises:
        JournalError: `target_taken`, also for a place inside the source, which is only read; `journal_path_invalid`,
            `journal_open_failed`.
    """
    target = Path(os.path.abspath(path_of(path)))
    with refusals(target):
        real = Path(os.path.realpath(target))
        is_inside = source is not None and Path(os.path.realpath(source)) in [real, *real.parents]
        is_free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        is_free = is_free and not target.is_symlink()
    if is_inside or not is_free:
        raise JournalError(
            code="target_taken",
            problem=f"{str(target)!r} lies inside the journal that is read" if is_inside else f"{str(target)!r} exists",
            remedy="give a path where nothing is yet: a new journal is written, and what is there stays as it is",
            path=str(target),
        )
    return target
