"""Torch functions that a model keeps somewhere, and tensors that come from where nobody looks: seen, or told of."""

from __future__ import annotations

import dataclasses
import functools
import gc
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from torchlens.options import CaptureOptions
from torchlens.validation import validating

TABLE = {"act": torch.tanh}
LIST = [torch.tanh]
TUPLE = (1, (torch.tanh,))
ORDERED = OrderedDict(act=torch.tanh)
NAMESPACE = types.SimpleNamespace(act=torch.tanh)
CACHED = functools.lru_cache(torch.tanh)
CACHED_PARTIAL = functools.lru_cache(functools.partial(torch.tanh))


@functools.lru_cache
def cached_act(x: Tensor, act: Any = torch.tanh) -> Any:
    return act(x)


@dataclasses.dataclass
class Config:
    act: Any = torch.tanh


class Calling:
    def __init__(self) -> None:
        self.act = torch.tanh

    def __call__(self, x: Tensor) -> Tensor:
        return self.act(x)


class Slotted:
    __slots__ = ("act",)

    def __init__(self) -> None:
        self.act = torch.tanh


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    act: Any = torch.tanh


CONFIG, CALLING, SLOTTED, FROZEN = Config(torch.tanh), Calling(), Slotted(), Frozen()
Way = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    of_class = {"act": torch.tanh}  # noqa: RUF012  # as models have it
    static = staticmethod(torch.tanh)

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.table, self.list, self.nested = {"act": torch.tanh}, [torch.tanh], {"a": [{"b": torch.tanh}]}
        self.default = lambda x, act=torch.tanh: act(x)
        self.calling = Calling()
        self.scale = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x) + 1


SEEN: dict[str, Way] = {
    "dict": lambda m, x: TABLE["act"](x),
    "list": lambda m, x: LIST[0](x),
    "tuple": lambda m, x: TUPLE[1][0](x),  # type: ignore[index]  # a tuple in a tuple
    "ordered": lambda m, x: ORDERED["act"](x),
    "namespace": lambda m, x: NAMESPACE.act(x),
    "dataclass": lambda m, x: CONFIG.act(x),
    "callable object": lambda m, x: CALLING(x),
    "own dict": lambda m, x: m.table["act"](x),
    "own list": lambda m, x: m.list[0](x),
    "own nest": lambda m, x: m.nested["a"][0]["b"](x),  # type: ignore[index]  # a nest
    "own lambda": lambda m, x: m.default(x),
    "own callable object": lambda m, x: m.calling(x),
    "class dict": lambda m, x: m.of_class["act"](x),
    "static method": lambda m, x: m.static(x),
    "slot": lambda m, x: SLOTTED.act(x),
    "slot of a frozen class": lambda m, x: FROZEN.act(x),
    "cache": lambda m, x: CACHED(x),
    "cached function": lambda m, x: cached_act(x),
}


@pytest.mark.parametrize("way", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("grad", [True, False])
def test_a_function_is_seen_wherever_a_model_keeps_it(way: Way, grad: bool) -> None:
    model, x = Model(way), torch.ones(3, requires_grad=grad)
    trace = tl.trace(model, x)
    assert trace.ops.labels == ("input_1", "tanh_1_1", "add_1_2", "output_1")
    assert trace.health.is_clean
    for held in (TABLE["act"], LIST[0], TUPLE[1][0], ORDERED["act"], NAMESPACE.act, CONFIG.act, CALLING.act):  # type: ignore[index]  # as above
        assert held is torch.tanh
    assert SLOTTED.act is FROZEN.act is torch.tanh
    assert type(CACHED) is type(cached_act)
    assert model.table["act"] is model.list[0] is model.nested["a"][0]["b"] is model.of_class["act"] is torch.tanh  # type: ignore[index]  # as above
    assert model.default.__defaults__ == (torch.tanh,)
    assert isinstance(vars(Model)["static"], staticmethod)


UNSEEN: dict[str, tuple[Way, tuple[str, ...]]] = {
    "cached partial": (lambda m, x: CACHED_PARTIAL(x * 2), ()),
    "private": (lambda m, x: torch._C._nn.gelu(x * 2), ()),
    "constructor": (lambda m, x: torch.Tensor(x * 2), ("mul_1_1",)),
    "dlpack": (lambda m, x: torch.from_dlpack(x * 2), ("mul_1_1",)),  # type: ignore[attr-defined]  # torch's stubs leave it out
}


@pytest.mark.parametrize(("way", "parents"), UNSEEN.values(), ids=UNSEEN)
def test_what_nobody_saw_made_is_an_opaque_op_and_named(way: Way, parents: tuple[str, ...]) -> None:
    with torch.no_grad():
        trace = tl.trace(Model(way), torch.ones(3))
        told = validating.report(Model(way), torch.ones(3))
        verified = tl.trace(Model(way), torch.ones(3), capture=CaptureOptions(verify_capture=True))
    assert trace.ops.labels == ("input_1", "mul_1_1", "unseen_1_2", "add_1_3", "output_1") if parents else True
    (label,) = trace.health.unseen_tensors
    assert trace.ops[label].parents == parents
    assert trace.ops[label].is_opaque
    assert not trace.health.is_clean
    assert told.reasons("skipped")["made_unseen"] == 1
    assert verified.health.capture_verified is False
    trace.check_metadata_invariants()


@pytest.mark.parametrize("collects", [True, False])
def test_constants_that_were_there_before_are_no_finding(collects: bool) -> None:
    def way(model: Model, x: Tensor) -> Tensor:
        if collects:
            gc.collect()
        return x * model.scale * GLOBAL

    trace = tl.trace(Model(way), torch.ones(3))
    assert trace.health.is_clean
    assert not trace.health.unseen_tensors


GLOBAL = torch.full((3,), 2.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, at its first jvp
@pytest.mark.parametrize(
    ("transform", "label"),
    [
        (torch.func.grad, "grad_1_1"),
        (torch.vmap, "vmap_1_1"),
        (torch.func.functionalize, "functionalize_1_1"),
        (torch.func.jacrev, "jacrev_1_1"),
        (torch.func.hessian, "jacfwd_1_1"),
    ],
)
@pytest.mark.parametrize("held", [True, False])
def test_a_function_that_a_transform_gave_before_is_one_opaque_op(transform: Any, label: str, held: bool) -> None:
    def scalar(x: Tensor) -> Tensor:
        return (x.sin() * 2).sum()

    made = transform(scalar)
    model = Model(lambda m, x: made(x)) if held else made
    trace = tl.trace(model, torch.ones(3))
    assert trace.ops.labels[:2] == ("input_1", label)
    assert trace.ops[label].parents == ("input_1",)
    assert trace.health.opaque_ops == (label,)
    assert tl.validate(model, torch.ones(3))
    assert transform is not torch.func.grad or torch.equal(made(torch.zeros(3)), torch.full((3,), 2.0))


def test_what_a_cache_holds_is_what_it_gives() -> None:
    x = torch.ones(3)
    CACHED.cache_clear()
    before = CACHED(x)
    trace = tl.trace(lambda x: (CACHED(GLOBAL), CACHED(GLOBAL), CACHED.cache_info().currsize), x)
    first, second, size = trace.output
    assert first is second
    assert size == 2
    assert trace.ops.find("tanh").labels == ("tanh_1_1",)  # nothing reads the first call's record any more
    assert CACHED(x) is before
    assert CACHED(GLOBAL) is first
