"""What modes and classes of tensors do with a call: the call that the model made is the op, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import torchlens as tl
from torchlens.options import CaptureOptions

VERIFY = CaptureOptions(verify_capture=True)


class Plain(Tensor):
    pass


class Handling(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class WatchesForNan(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            assert not result.isnan().any()
        return result


class Wraps(Tensor):
    """Holds a tensor and computes with it below torch's functions."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)  # type: ignore[attr-defined]  # torch's stubs leave it out
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*[arg.held if isinstance(arg, cls) else arg for arg in args], **(kwargs or {})))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


MODES: list[Callable[[], Any]] = [lambda: FlopCounterMode(display=False), WatchesForNan]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("capture", [CaptureOptions(), VERIFY])
def test_a_dispatch_mode_adds_no_op_and_hides_none(mode: Any, inside: bool, capture: CaptureOptions) -> None:
    net, x = model(), torch.randn(3, 4)

    def forward(x: Tensor) -> Any:
        with mode():
            return net(x)

    if inside:
        trace = tl.trace(forward, x, capture=capture)
    else:
        with mode():
            trace = tl.trace(net, x, capture=capture)
    assert trace.ops.labels == ("input_1", "linear_1_1", "relu_1_2", "linear_2_3", "output_1")
    assert trace.health.is_clean
    assert trace.health.capture_verified is (True if capture is VERIFY else None)
    assert torch.equal(trace.output, net(x))


def test_a_mode_is_afterwards_as_it_was_and_counts_the_same() -> None:
    enter = TorchDispatchMode.__enter__
    with FlopCounterMode(display=False) as bare:
        model()(torch.ones(3, 4))
    with FlopCounterMode(display=False) as traced:
        on = torch._C._get_dispatch_stack_at(0)
        before = dict(vars(on))
        tl.trace(model(), torch.ones(3, 4))
        assert vars(on) == before
    assert traced.get_total_flops() == bare.get_total_flops() > 0
    assert TorchDispatchMode.__enter__ is enter


def test_tensors_without_values_are_captured_without_the_arithmetic_of_their_shapes() -> None:
    with FakeTensorMode():
        trace = tl.trace(model(), torch.ones(3, 4), save="none")
    assert trace.ops.labels == ("input_1", "linear_1_1", "relu_1_2", "linear_2_3", "output_1")


@pytest.mark.parametrize("kind", [Plain, Handling])
@pytest.mark.parametrize("capture", [CaptureOptions(), VERIFY])
def test_a_call_on_a_tensor_subclass_is_one_op_and_keeps_the_class(kind: Any, capture: CaptureOptions) -> None:
    x = torch.ones(3).as_subclass(kind)
    trace = tl.trace(lambda q: (q * 2).relu() + 1, x, capture=capture)
    assert trace.ops.labels == ("input_1", "mul_1_1", "relu_1_2", "add_1_3", "output_1")
    assert all(type(op.out) is kind for op in trace.ops)
    assert [op.parents for op in trace.ops] == [(), ("input_1",), ("mul_1_1",), ("relu_1_2",), ("add_1_3",)]
    assert trace.health.is_clean


@pytest.mark.parametrize("capture", [CaptureOptions(), VERIFY])
def test_the_ops_of_a_module_are_those_it_has_with_plain_tensors(capture: CaptureOptions) -> None:
    attend, x = nn.MultiheadAttention(4, 2), torch.ones(2, 3, 4)
    plain = tl.trace(attend, (x, x, x), capture=capture)
    x = x.as_subclass(Plain)
    assert tl.trace(attend, (x, x, x), capture=capture).ops.labels == plain.ops.labels


def test_what_a_class_computes_below_torchs_functions_is_not_the_models() -> None:
    handler = vars(Wraps)["__torch_dispatch__"]
    trace = tl.trace(lambda x: ((Wraps(x) * 2).relu() + 1).sum(), torch.ones(3), save="none")
    names = [op.func_name for op in trace.ops if op.is_compute_op]
    assert names == ["unseen", "__mul__", "relu", "__add__", "sum"]  # that a wrapper was made is told of
    assert vars(Wraps)["__torch_dispatch__"] is handler


@pytest.mark.parametrize(
    "made",
    [
        lambda x: (x * 2).as_subclass(Plain) + 1,
        lambda x: torch.Tensor._make_subclass(Plain, x * 2) + 1,  # type: ignore[attr-defined]  # torch's stubs leave it out
        lambda x: nn.Parameter(x * 2) + 1,
    ],
)
def test_a_value_under_another_class_stays_the_same_value(made: Callable[[Tensor], Tensor]) -> None:
    with torch.no_grad():
        trace = tl.trace(made, torch.ones(3), capture=VERIFY)
        assert tl.validate(made, torch.ones(3))
    assert trace.ops.labels == ("input_1", "mul_1_1", "add_1_2", "output_1")
    assert trace.ops["add_1_2"].parents == ("mul_1_1",)
    assert trace.health.is_clean
