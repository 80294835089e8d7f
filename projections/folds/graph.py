"""Op rows and their edges, as numbers: who was made from whom, inside which module call.

Reads  InputSeen, ConstantSeen, BufferSeen, BufferWritten, OpExecuted, BranchTaken, module calls, and how
       the forward ended; in order.
Gives  one row per input, result of a call, buffer version and output, in capture order, with the rows
       it was made from; one row per module call, with the rows that went in and came out.
Rule   a value stands at the row that made it; a module that hands one of its inputs through gets an
       ``identity`` row when it is left, and from then on the value stands there.
Not    labels (structure/labels.py), layers (structure/grouping.py), or anything that needs an event's larger
       fields: those are read from the event itself when somebody asks (structure/details.py).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import attrs

from journal.events import (
    DESCRIPTION,
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
from projections.folds.fold import Fold
from projections.folds.split import Moves, appended, first_of, head, moves, overwritten

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

NEVER: Final = 1 << 62
"""An event behind all others."""

ROOT_MODULE: Final = 0

AHEAD: Final = 1 << 16
"""How far the number of a value may be beyond those that events have told of: a number costs memory."""

NESTED: Final = 1 << 14
"""How many module calls may be inside each other: leaving one out of turn looks through them."""

SPREAD: Final = 1 << 21
SPREAD_EACH: Final = 64
"""Edges there may be when a call with many arguments and many results comes, and as many more for each row: every
result has every argument for a parent, so a short event can bring about many."""


Left: TypeAlias = "tuple[int, int, int, tuple[int, ...]]"
"""A module call that was left: its number, event, time, rows of the tensors it returned. Of one that is left twice
the last counts."""


Branch: TypeAlias = "tuple[int, bool, int, int, int]"
"""Python took the truth of a value: op row, or NOWHERE where it has none; the truth; event, call site, module call."""


@attrs.define(slots=True)
class Graph:
    """What the graph fold has made so far."""

    count: int = 0
    stack: list[int] = head(list)  # running calls, outermost first
    open: dict[int, tuple[int, ...]] = head(dict)  # running call: the values it was given
    rows: list[int] = appended("ops", width=WIDTH)
    parents: list[int] = appended()
    ends: list[int] = appended(start=(0,))  # parents of row r: parents[ends[r]:ends[r + 1]]
    uses: list[int] = appended(width=2)  # op row, parameter number
    branches: list[Branch] = appended("branches")
    constants: list[int] = appended("constants", width=2)  # value that is not described where it stands, its event
    opaque: list[str] = appended()  # names of unwatched functions, first seen first
    opaque_numbers: dict[str, int] = first_of("opaque")
    current: list[int] = overwritten(log="moved")  # by value: the row it stands at, or NOWHERE
    moved: Moves = moves()
    calls: list[int] = appended(width=CALL_WIDTH)
    call_inputs: list[tuple[int, ...]] = appended("module_calls")  # per call: rows of the tensors it was given
    left: list[Left] = appended("left_module_calls")


def stand(graph: Graph, at: int, value: int, row: int) -> None:
    """Let ``value`` stand at ``row`` from event ``at`` on."""
    current = graph.current
    if value == len(current):
        current.append(row)
    elif value >= len(current):
        if value > AHEAD + 2 * graph.count + len(graph.constants):
            raise contradictory(f"value {value} is far beyond those before it")
        current.extend([NOWHERE] * (value - len(current)))
        current.append(row)
    elif value >= 0:
        move(graph, at, value, row)


def move(graph: Graph, at: int, value: int, row: int) -> None:
    """Let a value that stood elsewhere stand at ``row``, and note where that was."""
    current, moved = graph.current, graph.moved
    if value in moved:
        moved[value].append((at, current[value]))
    else:
        moved[value] = [(at, current[value])]
    current[value] = row


def where(graph: Graph, value: int) -> int:
    """Row at which a value stands; NOWHERE for a parameter and for a constant."""
    return graph.current[value] if 0 <= value < len(graph.current) else NOWHERE


def without_row(graph: Graph) -> dict[int, int]:
    """Values that stood at no row when they came, each with the event of the module call that gave it one."""
    current, moved = graph.current, graph.moved
    made = {value: NEVER for value in graph.constants[0::2] if value not in moved and current[value] == NOWHERE}
    for value, entries in moved.items():
        at, before = entries[0]
        if before == NOWHERE:
            made[value] = at
    return made


def add_row(graph: Graph, at: int, kind: int, site: int, call: int, slot: int, value: int, parent: int) -> int:
    """Append a row that has one parent or, where that is NOWHERE, none."""
    row = graph.count
    graph.rows += (at, kind, site, call, slot, value)
    if parent >= 0:
        graph.parents.append(parent)
    graph.ends.append(len(graph.parents))
    graph.count = row + 1
    return row


def rows_before(graph: Graph, call: int) -> int:
    """Number of rows that there were when a module call began."""
    return graph.calls[(call + 1) * CALL_WIDTH - 1]


def running_call(graph: Graph) -> int:
    return graph.stack[-1] if graph.stack else 0


def input_seen(graph: Graph, at: int, type_id: int, time_ns: int, value: int, *_rest: Any) -> None:
    stand(graph, at, value, add_row(graph, at, INPUT, NOWHERE, 0, 0, value, NOWHERE))


def constant_seen(
    graph: Graph,
    at: int,
    type_id: int,
    time_ns: int,
    value: int,
    made_by: str | None,
    inside: bool,
    inputs: tuple[int, ...],
    *_rest: Any,
) -> None:
    """A result of an unwatched call is a row of its own; any other constant has none."""
    if made_by is None or not inside:
        graph.constants += (value, at)
        stand(graph, at, value, NOWHERE)
        return
    name = function_of_node(made_by)
    number = graph.opaque_numbers.setdefault(name, len(graph.opaque))
    if number == len(graph.opaque):
        graph.opaque.append(name)
    row = graph.count
    for source in inputs:
        if source < 0:
            graph.uses += (row, -1 - source)
        elif (parent := where(graph, source)) >= 0:
            graph.parents.append(parent)
    stand(graph, at, value, add_row(graph, at, OPAQUE - number, NOWHERE, running_call(graph), 0, value, NOWHERE))


def value_reread(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, of: int, writer: int, _description: Any
) -> None:
    """The value stands where its memory was written last, but is described by this event.

    A module that was given the tensor, and since when its memory was not written, was given this value.
    """
    row = where(graph, writer)
    graph.constants += (value, at)
    stand(graph, at, value, row)
    if graph.stack:
        call = graph.stack[-1]
        if row < rows_before(graph, call) and of in graph.open[call]:
            graph.open[call] = tuple([value if given == of else given for given in graph.open[call]])


def function_of_node(node_class: str) -> str:
    """Name of the function behind an autograd node: ``GeluBackward0`` is ``gelu``. Another name stays as it is."""
    stem = node_class.rstrip("0123456789")
    return stem.removesuffix("Backward").lower() if stem.endswith("Backward") and stem != "Backward" else node_class


def buffer_seen(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, buffer: int, version: int, _description: Any
) -> None:
    stand(graph, at, value, add_row(graph, at, BUFFER_READ, buffer, running_call(graph), version, value, NOWHERE))


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
    stand(graph, at, value, add_row(graph, at, kind, buffer, running_call(graph), version, value, parent))


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
    if not outputs:
        return
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
            stand(graph, at, first, row)
        for number in used:
            graph.uses += (row, number)
        return
    end = len(parents)
    if set(map(len, outputs)) - {len(DESCRIPTION)}:
        raise contradictory("a result is not described in full")
    if end - start > SPREAD_EACH and end + count * (end - start) > SPREAD + SPREAD_EACH * (row + count):
        raise contradictory(f"each of {count} results of a call would come from {end - start} values")
    for slot in range(count):
        if slot:
            parents += parents[start:end]
        graph.rows += (at, function, site, call, slot, first + slot)
        graph.ends.append(len(parents))
        stand(graph, at, first + slot, row + slot)
        for number in used:
            graph.uses += (row + slot, number)
    graph.count = row + count


def branch_taken(
    graph: Graph, at: int, type_id: int, time_ns: int, value: int, result: bool, site: int, call: int
) -> None:
    graph.branches.append((where(graph, value), result, at, site, call))


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
    if len(stack) >= NESTED:
        raise contradictory(f"more than {NESTED} module calls are inside each other")
    call = len(graph.call_inputs)
    outer = stack[-1] if stack else NOWHERE
    graph.calls += (module, outer, at, time_ns, NOWHERE if site is None else site, graph.count)
    if writers is None:
        rows = [graph.current[number] for number in inputs if number >= 0]
    else:
        rows = [
            where(graph, number if writer is None else writer) for number, writer in zip(inputs, writers, strict=True)
        ]
    graph.call_inputs.append(tuple(rows))
    graph.open[call] = inputs
    stack.append(call)


def module_left(
    graph: Graph, at: int, type_id: int, time_ns: int, call: int, _result: Any, outputs: tuple[int, ...]
) -> None:
    given = leave(graph, call)
    current = graph.current
    rows: list[int] = []
    for slot, value in enumerate(outputs):
        if value < 0:
            continue
        if value in given and graph.calls[call * CALL_WIDTH] != ROOT_MODULE:
            row = current[value]
            # An inner module that handed the same value through in this call has a row already.
            if row < rows_before(graph, call) or graph.rows[row * WIDTH + 1] != IDENTITY:
                move(graph, at, value, add_row(graph, at, IDENTITY, NOWHERE, call, slot, value, row))
        rows.append(current[value])
    graph.left.append((call, at, time_ns, tuple(rows)))


def module_raised(graph: Graph, at: int, type_id: int, time_ns: int, call: int, _exception: str) -> None:
    leave(graph, call)
    graph.left.append((call, at, time_ns, ()))


def leave(graph: Graph, call: int) -> tuple[int, ...]:
    """Take a call off the stack; the values it was given."""
    stack = graph.stack
    if stack and stack[-1] == call:
        stack.pop()
    elif call in graph.open:  # calls of several threads may be left out of turn
        stack.remove(call)
    elif not 0 <= call < len(graph.call_inputs):
        raise contradictory(f"module call {call} is left, and was not entered")
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
    version=3,
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
