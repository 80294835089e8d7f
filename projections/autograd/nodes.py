"""The graph of autograd as backward passes told it, node by node in the order of their labels.

Reads  the state of the backward fold at one head.
Gives  the nodes as rows, with labels, edges and firings; passes and firings by number.
Rule   a label is ``{type}_back_{number of this type}_{number of all}``: the type is the class name without its
       ``Backward``, both numbers count every node. A firing is the label and how often that node fired by then.
Not    what a node has to do with the forward (pairing.py, containment.py), or gradients (gradients.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, TypeVar

from journal.events import PayloadRef
from projections.autograd.node_order import NOBODY, Creator, NodeOrder
from projections.columnar.sequences import Ragged
from projections.errors import contradictory
from projections.folds.backward import FIRE_WIDTH, GRADIENT_WIDTH, NODE_WIDTH, Backward, Like
from projections.folds.fold import Source
from projections.folds.graph import NOWHERE
from projections.folds.retention import Figures
from projections.structure.details import item_bytes

T = TypeVar("T")

BACKWARD: Final = re.compile(r"Backward\d*$")
"""What the class names of nodes end in."""

SPARSE: Final = 1 << 21
SPARSE_EACH: Final = 64
"""Places of outputs and inputs that the firings may have before the last one with a gradient, and as many more for
each event: one event may name a place far out."""


def type_of(class_name: str) -> str:
    """What a node is called in its label: ``AddmmBackward0`` is ``addmm``."""
    stem = BACKWARD.sub("", class_name, count=1) or class_name
    return re.sub(r"[^0-9a-z_]+", "_", stem.lower()).strip("_") or "node"


class Autograd:
    """Nodes, passes and firings of one capture. A node's row is its place in the order of labels.

    Args:
        source: The stream.
        state: What the fold made of the events; untouched by what is folded later.
        later: The same graph further on, which the nodes take their order and labels from; None where they are ordered
            and named by what is here.
    """

    def __init__(self, source: Source, state: Backward, later: Autograd | None = None) -> None:
        self.source = source
        self.state = state
        self.later = later
        self.num_passes: Final = len(state.steps)
        self.num_fires: Final = len(state.durations)

    def __len__(self) -> int:
        return len(self.state.numbers)

    # -- nodes

    @cached_property
    def order(self) -> NodeOrder:
        return NodeOrder(self.state, self.source)

    @cached_property
    def folded(self) -> list[int]:
        """By row, the row of the fold."""
        if self.later is not None:
            return [node for node in self.later.folded if node < len(self)]
        return self.order.numbering if any(self.state.nodes[2::NODE_WIDTH]) else list(range(len(self)))

    @cached_property
    def rows(self) -> list[int]:
        """By row of the fold, the row."""
        made = [0] * len(self)
        for row, node in enumerate(self.folded):
            made[node] = row
        return made

    def row_of(self, number: int) -> int:
        """Row of the node of a number; NOWHERE where no pass told it."""
        node = self.state.told.get(number, NOWHERE)
        return node if node == NOWHERE else self.rows[node]

    @cached_property
    def numbers(self) -> list[int]:
        return [self.state.numbers[node] for node in self.folded]

    @cached_property
    def kinds(self) -> list[int]:
        """By row, the number of its class."""
        kinds = self.state.nodes[0::NODE_WIDTH]
        return [kinds[node] for node in self.folded]

    @cached_property
    def leaves(self) -> list[int | None]:
        return [self.state.leaves[node] for node in self.folded]

    @cached_property
    def types(self) -> list[str]:
        """By number of a class, what its nodes are called."""
        return [type_of(name) for name, _, _ in self.state.classes]

    @cached_property
    def type_indexes(self) -> list[int]:
        """By row, the number among those of its type, from 1."""
        if self.later is not None:
            return self.named_later(self.later.type_indexes)
        types, counts = self.types, dict[str, int]()
        made: list[int] = []
        for kind in self.kinds:
            name = types[kind]
            index = counts[name] = counts.get(name, 0) + 1
            made.append(index)
        return made

    @cached_property
    def labels(self) -> list[str]:
        if self.later is not None:
            return self.named_later(self.later.labels)
        types = self.types
        return [
            f"{types[kind]}_back_{index}_{total}"
            for total, (kind, index) in enumerate(zip(self.kinds, self.type_indexes, strict=True), 1)
        ]

    def named_later(self, cells: Sequence[T]) -> list[T]:
        """By row, what stands in the cell of the same node further on."""
        assert self.later is not None
        rows = self.later.rows
        return [cells[rows[node]] for node in self.folded]

    @cached_property
    def told_by(self) -> list[int]:
        """By row, the pass that told it."""
        told = self.state.nodes[1::NODE_WIDTH]
        return [told[node] for node in self.folded]

    @cached_property
    def is_made(self) -> list[bool]:
        """By row, whether a pass made it."""
        made = self.state.nodes[2::NODE_WIDTH]
        return [bool(made[node]) for node in self.folded]

    @cached_property
    def orders(self) -> list[int | None]:
        """By row; None where it is not decidable."""
        orders = self.order.orders
        return [orders[node] for node in self.folded]

    def creator(self, row: int) -> Creator:
        """What made a node, as a row and a firing."""
        node, fire = self.order.creators.get(self.folded[row], NOBODY)
        return NOBODY if node == NOWHERE else Creator(self.rows[node], fire)

    # -- edges

    @cached_property
    def children(self) -> Ragged[int]:
        """Rows that each node's gradients flow on to, each once, in the order of its inputs."""
        state, items, ends = self.state, list[int](), [0]
        for node in self.folded:
            found = state.edges[2 * state.ends[node] : 2 * state.ends[node + 1] : 2]
            items += dict.fromkeys([row for number in found if (row := self.row_of(number)) != NOWHERE])
            ends.append(len(items))
        return Ragged(items, ends)

    @cached_property
    def parents(self) -> Ragged[int]:
        """Rows that each node's gradients come from, ascending."""
        children, count = self.children, len(self)
        ends = [0] * (count + 1)
        for child in children.items:
            ends[child + 1] += 1
        for row in range(count):
            ends[row + 1] += ends[row]
        fill, items = ends.copy(), [0] * len(children.items)
        for row, found in enumerate(children):
            for child in found:
                items[fill[child]] = row
                fill[child] += 1
        return Ragged(items, ends)

    def inputs_of(self, row: int) -> list[tuple[int, int] | None]:
        """By input of a node, where its gradient goes: to which output of which node; None where that is not told."""
        state, node = self.state, self.folded[row]
        flat = state.edges[2 * state.ends[node] : 2 * state.ends[node + 1]]
        found = ((self.row_of(number), slot) for number, slot in zip(flat[0::2], flat[1::2], strict=True))
        return [None if place[0] == NOWHERE else place for place in found]

    # -- firings

    @cached_property
    def fire_rows(self) -> list[int]:
        """By firing, the row of its node."""
        rows = self.rows
        return [rows[node] for node in self.state.fires[0::FIRE_WIDTH]]

    @cached_property
    def fire_passes(self) -> list[int]:
        return self.state.fires[1::FIRE_WIDTH]

    @cached_property
    def call_indexes(self) -> list[int]:
        """By firing, how often its node had fired by then."""
        counts = [0] * len(self)
        made: list[int] = []
        for row in self.fire_rows:
            counts[row] += 1
            made.append(counts[row])
        return made

    @cached_property
    def fires_of(self) -> Ragged[int]:
        """Firings of each node, in order."""
        return gathered(self.fire_rows, len(self))

    @cached_property
    def fires_in(self) -> Ragged[int]:
        """Firings of each pass, in order."""
        return gathered(self.fire_passes, self.num_passes)

    def call_label(self, fire: int) -> str:
        return f"{self.labels[self.fire_rows[fire]]}:{self.call_indexes[fire]}"

    @cached_property
    def call_labels(self) -> list[str]:
        """``call_label`` of every firing."""
        labels = self.labels
        return [f"{labels[row]}:{index}" for row, index in zip(self.fire_rows, self.call_indexes, strict=True)]

    # -- gradients, by firing

    @cached_property
    def payloads(self) -> list[PayloadRef | None]:
        """By observed gradient, where it was kept."""
        state = self.state
        made = state.payloads
        if state.kept_of:
            made = made.copy()
            for gradient, payload in zip(state.kept_of, state.kept, strict=True):
                made[gradient] = payload
        return made

    @cached_property
    def figures(self) -> dict[int, Figures | None]:
        """By observed gradient of which statistics were to be taken in place of a payload, these."""
        return dict(zip(self.state.measured_of, self.state.measured, strict=True))

    def gradient_fact(self, gradient: int, place: int) -> int:
        """A number of an observed gradient, as ``GRADIENT_WIDTH`` lists them."""
        return self.state.gradients[gradient * GRADIENT_WIDTH + place]

    def like(self, gradient: int) -> Like:
        """Shape, dtype and device of an observed gradient."""
        return self.state.likes[self.gradient_fact(gradient, 6)]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of a gradient by what it is like."""
        return [item_bytes(dtype, math.prod(shape)) for shape, dtype, _ in self.state.likes]

    def nbytes(self, gradient: int) -> int:
        """Bytes of an observed gradient."""
        return self.sizes[self.gradient_fact(gradient, 6)]

    @cached_property
    def fire_of(self) -> list[int]:
        """By observed gradient, its firing; NOWHERE where its node did not fire any more in that pass."""
        state = self.state
        made = [NOWHERE] * len(state.payloads)
        waiting: dict[tuple[int, int], list[int]] = {}
        nodes, passes, events = (state.gradients[place::GRADIENT_WIDTH] for place in (0, 1, 4))
        fired = iter(zip(*(state.fires[place::FIRE_WIDTH] for place in (2, 0, 1)), range(self.num_fires), strict=True))
        after = next(fired, None)
        for gradient, at in enumerate(events):
            while after is not None and after[0] < at:
                for one in waiting.pop((after[1], after[2]), ()):
                    made[one] = after[3]
                after = next(fired, None)
            waiting.setdefault((nodes[gradient], passes[gradient]), []).append(gradient)
        while after is not None:
            for one in waiting.pop((after[1], after[2]), ()):
                made[one] = after[3]
            after = next(fired, None)
        return made

    @cached_property
    def arrived(self) -> dict[int, dict[int, int]]:
        """By firing, the observed gradients at its node's outputs, by output; kept ones only."""
        return self.kept_at(is_input=False)

    @cached_property
    def left(self) -> dict[int, dict[int, int]]:
        """By firing, the observed gradients at its node's inputs, by input; kept ones only."""
        return self.kept_at(is_input=True)

    def kept_at(self, *, is_input: bool) -> dict[int, dict[int, int]]:
        kept = [gradient for gradient, payload in enumerate(self.payloads) if payload is not None]
        return self.by_firing(kept, is_input=is_input)

    @cached_property
    def arrived_measured(self) -> dict[int, dict[int, int]]:
        """As ``arrived``, those of which statistics were taken."""
        return self.by_firing(self.figures, is_input=False)

    @cached_property
    def left_measured(self) -> dict[int, dict[int, int]]:
        """As ``left``, those of which statistics were taken."""
        return self.by_firing(self.figures, is_input=True)

    def by_firing(self, gradients: Iterable[int], *, is_input: bool) -> dict[int, dict[int, int]]:
        state, made = self.state, dict[int, dict[int, int]]()
        sides, slots = state.gradients[2::GRADIENT_WIDTH], state.gradients[3::GRADIENT_WIDTH]
        fire_of = self.fire_of if state.payloads else []
        for gradient in gradients:
            fire = fire_of[gradient]
            if fire != NOWHERE and sides[gradient] == is_input:
                made.setdefault(fire, {})[slots[gradient]] = gradient
        places = sum([1 + max(found) for found in made.values()])
        if places > SPARSE + SPARSE_EACH * (len(self) + self.num_fires + len(slots)):
            raise contradictory("gradients stand at places of nodes far beyond those that any has")
        return made


def gathered(owners: list[int], count: int) -> Ragged[int]:
    """The places of each owner, in order."""
    ends = [0] * (count + 1)
    for owner in owners:
        ends[owner + 1] += 1
    for owner in range(count):
        ends[owner + 1] += ends[owner]
    fill, items = ends.copy(), [0] * len(owners)
    for place, owner in enumerate(owners):
        items[fill[owner]] = place
        fill[owner] += 1
    return Ragged(items, ends)
