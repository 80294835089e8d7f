"""Readers in processes that have little memory."""

from __future__ import annotations

import resource
from pathlib import Path

from journal.errors import TorchLensError
from tests.artifacts.making import load
from tests.nursery import Job


def address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def read_in_little_memory(job: Job) -> None:
    """Load every artifact in a folder and read all of it, with ``seed`` MiB beside what this process has; write what
    came of each, a line with its name and a code."""
    limit = address_space() + (job.seed << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    lines = [f"{path.name} {outcome(path)}" for path in sorted(Path(job.path).iterdir())]
    Path(job.said).write_text("".join(f"{line}\n" for line in lines))


def outcome(path: Path) -> str:
    try:
        manifest, found = load(path)
        for row in manifest.body_index:
            found.bytes(row.number)
    except TorchLensError as exc:
        return exc.code
    return "read"
