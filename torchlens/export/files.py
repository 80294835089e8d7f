"""Where an export is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torchlens.errors import ConfigurationError
from torchlens.whole_file import write_whole

__all__ = ["write_export"]


def write_export(path: str | os.PathLike[str], chunks: Iterable[bytes], *, overwrite: bool) -> Path:
    """Write a file whole or not at all; gives its absolute path.

    Raises:
        ConfigurationError: ``export_path_exists``, ``export_not_written``.
    """
    target = Path(path).expanduser().absolute()
    try:
        is_written = write_whole(target, chunks, overwrite=overwrite)
    except (OSError, ValueError) as exc:  # a path may have a zero in it
        raise ConfigurationError(
            code="export_not_written",
            problem=f"{str(target)!r} could not be written: {getattr(exc, 'strerror', None) or exc}",
            remedy="give a path in a folder that is there and can be written to",
            path=str(target),
        ) from exc
    if not is_written:
        raise ConfigurationError(
            code="export_path_exists",
            problem=f"{str(target)!r} is there already",
            remedy="give another path, or overwrite=True for a file",
            path=str(target),
        )
    return target
