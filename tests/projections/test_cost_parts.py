"""What holds of the tree of work, whatever was captured and however much of it is shown."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import Event
from projections.accounts.cost_parts import Amounts, Part, Tree, cost_tree
from projections.forward import one_each
from projections.records.cost import every_cost
from projections.records.executed_columns import executed_flops
from projections.records.saved import charges
from tests.projections.making import Made
from tests.projections.making_backward import Passes
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams

MM = "aten.mm.default"
SMALL = ((2, 3), (3, 4))  # 48 FLOPs
LARGE = ((5, 10), (10, 7))  # 700

VIEWS = st.fixed_dictionaries(
    {
        "top_k": st.none() | st.integers(1, 3),
        "max_depth": st.none() | st.integers(0, 3),
        "fold_repeats": st.booleans(),
    }
)


def added(parts: Any) -> Amounts:
    made = Amounts()
    for amounts in parts:
        made.add(amounts)
    return made


def below(tree: Tree, part: Part) -> list[Part]:
    return [one for one in tree.parts if one.parent_id == part.part_id]


@settings(max_examples=150)
@given(events=capture_streams() | capture_streams(backward=True), view=VIEWS)
def test_own_work_adds_up_to_the_whole_in_every_view(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    forward = tables.forward
    tree = cost_tree(tables, **view)
    root = tree.parts[0]
    assert added(part.own for part in tree.parts) == root.within
    assert root.own == Amounts()
    for part in tree.parts:
        assert part.within == added([part.own, *(one.within for one in below(tree, part))])
    whole = root.within
    assert whole.flops == tables.fact("total_flops_forward")
    assert whole.mac_flops == 2 * tables.fact("total_macs_forward")
    assert whole.ops == sum(forward.is_op)
    assert whole.unknown == len(tables.fact("unknown_flop_ops"))
    assert whole.untold == len(tables.fact("untold_saved_ops"))
    assert whole.saved == (tables.fact("total_saved_for_backward") or 0)
    assert tree.is_counted is (tables.fact("executed_evidence") == "measured")
    if tree.is_counted:
        assert whole.backward == executed_flops(forward)
    else:
        assert whole.backward == 0


@settings(max_examples=100)
@given(events=capture_streams(), view=VIEWS)
def test_a_view_is_a_tree_of_so_many_levels_and_calls(events: list[Event], view: dict[str, Any]) -> None:
    tree = cost_tree(tables_of(events), **view)
    places = {part.part_id: place for place, part in enumerate(tree.parts)}
    assert len(places) == len(tree.parts), "each has an id of its own"
    for place, part in enumerate(tree.parts[1:], start=1):
        assert part.parent_id is not None
        above = tree.parts[places[part.parent_id]]
        assert places[above.part_id] < place
        assert part.depth == above.depth + 1
        assert view["max_depth"] is None or part.kind != "call" or part.depth <= view["max_depth"]
    for part in tree.parts:
        calls = [one for one in below(tree, part) if one.kind == "call"]
        assert view["top_k"] is None or len(calls) <= view["top_k"]
    gone = [part for part in tree.parts if part.part_id.endswith(("::depth", "::rest", "::grad_fns"))]
    for part in tree.parts:
        is_rest = part in gone or part.kind in ("remainder", "unattributed")
        assert part.role == ("remainder" if is_rest else "subtotal" if below(tree, part) else "owner")
    assert tree.hidden == added(part.own for part in gone)
    if view["top_k"] is view["max_depth"] is None:
        assert not gone


@settings(max_examples=60)
@given(events=capture_streams())
def test_a_call_has_the_work_of_the_ops_inside_it(events: list[Event]) -> None:
    tables = tables_of(events)
    forward = tables.forward
    parts = {part.part_id: part for part in cost_tree(tables, fold_repeats=False).parts}
    costs, charge = every_cost(forward, 0).of_rows(), charges(forward, 0)
    for call, label in enumerate(forward.call_labels):
        rows = [row for row in forward.rows_inside(call) if forward.is_op[row]]
        firsts = one_each(forward, rows)
        part = parts.pop(label)
        assert part.within.ops == len(rows)
        assert part.within.flops == sum(costs[row].forward or 0 for row in firsts)
        assert part.within.mac_flops == sum(2 * (costs[row].macs or 0) for row in firsts)
        assert part.within.saved == sum(found.nobodys for row in firsts if (found := charge[row]))
        assert (part.folded, part.kind) == (1, "call" if call else "root")
    assert {part.kind for part in parts.values()} <= {"root", "remainder", "grad_fn", "unattributed"}


@settings(max_examples=60)
@given(events=capture_streams())
def test_folding_keeps_every_call_and_makes_none_differ(events: list[Event]) -> None:
    tables = tables_of(events)
    forward = tables.forward
    folded, apart = cost_tree(tables), cost_tree(tables, fold_repeats=False)
    for tree in (folded, apart):
        assert sum(part.folded for part in tree.parts if part.kind == "call") == max(0, len(forward.calls) - 1)
    assert folded.parts[0].within == apart.parts[0].within
    modules = dict(zip(forward.call_labels, forward.calls.module, strict=True))
    for part in folded.parts:
        if part.kind == "call":
            calls = forward.calls_of[modules[part.part_id]]
            assert part.passes == len(calls)
            assert part.folded <= len(calls)


def test_a_stream_without_an_op_is_a_root() -> None:
    tree = cost_tree(tables_of([*Made().events]))
    assert [part.kind for part in tree.parts] == ["root"]
    assert (tree.is_counted, tree.is_measured) == (False, False)


def test_backward_work_is_its_ops_and_what_has_no_op_has_a_row_of_its_own() -> None:
    forward = Made(modules={"a": "Linear"}, parameters={"a.w": (4,)})
    x = forward.input("x")
    node: dict[str, Any] = {"grad_fn": "MulBackward0", "grad_node": 3, "grad_slot": 0, "requires_grad": True}
    with forward.call("a", x) as call:
        value = forward.op("mul", x, "a.w", **node)
        call.returns(value)
    passes = Passes(forward.returns(value))
    weight = passes.node("AccumulateGrad", leaf=-1)
    inside = passes.node("MulBackward0", weight, number=3)
    loss = passes.node("MmBackward0", inside)
    passes.open(loss, has_census=True)
    passes.walk(loss)
    passes.enter()
    passes.dispatch(MM, None, *SMALL)
    for place in (loss, inside):
        passes.dispatch(MM, place, *LARGE)
        passes.fire(place)
    passes.fire(weight)
    passes.close()
    tables = passes.tables()
    tree = cost_tree(tables)
    assert tree.is_counted
    assert [part.role for part in tree.parts] == ["subtotal", "owner", "owner", "remainder"]
    assert [(part.part_id, part.kind, part.own.backward) for part in tree.parts] == [
        ("self:1", "root", 0),
        ("a:1", "call", 700),
        ("mm_back_1_1", "grad_fn", 700),
        ("::unattributed", "unattributed", 48),
    ]
    assert tree.parts[0].within.backward == executed_flops(tables.forward) == 1448


def test_amounts_of_which_nothing_is_known_are_none() -> None:
    assert Amounts(ops=2, unknown=1).known_flops is Amounts(ops=2, unknown=1).known_mac_flops is None
    assert Amounts(ops=2, unknown=1, flops=3).known_flops == 3
    assert Amounts(ops=2).known_flops == Amounts(ops=2).known_saved == 0
    assert Amounts(ops=2, untold=1).known_saved is None
