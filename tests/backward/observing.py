"""What tests of the writing side look at: the events of backward passes, and gradients by torch alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import torchlens as tl
from journal.events import (
    Event,
    GradientKept,
    GradientObserved,
    NodeFired,
    NodesFound,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from torchlens.handles import Handles

Kind = TypeVar("Kind", bound=Event)

CLOSES = (PassJournaled, PassScavenged, PassFinalized)


def events_of(trace: tl.Trace, kind: type[Kind], of: int | None = None) -> list[Kind]:
    """The events of one kind, of one pass or of all."""
    found = [stamped.event for stamped in trace.events() if isinstance(stamped.event, kind)]
    return [event for event in found if of is None or getattr(event, "pass_number", None) == of]


def names(trace: tl.Trace) -> dict[int, str]:
    """Class name of each node that was found."""
    return {row[0]: row[1] for event in events_of(trace, NodesFound) for row in event.nodes}


def fired(trace: tl.Trace, of: int | None = None) -> list[str]:
    """Class names of the nodes that fired, in order."""
    known = names(trace)
    return [known[event.node] for event in events_of(trace, NodeFired, of)]


def kept(trace: tl.Trace, of: int = 0) -> dict[tuple[int, int], Tensor]:
    """The kept gradient by node and output, of one pass."""
    return {
        (event.node, event.slot): gradient_of(trace, event)
        for event in events_of(trace, GradientObserved, of)
        if event.payload is not None
    }


def gradient_of(trace: tl.Trace, event: GradientObserved) -> Tensor:
    assert event.payload is not None
    made: Tensor = trace.kept((event.payload, tuple(event.like[0]), event.like[1]))
    return made


def live_edges(trace: tl.Trace) -> dict[tuple[int, int], Any]:
    """The live node of each op's output, by node number and output."""
    handles = trace.handles
    assert isinstance(handles, Handles)
    found: dict[tuple[int, int], Any] = {}
    ops = trace.tables.ops
    for node, slot in zip(ops.column("grad_fn_object_id"), ops.column("grad_slot"), strict=True):
        if node is not None:
            found[node, slot] = handles.node(node)
    return found


def require_closed_in_order(trace: tl.Trace) -> None:
    """Each pass is journaled, scavenged and finalized exactly once, in this order, after it was opened."""
    steps: dict[int, list[type[Event]]] = {}
    for stamped in trace.events():
        event = stamped.event
        if isinstance(event, (PassOpened, *CLOSES)):
            steps.setdefault(event.pass_number, []).append(type(event))
    assert all(kinds == [PassOpened, *CLOSES] for kinds in steps.values()), steps
    assert list(steps) == list(range(len(steps)))


def require_fired_once(trace: tl.Trace) -> None:
    """No node fires twice in a pass, and what fires was found."""
    fires = Counter((event.pass_number, event.node) for event in events_of(trace, NodeFired))
    assert max(fires.values(), default=1) == 1
    assert {node for _, node in fires} <= names(trace).keys() | {
        row[0] for stamped in trace.events() for row in getattr(stamped.event, "nodes", ())
    }


def parameter_gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def same(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether two gradients have the same bits."""
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and left.dtype == right.dtype and bool(torch.equal(left, right))


def gradients_kept_later(trace: tl.Trace) -> Iterator[GradientKept]:
    yield from events_of(trace, GradientKept)
