"""Which nodes are inner ones of a call, on made-up passes: by what leads to them, and by their numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from journal.events import Event
from projections import CaptureTables
from projections.accounts.charging import charged_ops
from projections.promises import invariants
from tests.projections.making import Made
from tests.projections.making_backward import Passes
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams


def nested(**numbers: int) -> CaptureTables:
    """Two calls, each with a node of its own, ``a`` and ``b``, and other nodes.

    ``first`` lies behind ``a``, ``second`` behind ``b`` and in front of ``a``, ``both`` behind the two.
    """
    forward = Made(parameters={"w": (4,)})

    def at(number: int, name: str) -> dict[str, Any]:
        return {"grad_fn": name, "grad_node": number, "grad_slot": 0, "requires_grad": True}

    value = forward.op("mul", forward.input("x"), "w", **at(1, "ABackward0"))
    passes = Passes(forward.returns(forward.op("exp", value, **at(2, "BBackward0"))))
    both = passes.node("BothBackward0", sequence=numbers["both"])
    first = passes.node("FirstBackward0", sequence=numbers["first"])
    a = passes.node("ABackward0", first, both, number=1, sequence=numbers["a"])
    second = passes.node("SecondBackward0", a, sequence=numbers["second"])
    b = passes.node("BBackward0", second, both, number=2, sequence=numbers["b"])
    passes.run(passes.node("SumBackward0", b, sequence=100))
    tables = passes.tables()
    assert invariants.check(tables) == []
    return tables


def inner(**numbers: int) -> dict[str, str | None]:
    """What each of these nodes is an inner one of."""
    nodes = nested(**numbers).grad_fns
    return {label.partition("_")[0]: nodes.value("inner_of", row) for row, label in enumerate(nodes.column("label"))}


def test_a_node_that_one_call_leads_to_is_that_calls() -> None:
    found = inner(first=5, both=7, a=8, second=9, b=10)
    assert found == {"sum": None, "b": None, "second": "exp_1_2", "a": None, "first": "mul_1_1", "both": "mul_1_1"}


def test_a_node_that_is_older_than_the_call_before_is_not_a_calls() -> None:
    assert inner(first=5, both=7, a=8, second=6, b=10)["second"] is None


def test_a_node_that_two_calls_lead_to_is_nobodys_where_either_could_have_made_it() -> None:
    assert inner(first=5, both=9, a=8, second=9, b=10)["both"] is None


def test_a_node_that_came_behind_all_nodes_of_calls_is_nobodys() -> None:
    assert inner(first=11, both=12, a=8, second=9, b=10)["first"] is None


@given(capture_streams(endings=("returned",)))
@settings(max_examples=40)
def test_columns_and_fold_agree_on_the_op_of_every_node(events: list[Event]) -> None:
    tables = tables_of(events)
    forward = tables.forward
    assert charged_ops(tables) == [forward.charged_op(node) for node in range(len(tables.grad_fns))]


def test_an_inner_node_works_for_the_op_of_its_call_and_a_loss_for_none() -> None:
    tables = nested(first=5, both=7, a=8, second=9, b=10)
    labels = [*tables.ops.column("label"), None]  # -1 for none
    nodes = [label.partition("_")[0] for label in tables.grad_fns.column("label")]
    named = dict(zip(nodes, map(labels.__getitem__, charged_ops(tables)), strict=True))
    assert named == {
        "sum": None,
        **dict.fromkeys(("b", "second"), "exp_1_2"),
        **dict.fromkeys(("a", "first", "both"), "mul_1_1"),
    }
    assert charged_ops(tables) == [tables.forward.charged_op(node) for node in range(len(nodes))]
