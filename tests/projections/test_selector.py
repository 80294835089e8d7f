"""Selectors: their algebra, what they match, and that a live answer is never taken back."""

from __future__ import annotations

import copy
import functools
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.events import Event
from projections import CaptureTables, Projector, Selector
from projections.errors import NotYetKnown, SelectionError, SelectorTypeError
from projections.selecting.backward_terms import grad_fn, in_backward_pass
from projections.selecting.nearby import followed_by, preceded_by
from projections.selecting.queries import threshold, top_fraction, top_k
from projections.selecting.selector import (
    MAX_LEVELS,
    MAX_PARTS,
    CallKey,
    Tables,
    call_key,
    contains,
    func,
    grad,
    in_label_form,
    in_module,
    label,
    module,
    output,
    regex,
    union,
    where,
)
from tests.projections.making import Made, labels, source_of
from tests.strategies import capture_streams

names = st.sampled_from(["relu", "add", "__add__", "add_", "chunk", "linear", "flatten", "gelu", "identity", "none"])
addresses = st.sampled_from(
    ["self", "self:1", "self:last", "m1", "m1:1", "m1:02", "m1:last", "m2:all", "m1.m2", "m3:1", "no"]
)
texts = st.sampled_from(["relu", "ADD", "1", "_1", ":1", "relu_1", "in", "add_3_raw", "out"])
patterns = st.sampled_from(["relu", "^add|chunk", "_1$", ":2", r"relu_\d", "^relu_", "_5_raw"])


def is_first_of_several(op: Any) -> bool:
    return bool(op.multi_output_index == 0)


terms = st.one_of(
    names.map(func),
    addresses.map(module),
    addresses.map(in_module),
    st.sampled_from(["relu_1_1:all", "add_1_2:1", "relu_2_raw", "relu_1:last", "chunk_9_9:1"]).map(label),
    texts.map(contains),
    patterns.map(regex),
    st.sampled_from([0, 1, "nothing"]).map(output),
    st.just(where(is_first_of_several, name_hint="first")),
)

selectors = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] - pair[1]),
        inner.map(lambda one: ~one),
        st.tuples(inner, st.integers(0, 4)).map(lambda pair: preceded_by(pair[0], within=pair[1])),
        st.tuples(inner, st.integers(0, 4)).map(lambda pair: followed_by(pair[0], within=pair[1])),
    ),
    max_leaves=5,
)


def tables_of(events: list[Event]) -> CaptureTables:
    return Projector(source_of(events)).tables()


class Facts:
    """What the capturing side knows of an op: as it returned, or when the forward has ended.

    Args:
        tables: The finished tables, of which only what is known then is told.
        row: The op.
        at_end: Whether the forward has ended.
    """

    def __init__(self, tables: Tables, row: int, *, at_end: bool) -> None:
        self.tables = tables
        self.row = row
        self.at_end = at_end

    def __getattr__(self, name: str) -> Any:
        if name not in TOLD:
            raise NotYetKnown(code="fact_not_live", problem=name, remedy="wait")
        return self.tables.ops.value(name, self.row)

    @property
    def output_of(self) -> tuple[str, ...]:
        """Labels of the calls that returned it, the root's own left out; also for what is on an island."""
        forward = self.tables.forward
        calls = [call for call, rows in enumerate(forward.calls.outputs) if call and self.row in rows]
        return tuple(forward.call_labels[call] for call in calls) if self.at_end else ()

    def call_key(self, address: str) -> CallKey:
        return call_key(address, self.tables.aliases)

    @property
    def ran(self) -> list[tuple[int, Facts]]:
        """Everything that ran, in order, with the event that each came of."""
        kept = self.tables.kept
        rows = [(side, row) for side in (kept, kept.islands) for row in range(len(side.ops)) if side.forward.is_op[row]]
        rows.sort(key=lambda one: one[0].forward.rows.ordinal[one[1]])
        return [(side.forward.rows.event[row], Facts(side, row, at_end=self.at_end)) for side, row in rows]

    @property
    def event(self) -> int:
        return self.tables.forward.rows.event[self.row]

    def before(self, count: int) -> list[Facts]:
        earlier = [one for event, one in self.ran if event < self.event]
        return earlier[max(0, len(earlier) - count) :]

    def after(self, count: int) -> tuple[list[Facts], bool]:
        later = [one for event, one in self.ran if event > self.event]
        return (later[:count], True) if self.at_end else ([], not count)


TOLD = ("func_name", "layer_type", "modules", "multi_output_index", "multi_output_name", "raw_label", "is_output")


@given(capture_streams(), selectors, selectors, selectors)
def test_combinations_are_set_algebra(events: list[Event], a: Selector, b: Selector, c: Selector) -> None:
    tables = tables_of(events)
    rows = {name: set(selector.rows(tables)) for name, selector in {"a": a, "b": b, "c": c}.items()}
    every = set(range(len(tables.ops)))
    assert set((a | b).rows(tables)) == rows["a"] | rows["b"]
    assert set((a & b).rows(tables)) == rows["a"] & rows["b"]
    assert set((a - b).rows(tables)) == rows["a"] - rows["b"]
    assert set((~a).rows(tables)) == every - rows["a"]
    assert (~~a).rows(tables) == a.rows(tables)
    assert (~(a | b)).rows(tables) == (~a & ~b).rows(tables)
    assert (a & (b | c)).rows(tables) == ((a & b) | (a & c)).rows(tables)


@given(capture_streams(), selectors)
def test_a_live_answer_is_never_taken_back(events: list[Event], selector: Selector) -> None:
    tables = tables_of(events)
    matched = set(selector.rows(tables))
    for row in range(len(tables.ops)):
        answer = selector.live(Facts(tables, row, at_end=False))
        assert answer is None or answer == (row in matched)


@given(capture_streams(), selectors)
def test_only_labels_leave_a_selector_undecided_at_the_end(events: list[Event], selector: Selector) -> None:
    tables = tables_of(events)
    matched = set(selector.rows(tables))
    for row in range(len(tables.ops)):
        answer = selector.live(Facts(tables, row, at_end=True))
        assert answer == (row in matched) or (answer is None and selector.needs_labels)


@given(selectors)
def test_a_selector_is_a_value(selector: Selector) -> None:
    again = copy.deepcopy(selector)
    assert again == selector
    assert hash(again) == hash(selector)
    assert repr(again) == repr(selector)


@pytest.mark.parametrize("combine", [operator.or_, operator.and_, operator.sub])
def test_a_long_combination_is_not_a_deep_one(combine: Any) -> None:
    selector = functools.reduce(combine, [func(str(number)) for number in range(3000)])
    assert selector.levels == (3 if combine is operator.sub else 2)
    again = copy.deepcopy(selector)
    assert again == selector
    assert hash(again) == hash(selector)
    assert repr(again) == repr(selector)
    assert selector.rows(looped()) == ()


def test_turned_around_any_number_of_times_is_itself_or_its_opposite() -> None:
    assert functools.reduce(lambda one, _: ~one, range(5001), func("relu")) == ~func("relu")


@given(selectors)
def test_levels_and_parts_are_those_of_the_tree(selector: Selector) -> None:
    def levels(one: Selector) -> int:
        return 1 + max(map(levels, one.parts()), default=0)

    assert selector.levels == levels(selector)
    assert selector.num_parts == len(list(selector.nodes()))


@pytest.mark.parametrize(
    "wrap",
    [
        grad,
        preceded_by,
        followed_by,
        top_k,
        top_fraction,
        lambda inner: threshold(inner, above=0),
        lambda inner: ~(inner | "relu_1"),
        lambda inner: (inner | "relu_1") & "relu_2",
        lambda inner: ~(inner | inner),
    ],
)
def test_a_selector_too_large_to_handle_is_refused_as_it_is_made(wrap: Any) -> None:
    made = [func("relu")]

    def wrap_again() -> None:
        while len(made) < 300:
            made.append(wrap(made[-1]))

    with pytest.raises(SelectionError) as refused:
        wrap_again()
    assert code_of(refused) == "selector_too_large"
    largest = made[-1]
    assert largest.levels <= MAX_LEVELS < 300
    assert largest.num_parts <= MAX_PARTS
    assert copy.deepcopy(largest) == largest
    assert repr(largest)


def test_a_selector_of_too_many_parts_is_refused_as_it_is_made() -> None:
    with pytest.raises(SelectionError) as refused:
        union(*[func("relu")] * MAX_PARTS)
    assert code_of(refused) == "selector_too_large"
    assert refused.value.fields["num_parts"] == MAX_PARTS + 1


def looped() -> CaptureTables:
    made = Made({"fc": "Linear", "fc.act": "ReLU"}, aliases={"fc": ("head",)})
    x = made.input("x")
    for _ in range(2):
        with made.call("fc", x, site="fc") as outer:
            inner = made.op("linear", x, site="l")
            with made.call("fc.act", inner, site="act") as call:
                call.returns(made.op("relu", inner, site="r"))
            outer.returns(call.output)
        x = outer.output
    pair = made.op("max", made.op("__add__", x, x), results=2, fields=("values", "indices"))
    return made.returns(pair).tables()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (func("relu"), "relu_1_2:1 relu_1_2:2"),
        (func("add"), "add_1_3"),
        (func("__add__"), "add_1_3"),
        (func("max", output=1), "max_2_5"),
        (func("max") & output("values"), "max_1_4"),
        (output(0), "max_1_4"),
        (module("fc"), "relu_1_2:1 relu_1_2:2"),
        (module("head:2"), "relu_1_2:2"),
        (module("fc.act:1"), "relu_1_2:1"),
        (module("fc:last"), "relu_1_2:2"),
        (module("self"), "output_1"),
        (module("fc:3"), ""),
        (module("fc:all"), "relu_1_2:1 relu_1_2:2"),
        (module("fc:02"), "relu_1_2:2"),
        (module("fc:\u00b2"), ""),
        (in_module("head:last"), "linear_1_1:2 relu_1_2:2"),
        (in_module(":1") & func("add"), "add_1_3"),
        (in_module("fc:1"), "linear_1_1:1 relu_1_2:1"),
        (in_module("fc.act"), "relu_1_2:1 relu_1_2:2"),
        (label("add_1_3"), "add_1_3"),
        (label("add_1"), "add_1_3"),
        (label("relu_1_2:2"), "relu_1_2:2"),
        (label("relu_1:last"), "relu_1_2:2"),
        (label("relu_1_2:all"), "relu_1_2:1 relu_1_2:2"),
        (label("linear_2_raw"), "linear_1_1:1"),
        (label("relu_1_2:9"), ""),
        (label("nothing"), ""),
        (contains("LIN"), "linear_1_1:1 linear_1_1:2"),
        (contains("2:1"), "relu_1_2:1"),
        (regex(r"^m.*_5$"), "max_2_5"),
        (where(lambda op: op.shape == (2, 4) and op.num_parents == 0), "input_1"),
        (func("relu") - "relu_1_2:1", "relu_1_2:2"),
        ("add_1_3" | label("relu_1_2:1"), "relu_1_2:1 add_1_3"),
        (func("relu") & in_module("fc:2"), "relu_1_2:2"),
    ],
    ids=repr,
)
def test_each_kind_of_selector_finds_its_ops(selector: Selector, expected: str) -> None:
    tables = looped()
    assert " ".join(labels(tables)[row] for row in selector.rows(tables)) == expected


def test_a_predicate_may_be_asked_about_the_readers_own_records() -> None:
    tables = looped()
    assert where(lambda record: record == 3).rows(tables, lambda row: row) == (3,)


@pytest.mark.parametrize(
    ("selector", "needs_labels", "names_modules"),
    [
        (func("relu"), False, False),
        (module("fc"), False, True),
        (module("self"), False, True),
        (in_module("fc"), False, False),
        (label("relu_1_2"), True, False),
        (label("relu_4_raw"), False, False),
        (contains("relu"), False, False),
        (contains("relu_1"), True, False),
        (regex("^conv|linear"), False, False),
        (regex("_2$"), True, False),
        (output(0), False, False),
        (output("values"), False, False),
        (module("fc:last"), True, True),
        (in_module("fc:last"), True, False),
        (preceded_by("relu_1_2"), True, False),
        (preceded_by(func("relu")), False, False),
        (followed_by(module("fc"), within=3), False, True),
        (func("relu") | ~label("relu_1_2"), True, False),
    ],
    ids=repr,
)
def test_a_selector_knows_what_it_must_wait_for(selector: Selector, needs_labels: bool, names_modules: bool) -> None:
    assert selector.needs_labels is needs_labels
    assert selector.names_modules is names_modules


def test_a_module_is_undecided_until_it_returns_or_can_no_longer() -> None:
    tables = looped()
    row = labels(tables).index("relu_1_2:1")
    running, ended = Facts(tables, row, at_end=False), Facts(tables, row, at_end=True)
    assert module("fc").live(running) is None
    assert module("fc").live(ended) is True
    assert module("fc:2").live(running) is None
    assert module("fc:2").live(ended) is False
    assert module("fc:last").live(ended) is None
    assert (module("fc") & func("linear")).live(running) is False
    assert (module("fc") | func("relu")).live(running) is True


def test_a_label_of_another_type_is_told_at_once() -> None:
    tables = looped()
    relu = Facts(tables, labels(tables).index("relu_1_2:1"), at_end=False)
    assert label("relu_1_2:2").live(relu) is None
    assert label("linear_1_1").live(relu) is False
    assert label("not a label").live(relu) is False


def test_what_is_nearby_is_counted_in_calls_that_ran() -> None:
    """The loop is linear relu linear relu, then an add, then a max with two results, then the output."""
    tables = looped()

    def found(selector: Selector) -> str:
        return " ".join(labels(tables)[row] for row in selector.rows(tables))

    assert found(preceded_by(func("add"))) == "max_1_4 max_2_5"
    assert found(preceded_by(func("max"))) == "output_1"
    assert found(func("relu") & preceded_by(func("relu"), within=2)) == "relu_1_2:2"
    assert found(func("linear") & followed_by(func("add"), within=2)) == "linear_1_1:2"
    assert found(func("linear") & followed_by(func("add"), within=1)) == ""
    assert found(followed_by(func("linear"), within=0)) == ""
    assert found(func("relu") & followed_by(preceded_by(func("linear")) & func("relu"), within=2)) == "relu_1_2:1"


def test_an_op_on_an_island_ran_too() -> None:
    made = Made({})
    x = made.op("linear", made.input("x"))
    made.op("dead")
    tables = made.returns(made.op("relu", x)).tables()
    assert [labels(tables)[row] for row in (func("relu") & preceded_by(func("dead"))).rows(tables)] == ["relu_1_2"]
    assert (func("relu") & preceded_by(func("linear"))).rows(tables) == ()


def test_a_selector_shows_how_it_was_built() -> None:
    selector = (func("relu", output=0) | "relu_1_2") - in_module("fc")
    assert repr(selector) == "(((func('relu') & output(0)) | label('relu_1_2')) & ~in_module('fc'))"
    assert repr(where(is_first_of_several, name_hint="first")) == "where(first)"


@pytest.mark.parametrize("text", ["relu_1_2", "relu_1_2:3", "relu_1", "input_1", "conv2d_1_1:all", "a:2_1_2:1"])
def test_a_label_is_known_by_its_form(text: str) -> None:
    assert in_label_form(text)


@pytest.mark.parametrize("text", ["relu", "encoder.0", "relu_", "fc:1", "", "a.b_1_2", "Conv_1"])
def test_what_is_no_label_is_known_by_its_form(text: str) -> None:
    assert not in_label_form(text)


def code_of(refused: pytest.ExceptionInfo[Any]) -> str:
    return str(refused.value.code)


def test_a_selector_has_no_truth() -> None:
    with pytest.raises(SelectionError) as refused:
        bool(func("relu"))
    assert code_of(refused) == "selection_bool_ambiguous"


def test_a_bare_label_of_several_passes_is_refused() -> None:
    with pytest.raises(SelectionError) as refused:
        label("relu_1_2").rows(looped())
    assert code_of(refused) == "multipass_bare_label_ambiguous"
    assert refused.value.fields["num_passes"] == 2


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: func(3), "selector_function_pattern_type_invalid"),
        (lambda: func("a") - 3, "selector_subtraction_operand_invalid"),
        (lambda: func("a") | 3, "selector_operand_invalid"),
        (lambda: func("a") & None, "selector_operand_invalid"),
        (lambda: module(3), "selector_argument_type_invalid"),
        (lambda: where("relu"), "selector_predicate_type_invalid"),
        (lambda: output(1.5), "selector_output_type_invalid"),
        (lambda: grad(3), "selector_argument_type_invalid"),
        (lambda: preceded_by(3), "selector_argument_type_invalid"),
    ],
)
def test_the_wrong_type_is_refused(make: Any, code: str) -> None:
    with pytest.raises(SelectorTypeError) as refused:
        make()
    assert code_of(refused) == code


def test_a_bad_pattern_is_refused_when_the_selector_is_made() -> None:
    with pytest.raises(SelectionError) as refused:
        regex("(")
    assert code_of(refused) == "selector_pattern_invalid"


@pytest.mark.parametrize("make", [preceded_by, followed_by])
@pytest.mark.parametrize("within", [-1, 1025, 1.0, True, None])
def test_a_look_back_beyond_its_bound_is_refused(make: Any, within: Any) -> None:
    with pytest.raises(SelectionError) as refused:
        make("relu_1_1", within=within)
    assert code_of(refused) == "lookback_invalid"


def test_a_look_inside_a_look_counts_for_both() -> None:
    assert preceded_by(preceded_by("relu_1", within=24), within=1000).behind == 1024
    with pytest.raises(SelectionError) as refused:
        preceded_by(preceded_by("relu_1", within=25), within=1000)
    assert code_of(refused) == "lookback_invalid"


@pytest.mark.parametrize(
    "selector",
    [
        grad("relu_1_2"),
        grad(func("relu")) | "relu_1_2:1",
        func("a") - grad("b"),
        in_backward_pass(1),
        preceded_by(grad_fn("relu")),
    ],
)
def test_gradients_of_a_forward_are_refused(selector: Selector) -> None:
    assert selector.names_gradients
    with pytest.raises(SelectionError) as refused:
        selector.rows(looped())
    assert code_of(refused) == "selector_names_gradients"


def test_a_long_union_is_not_deep() -> None:
    selector = label("relu_1_2:1")
    for number in range(5000):
        selector = selector | f"sub_{number}"
    assert selector.rows(looped()) == label("relu_1_2:1").rows(looped())
    assert "sub_4999" in repr(selector)
    assert ("a_1" | label("b_1")) | "c_1" == "a_1" | (label("b_1") | "c_1")
