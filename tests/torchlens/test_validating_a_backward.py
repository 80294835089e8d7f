"""Validating a backward says yes to sound captures, no to each kind of wrong one, and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl
from projections.promises import invariants
from tests.torchlens.models import refusal
from torchlens import api, compat
from torchlens.backward import engine
from torchlens.backward.hooks import Tape
from torchlens.errors import ConfigurationError, TorchLensError
from torchlens.reading.view import View
from torchlens.testing import Program, programs
from torchlens.validation.default_loss import weighted
from torchlens.validation.findings import ValidationReport


@pytest.fixture(autouse=True)
def nothing_armed() -> None:
    """Traces that other tests have left are told of no run."""
    for held in tuple(engine._armed):
        diary = held()
        if diary is not None:
            engine.disarm(diary)


ROWS = torch.linspace(-2, 2, 12).reshape(3, 4)


def backward(model: Any, *args: Any, **options: Any) -> ValidationReport:
    found: ValidationReport = tl.validation.report(model, list(args), scope="backward", **options)
    return found


def no(model: Any, *args: Any, code: str = "validation_failed", **options: Any) -> ValidationReport:
    """The report of a validation that must fail, and does so with one warning."""
    with pytest.warns(tl.errors.TorchLensWarning) as caught:
        assert tl.validate(model, list(args), scope="backward", **options) is False
    assert [getattr(warning.message, "code", None) for warning in caught] == [code]
    found = tl.validation.last_validation_failure()
    assert found is not None
    return found


def failed(found: ValidationReport) -> set[str | None]:
    assert not found
    return {check.reason for check in found.failures}


# -- sound captures


class Of(nn.Module):
    """A module that does what it is told, with some layers to do it with."""

    def __init__(self, do: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.do = do
        self.fc, self.other, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.norm, self.rectify, self.same = nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Identity()
        self.table = nn.Embedding(6, 4, sparse=True)

    def forward(self, x: Tensor) -> Any:
        return self.do(self, x)


def reentrant(own: Of, x: Tensor) -> Tensor:
    made: Tensor = checkpoint(lambda y: own.other(y).tanh(), own.fc(x), use_reentrant=True)
    return made


def not_reentrant(own: Of, x: Tensor) -> Tensor:
    made: Tensor = checkpoint(lambda y: own.drop(own.other(y)).tanh(), own.fc(x), use_reentrant=False)
    return made


def in_place(own: Of, x: Tensor) -> Tensor:
    y = own.rectify(own.norm(own.fc(x)))
    left, right = own.other(y)[:, :2], own.other(y)[:, 2:]
    left = left.mul_(2)
    z = torch.cat([left, right], 1)
    z[:, 1] += 1
    return z


def frozen(own: Of, x: Tensor) -> Tensor:
    own.fc.requires_grad_(False)
    made: Tensor = own.other(own.fc(x))
    return made


def cut(own: Of, x: Tensor) -> Tensor:
    made: Tensor = own.other(own.fc(x).detach())
    return made


def complex_numbers(own: Of, x: Tensor) -> Tensor:
    made: Tensor = torch.fft.fft(own.fc(x)) * torch.complex(own.other(x), x)
    return made


def lower(own: Of, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        made: Tensor = own.other(own.fc(x).relu())
    return made


def hooked(own: Of, x: Tensor) -> Tensor:
    y = own.fc(x)
    y.register_hook(lambda grad: grad * 3)
    made: Tensor = own.other(y)
    return made


def forces(own: Of, x: Tensor) -> tuple[Tensor, Tensor]:
    """A gradient that is part of the forward, as of a potential of molecules."""
    x = x.detach().requires_grad_()
    energy = own.fc(x).pow(3).sum()
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    return energy, own.other(slope)


def containers(own: Of, x: Tensor) -> dict[str, Any]:
    y = own.same(own.fc(x))
    return {"one": y, "more": (own.other(y), [y.argmax(1), None]), "whole": x.long(), "n": 3}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.left(x), {"right": self.right(x), "indexes": x.argmax(0)}


def several(own: Of, x: Tensor) -> Tensor:
    own.pair = Pair()
    left, rest = own.pair(own.fc(x))
    made: Tensor = left * rest["right"]
    return made


def shared(own: Of, x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.tanh(own.fc(x)) + own.other(x)
    return x


FORWARDS: dict[str, Callable[[Of, Tensor], Any]] = {
    "a shared module": shared,
    "dropout in train mode": lambda own, x: own.other(own.drop(own.fc(x))),
    "containers, and outputs of whole numbers": containers,
    "a module with several outputs": several,
    "in place, and a norm in train mode": in_place,
    "a frozen part": frozen,
    "a cut": cut,
    "complex numbers": complex_numbers,
    "autocast": lower,
    "a sparse embedding": lambda own, x: own.fc(own.table(torch.tensor([[0, 1, 1], [5, 0, 1]]))) * x.sum(),
    "a hook of the model's own": hooked,
    "a gradient in the forward": forces,
    "a checkpoint": not_reentrant,
    "a reentrant checkpoint": reentrant,
    "parts of no use": lambda own, x: (own.fc(x), own.other(x).detach())[0],
    "nested tensors": lambda own, x: torch.nested.as_nested_tensor([own.fc(x)[0], own.other(x)[1, :2]]),
    "one element": lambda own, x: own.fc(x).max(),
    "a norm of gradients that is fused": lambda own, x: F.scaled_dot_product_attention(own.fc(x), own.other(x), x),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", FORWARDS)
def test_a_sound_backward_is_valid(name: str, requires_grad: bool) -> None:
    torch.manual_seed(0)
    found = backward(Of(FORWARDS[name]), ROWS.clone().requires_grad_(requires_grad))
    assert found, found.summary()
    for kind in ("leaf_gradient", "increment", "module_gradient", "flow"):
        assert found.count(kind, "passed") > 0, kind
    assert found.count("invariant", "passed") == len(invariants.PROMISES)
    assert found.reasons("skipped").keys() <= {"changed_by_hook"}


def test_most_of_a_backward_is_checked() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    found = backward(model, ROWS.clone().requires_grad_())
    assert found.count("leaf_gradient", "passed") == 5
    assert found.count("increment", "passed") == 4
    assert found.count("module_gradient", "passed") == 3
    assert found.reasons("skipped") == {}
    assert [check.record for check in found.checks if check.kind == "module_gradient"] == ["0:1", "1:1", "2:1"]


def test_bfloat16_is_valid() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)).bfloat16()
    assert tl.validate(model, ROWS.bfloat16(), scope="backward")


def test_a_hook_that_changes_a_gradient_leaves_its_place_out_of_the_flow() -> None:
    found = backward(Of(hooked), ROWS)
    (skipped,) = [check for check in found.checks if check.outcome == "skipped"]
    assert (skipped.kind, skipped.reason) == ("flow", "changed_by_hook")


def test_a_hook_before_a_node_leaves_a_backward_valid() -> None:
    def do(own: Of, x: Tensor) -> Tensor:
        y = own.fc(x)
        compat.node_of(y).register_prehook(lambda grads: (grads[0] * 2,))
        made: Tensor = own.other(y)
        return made

    found = backward(Of(do), ROWS)
    assert found, found.summary()
    assert not found.reasons("skipped")


def test_a_hook_before_the_node_of_a_leaf_leaves_its_place_out_of_the_flow() -> None:
    model = Of(lambda own, x: own.other(own.fc(x)))
    gatherer = torch.autograd.graph.get_gradient_edge(model.fc.weight).node
    handle = gatherer.register_prehook(lambda grads: (grads[0] * 2,))
    found = backward(model, ROWS)
    handle.remove()
    assert found, found.summary()
    assert found.reasons("skipped") == {"changed_by_hook": 1}
    assert found.count("increment", "passed") == len(list(model.parameters()))


def test_dropout_is_valid_with_a_seed_and_the_generators_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    state = torch.get_rng_state()
    assert tl.validate(model, ROWS, scope="backward", random_seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_may_be_made_in_any_way() -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), ROWS.clone().requires_grad_()

    def penalty(output: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        made: Tensor = (slope.norm(dim=1) - 1).pow(2).mean() + F.dropout(output, 0.5).sum()
        return made

    found = backward(model, x, loss_fn=penalty)
    assert found, found.summary()
    assert x.grad is None


def test_a_backward_is_validated_wherever_it_is_asked_for() -> None:
    with torch.no_grad():
        assert tl.validate(nn.Sequential(nn.Linear(4, 2)), ROWS, scope="backward")


RECURRENT = Program.parse("""
model(train=False, seed=0, returns='one')
a = given('float32')
def block_1():
    pass
def main():
    a = block_1(a, a)
    a = lstm(a, a)
""")
"""A gradient arrives at an output of its fused node at which no op stands, so that it is not kept."""


@given(program=programs())
@example(program=RECURRENT)
@settings(max_examples=25)
@pytest.mark.filterwarnings("ignore")
def test_the_backward_of_any_model_is_valid_or_says_why_it_cannot_be_checked(program: Program) -> None:
    model, args, kwargs = program.build()
    try:
        found = tl.validation.report(model, list(args), kwargs, scope="backward")
    except TorchLensError:
        raise
    except Exception:  # noqa: BLE001  # the program, or its backward, raises by itself
        return
    reasons = {check.reason for check in found.failures}
    assert reasons <= {"no_module_output_evidence", "nothing_differentiable"}, found.summary()


# -- what is left alone


def test_the_model_and_what_it_is_given_are_as_they_were_found() -> None:
    torch.manual_seed(0)
    model, x = Of(in_place), ROWS.clone().requires_grad_()
    model(x).sum().backward()
    model.other.eval()
    before = copy.deepcopy(model.state_dict())
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    values = {name: None if grad is None else grad.clone() for name, grad in grads.items()}
    own, kept = x.grad, None if x.grad is None else x.grad.clone()
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    state, original = torch.get_rng_state(), Tensor.register_hook
    assert tl.validate(model, x, scope="backward")
    assert tl.validate(model, x, scope="backward", random_seed=1)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, parameter in model.named_parameters():
        assert parameter.grad is grads[name], name
        grad = values[name]
        assert grad is None or (parameter.grad is not None and torch.equal(parameter.grad, grad)), name
        assert parameter.requires_grad
    assert x.grad is own
    assert kept is not None
    assert own is not None
    assert torch.equal(own, kept)
    assert {name: len(module._forward_hooks) for name, module in model.named_modules()} == hooks
    assert [model.training, model.other.training, model.fc.training] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), state)
    assert Tensor.register_hook is original


def test_a_graph_of_the_callers_is_neither_run_nor_freed() -> None:
    before = nn.Linear(4, 4)
    x = before(ROWS)
    found = backward(nn.Sequential(nn.Linear(4, 2)), x)
    assert found, found.summary()
    assert [check.record for check in found.checks if check.kind == "leaf_gradient"][-1] == "argument 0"
    assert before.weight.grad is None
    x.sum().backward()
    assert before.weight.grad is not None


def test_a_model_that_raises_is_put_back_and_its_exception_is_raised() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.eval()
            made: Tensor = self.fc(x).exp().mul_(2)  # exp needs what it gave
            return made

    model = Raises()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        tl.validate(model, ROWS, scope="backward")
    assert (model.steps, model.training, model.fc.weight.grad) == (0, True, None)


# -- nothing can be found out


def test_a_model_without_a_module_inside_has_no_evidence() -> None:
    code = "backward_validation_no_module_output_evidence"
    assert failed(no(nn.Linear(4, 2), ROWS, code=code)) == {"no_module_output_evidence"}
    assert failed(no(lambda x: x * 2, ROWS.clone().requires_grad_(), code=code)) == {"no_module_output_evidence"}
    unused = Of(lambda own, x: (own.fc.weight * x.sum(), own.other(x).detach())[0])
    assert failed(no(unused, ROWS, code=code)) == {"no_module_output_evidence"}
    assert tl.validate(nn.Linear(4, 2), ROWS, scope="backward", validate_layer_grads=False)


def test_a_parameter_that_is_no_leaf_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    layer: Any = model[0]
    made: Any = layer.weight * 2
    del layer.weight
    layer._parameters["weight"] = made
    found = no(model, ROWS, code="backward_validation_non_leaf_parameter")
    assert failed(found) == {"non_leaf_parameter"}
    assert [check.record for check in found.failures] == ["0.weight"]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.Sequential(nn.Linear(4, 2)).requires_grad_(False), id="all frozen"),
        pytest.param(Of(lambda own, x: own.fc(x).argmax(1)), id="whole numbers alone"),
        pytest.param(Of(lambda own, x: None), id="nothing"),
    ],
)
def test_a_model_with_nothing_to_differentiate_is_told(model: nn.Module) -> None:
    found = no(model, ROWS, code="backward_validation_nothing_differentiable")
    assert failed(found) == {"nothing_differentiable"}


# -- failures, each by its reason


class WhileCaptured(torch.autograd.Function):
    """Its backward is right in a bare run alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 3 if any(True for held in engine_armed()) else 2
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.factor


def engine_armed() -> Iterator[Any]:
    """What shows that a capture runs: torch's functions are wrapped."""
    if hasattr(torch.tanh, "__wrapped__"):
        yield torch.tanh


def test_a_function_whose_backward_depends_on_being_captured_is_found() -> None:
    function: Any = WhileCaptured
    found = no(Of(lambda own, x: own.other(function.apply(own.fc(x)))), ROWS)
    assert "gradients_differ" in failed(found)
    wrong = {check.record for check in found.failures if check.reason == "gradients_differ"}
    assert wrong == {"fc.weight", "fc.bias"}
    right = {check.record for check in found.checks if check.kind == "leaf_gradient" and check.outcome == "passed"}
    assert {"other.weight", "other.bias"} <= right


@pytest.mark.parametrize(("run", "reason"), [(0, "model_not_deterministic"), (1, "gradients_differ")])
def test_a_hook_that_changes_a_gradient_in_one_run_is_found(run: int, reason: str) -> None:
    runs = iter(range(100))

    def do(own: Of, x: Tensor) -> Tensor:
        y, number = own.fc(x), next(runs)
        y.register_hook(lambda grad: grad * 2 if number == run else grad)
        made: Tensor = own.other(y)
        return made

    assert reason in failed(no(Of(do), ROWS))


def test_a_hook_that_changes_a_gradient_in_the_run_of_hooks_alone_is_told_as_the_models() -> None:
    runs = iter(range(100))

    def do(own: Of, x: Tensor) -> Tensor:
        y, number = own.fc(x), next(runs)
        made: Any = own.other(own.same(y * 1))
        made.register_hook(lambda grad: grad * 2 if number == 2 else grad)
        result: Tensor = made * 1
        return result

    assert failed(no(Of(do), ROWS)) == {"model_not_deterministic"}


@pytest.mark.parametrize("factor", [2, 1 + 1e-6])
def test_no_effect_of_a_capture_passes_for_noise_of_the_model(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = engine._run, Of(shared)

    def bent(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        return result

    monkeypatch.setattr(engine, "_run", bent)  # what stands for torch's function wherever a capture is armed
    assert failed(no(model, ROWS)) == {"gradients_differ"}


def test_no_capture_is_armed_in_a_run_without_recording() -> None:
    armed: list[int] = []

    def do(own: Of, x: Tensor) -> Tensor:
        y = own.fc(x)
        y.register_hook(lambda grad: armed.append(len(engine._armed)))
        made: Tensor = own.other(y) + len(armed)  # no two runs are the same, so all there are are made
        return made

    no(Of(do), ROWS)
    assert sorted(armed) == [0] * (len(armed) - 1) + [1]
    assert len(armed) > 3


def test_a_model_with_state_that_nobody_puts_back_is_told_as_such() -> None:
    runs = iter(range(1, 100))
    found = no(Of(lambda own, x: own.other(own.fc(x)) * next(runs)), ROWS)
    assert failed(found) == {"model_not_deterministic"}


def test_a_loss_that_is_another_each_time_is_told_as_such() -> None:
    runs = iter(range(1, 100))
    found = no(Of(shared), ROWS, loss_fn=lambda output: output.sum() + next(runs))
    assert failed(found) == {"model_not_deterministic"}
    assert {check.kind for check in found.failures} == {"loss"}


def test_another_loss_in_the_captured_run_is_found() -> None:
    runs = iter(range(100))
    found = no(Of(shared), ROWS, loss_fn=lambda output: output.sum() + (next(runs) == 1))
    assert failed(found) == {"losses_differ"}


def test_a_gradient_that_is_recorded_wrongly_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    right = View.gradient

    def wrong(self: View, row: int) -> Any:
        made = right(self, row)
        return made * 2 if self.table("gradients").value("owner", row) in ("linear_1_1", "2.bias") else made

    monkeypatch.setattr(View, "gradient", wrong)
    found = no(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), ROWS)
    assert failed(found) == {"recorded_gradient_differs"}
    assert {(check.kind, check.record) for check in found.failures} == {
        ("module_gradient", "0:1"),
        ("increment", "2.bias"),
    }


def test_a_gradient_that_was_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tape.tell

    def wrong(self: Tape, node: int, side: Any, *rest: Any, keeps: bool) -> None:
        if (node, side) != (0, "output"):
            right(self, node, side, *rest, keeps=keeps)

    monkeypatch.setattr(Tape, "tell", wrong)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    found = no(model, ROWS, validate_metadata=False)
    assert {"recorded_gradient_differs", "flow_inconsistent"} <= failed(found)


def test_a_gradient_that_was_sent_otherwise_than_it_arrived_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tape.tell

    def wrong(self: Tape, node: int, side: Any, slot: int, gradient: Tensor, *, keeps: bool) -> None:
        right(self, node, side, slot, gradient * 2 if side == "input" else gradient, keeps=keeps)

    monkeypatch.setattr(Tape, "tell", wrong)
    found = no(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), ROWS)
    assert failed(found) == {"flow_inconsistent"}
    assert "elements differ, by at most" in found.failures[0].detail


def test_records_that_contradict_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tl.Trace.backward

    def wrong(self: tl.Trace, *args: Any, **options: Any) -> tl.Trace:
        right(self, *args, **options)
        nodes = self.tables.grad_fns
        nodes.made["order"] = [2] * len(nodes)
        return self

    monkeypatch.setattr(tl.Trace, "backward", wrong)
    model = nn.Sequential(nn.Linear(4, 2))
    found = no(model, ROWS)
    assert failed(found) == {"invariant_broken"}
    assert tl.validate(model, ROWS, scope="backward", validate_metadata=False)


def test_a_captured_run_that_raises_where_a_bare_one_does_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: tl.Trace, *args: Any, **options: Any) -> tl.Trace:
        raise ArithmeticError("no")

    monkeypatch.setattr(tl.Trace, "backward", wrong)
    found = no(nn.Sequential(nn.Linear(4, 2)), ROWS)
    assert failed(found) == {"captured_run_raised"}
    assert found.failures[0].detail == "ArithmeticError: no"


def test_a_backward_that_no_pass_tells_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: tl.Trace, loss: Tensor, **options: Any) -> tl.Trace:
        self.autograd.disarm()
        torch.autograd.backward(loss)
        return self

    monkeypatch.setattr(tl.Trace, "backward", wrong)
    found = no(nn.Sequential(nn.Linear(4, 2)), ROWS)
    assert "backward_not_recorded" in failed(found)


# -- what is skipped


def test_what_a_hook_takes_from_a_parameter_is_not_compared_with_what_was_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 2))

    def take(parameter: Tensor) -> None:
        parameter.grad = None

    bias: Any = model[0].bias
    handle = bias.register_post_accumulate_grad_hook(take)
    found = backward(model, ROWS)
    handle.remove()
    assert found, found.summary()
    assert dict(found.reasons("skipped")) == {"gradient_taken": 1}


def test_a_module_whose_forward_is_called_itself_is_not_seen_without_recording() -> None:
    found = backward(Of(lambda own, x: own.other(own.fc.forward(x))), ROWS)
    assert found, found.summary()
    assert dict(found.reasons("skipped")) == {"module_call_unseen": 1}


def test_a_gradient_that_is_not_the_same_twice_may_differ_within_a_tolerance() -> None:
    noise = iter([0.0, 1e-7, 2e-7, 3e-7] * 20)
    model = Of(lambda own, x: own.other(own.fc(x)) * (1 + next(noise)))
    assert tl.validate(model, ROWS, scope="backward")
    noise = iter([0.0, 1e-2, 2e-2, 3e-2] * 20)
    assert failed(no(model, ROWS)) == {"model_not_deterministic"}
    noise = iter([0.0, 1e-2, 2e-2, 3e-2] * 20)
    assert tl.validate(model, ROWS, scope="backward", atol=1.0, rtol=1.0)
    noise = iter([0.0, 1e-2, 2e-2, 3e-2] * 20)
    found = no(model, ROWS, atol=1.0, rtol=1.0, layer_grad_atol=0.0, layer_grad_rtol=0.0)
    assert {check.kind for check in found.failures} == {"module_gradient"}


# -- options


def asked(**options: Any) -> str | None:
    return refusal(lambda: tl.validate(torch.tanh, ROWS, **options), ConfigurationError)


def test_options_that_a_scope_has_no_use_for_are_refused() -> None:
    options: dict[str, Any] = {
        "loss_fn": torch.sum,
        "validate_layer_grads": True,
        "layer_grad_atol": 0.1,
        "layer_grad_rtol": 0.1,
    }
    for scope in ("forward", "saved"):
        for name, value in options.items():
            assert asked(scope=scope, **{name: value}) == "validation_option_conflict", (scope, name)
    for name in ("layer_grad_atol", "layer_grad_rtol"):
        assert asked(scope="backward", validate_layer_grads=False, **{name: 0.1}) == "validation_option_conflict"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"loss_fn": 3}, "option_value_invalid"),
        ({"validate_layer_grads": "yes"}, "option_value_invalid"),
        ({"random_seed": -1}, "random_seed_invalid"),
        ({"loss_fn": lambda output: output}, "loss_fn_result_invalid"),
        ({"loss_fn": lambda output: 3}, "loss_fn_result_invalid"),
        ({"loss_fn": lambda output: torch.complex(output.sum(), output.sum())}, "loss_fn_result_invalid"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], code: str) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    assert refusal(lambda: tl.validate(model, ROWS, scope="backward", **options), ConfigurationError) == code
    assert model[0].weight.grad is None


def test_the_loss_that_is_made_by_default_gives_every_kind_of_output_a_gradient() -> None:
    x = ROWS.clone().requires_grad_()
    kinds = [x, x.bfloat16(), x.double(), torch.fft.fft(x), x.to_sparse(), F.softmax(x, 1), x.conj()]
    for kind in kinds:
        loss = weighted({"one": [kind], "whole": x.long()})
        assert loss is not None
        (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert grad.abs().max() > 1e-3
    assert weighted([ROWS, None]) is None
    assert compat.is_leaf(x)
    assert api.trace is tl.trace
