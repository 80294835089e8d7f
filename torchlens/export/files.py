"""Where an export is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torchlens.whole_file import written

__all__ = ["write_export"]


def write_export(path: str | os.PathLike[str], chunks: Iterable[bytes], *, overwrite: bool) -> Path:
    """Write a file whole or not at all; gives its absolute path.

    Raises:
        ConfigurationError: ``export_path_exists``, ``export_not_written``.
    """
    return written(
        path,
        lambda: chunks,
        overwrite=overwrite,
        what="the export",
        exists_code="export_path_exists",
        failed_code="export_not_written",
    )
