"""A journal of a million events and many gigabytes of payloads: appended, verified, read again.

    python tools/bench_scale.py [--events 1000000] [--gigabytes 20] [--folder DIR]

Each step runs in a process of its own, which tells how long it took and the most memory that it had to itself
(pages of mapped files, which the system may take back, are not counted). The payloads are one block stamped with
a number. The journal is written below a temporary folder and removed. Neither torch nor a model is needed.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from journal import StreamId, open_for_reading, open_for_writing  # noqa: E402 (this tree's, also where it is not installed)
from journal.events import PayloadKept, StreamOpened  # noqa: E402 (the same)
from journal.integrity import verify  # noqa: E402 (the same)

MIB: Final = 1 << 20
BLOCK_BYTES: Final = 4 * MIB
READS: Final = 200


class Watch:
    """The most memory that this process had to itself while it was watched."""

    def __init__(self) -> None:
        self.most = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def run(self) -> None:
        while not self.done.wait(0.05):
            self.most = max(self.most, anonymous(Path("/proc/self/status").read_text()))


def anonymous(status: str) -> int:
    """Bytes of RssAnon in a status file of /proc."""
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def append(path: str, events: int, payloads: int) -> dict[str, Any]:
    """Streams of events, some of which name a payload."""
    journal = open_for_writing(path)
    every = max(1, events // max(1, payloads))
    block = bytearray(random.Random(0).randbytes(BLOCK_BYTES))
    opened = StreamOpened(
        kind="capture",
        label=None,
        tags=(),
        parent=None,
        branched_at=None,
        wall_time_ns=0,
        written_by="0.1.0",
        environment=(),
    )
    count = kept = 0
    while count < events:
        writer = journal.open_stream(opened, 0)
        count += 1
        for number in range(min(events - count, 250_000)):
            payload = None
            if kept < payloads and number % every == 0:
                block[:8] = kept.to_bytes(8, "little")
                payload = writer.keep(block)
                kept += 1
            writer.pending.append(PayloadKept(value=number, payload=(payload or 0, 0, None)).row(number))
            if len(writer.pending) >= writer.chunk_size:
                writer.flush()
            count += 1
        writer.close()
    journal.close()
    return {"events": count, "bytes": kept * BLOCK_BYTES}


def check(path: str, events: int, payloads: int) -> dict[str, Any]:
    report = verify(path)
    if not report.ok:
        raise SystemExit(f"damaged: {report.damages[:3]}")
    return {"events": report.events, "bytes": report.payload_bytes}


def reopen(path: str, events: int, payloads: int) -> dict[str, Any]:
    journal = open_for_reading(path)
    streams = journal.streams()
    journal.close()
    return {"events": sum(info.head for info in streams), "bytes": 0}


def read(path: str, events: int, payloads: int) -> dict[str, Any]:
    """Every row in order, then payloads at random."""
    journal = open_for_reading(path)
    count = sum(len(rows) for info in journal.streams() for rows in journal.rows(info.stream))
    moments = random.Random(1)
    nbytes = 0
    for _ in range(READS if payloads else 0):
        stream = StreamId(moments.randrange(len(journal.streams())))
        end = journal.shelf.places(stream).end
        if end:
            nbytes += len(journal.payload(stream, moments.randrange(end)))
    journal.close()
    return {"events": count, "bytes": nbytes}


STEPS: Final[dict[str, Callable[[str, int, int], dict[str, Any]]]] = {
    "append": append,
    "reopen": reopen,
    "read": read,
    "verify": check,
}


def run(name: str, path: str, events: int, payloads: int) -> dict[str, Any]:
    """One step in this process."""
    with Watch() as watch:
        start = time.perf_counter()
        done = STEPS[name](path, events, payloads)
        seconds = time.perf_counter() - start
    return {**done, "seconds": seconds, "memory": watch.most}


def main() -> None:
    asked = argparse.ArgumentParser(description="Append, verify and reopen a large journal.")
    asked.add_argument("--events", type=int, default=1_000_000)
    asked.add_argument("--gigabytes", type=float, default=20.0, help="of payloads")
    asked.add_argument("--folder", type=Path, help="where to write it; a temporary folder by default")
    asked.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked.add_argument("--path", help=argparse.SUPPRESS)
    given = asked.parse_args()
    payloads = int(given.gigabytes * 1e9 / BLOCK_BYTES)
    if given.step:
        print(json.dumps(run(given.step, given.path, given.events, payloads)))
        return
    table = Table("step", "seconds", "events a second", "MB a second", "own memory, MB", box=None)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = str(Path(folder) / "large.journal")
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, "--path", path, "--events", str(given.events)]
            command += ["--gigabytes", str(given.gigabytes)]
            done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            seconds = done["seconds"]
            table.add_row(
                step,
                f"{seconds:.3f}",
                f"{done['events'] / seconds:,.0f}",
                f"{done['bytes'] / seconds / 1e6:,.0f}" if done["bytes"] else "-",
                f"{done['memory'] / 1e6:,.0f}",
            )
        size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    Console().print(table)
    print(f"{given.events:,} events, {size / 1e9:.2f} GB on disk")


if __name__ == "__main__":
    main()
