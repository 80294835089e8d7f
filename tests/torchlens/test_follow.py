"""A journal is followed while another process writes it: everything arrives, in order, within a second."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import lmdb
import pytest
import torch
from torch import nn

import torchlens as tl
from journal import JournalError, Stamped, StreamId, open_for_reading, open_for_writing
from journal.events import BranchTaken, CaptureSettled
from journal.following import follow
from tests.programs import PATIENCE, started
from tests.strategies import opened
from torchlens.journals.journal_view import open_journal

SOON = 1.0
"""Seconds within which an event is to arrive."""

WRITER = """
import sys, time
import journal.lmdb_opening
from journal import open_for_writing
from journal.events import BranchTaken
from tests.strategies import opened
path, durability, count, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
journal.lmdb_opening.MAP_SIZE = int(sys.argv[5])
one = open_for_writing(path, durability=durability)
writer = one.open_stream(opened())
for number in range(count):
    writer.append(BranchTaken(value=number, result=True, site=0, call=0))
    if pause:
        time.sleep(pause)
print("appended", flush=True)
sys.stdin.readline()
one.close()
"""


def values(stamped: list[Stamped]) -> list[int]:
    return [one.event.value for one in stamped if isinstance(one.event, BranchTaken)]


@pytest.mark.parametrize("durability", ["batch", "event"])
def test_events_of_another_process_arrive_within_a_second(tmp_path: Path, durability: str) -> None:
    """The journal is waited for before it is made; the clocks of two processes of one machine are one."""
    found: list[Stamped] = []
    lags: list[float] = []
    with (
        started(WRITER, tmp_path / "j", durability, 60, 0.03, 1 << 30) as writer,
        open_journal(tmp_path / "j", wait=PATIENCE) as view,
    ):
        for stamped in view.follow(timeout=PATIENCE):
            found.append(stamped)
            lags.append((time.monotonic_ns() - stamped.time_ns) / 1e9)
            if len(found) == 61:
                assert writer.stdin is not None
                writer.stdin.write("end\n")  # now it seals, which ends the following
                writer.stdin.flush()
    assert values(found) == list(range(60))
    assert [one.seq for one in found] == list(range(61))
    assert sorted(lags)[len(lags) // 2] < SOON


def test_a_map_that_the_writer_enlarges_is_followed(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", "batch", 60_000, 0, 256 << 10) as writer:
        assert writer.stdin is not None
        writer.stdin.write("end\n")
        writer.stdin.flush()
        with open_journal(tmp_path / "j", wait=PATIENCE) as view:
            found = list(view.follow(timeout=PATIENCE))
    assert values(found) == list(range(60_000))


def test_following_ends_when_the_writer_is_killed(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", "event", 10, 0, 1 << 30) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "appended\n"
        with open_journal(tmp_path / "j") as view:
            begun = view.follow()
            assert values([next(begun) for _ in range(11)]) == list(range(10))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert list(begun) == []


def test_no_transaction_is_held_while_waiting(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", "event", 3, 0, 1 << 30) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "appended\n"
        with open_journal(tmp_path / "j") as view:
            followed = view.follow(timeout=0.3)
            assert len([next(followed) for _ in range(4)]) == 4
            waiting = [line.split() for line in view.journal.environment.env.readers().splitlines()[1:]]
            assert [txn for pid, _, txn in waiting if pid == str(os.getpid()) and txn != "-"] == []
            assert list(followed) == []  # nothing came within the time


def test_a_capture_of_this_process_is_followed_to_its_end(tmp_path: Path) -> None:
    first = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name="first")  # it keeps the journal open
    found: list[Stamped] = []

    def listen() -> None:
        with tl.open_journal(tmp_path / "j") as view:
            found.extend(view.follow("second", timeout=PATIENCE))

    listener = threading.Thread(target=listen)
    listener.start()
    time.sleep(0.2)
    second = tl.trace(nn.Tanh(), torch.ones(2), journal=tmp_path / "j", name="second")
    listener.join(PATIENCE)
    assert not listener.is_alive()
    assert [one.event for one in found] == [one.event for one in second.events()]
    assert isinstance(found[-1].event, CaptureSettled)
    first.cleanup()
    second.cleanup()


def test_a_sealed_journal_is_given_at_once_from_where_it_is_asked(tmp_path: Path) -> None:
    for number in range(3):
        tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name=f"step {number}").cleanup()
    with tl.open_journal(tmp_path / "j") as view:
        everything = list(view.follow())
        assert everything == list(view.journal.since(0))
        assert list(view.follow(start=7)) == everything[7:]
        assert list(view.follow(-1)) == list(view.journal.events(StreamId(2)))
        assert list(view.follow("step 1", start=4)) == list(view.journal.events(StreamId(1), 4))
        assert list(view.follow(0, start=10_000)) == []
        with pytest.raises(JournalError) as refused:
            list(view.follow("step 9"))
        assert refused.value.code == "capture_unknown"


def test_a_settled_capture_does_not_wait_for_the_journal_to_be_sealed(tmp_path: Path) -> None:
    live = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j")
    with tl.open_journal(tmp_path / "j") as view:
        assert [one.event for one in view.follow(0)] == [one.event for one in live.events()]
        assert list(view.follow(0, start=len(list(live.events())))) == []
    live.cleanup()


def test_a_journal_in_memory_is_followed_too() -> None:
    live = tl.trace(nn.ReLU(), torch.ones(2))
    assert [one.event for one in follow(live.journal)] == [one.event for one in live.events()]
    live.cleanup()


# Readers that were killed -----------------------------------------------------------------------------

READERS = """
import sys, time
import lmdb
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=16)
held = []
try:
    while len(held) < int(sys.argv[2]):
        held.append(env.begin())
except lmdb.ReadersFullError:
    pass
print(len(held), flush=True)
time.sleep(600)
"""


def test_slots_of_killed_readers_are_freed_for_others(tmp_path: Path) -> None:
    """126 slots, 120 of them of readers that were killed; the writer and a reader that were there go on."""
    one = open_for_writing(tmp_path / "j", durability="event")
    one.open_stream(opened())
    env = one.environment.env
    with started(READERS, tmp_path / "j", 120) as dead:
        assert dead.stdout is not None
        assert dead.stdout.readline() == "120\n"
        dead.send_signal(signal.SIGKILL)
        dead.wait()
    taken = len(env.readers().splitlines()) - 1
    assert taken >= 120
    deadline = time.monotonic() + PATIENCE
    while len(env.readers().splitlines()) - 1 >= 120 and time.monotonic() < deadline:
        time.sleep(0.1)  # nothing is appended or read meanwhile
    assert len(env.readers().splitlines()) - 1 < 120
    one.close()


def test_a_table_full_of_killed_readers_lets_the_next_reader_in(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", "event", 3, 0, 1 << 30) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "appended\n"
        with open_journal(tmp_path / "j") as before:
            assert len(before.streams) == 1
            with started(READERS, tmp_path / "j", 200) as dead:
                assert dead.stdout is not None
                assert int(dead.stdout.readline()) > 100
                dead.send_signal(signal.SIGKILL)
                dead.wait()
            assert len(before.streams) == 1
        with open_journal(tmp_path / "j") as view:  # waits for the writer to sweep
            assert len(list(view.follow(timeout=0.1))) == 4


def test_a_table_full_of_living_readers_is_refused_by_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journal.lmdb_opening.FULL_SECONDS", 0.2)
    open_for_writing(tmp_path / "j").close()
    with started(READERS, tmp_path / "j", 200) as reading:
        assert reading.stdout is not None
        assert int(reading.stdout.readline()) > 100
        with pytest.raises(JournalError) as refused:
            open_for_reading(tmp_path / "j")
        assert refused.value.code == "journal_readers_full"
    with lmdb.open(str(tmp_path / "j"), readonly=True, max_dbs=16):
        pass


LOOP = """
import sys, time
from journal import open_for_writing
from tests.strategies import opened
for number in range(5):
    one = open_for_writing(sys.argv[1], durability="batch")
    one.open_stream(opened(f"step {number}"))
    one.close()
    time.sleep(0.3)
"""


def test_a_loop_that_seals_after_each_capture_is_followed_through_its_seals(tmp_path: Path) -> None:
    with started(LOOP, tmp_path / "j"), open_journal(tmp_path / "j", wait=PATIENCE) as view:
        found: list[Stamped] = []
        for stamped in view.follow(timeout=PATIENCE, through_seals=True):
            found.append(stamped)
            if len(found) == 5:
                break
    assert [stamped.stream for stamped in found] == [0, 1, 2, 3, 4]


def test_through_seals_ends_by_its_timeout_alone(tmp_path: Path) -> None:
    open_for_writing(tmp_path / "j").close()
    with open_journal(tmp_path / "j") as view:
        begun = time.monotonic()
        assert list(view.follow(timeout=0.4, through_seals=True)) == []
        assert time.monotonic() - begun >= 0.4


def test_a_view_survives_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j").cleanup()
    monkeypatch.chdir(tmp_path)
    with tl.open_journal("j") as view:
        monkeypatch.chdir("/")
        assert len(view.captures) == 1
        assert view.verify().ok
