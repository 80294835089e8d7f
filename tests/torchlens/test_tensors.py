"""What can be asked of a tensor's memory, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchlens import compat
from torchlens.tensors import dense_bytes, has_plain_memory, reach


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=4))
def test_a_tensor_reaches_as_far_as_its_farthest_element(axes: list[tuple[int, int]]) -> None:
    shape, strides = [size for size, _ in axes], [stride for _, stride in axes]
    cells = torch.arange(100).as_strided(shape, strides)
    assert reach(shape, strides) == (int(cells.max()) + 1 if cells.numel() else 0)


# `filterwarnings`: torch calls some of these kinds a prototype, and quantised tensors outdated, when one is made.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.eye(2).to_sparse(), id="sparse"),
        pytest.param(lambda: torch.eye(2).to_sparse_csr(), id="compressed"),
        pytest.param(lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8), id="quantised"),
        pytest.param(lambda: torch.nested.nested_tensor([torch.ones(2)]), id="nested"),
        pytest.param(lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), id="jagged"),
        pytest.param(lambda: torch.empty(2, device="meta"), id="meta"),
    ],
)
def test_a_kind_without_plain_memory_has_no_bytes(make: Callable[[], Tensor]) -> None:
    tensor = make()
    assert not has_plain_memory(tensor)
    assert dense_bytes(tensor) is None


def test_only_a_tensor_with_a_storage_has_an_identity_of_it() -> None:
    whole = torch.eye(2)
    assert compat.storage_or_none(whole) == compat.storage_or_none(whole[1]) == compat.storage_address(whole)
    assert compat.storage_or_none(whole) != compat.storage_or_none(whole.clone())
    assert compat.storage_or_none(whole.to_sparse()) is None
