"""Formulas of single calls, without torch: what they say of odd arguments, and how long they take to say it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from journal.events import template as tag
from journal.events.template import HOLE
from projections.columnar.arguments import argument_paths
from projections.formulas.flops import LARGEST, RULES, Call, Count, Operand, count, plain_name, rule_of
from tests.projections.making import Made, cell
from tests.strategies import plain_values
from tests.work import at_most

NAMES = (*sorted(RULES), "__radd__", "__ifloordiv__", "relu_", "_foreach_mul_", "no such function")

shapes = st.lists(st.one_of(st.integers(0, 6), st.sampled_from((2**31, 2**63, 2**80))), max_size=5).map(tuple)
operands = st.none() | st.builds(Operand, shapes, st.booleans(), st.sampled_from((True, True, True, False)))
templates = st.one_of(
    st.just(HOLE),
    st.just((tag.LIST, HOLE, HOLE)),
    st.just((tag.TUPLE, HOLE)),
    st.integers(-3, 7),
    st.sampled_from((None, True, 0.5, 2.0, "sum", "ij,jk->ik", "...,->", "i" * 5000, (tag.LIST, 1, 2), (tag.TUPLE,))),
    plain_values(),
)
names = st.sampled_from(("dim", "weight", "bias", "other", "kernel_size", "p", "n", "mode", "alpha", "n_fft", "k"))


@given(
    st.sampled_from(NAMES),
    st.lists(templates, max_size=9),
    st.dictionaries(names, templates, max_size=3),
    st.lists(operands, max_size=20),
    st.lists(operands.filter(bool), min_size=1, max_size=3),
)
@settings(max_examples=600)
@example("relu", [(tag.NAMED,), (tag.NAMED, "a", 3, 4), (tag.DICT, 1), (tag.SLICE, 1)], {}, [], [Operand(())])
def test_any_arguments_give_a_count_within_bounds_or_a_reason(
    name: str, args: list[Any], named: dict[str, Any], tensors: list[Any], outputs: list[Any]
) -> None:
    kwargs = [part for pair in named.items() for part in pair]
    with at_most(5):
        found = count(Call(name, args, kwargs, tensors[: len(argument_paths(args, kwargs))], outputs))
    assert (found.evidence == "formula_exact") == (found.reason is None)
    if found.evidence == "unknown":
        assert found.macs is found.forward is found.backward is None
        return
    assert found.macs is not None
    assert found.forward is not None
    assert found.backward is not None
    assert 0 <= found.macs <= found.forward <= LARGEST
    assert 0 <= found.backward <= LARGEST


def test_a_call_without_arguments_is_unknown_or_needs_none() -> None:
    counts = {name: count(Call(name, (), (), (), [Operand((2, 3))])) for name in RULES}
    assert counts["relu"] == Count(other=6)
    assert counts["zeros"] == Count()
    assert counts["linear"].reason == "no tensor was given for input"
    assert {found.evidence for found in counts.values()} == {"formula_exact", "estimated", "unknown"}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("__add__", "add"),
        ("__radd__", "add"),
        ("__iadd__", "add"),
        ("add_", "add"),
        ("__rand__", "and"),
        ("__and__", "and"),
        ("__iand__", "and"),
        ("__invert__", "invert"),
        ("__rpow__", "pow"),
        ("__rmatmul__", "matmul"),
        ("__ifloordiv__", "floordiv"),
        ("__pos__", "positive"),
        ("__getitem__", "__getitem__"),
        ("rsub", "rsub"),
        ("relu_", "relu"),
        ("_softmax", "_softmax"),
    ],
)
def test_a_name_is_told_without_what_marks_it_as_in_place_or_reflected(name: str, plain: str) -> None:
    assert plain_name(name) == plain
    assert rule_of(name) is not None


def test_reflected_products_change_their_operands() -> None:
    left, right = Operand((2, 3)), Operand((3, 4))
    assert count(Call("__rmatmul__", (HOLE, HOLE), (), [right, left], [Operand((2, 4))])).macs == 24
    assert count(Call("__matmul__", (HOLE, HOLE), (), [right, left], [Operand((2, 4))])).macs is None


def test_operands_that_do_not_fit_are_unknown() -> None:
    found = count(Call("mm", (HOLE, HOLE), (), [Operand((2, 3)), Operand((4, 5))], [Operand((2, 5))]))
    assert (found.evidence, found.reason) == ("unknown", "the shapes of the operands do not fit")
    assert count(Call("mm", (HOLE, HOLE), (), [Operand((2, 3)), None], [Operand((2, 5))])).reason == (
        "the shape of an argument is not known"
    )


def test_more_work_than_any_run_can_do_is_unknown() -> None:
    huge = Operand((2**31, 2**31))
    assert count(Call("mm", (HOLE, HOLE), (), [huge, huge], [huge])).forward is None


def test_a_chain_is_multiplied_in_its_cheapest_order() -> None:
    operands = [Operand((10, 100)), Operand((100, 5)), Operand((5, 50))]
    found = count(Call("multi_dot", ((tag.LIST, HOLE, HOLE, HOLE),), (), operands, [Operand((10, 50))]))
    assert found.macs == 10 * 100 * 5 + 10 * 5 * 50


def test_a_call_with_very_many_results_is_looked_at_once() -> None:
    made = Made()
    tables = made.returns(made.op("split", made.input("x"), results=4000)).tables()
    with at_most(5):
        assert set(tables.ops.column("flops_forward")) == {0}
        assert list(tables.capture.column("total_flops_forward")) == [0]


def test_a_tensor_made_where_no_wrapper_looks_is_unknown() -> None:
    made = Made()
    x = made.input("x")
    hidden = made.constant("GeluBackward0")
    tables = made.returns(made.op("mul", x, hidden)).tables()
    label = "gelu_1_1"
    assert cell(tables, label, "flops_forward") is None
    assert cell(tables, label, "compute_record")[3] == "it was made where no wrapper looks"
