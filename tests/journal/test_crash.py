"""A writer killed at any point: what was committed is there, in order, with its payloads, and the next may write.

The child appends streams whose event ``k`` names payload ``k``, and tells its parent how many events of
which stream a commit has covered. The parent kills it with SIGKILL, which no code of ours can answer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal import JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.events import PayloadKept
from tests.strategies import opened, payload_bytes

ROOT = Path(__file__).parents[2]
KILLS = 6  # a mode

CHILD = """
import sys
from journal import open_for_writing
from journal.events import PayloadKept
from tests.strategies import opened, payload_bytes

path, durability, sync = sys.argv[1:]
journal = open_for_writing(path, durability=durability, sync=sync)
while True:
    writer = journal.open_stream(opened())
    for number in range(400):
        assert writer.keep(payload_bytes(number)) == number
        at = writer.next_at()
        writer.pending.append(PayloadKept(value=number, payload=(number, 0, None)).row(number))
        if len(writer.pending) >= min(writer.chunk_size, 16):
            writer.flush()
        if durability == "event":
            print(writer.stream, at + 1, flush=True)
        elif number % 50 == 49:
            writer.commit()
            print(writer.stream, writer.next_at(), flush=True)
    writer.close()
    print(writer.stream, 401, flush=True)
"""


@contextmanager
def child(path: Path, durability: str = "batch", sync: str = "events") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), durability, sync],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def check(journal: LmdbJournal, acknowledged: dict[int, int]) -> int:
    """Everything acknowledged is there, and whatever is there is whole. Gives the number of events."""
    heads = {int(info.stream): info.head for info in journal.streams()}
    for stream, head in acknowledged.items():
        assert heads[stream] >= head
    seqs: list[int] = []
    for stream, head in heads.items():
        stamped = list(journal.events(StreamId(stream), 0, head))
        assert [one.at for one in stamped] == list(range(head))
        assert stamped[0].event == opened()
        seqs.extend(one.seq for one in stamped)
        for number, one in enumerate(stamped[1:]):
            assert one.event == PayloadKept(value=number, payload=(number, 0, None))
            assert bytes(journal.payload(StreamId(stream), number)) == payload_bytes(number)
    assert sorted(seqs) == list(range(len(seqs)))
    return len(seqs)


@pytest.mark.parametrize(("durability", "sync"), [("event", "none"), ("batch", "events"), ("close", "all")])
def test_a_killed_writer_loses_nothing_it_had_committed(tmp_path: Path, durability: str, sync: str) -> None:
    path = tmp_path / "run.journal"
    acknowledged: dict[int, int] = {}
    total = 0
    moments = random.Random(7)
    for _ in range(KILLS):
        with child(path, durability, sync) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]  # it has begun to commit
            time.sleep(moments.uniform(0, 0.08))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith("\n"):
                    stream, head = map(int, line.split())
                    acknowledged[stream] = head
        reading = open_for_reading(path)
        found = check(reading, acknowledged)
        reading.close()
        assert found > total
        total = found
    writing = open_for_writing(path)  # the lease is free, and the next stream follows on
    writer = writing.open_stream(opened())
    assert next(iter(writing.events(writer.stream))).seq == total
    assert check(writing, acknowledged) == total + 1
    writing.close()


def test_a_second_writing_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with child(path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(JournalError) as refused:
            open_for_writing(path)
        assert refused.value.code == "journal_locked"
        assert refused.value.fields["holder"] == process.pid
        assert str(process.pid) in str(refused.value)
        reading = open_for_reading(path)
        with pytest.raises(JournalError) as refused:
            open_for_writing(path)
        assert refused.value.code == "journal_locked"
        assert reading.streams()
        process.kill()
        process.wait()
        open_for_writing(path).close()
        reading.close()


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with child(path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reading = open_for_reading(path)
        heads = []
        for _ in range(5):
            heads.append(check(reading, {}))
            process.stdout.readline()
        assert heads == sorted(heads)
        assert heads[-1] > heads[0]
        reading.close()
