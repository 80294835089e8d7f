"""What a drawing of a trace is asked for: labels by a function, and what is to stand out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torchlens as tl
from tests.torchlens.models import refusal
from torchlens.errors import ConfigurationError
from torchlens.viz import Drawing, Edge, Node, Picture
from torchlens.viz.asking import drawn

OPTIONS = {"direction": "bottomup", "theme": "light", "layout": "auto", "legend": True, "renderer": "auto"}


@pytest.fixture(scope="module")
def trace() -> Iterator[tl.Trace]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))
    made = tl.trace(model, torch.ones(2, 4))
    yield made
    made.cleanup()


def picture(trace: tl.Trace) -> Picture:
    """Input, a linear op, the inner module closed, output, and a failed call."""
    rows = {label: row for row, label in enumerate(trace.ops.labels)}
    inner = trace.module_calls["1"].row
    nodes = (
        Node(key="a", kind="input", title="input_1", table="ops", rows=(rows["input_1"],)),
        Node(key="b", kind="op", title="linear_1", table="ops", rows=(rows["linear_1_1"],)),
        Node(key="c", kind="module", title="the inner one", table="module_calls", rows=(inner,)),
        Node(key="d", kind="output", title="output_1", table="ops", rows=(rows["output_1"],)),
        Node(key="e", kind="failed", title="matmul", table="", rows=()),
    )
    return Picture(title="T", nodes=nodes, edges=tuple(Edge(source=at, target=at + 1) for at in range(4)))


def draw(trace: tl.Trace, node_label: Any = None, highlight: Any = None) -> Drawing:
    return drawn(trace, picture(trace), node_label=node_label, highlight=highlight, **OPTIONS)  # type: ignore[arg-type]


def test_a_function_labels_the_nodes_that_have_a_record(trace: tl.Trace) -> None:
    asked: list[Any] = []

    def label(record: Any) -> str | None:
        asked.append(record)
        return f"{record.label}\n{record.shape}" if isinstance(record, type(trace.ops[0])) else None

    look = draw(trace, label).look
    assert asked == [trace.ops["input_1"], trace.ops["linear_1_1"], trace.module_calls["1"], trace.ops["output_1"]]
    assert look.labels == {0: "input_1\n(2, 4)", 1: "linear_1_1\n(2, 8)", 3: "output_1\n(2, 2)"}


def test_what_a_function_raises_is_raised(trace: tl.Trace) -> None:
    with pytest.raises(ZeroDivisionError):
        draw(trace, lambda record: str(1 / 0))


@pytest.mark.parametrize("bad", ["label", 3, lambda record: 7])
def test_what_gives_no_label_is_refused(trace: tl.Trace, bad: Any) -> None:
    assert refusal(lambda: draw(trace, bad), ConfigurationError) == "visualization_node_style_invalid"


@pytest.mark.parametrize(
    ("highlight", "highlighted"),
    [
        ("linear_1_1", {1}),
        ("relu_1_2", {2}),
        ("1.1", {2}),
        ("0", {1}),
        ("1", {2}),
        ("0.weight", {1}),
        (tl.func("linear"), {1, 2}),
        (tl.in_module("1"), {2}),
        (["input_1", "output_1"], {0, 3}),
        (["input_1", "the inner one"], {0, 2}),
    ],
)
def test_what_is_to_stand_out_does_also_within_a_closed_module(
    trace: tl.Trace, highlight: Any, highlighted: set[int]
) -> None:
    assert draw(trace, highlight=highlight).look.highlighted == highlighted


def test_records_and_selections_of_the_trace_are_taken(trace: tl.Trace) -> None:
    selection = trace[tl.func("relu")]
    for given in (selection, selection[0], trace["relu_1_2"], trace.ops["relu_1_2"], [trace.modules["1"]]):
        assert draw(trace, highlight=given).look.highlighted == {2}


def test_what_names_nothing_of_the_picture_is_refused(trace: tl.Trace) -> None:
    other = tl.trace(nn.ReLU(), torch.ones(2))
    for given in (3.5, object(), [["input_1"]], other.ops[0], other[tl.func("relu")], tl.func("conv2d"), []):
        refused = refusal(lambda given=given: draw(trace, highlight=given), ConfigurationError)  # type: ignore[misc]
        assert refused == "visualization_highlight_invalid"
    assert refusal(lambda: draw(trace, highlight="linaer_1_1"), tl.TorchLensError) == "op_lookup_not_found"
    other.cleanup()
