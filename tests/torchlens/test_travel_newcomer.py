"""What a cursor tells those who do not know a capture yet: which one it is, and what comes later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.torchlens.command import printed
from torchlens.debugger.session import Session
from torchlens.errors import ConfigurationError, LookupRefused, TraceCleanedUpError
from torchlens.reading.extents import Extents


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.relu(self.fc(x))
        return x.log().sum()


@pytest.fixture
def trace() -> tl.Trace:
    made = tl.trace(Net(), torch.randn(2, 4), capture=tl.CaptureOptions(save_grads=True))
    made.backward(made.output)
    return made


@pytest.mark.parametrize("key", ["sum_1_4", "log_1_3", "linear_1_1:2", "relu_1_2:2"])
def test_what_comes_later_is_refused_with_its_event_and_is_there_then(trace: tl.Trace, key: str) -> None:
    cursor = tl.time_travel(trace).next(tl.func("relu"))
    with pytest.raises(LookupRefused) as refused:
        cursor.trace[key]
    at = refused.value.fields["at"]
    assert refused.value.code == "record_comes_later"
    assert f"comes at event {at}; the cursor stands at {cursor.position - 1}" in str(refused.value)
    cursor.seek(at - 1)
    with pytest.raises(LookupRefused):
        cursor.trace[key]
    cursor.seek(at)
    assert cursor.trace[key] is not None


def test_why_and_collections_tell_it_too(trace: tl.Trace) -> None:
    cursor = tl.time_travel(trace)
    last = trace.ops.labels[-1]
    for ask in (cursor.why, lambda key: cursor.trace.ops[key], lambda key: cursor.trace[tl.label(key)].first()):
        with pytest.raises(tl.TorchLensError, match=r"comes at event .*; the cursor is before the first"):
            ask(last)
    firing = trace.autograd.grad_fn_calls[0].call_label
    cursor.run_to(tl.func("relu"))
    with pytest.raises(LookupRefused) as refused:
        cursor.trace.autograd.grad_fn_calls[firing]
    assert refused.value.code == "record_comes_later"
    with pytest.raises(LookupRefused) as missing:
        cursor.trace["nonsense"]
    assert missing.value.code == "op_lookup_not_found"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three captures: one is sound, one has NaN in its input, one keeps statistics and has an infinity first."""
    path = tmp_path_factory.mktemp("captures") / "run.journal"
    spoilt = torch.full((2, 4), torch.nan)

    def model(x: Tensor) -> Tensor:
        return x.abs().log().sum()

    tl.trace(model, torch.ones(2, 4), journal=path, name="sound").cleanup()
    tl.trace(model, spoilt, journal=path, name="bad input").cleanup()
    tl.trace(model, torch.zeros(2, 4), journal=path, name="measured", save=tl.stats_only()).cleanup()
    return path


def test_a_cursor_tells_which_capture_it_is_over(journal: Path) -> None:
    with tl.time_travel(journal) as cursor:
        assert cursor.capture == (2, 3)
        assert cursor.title == "measured, capture 2 of 3"
        assert repr(cursor).startswith("<Cursor of measured, capture 2 of 3, before the first of ")
    with tl.time_travel(journal, "sound") as cursor:
        assert cursor.capture == (0, 3)
    assert cursor.capture is None
    made = tl.trace(Net(), torch.ones(2, 4), name="live")
    assert (tl.time_travel(made).capture, tl.time_travel(made).title) == (None, "live")


def test_one_command_tells_which_capture_is_the_first_bad_one(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(printed(capsys, "journal", "captures", "--nonfinite", "--json", journal))
    assert [row["first_nonfinite"]["label"] for row in rows] == [None, "input_1", "log_1_2"]
    assert [row["first_nonfinite"]["verdict"] for row in rows] == ["clean", "first", "first"]
    rows = json.loads(printed(capsys, "journal", "captures", "--nan", "--json", journal))
    assert [row["first_nonfinite"]["label"] for row in rows] == [None, "input_1", None]
    said = printed(capsys, "journal", "captures", "--nonfinite", journal)
    assert "log_1_2, event" in said
    assert "first_nonfinite" not in printed(capsys, "journal", "captures", journal)


def test_statistics_are_read_and_no_payload(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tl.open_journal(journal) as view:
        monkeypatch.setattr(Extents, "of_stored", None)
        assert view.capture("measured").first_nonfinite().label == "log_1_2"


def test_a_question_before_the_first_event_names_no_call_of_python(journal: Path) -> None:
    with tl.time_travel(journal) as cursor, pytest.raises(tl.TorchLensError) as refused:
        Session(cursor).answer("where")
    assert "()" not in str(refused.value)


def test_a_trace_of_a_closed_journal_says_that_it_was_closed(journal: Path) -> None:
    with tl.open_journal(journal) as view:
        kept, forgotten = view.capture(0), view.capture(1)
        forgotten.cleanup()
    with pytest.raises(TraceCleanedUpError, match=r"journal .* was closed"):
        kept.ops  # noqa: B018  # refuses
    with pytest.raises(TraceCleanedUpError, match="was cleaned up"):
        forgotten.ops  # noqa: B018  # refuses


@pytest.mark.parametrize("what", [lambda event: True, lambda: True, lambda a, b, c: True, lambda *, event: True])
def test_a_function_that_cannot_be_asked_is_refused_before_it_is(trace: tl.Trace, what: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tl.time_travel(trace).next(what)  # type: ignore[arg-type]  # that is refused
    assert refused.value.code == "match_type_invalid"


def test_functions_of_more_are_asked_where_the_rest_has_defaults(trace: tl.Trace) -> None:
    assert tl.time_travel(trace).next(lambda event, then, least=5: event.at >= least).position == 6
    assert tl.time_travel(trace).next(lambda *both: both[0].at == 7).position == 8


def test_captures_are_found_by_name_by_place(journal: Path) -> None:
    with tl.open_journal(journal) as view:
        assert [one.name for one in view.find("sound")] == ["sound"]
