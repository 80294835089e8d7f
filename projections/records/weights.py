"""Columns of the tables of parameters and buffers.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``params`` and ``buffers``.
Rule   a parameter under several names is one row; so is a buffer, whose versions are op rows. Both have a row
       whether or not this forward used them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.folds.vocabulary import Tensor
from projections.forward import Forward
from projections.records import gradient_columns
from projections.records.kept_calls import has_optimizer
from projections.records.ops import buffer_source, is_written, module_of, modules_of

QUANTIZED: Final = ("qint", "quint")


def per_param(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward.words.parameters)), one)

    return make


def per_buffer(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    def make(forward: Forward) -> Column:
        return Each(forward, range(len(forward.words.buffers)), one)

    return make


def param(one: Callable[[Tensor], Any]) -> Maker[Forward]:
    return lambda forward: list(map(one, forward.words.parameters))


def buffer(one: Callable[[Tensor], Any]) -> Maker[Forward]:
    return lambda forward: list(map(one, forward.words.buffers))


def names_of(tensor: Tensor) -> tuple[str, ...]:
    return (tensor.address, *tensor.aliases)


def last_part(tensor: Tensor) -> str:
    return tensor.address.rpartition(".")[2]


def owner(forward: Forward, tensor: Tensor) -> str | None:
    """Address of the module that holds it; None where that is not known."""
    return None if tensor.module == NOWHERE else forward.words.module_path(tensor.module)


def owner_row(forward: Forward, tensor: Tensor) -> int:
    return forward.module_rows.get(tensor.module, NOWHERE)


def owners(forward: Forward, tensor: Tensor) -> tuple[str, ...]:
    """Addresses of all modules that hold it under some name."""
    known = forward.words.by_address
    first = owner(forward, tensor)
    others = [known.get(name.rpartition(".")[0]) for name in tensor.aliases]
    paths = [forward.words.module_path(number) for number in others if number is not None]
    return tuple(dict.fromkeys([*(() if first is None else (first,)), *paths]))


def used_rows(forward: Forward, row: int) -> tuple[int, ...]:
    """Ops that used a parameter, each once."""
    return tuple(dict.fromkeys(forward.ops_using.get(row, ())))


def used_by_ops(forward: Forward, row: int) -> tuple[str, ...]:
    labels = forward.labels.op
    return tuple([labels[op] for op in used_rows(forward, row)])


def used_by_layers(forward: Forward, row: int) -> tuple[str, ...]:
    labels, layer = forward.labels.layer, forward.groups.layer
    return tuple(dict.fromkeys([labels[layer[op]] for op in used_rows(forward, row)]))


def co_parent_params(forward: Forward, row: int) -> tuple[str, ...]:
    """Other parameters that some op used together with this one."""
    others = {number for op in used_rows(forward, row) for number in forward.params_of[op]}
    return tuple([forward.words.parameters[number].address for number in sorted(others - {row})])


PARAMS: Final[dict[str, Maker[Forward]]] = {
    "address": param(lambda tensor: tensor.address),
    "name": param(last_part),
    "all_addresses": param(names_of),
    "has_multiple_addresses": param(lambda tensor: bool(tensor.aliases)),
    "is_registered": param(lambda tensor: tensor.is_registered),
    "module_address": per_param(lambda forward, row: owner(forward, forward.words.parameters[row])),
    "all_module_addresses": per_param(lambda forward, row: owners(forward, forward.words.parameters[row])),
    "shape": param(lambda tensor: tensor.shape),
    "dtype": param(lambda tensor: tensor.dtype),
    "device_ref": param(lambda tensor: tensor.device),
    "num_params": param(lambda tensor: math.prod(tensor.shape)),
    "param_memory": param(lambda tensor: tensor.nbytes),
    "is_trainable": param(lambda tensor: tensor.requires_grad),
    "is_quantized": param(lambda tensor: tensor.dtype.startswith(QUANTIZED)),
    "has_optimizer": has_optimizer,
    "used_by_ops": per_param(used_by_ops),
    "used_by_layers": per_param(used_by_layers),
    "num_uses_by_ops": per_param(lambda forward, row: len(used_rows(forward, row))),
    "num_uses_by_layers": per_param(lambda forward, row: len(used_by_layers(forward, row))),
    "num_calls": per_param(lambda forward, row: len(used_rows(forward, row))),
    "co_parent_params": per_param(co_parent_params),
    "num_increments": per_param(lambda forward, row: len(gradient_columns.increments(forward, row))),
    "has_grad": per_param(lambda forward, row: bool(gradient_columns.increments(forward, row))),
    "grad_shape": per_param(
        gradient_columns.of_increment(lambda forward, gradient: forward.autograd.like(gradient)[0])
    ),
    "grad_dtype": per_param(
        gradient_columns.of_increment(lambda forward, gradient: forward.autograd.like(gradient)[1])
    ),
    "gradient_memory": per_param(gradient_columns.param_gradient_memory),
    "grad_fn_label": per_param(gradient_columns.gatherer_label),
    # plumbing
    "op_rows": per_param(used_rows),
    "module_row": per_param(lambda forward, row: owner_row(forward, forward.words.parameters[row])),
    "grad_fn_row": per_param(gradient_columns.gatherer),
    "gradient_rows": per_param(lambda forward, row: tuple(gradient_columns.increments(forward, row))),
}
"""How each column of the table of parameters is made, in order."""


# -- buffers


def versions(forward: Forward, row: int) -> list[int]:
    return forward.versions_of.get(row, [])


def written(forward: Forward, row: int) -> list[int]:
    return [version for version in versions(forward, row) if is_written(forward.rows.function[version])]


def newest(read: Callable[[Forward, int], Any], described: Callable[[Tensor], Any]) -> Maker[Forward]:
    """Something of the newest version, or of the buffer as described where none was seen."""

    def one(forward: Forward, row: int) -> Any:
        seen = versions(forward, row)
        return read(forward, seen[-1]) if seen else described(forward.words.buffers[row])

    return per_buffer(one)


def buffer_bytes(forward: Forward, row: int) -> int | None:
    """Bytes of the newest version; of a sparse one, which does not tell them, as described where it was not written."""
    seen = versions(forward, row)
    told = forward.detail(seen[-1]).brief.nbytes if seen else None
    return forward.words.buffers[row].nbytes if told is None and not written(forward, row) else told


def nothing(tensor: Tensor) -> None:
    return None


def of_ops(name: str) -> Callable[[Forward, int], Any]:
    """What the op table says of a row's gradients."""
    make = gradient_columns.OPS[name]
    return lambda forward, row: make(forward)[row]


def op_label(forward: Forward, row: int) -> str:
    return forward.labels.op[row]


def layer_label(forward: Forward, row: int) -> str:
    return forward.labels.layer[forward.groups.layer[row]]


def last_writer(forward: Forward, row: int) -> str | None:
    sources = (buffer_source(forward, version) for version in reversed(written(forward, row)))
    return next((source for source in sources if source is not None), None)


def labels_of(rows_of: Callable[[Forward, int], Sequence[int]]) -> Maker[Forward]:
    def one(forward: Forward, row: int) -> tuple[str, ...]:
        labels = forward.labels.op
        return tuple([labels[version] for version in rows_of(forward, row)])

    return per_buffer(one)


BUFFERS: Final[dict[str, Maker[Forward]]] = {
    "address": buffer(lambda tensor: tensor.address),
    "name": buffer(last_part),
    "all_addresses": buffer(names_of),
    "has_multiple_addresses": buffer(lambda tensor: bool(tensor.aliases)),
    "module_address": per_buffer(lambda forward, row: owner(forward, forward.words.buffers[row])),
    "all_module_addresses": per_buffer(lambda forward, row: owners(forward, forward.words.buffers[row])),
    "versions": labels_of(versions),
    "write_versions": labels_of(written),
    "num_versions": per_buffer(lambda forward, row: len(versions(forward, row))),
    "num_overwrites": per_buffer(lambda forward, row: len(written(forward, row))),
    "is_overwritten": per_buffer(lambda forward, row: bool(written(forward, row))),
    "label": newest(op_label, nothing),
    "layer_label": newest(layer_label, nothing),
    "buffer_pass": newest(lambda forward, row: forward.rows.slot[row], nothing),
    "buffer_source": per_buffer(last_writer),
    "shape": newest(lambda forward, row: forward.detail(row).brief.shape, lambda tensor: tensor.shape),
    "dtype": newest(lambda forward, row: forward.detail(row).brief.dtype, lambda tensor: tensor.dtype),
    "device_ref": newest(lambda forward, row: forward.detail(row).brief.device, lambda tensor: tensor.device),
    "activation_memory": per_buffer(buffer_bytes),
    "has_saved_activation": newest(lambda forward, row: forward.payload(row) is not None, lambda tensor: False),
    "module": newest(module_of, nothing),
    "modules": newest(modules_of, lambda tensor: ()),
    "has_grad": newest(of_ops("has_grad"), lambda tensor: False),
    "grad_shape": newest(of_ops("grad_shape"), nothing),
    "grad_dtype": newest(of_ops("grad_dtype"), nothing),
    "gradient_memory": newest(of_ops("gradient_memory"), lambda tensor: 0),
    # plumbing
    "version_rows": per_buffer(lambda forward, row: tuple(versions(forward, row))),
    "written_rows": per_buffer(lambda forward, row: tuple(written(forward, row))),
    "module_row": per_buffer(lambda forward, row: owner_row(forward, forward.words.buffers[row])),
}
"""How each column of the table of buffers is made, in order."""
