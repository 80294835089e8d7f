"""A page is made of any trace: live, journaled, loaded, of a recording, a moment, half a capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.page.examples import Mismatched, Recurrent
from tests.page.test_data import texts
from tests.programs import run
from torchlens.page.data import page_data


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
