"""Every refusal has a code; each code stands in one table, is raised somewhere, and is explained.

Codes are read from the sources: wherever something is called with ``code="..."`` or ``..._code="..."``, and
wherever a function with a parameter named ``code`` is called with a text for it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import torchlens.errors
from journal.errors import TorchLensError
from torchlens.codes import CODES
from torchlens.errors import TorchLensWarning
from torchlens.reading.failed import TraceCaptureError

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("journal", "projections", "torchlens")
CODE = re.compile(r"(?:\w+_)?code")
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROW = re.compile(r"^\| `(?P<code>[a-z0-9_]+)` \| `(?P<cls>\w+)` \| (?P<why>.+) \| (?P<remedy>.+) \|$", re.MULTILINE)


class Raised(NamedTuple):
    """A place that raises a code."""

    code: str
    cls: str | None  # the class that is called with it; None where a function stands between
    where: str


def texts(value: ast.expr) -> Iterator[str]:
    """The texts an expression may have; the test of a conditional is not among them."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts(body)
            yield from texts(orelse)
        case ast.JoinedStr():
            raise AssertionError(f"a code is written out, so that it can be searched for: {ast.unparse(value)}")
        case _:
            return


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def helpers(tree: ast.Module) -> dict[str, int]:
    """Functions of a file that take a code, and at which position."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args if argument.arg != "self"]
            if "code" in names:
                found[node.name] = names.index("code")
    return found


def default_codes(function: ast.FunctionDef) -> Iterator[str]:
    """The code that a function uses where none is given."""
    arguments = function.args.args
    for argument, value in zip(arguments[::-1], function.args.defaults[::-1], strict=False):
        if argument.arg == "code":
            yield from texts(value)


@functools.cache
def raised() -> list[Raised]:
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for name in PACKAGES
        for path in sorted((ROOT / name).rglob("*.py"))
    }
    own = {module: helpers(tree) for module, tree in trees.items()}
    found: list[Raised] = []
    for module, tree in trees.items():
        through = dict(own[module])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                there = own.get(node.module or "", {})
                through |= {alias.name: there[alias.name] for alias in node.names if alias.name in there}
                if any(alias.name[:1].isupper() for alias in node.names):  # a class, whose methods are helpers too
                    through |= there
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found += [Raised(code, None, f"{module}:{node.lineno}") for code in default_codes(node)]
            if not isinstance(node, ast.Call):
                continue
            name = name_of(node)
            given = [keyword.value for keyword in node.keywords if keyword.arg and CODE.fullmatch(keyword.arg)]
            if name in through:
                given += node.args[through[name] : through[name] + 1]
            cls = name if name[:1].isupper() and name not in through else None
            found += [Raised(code, cls, f"{module}:{node.lineno}") for value in given for code in texts(value)]
    return found


ROWS = [match.groupdict() for match in ROW.finditer(PAGE)]


def test_the_sources_are_read() -> None:
    assert {"journal_not_found", "multipass_bare_label_ambiguous", "op_lookup_not_found"} <= {r.code for r in raised()}


def test_the_table_holds_exactly_the_codes_that_are_raised() -> None:
    assert sorted({place.code for place in raised()}) == sorted(CODES), "torchlens/codes.py lists them"


def test_every_code_has_one_class() -> None:
    wrong = [place for place in raised() if place.cls is not None and CODES.get(place.code) != place.cls]
    assert wrong == []


def test_every_code_is_explained_once_with_cause_and_remedy() -> None:
    assert sorted(row["code"] for row in ROWS) == sorted(CODES), "docs/errors.md explains them"
    assert [row for row in ROWS if row["cls"] != CODES[row["code"]]] == []
    assert [row["code"] for row in ROWS if min(len(row["why"]), len(row["remedy"])) < 10] == []


def test_every_code_is_named_by_a_test() -> None:
    named = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))))
    assert sorted(set(CODES) - named) == []


def test_a_refused_option_is_told_as_the_argument() -> None:
    """One name for one fact, wherever the code is raised; where a function stands between, it takes that name."""
    told: list[tuple[str, str]] = []
    for name in PACKAGES:
        for path in sorted((ROOT / name).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                facts = {keyword.arg: keyword.value for keyword in getattr(node, "keywords", ())}
                code = facts.get("code")
                if isinstance(code, ast.Constant) and code.value == "option_value_invalid":
                    told += [(path.name, fact) for fact in facts if fact not in (None, "code", "problem", "remedy")]
    assert len(told) > 2
    assert {fact for _, fact in told} == {"argument"}, told


def test_codes_are_words_and_stand_in_order() -> None:
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", code) for code in CODES)


def test_nothing_is_raised_without_a_code() -> None:
    """A plain builtin is raised only where Python itself asks for it: attribute and item protocols, checked schemas."""
    allowed = {"AttributeError", "AssertionError", "IndexError", "KeyError", "NotImplementedError", "TypeError"}
    inside = {("wire.py", "ValueError")}  # raised into msgpack, and caught where that returns
    bare: list[str] = []
    for name in PACKAGES:
        for path in sorted((ROOT / name).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    cls = name_of(node.exc)
                    if hasattr(builtins, cls) and cls not in allowed and (path.name, cls) not in inside:
                        bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {cls}")
    assert bare == []


# -- the classes


CLASSES = {
    cls for _, cls in inspect.getmembers(torchlens.errors, inspect.isclass) if issubclass(cls, TorchLensError)
} | {TraceCaptureError}


def test_every_class_of_the_table_can_be_caught_by_name() -> None:
    told = {"TorchLensWarning", "Damage"}  # not raised: one is warned with, the other found by `verify`
    assert set(CODES.values()) <= {cls.__name__ for cls in CLASSES} | told


def made(cls: type[TorchLensError]) -> TorchLensError:
    return cls(code="some_code", problem="this was wrong", remedy="do that", label="relu_1_2", count=3)


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__))
def test_an_error_says_problem_remedy_and_code_and_keeps_the_facts(cls: type[TorchLensError]) -> None:
    error = made(cls)
    assert str(error) == "this was wrong. Remedy: do that [some_code]"
    assert (error.code, error.remedy) == ("some_code", "do that")
    assert error.fields == {"code": "some_code", "remedy": "do that", "label": "relu_1_2", "count": 3}
    assert traceback.format_exception_only(error)[0].endswith(": this was wrong. Remedy: do that [some_code]\n")


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__))
def test_an_error_survives_being_sent_to_another_process(cls: type[TorchLensError]) -> None:
    error = made(cls)
    rebuild, arguments = error.__reduce__()[:2]
    again: Any = rebuild(*arguments)
    assert type(again) is cls
    assert (str(again), again.fields) == (str(error), error.fields)


def test_a_warning_carries_the_same_facts() -> None:
    warning = TorchLensWarning(code="some_code", problem="this is odd", remedy="look", site="fc")
    assert warning.fields == {"code": "some_code", "remedy": "look", "site": "fc"}
    assert str(warning) == "this is odd. Remedy: look [some_code]"
    assert isinstance(warning, UserWarning)
    assert not isinstance(warning, TorchLensError)
    rebuild, arguments = warning.__reduce__()[:2]
    again: Any = rebuild(*arguments)
    assert (type(again), str(again), again.fields) == (TorchLensWarning, str(warning), warning.fields)


def test_lookups_are_key_errors_and_cleaned_traces_attribute_errors() -> None:
    assert issubclass(torchlens.errors.LookupRefused, KeyError)
    assert issubclass(torchlens.errors.IndexOutOfRange, IndexError)
    assert issubclass(torchlens.errors.TraceCleanedUpError, AttributeError)
    assert issubclass(TraceCaptureError, RuntimeError)
