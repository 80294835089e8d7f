"""What backward passes made of each place in autograd's graph: whether a gradient came there, and if not, why.

Reads  autograd's graph, which op and leaf stands where, where gradients came (``projections.autograd``), and
       how passes began and ended.
Gives  ``Passed``, the ``Flow`` that ``absence.py`` asks.
Rule   a place is an output of a node. A pass leads to what edges lead to from its roots; of a run that nobody asked
       torch for, from the places that gradients came to.
Rule   of several passes the one that came furthest counts: a gradient that came, then one that was not given, then a
       pass that ended before, then one that did not need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, TypeAlias

from projections.autograd.arrivals import Place
from projections.folds.graph import NOWHERE
from projections.forward import Forward
from projections.records.absence import Met, PassFacts
from projections.records.passes import (
    ACCUMULATES,
    INPUTS,
    IS_TRANSIENT,
    MESSAGE,
    ROOTS,
    closed,
    opened,
    raised_in,
    status,
)

FREED: Final = "backward through the graph a second time"
"""Part of what torch says of a graph whose saved tensors are gone."""

NOT_IMPLEMENTED: Final = "NotImplemented"
"""Class of the node that stands for an operator without a derivative; it raises when it fires."""

Kind: TypeAlias = Literal["whole", "partial", "ended"]
"""Of a pass: it came to everything that it leads to; it was asked for some of it; it ended before."""

UNMET: Final = Met("unmet")


class Passed:
    """What the passes of one capture made of its graph.

    Args:
        forward: The capture.
        only: The one pass that is asked about, from 0; None for all together.
    """

    def __init__(self, forward: Forward, only: int | None = None) -> None:
        self.only: Final = only
        self.forward: Final = forward
        self.autograd: Final = forward.autograd
        self.arrivals: Final = forward.arrivals
        self.has_passes: Final = self.autograd.num_passes > 0

    # -- what is asked

    def has_gradient(self, row: int) -> bool:
        return self.has_passes and self.is_any(self.forward.gradients.saved_of_op.get(self.forward.origin(row), ()))

    def has_increment(self, parameter: int) -> bool:
        return self.has_passes and self.is_any(self.forward.gradients.of_param.get(parameter, ()))

    def is_any(self, records: Sequence[int]) -> bool:
        """Whether some of a thing's records are of what is asked about."""
        if self.only is None:
            return bool(records)
        owned = self.forward.gradients.owned
        return any(self.autograd.gradient_fact(owned[record].gradient, 1) == self.only for record in records)

    def met(self, row: int) -> Met:
        if not self.has_passes:
            return UNMET
        node = self.forward.pairing.node_of[row]
        if node != NOWHERE:
            return self.at((node, self.forward.detail(row).brief.grad_slot or 0))
        leaf = self.leaves.get(row, NOWHERE)
        return UNMET if leaf == NOWHERE else self.at((leaf, 0))

    def met_leaf(self, parameter: int) -> Met:
        node = self.forward.pairing.gatherers.get(parameter, NOWHERE) if self.has_passes else NOWHERE
        return UNMET if node == NOWHERE else self.at((node, 0))

    # -- places

    def at(self, place: Place) -> Met:
        """What was made of a place."""
        number = self.came.get(place, NOWHERE)
        if number != NOWHERE:
            return Met("arrived", number)
        whole, ended, partial = (self.leads[kind].get(place, NOWHERE) for kind in ("whole", "ended", "partial"))
        number = max(whole, ended, partial)
        if number != NOWHERE and self.fires(place[0]):
            return self.withheld(place, number)
        if whole == NOWHERE and ended != NOWHERE:
            return self.ended(ended)
        return UNMET if number == NOWHERE else Met("unasked", number)

    def fires(self, node: int) -> bool:
        if self.only is None:
            return self.autograd.fires_of.length(node) > 0
        return any(self.autograd.fire_passes[fire] == self.only for fire in self.autograd.fires_of[node])

    @cached_property
    def leaves(self) -> dict[int, int]:
        """By op row, the node that gathers the gradient of its value, a leaf that is no parameter."""
        return {row: node for node, rows in self.forward.pairing.rows_of_leaves.items() for row in rows}

    @cached_property
    def came(self) -> dict[Place, int]:
        """The places that edges lead to, or that are named, at which a gradient came; and a pass in which one did."""
        wanted = (*self.places, *self.arrivals.observed)
        found = ((place, self.arrivals.first_at(place, self.only)) for place in dict.fromkeys(wanted))
        return {place: number for place, number in found if number != NOWHERE}

    @cached_property
    def places(self) -> frozenset[Place]:
        """Every place that an edge or a root leads to, or that the value of an op row stands at."""
        ops = self.forward.pairing.at
        edges = (place for places in self.edges for place in places)
        roots = (place for number in range(self.autograd.num_passes) for place in self.named(number))
        return frozenset((*ops, *edges, *roots))

    # -- edges

    @cached_property
    def edges(self) -> list[tuple[Place, ...]]:
        """By node, the places that its gradients go on to."""
        autograd, state = self.autograd, self.autograd.state
        made: list[tuple[Place, ...]] = []
        for node in autograd.folded:
            flat = state.edges[2 * state.ends[node] : 2 * state.ends[node + 1]]
            pairs = zip(flat[0::2], flat[1::2], strict=True)
            made.append(tuple([(row, slot) for number, slot in pairs if (row := autograd.row_of(number)) != NOWHERE]))
        return made

    @cached_property
    def sources(self) -> dict[Place, list[int]]:
        """By place, the nodes whose gradients come there."""
        made: dict[Place, list[int]] = {}
        for node, places in enumerate(self.edges):
            for place in places:
                made.setdefault(place, []).append(node)
        return made

    # -- passes

    @cached_property
    def leads(self) -> dict[Kind, dict[Place, int]]:
        """By kind of pass, the places that one of them leads to, and the first that does."""
        made: dict[Kind, dict[Place, int]] = {"whole": {}, "ended": {}, "partial": {}}
        seen: dict[Kind, set[int]] = {"whole": set(), "ended": set(), "partial": set()}
        for number in range(self.autograd.num_passes) if self.only is None else (self.only,):
            kind = self.kind(number)
            self.follow(number, made[kind], seen[kind])
        return made

    def follow(self, number: int, found: dict[Place, int], seen: set[int]) -> None:
        """Add what a pass leads to, and was not led to before.

        Args:
            number: The pass.
            found: Places, and the pass that led to each first.
            seen: Nodes whose edges were followed.
        """
        waiting = list(self.starts(number))
        while waiting:
            place = waiting.pop()
            found.setdefault(place, number)
            if place[0] not in seen:
                seen.add(place[0])
                waiting += self.edges[place[0]]

    def kind(self, number: int) -> Kind:
        if status(self.forward, number) != "ok":
            return "ended"
        event = opened(self.forward, number)
        return "whole" if event[INPUTS] is None and event[ACCUMULATES] else "partial"

    def starts(self, number: int) -> Iterable[Place]:
        """Where a pass begins."""
        return self.named(number) or self.fired(number)

    def named(self, number: int) -> list[Place]:
        """Its roots."""
        edges = [edge for edge, _ in opened(self.forward, number)[ROOTS] if edge is not None]
        return [(row, slot) for node, slot in edges if (row := self.autograd.row_of(node)) != NOWHERE]

    def fired(self, number: int) -> Iterator[Place]:
        """The places at which gradients came in it."""
        firings: Sequence[int] = self.autograd.fires_in[number]
        nodes = {self.autograd.fire_rows[fire]: fire for fire in firings}
        for place in self.forward.pairing.at:
            fire = nodes.get(place[0])
            if fire is not None and place[1] not in self.arrivals.missing[fire]:
                yield place
        for node in nodes:
            yield from self.edges[node]

    # -- why not

    def withheld(self, place: Place, number: int) -> Met:
        """A pass leads to a place, and no gradient came: what stands behind it gave none."""
        waiting, seen = [place], {place[0]}
        while waiting:
            for node in self.sources.get(waiting.pop(), ()):
                if any((node, slot) in self.came for slot in self.outputs(node)):
                    return Met("nothing", number, self.forward.pairing.op_of[node])
                if node not in seen:
                    seen.add(node)
                    waiting += [(node, slot) for slot in self.outputs(node)]
        return Met("unasked", number)

    def outputs(self, node: int) -> Sequence[int]:
        """The outputs of a node that anything leads to."""
        return self.known_outputs.get(node, ())

    @cached_property
    def known_outputs(self) -> dict[int, list[int]]:
        made: dict[int, list[int]] = {}
        for node, slot in self.places:
            made.setdefault(node, []).append(slot)
        return made

    def ended(self, number: int) -> Met:
        """A pass leads there, and did not come to its end."""
        event = closed(self.forward, number)
        if event is not None and FREED in (event[MESSAGE] or ""):
            return Met("freed", number)
        raised = raised_in(self.forward, number)
        if raised != NOWHERE and self.autograd.state.classes[self.autograd.kinds[raised]][0] == NOT_IMPLEMENTED:
            return Met("nothing", number, self.forward.pairing.op_of[raised])
        return Met("failed", number)

    def facts(self, number: int) -> PassFacts:
        """What a pass was asked for, and where it ended."""
        event, node = opened(self.forward, number), raised_in(self.forward, number)
        return PassFacts(
            raised_in=None if node == NOWHERE else self.autograd.labels[node],
            is_transient=event[IS_TRANSIENT],
            accumulates=event[ACCUMULATES],
            names_inputs=event[INPUTS] is not None,
        )
