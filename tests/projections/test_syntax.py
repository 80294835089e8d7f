"""What a function's text says, and texts that somebody made up: they are read or are none, soon, and nothing runs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.source.syntax import LONGEST, Tree, leaves_in, outcome, parse
from tests.work import at_most


def run(tree: Tree, given_truths: tuple[bool, ...], asked: dict[int, bool]) -> bool:
    """What Python makes of a test, noting the truths that it takes."""
    kind, inner = tree
    match kind:
        case "leaf":
            asked[inner] = given_truths[inner]
            return given_truths[inner]
        case "const":
            return bool(inner)
        case "not":
            return not run(inner, given_truths, asked)
        case "and":
            return all(run(part, given_truths, asked) for part in inner)
        case _:
            return any(run(part, given_truths, asked) for part in inner)


TREES = st.recursive(
    st.just("leaf"),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(("and", "or")), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=5,
)


def numbered(shape: object, counter: list[int]) -> Tree:
    if shape == "leaf":
        counter[0] += 1
        return ("leaf", counter[0] - 1)
    assert isinstance(shape, tuple)
    kind, inner = shape
    if kind == "not":
        return ("not", numbered(inner, counter))
    return (kind, tuple([numbered(part, counter) for part in inner]))


@given(TREES)
def test_what_a_test_comes_to_follows_from_the_truths_that_were_taken(shape: object) -> None:
    counter = [0]
    tree = numbered(shape, counter)
    assert list(leaves_in(tree)) == list(range(counter[0]))
    for truths in product((False, True), repeat=counter[0]):
        asked: dict[int, bool] = {}
        value = run(tree, truths, asked)
        assert outcome(tree, asked) is value


@given(TREES, st.data())
def test_where_some_were_not_seen_it_is_right_or_not_known(shape: object, data: st.DataObject) -> None:
    counter = [0]
    tree = numbered(shape, counter)
    truths = tuple(data.draw(st.lists(st.booleans(), min_size=counter[0], max_size=counter[0])))
    asked: dict[int, bool] = {}
    value = run(tree, truths, asked)
    seen = {leaf: truth for leaf, truth in asked.items() if data.draw(st.booleans())}
    assert outcome(tree, seen) in (value, None)


def test_a_function_is_read_as_it_stands_in_its_file() -> None:
    text = b'    @wraps\n    def f(self, x: int = 1) -> int:\n        """Says."""\n        return g(x, k=2)\n'
    syntax = parse(text, 10, "f")
    assert syntax is not None
    assert (syntax.signature, syntax.docstring) == ("(self, x: int=1) -> int", "Says.")
    expression = syntax.expression_at((13, 13, 15, 24))
    assert expression is not None
    assert [syntax.text(span) for span in expression.args] == ["x", "k=2"]
    assert expression.is_returned


@pytest.mark.parametrize(
    "text", [b"", b"x", b"def g(): pass\n", b"def f(:\n", b"\xff\xfe", b"class f: pass\n", b"def f(): \0\n"]
)
def test_a_text_that_is_not_the_function_is_none(text: bytes) -> None:
    assert parse(text, 1, "f") is None


HOSTILE = {
    "long": b"def f():\n" + b"    x = 1\n" * (LONGEST // 10 + 1),
    "brackets": b"def f():\n    return " + b"(" * 5000 + b")" * 5000,
    "a sum": b"def f():\n    return " + b"a+" * 30_000 + b"a",
    "a power": b"def f():\n    return " + b"a**" * 20_000 + b"a",
    "nots": b"def f():\n    return " + b"not " * 20_000 + b"a",
    "minuses": b"def f():\n    return " + b"-" * 50_000 + b"a",
    "attributes": b"def f():\n    return a" + b".b" * 40_000,
    "calls": b"def f():\n    return a" + b"()" * 40_000,
    "lambdas": b"def f():\n    return " + b"lambda:" * 10_000 + b"a",
    "conditionals": b"def f():\n    return " + b"a if b else " * 9_000 + b"c",
    "elifs": b"def f():\n    if a: pass\n" + b"    elif a: pass\n" * 6_000,
    "indents": b"def f():\n" + b"".join(b" " * (n + 1) + b"if a:\n" for n in range(400)),
    "f-strings": b"def f():\n    return " + b'f"{' * 3_000 + b"a" + b'}"' * 3_000,
    "targets": b"def f():\n    " + b"a = " * 16_000 + b"b\n",
    "tests": b"def f():\n    if " + b" and ".join([b"a"] * 9_000) + b": pass\n",
    "many arms": b"def f():\n" + b"    if a: b\n" * 5_000,
    "something to run": b"def f(x=__import__('os').system('touch hit')): pass\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_text_that_somebody_made_up_is_read_or_is_none_and_soon(what: str, tmp_path: object) -> None:
    with at_most(10):
        syntax = parse(HOSTILE[what], 1, "f")
    deep = {"long", "brackets", "a sum", "a power", "nots", "minuses", "attributes", "calls", "lambdas", "conditionals"}
    if what in deep | {"elifs", "indents", "f-strings"}:
        assert syntax is None
    elif what != "something to run":
        assert syntax is not None
        assert syntax.test_at((3, 3, 7, 8)) is None or syntax.tests
        assert syntax.regions_at((2, 2, 4, 5), "f") is not None


@given(st.text(max_size=200))
def test_any_text_is_read_or_is_none(text: str) -> None:
    for name in ("f", "<lambda>"):
        syntax = parse(text.encode(errors="replace"), 1, name)
        assert syntax is None or syntax.regions_at((1, 1, 0, 1), name) == [] or syntax.regions
