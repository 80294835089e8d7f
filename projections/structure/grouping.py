"""Layers: ops that are the same code run more than once.

Reads  the kept op rows, in order, and whose call each ran in.
Gives  the layer and pass of each op; layers stand in the order of their first pass.
Rule   two ops share a layer when module, call site, function name and output slot agree. Inputs and
       outputs are never grouped. A buffer that is read is grouped by buffer, a written one by buffer and
       the layer of the op that wrote it. An op without a call site (``identity``, or the result of an
       unwatched call) is grouped by module, name and slot.
Not    labels (labels.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from projections.folds.graph import BUFFER_FUSED, BUFFER_READ, IDENTITY, NOWHERE
from projections.structure.rows import Rows


@attrs.define(slots=True, eq=False)
class Groups:
    """Layers as numbers."""

    layer: Sequence[int]  # per op row
    pass_index: Sequence[int]  # per op row, from 1
    passes: Sequence[int]  # per layer: how many
    first: Sequence[int]  # per layer: op row of its first pass


def group(rows: Rows, module_of_call: Sequence[int], same_name: Sequence[int]) -> Groups:
    """Put op rows into layers.

    Args:
        rows: The kept rows.
        module_of_call: Number of the called module, per module call.
        same_name: Per function number, the first function of the same name.
    """
    layers: list[int] = []
    indices: list[int] = []
    passes: list[int] = []
    first: list[int] = []
    found: dict[tuple[int, int, int, int], int] = {}
    known = found.setdefault
    for row, (function, site, call, slot) in enumerate(
        zip(rows.function, rows.site, rows.call, rows.slot, strict=True)
    ):
        new = len(passes)
        if function >= 0:
            layer = known((module_of_call[call], site, same_name[function], slot), new)
        elif function <= IDENTITY:
            module = module_of_call[call] if call < len(module_of_call) else NOWHERE
            layer = known((module, NOWHERE, function, slot), new)
        elif function == BUFFER_READ:
            layer = known((NOWHERE, site, BUFFER_READ, 0), new)
        elif BUFFER_FUSED <= function < BUFFER_READ:
            writers = rows.parents[row]
            layer = known((NOWHERE, site, BUFFER_FUSED, layers[writers[0]] if writers else NOWHERE), new)
        else:
            layer = new
        layers.append(layer)
        if layer == new:
            passes.append(1)
            first.append(row)
            indices.append(1)
        else:
            passes[layer] += 1
            indices.append(passes[layer])
    return Groups(layers, indices, passes, first)
