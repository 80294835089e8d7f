"""In which modules each autograd node belongs, and how that is known.

Reads  nodes paired with op rows; the module calls that ran, the modules that hold the parameters.
Gives  per node its modules, outermost first without the root, and ``paired``, ``inferred`` or None.
Rule   a node that is paired with an op belongs where that op ran, also at root level; one that gathers a gradient,
       where its parameter is held.
Rule   any other node that the forward made lies behind a paired one: it belongs where the nodes belong that lead to
       it, those of the loss left out. Where they disagree, and in front of the first paired node, nothing is said.
       What lies behind an input was made before the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, Literal, TypeAlias

from projections.autograd.pairing import Pairing
from projections.folds.graph import INPUT, NOWHERE
from projections.folds.vocabulary import Module
from projections.structure.rows import Calls

Membership: TypeAlias = Literal["paired", "inferred"]

NO_PLACE: Final = -1
UNSURE: Final = -2
ROOT: Final = 0
"""Numbers that stand for no place, for several that disagree, and for the root."""


class Containment:
    """The places of the nodes of one capture. A place is a number: of the same modules in each other the same.

    Args:
        pairing: The nodes and op rows.
        calls: The module calls.
        modules: The modules that the stream describes.
    """

    def __init__(self, pairing: Pairing, calls: Calls, modules: Sequence[Module]) -> None:
        self.pairing: Final = pairing
        self.calls: Final = calls
        self.modules: Final = modules
        self.outer = [NO_PLACE]  # by place
        self.module = [0]  # by place, the number of its module
        self.known: dict[tuple[int, int], int] = {}

    def inside(self, place: int, module: int) -> int:
        """The place of a module that lies in another place."""
        found = self.known.setdefault((place, module), len(self.outer))
        if found == len(self.outer):
            self.outer.append(place)
            self.module.append(module)
        return found

    @cached_property
    def of_calls(self) -> list[int]:
        """By module call, its place."""
        places: list[int] = []
        for parent, module in zip(self.calls.parent, self.calls.module, strict=True):
            places.append(ROOT if parent < 0 else self.inside(places[parent], module))
        return places

    @cached_property
    def of_modules(self) -> list[int]:
        """By module, its place among those that hold it. A module comes behind the one that holds it."""
        places: list[int] = []
        for number, module in enumerate(self.modules):
            places.append(ROOT if number == 0 else self.inside(places[module.parent or ROOT], number))
        return places

    def of_op(self, row: int) -> int:
        return self.of_calls[self.pairing.rows.call[row]] if len(self.calls) else ROOT

    @cached_property
    def anchors(self) -> list[int]:
        """By node, the place that is known by itself."""
        pairing, places = self.pairing, list[int]()
        for op, leaf, number in zip(pairing.op_of, pairing.leaf_ops, pairing.leaf_params, strict=True):
            if number != NOWHERE:
                module = pairing.parameters[number].module
                places.append(self.of_modules[module] if 0 <= module < len(self.modules) else NO_PLACE)
            elif op != NOWHERE or leaf != NOWHERE:
                places.append(self.of_op(leaf if op == NOWHERE else op))
            else:
                places.append(NO_PLACE)
        return places

    @cached_property
    def places(self) -> list[int]:
        """By node, its place."""
        return self.inherited(self.anchors)

    def inherited(self, own: Sequence[int]) -> list[int]:
        """By node its own number or, where it has none, the one on which those that lead to it agree.

        Each node is looked at when all that lead to it have been.
        """
        autograd, pairing = self.pairing.autograd, self.pairing
        numbers = list(own)
        waiting = autograd.parents.lengths()
        ready = [node for node, count in enumerate(waiting) if not count]
        for node in ready:
            op, number = pairing.op_of[node], numbers[node]
            is_input = op != NOWHERE and pairing.rows.function[op] == INPUT
            for child in autograd.children[node]:
                if number != NO_PLACE and own[child] == NO_PLACE and not is_input and not self.is_leaf(child):
                    numbers[child] = number if numbers[child] in (NO_PLACE, number) else UNSURE
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        return [NO_PLACE if number == UNSURE else number for number in numbers]

    def is_leaf(self, node: int) -> bool:
        """Whether it gathers the gradient of a leaf that is known."""
        return self.pairing.autograd.leaves[node] is not None

    def source(self, node: int) -> Membership | None:
        """How the place of a node is known; None where it is not."""
        if self.anchors[node] != NO_PLACE:
            return "paired"
        return None if self.places[node] == NO_PLACE else "inferred"

    def path(self, node: int) -> list[int]:
        """Numbers of the modules that a node lies in, outermost first, without the root."""
        found: list[int] = []
        place = self.places[node]
        while place > ROOT:
            found.append(self.module[place])
            place = self.outer[place]
        found.reverse()
        return found
