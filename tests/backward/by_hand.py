"""Backward passes written by hand: the events of one over a small model, with what is to be odd about it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import nn

import torchlens as tl
from journal.events import (
    GradientObserved,
    NodeFired,
    NodesFound,
    PassFinalized,
    PassJournaled,
    PassOpened,
    PassScavenged,
)
from journal.events.backward import ClosedBy, GraphNode, Trigger
from journal.events.capture import Frame
from journal.events.forward import PayloadRef
from journal.protocol import StreamWriter

BUILTIN = "builtins"


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


class Hand:
    """Appends passes to the stream of a trace of ``small_model``, summed up to a loss.

    Args:
        trace: Of one row of two numbers, captured in memory or into a journal.
    """

    FIRING = ("sum", "second", "second.bias", "relu", "second.t", "second.weight", "first", "first.bias", "first.t")
    LAST = ("first.weight",)
    ORDER = FIRING + LAST

    def __init__(self, trace: tl.Trace) -> None:
        self.trace = trace
        ops = {name: trace.ops[label] for name, label in OPS.items()}
        self.numbers = {name: op.autograd.grad_fn_object_id for name, op in ops.items()}
        others = [name for name in self.ORDER if name not in self.numbers]
        start = 1 + max(number for number in self.numbers.values() if number is not None)
        self.numbers |= {name: start + place for place, name in enumerate(others)}
        self.passes = 0
        self.found: set[str] = set()

    def number(self, name: str) -> int:
        found = self.numbers[name]
        assert found is not None
        return found

    def node(self, name: str) -> GraphNode:
        kind, towards, leaf = GRAPH[name]
        edges = tuple([None if other is None else (self.number(other), 0) for other in towards])
        gathers = leaf is not None
        return (
            self.number(name),
            kind,
            f"{BUILTIN}.{kind}",
            False,
            edges,
            None if leaf is None else -1 - self.trace.params[leaf].row,
            None if gathers else self.number(name),
        )

    def write(
        self,
        *,
        trigger: Trigger = "backward",
        frame: Frame | None = ("loop.py", 7, "step", "Loop.step", 3, 4),
        policy: str | None = "True",
        keeps: Sequence[str] = ("first", "relu", "second"),
        fires: Sequence[str] = ORDER,
        roots: Sequence[str] = ("sum",),
        missing: Sequence[str] = (),
        closed_by: ClosedBy = "trigger_return",
        exception: str | None = None,
        parent: int | None = None,
        accumulates: bool = True,
        value: float = 1.0,
        has_bytes: bool = True,
    ) -> int:
        """Append one pass; its number, from 1."""
        writer = self.trace.journal.continue_stream(self.trace.stream)
        number = self.passes
        self.passes += 1
        writer.append(
            PassOpened(
                pass_number=number,
                trigger=trigger,
                frame=frame,
                policy=policy,
                parent=parent,
                thread="MainThread",
                task=number,
                roots=tuple([((self.number(name), 0), ((), "float32", "cpu")) for name in roots]),
                seeds=(None,) * len(roots),
                inputs=None,
                retain_graph=True,
                create_graph=False,
                accumulates=accumulates,
                is_transient=False,
                has_census=False,
            )
        )
        new = [name for name in self.ORDER if name not in self.found]
        self.found.update(new)
        if new:
            nodes = tuple(map(self.node, new))
            writer.append(NodesFound(pass_number=number, nodes=nodes, is_cut=False))
        for name in fires:
            payload = self.payload(writer, name, value, has_bytes=has_bytes) if name in keeps else None
            self.fire(writer, number, name, payload, is_missing=name in missing)
        writer.append(
            PassJournaled(
                pass_number=number,
                closed_by=closed_by,
                drain_queued=False,
                exception=exception,
                message=None if exception is None else "no further",
                raised_in=None,
                incomplete_reason=None,
                peak_memory=None,
            )
        )
        writer.append(PassScavenged(pass_number=number))
        writer.append(PassFinalized(pass_number=number))
        writer.close()
        return number + 1

    def payload(self, writer: StreamWriter, name: str, value: float, *, has_bytes: bool) -> PayloadRef:
        """A gradient of nothing but this value, or the number of one that another process holds."""
        count = torch.Size(SHAPES[name]).numel()
        number = writer.keep(struct.pack(f"<{count}f", *[value] * count)) if has_bytes else writer.reserve()
        return number, 0, None

    def fire(
        self, writer: StreamWriter, number: int, name: str, payload: PayloadRef | None, *, is_missing: bool
    ) -> None:
        is_leaf = GRAPH[name][2] is not None
        if not is_missing and (is_leaf or payload is not None):
            writer.append(
                GradientObserved(
                    pass_number=number,
                    node=self.number(name),
                    side="output",
                    slot=0,
                    like=(SHAPES[name], "float32", "cpu"),
                    payload=payload,
                )
            )
        writer.append(
            NodeFired(
                pass_number=number,
                node=self.number(name),
                duration_ns=1000,
                missing=(0,) if is_missing else (),
                sequence=None,
            )
        )


OPS = {"first": "linear_1_1", "relu": "relu_1_2", "second": "linear_2_3"}

GRAPH: dict[str, tuple[str, tuple[str | None, ...], str | None]] = {
    "sum": ("SumBackward0", ("second",), None),
    "second": ("AddmmBackward0", ("second.bias", "relu", "second.t"), None),
    "second.bias": ("AccumulateGrad", (), "2.bias"),
    "relu": ("ReluBackward0", ("first",), None),
    "second.t": ("TBackward0", ("second.weight",), None),
    "second.weight": ("AccumulateGrad", (), "2.weight"),
    "first": ("AddmmBackward0", ("first.bias", None, "first.t"), None),
    "first.bias": ("AccumulateGrad", (), "0.bias"),
    "first.t": ("TBackward0", ("first.weight",), None),
    "first.weight": ("AccumulateGrad", (), "0.weight"),
}
"""Class, what it leads to, and the parameter whose gradient it gathers, of each node."""

SHAPES: dict[str, tuple[int, ...]] = {
    "first": (1, 3),
    "relu": (1, 3),
    "second": (1, 1),
    "second.bias": (1,),
    "second.weight": (1, 3),
    "first.bias": (3,),
    "first.weight": (3, 2),
}
"""Of the gradients that arrive."""
