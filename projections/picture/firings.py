"""Which autograd nodes a picture is of, and when they fired: of all backward passes, or of those that are chosen.

Reads  the columns of the tables of grad_fns, their calls and backward passes.
Rule   a backward pass shows the nodes that fired in it and those that it was the first to meet, fired or not.
Rule   which passes a node fired in is said where several are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from projections.build import CaptureTables
from projections.picture.texts import ranges

SEEN: Final = ("ok", "error")
"""Statuses of passes of which every firing is known."""


class Firings:
    """By autograd node, its firings in the passes that are drawn.

    Args:
        tables: The records.
        passes: Numbers of the passes, from 1; None for all.

    Attributes:
        drawn: By node, whether it is drawn.
        passes: By node the passes that it fired in, once for each firing.
    """

    def __init__(self, tables: CaptureTables, passes: frozenset[int] | None) -> None:
        calls = tables.grad_fn_calls
        self.nodes: Final = tables.grad_fns
        self.number: Final[Sequence[int]] = calls.column("backward_pass_index")
        self.is_saved: Final[Sequence[bool]] = calls.column("is_saved")
        self.call_rows: Final[Sequence[Sequence[int]]] = self.nodes.column("call_rows")
        every = range(1, len(tables.backward_passes) + 1)
        self.asked: Final = frozenset(every if passes is None else passes)
        self.passes: Final = [
            tuple([self.number[call] for call in rows if self.number[call] in self.asked]) for rows in self.call_rows
        ]
        told_by: Sequence[int] = self.nodes.column("pass_row")
        self.drawn: Final = [
            passes is None or bool(fired) or told + 1 in self.asked
            for fired, told in zip(self.passes, told_by, strict=True)
        ]
        statuses: Sequence[str] = tables.backward_passes.column("status")
        self.is_all_known: Final = all(statuses[number - 1] in SEEN for number in self.asked)

    def count(self, rows: Sequence[int]) -> int:
        """How often some nodes fired."""
        return sum([len(self.passes[row]) for row in rows])

    def has_saved(self, row: int) -> bool:
        """Whether gradients of some firing were kept."""
        return any(self.is_saved[call] and self.number[call] in self.asked for call in self.call_rows[row])

    def line(self, rows: Sequence[int]) -> str | None:
        """What there is to say of when some nodes fired."""
        found = {number for row in rows for number in self.passes[row]}
        if found:
            if len(self.asked) < 2:
                return None
            return f"fired in backward pass{'es' if len(found) > 1 else ''} {ranges(found)}"
        if any(self.call_rows[row] for row in rows):
            return "fired in other passes alone"
        return "never fired" if self.is_all_known else "not seen to fire"
