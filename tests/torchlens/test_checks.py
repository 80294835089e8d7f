"""The checks of torchlens.testing: what is sound passes, and each fault that is planted is found where it is."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from journal import IllegalTransition, open_for_reading
from journal.events import CaptureSettled, Event, FunctionSeen, OpExecuted, StreamOpened
from projections.columnar.tables import Maker
from projections.records import ops
from tests.projections.making import Made
from tests.strategies import capture_streams, write_stream
from torchlens.errors import CompatibilityError, ConfigurationError, TorchLensWarning, ValidationError
from torchlens.testing import (
    Program,
    assert_tracing_changes_nothing,
    check_capture,
    check_gradients,
    check_inputs,
    check_journal,
    check_repeat,
    check_stream,
    check_trace,
    programs,
    tensors,
)
from torchlens.testing.checking import recorded

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def sound() -> list[Event]:
    """Three calls, of which one reads a parameter."""
    made = Made(parameters={"weight": (4,)})
    x = made.input("x")
    y = made.op("relu", x)
    return made.returns(made.op("mul", y, "weight")).events


# -- streams -------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(capture_streams(), st.integers(0, 200))
def test_whatever_is_drawn_may_have_happened_and_ends_anywhere(events: list[Event], cut: int) -> None:
    check_stream(events)
    check_stream(events[:cut])


def test_the_records_of_a_stream_are_given_back() -> None:
    assert list(check_stream(sound()).ops.column("label")) == ["input_1", "relu_1_1", "mul_1_2", "output_1"]


NEEDED = {StreamOpened: "no StreamOpened", FunctionSeen: "function", OpExecuted: "read before it is told"}


@pytest.mark.parametrize("cls", NEEDED, ids=lambda cls: cls.event_name)
def test_an_event_that_others_need_is_missed(cls: type[Event]) -> None:
    events = sound()
    at = next(place for place, event in enumerate(events) if isinstance(event, cls))
    with pytest.raises(ValidationError, match=NEEDED[cls]) as refused:
        check_stream([*events[:at], *events[at + 1 :]])
    assert refused.value.code == "stream_illegal"
    assert refused.value.fields["at"] >= at


def test_a_value_is_told_once() -> None:
    events = sound()
    at = next(place for place, event in enumerate(events) if isinstance(event, OpExecuted))
    with pytest.raises(ValidationError, match="told twice") as refused:
        check_stream([*events[: at + 1], *events[at:]])
    assert (refused.value.fields["at"], refused.value.fields["event"]) == (at + 1, "op_executed")


def test_a_parameter_that_was_not_described_is_noticed() -> None:
    events = [attrs.evolve(one, inputs=(-9,)) if isinstance(one, OpExecuted) else one for one in sound()]
    with pytest.raises(ValidationError, match="parameter 8 was not told"):
        check_stream(events)


def test_an_event_that_may_not_follow_is_refused_by_the_table() -> None:
    with pytest.raises(IllegalTransition) as refused:
        check_stream([*sound(), CaptureSettled(torch_restored=True)])
    assert refused.value.code == "illegal_transition"
    assert refused.value.fields["at"] == len(sound())


def other_cells(monkeypatch: pytest.MonkeyPatch, name: str, make: Maker) -> None:
    monkeypatch.setitem(ops.OPS, name, make)


def test_a_column_that_depends_on_more_than_the_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = itertools.count()
    other_cells(monkeypatch, "num_args_total", lambda state: [next(asked)] * len(ops.OPS["label"](state)))
    with pytest.raises(ValidationError) as refused:
        check_stream(sound())
    assert refused.value.code == "fold_unstable"


def test_records_that_contradict_each_other_are_told_with_the_name_of_the_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other_cells(monkeypatch, "num_inputs", lambda state: [7] * len(ops.OPS["label"](state)))
    with pytest.raises(ValidationError) as refused:
        check_stream(sound())
    assert refused.value.code == "invariant_broken"
    assert {finding[0] for finding in refused.value.fields["findings"]} == {"degrees_are_counted"}


# -- traces --------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(programs())
def test_every_capture_of_a_real_model_passes(program: Program) -> None:
    try:
        trace = tl.trace(*program.build(), capture=tl.CaptureOptions(random_seed=0))
    except tl.TraceCaptureError as exc:
        trace = exc.partial_trace
    check_trace(trace)
    trace.cleanup()


def test_a_trace_may_be_checked_while_it_goes_on_to_be_recorded() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    trace = tl.trace(model, X, capture=tl.CaptureOptions(save_grads=True))
    inside: list[bool] = []
    assert isinstance(trace.output, Tensor)
    trace.output.register_hook(lambda gradient: inside.append(check_trace(trace) is None))
    check_trace(trace)
    for _ in range(2):
        trace.backward(trace.output.sum(), retain_graph=True)
        check_trace(trace)
    assert inside
    trace.cleanup()


def test_a_trace_that_shows_other_records_than_its_events_give_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(nn.Tanh(), X)
    trace.tables.ops.column("num_args_total")
    given_ones = ops.OPS["num_args_total"]
    other_cells(monkeypatch, "num_args_total", lambda state: [one + 1 for one in given_ones(state)])
    with pytest.raises(ValidationError, match="other records than its events give") as refused:
        check_trace(trace)
    assert refused.value.code == "fold_unstable"
    trace.cleanup()


# -- journals ------------------------------------------------------------------------------------------


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """A journal of two captures, the second with a backward pass."""
    path = tmp_path / "run.journal"
    tl.trace(fine(), X, journal=path).cleanup()
    trace = tl.trace(fine(), X, journal=path, capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output.sum())
    trace.cleanup()
    return path


def test_what_was_captured_is_sound_and_has_a_fingerprint_for_each_stream(captured: Path) -> None:
    with tl.open_journal(captured) as view:
        assert check_journal(captured) == tuple(trace.fingerprint for trace in view.captures)


def test_a_damaged_journal_is_unsound(captured: Path) -> None:
    (segment, *_) = sorted((captured / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(ValidationError) as refused:
        check_journal(captured)
    assert refused.value.code == "journal_unsound"
    assert {damage.code for damage in refused.value.fields["damages"]} == {"payload_damaged"}


def test_a_stream_of_which_no_records_can_be_made_is_told_with_its_number(any_journal: Any) -> None:
    write_stream(any_journal, sound()).close()
    events = [attrs.evolve(one, site=99) if isinstance(one, OpExecuted) else one for one in sound()]
    write_stream(any_journal, events).close()
    with pytest.raises(ValidationError) as refused:
        check_journal(any_journal)
    assert refused.value.code in ("journal_unsound", "stream_illegal")


def test_reading_that_writes_is_noticed(captured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = recorded.check_trace

    def writing(trace: tl.Trace) -> None:
        (captured / "cache").mkdir(exist_ok=True)
        (captured / "cache" / "note").write_text("I was here")
        check(trace)

    monkeypatch.setattr(recorded, "check_trace", writing)
    with pytest.raises(ValidationError) as refused:
        check_journal(captured)
    assert (refused.value.code, refused.value.fields["files"]) == ("reading_wrote", ("cache/note",))


def test_a_journal_may_be_checked_while_this_process_writes_it(tmp_path: Path) -> None:
    trace = tl.trace(nn.Linear(3, 2), X, journal=tmp_path / "run.journal")
    assert len(check_journal(trace.journal)) == 1
    trace.cleanup()
    journal = open_for_reading(tmp_path / "run.journal")
    assert len(check_journal(journal)) == 1
    journal.close()


# -- models --------------------------------------------------------------------------------------------


class WrongSwish(torch.autograd.Function):
    """x * sigmoid(x), whose backward forgets that sigmoid(x) depends on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        ctx.save_for_backward(gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate,) = ctx.saved_tensors
        return gradient * gate


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return WrongSwish.apply(x)  # type: ignore[no-any-return]  # torch does not annotate apply


class Writing(nn.Module):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        seen = x.reshape(-1)  # a view, as x is contiguous
        doubled = torch.cos(x)
        seen.clamp_(min=0)
        return doubled + x


class Own(nn.Module):
    """It draws from a generator that nobody seeds."""

    draws = random.SystemRandom()

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.tanh(x)
        return kept * self.draws.random()


def fine() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout(0.5), nn.Linear(4, 2))


def test_a_sound_model_passes_every_check() -> None:
    model = fine()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    check_repeat(model, X)
    check_inputs(model, X)
    assert check_capture(model, X).status == "complete"
    compared = check_gradients(model, X)
    assert {"0.weight", "4.bias", "input.0"} <= set(compared)
    assert torch.equal(torch.random.get_rng_state(), state)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_draws_from_elsewhere_is_found_at_its_op() -> None:
    with pytest.raises(ValidationError) as refused:
        check_repeat(Own(), X)
    fields = refused.value.fields
    assert (refused.value.code, fields["op"]) == ("model_not_repeatable", "mul_1_2")
    assert "test_checks.py" in fields["place"]
    assert "mul_1_2" in str(refused.value)
    assert any(change.startswith("output") for change in fields["changes"])


def test_a_model_that_keeps_count_outside_itself_is_found() -> None:
    count = itertools.count()

    def model(x: Tensor) -> Tensor:
        return x.tanh() if next(count) % 2 else x.cos()

    with pytest.raises(ValidationError) as refused:
        check_repeat(model, X)
    assert refused.value.fields["op"] in ("tanh_1_1", "cos_1_1")


def test_a_write_to_an_input_is_found_through_a_view_and_named() -> None:
    with pytest.raises(ValidationError) as refused:
        check_inputs(Writing(), X)
    fields = refused.value.fields
    assert (refused.value.code, fields["inputs"], fields["op"]) == ("model_writes_input", ("input.0",), "clamp_1_3")
    assert "test_checks.py" in fields["place"]
    assert X.min() == -1, "the caller's tensor is left alone"
    with pytest.raises(ValidationError) as by_name:
        check_inputs(Writing(), None, {"x": X})
    assert by_name.value.fields["inputs"] == ("input.x",)


@pytest.mark.parametrize(
    ("model", "args", "inputs"),
    [
        (lambda given: (given.append(given[0]), given[0] * 1)[1], [[X]], ("input.0.1",)),
        (lambda given: given.pop("a") * 1, [{"a": X, "b": X + 1}], ("input.0.a",)),
        (lambda given: (given.update(a=given["a"].clone()), given["a"] * 1)[1], [{"a": X}], ("input.0.a",)),
        (lambda given: given.requires_grad_() * 1, X, ("input.0",)),
        (lambda given: (given.sum().backward(), given * 1)[1], X.clone().requires_grad_(), ("input.0",)),
    ],
)
def test_whatever_is_done_to_an_input_is_found(model: Any, args: Any, inputs: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        check_inputs(model, args)
    assert (refused.value.code, refused.value.fields["inputs"]) == ("model_writes_input", inputs)


class Forgetful(torch.autograd.Function):
    """A product whose backward forgets the second factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None


def test_a_gradient_that_does_not_come_is_wrong_where_the_outputs_move() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            return Forgetful.apply(x, self.scale)  # type: ignore[no-untyped-call]

    for model, args, name in ((Scaled(), X, "scale"), (Forgetful.apply, [X, X + 1], "input.1")):
        with pytest.raises(ValidationError) as refused:
            check_gradients(model, args)
        assert (refused.value.code, refused.value.fields["tensors"]) == ("gradient_wrong", (name,))
        assert refused.value.fields["functions"] == ("Forgetful",)


def test_a_wrong_backward_is_found_in_its_module_and_function() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 4), Swish())
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))  # type: ignore[no-any-return]  # a module's call is Any

    with pytest.raises(ValidationError) as refused:
        check_gradients(Net(), X)
    fields = refused.value.fields
    assert refused.value.code == "gradient_wrong"
    assert fields["tensors"] == ("body.0.weight", "body.0.bias", "input.0")
    assert (fields["modules"], fields["functions"]) == (("body.1",), ("WrongSwish",))


def test_at_an_edge_nothing_is_said_of_a_gradient() -> None:
    with pytest.warns(TorchLensWarning, match="edge by each of 1 tensors") as warned:
        assert check_gradients(nn.ReLU(), torch.zeros(2, 3)) == ()
    assert isinstance(warned[0].message, TorchLensWarning)
    assert warned[0].message.code == "gradients_at_edge"
    assert check_gradients(nn.ReLU(), torch.ones(2, 3)) == ("input.0",)


@pytest.mark.parametrize(
    ("model", "x", "why"),
    [
        (nn.Linear(3, 2), torch.full((2, 3), torch.nan), "sum to nan"),
        (torch.log, torch.zeros(2), "sum to -inf"),
        (lambda x: x.detach() * 2, torch.ones(2), "reaches an output"),
        (lambda x: x * 2, torch.ones(2, dtype=torch.int64), "reaches an output"),
    ],
)
def test_where_no_gradient_could_be_compared_the_check_does_not_pass(model: Any, x: Tensor, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as refused:
        check_gradients(model, x)
    assert refused.value.code == "gradients_not_compared"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: check_gradients(nn.ReLU(), X, rtol="a"),
        lambda: check_gradients(nn.ReLU(), X, atol=-1),
        lambda: check_gradients(nn.ReLU(), X, seed="a"),
        lambda: check_repeat(nn.ReLU(), X, seed=-1),
        lambda: check_inputs(nn.ReLU(), X, seed=1.5),
        lambda: check_capture(nn.ReLU(), X, seed=2**32),
        lambda: check_trace(5),
        lambda: check_stream(5),
        lambda: check_stream(["run_started"]),
        lambda: check_journal(5),
        lambda: tensors("2x3"),
        lambda: tensors((2, -1)),
        lambda: tensors(3),
        lambda: tensors((2,), dtype="float"),
        lambda: tensors((2,), dtype=torch.int64, nonfinite=True),
        lambda: tensors((2,), dtype=torch.bool, requires_grad=True),
    ],
)
def test_what_a_check_or_strategy_cannot_work_with_is_refused_by_code(ask: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ask()
    assert refused.value.code == "testing_argument_invalid"


def test_gradients_of_a_function_with_a_shared_input_and_keywords_are_compared() -> None:
    def model(x: Tensor, y: Tensor, *, z: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return x * y, (z["w"] ** 2).sum() + torch.view_as_complex(x.reshape(3, 2)).abs().sum()

    assert check_gradients(model, [X, X], {"z": {"w": X + 2}}) == ("input.0", "input.z.w")


def test_an_input_that_a_graph_holds_is_refused_with_the_way_out() -> None:
    held = torch.ones(2, 3, requires_grad=True) * 2
    for check in (check_repeat, check_inputs, check_gradients, check_capture):
        with pytest.raises(CompatibilityError) as refused:
            check(fine(), held)
        assert refused.value.code == "model_not_copied"
    assert_tracing_changes_nothing(lambda: (nn.Tanh(), [torch.ones(2, 3, requires_grad=True) * 2], {}))


def test_what_the_model_raises_is_raised_by_the_check_of_its_inputs() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        check_inputs(nn.Linear(2, 2), X)
    check_repeat(nn.Linear(2, 2), X)  # it raises the same twice
