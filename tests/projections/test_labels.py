"""Labels and edges of made-up forwards, and what each kind of row says of itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from projections.structure.labels import in_place_name, layer_type
from tests.projections.making import Made, cell, cells, labels, op_labels


def straight_line() -> Made:
    made = Made({"0": "Linear", "1": "ReLU", "2": "Linear"}, {"0.weight": (6, 4), "0.bias": (6,), "2.weight": (3, 6)})
    value = made.input("x")
    for address, func, parameters in (
        ("0", "linear", ("0.weight", "0.bias")),
        ("1", "relu", ()),
        ("2", "linear", ("2.weight",)),
    ):
        with made.call(address, value) as call:
            call.returns(made.op(func, value, *parameters))
        value = call.output
    return made.returns(value)


def test_a_straight_line_is_numbered_by_type_and_in_all() -> None:
    tables = straight_line().tables()
    assert labels(tables) == ["input_1", "linear_1_1", "relu_1_2", "linear_2_3", "output_1"]
    assert list(tables.ops.column("modules")) == [(), ("0:1",), ("1:1",), ("2:1",), ()]
    assert list(tables.ops.column("parents")) == [(), ("input_1",), ("linear_1_1",), ("relu_1_2",), ("linear_2_3",)]
    assert list(tables.ops.column("step_index")) == [0, 1, 2, 3, 3]
    assert list(tables.ops.column("ordinal_index")) == [0, 1, 2, 3, 4]


def test_a_loop_counts_layers_in_labels_and_executions_in_steps() -> None:
    made = Made()
    x = made.input("x")
    for _ in range(3):
        x = made.op("mul", made.op("tanh", x, site="a"), site="b")
    tables = made.returns(made.op("tanh", made.op("relu", x))).tables()
    assert labels(tables) == [
        "input_1",
        *("tanh_1_1:1", "mul_1_2:1", "tanh_1_1:2", "mul_1_2:2", "tanh_1_1:3", "mul_1_2:3"),
        *("relu_1_3", "tanh_2_4", "output_1"),
    ]
    assert cell(tables, "tanh_2_4", "step_index") == 8
    assert cell(tables, "tanh_1_1:2", "recurrent_ops") == ("tanh_1_1:1", "tanh_1_1:2", "tanh_1_1:3")


def sources_and_sinks() -> Made:
    made = Made()
    x = made.input("x")
    noise, zeros = made.op("randn"), made.op("zeros")
    made.op("sum", made.op("add", made.op("mul", made.op("ones"))))
    total = made.op("sum", x)
    made.op("sin", x)
    test = made.op("gt", total)
    made.branch(test, True)
    x = made.op("mul", x)
    return made.returns(made.op("add", made.op("add", x, noise), zeros), zeros)


def test_islands_are_dropped_before_numbering_and_kept_apart() -> None:
    tables = sources_and_sinks().tables()
    assert labels(tables) == [
        *("input_1", "randn_1_1", "zeros_1_2", "sum_1_3", "sin_1_4", "gt_1_5", "mul_1_6", "add_1_7", "add_2_8"),
        *("output_1", "output_2"),
    ]
    assert tables.fact("internal_source_ops") == ("randn_1_1", "zeros_1_2")
    assert tables.fact("internal_sink_ops") == ("sin_1_4", "gt_1_5")
    assert [name.split("_")[0] for name in tables.orphans.column("label")] == ["ones", "mul", "add", "sum"]
    assert list(tables.orphans.column("is_orphan")) == [True] * 4
    assert tables.orphans.column("parents")[1] == (tables.orphans.column("label")[0],)
    assert cell(tables, "gt_1_5", "bool_value") is True
    assert cell(tables, "gt_1_5", "is_terminal_bool") is True


def test_every_result_of_a_call_is_an_op_with_its_slot() -> None:
    made = Made()
    x = made.input("x")
    pair = made.op("chunk", x, results=2)
    found = made.op("max", x, results=2, fields=("values", "indices"))
    tables = made.returns(made.op("add", pair, pair + 1), found).tables()
    assert op_labels(tables) == ["chunk_1_1", "chunk_2_2", "max_1_3", "max_2_4", "add_1_5"]
    assert cells(tables, "multi_output_index")["chunk_2_2"] == 1
    assert cells(tables, "container_path")["chunk_2_2"] == (("TupleIndex", 1),)
    assert cells(tables, "multi_output_name")["max_1_3"] == "values"
    assert cells(tables, "container_path")["max_1_3"] == (("NamedField", "values"),)
    assert cells(tables, "multi_output_index")["add_1_5"] is None
    assert cell(tables, "chunk_1_1", "func_call_id") == cell(tables, "chunk_2_2", "func_call_id")
    assert cell(tables, "max_2_4", "is_internal_sink") is True


def test_the_slots_of_a_call_in_a_loop_are_layers_of_their_own() -> None:
    made = Made()
    x = made.input("x")
    for _ in range(2):
        pair = made.op("chunk", x, site="chunk", results=2)
        x = made.op("cat", [pair, pair + 1], site="cat")
    assert op_labels(made.returns(x).tables()) == [
        *("chunk_1_1:1", "chunk_2_2:1", "cat_1_3:1", "chunk_1_1:2", "chunk_2_2:2", "cat_1_3:2"),
    ]


def test_inputs_and_outputs_say_where_they_sit() -> None:
    made = Made()
    x, y, d = made.input("x"), made.input("y"), made.input("d", "k", 0)
    z = made.op("add", x, y)
    made.returns(z, z, x, d, paths=[("a",), ("b", 0), ("b", 1), ("b", 2)])
    tables = made.tables()
    roles = [role for role in tables.ops.column("io_role") if role]
    assert roles == ["input.x", "input.y", "input.d.k.0", "output.a", "output.b.0", "output.b.1", "output.b.2"]
    assert cell(tables, "output_2", "parents") == ("add_1_1",)
    assert cell(tables, "output_3", "parents") == ("input_1",)
    assert [label for label, last in cells(tables, "is_final_output").items() if last] == ["output_4"]


def test_a_bare_tensor_is_returned_as_output() -> None:
    tables = straight_line().tables()
    assert cell(tables, "output_1", "io_role") == "output"


def test_a_parameter_that_is_returned_gives_no_output() -> None:
    made = Made(parameters={"w": (2, 4)})
    made.input("x")
    tables = made.returns(made.number("w")).tables()
    assert labels(tables) == ["input_1"]


def test_an_in_place_call_is_an_op_and_views_follow_the_last_writer() -> None:
    made = Made()
    x = made.op("__mul__", made.input("x"))
    x = made.op("add_", x, writes=0)
    x = made.op("__iadd__", x, writes=0)
    y = made.op("relu_", x, writes=0)
    x = made.op("__setitem__", y, writes=0)
    view = made.op("__getitem__", x, view_of=x)
    written = made.op("mul_", view, writes=0)
    tables = made.returns(made.op("__add__", x, x, writers=(written, written))).tables()
    assert op_labels(tables) == [
        *("mul_1_1", "add_1_2", "iadd_1_3", "relu_1_4", "setitem_1_5", "getitem_1_6", "mul_2_7", "add_2_8"),
    ]
    assert cell(tables, "add_2_8", "parents") == ("mul_2_7", "mul_2_7")
    assert cell(tables, "mul_2_7", "children") == ("add_2_8",)
    in_place = [label for label, found in cells(tables, "is_inplace").items() if found]
    assert in_place == ["add_1_2", "iadd_1_3", "relu_1_4", "setitem_1_5", "mul_2_7"]


def batch_norm(times: int) -> Made:
    made = Made(
        {"bn": "BatchNorm1d"},
        {"bn.weight": (2,)},
        {"bn.num_batches_tracked": (), "bn.running_mean": (2,), "bn.running_var": (2,)},
    )
    x = made.input("x")
    for func in ("linear", "relu", "mul"):
        x = made.op(func, x)
    tracked: int | None = None
    mean = variance = None
    for _ in range(times):
        with made.call("bn", x, site="bn") as call:
            tracked = made.read("bn.num_batches_tracked") if tracked is None else tracked
            tracked = made.write("bn.num_batches_tracked", made.op("add_", tracked, site="count", writes=0))
            mean = made.read("bn.running_mean") if mean is None else mean
            variance = made.read("bn.running_var") if variance is None else variance
            norm = made.op("batch_norm", x, mean, variance, "bn.weight", site="norm")
            mean = made.write("bn.running_mean", norm, "fused")
            variance = made.write("bn.running_var", norm, "fused")
            call.returns(norm)
        x = call.output
    return made.returns(x)


def test_a_buffer_has_an_op_for_each_version() -> None:
    tables = batch_norm(1).tables()
    columns = ("parents", "address", "buffer_write_kind", "func_name")
    rows = {label: [cell(tables, label, name) for name in columns] for label in labels(tables)[4:11]}
    assert rows == {
        "buffer_1": [(), "bn.num_batches_tracked", None, "none"],
        "add_1_4": [("buffer_1",), None, None, "add_"],
        "buffer_2": [("add_1_4",), "bn.num_batches_tracked", "inplace", "identity"],
        "buffer_3": [(), "bn.running_mean", None, "none"],
        "buffer_4": [(), "bn.running_var", None, "none"],
        "batchnorm_1_5": [("mul_1_3", "buffer_3", "buffer_4"), None, None, "batch_norm"],
        "buffer_5": [("batchnorm_1_5",), "bn.running_mean", "fused", "none"],
    }
    assert cell(tables, "buffer_6", "modules") == ("bn:1",)
    assert tables.keys["bn.running_mean:2"] == (labels(tables).index("buffer_5"),)
    assert tables.buffers.value("num_overwrites", 0) == 1
    assert tables.buffers.value("layer_label", 1) == "buffer_5"
    assert tables.buffers.value("buffer_source", 1) == "batchnorm_1_5"


def test_buffers_in_a_loop_are_grouped_by_address_and_by_the_layer_that_writes() -> None:
    tables = batch_norm(2).tables()
    tracked = [label for label, address in cells(tables, "address").items() if address == "bn.num_batches_tracked"]
    assert tracked == ["buffer_1", "buffer_2:1", "buffer_2:2"]


def test_a_buffer_that_only_an_island_reads_goes_with_it_and_a_written_one_keeps_its_writer() -> None:
    made = Made(buffers={"b": (2,), "c": (2,)})
    x = made.input("x")
    made.op("mul", made.read("b"))
    made.write("c", made.op("add", made.read("c")), "reassign")
    tables = made.returns(made.op("relu", x)).tables()
    assert labels(tables) == ["input_1", "buffer_1", "add_1_1", "buffer_2", "relu_1_2", "output_1"]
    assert len(tables.orphans) == 2


def test_a_module_that_hands_its_input_through_gets_an_identity_op_that_nested_ones_share() -> None:
    made = Made({"same": "Identity", "wrap": "Sequential", "wrap.0": "Identity"})
    x = made.input("x")
    with made.call("same", x, site=1) as call:
        call.returns(x)
    made.op("relu", x)
    with made.call("wrap", x) as outer:
        with made.call("wrap.0", x) as inner:
            inner.returns(x)
        outer.returns(x)
    with made.call("same", x, site=1) as call:
        call.returns(x)
    tables = made.returns(x).tables()
    assert op_labels(tables) == ["identity_1_1:1", "relu_1_2", "identity_2_3", "identity_1_1:2"]
    assert cell(tables, "identity_1_1:1", "parents") == ("input_1",)
    assert cell(tables, "relu_1_2", "parents") == ("identity_1_1:1",)
    assert cell(tables, "identity_2_3", "modules") == ("wrap:1", "wrap.0:1")
    assert cell(tables, "identity_2_3", "output_of_module_calls") == ("wrap.0:1", "wrap:1")
    assert cell(tables, "identity_1_1:2", "parents") == ("identity_2_3",)
    assert cell(tables, "output_1", "parents") == ("identity_1_1:2",)
    assert not any(cells(tables, "is_inplace").values())


def test_the_result_of_an_unwatched_call_is_an_opaque_op_named_after_its_node() -> None:
    made = Made()
    x = made.input("x")
    hidden = made.constant("GeluBackward0")
    plain = made.constant()
    tables = made.returns(made.op("add", made.op("mul", x, hidden), plain)).tables()
    assert op_labels(tables) == ["gelu_1_1", "mul_1_2", "add_1_3"]
    assert cell(tables, "gelu_1_1", "is_opaque") is True
    assert cell(tables, "mul_1_2", "parents") == ("input_1", "gelu_1_1")
    assert cell(tables, "add_1_3", "parents") == ("mul_1_2",)


@pytest.mark.parametrize(
    ("func_name", "kind"),
    [
        ("linear", "linear"),
        ("batch_norm", "batchnorm"),
        ("max_pool2d", "maxpool2d"),
        ("scaled_dot_product_attention", "scaleddotproductattention"),
        ("relu_", "relu"),
        ("T", "t"),
        ("mT", "mt"),
        ("data", "detach"),
        ("__getitem__", "getitem"),
        ("__radd__", "add"),
        ("__rmul__", "mul"),
        ("__rsub__", "rsub"),
        ("__iadd__", "iadd"),
        ("__truediv__", "truediv"),
        ("__invert__", "invert"),
        ("rand", "rand"),
    ],
)
def test_a_function_name_gives_a_layer_type(func_name: str, kind: str) -> None:
    assert layer_type(func_name) == kind


@pytest.mark.parametrize(
    ("func_name", "writes"),
    [
        ("relu_", True),
        ("__iadd__", True),
        ("__setitem__", True),
        ("__invert__", False),
        ("__add__", False),
        ("t", False),
    ],
)
def test_a_function_name_tells_whether_it_writes(func_name: str, writes: bool) -> None:
    assert in_place_name(func_name) is writes


def test_an_op_answers_to_every_key_of_its_kind() -> None:
    made = Made({"blk": "Sequential", "blk.0": "Linear", "blk.1": "ReLU"}, {"blk.0.weight": (4, 4)})
    x = made.input("x")
    with made.call("blk", x) as outer:
        with made.call("blk.0", x) as inner:
            inner.returns(made.op("linear", x, "blk.0.weight"))
        with made.call("blk.1", inner.output) as last:
            last.returns(made.op("relu", inner.output))
        outer.returns(last.output)
    tables = made.returns(outer.output).tables()
    assert cell(tables, "relu_1_2", "lookup_keys") == (
        *(2, -2, "relu_1_2", "relu_1_2:1", "relu_1", "relu_1:1"),
        *("blk.1:1", "blk.1", "blk:1", "blk", "relu_3_raw"),
    )
    assert tables.keys["blk"] == (2,)
    assert "self:1" not in tables.keys
    assert tables.keys["input.x"] == (0,)


def test_a_bare_name_of_a_layer_with_passes_names_all_of_them() -> None:
    made = Made()
    x = made.input("x")
    for _ in range(2):
        x = made.op("tanh", x, site="a")
    keys = made.returns(x).tables().keys
    assert keys["tanh_1_1"] == keys["tanh_1"] == (1, 2)
    assert keys["tanh_1_1:2"] == keys["tanh_1:2"] == (2,)


def test_a_module_called_twice_names_its_outputs_by_call_only() -> None:
    made = Made({"fc": "Linear"})
    x = made.input("x")
    for _ in range(2):
        with made.call("fc", x, site="a") as call:
            call.returns(made.op("linear", x, site="b"))
        x = call.output
    keys = made.returns(x).tables().keys
    assert keys["fc:1"] == (1,)
    assert keys["fc:2"] == (2,)
    assert "fc" not in keys


def fed(made: Made) -> Made:
    x = made.input("x")
    made.op("relu", x)
    return made


@pytest.mark.parametrize(
    ("end", "status", "expected"),
    [
        (lambda made: made, "unfinished", ["input_1", "relu_1_1"]),
        (Made.raises, "failed", ["input_1", "relu_1_1"]),
        (lambda made: made.halts(1), "halted", ["input_1", "relu_1_1", "output_1"]),
        (lambda made: made.returns(1), "complete", ["input_1", "relu_1_1", "output_1"]),
        (lambda made: made.returns(), "complete", ["input_1", "relu_1_1"]),
    ],
    ids=["killed", "raised", "halted", "returned", "returned nothing"],
)
def test_a_forward_has_outputs_only_where_it_gave_some(
    end: Callable[[Made], Made], status: str, expected: list[str]
) -> None:
    tables = end(fed(Made())).tables()
    assert tables.fact("status") == status
    assert labels(tables) == expected
