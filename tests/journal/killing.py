"""A writer that is killed, and the check of what it leaves: shared by the crash tests and ``tools/crash.py``.

The writer runs in a process forked off a ``Nursery``, which has imported everything once. It appends what can be
made again from its name and number, and says in a file beside the journal what it does: before each commit how
far the commit will reach, after it that it did, and what a caller was told. A file written to outlives its
writer, so what was said before a SIGKILL is known.

Rule   what a killed writer leaves is what was appended up to its last commit, or up to the commit it was
       killed in: nothing less, nothing more, nothing torn, every payload whole.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Final, Literal, TypeAlias

import attrs

import journal.environment
import journal.flushing
import journal.payloads
from journal import JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.environment import Environment
from journal.events import BranchTaken, Event, PayloadKept, Stamped, StreamOpened, Value
from journal.stream_writer import Writer

ROOT: Final = Path(__file__).parents[2]

DURABILITIES: Final = ("close", "batch", "event")
SYNCS: Final = ("events", "all", "none")
MODES: Final = tuple((durability, sync) for durability in DURABILITIES for sync in SYNCS)

Program: TypeAlias = str
"""What the writer runs: "streams", threads that fill several; "few", some calls one after the other; "traces", a loop
of captures; or any function that takes the job, as "module:function"."""

Mark: TypeAlias = Literal["start", "opened", "closing", "closed"]
"""What the writer has just done when the time to its death begins."""

MARKS: Final[tuple[Mark, ...]] = ("start", "opened", "closing", "closed")

# What is appended, made again from where it stands ---------------------------------------------------


def header(label: str) -> StreamOpened:
    return StreamOpened(
        kind="capture",
        label=label,
        tags=(),
        parent=None,
        branched_at=None,
        wall_time_ns=0,
        written_by="0.1.0",
        environment=(),
    )


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


# The writer -------------------------------------------------------------------------------------------


@attrs.frozen
class Job:
    """What a writer does."""

    path: str
    said: str  # the file in which it says what it does
    program: Program
    durability: str
    sync: str
    seed: int
    calls: int | None = None  # it kills itself before this call into C


class Teller:
    """Says in a file what was done, a line each, with the time."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, word: str, *numbers: int) -> None:
        os.write(self.file, f"{' '.join([word, str(time.monotonic_ns()), *map(str, numbers)])}\n".encode())

    def of_commits(self) -> None:
        """Say of every commit, whoever makes it, how far it is to reach, and that it has."""
        commit = Environment.commit

        def told(environment: Environment, sealing: bool = False) -> None:
            with environment.lock:
                end = environment.waiting.end_seq()
                if end:
                    self.say("committing", end)
                commit(environment, sealing)
                if end:
                    self.say("committed", end)

        Environment.commit = told  # type: ignore[method-assign]  # in a process made for it


def run(job: Job) -> None:
    if ":" in job.program:
        home, name = job.program.split(":")
        getattr(importlib.import_module(home), name)(job)
        return
    teller = Teller(job.said)
    teller.of_commits()
    set_limits(SEGMENT_BYTES=1 << 20)
    if job.calls is not None:
        die_before(job.calls, teller)
    if job.program == "traces":
        from tests.journal.killed_trace import write_traces  # loads torch

        write_traces(job, teller.say)
    elif job.program == "few":
        write_few(job, teller.say)
    else:
        set_limits(COMMIT_ROWS=100, COMMIT_SECONDS=0.01)
        write_streams(job, teller.say)
    if job.calls is not None:
        sys.setprofile(None)
        teller.say("calls", CALLS[0])


def set_limits(**limits: float) -> None:
    """Small ones, so that segments roll and commits fall due all the time."""
    for name, value in limits.items():
        homes = (journal.payloads, journal.environment, journal.flushing)
        home = next(module for module in homes if hasattr(module, name))
        setattr(home, name, value)


CALLS: Final = [0]


def die_before(limit: int, teller: Teller) -> None:
    """Count this thread's calls into C, and be killed at the one with this number."""

    def count(_frame: object, event: str, _function: object) -> None:
        if event == "c_call":
            CALLS[0] += 1
            if CALLS[0] == limit:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def write_streams(job: Job, say: Callable[..., None]) -> None:
    """Without end: open the journal, fill some streams from two threads each, close it."""
    chance = random.Random(job.seed)
    for number in range(1 << 30):
        one = open_for_writing(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
        say("opened")
        writers = [one.open_stream(header(f"{job.seed}.{number}.{k}")) for k in range(chance.randrange(1, 4))]
        threads = [
            Thread(target=act, args=(writer, chance.randrange(5, 150), chance.randrange(1 << 30), say), daemon=True)
            for writer in writers
            for act in (fill, helped)
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


def fill(writer: Writer, count: int, seed: int, say: Callable[..., None]) -> None:
    chance = random.Random(seed)
    for number in range(count):
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


def helped(writer: Writer, count: int, seed: int, say: Callable[..., None]) -> None:
    """As a hook does on a thread of its own: appends, and leaves the flushing to the other."""
    for number in range(count):
        append(writer, 1, number)


def append(writer: Writer, thread: int, number: int) -> None:
    assert writer.opened.label is not None
    kept = writer.keep(payload_of(writer.opened.label, thread, number)) if has_payload(number) else None
    writer.pending.append(event_of(thread, number, kept).row(number))


def write_few(job: Job, say: Callable[..., None]) -> None:
    """Everything a journal does, once or twice: made, filled over several segments, sealed, opened again, joined."""
    for number in range(2):
        one = open_for_writing(job.path, durability=job.durability, sync=job.sync)  # type: ignore[arg-type]
        say("opened")
        writers = [one.open_stream(header(f"{job.seed}.{number}.{k}")) for k in range(2)]
        for event in range(10):
            for writer in writers:
                append(writer, 0, event)
                writer.flush()
        writers[0].commit()
        say("told", writers[0].stream, writers[0].next_at())
        for event in range(10, 14):
            append(writers[1], 0, event)
        other = open_for_writing(job.path, durability="close", sync="all")
        other.open_stream(header(f"{job.seed}.{number}.2")).close()
        other.close()
        say("closing")
        one.close()
        say("closed")


# The process that forks them off -----------------------------------------------------------------------


def serve() -> None:
    """A job a line: the number of the process it runs in. A number a line: how that process ended."""
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(run_alone(Job(**asked)))
        print(answer, flush=True)  # noqa: T201 - the answer


def run_alone(job: Job) -> int:
    """A job in a process of its own; its exit status."""
    try:
        run(job)
    except BaseException:  # noqa: BLE001  # told, and then the process ends
        traceback.print_exc()
        return 1
    return 0


class Nursery:
    """Forks writers off. Closing it ends those that still run.

    Args:
        torch: Whether they are to trace models: then torch is imported once, here.
    """

    def __init__(self, *, torch: bool = False) -> None:
        warm = "import torch, torchlens.api\n" if torch else ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.journal import killing\n{warm}killing.serve()"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running: set[int] = set()

    def ask(self, question: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the nursery has ended; its standard error says why"
        return int(answer)

    def start(self, job: Job) -> Child:
        Path(job.said).unlink(missing_ok=True)
        child = Child(self, job, self.ask(attrs.asdict(job)))
        self.running.add(child.pid)
        return child

    def close(self) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@attrs.frozen
class Said:
    """One thing a writer said."""

    word: str
    time_ns: int
    numbers: tuple[int, ...]


class Child:
    """A writer that runs, or ran."""

    def __init__(self, nursery: Nursery, job: Job, pid: int) -> None:
        self.nursery = nursery
        self.job = job
        self.pid = pid

    def said(self) -> list[Said]:
        try:
            lines = Path(self.job.said).read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        parts = [line.split() for line in lines if line.endswith("\n")]
        return [Said(word, int(moment), tuple(map(int, numbers))) for word, moment, *numbers in parts]

    def wait_for(self, *words: str, after: int = 0) -> int:
        """Wait until one of these was said, as the ``after``-th thing or later; how many things were said by then."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            said = self.said()
            if any(one.word in words for one in said[after:]):
                return len(said)
            time.sleep(0.0005)
        raise AssertionError(f"the writer did not come to {words}: {self.said()[-3:]}")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Exit status, negative for a signal."""
        self.nursery.running.discard(self.pid)
        return self.nursery.ask(self.pid)


# The check -----------------------------------------------------------------------------------------------


@attrs.define
class Findings:
    """What a series of kills came to."""

    kills: int = 0
    events: int = 0  # found at each check, together
    between: int = 0  # kills that hit no commit
    lost: int = 0  # kills within a commit that is not there
    kept: int = 0  # kills within a commit that is there
    unmade: int = 0  # kills before there was a journal

    def __add__(self, other: Findings) -> Findings:
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return Findings(*(a + b for a, b in zip(mine, theirs, strict=True)))


def check(path: str, said: Sequence[Said], before: int, findings: Findings) -> int:
    """Hold what a killed writer left against what it said; the number of events that are there.

    Args:
        path: The journal.
        said: What the writer said.
        before: How many events the journal had when the writer began.
        findings: Where the kill is counted.
    """
    findings.kills += 1
    reached = max((one.numbers[0] for one in said if one.word == "committed"), default=before)
    tried = max((one.numbers[0] for one in said if one.word == "committing"), default=before)
    told: dict[int, int] = {}
    for one in said:
        if one.word == "told":
            told[one.numbers[0]] = max(one.numbers[1], told.get(one.numbers[0], 0))
    try:
        reading = open_for_reading(path)
    except JournalError as refused:
        if reached or refused.code not in ("journal_not_found", "journal_not_a_journal"):
            raise
        findings.unmade += 1
        return 0
    try:
        found = check_events(reading)
        heads = {int(info.stream): info.head for info in reading.streams()}
    finally:
        reading.close()
    assert found in (reached, tried), f"{found} events, where a commit ended at {reached} or {tried}"
    assert {stream: head for stream, head in told.items() if heads.get(stream, 0) < head} == {}
    findings.events += found
    if reached == tried:
        findings.between += 1
    else:
        findings.kept += found == tried
        findings.lost += found == reached
    return found


def check_events(one: LmdbJournal) -> int:
    """Everything that is there is whole and in order; the number of events."""
    seqs: list[int] = []
    for info in one.streams():
        stamped = list(one.events(info.stream, 0, info.head))
        assert [each.at for each in stamped] == list(range(info.head))
        seqs.extend(each.seq for each in stamped)
        assert info.opened.label is not None
        if info.opened.label.startswith("trace"):
            continue  # what it holds is another check's
        check_stream(one, info.stream, info.opened.label, stamped)
    assert sorted(seqs) == list(range(len(seqs)))
    return len(seqs)


def check_stream(one: LmdbJournal, stream: StreamId, label: str, stamped: Sequence[Stamped]) -> None:
    """What each thread appended is there from its first event to some last one, each with its payload."""
    assert stamped[0].event == header(label)
    next_number: Counter[int] = Counter()
    named: set[int] = set()
    for each in stamped[1:]:
        event = each.event
        if isinstance(event, PayloadKept):
            payload, thread, _ = event.payload
            number = int(event.value)
            assert payload not in named
            named.add(payload)
            assert bytes(one.payload(stream, payload)) == payload_of(label, thread, number)
        else:
            assert isinstance(event, BranchTaken)
            payload, thread, number = None, event.site, int(event.value)
        assert number == next_number[thread]
        assert event == event_of(thread, number, payload)
        next_number[thread] += 1


def check_reopening(path: str, found: int) -> None:
    """The next writer is let in, cuts off what no commit names, and goes on where the last commit ended."""
    one = open_for_writing(path)
    with one.environment.reading() as txn:
        next_seq, segment, length, _ = one.environment.last_commit(txn)
    assert next_seq == found
    files = sorted(Path(path, "segments").glob("*.seg"))
    assert all(int(file.stem) <= segment for file in files)
    if files and int(files[-1].stem) == segment:
        assert files[-1].stat().st_size == length
    one.close()


# Series of kills -------------------------------------------------------------------------------------------


def kill_at_random(
    nursery: Nursery, folder: Path, program: Program, durability: str, sync: str, *, kills: int, seed: int
) -> Findings:
    """Kill one writer after another at random moments, several at one journal before the next is begun."""
    chance = random.Random(f"{program}/{durability}/{sync}/{seed}")
    total = Findings()
    longest = {"start": 0.02, "opened": 0.08, "closing": 0.01, "closed": 0.01}
    found, rounds = 0, 0
    path = folder / f"{program}-{durability}-{sync}-0.journal"
    for number in range(kills):
        if rounds == 0:
            found, rounds = 0, chance.randrange(1, 7)
            path = folder / f"{program}-{durability}-{sync}-{number}.journal"
        rounds -= 1
        mark = chance.choice(MARKS) if number else "closed"  # so that there is something to find
        job = Job(str(path), f"{path}.said", program, durability, sync, seed=chance.randrange(1 << 30))
        child = nursery.start(job)
        if mark != "start":
            child.wait_for(mark)
        time.sleep(chance.uniform(0, longest[mark]))
        child.kill()
        said = child.said()
        for begun, ended in itertools.pairwise(said):
            if begun.word == "closing" or (begun.word == "closed" and ended.word == "opened"):
                longest[begun.word] = max(longest[begun.word], (ended.time_ns - begun.time_ns) / 1e9)
        found = check(str(path), said, found, total)
        if program == "traces":
            from tests.journal.killed_trace import check_traces  # loads torch

            check_traces(str(path), durability, said)
        if chance.random() < 0.5:
            check_reopening(str(path), found)
    return total


def kill_at_calls(
    nursery: Nursery, folder: Path, durability: str, sync: str, *, points: int | None, seed: int
) -> Findings:
    """Kill the writer of a few calls before its first call into C, its second, and so on.

    Args:
        points: So many of them, spread evenly; None for all.
    """
    total = Findings()
    for limit in limits_of(nursery, folder, durability, sync, points):
        path = folder / f"{durability}-{sync}-{limit}.journal"
        child = nursery.start(Job(str(path), f"{path}.said", "few", durability, sync, seed, calls=limit))
        status = child.wait()
        assert status in (0, -signal.SIGKILL)
        if status == 0:  # it had fewer calls this time
            continue
        found = check(str(path), child.said(), 0, total)
        check_reopening(str(path), found)
    return total


def limits_of(nursery: Nursery, folder: Path, durability: str, sync: str, points: int | None) -> Iterator[int]:
    path = folder / f"{durability}-{sync}-whole.journal"
    child = nursery.start(Job(str(path), f"{path}.said", "few", durability, sync, 0, calls=1 << 40))
    assert child.wait() == 0
    (count,) = child.said()[-1].numbers
    step = 1 if points is None else max(1, count // points)
    yield from range(1, count, step)
