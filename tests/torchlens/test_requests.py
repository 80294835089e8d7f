"""What texts of ``save=``, ``stop_after=`` and ``trace[...]`` mean where names meet, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl
from journal import JournalError
from torchlens.errors import ConfigurationError, LookupRefused, SelectionError, TorchLensWarning

X = torch.ones(1, 2)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU())


class Weighted(nn.Module):
    """Has a parameter whose name is part of every raw label."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * self.w)


class Named(nn.Module):
    """Its only child has a name of the caller's."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(2, 2))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = getattr(self, self.name)(torch.relu(x))
        return made + 1


def kept(trace: tl.Trace) -> list[str]:
    return [op.label for op in trace.ops.saved]


@pytest.mark.parametrize("part", ["ra", "_r", "_raw", "aw"])
def test_a_raw_label_is_a_key_as_a_whole_alone(part: str) -> None:
    with pytest.warns(TorchLensWarning, match="matched no op"):
        assert not kept(tl.trace(two_layers(), X, save=part))
    with pytest.raises(LookupRefused) as caught:
        tl.trace(two_layers(), X)[part]
    assert caught.value.code == "op_lookup_not_found"


def test_a_parameter_names_no_op_for_saving() -> None:
    assert tl.trace(Weighted(), X)["w"].address == "w"
    with pytest.warns(TorchLensWarning, match="matched no op"):
        assert not kept(tl.trace(Weighted(), X, save="w"))


@pytest.mark.parametrize("name", ["relu_1_1", "input_1", "linear_9"])
def test_a_text_that_names_a_label_and_a_module_is_saved_as_it_is_looked_up(name: str) -> None:
    found = tl.trace(Named(name), X)[name]
    ops = found.calls[0].output_ops if found.table_name == "modules" else getattr(found, "ops", None) or [found]
    wanted = [op.label for op in ops]
    assert kept(tl.trace(Named(name), X, save=name)) == wanted


def test_a_child_that_is_called_as_the_root_has_an_address_of_its_own() -> None:
    trace = tl.trace(Named("self"), X)
    assert trace.modules.labels == ("self", "~self")
    assert [op.label for op in trace[tl.module("~self")]] == ["linear_1_2"]
    assert trace.params.labels == ("self.weight", "self.bias")
    trace.check_metadata_invariants()
    assert kept(tl.trace(Named("self"), X, save="~self")) == ["linear_1_2"]


@pytest.mark.parametrize("name", ["input", "output", "a:2"])
def test_a_function_of_any_name_keeps_the_records_sound_and_is_found_by_its_label(name: str) -> None:
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    double = type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )

    def model(x: Tensor) -> Tensor:
        made: Tensor = double.apply(x)
        return made + 1

    trace = tl.trace(model, X)
    trace.check_metadata_invariants()
    label = f"{name}_1_1"
    assert [op.label for op in trace[tl.label(label)]] == [label]
    assert kept(tl.trace(model, X, save=tl.label(label))) == [label]


@pytest.mark.parametrize("text", ["relu_1_2:\uff12", "relu_1_2:\u0661"])
def test_a_pass_is_numbered_in_plain_digits(text: str) -> None:
    with pytest.raises(LookupRefused):
        tl.trace(two_layers(), X)[text]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1:last", "stop_after_site_not_live"),
        ("1:all", "stop_after_site_not_live"),
        ("0.weight", "stop_after_names_no_op"),
        ("self", "stop_after_names_no_op"),
        ("self:last", "stop_after_names_no_op"),
    ],
)
def test_a_place_that_no_forward_can_be_left_at_is_refused_before_it_runs(text: str, code: str) -> None:
    model = two_layers()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ConfigurationError) as caught:
        tl.trace(model, X, stop_after=text)
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["a:2", "a:2:1"])
def test_a_module_with_a_colon_in_its_name_is_one_that_a_forward_can_be_left_after(text: str) -> None:
    trace = tl.trace(Named("a:2"), X, stop_after=text)
    assert [op.label for op in trace.ops.compute] == ["relu_1_1", "linear_1_2"]
    assert kept(tl.trace(Named("a:2"), X, save=text)) == ["linear_1_2"]


@pytest.mark.parametrize("tags", [3, None, 1.5])
def test_tags_that_are_no_texts_are_refused(tags: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tl.trace(two_layers(), X, tags=tags)
    assert caught.value.code == "tags_type_invalid"


@pytest.mark.parametrize("bound", ["x", -1, None, True])
def test_a_bound_on_sites_that_is_no_number_is_refused(bound: Any) -> None:
    with pytest.raises(SelectionError) as caught:
        tl.trace(two_layers(), X).find_sites("relu_1_2", max_fanout=bound)
    assert caught.value.code == "max_fanout_invalid"


def test_a_path_that_has_no_bytes_is_refused() -> None:
    with pytest.raises(JournalError) as caught:
        tl.trace(two_layers(), X, storage=tl.to_disk("/tmp/a\udc80"))
    assert caught.value.code == "journal_path_invalid"


def test_an_empty_text_is_told_as_what_it_is() -> None:
    with pytest.raises(ConfigurationError, match="an empty text"):
        tl.trace(two_layers(), X, save="")
