"""Where two captures part: the planted difference is what is found; what a block adds is told from what it inherits."""

from __future__ import annotations

import copy
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from projections.accounts.aligning import common
from torchlens.errors import ConfigurationError
from torchlens.questions.difference_answer import FirstDifference


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(depth))
        self.extra = False

    def forward(self, x: Tensor) -> Tensor:
        for place, block in enumerate(self.blocks):
            x = block(x)
            if self.extra and place == 1:
                x = x * 1.0
        return x.sum()


def a_stack() -> Stack:
    torch.manual_seed(0)
    return Stack()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def captured(model: nn.Module, x: Tensor = X, **asked: Any) -> tl.Trace:
    return tl.trace(model, x, **asked)


def difference(a: Any, b: Any, **asked: Any) -> FirstDifference:
    found = tl.first_difference(a, b, **asked)
    assert bool(found) is (found.verdict in ("first", "first_seen")) is (found.kind is not None)
    return found


def verdict(a: Any, b: Any, **asked: Any) -> str:
    return difference(a, b, **asked).verdict


def changed(block: int, by: float = 1e-2) -> Stack:
    model = a_stack()
    with torch.no_grad():
        model.blocks[block][0].weight[0, 0] += by  # type: ignore[index]
    return model


@pytest.mark.parametrize("save", [None, tl.stats_only()], ids=["payloads", "statistics"])
def test_equal_captures_have_no_difference(save: Any) -> None:
    options = tl.CaptureOptions(save_grads=True if save is None else save)
    pair = [captured(a_stack(), save=save, capture=options) for _ in range(2)]
    same = "clean" if save is None else "clean_as_seen"
    assert verdict(*pair) == same
    for trace in pair:
        trace.backward(trace.output)
    assert verdict(*pair, rtol=0, atol=0) == same


def test_equal_statistics_do_not_make_equal_tensors() -> None:
    found = difference(*(captured(lambda x: x * 1, x, save=tl.stats_only()) for x in (X, X.flip(0))))
    assert (found.verdict, found.unexamined[0]) == ("clean_as_seen", "input_1 (only statistics were)")
    assert found.num_examined == 3


def test_whole_numbers_are_compared_exactly() -> None:
    for one, other in ((2**60, 2**60 + 1), (-(2**63), 2**63 - 1)):
        found = difference(*(captured(nn.Identity(), torch.tensor([each, 7])) for each in (one, other)), rtol=0, atol=0)
        assert found.first is not None
        assert (found.first.num_beyond, found.first.max_abs) == (1, float(other - one))


def test_views_are_compared_in_the_memory_that_they_have() -> None:
    def windows(x: Tensor) -> Tensor:
        return x.unfold(0, 3, 1).expand(10**12, -1, -1)[0]

    x = torch.arange(6.0)
    other = x.clone()
    other[2] += 1  # of three windows, each as often as it was expanded
    found = difference(*(captured(windows, each) for each in (x, other)))
    assert verdict(captured(windows, x), captured(windows, x.clone())) == "clean"
    assert [each.num_beyond for each in found.ops] == [1, 3, 3 * 10**12, 3, 3]
    assert found.ops[2].error == pytest.approx(found.ops[1].error)


def test_gradients_that_one_side_alone_has_are_told() -> None:
    def run(passes: int, *, save_grads: bool = True, bias: bool = True) -> tl.Trace:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        assert model.bias is not None
        model.bias.requires_grad_(bias)
        trace = captured(model, capture=tl.CaptureOptions(save_grads=save_grads))
        for _ in range(passes):
            trace.backward(trace.output.sum(), retain_graph=True)
        return trace

    assert verdict(run(1), run(1)) == "clean"
    for pair, missed in (
        ((run(1), run(0)), "gradients of backward pass 1"),
        ((run(1), run(2)), "gradient of weight in backward pass 2"),
        ((run(1), run(1, bias=False)), "gradient of bias in backward pass 1"),
        ((run(1, save_grads=False), run(1, save_grads=False)), "gradients of backward pass 1"),
    ):
        for each in (pair, pair[::-1]):
            found = difference(*each)
            assert found.verdict == "clean_as_seen"
            assert missed in found.unexamined


class Coder(nn.Module):
    """Two linear layers, by the names that are asked for."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = first, second
        for name in self.names:
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        first, second = (getattr(self, name) for name in self.names)
        return second(first(x).relu())  # type: ignore[no-any-return]  # a module's call is Any


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, given: Tensor) -> Tensor:
        return self.module(given)  # type: ignore[no-any-return]


@pytest.mark.parametrize("other", [Coder("encoder", "decoder"), Wrapper(Coder("enc", "dec"))], ids=["names", "wrapper"])
def test_modules_and_arguments_by_other_names_are_the_same(other: nn.Module) -> None:
    pair = [captured(each, capture=tl.CaptureOptions(save_grads=True)) for each in (Coder("enc", "dec"), other)]
    for trace in pair:
        trace.backward(trace.output.sum())
    for each in (pair, pair[::-1]):
        found = difference(*each)
        assert found.verdict == "clean"
        assert (len(found.ops), found.only_first, found.only_second) == (5, (), ())
        assert len(found.gradients) >= 4


def test_a_layer_that_was_put_into_a_sequence_shifts_nothing() -> None:
    torch.manual_seed(0)
    for extra in (nn.Identity(), nn.LayerNorm(4)):
        layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
        for place in range(len(layers) + 1):
            longer = [*layers[:place], extra, *layers[place:]]
            found = difference(captured(nn.Sequential(*layers)), captured(nn.Sequential(*longer)))
            assert found.kind == "only_second"
            assert len(found.only_second) == 1
            assert all(each.label.rsplit("_", 1)[0] == each.other_label.rsplit("_", 1)[0] for each in found.ops)


def test_a_layer_that_is_passed_over_leaves_the_others_their_names() -> None:
    class Dropping(nn.Module):
        def __init__(self, dropped: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers, self.dropped = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), dropped

        def forward(self, x: Tensor) -> Tensor:
            for place, layer in enumerate(self.layers):
                x = x if place == self.dropped else layer(x)
            return x

    found = difference(captured(Dropping(9)), captured(Dropping(1)))
    assert [each.label for each in found.blocks] == ["self:1", "layers.0:1", "layers.2:1", "layers.3:1"]
    assert [each.other_label for each in found.blocks] == [each.label for each in found.blocks]


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_changed_weight_is_found_at_its_block_which_alone_adds_error(block: int) -> None:
    found = difference(captured(a_stack()), captured(changed(block)))
    assert (found.kind, found.label) == ("payload", f"linear_{block + 1}_{2 * block + 1}")
    assert found.module == f"blocks.{block}.0:1"
    assert found.first is not None
    assert found.first.inherited == 0.0
    assert found.first.added == found.first.error
    by_label = {each.label: each for each in found.blocks}
    assert by_label[f"blocks.{block}:1"].added == pytest.approx(by_label[f"blocks.{block}:1"].error)
    for before in range(block):
        assert by_label[f"blocks.{before}:1"].error == 0.0
    for behind in range(block + 1, 3):
        one = by_label[f"blocks.{behind}:1"]
        assert one.error is not None
        assert one.inherited is not None
        assert one.inherited > 0
        assert one.added == pytest.approx(one.error - one.inherited)
    assert found.worst(1)[0].label in (f"blocks.{block}:1", f"blocks.{block}.0:1", "self:1")


def test_a_step_that_passes_on_what_it_is_given_adds_nothing() -> None:
    def forward(x: Tensor) -> Tensor:
        return (x * 3).t().reshape(-1) * -2

    found = difference(captured(forward), captured(forward, X * 1.01))
    assert found.label == "input_1"
    assert found.first is not None
    assert found.first.error == pytest.approx(0.01, rel=1e-3)
    for each in found.ops[1:]:
        assert each.added == pytest.approx(0, abs=1e-6)


def test_an_inserted_op_is_told_and_shifts_nothing() -> None:
    other = a_stack()
    other.extra = True
    found = difference(captured(a_stack()), captured(other))
    assert (found.kind, found.label, found.other_label) == ("only_second", None, "mul_1_5")
    assert found.only_second == ("mul_1_5",)
    assert found.only_first == ()
    assert len(found.ops) == len(captured(a_stack()).ops)
    assert not any(each.differs for each in found.ops)
    back = difference(captured(other), captured(a_stack()))
    assert (back.kind, back.label) == ("only_first", "mul_1_5")


def test_a_replaced_function_and_another_setting_are_differences_of_records() -> None:
    one, other = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    other[0] = one[0]
    found = difference(captured(one), captured(other))
    assert (found.kind, found.field, found.before, found.after) == ("record", "func_name", "relu", "tanh")
    found = difference(captured(nn.Softmax(0)), captured(nn.Softmax(1)))
    assert (found.kind, found.field, found.label) == ("record", "func_config", "softmax_1_1")
    found = difference(captured(nn.Identity()), captured(nn.Identity(), X[:2]))
    assert (found.kind, found.field, found.label) == ("record", "shape", "input_1")


def test_another_wiring_is_a_difference() -> None:
    found = difference(
        captured(lambda x: (torch.sin(x), torch.cos(x))[0] * 2), captured(lambda x: (torch.sin(x), torch.cos(x))[1] * 2)
    )
    assert found.kind == "record"
    assert found.field == "parents"


def test_a_run_in_bfloat16_is_compared_with_one_in_float32() -> None:
    exact, rough = captured(a_stack()), captured(copy.deepcopy(a_stack()).bfloat16(), X.bfloat16())
    found = difference(exact, rough)
    assert found.kind == "payload"
    assert found.ops[0].dtypes == ("float32", "bfloat16")
    assert verdict(exact, rough, rtol=0.1, atol=0.1) == "clean"


def test_a_gradient_that_differs_is_told_with_its_pass() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.lin, self.factor = nn.Linear(4, 2), factor

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            if y.requires_grad:
                y.register_hook(lambda grad: grad * self.factor)
            return torch.tanh(y).sum()

    torch.manual_seed(1)
    one = Scaled(1.0)
    other = copy.deepcopy(one)
    other.factor = 1.5
    pair = [captured(each, capture=tl.CaptureOptions(save_grads=True)) for each in (one, other)]
    for trace in pair:
        trace.backward(trace.output)
    found = difference(*pair)
    assert (found.kind, found.label, found.backward_pass) == ("gradient", "linear_1_1", 1)
    assert found.first is not None
    assert found.first.error == pytest.approx(0.5)
    assert found.first.added == pytest.approx(0.5)
    weights = [each for each in found.gradients if each.label == "lin.weight"]
    assert weights[0].inherited == pytest.approx(0.5)
    assert weights[0].added == pytest.approx(0.0, abs=1e-6)


def test_what_is_not_finite_on_one_side_alone_is_an_infinite_error() -> None:
    x = torch.tensor([1.0, math.nan, math.inf])
    assert verdict(captured(nn.Identity(), x), captured(nn.Identity(), x.clone())) == "clean"
    found = difference(captured(nn.Identity(), x), captured(nn.Identity(), torch.tensor([1.0, math.nan, 2.0])))
    assert found.first is not None
    assert found.first.error == math.inf
    assert found.first.num_beyond == 1


def test_what_a_side_kept_nothing_of_is_not_said_to_be_the_same() -> None:
    found = difference(captured(a_stack()), captured(a_stack(), save=tl.func("linear")))
    assert not found
    assert found.verdict == "clean_as_seen"
    assert len(found.unexamined) > 3
    assert difference(captured(a_stack()), captured(a_stack(), save="none")).verdict == "not_checked"
    assert "not compared" in str(found)
    seen = difference(captured(a_stack()), captured(changed(0), save=tl.label("tanh_3_6")))
    assert (seen.kind, seen.label, seen.verdict) == ("payload", "tanh_3_6", "first_seen")
    assert seen.unexamined[0] == "input_1"
    assert "tanh_3_6" not in seen.unexamined
    assert seen.first is not None
    assert seen.first.added is None
    mixed = difference(captured(a_stack()), captured(changed(1), save=tl.stats_only()))
    assert (mixed.kind, mixed.label) == ("statistics", "linear_2_3")


def test_journals_and_captures_in_one_are_compared(tmp_path: Path) -> None:
    for name, model in (("first", a_stack()), ("second", changed(1))):
        captured(model, journal=tmp_path / "both", name=name).cleanup()
        captured(model, journal=tmp_path / name).cleanup()
    both = tmp_path / "both"
    found = [
        difference(tmp_path / "first", str(tmp_path / "second")),
        difference((both, 0), (both, -1)),
        difference((both, "first"), (both, "second")),
        difference(captured(a_stack()), tmp_path / "second"),
    ]
    assert {(each.kind, each.label, each.module) for each in found} == {("payload", "linear_2_3", "blocks.1.0:1")}
    assert len({str(each) for each in found}) == 1
    assert verdict((both, 0), tmp_path / "first", rtol=0, atol=0) == "clean"


def test_without_torch_statistics_are_compared_and_payloads_are_refused(tmp_path: Path) -> None:
    for name, save in (("payloads", None), ("statistics", tl.stats_only())):
        captured(a_stack(), save=save, journal=tmp_path / name, name="first").cleanup()
        captured(changed(1), save=save, journal=tmp_path / name, name="second").cleanup()
    code = (
        "import sys; sys.modules['torch'] = None; import torchlens as tl\n"
        "folder, pair = sys.argv[1], ('first', 'second')\n"
        "found = tl.first_difference(*((folder + '/statistics', each) for each in pair))\n"
        "assert (found.verdict, found.kind, found.label) == ('first_seen', 'statistics', 'linear_2_3'), found\n"
        "for name in ('payloads', 'statistics'):\n"
        "    try:\n"
        "        tl.first_difference((folder + '/' + name, 'first'), (folder + '/payloads', 'second'))\n"
        "    except tl.TorchLensError as exc:\n"
        "        print(exc.code)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True)
    assert ran.stdout.split() == ["torch_not_installed"] * 2


def test_a_gradient_that_one_side_kept_alone_is_not_compared() -> None:
    pair = [captured(a_stack(), capture=tl.CaptureOptions(save_grads=save)) for save in (True, tl.func("linear"))]
    for trace in pair:
        trace.backward(trace.output)
    found = difference(*pair)
    assert found.verdict == "clean_as_seen"
    assert "gradient of tanh_1_2 in backward pass 1" in found.unexamined
    assert "gradient of linear_1_1 in backward pass 1" not in found.unexamined


def test_a_data_frame_has_a_row_for_each_pair() -> None:
    pytest.importorskip("pandas")
    found = difference(captured(a_stack()), captured(changed(1)))
    frame = found.to_pandas()
    assert len(frame) == len(found.ops) + len(found.gradients) + len(found.blocks)
    assert "added" in frame.columns


@pytest.mark.parametrize("count", ["x", -1, 1.0, True])
def test_a_number_of_blocks_that_is_none_is_refused(count: Any) -> None:
    found = difference(captured(a_stack()), captured(changed(1)))
    with pytest.raises(ConfigurationError) as refused:
        found.worst(count)
    assert refused.value.code == "difference_argument_invalid"
    assert found.worst(0) == ()


@pytest.mark.parametrize(
    ("pair", "asked"), [((3, 4), {}), (((), ()), {}), (("a", "b"), {"rtol": -1}), (("a", "b"), {"atol": True})]
)
def test_what_cannot_be_compared_is_refused(pair: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        tl.first_difference(*pair, **asked)
    assert refused.value.code == "difference_argument_invalid"


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_the_pairs_of_two_sequences_are_a_longest_common_subsequence(one: list[int], other: list[int]) -> None:
    longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, item in enumerate(one):
        for j, twin in enumerate(other):
            longest[i + 1][j + 1] = longest[i][j] + 1 if item == twin else max(longest[i][j + 1], longest[i + 1][j])
    pairs = common(one, other)
    assert len(pairs) == longest[-1][-1]
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))


@given(st.lists(st.sampled_from(["sin", "tanh", "relu"]), min_size=1, max_size=8), st.data())
def test_an_op_inserted_anywhere_is_the_one_that_is_told(names: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(names)))

    def forward(extra: bool) -> Any:
        def run(x: Tensor) -> Tensor:
            for step, name in enumerate(names):
                x = torch.nan_to_num(x) if extra and step == at else x
                x = getattr(torch, name)(x)
            return torch.nan_to_num(x) if extra and at == len(names) else x

        return run

    found = difference(captured(forward(False)), captured(forward(True)))
    assert found.kind == "only_second"
    assert len(found.only_second) == 1
    assert str(found.other_label).startswith("nantonum")
    assert not found.only_first
    assert not any(each.differs for each in found.ops)
