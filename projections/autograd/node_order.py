"""Who made which autograd node: creators, orders, and the order in which nodes are numbered.

Reads  the state of the backward fold, and what its events tell of operators that the engine called.
Gives  per node its creator and order; the nodes in the order of their labels.
Rule   a node that the engine made under ``create_graph`` belongs to the firing in whose span its number lies, else to
       the node that ran when the engine called the operator of it; where two could have made it, to none. Its order
       is that of its creator and one more. All other nodes are of order 1: user code made them.
Note   a pass tells what it made breadth first from its gradients: what a node made may stand before that node.
Rule   nodes are numbered as they were found. Those that a pass made follow where it told them: firing by firing,
       each firing's breadth first from the gradients that it gave, one by one in the order of the creator's inputs;
       last those of an unknown creator.
Note   nodes that a nested pass finds were made in the open, unless their numbers lie within the span of a firing of a
       pass around it that made a graph.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from operator import le
from typing import Final, NamedTuple

from journal.events import MakersSeen, PassOpened
from projections.folds.backward import FIRE_WIDTH, NODE_WIDTH, PASS_WIDTH, Backward
from projections.folds.fold import Source
from projections.folds.graph import NOWHERE
from projections.structure.details import field
from projections.structure.made_first import makers_first
from projections.structure.rows import pairs

CREATE_GRAPH: Final = field(PassOpened, "create_graph")
ENTRIES: Final = field(MakersSeen, "entries")

SEVERAL: Final = -2
"""Stands for a firing where several could be meant."""


class Creator(NamedTuple):
    """What made a node, as rows of the fold; NOWHERE where that is not known."""

    node: int
    fire: int


NOBODY: Final = Creator(NOWHERE, NOWHERE)


class Spans:
    """Which firing of a pass each number of a node lies in.

    Args:
        windows: First number and the one behind the last, and the firing.
    """

    def __init__(self, windows: Sequence[tuple[int, int, int]]) -> None:
        bounds = sorted(
            [*((first, 1, fire) for first, _, fire in windows), *((end, -1, fire) for _, end, fire in windows)]
        )
        self.points: list[int] = []
        self.owners: list[int] = []
        count = total = 0  # of the firings that are open, so that one alone is the total
        for point, change, fire in bounds:
            count += change
            total += change * fire
            owner = NOWHERE if count == 0 else total if count == 1 else SEVERAL
            if self.points and self.points[-1] == point:
                self.owners[-1] = owner
            else:
                self.points.append(point)
                self.owners.append(owner)

    def owner(self, number: int) -> int:
        """The firing, NOWHERE for none, SEVERAL where spans overlap."""
        place = bisect_right(self.points, number) - 1
        return self.owners[place] if place >= 0 else NOWHERE


class NodeOrder:
    """Creators, orders and numbering of the nodes of one capture. Nodes and firings are rows of the fold.

    Args:
        state: What the fold made of the events.
        source: The stream.

    Attributes:
        creators: By node that the engine made.
        orders: By node; None where it is not decidable.
        numbering: The nodes in the order of their labels.
    """

    def __init__(self, state: Backward, source: Source) -> None:
        self.state = state
        self.source = source
        self.spans: dict[int, Spans] = {}
        self.fires_of: dict[int, list[int]] = {}
        for fire, number in enumerate(state.fires[1::FIRE_WIDTH]):
            self.fires_of.setdefault(number, []).append(fire)
        self.makes_graph: dict[int, bool] = {}
        self.seen: dict[int, list[int]] = {}  # by pass, the events that tell which node ran
        for number, event in pairs(state.makers):
            self.seen.setdefault(number, []).append(event)
        self.creators = dict(self.found_creators())
        self.orders = self.orders_of()
        self.numbering = self.numbers()

    def spans_of(self, number: int) -> Spans:
        spans = self.spans.get(number)
        if spans is None:
            windows = [
                (*window, fire)
                for fire in self.fires_of.get(number, ())
                if (window := self.state.windows[fire]) is not None and window[0] < window[1]
            ]
            spans = self.spans[number] = Spans(windows)
        return spans

    def node_of(self, fire: int) -> int:
        return self.state.fires[fire * FIRE_WIDTH]

    def found_creators(self) -> Iterator[tuple[int, Creator]]:
        """Each node that the engine made under ``create_graph``, with what made it."""
        state = self.state
        outer, pass_of, is_made = state.passes[2::PASS_WIDTH], state.nodes[1::NODE_WIDTH], state.nodes[2::NODE_WIDTH]
        calls: dict[int, Operators] = {}
        for node, (number, made, sequence) in enumerate(zip(pass_of, is_made, state.sequences, strict=True)):
            if made:
                if number not in calls:
                    calls[number] = Operators(self, number)
                yield node, self.maker(number, sequence, calls[number])
            elif outer[number] != NOWHERE and sequence is not None:
                around, fire = outer[number], NOWHERE
                while around != NOWHERE:
                    fire = self.spans_of(around).owner(sequence)
                    if fire != NOWHERE:
                        break
                    around = outer[around]
                if around != NOWHERE and self.has_graph(around):
                    yield node, NOBODY if fire == SEVERAL else Creator(self.node_of(fire), fire)

    def has_graph(self, number: int) -> bool:
        """Whether a pass was run under ``create_graph``."""
        known = self.makes_graph.get(number)
        if known is None:
            event = self.source.row(self.state.passes[number * PASS_WIDTH])
            known = self.makes_graph[number] = bool(event[CREATE_GRAPH])
        return known

    def maker(self, number: int, sequence: int | None, calls: Operators) -> Creator:
        """What made a node under a pass."""
        if sequence is None:
            return NOBODY
        fire = self.spans_of(number).owner(sequence)
        if fire == NOWHERE:
            return calls.maker(sequence)
        return NOBODY if fire == SEVERAL else Creator(self.node_of(fire), fire)

    def orders_of(self) -> list[int | None]:
        orders: list[int | None] = [None] * len(self.state.numbers)
        makers = [NOWHERE] * len(orders)
        for node, creator in self.creators.items():
            makers[node] = creator.node
        for node in makers_first(makers):
            if node not in self.creators:
                orders[node] = 1
            elif makers[node] != NOWHERE and (before := orders[makers[node]]) is not None:
                orders[node] = before + 1
        return orders

    def numbers(self) -> list[int]:
        state = self.state
        pass_of, is_made = state.nodes[1::NODE_WIDTH], state.nodes[2::NODE_WIDTH]
        made: dict[int, list[int]] = {}
        for node, number in enumerate(pass_of):
            if is_made[node]:
                made.setdefault(number, []).append(node)
        numbered: list[int] = []
        for node, number in enumerate(pass_of):
            if not is_made[node]:
                numbered.append(node)
            elif made[number][0] == node:
                numbered += MadeNodes(self, made[number])
        return numbered

    def behind(self, node: int) -> list[int]:
        """The nodes that a node's inputs come from, in order; NOWHERE for one that was not told."""
        state = self.state
        numbers = state.edges[2 * state.ends[node] : 2 * state.ends[node + 1] : 2]
        return [state.told.get(number, NOWHERE) for number in numbers]


class MadeNodes:
    """The nodes that one pass made, in the order of their labels.

    Args:
        order: What is known of the nodes.
        nodes: Those of the pass, as it told them.
    """

    def __init__(self, order: NodeOrder, nodes: Sequence[int]) -> None:
        self.nodes: Final = nodes
        self.order: Final = order
        self.creators: Final = order.creators
        self.taken: dict[int, list[int]] = {}  # by node, the nodes that made what leads to it in other firings
        self.inner: dict[int, list[int]] = {}  # by node, those of its own firing behind it
        self.is_inner: set[int] = set()
        own = set(nodes)
        for node in nodes:
            mine = self.inner[node] = []
            for towards in order.behind(node):
                if towards in own and self.creators[towards] == self.creators[node]:
                    mine.append(towards)
                    self.is_inner.add(towards)
                elif towards in own:
                    self.taken.setdefault(towards, []).append(self.creators[node].node)
        self.inputs: dict[int, dict[int, int]] = {}  # by node that made some, its inputs by where they come from

    def __iter__(self) -> Iterator[int]:
        by_creator: dict[Creator, list[int]] = {}
        for node in self.nodes:
            by_creator.setdefault(self.creators[node], []).append(node)
        known = sorted([creator for creator in by_creator if creator.fire >= 0], key=lambda creator: creator.fire)
        unfired = [creator for creator in by_creator if creator.fire < 0 <= creator.node]
        for creator in (*known, *unfired):
            yield from self.breadth_first(creator.node, by_creator[creator])
        yield from by_creator.get(NOBODY, ())

    def breadth_first(self, creator: int, nodes: Sequence[int]) -> list[int]:
        """The nodes of one firing, gradient by gradient in the order of the creator's inputs."""
        gradients = [node for node in nodes if node not in self.is_inner]
        if len(gradients) > 1:
            gradients.sort(key=lambda node: self.input_of(creator, node))
        reached: dict[int, None] = {}
        for gradient in gradients:
            reached[gradient] = None
            queue = [gradient]
            for node in queue:
                for towards in self.inner[node]:
                    if towards not in reached:
                        reached[towards] = None
                        queue.append(towards)
        return [*reached, *[node for node in nodes if node not in reached]]

    def input_of(self, creator: int, gradient: int) -> float:
        """At which input of its creator a gradient left: that which comes from the node that took it. Else the last."""
        inputs = self.inputs.get(creator)
        if inputs is None:
            inputs = self.inputs[creator] = {}
            for place, towards in enumerate(self.order.behind(creator)):
                inputs.setdefault(towards, place)
        return min([inputs[node] for node in self.taken.get(gradient, ()) if node in inputs], default=inf)


class Operators:
    """The operators that the engine called during a pass, with the node that ran.

    Args:
        order: What is known of the nodes.
        number: The pass.
    """

    def __init__(self, order: NodeOrder, number: int) -> None:
        self.numbers: list[int] = []
        self.ran: list[int | None] = []
        for event in order.seen.get(number, ()):
            for sequence, node in order.source.row(event)[ENTRIES]:
                self.numbers.append(sequence)
                self.ran.append(node)
        # Of several threads, each with numbers of its own, none can be told from another.
        self.is_one_thread = all(map(le, self.numbers, self.numbers[1:]))
        self.told = order.state.told
        self.fires = {order.node_of(fire): fire for fire in order.fires_of.get(number, ())}

    def maker(self, sequence: int) -> Creator:
        """What ran when the node with this number was made."""
        place = bisect_right(self.numbers, sequence) if self.is_one_thread else len(self.numbers)
        ran = self.ran[place] if place < len(self.numbers) else None
        node = NOWHERE if ran is None else self.told.get(ran, NOWHERE)
        return NOBODY if node == NOWHERE else Creator(node, self.fires.get(node, NOWHERE))
