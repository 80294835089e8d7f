"""The op that each autograd node works for: that which it differentiates, else that whose call made it on the way.

Reads  the columns of the tables of grad_fns and ops.
Rule   the op that stands at a node comes first; an inner node, at which none stands, is its call's.
Not    how either is found (autograd/pairing.py, autograd/inner_nodes.py). ``Forward.charged_op`` says the same
       of a node in the midst of the fold, where there are no columns yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from projections.build import CaptureTables
from projections.folds.graph import NOWHERE


def charged_ops(tables: CaptureTables) -> list[int]:
    """By autograd node the row of its op, NOWHERE for what works for none."""
    nodes, ops = tables.grad_fns, tables.ops
    paired: Sequence[int] = nodes.column("op_row")
    inner: Sequence[str | None] = nodes.column("inner_of")
    rows = {label: row for row, label in enumerate(ops.column("label"))} if any(inner) else {}
    found = [rows.get(label, NOWHERE) if row == NOWHERE else row for row, label in zip(paired, inner, strict=True)]
    return [row if 0 <= row < len(ops) else NOWHERE for row in found]
