"""The data of a page agrees with the records of its trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import torchlens as tl
from tests.page import examples
from tests.page.examples import EXAMPLES, chain
from torchlens.page.data import page_data
from torchlens.reading.locations import place_of_op

TABLES = ("calls", "ops", "edges", "gradients", "passes", "firings")


@pytest.fixture(scope="module")
def traces() -> Mapping[str, tl.Trace]:
    return {name: (chain(50) if name == "chain" else make()) for name, make in EXAMPLES.items()}


@pytest.fixture(scope="module", params=EXAMPLES)
def trace(request: pytest.FixtureRequest, traces: Mapping[str, tl.Trace]) -> tl.Trace:
    return traces[request.param]


@pytest.fixture(scope="module")
def data(trace: tl.Trace) -> dict[str, Any]:
    return page_data(trace)


def texts(data: dict[str, Any], table: str, column: str) -> list[str | None]:
    return [None if number is None else data["texts"][number] for number in data[table][column]]


def test_the_data_is_what_it_is_after_json(data: dict[str, Any]) -> None:
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_columns_of_a_table_are_of_one_length(data: dict[str, Any]) -> None:
    for table in TABLES:
        assert len({len(column) for column in data[table].values()}) == 1, table


def test_every_op_stands_once_and_in_order(trace: tl.Trace, data: dict[str, Any]) -> None:
    broken = data["ending"] is not None and data["ending"]["op"] is not None
    assert texts(data, "ops", "label")[: -1 if broken else None] == trace.op_labels
    assert texts(data, "ops", "kind").count("failed") == broken
    assert texts(data, "calls", "label") == list(trace.module_calls.labels)


def test_every_column_of_ops_says_what_the_records_say(trace: tl.Trace, data: dict[str, Any]) -> None:
    ops, calls = data["ops"], texts(data, "calls", "label")
    said = {name: texts(data, "ops", name) for name in ("kind", "type", "shape", "dtype", "layer", "args")}
    marks = [{data["texts"][mark] for mark in row} for row in ops["marks"]]
    params = [tuple(data["texts"][address] for address in row) for row in ops["params"]]
    kept = [row for row, is_kept in enumerate(data["gradients"]["kept"]) if is_kept]
    for row, op in enumerate(trace.ops):
        assert said["kind"][row] == (op.layer_type if op.layer_type in ("input", "output", "buffer") else "op")
        assert (said["type"][row], said["layer"][row]) == (op.layer_type, op.layer_label)
        assert (said["shape"][row], said["dtype"][row]) == (str(op.shape), str(op.dtype).removeprefix("torch."))
        assert calls[ops["call"][row]] == (op.module or "self:1")
        assert (ops["pass"][row], ops["passes"][row]) == (op.pass_index, op.num_passes)
        assert ops["memory"][row] == op.activation_memory
        assert ops["time"][row] == (op.func_duration if op.is_compute_op else None)
        assert ops["flops"][row] == (op.flops_forward if op.is_compute_op else None)
        assert params[row] == op.param_names
        assert ("saved" in marks[row]) == op.has_saved_payload
        assert ("inplace" in marks[row]) == op.is_inplace
        assert ("grad" in marks[row]) == op.has_grad
        assert any(data["gradients"]["op"][at] == ops["origin"][row] for at in kept) == op.has_grad
        assert (said["args"][row] is None) == (not op.is_compute_op)
        place = ops["place"][row]
        assert (place is None) == (not op.code_context)
        if place is not None:
            found = place_of_op(trace, row)
            assert found is not None
            told = data["places"][place]
            assert (told["file"], told["line"], told["function"]) == (
                found.file,
                found.line_number,
                found.func_qualname,
            )
            assert dict(map(tuple, told["lines"]))[found.line_number].strip() == found.call_line


def test_every_column_of_calls_says_what_the_records_say(trace: tl.Trace, data: dict[str, Any]) -> None:
    calls, labels = data["calls"], texts(data, "calls", "label")
    assert texts(data, "calls", "address") == [call.address for call in trace.module_calls]
    assert texts(data, "calls", "class") == [call.class_name for call in trace.module_calls]
    for row, call in enumerate(trace.module_calls):
        parent = calls["parent"][row]
        assert (None if parent < 0 else labels[parent]) == call.call_parent
        assert calls["time"][row] == call.func_calls_duration
        assert calls["flops"][row] == call.flops_forward
        assert (calls["left"][row] is not None) or not call.is_returned


def test_the_edges_are_those_of_the_records(trace: tl.Trace, data: dict[str, Any]) -> None:
    labels = texts(data, "ops", "label")
    edges = [(labels[start], labels[end]) for start, end in zip(*data["edges"].values(), strict=True)]
    assert len(set(edges)) == len(edges)
    assert {edge for edge in edges if edge[1] in trace} == {
        (parent, op.label) for op in trace.ops for parent in op.parents
    }


def test_totals_of_the_page_are_those_of_the_trace(trace: tl.Trace, data: dict[str, Any]) -> None:
    firings = trace.autograd.grad_fn_calls
    assert texts(data, "ops", "kind").count("op") == trace.num_ops
    assert texts(data, "firings", "node") == [call.label for call in firings]
    assert data["firings"]["time"] == [call.backward_duration for call in firings]
    assert len(data["passes"]["label"]) == len(trace.autograd.backward_passes)
    assert len(data["gradients"]["op"]) == len(trace.autograd.gradients)
    calls = {op.func_call_id: (op.func_duration, op.flops_forward) for op in trace.ops if op.is_compute_op}
    times = {op: time for op, time in zip(data["ops"]["event"], data["ops"]["time"], strict=True) if time is not None}
    assert sum(times.values()) == pytest.approx(sum(time for time, _ in calls.values()))


def test_the_timeline_is_in_order_and_within_the_events(trace: tl.Trace, data: dict[str, Any]) -> None:
    count = data["events"]["count"]
    assert count == trace.num_events
    assert data["events"]["has_diary"] is True
    first, *others = (stamped.time_ns for stamped in trace.events())
    assert data["events"]["times"] == pytest.approx([0, *((time - first) / 1e9 for time in others)], abs=1e-6)
    for table, column in (
        ("ops", "event"),
        ("calls", "entered"),
        ("gradients", "event"),
        ("passes", "begun"),
        ("firings", "event"),
    ):
        numbers = data[table][column]
        assert all(0 <= number < count for number in numbers), table
        assert table == "gradients" or numbers == sorted(numbers)
    for begun, ended in zip(data["calls"]["entered"], data["calls"]["left"], strict=True):
        assert ended is None or begun < ended < count
    for begun, ended in zip(data["passes"]["begun"], data["passes"]["ended"], strict=True):
        assert ended is None or begun < ended < count


def test_a_backward_pass_that_raised_tells_what_and_where() -> None:
    trace = examples.failed_backward()
    data = page_data(trace)
    (done,) = trace.autograd.backward_passes
    assert (data["ending"], data["status"]) == (None, "complete")
    assert texts(data, "passes", "status") == ["error"]
    assert texts(data, "passes", "error") == ["RuntimeError: no way <b>"]
    assert texts(data, "passes", "raised_in") == [done.raised_in]
    assert [texts(data, "ops", "type")[row] for row in data["passes"]["op"]] == ["noway"]
    trace.cleanup()


@pytest.mark.parametrize("name", ["recurrent", "failed"])
def test_what_exists_at_a_position_is_what_the_trace_had_then(traces: Mapping[str, tl.Trace], name: str) -> None:
    """The scrubber agrees with ``as_of``, which folds the events up to there and no others."""
    trace = traces[name]
    data = page_data(trace, statistics=False)
    broken = data["ending"] is not None
    for position in range(0, trace.num_events + 1, 7):
        moment = trace.as_of(position)
        entered = [row for row, event in enumerate(data["calls"]["entered"]) if event < position]
        left = [
            row for row in entered if data["calls"]["left"][row] is not None and data["calls"]["left"][row] < position
        ]
        assert len(entered) - len(left) == len(moment.running), position
        fired = sum(event < position for event in data["firings"]["event"])
        assert fired == len(moment.tables.grad_fn_calls)
        assert sum(event < position for event in data["passes"]["begun"]) == len(moment.tables.backward_passes)
        ran = sum(
            event < position
            for event, kind in zip(data["ops"]["event"], texts(data, "ops", "kind"), strict=True)
            if kind == "op"
        )
        assert ran == sum(moment.tables.ops.column("is_compute_op")) + sum(
            moment.tables.orphans.column("is_compute_op")
        )
    assert broken == (name == "failed")
