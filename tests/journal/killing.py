"""Series of kills, and the check of what a killed writer leaves: shared by the crash tests and ``tools/crash.py``.

Rule   what a killed writer leaves is what was appended up to its last commit, or up to the commit it was
       killed in: nothing less, nothing more, nothing torn, every payload whole.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs

from journal import JournalError, LmdbJournal, StreamId, open_for_reading, open_for_writing
from journal.events import BranchTaken, PayloadKept, Stamped
from tests.journal.writers import event_of, payload_of
from tests.nursery import Job, Nursery, Said
from tests.strategies import opened

DURABILITIES: Final = ("close", "batch", "event")
SYNCS: Final = ("events", "all", "none")
MODES: Final = tuple((durability, sync) for durability in DURABILITIES for sync in SYNCS)

WRITERS: Final = "tests.journal.writers"
TRACING: Final = "tests.journal.killed_trace"

PROGRAMS: Final[Mapping[str, str]] = {
    "streams": f"{WRITERS}:write_streams",  # threads that fill several streams, new ones and some of before
    "few": f"{WRITERS}:write_few",  # some calls, one after the other
    "traces": f"{TRACING}:write_traces",  # a loop of captures
}
"""What a killed writer may run."""

Mark: TypeAlias = Literal["start", "opened", "closing", "closed"]
"""What the writer has just done when the time to its death begins."""

MARKS: Final[tuple[Mark, ...]] = ("start", "opened", "closing", "closed")

# The check -----------------------------------------------------------------------------------------------


@attrs.define
class Tally:
    """What a series of kills came to."""

    kills: int = 0
    events: int = 0  # found at each check, together
    between: int = 0  # kills that hit no commit
    lost: int = 0  # kills within a commit that is not there
    kept: int = 0  # kills within a commit that is there
    unmade: int = 0  # kills before there was a journal

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return Tally(*(a + b for a, b in zip(mine, theirs, strict=True)))


def check(path: str, said: Sequence[Said], before: int, tally: Tally) -> int:
    """Hold what a killed writer left against what it said; the number of events that are there.

    Args:
        path: The journal.
        said: What the writer said.
        before: How many events the journal had when the writer began.
        tally: Where the kill is counted.
    """
    tally.kills += 1
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
        tally.unmade += 1
        return 0
    try:
        found = check_events(reading)
        heads = {int(info.stream): info.head for info in reading.streams()}
    finally:
        reading.close()
    assert found in (reached, tried), f"{found} events, where a commit ended at {reached} or {tried}"
    assert {stream: head for stream, head in told.items() if heads.get(stream, 0) < head} == {}
    tally.events += found
    if reached == tried:
        tally.between += 1
    else:
        tally.kept += found == tried
        tally.lost += found == reached
    return found


def check_events(one: LmdbJournal, *, is_written: bool = False) -> int:
    """Everything that is there is whole and in order; the number of events.

    Where somebody writes meanwhile, streams are listed one after the other, and later ones may have events that came
    after some which an earlier one did not have yet: what is without gaps then is all events from the first one.
    """
    seqs: list[int] = []
    for info in one.streams():
        stamped = list(one.events(info.stream, 0, info.head))
        assert [each.at for each in stamped] == list(range(info.head))
        seqs.extend(each.seq for each in stamped)
        assert info.opened.label is not None
        if info.opened.label.startswith("trace"):
            continue  # what it holds is another check's
        check_stream(one, info.stream, info.opened.label, stamped)
    if is_written:
        assert len(set(seqs)) == len(seqs)
        seqs = [each.seq for each in one.since(0)]
    assert sorted(seqs) == list(range(len(seqs)))
    return len(seqs)


def check_stream(one: LmdbJournal, stream: StreamId, label: str, stamped: Sequence[Stamped]) -> None:
    """What each thread appended is there from its first event to some last one, each with its payload."""
    assert stamped[0].event == opened(label)
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
    nursery: Nursery, folder: Path, program: str, durability: str, sync: str, *, kills: int, seed: int
) -> Tally:
    """Kill one writer after another at random moments, several at one journal before the next is begun.

    Args:
        program: "streams" or "traces", of ``PROGRAMS``.
    """
    chance = random.Random(f"{program}/{durability}/{sync}/{seed}")
    total = Tally()
    longest = {"start": 0.02, "opened": 0.08, "closing": 0.01, "closed": 0.01}
    found, rounds = 0, 0
    path = folder / f"{program}-{durability}-{sync}-0.journal"
    for number in range(kills):
        if rounds == 0:
            found, rounds = 0, chance.randrange(1, 7)
            path = folder / f"{program}-{durability}-{sync}-{number}.journal"
        rounds -= 1
        mark = chance.choice(MARKS) if number else "closed"  # so that there is something to find
        job = Job(str(path), f"{path}.said", PROGRAMS[program], durability, sync, seed=chance.randrange(1 << 30))
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
) -> Tally:
    """Kill the writer of a few calls before its first call into C, its second, and so on.

    Args:
        points: So many of them, spread evenly; None for all.
    """
    total = Tally()
    for limit in limits_of(nursery, folder, durability, sync, points):
        path = folder / f"{durability}-{sync}-{limit}.journal"
        child = nursery.start(Job(str(path), f"{path}.said", PROGRAMS["few"], durability, sync, seed, calls=limit))
        status = child.wait()
        assert status in (0, -signal.SIGKILL)
        if status == 0:  # it had fewer calls this time
            continue
        found = check(str(path), child.said(), 0, total)
        check_reopening(str(path), found)
    return total


def limits_of(nursery: Nursery, folder: Path, durability: str, sync: str, points: int | None) -> Iterator[int]:
    path = folder / f"{durability}-{sync}-whole.journal"
    child = nursery.start(Job(str(path), f"{path}.said", PROGRAMS["few"], durability, sync, 0, calls=1 << 40))
    assert child.wait() == 0
    (count,) = child.said()[-1].numbers
    step = 1 if points is None else max(1, count // points)
    yield from range(1, count, step)
