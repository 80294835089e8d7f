"""Every promise is kept by sound tables and notices the breach that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from journal.errors import JournalCorrupt
from journal.events import CheckpointEntered, CheckpointLeft, CheckpointUnpacked
from projections import CaptureTables
from projections.promises import invariants
from tests.projections.making import Made
from tests.projections.making_backward import Passes


def sound() -> CaptureTables:
    return everything().tables()


def everything() -> Passes:
    """Something of everything: loops, slots, buffers, aliases, an island, a branch, a source, a sink."""
    made = Made(
        modules={"blk": "Block", "blk.act": "ReLU", "off": "Linear"},
        parameters={"w": (4,), "blk.v": (3, 2), "off.u": (2,)},
        buffers={"b": (2,), "c": (2,)},
        aliases={"blk": ("also",), "w": ("tied",)},
    )
    x, y = made.input("x"), made.input("d", "k", 0)
    made.op("mul", made.op("ones", site="i"), site="j")
    for _ in range(2):
        with made.call("blk", x, site="blk") as outer:
            with made.call("blk.act", x, site="act") as inner:
                inner.returns(made.op("relu", x, "w", site="r", **at_node(3)))
            outer.returns(made.op("add", inner.output, made.read("b")))
        x = outer.output
    first = made.op(
        "max", x, results=2, fields=("values", "indices"), plain=(1,), kwargs=("keepdim", False), **at_node(4)
    )
    made.add(CheckpointEntered(token=0), CheckpointLeft(token=0, num_packed=2))
    flag = made.op("gt", first + 1, y, shape=(), dtype="bool")
    made.branch(flag, result=True)
    made.op("sin", x)
    made.write("b", made.op("mul", x), "reassign")
    return differentiated(made.returns(made.op("add", first, made.op("rand"), **at_node(5)), x))


def at_node(number: int, slot: int = 0) -> dict[str, Any]:
    """Facts of a result that stands at an output of an autograd node."""
    return {"grad_fn": "SomeBackward0", "grad_node": number, "grad_slot": slot, "requires_grad": True}


def differentiated(made: Made) -> Passes:
    """Passes with something of everything: two orders, one in another, an error, gradients of ops and parameters."""
    passes = Passes(made)
    weight, value = passes.node("AccumulateGrad", leaf=-1), passes.node("AccumulateGrad", leaf=-2)
    between = passes.node("TBackward0", weight, sequence=9)
    relu = passes.node("ReluBackward0", between, value, number=3)
    most = passes.node("MaxBackward0", relu, (relu, 0), number=4)
    top = passes.node("AddBackward0", (most, 1), number=5)
    loss = passes.node("SumBackward0", top, passes.node("MulBackward0", most))
    passes.open(loss, create_graph=True, policy="True", has_census=True)
    passes.walk(loss)
    passes.dispatch("aten.mm.default", None, (2, 3), (3, 4))
    passes.dispatch("aten.mm.default", None, (2, 3), (3, 4), is_elsewhere=True)
    made_node = passes.node("MulBackward0", top, passes.node("NegBackward0", relu, sequence=21), sequence=20)
    passes.fire(loss, made=(20, 20))
    kept = passes.observe(top)
    passes.observe(top, 1, side="input")
    passes.dispatch("aten.mm.default", top, (2, 3), (3, 4))
    passes.dispatch("aten.mul.Tensor", top, (2, 4))
    passes.fire(top, made=(20, 22))
    passes.observe(most, 2, slot=1)
    passes.add(CheckpointUnpacked(token=0, pass_number=0, node=4))
    passes.fire(most)
    passes.observe(relu, 3)
    passes.open(between)
    passes.observe(weight)
    passes.fire(between, weight)
    passes.close()
    passes.fire(relu)
    passes.observe(weight)
    passes.fire(weight)
    unknown = passes.node("MulBackward0", most, sequence=40)
    passes.make(made_node, made_node.behind[1], unknown)  # type: ignore[arg-type]  # nodes
    passes.keep(kept, 4)
    passes.close()
    again = passes.node("SumBackward0", made_node)
    passes.open(again)
    passes.walk(again)
    passes.fire(again, made_node)
    passes.observe(top, 5)
    passes.fire(top)
    passes.close("engine_error", exception="builtins.RuntimeError", message="no")
    passes.open(trigger="implicit", task=7)
    passes.fire(top, timed=False)
    return passes


GUARDED: Final[dict[str, str]] = {
    "edges_are_told_by_label_too": "ops.input_ops ops.children",
    "uses_follow_the_edges": "ops.parent_arg_positions ops.edge_uses",
    "degrees_are_counted": "ops.num_inputs ops.num_parents ops.num_children ops.has_parents ops.has_children",
    "neighbours_of_neighbours_are_found": "ops.siblings ops.co_parents ops.has_siblings ops.has_co_parents",
    "descent_follows_the_edges": "ops.has_input_ancestor ops.has_internal_source_ancestor ops.has_output_descendant",
    "ancestors_are_those_of_the_parents": "ops.root_ancestors ops.input_ancestors ops.internal_source_ancestors "
    "ops.output_descendants",
    "distances_follow_the_edges": "ops.min_distance_from_input ops.max_distance_from_input ops.min_distance_to_output "
    "ops.max_distance_to_output",
    "inputs_are_described_as_the_parents": "ops.input_shapes ops.input_dtypes ops.input_memory",
    "every_op_has_one_role": "ops.is_compute_op ops.is_input",
    "sources_and_sinks_have_no_edges": "ops.is_internal_source ops.is_internal_sink",
    "outputs_end_the_graph": "ops.is_final_output ops.is_output_parent",
    "only_inputs_and_outputs_have_a_place": "ops.io_role",
    "orphans_are_apart": "ops.is_orphan orphans.is_orphan",
    "labels_spell_their_numbers": "ops.layer_label ops.label_short ops.type_index ops.layer_type "
    "layers.layer_label_short layers.type_index",
    "positions_are_dense": "ops.ordinal_index layers.ordinal_index module_calls.ordinal_index",
    "steps_never_fall": "ops.step_index",
    "passes_are_dense": "ops.pass_index ops.num_passes ops.layer_row",
    "passes_know_each_other": "ops.recurrent_ops layers.op_labels layers.num_passes",
    "layers_are_one_kind": "ops.func_name",
    "layers_show_their_first_pass": " ".join(f"layers.{name}" for name in invariants.FIRST_PASS),
    "layers_mark_what_some_pass_is": "layers.has_saved_activation layers.has_saved_payload "
    "layers.is_internal_source layers.uses_params layers.is_internal_sink layers.has_input_ancestor "
    "layers.is_atomic_module layers.is_terminal_bool",
    "layer_edges_join_those_of_the_passes": "layers.parents layers.children layers.num_parents layers.has_children",
    "layer_sums_are_over_the_passes": "layers.total_activation_memory layers.total_func_duration "
    "layers.total_flops_forward layers.total_flops_backward layers.total_macs_forward",
    "results_of_a_call_stand_together": "ops.func_call_id ops.is_opaque ops.in_multi_output ops.multi_output_index",
    "arguments_are_counted": "ops.num_args_total ops.num_pos_args",
    "values_have_their_size": "ops.activation_memory",
    "truths_are_of_one_bool": "ops.is_scalar_bool ops.is_terminal_bool ops.bool_value",
    "ops_know_their_calls": "ops.call_row ops.modules",
    "boundaries_agree": "ops.input_to_module_calls ops.output_of_module_calls",
    "calls_are_counted_by_module": "modules.num_calls modules.call_labels modules.call_rows module_calls.call_index "
    "module_calls.address module_calls.call_label",
    "calls_know_their_place": "module_calls.call_parent module_calls.call_children module_calls.module_call_stack "
    "module_calls.call_depth",
    "descendants_of_calls_are_counted": "module_calls.num_descendant_calls module_calls.max_descendant_depth",
    "calls_name_what_is_inside": "module_calls.ops module_calls.num_ops module_calls.num_layers module_calls.input_ops "
    "module_calls.output_ops",
    "edges_of_calls_are_counted": "module_calls.num_internal_edges module_calls.num_input_edges "
    "module_calls.num_output_edges modules.num_edges",
    "modules_hold_what_their_calls_hold": "modules.layer_labels modules.num_layers modules.input_ops "
    "modules.output_ops modules.layer_rows modules.op_rows",
    "addresses_nest": "modules.has_multiple_addresses modules.address_children modules.address_depth modules.name",
    "places_in_modules_are_told": "ops.module ops.module_call_depth ops.in_submodule",
    "marks_of_boundaries_follow": "ops.is_module_input ops.is_module_output ops.output_of_modules "
    "ops.is_atomic_module ops.atomic_module",
    "calls_show_their_module": " ".join(f"module_calls.{name}" for name in invariants.CALL_OF_MODULE),
    "memory_of_calls_adds_up": "module_calls.output_activation_memory module_calls.internal_activation_memory",
    "parameters_and_ops_know_each_other": "ops.uses_params ops.param_names params.used_by_ops params.used_by_layers "
    "params.num_uses_by_ops params.num_uses_by_layers params.num_calls",
    "parameters_are_summed_where_they_are_held": "ops.num_params ops.num_param_tensors_trainable ops.param_memory "
    "layers.num_params_frozen layers.total_param_memory modules.num_params modules.num_recursive_params "
    "modules.internal_param_memory",
    "parameters_have_their_size": "params.num_params params.has_multiple_addresses",
    "modules_hold_their_parameters": "modules.recursive_param_addresses modules.param_rows",
    "buffer_versions_are_dense": "ops.buffer_pass",
    "buffers_and_ops_know_each_other": "ops.address ops.buffer_row ops.is_buffer buffers.versions buffers.num_versions "
    "buffers.write_versions buffers.num_overwrites buffers.is_overwritten",
    "buffers_show_their_newest_version": "buffers.label buffers.layer_label buffers.buffer_pass buffers.shape",
    "buffers_read_and_written_are_neighbours": "ops.buffer_source_ops ops.buffer_sink_ops",
    "writers_of_buffers_are_their_parents": "ops.buffer_source ops.buffer_source_func_name",
    "counts_add_up": "capture.num_ops capture.num_tensors capture.num_layers capture.num_compute_layers "
    "capture.num_edges capture.num_layer_edges capture.num_compute_edges capture.num_buffer_edges capture.num_modules "
    "capture.num_module_calls",
    "degrees_of_the_graph_are_told": "capture.is_recurrent capture.max_layer_op_count capture.is_branching "
    "capture.branching_factor capture.max_in_degree capture.max_out_degree capture.is_dynamic_graph",
    "lists_hold_the_marked": "capture.input_layers capture.output_ops capture.compute_ops capture.compute_layers "
    "capture.recurrent_layers capture.internal_source_ops capture.internal_sink_ops capture.buffer_read_ops "
    "capture.buffer_write_ops capture.uncalled_modules capture.unexecuted_param_names capture.saved_rows",
    "parameters_of_the_model_add_up": "capture.num_params capture.num_params_trainable capture.num_params_frozen "
    "capture.num_param_tensors capture.num_params_executed capture.num_params_unexecuted capture.total_param_memory",
    "saved_payloads_are_of_activations_or_made_of_them": "ops.has_saved_activation ops.has_saved_payload",
    "memory_adds_up": "capture.total_activation_memory capture.saved_activation_memory",
    "work_adds_up": "ops.flops_total capture.total_flops_forward capture.total_flops_backward "
    "capture.total_macs_forward",
    "work_of_calls_adds_up": "module_calls.flops_forward module_calls.flops_backward module_calls.macs_forward "
    "modules.total_flops_forward modules.total_flops_backward modules.total_macs_forward",
    "memory_for_the_backward_adds_up": "module_calls.saved_for_backward module_calls.saved_params_for_backward "
    "module_calls.saved_inputs_for_backward modules.total_saved_for_backward modules.total_saved_params_for_backward "
    "modules.total_saved_inputs_for_backward layers.total_saved_for_backward layers.total_saved_params_for_backward "
    "layers.total_saved_inputs_for_backward capture.total_saved_for_backward capture.total_saved_params_for_backward "
    "capture.total_saved_inputs_for_backward",
    "work_is_told_by_type": "capture.total_flops_forward capture.compute_coverage",
    "times_add_up": "ops.func_duration capture.func_calls_duration module_calls.func_calls_duration",
    "times_of_the_capture_fit": "capture.overhead_duration capture.setup_duration",
    "the_ending_is_told_once": "capture.status capture.halted capture.is_partial capture.halt_reason",
    "backward_passes_are_dense": "backward_passes.pass_index backward_passes.outer_context",
    "backward_passes_end_as_they_were_closed": "backward_passes.status backward_passes.implicit",
    "grad_fn_labels_spell_their_numbers": "grad_fns.type grad_fns.type_index grad_fns.ordinal_index "
    "grad_fns.step_index",
    "grad_fn_edges_mirror_each_other": "grad_fns.parents grad_fns.children grad_fns.has_parents grad_fns.has_children",
    "grad_fns_know_who_is_beside_them": "grad_fns.siblings grad_fns.co_parents grad_fns.has_siblings "
    "grad_fns.has_co_parents",
    "firings_are_counted_by_node": "grad_fn_calls.call_index grad_fn_calls.label grad_fn_calls.call_label "
    "grad_fns.num_calls grad_fns.call_labels",
    "firings_stand_in_their_pass": "grad_fn_calls.backward_pass_index grad_fn_calls.ordinal_in_pass "
    "backward_passes.num_grad_fn_calls backward_passes.grad_fn_calls",
    "orders_follow_the_creators": "grad_fns.order grad_fns.differentiates grad_fns.creator_object_id",
    "creators_fired_in_the_pass_of_origin": "grad_fns.origin_backward_pass",
    "orders_of_passes_are_those_of_their_firings": "backward_passes.order backward_passes.origin_backward_pass "
    "backward_passes.order_attribution_coverage",
    "grad_fns_and_ops_know_each_other": "ops.grad_fn_label grad_fns.op_label grad_fns.has_op grad_fns.param_address",
    "membership_is_told_by_its_source": "grad_fns.modules grad_fns.module_address grad_fns.module_membership_source",
    "gradients_and_their_owners_know_each_other": "gradients.owner gradients.ordinal ops.num_saved_grads "
    "ops.gradient_rows params.num_increments params.has_grad params.gradient_rows",
    "gradients_are_described_at_their_owners": "gradients.is_saved gradients.memory ops.grad_shape ops.grad_dtype "
    "params.grad_shape params.gradient_memory",
    "gradients_stand_in_the_pass_of_their_firing": "gradients.backward_pass_index gradients.grad_fn_label",
    "kept_gradients_of_firings_are_described": "grad_fn_calls.is_saved grad_fn_calls.grad_inputs "
    "grad_fns.has_saved_call",
    "memory_of_gradients_adds_up": "layers.total_gradient_memory layers.has_grad module_calls.output_gradient_memory "
    "module_calls.internal_gradient_memory",
    "times_of_grad_fns_are_those_of_their_firings": "grad_fns.backward_duration grad_fns.total_backward_duration",
    "dispatched_ops_know_where_they_ran": "dispatched_ops.grad_fn_label dispatched_ops.op_label "
    "dispatched_ops.call_index dispatched_ops.backward_pass_index dispatched_ops.ordinal_in_pass",
    "dispatched_ops_are_each_in_one_place": "backward_passes.dispatched_rows backward_passes.other_trace_rows",
    "executed_flops_add_up": "backward_passes.executed_flops backward_passes.unattributed_flops grad_fn_calls.flops "
    "dispatched_ops.flops capture.executed_flops",
    "recompute_is_part_of_what_was_executed": "grad_fn_calls.recompute_flops backward_passes.recompute_flops "
    "capture.recompute_flops",
    "backward_counts_add_up": "capture.num_backward_passes capture.has_backward_pass capture.num_grad_fns "
    "capture.num_grad_fns_with_op capture.num_grad_fns_without_op capture.num_grad_fn_calls "
    "capture.num_backward_edges capture.saved_grad_rows capture.saved_grad_ops",
    "checkpoints_are_witnessed_by_firings": "capture.checkpoint_invocation_witness",
}
"""Columns of which a promise finds another cell than is right."""

SPOILT: Final[dict[str, tuple[str, str, int, Any]]] = {
    "parents_and_children_mirror_each_other": ("ops", "child_rows", 0, ()),
    "parents_come_first": ("ops", "parent_rows", 2, (3,)),
    "labels_are_unique": ("ops", "raw_label", 1, "input_1_raw"),
    "keys_lead_back": ("ops", "lookup_keys", 0, (0, "nothing")),
    "every_op_is_in_a_layer": ("layers", "op_rows", 0, ()),
    "layers_stand_by_first_pass": ("layers", "op_rows", 0, (17,)),
    "modules_nest": ("module_calls", "op_rows", 1, ()),
    "every_output_has_a_parent": ("ops", "parent_rows", -1, ()),
    "inputs_have_no_parents": ("ops", "parents", 0, ("sin_1_7",)),
    "grad_fns_are_one_for_each_node": ("grad_fns", "grad_fn_object_id", 0, 5),
    "outputs_have_no_gradient_of_their_own": ("ops", "num_saved_grads", -1, 1),
}
"""A cell that a promise finds to be wrong, where another value of the same kind is not enough."""

NEVER_ALONE: Final = frozenset(SPOILT) - {"labels_are_unique", "keys_lead_back"} | {
    "every_op_has_one_role",  # roles, sources and sizes are told
    "sources_and_sinks_have_no_edges",  # in lists
    "values_have_their_size",  # and summed
    "saved_payloads_are_of_activations_or_made_of_them",  # likewise, and listed
    "work_is_told_by_type",
}
"""Promises about what others are worked out from: who breaks them breaks others too."""


def change(tables: CaptureTables, table: str, column: str, row: int, value: Any) -> None:
    """Put another value into one cell."""
    made = list(tables.table(table).column(column))
    made[row] = value
    tables.table(table).made[column] = made


def other(value: Any) -> Any:
    """Something of the same kind."""
    match value:
        case None:
            return 7
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case dict():
            return {name: other(inner) for name, inner in value.items()} if value else {"args": {0: "nobody"}}
        case _:
            return (*value, *value, "x") if not value or isinstance(value[0], str) else (*value, value[0])


def found_by(tables: CaptureTables) -> set[str]:
    try:
        return {finding.promise for finding in invariants.check(tables)}
    except JournalCorrupt:  # a kind of cell of which others cannot even be made
        return set()


def breaches(promise: str, columns: str) -> Iterator[set[str]]:
    """What is found for each cell of some columns that is made another."""
    for place in columns.split():
        table, column = place.split(".")
        for row in range(len(sound().table(table))):
            tables = sound()
            change(tables, table, column, row, other(tables.table(table).value(column, row)))
            yield found_by(tables)


def test_sound_tables_keep_every_promise() -> None:
    tables = sound()
    assert invariants.check(tables) == []
    guarded = {place.partition(".")[0] for columns in GUARDED.values() for place in columns.split()}
    assert all(len(tables.table(name)) for name in guarded)


@pytest.mark.parametrize("promise", GUARDED)
def test_a_promise_finds_another_cell_in_each_column_that_it_guards(promise: str) -> None:
    for column in GUARDED[promise].split():
        assert any(promise in found for found in breaches(promise, column)), column


WITNESS = "checkpoint_invocation_witness"

TOKEN: Final = {
    "pack_count": 2,
    "unpack_evidence_count": 1,
    "site_key_candidates": ("s1||max|0|1",),
    "window_evidence": ((1, "max_back_1_4", 1),),
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_count": 2},
        {"verdict": "evidence_incomplete"},
        {"degrade_flags": ("other",)},
        {"tokens": {0: TOKEN}},
        {"tokens": {1: TOKEN | {"unpack_evidence_count": 0}}},
        {"tokens": {1: TOKEN | {"window_evidence": ((2, "max_back_1_4", 1),)}}},
        {"tokens": {1: TOKEN | {"site_key_candidates": ("s1||min|0|1",)}}},
    ],
    ids=str,
)
def test_every_part_of_what_was_witnessed_of_checkpoints_is_guarded(wrong: dict[str, Any]) -> None:
    tables = sound()
    told = tables.fact(WITNESS)
    assert told["tokens"] == {1: TOKEN}
    change(tables, "capture", WITNESS, 0, told | wrong)
    assert found_by(tables) == {"checkpoints_are_witnessed_by_firings"}


def test_that_nothing_was_witnessed_after_a_backward_is_found() -> None:
    tables = sound()
    change(tables, "capture", WITNESS, 0, None)
    assert found_by(tables) == {"checkpoints_are_witnessed_by_firings"}


@pytest.mark.parametrize("promise", SPOILT)
def test_a_promise_that_is_broken_is_found(promise: str) -> None:
    tables = sound()
    change(tables, *SPOILT[promise])
    assert promise in found_by(tables)


@pytest.mark.parametrize("promise", [name for name in {**GUARDED, **SPOILT} if name not in NEVER_ALONE])
def test_there_is_a_breach_that_one_promise_alone_finds(promise: str) -> None:
    if promise in SPOILT:
        tables = sound()
        change(tables, *SPOILT[promise])
        assert found_by(tables) == {promise}
    else:
        assert any(found == {promise} for found in breaches(promise, GUARDED[promise]))


def test_every_promise_has_a_breach_here() -> None:
    names = [invariants.promise_name(promise) for promise in invariants.PROMISES]
    assert len(set(names)) == len(names)
    assert set(names) == GUARDED.keys() | SPOILT.keys()
    assert GUARDED.keys().isdisjoint(SPOILT)


@pytest.mark.parametrize("promise", invariants.PROMISES, ids=invariants.promise_name)
def test_a_promise_says_what_holds(promise: Callable[..., Any]) -> None:
    assert (promise.__doc__ or "").strip().endswith(".")


def test_findings_say_which_record_and_what_it_should_be() -> None:
    tables = sound()
    change(tables, "ops", "input_memory", 2, 5)
    assert invariants.check(tables) == [
        invariants.Finding("inputs_are_described_as_the_parents", "relu_1_1:1", "its input_memory is 5 and not 32")
    ]


def test_several_values_that_a_module_hands_through_are_no_results_of_one_call() -> None:
    made = Made(modules={"both": "Identity"})
    x, y = made.input("x"), made.input("y")
    with made.call("both", x, y) as call:
        call.returns(x, y)
    assert invariants.check(made.returns(x, y).tables()) == []


def test_the_truth_of_a_tensor_without_a_row_makes_a_graph_dynamic() -> None:
    made = Made()
    x = made.input("x")
    made.branch(made.constant(), result=True)
    tables = made.returns(made.op("relu", x)).tables()
    assert tables.fact("is_dynamic_graph")
    assert invariants.check(tables) == []


def test_records_that_cannot_be_compared_break_the_promise_that_compares_them() -> None:
    tables = sound()
    tables.ops.made["num_parents"] = [0]
    (finding,) = [found for found in invariants.check(tables) if found.promise == "degrees_are_counted"]
    assert finding.problem.startswith("they cannot be compared: ")
