"""A page is made of any trace: live, journaled, loaded, of a recording, a moment, half a capture, a hostile journal."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from tests.hostile import is_printable, mutated, sound_streams, write
from tests.page.examples import Mismatched, Recurrent
from tests.page.test_data import texts
from tests.programs import run
from tests.torchlens.test_hostile_reading import ABSURD, begun, op, parameter, rows_of
from torchlens.journals.journal_view import open_journal
from torchlens.page.data import page_data
from torchlens.page.writing import front, json_in_html, page_of

SOUND = sound_streams()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources") / "run.journal"


def test_a_loaded_trace_has_the_page_of_the_live_one(journal: Path) -> None:
    live = tl.trace(Recurrent(), torch.rand(3, 8), journal=journal)
    live.backward(live.output.sum(), save_grads=True)
    made = page_data(live)
    live.cleanup()
    loaded = tl.load(journal)
    assert page_data(loaded) == made
    loaded.cleanup()


def test_an_artifact_has_the_page_of_the_live_trace_without_the_time_of_its_backward(tmp_path: Path) -> None:
    live = tl.trace(Recurrent(), torch.rand(3, 8))
    live.backward(live.output.sum(), save_grads=True)
    live.save(tmp_path / "saved.tlspec")
    loaded = tl.load(tmp_path / "saved.tlspec")
    made, expected = page_data(loaded), page_data(live)
    for table, columns in BACKWARD_TIMES.items():
        for column in columns:
            assert set(made[table][column]) == {None}
            expected[table][column] = made[table][column]
    begun = page_data(live)["passes"]["begun"][0]
    assert made["events"] == {"count": begun, "has_diary": False, "times": expected["events"]["times"][:begun]}
    assert made | {"events": None} == expected | {"events": None}
    check(loaded)
    loaded.cleanup()


BACKWARD_TIMES = {"gradients": ("event",), "passes": ("begun", "ended"), "firings": ("event", "time")}


def test_a_cursor_has_the_page_of_its_moment(journal: Path) -> None:
    with tl.time_travel(journal) as cursor:
        cursor.next(tl.label("tanh_1_4:3"))
        data = page_data(cursor.trace)
        assert data["status"] == "unfinished"
        assert data["events"]["count"] == cursor.event.at + 1 == len(data["events"]["times"])
        assert texts(data, "ops", "label") == cursor.trace.op_labels
        assert data["calls"]["left"][0] is None
        assert data["passes"]["label"] == []
        cursor.next("node_fired")
        data = page_data(cursor.trace)
        assert len(data["firings"]["event"]) == 1
        assert data["passes"]["ended"] == [None]


def test_a_recording_has_a_page_of_what_it_kept() -> None:
    recording = tl.record(Recurrent(2), torch.rand(3, 8), save=tl.func("tanh"))
    data = page_data(recording.to_trace())
    marked = [label for label, marks in zip(texts(data, "ops", "label"), data["ops"]["marks"], strict=True) if marks]
    assert {label for label in marked if label and label.startswith("tanh")} == {"tanh_1_4:1", "tanh_1_4:2"}


def test_while_a_backward_runs_a_page_has_what_came_before_it() -> None:
    seen: list[dict[str, Any]] = []
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.rand(1, 2))
    trace.output.register_hook(lambda gradient: seen.append(page_data(trace)))
    trace.backward(trace.output.sum())
    assert seen[0]["passes"]["label"] == []
    assert seen[0]["events"]["count"] < trace.num_events
    after = page_data(trace)
    assert after["passes"]["label"] != []
    assert {name: after[name] for name in ("calls", "edges", "places")} == {
        name: seen[0][name] for name in ("calls", "edges", "places")
    }


def test_the_call_that_raised_is_an_op_with_its_operands_and_the_message() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Mismatched(), torch.rand(3, 4))
    data = page_data(caught.value.partial_trace)  # type: ignore[arg-type]  # what a trace left
    row = data["ending"]["op"]
    assert texts(data, "ops", "kind")[row] == "failed"
    assert texts(data, "ops", "label")[row] == "linear_failed"
    assert "shape=(3, 6)" in str(texts(data, "ops", "args")[row])
    assert texts(data, "calls", "label")[data["ops"]["call"][row]] == "second:1"
    assert [data["texts"][address] for address in data["ops"]["params"][row]] == ["second.weight", "second.bias"]
    parents = [start for start, end in zip(*data["edges"].values(), strict=True) if end == row]
    assert [texts(data, "ops", "label")[parent] for parent in parents] == ["relu_1_2"]
    place = data["places"][data["ops"]["place"][row]]
    assert (place["function"], dict(map(tuple, place["lines"]))[place["line"]].strip()) == (
        "Mismatched.forward",
        "return self.second(torch.relu(self.first(x)))",
    )
    assert data["ending"]["kind"] == "builtins.RuntimeError"
    assert "cannot be multiplied" in data["ending"]["message"]
    assert "second:1" in data["ending"]["where"]


def test_a_model_whose_own_code_raised_has_no_failed_op() -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no good: {torch.relu(x).shape}")

    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(Raising(), torch.rand(2))
    data = page_data(caught.value.partial_trace)  # type: ignore[arg-type]  # what a trace left
    assert data["ending"]["op"] is None
    assert "failed" not in texts(data, "ops", "kind")
    assert data["ending"]["message"] == "no good: torch.Size([2])"


def test_a_forward_left_on_purpose_says_why() -> None:
    trace = tl.trace(Recurrent(), torch.rand(3, 8), stop_after=tl.func("tanh"))
    ending = page_data(trace)["ending"]
    assert (ending["kind"], ending["op"]) == ("halted", None)
    assert "tanh" in ending["message"]


def test_a_forward_left_at_a_nan_marks_the_op_that_made_it() -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(lambda x: torch.log(x - 1).sum(), torch.zeros(2), capture=tl.CaptureOptions(raise_on_nan=True))
    data = page_data(caught.value.partial_trace)  # type: ignore[arg-type]  # what a trace left
    row = data["ending"]["op"]
    assert texts(data, "ops", "label")[row] == "log_1_2"
    assert "nonfinite" in {data["texts"][mark] for mark in data["ops"]["marks"][row]}


def test_the_call_in_which_a_process_died_is_a_failed_op(tmp_path: Path) -> None:
    code = """
        import os, sys, torch
        import torchlens as tl

        class Lethal(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                os._exit(3)

        options = tl.JournalOptions(sys.argv[1], durability="event")
        tl.trace(lambda x: Lethal.apply(torch.relu(x)), torch.rand(2), journal=options)
    """
    run(code, tmp_path / "dying.journal", ends=3)
    trace = tl.load(tmp_path / "dying.journal")
    data = page_data(trace)
    assert data["status"] == "unfinished"
    assert texts(data, "ops", "label") == ["input_1", "relu_1_1", "Lethal_failed"]
    assert texts(data, "ops", "kind")[-1] == "failed"
    assert data["ending"]["op"] == len(data["ops"]["label"]) - 1
    trace.cleanup()


def test_lost_source_and_payloads_leave_a_page_without_them(tmp_path: Path) -> None:
    tl.trace(Recurrent(2), torch.rand(3, 8), journal=tmp_path / "lost.journal").cleanup()
    for file in (tmp_path / "lost.journal").rglob("*.seg"):
        file.write_bytes(b"")
    trace = tl.load(tmp_path / "lost.journal")
    data = page_data(trace)
    assert data["values"] == []
    assert all(place["lines"] == [] for place in data["places"])
    trace.cleanup()


# -- hostile ----------------------------------------------------------------------------------------------


@given(st.sampled_from(range(len(SOUND))), st.integers(0, 2**32))
@settings(max_examples=80)
def test_any_change_to_a_capture_gives_a_page_or_a_coded_error(
    tmp_path_factory: pytest.TempPathFactory, capture: int, seed: int
) -> None:
    rows, payloads = SOUND[capture]
    folder = tmp_path_factory.mktemp("changed")
    path = write(folder / "j", mutated(rows, random.Random(seed)), payloads)
    try:
        with open_journal(path) as view:
            for trace in view.captures:
                check(trace)
    except tl.TorchLensError:
        pass
    shutil.rmtree(folder)


def check(trace: tl.Trace) -> None:
    """A page is whole: every number in it leads somewhere."""
    data = page_data(trace)
    trace._repr_html_()
    json_in_html(data)
    rows = {name: len(next(iter(data[name].values()))) for name in ("calls", "ops", "gradients", "passes", "firings")}
    for table, columns in (("calls", ("label", "class")), ("ops", ("label", "kind", "type")), ("firings", ("node",))):
        for column in columns:
            assert all(0 <= number < len(data["texts"]) for number in data[table][column])
    assert all(0 <= row < rows["ops"] for column in data["edges"].values() for row in column)
    assert all(0 <= row < rows["calls"] for row in data["ops"]["call"])
    assert all(parent < row for row, parent in enumerate(data["calls"]["parent"]))
    assert all(-1 <= row < rows["ops"] for table in ("gradients", "firings") for row in data[table]["op"])
    assert all(0 <= row < rows["passes"] for table in ("gradients", "firings") for row in data[table]["pass"])
    assert all(len(column) == rows[name] for name in rows for column in data[name].values())


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_events_give_a_page_or_a_coded_error(tmp_path: Path, what: str) -> None:
    try:
        with open_journal(write(tmp_path / "j", rows_of(ABSURD[what]), [bytes(8)])) as view:
            for trace in view.captures:
                check(trace)
                said = page_of(trace).replace(front("page.js"), "").replace(front("page.css"), "")
                assert is_printable(said)
    except tl.TorchLensError:
        pass


def test_a_long_text_that_every_op_repeats_is_refused_before_it_is_made(tmp_path: Path) -> None:
    events = [*begun(parameters=[parameter("w" * 100_000)]), *(op(value + 1, (value, -1)) for value in range(5000))]
    with open_journal(write(tmp_path / "j", rows_of(events))) as view, pytest.raises(tl.TorchLensError) as caught:
        page_data(view.captures[0])
    assert caught.value.code == "page_too_large"


@pytest.mark.parametrize("capture", range(len(SOUND)))
def test_every_kind_of_capture_has_a_page(tmp_path: Path, capture: int) -> None:
    rows, payloads = SOUND[capture]
    with open_journal(write(tmp_path / "j", rows, payloads)) as view:
        for trace in view.captures:
            check(trace)
            assert page_of(trace).startswith("<!doctype html>")
