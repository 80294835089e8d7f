"""Which op each autograd node differentiates: nodes and op rows, joined by what ops said of their results.

Reads  the nodes of ``Autograd``; of op rows the node and output that their values stand at.
Gives  op rows by node and output, the one op of each node, the node of each op row; the rows of leaves.
Rule   rows whose values stand at one output of one node share it: what returns its argument as it is differentiates
       nothing of its own. Of several, a node's op is the first row of its lowest output.
Rule   an output has no part in this: it shows the value of the op that it was returned from.
Not    gradients (gradients.py), or modules (containment.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from projections.autograd.nodes import Autograd
from projections.errors import contradictory
from projections.folds.graph import NOWHERE, OUTPUT
from projections.folds.vocabulary import Tensor
from projections.structure.details import Details
from projections.structure.rows import Rows


class Pairing:
    """Nodes and op rows of one capture.

    Args:
        autograd: The nodes.
        rows: The op rows.
        details: What the events say of them.
        parameters: The parameters of the capture.
    """

    def __init__(self, autograd: Autograd, rows: Rows, details: Details, parameters: Sequence[Tensor]) -> None:
        self.autograd: Final = autograd
        self.rows: Final = rows
        self.parameters: Final = parameters
        self.at: dict[tuple[int, int], list[int]] = {}  # op rows by row of the node and its output
        self.node_of = [NOWHERE] * len(rows)  # by op row, outputs included
        self.op_of = [NOWHERE] * len(autograd)
        slots = [NOWHERE] * len(autograd)
        for row, (number, brief) in enumerate(zip(details.nodes, details.briefs, strict=True)):
            node = NOWHERE if number is None else autograd.row_of(number)
            if node == NOWHERE:
                continue
            self.node_of[row] = node
            slot = brief.grad_slot or 0
            if rows.function[row] == OUTPUT:
                continue
            self.at.setdefault((node, slot), []).append(row)
            if self.op_of[node] == NOWHERE or slot < slots[node]:
                self.op_of[node], slots[node] = row, slot

    @cached_property
    def leaf_params(self) -> list[int]:
        """By node, the parameter whose gradient it gathers; NOWHERE for none."""
        return [NOWHERE if leaf is None or leaf >= 0 else self.parameter(-1 - leaf) for leaf in self.autograd.leaves]

    def parameter(self, number: int) -> int:
        if number >= len(self.parameters):
            raise contradictory(f"a gradient is gathered for parameter {number}, which is not described")
        return number

    @cached_property
    def rows_of_leaves(self) -> dict[int, list[int]]:
        """By node that gathers the gradient of a leaf, not of a parameter, the op rows whose value that is."""
        gatherers: dict[int, list[int]] = {}
        for node, leaf in enumerate(self.autograd.leaves):
            if leaf is not None and leaf >= 0:
                gatherers.setdefault(leaf, []).append(node)
        found: dict[int, list[int]] = {}
        if gatherers:
            for row, value in enumerate(self.rows.value):
                if value in gatherers and self.rows.function[row] != OUTPUT:
                    found.setdefault(value, []).append(row)
        return {node: found[value] for value, nodes in gatherers.items() if value in found for node in nodes}

    @cached_property
    def leaf_ops(self) -> list[int]:
        """By node, the first of these; NOWHERE for none."""
        rows = self.rows_of_leaves
        return [rows[node][0] if node in rows else NOWHERE for node in range(len(self.autograd))]

    @cached_property
    def gatherers(self) -> dict[int, int]:
        """The node that gathers the gradient of each parameter; the first, should there be several."""
        made: dict[int, int] = {}
        for node, number in enumerate(self.leaf_params):
            if number != NOWHERE:
                made.setdefault(number, node)
        return made

    def ops_at(self, node: int, slot: int) -> Sequence[int]:
        """Op rows whose gradient arrives at an output of a node: those that stand there, else the leaf's."""
        found = self.at.get((node, slot))
        if found is not None:
            return found
        return () if slot else self.rows_of_leaves.get(node, ())
