"""Arguments, distances, ancestors, payloads and the facts about a capture as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from journal.events import template as tag
from journal.events.template import HOLE
from projections import Projector
from projections.columnar.arguments import argument_paths, holes, step_into, text_of
from projections.structure.details import item_bytes
from tests.projections.making import DURATION_NS, Made, cell, cells
from tests.work import seconds


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (None, "None"),
        (HOLE, "Tensor"),
        ((tag.TUPLE, 1), "(1,)"),
        ((tag.TUPLE, 1, HOLE), "(1, Tensor)"),
        ((tag.LIST, 1, (tag.TUPLE,)), "[1, ()]"),
        ((tag.DICT, "a", 1, "b", HOLE), "{'a': 1, 'b': Tensor}"),
        ((tag.NAMED, "torch.return_types.max", ("values", "indices"), HOLE, 2), "max(values=Tensor, indices=2)"),
        ((tag.DTYPE, "float32"), "torch.float32"),
        ((tag.DEVICE, "cuda:0"), "device('cuda:0')"),
        ((tag.SLICE, None, 3, None), "slice(None, 3, None)"),
        ((tag.ELLIPSIS,), "..."),
        ((tag.COMPLEX, 1.0, 2.0), "complex(1.0, 2.0)"),
        ((tag.BIG_INT, "99999999999999999999"), "99999999999999999999"),
        ((tag.CALLABLE, "torch.relu"), "torch.relu"),
        ((tag.OPAQUE, "m.Thing", ""), "<m.Thing>"),
        ((tag.OPAQUE, "m.Thing", "x"), "<m.Thing: x>"),
        ((tag.SIZE, 2, 3), "torch.Size([2, 3])"),
        ((tag.LONG, tag.LIST, (1, 2), 5000), "[1, 2, ... (5000 items)]"),
        ((tag.BYTES, 3), "<3 bytes>"),
        ((tag.ENUM, "m.Mode", "FAST"), "Mode.FAST"),
        ((tag.DEEP,), "..."),
        ((tag.GENERATOR, "cpu"), "Generator(device='cpu')"),
    ],
)
def test_a_template_is_written_as_people_would_write_the_value(template: Any, text: str) -> None:
    assert text_of(template) == text


def test_tensors_are_found_in_the_order_in_which_they_are_listed() -> None:
    nested = (tag.LIST, HOLE, (tag.DICT, "k", HOLE, 3, (tag.SLICE, HOLE, None, None)), (tag.SIZE, 2))
    assert list(holes(nested)) == [
        (("ListIndex", 0),),
        (("ListIndex", 1), ("DictKey", "k")),
        (("ListIndex", 1), ("DictKey", 3), ("NamedField", "start")),
    ]
    assert argument_paths((HOLE, (tag.LIST, 1, HOLE)), ("other", HOLE, "dim", 1)) == [
        (0, ()),
        (1, (1,)),
        ("other", ()),
    ]


def test_a_template_nested_deep_is_walked_without_recursion() -> None:
    deep: Any = HOLE
    for _ in range(10_000):
        deep = (tag.LIST, deep)
    assert len(next(holes(deep))) == 10_000
    assert text_of(deep).count("[") == 10_000


def test_a_path_is_spelled_by_what_it_leads_into() -> None:
    template = (tag.NAMED, "m.Out", ("last", "all"), HOLE, (tag.TUPLE, HOLE))
    assert step_into(template, ("all", 0)) == (("NamedField", "all"), ("TupleIndex", 0))
    assert step_into(template, (1, 0)) == (("NamedField", "all"), ("TupleIndex", 0))
    assert step_into(None, ("cache", 0)) == (("DictKey", "cache"), ("TupleIndex", 0))


def test_arguments_are_counted_named_and_shown() -> None:
    made = Made(parameters={"w": (6, 4)})
    x = made.input("x")
    y = made.op("cat", [x, x], plain=(1,))
    z = made.op("softmax", y, kwargs=("dim", -1, "dtype", (tag.DTYPE, "float16")))
    tables = made.returns(made.op("linear", z, "w")).tables()
    cat, softmax, linear = "cat_1_1", "softmax_1_2", "linear_1_3"
    assert cell(tables, cat, "parent_arg_positions") == {
        "args": {(0, 0): "input_1", (0, 1): "input_1"},
        "kwargs": {},
    }
    assert cell(tables, cat, "edge_uses")[1] == ("input_1", cat, "positional", (0, 1))
    assert cell(tables, cat, "num_parents") == 1
    assert cell(tables, cat, "num_inputs") == 2
    assert cell(tables, cat, "func_config") == (("dim", 1),)
    assert cell(tables, cat, "non_tensor_pos_args") == (1,)
    assert cell(tables, softmax, "non_tensor_kwargs") == (("dim", -1), ("dtype", (tag.DTYPE, "float16")))
    assert cell(tables, softmax, "kwargs_summary") == "dim=-1, dtype=torch.float16"
    counts = [cell(tables, softmax, name) for name in ("num_args_total", "num_pos_args", "num_kwargs")]
    assert counts == [3, 1, 2]
    assert cell(tables, linear, "func_config") == (("out_features", 6), ("in_features", 4))
    assert cell(tables, linear, "args_summary") == (
        "Tensor(shape=(2, 4), dtype=float32), Tensor(shape=(6, 4), dtype=float32)"
    )
    assert cell(tables, linear, "arg_names") == ("input", "weight", "bias")
    assert cell(tables, "input_1", "args_summary") == ""


def diamond() -> Made:
    made = Made()
    x = made.input("x")
    noise = made.op("randn")
    left = made.op("relu", made.op("sin", x))
    joined = made.op("add", left, x)
    made.op("cos", joined)
    return made.returns(made.op("mul", joined, noise))


def test_distances_are_shortest_and_longest_ways() -> None:
    tables = diamond().tables()
    reads = {
        name: [cell(tables, label, name) for label in ("input_1", "randn_1_1", "add_1_4", "cos_1_5", "output_1")]
        for name in (
            "min_distance_from_input",
            "max_distance_from_input",
            "min_distance_to_output",
            "max_distance_to_output",
        )
    }
    assert reads == {
        "min_distance_from_input": [0, None, 1, 2, 3],
        "max_distance_from_input": [0, None, 3, 4, 5],
        "min_distance_to_output": [3, 2, 2, None, 0],
        "max_distance_to_output": [5, 2, 2, None, 0],
    }


def test_ancestors_and_descendants_are_labels_in_order() -> None:
    tables = diamond().tables()
    assert cell(tables, "mul_1_6", "root_ancestors") == ("input_1", "randn_1_1")
    assert cell(tables, "mul_1_6", "input_ancestors") == ("input_1",)
    assert cell(tables, "mul_1_6", "internal_source_ancestors") == ("randn_1_1",)
    assert cell(tables, "sin_1_2", "output_descendants") == ("output_1",)
    assert cell(tables, "cos_1_5", "has_output_descendant") is False
    assert cell(tables, "randn_1_1", "root_ancestors") == ("randn_1_1",)


def test_siblings_share_a_parent_and_co_parents_a_child() -> None:
    tables = diamond().tables()
    assert cell(tables, "cos_1_5", "siblings") == ("mul_1_6",)
    assert cell(tables, "randn_1_1", "co_parents") == ("add_1_4",)
    assert cell(tables, "sin_1_2", "siblings") == ("add_1_4",)


def test_layers_have_the_union_of_their_passes_edges() -> None:
    made = Made()
    x = made.input("x")
    for _ in range(2):
        x = made.op("tanh", x, site="t")
    tables = made.returns(made.op("relu", x)).tables()
    tanh = list(tables.layers.column("layer_label")).index("tanh_1_1")
    assert tables.layers.value("parents", tanh) == ("input_1", "tanh_1_1")
    assert tables.layers.value("children", tanh) == ("tanh_1_1", "relu_1_2")
    assert tables.layers.value("parents_per_pass", tanh) == ((1, ("input_1",)), (2, ("tanh_1_1",)))
    assert tables.layers.value("child_ops_per_layer", tanh) == (("tanh_1_1", (1,)), ("relu_1_2", (2,)))
    assert tables.layers.value("edges_vary_across_ops", tanh) is True
    assert tables.layers.value("total_activation_memory", tanh) == 64
    assert tables.layers.value("total_func_duration", tanh) == 2 * DURATION_NS / 1e9


def test_a_payload_is_kept_with_its_value_or_later_and_outputs_share_it() -> None:
    made = Made({"same": "Identity"})
    x = made.input("x", payload=(0, 0, None))
    kept = made.op("relu", x, payload=(1, 4, (8, 1)))
    with made.call("same", kept) as call:
        call.returns(kept)
    late = made.op("sin", kept)
    dropped = made.op("cos", late)
    made.returns(kept, late, dropped)
    made.keep(late, 2)
    tables = made.tables()
    assert cells(tables, "payload_ref") == {
        "input_1": (0, 0, None),
        "relu_1_1": (1, 4, (8, 1)),
        "identity_1_2": (1, 4, (8, 1)),
        "sin_1_3": (2, 0, None),
        "cos_1_4": None,
        "output_1": (1, 4, (8, 1)),
        "output_2": (2, 0, None),
        "output_3": None,
    }
    assert tables.fact("saved_ops") == ("input_1", "relu_1_1", "identity_1_2", "sin_1_3", "output_1", "output_2")
    assert tables.fact("saved_activation_memory") == 6 * 32


def test_outputs_describe_the_value_they_return_and_inherit_no_fact_of_its_call() -> None:
    made = Made()
    x = made.input("x")
    pair = made.op("chunk", x, results=2, shape=(2, 2), grad_fn="SplitBackward0", grad_node=7, grad_slot=1)
    tables = made.returns(pair + 1).tables()
    assert cell(tables, "output_1", "shape") == (2, 2)
    assert cell(tables, "output_1", "grad_fn_object_id") == 7
    assert cell(tables, "output_1", "multi_output_index") is None
    assert cell(tables, "output_1", "container_path") == ()
    assert cell(tables, "output_1", "func_duration") == 0
    assert cell(tables, "chunk_2_2", "is_output_parent") is True
    assert cell(tables, "output_1", "is_output_parent") is False


def test_the_capture_counts_what_its_tables_hold() -> None:
    tables = diamond().tables()
    counts = {
        name: tables.fact(name) for name in ("num_ops", "num_tensors", "num_layers", "num_edges", "max_in_degree")
    }
    assert counts == {"num_ops": 6, "num_tensors": 8, "num_layers": 8, "num_edges": 8, "max_in_degree": 2}
    assert tables.fact("is_branching") is True
    assert tables.fact("branching_factor") == 1.0
    assert tables.fact("func_calls_duration") == 6 * DURATION_NS / 1e9
    assert tables.fact("is_settled") is True


def test_the_structure_digest_follows_the_structure_alone() -> None:
    one, other = diamond().tables(), diamond()
    other.keep(0, 0)
    assert one.fact("graph_shape_hash") == other.tables().fact("graph_shape_hash")
    changed = Made()
    changed.returns(changed.op("relu", changed.input("x")))
    assert one.fact("graph_shape_hash") != changed.tables().fact("graph_shape_hash")


@pytest.mark.parametrize(
    ("dtype", "count", "size"),
    [
        ("float32", 3, 12),
        ("float16", 3, 6),
        ("bfloat16", 3, 6),
        ("bool", 3, 3),
        ("complex64", 2, 16),
        ("int64", 2, 16),
        ("uint8", 5, 5),
        ("float8_e4m3fn", 5, 5),
        ("qint8", 5, 5),
        ("quint4x2", 5, 3),
    ],
)
def test_a_dtype_word_gives_the_size_of_an_element(dtype: str, count: int, size: int) -> None:
    assert item_bytes(dtype, count) == size


def looped(count: int) -> Made:
    made = Made()
    x = made.input("x")
    for _ in range(count):
        x = made.op("tanh", x, site="t")
    return made.returns(x)


def seconds_to_fold(count: int) -> float:
    source = looped(count).source()

    def fold() -> None:
        tables = Projector(source).tables()
        list(tables.ops.column("label"))
        tables.ops.column("child_rows")

    return min(seconds(fold) for _ in range(3))


@pytest.mark.slow
def test_a_loop_of_many_ops_is_folded_in_linear_time() -> None:
    # Twenty times the ops; a quadratic step would take four hundred times as long, the collector's share a few.
    assert seconds_to_fold(20_000) < 100 * seconds_to_fold(1_000)


def test_arguments_that_are_equal_but_of_other_types_stay_apart() -> None:
    """Calls that were given the same share what is told of them; 1, 1.0 and True are not the same."""
    made = Made()
    x = made.input("x")
    given = (1, 1.0, True, 1, -0.0, 0.0)
    for by in given:
        x = made.op("mul", x, plain=(by,), site="s")
    told = list(made.returns(x).tables().ops.column("args_summary"))
    assert told[1:-1] == [f"Tensor(shape=(2, 4), dtype=float32), {by}" for by in given]
