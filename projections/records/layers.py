"""Columns of the layer table: one row per layer, in the order of first passes.

Reads  the op table, and the ``Forward`` that it is made from.
Gives  the makers of the columns that ``columns.py`` lists under ``layers``.
Rule   facts of a call are those of the first pass; edges are the union over passes; parameters count once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from projections.columnar.sequences import Computed, Each, picked
from projections.columnar.tables import Column, Maker, Table
from projections.forward import Forward
from projections.records import control, cost, saved
from projections.records.makers import total
from projections.records.ops import elements, frozen, internal_sinks, internal_sources, trainable

Ops: TypeAlias = Table[Forward]
"""The op table: what layers are made from."""


def layer_count(forward: Forward) -> int:
    return len(forward.groups.passes)


def of_forward(make: Maker[Forward]) -> Maker[Ops]:
    return lambda ops: make(ops.context)


def per_layer(one: Callable[[Forward, int], Any]) -> Maker[Ops]:
    """A column whose cells are worked out at each read."""

    def make(ops: Ops) -> Column:
        forward = ops.context
        return Each(forward, range(layer_count(forward)), one)

    return make


def first_pass(name: str) -> Maker[Ops]:
    """What the op table says of a layer's first pass."""

    def make(ops: Ops) -> Column:
        first = ops.context.groups.first
        column = ops.column(name)
        return column if len(first) == len(column) else picked(column, first)  # every op may be a layer

    return make


def over_passes(name: str, combine: Callable[[list[Any]], Any]) -> Maker[Ops]:
    """Something of what the op table says of all passes of a layer."""

    def make(ops: Ops) -> Column:
        column, rows = ops.column(name), ops.context.layer_ops
        return Each(
            column, range(layer_count(ops.context)), lambda held, layer: combine([held[row] for row in rows[layer]])
        )

    return make


def op_labels(forward: Forward, layer: int) -> tuple[str, ...]:
    return tuple([forward.labels.op[row] for row in forward.layer_ops[layer]])


# -- edges


def of_layers(read: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    """A column of layer rows."""
    return lambda ops: read(ops.context)


def named(read: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    """Layer labels instead of layer rows."""

    def make(ops: Ops) -> Column:
        labels = ops.context.labels.layer
        return [tuple([labels[other] for other in others]) for others in read(ops.context)]

    return make


def counted(read: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    return lambda ops: list(map(len, read(ops.context)))


def some(read: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    return lambda ops: list(map(bool, read(ops.context)))


def parents(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.layer_parents


def children(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.layer_children


def siblings(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.layer_siblings


def co_parents(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.layer_co_parents


def parents_of_ops(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.near_parents


def children_of_ops(forward: Forward) -> Sequence[tuple[int, ...]]:
    return forward.near_children


def per_pass(near: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    """Pairs of pass and the layer labels one edge away from it."""

    def make(ops: Ops) -> Column:
        forward, layers = ops.context, near(ops.context)
        labels = forward.labels.layer
        names = {others: tuple([labels[other] for other in others]) for others in dict.fromkeys(layers)}

        def one(layer: int) -> tuple[tuple[int, tuple[str, ...]], ...]:
            return tuple(enumerate([names[layers[row]] for row in forward.layer_ops[layer]], 1))

        return Computed(layer_count(forward), one)

    return make


def passes_by_neighbour(near: Callable[[Forward], Sequence[tuple[int, ...]]]) -> Maker[Ops]:
    """Pairs of neighbouring layer label and the passes that use it."""

    def make(ops: Ops) -> Column:
        forward, layers = ops.context, near(ops.context)
        labels = forward.labels.layer

        def one(layer: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
            found: dict[int, list[int]] = {}
            for index, row in enumerate(forward.layer_ops[layer], 1):
                for other in layers[row]:
                    found.setdefault(other, []).append(index)
            return tuple([(labels[other], tuple(passes)) for other, passes in found.items()])

        return Computed(layer_count(forward), one)

    return make


def edges_vary(ops: Ops) -> Column:
    """Whether some pass has other neighbouring layers than the first one."""
    forward = ops.context
    before, behind = forward.near_parents, forward.near_children
    made: list[bool] = []
    for rows in forward.layer_ops:
        ways = {(before[row], behind[row]) for row in rows} if len(rows) > 1 else ()
        made.append(len({(frozenset(there), frozenset(back)) for there, back in ways}) > 1)
    return made


# -- parameters


def param_rows(forward: Forward, layer: int) -> tuple[int, ...]:
    return forward.layer_params.get(layer, ())


def parameters_of(one: Callable[[Sequence[Any]], Any]) -> Maker[Ops]:
    """A column made from the parameters that the passes of a layer used, each once."""

    def read(forward: Forward, layer: int) -> Any:
        parameters = forward.words.parameters
        return one([parameters[number] for number in param_rows(forward, layer)])

    return per_layer(read)


def any_of(rows_of: Callable[[Forward], Sequence[int]]) -> Maker[Ops]:
    """Whether some pass is among the rows."""

    def make(ops: Ops) -> Column:
        forward = ops.context
        made = [False] * layer_count(forward)
        for row in rows_of(forward):
            made[forward.groups.layer[row]] = True
        return made

    return make


def shape_summary(shapes: list[Any]) -> str:
    """The shape, or the different ones of the passes."""
    return " | ".join(dict.fromkeys(["?" if shape is None else str(tuple(shape)) for shape in shapes]))


LAYERS: Final[dict[str, Maker[Ops]]] = {
    "layer_label": of_forward(lambda forward: forward.labels.layer),
    "layer_label_short": of_forward(lambda forward: forward.labels.layer_short),
    "layer_type": of_forward(lambda forward: forward.labels.type),
    "type_index": of_forward(lambda forward: forward.labels.type_index),
    "step_index": first_pass("step_index"),
    "ordinal_index": of_forward(lambda forward: forward.groups.first),
    "num_passes": of_forward(lambda forward: forward.groups.passes),
    "op_labels": per_layer(op_labels),
    "func_name": first_pass("func_name"),
    "func_qualname": first_pass("func_qualname"),
    "is_inplace": first_pass("is_inplace"),
    "is_opaque": first_pass("is_opaque"),
    "opaque_reason": first_pass("opaque_reason"),
    "func_config": first_pass("func_config"),
    "arg_names": first_pass("arg_names"),
    "num_args_total": first_pass("num_args_total"),
    "num_pos_args": first_pass("num_pos_args"),
    "num_kwargs": first_pass("num_kwargs"),
    "grad_fn_class_name": first_pass("grad_fn_class_name"),
    "shape": first_pass("shape"),
    "shape_summary": over_passes("shape", shape_summary),
    "dtype": first_pass("dtype"),
    "device_ref": first_pass("device_ref"),
    "activation_memory": first_pass("activation_memory"),
    "total_activation_memory": over_passes("activation_memory", total),
    "has_saved_activation": over_passes("has_saved_activation", any),
    "has_saved_payload": over_passes("has_saved_payload", any),
    "in_multi_output": first_pass("in_multi_output"),
    "multi_output_index": first_pass("multi_output_index"),
    "multi_output_name": first_pass("multi_output_name"),
    "parents": named(parents),
    "children": named(children),
    "parents_per_pass": per_pass(parents_of_ops),
    "children_per_pass": per_pass(children_of_ops),
    "parent_ops_per_layer": passes_by_neighbour(parents_of_ops),
    "child_ops_per_layer": passes_by_neighbour(children_of_ops),
    "edges_vary_across_ops": edges_vary,
    "siblings": named(siblings),
    "co_parents": named(co_parents),
    "num_parents": counted(parents),
    "num_children": counted(children),
    "has_parents": some(parents),
    "has_children": some(children),
    "has_siblings": some(siblings),
    "has_co_parents": some(co_parents),
    "is_input": first_pass("is_input"),
    "is_output": first_pass("is_output"),
    "is_final_output": first_pass("is_final_output"),
    "is_buffer": first_pass("is_buffer"),
    "is_compute_layer": first_pass("is_compute_op"),
    "is_internal_source": any_of(internal_sources),
    "is_internal_sink": any_of(internal_sinks),
    "is_orphan": first_pass("is_orphan"),
    "io_role": first_pass("io_role"),
    "input_was_parameter": first_pass("input_was_parameter"),
    "address": first_pass("address"),
    "buffer_pass": first_pass("buffer_pass"),
    "buffer_source": first_pass("buffer_source"),
    "buffer_write_kind": first_pass("buffer_write_kind"),
    "has_input_ancestor": over_passes("has_input_ancestor", any),
    "module": first_pass("module"),
    "modules": first_pass("modules"),
    "output_of_modules": first_pass("output_of_modules"),
    "output_of_module_calls": first_pass("output_of_module_calls"),
    "is_atomic_module": over_passes("is_atomic_module", any),
    "module_call_depth": first_pass("module_call_depth"),
    "uses_params": parameters_of(bool),
    "param_names": parameters_of(lambda used: tuple([parameter.address for parameter in used])),
    "param_shapes": parameters_of(lambda used: tuple([parameter.shape for parameter in used])),
    "num_params": parameters_of(elements),
    "num_params_trainable": parameters_of(lambda used: elements(filter(trainable, used))),
    "num_params_frozen": parameters_of(lambda used: elements(filter(frozen, used))),
    "num_param_tensors": parameters_of(len),
    "num_param_tensors_trainable": parameters_of(lambda used: sum(map(trainable, used))),
    "num_param_tensors_frozen": parameters_of(lambda used: sum(map(frozen, used))),
    "total_param_memory": parameters_of(lambda used: sum([parameter.nbytes for parameter in used])),
    "flops_forward": first_pass("flops_forward"),
    "flops_backward": first_pass("flops_backward"),
    "macs_forward": first_pass("macs_forward"),
    **cost.LAYERS,
    "autograd_memory": first_pass("autograd_memory"),
    "num_autograd_tensors": first_pass("num_autograd_tensors"),
    **saved.LAYERS,
    "has_grad": over_passes("has_grad", any),
    "save_grads": over_passes("save_grads", any),
    "total_gradient_memory": over_passes("gradient_memory", total),
    "total_func_duration": over_passes("func_duration", total),
    "is_scalar_bool": first_pass("is_scalar_bool"),
    "is_terminal_bool": over_passes("is_terminal_bool", any),
    "in_conditionals": per_layer(control.layer_conditionals),
    "conditional_branch_stack_ops": per_layer(control.stack_passes),
    "bool_value": first_pass("bool_value"),
    # plumbing
    "op_rows": of_forward(lambda forward: forward.layer_ops),
    "parent_layer_rows": of_layers(parents),
    "child_layer_rows": of_layers(children),
    "param_rows": per_layer(param_rows),
}
"""How each column of the layer table is made, in order."""
