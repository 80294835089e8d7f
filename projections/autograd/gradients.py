"""Gradients as records: one for each time that an op's gradient was saved or a parameter's was added to.

Reads  observed gradients, and which op rows and parameters they belong to.
Gives  ``Gradients``, in order and by owner.
Rule   an op has a record for each gradient that was kept, or of which statistics were taken in its place, at the output
       of the node that its value stands at; rows that share it have one each. An output has none: its gradient is that
       of the op that it was returned from.
Rule   a parameter has one, kept or not, for each firing of the node that gathers its gradient.
Not    the columns that tell of them (records/gradient_columns.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from projections.autograd.pairing import Pairing
from projections.errors import contradictory
from projections.folds.backward import GRADIENT_WIDTH
from projections.folds.graph import NOWHERE

SPREAD: Final = 1 << 21
SPREAD_EACH: Final = 64
"""Records there may be, and as many more for each event and op row: rows that share a gradient have one each."""


class Owned(NamedTuple):
    """A record: an observed gradient, and whose it is."""

    gradient: int
    op: int  # NOWHERE for a parameter's
    param: int  # NOWHERE for an op's
    ordinal: int  # which of its owner


class Gradients:
    """The records of one capture, in the order of their events.

    Args:
        pairing: Nodes and op rows.
    """

    def __init__(self, pairing: Pairing) -> None:
        self.pairing: Final = pairing
        self.autograd: Final = pairing.autograd
        self.owned: list[Owned] = []
        self.of_op: dict[int, list[int]] = {}  # records by op row
        self.saved_of_op: dict[int, list[int]] = {}  # of them those whose payload was kept
        self.of_param: dict[int, list[int]] = {}
        autograd, state, owned = self.autograd, self.autograd.state, self.owned
        nodes, _, sides, slots = (state.gradients[place::GRADIENT_WIDTH] for place in range(4))
        rows, leaf_params, payloads, fire_of = autograd.rows, pairing.leaf_params, autograd.payloads, autograd.fire_of
        measured = autograd.figures
        most = SPREAD + SPREAD_EACH * (len(slots) + len(pairing.rows))
        for gradient, (node, is_input, slot) in enumerate(zip(nodes, sides, slots, strict=True)):
            if is_input:
                continue
            row = rows[node]
            param = leaf_params[row]
            if param != NOWHERE:
                if fire_of[gradient] != NOWHERE:
                    of = self.of_param.setdefault(param, [])
                    of.append(len(owned))
                    owned.append(Owned(gradient, NOWHERE, param, len(of) - 1))
            elif payloads[gradient] is not None or gradient in measured:
                ops = pairing.ops_at(row, slot)
                if len(owned) + len(ops) > most:
                    raise contradictory(f"{len(ops)} results stand at one output of an autograd node")
                for op in ops:
                    of = self.of_op.setdefault(op, [])
                    of.append(len(owned))
                    if payloads[gradient] is not None:
                        self.saved_of_op.setdefault(op, []).append(len(owned))
                    owned.append(Owned(gradient, op, NOWHERE, len(of) - 1))

    def __len__(self) -> int:
        return len(self.owned)
