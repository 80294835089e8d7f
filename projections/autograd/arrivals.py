"""Where gradients came: the backward passes in which one came to each place of autograd's graph, and to each op.

Reads  firings, observed gradients, and which op rows stand where (pairing.py).
Gives  ``Arrivals``.
Rule   a gradient came to an output of a node where the node fired and had one there, or where one was observed: what
       ``torch.autograd.grad`` returns is that of a node which does not fire. Whether it was kept is no matter.
Rule   it came to the op rows that stand there, or whose value is the leaf that the node gathers for. An output has
       none of its own.
Not    which were kept (gradients.py), or why there is none (records/absence.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from journal.events import NodeFired, Row
from projections.autograd.pairing import Pairing
from projections.errors import contradictory
from projections.folds.backward import FIRE_WIDTH, GRADIENT_WIDTH
from projections.folds.graph import NOWHERE
from projections.structure.details import field

MISSING: Final = field(NodeFired, "missing")

MOST: Final = 1 << 22
MOST_EACH: Final = 64
"""Firings that may be looked through for all ops together, and as many more for each firing and op row: those of one
node are looked through once for each of its outputs."""

Place: TypeAlias = "tuple[int, int]"
"""Row of a node and which of its outputs."""


class Arrivals:
    """The gradients that came, of one capture. Passes are counted from 0.

    Args:
        pairing: Nodes and op rows.
        scan: Gives the rows of some events, as ``Forward.scan`` does.
    """

    def __init__(self, pairing: Pairing, scan: Callable[[Sequence[int]], Iterable[tuple[int, Row]]]) -> None:
        self.pairing: Final = pairing
        self.autograd: Final = pairing.autograd
        self.scan: Final = scan

    @cached_property
    def missing(self) -> list[frozenset[int]]:
        """By firing, the outputs at which no gradient came."""
        made = [frozenset[int]()] * self.autograd.num_fires
        for fire, event in self.scan(self.autograd.state.fires[2::FIRE_WIDTH]):
            if event[MISSING]:
                made[fire] = frozenset(event[MISSING])
        return made

    @cached_property
    def observed(self) -> dict[Place, list[int]]:
        """By place, the passes in which a gradient was observed there."""
        autograd, found = self.autograd, dict[Place, list[int]]()
        nodes, passes, sides, slots = (autograd.state.gradients[number::GRADIENT_WIDTH] for number in range(4))
        for node, number, is_input, slot in zip(nodes, passes, sides, slots, strict=True):
            if not is_input:
                found.setdefault((autograd.rows[node], slot), []).append(number)
        return found

    def passes_at(self, place: Place) -> Iterator[int]:
        """Passes in which a gradient came to a place, some more than once."""
        node, slot = place
        for fire in self.autograd.fires_of[node]:
            if slot not in self.missing[fire]:
                yield self.autograd.fire_passes[fire]
        yield from self.observed.get(place, ())

    def first_at(self, place: Place, only: int | None = None) -> int:
        """One of them, of its first firing if it can be, or one pass if it is among them; NOWHERE for none."""
        return next((number for number in self.passes_at(place) if only is None or number == only), NOWHERE)

    @cached_property
    def of_op(self) -> list[tuple[int, ...]]:
        """By op row, the passes in which a gradient came to it, ascending."""
        made: list[tuple[int, ...]] = [()] * len(self.pairing.rows)
        weight, most = 0, MOST + MOST_EACH * (self.autograd.num_fires + len(made))
        for place, rows in self.places():
            weight += self.autograd.fires_of.length(place[0])
            if weight > most:
                raise contradictory("nodes fire more often at outputs of which each is an op's than any do")
            found = tuple(sorted(set(self.passes_at(place))))
            for row in rows:
                made[row] = found
        return made

    @cached_property
    def nodes(self) -> list[int]:
        """By op row, the node at which its gradients come: that of its value, or what gathers for it; NOWHERE for an
        output, and for an op to which none can come."""
        made = [NOWHERE] * len(self.pairing.rows)
        for (node, _), rows in self.places():
            for row in rows:
                made[row] = node
        return made

    def places(self) -> Iterator[tuple[Place, Sequence[int]]]:
        """The places of op rows, each with its rows."""
        yield from self.pairing.at.items()
        for node, rows in self.pairing.rows_of_leaves.items():
            if (node, 0) not in self.pairing.at:
                yield (node, 0), rows
