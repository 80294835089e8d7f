"""What can be asked of a tensor's memory, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torchlens as tl
from projections.structure.details import item_bytes
from torchlens import compat
from torchlens.tensors import DTYPE_BY_WORD, contiguous_bytes, dense_bytes, has_plain_memory, is_freed, reach

PACKED = frozenset(("quint4x2", "quint2x4"))
"""Dtypes whose elements share bytes, which ``element_size`` does not say."""


@pytest.mark.parametrize("word", sorted(DTYPE_BY_WORD.keys() - PACKED))
@pytest.mark.filterwarnings("ignore")  # torch calls some of them experimental
def test_an_element_takes_as_many_bytes_as_torch_says(word: str) -> None:
    dtype = DTYPE_BY_WORD[word]
    size = torch.empty((), dtype=dtype).element_size()
    assert [item_bytes(word, count) for count in (0, 1, 9)] == [0, size, 9 * size]


def test_a_capture_of_mere_bits_is_read_and_saved(tmp_path: Path) -> None:
    trace = tl.trace(lambda x: x.view(-1), torch.zeros(4, dtype=torch.uint8).view(torch.bits2x4))
    assert trace.total_activation_memory == 12
    trace.save(tmp_path / "bits.tlspec")
    assert tl.load(tmp_path / "bits.tlspec")["view_1_1"].out.dtype is torch.bits2x4


class StandsFor(Tensor):
    """A tensor that has no memory, and stands for another."""

    @staticmethod
    def __new__(cls, of: Tensor) -> StandsFor:
        return Tensor._make_wrapper_subclass(cls, of.shape, dtype=of.dtype)  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


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
        pytest.param(lambda: FakeTensorMode().from_tensor(torch.ones(2)), id="fake"),
        pytest.param(lambda: StandsFor(torch.ones(2)), id="wrapper"),
    ],
)
def test_a_kind_without_plain_memory_has_no_bytes(make: Callable[[], Tensor]) -> None:
    tensor = make()
    assert not has_plain_memory(tensor)
    assert dense_bytes(tensor) is None


@pytest.mark.parametrize("left", [0, 4, 11])
def test_a_tensor_whose_storage_was_cut_has_no_bytes_instead_of_what_lies_behind(left: int) -> None:
    tensor = torch.ones(3)
    assert not is_freed(tensor)
    tensor.untyped_storage().resize_(left)
    assert is_freed(tensor)
    assert dense_bytes(tensor) is None
    assert contiguous_bytes(tensor) is None


@pytest.mark.parametrize("make", [torch.Tensor.t, lambda x: x[:, ::2], torch.Tensor.neg, lambda x: x.expand(2, 3, 4)])
def test_within_a_mode_that_fakes_what_is_asked_of_tensors_their_bytes_are_their_own(
    make: Callable[[Tensor], Tensor],
) -> None:
    tensor = make(torch.arange(12.0).view(3, 4))
    data, expected = contiguous_bytes(tensor), dense_bytes(tensor)
    assert data is not None
    assert expected is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        again, packed = contiguous_bytes(tensor), dense_bytes(tensor)
    assert again is not None
    assert packed is not None
    assert bytes(again) == bytes(data) == tensor.numpy().tobytes()
    assert bytes(packed[0]) == bytes(expected[0])


def test_a_view_that_is_little_but_repetitions_is_not_written_out() -> None:
    assert contiguous_bytes(torch.ones(1).expand(1 << 50)) is None
    assert dense_bytes(torch.ones(1).expand(1 << 50)) is not None
    assert len(bytes(contiguous_bytes(torch.ones(1).expand(100)) or b"")) == 400


def test_only_a_tensor_with_a_storage_has_an_identity_of_it() -> None:
    whole = torch.eye(2)
    assert compat.storage_or_none(whole) == compat.storage_or_none(whole[1]) == compat.storage_address(whole)
    assert compat.storage_or_none(whole) != compat.storage_or_none(whole.clone())
    assert compat.storage_or_none(whole.to_sparse()) is None
