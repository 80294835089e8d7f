"""Module calls, parameters and buffers of made-up forwards."""

from __future__ import annotations

from typing import Any

from projections import CaptureTables
from tests.projections.making import DURATION_NS, Made, cell


def call_cells(tables: CaptureTables, column: str) -> dict[str, Any]:
    return dict(zip(tables.module_calls.column("call_label"), tables.module_calls.column(column), strict=True))


def module_cells(tables: CaptureTables, column: str) -> dict[str, Any]:
    return dict(zip(tables.modules.column("address"), tables.modules.column(column), strict=True))


def param_cells(tables: CaptureTables, column: str) -> dict[str, Any]:
    return dict(zip(tables.params.column("address"), tables.params.column(column), strict=True))


def blocks() -> Made:
    """Two calls of ``blk`` = Linear, ReLU; then a head; ``spare`` is never called."""
    made = Made(
        {"blk": "Block", "blk.fc": "Linear", "blk.act": "ReLU", "head": "Linear", "spare": "Linear"},
        {"blk.fc.weight": (4, 4), "blk.fc.bias": (4,), "head.weight": (2, 4), "spare.weight": (9,)},
        aliases={"blk": ("body",), "head.weight": ("tied.weight",)},
    )
    x = made.input("x")
    for _ in range(2):
        with made.call("blk", x, site="blk") as outer:
            with made.call("blk.fc", x, site="fc") as call:
                call.returns(made.op("linear", x, "blk.fc.weight", "blk.fc.bias", site="l"))
            inner = call.output
            with made.call("blk.act", inner, site="act") as call:
                call.returns(made.op("relu", inner, site="r"))
            outer.returns(call.output)
        x = outer.output
    with made.call("head", x) as call:
        call.returns(made.op("linear", x, "head.weight", shape=(2, 2)))
    return made.returns(call.output)


def test_calls_stand_in_order_of_entry_and_know_who_called_them() -> None:
    tables = blocks().tables()
    assert call_cells(tables, "call_parent") == {
        "self:1": None,
        "blk:1": "self:1",
        "blk.fc:1": "blk:1",
        "blk.act:1": "blk:1",
        "blk:2": "self:1",
        "blk.fc:2": "blk:2",
        "blk.act:2": "blk:2",
        "head:1": "self:1",
    }
    assert call_cells(tables, "call_children")["self:1"] == ("blk:1", "blk:2", "head:1")
    assert call_cells(tables, "module_call_stack")["blk.act:2"] == ("blk:2",)
    assert call_cells(tables, "num_descendant_calls")["self:1"] == 7
    assert call_cells(tables, "max_descendant_depth")["self:1"] == 2


def test_a_call_holds_what_ran_in_it_and_its_boundary() -> None:
    tables = blocks().tables()
    assert call_cells(tables, "ops")["blk:2"] == ("linear_1_1:2", "relu_1_2:2")
    assert call_cells(tables, "num_ops")["self:1"] == 5  # of 7 rows: an input and an output
    assert call_cells(tables, "input_ops")["blk:2"] == ("relu_1_2:1",)
    assert call_cells(tables, "output_ops")["blk:2"] == ("relu_1_2:2",)
    assert call_cells(tables, "input_ops")["self:1"] == ("input_1",)
    assert call_cells(tables, "output_ops")["self:1"] == ("output_1",)
    edges = [call_cells(tables, f"num_{kind}_edges")["blk:2"] for kind in ("internal", "input", "output")]
    assert edges == [1, 1, 1]
    assert call_cells(tables, "forward_args_summary")["head:1"] == "Tensor(shape=(2, 4), dtype=float32)"
    assert call_cells(tables, "func_calls_duration")["blk:1"] == 2 * DURATION_NS / 1e9
    assert call_cells(tables, "internal_activation_memory")["blk:1"] == 32


def test_ops_know_the_calls_they_go_in_and_out_of() -> None:
    tables = blocks().tables()
    assert cell(tables, "relu_1_2:1", "output_of_module_calls") == ("blk.act:1", "blk:1")
    assert cell(tables, "relu_1_2:1", "output_of_modules") == ("blk.act", "blk")
    assert cell(tables, "relu_1_2:1", "input_to_module_calls") == ("blk:2", "blk.fc:2")
    assert cell(tables, "linear_1_1:1", "atomic_module_call") == "blk.fc:1"
    assert cell(tables, "linear_1_1:1", "atomic_module") == "blk.fc"
    assert cell(tables, "relu_1_2:2", "module") == "blk.act:2"


def test_modules_come_called_ones_first_and_know_all_their_calls() -> None:
    tables = blocks().tables()
    assert list(tables.modules.column("address")) == ["self", "blk", "blk.fc", "blk.act", "head", "spare"]
    assert module_cells(tables, "num_calls") == {
        "self": 1,
        "blk": 2,
        "blk.fc": 2,
        "blk.act": 2,
        "head": 1,
        "spare": 0,
    }
    assert tables.fact("uncalled_modules") == ("spare",)
    assert tables.fact("num_modules") == 5
    assert module_cells(tables, "layer_labels")["blk"] == ("linear_1_1", "relu_1_2")
    assert module_cells(tables, "input_ops")["blk"] == ("input_1", "relu_1_2:1")
    assert module_cells(tables, "call_children")["blk"] == ("blk.fc", "blk.act")
    assert module_cells(tables, "all_addresses")["blk"] == ("blk", "body")
    assert module_cells(tables, "num_params")["blk"] == 0
    assert module_cells(tables, "num_recursive_params")["self"] == 16 + 4 + 8 + 9
    assert module_cells(tables, "forward_args_summary")["blk"] is None
    assert module_cells(tables, "total_output_activation_memory")["blk"] == 64


def test_an_alias_leads_to_the_address() -> None:
    aliases = blocks().tables().aliases
    assert (aliases["body"], aliases["blk"], aliases[""], aliases["self"]) == ("blk", "blk", "self", "self")


def test_parameters_know_what_used_them() -> None:
    tables = blocks().tables()
    assert param_cells(tables, "used_by_ops")["blk.fc.bias"] == ("linear_1_1:1", "linear_1_1:2")
    assert param_cells(tables, "used_by_layers")["blk.fc.bias"] == ("linear_1_1",)
    assert param_cells(tables, "co_parent_params")["blk.fc.bias"] == ("blk.fc.weight",)
    assert param_cells(tables, "all_addresses")["head.weight"] == ("head.weight", "tied.weight")
    assert param_cells(tables, "module_row")["head.weight"] == 4
    assert tables.fact("num_params_executed") == 16 + 4 + 8
    assert tables.fact("unexecuted_param_names") == ("spare.weight",)
    assert cell(tables, "linear_1_1:1", "param_names") == ("blk.fc.weight", "blk.fc.bias")
    assert cell(tables, "linear_1_1:1", "num_params") == 20


def test_a_parameter_that_a_call_wrote_is_a_parent_from_then_on() -> None:
    made = Made(parameters={"w": (4,)})
    x = made.input("x")
    written = made.op("mul_", "w", writes=0)
    tables = made.returns(made.op("add", x, "w", writers=(None, written))).tables()
    assert cell(tables, "add_1_2", "parents") == ("input_1", "mul_1_1")
    assert cell(tables, "add_1_2", "param_names") == ("w",)


def test_what_the_model_does_not_register_has_a_name_of_its_own() -> None:
    made = Made()
    x = made.input("x")
    for name in ("first", "second"):
        made.see_module(name, "Conv2d")
    made.see_parameter("weight", (3,), module="second")
    made.see_parameter("loose", (3,))
    for name, parameter in (("first", "loose"), ("second", "weight")):
        with made.call(name, x) as call:
            call.returns(made.op("conv2d", x, parameter))
        x = call.output
    tables = made.returns(x).tables()
    assert module_cells(tables, "is_registered") == {"self": True, "~Conv2d_1": False, "~Conv2d_2": False}
    assert list(tables.module_calls.column("call_label"))[1:] == ["~Conv2d_1:1", "~Conv2d_2:1"]
    assert list(tables.params.column("address")) == ["~Conv2d_2.weight", "~2"]
    assert cell(tables, "conv2d_2_2", "modules") == ("~Conv2d_2:1",)


def test_a_call_that_returns_no_tensor_and_one_that_raises_are_calls() -> None:
    made = Made({"probe": "Probe", "bad": "Bad"})
    x = made.input("x")
    with made.call("probe", x):
        pass
    with made.call("bad", x):
        made.op("relu", x)
    made.events.pop()  # it was not left
    tables = made.raises().tables()
    assert call_cells(tables, "output_ops")["probe:1"] == ()
    assert call_cells(tables, "is_returned") == {"self:1": False, "probe:1": True, "bad:1": False}
    assert tables.fact("status") == "failed"
    assert tables.fact("is_partial") is True


def test_outputs_of_a_call_stand_in_the_order_of_its_result() -> None:
    made = Made({"m": "M"})
    x = made.input("x")
    with made.call("m", x) as call:
        first, second = made.op("sin", x), made.op("cos", x)
        call.returns(second, first, second)
    tables = made.returns(*call.outputs).tables()
    assert call_cells(tables, "output_ops")["m:1"] == ("cos_1_2", "sin_1_1")
    assert call_cells(tables, "output_paths")["m:1"] == ((("TupleIndex", 0),), (("TupleIndex", 1),))
    assert tables.keys["m"] == (1, 2)


def test_a_module_may_call_itself() -> None:
    made = Made()
    x = made.input("x")
    with made.call("self", x) as call:
        call.returns(made.op("relu", x))
    tables = made.returns(call.output).tables()
    assert list(tables.module_calls.column("call_label")) == ["self:1", "self:2"]
    assert cell(tables, "relu_1_1", "modules") == ("self:2",)
    assert module_cells(tables, "num_calls") == {"self": 2}


def test_buffers_have_a_row_whether_or_not_they_were_used() -> None:
    made = Made({"n": "N"}, buffers={"n.seen": (2,), "n.unused": (3,)})
    x = made.input("x")
    made.write("n.seen", made.op("add", x, made.read("n.seen")), "reassign")
    tables = made.returns(x).tables()
    assert list(tables.buffers.column("versions")) == [("buffer_1", "buffer_2"), ()]
    assert list(tables.buffers.column("write_versions")) == [("buffer_2",), ()]
    assert list(tables.buffers.column("shape")) == [(2,), (3,)]
    assert list(tables.buffers.column("layer_label")) == ["buffer_2", None]
    assert module_cells(tables, "buffer_layers")["n"] == ("buffer_1", "buffer_2")


def test_a_thousand_modules_one_inside_another_are_folded_without_recursion() -> None:
    depth = 1000
    addresses = [".".join(["m"] * level) for level in range(1, depth + 1)]
    made = Made(dict.fromkeys(addresses, "M"))
    x = made.input("x")
    made.start()
    calls = [made.call(address, x) for address in addresses]
    entered = [call.__enter__() for call in calls]
    out = made.op("relu", x)
    for call, manager in zip(reversed(entered), reversed(calls), strict=True):
        call.returns(out)
        manager.__exit__(None, None, None)
    tables = made.returns(out).tables()
    assert len(tables.ops.value("modules", 1)) == depth
    assert len(tables.ops.value("output_of_module_calls", 1)) == depth
    assert tables.module_calls.value("max_descendant_depth", 0) == depth
    assert tables.module_calls.value("num_ops", 1) == 1
