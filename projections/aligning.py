"""Which op of one capture is which of another: by module path, then by structure.

Reads  the ops and module calls of two captures.
Gives  ``Aligned``, in the order of execution: pairs, and what only one of them has.
Rule   what a module call ran directly, ops and calls of modules inside, is one sequence; two calls are aligned where
       their modules have one address, and then what they ran is. Within a sequence an op is what its function and
       result say, and the fewest insertions and removals that lead from one to the other are taken. So a call that
       only one capture has shifts nothing behind it.
Note   "Fewest": the algorithm of Myers (An O(ND) Difference Algorithm, 1986), whose work grows with the number of
       differences. Beyond ``MOST`` of them the rest of a sequence is taken as another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from projections.build import CaptureTables
from projections.graph import NOWHERE

__all__ = ["Aligned", "aligned"]

MOST: Final = 500
"""Insertions and removals that are looked for in one sequence."""


class Aligned(NamedTuple):
    """An op, or a module call, as row of either side; NOWHERE where that has none."""

    table: str  # "ops" or "module_calls"
    before: int
    after: int


class Item(NamedTuple):
    """Something that a module call ran directly."""

    table: str
    row: int
    key: Hashable  # equal for what may be the same


def aligned(before: CaptureTables, after: CaptureTables) -> Iterator[Aligned]:
    """The ops and module calls of two captures, each once, a call before what it ran."""
    sides = (items(before), items(after))
    waiting: list[Iterator[Aligned]] = [matched(*(side.get(0, []) for side in sides))]
    if len(before.module_calls) and len(after.module_calls):
        yield Aligned("module_calls", 0, 0)
    while waiting:
        here = next(waiting[-1], None)
        if here is None:
            waiting.pop()
            continue
        yield here
        if here.table == "module_calls":
            inside = [side.get(row, []) for side, row in zip(sides, here[1:], strict=True)]
            waiting.append(matched(*inside))


def items(tables: CaptureTables) -> dict[int, list[Item]]:
    """By module call, what it ran directly, in order."""
    ops, calls = tables.ops, tables.module_calls
    made: dict[int, list[tuple[int, int, Item]]] = {}
    columns = (ops.column(name) for name in ("call_row", "event", "func_name", "slot", "is_output", "is_buffer"))
    roles, addresses = ops.column("io_role"), ops.column("address")
    for row, (call, event, func_name, slot, is_output, is_buffer) in enumerate(zip(*columns, strict=True)):
        key: Hashable = (func_name, 0 if is_buffer else slot)
        if roles[row] is not None:
            key = ("output" if is_output else "input", roles[row])
        elif is_buffer:
            key = ("buffer", addresses[row], func_name)
        made.setdefault(max(call, 0), []).append((event, row, Item("ops", row, key)))
    told = zip(calls.column("parent_row"), calls.column("event"), calls.column("address"), strict=True)
    for row, (parent, event, address) in enumerate(told):
        if row:
            made.setdefault(max(parent, 0), []).append((event, row, Item("module_calls", row, ("call", address))))
    return {call: [item for _, _, item in sorted(found, key=lambda each: each[:2])] for call, found in made.items()}


def matched(before: Sequence[Item], after: Sequence[Item]) -> Iterator[Aligned]:
    """Two sequences, aligned."""
    one, other = 0, 0
    pairs = common([item.key for item in before], [item.key for item in after])
    for first, second in (*pairs, (len(before), len(after))):
        yield from between(before[one:first], after[other:second])
        if first < len(before):
            yield Aligned(before[first].table, before[first].row, after[second].row)
        one, other = first + 1, second + 1


def between(before: Sequence[Item], after: Sequence[Item]) -> Iterator[Aligned]:
    """What stands between two pairs: one for one where there are as many ops on both sides, else on one side alone."""
    if len(before) == len(after) and all(item.table == "ops" for item in (*before, *after)):
        for one, other in zip(before, after, strict=True):
            yield Aligned("ops", one.row, other.row)
        return
    for item in before:
        yield Aligned(item.table, item.row, NOWHERE)
    for item in after:
        yield Aligned(item.table, NOWHERE, item.row)


def common(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The places of a longest common subsequence, ascending on both sides."""
    lead, shorter = 0, min(len(before), len(after))
    while lead < shorter and before[lead] == after[lead]:
        lead += 1
    tail = 0
    while tail < shorter - lead and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    inner = shortest(before[lead : len(before) - tail], after[lead : len(after) - tail])
    ends = [(len(before) - tail + place, len(after) - tail + place) for place in range(tail)]
    return [*((place, place) for place in range(lead)), *((lead + one, lead + other) for one, other in inner), *ends]


def shortest(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The pairs of a shortest script from one sequence to the other; see "Fewest" in the header."""
    reached: dict[int, int] = {1: 0}  # by diagonal, how far into ``before`` one came
    history: list[dict[int, int]] = []
    for edits in range(min(len(before) + len(after), MOST) + 1):
        history.append(reached.copy())
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
            here = reached[diagonal + 1] if down else reached[diagonal - 1] + 1
            while here < len(before) and 0 <= here - diagonal < len(after) and before[here] == after[here - diagonal]:
                here += 1
            reached[diagonal] = here
            if here >= len(before) and here - diagonal >= len(after):
                return walked_back(history, len(before), len(after))
    return []


def walked_back(history: list[dict[int, int]], one: int, other: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(history) - 1, -1, -1):
        reached, diagonal = history[edits], one - other
        down = diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1])
        before = diagonal + 1 if down else diagonal - 1
        start = reached[before] if edits else 0
        came = (start, start - before) if edits else (0, 0)
        while one > came[0] and other > came[1]:
            one, other = one - 1, other - 1
            pairs.append((one, other))
        if edits:
            one, other = came
    return pairs[::-1]
