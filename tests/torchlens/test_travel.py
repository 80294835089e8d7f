"""A cursor by example: where it stands, what it shows there, what it is sent to, and what it refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

import torchlens as tl
from journal.events import GradientObserved, ModuleEntered, NodeFired, OpExecuted
from projections import Projector
from projections.folds.fold import Folding
from projections.folds.window import MARKS
from tests.programs import ROOT, run
from torchlens.errors import PayloadUnavailableError
from torchlens.travel.past import PastTrace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.fc(x))
        x = x * 2
        return x.sum()


@pytest.fixture(scope="module")
def trace() -> Iterator[tl.Trace]:
    """One capture with two backward passes; tests only read it."""
    torch.manual_seed(0)
    trace = tl.trace(Net(), torch.randn(2, 4), capture=tl.CaptureOptions(save_grads=True))
    trace.backward(trace.output, retain_graph=True)
    trace.backward(trace.output)
    yield trace
    trace.cleanup()


@pytest.fixture
def cursor(trace: tl.Trace) -> tl.Cursor:
    return tl.time_travel(trace)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with two captures, of which the second has a backward pass."""
    path = tmp_path_factory.mktemp("travel") / "j"
    tl.trace(Net(), torch.ones(2, 4), journal=path, name="first").cleanup()
    last = tl.trace(Net(), torch.ones(2, 4), journal=path, name="last", capture=tl.CaptureOptions(save_grads=True))
    last.backward(last.output)
    last.cleanup()
    return path


# Where it stands --------------------------------------------------------------------------------------


def test_it_begins_before_the_first_event(cursor: tl.Cursor) -> None:
    assert (cursor.position, cursor.event) == (0, None)
    assert len(cursor.trace.ops) == 0
    assert cursor.trace.status == "unfinished"
    assert repr(cursor) == f"<Cursor of {cursor.title}, before the first of {cursor.num_events}>"


def test_on_the_last_event_it_shows_what_the_trace_shows(cursor: tl.Cursor, trace: tl.Trace) -> None:
    for part in (1.0, -1, cursor.num_events - 1):
        assert cursor.seek(part).position == cursor.num_events
        assert cursor.event is not None
        assert cursor.event.at == cursor.num_events - 1
        assert cursor.trace.tables is trace.tables
        assert cursor.trace.output is trace.output
    assert (
        repr(cursor)
        == f"<Cursor of {cursor.title}, on event {cursor.num_events - 1} of {cursor.num_events}, pass_finalized>"
    )


def test_a_cursor_on_an_event_shows_that_it_has_happened(cursor: tl.Cursor) -> None:
    cursor.run_to(tl.func("relu"))
    assert cursor.event is not None
    assert isinstance(cursor.event.event, OpExecuted)
    assert cursor.trace.ops.labels == ("input_1", "linear_1_1", "relu_1_2")
    assert cursor.trace.module_calls.labels == ("self:1", "fc:1", "act:1")
    assert cursor.back().trace.ops.labels == ("input_1", "linear_1_1")


def test_the_trace_there_reads_as_any_trace(cursor: tl.Cursor, trace: tl.Trace) -> None:
    cursor.run_to(tl.func("mul"))
    there = cursor.trace
    assert isinstance(there, tl.Trace)
    assert torch.equal(there["relu_1_2"].out, trace["relu_1_2"].out)
    assert there.modules["act"].num_calls == 1
    assert there[tl.in_module("act")].labels() == ("relu_1_2",)
    assert "sum_1_4" in trace
    assert "sum_1_4" not in there
    assert there["mul_1_3"].children == ()
    assert trace["mul_1_3"].children == ("sum_1_4",)
    assert repr(there) == f"<Trace Net after {cursor.position} events: 3 ops, unfinished>"
    assert there.to_pandas().shape[0] == 4
    assert "relu_1_2" in str(there.ops.to_pandas()["label"].tolist())
    assert len(list(there.events())) == cursor.position == there.num_events
    assert [one.at for one in there.events(cursor.position - 2)] == [cursor.position - 2, cursor.position - 1]
    assert there.as_of(cursor.position - 1).head == cursor.position - 1
    assert there.summary()


def test_increments_of_parameters_and_gradients_are_those_that_had_come(cursor: tl.Cursor) -> None:
    def grown(event: Any, there: PastTrace) -> bool:
        return isinstance(event.event, NodeFired) and len(there.params["fc.weight"].grads) == 1

    cursor.next(grown)
    weight = cursor.trace.params["fc.weight"]
    assert [record.backward_pass_index for record in weight.grads] == [1]
    assert cursor.trace.ops["relu_1_2"].has_grad
    assert cursor.back().trace.params["fc.weight"].has_grad is False
    cursor.next(lambda event, there: len(there.params["fc.weight"].grads) == 2)
    both = cursor.trace.params["fc.weight"].grads
    assert torch.equal(both[0].grad, both[1].grad)
    assert [one.status for one in cursor.trace.autograd.backward_passes] == ["ok", "unfinished"]
    assert cursor.seek(1.0).trace.autograd.backward_passes[1].status == "ok"


def test_names_are_those_of_the_head_also_of_a_layer_with_passes_to_come() -> None:
    def looped(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.tanh(x)
        return x

    trace = tl.trace(looped, torch.ones(2))
    cursor = tl.time_travel(trace).next(tl.func("tanh"))
    assert cursor.trace.ops.labels == ("input_1", "tanh_1_1:1")
    assert cursor.trace.layers["tanh_1_1"].num_passes == 1
    assert cursor.trace["tanh_1_1:1"].out is not None
    assert cursor.trace.check_metadata_invariants()
    trace.cleanup()


def test_a_cursor_and_its_trace_list_what_the_pages_tell(cursor: tl.Cursor, trace: tl.Trace) -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| (`cursor\.[^|]*) \|", page, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(?:cursor)?\.(\w+)", row)}
    assert set(dir(cursor)) == told
    assert set(dir(cursor.trace)) - set(dir(trace)) == {"moment", "num_events", "position", "whole"}


def test_a_cursor_is_moved_by_what_checks_where_to(cursor: tl.Cursor) -> None:
    with pytest.raises(AttributeError):
        cursor.position = 10**9  # type: ignore[misc]
    assert cursor.position == 0


# Where an event happened ------------------------------------------------------------------------------


def test_an_op_happened_at_a_line_of_the_model(cursor: tl.Cursor) -> None:
    where = cursor.next(tl.func("mul")).where()
    assert where.place is not None
    assert where.place.text == "x = x * 2"
    assert where.place.file == __file__
    assert (where.labels, where.modules, where.backward_pass, where.node) == (("mul_1_3",), ("self:1",), None, None)
    assert f"event {where.at} op_executed; mul_1_3; in self:1; at " in repr(where)
    assert "x = x * 2" in repr(where)
    assert str(where).splitlines()[0] == f"event  {where.at} op_executed"


def test_a_gradient_happened_where_its_op_was_called(cursor: tl.Cursor) -> None:
    where = cursor.next(tl.grad("relu_1_2") & tl.in_backward_pass(2)).where()
    assert where.place is not None
    assert where.place.text == "x = self.act(self.fc(x))"
    assert where.modules == ("self:1", "act:1")
    assert (where.backward_pass, where.node, where.labels) == (2, "relu_back_1_3", ("relu_1_2",))
    fired = cursor.next(NodeFired).where()
    assert (fired.event_name, fired.labels) == ("node_fired", ("relu_1_2",))


def test_a_gradient_that_a_parameter_gathers_names_it(cursor: tl.Cursor) -> None:
    cursor.next(lambda event, there: len(there.params["fc.bias"].grads) == 1)
    assert cursor.where().parameter == "fc.bias"
    assert "fc.bias" in repr(cursor.where())
    assert "fc.bias" in str(cursor.where())
    assert (cursor.where().modules, cursor.where().places) == (("fc",), ())


def test_a_module_is_entered_where_it_is_called_and_a_pass_opens_where_it_was_asked_for(cursor: tl.Cursor) -> None:
    entered = cursor.next(ModuleEntered).next(ModuleEntered).where()
    assert entered.modules == ("self:1", "fc:1")
    assert entered.place is not None
    assert entered.place.text == "x = self.act(self.fc(x))"
    assert cursor.next("module_left").where().modules == ("self:1", "fc:1")
    opened = cursor.next("pass_opened").where()
    assert opened.place is not None
    assert opened.place.file == __file__
    assert (opened.backward_pass, opened.node) == (1, None)


# What an event changed --------------------------------------------------------------------------------


def test_an_op_changes_what_it_was_made_from(cursor: tl.Cursor) -> None:
    changes = cursor.next(tl.func("relu")).changed()
    assert [(one.table, one.record) for one in changes.rows] == [
        *(("ops", "relu_1_2"), ("layers", "relu_1_2"), ("explanations", "relu_1_2")),
    ]
    found = {(one.table, one.record, one.field): (one.before, one.after) for one in changes.cells}
    assert found["ops", "linear_1_1", "children"] == ((), ("relu_1_2",))
    assert found["module_calls", "act:1", "num_ops"] == (0, 1)
    assert found["capture", None, "num_ops"] == (1, 2)
    assert set(changes.by_table) >= {"ops", "layers", "capture"}
    assert "  ops linear_1_1.num_children: 0 -> 1" in str(changes).splitlines()
    assert repr(changes).startswith(f"<Changes by event {cursor.position - 1} op_executed: 3 rows, ")
    assert repr(changes[0]) == "<Change ops relu_1_2 came>"
    frame = changes.to_pandas()
    assert list(frame.columns) == ["table", "record", "how", "field", "before", "after"]
    assert len(frame) == len(changes)
    assert changes[:1] == changes.rows[:1]


def test_a_gradient_that_is_observed_changes_its_op(cursor: tl.Cursor) -> None:
    changes = cursor.next(tl.grad("relu_1_2")).changed()
    assert ("gradients", "relu_1_2", "came") in [(one.table, one.record, one.how) for one in changes.rows]
    assert ("explanations", "relu_1_2", "went") in [(one.table, one.record, one.how) for one in changes.rows]
    assert ("ops", "relu_1_2", "has_grad") in [(one.table, one.record, one.field) for one in changes.cells]


def test_what_follows_from_parents_and_children_is_no_change_of_its_own() -> None:
    trace = tl.trace(lambda x: torch.stack([x * i for i in range(5)]).sum(), torch.ones(2))
    fields = {one.field for one in tl.time_travel(trace).next(tl.func("stack")).changed().cells}
    assert "children" in fields
    assert not fields & {"siblings", "co_parents"}


def test_most_events_change_nothing(cursor: tl.Cursor) -> None:
    changes = cursor.next("code_seen").changed()
    assert list(changes) == []
    assert changes.to_pandas().empty


# What it is sent to -----------------------------------------------------------------------------------


def test_next_looks_beyond_the_event_it_stands_on_and_run_to_stays(cursor: tl.Cursor) -> None:
    linear = cursor.next(tl.func("linear")).position
    assert cursor.run_to(tl.func("linear")).position == cursor.run_back_to(tl.func("linear")).position == linear
    relu = cursor.next(tl.in_module("act")).position
    assert cursor.previous(tl.in_module("fc")).position == linear < relu
    with pytest.raises(KeyError):
        cursor.next(tl.func("linear"))
    assert cursor.position == linear


def test_a_gradient_that_nothing_keeps_is_met_where_its_node_fires() -> None:
    trace = tl.trace(Net(), torch.ones(2, 4))
    trace.backward(trace.output)
    cursor = tl.time_travel(trace).next(tl.grad("relu_1_2"))
    assert cursor.event is not None
    assert isinstance(cursor.event.event, NodeFired)
    assert cursor.where().labels == ("relu_1_2",)
    cursor.next(tl.grad("linear_1_1") | tl.grad_fn("addmm"))
    assert cursor.where().node == "addmm_back_1_4"
    trace.cleanup()


def test_a_gradient_that_is_observed_is_met_there_before_its_node_has_fired(cursor: tl.Cursor) -> None:
    cursor.next(tl.grad("relu_1_2"))
    assert cursor.event is not None
    assert isinstance(cursor.event.event, GradientObserved)


def test_a_predicate_may_look_up_what_is_not_there_yet(cursor: tl.Cursor) -> None:
    cursor.next(lambda event, there: there["relu_1_2"].has_grad)
    assert isinstance(cursor.event.event, GradientObserved)  # type: ignore[union-attr]  # it stands on one
    with pytest.raises(KeyError, match="it looked up what was not there, 'rellu_1_2' names no record"):
        cursor.next(lambda event, there: there["rellu_1_2"].has_grad)


def test_a_predicate_may_read_what_has_not_come_yet(cursor: tl.Cursor) -> None:
    for holds in (
        lambda event, then: then["relu_1_2"].grad.abs().max() >= 0,
        lambda event, then: then.output is not None,
        lambda event, then: len(then[tl.grad("relu_1_2")]) > 0,
    ):
        cursor.seek(0.0).next(holds)
        assert holds(cursor.event, cursor.trace)


def test_a_predicate_that_reads_what_was_never_kept_matches_nothing() -> None:
    cursor = tl.time_travel(tl.trace(nn.Linear(2, 2), torch.ones(1, 2), save="none"))
    with pytest.raises(tl.TorchLensError, match="it looked up what was not there") as refused:
        cursor.next(lambda event, then: then["linear_1_1"].out is not None)
    assert refused.value.code == "no_event_matches"


def test_a_predicate_that_reads_what_is_lost_says_so(cursor: tl.Cursor) -> None:
    def lost(event: Any, then: Any) -> bool:
        raise PayloadUnavailableError(code="activation_overwritten", problem="gone", remedy="none")

    with pytest.raises(PayloadUnavailableError, match="activation_overwritten"):
        cursor.next(lost)


def test_a_predicate_that_moves_the_cursor_leaves_it_where_it_was_when_nothing_matches(cursor: tl.Cursor) -> None:
    def moves(event: Any, then: Any) -> bool:
        cursor.seek(0)
        return False

    for move in (cursor.seek(3).next, cursor.run_to, cursor.previous, cursor.run_back_to):
        with pytest.raises(tl.TorchLensError, match="the cursor stays where it was"):
            move(moves)
        assert cursor.position == 4


def test_what_a_predicate_raises_is_passed_on_and_the_cursor_stays(cursor: tl.Cursor) -> None:
    def fails(event: Any, there: Any) -> bool:
        raise ZeroDivisionError

    for move in (cursor.seek(3).next, cursor.run_to, cursor.previous, cursor.run_back_to):
        with pytest.raises(ZeroDivisionError):
            move(fails)
        assert cursor.position == 4


def test_nothing_is_folded_on_the_way_to_what_no_moment_is_asked_about(
    trace: tl.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = tl.time_travel(trace)
    assert trace.tables  # folded, whoever asks first

    def refused(*_: object) -> None:
        raise AssertionError("a moment was made")

    monkeypatch.setattr(Projector, "at", refused)
    cursor.next(tl.grad("relu_1_2")).previous("module_left").run_to(lambda event, _: event.at > 40)
    cursor.previous(lambda event, _: event.event.event_name == "op_executed").step().back().seek(0.5)


def test_a_predicate_that_asks_for_each_moment_folds_each_event_a_few_times_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looped(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3000):
            x = torch.tanh(x)
        return x

    trace = tl.trace(looped, torch.ones(1), save="none")
    cursor = tl.time_travel(trace)
    assert trace.tables.head == cursor.num_events
    folded: list[int] = []
    take = Folding.take

    def counted(self: Folding, run: Any) -> None:
        folded.append(len(run))
        take(self, run)

    monkeypatch.setattr(Folding, "take", counted)
    with pytest.raises(KeyError):
        cursor.next(lambda event, then: then.moment.counts["ops"] < 0)
    assert sum(folded) < 3 * cursor.num_events
    folded.clear()
    cursor.seek(1.0)
    with pytest.raises(KeyError):
        cursor.previous(lambda event, then: then.moment.counts["ops"] < 0)
    assert sum(folded) < (MARKS + 3) * cursor.num_events  # from the mark before each
    trace.cleanup()


# Which capture ----------------------------------------------------------------------------------------


def test_a_journal_is_opened_at_its_last_capture_or_at_one_that_is_named(path: Path) -> None:
    with tl.time_travel(path) as cursor:
        assert cursor.whole.name == "last"
        assert cursor.seek(1.0).trace.ops["relu_1_2"].grad.shape == (2, 4)
    for which in (0, "first", "0"):
        with tl.time_travel(str(path), which) as cursor:
            assert cursor.whole.name == "first"
            assert cursor.whole.is_cleaned_up is False
        assert cursor.whole.is_cleaned_up
        assert repr(cursor) == "<Cursor of <Trace, cleaned up>>"


def test_a_trace_that_was_given_stays_open(trace: tl.Trace) -> None:
    with tl.time_travel(trace) as cursor:
        cursor.step()
    cursor.close()
    assert not trace.is_cleaned_up
    cursor.trace.cleanup()
    assert not trace.is_cleaned_up
    assert tl.time_travel(cursor.trace).whole is trace


def test_after_cleanup_the_cursor_and_its_trace_are_refused() -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(2))
    cursor = tl.time_travel(trace).next(tl.func("relu"))
    there, op = cursor.trace, cursor.trace.ops[1]
    trace.cleanup()
    for read in (lambda: cursor.event, lambda: there.ops, cursor.step, lambda: tl.time_travel(trace)):
        with pytest.raises(tl.errors.TraceCleanedUpError):
            read()
    assert repr(there) == "<Trace, cleaned up>"
    assert repr(op) == "<Op of <Trace, cleaned up>>"


def test_a_journal_is_gone_through_without_torch(path: Path) -> None:
    code = f"""
        import sys
        sys.modules["torch"] = None
        import torchlens as tl
        with tl.time_travel({str(path)!r}) as cursor:
            cursor.next(tl.func("relu")).next(tl.grad("relu_1_2"))
            print(cursor.where().place.text, cursor.trace.ops["relu_1_2"].has_grad, len(cursor.changed()) > 0)
    """
    assert run(code).stdout == "x = self.act(self.fc(x)) True True\n"


# What it refuses --------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[tl.Cursor], Any], type[Exception], str]] = [
    (lambda cursor: cursor.seek(cursor.num_events), IndexError, "event_out_of_range"),
    (lambda cursor: cursor.seek(-cursor.num_events - 1), IndexError, "event_out_of_range"),
    (lambda cursor: cursor.seek(1.5), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek(-0.5), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek(math.nan), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek("relu"), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek(attrs.evolve(cursor.event, seq=99)), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek(attrs.evolve(cursor.event, at=10**6)), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.seek(True), ValueError, "seek_target_invalid"),
    (lambda cursor: cursor.step(cursor.num_events), IndexError, "step_out_of_range"),
    (lambda cursor: cursor.back(6), IndexError, "step_out_of_range"),
    (lambda cursor: cursor.step(-1), ValueError, "step_count_invalid"),
    (lambda cursor: cursor.back(1.0), ValueError, "step_count_invalid"),
    (lambda cursor: cursor.step(True), ValueError, "step_count_invalid"),
    (lambda cursor: cursor.next("relu_1_2"), KeyError, "event_type_unknown"),
    (lambda cursor: cursor.next(3), ValueError, "match_type_invalid"),
    (lambda cursor: cursor.previous(int), ValueError, "match_type_invalid"),
    (lambda cursor: cursor.run_to(None), ValueError, "match_type_invalid"),
    (lambda cursor: cursor.next(tl.func("softmax")), KeyError, "no_event_matches"),
    (lambda cursor: cursor.previous(tl.func("relu")), KeyError, "no_event_matches"),
    (lambda cursor: cursor.next(tl.func("relu"), timeout=-1), ValueError, "timeout_invalid"),
    (lambda cursor: cursor.next(tl.func("relu"), timeout=math.inf), ValueError, "timeout_invalid"),
    (lambda cursor: next(cursor.follow(timeout="1")), ValueError, "timeout_invalid"),
]


@pytest.mark.parametrize(("asked", "kind", "code"), REFUSED)
def test_what_cannot_be_done_is_refused_and_the_cursor_stays(
    cursor: tl.Cursor, asked: Callable[[tl.Cursor], Any], kind: type[Exception], code: str
) -> None:
    cursor.seek(4)
    with pytest.raises(kind) as refused:
        asked(cursor)
    assert isinstance(refused.value, tl.TorchLensError)
    assert refused.value.code == code
    assert cursor.position == 5


def test_before_the_first_event_nothing_has_happened(cursor: tl.Cursor) -> None:
    for asked in (cursor.where, cursor.changed):
        with pytest.raises(IndexError) as refused:
            asked()
        assert refused.value.code == "cursor_before_first"  # type: ignore[attr-defined]  # of ours
    for move in (cursor.previous, cursor.run_back_to, cursor.back):
        with pytest.raises(tl.errors.LookupRefused):
            move("stream_opened") if move != cursor.back else cursor.back()
    assert cursor.next("stream_opened").position == 1


def test_a_match_that_is_not_there_is_told_with_what_looks_like_it(cursor: tl.Cursor) -> None:
    with pytest.raises(KeyError, match=r"did you mean 'relu'"):
        cursor.next(tl.func("rellu"))
    with pytest.raises(KeyError, match=r"did you mean 'op_executed'"):
        cursor.next("op_execute")


def test_selectors_are_refused_as_a_trace_refuses_them(cursor: tl.Cursor) -> None:
    bare = tl.trace(nn.ReLU(), torch.ones(2))
    for where, selector, code in (
        (tl.time_travel(bare), tl.grad("relu_1_1"), "gradient_sites_unavailable"),
        (cursor, tl.grad(tl.top_k("relu_1_2", k=1)), "selection_kind_incompatible"),
        (cursor, ~(tl.func("relu") | tl.grad("relu_1_2")), "selection_kind_incompatible"),
    ):
        with pytest.raises(tl.errors.SelectionError) as refused:
            where.next(selector)
        assert refused.value.code == code
    bare.cleanup()


def test_what_is_no_capture_is_refused(trace: tl.Trace, path: Path, tmp_path: Path) -> None:
    for given, capture, code in (
        (3, -1, "time_travel_type_invalid"),
        (trace, 0, "option_value_invalid"),
        (tmp_path / "nothing", -1, "journal_not_found"),
        (path, 7, "capture_unknown"),
        (path, "second", "capture_unknown"),
    ):
        with pytest.raises(tl.TorchLensError) as refused:
            tl.time_travel(given, capture)  # type: ignore[arg-type]  # refused
        assert refused.value.code == code
    from journal import open_for_writing

    open_for_writing(tmp_path / "empty").close()
    with pytest.raises(tl.errors.JournalError) as empty:
        tl.time_travel(tmp_path / "empty")
    assert empty.value.code == "journal_holds_none"


def test_a_backward_is_run_on_the_trace_itself(cursor: tl.Cursor) -> None:
    with pytest.raises(tl.errors.RunCapabilityUnavailableError, match="goes on from the last one"):
        cursor.seek(1.0).trace.backward(torch.ones((), requires_grad=True))
    with pytest.raises(tl.errors.PayloadUnavailableError) as refused:
        cursor.seek(3).trace.output  # noqa: B018  # refused
    assert refused.value.code == "output_not_stored"
