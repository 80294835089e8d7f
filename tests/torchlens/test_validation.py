"""Validating says yes to sound captures of real models, no to each kind of wrong one, and changes nothing."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchlens as tl
from projections.promises import invariants
from projections.structure.memory import Executed
from tests.torchlens.models import Double, calls_of, refusal, replay_of
from torchlens import api
from torchlens.bits import same_bits
from torchlens.capture.recorder import Recorder
from torchlens.errors import ConfigurationError, PayloadUnavailableError
from torchlens.handles import Handles
from torchlens.tensors import DTYPE_BY_WORD
from torchlens.validation import excuses
from torchlens.validation.checking import Checking
from torchlens.validation.findings import FAILURES as FAILURE_TABLE
from torchlens.validation.perturbing import others
from torchlens.validation.validating import EXCUSES, FAILURES, SKIPS, Check, ValidationReport

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "validation.md").read_text()


class Everything(nn.Module):
    """Shared modules, buffers written and reassigned, in-place chains, views, several results, draws."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("state", torch.zeros(4))
        self.seen: list[float] = []
        self.steps = 0

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        self.steps += 1
        for _ in range(2):
            x = self.drop(self.norm(self.fc(x)))
        self.state = self.state + x.mean(0).detach()
        self.seen.append(float(self.state[0].detach()))
        y = x * 1
        y.add_(1)
        y[:, 1].mul_(3)
        y[0] = 5.0
        left, right = y.chunk(2, 1)
        return x + y, (left * right).max(1), torch.where(x > 0, x, y), {"none": None, "noise": torch.rand_like(x)}


def autocast(x: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", torch.bfloat16):
        low = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            return low, x @ x.t(), F.softmax(low, -1)


def modes(x: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        inferred = x @ x.t()
        inferred.add_(1)
    with torch.no_grad():
        plain = x.sum(0)
    return inferred, plain, x * 2


def masks(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.where(x > -100, x, -x),
        x.masked_fill(x > 100, 0.0),
        F.cross_entropy(x, torch.full((len(x),), -100)),
        x**0,
        x.long() * 0,
        x > 1e9,
        torch.zeros_like(x),
        x.expand_as(torch.zeros(2, *x.shape)),
    )


def tiny(name: str, config: str, **sizes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    return model


def gpt2() -> tuple[Any, Any]:
    return tiny("GPT2LMHeadModel", "GPT2Config", vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2), IDS


def bert() -> tuple[Any, Any]:
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return tiny("BertModel", "BertConfig", intermediate_size=32, **sizes), IDS


IDS = torch.arange(10).reshape(2, 5)
ROWS = torch.linspace(-2, 2, 12).reshape(3, 4)
STEPS = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def convolutions() -> nn.Module:
    parts = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*parts, nn.Linear(36, 2))


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a perceptron": lambda: (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ROWS),
    "convolutions in train mode": lambda: (convolutions(), IMAGES),
    "convolutions in eval mode": lambda: (convolutions().eval(), IMAGES),
    "an lstm with dropout": lambda: (nn.LSTM(4, 5, 2, batch_first=True, dropout=0.3), STEPS),
    "a gru": lambda: (nn.GRU(4, 5, bidirectional=True), STEPS),
    "a transformer encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        STEPS,
    ),
    "a transformer encoder in eval mode": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval(),
        STEPS,
    ),
    "everything": lambda: (Everything(), ROWS),
    "autocast": lambda: (autocast, ROWS),
    "inference mode": lambda: (modes, ROWS),
    "masks and constants": lambda: (masks, ROWS),
    "gpt-2": gpt2,
    "bert": bert,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_sound_capture_is_valid(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    found = tl.validation.report(model, x)
    assert found, found.summary()
    assert found.count("output", "passed") > 0
    assert found.count("reexecution", "passed") > 0
    assert found.count("perturbation", "passed") > 0
    assert found.count("invariant", "passed") == len(invariants.PROMISES)
    assert found.reasons("skipped").keys() <= {"uninitialized_memory", "nothing_else_is_safe"}


def test_most_checks_of_a_real_model_are_made() -> None:
    found = tl.validation.report(*gpt2())
    made = found.count("reexecution", "passed") + found.count("perturbation", "passed")
    assert made > 200
    assert sum(found.reasons("skipped").values()) + sum(found.reasons("excused").values()) < made / 10


def test_the_saved_scope_makes_no_bare_forward() -> None:
    calls = []

    def model(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    assert tl.validate(model, ROWS, scope="saved")
    assert len(calls) == 1
    assert tl.validation.report(model, ROWS, scope="saved", validate_metadata=False).checks[0].kind == "reexecution"
    assert tl.validate(model, ROWS)
    assert len(calls) == 4


def test_a_seed_makes_a_random_forward_the_same_each_time() -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # the global generator

    def model(x: Tensor) -> Tensor:
        return x * torch.rand(1) * float(np.random.rand())  # the same

    assert tl.validate(model, ROWS, random_seed=3)
    assert tl.validate(model, ROWS)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.random.get_state()[1].tolist() == state[1]  # the same


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("word", DTYPE_BY_WORD)
def test_other_values_have_shape_and_dtype_of_any_tensor(word: str, careful: bool) -> None:
    kind = DTYPE_BY_WORD[word]
    if word.startswith(("q", "quint")):  # has no plain memory, so nothing is put there
        return
    for shape in ((2, 3), (), (4,)):
        raw = torch.arange(1, 1 + kind.itemsize * math.prod(shape), dtype=torch.uint8)
        now = (raw > 3).reshape(shape) if kind is torch.bool else raw.view(kind).reshape(shape)
        made = list(others(now, careful=careful))
        assert made
        assert {(values.dtype, values.shape) for values in made} == {(kind, now.shape)}
        assert word == "bool" or shape == () or not all(same_bits(values, now) for values in made)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "uint16": lambda x: (x * 10).to(torch.uint16).to(torch.float32) + 1,
    "uint32": lambda x: (x * 10).to(torch.int64).to(torch.uint32).to(torch.float32) + 1,
    "float8": lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) + 1,
    "complex": lambda x: torch.fft.fft(x).abs(),
    "nan": lambda x: x * float("nan"),
    "meta": lambda x: (x * 2, (x + 1).to("meta") * 2),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_sound_capture_of_any_form_is_valid(name: str) -> None:
    found = tl.validation.report(FORMS[name], ROWS)
    assert found, found.summary()


def test_a_default_dtype_or_device_within_the_forward_is_found_again() -> None:
    def wide(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return torch.ones(4) + torch.arange(4) / 3 + x
        finally:
            torch.set_default_dtype(torch.float32)

    def elsewhere(x: Tensor) -> Any:
        with torch.device("meta"):
            return x + 1, torch.ones(3) * 2, torch.empty(3)

    assert tl.validate(wide, ROWS)
    assert tl.validate(elsewhere, ROWS)
    assert torch.get_default_dtype() is torch.float32


# -- what is left alone


def test_a_graph_over_what_is_put_back_can_still_be_differentiated() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    loss = model(ROWS).sum()
    count = model[1].running_mean._version
    assert tl.validate(model, ROWS)
    assert model[1].running_mean._version == count
    loss.backward()


class Keeps(nn.Module):
    """Returns memory of its own that it writes, and that validating puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.total = [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.total[0].add_(x.sum(0))


def test_what_lies_in_memory_that_is_put_back_is_compared_as_it_was() -> None:
    model = Keeps()
    found = tl.validation.report(model, ROWS + 1)
    assert found, found.summary()
    assert not found.reasons("skipped").keys() & {"replay_value_not_kept"}
    assert model.total[0].tolist() == [0] * 4


def test_memory_that_nobody_puts_back_makes_a_model_that_is_not_the_same_twice() -> None:
    total = torch.zeros(4)
    found = no(lambda x: total.add_(x.sum(0)), ROWS + 1)
    assert failed(found) == {"model_not_deterministic"}


def test_an_output_that_cannot_be_read_is_a_failure_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Handles, value: int) -> Tensor | None:
        raise PayloadUnavailableError(code="activation_overwritten", problem="written", remedy="none", value=value)

    monkeypatch.setattr(Handles, "tensor", refuse)
    found = no(torch.tanh, ROWS)
    assert failed(found) == {"output_not_readable"}
    assert found.reasons("skipped") == {"replay_value_not_kept": 1}


def test_whatever_is_raised_while_a_call_is_checked_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, (call,) = calls_of(torch.tanh, ROWS)
    right, calls = replay.run, iter(range(100))

    def once(*args: Any) -> Any:
        if next(calls):
            raise RuntimeError("not twice")
        return right(*args)

    monkeypatch.setattr(replay, "run", once)
    (check,) = Checking(replay, str).of(call)
    assert (check.outcome, check.reason, check.detail) == ("failed", "reexecution_raised", "RuntimeError: not twice")


def test_the_model_is_as_it_was_found() -> None:
    torch.manual_seed(0)
    model, x = Everything(), ROWS.clone().requires_grad_()
    model(x)[0].sum().backward()
    model.norm.eval()
    hook = model.fc.register_forward_hook(lambda module, args, out: out * 2)
    before = copy.deepcopy({name: dict(vars(module)) for name, module in model.named_modules()})
    held = {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    values = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    grads = {name: id(parameter.grad) for name, parameter in model.named_parameters()}
    state, grad = torch.get_rng_state(), x.grad.clone() if x.grad is not None else None
    version = model.fc.weight._version
    assert tl.validate(model, x)
    for name, module in model.named_modules():
        after = dict(vars(module))
        assert list(after) == list(before[name])
        for key in ("training", "seen", "steps"):
            assert after.get(key) == before[name].get(key)
        for kind in ("_parameters", "_buffers"):
            for key, tensor in after[kind].items():
                assert torch.equal(tensor, before[name][kind][key])
    assert {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())} == held
    assert {name: id(parameter.grad) for name, parameter in model.named_parameters()} == grads
    assert all(torch.equal(model.get_parameter(name).grad, value) for name, value in values.items())
    assert torch.equal(torch.get_rng_state(), state)
    assert grad is not None
    assert torch.equal(x.grad, grad)
    assert model.fc.weight._version == version, "a graph of the user's may hold it"
    hook.remove()


class Restless(nn.Module):
    """Changes itself in every way that is put back."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.register_buffer("b", torch.ones(4))
        self.hidden = [nn.BatchNorm1d(4)]
        self.table = {"a": torch.zeros(4)}
        self.labels = {"x"}
        self.gone = 1

    def forward(self, x: Tensor) -> Tensor:
        self.w.data = self.w.data * 2
        self.w.requires_grad_(False)
        self.w.grad = torch.ones(4)
        self.b = self.b + 1
        self.table["b"] = self.table["a"].add_(1)
        self.labels.add(f"y{len(self.labels)}")
        self.new = x
        self.register_buffer("late", torch.ones(1))
        if hasattr(self, "gone"):
            del self.gone
        self.eval()
        result: Tensor = self.hidden[0](x) * self.w + self.b + self.table["b"]
        return result


def test_a_model_that_changes_itself_is_put_back() -> None:
    model = Restless()
    memory, buffer = model.w.data_ptr(), model.b
    assert tl.validate(model, ROWS)
    assert model.w.tolist() == model.b.tolist() == [1] * 4
    assert model.w.data_ptr() == memory
    assert model.w.requires_grad
    assert model.w.grad is None
    assert model.b is buffer
    assert model.table.keys() == {"a"}
    assert model.table["a"].tolist() == [0] * 4
    assert (model.labels, model.gone, model.training) == ({"x"}, 1, True)
    assert not hasattr(model, "new")
    assert list(model._buffers) == ["b"]
    assert model.hidden[0].num_batches_tracked == 0
    assert model.hidden[0].running_mean.tolist() == [0] * 4


class Scriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.register_buffer("added", torch.zeros(()))
        self.seen, self.named, self.calls = [torch.ones(1)], {"first": torch.ones(1)}, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.added = self.added + 1
        self.seen.append(x)
        self.named["last"] = x
        result: Tensor = self.norm(self.fc(x)) + self.seen[0].add_(1)
        return result


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("scope", ["forward", "saved", "backward"])
def test_a_scripted_part_of_a_model_is_put_back(scope: Any) -> None:
    scripted: Any = torch.jit.script(Scriptable())
    model = nn.Sequential(scripted, nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    grads = [parameter.grad for parameter in model.parameters()]
    before, added = {name: value.clone() for name, value in model.state_dict().items()}, scripted.added
    assert tl.validate(model, ROWS, scope=scope)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is grad
        assert bool((grad == 7).all())
    assert scripted.added is added
    assert (scripted.calls, [tensor.tolist() for tensor in scripted.seen]) == (0, [[1]])
    assert {name: tensor.tolist() for name, tensor in scripted.named.items()} == {"first": [1]}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of torch's own batch_norm
@pytest.mark.parametrize("scope", ["forward", "backward"])
def test_a_part_that_torch_has_traced_is_put_back(scope: Any) -> None:
    inner = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    model = nn.Sequential(torch.jit.trace(inner, ROWS), nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert tl.validate(model, ROWS, scope=scope)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(bool((parameter.grad == 7).all()) for parameter in model.parameters())


def test_a_model_that_raises_is_put_back_too() -> None:
    class Raises(Restless):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise ArithmeticError

    model = Raises()
    with pytest.raises(ArithmeticError):
        tl.validate(model, ROWS)
    assert model.b.tolist() == [1] * 4
    assert model.training


# -- failures, each by its reason


def failed(found: ValidationReport) -> set[str | None]:
    assert not found
    return {check.reason for check in found.failures}


def no(model: Callable[..., Any], *args: Tensor) -> ValidationReport:
    """The report of a validation that must fail, and does so with one warning."""
    with pytest.warns(tl.errors.TorchLensWarning) as caught:
        assert tl.validate(model, list(args)) is False
    assert [warning.message.code for warning in caught] == ["validation_failed"]
    found = tl.validation.last_validation_failure()
    assert found is not None
    return found


def test_a_wrong_payload_is_found_at_the_call_that_made_it_and_at_those_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Handles.tensor
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    def wrong(self: Handles, value: int) -> Tensor | None:
        tensor = right(self, value)
        return tensor + 1e-6 if tensor is not None and value == 2 else tensor  # of tanh

    monkeypatch.setattr(Handles, "tensor", wrong)
    found = no(model, ROWS)
    assert failed(found) == {"value_not_reproduced"}
    assert [check.record for check in found.failures] == ["tanh_1_2", "linear_2_3"]
    assert "elements differ, by at most" in found.failures[0].detail


def test_a_wrong_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Handles.tensor

    def wrong(self: Handles, value: int) -> Tensor | None:
        tensor = right(self, value)
        return tensor * 2 if tensor is not None and value == 1 else tensor

    monkeypatch.setattr(Handles, "tensor", wrong)
    assert failed(no(torch.tanh, ROWS)) == {"outputs_differ", "value_not_reproduced"}


def test_exchanged_edges_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recorder._executed

    def wrong(self: Recorder, function: Any, template: Any, named: Any, inputs: list[int], *rest: Any) -> None:
        if function.func_name == "__sub__":
            inputs.reverse()
        right(self, function, template, named, inputs, *rest)

    monkeypatch.setattr(Recorder, "_executed", wrong)
    found = no(lambda x: torch.tanh(x) - torch.sin(x), ROWS)
    assert failed(found) == {"value_not_reproduced"}
    assert [check.record for check in found.failures] == ["sub_1_3"]


def test_a_forward_that_draws_outside_the_known_generators_is_told_as_such() -> None:
    start = time.perf_counter_ns()
    found = no(lambda x: x * float(time.perf_counter_ns() - start), ROWS)
    assert failed(found) == {"model_not_deterministic"}
    assert [check.kind for check in found.failures] == ["output"]


def test_a_forward_that_returns_another_structure_is_told_as_such() -> None:
    state = iter(range(100))
    found = no(lambda x: {f"a{next(state)}": x + 1}, ROWS)
    assert failed(found) == {"model_not_deterministic"}


def test_a_parent_that_makes_no_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excuses, "FORM_ONLY", {})
    found = no(lambda x, y: x * 2 + torch.zeros_like(y), ROWS, ROWS * 2)
    assert failed(found) == {"parent_has_no_effect"}
    assert [(check.record, check.parent) for check in found.failures] == [("zeroslike_1_2", "input_2")]


def test_records_that_contradict_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> tl.Trace:
        trace = right(*args, **kwargs)
        trace.tables.ops.made["step_index"] = [9] * len(trace.ops)
        return trace

    right = api.trace
    monkeypatch.setattr(api, "trace", wrong)
    found = no(torch.tanh, ROWS)
    assert failed(found) == {"invariant_broken"}
    assert [check.record for check in found.failures] == ["steps_never_fall"]
    assert tl.validate(torch.tanh, ROWS, validate_metadata=False)


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[Executed], Executed], str]] = {
    "a result too many": (
        torch.tanh,
        lambda call: call._replace(outputs=call.outputs * 2),
        "form_not_reproduced",
    ),
    "another shape": (
        torch.tanh,
        lambda call: call._replace(outputs=(call.outputs[0]._replace(shape=(1,)),)),
        "form_not_reproduced",
    ),
    "another dtype": (
        torch.tanh,
        lambda call: call._replace(outputs=(call.outputs[0]._replace(dtype="float64"),)),
        "form_not_reproduced",
    ),
    "another function": (
        torch.tanh,
        lambda call: call._replace(func_name="sin", func_qualname="torch.sin"),
        "value_not_reproduced",
    ),
    "a view told as a copy": (
        lambda x: x.t(),
        lambda call: call._replace(outputs=(call.outputs[0]._replace(view_of=None),)),
        "sharing_not_reproduced",
    ),
    "a copy told as a view": (
        torch.tanh,
        lambda call: call._replace(outputs=(call.outputs[0]._replace(view_of=0),)),
        "sharing_not_reproduced",
    ),
    "the same object told as another": (
        lambda x: x.contiguous(),
        lambda call: call._replace(outputs=(call.outputs[0]._replace(same_as=None),)),
        "sharing_not_reproduced",
    ),
    "an argument that the function does not take": (
        lambda x: x.sum(0),
        lambda call: call._replace(args=(*call.args[:1], 7)),
        "reexecution_raised",
    ),
    "another mode": (
        lambda x: torch.randn(4) * x,
        lambda call: call._replace(rng=None),
        "value_not_reproduced",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_call_that_is_told_wrongly_is_found(name: str) -> None:
    model, change, reason = CHANGES[name]
    replay, calls = calls_of(model, ROWS)
    checking = Checking(replay, str)
    assert next(checking.of(calls[0])).outcome == "passed"
    check = next(checking.of(change(calls[0])))
    assert (check.outcome, check.reason) == ("failed", reason)


def test_a_buffer_that_was_written_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tl.trace(nn.BatchNorm1d(4), ROWS)
    replay = replay_of(trace)
    right = replay.value
    assert trace.tables.buffers.value("address", 0) == "running_mean"
    written = trace.tables.ops.value("value", trace.tables.buffers.value("version_rows", 0)[-1])
    monkeypatch.setattr(replay, "value", lambda number: right(number) + (number == written))
    (check,) = [
        check
        for call in replay.memory.executed()
        for check in Checking(replay, str).of(call)
        if check.outcome == "failed"
    ]
    assert (check.func_name, check.reason) == ("batch_norm", "value_not_reproduced")


# -- what is skipped and excused, each by its reason


def test_every_reason_is_told_of_some_call() -> None:
    class Exchanges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            self.w.data = self.w.data * 2
            y = x * self.w
            packed = nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([3]), batch_first=True)
            given = torch.tensor(list(range(2000)))[:4] + torch.empty(4).fill_(1)
            late = torch.addmm(y[:, :3], x, x.t(), beta=0)
            return Double.apply(y) + packed.data.sum() + given + x.to_sparse().to_dense() + late.sum() + x[:0].sum()

    found = tl.validation.report(Exchanges(), ROWS)
    assert found, found.summary()
    excuses = set(found.reasons("excused")) | set(tl.validation.report(masks, ROWS).reasons("excused"))
    skips = set(found.reasons("skipped"))
    assert excuses == EXCUSES.keys()
    of_backward = {"changed_by_hook", "gradient_not_kept", "gradient_taken", "module_call_unseen"}
    assert skips == SKIPS.keys() - of_backward - {"replay_function_unknown", "replay_value_not_kept", "made_unseen"}


def test_calls_whose_values_are_not_kept_are_skipped_and_counted() -> None:
    replay, calls = calls_of(lambda x: torch.relu(x + 1), ROWS, save="relu_1_2")
    assert [check.reason for call in calls for check in Checking(replay, str).of(call)] == ["replay_value_not_kept"] * 2


def test_a_tolerance_holds_only_where_a_kernel_is_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, (call,) = calls_of(torch.tanh, ROWS)
    right = replay.value
    monkeypatch.setattr(replay, "value", lambda number: right(number) + 1e-6 * (number == call.first))
    assert next(Checking(replay, str, atol=1.0, rtol=1.0).of(call)).reason == "value_not_reproduced"
    noise = iter(torch.linspace(0, 1e-6, 100).tolist())
    run = replay.run

    def varying(call: Executed, tensors: Any, *rest: Any) -> Any:
        made = run(call, tensors, *rest)
        return made._replace(results=[tensor + next(noise) for tensor in made.results])

    monkeypatch.setattr(replay, "run", varying)
    assert next(Checking(replay, str).of(call)).outcome == "passed"
    assert next(Checking(replay, str, atol=0.0, rtol=0.0).of(call)).reason == "value_not_reproduced"


# -- the report


def checks() -> Iterator[Check]:
    yield Check("output", "output")
    yield Check("reexecution", "a_1_1", "a", None, "skipped", "replay_call_opaque", "why")
    yield Check("perturbation", "b_1_2", "b", "a_1_1", "excused", "form_only")
    for number in range(25):
        yield Check("reexecution", f"c_1_{number}", "c", None, "failed", "value_not_reproduced", f"by {number}")


def test_a_report_counts_and_tells() -> None:
    found = ValidationReport("Net", "forward", tuple(checks()))
    assert not found
    assert len(found.failures) == found.count("reexecution", "failed") == 25
    assert dict(found.reasons("skipped")) == {"replay_call_opaque": 1}
    assert dict(found.reasons("excused")) == {"form_only": 1}
    assert repr(found) == "<ValidationReport Net: 25 failed, 28 checks>"
    lines = found.summary().splitlines()
    assert lines[0] == "Net: NOT valid (forward)"
    assert "  reexecution: 1 skipped, 25 failed" in lines
    assert "  failed, c_1_0: value_not_reproduced: by 0" in lines
    assert lines[-1] == "  and 5 more"
    assert found.headline().startswith("25 checks of Net failed: c_1_0: value_not_reproduced: by 0; c_1_1")
    assert found.headline().endswith(" and 22 more")
    sound = attrs.evolve(found, checks=(Check("output", "\x1b[31m"),))
    assert sound
    assert repr(sound) == "<ValidationReport Net: valid, 1 check>"
    assert sound.headline() == "every check of Net passed"


def test_every_reason_is_explained_on_the_page_in_the_words_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert told.keys() == {*FAILURE_TABLE, *SKIPS, *EXCUSES}
    for reason, text in (*FAILURE_TABLE.items(), *SKIPS.items(), *EXCUSES.items()):
        assert told[reason].startswith(text), reason
    assert FAILURES is FAILURE_TABLE


# -- refusals


def test_an_unknown_scope_is_refused() -> None:
    unknown: Any = "nonsense"
    code = refusal(lambda: tl.validate(torch.tanh, ROWS, scope=unknown), ConfigurationError)
    assert code == "validation_scope_unknown"


@pytest.mark.parametrize("scope", ["intervention", "receptive_field"])
def test_a_scope_that_comes_later_is_refused(scope: Any) -> None:
    assert refusal(lambda: tl.validate(torch.tanh, ROWS, scope=scope), ConfigurationError) == "option_not_available"


def test_a_lazy_model_that_has_not_run_is_refused() -> None:
    model = nn.LazyLinear(3)
    assert refusal(lambda: tl.validate(model, ROWS), ConfigurationError) == "validation_model_uninitialized"
    model(ROWS)
    assert tl.validate(model, ROWS)
