"""The exported graph is that of the records, in every format."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from tests.differentiating import traced
from torchlens.errors import CompatibilityError, ConfigurationError
from torchlens.export.graph import GRAD_FN_COLUMNS, LAYER_COLUMNS, OP_COLUMNS
from torchlens.export.graph_networkx import flat
from torchlens.testing import Program, programs

GRAPHS = st.sampled_from(["forward", "backward", "combined"])
LEVELS = st.sampled_from(["op", "layer"])


@settings(max_examples=25)
@given(program=programs(), graph=GRAPHS, level=LEVELS)
def test_nodes_and_edges_are_those_of_the_records_in_every_format(
    program: Program, graph: Any, level: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = traced(program, save="none", capture=tl.CaptureOptions(backward_ready=True))
    if trace is None:
        return
    if graph != "forward" and not len(trace.autograd.grad_fns):
        graph = "forward"
    multi = tl.export.to_networkx(trace, graph=graph, level=level)
    forward = list((trace.ops if level == "op" else trace.layers).labels) if graph != "backward" else []
    backward = list(trace.autograd.grad_fns.labels) if graph != "forward" else []
    assert list(multi) == forward + backward

    edges = Counter[Any]()
    for source, target, attributes in multi.edges(data=True):
        edges[attributes["kind"], source, target] += attributes["count"]
    assert edges == Counter(wanted_edges(trace, graph, level))

    read = json.loads(tl.export.to_json(trace, graph=graph, level=level))
    assert as_networkx(read) == described(multi)

    path = tl.export.to_graphml(trace, tmp_path_factory.mktemp("graph") / "one.graphml", graph=graph, level=level)
    again = networkx.read_graphml(path, force_multigraph=True)
    assert described(again) == described(flat(multi))


def wanted_edges(trace: tl.Trace, graph: str, level: str) -> Any:
    """Kind and labels at both ends of every edge, from the records."""
    if graph != "backward":
        for op in trace.ops:
            for parent in op.input_ops:
                yield "forward", *((parent, op.label) if level == "op" else (layer_of(trace, parent), op.layer_label))
    if graph != "forward":
        for node in trace.autograd.grad_fns:
            for child in node.children:
                yield "backward", node.label, child
    if graph == "combined":
        rows = trace.tables.table("grad_fns").column("op_rows")
        for node, ops in zip(trace.autograd.grad_fns, rows, strict=True):
            for op in sorted(set(ops)):
                yield "pair", (trace.ops[op].label if level == "op" else trace.ops[op].layer_label), node.label


def layer_of(trace: tl.Trace, label: str) -> str:
    return trace.ops[label].layer_label


def described(multi: Any) -> Any:
    facts = {name: value for name, value in multi.graph.items() if not name.endswith("_default")}
    edges = sorted(multi.edges(keys=True, data=True), key=lambda edge: edge[2])
    return facts, dict(multi.nodes(data=True)), [(source, target, tuple_of(told)) for source, target, _, told in edges]


def as_networkx(read: Any) -> Any:
    facts = {name: value for name, value in read.items() if name not in ("nodes", "edges")}
    nodes = {node.pop("id"): tuple_of(node) for node in read["nodes"]}
    edges = [
        (edge["source"], edge["target"], tuple_of({name: one for name, one in edge.items() if name not in ENDS}))
        for edge in read["edges"]
    ]
    return facts, nodes, edges


ENDS = ("source", "target")


def tuple_of(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(tuple_of, value))
    return {name: tuple_of(one) for name, one in value.items()} if isinstance(value, dict) else value


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for _ in range(3):
            x = torch.tanh(self.fc(x))
        return torch.cat([x, first, x], dim=1)


@pytest.fixture(scope="module")
def recurrent() -> tl.Trace:
    trace = tl.trace(Recurrent(), torch.ones(2, 4))
    trace.backward(trace.output.sum())
    return trace


def test_an_edge_tells_where_its_argument_stood(recurrent: tl.Trace) -> None:
    multi = tl.export.to_networkx(recurrent)
    uses = [(source, told["argument"], told["path"]) for source, _, told in multi.in_edges("cat_1_3", data=True)]
    assert sorted(uses) == [
        ("input_1", "positional", (0, 1)),
        ("tanh_1_2:3", "positional", (0, 0)),
        ("tanh_1_2:3", "positional", (0, 2)),
    ]


def test_the_passes_of_a_layer_are_one_node_with_counted_uses(recurrent: tl.Trace) -> None:
    multi = tl.export.to_networkx(recurrent, level="layer")
    assert [told["count"] for _, told in multi["linear_1_1"]["tanh_1_2"].items()] == [3]
    assert [told["count"] for _, told in multi["tanh_1_2"]["linear_1_1"].items()] == [2]
    assert multi.nodes["linear_1_1"]["flops"] == recurrent.layers["linear_1_1"].total_flops_forward


def test_an_op_is_paired_with_what_differentiates_it(recurrent: tl.Trace) -> None:
    multi = tl.export.to_networkx(recurrent, graph="combined")
    (pair,) = [target for _, target, told in multi.out_edges("cat_1_3", data=True) if told["kind"] == "pair"]
    assert multi.nodes[pair]["kind"] == "grad_fn"
    assert multi.nodes[pair]["op"] == "cat_1_3"
    assert multi.nodes["cat_1_3"]["grad_fn"] == pair


def test_live_journaled_and_reopened_traces_give_one_graph(tmp_path: Path) -> None:
    trace = tl.trace(Recurrent(), torch.ones(2, 4), journal=tmp_path / "one.journal")
    trace.backward(trace.output.sum())
    texts = [tl.export.to_json(trace, graph="combined", level=level) for level in ("op", "layer")]
    trace.cleanup()
    read = tl.load(tmp_path / "one.journal")
    assert [tl.export.to_json(read, graph="combined", level=level) for level in ("op", "layer")] == texts
    read.cleanup()


def test_a_capture_that_failed_exports_what_ran(tmp_path: Path) -> None:
    with pytest.raises(tl.TraceCaptureError) as caught:
        tl.trace(nn.Sequential(nn.Linear(4, 5), nn.Linear(6, 2)), torch.ones(1, 4))
    assert caught.value.partial_trace is not None
    multi = tl.export.to_networkx(caught.value.partial_trace)
    assert list(multi) == ["input_1", "linear_1_1"]
    assert multi.graph["status"] == "failed"


HOSTILE = 'x"<&>\x00\x1b[31m\n]]>\ufffe#'


def test_hostile_names_break_no_format(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(2, 2))
    model.add_module(HOSTILE.encode("unicode_escape").decode(), nn.ReLU())
    trace = tl.trace(model, torch.ones(1, 2), name=HOSTILE)
    trace.backward(trace.output.sum())
    multi = tl.export.to_networkx(trace, graph="combined")
    path = tl.export.to_graphml(trace, tmp_path / "hostile.graphml", graph="combined")
    assert described(networkx.read_graphml(path, force_multigraph=True)) == described(flat(multi))
    assert as_networkx(json.loads(tl.export.to_json(trace, graph="combined"))) == described(multi)


def test_names_that_would_be_alike_in_xml_stay_two() -> None:
    multi = networkx.MultiDiGraph()
    multi.add_edge("a\x1b", "a\\x1b", key=0)
    assert list(flat(multi).edges()) == [("a\\x1b", "a\\x1b #2")]


def test_a_file_is_there_whole_or_not_at_all(
    recurrent: tl.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.json"
    assert tl.export.to_json(recurrent, path) == path
    assert path.read_text() == tl.export.to_json(recurrent)
    path.write_text("mine")
    for write in (tl.export.to_json, tl.export.to_graphml):
        with pytest.raises(ConfigurationError) as caught:
            write(recurrent, path)
        assert caught.value.fields["code"] == "export_path_exists"
    monkeypatch.setattr("os.fsync", refusing)
    with pytest.raises(ConfigurationError) as caught:
        tl.export.to_json(recurrent, path, overwrite=True)
    assert caught.value.fields["code"] == "export_not_written"
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    tl.export.to_graphml(recurrent, path, overwrite=True)
    assert networkx.read_graphml(path).number_of_nodes() == len(recurrent.ops)


def refusing(file: int) -> None:
    raise OSError(28, "No space left on device")


def test_what_cannot_be_exported_is_refused(recurrent: tl.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tl.trace(torch.cos, torch.ones(2))
    for code, what, options in (
        ("export_type_invalid", nn.ReLU(), {}),
        ("export_option_invalid", recurrent, {"graph": "both"}),
        ("export_option_invalid", recurrent, {"level": "module"}),
        ("export_backward_missing", bare, {"graph": "combined"}),
    ):
        for write in (tl.export.to_json, tl.export.to_networkx):
            with pytest.raises(ConfigurationError) as caught:
                write(what, **options)
            assert caught.value.fields["code"] == code
    monkeypatch.setattr("torchlens.export.graph.MOST", 10)
    with pytest.raises(ConfigurationError) as caught:
        tl.export.to_json(recurrent)
    assert caught.value.fields["code"] == "export_too_large"


def test_without_networkx_there_is_json(recurrent: tl.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    for ask in (tl.export.to_networkx, lambda trace: tl.export.to_graphml(trace, tmp_path / "one.graphml")):
        with pytest.raises(CompatibilityError) as caught:
            ask(recurrent)
        assert caught.value.fields["code"] == "networkx_not_installed"
    assert json.loads(tl.export.to_json(recurrent))["version"] == tl.export.VERSION


def test_every_attribute_stands_on_the_page(recurrent: tl.Trace) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text()
    told = {word.strip("`") for row in re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE) for word in row.split(", ")}
    edge = json.loads(tl.export.to_json(recurrent))["edges"][0]
    assert told >= {"id", "kind", *OP_COLUMNS, *LAYER_COLUMNS, *GRAD_FN_COLUMNS, *edge}
