"""Which op of one capture is which of another: by module path where what ran there agrees, else by structure.

Reads  the ops and module calls of two captures.
Gives  ``Aligned``, in the order of execution: pairs, and what only one of them has.
Rule   what a module call ran directly, ops and calls of modules inside, is one sequence. The fewest insertions and
       removals that lead from one sequence to the other are taken, so that a call that only one capture has shifts
       nothing behind it. What a pair of calls ran is aligned likewise.
Rule   an op is what its function and result say, a call what it ran, inputs and outputs which they are. Names, the
       addresses of modules and of arguments, decide where as much is paired with them as without: a module that has
       another name is the same, and one that took the place of another in a list is not that one.
Rule   what then stands between two pairs is aligned by address where half of the functions agree, else one for one
       where as much stands there on both sides.
Rule   a call that ran nothing but one call, as that of a wrapper, is what that one is: of two calls, the deeper one is
       unwrapped where more is paired then.
Note   "Fewest": the algorithm of Myers (An O(ND) Difference Algorithm, 1986), whose work grows with the number of
       differences. Beyond ``MOST`` of them the rest of a sequence is taken as another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from projections.build import CaptureTables
from projections.folds.graph import NOWHERE

__all__ = ["Aligned", "aligned"]

MOST: Final = 500
"""Insertions and removals that are looked for in one sequence."""

INPUT, OUTPUT = "an input", "an output"

LOOKED_AT: Final = 256
"""Ops of a call whose functions are held against those of another one."""


class Aligned(NamedTuple):
    """An op, or a module call, as row of either side; NOWHERE where that has none."""

    table: str  # "ops" or "module_calls"
    before: int
    after: int


class Edge(NamedTuple):
    """What an input or an output of the model is, whatever it is called."""

    side: str
    number: int


class Item(NamedTuple):
    """Something that a module call ran directly."""

    table: str
    row: int
    key: Hashable  # equal for what may be the same, whatever it is called
    named: Hashable  # equal for what may be the same and is called alike


Items: TypeAlias = "list[Item]"
Pairs: TypeAlias = "list[tuple[int, int]]"


class Side:
    """The module calls of one capture, with what each ran.

    Args:
        tables: The tables of the capture.
        known: Numbers that stand for what calls ran, in both captures.
    """

    def __init__(self, tables: CaptureTables, known: dict[Hashable, int]) -> None:
        self.known: Final = known
        self.functions: Final = tables.ops.column("func_name")
        self.inside: Final[dict[int, Items]] = {}
        self.depth: Final[dict[int, int]] = {}  # by call, how many calls stand one in another that ran nothing else
        calls = tables.module_calls
        self.addresses: Final = calls.column("address")
        held = ops_by_call(tables)
        for row, (parent, event) in enumerate(zip(calls.column("parent_row"), calls.column("event"), strict=True)):
            if row:
                item = Item("module_calls", row, None, None)
                held.setdefault(max(parent, 0), []).append((event, row, item))
        self.kinds: Final[dict[int, Hashable]] = {}  # by call, what it is
        for call in sorted(held, reverse=True):  # a call comes behind the one that it was made in
            self.settle(call, [item for _, _, item in sorted(held[call], key=lambda each: each[:2])])

    def settle(self, call: int, found: Items) -> None:
        items = [self.told(item) if item.table == "module_calls" else item for item in found]
        self.inside[call] = items
        ran = [item for item in items if not is_at_the_edge(item)]
        if len(ran) == 1 and ran[0].table == "module_calls":
            self.depth[call] = self.depth.get(ran[0].row, 0) + 1
            self.kinds[call] = ran[0].key
        else:
            self.kinds[call] = self.kind(tuple([item.key for item in ran]))

    def kind(self, ran: tuple[Hashable, ...]) -> Hashable:
        return ("call", self.known.setdefault(ran, len(self.known)))

    def told(self, item: Item) -> Item:
        """A call with what it is."""
        kind = self.kinds[item.row] if item.row in self.kinds else self.kind(())
        return item._replace(key=kind, named=(kind, self.addresses[item.row]))

    def unwrapped(self, call: int, levels: int) -> tuple[Items, list[int]]:
        """What a call ran, with calls that ran nothing but another one left out; and these."""
        items, left = self.inside.get(call, []), list[int]()
        for _ in range(levels):
            place = next(place for place, item in enumerate(items) if item.table == "module_calls")
            left.append(items[place].row)
            items = [*items[:place], *self.inside.get(items[place].row, []), *items[place + 1 :]]
        return items, left

    def ran(self, call: int) -> set[str]:
        """Functions of the first ops that a call ran, at any depth."""
        found, waiting, looked = set[str](), [call], 0
        while waiting and looked < LOOKED_AT:
            for item in self.inside.get(waiting.pop(), ())[: LOOKED_AT - looked]:
                looked += 1
                if item.table == "ops":
                    found.add(self.functions[item.row])
                else:
                    waiting.append(item.row)
        return found


def aligned(before: CaptureTables, after: CaptureTables) -> Iterator[Aligned]:
    """The ops and module calls of two captures, each once, a call before what it ran."""
    known: dict[Hashable, int] = {}
    one, other = Side(before, known), Side(after, known)
    if len(before.module_calls) and len(after.module_calls):
        yield Aligned("module_calls", 0, 0)
    wrappers = set[Aligned]()
    waiting = [inside(one, other, Aligned("module_calls", 0, 0), wrappers)]
    while waiting:
        here = next(waiting[-1], None)
        if here is None:
            waiting.pop()
            continue
        yield here
        if here.table == "module_calls" and here not in wrappers:
            waiting.append(inside(one, other, here, wrappers))


def inside(one: Side, other: Side, calls: Aligned, wrappers: set[Aligned]) -> Iterator[Aligned]:
    """What two calls ran; of a call that only one side has, what it ran. What is unwrapped joins ``wrappers``."""
    _, before, after = calls
    items = one.inside.get(before, []), other.inside.get(after, [])
    deeper = one.depth.get(before, 0) - other.depth.get(after, 0)
    if deeper and NOWHERE not in (before, after):
        bare, left = one.unwrapped(before, deeper) if deeper > 0 else other.unwrapped(after, -deeper)
        tried = (bare, items[1]) if deeper > 0 else (items[0], bare)
        if len(paired(*tried)) > len(paired(*items)):
            alone = [Aligned("module_calls", *((row, NOWHERE) if deeper > 0 else (NOWHERE, row))) for row in left]
            wrappers.update(alone)
            yield from alone
            items = tried
    yield from matched(one, other, *items)


def matched(one: Side, other: Side, before: Sequence[Item], after: Sequence[Item]) -> Iterator[Aligned]:
    """Two sequences, aligned."""

    def gap(first: Sequence[Item], second: Sequence[Item]) -> Iterator[Aligned]:
        return addressed(one, other, first, second)

    yield from around(before, after, paired(before, after), gap)


def addressed(one: Side, other: Side, before: Sequence[Item], after: Sequence[Item]) -> Iterator[Aligned]:
    """What stands between two pairs: calls by address, where much the same ran in them; the rest in order."""
    names = [
        [
            side.addresses[item.row] if item.table == "module_calls" else (number, place)
            for place, item in enumerate(items)
        ]
        for number, (side, items) in enumerate(((one, before), (other, after)))
    ]
    pairs = [
        (first, second)
        for first, second in common(*names)
        if is_alike(one.ran(before[first].row), other.ran(after[second].row))
    ]
    yield from around(before, after, pairs, between)


def is_alike(one: set[str], other: set[str]) -> bool:
    """Whether half of the functions of one are those of the other."""
    return 2 * len(one & other) >= max(min(len(one), len(other)), 1)


Gap: TypeAlias = "Callable[[Sequence[Item], Sequence[Item]], Iterator[Aligned]]"


def around(before: Sequence[Item], after: Sequence[Item], pairs: Pairs, gap: Gap) -> Iterator[Aligned]:
    """Pairs of two sequences, and what stands between them."""
    one, other = 0, 0
    for first, second in (*pairs, (len(before), len(after))):
        if first > one or second > other:
            yield from gap(before[one:first], after[other:second])
        if first < len(before):
            yield Aligned(before[first].table, before[first].row, after[second].row)
        one, other = first + 1, second + 1


def between(before: Sequence[Item], after: Sequence[Item]) -> Iterator[Aligned]:
    """What stands between two pairs: one for one where there is as much on both sides, else on one side alone."""
    if [item.table for item in before] == [item.table for item in after]:
        for one, other in zip(before, after, strict=True):
            yield Aligned(one.table, one.row, other.row)
        return
    for item in before:
        yield Aligned(item.table, item.row, NOWHERE)
    for item in after:
        yield Aligned(item.table, NOWHERE, item.row)


def paired(before: Sequence[Item], after: Sequence[Item]) -> Pairs:
    """The pairs of two sequences: with their names, where as many are found as without."""
    found = common([item.key for item in before], [item.key for item in after])
    named = common([item.named for item in before], [item.named for item in after])
    return named if len(named) >= len(found) else found


def is_at_the_edge(item: Item) -> bool:
    """Whether it is an input or an output of the model."""
    return isinstance(item.key, Edge)


def ops_by_call(tables: CaptureTables) -> dict[int, list[tuple[int, int, Item]]]:
    """By module call, the ops that it ran directly, each with its event and row."""
    ops = tables.ops
    made: dict[int, list[tuple[int, int, Item]]] = {}
    columns = (ops.column(name) for name in ("call_row", "event", "func_name", "slot", "is_output", "is_buffer"))
    roles, addresses = ops.column("io_role"), ops.column("address")
    counts = {INPUT: 0, OUTPUT: 0}
    for row, (call, event, func_name, slot, is_output, is_buffer) in enumerate(zip(*columns, strict=True)):
        key: Hashable = (func_name, 0 if is_buffer else slot)
        named = key
        if roles[row] is not None:
            edge = OUTPUT if is_output else INPUT
            key, named = Edge(edge, counts[edge]), (edge, roles[row])
            counts[edge] += 1
        elif is_buffer:
            key = ("buffer", func_name)
            named = (*key, addresses[row])
        made.setdefault(max(call, 0), []).append((event, row, Item("ops", row, key, named)))
    return made


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
