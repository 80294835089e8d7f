"""Tables as data frames: which columns, in which order, and plain numbers for quantities.

pandas is imported when a frame is asked for: nothing else here needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from journal.errors import JournalError
from projections import Table
from torchlens.errors import AmbiguousReadError, CompatibilityError, PayloadUnavailableError
from torchlens.quantities import Bytes

if TYPE_CHECKING:
    import pandas

__all__ = ["COLUMNS", "data_frame", "frame_of"]

TRACE: Final = """
    layer_label label layer_label_short label_short layer_type raw_label step_index ordinal_index type_index
    pass_index num_passes lookup_keys has_saved_activation has_saved_payload has_saved_args num_inputs shape
    transformed_out_shape dtype
    transformed_out_dtype device_ref activation_memory autograd_memory num_autograd_tensors saved_for_backward
    saved_params_for_backward saved_inputs_for_backward has_out_variations grad
    save_grads has_grad grad_shape grad_dtype gradient_memory func_call_id func_name func_qualname var_names
    arg_expressions func_duration flops_forward macs_forward flops_backward flops_total bytes_read bytes_written
    arg_names num_args_total num_pos_args num_kwargs
    non_tensor_pos_args non_tensor_kwargs is_inplace grad_fn_class_name in_multi_output multi_output_index
    multi_output_name container_path param_shapes num_params num_params_trainable num_params_frozen param_memory
    recurrent_ops site_key parents num_parents parent_arg_positions root_ancestors children num_children has_children
    is_input
    input_was_parameter has_input_ancestor input_ancestors min_distance_from_input max_distance_from_input is_output
    is_output_parent is_final_output has_output_descendant output_descendants is_orphan io_role
    min_distance_to_output max_distance_to_output is_buffer address buffer_pass buffer_source buffer_write_kind
    buffer_value_changed buffer_source_func_name is_internal_source has_internal_source_ancestor
    internal_source_ancestors is_internal_sink is_terminal_bool is_terminal_conditional_bool
    conditional_context_kind conditional_wrapper_kind is_scalar_bool bool_value in_conditionals terminal_bool_for
    conditional_branch_stack conditional_branch_depth conditional_arm_children module modules
    input_to_module_calls output_of_modules output_of_module_calls is_module_output is_atomic_module func_config
    has_parents siblings has_siblings co_parents has_co_parents uses_params is_module_input num_saved_grads
    num_nan num_inf min max mean std
"""
"""Of ``trace.to_pandas()``: what an op is, without its tensors."""

OPS: Final = """
    out transformed_out saved_args saved_kwargs input_ops input_activations input_shapes input_dtypes input_memory func
    code_context func_rng_states func_autocast_state
"""
"""What the frame of the ops has besides."""

LAYERS: Final = """
    layer_label layer_label_short layer_type type_index step_index ordinal_index num_passes func func_name
    func_qualname is_inplace grad_fn_class_name arg_names num_args_total num_pos_args num_kwargs in_multi_output
    multi_output_index multi_output_name has_saved_activation has_saved_payload shape dtype device_ref activation_memory
    total_activation_memory autograd_memory total_autograd_memory num_autograd_tensors total_saved_for_backward
    total_saved_params_for_backward total_saved_inputs_for_backward total_gradient_memory
    save_grads has_grad flops_forward
    macs_forward flops_backward param_shapes num_params
    num_params_trainable num_params_frozen total_param_memory is_input input_was_parameter is_output is_final_output
    is_buffer address buffer_source buffer_write_kind has_input_ancestor io_role buffer_pass is_internal_source
    is_internal_sink is_terminal_bool is_scalar_bool bool_value in_conditionals conditional_branch_stack_ops module
    modules output_of_modules output_of_module_calls is_atomic_module func_config op_labels parents children
    total_flops_forward total_macs_forward total_flops_backward total_func_duration
"""

MODULES: Final = """
    address all_addresses has_multiple_addresses name class_name class_qualname class_source_location
    init_source_location forward_source_location class_docstring init_signature forward_signature
    address_parent address_children
    address_depth call_parent call_children call_depth num_calls call_labels layer_labels num_layers input_ops
    input_layers output_ops output_layers num_params num_params_trainable num_params_frozen num_param_tensors
    num_recursive_params num_recursive_param_tensors recursive_param_addresses param_memory has_trainable_params
    has_frozen_params buffer_layers training has_forward_hooks has_backward_hooks forward_args_summary
    forward_kwargs_summary forward_duration total_forward_duration backward_duration total_backward_duration
    func_calls_duration total_func_calls_duration
    total_output_activation_memory total_internal_activation_memory total_output_gradient_memory
    total_internal_gradient_memory total_autograd_memory total_saved_for_backward total_saved_params_for_backward
    total_saved_inputs_for_backward total_flops_forward
    total_macs_forward total_flops_backward num_descendant_calls
    max_descendant_depth
"""

MODULE_CALLS: Final = """
    address name all_addresses class_name call_index call_label ordinal_index ops num_ops input_ops input_layers
    output_ops output_layers output_structure output_paths forward_arg_names num_forward_args_total
    forward_args_summary forward_kwargs_summary has_saved_forward_args had_pre_hook_input_change forward_duration
    backward_duration output_activation_memory internal_activation_memory output_gradient_memory
    internal_gradient_memory autograd_memory saved_for_backward saved_params_for_backward
    saved_inputs_for_backward param_memory func_calls_duration
    flops_forward macs_forward flops_backward code_context
    module_call_stack call_parent call_children num_descendant_calls max_descendant_depth num_param_tensors
    has_trainable_params has_frozen_params
"""

PARAMS: Final = """
    address name shape dtype device_ref num_params param_memory is_trainable is_quantized has_optimizer module_address
    all_addresses all_module_addresses has_multiple_addresses barcode num_calls used_by_ops used_by_layers
    num_uses_by_ops num_uses_by_layers co_parent_params has_grad grad_shape grad_dtype gradient_memory
"""

BUFFERS: Final = """
    address module_address name buffer_pass layer_label shape dtype initial_value activation_memory
    has_saved_activation has_grad grad_shape grad_dtype gradient_memory buffer_source module modules num_overwrites
"""

GRADIENT_RECORDS: Final = """
    owner owner_kind ordinal backward_pass_index grad shape dtype memory is_saved timestamp
    num_nan num_inf min max mean std
"""

GRAD_FNS: Final = """
    grad_fn_object_id class_name class_qualname label type type_index ordinal_index step_index is_custom order
    origin_backward_pass differentiates modules module_address module_membership_source has_op op_label parents
    children siblings co_parents has_parents has_children num_calls call_labels backward_duration
    total_backward_duration
"""

GRAD_FN_CALLS: Final = """
    label call_index backward_pass_index call_label backward_duration grad_inputs grad_outputs timestamp is_saved
    flops recompute_flops
"""

DISPATCHED_OPS: Final = """
    name family backward_pass_index ordinal_in_pass grad_fn_label call_index op_label is_elsewhere grad_enabled
    input_shapes input_dtypes output_shapes output_dtypes flops
"""

BACKWARD_PASSES: Final = """
    pass_index trigger implicit outer_context backward_call_context root_meta root_grad_arguments inputs_subset order
    origin_backward_pass engine_flags save_grads_policy duration peak_memory status order_attribution_coverage
    num_grad_fn_calls executed_flops recompute_flops unattributed_flops
"""

CONDITIONALS: Final = """
    id kind num_passes num_arms num_elifs has_elif has_else arm_kinds test_texts fired_arm_kinds bool_values
    terminal_bool_op_labels conditions_evaluated fired evaluation_entry_edges execution_entry_edges source_file
    source_line source_location func_qualname module_address
"""

EXPLANATIONS: Final = "subject kind reason at pass_index location text"

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "ops": tuple((TRACE + OPS).split()),
    "layers": tuple(LAYERS.split()),
    "modules": tuple(MODULES.split()),
    "module_calls": tuple(MODULE_CALLS.split()),
    "params": tuple(PARAMS.split()),
    "buffers": tuple(BUFFERS.split()),
    "conditionals": tuple(CONDITIONALS.split()),
    "explanations": tuple(EXPLANATIONS.split()),
    "orphans": tuple((TRACE + OPS).split()),
    "backward_passes": tuple(BACKWARD_PASSES.split()),
    "grad_fns": tuple(GRAD_FNS.split()),
    "grad_fn_calls": tuple(GRAD_FN_CALLS.split()),
    "dispatched_ops": tuple(DISPATCHED_OPS.split()),
    "gradients": tuple(GRADIENT_RECORDS.split()),
    "trace": tuple(TRACE.split()),
}
"""The columns of the data frame of each collection, and of a trace, in order."""

AS_FIELDS: Final = frozenset(
    (
        "backward_call_context",
        "code_context",
        "engine_flags",
        "func_autocast_state",
        "func_config",
        "grad_inputs",
        "grad_outputs",
        "non_tensor_kwargs",
        "non_tensor_pos_args",
        "output_structure",
        "parent_arg_positions",
        "root_grad_arguments",
        "root_meta",
    )
)
"""Columns that are shown as the field of the record gives them, since the table has them in another form."""


STATISTICS: Final = MappingProxyType({"num_nan": 1, "num_inf": 2, "min": 3, "max": 4, "mean": 5, "std": 6})
"""Columns of statistics that were kept in place of a payload, and where they stand among its figures."""

NEIGHBOURS: Final = frozenset(("siblings", "co_parents"))
"""Columns that may be as large as the square of their table."""

QUIET: Final[Mapping[str, str]] = {"grad": "quiet_grad"}
"""Columns whose field is refused in ordinary cases, and the name under which the record gives it or None."""


def data_frame(table: Table[Any], columns: Sequence[str], rows: Sequence[int], records: Sequence[object]) -> Any:
    """Some columns and rows of a table; one row per record.

    Args:
        table: The table.
        columns: Its columns, and fields that the records have besides.
        rows: Numbers of the rows.
        records: The record of each.
    """
    known = frozenset(table.names) - AS_FIELDS
    return frame_of(
        {
            name: cells_of(table, name, rows)
            if name in known
            else kept_of(table, name, rows)
            if name in STATISTICS
            else [field_of(record, name) for record in records]
            for name in columns
        },
        len(rows),
    )


def cells_of(table: Table[Any], name: str, rows: Sequence[int]) -> Sequence[object]:
    """Some cells of a column; None for each where all of them are too large to be had at once."""
    try:
        return picked(table.column(name), rows)
    except JournalError as exc:
        if exc.code != "records_too_large" or name not in NEIGHBOURS:
            raise
        return [None] * len(rows)


def kept_of(table: Table[Any], name: str, rows: Sequence[int]) -> Sequence[object]:
    """One of the statistics of each row; None where none were kept."""
    place, figures = STATISTICS[name], table.column("figures")
    return [None if (found := figures[row]) is None else found[place] for row in rows]


def field_of(record: object, name: str) -> object:
    """A field as a cell: a plain number for a quantity; None where it is refused."""
    try:
        value = getattr(record, QUIET.get(name, name))
    except (PayloadUnavailableError, AmbiguousReadError):
        return None
    return int(value) if isinstance(value, Bytes) else value


def frame_of(columns: Mapping[str, Sequence[object]], count: int) -> pandas.DataFrame:
    """Columns of ``count`` rows as a data frame.

    Raises:
        CompatibilityError: ``pandas_not_installed``.
    """
    try:
        import pandas  # for cost
    except ImportError as exc:
        raise CompatibilityError(
            code="pandas_not_installed",
            problem="a data frame was asked for, and pandas is not installed",
            remedy="install pandas, or this package with its extra pandas",
        ) from exc

    return pandas.DataFrame(columns, columns=list(columns), index=range(count))


def picked(column: Sequence[object], rows: Sequence[int]) -> Sequence[object]:
    return list(column) if len(rows) == len(column) else [column[row] for row in rows]
