"""Going from one tensor that is not finite to the next: ``cursor.next("nan")``, and the same in a script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from tests.torchlens.command import printed
from tests.torchlens.terminal import Terminal
from torchlens.debugger.session import Session
from torchlens.errors import LookupRefused


class Masked(nn.Module):
    """Its mask has infinities on purpose; the NaN comes later, and once more."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1) > 0, float("-inf"))
        weights = torch.softmax(x + mask, -1)
        bad = torch.log(weights - 1.5)
        return bad.sum().exp()


X = torch.linspace(-1, 1, 9).view(3, 3)


@pytest.fixture(scope="module")
def trace() -> Iterator[tl.Trace]:
    made = tl.trace(Masked(), X)
    yield made
    made.cleanup()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nonfinite") / "run.journal"
    tl.trace(Masked(), X, journal=path).cleanup()
    return path


def wrong(trace: tl.Trace, kind: str) -> list[int]:
    """Events at which a tensor is not finite, by its own elements."""
    found = []
    for op in trace.ops:
        if op.is_output or not op.has_saved_activation or not op.out.is_floating_point():
            continue
        if op.out.isnan().any() or (kind == "nonfinite" and op.out.isinf().any()):
            found.append(op.read("event"))
    return sorted(set(found))


@pytest.mark.parametrize("kind", ["nan", "nonfinite"])
def test_going_on_meets_each_of_them_once_and_going_back_the_same(trace: tl.Trace, kind: str) -> None:
    cursor = tl.time_travel(trace)
    met = []
    while True:
        try:
            cursor.next(kind)
        except LookupRefused:
            break
        met.append(cursor.position - 1)
    assert met == wrong(trace, kind)
    assert len(met) >= 3
    assert met[0] == trace.first_nonfinite(kind).at  # type: ignore[arg-type]  # one of the two
    cursor.seek(1.0)
    back = [cursor.previous(kind).position - 1 for _ in met]
    assert back == met[::-1]


@given(st.data())
def test_from_anywhere_the_next_is_the_next(trace: tl.Trace, data: st.DataObject) -> None:
    events = wrong(trace, "nonfinite")
    start = data.draw(st.integers(min(events), max(events) - 1))
    cursor = tl.time_travel(trace)
    cursor.seek(start)
    assert cursor.next("nonfinite").position - 1 == min(at for at in events if at > start)
    assert cursor.previous("nonfinite").position - 1 == max(at for at in events if at <= start)


def test_gradients_are_met_from_the_middle_of_a_backward() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)

    def model(x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.sqrt(x), 0.0).sum()

    trace = tl.trace(model, x, capture=tl.CaptureOptions(save_grads=True))
    for _ in range(2):
        trace.backward(trace.output, retain_graph=True)
    cursor = tl.time_travel(trace)
    first = cursor.next("nan").position
    assert first - 1 == trace.first_nonfinite("nan").at
    cursor.run_to(lambda event, then: event.event.event_name == "pass_opened" and event.event.pass_number == 1)
    second = cursor.next("nan").position
    assert second > first
    assert cursor.where().backward_pass == 2
    assert cursor.previous("nan").position < second
    trace.cleanup()


def test_what_was_not_kept_is_told_where_there_is_no_match() -> None:
    trace = tl.trace(Masked(), X, save="none")
    with pytest.raises(tl.TorchLensError, match="tensors there could not be looked at") as refused:
        tl.time_travel(trace).next("nan")
    assert refused.value.code == "no_event_matches"
    trace.cleanup()


def test_where_raise_on_nan_stopped_is_a_match_though_nothing_was_kept() -> None:
    with pytest.raises(tl.TraceCaptureError) as refused:
        tl.trace(Masked(), X, save="none", capture=tl.CaptureOptions(raise_on_nan="nan"))
    trace = refused.value.partial_trace
    assert tl.time_travel(trace).next("nan").position - 1 == trace.first_nonfinite("nan").at
    trace.cleanup()


def test_a_script_passes_over_a_mask_and_goes_on(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.txt"
    script.write_text("first_nonfinite\nfirst_nonfinite nan\nnext\nprevious nonfinite\nseek 0.0\nnext nan\n")
    said = printed(capsys, "travel", journal, "--script", script)
    lines = said.splitlines()
    assert "maskedfill" in lines[0]
    firsts = [line for line in lines if line.startswith("first not finite")]
    assert ["maskedfill" in firsts[0], "log_" in firsts[1]] == [True, True]
    moves = [line for line in lines if " op_executed " in line]
    assert ["log_" in moves[1], "sum_" in moves[2], "log_" in moves[3], "log_" in moves[4]] == [True] * 4


def test_what_else_it_may_look_for_is_refused(journal: Path) -> None:
    with tl.time_travel(journal) as cursor:
        with pytest.raises(tl.TorchLensError, match="first_nonfinite nan") as refused:
            Session(cursor).answer("first_nonfinite inf")
        assert refused.value.code == "travel_argument_invalid"
        assert cursor.position == 0
        found = Session(cursor).answer("first_nonfinite nonfinite")
        assert "maskedfill" in found[0]


def test_an_event_without_values_says_so(journal: Path) -> None:
    with tl.time_travel(journal) as cursor:
        session = Session(cursor)
        assert session.answer("values") == ["no values: this event made no op and no gradient"]
        session.answer("next module_entered")
        assert session.answer("values") == ["no values: this event made no op and no gradient"]
        session.answer("next op_executed")
        assert "no values" not in session.answer("values")[0]


def test_a_key_looks_for_nan_alone_and_the_next_key_goes_on(journal: Path) -> None:
    with Terminal([sys.executable, "-m", "torchlens", "travel", str(journal)]) as terminal:
        terminal.until("inf/NaN")
        terminal.press("F")
        terminal.until("first not finite: activation of log_")
        terminal.press("\x1b")
        terminal.until(lambda text: "first not finite" not in text)
        terminal.press("n")
        terminal.until("sum_1_10: 1 NaN")
        terminal.press("f")
        terminal.until("first not finite: activation of maskedfill")
        terminal.press("q")
        assert terminal.end() == 0
