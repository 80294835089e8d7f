"""What operators of backward passes are charged to, on made-up passes: firings, nothing recorded, other captures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from journal.events import BackwardDispatched, Event, PassOpened
from projections import CaptureTables, Projector
from projections.formulas.operator_flops import operator_flops
from projections.promises import invariants
from tests.projections.making import Made, source_of
from tests.projections.making_backward import Node, Passes
from tests.strategies import capture_streams

MM = "aten.mm.default"
SMALL = ((2, 3), (3, 4))  # 48 FLOPs
LARGE = ((5, 10), (10, 7))  # 700
FAR = 1 << 40


def made(**known: Any) -> tuple[Passes, Node, Node]:
    """A pass in which the node of an op is about to fire, with the gatherer behind it."""
    forward = Made(parameters={"w": (4,)})
    x = forward.input("x")
    node: dict[str, Any] = {"grad_fn": "MulBackward0", "grad_node": 3, "grad_slot": 0, "requires_grad": True}
    passes = Passes(forward.returns(forward.op("mul", x, "w", **node)))
    weight = passes.node("AccumulateGrad", leaf=-1)
    top = passes.node("MulBackward0", weight, number=3)
    passes.open(top, **{"has_census": True, **known})
    passes.walk(top)
    passes.enter()
    return passes, top, weight


def of_pass(tables: CaptureTables, column: str, number: int = 0) -> Any:
    return tables.backward_passes.value(column, number)


def test_an_operator_is_charged_to_the_firing_that_it_ran_in() -> None:
    passes, top, weight = made()
    passes.dispatch("aten.ones_like.default", None, ())
    passes.dispatch(MM, top, *SMALL)
    passes.dispatch("aten.mul.Tensor", top, (2, 4))
    passes.fire(top)
    passes.dispatch("aten.detach.default", weight, (4,))
    passes.fire(weight)
    passes.close()
    tables = passes.tables()
    assert list(tables.grad_fn_calls.column("flops")) == [48, 0]
    assert list(tables.grad_fn_calls.column("uncounted_families")) == [(("aten.mul", 1),), ()]
    assert (of_pass(tables, "executed_flops"), of_pass(tables, "unattributed_flops")) == (48, 0)
    assert of_pass(tables, "unattributed_rows") == (0,)
    assert tables.dispatched_ops.row(1) == {
        "name": MM,
        "family": "aten.mm",
        "backward_pass_index": 1,
        "ordinal_in_pass": 1,
        "grad_fn_label": "mul_back_1_1",
        "call_index": 1,
        "op_label": "mul_1_1",
        "is_elsewhere": False,
        "grad_enabled": False,
        "input_shapes": SMALL,
        "input_dtypes": ("float32", "float32"),
        "output_shapes": (),
        "output_dtypes": (),
        "flops": 48,
        "grad_fn_row": 0,
        "call_row": 0,
        "pass_row": 0,
        "event": tables.dispatched_ops.value("event", 1),
    }
    assert invariants.check(tables) == []


def test_what_runs_behind_the_hooks_of_a_node_is_its_too() -> None:
    passes, top, weight = made()
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top)
    passes.dispatch(MM, top, *LARGE)
    passes.fire(weight)
    passes.close()
    assert list(passes.tables().grad_fn_calls.column("flops")) == [748, 0]


def test_a_node_that_fires_again_is_charged_for_what_ran_since() -> None:
    passes, top, weight = made(retain_graph=True)
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top, weight)
    passes.close()
    passes.open(top, has_census=True)
    passes.dispatch(MM, top, *LARGE)
    passes.fire(top, weight)
    passes.close()
    tables = passes.tables()
    assert list(tables.grad_fn_calls.column("flops")) == [48, 0, 700, 0]
    assert list(tables.dispatched_ops.column("call_index")) == [1, 2]
    assert tables.fact("executed_flops") == 748


def test_what_runs_in_no_recorded_node_is_unattributed_and_in_the_sum() -> None:
    passes, top, _ = made()
    passes.dispatch(MM, None, *LARGE)
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top)
    passes.close()
    tables = passes.tables()
    assert (of_pass(tables, "executed_flops"), of_pass(tables, "unattributed_flops")) == (748, 700)
    assert tables.dispatched_ops.value("grad_fn_label", 0) is None


def test_what_runs_in_a_node_of_another_capture_is_in_no_sum() -> None:
    passes, top, _ = made()
    passes.dispatch(MM, None, *LARGE, is_elsewhere=True)
    passes.dispatch("aten.mul.Tensor", None, (2,), is_elsewhere=True)
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top)
    passes.close()
    tables = passes.tables()
    assert of_pass(tables, "executed_flops") == tables.fact("executed_flops") == 48
    assert of_pass(tables, "uncounted_families") == tables.fact("uncounted_families") == ()
    assert (of_pass(tables, "other_trace_rows"), of_pass(tables, "unattributed_rows")) == ((0, 1), ())
    assert invariants.check(tables) == []


def uncounted(passes: Passes) -> str:
    tables = passes.tables()
    assert of_pass(tables, "executed_flops") is of_pass(tables, "unattributed_flops") is None
    assert of_pass(tables, "uncounted_families") is tables.fact("executed_flops") is None
    assert set(tables.grad_fn_calls.column("flops")) == {None}
    assert tables.fact("executed_evidence") == "unknown"
    assert tables.fact("executed_reason") == of_pass(tables, "executed_reason")
    assert invariants.check(tables) == []
    return str(of_pass(tables, "executed_reason"))


def test_a_pass_that_raised_has_no_count() -> None:
    passes, top, _ = made()
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top)
    passes.close("engine_error", exception="builtins.RuntimeError", message="no")
    assert uncounted(passes) == "backward pass 1 raised before it finished"
    assert of_pass(passes.tables(), "dispatched_rows") == (0,), "what ran before is told"


def test_a_pass_that_was_not_told_to_its_end_has_no_count() -> None:
    passes, top, _ = made()
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top)
    assert uncounted(passes) == "backward pass 1 has not come to its end"
    passes.close(incomplete_reason="JournalError: the disk is full")
    assert uncounted(passes) == "backward pass 1 could not be recorded to its end"


def test_a_pass_without_a_census_has_no_count_and_says_how_to_have_one() -> None:
    passes, top, _ = made(has_census=False)
    passes.fire(top)
    passes.close()
    assert uncounted(passes).endswith("the capture was made without backward_ready=True")


def test_a_pass_that_nothing_announced_has_no_count() -> None:
    passes, top, _ = made(trigger="implicit", has_census=False, task=1)
    passes.fire(top)
    passes.close("engine_drain", drain_queued=True)
    assert uncounted(passes).startswith("nothing announced backward pass 1")


def test_one_pass_without_a_count_leaves_the_whole_without() -> None:
    passes, top, weight = made()
    passes.dispatch(MM, top, *SMALL)
    passes.fire(top, weight)
    passes.close()
    for _ in range(2):
        passes.open(top, has_census=False)
        passes.fire(top)
        passes.close()
    tables = passes.tables()
    assert list(tables.backward_passes.column("executed_flops")) == [48, None, None]
    assert tables.fact("executed_flops") is None
    assert tables.fact("executed_reason").endswith("backward_ready=True; 2 passes are not counted")


def test_without_a_backward_pass_nothing_is_known_unless_none_could_be() -> None:
    forward = Made()
    tables = forward.returns(forward.op("mul", forward.input("x"))).tables()
    assert [tables.fact(name) for name in ("backward_state", "executed_flops", "executed_evidence")] in (
        ["grad_enabled_unobserved", None, "unknown"],
        ["grad_disabled", 0, "formula_exact"],
    )
    assert tables.fact("executed_reason")


def test_more_work_than_any_run_can_do_is_no_count() -> None:
    passes, top, _ = made()
    for _ in range(3):
        passes.dispatch(MM, top, (FAR, 1 << 10), (1 << 10, 1 << 11))
    passes.fire(top)
    passes.close()
    assert uncounted(passes) == "backward pass 1 tells more work than any run can do"


@given(capture_streams())
def test_sums_over_firings_passes_and_events_are_one_number(events: list[Event]) -> None:
    tables = Projector(source_of(events)).tables()
    told = [one for one in events if isinstance(one, BackwardDispatched)]
    openings = [one for one in events if isinstance(one, PassOpened)]
    assert len(tables.dispatched_ops) == len(told)
    counts = [operator_flops(one.operator, one.inputs, one.outputs, one.settings) for one in told]
    assert list(tables.dispatched_ops.column("flops")) == counts
    passes, calls = tables.backward_passes, tables.grad_fn_calls
    for number, opening in enumerate(openings):
        executed = passes.value("executed_flops", number)
        own = [
            count
            for one, count in zip(told, counts, strict=True)
            if one.pass_number == number and not one.is_elsewhere and count is not None
        ]
        is_counted = opening.has_census and passes.value("status", number) == "ok"
        assert executed == (sum(own) if is_counted else None)
        rows = [calls.value("flops", row) for row in passes.value("call_rows", number)]
        if is_counted:
            assert sum(rows) + passes.value("unattributed_flops", number) == executed
        else:
            assert set(rows) <= {None}
    assert [one for one in invariants.check(tables) if "dispatched" in one.promise or "executed" in one.promise] == []


@pytest.mark.parametrize("first", [True, False])
def test_equal_numbers_of_other_types_are_told_apart(first: bool) -> None:
    passes, top, _ = made()
    sizes = [((1, 3), (3, 1)), ((True, 3), (3, True))]
    for shapes in sizes if first else sizes[::-1]:
        passes.dispatch(MM, top, *shapes)
    passes.fire(top)
    passes.close()
    assert list(passes.tables().dispatched_ops.column("flops")) == ([6, None] if first else [None, 6])
