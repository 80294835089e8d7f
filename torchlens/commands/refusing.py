"""Refusals in the words of the command line.

Not   what is refused, which is found where it is, nor refusals of drawings (viz/refusing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from journal import JournalError
from torchlens.errors import ConfigurationError

__all__ = ["of_the_command"]


@contextmanager
def of_the_command() -> Iterator[None]:
    """Refusals whose remedies are those of the command, which reads artifacts and has flags."""
    try:
        yield
    except (ConfigurationError, JournalError) as exc:
        if exc.code in ("export_path_exists", "page_path_exists"):
            raise ConfigurationError(
                code=exc.code,
                problem=exc.problem,
                remedy="give another path, or --overwrite to replace a file that is there",
                path=exc.fields.get("path"),
            ) from exc
        if exc.code == "journal_not_found":
            raise JournalError(
                code=exc.code,
                problem=f"there is neither a journal nor an artifact at {exc.fields.get('path')!r}",
                remedy="check the path; a journal is a directory, and so is an artifact, name.tlspec",
                path=exc.fields.get("path"),
            ) from exc
        raise
