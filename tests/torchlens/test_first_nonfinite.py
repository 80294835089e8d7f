"""Planted faults: the first tensor that is not finite is known by construction, and is what is found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from tests.programs import run
from torchlens.errors import ConfigurationError
from torchlens.questions.nonfinite_answer import FirstNonfinite


class Block(nn.Module):
    """Linear layers around a function of the fault."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.fault(torch.sigmoid(self.before(x)))
        return self.after(x).float().mean()


class Running(nn.Module):
    """A mean that is kept in a buffer and divides by a count that is still zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))
        self.register_buffer("seen", torch.zeros(()))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin(x)
        self.total.div_(self.seen)
        return (x * self.total).sum()


class Recurrent(nn.Module):
    """A state that a large weight multiplies: the activations stay bounded, the gradient grows at each step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.weight = nn.Parameter(torch.tensor(3e12))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.sin(x * self.weight * 0.0 + x * 1e12 * 0.0) + x * self.weight - x.detach() * self.weight.detach()
        return x.sum()


class Third(nn.Module):
    """The same lines run four times; the third time the logarithm is of zero."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(4):
            x = torch.log((x.abs() + 1) * (step != 2))
            x = torch.sin(x)
        return x.sum()


def softmax_of_nothing(x: Tensor) -> Tensor:
    mask = torch.zeros(3, dtype=torch.bool)
    mask[1] = True
    scores = (x @ x.t()).masked_fill(mask[:, None], -math.inf)
    return torch.softmax(scores, dim=-1) @ x


FORWARD: Final[dict[str, tuple[Callable[[Tensor], Tensor], str, str, str]]] = {
    # fault, what is looked for, op, how it came to be
    "log of zero": (lambda x: torch.log(x * 0), "nonfinite", "log_1_4", "made"),
    "root of a negative": (lambda x: torch.sqrt(x - 2), "nonfinite", "sqrt_1_4", "made"),
    "zero by zero": (lambda x: torch.where(x > 2, x, (x * 0) / (x * 0)), "nonfinite", "truediv_1_6", "made"),
    "overflow of half": (lambda x: ((x.half() + 1) * 60000).float() * 0, "nonfinite", "mul_1_5", "made"),
    "infinity less infinity": (lambda x: (x * math.inf) - (x * math.inf), "nan", "sub_1_5", "made"),
    "infinity comes before": (lambda x: (x * math.inf) - (x * math.inf), "nonfinite", "mul_1_3", "made"),
    "a row without scores": (softmax_of_nothing, "nan", "softmax_1_9", "made"),
    "exponent": (lambda x: torch.exp(x * 1000), "nonfinite", "exp_1_4", "made"),
}


def found_in(trace: tl.Trace, sort: Any = "nonfinite") -> FirstNonfinite:
    found = trace.first_nonfinite(sort)
    assert found
    return found


def operands_are(found: FirstNonfinite, bad: bool, sort: str) -> bool:
    return any((each.num_nan or 0) + (each.num_inf or 0) * (sort == "nonfinite") > 0 for each in found.operands) is bad


@pytest.mark.parametrize("save", [None, tl.stats_only()], ids=["payloads", "statistics"])
@pytest.mark.parametrize("name", FORWARD)
def test_a_fault_in_the_forward_is_found_where_it_was_planted(name: str, save: Any) -> None:
    fault, sort, label, origin = FORWARD[name]
    trace = tl.trace(Block(fault), torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), save=save)
    found = found_in(trace, sort)
    assert (found.label, found.kind, found.origin, found.verdict) == (label, "activation", origin, "first")
    assert found.made_by == (label,)
    assert operands_are(found, False, sort)
    assert all(each.is_examined for each in found.operands)
    assert found.place is not None
    assert Path(found.place.file).name == Path(__file__).name
    assert label in str(found)
    earlier = [op for op in trace.ops if op.read("event") < (found.at or 0)]
    bad = [op.label for op in earlier if op.stats.num_nan or (sort == "nonfinite" and op.stats.num_inf)]
    assert not bad


BACKWARD: Final[dict[str, tuple[Callable[[Tensor], Tensor], str, str]]] = {
    # fault, op whose gradient it is, op whose derivative made it
    "root at zero": (lambda x: x + torch.sqrt(x * 0), "mul_1_3", "sqrt_1_4"),
    "masked zero by zero": (lambda x: torch.where(x > 2, torch.sqrt(x * 0), x), "mul_1_4", "sqrt_1_5"),
    "masked power": (lambda x: torch.where(x > 2, (x - x) ** 0.5, x), "sub_1_4", "pow_1_5"),
    "norm of nothing": (lambda x: x + torch.linalg.vector_norm(x * 0, dim=1, keepdim=True).sqrt(), "", ""),
    "arc cosine at one": (lambda x: x + torch.acos(x * 0 + 1), "add_1_4", "acos_1_5"),
}


@pytest.mark.parametrize("grads", [True, tl.stats_only()], ids=["payloads", "statistics"])
@pytest.mark.parametrize("name", BACKWARD)
def test_a_fault_in_the_backward_is_found_where_it_was_planted(name: str, grads: Any) -> None:
    fault, label, maker = BACKWARD[name]
    options = tl.CaptureOptions(save_grads=grads)
    trace = tl.trace(Block(fault), torch.randn(3, 4), capture=options)
    assert not trace.first_nonfinite()
    trace.backward(trace.output)
    found = found_in(trace)
    assert (found.kind, found.backward_pass) == ("gradient", 1)
    if label:
        assert found.label == label
        assert len(found.made_by) == 1
        assert found.made_by[0].endswith(f"({maker})")
    assert found.origin == "made"
    assert found.place is not None
    assert Path(found.place.file).name == Path(__file__).name
    gradients = [each for each in trace.autograd.gradients if each.read("event") < (found.at or 0)]
    assert all(each.stats.is_finite for each in gradients if each.is_saved or each.has_stored_stats)


def test_a_gradient_that_grows_at_each_step_is_found_at_the_step_that_overflows() -> None:
    trace = tl.trace(Recurrent(6), torch.full((2,), 0.5), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output)
    found = found_in(trace)
    assert found.kind == "gradient"
    gradients = sorted(trace.autograd.gradients, key=lambda each: each.read("event"))
    first = next(each for each in gradients if not each.stats.is_finite)
    assert found.at == first.read("event")
    assert found.label == first.read("owner")
    assert ":" in str(found.label) or found.label == "weight"


def test_nan_in_an_input_was_given() -> None:
    trace = tl.trace(Block(lambda x: x), torch.full((3, 4), math.nan))
    found = found_in(trace)
    assert (found.label, found.kind, found.origin) == ("input_1", "input", "given")


@pytest.mark.parametrize("keeps", [False, True])
def test_nan_in_a_parameter_is_put_down_to_it(keeps: bool) -> None:
    model = Block(lambda x: x)
    with torch.no_grad():
        model.after.weight[1, 2] = math.nan
    trace = tl.trace(model, torch.randn(3, 4), capture=tl.CaptureOptions(save_arg_values=keeps))
    found = found_in(trace)
    assert found.label == "linear_2_3"
    (operand,) = [each for each in found.operands if each.num_nan]
    assert (operand.kind, operand.label, operand.num_nan) == ("parameter", "after.weight", 1)
    assert (found.kind, found.origin) == (("argument", "given") if keeps else ("activation", "inherited"))


def test_a_buffer_that_is_divided_by_zero_is_found_as_it_is_written() -> None:
    trace = tl.trace(Running(), torch.randn(2, 4))
    found = found_in(trace)
    assert found.label == "div__1_2" or found.label == "div_1_2"
    assert found.origin == "made"
    assert any(each.label.startswith("buffer") for each in found.operands)


def test_a_fault_in_the_third_pass_only_is_found_there() -> None:
    trace = tl.trace(Third(), torch.ones(3))
    found = found_in(trace)
    assert found.label == "log_1_4:3"
    assert found.origin == "made"


def test_another_process_finds_the_same_in_the_journal(tmp_path: Path) -> None:
    told = []
    for save, fault in product((None, tl.stats_only()), (FORWARD["log of zero"][0], BACKWARD["root at zero"][0])):
        path = tmp_path / str(len(told))
        options = tl.CaptureOptions(save_grads=True if save is None else save, save_arg_values=True)
        trace = tl.trace(Block(fault), torch.randn(3, 4), save=save, capture=options, journal=path)
        trace.backward(trace.output)
        here = trace.first_nonfinite()
        trace.cleanup()
        facts = [here.at, here.label, here.kind, here.origin, here.verdict, here.num_nan, here.num_inf]
        told.append([*facts, list(here.made_by), str(here)])
    script = """
        import json, sys, torchlens as tl
        for path in sys.argv[1:]:
            f = tl.load(path).first_nonfinite()
            told = [f.at, f.label, f.kind, f.origin, f.verdict, f.num_nan, f.num_inf, f.made_by, str(f)]
            print(json.dumps(told))
    """
    ran = run(script, *(tmp_path / str(number) for number in range(4)))
    assert [json.loads(line) for line in ran.stdout.splitlines()] == told


def test_what_was_not_kept_before_it_is_named() -> None:
    trace = tl.trace(Block(lambda x: torch.log(x * 0)), torch.randn(3, 4), save=tl.func("linear"))
    found = found_in(trace)
    assert (found.label, found.verdict, found.origin) == ("linear_2_5", "first_seen", "unknown")
    assert found.unexamined == ("input_1", "sigmoid_1_2", "mul_1_3", "log_1_4")
    assert "not looked at before it: input_1" in str(found)


def test_a_capture_that_is_finite_says_so_and_is_false() -> None:
    clean = tl.trace(Block(lambda x: x), torch.randn(3, 4)).first_nonfinite()
    assert not clean
    assert (clean.verdict, clean.at, clean.unexamined) == ("clean", None, ())
    partly = tl.trace(Block(lambda x: x), torch.randn(3, 4), save=tl.func("linear")).first_nonfinite()
    assert partly.verdict == "clean_as_seen"
    nothing = tl.trace(Block(lambda x: x), torch.randn(3, 4), save="none").first_nonfinite()
    assert nothing.verdict == "not_checked"
    assert "not checked" in str(nothing)


def test_where_a_nan_ended_the_forward_it_is_the_one() -> None:
    with pytest.raises(tl.TraceCaptureError) as raised:
        tl.trace(
            Block(lambda x: torch.log(x * 0)),
            torch.randn(3, 4),
            save=tl.func("linear"),
            capture=tl.CaptureOptions(raise_on_nan=True),
        )
    partial = raised.value.partial_trace
    assert partial is not None
    found = found_in(partial)
    assert found.num_inf == 12
    assert found.kind == "activation"


def test_what_is_neither_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        tl.trace(nn.ReLU(), torch.ones(1)).first_nonfinite("inf")  # type: ignore[arg-type]
    assert refused.value.code == "option_value_invalid"


def test_each_payload_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def views(x: Tensor) -> Tensor:
        parts = x.t().reshape(2, -1).chunk(2)
        return torch.cat([part.flip(0).view(-1) for part in parts]).sum() + x[1:].sum() + x.view(-1)[2:].sum()

    options = tl.CaptureOptions(save_grads=True, save_arg_values=True)
    trace = tl.trace(views, torch.ones(4, 4, requires_grad=True), journal=tmp_path / "j", capture=options)
    trace.backward(trace.output)
    trace.cleanup()
    trace = tl.load(tmp_path / "j")
    reads: dict[int, int] = {}
    read = trace.journal.payload

    def counted(stream: Any, number: int) -> Any:
        reads[number] = reads.get(number, 0) + 1
        return read(stream, number)

    monkeypatch.setattr(trace.journal, "payload", counted)
    clean = trace.first_nonfinite()
    assert clean.verdict in ("clean", "clean_as_seen")  # a copy within reshape has a node, and no op
    assert all(name.startswith("clone_back") for name in clean.unexamined)
    assert len(reads) > 10
    assert set(reads.values()) == {1}


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["relu", "tanh", "sigmoid", "abs", "neg"]), min_size=2, max_size=8),
    st.data(),
    st.booleans(),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_a_value_planted_at_any_op_of_a_chain_is_found_there(
    names: list[str], data: st.DataObject, measured: bool, value: float
) -> None:
    at = data.draw(st.integers(0, len(names) - 1))

    def forward(x: Tensor) -> Tensor:
        for step, name in enumerate(names):
            x = getattr(torch, name)(x)
            if step == at:
                x = torch.where(torch.arange(4) == 2, value, x)
            x = torch.nan_to_num(x) if step == at else x
        return x

    trace = tl.trace(forward, torch.linspace(-1, 1, 4), save=tl.stats_only() if measured else None)
    found = found_in(trace)
    (planted,) = [op for op in trace.ops if op.func_name == "where"]
    assert (found.label, found.at) == (planted.label, planted.read("event"))
    assert found.num_nan == math.isnan(value)
    assert found.num_inf == math.isinf(value)
    assert found.origin == "made"
