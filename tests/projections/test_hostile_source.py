"""Streams that name texts which somebody made up: conditionals and names are answered or refused by code, and soon."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from journal import TorchLensError
from journal.events import BranchTaken, CallSiteSeen, CodeSeen
from projections import CaptureTables, Projector
from tests.projections.making import Made
from tests.work import at_most

FLAT = b"def f():\n" + b"    if a > b: x = g(a)\n" * 2_500
DEEP = b"def f():\n" + b"".join(b" " * (level + 1) + b"if a > b:\n" for level in range(90)) + b" " * 91 + b"x = g(a)\n"


def code(made: Made, number: int, payload: int, name: str = "f", first_line: int = 1) -> None:
    made.add(CodeSeen(number=number, file="n.py", qualname=name, name=name, first_line=first_line, source=payload))


def site(made: Made, key: object, code_number: int, span: tuple[int, ...], caller: int | None = None) -> int:
    number = made.sites[key] = len(made.sites)
    made.add(CallSiteSeen(number=number, code=code_number, span=span, caller=caller))
    return number


def many_codes(made: Made, x: int, many: int) -> int:
    for number in range(many):
        code(made, number, 0, "f" if number % 2 else "<lambda>", 1 + number)
    for number in range(many):
        site(made, number, number, (2 + number, 2 + number, 7, 12))
        x = made.op("gt", x, site=number)
        made.add(BranchTaken(value=x, result=True, site=number, call=0))  # type: ignore[arg-type]  # a value
    return x


def many_tests(made: Made, x: int, many: int) -> int:
    code(made, 0, 0)
    for number in range(many):
        line = 2 + number % 2_500
        site(made, number, 0, (line, line, 7, 12))
        x = made.op("gt", x, site=number)
        made.add(BranchTaken(value=x, result=number % 3 == 0, site=number, call=0))  # type: ignore[arg-type]  # a value
    return x


def many_frames(made: Made, x: int, many: int) -> int:
    """A chain of calls, each of them in ninety arms."""
    code(made, 0, 1)
    before: int | None = None
    for number in range(many):
        before = site(made, number, 0, (92, 92, 95, 99), before)
    for _ in range(many):
        x = made.op("relu", x, site=many - 1)
    made.add(BranchTaken(value=x, result=True, site=site(made, "test", 0, (2, 2, 4, 9)), call=0))  # type: ignore[arg-type]  # a value
    return x


STREAMS: dict[str, Callable[[Made, int, int], int]] = {
    "many codes": many_codes,
    "many tests": many_tests,
    "many frames": many_frames,
}


def made_up(what: str, many: int) -> CaptureTables:
    made = Made()
    x = made.input("x")
    made.start()
    x = STREAMS[what](made, x, many)
    source = made.returns(x).source()
    source.payloads.update({0: FLAT, 1: DEEP})
    return Projector(source).tables()


def read(tables: CaptureTables, column: str) -> int | str:
    """Number of cells, or the code of a refusal."""
    try:
        return len(list(tables.ops.column(column)))
    except TorchLensError as refused:
        return refused.code


@pytest.mark.parametrize("what", STREAMS)
@pytest.mark.parametrize("many", [10, 1_500])
def test_texts_that_were_made_up_give_columns_or_a_coded_refusal(what: str, many: int) -> None:
    names = ("in_conditionals", "conditional_branch_stack", "conditional_arm_children", "var_names", "label")
    with at_most(40):
        tables = made_up(what, many)
        assert {read(tables, name) for name in names} <= {many + 2, "records_too_large"}
        assert read(tables, "label") == many + 2


def test_in_many_tests_each_is_a_conditional_with_what_it_came_to() -> None:
    tables = made_up("many tests", 2_500)
    assert len(tables.conditionals) == 2_500
    assert [kinds[0] for kinds in tables.conditionals.column("fired_arm_kinds")][:4] == ["then", None, None, "then"]
