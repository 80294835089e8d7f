"""Where gradients come from: along the edges of the autograd graph, towards the loss.

Reads  nodes, their edges and firings, as the backward fold has them. A node is a row of that fold.
Rule   what arrives at an output of a node was sent by the nodes one of whose edges leads there, and that fired before.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from projections.folds.backward import Backward

__all__ = ["Sending"]


class Sending:
    """Who sent gradients in one backward pass, up to an event.

    Args:
        state: The fold.
        number: The pass, from 0.
        before: Firings that an event from this one on tells do not count; None for all.
    """

    def __init__(self, state: Backward, number: int, before: int | None = None) -> None:
        self.state: Final = state
        self.fires: Final[dict[int, int]] = {}  # the last firing of each node
        for fire, firing in enumerate(state.firings()):
            if before is not None and firing.at >= before:
                break
            if firing.pass_number == number:
                self.fires[firing.node] = fire

    @cached_property
    def towards(self) -> dict[tuple[int, int], list[int]]:
        """By number and output of a node, those from which an edge leads there, each once."""
        state, made, node = self.state, dict[tuple[int, int], list[int]](), 0
        for edge in range(len(state.edges) // 2):
            while edge >= state.ends[node + 1]:
                node += 1
            found = made.setdefault((state.edges[2 * edge], state.edges[2 * edge + 1]), [])
            if not found or found[-1] != node:
                found.append(node)
        return made

    @cached_property
    def outputs(self) -> dict[int, list[int]]:
        """By number of a node, its outputs to which an edge leads."""
        made: dict[int, list[int]] = {}
        for number, slot in self.towards:
            made.setdefault(number, []).append(slot)
        return made

    def to(self, node: int, slot: int | None = None) -> list[int]:
        """The nodes that sent what arrived at an output of a node, or at all of them."""
        number = self.state.numbers[node]
        slots = self.outputs.get(number, []) if slot is None else [slot]
        found = dict.fromkeys(sender for each in slots for sender in self.towards.get((number, each), ()))
        return [sender for sender in found if sender in self.fires]
