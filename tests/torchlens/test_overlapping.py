"""Elements that are one in memory, as after ``expand``, stay one in every copy that a capture makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens import compat
from torchlens.bits import gap, is_close, same_bits
from torchlens.copying import copy_of, each_element
from torchlens.tensors import dense_bytes, from_payload

MOST = (10**6, 10**6)
"""Sizes whose elements fill no memory there is."""


class Spread(nn.Module):
    """Writes to the memory of a tensor that was spread over many elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        base = self.weight * 2 + x.sum()
        base.expand(MOST)[0]
        base.add_(1)
        return base.sum()


@pytest.mark.parametrize(
    "options", [{}, {"save": tl.SaveOptions(mode="copy")}, {"capture": tl.CaptureOptions(save_arg_values=True)}]
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_spread_tensor_is_kept_in_the_memory_it_had(options: dict[str, Any], on_disk: bool, tmp_path: Path) -> None:
    where = {"journal": tmp_path / "journal"} if on_disk else {}
    trace = tl.trace(Spread(), torch.ones(1, 2), **options, **where)
    out = trace["expand_1_4"].out
    assert out.shape == MOST
    assert out.untyped_storage().nbytes() == 4
    assert float(out.detach()[5, 7]) == 4


def test_a_spread_tensor_is_validated_by_the_elements_it_has_in_memory() -> None:
    def forward(x: Tensor) -> tuple[Tensor, ...]:
        spread = (x * 2).expand(MOST)
        return spread, spread[3:5, 7:9] + 1, (x > 0).expand(MOST), (x * 1j).expand(MOST)

    assert tl.validate(forward, torch.ones(1, 1, requires_grad=True))


def test_spread_tensors_are_compared_by_what_they_have_in_memory_and_counted_whole() -> None:
    one, other = torch.tensor([[1.0], [2.0]]).expand(2, 10**12), torch.tensor([[1.0], [2.5]]).expand(2, 10**12)
    assert same_bits(one, copy_of(one))
    assert not same_bits(one, other)
    assert is_close(one, other, 0.5, 0.0)
    assert not is_close(one, other, 0.1, 0.0)
    assert gap(one, other) == f"{10**12} of {2 * 10**12} elements differ, by at most 0.5"
    assert not same_bits(one, one[:, :5])
    few = one[:, :3]
    assert same_bits(few, few.contiguous())
    assert gap(few, other[:, :3].contiguous()) == "3 of 6 elements differ, by at most 0.5"


def test_what_is_made_of_a_spread_tensor_is_spread_too() -> None:
    trace = tl.trace(Spread(), torch.ones(1, 2), save=tl.SaveOptions(dtype=torch.float16))
    made = trace["expand_1_4"].transformed_out
    assert (made.dtype, made.shape, made.untyped_storage().nbytes()) == (torch.float16, MOST, 2)


def test_the_copy_of_windows_over_a_tensor_is_on_its_graph() -> None:
    leaf = torch.arange(1000.0, dtype=torch.float64, requires_grad=True)
    windows = (leaf * 2).unfold(0, 100, 1)
    copy = copy_of(windows)
    assert copy.untyped_storage().nbytes() == 8000
    assert torch.equal(copy, windows)
    weights = torch.rand(windows.shape, dtype=torch.float64)
    (mine,) = torch.autograd.grad((copy * weights).sum(), leaf, retain_graph=True)
    (right,) = torch.autograd.grad((windows * weights).sum(), leaf)
    torch.testing.assert_close(mine, right)


AXES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=4)


@given(AXES)
def test_a_copy_has_the_elements_and_no_more_memory(axes: list[tuple[int, int]]) -> None:
    shape, strides = [size for size, _ in axes], [stride for _, stride in axes]
    tensor = torch.arange(100.0).as_strided(shape, strides)
    copy = copy_of(tensor)
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().nbytes() <= max(100, tensor.numel()) * 4
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()
    halved = each_element(tensor, lambda elements: compat.to(elements, torch.float16))
    assert torch.equal(halved, tensor.half())


@given(AXES)
def test_bytes_of_any_tensor_give_it_back(axes: list[tuple[int, int]]) -> None:
    shape, strides = [size for size, _ in axes], [stride for _, stride in axes]
    tensor = torch.arange(100.0).as_strided(shape, strides)
    packed = dense_bytes(tensor)
    assert packed is not None
    data, kept, _ = packed
    assert len(bytes(data)) <= 400
    assert torch.equal(from_payload(bytes(data), "float32", tuple(shape), 0, kept), tensor)
