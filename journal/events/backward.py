"""The backward diary: runs of the autograd engine, nodes of the graph, their firings, gradients, and how passes closed.

A pass is one run of the engine. Passes are numbered by `PassOpened`, autograd nodes on from those that the forward
told (``DESCRIPTION``: "grad_node"). The events of a pass that was opened during another one stand within that one's.
Nodes that exist only because a saved activation was copied are in none of these events, and edges lead past them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from journal.events.base import At, Event, Plain, event
from journal.events.capture import Frame
from journal.events.forward import PayloadRef

Trigger: TypeAlias = Literal["backward", "recording_backward", "autograd_backward", "autograd_grad", "implicit"]

ClosedBy: TypeAlias = Literal["trigger_return", "engine_drain", "sync_point", "engine_error"]

Side: TypeAlias = Literal["output", "input"]
"""Of a node as the forward made it: at its outputs gradients arrive, at its inputs they leave."""

Edge: TypeAlias = tuple[int, int]
"""Number of an autograd node, and which of its outputs."""

GraphNode: TypeAlias = tuple[int, str, str, bool, tuple[Edge | None, ...], int | None, int | None]
"""An autograd node: number; class name; qualified class name; whether it is of a Python ``autograd.Function``; where
its inputs come from, None for one that needs no gradient, and for a node of another capture or behind a cut; for a
node that gathers the gradient of a leaf, that leaf as in ``OpExecuted.inputs``, None where this capture does not know
it; its sequence number on the thread that made it, None for one that gathers."""

TensorLike: TypeAlias = tuple[tuple[int, ...], str, str]
"""Shape, dtype, device."""

Operand: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@event("pass_opened", version=1)
class PassOpened(Event):
    """The engine is about to run, or, of an implicit pass, has begun to, over nodes of this capture.

    The nodes that it names are told by the `NodesFound` that follow.
    """

    pass_number: int  # 0, 1, 2, ... in order of this event
    trigger: Trigger
    frame: Frame | None  # where it was asked for through the trace
    policy: str | None  # which gradients are kept, as text; None for none
    parent: int | None  # the innermost pass of this capture that ran already
    thread: str  # name of the thread that asked
    task: int | None  # number of the engine's graph task; None while it is not known, see `EngineEntered`
    roots: tuple[tuple[Edge | None, TensorLike], ...]  # () for an implicit pass
    seeds: tuple[TensorLike | None, ...]  # the gradients that were given for the roots; None where torch makes ones
    inputs: tuple[Edge | None, ...] | None  # what ``inputs=`` named; None without it
    retain_graph: bool
    create_graph: bool
    accumulates: bool  # into the ``.grad`` of leaves; ``torch.autograd.grad`` does not
    is_transient: bool  # its gradients live only while a transform runs, as batched ones do: none is kept
    has_census: bool  # every operator that the dispatcher runs for it is told (`BackwardDispatched`)


@event("nodes_found", version=1)
class NodesFound(Event):
    """Nodes that no event has told yet, breadth first from the roots; of a large graph, the next part of them."""

    pass_number: int
    nodes: tuple[GraphNode, ...]
    is_cut: bool  # the graph goes on, and was not walked further


@event("engine_entered", version=1)
class EngineEntered(Event):
    """The first node of a pass that was opened before the engine ran is about to fire."""

    pass_number: int
    task: int  # process-wide, one for each run of the engine


@event("backward_dispatched", version=1)
class BackwardDispatched(Event):
    """The dispatcher ran an operator while the engine ran a pass, or for the pass as it opened.

    Where gradients meet, the operator that adds one to those that came before belongs to the node that brought it, and
    may be told behind the `NodeFired` of its firing; what else runs in a firing precedes that. Torch makes the gradient
    of a root that was given none before the engine runs: in no node, or in one of the run around this one, of which it
    is told then.
    """

    pass_number: int
    operator: str  # with its overload: "aten.mm.default"
    node: int | None  # the node that the engine executed; None where it executed none that this capture was told of
    is_elsewhere: bool  # whether the engine executed a node that belongs to another capture
    grad_enabled: bool
    inputs: tuple[Operand, ...]  # the tensors among its arguments, in order, also those within a list
    outputs: tuple[Operand, ...]
    settings: tuple[Plain, ...] | None  # its other arguments, in order, where its work depends on them: of convolutions


@event("node_fired", version=1)
class NodeFired(Event):
    """The engine ran a node. The time of the event is that at which it began.

    The span holds the node's own work and what hooks of the user's ran after ours, nested runs of the engine included.
    """

    pass_number: int
    node: int
    duration_ns: int | None  # None where only its beginning was seen
    missing: tuple[int, ...]  # the outputs at which no gradient arrived
    sequence: tuple[int, int] | None  # numbers of the nodes made meanwhile: first, and behind the last; see `NodesMade`


@event("gradient_observed", version=1)
class GradientObserved(Event):
    """A gradient that the request keeps, or that a leaf got, passed a node, or was returned by ``torch.autograd.grad``.

    It precedes the `NodeFired` of its firing. A gradient at a node that did not fire in its pass was returned.
    """

    pass_number: int
    node: int
    side: Side
    slot: int
    like: TensorLike
    payload: PayloadRef | None  # None where it is not kept, or kept when the engine has ended (`GradientKept`)


@event("gradient_kept", version=1)
class GradientKept(Event):
    """A gradient that waited on its device was kept when the engine had ended."""

    of: At  # the `GradientObserved`
    payload: PayloadRef


@event("nodes_made", version=1)
class NodesMade(Event):
    """Nodes that came to be while the engine ran under ``create_graph``, breadth first from the gradients it gave."""

    pass_number: int
    nodes: tuple[GraphNode, ...]


@event("makers_seen", version=1)
class MakersSeen(Event):
    """Which node ran whenever the engine called an operator under ``create_graph``.

    The numbers are those of the next node at that moment: a node belongs to the first entry with a larger number, where
    it lies within the span of no firing.
    """

    pass_number: int
    entries: tuple[tuple[int, int | None], ...]  # sequence number, node that ran


@event("pass_journaled", version=1)
class PassJournaled(Event):
    """The pass has ended: the first step of its close, and what led to it."""

    pass_number: int
    closed_by: ClosedBy
    drain_queued: bool  # the engine was asked to tell its end, which it does unless it fails
    exception: str | None  # qualified class name of what the engine raised
    message: str | None
    raised_in: int | None  # the node that ran then
    incomplete_reason: str | None  # what kept the rest of it from being recorded; None where nothing did
    peak_memory: int | None  # bytes allocated on the accelerator at most, beyond what was before; None without one


@event("pass_scavenged", version=1)
class PassScavenged(Event):
    """What the pass had left in the engine was taken out: hooks, gradients on devices, nodes that it made."""

    pass_number: int


@event("pass_finalized", version=1)
class PassFinalized(Event):
    """Everything that this process had to say of the pass is appended."""

    pass_number: int
