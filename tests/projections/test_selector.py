"""Selectors: their algebra, what they match, and that a live answer is never taken back."""

from __future__ import annotations

import copy
import re
from typing import Any

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from journal.events import Event
from projections import CaptureTables, Projector, Selector
from projections.errors import SelectionError, SelectorTypeError
from projections.selector import contains, func, in_label_form, in_module, label, module, output, regex, where
from tests.projections.making import Made, labels, source_of
from tests.strategies import capture_streams

names = st.sampled_from(["relu", "add", "__add__", "add_", "chunk", "linear", "flatten", "gelu", "identity", "none"])
addresses = st.sampled_from(["self", "m1", "m1:1", "m1:2", "m2", "m1.m2", "m3:1", "nowhere"])
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
    ),
    max_leaves=5,
)


def tables_of(events: list[Event]) -> CaptureTables:
    return Projector(source_of(events)).tables()


@attrs.frozen
class Facts:
    """What the capturing side knows of an op that has just run."""

    func_name: str
    layer_type: str
    modules: tuple[str, ...]
    output_of: tuple[str, ...]
    multi_output_index: int | None
    raw_label: str


def facts_of(tables: CaptureTables, row: int, *, returned: bool) -> Facts:
    read = {field.name: None for field in attrs.fields(Facts)}
    del read["output_of"]
    known = {name: tables.ops.value(name, row) for name in read}
    output_of = tables.ops.value("output_of_module_calls", row) if returned else ()
    return Facts(output_of=output_of, **known)


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
    inside = tables.ops.column("modules")
    for row, left in enumerate(tables.ops.column("output_of_module_calls")):
        # A value that a module returns without having made it is known only once it was returned.
        if set(left) <= set(inside[row]) and not tables.ops.value("is_output", row):
            answer = selector.live(facts_of(tables, row, returned=False))
            assert answer is None or answer == (row in matched)


@given(capture_streams(), selectors)
def test_a_selector_that_needs_no_labels_is_decided_once_values_were_returned(
    events: list[Event], selector: Selector
) -> None:
    assume(not selector.needs_labels)
    tables = tables_of(events)
    matched = set(selector.rows(tables))
    for row in range(len(tables.ops)):
        answer = selector.live(facts_of(tables, row, returned=True))
        assert answer == (row in matched) or (answer is None and selector.names_modules)


@given(selectors)
def test_a_selector_is_a_value(selector: Selector) -> None:
    again = copy.deepcopy(selector)
    assert again == selector
    assert hash(again) == hash(selector)
    assert repr(again) == repr(selector)


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
        (module("self"), True, True),
        (in_module("fc"), False, False),
        (label("relu_1_2"), True, False),
        (label("relu_4_raw"), False, False),
        (contains("relu"), False, False),
        (contains("relu_1"), True, False),
        (regex("^conv|linear"), False, False),
        (regex("_2$"), True, False),
        (output(0), False, False),
        (output("values"), True, False),
        (func("relu") | ~label("relu_1_2"), True, False),
    ],
    ids=repr,
)
def test_a_selector_knows_what_it_must_wait_for(selector: Selector, needs_labels: bool, names_modules: bool) -> None:
    assert selector.needs_labels is needs_labels
    assert selector.names_modules is names_modules


def test_a_module_is_undecided_while_it_runs_and_decided_when_it_returns() -> None:
    running = Facts("relu", "relu", ("fc:1", "fc.act:1"), (), None, "relu_3_raw")
    assert module("fc").live(running) is None
    assert module("fc").live(attrs.evolve(running, output_of=("fc.act:1", "fc:1"))) is True
    assert module("other").live(running) is False
    assert (module("fc") & func("linear")).live(running) is False
    assert (module("fc") | func("relu")).live(running) is True


def test_a_selector_shows_how_it_was_built() -> None:
    selector = (func("relu", output=0) | "relu_1_2") - in_module("fc")
    assert repr(selector) == "(((func('relu') & output(0)) | label('relu_1_2')) & ~in_module('fc'))"
    assert repr(where(is_first_of_several, name_hint="first")) == "where(first)"


@pytest.mark.parametrize("text", ["relu_1_2", "relu_1_2:3", "relu_1", "input_1", "conv2d_1_1:all"])
def test_a_label_is_known_by_its_form(text: str) -> None:
    assert in_label_form(text)


@pytest.mark.parametrize("text", ["relu", "encoder.0", "relu_", "fc:1", ""])
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
    ],
)
def test_the_wrong_type_is_refused(make: Any, code: str) -> None:
    with pytest.raises(SelectorTypeError) as refused:
        make()
    assert code_of(refused) == code


def test_a_bad_pattern_is_refused_when_the_selector_is_made() -> None:
    with pytest.raises(re.error):
        regex("(")
