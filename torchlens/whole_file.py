"""A file that is there whole or not at all.

Rule   what is written stands under another name until it is on the disk; only then it gets its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(target: Path, chunks: Iterable[bytes], *, overwrite: bool) -> bool:
    """Write a file; gives whether it did, which is False where one is there, or came to be there meanwhile.

    Args:
        target: Its path.
        chunks: What it holds, made as it is written.
        overwrite: Replace a file that is there.

    Raises:
        OSError: The disk refused.
        ValueError: The path has a zero in it.
    """
    if target.is_dir() or (target.exists() and not overwrite):
        return False
    unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
    try:
        with open(unfinished, "xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        return is_put(unfinished, target, overwrite=overwrite)
    finally:
        with suppress(OSError, ValueError):
            unfinished.unlink()


def is_put(unfinished: Path, target: Path, *, overwrite: bool) -> bool:
    """Give a whole file its name, unless another came first."""
    if not overwrite:
        try:
            os.link(unfinished, target)  # unlike a renaming, refused where another file came first
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            pass
        else:
            return True
    os.replace(unfinished, target)
    return True
