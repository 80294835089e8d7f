"""What holds of the records of backward passes, whatever passes there were; and which events are refused."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.errors import JournalError, TorchLensError
from journal.events import (
    Event,
    GradientKept,
    GradientObserved,
    NodeFired,
    NodesFound,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from projections import CaptureTables, Projector, fingerprint
from projections.accounts.cost_parts import cost_tree
from projections.columnar.canonical import fingerprint_of
from projections.folds.backward import NESTED
from projections.promises import invariants
from projections.stored.encoding import Encoder
from tests.hostile import mutated
from tests.projections.making import Made, Rows, source_of
from tests.projections.making_backward import FIRE_NS, LIKE, Node, Passes, grad_fn_labels, of_grad_fn
from tests.projections.test_invariants import everything
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams
from tests.work import seconds

differentiated = capture_streams(endings=("returned",)).filter(
    lambda events: any(isinstance(event, PassOpened) for event in events)
)
"""Captures behind which some pass ran."""


def code_of(passes: Passes) -> str:
    with pytest.raises(JournalError) as caught:
        fingerprint(passes.tables())
    return caught.value.code


def small(count: int = 0, parameters: int = 1) -> Passes:
    """Behind a forward of so many ops, in a chain, each with a node of its own."""
    made = Made(parameters={f"w{number}": (2,) for number in range(parameters)})
    value = made.input("x")
    for number in range(count):
        value = made.op("relu", value, grad_fn="ReluBackward0", grad_node=number, grad_slot=0)
    return Passes(made.returns(value), first=count)


def chain(count: int) -> tuple[Passes, Node]:
    """So many nodes, each behind the last one; the first is given."""
    passes = small()
    node = passes.node("AccumulateGrad", leaf=-1)
    for _ in range(count - 1):
        node = passes.node("MulBackward0", node)
    return passes, node


# -- laws


@given(differentiated, st.lists(st.integers(0, 400), max_size=4))
@settings(max_examples=40)
def test_passes_may_be_folded_in_any_pieces(events: list[Event], stops: list[int]) -> None:
    projector = Projector(source_of(events))
    for stop in sorted(stops):
        projector.tables(stop)
    assert fingerprint(projector.tables()) == fingerprint(tables_of(events))


@given(differentiated, st.integers(0, 400), st.integers(1, 7))
@settings(max_examples=40)
def test_a_moment_of_a_pass_is_the_same_from_any_snapshot(events: list[Event], cut: int, spacing: int) -> None:
    at = cut % (len(events) + 1)
    projector = Projector(source_of(events), spacing=spacing)
    projector.tables()
    assert fingerprint(projector.at(at).tables) == fingerprint(tables_of(events[:at]))


def forward_of(tables: CaptureTables) -> str:
    """Digest of all columns that tell nothing of gradients."""
    encoder = Encoder(tables)
    told = re.compile(
        r"grad(?!_slot|_fn_class|_fn_object)|increment|backward(?!_hooks)|checkpoint|executed|recompute|uncounted"
    )
    made: list[Any] = []
    for name in ("ops", "layers", "modules", "module_calls", "params", "buffers", "orphans", "capture"):
        summary = encoder.table(tables.table(name)).summary
        columns = {column: digest for column, digest in summary.columns.items() if told.search(column) is None}
        made.append(summary._replace(columns=columns))
    return fingerprint_of(made)


@given(differentiated)
@settings(max_examples=40)
def test_a_pass_changes_nothing_that_the_forward_gave(events: list[Event]) -> None:
    first = next(at for at, event in enumerate(events) if isinstance(event, PassOpened))
    assert forward_of(tables_of(events)) == forward_of(tables_of(events[:first]))


def test_a_pass_behind_the_forward_is_folded_alone() -> None:
    passes = small(3)
    source = passes.source()
    projector = Projector(source)
    before = projector.tables()
    passes.run(passes.node("ReluBackward0", number=2))
    after = passes.source().all
    read: list[int] = []
    rows = source.rows

    def watched(start: int, stop: int | None = None) -> Any:
        read.append(start)
        return rows(start, stop)

    source.all, source.rows = after, watched  # type: ignore[method-assign]  # to see what is read
    assert len(projector.tables().grad_fns) == 1
    assert read == [before.head]


LABEL: Final = re.compile(r"[0-9a-z_]+_back_[1-9][0-9]*_[1-9][0-9]*")


@given(differentiated)
@settings(max_examples=40)
def test_labels_are_spelled_by_their_grammar_and_lead_to_one_node_each(events: list[Event]) -> None:
    tables = tables_of(events)
    labels = grad_fn_labels(tables)
    assert all(LABEL.fullmatch(label) for label in labels)
    assert len(set(labels)) == len(labels) == len(set(tables.grad_fns.column("grad_fn_object_id")))
    assert all(
        re.fullmatch(LABEL.pattern + r":[1-9][0-9]*", label) for label in tables.grad_fn_calls.column("call_label")
    )


@given(differentiated)
@settings(max_examples=40)
def test_passes_and_firings_are_counted_without_gaps(events: list[Event]) -> None:
    tables = tables_of(events)
    assert list(tables.backward_passes.column("pass_index")) == list(range(1, 1 + len(tables.backward_passes)))
    by_node: dict[str, list[int]] = {}
    for label, index in zip(*(tables.grad_fn_calls.column(name) for name in ("label", "call_index")), strict=True):
        by_node.setdefault(label, []).append(index)
    assert all(found == list(range(1, 1 + len(found))) for found in by_node.values())


@given(differentiated)
@settings(max_examples=40)
def test_a_pass_has_what_its_own_events_tell_and_nothing_of_those_inside_it(events: list[Event]) -> None:
    tables = tables_of(events)
    fired: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, NodeFired):
            fired.setdefault(event.pass_number, []).append(event.node)
    numbers, of = tables.grad_fns.column("grad_fn_object_id"), tables.grad_fn_calls.column("grad_fn_row")
    for number, calls in enumerate(tables.backward_passes.column("call_rows")):
        assert [numbers[of[call]] for call in calls] == fired.get(number, [])


@given(differentiated)
@settings(max_examples=40)
def test_labels_that_a_finished_pass_gave_stay_when_others_follow(events: list[Event]) -> None:
    """Numbers only go on."""
    closed = [at for at, event in enumerate(events) if isinstance(event, PassJournaled)]
    outer = [at for at in closed if not open_after(events, at)]
    labels = grad_fn_labels(tables_of(events))
    for at in outer:
        before = grad_fn_labels(tables_of(events[: at + 1]))
        assert labels[: len(before)] == before


def open_after(events: list[Event], at: int) -> int:
    """Number of the passes that run after an event."""
    opened = sum(isinstance(event, PassOpened) for event in events[: at + 1])
    return opened - sum(isinstance(event, PassJournaled) for event in events[: at + 1])


# -- orders that cannot be decided


def test_of_two_firings_whose_spans_overlap_neither_is_the_creator() -> None:
    passes = small()
    left, right = passes.node("LeftBackward0"), passes.node("RightBackward0")
    loss = passes.node("SumBackward0", left, right)
    passes.open(loss, create_graph=True)
    passes.walk(loss)
    passes.fire(loss)
    passes.fire(left, made=(10, 13))
    passes.fire(right, made=(12, 15))
    passes.make(*(passes.node("MulBackward0", sequence=number) for number in (14, 12, 10)))
    passes.close()
    tables = passes.tables()
    assert list(tables.grad_fns.column("differentiates"))[3:] == ["left_back_1_2", "right_back_1_3", None]
    assert list(tables.grad_fns.column("order")) == [1, 1, 1, 2, 2, None]
    assert list(tables.grad_fns.column("grad_fn_object_id"))[3:] == [5, 3, 4]
    assert list(tables.backward_passes.column("order_attribution_coverage")) == [2 / 3]


def test_between_two_firings_the_next_operator_tells_who_ran() -> None:
    passes = small()
    first = passes.node("OneBackward0")
    loss = passes.node("SumBackward0", first)
    passes.open(loss, create_graph=True)
    passes.walk(loss)
    passes.fire(loss, made=(10, 11))
    passes.fire(first, made=(12, 13))
    passes.make(*(passes.node("AddBackward0", sequence=number) for number in (11, 13, 14)))
    passes.see_makers((12, loss), (14, None))
    passes.close()
    tables = passes.tables()
    assert list(tables.grad_fns.column("differentiates"))[2:] == ["sum_back_1_1", None, None]
    assert list(tables.grad_fns.column("origin_backward_pass"))[2:] == [1, 1, 1]


def test_operators_of_several_threads_are_not_told_from_one_another() -> None:
    passes = small()
    loss = passes.node("SumBackward0")
    passes.open(loss, create_graph=True)
    passes.walk(loss)
    passes.fire(loss)
    passes.make(passes.node("AddBackward0", sequence=11))
    passes.see_makers((12, loss), (3, loss))
    passes.close()
    assert of_grad_fn(passes.tables(), "add_back_1_2", "order") is None


@pytest.mark.parametrize(
    ("makers", "orders"),
    [((0, 1), [1, 3, 2]), ((1, 2), [1, None, None]), ((0, 2), [1, None, 2])],
    ids=["made by what is told behind it", "in a circle", "by itself"],
)
def test_a_node_may_be_told_before_the_one_that_made_it(makers: tuple[int, int], orders: list[int | None]) -> None:
    """A run within a firing that was cut off: what it made is told breadth first, before the node that it ran."""
    passes = small()
    loss = passes.node("SumBackward0")
    first = passes.node("MulBackward0", loss, sequence=5)
    second = passes.node("ExpBackward0", first, sequence=7)
    passes.open(loss, create_graph=True)
    passes.walk(loss)
    passes.fire(loss, timed=False)
    number = passes.journal(incomplete_reason="the disk is full")
    passes.make(second, first, by=number)
    told = [loss, first, second]
    passes.see_makers((6, told[makers[0]]), (8, told[makers[1]]), by=number)
    passes.finalize(number)
    tables = passes.tables()
    found = dict(zip(*(tables.grad_fns.column(name) for name in ("class_name", "order")), strict=True))
    assert [found[node.class_name] for node in (loss, second, first)] == orders
    assert invariants.check(tables) == []


def test_a_pass_over_nodes_of_unknown_order_has_none() -> None:
    passes = small()
    loss = passes.node("SumBackward0")
    passes.open(loss, create_graph=True)
    passes.walk(loss)
    passes.fire(loss)
    lost = passes.node("MulBackward0", sequence=5)
    passes.make(lost)
    passes.close()
    passes.run(lost)
    passes.run(loss)
    assert list(passes.tables().backward_passes.column("order")) == [1, None, 1]


def test_nodes_that_an_inner_pass_finds_in_a_firing_under_create_graph_are_one_order_higher() -> None:
    passes = small()
    plain = passes.node("ReluBackward0", sequence=1)
    loss = passes.node("SumBackward0", plain, sequence=2)
    for creates in (True, False):
        passes.open(loss, create_graph=creates)
        passes.walk(loss)
        again = passes.node("ExpBackward0", plain, sequence=30)
        passes.run(again)
        passes.fire(loss, made=(30, 32))
        passes.close()
    tables = passes.tables()
    assert of_grad_fn(tables, "exp_back_1_3", "order") == 2
    assert of_grad_fn(tables, "exp_back_2_4", "order") == 1
    assert of_grad_fn(tables, "relu_back_1_2", "order") == 1
    assert list(tables.backward_passes.column("outer_context")) == [None, 1, None, 3]
    assert list(tables.backward_passes.column("origin_backward_pass")) == [None, 1, None, None]


# -- how passes end, and how long things took


@pytest.mark.parametrize(
    ("closed_by", "known", "trigger", "status"),
    [
        ("trigger_return", {}, "backward", "ok"),
        ("engine_drain", {}, "implicit", "ok"),
        ("engine_error", {"exception": "builtins.ValueError", "message": "no"}, "backward", "error"),
        ("sync_point", {"drain_queued": True}, "implicit", "error"),
        ("sync_point", {"drain_queued": False}, "implicit", "ok"),
        ("sync_point", {"drain_queued": True}, "backward", "ok"),
    ],
)
def test_a_pass_ends_as_its_close_tells(closed_by: str, known: Any, trigger: str, status: str) -> None:
    passes = small()
    passes.open(trigger=trigger)
    passes.close(closed_by, **known)
    table = passes.tables().backward_passes
    assert (table.value("status", 0), table.value("closed_by", 0)) == (status, closed_by)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"incomplete_reason": "the disk is full"}, "backward pass 1 was recorded in part: the disk is full"),
        (
            {"closed_by": "engine_error", "exception": "builtins.ValueError"},
            "backward pass 1 raised before it came there",
        ),
        (None, "backward pass 1 has not come to its end"),
    ],
    ids=["incomplete", "error", "unfinished"],
)
def test_why_a_pass_that_did_not_come_there_left_nothing(known: dict[str, Any] | None, said: str) -> None:
    passes = small(count=1)
    relu = passes.node("ReluBackward0", number=0)
    loss = passes.node("SumBackward0", relu)
    passes.open(loss)
    passes.walk(loss)
    if known is not None:
        passes.close(**known)
    explanations = passes.tables().explanations
    (text,) = [text for text in explanations.column("text") if text.startswith("relu_1_1 ")]
    assert text.endswith(said)


def test_a_pass_without_an_end_is_unfinished_and_has_no_duration() -> None:
    passes, loss = chain(2)
    passes.open(loss)
    passes.walk(loss)
    passes.fire(loss)
    table = passes.tables().backward_passes
    assert [table.value(name, 0) for name in ("status", "closed_by", "duration", "num_grad_fn_calls")] == [
        "unfinished",
        None,
        None,
        1,
    ]


def test_a_pass_that_something_else_showed_to_be_over_took_until_its_last_firing_ended() -> None:
    passes, loss = chain(2)
    passes.open(trigger="implicit", task=3)
    passes.walk(loss)
    passes.fire(loss)
    passes.open(loss)
    passes.close()
    passes.close("sync_point")
    table = passes.tables().backward_passes
    assert table.value("duration", 0) == (2000 + FIRE_NS) / 1e9
    assert table.value("graph_task", 0) == 3
    assert table.value("engine_flags", 0) == {}


def test_times_are_those_of_firings_and_seconds_since_the_epoch() -> None:
    passes, loss = chain(2)
    passes.run(loss, retain_graph=True)
    passes.run(loss)
    tables = passes.tables()
    assert of_grad_fn(tables, "mul_back_1_1", "backward_duration") is None
    assert of_grad_fn(tables, "mul_back_1_1", "total_backward_duration") == 2 * FIRE_NS / 1e9
    event = tables.grad_fn_calls.value("event", 0)
    assert tables.grad_fn_calls.value("timestamp", 0) == event * 1000 / 1e9  # the header says that time began with it


# -- gradients


def test_rows_that_share_a_gradient_have_one_each_and_an_output_has_none() -> None:
    made = Made()
    x = made.input("x")
    y = made.op("relu", x, grad_fn="ReluBackward0", grad_node=0, grad_slot=0)
    z = made.op("contiguous", y, same_as=0, view_of=y, grad_fn="ReluBackward0", grad_node=0, grad_slot=0)
    passes = Passes(made.returns(z))
    relu = passes.node("ReluBackward0", number=0)
    passes.open(relu)
    passes.walk(relu)
    passes.observe(relu, 7)
    passes.fire(relu)
    passes.close()
    tables = passes.tables()
    counts = dict(zip(tables.ops.column("label"), tables.ops.column("num_saved_grads"), strict=True))
    assert counts == {"input_1": 0, "relu_1_1": 1, "contiguous_1_2": 1, "output_1": 0}
    assert list(tables.gradients.column("owner")) == ["relu_1_1", "contiguous_1_2"]
    assert of_grad_fn(tables, "relu_back_1_1", "op_label") == "relu_1_1"
    assert tables.fact("saved_grad_ops") == ("relu_1_1", "contiguous_1_2")
    assert tables.fact("saved_gradient_memory") == 32  # kept once


def test_a_parameter_has_an_increment_for_each_firing_and_none_for_what_was_returned() -> None:
    passes, loss = chain(2)
    leaf = loss.behind[0]
    assert isinstance(leaf, Node)
    for fires in (True, False, True):
        passes.open(loss, accumulates=fires, retain_graph=True)
        passes.walk(loss)
        passes.fire(loss)
        passes.observe(leaf, 3 if fires else None)
        if fires:
            passes.fire(leaf)
        passes.close()
    tables = passes.tables()
    assert list(tables.gradients.column("backward_pass_index")) == [1, 3]
    assert list(tables.gradients.column("ordinal")) == [0, 1]
    assert tables.params.value("num_increments", 0) == 2
    assert tables.params.value("gradient_memory", 0) == 32
    assert tables.params.value("grad_fn_label", 0) == "accumulategrad_back_1_2"


def test_a_gradient_that_waited_on_its_device_is_found_where_it_was_kept() -> None:
    passes = small(1)
    relu = passes.node("ReluBackward0", number=0)
    passes.open(relu)
    passes.walk(relu)
    of = passes.observe(relu)
    passes.observe(relu, 5, slot=2, side="input")
    passes.fire(relu)
    number = passes.journal()
    before = passes.tables()
    passes.keep(of, 9)
    passes.add(PassScavenged(pass_number=number))
    tables = passes.tables()
    assert (len(before.gradients), len(tables.gradients)) == (0, 1)
    assert tables.gradients.value("payload_ref", 0) == (9, 0, None)
    assert tables.grad_fn_calls.value("grad_outputs", 0) == ((9, 0, None),)
    assert tables.grad_fn_calls.value("grad_inputs", 0) == (None, None, (5, 0, None))
    assert tables.grad_fn_calls.value("grad_inputs_like", 0) == (None, None, LIKE)
    assert tables.grad_fn_calls.value("is_saved", 0) is True


def test_the_gradient_of_a_leaf_belongs_to_the_op_that_it_is_the_value_of() -> None:
    passes = small()
    leaf = passes.node("AccumulateGrad", leaf=0)
    passes.open(leaf)
    passes.walk(leaf)
    passes.observe(leaf, 1)
    passes.fire(leaf)
    passes.close()
    tables = passes.tables()
    assert list(tables.gradients.column("owner")) == ["input_1"]
    assert of_grad_fn(tables, "accumulategrad_back_1_1", "module_membership_source") == "paired"


# -- places in modules


def test_a_node_on_which_those_that_lead_to_it_disagree_belongs_nowhere() -> None:
    made = Made({"a": "A", "b": "B"})
    x = made.input("x")
    with made.call("a", x) as one:
        one.returns(made.op("relu", x, grad_fn="ReluBackward0", grad_node=0, grad_slot=0))
    with made.call("b", x) as other:
        other.returns(made.op("relu", x, grad_fn="ReluBackward0", grad_node=1, grad_slot=0))
    passes = Passes(made.returns(one.output, other.output))
    shared, deeper = passes.node("CastBackward0", inner := passes.node("ViewBackward0")), passes.node("ExpBackward0")
    first = passes.node("ReluBackward0", shared, number=0)
    second = passes.node("ReluBackward0", shared, deeper, number=1)
    passes.run(passes.node("AddBackward0", first, second))
    tables = passes.tables()
    found = dict(
        zip(
            tables.grad_fns.column("class_name"),
            zip(*(tables.grad_fns.column(n) for n in ("modules", "module_membership_source")), strict=True),
            strict=True,
        )
    )
    assert found["CastBackward0"] == found["ViewBackward0"] == ((), None)
    assert found["ExpBackward0"] == (("b",), "inferred")
    assert found["AddBackward0"] == ((), None)
    assert inner.number in tables.grad_fns.column("grad_fn_object_id")


# -- what is refused


def fired(passes: Passes, number: int, node: int) -> None:
    passes.add(NodeFired(pass_number=number, node=node, duration_ns=1, missing=(), sequence=None))


def found(passes: Passes, *nodes: Any, number: int = 0) -> None:
    passes.add(NodesFound(pass_number=number, nodes=nodes, is_cut=False))


def observed(passes: Passes, slot: int, node: int = 9, side: Any = "output") -> None:
    passes.add(GradientObserved(pass_number=0, node=node, side=side, slot=slot, like=LIKE, payload=(0, 0, None)))


PLAIN: Final = (9, "A", "m.A", False, (), None, None)

CONTRADICTIONS: Final[dict[str, Any]] = {
    "a pass out of turn": lambda passes: passes.add(
        *[event for event in small_pass() if isinstance(event, PassOpened)] * 2
    ),
    "a pass in a later one": lambda passes: passes.open(parent=3),
    "a node of no pass": lambda passes: found(passes, PLAIN, number=4),
    "a node told twice": lambda passes: (passes.open(), found(passes, PLAIN, PLAIN)),
    "a node below zero": lambda passes: (passes.open(), found(passes, (-9, *PLAIN[1:]))),
    "an edge to nowhere": lambda passes: (passes.open(), found(passes, (*PLAIN[:4], ((-2, 0),), None, None))),
    "a firing of no node": lambda passes: (passes.open(), fired(passes, 0, 77)),
    "a firing in no pass": lambda passes: (passes.open(), found(passes, PLAIN), fired(passes, 5, 9)),
    "a gradient at no place": lambda passes: (passes.open(), found(passes, PLAIN), observed(passes, -1)),
    "a gradient at no node": lambda passes: (passes.open(), observed(passes, 0)),
    "a gradient far out": lambda passes: (
        passes.open(),
        found(passes, PLAIN),
        observed(passes, 1 << 40),
        fired(passes, 0, 9),
    ),
    "a gradient kept of nothing": lambda passes: (passes.open(), passes.add(GradientKept(of=3, payload=(0, 0, None)))),
    "two ends": lambda passes: (passes.open(), [passes.add(journaled()) for _ in range(2)]),
    "scavenged while open": lambda passes: (passes.open(), passes.add(PassScavenged(pass_number=0))),
    "finalized before it is scavenged": lambda passes: (
        passes.open(),
        passes.add(journaled(), PassFinalized(pass_number=0)),
    ),
    "an end of no pass": lambda passes: passes.add(journaled()),
    "a leaf that is not described": lambda passes: (
        passes.open(),
        found(passes, (*PLAIN[:5], -40, None)),
        observed(passes, 0),
    ),
    "passes in one another without end": lambda passes: [passes.open() for _ in range(NESTED + 1)],
    "a node of too few parts": lambda passes: (passes.open(), found(passes, PLAIN[:3])),
}


def small_pass() -> list[Event]:
    passes = small()
    passes.open()
    return passes.made.events


def journaled() -> PassJournaled:
    return PassJournaled(
        pass_number=0,
        closed_by="trigger_return",
        drain_queued=False,
        exception=None,
        message=None,
        raised_in=None,
        incomplete_reason=None,
        peak_memory=None,
    )


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_events_that_do_not_fit_together_are_refused(what: str) -> None:
    passes = small()
    CONTRADICTIONS[what](passes)
    assert code_of(passes) == "events_contradictory"


SOUND: Final = [event.row(1000 * at) for at, event in enumerate(everything().made.events)]


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_any_change_to_a_pass_gives_records_or_a_coded_error(seed: int) -> None:
    first = next(at for at, row in enumerate(SOUND) if row[0] == PassOpened.type_id)
    rows = Rows([*SOUND[:first], *mutated(SOUND[first:], random.Random(seed))])
    try:
        tables = Projector(rows).tables()
        table = tables.all
    except TorchLensError:
        return
    for name in table:
        for column in table[name].names:
            with contextlib.suppress(TorchLensError):
                list(table[name].column(column))
    with contextlib.suppress(TorchLensError):
        invariants.check(tables)
    with contextlib.suppress(TorchLensError):
        fingerprint(tables)
    with contextlib.suppress(TorchLensError):
        cost_tree(tables)


def test_names_of_classes_that_labels_would_repeat_without_end_are_refused() -> None:
    passes = small()
    passes.open()
    name = "A" * (1 << 20)
    found(passes, *((100 + number, name, name, False, (), None, None) for number in range(200)))
    assert code_of(passes) == "records_too_large"


# -- large graphs


def seconds_for(passes: Passes, *columns: str) -> float:
    def read() -> None:
        tables = passes.tables()
        for column in columns:
            assert len(list(tables.grad_fns.column(column))) == len(tables.grad_fns)

    return seconds(read)


LINEAR: Final = (
    *("label", "order", "modules", "module_membership_source", "op_label", "parents", "children", "has_siblings"),
    *("has_co_parents", "call_labels", "total_backward_duration", "param_address"),
)


@pytest.mark.slow
def test_a_chain_of_two_hundred_thousand_nodes_is_recorded_without_recursion() -> None:
    passes, loss = chain(200_000)
    passes.run(loss)
    assert seconds_for(passes, *LINEAR, "siblings", "co_parents") < 60
    assert of_grad_fn(passes.tables(), "accumulategrad_back_1_200000", "parents") == ("mul_back_199999_199999",)


def star(count: int) -> Passes:
    """So many nodes behind one, all in front of one more."""
    passes = small()
    leaf = passes.node("AccumulateGrad", leaf=-1)
    passes.run(passes.node("SumBackward0", *(passes.node("MulBackward0", leaf) for _ in range(count))))
    return passes


@pytest.mark.slow
def test_a_star_costs_what_it_has_edges_and_its_neighbours_of_neighbours_are_read_one_by_one() -> None:
    passes = star(50_000)
    assert seconds_for(passes, *LINEAR) < 30
    tables = passes.tables()
    assert len(tables.grad_fns.value("co_parents", 1)) == 49_999
    with pytest.raises(JournalError) as caught:
        list(tables.grad_fns.column("siblings"))
    assert caught.value.code == "records_too_large"


def test_a_small_star_tells_all_that_is_beside_each() -> None:
    tables = star(40).tables()
    assert {len(cell) for cell in tables.grad_fns.column("siblings")} == {0, 39}
