"""A few activations in one line: what a whole trace would give, and nothing of it is left behind."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl


class Model(nn.Module):
    """Two blocks, the first called twice; the calls of the second are counted."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.LSTM(4, 4)
        self.reached = 0

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.first(self.first(x)) * scale
        self.reached += 1
        out, _ = self.second(x)
        return out.sigmoid()


X = torch.arange(12.0).reshape(3, 4) / 12


def expected(*labels: str, **kwargs: Any) -> dict[str, Tensor]:
    trace = tl.trace(Model(), X, kwargs)
    return {label: trace.ops[label].out for label in labels}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("sites", "labels"),
    [
        ("mul_1_3", ["mul_1_3"]),
        (tl.func("relu"), ["relu_1_2:1", "relu_1_2:2"]),
        (["sigmoid_1_13", "relu_1_2:2"], ["relu_1_2:2", "sigmoid_1_13"]),
        (
            [tl.module("first"), "linear_1_1:1", tl.func("linear")],
            "linear_1_1:1 relu_1_2:1 linear_1_1:2 relu_1_2:2".split(),
        ),
        (0, ["input_1"]),
        ([], []),
    ],
)
def test_activations_come_by_label_in_the_order_of_the_forward(sites: Any, labels: list[str]) -> None:
    assert same(tl.extract(Model(), X, sites), expected(*labels))


def test_sites_may_be_given_names() -> None:
    found = tl.extract(Model(), X, {"late": "sigmoid_1_13", "early": tl.module("first:1")}, {"scale": 2.0})
    whole = expected("sigmoid_1_13", "relu_1_2:1", scale=2.0)
    assert same(found, {"late": whole["sigmoid_1_13"], "early": whole["relu_1_2:1"]})


def test_one_activation_is_a_tensor() -> None:
    assert torch.equal(tl.pluck(Model(), X, "first:2"), expected("relu_1_2:2")["relu_1_2:2"])
    found = tl.pluck(Model(), X, tl.func("sigmoid"), {"scale": 0.0})
    assert torch.equal(found, expected("sigmoid_1_13", scale=0.0)["sigmoid_1_13"])


@pytest.mark.parametrize(
    ("sites", "reached"),
    [
        ({"site": "first:2"}, 0),
        ({"site": "first:1", "raw": "mul_6_raw"}, 0),
        ({"site": "first:1", "label": "mul_1_3"}, 1),  # a label is known when the forward has ended
        ({"site": "first"}, None),
    ],
)
def test_the_forward_is_left_when_the_last_site_was_met(sites: dict[str, str], reached: int | None) -> None:
    model = Model()
    if reached is None:  # it was called twice
        with pytest.raises(tl.errors.SiteAmbiguityError):
            tl.extract(model, X, sites)
    else:
        assert tl.extract(model, X, sites)["site"].shape == (3, 4)
        assert model.reached == reached


def test_tensors_are_cut_from_the_graph_unless_it_is_wanted() -> None:
    model = Model()
    assert not tl.pluck(model, X, "first:2").requires_grad
    kept = tl.pluck(model, X, "first:2", detach=False)
    kept.sum().backward()
    assert model.first[0].weight.grad is not None


def test_nothing_but_the_tensors_stays() -> None:
    model = Model()
    parts: list[weakref.ref[Any]] = []
    model.first[0].register_forward_hook(lambda module, args, out: parts.append(weakref.ref(out)))
    found = tl.extract(model, X, ["sigmoid_1_13"])
    gc.collect()
    assert found
    assert [part() for part in parts] == [None, None]


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: tl.pluck(Model(), X, "first"), "site_ambiguous"),
        (lambda: tl.pluck(Model(), X, tl.func("relu")), "site_ambiguous"),
        (lambda: tl.pluck(Model(), X, "second:1"), "site_ambiguous"),
        (lambda: tl.extract(Model(), X, {"a": tl.func("relu")}), "site_ambiguous"),
        (lambda: tl.pluck(Model(), X, "first:3"), "selection_unresolvable"),
        (lambda: tl.extract(Model(), X, ["mul_1_3", "nothing"]), "selection_unresolvable"),
        (lambda: tl.extract(Model(), X, {"a": "first:1", "b": tl.func("tanh")}), "selection_unresolvable"),
        (lambda: tl.extract(Model(), X, 1.5), "save_predicate_type_invalid"),
        (lambda: tl.pluck(Model(), X, tl.top_k()), "selector_reads_values"),
    ],
)
def test_a_site_that_is_not_one_is_refused(ask: Any, code: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        ask()
    assert refused.value.code == code
    if code == "selection_unresolvable":
        assert refused.value.fields["reason"] == "site_not_in_trace"


@pytest.mark.parametrize(("site", "near"), [("sceond", "second"), (tl.func("rellu"), "relu")])
def test_a_site_that_is_misspelt_is_told_what_it_looks_like(site: Any, near: str) -> None:
    for verb in (tl.pluck, tl.extract):
        with pytest.raises(tl.TorchLensError) as refused:
            verb(Model(), X, site)
        assert f"did you mean {near!r}?" in refused.value.remedy


def test_every_site_is_there_whatever_it_looks_like() -> None:
    def of(name: str) -> Any:
        return tl.where(lambda op: op.func_name == name)

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    assert list(tl.extract(model, torch.ones(1, 2), [of("relu"), of("linear")])) == ["linear_1_1", "relu_1_2"]
    assert list(tl.extract(model, torch.ones(1, 2), {1: "0", "1": "1"})) == [1, "1"]


def test_what_a_text_names_is_found_by_the_text() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    assert list(tl.extract(model, torch.ones(1, 2), ["1", "0", "1", tl.func("relu")])) == ["0", "1", "relu_1_2"]


class Doubling(torch.autograd.Function):
    """Doubles; with another name, its op has a label that a module may have as its address."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def named(name: str, x: Tensor) -> Tensor:
        made: Tensor = type(name, (Doubling,), {}).apply(x)
        return made


class Confusing(nn.Module):
    """A module is called as the label of another op is."""

    def __init__(self, address: str) -> None:
        super().__init__()
        owner, _, name = address.rpartition(".")
        self.add_module(owner or name, nn.Sequential(OrderedDict({name: nn.ReLU()})) if owner else nn.ReLU())
        self.address = address

    def forward(self, x: Tensor) -> Tensor:
        return Doubling.named(self.address.partition("_")[0], self.get_submodule(self.address)(x))


@pytest.mark.parametrize("address", ["a:2_1_2", "torch::node<f>_1_2", "relu2_1_2"])
def test_a_text_that_a_label_and_a_module_have_means_the_label_as_in_a_trace(address: str) -> None:
    model = Confusing(address)
    trace = tl.trace(model, X)
    assert trace[address].label == address
    assert trace[address].func_name != "relu"
    assert same(tl.extract(model, X, [address]), {address: trace[address].out})
    assert torch.equal(tl.pluck(model, X, address), 2 * X)
    assert tl.trace(model, X, save=address).ops.saved.labels == (address, "output_1")
    assert torch.equal(tl.pluck(model, X, tl.module(address)), X)


def test_a_text_with_a_dot_is_an_address_first() -> None:
    """Functions whose names have dots are made on purpose; addresses that end in numbers are everywhere."""
    assert torch.equal(tl.pluck(Confusing("a.b_1_2"), X, "a.b_1_2"), X)


def test_one_name_does_not_stand_for_two_sites() -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        tl.extract(Confusing("a.b_1_2"), X, ["a.b_1_2", tl.func("a.b")])
    assert refused.value.code == "site_names_collide"


class Twice(nn.Module):
    """Calls a module, which may be named as the call of another is, twice."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.ReLU())
        self.name = name
        self.reached = 0

    def forward(self, x: Tensor) -> Tensor:
        layer = getattr(self, self.name)
        x = layer(layer(x) + 1)
        self.reached += 1
        return x


@pytest.mark.parametrize("site", ["a:2", tl.module("a:2")])
def test_a_module_that_is_named_as_a_call_is_has_all_its_calls(site: Any) -> None:
    model = Twice("a:2")
    with pytest.raises(tl.errors.SiteAmbiguityError) as refused:
        tl.pluck(model, X, site)
    assert refused.value.fields["labels"] == ("relu_1_1:1", "relu_1_1:2")
    assert model.reached == 1, "the forward was not left at its first call"
    assert torch.equal(tl.pluck(model, X, "a:2:1"), X)
    assert model.reached == 1, "and here it was"
    assert torch.equal(tl.pluck(Twice("a"), X, site), X + 1)
