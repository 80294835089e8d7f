"""A file that is there whole or not at all.

Gives  ``written``, for what a user asks for, which refuses by code.
Rule   what is written stands under another name until it is on the disk; only then it gets its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from torchlens.errors import ConfigurationError

__all__ = ["write_whole", "written"]


def written(
    path: str | os.PathLike[str],
    make: Callable[[], Iterable[bytes]],
    *,
    overwrite: bool,
    what: str,
    exists_code: str,
    failed_code: str,
) -> Path:
    """Write a file that a user asked for; gives its absolute path.

    Args:
        path: Where; ``~`` is the user's home.
        make: Gives what it holds, and is called once it is known that nothing is in the way.
        overwrite: Replace a file that is there.
        what: What it is, such as ``"the page"``.
        exists_code: The code where something is there already.
        failed_code: The code where the file could not be written.

    Raises:
        ConfigurationError: with one of the two codes.
    """
    target = Path(os.path.expanduser(path)).absolute()  # unlike Path.expanduser, no error without a home
    if target.is_dir() or (target.exists() and not overwrite):
        raise is_there(target, what, exists_code)
    chunks = make()
    try:
        is_written = write_whole(target, chunks, overwrite=overwrite)
    except (OSError, ValueError) as exc:  # a path may have a zero in it
        raise ConfigurationError(
            code=failed_code,
            problem=f"{what} {str(target)!r} could not be written: {getattr(exc, 'strerror', None) or exc}",
            remedy="give a path in a folder that is there and can be written to",
            path=str(target),
        ) from exc
    if not is_written:  # another came first
        raise is_there(target, what, exists_code)
    return target


def is_there(target: Path, what: str, code: str) -> ConfigurationError:
    is_folder = target.is_dir()
    return ConfigurationError(
        code=code,
        problem=f"{what} cannot be {str(target)!r}, which is there already" + (", and a folder" if is_folder else ""),
        remedy="give another path" + ("" if is_folder else ", or overwrite=True"),
        path=str(target),
    )


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
