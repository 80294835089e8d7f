"""A file that is there whole or not at all.

Gives  ``written``, for what a user asks for, which refuses by code.
Rule   what is written stands under another name until it is on the disk; only then it gets its own.
Rule   only a regular file is ever replaced, also behind a link, and by one that the same people may read.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from torchlens.errors import ConfigurationError

__all__ = ["written"]

FULL: Final = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""What the system says where there is no room for a file."""


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
        path: Where; ``~`` is the user's home, and of a link the file behind it is meant.
        make: Gives what it holds, and is called once it is known that nothing is in the way.
        overwrite: Replace a file that is there.
        what: What it is, such as ``"the page"``.
        exists_code: The code where something is there already.
        failed_code: The code where the file could not be written.

    Raises:
        ConfigurationError: with one of the two codes.
    """
    try:
        target = target_of(path)
        why = reason_against(path, target)
        is_taken = os.path.lexists(target) and (target.is_dir() or not overwrite)
    except (OSError, TypeError, ValueError, RuntimeError) as exc:  # a path may have a zero in it, or no end
        raise not_written(path, what, failed_code, exc) from exc
    if why is not None:
        raise not_written(path, what, failed_code, why)
    if is_taken:
        raise is_there(target, what, exists_code)
    chunks = make()
    try:
        is_written = write_whole(target, chunks, overwrite=overwrite)
    except (OSError, ValueError) as exc:
        raise not_written(target, what, failed_code, exc) from exc
    if not is_written:  # another came first
        raise is_there(target, what, exists_code)
    return target


def target_of(path: str | os.PathLike[str]) -> Path:
    """The absolute path of what a path leads to: of a link the file that it stands for, which is there or not."""
    target = Path(os.path.expanduser(path)).absolute()  # unlike Path.expanduser, no error without a home
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def reason_against(path: str | os.PathLike[str], target: Path) -> str | None:
    """Why no file is written there: not in the place of a device, a pipe, a socket or a link that leads in a circle."""
    if not os.fspath(path):
        return "the path is empty"
    with suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return "it is there, and no regular file"
    return None


def not_written(path: object, what: str, code: str, why: str | Exception) -> ConfigurationError:
    is_full = isinstance(why, OSError) and why.errno in FULL
    remedy = "give a path in a folder that is there and can be written to"
    return ConfigurationError(
        code=code,
        problem=f"{what} {str(path)!r} could not be written: {getattr(why, 'strerror', None) or why}",
        remedy="make room, or give a path on another disk" if is_full else remedy,
        path=str(path),
    )


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
    if target.is_dir() or (os.path.lexists(target) and not overwrite):
        return False
    unfinished = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")  # 40 letters of up to four bytes
    try:
        with open(unfinished, "xb") as file:
            with suppress(FileNotFoundError):
                os.chmod(unfinished, stat.S_IMODE(target.stat().st_mode))
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
