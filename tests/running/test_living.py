"""A model that changed after its capture: a run follows it where it can, and is never falsely verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from tests.running.comparing import REPLAYABLE

X = torch.tensor([1.0, 2.0, 3.0])


class Net(nn.Module):
    """Has a parameter, a submodule, a buffer that may be None, and a tensor that is neither."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight, self.inner, self.table = nn.Parameter(torch.ones(3)), nn.Linear(3, 3), torch.ones(3)
        self.held = {"tables": [torch.ones(3)]}
        self.register_buffer("lazy", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def by_state(net: Any, x: Tensor) -> Tensor:
    return net.inner(x * net.weight)


def by_grad(net: Any, x: Tensor) -> Tensor:
    return x * 2 if (x * net.weight).requires_grad else x - 1


def by_table(net: Any, x: Tensor) -> Tensor:
    return x * net.table


def by_held(net: Any, x: Tensor) -> Tensor:
    return x * net.held["tables"][0]


def frozen(net: nn.Module) -> None:
    net.requires_grad_(False)


def reloaded(net: nn.Module) -> None:
    net.load_state_dict({name: tensor + 1 for name, tensor in net.state_dict().items()}, assign=True)


def laid_out_otherwise(net: Any) -> None:
    net.inner.weight = nn.Parameter(net.inner.weight.detach().t().contiguous().t())


FOLLOWED = [
    lambda net: setattr(net, "weight", nn.Parameter(torch.zeros(3))),
    lambda net: setattr(net, "inner", nn.Linear(3, 3)),
    lambda net: net.inner.weight.data.zero_(),
    reloaded,
]
"""Changes of weights alone: the run takes those that are there now."""


@pytest.mark.parametrize("change", FOLLOWED)
def test_a_run_takes_what_stands_under_the_names_of_the_living_model(change: Callable[[Any], Any]) -> None:
    net = Net(by_state)
    trace = tl.trace(net, X, capture=REPLAYABLE)
    assert trace.run(inputs=X).report.numeric_attestation == "attested"
    change(net)
    result = trace.run(inputs=X)
    assert torch.equal(result.output, net(X))
    assert (result.report.path_faithfulness, result.report.numeric_attestation) == ("verified", "not_applicable")
    (wanted,) = torch.autograd.grad(net(X).sum(), [net.inner.weight])
    assert torch.equal(torch.autograd.grad(result.output.sum(), [net.inner.weight])[0], wanted)


@pytest.mark.parametrize(
    ("function", "change", "code"),
    [
        (by_state, lambda net: setattr(net, "inner", nn.Tanh()), "model_differs"),
        (by_state, lambda net: net.inner.register_forward_hook(lambda *given: given[2] * 2), "model_differs"),
        (by_state, lambda net: net.add_module("more", nn.ReLU()), "model_differs"),
        (by_state, lambda net: setattr(net, "lazy", torch.ones(3)), "model_differs"),
        (by_state, lambda net: delattr(net, "weight"), "model_differs"),
        (by_state, lambda net: net.inner.eval(), "training_differs"),
        (by_state, laid_out_otherwise, "state_form_differs"),
        (by_grad, frozen, "model_differs"),
        (by_table, lambda net: net.table.fill_(5), "constant_differs"),
        (by_table, lambda net: net.table.data.zero_(), "constant_differs"),
        (by_table, lambda net: setattr(net, "table", net.table + 1), "constant_differs"),
        (by_table, lambda net: delattr(net, "table"), "constant_differs"),
        (by_held, lambda net: net.held.update(tables=[torch.zeros(3)]), "constant_differs"),
    ],
)
def test_a_model_that_is_another_than_it_was_leaves_a_run_unverified(
    function: Callable[[Any, Tensor], Tensor], change: Callable[[Any], Any], code: str
) -> None:
    net = Net(function)
    trace = tl.trace(net, X, capture=REPLAYABLE)
    assert trace.run(inputs=X).report.path_faithfulness == "verified"
    change(net)
    report = trace.run(inputs=X).report
    assert (report.path_faithfulness, report.numeric_attestation) == ("unverifiable", "not_applicable")
    assert report.divergence is not None
    assert report.divergence.code == code


def caching(net: Any, x: Tensor) -> Tensor:
    net.table = net.table + x
    return net.table * 1


def filling(net: Any, x: Tensor) -> Tensor:
    if net.lazy is None:
        net.lazy = x.detach() * 2
    return x + net.lazy


@pytest.mark.parametrize(("function", "code"), [(caching, "constant_differs"), (filling, "model_differs")])
def test_a_forward_that_leaves_the_model_another_is_not_verified_behind_it(
    function: Callable[[Any, Tensor], Tensor], code: str
) -> None:
    net = Net(function)
    report = tl.trace(net, X, capture=REPLAYABLE).run(inputs=X).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == code


def test_a_tensor_that_a_function_takes_from_outside_is_looked_at_again_while_it_lives() -> None:
    table, net = torch.ones(3), nn.Linear(3, 3)
    trace = tl.trace(lambda x: net(x) * table, X, capture=REPLAYABLE)
    assert trace.run(inputs=X).report.path_faithfulness == "verified"
    for written in (table, net.weight):
        before = written.detach().clone()
        written.data.add_(1)
        report = trace.run(inputs=X).report
        assert report.path_faithfulness == "unverifiable"
        assert report.divergence is not None
        assert report.divergence.code == "constant_differs"
        written.data.copy_(before)
    assert trace.run(inputs=X).report.numeric_attestation == "attested"


def test_with_a_state_dict_a_run_is_of_the_model_as_it_was_captured_but_for_parameters_of_another_form() -> None:
    net = Net(by_grad)
    trace = tl.trace(net, X, capture=REPLAYABLE)
    net.eval()
    frozen(net)
    trace.load_state_dict(net.state_dict())
    assert trace.run(inputs=X).report.path_faithfulness == "verified"
    trace.load_state_dict(net.state_dict(keep_vars=True))
    report = trace.run(inputs=X).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "state_form_differs"


class Overlapping(nn.Module):
    """A parameter and a buffer share memory, and the forward writes the buffer."""

    def __init__(self) -> None:
        super().__init__()
        held = torch.arange(6.0)
        self.weight = nn.Parameter(held[:3])
        self.register_buffer("seen", held[2:5])

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.seen
        self.seen.add_(1)
        return y + self.weight


def test_a_write_to_a_buffer_is_seen_in_a_parameter_on_the_same_memory() -> None:
    net = Overlapping()
    trace = tl.trace(net, X, capture=REPLAYABLE)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    result = trace.run(inputs=X)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(result.output, net(X))


def test_a_state_in_which_shared_memory_lies_apart_is_not_verified() -> None:
    trace = tl.trace(Overlapping(), X, capture=REPLAYABLE)
    trace.load_state_dict({name: tensor.clone() for name, tensor in Overlapping().state_dict().items()})
    report = trace.run(inputs=X).report
    assert report.path_faithfulness == "unverifiable"
    assert report.divergence is not None
    assert report.divergence.code == "state_form_differs"


@pytest.mark.filterwarnings("ignore:Sparse (C|invariant):UserWarning")
@pytest.mark.parametrize(
    "made",
    [
        lambda of: (torch.eye(3) * of).to_sparse().coalesce(),
        lambda of: (torch.eye(3) * of).to_sparse_csr(),
        lambda of: torch.quantize_per_tensor(torch.eye(3) * of, 0.1, 0, torch.qint8),
    ],
    ids=["coo", "csr", "quantized"],
)
def test_what_a_sparse_or_quantized_attribute_holds_is_looked_at(made: Callable[[float], Tensor]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = made(1.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.held.dequantize() @ x if self.held.is_quantized else torch.sparse.mm(self.held, x)

    def exchange(net: Net) -> None:
        net.held = made(3.0)

    def write(net: Net) -> None:
        if net.held.is_quantized:
            net.held.copy_(made(3.0))
        else:
            net.held.values().mul_(3)

    x = torch.ones(3, 3)
    for change in (None, exchange, write):
        net = Net()
        trace = tl.trace(net, x, capture=REPLAYABLE)
        if change is not None:
            change(net)
        report = trace.run(inputs=x).report
        if change is None:
            assert (report.path_faithfulness, report.numeric_attestation) == ("verified", "attested")
        else:
            assert (report.path_faithfulness, report.divergence.code) == ("unverifiable", "constant_differs")
