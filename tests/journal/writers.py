"""Writers that are killed. Each is a job of a ``Nursery``, and says what it does as it does it.

It appends what can be made again from its name and number, and says before each commit how far the commit will
reach, after it that it did, and what a caller was told. What it leaves is checked by ``killing.py``.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from threading import Thread
from typing import Final

import journal.environment
import journal.flushing
import journal.payloads
from journal import LmdbJournal, StreamId, open_for_writing
from journal.environment import Environment
from journal.events import BranchTaken, Event, PayloadKept, Value
from journal.stream_writer import Writer
from tests.nursery import Job, Teller
from tests.strategies import opened

# What is appended, made again from where it stands ---------------------------------------------------


def payload_of(label: str, thread: int, number: int) -> bytes:
    """From no bytes to three megabytes; most are small."""
    name = f"{label}/{thread}/{number}".encode()
    digest = hashlib.sha256(name).digest()
    largest = (300, 300, 300, 40_000, 40_000, 300_000, 300_000, 3 << 20)[digest[0] % 8]
    if largest == 3 << 20 and digest[1] % 4:
        largest = 300
    size = int.from_bytes(digest[2:6], "little") % (largest + 1)
    return (digest * (size // len(digest) + 1))[:size]


def has_payload(number: int) -> bool:
    return number % 3 != 2


def event_of(thread: int, number: int, payload: int | None) -> Event:
    if payload is None:
        return BranchTaken(value=number, result=number % 2 == 0, site=thread, call=number + thread)
    return PayloadKept(value=Value(number), payload=(payload, thread, None))


def thread_of(event: Event) -> int:
    if isinstance(event, PayloadKept):
        return event.payload[1]
    assert isinstance(event, BranchTaken)
    return event.site


# The writers ------------------------------------------------------------------------------------------


def telling(job: Job) -> Callable[..., None]:
    """Small segments, and every commit told of from now on; the way to tell more."""
    say = Teller(job.said).say
    set_limits(SEGMENT_BYTES=1 << 20)
    commit = Environment.commit

    def told(environment: Environment, sealing: bool = False) -> None:
        with environment.lock:
            end = environment.waiting.end_seq()
            if end:
                say("committing", end)
            commit(environment, sealing)
            if end:
                say("committed", end)

    Environment.commit = told  # type: ignore[method-assign]  # in a process made for it
    return say


def set_limits(**limits: float) -> None:
    """Small ones, so that segments roll and commits fall due all the time."""
    for name, value in limits.items():
        homes = (journal.payloads, journal.environment, journal.flushing)
        home = next(module for module in homes if hasattr(module, name))
        setattr(home, name, value)


CALLS: Final = [0]


def die_before(limit: int) -> None:
    """Count this thread's calls into C, and be killed at the one with this number."""

    def count(_frame: object, event: str, _function: object) -> None:
        if event == "c_call":
            CALLS[0] += 1
            if CALLS[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def write_streams(job: Job) -> None:
    """Without end: open the journal, fill new streams and some of before from two threads each, close it."""
    say = telling(job)
    set_limits(COMMIT_ROWS=100, COMMIT_SECONDS=0.01)
    chance = random.Random(job.seed)
    for number in range(1 << 30):
        one = open_for_writing(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
        say("opened")
        before = [info.stream for info in one.streams()]
        writers = [one.open_stream(opened(f"{job.seed}.{number}.{k}")) for k in range(chance.randrange(1, 4))]
        writers += [one.continue_stream(stream) for stream in chance.sample(before, min(2, len(before)))]
        threads = [
            Thread(target=act, args=(writer, numbers, chance.randrange(1 << 30), say), daemon=True)
            for writer in writers
            for act, numbers in zip((fill, helped), next_numbers(one, writer.stream, chance), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for writer in writers[1:]:
            writer.close()
            say("told", writer.stream, writer.next_at())
        say("closing")  # one stream is left to it
        one.close()
        say("closed")


def next_numbers(one: LmdbJournal, stream: StreamId, chance: random.Random) -> list[range]:
    """What each of the two threads appends next to a stream."""
    there = Counter(thread_of(stamped.event) for stamped in one.events(stream, 1))
    return [range(there[thread], there[thread] + chance.randrange(5, 150)) for thread in range(2)]


def fill(writer: Writer, numbers: range, seed: int, say: Callable[..., None]) -> None:
    chance = random.Random(seed)
    for number in numbers:
        append(writer, 0, number)
        if writer.durability == "event":
            head = writer.next_at()
            writer.flush()
            say("told", writer.stream, head)
        elif chance.random() < 0.05:
            head = writer.next_at()
            writer.commit()
            say("told", writer.stream, head)
        elif len(writer.pending) >= 16:
            writer.flush()


def helped(writer: Writer, numbers: range, seed: int, say: Callable[..., None]) -> None:
    """As a hook does on a thread of its own: appends, and leaves the flushing to the other."""
    for number in numbers:
        append(writer, 1, number)


def append(writer: Writer, thread: int, number: int) -> None:
    assert writer.opened.label is not None
    kept = writer.keep(payload_of(writer.opened.label, thread, number)) if has_payload(number) else None
    writer.pending.append(event_of(thread, number, kept).row(number))


def write_few(job: Job) -> None:
    """Everything a journal does, once or twice: made, filled over several segments, sealed, opened again, joined, and a
    stream of before gone on with."""
    say = telling(job)
    if job.calls is not None:
        die_before(job.calls)
    for number in range(2):
        one = open_for_writing(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
        say("opened")
        writers = [one.open_stream(opened(f"{job.seed}.{number}.{k}")) for k in range(2)]
        for event in range(10):
            for writer in writers:
                append(writer, 0, event)
                writer.flush()
        writers[0].commit()
        say("told", writers[0].stream, writers[0].next_at())
        for event in range(10, 14):
            append(writers[1], 0, event)
        other = open_for_writing(job.path, durability="close", sync="all")
        other.open_stream(opened(f"{job.seed}.{number}.2")).close()
        other.close()
        if number:
            again = one.continue_stream(StreamId(0))
            for event in range(10, 14):
                append(again, 0, event)
            again.close()
            say("told", again.stream, again.next_at())
        say("closing")
        one.close()
        say("closed")
    if job.calls is not None:
        sys.setprofile(None)
        say("calls", CALLS[0])
