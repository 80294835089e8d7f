"""Damages a journal byte by byte, in a process of its own that may die of it.

    python -m tests.journal.damaging DIRECTORY < changes > findings

A change is a line of JSON: ``[file, offset, bit]`` flips a bit, ``[file, length, null]`` cuts the file. It is made in
place, the journal is scanned, and what the file held is put back. The answer is the codes that the scan found, or,
where it found none, the digest of all that the journal says.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from journal import JournalError
from journal.damages import Damages
from journal.scan import scan
from tests.journal.small import all_of
from tests.programs import surroundings

Change: TypeAlias = tuple[str, int, "int | None"]

SECONDS = 20
"""No scan of a journal this small takes as long."""


def codes_of(path: Path) -> list[str]:
    """The codes of what a scan in this process finds."""
    told: list[Any] = []
    scan(path, Damages(told.append))
    damages = [part["code"] for word, part, *_ in told if word == "damage"]
    return damages + [part for word, part, *_ in told if word == "refused"]


@contextmanager
def changed(path: Path, change: Change) -> Iterator[None]:
    name, place, bit = change
    file = path / name
    before = file.read_bytes()
    after = bytearray(before)
    if bit is None:
        del after[place:]
    else:
        after[place] ^= 1 << bit
    with file.open("r+b") as there:  # in place: a copy of the file would cost more than the scan
        there.write(after)
        there.truncate()
    try:
        yield
    finally:
        with file.open("r+b") as there:
            there.write(before)
            there.truncate()


def main(path: Path) -> None:
    for line in sys.stdin:
        with changed(path, json.loads(line)):
            codes = codes_of(path)
            said = None
            if not codes:
                try:
                    said = all_of(path)
                except JournalError as exc:
                    said = exc.code
        sys.stdout.write(json.dumps([codes, said]) + "\n")
        sys.stdout.flush()


def outcomes(path: Path, changes: Sequence[Change]) -> Iterator[tuple[Change, list[str], str | None]]:
    """Each change, with the codes that its scan found and, where there were none, what the journal then said."""
    worker: subprocess.Popen[str] | None = None
    try:
        for change in changes:
            before = (path / change[0]).read_bytes()
            if worker is None:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "tests.journal.damaging", str(path)],
                    env=surroundings(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps(change) + "\n")
            worker.stdin.flush()
            ready = select.select([worker.stdout], [], [], SECONDS)[0]
            line = worker.stdout.readline() if ready else ""
            if line:
                yield (change, *json.loads(line))
                continue
            end(worker)
            yield change, [f"ended by signal {-worker.returncode}" if ready else "did not end"], None
            worker = None
            (path / change[0]).write_bytes(before)
    finally:
        if worker is not None:
            end(worker)


def end(worker: subprocess.Popen[str]) -> None:
    with worker:  # which closes its pipes and waits
        worker.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
