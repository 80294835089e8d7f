"""Columns of the layer table: one row per layer, in the order of first passes.

Reads  a ``Forward`` and the columns of its ops.
Gives  the makers of the columns that ``columns.py`` lists under ``layers``.
Rule   facts of a call are those of the first pass; edges are the union over passes; parameters count once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from projections.forward import Forward
from projections.ops import OPS, elements, frozen, internal_sinks, internal_sources, trainable
from projections.sequences import Computed, picked
from projections.tables import Column, Maker


def layer_count(forward: Forward) -> int:
    return len(forward.groups.passes)


def per_layer(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column whose cells are worked out at each read."""

    def make(forward: Forward) -> Column:
        return Computed(layer_count(forward), lambda layer: one(forward, layer))

    return make


def first_pass(name: str) -> Maker[Forward]:
    """What the op table says of a layer's first pass."""

    def make(forward: Forward) -> Column:
        return picked(OPS[name](forward), forward.groups.first)

    return make


def over_passes(name: str, combine: Callable[[list[Any]], Any]) -> Maker[Forward]:
    """Something of what the op table says of all passes of a layer."""

    def make(forward: Forward) -> Column:
        column, rows = OPS[name](forward), forward.layer_ops
        return Computed(layer_count(forward), lambda layer: combine([column[row] for row in rows[layer]]))

    return make


def total(values: list[Any]) -> Any:
    """Sum over passes; None where a pass is unknown."""
    return None if None in values else sum(values)


def op_labels(forward: Forward, layer: int) -> tuple[str, ...]:
    return tuple([forward.labels.op[row] for row in forward.layer_ops[layer]])


# -- edges


def neighbours(forward: Forward, rows: Sequence[int], near: Callable[[int], Sequence[int]]) -> tuple[int, ...]:
    """Layers one edge away from some op rows, in first-seen order."""
    layer = forward.groups.layer
    return tuple(dict.fromkeys([layer[other] for row in rows for other in near(row)]))


def parent_layers(forward: Forward, layer: int) -> tuple[int, ...]:
    return neighbours(forward, forward.layer_ops[layer], forward.parents.__getitem__)


def child_layers(forward: Forward, layer: int) -> tuple[int, ...]:
    return neighbours(forward, forward.layer_ops[layer], forward.children.__getitem__)


def sibling_layers(forward: Forward, layer: int) -> tuple[int, ...]:
    found = {child for parent in parent_layers(forward, layer) for child in child_layers(forward, parent)}
    return tuple(sorted(found - {layer}))


def co_parent_layers(forward: Forward, layer: int) -> tuple[int, ...]:
    found = {parent for child in child_layers(forward, layer) for parent in parent_layers(forward, child)}
    return tuple(sorted(found - {layer}))


def named(one: Callable[[Forward, int], Sequence[int]]) -> Maker[Forward]:
    """Layer labels instead of layer rows."""

    def read(forward: Forward, layer: int) -> tuple[str, ...]:
        labels = forward.labels.layer
        return tuple([labels[other] for other in one(forward, layer)])

    return per_layer(read)


def per_pass(near: Callable[[Forward], Callable[[int], Sequence[int]]]) -> Maker[Forward]:
    """Pairs of pass and the layer labels one edge away from it."""

    def read(forward: Forward, layer: int) -> tuple[tuple[int, tuple[str, ...]], ...]:
        labels, look = forward.labels.layer, near(forward)
        return tuple(
            [
                (index, tuple([labels[other] for other in neighbours(forward, (row,), look)]))
                for index, row in enumerate(forward.layer_ops[layer], 1)
            ]
        )

    return per_layer(read)


def passes_by_neighbour(near: Callable[[Forward], Callable[[int], Sequence[int]]]) -> Maker[Forward]:
    """Pairs of neighbouring layer label and the passes that use it."""

    def read(forward: Forward, layer: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        labels, look = forward.labels.layer, near(forward)
        found: dict[int, list[int]] = {}
        for index, row in enumerate(forward.layer_ops[layer], 1):
            for other in neighbours(forward, (row,), look):
                found.setdefault(other, []).append(index)
        return tuple([(labels[other], tuple(passes)) for other, passes in found.items()])

    return per_layer(read)


def parents_of(forward: Forward) -> Callable[[int], Sequence[int]]:
    return forward.parents.__getitem__


def children_of(forward: Forward) -> Callable[[int], Sequence[int]]:
    return forward.children.__getitem__


def edges_vary(forward: Forward, layer: int) -> bool:
    """Whether some pass has other neighbouring layers than the first one."""
    ways = (forward.parents.__getitem__, forward.children.__getitem__)
    shapes = {tuple(frozenset(neighbours(forward, (row,), near)) for near in ways) for row in forward.layer_ops[layer]}
    return len(shapes) > 1


# -- parameters


def param_rows(forward: Forward, layer: int) -> tuple[int, ...]:
    uses = forward.params_of
    return tuple(dict.fromkeys([number for row in forward.layer_ops[layer] for number in uses.get(row, ())]))


def parameters_of(one: Callable[[Sequence[Any]], Any]) -> Maker[Forward]:
    """A column made from the parameters that the passes of a layer used, each once."""

    def read(forward: Forward, layer: int) -> Any:
        parameters = forward.words.parameters
        return one([parameters[number] for number in param_rows(forward, layer)])

    return per_layer(read)


def any_of(rows_of: Callable[[Forward], Sequence[int]]) -> Maker[Forward]:
    """Whether some pass is among the rows."""

    def make(forward: Forward) -> Column:
        made = [False] * layer_count(forward)
        for row in rows_of(forward):
            made[forward.groups.layer[row]] = True
        return made

    return make


def shape_summary(shapes: list[Any]) -> str:
    """The shape, or the different ones of the passes."""
    return " | ".join(dict.fromkeys(["?" if shape is None else str(tuple(shape)) for shape in shapes]))


LAYERS: Final[dict[str, Maker[Forward]]] = {
    "layer_label": lambda forward: forward.labels.layer,
    "layer_label_short": lambda forward: forward.labels.layer_short,
    "layer_type": lambda forward: forward.labels.type,
    "type_index": lambda forward: forward.labels.type_index,
    "step_index": first_pass("step_index"),
    "ordinal_index": lambda forward: forward.groups.first,
    "num_passes": lambda forward: forward.groups.passes,
    "op_labels": per_layer(op_labels),
    "func_name": first_pass("func_name"),
    "func_qualname": first_pass("func_qualname"),
    "is_inplace": first_pass("is_inplace"),
    "is_opaque": first_pass("is_opaque"),
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
    "in_multi_output": first_pass("in_multi_output"),
    "multi_output_index": first_pass("multi_output_index"),
    "multi_output_name": first_pass("multi_output_name"),
    "parents": named(parent_layers),
    "children": named(child_layers),
    "parents_per_pass": per_pass(parents_of),
    "children_per_pass": per_pass(children_of),
    "parent_ops_per_layer": passes_by_neighbour(parents_of),
    "child_ops_per_layer": passes_by_neighbour(children_of),
    "edges_vary_across_ops": per_layer(edges_vary),
    "siblings": named(sibling_layers),
    "co_parents": named(co_parent_layers),
    "num_parents": per_layer(lambda forward, layer: len(parent_layers(forward, layer))),
    "num_children": per_layer(lambda forward, layer: len(child_layers(forward, layer))),
    "has_parents": per_layer(lambda forward, layer: bool(parent_layers(forward, layer))),
    "has_children": per_layer(lambda forward, layer: bool(child_layers(forward, layer))),
    "has_siblings": per_layer(lambda forward, layer: bool(sibling_layers(forward, layer))),
    "has_co_parents": per_layer(lambda forward, layer: bool(co_parent_layers(forward, layer))),
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
    "total_func_duration": over_passes("func_duration", total),
    "is_scalar_bool": first_pass("is_scalar_bool"),
    "is_terminal_bool": over_passes("is_terminal_bool", any),
    "bool_value": first_pass("bool_value"),
    # plumbing
    "op_rows": lambda forward: forward.layer_ops,
    "parent_layer_rows": per_layer(parent_layers),
    "child_layer_rows": per_layer(child_layers),
    "param_rows": per_layer(param_rows),
}
"""How each column of the layer table is made, in order."""
