"""Refusals in the words of the command line."""

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
            remedy = exc.remedy.replace("overwrite=True", "--overwrite")
            raise ConfigurationError(
                code=exc.code, problem=exc.problem, remedy=remedy, path=exc.fields.get("path")
            ) from exc
        if exc.code == "journal_not_found":
            raise JournalError(
                code=exc.code,
                problem=exc.problem.replace("no journal", "neither a journal nor an artifact"),
                remedy="check the path; a journal is a directory, and so is an artifact, name.tlspec",
                path=exc.fields.get("path"),
            ) from exc
        raise
