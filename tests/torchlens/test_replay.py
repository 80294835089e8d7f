"""A recorded call can be made again: from its name, its template and the values that lay in its arguments' memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from journal.events import template as tag
from projections.structure.memory import Executed
from tests.torchlens.models import Double, calls_of, refusal
from torchlens.bits import gap, is_close, same_bits
from torchlens.capture.template import encode
from torchlens.errors import ReplayRefused
from torchlens.reading.values import python_value
from torchlens.replay.arguments import argument
from torchlens.replay.replaying import Replay
from torchlens.replay.restoring import ParameterBefore, Spot, cells_of, laid_out, may_overlap


def again(replay: Replay, call: Executed) -> list[Tensor]:
    return replay.run(call, replay.inputs(call)).results


# -- laws


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from(
        [torch.float32, torch.bool, torch.device("cpu"), torch.strided, torch.channels_last, ..., torch.Size([2, 3])]
    )
    | st.builds(slice, st.none() | st.integers(-3, 3), st.integers(-3, 3), st.none() | st.integers(1, 3))
    | st.builds(range, st.integers(-3, 3), st.integers(-3, 3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain_values)
def test_an_argument_comes_back_from_its_template_as_the_same_value(value: Any) -> None:
    found = argument(encode(value, lambda tensor: None), iter(()))
    assert found == value
    assert type(found) is type(value)


@given(plain_values)
def test_what_is_read_of_an_argument_is_what_is_given_to_the_call_again(value: Any) -> None:
    template = encode(value, lambda tensor: None)
    assert python_value(template) == argument(template, iter(()))


places = st.builds(
    lambda sizes, dtype, offset: Spot(
        dtype, tuple(size for size, _ in sizes), tuple(stride for _, stride in sizes), offset
    ),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64]),
    st.integers(0, 70),
)


@given(places, st.booleans(), st.booleans())
def test_a_tensor_is_laid_out_with_its_strides_and_within_a_cache_line_as_it_lay(
    here: Spot, conjugates: bool, negates: bool
) -> None:
    memory = torch.arange(here.offset + here.reach + 1).to(here.dtype)
    lay = memory.as_strided(here.shape, here.strides, here.offset)
    is_complex = here.dtype.is_complex
    lay = lay.conj() if is_complex and conjugates else lay
    lay = torch._neg_view(lay) if negates and here.dtype is not torch.bool else lay
    made = laid_out(lay, here, lay.is_conj(), lay.is_neg())
    assert same_bits(made, lay)
    assert made.stride() == here.strides
    assert (made.is_conj(), made.is_neg()) == (lay.is_conj(), lay.is_neg())
    if here.reach:
        size = here.dtype.itemsize
        assert made.storage_offset() * size % 64 == here.offset * size % 64


@given(places)
def test_memory_that_may_overlap_is_told_wherever_two_elements_are_one(here: Spot) -> None:
    where = torch.arange(here.reach).as_strided(here.shape, here.strides) if here.reach else torch.empty(0)
    if where.numel() > len(set(where.reshape(-1).tolist())):
        tensor = torch.zeros(here.reach).as_strided(here.shape, here.strides)
        assert may_overlap(tensor)
        assert cells_of(tensor).numel() == here.reach


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_bits_are_the_same_but_for_a_nan_and_a_zero_has_a_sign(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, float("nan"), 0.0]).to(dtype)
    other = one.clone()
    assert same_bits(one, other)
    assert not same_bits(one, torch.tensor([1.0, float("nan"), -0.0]).to(dtype))
    assert not same_bits(one, torch.tensor([2.0, float("nan"), 0.0]).to(dtype))
    assert not same_bits(one, one[:2])
    assert not same_bits(one, one.to(torch.complex128))


def test_a_gap_is_told_in_numbers_and_a_tolerance_is_that_of_the_dtype() -> None:
    one, other = torch.ones(4), torch.tensor([1.0, 1.0, 1.0 + 1e-6, 1.0])
    assert gap(one, other) == "1 of 4 elements differ, by at most 9.54e-07"
    assert gap(one, one.double()) == "dtype is torch.float32 and not torch.float64"
    assert gap(one, torch.ones(3)) == "shape is (4,) and not (3,)"
    assert is_close(one, other, None, None)
    assert not is_close(one, other, 0.0, 0.0)
    assert not is_close(one, one.double(), 1.0, 1.0)


# -- examples


def test_a_call_gives_the_same_bits_from_tensors_that_lie_as_they_lay() -> None:
    def model(x: Tensor) -> Tensor:
        return (x.t() @ x).sum(0) + x[:, ::2].sum() + x.expand(2, 3, 4).mean()

    replay, calls = calls_of(model, torch.randn(3, 4))
    assert len(calls) == 9
    for call in calls:
        for slot, tensor in enumerate(again(replay, call)):
            assert same_bits(tensor, replay.value(call.first + slot))
            assert tensor.stride() == (call.outputs[slot].strides or tensor.contiguous().stride())


def test_what_another_name_wrote_is_in_the_memory_of_an_argument() -> None:
    def model(x: Tensor) -> Tensor:
        base = x * 1
        column, flat = base[:, 1], base.view(-1)
        column.mul_(3)
        flat[4:].zero_()
        return base + column.sum()

    x = torch.arange(6.0).reshape(3, 2)
    replay, calls = calls_of(model, x)
    last = calls[-1]
    base, _ = replay.inputs(last)
    assert base.tolist() == [[0, 3], [2, 9], [0, 0]]
    assert same_bits(again(replay, last)[0], replay.value(last.first))


def test_arguments_of_one_memory_are_one_memory_again_where_the_call_writes() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 1
        y[1:].copy_(y[:-1].clone())
        y[0].add_(y[1])
        return y

    replay, calls = calls_of(model, torch.randn(3, 3))
    added = next(call for call in calls if call.func_name == "add_")
    one, other = replay.inputs(added)
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    assert replay.inputs(calls[0])[0].untyped_storage().data_ptr() != one.untyped_storage().data_ptr()
    for call in calls:
        assert same_bits(again(replay, call)[0], replay.value(call.first))


def test_a_parameter_is_given_as_the_writes_before_the_call_left_it() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.w.add_(1)
                self.w.view(2, 2)[0] = 7
            return x * self.w

    model = Writes()
    before = ParameterBefore(model.w.detach().clone(), 0, requires_grad=True)
    replay = Replay(tl.trace(model, torch.ones(4)), lambda number: before)
    last = list(replay.memory.executed())[-1]
    assert [given.tolist() for given in replay.inputs(last)] == [[1, 1, 1, 1], [7, 7, 2, 2]]


def test_a_call_that_draws_draws_the_same_and_leaves_the_generator_alone() -> None:
    def model(x: Tensor) -> Tensor:
        own = torch.Generator().manual_seed(3)
        y = torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(4, generator=own)
        return y + torch.randn(4, generator=own) + torch.empty(4).uniform_(generator=own)

    replay, calls = calls_of(model, torch.ones(3, 4))
    state = torch.get_rng_state()
    for call in calls:
        if call.func_name != "empty":
            assert same_bits(again(replay, call)[0], replay.value(call.first)), call.func_name
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(call.rng is not None for call in calls) == 5


@pytest.mark.parametrize("ambient", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_a_call_is_made_in_its_own_modes_whatever_holds_around(ambient: Callable[[], Any]) -> None:
    weight = torch.randn(4, 4, requires_grad=True)

    def model(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            low = x @ weight
            with torch.autocast("cpu", enabled=False):
                full = x @ weight
        with torch.inference_mode():
            inferred = x @ weight
        return low, full, inferred, x @ weight

    replay, calls = calls_of(model, torch.randn(3, 4))
    with ambient():
        made = [again(replay, call)[0] for call in calls]
    assert [tensor.dtype for tensor in made] == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    assert [tensor.is_inference() for tensor in made] == [False, False, True, False]
    assert [tensor.requires_grad for tensor in made] == [True, True, False, True]
    assert not torch.is_autocast_enabled("cpu")


def test_making_a_call_again_changes_nothing_that_was_recorded() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 1
        y.add_(1)
        return y.relu_()

    replay, calls = calls_of(model, torch.randn(3))
    before = [replay.value(call.first).clone() for call in calls]
    for call in calls:
        given = replay.inputs(call)
        again(replay, call)
        replay.run(call, given)
    assert all(same_bits(one, replay.value(call.first)) for one, call in zip(before, calls, strict=True))


def test_a_stored_capture_gives_its_calls_too(tmp_path: Any) -> None:
    path = tmp_path / "one.journal"
    tl.trace(lambda x: torch.dropout(x.t() @ x, 0.5, True).chunk(2, 1), torch.randn(3, 4), journal=path).cleanup()
    trace = tl.load(path)
    replay = Replay(trace, lambda number: None)
    for call in replay.memory.executed():
        for slot, tensor in enumerate(again(replay, call)):
            assert same_bits(tensor, replay.value(call.first + slot))
    trace.cleanup()


def test_an_operator_of_torch_ops_is_made_again() -> None:
    replay, calls = calls_of(lambda x: torch.ops.aten.add.Tensor(x, x, alpha=2) + torch.ops.aten.relu(x), torch.ones(2))
    assert again(replay, calls[0])[0].tolist() == [3, 3]
    assert again(replay, calls[1])[0].tolist() == [1, 1]


def test_a_scalar_of_numpy_comes_back() -> None:
    for value in (np.float32(0.1), np.int64(-3), np.bool_(True), np.float16(0.5)):  # a value
        found = argument(encode(value, lambda tensor: None), iter(()))
        assert found == value
        assert type(found) is type(value)


def test_a_conjugate_view_stays_one() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.fft.fft(x).conj().resolve_conj().abs() + torch.fft.fft(x).conj().imag

    replay, calls = calls_of(model, torch.randn(4))
    for call in calls:
        assert same_bits(again(replay, call)[0], replay.value(call.first))
    resolved = next(call for call in calls if call.func_name == "resolve_conj")
    assert replay.inputs(resolved)[0].is_conj()


# -- refusals


def test_a_call_that_was_not_watched_inside_is_refused() -> None:
    replay, (call,) = calls_of(Double.apply, torch.ones(2))
    assert refusal(lambda: again(replay, call), ReplayRefused) == "replay_call_opaque"


@pytest.mark.parametrize(
    "path",
    [
        "torch.nonsense",
        "os.system",
        "builtins.eval",
        "torch.ops.aten.nonsense",
        "torch.ops.load_library.x",
        "torch.ops.aten.__class__",
        "torch.ops.aten.from_file",
        "torch.ops.aten.add.Tensor.x",
    ],
)
def test_a_function_is_found_in_closed_lists_alone(path: str) -> None:
    replay, (call,) = calls_of(torch.relu, torch.ones(2))
    assert (
        refusal(lambda: replay.function(call._replace(func_qualname=path)), ReplayRefused) == "replay_function_unknown"
    )


LOST: Sequence[Any] = [
    (tag.LONG, tag.LIST, (1, 2), 5000),
    (tag.LONG_TEXT, "a", 5000),
    (tag.CALLABLE, "os.system"),
    (tag.OPAQUE, "m.Thing", ""),
    (tag.OPAQUE, "numpy.load", "1"),
    (tag.OPAQUE, "numpy.float32", "nonsense"),
    (tag.DEEP,),
    (tag.BYTES, 3),
    (tag.ENUM, "m.Mode", "FAST"),
    (tag.TEXT, "\\udc80"),
    (tag.NAMED, "os.stat_result", ("a",), 1),
    (tag.NAMED, "torch.return_types.nonsense", ("a",), 1),
    (tag.DTYPE, "nonsense"),
    (tag.DEVICE, "nonsense"),
    (tag.SET, (tag.LIST,)),
    (tag.TUPLE, (tag.DEEP,)),
    (999,),
]


@pytest.mark.parametrize("template", LOST, ids=str)
def test_an_argument_that_was_not_kept_is_refused(template: Any) -> None:
    assert refusal(lambda: argument(template, iter(())), ReplayRefused) == "replay_argument_lost"


def test_a_value_that_was_not_kept_is_refused() -> None:
    replay, calls = calls_of(lambda x: torch.relu(x + 1), torch.ones(2), save="relu_1_2")
    assert refusal(lambda: replay.inputs(calls[1]), ReplayRefused) == "replay_value_not_kept"
    assert refusal(lambda: replay.value(99), ReplayRefused) == "replay_value_not_kept"
    replay, (call,) = calls_of(nn.Linear(2, 2), torch.ones(2))
    replay.parameter = lambda number: None  # type: ignore[misc]  # as for a capture of another process
    assert refusal(lambda: replay.inputs(call), ReplayRefused) == "replay_value_not_kept"


def test_memory_that_a_parameter_was_put_on_is_refused() -> None:
    class Exchanges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.w.data = self.w.data * 2
            return x * self.w

    replay, calls = calls_of(Exchanges(), torch.ones(2))
    assert refusal(lambda: replay.inputs(calls[-1]), ReplayRefused) == "replay_memory_unknown"
