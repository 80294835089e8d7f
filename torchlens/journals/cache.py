"""Results of folding kept beside a journal, in plain files that may be deleted at any time.

    run.journal/cache/STREAM/PROJECTION.VERSION.HEAD

A file is eight bytes that name the form, the journal's id, and the XXH3-128 of id, key and bytes; then the bytes.

Gives  ``FileCache``, bytes by projection, version, stream and head.
Rule   what is damaged, cut, renamed, or of another journal is as if it were not there. So is everything where the
       folder cannot be written: nothing is kept then, and nobody is told.
Rule   a file is written under another name and then renamed: no reader sees half of one.
Rule   nothing is read, written or deleted through a link: the folder came with the journal, from wherever that came.
Not    what the bytes mean, or whether the events they were made from are still those of the stream.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from journal import Journal

__all__ = ["CacheKey", "FileCache", "cache_of"]

FORM: Final = b"tlcache1"

ID_BYTES: Final = 16

HEADER_BYTES: Final = len(FORM) + ID_BYTES + 16

MOST_BYTES: Final = 256 << 20
"""A larger result is not kept, and a larger file is none of ours."""

NAME: Final = re.compile(r"([a-z][a-z0-9_-]*)\.(\d{1,20})\.(\d{1,20})")
"""Projection, version, head. A projection that is called otherwise is not kept: its name might lead elsewhere."""


class CacheKey(NamedTuple):
    """What a kept result is of. Another version of the projection, or another head, is another result."""

    projection: str
    version: int
    stream: int
    head: int  # number of events it was made from


class FileCache:
    """Bytes by key, in a folder of files.

    Args:
        folder: Made when something is kept.
        journal_id: Of the journal whose results these are.
    """

    def __init__(self, folder: str | os.PathLike[str], journal_id: bytes) -> None:
        self.folder: Final = Path(folder)
        self.journal_id: Final = journal_id.ljust(ID_BYTES, b"\0")[:ID_BYTES]

    def get(self, key: CacheKey) -> bytes | None:
        """What was kept under this key, whole as it was put; None where nothing is, or it is damaged."""
        data = read_bounded(self.path(key)) if is_name(key) and self.is_own(key.stream) else None
        if data is None or data[:HEADER_BYTES] != self.header(key, memoryview(data)[HEADER_BYTES:]):
            return None
        return data[HEADER_BYTES:]

    def put(self, key: CacheKey, data: bytes) -> None:
        """Keep bytes under a key, where that can be."""
        if not is_name(key) or not self.is_own(key.stream) or len(data) > MOST_BYTES - HEADER_BYTES:
            return
        path = self.path(key)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "xb") as file:
                file.write(self.header(key, data))
                file.write(data)
            os.replace(unfinished, path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()

    def keys(self, stream: int) -> Iterator[CacheKey]:
        """Every key of a stream for which there is a file, in no order."""
        if not self.is_own(stream):
            return
        try:
            names = os.listdir(self.folder / str(stream))
        except OSError:
            return
        for name in names:
            match = NAME.fullmatch(name)
            if match is not None:
                projection, version, head = match.groups()
                yield CacheKey(projection, int(version), stream, int(head))

    def drop(self, key: CacheKey) -> None:
        """Forget what is kept under a key."""
        if is_name(key) and self.is_own(key.stream):
            with suppress(OSError):
                self.path(key).unlink()

    def path(self, key: CacheKey) -> Path:
        return self.folder / str(key.stream) / file_name(key)

    def is_own(self, stream: int) -> bool:
        """Whether the files of a stream lie here, and no link leads elsewhere."""
        return not self.folder.is_symlink() and not (self.folder / str(stream)).is_symlink()

    def header(self, key: CacheKey, data: bytes | memoryview) -> bytes:
        digest = xxhash.xxh3_128(self.journal_id)
        digest.update("\0".join(map(str, key)).encode())
        digest.update(data)
        return FORM + self.journal_id + digest.digest()


def file_name(key: CacheKey) -> str:
    return f"{key.projection}.{key.version}.{key.head}"


def is_name(key: CacheKey) -> bool:
    return NAME.fullmatch(file_name(key)) is not None


def cache_of(journal: Journal) -> FileCache | None:
    """The cache beside a journal; None for one in memory."""
    if journal.path is None or journal.id is None:
        return None
    return FileCache(Path(journal.path) / "cache", journal.id)


def read_bounded(path: Path) -> bytes | None:
    """A file's bytes; None where it is missing, no plain file, or larger than any result that is kept."""
    try:
        # Without waiting: a pipe at this place must not hold the reader.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return None
        with open(file, "rb", closefd=False) as reader:
            return reader.read(found.st_size)
    except OSError:
        return None
    finally:
        os.close(file)
