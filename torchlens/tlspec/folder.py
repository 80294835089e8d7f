"""The folder of an artifact as it is read: through one descriptor, and nothing in it is followed.

Rule  Every file is reached from the folder that was opened, folder by folder; a link, a pipe or a device in its place
      is refused. What comes to stand at the folder's path afterwards is not looked at.
Rule  A path in a manifest is one or two plain names: letters, digits, ``_``, ``-`` and ``.``, no dot in front.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

from torchlens.errors import ArtifactError
from torchlens.tlspec.errors import integrity_refused, load_failed
from torchlens.tlspec.staging import TRIES, place_of, places_for

T = TypeVar("T")

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")

READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a file is opened: a pipe in its place, which would wait for a writer, is not waited for."""

ENTERING: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

FOLLOWED: Final = (errno.ELOOP, errno.EMLINK)
"""What systems say of a link that is not to be followed; of one where a folder is wanted, Linux says ENOTDIR."""


def is_plain(path: str) -> bool:
    """Whether a path may stand in a manifest."""
    parts = path.split("/")
    return len(parts) <= 2 and all(NAME.fullmatch(part) for part in parts)


class Folder:
    """An artifact's folder.

    Args:
        path: Where the artifact is.

    Raises:
        ArtifactError: `load_path_symlink_rejected`, `manifest_missing` where nothing is, `bundle_load_failed`,
            `artifact_path_invalid`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = place_of(path)
        self.home: int | None = None
        if os.path.islink(self.path):
            raise link_rejected(self.path)
        for place in places_for(self.path):
            try:
                self.home = os.open(place, ENTERING)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as exc:
                if exc.errno in FOLLOWED:
                    raise link_rejected(self.path) from exc
                raise load_failed(self.path, str(exc)) from exc
            return
        raise manifest_missing(self.path)

    def is_replaced(self) -> bool:
        """Whether something else has come to stand at the path since the folder was opened."""
        try:
            return self.home is not None and not os.path.samestat(os.fstat(self.home), os.lstat(self.path))
        except OSError:
            return True

    def opened(self, name: str) -> tuple[int, int]:
        """A descriptor of a file, and how many bytes it has.

        Raises:
            FileNotFoundError: when there is none.
            ArtifactError: `load_path_symlink_rejected`, `bundle_load_failed`.
            ArtifactCorrupt: `bundle_metadata_integrity_refused`, for what is no regular file.
        """
        if self.home is None:
            raise load_failed(self.path, "it was closed")
        *above, last = name.split("/")
        home = self.home
        try:
            for part in above:
                home = os.open(part, ENTERING, dir_fd=self.home)
            file = os.open(last, READING, dir_fd=home)
        except FileNotFoundError:
            raise
        except OSError as exc:
            if self.is_link(above[0] if above and home == self.home else last, home):
                raise link_rejected(self.path / name) from exc
            raise load_failed(self.path, f"{name}: {exc.strerror}") from exc
        finally:
            if home != self.home:
                os.close(home)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            os.close(file)
            raise integrity_refused(self.path, f"{name} is no regular file")
        return file, found.st_size

    @staticmethod
    def is_link(name: str, home: int) -> bool:
        with suppress(OSError):
            return stat.S_ISLNK(os.stat(name, dir_fd=home, follow_symlinks=False).st_mode)
        return False

    def read(self, name: str, most: int) -> bytes:
        """All bytes of a file.

        Args:
            name: Path below the folder.
            most: A longer file is refused unread.

        Raises:
            FileNotFoundError: when there is none.
            ArtifactError: as `opened`; `bundle_load_failed`, when reading fails.
            ArtifactCorrupt: `bundle_metadata_integrity_refused`, when it is longer.
        """
        file, nbytes = self.opened(name)
        try:
            if nbytes > most:
                raise integrity_refused(self.path, f"{name} has {nbytes} bytes, and {most} are the most")
            data = read_at(file, nbytes, 0)
        except OSError as exc:
            raise load_failed(self.path, f"{name}: {exc.strerror}") from exc
        finally:
            os.close(file)
        if data is None:
            raise load_failed(self.path, f"{name} became shorter while it was read")
        return bytes(data)

    def close(self) -> None:
        home, self.home = self.home, None
        if home is not None:
            os.close(home)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the interpreter, or of a folder that could not be opened
            self.close()


def reading(path: str | os.PathLike[str], read: Callable[[Folder], T]) -> T:
    """What comes of reading an artifact; begun anew where it is replaced meanwhile, since what was replaced is removed.

    Raises:
        ArtifactError: as `Folder`, and what ``read`` raises.
    """
    for tries_left in reversed(range(TRIES)):
        with Folder(path) as folder:
            try:
                return read(folder)
            except ArtifactError:
                if not (tries_left and folder.is_replaced()):
                    raise
    raise AssertionError("the last try returns or raises")


def read_at(file: int, nbytes: int, offset: int) -> bytearray | None:
    """Some bytes of an open file; None where it has not as many.

    Raises:
        OSError: what the disk says.
        MemoryError: for more than there is room for.
    """
    data = bytearray(nbytes)
    view = memoryview(data)
    done = 0
    while done < nbytes:
        count = os.preadv(file, [view[done:]], offset + done)
        if count == 0:
            return None
        done += count
    return data


def link_rejected(path: Path) -> ArtifactError:
    return ArtifactError(
        code="load_path_symlink_rejected",
        problem=f"{str(path)!r} is a link, and nothing in an artifact is followed elsewhere",
        remedy="give the folder that it points to, or copy the artifact with its files instead of links",
        path=str(path),
    )


def manifest_missing(path: Path) -> ArtifactError:
    return ArtifactError(
        code="manifest_missing",
        problem=f"there is no artifact at {str(path)!r}: it has no manifest.json",
        remedy="check the path; an artifact is the folder that trace.save made",
        path=str(path),
    )
