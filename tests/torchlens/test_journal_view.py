"""Journals opened for reading: their captures as traces, one capture loaded, traces that follow their stream."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from journal import JournalError, MemoryJournal, TorchLensError, open_for_writing
from journal.events import StreamOpened
from journal.payloads import write_failed
from journal.sharing import OPEN, leave_dropped
from tests.programs import PATIENCE, run
from torchlens.errors import TraceCleanedUpError
from torchlens.reading.facade import Trace


def write(path: Path, captures: int) -> None:
    for number in range(captures):
        tl.trace(nn.ReLU(), torch.full((2,), float(number)), journal=path, name=f"step {number}").cleanup()


def test_a_journal_gives_its_captures_in_order(tmp_path: Path) -> None:
    write(tmp_path / "j", 3)
    with tl.open_journal(tmp_path / "j") as journal:
        assert [trace.name for trace in journal.captures] == ["step 0", "step 1", "step 2"]
        assert [trace["relu_1_1"].out.tolist() for trace in journal.captures] == [[0, 0], [1, 1], [2, 2]]
        assert journal.captures[0] is journal.captures[0]
        assert [info.opened.label for info in journal.streams] == ["step 0", "step 1", "step 2"]
        assert "3 captures" in repr(journal)


def test_captures_are_found_by_name_and_tag(tmp_path: Path) -> None:
    for number in range(4):
        tags = ["even"] if number % 2 == 0 else ["odd", "late"] if number > 2 else ["odd"]
        x = torch.full((2,), float(number))
        tl.trace(nn.ReLU(), x, journal=tmp_path / "j", name=f"step {number // 2}", tags=tags).cleanup()
    with tl.open_journal(tmp_path / "j") as journal:
        everything = journal.captures
        assert journal.find() == everything
        assert journal.find(tag="odd") == [everything[1], everything[3]]
        assert journal.find(name="step 1") == everything[2:]
        assert journal.find(name="step 1", tag="odd") == [everything[3]]
        assert journal.find(tag="none such") == []


def test_a_capture_is_chosen_by_number_or_name(tmp_path: Path) -> None:
    write(tmp_path / "j", 2)
    tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name="step 1").cleanup()
    tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name="7").cleanup()
    with tl.open_journal(tmp_path / "j") as journal:
        everything = journal.captures
        assert [journal.capture(which) for which in (0, -1, "2", "-2", "step 0", "7")] == [
            *(everything[0], everything[3], everything[2], everything[2], everything[0], everything[3])
        ]
        for which, code in ((4, "capture_unknown"), (-5, "capture_unknown"), ("step 1", "capture_ambiguous")):
            with pytest.raises(JournalError) as caught:
                journal.capture(which)
            assert caught.value.code == code
        assert caught.value.fields["numbers"] == (1, 2)


def test_a_journal_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(JournalError) as caught:
        tl.open_journal(tmp_path / "j", wait=0.3)
    assert caught.value.code == "journal_not_found"
    assert 0.3 <= time.monotonic() - begun < PATIENCE
    writer = threading.Timer(0.3, write, (tmp_path / "j", 1))
    writer.start()
    with tl.open_journal(tmp_path / "j", wait=PATIENCE) as journal:
        assert len(list(journal.follow(timeout=PATIENCE))) > 5
    writer.join()


def test_closing_a_journal_cleans_up_the_traces_it_gave(tmp_path: Path) -> None:
    write(tmp_path / "j", 1)
    with tl.open_journal(tmp_path / "j") as journal:
        trace = journal.captures[0]
    with pytest.raises(TraceCleanedUpError):
        _ = trace.ops
    assert "closed" in repr(journal)
    journal.close()
    with pytest.raises(JournalError) as caught:
        _ = journal.captures
    assert caught.value.code == "journal_closed"


def test_cleaning_up_a_trace_leaves_the_journal_open(tmp_path: Path) -> None:
    write(tmp_path / "j", 2)
    with tl.open_journal(tmp_path / "j") as journal:
        first, second = journal.captures
        first.cleanup()
        assert second.ops.labels == journal.captures[0].ops.labels == ("input_1", "relu_1_1", "output_1")


def test_load_takes_a_journal_that_holds_one_capture(tmp_path: Path) -> None:
    write(tmp_path / "one", 1)
    write(tmp_path / "two", 2)
    trace = tl.load(tmp_path / "one")
    assert trace.name == "step 0"
    assert trace.journal_path == str(tmp_path / "one")
    trace.cleanup()
    with pytest.raises(JournalError) as caught:
        tl.load(tmp_path / "two")
    assert caught.value.code == "journal_holds_many"
    assert "open_journal" in caught.value.remedy


def test_a_journal_is_read_while_its_trace_is_live(tmp_path: Path) -> None:
    live = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j")
    again = tl.load(tmp_path / "j")
    assert again.ops.labels == live.ops.labels
    assert again.fingerprint == live.fingerprint
    again.cleanup()
    assert live["relu_1_1"].out.tolist() == [1, 1]
    live.cleanup()


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_what_is_no_journal_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    elif what == "file":
        path.write_text("no journal")
    for door in (tl.load, tl.open_journal):
        with pytest.raises(JournalError) as caught:
            door(path)
        assert caught.value.code in ("journal_not_found", "journal_not_a_journal")


def test_a_trace_follows_its_stream(worked: tl.Trace) -> None:
    """Read after every event, a trace shows what the stream holds by then, and in the end what it holds at once."""
    journal = MemoryJournal()
    stamped = list(worked.events())
    opened = stamped[0].event
    assert isinstance(opened, StreamOpened)
    writer = journal.open_stream(opened)
    trace = Trace(journal, writer.stream)
    assert (trace.status, len(trace)) == ("unfinished", 0)
    seen = [0]
    for item in stamped[1:]:
        writer.append(item.event, item.time_ns)
        seen.append(len(trace))
    assert seen == sorted(seen)
    assert trace.status == "complete"
    assert trace.ops.labels == worked.ops.labels
    assert trace.fingerprint == Trace(journal, writer.stream).fingerprint
    assert [item.event for item in trace.events()] == [item.event for item in stamped]


@pytest.mark.parametrize("path", [None, 5, b"run.journal", "a\0b"])
def test_what_is_no_path_is_refused(path: object) -> None:
    doors = (tl.open_journal,) if isinstance(path, bytes) else (tl.load, tl.open_journal)
    for door in doors:
        with pytest.raises(JournalError) as caught:
            door(path)  # type: ignore[arg-type]  # what a caller may get wrong
        assert caught.value.code == "journal_path_invalid"


def test_without_torch_everything_but_activations_is_read(tmp_path: Path) -> None:
    write(tmp_path / "j", 1)
    script = """
        import sys
        sys.modules["torch"] = None
        from torchlens.journals.journal_view import load
        from torchlens.errors import PayloadUnavailableError
        trace = load(sys.argv[1])
        print(trace.ops.labels, trace.ops[1].shape, trace.ops[1].dtype)
        try:
            trace.ops[1].out
        except PayloadUnavailableError as exc:
            print(exc.code)
    """
    done = run(script, tmp_path / "j")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["('input_1', 'relu_1_1', 'output_1') (2,) float32", "torch_not_installed"]


def test_a_trace_that_is_dropped_lets_go_of_its_journal(tmp_path: Path) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j")
    del trace
    gc.collect()
    with tl.open_journal(tmp_path / "j") as journal:
        leave_dropped()
        assert not any(seat.writing for seat in OPEN[str(tmp_path / "j")].seats)
        assert [trace.status for trace in journal.captures] == ["complete"]


def test_cleaning_up_again_tries_again_what_the_disk_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j")
    environment = OPEN[str(tmp_path / "j")]

    def refuse(sealing: bool = False) -> None:
        raise write_failed(tmp_path, OSError("no room"))

    monkeypatch.setattr(environment, "commit", refuse)
    with pytest.raises(JournalError) as caught:
        trace.cleanup()
    assert caught.value.code == "journal_write_failed"
    monkeypatch.undo()
    trace.cleanup()
    trace.cleanup()
    assert str(tmp_path / "j") not in OPEN


def test_a_capture_after_its_journal_was_removed_is_there(tmp_path: Path) -> None:
    old = tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name="old")
    shutil.rmtree(tmp_path / "j")
    tl.trace(nn.ReLU(), torch.ones(2), journal=tmp_path / "j", name="new").cleanup()
    with tl.open_journal(tmp_path / "j") as journal:
        assert [trace.name for trace in journal.captures] == ["new"]
    assert old["relu_1_1"].out.tolist() == [1, 1]
    old.cleanup()


@pytest.mark.parametrize("field", ["shape", "strides"])
def test_a_shape_that_was_made_up_takes_no_memory(tmp_path: Path, field: str) -> None:
    write(tmp_path / "j", 1)
    trace = tl.load(tmp_path / "j")
    shape, strides = ((1 << 62, 1 << 62, 0), None) if field == "shape" else ((1 << 62, 1 << 62), (0, 0))
    with pytest.raises(TorchLensError) as caught:
        trace.stored((0, 0, strides), "float32", shape)
    assert caught.value.code in ("events_contradictory", "payload_shape_mismatch")
    trace.cleanup()


def test_one_capture_of_several_is_loaded_by_number_or_name(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    for name in ("first", "second"):
        tl.trace(nn.Linear(2, 3), torch.ones(1, 2), journal=path, name=name).cleanup()
    for capture, name in ((0, "first"), (-1, "second"), ("second", "second"), ("0", "first")):
        trace = tl.load(path, capture=capture)
        assert trace.name == name
        trace.cleanup()
    with pytest.raises(tl.TorchLensError, match="has the number 9") as caught:
        tl.load(path, capture=9)
    assert caught.value.code == "capture_unknown"


def test_a_journal_without_a_capture_says_that_nothing_was_committed(tmp_path: Path) -> None:
    open_for_writing(tmp_path / "empty.journal").close()
    with pytest.raises(tl.TorchLensError, match="nothing of a capture was committed") as caught:
        tl.load(tmp_path / "empty.journal")
    assert caught.value.code == "journal_holds_none"
    assert 'durability="event"' in caught.value.remedy
