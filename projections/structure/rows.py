"""The op rows that stay: islands are dropped here, before anything is numbered.

Reads  the state of the graph fold.
Gives  columns of op rows and module calls, renumbered without gaps, and, apart, the dropped rows.
Rule   a row stays when edges, followed either way, lead from it to an input, an output or a written
       buffer; results of one call stay together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from projections.columnar.sequences import Ragged
from projections.folds.graph import (
    BUFFER_FUSED,
    BUFFER_READ,
    BUFFER_WRITTEN,
    CALL_WIDTH,
    IDENTITY,
    INPUT,
    NOWHERE,
    OUTPUT,
    WIDTH,
    Branch,
    Graph,
)

ANCHORS: Final = frozenset((INPUT, OUTPUT, BUFFER_WRITTEN, BUFFER_FUSED))
"""Kinds of row that keep everything they are connected with."""


@attrs.define(slots=True, eq=False)
class Rows:
    """Op rows by position. Columns of one length unless said otherwise."""

    event: Sequence[int]  # number of the event that made the row
    function: Sequence[int]  # number of the called function, or the kind of row (folds/graph.py)
    site: Sequence[int]
    call: Sequence[int]
    slot: Sequence[int]
    value: Sequence[int]
    parents: Ragged[int]
    ordinal: Sequence[int]  # position among all rows of the capture, dropped ones included
    uses: Sequence[int]  # row, parameter number, row, parameter number, ..., by ascending row
    branches: Sequence[Branch]  # as taken

    def __len__(self) -> int:
        return len(self.event)


@attrs.define(slots=True, eq=False)
class Calls:
    """Module calls by number. Columns of one length."""

    module: Sequence[int]
    parent: Sequence[int]  # enclosing call, NOWHERE for the root's
    event: Sequence[int]
    entered_ns: Sequence[int]
    site: Sequence[int]  # NOWHERE where it was called from no frame of the model
    left: Sequence[tuple[int, int]]  # event and time of leaving; NOWHERE where it did not come to that
    inputs: Sequence[tuple[int, ...]]  # op rows, in argument order, NOWHERE where a tensor has none
    outputs: Sequence[tuple[int, ...]]  # op rows, in the order of the result

    def __len__(self) -> int:
        return len(self.module)


def is_op(function: int) -> bool:
    """Whether a row is a compute op: neither input, output nor buffer."""
    return function >= 0 or function <= IDENTITY


def settle(graph: Graph, later: Rows | None = None) -> tuple[Rows, Rows, Calls, Calls]:
    """Kept rows and dropped rows, and for each of the two the module calls, which speak of those rows only.

    Args:
        graph: The state of the fold.
        later: The kept rows of a state further on, where those are to stay that stay there.
    """
    flat, count = graph.rows, graph.count
    event, function, site, call, slot, value = (flat[field::WIDTH] for field in range(WIDTH))
    every = Rows(
        event=event,
        function=function,
        site=site,
        call=call,
        slot=slot,
        value=value,
        parents=Ragged(graph.parents.copy(), graph.ends.copy()),
        ordinal=range(1, count + 1),
        uses=graph.uses.copy(),
        branches=graph.branches.copy(),
    )
    module, outer, entered, entered_ns, called_from = (
        graph.calls[field::CALL_WIDTH] for field in range(CALL_WIDTH - 1)
    )
    left, results = endings(graph)
    calls = Calls(
        module=module,
        parent=outer,
        event=entered,
        entered_ns=entered_ns,
        site=called_from,
        left=left,
        inputs=graph.call_inputs.copy(),
        outputs=results,
    )
    kept = kept_rows(every) if later is None else rows_there(later, count)
    if kept is None:
        nothing = [()] * len(calls)
        return every, pick(every, []), calls, attrs.evolve(calls, inputs=nothing, outputs=nothing)
    staying = set(kept)
    dropped = [row for row in range(count) if row not in staying]
    return pick(every, kept), pick(every, dropped), speaking_of(kept, calls, count), speaking_of(dropped, calls, count)


def speaking_of(chosen: Sequence[int], calls: Calls, count: int) -> Calls:
    """Module calls whose tensors are told by their place among some of the ``count`` rows; others have none."""
    numbers = [NOWHERE] * count
    for row, old in enumerate(chosen):
        numbers[old] = row
    return attrs.evolve(
        calls,
        inputs=[tuple([numbers[row] if row >= 0 else row for row in rows]) for rows in calls.inputs],
        outputs=[tuple([numbers[row] if row >= 0 else row for row in rows]) for rows in calls.outputs],
    )


def endings(graph: Graph) -> tuple[list[tuple[int, int]], list[tuple[int, ...]]]:
    """Per module call: event and time of leaving, and the rows it returned."""
    count = len(graph.call_inputs)
    left = [(NOWHERE, NOWHERE)] * count
    results: list[tuple[int, ...]] = [()] * count
    for call, at, time_ns, rows in graph.left:
        left[call] = (at, time_ns)
        results[call] = rows
    return left, results


def pick(rows: Rows, chosen: Sequence[int]) -> Rows:
    """Some rows, renumbered from 0. They must be closed under edges."""
    numbers = {old: row for row, old in enumerate(chosen)}
    parents: list[int] = []
    ends = [0]
    for old in chosen:
        parents += [numbers[parent] for parent in rows.parents[old]]
        ends.append(len(parents))
    return Rows(
        event=[rows.event[old] for old in chosen],
        function=[rows.function[old] for old in chosen],
        site=[rows.site[old] for old in chosen],
        call=[rows.call[old] for old in chosen],
        slot=[rows.slot[old] for old in chosen],
        value=[rows.value[old] for old in chosen],
        parents=Ragged(parents, ends),
        ordinal=[rows.ordinal[old] for old in chosen],
        uses=[number for row, parameter in pairs(rows.uses) if row in numbers for number in (numbers[row], parameter)],
        branches=[(numbers.get(row, NOWHERE), truth, at, site, call) for row, truth, at, site, call in rows.branches],
    )


def pairs(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The pairs that a flat list holds, one number after the other."""
    return zip(flat[0::2], flat[1::2], strict=True)


def rows_there(later: Rows, count: int) -> list[int] | None:
    """Which of the first ``count`` rows stay in a state further on; None where that is all of them."""
    there = bisect_right(later.ordinal, count)
    return None if there == count else [ordinal - 1 for ordinal in later.ordinal[:there]]


def kept_rows(rows: Rows) -> list[int] | None:
    """Numbers of the rows that are on no island; None where that is all of them.

    Rows that descend from an input stay. The others are put into groups of connected rows; a group
    stays when one of its rows is an anchor or has a child that descends from an input.
    """
    function, ends, items = rows.function, rows.parents.ends, rows.parents.items
    start = 0
    for row, end in enumerate(ends[1:]):
        if start == end and function[row] != INPUT:
            break
        start = end
    else:
        return None
    count = len(rows)
    leader = [NOWHERE] * count  # NOWHERE: descends from an input
    anchored = bytearray(count)
    start = 0
    for row, end in enumerate(ends[1:]):
        parents = items[start:end]
        fed = function[row] == INPUT
        loose: list[int] = []
        for parent in parents:
            if leader[parent] == NOWHERE:
                fed = True
            else:
                loose.append(find(leader, parent))
        if fed:
            for group in loose:
                anchored[group] = 1
        else:
            leader[row] = row
            if start == end and row and rows.event[row] == rows.event[row - 1] and leader[row - 1] != NOWHERE:
                loose.append(find(leader, row - 1))
            anchored[row] = function[row] in ANCHORS
            for given in loose:
                # Found anew: a group that comes twice may have been put under another one since.
                group, mine = find(leader, given), find(leader, row)
                if group != mine:
                    leader[mine] = group
                    anchored[group] |= anchored[mine]
        start = end
    kept = [row for row in range(count) if leader[row] == NOWHERE or anchored[find(leader, row)]]
    return None if len(kept) == count else kept


def find(leader: list[int], row: int) -> int:
    """First row of the group that ``row`` belongs to; shortens the way there."""
    top = row
    while leader[top] != top:
        top = leader[top]
    while leader[row] != top:
        leader[row], row = top, leader[row]
    return top


def is_buffer(function: int) -> bool:
    return BUFFER_FUSED <= function <= BUFFER_READ
