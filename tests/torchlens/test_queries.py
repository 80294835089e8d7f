"""Selectors by value: what they choose is what sorting every element would, and the rest is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from torchlens.reading.selection import Selection

NAN = math.nan

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)


class Constants(nn.Module):
    """Gives tensors that are known beforehand."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.tensors = tensors

    def forward(self, x: Tensor) -> list[Tensor]:
        return [
            tensor.expand(1, *tensor.shape).sigmoid() if tensor.is_complex() else tensor.clone()
            for tensor in self.tensors
        ]


tensors = st.builds(
    lambda numbers, dtype, rows: (
        torch.tensor(
            [0.0 if number != number and dtype in DTYPES[4:] else number for number in numbers], dtype=torch.float64
        )
        .to(dtype)
        .reshape(rows if len(numbers) % rows == 0 else 1, -1)
    ),
    st.lists(st.one_of(st.integers(-2, 2).map(float), st.just(NAN), st.floats(-3, 3, width=16)), max_size=12),
    st.sampled_from(DTYPES),
    st.integers(1, 3),
)

populations = st.lists(tensors, min_size=1, max_size=4)


def trace_of(given: list[Tensor]) -> tl.Trace:
    return tl.trace(Constants(given), torch.ones(1))


def chosen(selection: Selection) -> list[list[int]]:
    """Positions of the chosen elements, for each clone."""
    return [site.mask.reshape(-1).nonzero().reshape(-1).tolist() for site in selection]


def sorted_elements(given: list[Tensor], of: Callable[[float], float]) -> list[tuple[int, int]]:
    """Every element that ranks, the greatest first, ties by site and position."""
    every = [
        (of(number), site, position)
        for site, tensor in enumerate(given)
        for position, number in enumerate(tensor.reshape(-1).tolist())
        if number == number
    ]
    return [(site, position) for _, site, position in sorted(every, key=lambda one: (-one[0], one[1], one[2]))]


ORDERS: dict[tuple[str, bool], Callable[[float], float]] = {
    ("value", True): lambda number: number,
    ("value", False): lambda number: -number,
    ("abs", True): abs,
    ("abs", False): lambda number: -abs(number),
}

CLONES = tl.func("clone")


@given(populations, st.sampled_from(sorted(ORDERS)), st.data())
@settings(max_examples=60, deadline=None)
def test_the_first_k_are_those_that_sorting_puts_first(
    given: list[Tensor], order: tuple[str, bool], data: st.DataObject
) -> None:
    by, largest = order
    ranked = sorted_elements(given, ORDERS[order])
    k = data.draw(st.integers(0, len(ranked)))
    trace = trace_of(given)
    found = trace[tl.top_k(CLONES, k, by=by, largest=largest)]
    assert found.labels() == trace[CLONES].labels()
    wanted: list[list[int]] = [
        sorted(position for at, position in ranked[:k] if at == site) for site in range(len(given))
    ]
    assert chosen(found) == wanted
    assert sum(site.selected_count for site in found) == k
    assert bool(found) == (k > 0)


@given(populations, st.floats(-3, 3, width=16), st.floats(-3, 3, width=16))
@settings(max_examples=40, deadline=None)
def test_a_threshold_is_the_comparison_that_torch_makes(given: list[Tensor], above: float, below: float) -> None:
    found = trace_of(given)[tl.threshold(CLONES, above=above, below=below)]
    for site, tensor in zip(found, given, strict=True):
        assert torch.equal(site.mask, (tensor > above) & (tensor < below))


@given(populations, st.sampled_from([0.0, 0.07, 0.1, 0.25, 0.5, 1.0]))
@settings(max_examples=40, deadline=None)
def test_a_fraction_is_rounded_up(given: list[Tensor], fraction: float) -> None:
    ranked = sorted_elements(given, ORDERS["value", True])
    found = trace_of(given)[tl.top_fraction(CLONES, fraction)]
    assert sum(site.selected_count for site in found) == math.ceil(round(fraction * 100) * len(ranked) / 100)


def test_a_fraction_is_meant_as_it_is_written() -> None:
    """In floats, 0.07 * 100 is a little more than 7."""
    found = trace_of([torch.arange(100.0)])[tl.top_fraction(CLONES, 0.07)]
    assert chosen(found) == [list(range(93, 100))]


def mlp_trace(**options: Any) -> tl.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return tl.trace(model, torch.arange(8.0).reshape(2, 4), **options)


def test_values_combine_with_other_selectors_element_by_element() -> None:
    trace = mlp_trace()
    relu = trace["relu_1_2"].out
    positive = trace[tl.threshold(tl.func("relu"), above=0)]
    assert torch.equal(positive[0].mask, relu > 0)
    assert torch.equal(trace[~tl.threshold(tl.func("relu"), above=0) & tl.func("relu")][0].mask, relu <= 0)
    assert trace[tl.threshold(tl.func("relu"), above=0) & tl.func("linear")].labels() == ()
    assert trace[tl.func("relu") - tl.top_k("relu_1_2", 3)][0].selected_count == 13
    united = trace[tl.top_k("relu_1_2", 3) | tl.func("linear")]
    assert united.labels() == ("linear_1_1", "relu_1_2", "linear_2_3")
    assert [site.selected_count for site in united] == [16, 3, 4]
    inner = tl.top_k(tl.threshold("relu_1_2", below=1), 2)
    assert relu[trace[inner][0].mask].max() < 1
    assert positive & trace[tl.func("relu")] == positive
    assert (positive - positive)[0].selected_count == 0
    assert not positive - positive
    assert len(positive - positive) == 1


def test_everything_that_was_kept_is_compared_once() -> None:
    """An output shows the value of the op it was returned from."""
    trace = mlp_trace(save=tl.func("linear") | tl.module("self"))
    found = trace[tl.top_k(k=20)]
    assert found.labels() == ("linear_1_1", "linear_2_3")
    assert [site.selected_count for site in found] == [16, 4]
    assert all(site.mask.all() for site in found)


def test_a_selection_may_be_compared_in_its_own_trace() -> None:
    trace, other = mlp_trace(), mlp_trace()
    some = trace[tl.func("linear")]
    assert trace[tl.top_k(some, 2)] == trace[tl.top_k(tl.func("linear"), 2)]
    with pytest.raises(tl.errors.SelectionError) as refused:
        other[tl.top_k(some, 2)]
    assert refused.value.code == "selection_trace_mismatch"


class Table:
    """Scores of some sites: the position of each element."""

    def __init__(self, shape: Any = None) -> None:
        self.shape = shape

    def scores_of(self, site: Any) -> Any:
        if site.op.func_name != "linear":
            return None
        return torch.arange(float(site.selected_count)).reshape(self.shape or site.shape)

    def __repr__(self) -> str:
        return "table"


def test_something_else_may_score_the_sites() -> None:
    trace = mlp_trace()
    found = trace[tl.top_k(k=3, by=Table())]
    assert found.labels() == ("linear_1_1", "linear_2_3")
    assert chosen(found) == [[13, 14, 15], []]
    with pytest.raises(tl.errors.SelectionError) as refused:
        trace[tl.top_k(tl.func("relu"), by=Table())]
    assert refused.value.code == "population_not_covered"
    with pytest.raises(tl.errors.SelectionError) as refused:
        trace[tl.top_k(by=Table((-1,)))]
    assert refused.value.code == "by_score_invalid"


@pytest.mark.parametrize(
    "make",
    [
        lambda: tl.top_k(k=-1),
        lambda: tl.top_k(k=1.5),
        lambda: tl.top_k(by="size"),
        lambda: tl.top_fraction(fraction=1.1),
        lambda: tl.top_fraction(fraction=NAN),
        lambda: tl.threshold("relu_1_2"),
        lambda: tl.threshold(above="much"),
        lambda: tl.threshold(above=NAN),
    ],
)
def test_a_criterion_that_is_none_is_refused_at_once(make: Any) -> None:
    with pytest.raises(tl.errors.SelectionError) as refused:
        make()
    assert refused.value.code == "selection_unresolvable"
    assert refused.value.fields["reason"] == "value_criterion_invalid"


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        (tl.top_k("linear_1_1", 17), "population_too_small"),
        (tl.top_k(tl.func("relu"), 1), "value_not_saved"),
        (tl.threshold(tl.in_module("self"), above=1), "value_not_saved"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_its_reason(selector: Any, reason: str) -> None:
    with pytest.raises(tl.errors.SelectionError) as refused:
        mlp_trace(save=tl.func("linear"))[selector]
    assert refused.value.code == "selection_unresolvable"
    assert refused.value.fields["reason"] == reason


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("forward", "reason"),
    [(lambda x: x * 1j, "value_criterion_invalid"), (lambda x: x.to_sparse(), "no_index_space")],
)
def test_values_without_an_order_or_a_place_are_refused(forward: Any, reason: str) -> None:
    trace = tl.trace(forward, torch.ones(2, 2))
    with pytest.raises(tl.errors.SelectionError) as refused:
        trace[tl.top_k()]
    assert refused.value.fields["reason"] == reason


def test_complex_values_compare_by_their_size() -> None:
    trace = tl.trace(lambda x: x * 1j, torch.arange(4.0))
    assert chosen(trace[tl.top_k(tl.func("mul"), 1, by="abs")]) == [[3]]


@pytest.mark.parametrize("argument", ["save", "stop_after"])
@pytest.mark.parametrize("selector", [tl.top_k(), tl.func("relu") & tl.threshold(above=0), tl.preceded_by(tl.top_k())])
def test_values_are_not_asked_for_while_the_model_runs(argument: str, selector: Any) -> None:
    with pytest.raises(tl.errors.SelectionError) as refused:
        mlp_trace(**{argument: selector})
    assert refused.value.code == "selector_reads_values"
    with pytest.raises(tl.errors.SelectionError):
        mlp_trace()[tl.preceded_by(selector)]


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65), st.floats(allow_nan=False), st.sampled_from([2**53 + 1, 2**63, 10**400, 128, -1, 256])
)
DTYPES = (torch.int8, torch.uint8, torch.int64, torch.bool, torch.uint16, torch.bfloat16, torch.float32, torch.float64)


@settings(max_examples=30)
@given(st.sampled_from(DTYPES), NUMBERS, NUMBERS)
def test_a_bound_is_compared_as_python_compares_numbers(dtype: torch.dtype, above: float, below: float) -> None:
    values = torch.tensor([-(2**63), -128, -1, 0, 1, 127, 200, 2**24, 2**53 + 1, 2**63 - 1]).to(dtype)
    trace = tl.trace(lambda x: x.clone(), values)
    (site,) = trace[tl.threshold(tl.func("clone"), above=above, below=below)]
    right = [place for place, number in enumerate(values.tolist()) if above < number < below]
    assert site.mask.flatten().nonzero().flatten().tolist() == right


def test_whole_numbers_and_floats_rank_as_what_they_are() -> None:
    trace = tl.trace(
        lambda x, y: (x.clone(), y.clone()), [torch.tensor([2**53 + 1, -(2**63)]), torch.tensor([2.0**53])]
    )
    (first, second) = trace[tl.top_k(tl.func("clone"), k=1)]
    assert (int(first.mask.sum()), int(second.mask.sum())) == (1, 0)
    (site,) = trace[tl.top_k(tl.label("clone_1_1"), k=1, by="abs")]
    assert site.mask.tolist() == [False, True]


UNSIGNED = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(UNSIGNED, min_size=1, max_size=6), st.sampled_from(sorted(ORDERS)), st.data())
def test_whole_numbers_without_sign_rank_with_all_others(
    unsigned: list[int], order: tuple[str, bool], data: st.DataObject
) -> None:
    """torch orders no uint64; what sorting in Python gives is right."""
    given = [torch.tensor(unsigned, dtype=torch.uint64), torch.tensor([2**63 - 1, -4]), torch.tensor([2.0**63, NAN])]
    by, largest = order
    ranked = sorted_elements(given, ORDERS[order])
    k = data.draw(st.integers(0, len(ranked)))
    found = trace_of(given)[tl.top_k(CLONES, k, by=by, largest=largest)]
    assert chosen(found) == [sorted(place for at, place in ranked[:k] if at == site) for site in range(3)]


@settings(max_examples=40, deadline=None)
@given(st.lists(UNSIGNED, min_size=1, max_size=6), NUMBERS, NUMBERS)
def test_a_bound_on_whole_numbers_without_sign_is_compared_exactly(
    unsigned: list[int], above: float, below: float
) -> None:
    trace = trace_of([torch.tensor(unsigned, dtype=torch.uint64)])
    (site,) = trace[tl.threshold(CLONES, above=above, below=below)]
    right = [place for place, number in enumerate(unsigned) if above < number < below]
    assert site.mask.nonzero().flatten().tolist() == right


@pytest.mark.parametrize("make", [tl.top_k, tl.top_fraction, lambda within: tl.threshold(within, above=0)])
def test_each_activation_is_read_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, read = mlp_trace(), list[int]()
    kept = trace.activation
    monkeypatch.setattr(trace, "activation", lambda row: read.append(row) or kept(row))
    trace[make(tl.func("linear"))]
    assert read == [1, 3]


def test_asking_for_more_than_ranks_tells_how_many_do() -> None:
    trace = trace_of([torch.tensor([1.0, NAN, 3.0])])
    for k in (3, 4, 10**12):
        with pytest.raises(tl.errors.SelectionError) as refused:
            trace[tl.top_k(CLONES, k)]
        assert refused.value.fields["population"] == 2


@pytest.mark.parametrize(
    ("forward", "what"),
    [(lambda x: x.expand(10**6, 10**6), "elements"), (lambda x: x.to(torch.uint8).view(torch.uint4), "uint4")],
)
def test_what_cannot_be_compared_element_by_element_is_refused(forward: Any, what: str) -> None:
    trace = tl.trace(forward, torch.ones(1))
    with pytest.raises(tl.errors.SelectionError, match=what) as refused:
        trace[tl.top_k(trace[-1].label)]
    assert refused.value.fields["reason"] == "value_criterion_invalid"


@pytest.mark.parametrize("make", [tl.top_k, tl.top_fraction])
def test_the_side_to_rank_from_is_a_bool(make: Any) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        make(largest="no")
    assert refused.value.code == "selection_unresolvable"
