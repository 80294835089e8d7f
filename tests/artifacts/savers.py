"""Savers that are killed, and what must be found of what they did.

An artifact of version N has payloads whose bytes say N; one that is put together from two would show.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from tests.artifacts.making import load, save, several
from tests.nursery import Job, Teller
from torchlens.tlspec import blobs, staging

SYSTEM: Final = frozenset(("posix", "_io", "fcntl"))
"""Modules in C whose functions may call the system."""

SIZES: Final = (0, 1, 3000, 70_000)


def payloads(version: int) -> list[bytes]:
    return [bytes([version % 251]) * size + str(version).encode() for size in SIZES]


def save_version(path: Path, version: int, *, overwrite: bool) -> None:
    save(path, several(payloads(version)), overwrite=overwrite, fingerprint=str(version), records=payloads(version)[2])


def version_at(path: Path) -> int:
    """The version of an artifact of which everything is there; all of it is read."""
    manifest, found = load(path)
    version = int(manifest.fingerprint or "")
    for number, data in enumerate(payloads(version)):
        assert found.bytes(number) == data
    found.close()
    return version


def small_files(job: Job) -> None:
    """Several payload files in each artifact; and with ``durability="two_steps"`` no exchange, as on other systems."""
    blobs.FILE_BYTES = 60_000  # type: ignore[misc]  # in a process made for it
    if job.durability == "two_steps":
        staging.renameat2 = None  # type: ignore[misc]  # the same


CALLS: Final = [0]


def die_before(limit: int) -> None:
    """Count the calls of functions in C that may call the system, and be killed at the one with this number."""

    def count(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__module__ in SYSTEM and function is not os.fspath:
            CALLS[0] += 1
            if CALLS[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def save_once(job: Job) -> None:
    """Save version ``seed``, over what is there if ``sync`` says so."""
    small_files(job)
    if job.calls is not None:
        die_before(job.calls)
    save_version(Path(job.path), job.seed, overwrite=job.sync == "overwrite")
    sys.setprofile(None)
    Teller(job.said).say("saved", job.seed, CALLS[0])


def save_on_and_on(job: Job) -> None:
    """Save one version after the other over what is there; each is told before and after."""
    small_files(job)
    say = Teller(job.said).say
    for version in range(job.seed, 1 << 30, 2):
        say("saving", version)
        save_version(Path(job.path), version, overwrite=True)
        say("saved", version)
