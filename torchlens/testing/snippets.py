"""Snippets: the pieces of model code that a program's lines run, each from two (4, 4) tensors to one.

Gives  ``SNIPPETS`` by name, from plain to odd, so that a failing program shrinks towards the plain; and ``LAYERS``,
       what a block gets when one of its snippets needs it.
Rule   a snippet takes any floating dtype and any strides. It may raise where torch does: that is a model that raises.
Rule   it draws only from the generators of torch, Python and NumPy, and keeps state only on its own module.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import softplus  # bound by name, as models do
from torch.utils.checkpoint import checkpoint

Do = Callable[[Any, Tensor, Tensor], Tensor]


class Snippet(NamedTuple):
    """A piece of model code.

    Attributes:
        do: Takes the block that runs it, the source and the other value.
        needs: Names of ``LAYERS`` that it finds on the block.
        writes: It writes to the memory of its source.
    """

    do: Do
    needs: tuple[str, ...]
    writes: bool


SNIPPETS: Final[dict[str, Snippet]] = {}


def snippet(*needs: str, writes: bool = False) -> Callable[[Do], Do]:
    def register(do: Do) -> Do:
        SNIPPETS[getattr(do, "__name__", "")] = Snippet(do, needs, writes)
        return do

    return register


def fit(tensor: Tensor) -> Tensor:
    """As the layers take it."""
    return tensor if tensor.dtype is torch.float32 else tensor.float()


# Plain --------------------------------------------------------------------------------------------------------------


@snippet()
def tanh(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.tanh(s)


@snippet()
def scale(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s * 0.5


@snippet()
def add(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + o


@snippet("linear")
def linear(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.linear(fit(s))


@snippet()
def relu(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return F.relu(s)


@snippet()
def matmul(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s @ o.to(s.dtype)


@snippet()
def reflected(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return 1 - 2 / (2 + s.abs())


@snippet()
def softmax(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return F.softmax(s, dim=-1)


@snippet()
def bound_by_name(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return softplus(s)


@snippet()
def partial(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return functools.partial(torch.add, alpha=2)(s, o)


@snippet()
def where(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.where(s > o, s, torch.zeros_like(s))


@snippet()
def einsum(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", s, o.to(s.dtype))


@snippet()
def layer_norm(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return F.layer_norm(s, (4,))


@snippet()
def nothing(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s


@snippet()
def dead_code(own: Any, s: Tensor, o: Tensor) -> Tensor:
    torch.ones(3).cumsum(0)
    s.sin()
    return s


@snippet()
def constant(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + torch.arange(4, dtype=s.dtype)


TABLE: Final = torch.linspace(-1.0, 1.0, 16).view(4, 4)


@snippet()
def global_constant(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + TABLE


# Modules and parameters ---------------------------------------------------------------------------------------------


@snippet("twin")
def linear_of_two_names(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.twin_again(own.twin(fit(s)))


@snippet("tied")
def tied_weight(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.tied_again(own.tied(fit(s)))


@snippet("stack")
def sequential(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.stack(fit(s))


@snippet("weight")
def parameter(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return F.linear(fit(s), own.weight) * own.weight[0]


@snippet("norm")
def batch_norm(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.norm(fit(s))


@snippet("drop")
def dropout(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.drop(s)


@snippet("conv")
def convolution(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.conv(fit(s)[None, None])[0, 0]


@snippet("same")
def identity(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.same(s)


@snippet("lstm")
def lstm(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made, (hidden, _) = own.lstm(fit(s)[:, None])
    return made[:, 0] + hidden[0]


@snippet("gru")
def gru(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made, _ = own.gru(fit(s)[:, None], fit(o)[:1, None])
    return made[:, 0]


@snippet("cell")
def lstm_cell(own: Any, s: Tensor, o: Tensor) -> Tensor:
    hidden, state = own.cell(fit(s), (fit(o), fit(o)))
    return hidden * state


@snippet("attend")
def attention(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made, weights = own.attend(fit(s), fit(o), fit(o))
    return made + weights.mean()


@snippet("encoder")
def encoder_layer(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.encoder(fit(s)[None])[0]


@snippet("embed")
def embedding(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.embed(s.argmax(1) + 1)


@snippet("normed")
def weight_norm(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.normed(fit(s))


@snippet("hooked")
def user_hooks(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.hooked(fit(s) + own.hooked.bias)  # torch warns of a backward hook without a gradient to go to


@snippet("listed")
def unregistered(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.listed[0](fit(s))


@snippet()
def made_here(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return nn.Softmax(dim=-1)(s)


@snippet("linear")
def direct_forward(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.linear.forward(fit(s))


# Several results ----------------------------------------------------------------------------------------------------


@snippet()
def chunk(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.cat(s.chunk(2, 1)[::-1], 1)


@snippet()
def maximum(own: Any, s: Tensor, o: Tensor) -> Tensor:
    best = s.max(1, keepdim=True)
    return s + best.values * best.indices


@snippet()
def topk(own: Any, s: Tensor, o: Tensor) -> Tensor:
    values, places = s.topk(2)
    return s.scatter(1, places, values * 2)


@snippet()
def unbind(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.stack([row * k for k, row in enumerate(s.unbind(0), 1)])


@snippet()
def spread(own: Any, s: Tensor, o: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(s, 1, keepdim=True)
    return (s - mean) / (deviation + 1)


@snippet()
def foreach(own: Any, s: Tensor, o: Tensor) -> Tensor:
    first, second = torch._foreach_mul([s, o], 2.0)  # the list is the point
    return first + second


# Dtypes -------------------------------------------------------------------------------------------------------------


@snippet()
def to_double(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.double()


@snippet()
def to_half(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.to(torch.bfloat16)


@snippet()
def like_other(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.type_as(o)


@snippet()
def through_integers(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.long().to(s.dtype) + (s > 0)


@snippet()
def fourier(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(fit(s)).conj()).real


# Views --------------------------------------------------------------------------------------------------------------


@snippet()
def transpose(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.t()


@snippet()
def view(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.reshape(2, 8).view(4, 4)


@snippet()
def whole(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s[:]


@snippet()
def expand(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s[1:2].expand(4, 4)


@snippet()
def permuted(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.view(2, 2, 4).transpose(0, 1).reshape(4, 4)


@snippet()
def contiguous(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.contiguous()


@snippet()
def detach(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.detach()


# Writing in place ---------------------------------------------------------------------------------------------------


@snippet(writes=True)
def relu_(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.relu_()


@snippet(writes=True)
def add_(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.add_(o)


@snippet(writes=True)
def iadd(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s += 1
    return s


@snippet(writes=True)
def set_rows(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s[1:3] = o[:2] * 2
    return s


@snippet(writes=True)
def set_where(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s[s > 0.5] = 0.25
    return s


@snippet(writes=True)
def write_view(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s[1:3].mul_(0.5)
    return s + 1


@snippet(writes=True)
def write_transposed(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.t().clamp_(-1, 1)
    return s


@snippet(writes=True)
def write_diagonal(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.diagonal().fill_(0.5)
    return s


@snippet(writes=True)
def write_chunk(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.chunk(2, 1)[0].add_(1)  # torch refuses this where gradients are on
    return s


@snippet(writes=True)
def copy_(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.copy_(o)


@snippet(writes=True)
def out_argument(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.add(s.detach(), 1, out=s.detach())


@snippet(writes=True)
def write_detached(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.detach().mul_(0.5)
    return s


@snippet(writes=True)
def write_data(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.data.mul_(0.5)
    return s + o


@snippet(writes=True)
def write_numpy(own: Any, s: Tensor, o: Tensor) -> Tensor:
    s.detach().numpy()[0] = 7
    return s * 1


@snippet(writes=True)
def write_operator(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.ops.aten.add_(s, 2.0)


@snippet(writes=True)
def write_foreach(own: Any, s: Tensor, o: Tensor) -> Tensor:
    torch._foreach_add_([s], 1.0)  # it returns nothing
    return s


@snippet("rectify", writes=True)
def module_in_place(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return own.rectify(s)


@snippet()
def index_put(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s.index_put((torch.tensor([0, 2]),), o[:2].to(s.dtype), accumulate=True)


@snippet()
def fresh_write(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made = torch.zeros(4, 4)
    for k in range(4):
        made[k] = s[k] * k
    return made


# Buffers and state --------------------------------------------------------------------------------------------------


@snippet("table")
def read_buffer(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + own.table


@snippet("table")
def write_buffer(own: Any, s: Tensor, o: Tensor) -> Tensor:
    own.table.mul_(0.9).add_(s.detach().mean())
    return s + own.table


@snippet("table")
def assign_buffer(own: Any, s: Tensor, o: Tensor) -> Tensor:
    own.table = own.table * 0.5 + s.detach().float()
    return s + own.table


@snippet("table")
def write_buffer_view(own: Any, s: Tensor, o: Tensor) -> Tensor:
    own.table[0] = s.detach()[0]
    return own.table.t() + s


@snippet("count")
def counter(own: Any, s: Tensor, o: Tensor) -> Tensor:
    own.count += 1
    return s / own.count


@snippet("last")
def keep_state(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made = s if own.last is None else s + own.last
    own.last = made.detach()
    return made


@snippet("weight")
def write_parameter(own: Any, s: Tensor, o: Tensor) -> Tensor:
    with torch.no_grad():
        own.weight.mul_(0.9)
    return fit(s) @ own.weight


# Random -------------------------------------------------------------------------------------------------------------


@snippet()
def noise(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + torch.rand_like(s)


@snippet()
def noise_in_place(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s * torch.empty(4).normal_()


@snippet()
def shuffled(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s[torch.randperm(4)]


@snippet()
def python_random(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s * random.random()


@snippet()
def numpy_random(own: Any, s: Tensor, o: Tensor) -> Tensor:
    import numpy as np  # as a model might; torch works without it

    return s + float(np.random.rand())


@snippet()
def functional_dropout(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return F.dropout(s, 0.5, training=own.training)


# Numbers and shapes out of tensors ----------------------------------------------------------------------------------


@snippet()
def item(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s * s.sum().sign().item()


@snippet()
def listed(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + torch.tensor(o[0].tolist())


@snippet()
def selected(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + s[s > 0].sum() + s.nonzero().sum()


@snippet()
def iterated(own: Any, s: Tensor, o: Tensor) -> Tensor:
    total = o[0]
    for row in s:
        total = total + row
    return s + total


# Odd calls ----------------------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """The user's own function."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor * factor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.factor, None


class ClampedInPlace(torch.autograd.Function):
    """The user's own function, which writes to its argument and gives it back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, Tensor]:
        mask = tensor < 0
        tensor.masked_fill_(mask, 0.0)
        ctx.mark_dirty(tensor)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return tensor, mask

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return grads[0].masked_fill(mask, 0.0)


class Running(torch.autograd.Function):
    """A function that runs modules, as reversible layers do."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(tensor.detach())
        with torch.no_grad():
            return layer(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (tensor,) = ctx.saved_tensors
        with torch.enable_grad():
            again = tensor.requires_grad_()
            ctx.layer(again).backward(grads[0])
        return again.grad, None


@snippet()
def own_function(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return Doubled.apply(s, 2.0)


@snippet(writes=True)
def own_function_in_place(own: Any, s: Tensor, o: Tensor) -> Tensor:
    made, mask = ClampedInPlace.apply(s)
    return made + mask.sum()


@snippet("linear")
def own_function_of_a_module(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return Running.apply(fit(s), own.linear)


@snippet("stack")
def checkpointed(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return checkpoint(own.stack, fit(s), use_reentrant=False)


@snippet("stack")
def checkpointed_reentrant(own: Any, s: Tensor, o: Tensor) -> Tensor:
    if not (s.requires_grad and torch.is_grad_enabled()):  # torch warns that there will be no gradient
        return own.stack(fit(s))
    return checkpoint(own.stack, fit(s), use_reentrant=True)


@snippet()
def vmapped(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sin() * row.sum())(s)


@snippet()
def derived(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return torch.func.grad(lambda tensor: tensor.square().sum())(fit(s))


@snippet("linear")
def inner_gradient(own: Any, s: Tensor, o: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = fit(s.detach()).clone().requires_grad_()
        (made,) = torch.autograd.grad(own.linear(leaf).sum(), leaf)
    return made


def _helper(values: Mapping[str, Any], *, more: Sequence[Tensor] = (), factor: float = 2.0) -> dict[str, Tensor]:
    return {"made": values["s"] * factor + sum(more)}


@snippet()
def helper(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return _helper({"s": s, "none": None}, more=[o, o])["made"]


@torch.no_grad()
def _decorated(tensor: Tensor) -> Tensor:
    return tensor * 3


@snippet()
def decorated(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s + _decorated(o)


@snippet()
def caught(own: Any, s: Tensor, o: Tensor) -> Tensor:
    try:
        return s @ torch.ones(5, 5, dtype=s.dtype)
    except RuntimeError:
        return s


class ModelFailure(Exception):
    """The model's own exception."""


@snippet()
def raises(own: Any, s: Tensor, o: Tensor) -> Tensor:
    raise ModelFailure("this model raises")


@snippet()
def wrong_shape(own: Any, s: Tensor, o: Tensor) -> Tensor:
    return s @ torch.ones(5, 5, dtype=s.dtype)


WRITING: Final = frozenset(name for name, found in SNIPPETS.items() if found.writes)
"""Snippets that write to the memory of their source."""


# Layers -------------------------------------------------------------------------------------------------------------


def _layer(make: Callable[[], nn.Module]) -> Callable[[nn.Module, str], None]:
    return lambda own, name: own.add_module(name, make())


def _twin(own: nn.Module, name: str) -> None:
    own.twin = own.twin_again = nn.Linear(4, 4)


def _tied(own: nn.Module, name: str) -> None:
    own.tied, own.tied_again = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    own.tied_again.weight = own.tied.weight


def _weight(own: nn.Module, name: str) -> None:
    own.weight = nn.Parameter(torch.randn(4, 4) * 0.5)


def _normed(own: nn.Module, name: str) -> None:
    own.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))


def _halved(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 0.5


def _shifted(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def _passed(module: nn.Module, inner: Any, outer: Any) -> None:
    return None


def _hooked(own: nn.Module, name: str) -> None:
    own.hooked = hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(_halved)
    hooked.register_forward_pre_hook(_shifted)
    hooked.register_full_backward_hook(_passed)


def _listed(own: nn.Module, name: str) -> None:
    own.__dict__["listed"] = [nn.Sequential(nn.Linear(4, 4), nn.Tanh())]


def _table(own: nn.Module, name: str) -> None:
    own.register_buffer("table", torch.randn(4, 4))


def _count(own: nn.Module, name: str) -> None:
    own.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)


def _last(own: nn.Module, name: str) -> None:
    own.__dict__["last"] = None


LAYERS: Final[dict[str, Callable[[Any, str], None]]] = {
    "linear": _layer(lambda: nn.Linear(4, 4)),
    "twin": _twin,
    "tied": _tied,
    "stack": _layer(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))),
    "weight": _weight,
    "norm": _layer(lambda: nn.BatchNorm1d(4)),
    "drop": _layer(lambda: nn.Dropout(0.3)),
    "conv": _layer(lambda: nn.Conv2d(1, 1, 3, padding=1)),
    "same": _layer(nn.Identity),
    "lstm": _layer(lambda: nn.LSTM(4, 4)),
    "gru": _layer(lambda: nn.GRU(4, 4)),
    "cell": _layer(lambda: nn.LSTMCell(4, 4)),
    "attend": _layer(lambda: nn.MultiheadAttention(4, 2)),
    "encoder": _layer(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
    "embed": _layer(lambda: nn.Embedding(6, 4)),
    "normed": _normed,
    "hooked": _hooked,
    "listed": _listed,
    "rectify": _layer(lambda: nn.ReLU(inplace=True)),
    "table": _table,
    "count": _count,
    "last": _last,
}
"""What a block gets, by name; each puts it on the block."""
