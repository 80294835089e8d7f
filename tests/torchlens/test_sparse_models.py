"""Models with sparse and nested parameters and buffers, such as the adjacency of a graph network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlens as tl

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse (C|invariant):UserWarning", "ignore:The PyTorch API of nested:UserWarning"
)

ADJACENCY = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])

BYTES = {"coo": 2 * 4 * 8 + 4 * 4, "csr": (4 + 4) * 8 + 4 * 4, "csc": (4 + 4) * 8 + 4 * 4}
"""Of indexes of eight bytes, and of four elements of four."""


def adjacency_in(form: str) -> Tensor:
    if form == "coo":
        return ADJACENCY.to_sparse()
    return ADJACENCY.to_sparse_csr() if form == "csr" else ADJACENCY.to_sparse_csc()


class Graph(nn.Module):
    """A step along the edges of a graph; the elements of its adjacency are doubled by each call, where asked for."""

    def __init__(self, adjacency: Tensor, *, doubles: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.doubles = doubles
        self.register_buffer("adjacency", adjacency.clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.doubles:
            adjacency = self.adjacency
            (adjacency._values() if adjacency.layout is torch.sparse_coo else adjacency.values()).mul_(2)
        return torch.sparse.mm(self.adjacency, self.linear(x))


@pytest.mark.parametrize("form", BYTES)
def test_a_sparse_buffer_is_described_and_its_model_works_everywhere(form: str, tmp_path: Path) -> None:
    model, x = Graph(adjacency_in(form)), torch.ones(3, 2)
    trace = tl.trace(model, x, journal=tmp_path / "j")
    assert torch.equal(trace.output, model(x))
    (buffer,) = trace.buffers
    assert buffer.shape == (3, 3)
    assert buffer.activation_memory == BYTES[form]
    assert "buffers     1" in str(trace.summary())
    assert trace.draw().source
    assert tl.validate(model, x)
    with pytest.raises(tl.TorchLensError) as caught:
        tl.trace(model, x).save(tmp_path / "a.tlspec")
    assert caught.value.code == "payload_without_bytes"


@pytest.mark.parametrize("form", BYTES)
def test_a_summary_puts_a_sparse_buffer_back(form: str) -> None:
    model = Graph(adjacency_in(form), doubles=True)
    tl.summary(model, torch.ones(3, 2))
    assert torch.equal(model.adjacency.to_dense(), ADJACENCY)


def test_a_sparse_parameter_and_a_nested_buffer_are_described() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(ADJACENCY.to_sparse())
            self.register_buffer("ragged", torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.weight, x)

    trace = tl.trace(Odd(), torch.ones(3, 2))
    assert trace.params["weight"].param_memory == BYTES["coo"]
    assert (trace.buffers["ragged"].shape, trace.buffers["ragged"].activation_memory) == ((), 15 * 4)


def test_the_memory_of_a_sparse_value_is_not_that_of_a_dense_one() -> None:
    places = torch.tensor([[0, 1], [1, 2]])
    trace = tl.trace(lambda x: torch.sparse_coo_tensor(places, x, (10**6, 10**6)) * 2, torch.randn(2))
    made = trace.ops["sparsecootensor_1"]
    assert (made.layout, made.activation_memory, made.bytes_written) == ("sparse_coo", None, None)
    assert trace.total_activation_memory < 100


def test_a_model_with_a_huge_sparse_buffer_is_validated_without_making_it_dense() -> None:
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            places = torch.tensor([[0, 1], [1, 2]])
            self.register_buffer("adjacency", torch.sparse_coo_tensor(places, torch.ones(2), (10**6, 10**6)))

        def forward(self, x: Tensor) -> Tensor:
            return (self.adjacency * 2)._values() + x

    assert tl.validate(Huge(), torch.ones(2))


def test_sparse_parameters_that_differ_in_their_places_alone_have_two_hashes() -> None:
    def hashed(places: list[list[int]]) -> str:
        model = Graph(torch.sparse_coo_tensor(torch.tensor(places), torch.ones(2), (3, 3)))
        torch.nn.init.ones_(model.linear.weight)
        torch.nn.init.ones_(model.linear.bias)
        model.weight = nn.Parameter(model.adjacency)
        return str(tl.trace(model, torch.ones(3, 2)).param_hash_quick)

    assert hashed([[0, 1], [1, 2]]) == hashed([[0, 1], [1, 2]])
    assert hashed([[0, 1], [1, 2]]) != hashed([[0, 1], [1, 1]])
