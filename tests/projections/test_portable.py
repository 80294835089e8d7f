"""A selector saved by name and arguments is the same selector when it is read, and nothing runs but what is allowed."""

from __future__ import annotations

import json
import sys
from itertools import count
from typing import Any, ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import SelectionError
from projections.selecting import portable
from projections.selecting.backward_terms import grad_fn, grad_input, grad_output, in_backward_pass, without_op
from projections.selecting.nearby import followed_by, preceded_by
from projections.selecting.portable import selector_from_spec, selector_to_spec
from projections.selecting.queries import threshold, top_fraction, top_k
from projections.selecting.selector import (
    MAX_LEVELS,
    MAX_PARTS,
    Selector,
    contains,
    func,
    grad,
    in_module,
    label,
    module,
    output,
    regex,
    union,
    where,
)


def is_wide(op: Any) -> bool:
    return len(op.shape) == 2


class Tests:
    @staticmethod
    def is_deep(op: Any) -> bool:
        return bool(op.module_call_depth > 1)


ALLOW = (f"{__name__}:is_wide", f"{__name__}:Tests.is_deep")

text = st.text(max_size=8)

terms = st.one_of(
    *(text.map(make) for make in (func, module, in_module, label, contains)),
    st.sampled_from(["^a|b", r"\d+$"]).map(regex),
    st.one_of(st.integers(0, 9), text).map(output),
    st.sampled_from([where(is_wide), where(Tests.is_deep, name_hint="deep")]),
    st.builds(top_k, st.none(), st.integers(0, 9), by=st.sampled_from(["value", "abs"]), largest=st.booleans()),
    st.builds(threshold, text, above=st.floats(-9, 9)),
    st.builds(grad_fn, st.none() | text, label=st.none() | text, is_custom=st.none() | st.booleans()),
    st.sampled_from([without_op(), grad_input(), grad_output()]),
    st.integers(1, 9).map(in_backward_pass),
)


def combined(inner: st.SearchStrategy[Selector]) -> st.SearchStrategy[Selector]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] | pair[1]),
        pairs.map(lambda pair: pair[0] & pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        inner.map(lambda one: ~one),
        inner.map(grad),
        inner.map(lambda one: preceded_by(one, within=3)),
        inner.map(lambda one: followed_by(one, within=0)),
        st.builds(top_fraction, inner, st.floats(0, 1)),
    )


selectors = st.recursive(terms, combined, max_leaves=6)


@given(selectors)
def test_a_selector_comes_back_from_msgpack_and_json(selector: Selector) -> None:
    spec = selector_to_spec(selector)
    again = selector_from_spec(msgpack.unpackb(msgpack.packb(spec), use_list=False), allow=ALLOW)
    assert again == selector
    assert hash(again) == hash(selector)
    assert repr(again) == repr(selector)
    assert selector_to_spec(again) == spec
    assert selector_from_spec(json.loads(json.dumps(spec)), allow=ALLOW) == selector


def test_a_spec_can_be_read_by_people() -> None:
    selector = (func("relu", output=0) | "relu_1_2") - in_module("fc")
    assert selector_to_spec(selector) == (
        1,
        ("and", ("or", ("and", ("func", "relu"), ("output", 0)), ("label", "relu_1_2")), ("not", ("in_module", "fc"))),
    )
    assert selector_to_spec(where(is_wide)) == (1, ("where", f"{__name__}:is_wide", None))


@given(selectors)
def test_a_selector_survives_the_protocol_of_copying_and_pickling(selector: Selector) -> None:
    """What ``pickle`` does with an object, without ``pickle``."""

    def rebuilt(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(rebuilt, value))
        if not isinstance(value, Selector):
            return value
        make, arguments, state = value.__reduce_ex__(4)[:3]  # type: ignore[misc]  # a text only for what is global
        made = make(*arguments)
        made.__setstate__(rebuilt_state(state))
        return made

    def rebuilt_state(state: Any) -> Any:
        return {k: rebuilt(v) for k, v in state.items()} if isinstance(state, dict) else rebuilt(state)

    assert rebuilt(selector) == selector


def code_of(refused: pytest.ExceptionInfo[SelectionError]) -> str:
    return refused.value.code


def test_a_predicate_comes_back_only_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = selector_to_spec(func("relu") & where(is_wide))
    monkeypatch.setattr(portable.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    for allow in ((), ("os:system",), (__name__,), (f"{__name__}:is_wide.x",), f"x.{__name__}:is_wide"):
        with pytest.raises(SelectionError) as refused:
            selector_from_spec(spec, allow=allow)
        assert code_of(refused) == "selector_callable_not_allowed"
        assert refused.value.fields["path"] == f"{__name__}:is_wide"


class Scored:
    def scores_of(self, site: Any) -> Any:
        return None


class Taken:
    """A selection, as far as it is looked at."""

    trace = None
    kind = "activation"
    choice: ClassVar[dict[int, Any]] = {}


class Odd(Selector):
    pass


@pytest.mark.parametrize(
    "selector",
    [
        where(lambda op: True),
        where(Scored().scores_of),
        where(len.__call__),
        top_k(by=Scored()),
        top_k(Taken()),
        Odd(),
    ],
    ids=lambda selector: repr(selector)[:30],
)
def test_what_has_no_name_is_refused(selector: Selector) -> None:
    with pytest.raises(SelectionError) as refused:
        selector_to_spec(func("relu") | selector)
    assert code_of(refused) == "selector_not_portable"


def test_what_is_of_the_running_program_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_main(op: Any) -> bool:
        return True

    is_main.__module__, is_main.__qualname__ = "__main__", "is_main"
    monkeypatch.setattr(sys.modules["__main__"], "is_main", is_main, raising=False)
    with pytest.raises(SelectionError) as refused:
        selector_to_spec(where(is_main))
    assert code_of(refused) == "selector_not_portable"


def test_what_can_be_made_can_be_saved_and_read_again_as_deep_as_it_may_be() -> None:
    deepest = func("a")
    while deepest.levels < MAX_LEVELS:
        deepest = grad(deepest)
    widest = union(*[func(str(number)) for number in range(MAX_PARTS - 1)])
    for selector in (deepest, widest):
        assert selector_from_spec(selector_to_spec(selector)) == selector


NESTED: Any = ("func", "a")
for _ in range(5000):
    NESTED = ("not", NESTED)

TOO_DEEP: Any = ("func", "a")
for _ in range(MAX_LEVELS):
    TOO_DEEP = ("grad", TOO_DEEP)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        (),
        (1,),
        ("func", "relu"),
        (True, ("func", "relu")),
        (1, ()),
        (1, "func"),
        (1, ("exec", "import os")),
        (1, ("func",)),
        (1, ("func", 3)),
        (1, ("func", "a", "b")),
        (1, ("func", "a" * 5000)),
        (1, ("and",)),
        (1, ("not", "relu")),
        (1, ("not", None)),
        (1, ("output", True)),
        (1, ("where", "nowhere")),
        (1, ("where", 3, None)),
        (1, ("where", "nowhere:at_all", None)),
        (1, ("where", f"{__name__}:nothing", None)),
        (1, ("where", f"{__name__}:ALLOW", None)),
        (1, ("where", "", None)),
        (1, ("preceded_by", ("func", "a"), 1.0)),
        (1, ("top_k", None, 1, "value", 1)),
        (1, ("or", *[("func", "a")] * MAX_PARTS)),
        (1, NESTED),
        (1, TOO_DEEP),
    ],
    ids=count(),
)
def test_what_is_no_spec_is_refused(spec: Any) -> None:
    allow = ("nowhere:at_all", f"{__name__}:nothing", f"{__name__}:ALLOW", "")
    with pytest.raises(SelectionError) as refused:
        selector_from_spec(spec, allow=allow)
    assert code_of(refused) == "selector_spec_invalid"


def test_arguments_are_checked_as_when_a_selector_is_made() -> None:
    with pytest.raises(SelectionError) as refused:
        selector_from_spec((1, ("preceded_by", ("func", "a"), 9999)))
    assert code_of(refused) == "lookback_invalid"
    with pytest.raises(SelectionError) as refused:
        selector_from_spec((1, ("regex", "(")))
    assert code_of(refused) == "selector_pattern_invalid"


def test_a_later_form_is_refused_as_later() -> None:
    with pytest.raises(SelectionError) as refused:
        selector_from_spec((2, ("anything",)))
    assert code_of(refused) == "selector_spec_newer"
