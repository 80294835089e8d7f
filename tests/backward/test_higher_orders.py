"""Gradients of gradients: values against closed forms, and who made which node against what torch itself notes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchlens as tl

X = torch.linspace(-1.5, 1.5, 12, dtype=torch.float64).reshape(3, 4)
W = torch.linspace(-0.7, 0.9, 16, dtype=torch.float64).reshape(4, 4)


def leaf(values: Tensor = X) -> Tensor:
    return values.clone().requires_grad_()


def derivatives(trace: tl.Trace, x: Tensor, count: int) -> Iterator[Tensor]:
    """The first ones of the sum of the output: of the sum of each one before, so elementwise where the model is."""
    value = trace.output
    for _ in range(count):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        yield value


def require_orders(trace: tl.Trace, orders: Sequence[int], origins: Sequence[int | None]) -> None:
    """What passes say of their order, and what each node does of who made it."""
    passes = trace.autograd.backward_passes
    assert [one.order for one in passes] == list(orders)
    assert [one.origin_backward_pass for one in passes] == list(origins)
    assert [one.order_attribution_coverage for one in passes] == [1.0] * len(orders)
    nodes = trace.autograd.grad_fns
    for node in nodes:
        if node.origin_backward_pass is None:
            assert (node.order, node.differentiates) == (1, None)
            continue
        assert node.order is not None
        assert node.differentiates is not None
        assert node.order == nodes[node.differentiates].order + 1
        fired = {call.backward_pass_index for call in nodes[node.differentiates].calls}
        assert node.origin_backward_pass in fired
    assert trace.check_metadata_invariants()


# -- closed forms


def test_the_fourth_power_differentiated_four_times() -> None:
    x = leaf()
    trace = tl.trace(lambda x: x**4, x)
    first, second, third, fourth = derivatives(trace, x, 4)
    for found, wanted in ((first, 4 * X**3), (second, 12 * X**2), (third, 24 * X), (fourth, 24 + 0 * X)):
        torch.testing.assert_close(found.detach(), wanted)
    require_orders(trace, [1, 2, 3, 4], [None, 1, 2, 3])
    trace.cleanup()


@given(st.lists(st.integers(-3, 3), min_size=5, max_size=6), st.integers(1, 3))
@example([0, 0, 0, 0, 1], 3)
@settings(max_examples=30)
def test_the_derivatives_of_any_polynomial_are_its_closed_forms(given: list[int], count: int) -> None:
    coefficients = [*given, 1]  # so that none of these derivatives is a constant, which has no graph

    def polynomial(x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        for factor in reversed(coefficients):
            made = made * x + factor
        return made

    x = leaf()
    trace = tl.trace(polynomial, x)
    for order, found in enumerate(derivatives(trace, x, count), 1):
        wanted = sum(
            (
                math.perm(power, order) * factor * X ** (power - order)
                for power, factor in enumerate(coefficients)
                if power >= order
            ),
            torch.zeros_like(X),
        )
        torch.testing.assert_close(found.detach(), wanted, rtol=1e-9, atol=1e-9)
    require_orders(trace, range(1, count + 1), [None, *range(1, count)])
    trace.cleanup()


def test_the_derivatives_of_a_hyperbolic_tangent_are_polynomials_of_it() -> None:
    x, t = leaf(), torch.tanh(X)
    trace = tl.trace(nn.Tanh(), x)
    first, second, third = derivatives(trace, x, 3)
    torch.testing.assert_close(first.detach(), 1 - t**2)
    torch.testing.assert_close(second.detach(), -2 * t * (1 - t**2))
    torch.testing.assert_close(third.detach(), -2 * (1 - t**2) * (1 - 3 * t**2))
    require_orders(trace, [1, 2, 3], [None, 1, 2])
    trace.cleanup()


class Quadratic(nn.Module):
    """Half of x A x, of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(W + W.t())

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = (x @ self.a * x).sum(1) / 2
        return made


def test_a_hessian_vector_product_of_a_quadratic_form_is_its_matrix_times_the_vector() -> None:
    model, x, v = Quadratic(), leaf(), torch.cos(X)
    trace = tl.trace(model, x)
    (slope,) = torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    (product,) = torch.autograd.grad((slope * v).sum(), x)
    torch.testing.assert_close(slope.detach(), X @ model.a.detach())
    torch.testing.assert_close(product, v @ model.a.detach())
    require_orders(trace, [1, 2], [None, 1])
    trace.cleanup()


def test_a_product_forward_is_the_backward_of_a_backward() -> None:
    """The gradient of J^T u with respect to u, times v, is J v, whatever u is."""
    layer, x, v = nn.Linear(4, 4).double(), leaf(), torch.cos(X)
    trace = tl.trace(nn.Sequential(layer, nn.Tanh()), x)
    dummy = torch.zeros_like(trace.output, requires_grad=True)
    (back,) = torch.autograd.grad(trace.output, x, dummy, create_graph=True)
    (forward,) = torch.autograd.grad(back, dummy, v)
    slope = 1 - torch.tanh(layer(X)) ** 2
    torch.testing.assert_close(forward, (slope * (v @ layer.weight.t())).detach())
    require_orders(trace, [1, 2], [None, 1])
    trace.cleanup()


def test_the_product_with_a_vector_of_the_hessian_of_parameters() -> None:
    """Of the squared error of a linear layer: twice the inputs' second moments, times the vector."""
    layer = nn.Linear(4, 1, bias=False).double()
    trace = tl.trace(layer, X)
    loss = trace.output.pow(2).sum()
    (slope,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    v = torch.cos(torch.arange(4, dtype=torch.float64))[None]
    (product,) = torch.autograd.grad((slope * v).sum(), layer.weight)
    torch.testing.assert_close(product, 2 * v @ X.t() @ X)
    require_orders(trace, [1, 2], [None, 1])
    trace.cleanup()


def penalty_slope(w: Tensor) -> Tensor:
    """Of (norm - 1)^2."""
    return 2 * (w.norm() - 1) * w / w.norm()


def test_a_gradient_penalty_of_a_linear_critic_draws_its_weight_to_norm_one() -> None:
    critic, x = nn.Linear(4, 1).double(), leaf()
    trace = tl.trace(critic, x, capture=tl.CaptureOptions(save_grads=True))
    (slope,) = torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    trace.backward(((slope.norm(dim=1) - 1) ** 2).mean())
    assert critic.weight.grad is not None
    torch.testing.assert_close(critic.weight.grad, penalty_slope(critic.weight.detach()))
    require_orders(trace, [1, 2], [None, 1])
    assert torch.equal(trace.params["weight"].grads[-1].grad, critic.weight.grad)
    assert critic.bias.grad is None  # the slope does not depend on it
    trace.cleanup()


def test_a_wasserstein_critic_with_a_penalty_built_in_the_open() -> None:
    """Real, made-up and mixed rows through one critic, of which the captured forward has the mixed ones."""
    torch.manual_seed(0)
    critic = nn.Linear(4, 1, bias=False).double()
    real, fake, strength = X + 1, torch.sin(X), 10.0
    share = torch.rand(3, 1, dtype=torch.float64)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    trace = tl.trace(critic, mixed, capture=tl.CaptureOptions(save_grads=True))
    (slope,) = torch.autograd.grad(
        trace.output, mixed, torch.ones_like(trace.output), create_graph=True, retain_graph=True
    )
    penalty = strength * ((slope.norm(2, dim=1) - 1) ** 2).mean()
    trace.backward(critic(fake).mean() - critic(real).mean() + penalty)
    w = critic.weight.detach()
    assert critic.weight.grad is not None
    torch.testing.assert_close(critic.weight.grad, (fake - real).mean(0)[None] + strength * penalty_slope(w))
    passes = trace.autograd.backward_passes
    assert [one.trigger for one in passes] == ["autograd_grad", "backward"]
    require_orders(trace, [1, 2], [None, 1])
    trace.cleanup()


def test_each_of_several_penalties_is_a_pass_of_its_own() -> None:
    critic, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double(), leaf()
    trace = tl.trace(critic, x)
    (slope,) = torch.autograd.grad(trace.output.sum(), x, create_graph=True)
    slope.pow(2).sum().backward(retain_graph=True)
    slope.abs().sum().backward()
    require_orders(trace, [1, 2, 2], [None, 1, 1])
    trace.cleanup()


def test_gradients_that_are_gathered_with_a_graph_may_be_differentiated() -> None:
    x = leaf()
    trace = tl.trace(lambda x: x**3, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the cycle
        trace.backward(trace.output.sum(), create_graph=True)
    assert x.grad is not None
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    torch.testing.assert_close(second, 6 * X)
    require_orders(trace, [1, 2], [None, 1])
    x.grad = None
    trace.cleanup()


def test_a_checkpoint_can_be_differentiated_again() -> None:
    class Frugal(nn.Module):
        def __init__(self, *, is_frugal: bool) -> None:
            super().__init__()
            self.is_frugal = is_frugal

        def forward(self, x: Tensor) -> Tensor:
            body: Callable[[Tensor], Tensor] = lambda y: torch.tanh(y) * y  # noqa: E731  # one body for both
            made: Tensor = checkpoint(body, x * 1, use_reentrant=False) if self.is_frugal else body(x * 1)
            return made

    found: list[list[Tensor]] = []
    for is_frugal in (True, False):
        x, t = leaf(), torch.tanh(X)
        trace = tl.trace(Frugal(is_frugal=is_frugal), x)
        found.append([each.detach() for each in derivatives(trace, x, 3)])
        require_orders(trace, [1, 2, 3], [None, 1, 2])
        torch.testing.assert_close(found[-1][0], t + X * (1 - t**2))
        torch.testing.assert_close(found[-1][1], 2 * (1 - t**2) * (1 - X * t))
        trace.cleanup()
    assert all(map(torch.equal, *found))


# -- creators, against what anomaly mode notes


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        made = torch.zeros_like(x) + grads[0] * 3 * x
        made[:, 0].mul_(1)  # in place, on a view, within a firing
        return made * x


class Layers(nn.Module):
    def __init__(self, do: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.do = do
        self.fc, self.other, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.conv, self.attention = nn.Conv1d(1, 2, 3), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.do(self, x)


def hooked(own: Any, x: Tensor) -> Tensor:
    y = own.fc(x).tanh()
    y.register_hook(lambda grad: grad * grad.sin())
    made: Tensor = own.other(y).pow(2)
    return made


def hooked_in_place(own: Any, x: Tensor) -> Tensor:
    def write(grad: Tensor) -> Tensor:
        made = grad * grad
        made[0].mul_(2)
        return made

    y = own.fc(x).tanh()
    y.register_hook(write)
    made: Tensor = own.other(y).pow(2)
    return made


def written(own: Any, x: Tensor) -> Tensor:
    y, z = own.fc(x) * 1, own.other(x).tanh()
    y[:, 0].mul_(2)
    y[:, 1] = z[:, 0].exp()
    made: Tensor = y.tanh()
    return made


def split(own: Any, x: Tensor) -> Tensor:
    left, right = own.fc(x).chunk(2, 1)
    made: Tensor = left.tanh() * right.exp()
    return made


def fanned(own: Any, x: Tensor) -> Tensor:
    y = own.fc(x)
    made: Tensor = y * y.sin() + y.exp()
    return made


CUBE: Any = Cube

GRAPHS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a perceptron": lambda own, x: own.other(torch.tanh(own.fc(x))),
    "a fan-out": fanned,
    "a custom function": lambda own, x: CUBE.apply(own.fc(x)),
    "custom functions in each other": lambda own, x: CUBE.apply(CUBE.apply(own.fc(x)).tanh()),
    "a convolution": lambda own, x: own.conv(x[:, None]).tanh(),
    "an attention": lambda own, x: own.attention(x[None], x[None], x[None])[0],
    "a split": split,
    "a norm": lambda own, x: own.norm(own.fc(x)),
    "in place": written,
    "a hook": hooked,
    "a hook that writes": hooked_in_place,
    "a checkpoint": lambda own, x: checkpoint(lambda y: own.other(y).tanh(), own.fc(x), use_reentrant=False),
    "a running product": lambda own, x: own.fc(x).cumprod(1),
    "an index": lambda own, x: own.fc(x)[[0, 0, 1]].pow(2),
    "a choice": lambda own, x: torch.where(x > 0, own.fc(x).exp(), own.other(x)).pow(2),
    "a fused attention": lambda own, x: F.scaled_dot_product_attention(own.fc(x)[None], x[None], x[None]),
}


def penalized(x: Tensor, loss: Tensor) -> None:
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()


def three_deep(x: Tensor, loss: Tensor) -> None:
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x, create_graph=True)
    torch.autograd.grad(second.sum(), x)


def gathered(x: Tensor, loss: Tensor) -> None:
    torch.autograd.backward(loss, create_graph=True)
    assert x.grad is not None
    torch.autograd.backward(x.grad.pow(2).sum())


def batched(x: Tensor, loss: Tensor) -> None:
    """Several gradients at once, which live in a transform while the pass runs."""
    seeds = torch.tensor([1.0, -2.0])
    (slopes,) = torch.autograd.grad(loss, x, seeds, is_grads_batched=True, create_graph=True)
    assert slopes.shape == (2, *x.shape)
    torch.autograd.grad(slopes.pow(2).sum(), x)


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Using backward")
@pytest.mark.parametrize("do", [penalized, three_deep, gathered, batched])
@pytest.mark.parametrize("name", GRAPHS)
def test_who_made_a_node_is_whom_torch_notes_in_anomaly_mode(name: str, do: Callable[[Tensor, Tensor], None]) -> None:
    model, x = Layers(GRAPHS[name]), torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    trace = tl.trace(model, x)
    with torch.autograd.detect_anomaly(check_nan=False):
        do(x, trace.output.pow(2).sum())
    nodes = list(trace.autograd.grad_fns)
    labels = {node.handle: node.label for node in nodes}
    noted = {node.label: labels.get(node.handle.metadata.get("parent_")) for node in nodes}
    made = [node for node in nodes if node.origin_backward_pass is not None]
    assert {node.label: node.differentiates for node in nodes} == noted
    assert {node.order for node in made} >= {2}
    require_orders(
        trace, *zip(*[(one.order, one.origin_backward_pass) for one in trace.autograd.backward_passes], strict=True)
    )
    trace.cleanup()
    for parameter in (x, *model.parameters()):
        parameter.grad = None
