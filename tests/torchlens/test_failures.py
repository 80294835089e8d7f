"""A forward that raises: the call is named with its operands, module call and line; what came before is there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.cli import main
from torchlens.reading.calls_made import Failure


def caught(model: Any, *inputs: Any, **asked: Any) -> tl.TraceCaptureError:
    with pytest.raises(tl.TraceCaptureError) as refused:
        tl.trace(model, list(inputs), **asked)
    return refused.value


def failed(model: Any, *inputs: Any, **asked: Any) -> tuple[tl.Trace, Failure]:
    trace = caught(model, *inputs, **asked).partial_trace
    assert trace is not None
    failure = trace.failure
    assert failure is not None
    assert trace.is_partial
    trace.check_metadata_invariants()
    return trace, failure


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), Inner()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if x.sum() > -1:
            x = self.inner(x)
        return x


def test_a_shape_that_does_not_fit_names_the_call_with_its_operands() -> None:
    trace, failure = failed(Nested(), torch.ones(2, 4))
    assert trace.ops.labels == ("input_1", "linear_1_1", "relu_1_2", "sum_1_3", "gt_1_4")
    call = failure.call
    assert call is not None
    assert call.function == "torch.nn.functional.linear"
    assert [(tensor.argument, tensor.shape, tensor.dtype) for tensor in call.tensors] == [
        ("0", (2, 4), "float32"),
        ("1", (3, 5), "float32"),
        ("2", (3,), "float32"),
    ]
    assert failure.is_of_call
    assert failure.modules == ("self:1", "inner:1", "inner.fc:1")
    assert failure.module == "inner.fc:1"
    assert [place.text for place in failure.places] == [
        "x = self.inner(x)",
        "return self.fc(x)",
        "return F.linear(input, self.weight, self.bias)",
    ]
    assert failure.user_place == failure.places[1]
    assert failure.error_type == "builtins.RuntimeError"
    assert trace.conditionals[0].fired_arm_kind == "then"


def test_the_message_and_the_summary_say_where_in_short() -> None:
    error = caught(Nested(), torch.ones(2, 4))
    line = Inner.forward.__code__.co_firstlineno + 1
    for text in (str(error), str(error.partial_trace.summary()).replace("\n", " ")):  # type: ignore[union-attr]  # it has one
        said = " ".join(text.split())
        assert "in torch.nn.functional.linear(Tensor(shape=(2, 4), dtype=float32), Tensor(shape=(3, 5)" in said
        assert "in module call 'inner.fc:1'" in said
        assert f"{Path(__file__).name}:{line} in Inner.forward" in said


def test_what_the_models_own_code_raises_has_a_line_and_a_module_call_and_no_torch_call() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("mine")

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = Own()

        def forward(self, x: Tensor) -> Tensor:
            return self.own(x + 1)

    trace, failure = failed(Around(), torch.ones(2))
    assert failure.call is None
    assert not failure.is_of_call
    assert (failure.error_type, failure.error_message) == ("builtins.ValueError", "mine")
    assert failure.modules == ("self:1", "own:1")
    assert [place.text for place in failure.places] == ["return self.own(x + 1)", 'raise ValueError("mine")']
    assert trace.ops.labels == ("input_1", "add_1_1")
    assert "raise ValueError" in str(failure)


def test_a_failure_after_one_that_the_model_caught_is_told_and_not_that_one() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            x = x @ torch.ones(7, 7)
        except RuntimeError:
            x = x * 2
        return x.reshape(99)

    trace, failure = failed(model, torch.ones(2, 3))
    assert failure.call is not None
    assert (failure.call.function, failure.call.args) == (
        "torch.Tensor.reshape",
        "Tensor(shape=(2, 3), dtype=float32), 99",
    )
    assert [(tensor.shape, tensor.dtype) for tensor in failure.call.tensors] == [((2, 3), "float32")]
    assert "mul_1_2" in trace.ops.labels or "mul_1_1" in trace.ops.labels


def test_an_error_that_the_model_made_of_a_calls_is_told_with_the_call() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            return x @ x
        except RuntimeError as exc:
            raise KeyError("bad shape") from exc

    _, failure = failed(model, torch.ones(2, 3))
    assert failure.call is not None
    assert (failure.call.raised, failure.is_of_call) == ("builtins.RuntimeError", False)
    assert failure.error_type == "builtins.KeyError"
    assert failure.place is not None
    assert failure.place.text == 'raise KeyError("bad shape") from exc'


def test_a_failure_inside_an_op_that_is_not_watched_names_that_op() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x @ x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    _, failure = failed(lambda x: Fails.apply(x * 2), torch.ones(2, 3))
    assert failure.call is not None
    assert failure.call.function.endswith("Fails.apply") or "Fails" in failure.call.function
    assert [tensor.shape for tensor in failure.call.tensors] == [(2, 3)]


def test_a_failure_inside_a_branch_leaves_the_conditional_with_the_arm_it_was_in() -> None:
    def model(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x + 1
            return y.view(7)
        return x

    trace, failure = failed(model, torch.ones(4))
    assert trace.conditionals[0].fired_arm_kind == "then"
    assert trace.ops["add_1_3"].conditional_branch_stack == ((0, "then"),)
    assert failure.place is not None
    assert failure.place.text == "return y.view(7)"


@pytest.mark.parametrize("durability", ["close", "batch", "event"])
def test_under_a_journal_the_same_is_told_when_it_is_read_again(
    tmp_path: Path, durability: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.journal"
    trace, failure = failed(Nested(), torch.ones(2, 4), journal=tl.JournalOptions(path, durability=durability))
    told = str(failure)
    trace.cleanup()
    again = tl.load(path)
    assert str(again.failure) == told
    again.cleanup()
    found = tl.postmortem(path)
    assert found.call == failure.call
    assert (found.raised_in, found.raised_at) == (failure.modules, failure.places)
    assert main(["journal", "postmortem", str(path)]) == 1
    said = capsys.readouterr().out
    assert "torch.nn.functional.linear(Tensor(shape=(2, 4)" in said
    assert "return self.fc(x)" in said


def test_the_command_tells_the_line_that_raised_also_where_no_torch_call_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def model(x: Tensor) -> Tensor:
        y = x + 1
        raise ValueError(f"no {y.shape}")

    trace, _ = failed(model, torch.ones(2), journal=tmp_path / "j")
    trace.cleanup()
    assert main(["journal", "postmortem", str(tmp_path / "j")]) == 1
    said = capsys.readouterr().out
    assert 'raise ValueError(f"no {y.shape}")' in said
    assert "raised in" in said


MADE_TO_FAIL: dict[str, Callable[[], Any]] = {
    "at its first call": lambda: nn.Linear(3, 2),
    "in a sequence": lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 1)),
    "in what is returned": lambda: lambda x: [x, x.reshape(3)],
}


@pytest.mark.parametrize("what", MADE_TO_FAIL)
def test_whatever_fails_has_a_call_a_module_and_a_place(what: str) -> None:
    _, failure = failed(MADE_TO_FAIL[what](), torch.ones(1, 4))
    assert failure.call is not None
    assert failure.call.tensors
    assert failure.modules[0] == "self:1"
    assert failure.place is not None
    assert failure.place.text


def test_a_forward_that_did_not_raise_has_no_failure() -> None:
    assert tl.trace(nn.ReLU(), torch.ones(1)).failure is None
    assert tl.trace(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.ones(1), stop_after="0").failure is None


def test_a_message_that_cannot_be_made_longer_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(trace: tl.Trace) -> None:
        raise tl.TorchLensError(code="some_code", problem="no", remedy="none")

    monkeypatch.setattr("torchlens.reading.facade.forward.failure_of", broken)
    error = caught(nn.Linear(3, 2), torch.ones(1, 4))
    assert "mat1 and mat2" in str(error)


@pytest.mark.parametrize("through", [torch.matmul, lambda a, b: torch.matmul(a, b)])
def test_a_call_that_fails_in_a_pools_thread_is_named_and_placed_in_the_models_code(through: Any) -> None:
    def model(x: torch.Tensor) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(through, torch.relu(x), torch.ones(2, 3)).result()

    refused = caught(model, torch.ones(2, 3))
    assert refused.partial_trace is not None
    failure = refused.partial_trace.failure
    assert failure is not None
    assert failure.user_place is not None
    assert failure.user_place.file == __file__
    assert str(failure.user_place) in str(refused)
    call = failure.call
    assert call is not None
    assert failure.is_of_call
    assert call.function == "torch.matmul"
    assert [tensor.shape for tensor in call.tensors] == [(2, 3), (2, 3)]
    assert [op.label for op in refused.partial_trace.ops if not op.is_output] == ["input_1", "relu_1_1"]
    assert "torch.matmul" in str(refused)


def test_a_call_of_a_thread_is_named_where_the_model_makes_another_error_of_its() -> None:
    class Own(Exception):
        pass

    def model(x: torch.Tensor) -> Any:
        y = torch.relu(x)
        with ThreadPoolExecutor(1) as pool:
            try:
                return pool.submit(torch.mm, y, y).result()
            except RuntimeError as error:
                raise Own("in a thread") from error

    refused = caught(model, torch.ones(2, 3))
    assert refused.partial_trace is not None
    failure = refused.partial_trace.failure
    assert failure is not None
    assert failure.call is not None
    assert (failure.call.function, failure.is_of_call) == ("torch.mm", False)
    assert failure.error_message == "in a thread"


def test_a_call_of_a_thread_that_failed_and_was_recovered_from_is_no_failure() -> None:
    def model(x: torch.Tensor) -> Any:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.mm, x, x).exception() is not None
        return torch.relu(x) if len(x) < 3 else torch.mm(x, x.T.exp().T)

    assert tl.trace(model, torch.ones(2, 3)).failure is None
    refused = caught(model, torch.ones(3, 2))
    assert refused.partial_trace is not None
    assert refused.partial_trace.failure.call.tensors[1].shape == (3, 2)  # type: ignore[union-attr]  # it failed
    assert refused.partial_trace.ops.labels[-1] != "relu_1_1"
