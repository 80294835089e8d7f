"""Final labels, from layers in order.

Reads  op rows, their layers and passes.
Gives  layer and op labels, long and short.
Rule   ``{type}_{number within type}_{number among op layers}``; pseudo-ops have no second number. A layer
       takes its numbers at its first pass. A pass is named only where there are several.
Not    the other texts that people may type for an op (records/keys.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from projections.folds.graph import BUFFER_FUSED, BUFFER_READ, BUFFER_WRITTEN, IDENTITY, INPUT, OPAQUE, OUTPUT
from projections.structure.grouping import Groups
from projections.structure.rows import Rows, is_op

COMMUTATIVE: Final = {
    "__radd__": "add",
    "__rmul__": "mul",
    "__rand__": "and",
    "__ror__": "or",
    "__rxor__": "xor",
}
"""Reflected operators that give what the plain one gives."""

PSEUDO: Final = {
    INPUT: "input",
    OUTPUT: "output",
    BUFFER_READ: "buffer",
    BUFFER_WRITTEN: "buffer",
    BUFFER_FUSED: "buffer",
}
"""Layer types of rows that are no call."""


def layer_type(func_name: str) -> str:
    """The type in a label: ``max_pool2d`` gives ``maxpool2d``, ``__radd__`` gives ``add``."""
    if func_name in COMMUTATIVE:
        return COMMUTATIVE[func_name]
    if func_name == "data":  # reading the property cuts the tensor from its graph
        return "detach"
    return func_name.replace("_", "").lower() or func_name


IN_PLACE_OPERATORS: Final = frozenset(
    f"__{name}__"
    for name in (
        "iadd iand idiv ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor setitem".split()
    )
)


def in_place_name(func_name: str) -> bool:
    """Whether a function writes to its first argument, told by its name: ``relu_``, ``__iadd__``."""
    return func_name in IN_PLACE_OPERATORS or (func_name.endswith("_") and not func_name.endswith("__"))


class Names:
    """Function names and layer types by the number in an op row's ``function`` column."""

    def __init__(self, functions: Sequence[str], opaque: Sequence[str]) -> None:
        self.functions = functions
        self.opaque = opaque
        self.types = [layer_type(name) for name in functions]
        self.in_place = [in_place_name(name) for name in functions]

    def func_name(self, function: int) -> str:
        if function >= 0:
            return self.functions[function]
        if function <= OPAQUE:
            return self.opaque[OPAQUE - function]
        return "identity" if function in (IDENTITY, BUFFER_WRITTEN) else "none"

    def layer_type(self, function: int) -> str:
        if function >= 0:
            return self.types[function]
        return PSEUDO.get(function) or layer_type(self.func_name(function))


@attrs.define(slots=True, eq=False)
class Labels:
    """Labels and what they are made of."""

    layer: Sequence[str]  # per layer
    layer_short: Sequence[str]
    type: Sequence[str]
    type_index: Sequence[int]
    op: Sequence[str]  # per op row

    def first(self, num_layers: int, num_ops: int) -> Labels:
        """Those of the first layers and op rows."""
        return Labels(
            self.layer[:num_layers],
            self.layer_short[:num_layers],
            self.type[:num_layers],
            self.type_index[:num_layers],
            self.op[:num_ops],
        )


def label(rows: Rows, groups: Groups, names: Names) -> Labels:
    """Name every layer and op."""
    layers: list[str] = []
    shorts: list[str] = []
    types: list[str] = []
    indices: list[int] = []
    counts: dict[str, int] = {}
    pseudo: dict[str, int] = {}
    total = 0
    function = rows.function
    for row in groups.first:
        number = function[row]
        kind = names.layer_type(number)
        if is_op(number):
            total += 1
            index = counts[kind] = counts.get(kind, 0) + 1
            short = f"{kind}_{index}"
            layers.append(f"{short}_{total}")
        else:
            index = pseudo[kind] = pseudo.get(kind, 0) + 1
            short = f"{kind}_{index}"
            layers.append(short)
        shorts.append(short)
        types.append(kind)
        indices.append(index)
    passes = groups.passes
    ops = [
        layers[layer] if passes[layer] == 1 else f"{layers[layer]}:{index}"
        for layer, index in zip(groups.layer, groups.pass_index, strict=True)
    ]
    return Labels(layers, shorts, types, indices, ops)
