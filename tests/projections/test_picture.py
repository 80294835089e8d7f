"""What holds of every picture of every capture: nothing is drawn that the records lack, and nothing is lost unsaid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.events import Event
from projections import CaptureTables
from projections.errors import ConfigurationError, PayloadUnavailableError
from projections.picture import Node, Picture, PictureOptions, picture_of
from projections.picture.captions import SEVERAL
from tests.projections.making import Made, two_blocks
from tests.projections.making_backward import Passes
from tests.projections.test_laws import tables_of
from tests.strategies import capture_streams

SHOWING = st.sampled_from(["never", "meaningful", "always"])

VIEWS = st.fixed_dictionaries(
    {
        "rolled": st.booleans(),
        "collapse": st.sampled_from(["none", "auto", "max", 0, 1, 2, 0.0, 0.5, 1.0]),
        "fold_repeats": st.sampled_from([None, True, False]),
        "buffers": SHOWING,
        "params": SHOWING,
        "node_lines": st.lists(
            st.sampled_from(["shape", "module", "params", "flops", "time", "memory"]), unique=True, max_size=6
        ),
        "most_nodes": st.integers(1, 12),
        "orphans": st.booleans(),
    }
)


def pictured(tables: CaptureTables, graph: str, view: dict[str, Any]) -> Picture:
    return picture_of(tables, PictureOptions(graph=graph, **view))  # type: ignore[arg-type]


def graphs_of(tables: CaptureTables) -> list[str]:
    return ["forward", "backward", "combined"] if len(tables.grad_fns) else ["forward"]


def op_rows_of(tables: CaptureTables, node: Node) -> list[int]:
    """The op rows that a node stands for, by its table and rows alone."""
    if node.table == "ops":
        return list(node.rows)
    if node.table == "layers":
        return [op for row in node.rows for op in tables.layers.value("op_rows", row)]
    return []


def words_of(tables: CaptureTables, rows: Any) -> Counter[str]:
    ops = tables.ops
    made: Counter[str] = Counter()
    for row in rows:
        kinds = [kind for kind in ("buffer", "input", "output") if ops.value(f"is_{kind}", row)]
        made[f"{kinds[0] if kinds else 'op'}s"] += 1
    return made


@settings(max_examples=60)
@given(events=capture_streams() | capture_streams(backward=True), view=VIEWS)
def test_every_op_is_in_one_node_or_counted_as_hidden(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    for graph in set(graphs_of(tables)) - {"backward"}:
        picture = pictured(tables, graph, view)
        shown = [row for node in picture.nodes for row in op_rows_of(tables, node)]
        assert len(shown) == len(set(shown))
        hidden = Counter(dict(picture.hidden))
        counted = words_of(tables, shown) + Counter(
            {word: hidden[word] for word in ("ops", "buffers", "inputs", "outputs")}
        )
        assert counted == words_of(tables, range(len(tables.ops)))
        apart = words_of(tables, range(len(tables.ops)))["ops"] - sum(node.ops for node in picture.nodes)
        assert apart == hidden["ops"] - sum(node.ops for node in picture.nodes if node.kind == "module")
        if not any(node.kind == "module" for node in picture.nodes):
            assert not {"inputs", "outputs", "params"} & set(hidden)
        ops = tables.ops
        lost = [row for row in range(len(ops)) if not ops.value("is_buffer", row) and row not in set(shown)]
        if view["buffers"] == "always" or not any(ops.column("is_buffer")):
            assert apart == 0
        if not any(node.kind == "module" for node in picture.nodes):
            for row in lost:
                around = [*ops.value("parent_rows", row), *ops.value("child_rows", row)]
                assert all(ops.value("is_buffer", one) and one not in shown for one in around)


@settings(max_examples=30)
@given(events=capture_streams(backward=True), view=VIEWS)
def test_every_grad_fn_is_in_one_node_or_counted_as_hidden(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    for graph in graphs_of(tables)[1:]:
        picture = pictured(tables, graph, view)
        shown = [row for node in picture.nodes if node.table == "grad_fns" for row in node.rows]
        assert len(shown) == len(set(shown))
        assert len(shown) + dict(picture.hidden).get("grad_fns", 0) == len(tables.grad_fns)
        assert all(node.grad_fns == len(node.rows) for node in picture.nodes if node.table == "grad_fns")
        if view["params"] != "never":
            assert sum(node.grad_fns for node in picture.nodes) == len(tables.grad_fns)


@settings(max_examples=30)
@given(events=capture_streams(backward=True), view=VIEWS)
def test_every_param_that_was_taken_is_in_one_node_or_counted_as_hidden(
    events: list[Event], view: dict[str, Any]
) -> None:
    tables = tables_of(events)
    for graph in set(graphs_of(tables)) - {"backward"}:
        picture = pictured(tables, graph, {**view, "params": "always"})
        shown = [row for node in picture.nodes if node.table == "params" for row in node.rows]
        assert len(shown) == len(set(shown))
        taken = sum(bool(rows) for rows in tables.params.column("op_rows"))
        assert len(shown) + dict(picture.hidden).get("params", 0) == taken


@settings(max_examples=60)
@given(events=capture_streams(), view=VIEWS)
def test_every_edge_of_the_records_is_drawn_or_inside_of_a_node(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    view = {**view, "orphans": False, "params": "never"}
    picture = pictured(tables, "forward", view)
    node_of = {row: number for number, node in enumerate(picture.nodes) for row in op_rows_of(tables, node)}
    ops = tables.ops
    between: Counter[tuple[int, int]] = Counter()
    others = 0
    for row, parents in enumerate(ops.column("parent_rows")):
        for parent in parents:
            if parent in node_of and row in node_of:
                between[node_of[parent], node_of[row]] += 1
            else:
                others += 1
    drawn: Counter[tuple[int, int]] = Counter()
    within = 0
    for edge in picture.edges:
        ends = (edge.source, edge.target)
        if all(picture.nodes[end].kind not in ("module", "failed") for end in ends):
            drawn[ends] += edge.count
            within += edge.count if edge.source == edge.target else 0
    assert {ends: count for ends, count in drawn.items() if ends[0] != ends[1]} == {
        ends: count for ends, count in between.items() if ends[0] != ends[1]
    }
    assert sum(between.values()) + others >= sum(
        edge.count for edge in picture.edges if picture.nodes[edge.target].kind != "failed"
    )


@settings(max_examples=40)
@given(events=capture_streams() | capture_streams(backward=True), view=VIEWS)
def test_a_picture_is_well_formed(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    for graph in graphs_of(tables):
        picture = pictured(tables, graph, view)
        assert pictured(tables_of(events), graph, view) == picture
        assert len({node.key for node in picture.nodes}) == len(picture.nodes)
        assert len({cluster.key for cluster in picture.clusters}) == len(picture.clusters)
        inside: Counter[int] = Counter()
        for place, cluster in enumerate(picture.clusters):
            assert -1 <= cluster.parent < place
            inside[cluster.parent] += 1
        for node in picture.nodes:
            assert -1 <= node.cluster < len(picture.clusters)
            assert node.title.isprintable()
            assert len(node.title) <= 40
            inside[node.cluster] += 1
        assert all(inside[place] for place in range(len(picture.clusters)))
        seen = [(edge.source, edge.target, edge.kind, edge.label) for edge in picture.edges]
        assert len(seen) == len(set(seen))
        for edge in picture.edges:
            assert edge.source < len(picture.nodes)
            assert edge.target < len(picture.nodes)
            assert edge.count > 0
            assert edge.source != edge.target or edge.kind in ("repeat", "recurrent")


@settings(max_examples=40)
@given(events=capture_streams() | capture_streams(backward=True), view=VIEWS)
def test_folded_counts_add_up(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    view = {**view, "fold_repeats": True}
    for graph in graphs_of(tables):
        picture = pictured(tables, graph, view)
        around = [1] * (len(picture.clusters) + 1)  # the last is that of no cluster
        for place, cluster in enumerate(picture.clusters):
            around[place] = cluster.times * around[cluster.parent]
            if cluster.table:
                assert len(cluster.rows) == around[place]
        for node in picture.nodes:
            if node.kind not in (*SEVERAL, "failed") and not (node.table == "grad_fns" and view["rolled"]):
                assert len(node.rows) == node.times * around[node.cluster]


@settings(max_examples=30)
@given(events=capture_streams(), view=VIEWS)
def test_passes_of_a_rolled_picture_add_up(events: list[Event], view: dict[str, Any]) -> None:
    tables = tables_of(events)
    picture = pictured(tables, "forward", {**view, "rolled": True, "buffers": "always", "orphans": False})
    passes = sum(
        node.passes * len(node.rows) for node in picture.nodes if node.table == "layers" and node.kind not in SEVERAL
    )
    several = sum(len(op_rows_of(tables, node)) for node in picture.nodes if node.kind == "ops")
    hidden = dict(picture.hidden)
    assert passes + several + sum(hidden.get(word, 0) for word in ("ops", "buffers", "inputs", "outputs")) == len(
        tables.ops
    )


@given(events=capture_streams())
def test_without_collapse_every_op_has_a_node_of_its_own(events: list[Event]) -> None:
    tables = tables_of(events)
    picture = picture_of(tables, PictureOptions(collapse="none", buffers="always"))
    assert sorted(row for node in picture.nodes if node.table == "ops" for row in node.rows) == list(
        range(len(tables.ops))
    )
    assert all(len(node.rows) == (node.kind != "failed") for node in picture.nodes)
    assert not set(dict(picture.hidden)) - {"edges"}


@settings(max_examples=30)
@given(events=capture_streams(), parts=st.tuples(st.floats(0, 1), st.floats(0, 1)), rolled=st.booleans())
def test_a_larger_part_never_shows_more(events: list[Event], parts: tuple[float, float], rolled: bool) -> None:
    tables = tables_of(events)
    small, large = sorted(parts)
    counts = [
        len(picture_of(tables, PictureOptions(collapse=part, rolled=rolled)).nodes) for part in (0.0, small, large, 1.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[3] == len(picture_of(tables, PictureOptions(collapse="max", rolled=rolled)).nodes)
    whole = picture_of(tables, PictureOptions(collapse="none", fold_repeats=True, rolled=rolled))
    assert counts[0] == len(whole.nodes)


# -- what is refused


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("visualization_mode_invalid", {"graph": "sideways"}),
        ("visualization_mode_invalid", {"graph": ["forward"]}),
        ("option_value_invalid", {"rolled": 1}),
        ("option_value_invalid", {"orphans": None}),
        ("collapse_mode_invalid", {"collapse": "some"}),
        ("collapse_mode_invalid", {"collapse": None}),
        ("collapse_mode_invalid", {"collapse": True}),
        ("collapse_mode_invalid", {"collapse": ["blk", 3]}),
        ("collapse_mode_invalid", {"collapse": ["blk", "blocks"]}),
        ("collapse_mode_invalid", {"collapse": object()}),
        ("collapse_level_invalid", {"collapse": -1}),
        ("collapse_level_invalid", {"collapse": 1.5}),
        ("collapse_level_invalid", {"collapse": float("nan")}),
        ("option_value_invalid", {"most_nodes": 0}),
        ("fold_repeats_invalid", {"fold_repeats": "yes"}),
        ("buffer_visibility_invalid", {"buffers": "some"}),
        ("buffer_visibility_invalid", {"params": True}),
        ("visualization_node_style_invalid", {"node_lines": ["shape", "colour"]}),
        ("visualization_node_style_invalid", {"node_lines": None}),
    ],
)
def test_what_is_no_value_of_an_option_is_refused(code: str, options: dict[str, Any]) -> None:
    tables = two_blocks().tables()
    with pytest.raises(ConfigurationError) as refused:
        picture_of(tables, PictureOptions(**options))
    assert refused.value.code == code
    assert refused.value.remedy


def test_a_backward_picture_needs_a_backward_pass() -> None:
    for graph in ("backward", "combined"):
        with pytest.raises(PayloadUnavailableError) as refused:
            pictured(two_blocks().tables(), graph, {})
        assert refused.value.code == "backward_graph_unavailable"


def test_an_unknown_address_is_told_what_looks_like_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        picture_of(two_blocks().tables(), PictureOptions(collapse=["blk.acts"]))
    assert "'blk.act'" in refused.value.remedy


def test_addresses_and_calls_are_drawn_closed() -> None:
    tables = two_blocks().tables()
    picture = picture_of(tables, PictureOptions(collapse=["blk"]))
    assert [(node.title, node.rows) for node in picture.nodes if node.kind == "module"] == [
        ("blk:1", (1,)),
        ("blk:2", (3,)),
    ]
    picture = picture_of(tables, PictureOptions(collapse="blk:2"))
    assert [node.title for node in picture.nodes if node.kind == "module"] == ["blk:2"]
    assert [cluster.title for cluster in picture.clusters] == ["blk:1"]


def test_what_a_pass_made_stands_in_the_module_of_what_made_it_also_where_that_is_told_later() -> None:
    made = Made({"a": "A"})
    x = made.input("x")
    with made.call("a", x) as call:
        call.returns(made.op("relu", x, grad_fn="ReluBackward0", grad_node=0, grad_slot=0))
    passes = Passes(made.returns(call.output))
    relu = passes.node("ReluBackward0", number=0)
    nodes = [relu, *[passes.node(f"{name}Backward0", sequence=place) for place, name in enumerate("ABC", 1)]]
    passes.open(relu, create_graph=True)
    passes.walk(relu)
    passes.fire(relu)
    passes.make(*reversed(nodes[1:]))
    passes.see_makers(*[(place + 2, maker) for place, maker in enumerate(nodes[:3])])
    passes.close()
    tables = passes.tables()
    creators = tables.grad_fns.column("creator_row")
    assert any(creator > row for row, creator in enumerate(creators))
    drawn = picture_of(tables, PictureOptions(graph="backward", collapse="none")).nodes
    assert {(node.kind, node.cluster) for node in drawn} == {("grad_fn", 0)}
