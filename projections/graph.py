"""Op rows and their edges, as numbers: who was made from whom, inside which module call.

Reads  InputSeen, ConstantSeen, BufferSeen, BufferWritten, OpExecuted, BranchTaken, module calls, and how
       the forward ended; in order.
Gives  one row per input, result of a call, buffer version and output, in capture order, with the rows
       it was made from; one row per module call, with the rows that went in and came out.
Rule   a value stands at the row that made it; a module that hands one of its inputs through gets an
       ``identity`` row when it is left, and from then on the value stands there.
Not    labels (labels.py), layers (grouping.py), or anything that needs an event's larger fields: those
       are read from the event itself when somebody asks (forward.py).
"""

from __future__ import annotations

from typing import Any, Final

from journal.events import (
    BranchTaken,
    BufferSeen,
    BufferWritten,
    ConstantSeen,
    ForwardHalted,
    ForwardReturned,
    InputSeen,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    OpExecuted,
    ValueReread,
)
from projections.errors import contradictory
from projections.fold import Fold

INPUT: Final = -1
OUTPUT: Final = -2
BUFFER_READ: Final = -3
BUFFER_WRITTEN: Final = -4  # by an in-place call or by assignment
BUFFER_FUSED: Final = -5  # inside a kernel
IDENTITY: Final = -6
OPAQUE: Final = -7  # the first unwatched function; the next ones follow downwards
"""What stands in an op row where a called function's number would: the kind of the row."""

WIDTH: Final = 6
"""Numbers per op row: event, function, call site, module call, slot, value.

A buffer row has its buffer's number for a call site and its version for a slot.
"""

CALL_WIDTH: Final = 6
"""Numbers per module call: module, enclosing call, event, time it was entered, call site, op rows before it."""

NOWHERE: Final = -1

ROOT_MODULE: Final = 0

AHEAD: Final = 1 << 16
"""How far the number of a value may be beyond those that events have told of: a number costs memory."""


class Graph:
    """What the graph fold has made so far."""

    __slots__ = (
        "branches",
        "call_inputs",
        "call_outputs",
        "calls",
        "constants",
        "count",
        "current",
        "ends",
        "left",
        "opaque",
        "open",
        "parents",
        "rows",
        "stack",
        "uses",
    )

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[int] = []  # WIDTH numbers per op row
        self.parents: list[int] = []
        self.ends: list[int] = [0]  # parents of row r: parents[ends[r]:ends[r + 1]]
        self.uses: list[int] = []  # op row, parameter number, op row, parameter number, ...
        self.branches: list[tuple[int, bool]] = []  # op row, the truth that Python took of it
        self.constants: dict[int, int] = {}  # value that no row of its own describes: its event
        self.opaque: list[str] = []  # names of unwatched functions, first seen first
        self.current: list[int] = []  # by value: the row it stands at, or NOWHERE
        self.calls: list[int] = []  # CALL_WIDTH numbers per module call
        self.call_inputs: list[tuple[int, ...]] = []  # per call: rows of the tensors it was given
        self.call_outputs: list[tuple[int, ...]] = []  # per call: rows of the tensors it returned
        self.left: list[tuple[int, int]] = []  # per call: event and time at which it was left
        self.stack: list[int] = []  # running calls, outermost first
        self.open: dict[int, tuple[int, ...]] = {}  # running call: the values it was given


def stand(graph: Graph, value: int, row: int) -> None:
    """Let ``value`` stand at ``row`` from now on."""
    current = graph.current
    if value == len(current):
        current.append(row)
    elif value >= 0:
        if value > AHEAD + 2 * (graph.count + len(graph.constants)):
            raise contradictory(f"value {value} is far beyond those before it")
        current.extend([NOWHERE] * (value + 1 - len(current)))
        current[value] = row


def where(graph: Graph, value: int) -> int:
    """Row at which a value stands; NOWHERE for a parameter and for a constant."""
    return graph.current[value] if 0 <= value < len(graph.current) else NOWHERE


def add_row(graph: Graph, at: int, kind: int, site: int, call: int, slot: int, value: int, parent: int) -> int:
    """Append a row that has one parent or, where that is NOWHERE, none."""
    row = graph.count
    graph.rows += (at, kind, site, call, slot, value)
    if parent >= 0:
        graph.parents.append(parent)
    graph.ends.append(len(graph.parents))
    graph.count = row + 1
    return row


def running_call(graph: Graph) -> int:
    return graph.stack[-1] if graph.stack else 0


def input_seen(graph: Graph, at: int, type_id: int, time_ns: int, value: int, *_rest: Any) -> None:
    stand(graph, value, add_row(graph, at, INPUT, NOWHERE, 0, 0, value, NOWHERE))


def constant_seen(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, made_by: str | None, inside: bool, *_rest: Any
) -> None:
    """A result of an unwatched call is a row of its own; any other constant has none."""
    if made_by is None or not inside:
        graph.constants[value] = at
        stand(graph, value, NOWHERE)
        return
    name = function_of_node(made_by)
    if name not in graph.opaque:
        graph.opaque.append(name)
    kind = OPAQUE - graph.opaque.index(name)
    stand(graph, value, add_row(graph, at, kind, NOWHERE, running_call(graph), 0, value, NOWHERE))


def value_reread(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, _of: int, writer: int, _description: Any
) -> None:
    """The value stands where its memory was written last, but is described by this event."""
    graph.constants[value] = at
    stand(graph, value, where(graph, writer))


def function_of_node(node_class: str) -> str:
    """Name of the function behind an autograd node: ``GeluBackward0`` is ``gelu``."""
    return node_class.rstrip("0123456789").removesuffix("Backward").lower() or node_class.lower()


def buffer_seen(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, buffer: int, version: int, _description: Any
) -> None:
    stand(graph, value, add_row(graph, at, BUFFER_READ, buffer, running_call(graph), version, value, NOWHERE))


def buffer_written(
    graph: Graph,
    at: int,
    type_id: int,
    time_ns: int,
    value: int,
    buffer: int,
    version: int,
    how: str,
    source: int | None,
    *_rest: Any,
) -> None:
    parent = NOWHERE if source is None else where(graph, source)
    kind = BUFFER_FUSED if how == "fused" else BUFFER_WRITTEN
    stand(graph, value, add_row(graph, at, kind, buffer, running_call(graph), version, value, parent))


def op_executed(
    graph: Graph,
    at: int,
    type_id: int,
    time_ns: int,
    function: int,
    site: int,
    call: int,
    _thread: int,
    _duration_ns: int,
    _mode: int,
    _args: Any,
    _kwargs: Any,
    inputs: tuple[int, ...],
    writers: tuple[int | None, ...] | None,
    _written: Any,
    first: int,
    outputs: tuple[Any, ...],
    *_rest: Any,
) -> None:
    current = graph.current
    parents = graph.parents
    start = len(parents)
    row = graph.count
    used: list[int] = []
    if writers is None:
        for number in inputs:
            if number < 0:
                used.append(-1 - number)
            elif (source := current[number]) >= 0:
                parents.append(source)
    else:
        for number, writer in zip(inputs, writers, strict=True):
            if number < 0:
                used.append(-1 - number)
            source = where(graph, number if writer is None else writer)
            if source >= 0:
                parents.append(source)
    count = len(outputs)
    if count == 1:
        graph.rows += (at, function, site, call, 0, first)
        graph.ends.append(len(parents))
        graph.count = row + 1
        if first == len(current):
            current.append(row)
        else:
            stand(graph, first, row)
        for number in used:
            graph.uses += (row, number)
        return
    end = len(parents)
    for slot in range(count):
        if slot:
            parents += parents[start:end]
        graph.rows += (at, function, site, call, slot, first + slot)
        graph.ends.append(len(parents))
        stand(graph, first + slot, row + slot)
        for number in used:
            graph.uses += (row + slot, number)
    graph.count = row + count
    if not count:
        del parents[start:]


def branch_taken(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, result: bool, _site: int, _call: int
) -> None:
    row = where(graph, value)
    if row >= 0:
        graph.branches.append((row, result))


def module_entered(
    graph: Graph,
    at: int,
    type_id: int,
    time_ns: int,
    module: int,
    site: int | None,
    _args: Any,
    _kwargs: Any,
    inputs: tuple[int, ...],
    writers: tuple[int | None, ...] | None,
) -> None:
    stack = graph.stack
    call = len(graph.left)
    outer = stack[-1] if stack else NOWHERE
    graph.calls += (module, outer, at, time_ns, NOWHERE if site is None else site, graph.count)
    if writers is None:
        rows = [graph.current[number] for number in inputs if number >= 0]
    else:
        rows = [
            where(graph, number if writer is None else writer) for number, writer in zip(inputs, writers, strict=True)
        ]
    graph.call_inputs.append(tuple(rows))
    graph.call_outputs.append(())
    graph.left.append((NOWHERE, NOWHERE))
    graph.open[call] = inputs
    stack.append(call)


def module_left(
    graph: Graph, at: int, type_id: int, time_ns: int, call: int, _result: Any, outputs: tuple[int, ...]
) -> None:
    given = leave(graph, at, time_ns, call)
    current = graph.current
    rows: list[int] = []
    for slot, value in enumerate(outputs):
        if value < 0:
            continue
        if value in given and graph.calls[call * CALL_WIDTH] != ROOT_MODULE:
            row = current[value]
            # An inner module that handed the same value through in this call has a row already.
            if row < graph.calls[(call + 1) * CALL_WIDTH - 1] or graph.rows[row * WIDTH + 1] != IDENTITY:
                current[value] = add_row(graph, at, IDENTITY, NOWHERE, call, slot, value, row)
        rows.append(current[value])
    graph.call_outputs[call] = tuple(rows)


def module_raised(graph: Graph, at: int, type_id: int, time_ns: int, call: int, _exception: str) -> None:
    leave(graph, at, time_ns, call)


def leave(graph: Graph, at: int, time_ns: int, call: int) -> tuple[int, ...]:
    """Take a call off the stack; the values it was given."""
    graph.left[call] = (at, time_ns)
    stack = graph.stack
    if stack and stack[-1] == call:
        stack.pop()
    elif call in stack:  # calls of several threads may be left out of turn
        stack.remove(call)
    return graph.open.pop(call, ())


def forward_returned(
    graph: Graph, at: int, type_id: int, time_ns: int, _result: Any, outputs: tuple[int, ...], _paths: Any
) -> None:
    add_outputs(graph, at, outputs)


def forward_halted(
    graph: Graph, at: int, type_id: int, time_ns: int, _at: int, _reason: str, outputs: tuple[int, ...]
) -> None:
    add_outputs(graph, at, outputs)


def add_outputs(graph: Graph, at: int, outputs: tuple[int, ...]) -> None:
    for slot, value in enumerate(outputs):
        if value >= 0:  # a parameter that is returned as it is gives no output
            add_row(graph, at, OUTPUT, NOWHERE, 0, slot, value, where(graph, value))


GRAPH: Final = Fold(
    "graph",
    version=1,
    initial=Graph,
    handlers={
        InputSeen: input_seen,
        ConstantSeen: constant_seen,
        ValueReread: value_reread,
        BufferSeen: buffer_seen,
        BufferWritten: buffer_written,
        OpExecuted: op_executed,
        BranchTaken: branch_taken,
        ModuleEntered: module_entered,
        ModuleLeft: module_left,
        ModuleRaised: module_raised,
        ForwardReturned: forward_returned,
        ForwardHalted: forward_halted,
    },
)
