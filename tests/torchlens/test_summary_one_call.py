"""``tl.summary(model, x)``: one forward, told, and nothing of it stays."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import torchlens as tl
from torchlens.errors import ConfigurationError
from torchlens.generators import RandomState
from torchlens.testing import Program, programs


class Restless(nn.Module):
    """Changes what it can: buffers, a parameter, attributes, lists, modes, hooks and generators; raises if told."""

    def __init__(self, *, raises: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.fc.register_forward_hook(lambda module, given, out: out + torch.rand(()))
        self.seen: list[int] = []
        self.raises = raises
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        with torch.no_grad():
            self.fc.weight.mul_(2)
        self.fc.weight.grad = None
        self.seen.append(len(x))
        self.last = x
        self.norm.train()
        x = self.drop(self.norm(self.fc(x))) * random.random() * float(np.random.rand())  # the global one
        self.fc.register_forward_pre_hook(lambda module, given: None)
        if self.raises:
            raise ValueError("on purpose")
        return x


def told(model: nn.Module) -> Any:
    """Everything about a model that a forward could change, and the generators."""
    generators = RandomState()
    numpy = generators.numpy
    return {
        "tensors": {name: (id(one), one.clone()) for name, one in model.state_dict(keep_vars=True).items()},
        "grads": {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()},
        "modes": {name: one.training for name, one in model.named_modules()},
        "hooks": {
            name: (list(one._forward_hooks), list(one._forward_pre_hooks)) for name, one in model.named_modules()
        },
        "attributes": {name: sorted(vars(one)) for name, one in model.named_modules()},
        "torch": generators.torch.clone(),
        "python": generators.python,
        "numpy": (numpy[0], numpy[1].tolist(), *numpy[2:]),
    }


def require_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            require_same(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            require_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("execution_mode", ["eval", "train", "same"])
def test_the_model_and_the_generators_are_as_they_were(raises: bool, execution_mode: Any) -> None:
    model = Restless(raises=raises)
    model(torch.randn(3, 4)).sum().backward() if not raises else None
    model.fc.weight.grad = torch.ones(4, 4)
    before, seen = told(model), list(model.seen)
    if raises:
        with pytest.raises(tl.TraceCaptureError) as caught:
            tl.summary(model, torch.randn(3, 4, generator=torch.Generator()), execution_mode=execution_mode)
        assert caught.value.partial_trace is not None
        assert "on purpose" in caught.value.partial_trace.summary()
    else:
        summary = tl.summary(model, torch.randn(3, 4, generator=torch.Generator()), execution_mode=execution_mode)
        assert [row.training for row in summary.rows if row.label == "norm"] == [execution_mode != "eval"]
    require_same(told(model), before)
    assert model.seen == seen
    assert torch.is_grad_enabled()


@settings(max_examples=12)
@given(program=programs(without=("raises", "wrong_shape")))
def test_it_is_the_summary_of_a_trace_in_eval_mode_without_autograd(program: Program) -> None:
    model, args, kwargs = program.build()
    twin = program.build()[0]
    try:
        found = tl.summary(model, args, kwargs)
    except tl.TorchLensError:
        return
    with torch.no_grad():
        trace = tl.trace(twin.eval(), args, kwargs, save="none")
    wanted = trace.summary()
    assert [untimed(row) for row in found.rows] == [untimed(row) for row in wanted.rows]
    assert found.totals["flops"] == wanted.totals["flops"]
    assert found.totals["kept"] == 0


def untimed(row: Any) -> Any:
    return {name: getattr(row, name) for name in row.__slots__ if "time" not in name and name != "__weakref__"}


def test_inputs_may_be_made_up_of_their_sizes() -> None:
    model = nn.Bilinear(3, 4, 2).double()
    before = RandomState()
    one = tl.summary(model, input_size=[(5, 3), (5, 4)])
    assert one.splitlines()[0] == "Bilinear | input (5, 3) float64, (5, 4) float64 | complete"
    assert torch.equal(RandomState().torch, before.torch)
    assert tl.summary(nn.Linear(3, 2), input_size={"input": (1, 3)}).totals["flops"] == 14
    assert tl.summary(torch.cos, input_size=(2,)).level == "op"


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("summary_option_invalid", {"execution_mode": "test"}),
        ("summary_option_invalid", {"grad_mode": "on"}),
        ("summary_option_invalid", {"input_size": "3"}),
        ("summary_option_invalid", {"input_size": (1, -3)}),
        ("summary_option_invalid", {"input_size": (10**9, 10**9)}),
        ("summary_option_invalid", {"input_size": (2**70,)}),
        ("summary_option_invalid", {"show_ops": True}),
        ("summary_option_conflict", {"input_size": (1, 4), "input_args": torch.ones(1, 4)}),
        ("summary_level_invalid", {"level": "graph"}),
    ],
)
def test_what_it_cannot_do_is_refused_before_the_model_runs(code: str, options: dict[str, Any]) -> None:
    model = Restless(raises=True)
    with pytest.raises(ConfigurationError) as caught:
        tl.summary(model, **options)
    assert caught.value.fields["code"] == code
    assert model.seen == []


def test_a_lazy_module_that_has_not_run_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        tl.summary(nn.LazyLinear(3), torch.ones(1, 2))
    assert caught.value.fields["code"] == "validation_model_uninitialized"


@pytest.mark.parametrize("verb", [tl.summary, tl.validation.report])
def test_one_that_puts_a_model_back_waits_for_another_that_has_changed_it(verb: Any) -> None:
    began, go = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            began.set()
            go.wait()
            return self.linear(x)

    model, x = Slow().train(), torch.ones(1, 2)
    first = threading.Thread(target=tl.summary, args=(model, x))
    second = threading.Thread(target=verb, args=(model, x))
    first.start()
    began.wait()
    second.start()
    second.join(0.1)
    go.set()
    first.join()
    second.join()
    assert model.training
    assert model.linear.training


def test_inputs_that_are_made_up_for_a_complex_model_are_complex() -> None:
    assert tl.summary(nn.Linear(3, 2, dtype=torch.complex64), input_size=(1, 3)).totals["ops"] == 1
