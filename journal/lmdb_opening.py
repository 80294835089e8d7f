"""Opening LMDB: with as much address space as there is, and when a full table of readers has room again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import lmdb

Sync: TypeAlias = Literal["none", "events", "all"]

MAP_SIZE: Final = 64 << 30
"""Address space asked for; no disk space."""

LEAST_MAP_SIZE: Final = 1 << 30

FULL_SECONDS: Final = 5.0
"""So long a table full of readers is waited for: other users sweep it."""


def once_there_is_room(connect: Callable[[], Any]) -> Any:
    """What ``connect`` opens, tried again while the table of readers is full."""
    deadline = time.monotonic() + FULL_SECONDS
    while True:
        try:
            return connect()
        except lmdb.ReadersFullError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(FULL_SECONDS / 100)


def open_writer(folder: Path, sync: Sync) -> Any:
    """LMDB for writing, with as much address space as the system gives."""
    size = MAP_SIZE
    settings: dict[str, Any] = {
        "max_dbs": 16,
        "subdir": True,
        "sync": sync != "none",
        "metasync": False,
        "writemap": False,
        "map_async": False,
        "max_spare_txns": 0,
        "mode": 0o644,
    }
    if int(lmdb.__version__.split(".")[0]) >= 3:
        settings["lib_version"] = 0  # the file format that every release reads
    while True:
        try:
            return lmdb.open(str(folder), map_size=size, **settings)
        except lmdb.MemoryError:  # noqa: PERF203 - trying is the only way to know
            size //= 2
            if size < LEAST_MAP_SIZE:
                raise


def open_reader(folder: Path) -> Any:
    settings: dict[str, Any] = {"max_dbs": 16, "readonly": True, "create": False, "max_spare_txns": 0}
    try:
        return lmdb.open(str(folder), map_size=0, **settings)  # as much as the writer asked for
    except lmdb.MemoryError:
        return lmdb.open(str(folder), map_size=(folder / "data.mdb").stat().st_size, **settings)
