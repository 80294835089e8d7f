"""Every field that a record is to have is served, or stands here with the reason why it comes later."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlens as tl
from torchlens.reading import tabular
from torchlens.reading.autograd import OpAutograd, TraceAutograd
from torchlens.reading.facade import RECORDS
from torchlens.reading.records.layers import PassField
from torchlens.reading.records.modules import CallField

FIELDS: dict[str, str] = {
    "ops": """
        label layer_label label_short layer_label_short raw_label layer_type type_index step_index ordinal_index
        pass_index num_passes layer trace lookup_keys site_key
        func_name func_qualname func func_call_id is_inplace arg_names num_args_total num_pos_args num_kwargs
        non_tensor_pos_args non_tensor_kwargs func_config args_summary kwargs_summary saved_args saved_kwargs
        has_saved_args code_context var_names arg_expressions
        out stats has_saved_activation has_saved_payload has_stored_stats shape dtype device_ref activation_memory
        transformed_out
        transformed_out_shape transformed_out_dtype detach_saved_activations has_out_variations
        out_versions_by_child input_ops num_inputs
        input_shapes input_dtypes input_memory input_activations
        in_multi_output multi_output_index multi_output_name container_path
        parents children num_parents num_children has_parents has_children parent_arg_positions edge_uses siblings
        co_parents root_ancestors input_ancestors internal_source_ancestors has_input_ancestor
        has_internal_source_ancestor output_descendants has_output_descendant min_distance_from_input
        max_distance_from_input min_distance_to_output max_distance_to_output
        is_input is_output is_final_output is_output_parent is_compute_op io_role input_was_parameter
        is_internal_source is_internal_sink is_orphan
        is_buffer address buffer_pass buffer_write_kind buffer_source buffer_source_func_name buffer_value_changed
        buffer_source_ops buffer_sink_ops
        module modules in_submodule module_call_depth is_module_input input_to_module_calls is_module_output
        output_of_module_calls output_of_modules is_atomic_module atomic_module atomic_module_call
        uses_params params param_names param_shapes param_dtypes num_params num_params_trainable num_params_frozen
        num_param_tensors num_param_tensors_trainable num_param_tensors_frozen param_memory
        func_duration flops_forward macs_forward flops_backward flops_total compute_record bytes_read bytes_written
        arithmetic_intensity autograd_memory num_autograd_tensors
        saved_for_backward saved_params_for_backward saved_inputs_for_backward saved_for_backward_reason
        is_scalar_bool bool_value is_terminal_bool is_terminal_conditional_bool conditional_context_kind
        conditional_wrapper_kind terminal_bool_for conditional_branch_stack conditional_branch_depth in_conditionals
        conditional_arm_children
        recurrent_ops func_rng_states func_autocast_state
        grad has_grad save_grads grad_shape grad_dtype gradient_memory autograd
        grad_fn_class_name has_co_parents has_siblings is_opaque layout num_saved_grads opaque_reason
        requires_grad tensor_class user_place
    """,
    "layers": """
        layer_label layer_label_short layer_type type_index ordinal_index num_passes ops op_labels
        func_name func func_qualname is_inplace func_config arg_names shape dtype device_ref activation_memory
        shape_summary in_multi_output multi_output_index multi_output_name parents children parents_per_pass
        children_per_pass parent_ops_per_layer child_ops_per_layer edges_vary_across_ops siblings co_parents num_parents
        num_children has_parents has_children has_siblings has_co_parents is_input is_output is_final_output is_buffer
        is_compute_layer is_internal_source is_internal_sink is_orphan io_role input_was_parameter address
        has_input_ancestor module modules output_of_modules is_atomic_module module_call_depth uses_params params
        param_names param_shapes num_params num_params_trainable num_params_frozen total_param_memory
        flops_forward flops_backward macs_forward total_flops_forward total_flops_backward total_macs_forward
        total_func_duration total_activation_memory total_gradient_memory total_autograd_memory is_scalar_bool
        total_saved_for_backward total_saved_params_for_backward total_saved_inputs_for_backward
        is_terminal_bool in_conditionals conditional_branch_stack_ops save_grads
        out grad has_grad has_saved_activation label pass_index lookup_keys site_key func_duration code_context
        saved_args saved_kwargs func_rng_states input_ancestors output_descendants is_module_input
        autograd_memory bool_value buffer_pass buffer_source buffer_write_kind grad_fn_class_name is_opaque
        num_args_total num_autograd_tensors num_kwargs num_param_tensors num_param_tensors_frozen
        num_param_tensors_trainable num_pos_args opaque_reason output_of_module_calls step_index
    """,
    "trace": """
        trace_label model_class_name model_class_qualname backend capture_mode random_seed graph_shape_hash
        input_signature_hash param_hash_quick raw_input raw_output
        state state_history outcome halted halt_reason ops layers modules module_calls params buffers conditionals
        orphans input_layers output_layers input_ops output_ops compute_ops compute_layers recurrent_layers saved_ops
        saved_layers saved_grad_ops internal_source_ops internal_sink_ops buffer_read_ops buffer_write_ops layer_labels
        op_labels root_module uncalled_modules output num_ops num_layers num_compute_layers num_tensors num_edges
        num_layer_edges num_compute_edges num_buffer_edges num_modules num_module_calls num_conditionals num_params
        num_param_tensors num_params_trainable num_params_frozen num_params_executed num_params_unexecuted
        unexecuted_param_names is_recurrent max_layer_op_count is_branching branching_factor max_in_degree
        max_out_degree is_dynamic_graph has_conditional_branching setup_duration forward_duration cleanup_duration
        capture_duration func_calls_duration overhead_duration total_flops_forward total_flops_backward
        total_macs_forward flops_by_op_type unknown_flop_ops compute_coverage total_activation_memory
        saved_activation_memory total_param_memory total_autograd_memory saved_gradient_memory autograd
        total_saved_for_backward total_saved_params_for_backward total_saved_inputs_for_backward untold_saved_ops
        backward capture_backward has_backward_pass backward_ready inference_only health
        as_of called_from check_metadata_invariants checkpoint_invocation_witness first_nonfinite why
        cleanup environment error events failure find_sites
        fingerprint is_cleaned_up is_partial journal journal_path name num_param_tensors_frozen
        num_param_tensors_trainable opened options save save_request status stop_after summary tags to_pandas
        animate draw fingerprint_at load_state_dict make_again readiness run to_html weights written_by
    """,
    "modules": """
        address name all_addresses has_multiple_addresses class_name class_qualname cls handle address_parent
        address_children address_depth call_parent call_children call_depth call_tree calls num_calls call_labels layers
        layer_labels num_layers input_layers output_layers input_ops output_ops num_internal_edges num_input_edges
        num_output_edges num_edges params num_params num_param_tensors param_memory recursive_params
        num_recursive_params num_recursive_param_tensors internal_param_memory num_params_trainable num_params_frozen
        has_trainable_params has_frozen_params buffers buffer_layers training has_forward_hooks has_backward_hooks
        forward_signature init_signature class_source_location forward_source_location class_docstring
        total_forward_duration total_func_calls_duration total_backward_duration total_flops_forward
        total_flops_backward total_macs_forward total_internal_activation_memory total_output_activation_memory
        total_output_gradient_memory total_internal_gradient_memory
        total_saved_for_backward total_saved_params_for_backward total_saved_inputs_for_backward
        total_autograd_memory out outs out_shape out_shapes grad grads forward_duration backward_duration
        forward_args_summary forward_kwargs_summary max_descendant_depth num_descendant_calls
        backward_hooks forward_hooks forward_pre_hooks init_source_location is_registered
        num_param_tensors_frozen num_param_tensors_trainable num_recursive_param_tensors_frozen
        num_recursive_param_tensors_trainable num_recursive_params_frozen num_recursive_params_trainable
        recursive_param_addresses
    """,
    "module_calls": """
        call_label address name class_name module call_index ordinal_index call_parent call_children module_call_stack
        ops num_ops num_layers input_ops input_layers output_ops output_layers num_internal_edges num_input_edges
        num_output_edges out outs out_shape out_shapes out_dtype out_dtypes output_paths output_structure grad grads
        forward_args forward_kwargs has_saved_forward_args forward_args_summary forward_kwargs_summary
        forward_arg_names num_forward_args_total inputs_before_pre_hooks inputs_after_pre_hooks
        had_pre_hook_input_change code_context forward_duration backward_duration func_calls_duration
        internal_activation_memory output_activation_memory internal_gradient_memory output_gradient_memory
        autograd_memory param_memory max_descendant_depth
        saved_for_backward saved_params_for_backward saved_inputs_for_backward
        num_descendant_calls flops_forward macs_forward flops_backward
        all_addresses call_depth has_frozen_params has_trainable_params is_returned num_param_tensors
    """,
    "params": """
        address name all_addresses has_multiple_addresses module module_address modules all_module_addresses shape dtype
        num_params param_memory is_trainable is_quantized has_optimizer barcode used_by_ops used_by_layers
        num_uses_by_ops num_uses_by_layers num_calls co_parent_params handle value value_basis grad grads has_grad
        grad_shape grad_dtype gradient_memory
        device_ref is_registered
    """,
    "buffers": """
        address name all_addresses module_address initial_value final_value versions write_versions num_overwrites
        is_overwritten value_at value_after layer_label buffer_source shape dtype activation_memory
        has_saved_activation handle module modules has_grad grad_shape grad_dtype
        all_module_addresses buffer_pass call_index device_ref gradient_memory has_multiple_addresses label
        num_versions
    """,
    "backward_passes": """
        pass_index trigger implicit outer_context backward_call_context save_grads_policy root_meta root_grad_fn_ids
        root_grad_fns root_grad_arguments inputs_subset engine_flags accumulates is_transient order
        order_attribution_coverage
        origin_backward_pass grad_fn_calls num_grad_fn_calls status closed_by error_type error_message raised_in
        incomplete_reason is_cut duration peak_memory thread timestamp
        aten_ops executed_flops executed_reason flops_attribution recompute_flops unattributed_flops uncounted_families
    """,
    "grad_fns": """
        label type type_index ordinal_index step_index class_name class_qualname is_custom handle grad_fn_object_id
        calls num_calls call_labels has_op op op_label inner_of param param_address parents children siblings co_parents
        has_parents has_children has_siblings has_co_parents order origin_backward_pass differentiates
        creator_object_id modules module_address module_membership_source has_saved_call backward_duration
        total_backward_duration
    """,
    "grad_fn_calls": """
        call_label label grad_fn call_index ordinal ordinal_in_pass backward_pass backward_pass_index grad_outputs
        grad_inputs grad_output_stats grad_input_stats is_saved backward_duration timestamp aten_ops flops
        recompute_flops
    """,
    "dispatched_ops": """
        name family backward_pass backward_pass_index ordinal_in_pass grad_fn grad_fn_label grad_fn_call call_index
        op_label is_elsewhere grad_enabled input_shapes input_dtypes output_shapes output_dtypes flops
    """,
    "gradients": """
        grad stats has_stored_stats owner owner_kind backward_pass_index ordinal is_saved shape dtype device_ref memory
        grad_fn_label grad_fn_call timestamp
    """,
    "explanations": "subject kind reason at text pass_index location op param",
    "op.autograd": """
        grads grad_for num_saved_grads grad_fn_handle grad_fn_object_id grad_fn_class_name grad_fn grad_fn_label
    """,
    "trace.autograd": """
        gradients grad_fns grad_fn_calls dispatched_ops backward_passes last_backward_pass num_backward_passes
        num_grad_fns num_grad_fn_calls
        num_grad_fns_with_op num_grad_fns_without_op num_backward_edges grad_fn_fire_timings disarm explain explanations
    """,
}
"""What is served, by record."""

LATER: dict[str, dict[str, str]] = {
    "ops": {
        "intervention_replaced": "there are no edits",
        "interventions": "there are no edits",
        "annotations": "nothing can be noted down on a record",
    },
    "trace": {
        "recipe": "there are no edits",
    },
    "op.autograd": {"derived_grad": "only other backends have it"},
    "trace.autograd": {
        "derived_grads": "only other backends have them",
        "intermediate_derived_grads": "only other backends have them",
    },
    "grad_fn_calls": {"intervention_fire_ref": "there are no edits"},
    "gradients": {
        "transformed_grad": "nothing transforms gradients",
        "transformed_grad_shape": "nothing transforms gradients",
        "transformed_grad_dtype": "nothing transforms gradients",
    },
}
"""What is not served yet, and why."""

CLASSES: dict[str, type] = {
    **{name: RECORDS[name] for name in FIELDS if name in RECORDS},
    "trace": tl.Trace,
    "op.autograd": OpAutograd,
    "trace.autograd": TraceAutograd,
}

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference.md").read_text()


@pytest.mark.parametrize("record", FIELDS)
def test_every_field_is_served(record: str) -> None:
    assert [name for name in FIELDS[record].split() if not hasattr(CLASSES[record], name) and name != "journal"] == []


@pytest.mark.parametrize("record", LATER)
def test_what_comes_later_is_absent_and_so_cannot_lie(record: str) -> None:
    for name, reason in LATER[record].items():
        assert reason
        assert not hasattr(CLASSES[record], name), "served by now: it goes to FIELDS"


def listed(heading: str) -> dict[str, list[str]]:
    """What the table below a heading lists, by record or frame, each of which may have several rows; in order."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n###")[0]
    found: dict[str, list[str]] = {}
    for name, row in re.findall(r"^\| `([\w.()]+)`[^|]* \| (.+) \|$", section, re.MULTILINE):
        found.setdefault(name, []).extend(re.findall(r"`(\w+)`", row))
    return found


@pytest.mark.parametrize("record", FIELDS)
def test_the_reference_lists_the_fields_of_each_record(record: str) -> None:
    assert sorted(listed("Every field")[record]) == sorted(set(FIELDS[record].split()))


WITHIN = {"layers": "ops", "modules": "module_calls"}
"""The record of one pass or call, whose fields a record of several has too."""


@pytest.mark.parametrize("record", [name for name in FIELDS if "." not in name])
def test_dir_lists_exactly_what_the_reference_does(worked: tl.Trace, record: str) -> None:
    asked: object = worked if record == "trace" else CLASSES[record](worked, 0)
    within = FIELDS.get(WITHIN.get(record, ""), "")
    assert set(dir(asked)) - {"trace"} == {*FIELDS[record].split(), *within.split()} - {"trace"}


@pytest.mark.parametrize(("outer", "inner"), WITHIN.items())
def test_a_record_of_one_pass_or_call_has_every_field_of_that(worked: tl.Trace, outer: str, inner: str) -> None:
    names = set(FIELDS[inner].split())
    assert names <= set(dir(CLASSES[outer])), "a new field comes along by itself"
    single = [
        record for record in getattr(worked, outer) if len(record.ops if outer == "layers" else record.calls) == 1
    ]
    assert single
    passed = {name for name in names if isinstance(getattr(CLASSES[outer], name), (PassField, CallField))}
    assert len(passed) > 20, "the others are of the layer or module itself"
    for record in single:
        only = record.ops[0] if outer == "layers" else record.calls[0]
        for name in passed - LIVE:
            assert cell(record, name) == cell(only, name), name


def test_the_user_place_of_an_op_is_the_innermost_line_of_the_users_own_code() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(nn.functional.dropout(x, 0.0))

    line = forward.__code__.co_firstlineno + 1
    for op in tl.trace(forward, torch.ones(2)).compute_ops:
        assert (op.user_place.file, op.user_place.line_number) == (__file__, line)
    within = tl.trace(nn.Sequential(nn.ReLU()), torch.ones(2))
    assert within.ops["relu_1_1"].user_place == within.called_from
    assert within.ops["input_1"].user_place is None


def test_a_trace_and_its_records_refuse_to_be_copied_and_say_what_to_do(worked: tl.Trace) -> None:
    for copied in (lambda: copy.deepcopy(worked), lambda: copy.deepcopy(worked.ops[0]), lambda: copy.copy(worked)):
        with pytest.raises(tl.TorchLensError, match="copy_to") as caught:
            copied()
        assert caught.value.code == "trace_not_copied"
    assert copy.copy(worked.ops[0]) == worked.ops[0]


def test_an_attribute_that_a_trace_has_not_comes_with_a_hint(worked: tl.Trace) -> None:
    with pytest.raises(AttributeError, match=r"trace\.ops"):
        worked.nodes  # noqa: B018  # the refusal is asked for
    gone = tl.trace(nn.ReLU(), torch.ones(2))
    gone.cleanup()
    with pytest.raises(tl.errors.TraceCleanedUpError):
        gone.ops  # noqa: B018  # the refusal is asked for


def test_a_field_of_one_pass_is_refused_exactly_where_there_are_several(worked: tl.Trace) -> None:
    passed = [name for name in dir(RECORDS["layers"]) if isinstance(getattr(RECORDS["layers"], name), PassField)]
    assert {"out", "label", "saved_args", "has_grad"} <= set(passed)
    for layer in worked.layers:
        for name in passed:
            try:
                getattr(layer, name)
                refused = None
            except tl.TorchLensError as exc:
                refused = exc.code
            assert (refused == "layer_pass_ambiguous") == (layer.num_passes > 1), (layer, name)


LIVE = frozenset(
    (
        *("func", "handle", "cls"),
        *("trace", "autograd", "layer", "module", "atomic_module", "modules", "layers", "params", "calls", "ops"),
    )
)
"""What is of the process that captured, or is a record, which belongs to its trace."""

LIVE_OF_PARAMS = frozenset(("value", "value_basis", "grad"))


def cell(record: object, name: str) -> object:
    try:
        value = getattr(record, name)
    except tl.TorchLensError as exc:
        return exc.code
    if callable(value):
        return "method"
    return getattr(value, "labels", None) or repr(plain(value))


def plain(value: object) -> object:
    """Tensors as lists: a stored one stands on no graph."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("table", [name for name in RECORDS if name != "gradients"])
def test_a_trace_read_from_its_journal_agrees_in_all_that_is_not_live(
    worked: tl.Trace, loaded: tl.Trace, table: str
) -> None:
    apart = LIVE if table != "params" else LIVE | LIVE_OF_PARAMS
    names = [name for name in FIELDS.get(table, FIELDS["ops"]).split() if name not in apart and "duration" not in name]
    mine_of, theirs_of = (trace if hasattr(trace, table) else trace.autograd for trace in (worked, loaded))
    for mine, theirs in zip(getattr(mine_of, table), getattr(theirs_of, table), strict=True):
        for name in names:
            assert cell(mine, name) == cell(theirs, name), f"{table}.{name}"


NONE_HERE = frozenset(
    """
    random_seed halt_reason total_autograd_memory error failure name stop_after journal_path
    checkpoint_invocation_witness
    total_saved_for_backward total_saved_params_for_backward total_saved_inputs_for_backward
    """.split()
)
"""What does not apply to a plain capture in memory."""


def test_every_field_reads_on_a_plain_model() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))
    for name in FIELDS["trace"].split():
        assert getattr(trace, name) is not None or name in NONE_HERE, name


def test_the_reference_lists_the_columns_of_every_data_frame() -> None:
    rows = {frame.removeprefix("trace."): columns for frame, columns in listed("Columns of a data frame").items()}
    rows["trace"] = rows.pop("to_pandas()")
    rows = {frame.removeprefix("autograd."): columns for frame, columns in rows.items()}
    rows["ops"] = rows["orphans"] = [*rows["trace"], *rows["ops"]]
    assert rows == {name: list(columns) for name, columns in tabular.COLUMNS.items()}


def test_quantities_of_ops_layers_and_modules_are_columns_too() -> None:
    asked = {
        "ops": "macs_forward flops_total bytes_read bytes_written num_parents num_children",
        "layers": "macs_forward total_macs_forward total_flops_backward total_activation_memory has_saved_activation",
        "modules": "total_flops_forward total_macs_forward",
    }
    for name, columns in asked.items():
        assert set(columns.split()) <= set(tabular.COLUMNS[name])
