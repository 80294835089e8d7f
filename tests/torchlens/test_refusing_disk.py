"""A disk that refuses while a model runs: the model runs to its end, an error says so, the journal holds a prefix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import journal.environment
import journal.lmdb_opening
import torchlens as tl
from journal.errors import JournalError
from tests.disk import no_file_longer_than
from tests.programs import run

DURABILITIES = ("close", "batch", "event")
MEBIBYTE = 1 << 20


class Deep(nn.Module):
    """Two hundred calls; with ``rows`` of 256, each activation has as many KiB."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.num_runs = 0
        self.when_half: Callable[[], object] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.num_runs += 1
        for number in range(100):
            x = torch.tanh(self.linear(x))
            if number == 50:
                self.when_half()
        return x


@pytest.fixture(scope="module")
def model() -> Deep:
    torch.manual_seed(0)
    return Deep()


@pytest.fixture(autouse=True)
def fresh(model: Deep) -> Iterator[None]:
    model.num_runs = 0
    model.when_half = lambda: None
    with torch.no_grad():  # nothing is held for a backward: what the journal has not, the trace must hold itself
        yield


X = torch.linspace(-1, 1, 128 * 256).reshape(128, 256)
"""128 KiB, and so is every activation: 25 MiB in all."""


# Three ways to have no room -------------------------------------------------------------------------------


def mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own with eight mebibytes, while the context lasts; then a large one with the same files."""
    if not mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)):
        pytest.skip("this process may not mount a file system")
    yield
    assert mount("-o", "remount,size=256m", str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "disk"
    made.mkdir()
    yield made
    if os.path.ismount(made):
        subprocess.run(["umount", "-l", str(made)], check=True)


@contextmanager
def small_map() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal.lmdb_opening, "MAP_SIZE", 64 << 10)
        patched.setattr(journal.environment, "GREATEST_MAP_SIZE", 64 << 10)
        yield


def no_room(kind: str, folder: Path) -> Any:
    if kind == "file size":
        return no_file_longer_than(5 * MEBIBYTE)
    return small_disk(folder) if kind == "disk" else small_map()


# What is there afterwards -----------------------------------------------------------------------------------


def elsewhere(path: Path) -> list[dict[str, Any]]:
    """Per stream, the types of the events that another process finds, and how its payloads read."""
    script = """
        import json, sys
        from journal import JournalError, open_for_reading
        one = open_for_reading(sys.argv[1])
        streams = []
        for info in one.streams():
            answers = {}
            number = 0
            while True:
                try:
                    one.payload(info.stream, number)
                    code = "whole"
                except JournalError as refused:
                    code = refused.code
                if code == "payload_unknown":
                    break
                answers[code] = answers.get(code, 0) + 1
                number += 1
            events = [stamped.event.event_name for stamped in one.events(info.stream)]
            streams.append({"events": events, "payloads": answers})
        print(json.dumps(streams))
    """
    found: list[dict[str, Any]] = json.loads(run(script, path).stdout)
    return found


def kinds(trace: tl.Trace) -> list[str]:
    return [stamped.event.event_name for stamped in trace.events()]


def check_whole(trace: tl.Trace, model: Deep) -> None:
    """A trace that can be read in this process, all of it."""
    assert trace.status == "complete"
    assert trace.num_ops == 200
    trace.check_metadata_invariants()
    expected = X
    for number in range(100):
        expected = torch.tanh(model.linear(expected))
        assert torch.equal(trace.ops[2 * number + 2].out, expected)
    assert torch.equal(trace.output, expected)
    assert trace.ops[5].code_context[0].call_line == "x = torch.tanh(self.linear(x))"


def check_torch_is_restored() -> None:
    assert isinstance(torch.tanh, types.BuiltinFunctionType)
    after = tl.trace(nn.Tanh(), torch.ones(2))
    assert after.ops.labels == ("input_1", "tanh_1_1", "output_1")
    after.cleanup()


def options(path: Path, durability: str, sync: str = "events") -> tl.JournalOptions:
    return tl.JournalOptions(path, durability=durability, sync=sync)  # type: ignore[arg-type]


def refused_trace(model: nn.Module, journal: tl.JournalOptions, **asked: Any) -> tuple[tl.TraceJournalError, tl.Trace]:
    with pytest.raises(tl.TraceJournalError) as caught:
        tl.trace(model, X, journal=journal, **asked)
    assert isinstance(caught.value, JournalError)
    assert isinstance(caught.value.__cause__, JournalError)
    assert caught.value.code == caught.value.__cause__.code
    assert caught.value.partial_trace is not None
    return caught.value, caught.value.partial_trace


# While the model runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["file size", "disk"])
def test_a_model_runs_to_its_end_on_a_full_disk_and_its_trace_can_be_read(
    model: Deep, folder: Path, kind: str, durability: str
) -> None:
    path = folder / "run.journal"
    with no_room(kind, folder):
        error, trace = refused_trace(model, options(path, durability))
        assert model.num_runs == 1
        assert error.code == "journal_write_failed"
        assert error.fields["num_unstored"] > 0
        check_torch_is_restored()
        check_whole(trace, model)
        events = kinds(trace)
        before = elsewhere(path)
        assert all(stream["events"] == events[: len(stream["events"])] for stream in before)
        assert all(set(stream["payloads"]) <= {"whole", "payload_not_stored"} for stream in before)
        if durability == "event":
            assert before[0]["events"].count("op_executed") > 0
    trace.cleanup()  # there is room now
    (stream,) = elsewhere(path)
    assert stream["events"] == events
    assert set(stream["payloads"]) == {"whole", "payload_not_stored"}
    tl.trace(model, X, journal=options(path, durability)).cleanup()
    assert [len(stream["events"]) for stream in elsewhere(path)] == [len(events)] * 2


def test_the_error_of_a_refused_capture_can_be_sent_without_its_trace(model: Deep, tmp_path: Path) -> None:
    with no_file_longer_than(MEBIBYTE):
        error, trace = refused_trace(model, options(tmp_path / "run.journal", "close"))
    rebuild, arguments = error.__reduce__()[:2]
    again: Any = rebuild(*arguments)
    assert (type(again), str(again), again.fields) == (tl.TraceJournalError, str(error), error.fields)
    assert again.partial_trace is None
    trace.cleanup()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_model_runs_to_its_end_with_a_full_map(model: Deep, tmp_path: Path, durability: str) -> None:
    path = tmp_path / "run.journal"
    with small_map():
        error, trace = refused_trace(model, options(path, durability))
        assert model.num_runs == 1
        assert error.code == "journal_full"
        events = kinds(trace)
        assert events[-1] == "capture_settled"
        assert all(stream["events"] == events[: len(stream["events"])] for stream in elsewhere(path))
        check_torch_is_restored()
        with pytest.raises(JournalError) as refused:
            trace.cleanup()
        assert refused.value.code == "journal_full"
    trace.cleanup()  # the limit is raised
    (stream,) = elsewhere(path)
    assert stream["events"] == events


def test_what_could_be_written_in_the_end_is_no_error(tmp_path: Path) -> None:
    """No payload is asked for, and there is room again before the capture ends."""
    path = tmp_path / "run.journal"

    def model(x: Tensor) -> Tensor:
        with no_file_longer_than((path / "data.mdb").stat().st_size):
            for _ in range(100):
                x = torch.tanh(x)
            assert elsewhere(path)[1]["events"].count("op_started") < 100
        return torch.tanh(x)

    tl.trace(nn.Tanh(), X, journal=path, save="none").cleanup()
    trace = tl.trace(model, X, journal=options(path, "event"), save="none")
    assert elsewhere(path)[1]["events"] == kinds(trace)
    trace.cleanup()


def test_a_model_that_raises_on_a_full_disk_is_told_as_that(model: Deep, tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError("half way")

    model.when_half = fail
    with no_file_longer_than(2 * MEBIBYTE):
        with pytest.raises(ZeroDivisionError) as caught:
            tl.trace(model, X, journal=tmp_path / "run.journal")
        assert isinstance(caught.value, tl.TraceCaptureError)
        assert caught.value.fields["refused"] == "journal_write_failed"
        assert caught.value.partial_trace is not None
        assert caught.value.partial_trace.num_ops == 102
        assert all(op.out is not None for op in caught.value.partial_trace.ops)
    caught.value.partial_trace.cleanup()


def test_an_interrupt_on_a_full_disk_stays_an_interrupt(model: Deep, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run.journal"
    model.when_half = interrupt
    with no_file_longer_than(64 << 10), pytest.raises(KeyboardInterrupt):
        tl.trace(model, X, journal=options(path, "close"))
    check_torch_is_restored()
    model.when_half = lambda: None
    tl.trace(model, X, journal=path).cleanup()
    assert [stream["events"][-1] for stream in elsewhere(path)] == ["forward_interrupted", "capture_settled"]


def test_the_journal_is_removed_while_the_model_runs(model: Deep, tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    model.when_half = lambda: shutil.rmtree(path)
    error, trace = refused_trace(model, options(path, "event"))
    assert model.num_runs == 1
    assert error.code == "journal_removed"
    assert kinds(trace)[-1] == "capture_settled"
    assert trace.num_ops == 200
    assert torch.equal(trace.ops[-1].out, trace.output)  # made after the removal, so held in memory
    check_torch_is_restored()
    model.when_half = lambda: None
    again = tl.trace(model, X, journal=path)
    again.cleanup()
    assert len(elsewhere(path)) == 1


@pytest.mark.parametrize("sync", ["events", "all"])
def test_a_segment_is_removed_while_the_model_runs(model: Deep, tmp_path: Path, sync: str) -> None:
    """Nobody is told of it but the one who flushes the file, and the one who reads."""
    path = tmp_path / "run.journal"
    model.when_half = lambda: (path / "segments" / "000000.seg").unlink()
    if sync == "all":
        error, trace = refused_trace(model, options(path, "close", sync))
        assert error.code == "journal_write_failed"
        assert trace.num_ops == 200
        with pytest.raises(JournalError):
            trace.cleanup()
        (path / "segments" / "000000.seg").touch()
        trace.cleanup()
    else:
        tl.trace(model, X, journal=options(path, "event", sync)).cleanup()
    (stream,) = elsewhere(path)
    assert stream["events"][-1] == "capture_settled"
    assert set(stream["payloads"]) == {"payload_lost"}


def test_a_segment_may_not_be_written_any_more_while_the_model_runs(model: Deep, tmp_path: Path) -> None:
    """It is open: who has begun to write it goes on."""
    path = tmp_path / "run.journal"
    model.when_half = lambda: (path / "segments" / "000000.seg").chmod(0o444)
    tl.trace(model, X, journal=path).cleanup()
    (stream,) = elsewhere(path)
    assert set(stream["payloads"]) == {"whole"}


# Before the model runs ----------------------------------------------------------------------------------------


def refused_at_once(model: Deep, journal: Any) -> str:
    with pytest.raises(JournalError) as caught:
        tl.trace(model, X, journal=journal)
    assert model.num_runs == 0
    assert not isinstance(caught.value, tl.TraceJournalError)
    check_torch_is_restored()
    return caught.value.code


@pytest.mark.parametrize("place", ["file", "proc", "missing drive"])
def test_a_place_where_nothing_can_be_made_is_refused_before_the_model_runs(
    model: Deep, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "missing drive").symlink_to(tmp_path / "not there")
    path = Path("/proc/run.journal") if place == "proc" else tmp_path / place / "run.journal"
    assert refused_at_once(model, path) == "journal_open_failed"


def test_a_read_only_disk_is_refused_before_the_model_runs_and_can_be_read(model: Deep, folder: Path) -> None:
    if not mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)):
        pytest.skip("this process may not mount a file system")
    path = folder / "run.journal"
    tl.trace(model, X, journal=path).cleanup()
    model.num_runs = 0
    assert mount("-o", "remount,ro", str(folder))
    for durability in DURABILITIES:
        assert refused_at_once(model, options(path, durability)) == "journal_open_failed"
        assert refused_at_once(model, options(folder / "new.journal", durability)) == "journal_open_failed"
    with tl.open_journal(path) as view:
        assert [trace.status for trace in view.captures] == ["complete"]
    assert tl.postmortem(path).is_well


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_disk_that_is_full_from_the_start_is_refused_before_the_model_runs(
    model: Deep, tmp_path: Path, durability: str
) -> None:
    path = tmp_path / "run.journal"
    with no_file_longer_than(0):
        assert refused_at_once(model, options(path, durability)) == "journal_open_failed"
    tl.trace(model, X, journal=options(path, durability)).cleanup()
    assert len(elsewhere(path)) == 1


def test_a_capture_whose_first_commit_is_refused_leaves_no_stream(model: Deep, tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    first = tl.trace(model, X, journal=path, save="none")  # which keeps the journal open
    with no_file_longer_than(4096):
        assert refused_at_once_again(model, options(path, "event")) == "journal_write_failed"
    first.cleanup()
    second = tl.trace(model, X, journal=options(path, "event", "none"), save="none", name="second")
    assert second.stream == 1
    second.cleanup()
    assert [stream["events"][-1] for stream in elsewhere(path)] == ["capture_settled"] * 2


def refused_at_once_again(model: Deep, journal: Any) -> str:
    model.num_runs = 0
    return refused_at_once(model, journal)
