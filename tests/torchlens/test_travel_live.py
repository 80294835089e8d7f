"""A cursor on a capture that another process writes, or wrote when it was killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from journal import MemoryJournal, open_for_writing, recover
from journal.errors import JournalCorrupt
from journal.events import BranchTaken, CaptureSettled, OpExecuted, StreamId
from journal.lmdb_layout import ONE
from projections import Projector
from tests.journal.small import entries, put
from tests.programs import PATIENCE, started
from tests.strategies import branched, opened
from torchlens.journals.journal_view import open_journal
from torchlens.reading.facade import Trace

WRITER = """
import sys, time
from journal import open_for_writing
from journal.events import BranchTaken
from tests.strategies import opened
path, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
one = open_for_writing(path, durability="event")
writer = one.open_stream(opened())
print("begun", flush=True)
sys.stdin.readline()
for number in range(count):
    writer.append(BranchTaken(value=number, result=number == 30, site=0, call=0))
    time.sleep(pause)
print("appended", flush=True)
sys.stdin.readline()
one.close()
"""

TRAINING = """
import sys
import torch
from torch import nn
import torchlens as tl
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
how = tl.JournalOptions(sys.argv[1], durability="event", sync="none")
trace = tl.trace(model, torch.ones(2, 4), journal=how, capture=tl.CaptureOptions(save_grads=True))
print("captured", flush=True)
sys.stdin.readline()
trace.backward(trace.output.sum())
print("went back", flush=True)
sys.stdin.readline()
trace.cleanup()
"""

DYING = """
import os, signal, sys
import torch
import torchlens as tl
class Dies(torch.nn.Module):
    def forward(self, x):
        for step in range(9):
            x = torch.tanh(x)
        os.kill(os.getpid(), signal.SIGKILL)
tl.trace(Dies(), torch.ones(2), journal=tl.JournalOptions(sys.argv[1], durability="event", sync="none"))
"""


def said(program: object, line: str) -> None:
    """Wait until a program has printed this."""
    assert program.stdout.readline() == f"{line}\n"  # type: ignore[attr-defined]  # opened with a pipe


def goes_on(program: object) -> None:
    """Let a program that waits for a line have one."""
    program.stdin.write("on\n")  # type: ignore[attr-defined]  # opened with a pipe
    program.stdin.flush()  # type: ignore[attr-defined]  # likewise


def test_a_match_that_is_yet_to_be_written_is_waited_for(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", 60, 0.02) as writer:
        said(writer, "begun")
        with tl.time_travel(tmp_path / "j") as cursor:
            assert cursor.num_events == 1
            goes_on(writer)
            cursor.next(lambda event, then: getattr(event.event, "result", False), timeout=PATIENCE)
            assert cursor.position == 32
            assert isinstance(cursor.event.event, BranchTaken)  # type: ignore[union-attr]  # it stands on one
            before = cursor.position
            seen = [event.at for event in islice(cursor.follow(timeout=PATIENCE), 61 - before)]
            assert seen == list(range(before, 61))
            assert list(cursor.follow(timeout=0.1)) == []
            assert cursor.position == cursor.num_events == 61
            begun = time.monotonic()
            with pytest.raises(KeyError):
                cursor.next("branch_taken", timeout=0.3)
            assert 0.3 <= time.monotonic() - begun < PATIENCE
            goes_on(writer)


def test_a_cursor_goes_through_a_backward_while_the_process_that_runs_it_goes_on(tmp_path: Path) -> None:
    with started(TRAINING, tmp_path / "j") as program:
        said(program, "captured")
        with tl.time_travel(tmp_path / "j") as cursor:
            cursor.next(tl.func("relu"))
            with pytest.raises(tl.errors.SelectionError):
                cursor.next(tl.grad("relu_1_2"))
            with pytest.raises(tl.errors.SelectionError):  # the time is over, and there is no backward pass yet
                cursor.next(tl.grad("relu_1_2"), timeout=0.2)
            waiting = threading.Timer(0.3, goes_on, (program,))
            waiting.start()
            cursor.next(tl.grad("relu_1_2"), timeout=PATIENCE)
            assert cursor.where().node == "relu_back_1_4"
            assert cursor.trace["relu_1_2"].grad.shape == (2, 4)
            said(program, "went back")
            assert [event.event.event_name for event in cursor.follow(timeout=PATIENCE)][-1] == "pass_finalized"
            assert cursor.trace.autograd.backward_passes[0].status == "ok"
            goes_on(program)


def test_waiting_ends_when_the_writer_is_killed(tmp_path: Path) -> None:
    with started(WRITER, tmp_path / "j", 5, 0) as writer:
        said(writer, "begun")
        goes_on(writer)
        said(writer, "appended")
        with tl.time_travel(tmp_path / "j") as cursor:
            killing = threading.Timer(0.3, os.kill, (writer.pid, signal.SIGKILL))
            killing.start()
            with pytest.raises(KeyError) as refused:
                cursor.next("capture_settled", timeout=None)
            assert refused.value.code == "no_event_matches"  # type: ignore[attr-defined]  # of ours
            assert cursor.seek(1.0).position == 6


def test_a_killed_capture_is_gone_through_to_the_last_event_that_was_committed(tmp_path: Path) -> None:
    with started(DYING, tmp_path / "j") as program:
        assert program.wait(PATIENCE) == -signal.SIGKILL
    with tl.time_travel(tmp_path / "j") as cursor:
        stored = list(cursor.whole.events())
        assert cursor.seek(1.0).position == len(stored)
        assert cursor.event == stored[-1]
        assert cursor.trace.status == "unfinished"
        cursor.run_back_to(OpExecuted)
        assert cursor.where().labels == ("tanh_1_1:9",)
        assert cursor.trace.ops["tanh_1_1:9"].out.shape == (2,)
        with pytest.raises(IndexError):
            cursor.seek(1.0).step()
        with pytest.raises(KeyError):
            cursor.next(OpExecuted, timeout=None)  # nobody writes it any more


def test_a_cursor_reads_on_when_its_journal_is_opened_and_sealed_again(tmp_path: Path) -> None:
    tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j").cleanup()
    with tl.time_travel(tmp_path / "j") as cursor:
        count = cursor.seek(1.0).position
        tl.trace(nn.Tanh(), torch.ones(2), journal=tmp_path / "j").cleanup()
        assert cursor.num_events == count  # another capture is another stream
        assert cursor.trace.ops.labels[-1] == "output_1"
    with tl.time_travel(tmp_path / "j", capture=1) as cursor:
        assert cursor.next(tl.func("tanh")).where().labels == ("tanh_1_1",)


def test_a_capture_of_this_process_grows_under_a_cursor() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))
    cursor = tl.time_travel(trace).seek(1.0)
    assert isinstance(cursor.event.event, CaptureSettled)  # type: ignore[union-attr]  # it stands on one
    before, position = cursor.trace, cursor.position
    trace.backward(trace.output.sum())
    assert cursor.position == position
    assert len(cursor.trace.autograd.grad_fns) == 0
    assert cursor.trace is not before  # its labels would be those of a head that is no more
    assert cursor.next("pass_opened").position == position + 1
    trace.cleanup()


# Branches ---------------------------------------------------------------------------------------------


def test_a_branch_is_gone_through_with_the_events_of_its_parent(tmp_path: Path) -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2), journal=tmp_path / "one")
    events = [one.event for one in trace.events()]
    cut = next(at for at, event in enumerate(events) if isinstance(event, OpExecuted)) + 1
    trace.cleanup()
    one = open_for_writing(tmp_path / "one", sync="none")
    writer = one.open_stream(branched(0, cut, "branch"))
    for event in events[cut:]:
        writer.append(event)
    writer.close()
    one.close()
    with open_journal(tmp_path / "one") as view:
        parent, branch = (tl.time_travel(view.capture(which)) for which in (0, "branch"))
        assert branch.num_events == parent.num_events + 1
        assert branch.seek(cut - 1).event == parent.seek(cut - 1).event
        assert branch.trace.ops.labels == parent.trace.ops.labels == ("input_1", "linear_1_1")
        assert branch.step().event.event.event_name == "stream_opened"  # type: ignore[union-attr]  # it stands on one
        assert branch.event.seq == branch.back().step().event.seq > parent.seek(-1).event.seq  # type: ignore[union-attr]  # likewise
        assert branch.next(tl.func("relu")).back().previous(tl.func("linear")).position == cut
        assert branch.seek(1.0).trace.ops.labels == parent.seek(1.0).trace.ops.labels


def test_an_empty_branch_ends_with_its_own_header() -> None:
    journal = MemoryJournal()
    parent = journal.open_stream(opened(), 0)
    parent.append(BranchTaken(value=0, result=True, site=0, call=0), 1)
    branch = journal.open_stream(branched(0, 1), 2)
    cursor = tl.time_travel(Trace(journal, StreamId(branch.stream)))
    assert [event.event.event_name for event in cursor.follow(timeout=0)] == ["stream_opened", "stream_opened"]
    assert isinstance(cursor.whole.projector, Projector)
    journal.close()


# Damage -----------------------------------------------------------------------------------------------


def test_over_a_damaged_journal_a_cursor_goes_where_it_is_whole_and_refuses_by_code_what_needs_the_rest(
    tmp_path: Path,
) -> None:
    how = tl.JournalOptions(tmp_path / "j", durability="event", sync="none")
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2), journal=how)
    cursor = tl.time_travel(trace).next(tl.func("relu"))
    relu, count = cursor.position, cursor.num_events
    trace.cleanup()
    lost = [key for key, _ in entries(tmp_path / "j", b"events") if ONE.unpack(key)[0] >= relu]
    put(tmp_path / "j", b"events", *((key, b"damaged") for key in lost))
    with tl.time_travel(tmp_path / "j") as cursor:
        assert cursor.num_events == count
        assert cursor.seek(relu - 1).event is not None
        assert cursor.trace.moment.counts["ops"] == 3
        for asked in (lambda: cursor.trace.ops.labels, cursor.where, lambda: cursor.next("capture_settled")):
            with pytest.raises(JournalCorrupt):
                asked()
        assert cursor.position == relu


def test_over_what_a_cut_journal_proves_a_cursor_ends_where_the_proof_ends(tmp_path: Path) -> None:
    def looped(x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            x = torch.tanh(x)
        return x

    how = tl.JournalOptions(tmp_path / "old", durability="event", sync="none")
    trace = tl.trace(looped, torch.ones(1), journal=how, save="none")
    whole = list(trace.events())
    trace.cleanup()
    data = (tmp_path / "old" / "data.mdb").read_bytes()
    (tmp_path / "old" / "data.mdb").write_bytes(data[: len(data) // 2])
    with pytest.raises(tl.TorchLensError):
        tl.time_travel(tmp_path / "old")
    proven = recover(tmp_path / "old", tmp_path / "new").events
    with tl.time_travel(tmp_path / "new") as cursor:
        assert cursor.seek(1.0).position == proven
        assert 0 < proven < len(whole)
        assert cursor.event is not None
        assert cursor.event.event == whole[proven - 1].event
        cursor.run_back_to(OpExecuted)
        assert cursor.where().labels == (f"tanh_1_1:{len(cursor.trace.ops) - 1}",)
        assert cursor.trace.status == "unfinished"
