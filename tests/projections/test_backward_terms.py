"""Selectors of what a backward pass does: their algebra over spots, what they mean, and what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.events.backward import Side
from projections.autograd.nodes import type_of
from projections.errors import SelectionError, SelectorTypeError
from projections.selecting.backward_terms import (
    Spot,
    about,
    grad_fn,
    grad_input,
    grad_output,
    in_backward_pass,
    matching,
    names_nodes,
    without_op,
)
from projections.selecting.selector import Func, Selector, func, grad, label

ROWS = {"linear": (0, 2), "relu": (1,), "none": ()}
"""The ops of a made-up forward, by function."""

NODES = [
    ("AddmmBackward0", "addmm_back_1_2"),
    ("ReluBackward0", "relu_back_1_4"),
    ("AccumulateGrad", "accumulategrad_back_1_3"),
]


def rows_of(selector: Selector) -> tuple[int, ...]:
    assert isinstance(selector, Func)
    return ROWS[selector.name]


def spot(
    class_name: str = "ReluBackward0",
    label: str = "relu_back_1_4",
    *,
    side: Side = "output",
    row: int | None = 1,
    pass_index: int = 1,
    is_custom: bool = False,
    has_op: bool | None = None,
) -> Spot:
    return Spot(
        class_name=class_name,
        label=label,
        is_custom=is_custom,
        has_op=row is not None if has_op is None else has_op,
        side=side,
        row=row,
        pass_index=pass_index,
    )


spots = st.builds(
    lambda node, side, row, pass_index: spot(*node, side=side, row=row, pass_index=pass_index),
    st.sampled_from(NODES),
    st.sampled_from(["output", "input"]),
    st.sampled_from([None, 0, 1, 2]),
    st.integers(1, 3),
)

terms = st.one_of(
    st.sampled_from(list(ROWS)).map(func),
    st.sampled_from([grad_fn(), grad_fn("relu"), grad_fn(label="_back_1"), grad_fn(is_custom=True), without_op()]),
    st.sampled_from([grad_input(), grad_output()]),
    st.integers(1, 3).map(in_backward_pass),
)

selectors = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
        inner.map(lambda one: ~one),
        inner.map(grad),
    ),
    max_leaves=6,
)


def says(selector: Selector, at: Spot) -> bool:
    return matching(selector, rows_of)(at)


@given(selectors, selectors, spots)
def test_combining_selectors_combines_what_they_say_of_a_spot(one: Selector, other: Selector, at: Spot) -> None:
    assert says(one | other, at) == (says(one, at) or says(other, at))
    assert says(one & other, at) == (says(one, at) and says(other, at))
    assert says(one - other, at) == (says(one, at) and not says(other, at))
    assert says(~one, at) != says(one, at)


@given(selectors, spots)
def test_the_gradient_of_a_site_is_at_the_output_of_its_op(of: Selector, at: Spot) -> None:
    assert says(grad(of), at) == (at.side == "output" and at.row is not None and says(of, at))


@given(selectors)
def test_a_selector_of_a_backward_is_a_value(selector: Selector) -> None:
    again = copy.deepcopy(selector)
    assert (again, hash(again), repr(again)) == (selector, hash(selector), repr(selector))


@pytest.mark.parametrize(
    ("selector", "at"),
    [
        (grad_fn("ReluBackward0"), spot()),
        (grad_fn("relubackward0"), spot()),
        (grad_fn("Relu"), spot()),
        (grad_fn(label="RELU_back"), spot()),
        (grad_fn("fn", is_custom=True), spot("FnBackward", "fn_back_1_1", is_custom=True)),
        (grad_fn(type("Fn", (), {})), spot("FnBackward", "fn_back_1_1", is_custom=True)),
        (without_op(), spot("AccumulateGrad", "accumulategrad_back_1_3", row=None)),
        (func("relu"), spot()),
        (func("relu") & grad_input(), spot(side="input")),
        (func("linear") & in_backward_pass(2), spot("AddmmBackward0", "addmm_back_1_2", row=2, pass_index=2)),
    ],
    ids=repr,
)
def test_a_spot_that_matches(selector: Selector, at: Spot) -> None:
    assert says(selector, at)
    assert not says(~selector, at)


@pytest.mark.parametrize(
    ("selector", "at"),
    [
        (grad_fn("relu"), spot("ReluBackward1Backward0", "relubackward1_back_1_1")),
        (grad_fn("rel"), spot()),
        (grad_fn("relu", label="_2_"), spot()),
        (without_op(), spot(row=None, has_op=True)),
        (func("relu"), spot(row=None)),
        (grad(func("relu")), spot(side="input")),
        (in_backward_pass(2), spot()),
    ],
    ids=repr,
)
def test_a_spot_that_does_not(selector: Selector, at: Spot) -> None:
    assert not says(selector, at)


@pytest.mark.parametrize(
    "class_name",
    [
        "AddmmBackward0",
        "AccumulateGrad",
        "TanhBackwardBackward0",
        "torch::jit::(anonymous)::Diff",
        "Backward0",
    ],
)
def test_a_node_is_found_as_its_label_begins_and_by_its_class(class_name: str) -> None:
    at = spot(class_name, f"{type_of(class_name)}_back_1_1")
    assert matching(grad_fn(type_of(class_name)), rows_of)(at)
    assert matching(grad_fn(class_name), rows_of)(at)


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        (func("relu"), "op"),
        (func("relu") | label("add_1_2"), "op"),
        (grad("relu_1_2"), "gradient"),
        (grad("relu_1_2") & func("relu"), "gradient"),
        (~in_backward_pass(1), "gradient"),
        (grad("relu_1_2") | "relu_1_2", "mixed"),
        (func("relu") & grad_input(), "node"),
        (grad_fn("relu") - in_backward_pass(1), "node"),
        (grad_fn("relu") | in_backward_pass(1), "mixed"),
        ((grad_fn("relu") | grad("relu_1_2")) & in_backward_pass(1), "mixed"),
    ],
    ids=repr,
)
def test_what_a_selector_means_follows_from_its_parts(selector: Selector, meant: str) -> None:
    assert about(selector) == meant


def test_sides_are_asked_about_where_nodes_or_sides_are_named() -> None:
    assert all(map(names_nodes, (grad_fn(), ~without_op(), func("relu") & grad_input(), grad(grad_output()))))
    assert not any(map(names_nodes, (func("relu"), grad("relu_1_2"), in_backward_pass(1))))


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (grad_fn(), "grad_fn()"),
        (grad_fn("relu", label="_1", is_custom=False), "grad_fn('relu', label='_1', is_custom=False)"),
        (without_op() | grad_input(), "(without_op() | grad_input())"),
        (~grad_output(), "~grad_output()"),
        (func("relu") & in_backward_pass(2), "(func('relu') & in_backward_pass(2))"),
    ],
)
def test_a_selector_shows_how_it_is_made(selector: Selector, text: str) -> None:
    assert repr(selector) == text


def refused_with(make: Callable[[], Any]) -> str:
    with pytest.raises((SelectionError, SelectorTypeError)) as refused:
        make()
    return refused.value.code


@pytest.mark.parametrize(
    "make",
    [lambda: grad_fn(3), lambda: grad_fn(label=3), lambda: grad_fn(is_custom=1), lambda: grad_fn("relu", label=b"")],
)
def test_the_wrong_type_is_refused(make: Callable[[], Any]) -> None:
    assert refused_with(make) == "selector_argument_type_invalid"


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1", None, 2**63])
def test_a_pass_is_numbered_from_one(number: Any) -> None:
    assert refused_with(lambda: in_backward_pass(number)) == "selector_pass_invalid"
