"""What is folded, and that one copy tells the truth for all: over stacks of blocks of which some differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections import CaptureTables
from projections.picture import Node, Picture, PictureOptions, picture_of
from projections.picture.pictures import scene_of
from projections.picture.repeats import LONGEST, Repeats
from projections.picture.request import asked
from projections.picture.scene import ROOT, Tree
from tests.projections.making import Made


@st.composite
def stacks(draw: st.DrawFn) -> Made:
    """Blocks in a chain or side by side, nearly equal: each op reads from its block, its input, or what all read."""
    count = draw(st.integers(2, 6))
    ops = draw(
        st.lists(
            st.tuples(st.sampled_from("fg"), st.lists(st.integers(-2, 3), min_size=1, max_size=2)),
            min_size=1,
            max_size=5,
        )
    )
    nested = draw(st.booleans())
    is_chain = draw(st.sampled_from([True, True, False]))
    odd = draw(
        st.none()
        | st.tuples(st.integers(0, count - 1), st.integers(0, len(ops) - 1), st.sampled_from(["shape", "func", "far"]))
    )
    taken = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, len(ops) - 1)), max_size=2))
    every = draw(st.booleans())
    asked = draw(st.none() | st.tuples(st.integers(0, count - 1), st.integers(0, len(ops) - 1)))
    is_halted = draw(st.sampled_from([False, False, True]))
    modules = {f"b{place}": "Block" for place in range(count)}
    modules |= {f"b{place}.in": "Inner" for place in range(count)}
    made = Made(modules)
    x, context = made.input("x"), made.input("y")
    values: list[list[int]] = []
    for place in range(count):
        with made.call(f"b{place}", x) as call:
            inside: list[int] = []
            with ExitStack() as stack:
                inner = None
                for number, (func, sources) in enumerate(ops):
                    if nested and number == 2:
                        inner = stack.enter_context(made.call(f"b{place}.in", inside[-1]))
                    known = {-1: context, -2: x, **{at: inside[at % len(inside)] if inside else x for at in range(4)}}
                    held = [known[source] for source in sources]
                    is_odd = odd is not None and odd[:2] == (place, number)
                    if is_odd and odd[2] == "far" and values:
                        held.append(values[0][0])
                    shape = (3, 4) if is_odd and odd[2] == "shape" else (2, 4)
                    inside.append(made.op("h" if is_odd and odd[2] == "func" else func, *held, shape=shape))
                    if asked is not None and asked[1] == number:
                        made.branch(inside[-1], place == asked[0])
                if inner is not None:
                    inner.returns(inside[-1])
            call.returns(inside[-1])
        values.append(inside)
        x = inside[-1] if is_chain else x
    if is_halted:
        return made.halts(values[-1][-1])
    ends = [values[-1][-1]] if not every else [inside[-1] for inside in values]
    end = made.op("cat", *ends, *[values[place][number] for place, number in taken])
    return made.returns(end)


def parts(rows: Sequence[int], times: int) -> list[Sequence[int]]:
    size = len(rows) // times
    return [rows[at * size : (at + 1) * size] for at in range(times)]


def outermost(picture: Picture, place: int) -> tuple[int, int]:
    """The outermost fold that a node is in, as a number, and how many copies it has; -1 and 1 for none."""
    node = picture.nodes[place]
    path = []
    cluster = node.cluster
    while cluster >= 0:
        path.append(cluster)
        cluster = picture.clusters[cluster].parent
    for one in reversed(path):
        if picture.clusters[one].times > 1:
            return one, picture.clusters[one].times
    return (len(picture.clusters) + place, node.times) if node.times > 1 and node.kind == "op" else (-1, 1)


def joined(tables: CaptureTables, one: Sequence[int], other: Sequence[int]) -> set[tuple[int, int]]:
    """The edges between two lists of rows, as places in them."""
    parents = tables.ops.column("parent_rows")
    return {
        (source, target)
        for target, row in enumerate(other)
        for source, parent in enumerate(one)
        if parent in parents[row]
    }


def check_truth(tables: CaptureTables, picture: Picture) -> None:
    """What is drawn of one copy holds of each, but for where the first comes from and the last leads."""
    nodes = picture.nodes
    kinds = {(edge.source, edge.target): edge.kind for edge in picture.edges if edge.kind != "repeat"}
    repeats = {(edge.source, edge.target) for edge in picture.edges if edge.kind == "repeat"}
    for source in range(len(nodes)):
        for target in range(len(nodes)):
            fold, times = outermost(picture, source)
            other, others = outermost(picture, target)
            if fold == other == -1 or nodes[source].kind == "ops" or nodes[target].kind == "ops":
                continue
            if fold == other:
                here, there = parts(nodes[source].rows, times), parts(nodes[target].rows, times)
                within = [joined(tables, here[copy], there[copy]) for copy in range(times)]
                assert all(edges == within[0] for edges in within)
                onward = [joined(tables, here[copy], there[copy + 1]) for copy in range(times - 1)]
                assert all(edges == onward[0] for edges in onward)
                assert bool(onward[0]) <= ((source, target) in repeats)
                assert not any(
                    joined(tables, here[one], there[two])
                    for one in range(times)
                    for two in range(times)
                    if abs(one - two) > 1
                )
                assert bool(within[0] and source != target) <= (
                    (source, target) in kinds or (source, target) in repeats
                )
            elif other != -1 and fold == -1:
                into = [joined(tables, nodes[source].rows, copy) for copy in parts(nodes[target].rows, others)]
                assert all(edges == into[1] for edges in into[1:])
                if into[0] != into[1]:
                    assert any(repeat[1] == target for repeat in repeats), (
                        "only the first has it: others have the one before"
                    )
            elif fold != -1 and other == -1:
                out = [joined(tables, copy, nodes[target].rows) for copy in parts(nodes[source].rows, times)]
                assert all(edges == out[0] for edges in out[:-1])
                if out[-1] != out[0]:
                    assert any(repeat[0] == source for repeat in repeats), (
                        "only the last has it: others lead to the next"
                    )


@settings(max_examples=150)
@given(stacks())
def test_one_copy_tells_the_truth_for_all(made: Made) -> None:
    tables = made.tables()
    check_truth(tables, picture_of(tables, PictureOptions(collapse="none", fold_repeats=True)))


ANSWERS = ("if: ", "assert: ", "asked: ", "elif: ")


@settings(max_examples=100)
@given(stacks(), st.sampled_from(["none", "auto", "max"]), st.booleans())
def test_marks_and_answers_of_a_folded_node_are_those_of_every_copy(made: Made, collapse: Any, rolled: bool) -> None:
    def told(node: Node) -> tuple[Any, ...]:
        return node.marks, [line for line in node.lines if line.startswith(ANSWERS)]

    tables = made.tables()
    alone = {
        row: told(node)
        for node in picture_of(tables, PictureOptions(collapse="none", fold_repeats=False, rolled=rolled)).nodes
        for row in node.rows
    }
    halted = {row for row, (marks, _) in alone.items() if "halted" in marks}
    shown = picture_of(tables, PictureOptions(collapse=collapse, fold_repeats=True, rolled=rolled))
    for node in shown.nodes:
        if node.kind == "op":
            assert [alone[row] for row in node.rows] == [told(node)] * len(node.rows)
    assert any("halted" in node.marks for node in shown.nodes) == bool(halted)


def blocks(count: int, *, inside: int = 6, odd: dict[int, Any] | None = None, skip: bool = False) -> Made:
    """A chain of blocks of so many ops; of some the last op has another shape or function."""
    made = Made({f"b{place}": "Block" for place in range(count)})
    x = made.input("x")
    before: list[int] = []
    for place in range(count):
        with made.call(f"b{place}", x) as call:
            value = x
            for number in range(inside):
                more = (odd or {}).get(place, {}) if number == inside - 1 else {}
                value = made.op(more.get("func", f"f{number}"), value, shape=more.get("shape", (2, 4)))
            call.returns(value)
        before.append(x)
        x = value
    if skip:
        x = made.op("cat", x, before[1])
    return made.returns(x)


def folds(picture: Picture) -> list[tuple[str, int]]:
    return [(part.title, part.times) for part in (*picture.clusters, *picture.nodes) if part.times > 1]


def test_equal_blocks_are_one_with_an_edge_to_the_next() -> None:
    tables = blocks(12).tables()
    picture = picture_of(tables, PictureOptions(collapse="max"))
    (node,) = [node for node in picture.nodes if node.kind == "module"]
    assert (node.title, node.times, node.ops) == ("b0 … b11", 12, 72)
    assert node.lines == ("Block", "(2, 4) float32", "6 ops")
    place = picture.nodes.index(node)
    assert [(edge.source, edge.target, edge.kind, edge.count) for edge in picture.edges] == [
        (0, place, "forward", 1),
        (place, place, "repeat", 11),
        (place, 2, "forward", 1),
    ]
    assert picture.hidden == (("edges", 60), ("ops", 72))


def test_what_is_in_an_open_block_stands_for_all() -> None:
    picture = picture_of(blocks(12).tables(), PictureOptions(collapse="auto"))
    assert folds(picture) == [("b0 … b11", 12)]
    assert [len(node.rows) for node in picture.nodes] == [1, *[12] * 6, 1]
    assert [edge.kind for edge in picture.edges].count("repeat") == 1


def test_a_block_of_another_shape_or_function_stands_apart() -> None:
    for odd in ({"shape": (3, 4)}, {"func": "g"}):
        picture = picture_of(blocks(9, odd={4: odd}).tables(), PictureOptions(collapse="max"))
        assert [(node.title, node.times) for node in picture.nodes if node.kind == "module"] == [
            ("b0 … b3", 4),
            ("b4", 1),
            ("b5 … b8", 4),
        ]


def test_a_block_that_others_read_from_is_not_folded_away() -> None:
    picture = picture_of(blocks(6, skip=True).tables(), PictureOptions(collapse="max"))
    assert [(node.title, node.times) for node in picture.nodes if node.kind == "module"] == [("b0", 1), ("b1 … b5", 5)]


def test_a_saved_op_is_not_told_of_its_siblings() -> None:
    made = blocks(5)
    made.events.pop()
    tables = made.tables()
    value = tables.ops.value("value", 15)
    made.keep(value, 0)
    picture = picture_of(made.tables(), PictureOptions(collapse="max"))
    assert [node.times for node in picture.nodes if node.kind == "module"] == [2, 1, 2]


def test_folds_are_nested() -> None:
    made = Made(
        {
            **{f"s{one}": "Stage" for one in range(3)},
            **{f"s{one}.b{two}": "Block" for one in range(3) for two in range(4)},
        }
    )
    x = made.input("x")
    for one in range(3):
        with made.call(f"s{one}", x) as stage:
            for two in range(4):
                with made.call(f"s{one}.b{two}", x) as block:
                    y = made.op("f", x)
                    y = made.op("g", y)
                    x = made.op("add", x, y)
                    block.returns(x)
            stage.returns(x)
    tables = made.returns(x).tables()
    picture = picture_of(tables)
    assert folds(picture) == [("s0 … s2", 3), ("b0 … b3", 4)]
    assert {len(node.rows) for node in picture.nodes} == {1, 12}
    check_truth(tables, picture)
    assert sum(edge.count for edge in picture.edges) == tables.fact("num_edges")


def test_modules_with_ops_between_them_repeat_as_a_stretch() -> None:
    made = Made({f"b{place}": "Block" for place in range(8)})
    x = made.input("x")
    for place in range(8):
        with made.call(f"b{place}", x) as call:
            y = made.op("g", made.op("f", x))
            call.returns(y)
        x = made.op("add", x, y)
    picture = picture_of(made.returns(x).tables(), PictureOptions(fold_repeats=True))
    (stretch, inner) = picture.clusters
    assert (stretch.table, stretch.title, stretch.times) == ("", "3 ops", 8)
    assert (inner.title, inner.parent, len(inner.rows)) == ("b0 … b7", 0, 8)


def test_outputs_that_differ_in_a_number_do_not_keep_blocks_apart() -> None:
    made = Made({f"b{place}": "Block" for place in range(5)})
    x = made.input("x")
    kept: list[int] = []
    for place in range(5):
        with made.call(f"b{place}", x) as call:
            for name in "fghij":
                x = made.op(name, x)
            kept.append(x)
            call.returns(x)
    end = made.op("end", x)
    picture = picture_of(
        made.returns(end, *kept, paths=[("y",), *[("hidden", place) for place in range(5)]]).tables(),
        PictureOptions(collapse="max"),
    )
    assert [
        (node.title, node.times, node.lines[:1]) for node in picture.nodes if node.kind in ("module", "output")
    ] == [
        ("b0 … b4", 5, ("Block",)),
        ("output_1", 1, ("output.y",)),
        ("output_2 … output_6", 5, ("output.hidden.0…4",)),
    ]
    whole = picture_of(made.tables(), PictureOptions(collapse="none"))
    assert sum(node.kind == "output" for node in whole.nodes) == 6


def test_a_long_row_of_ops_is_readable() -> None:
    made = Made()
    x = made.input("x")
    for place in range(3000):
        x = made.op("tanh" if place % 2 else "mul", x)
    picture = picture_of(made.returns(x).tables())
    (stretch,) = picture.clusters
    assert (stretch.times, len(picture.nodes)) == (1500, 4)
    assert sum(node.ops for node in picture.nodes) == 3000

    picture = picture_of(made.tables(), PictureOptions(fold_repeats=False))
    assert 10 < len(picture.nodes) <= 60
    assert sum(len(node.rows) for node in picture.nodes) == 3002
    assert {node.kind for node in picture.nodes} == {"input", "ops", "output"}
    assert picture.nodes[1].title.startswith("mul_1 … ")


def in_a_mirror(made: Made, count: int) -> None:
    """Ops of which each is read from again, the last one first, as by the connections across a U-net."""
    x = made.input("x")
    kept = [x := made.op("f", x) for _ in range(count)]
    for value in reversed(kept):
        x = made.op("add", x, value)
    made.returns(x)


def from_afar(made: Made, count: int) -> None:
    """Ops that read from the one half as far from the start, too."""
    kept = [made.input("x")]
    for place in range(2 * count):
        kept.append(made.op("f", kept[-1], kept[place // 2]))
    made.returns(kept[-1])


def fifty_back(made: Made, count: int) -> None:
    """Ops that read from the fiftieth one before, too."""
    kept = [made.input("x")]
    for _ in range(2 * count):
        kept.append(made.op("f", kept[-1], *kept[-50:-49]))
    made.returns(kept[-1])


def from_all(made: Made, count: int) -> None:
    """Ops that read from all before them."""
    kept = [made.input("x")]
    for _ in range(count // 2 + 10):
        kept.append(made.op("f", *kept))
    made.returns(kept[-1])


@pytest.mark.parametrize("build", [in_a_mirror, from_afar, fifty_back, from_all])
def test_what_cannot_be_folded_costs_no_more_for_each_op_the_more_there_are(
    build: Callable[[Made, int], None],
) -> None:
    made = Made()
    build(made, 200)
    tables = made.tables()
    scene = scene_of(tables, asked(tables, PictureOptions(fold_repeats=True)))
    repeats = Repeats(scene, Tree(scene))
    pieces = repeats.folded(ROOT, repeats.kinds_of(repeats.tree.units[ROOT]), least=1, loose=True)
    assert len(pieces) > 100
    assert repeats.looked_at < 8 * LONGEST * (len(scene.rows) + len(scene.sources))


def test_a_stretch_is_folded_that_holds_one() -> None:
    made = Made()
    x = early = made.input("x")
    for _ in range(40):
        for _ in range(10):
            x = made.op("mul", made.op("tanh", x))
        x, early = made.op("add", x, early), x
    picture = picture_of(made.returns(x).tables())
    assert folds(picture) == [("21 ops", 40), ("2 ops", 10)]
    assert [len(node.rows) for node in picture.nodes] == [1, 400, 400, 40, 1]
    check_truth(made.tables(), picture)


def test_what_is_folded_within_a_stretch_is_told_truly_of_each_of_its_copies() -> None:
    made = Made()
    x = made.input("x")
    others = [made.op(f"f{place}", x) for place in range(10)]
    for time in range(30):
        before = x
        for other in others:
            x = made.op("mul", x, other if time == 0 else before)
        x = made.op("add", x)
    tables = made.returns(x).tables()
    picture = picture_of(tables, PictureOptions(most_nodes=30, fold_repeats=True))
    assert folds(picture)
    check_truth(tables, picture)


def test_dense_connections_are_drawn_with_fewer_nodes() -> None:
    made = Made({f"l{place}": "Layer" for place in range(40)})
    kept = [made.input("x")]
    for place in range(40):
        given = made.op("cat", *kept, shape=(2, 4 * (place + 1)))
        with made.call(f"l{place}", given) as call:
            x = made.op("linear", given)
            call.returns(x)
        kept.append(made.op("relu", x))
    tables = made.returns(kept[-1]).tables()
    picture = picture_of(tables)
    assert 10 < len(picture.nodes) <= 30
    assert len(picture.edges) <= 120
    assert len(picture_of(tables, PictureOptions(collapse="none", fold_repeats=False)).edges) > 800
