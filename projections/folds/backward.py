"""The backward diary, folded: passes, autograd nodes with their edges, firings, gradients, and how passes closed.

Reads  the events of ``journal/events/backward.py``, in order.
Gives  one row per pass, per node, per firing, per observed gradient and per dispatched operator, as flat numbers.
Rule   what a pass tells names passes and nodes that were told before; a pass closes in the order of its machine. What
       breaks that is refused.
Note   hooks on other threads may run when a pass is closed already: what is observed then counts.
Not    labels and their order, or whose gradient it is (``projections.autograd``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from journal.events import (
    BackwardDispatched,
    EngineEntered,
    GradientKept,
    GradientObserved,
    GradientStatisticsTaken,
    MakersSeen,
    NodeFired,
    NodesFound,
    NodesMade,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
    PayloadRef,
)
from projections.errors import contradictory
from projections.folds.fold import Fold
from projections.folds.graph import NOWHERE
from projections.folds.retention import Figures, plain_figures, plain_ref
from projections.folds.split import Moves, appended, first_of, moves, overwritten

PASS_WIDTH: Final = 4
"""Numbers per pass: its event, the time of that, the pass around it, how many are around that."""

NODE_WIDTH: Final = 4
"""Numbers per node: its class, the pass that told it, whether that made it, the event."""

FIRE_WIDTH: Final = 4
"""Numbers per firing: node row, pass, event, time at which it began."""

GRADIENT_WIDTH: Final = 7
"""Numbers per observed gradient: node row, pass, whether at an input, slot, event, time, what it is like."""

DISPATCHED_WIDTH: Final = 3
"""Numbers per operator that ran in a pass: the pass, the row of the node that ran or NOWHERE, the event."""

NESTED: Final = 1 << 9
"""How many passes may be inside each other: who made a node is looked for in all that are around it."""

OPEN, JOURNALED, SCAVENGED, FINALIZED = range(4)
"""How far the close of a pass has come."""

Class: TypeAlias = "tuple[str, str, bool]"
"""Class of a node: name, qualified name, whether it is of a Python ``autograd.Function``."""

Like: TypeAlias = "tuple[tuple[int, ...], str, str]"
"""Shape, dtype, device."""


class Firing(NamedTuple):
    """A firing, by its numbers."""

    node: int  # row of the fold
    pass_number: int
    at: int  # number of its event
    time_ns: int  # at which it began


class Observed(NamedTuple):
    """An observed gradient, by its numbers."""

    node: int  # row of the fold
    pass_number: int
    is_input: int  # 0 at an output of the node, 1 at an input
    slot: int
    at: int  # number of its event
    time_ns: int
    like: int


@attrs.define(slots=True)
class Backward:
    """What the backward fold has made so far."""

    passes: list[int] = appended("backward_passes", width=PASS_WIDTH)
    steps: list[int] = overwritten(log="stepped")  # by pass, how far its close has come
    stepped: Moves = moves()
    closed: list[int] = appended(width=3)  # pass, event and time of the first step of its close
    entered: list[int] = appended(width=2)  # pass, graph task of the engine
    numbers: list[int] = appended("grad_fns")  # of the nodes, in the order in which they were told
    told: dict[int, int] = first_of("numbers")
    nodes: list[int] = appended(width=NODE_WIDTH)
    classes: list[Class] = appended()
    class_numbers: dict[Class, int] = first_of("classes")
    leaves: list[int | None] = appended()  # by node, the leaf whose gradient it gathers
    sequences: list[int | None] = appended()  # by node, its number on the thread that made it
    edges: list[int] = appended(width=2)  # number of a node and of its output; NOWHERE twice where none is needed
    ends: list[int] = appended(start=(0,))  # edges of node row r: those from ends[r] up to ends[r + 1]
    cuts: list[int] = appended()  # passes whose walk was cut
    fires: list[int] = appended("grad_fn_calls", width=FIRE_WIDTH)
    durations: list[int | None] = appended()  # by firing
    windows: list[tuple[int, int] | None] = appended()  # by firing, numbers of the nodes that were made meanwhile
    gradients: list[int] = appended("observed_gradients", width=GRADIENT_WIDTH)
    payloads: list[PayloadRef | None] = appended()  # by observed gradient
    likes: list[Like] = appended()
    like_numbers: dict[Like, int] = first_of("likes")
    kept_of: list[int] = appended()  # an observed gradient
    kept: list[PayloadRef] = appended()  # of the one at the same place
    measured_of: list[int] = appended()  # an observed gradient
    measured: list[Figures | None] = appended()  # statistics of the one at the same place
    makers: list[int] = appended(width=2)  # pass, event that tells which node ran when
    dispatched: list[int] = appended("dispatched_ops", width=DISPATCHED_WIDTH)

    def firing(self, fire: int) -> Firing:
        """One firing."""
        return Firing(*self.fires[fire * FIRE_WIDTH : (fire + 1) * FIRE_WIDTH])

    def firings(self) -> Iterator[Firing]:
        """Every firing, in order."""
        return map(Firing, *(self.fires[place::FIRE_WIDTH] for place in range(FIRE_WIDTH)))

    def gradient(self, gradient: int) -> Observed:
        """One observed gradient."""
        return Observed(*self.gradients[gradient * GRADIENT_WIDTH : (gradient + 1) * GRADIENT_WIDTH])

    def observed(self) -> Iterator[Observed]:
        """Every observed gradient, in order."""
        return map(Observed, *(self.gradients[place::GRADIENT_WIDTH] for place in range(GRADIENT_WIDTH)))

    def opened_at(self, number: int) -> int:
        """Number of the event that opened a pass."""
        return self.passes[number * PASS_WIDTH]

    def frozen(self) -> Backward:
        """As it stands now, untouched by what is folded later."""
        made = Backward()
        for field in attrs.fields(Backward):
            value = getattr(self, field.name)
            if value:
                setattr(made, field.name, value.copy())
        return made


def require_pass(backward: Backward, number: int) -> None:
    if not 0 <= number < len(backward.steps):
        raise contradictory(f"backward pass {number} was not opened")


def require_unfinished(backward: Backward, number: int) -> None:
    """A pass that was opened and not finalized: hooks on other threads may tell something while it is closed."""
    require_pass(backward, number)
    if backward.steps[number] == FINALIZED:
        raise contradictory(f"something is told of backward pass {number} after it was finalized")


def require_node(backward: Backward, number: int) -> int:
    """The row of a node."""
    row = backward.told.get(number)
    if row is None:
        raise contradictory(f"autograd node {number} was not told")
    return row


def step(backward: Backward, at: int, number: int, to: int) -> None:
    """Take the close of a pass one step further; the log has where it was before."""
    require_pass(backward, number)
    before = backward.steps[number]
    if before != to - 1:
        raise contradictory(f"backward pass {number} takes a step of its close out of turn")
    if number in backward.stepped:
        backward.stepped[number].append((at, before))
    else:
        backward.stepped[number] = [(at, before)]
    backward.steps[number] = to


def pass_opened(
    backward: Backward,
    at: int,
    type_id: int,
    time_ns: int,
    pass_number: int,
    _trigger: str,
    _frame: Any,
    _policy: str | None,
    parent: int | None,
    _thread: str,
    task: int | None,
    *_rest: Any,
) -> None:
    if pass_number != len(backward.steps):
        raise contradictory(f"backward pass {pass_number} is opened as number {len(backward.steps)}")
    if parent is not None and not 0 <= parent < pass_number:
        raise contradictory(f"backward pass {pass_number} lies in {parent}, which was not opened before it")
    depth = 0 if parent is None else backward.passes[(parent + 1) * PASS_WIDTH - 1] + 1
    if depth >= NESTED:
        raise contradictory(f"more than {NESTED} backward passes are inside each other")
    backward.passes += (at, time_ns, NOWHERE if parent is None else parent, depth)
    backward.steps.append(OPEN)
    if task is not None:
        backward.entered += (pass_number, task)


def engine_entered(backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int, task: int) -> None:
    require_unfinished(backward, pass_number)
    backward.entered += (pass_number, task)


def nodes_found(
    backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int, nodes: tuple[Any, ...], is_cut: bool
) -> None:
    add_nodes(backward, at, pass_number, nodes, is_made=False)
    if is_cut:
        backward.cuts.append(pass_number)


def nodes_made(
    backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int, nodes: tuple[Any, ...]
) -> None:
    add_nodes(backward, at, pass_number, nodes, is_made=True)


def add_nodes(backward: Backward, at: int, pass_number: int, nodes: tuple[Any, ...], *, is_made: bool) -> None:
    require_pass(backward, pass_number)
    for number, name, qualname, is_custom, edges, leaf, sequence in nodes:
        row = len(backward.numbers)
        if number < 0 or backward.told.setdefault(number, row) != row:
            raise contradictory(f"autograd node {number} is told twice, or is none")
        kind = backward.class_numbers.setdefault((name, qualname, is_custom), len(backward.classes))
        if kind == len(backward.classes):
            backward.classes.append((name, qualname, is_custom))
        backward.nodes += (kind, pass_number, is_made, at)
        backward.leaves.append(leaf)
        backward.sequences.append(sequence)
        for edge in edges:
            if edge is None:
                backward.edges += (NOWHERE, NOWHERE)
            else:
                towards, slot = edge
                if towards < 0 or slot < 0:
                    raise contradictory(f"an edge of autograd node {number} leads nowhere")
                backward.edges += (towards, slot)
        backward.ends.append(len(backward.edges) // 2)
        backward.numbers.append(number)


def node_fired(
    backward: Backward,
    at: int,
    type_id: int,
    time_ns: int,
    pass_number: int,
    node: int,
    duration_ns: int | None,
    _missing: tuple[int, ...],
    sequence: tuple[int, int] | None,
) -> None:
    require_unfinished(backward, pass_number)
    backward.fires += (require_node(backward, node), pass_number, at, time_ns)
    backward.durations.append(duration_ns)
    if sequence is not None:
        first, behind = sequence
        sequence = (first, behind)
    backward.windows.append(sequence)


def gradient_observed(
    backward: Backward,
    at: int,
    type_id: int,
    time_ns: int,
    pass_number: int,
    node: int,
    side: str,
    slot: int,
    like: tuple[Any, str, str],
    payload: Any,
) -> None:
    require_unfinished(backward, pass_number)
    if slot < 0:
        raise contradictory(f"a gradient at autograd node {node} has no place there")
    row = require_node(backward, node)
    shape, dtype, device = like
    known = (tuple(shape), dtype, device)
    number = backward.like_numbers.setdefault(known, len(backward.likes))
    if number == len(backward.likes):
        backward.likes.append(known)
    backward.gradients += (row, pass_number, side == "input", slot, at, time_ns, number)
    backward.payloads.append(None if payload is None else plain_ref(payload))


def gradient_kept(backward: Backward, at: int, type_id: int, time_ns: int, of: int, payload: Any) -> None:
    place = gradient_of(backward, of)
    backward.kept.append(plain_ref(payload))
    backward.kept_of.append(place)


def gradient_statistics_taken(backward: Backward, at: int, type_id: int, time_ns: int, of: int, figures: Any) -> None:
    place = gradient_of(backward, of)
    backward.measured.append(plain_figures(figures))
    backward.measured_of.append(place)


def gradient_of(backward: Backward, event: int) -> int:
    """Which observed gradient an event told of."""
    gradients = backward.gradients
    count = len(gradients) // GRADIENT_WIDTH
    place = bisect_left(range(count), event, key=lambda gradient: gradients[gradient * GRADIENT_WIDTH + 4])
    if place == count or gradients[place * GRADIENT_WIDTH + 4] != event:
        raise contradictory(f"a gradient is kept that event {event} does not tell of")
    return place


def makers_seen(backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int, _entries: Any) -> None:
    require_pass(backward, pass_number)
    backward.makers += (pass_number, at)


def backward_dispatched(
    backward: Backward,
    at: int,
    type_id: int,
    time_ns: int,
    pass_number: int,
    _operator: str,
    node: int | None,
    is_elsewhere: bool,
    *_rest: Any,
) -> None:
    require_unfinished(backward, pass_number)
    if node is not None and is_elsewhere:
        raise contradictory(f"autograd node {node} is said to belong to another capture")
    backward.dispatched += (pass_number, NOWHERE if node is None else require_node(backward, node), at)


def pass_journaled(backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int, *_rest: Any) -> None:
    step(backward, at, pass_number, JOURNALED)
    backward.closed += (pass_number, at, time_ns)


def pass_scavenged(backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int) -> None:
    step(backward, at, pass_number, SCAVENGED)


def pass_finalized(backward: Backward, at: int, type_id: int, time_ns: int, pass_number: int) -> None:
    step(backward, at, pass_number, FINALIZED)


BACKWARD: Final = Fold(
    "backward",
    version=2,
    initial=Backward,
    handlers={
        PassOpened: pass_opened,
        EngineEntered: engine_entered,
        NodesFound: nodes_found,
        NodeFired: node_fired,
        GradientObserved: gradient_observed,
        GradientKept: gradient_kept,
        GradientStatisticsTaken: gradient_statistics_taken,
        NodesMade: nodes_made,
        MakersSeen: makers_seen,
        BackwardDispatched: backward_dispatched,
        PassJournaled: pass_journaled,
        PassScavenged: pass_scavenged,
        PassFinalized: pass_finalized,
    },
)
