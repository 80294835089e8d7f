"""What a capture did, module by module or op by op, in amounts that add up.

Reads  finished tables.
Gives  ``by_module`` and ``by_op``: parts in the order in which they are told, what belongs to none, and the totals.
Rule   the tree of modules is that of their addresses: a module has what ran in its calls and in no call inside, and,
       within, what the modules below its address have. So the own amounts of all parts, and what belongs to no part,
       are the totals. (Which call did what is told by ``cost_parts``.)
Rule   a call of torch counts once, at its first result, and a parameter once: with the module that holds it first, or
       with the op that took it first.
Rule   an amount is over what is known, and None, never 0, where nothing of it is.
Rule   modules that stand next to each other under one module are folded where they are alike: of one class, and with
       the same work, parameters and shapes down to the last module inside. What they kept, how long they took and what
       a backward pass did for them does not part them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from projections.accounts.alike import kinds, runs
from projections.accounts.charging import charged_ops
from projections.build import CaptureTables
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from projections.structure.details import item_bytes

Level: TypeAlias = Literal["module", "op"]

FlopsPerMac: TypeAlias = Literal[1, 2]

ADDITIVE: Final = (
    *("ops", "unknown_ops", "params", "trainable_params", "param_memory", "flops", "macs", "memory", "kept", "time"),
    *("saved_for_backward", "backward_flops", "backward_time"),
)
"""The amounts. ``unknown_ops``: ops whose FLOPs are not known. ``kept``: bytes of payloads that were kept. Times in
seconds, all else counts and bytes."""


ALIKE: Final = ("ops", "unknown_ops", "params", "trainable_params", "flops", "macs", "memory")
"""Those that modules have in common which are alike."""


@attrs.define(slots=True)
class Amounts:
    """By amount its sum over what is known, and of how many things it is not known."""

    known: dict[str, float] = attrs.field(factory=dict[str, float])
    missing: dict[str, int] = attrs.field(factory=dict[str, int])

    def put(self, name: str, number: float | None) -> None:
        if number is None:
            self.missing[name] = self.missing.get(name, 0) + 1
        elif number or name not in self.known:
            self.known[name] = self.known.get(name, 0) + number

    def add(self, other: Amounts) -> None:
        for name, number in other.known.items():
            self.known[name] = self.known.get(name, 0) + number
        for name, count in other.missing.items():
            self.missing[name] = self.missing.get(name, 0) + count

    def value(self, name: str) -> float | None:
        """The amount; 0 where there was nothing to add, None where nothing is known of what there was."""
        number = self.known.get(name, 0)
        return number if number or not self.missing.get(name) else None


@attrs.define(slots=True)
class Part:
    """A module or op, or several that are alike, with the parts below it.

    Attributes:
        rows: Of the table of modules or ops; the first stands for all.
        own: What is its own.
        within: That and what is below.
    """

    rows: list[int]
    own: Amounts
    within: Amounts
    below: list[Part] = attrs.Factory(list["Part"])
    depth: int = 0
    parent: Part | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Sums:
    """All parts of a capture.

    Attributes:
        level: Of which table the rows are.
        parts: Each behind the one that it is below.
        outside: What belongs to no part.
        totals: By amount the whole; None where it was not measured.
    """

    level: Level
    parts: tuple[Part, ...]
    outside: Amounts
    totals: Mapping[str, float | None]

    def is_measured(self, name: str) -> bool:
        """Whether the capture tells of this amount at all."""
        return self.totals[name] is not None


# What each op has --------------------------------------------------------------------------------------


class OpAmounts:
    """What each op row has of its own.

    Args:
        tables: A capture's tables.
        flops_per_mac: FLOPs that a multiply-accumulate is.
    """

    def __init__(self, tables: CaptureTables, flops_per_mac: FlopsPerMac) -> None:
        self.tables: Final = tables
        self.flops_per_mac: Final = flops_per_mac
        self.totals: Final = totals_of(tables, flops_per_mac)
        ops = tables.ops
        self.amounts: Final = [Amounts() for _ in range(len(ops))]
        self.outside: Final = Amounts()
        self.add_forward()
        self.add_backward()

    def add_forward(self) -> None:
        ops = self.tables.ops
        calls, is_op, slots = ops.column("func_call_id"), ops.column("is_compute_op"), ops.column("slot")
        flops, macs, times = (ops.column(name) for name in ("flops_forward", "macs_forward", "func_duration"))
        sizes, kept = ops.column("activation_memory"), kept_bytes(self.tables)
        saved = ops.column("saved_for_backward") if self.totals["saved_for_backward"] is not None else None
        counted: set[int | None] = set()
        for row, amounts in enumerate(self.amounts):
            amounts.put("memory", sizes[row])
            amounts.put("kept", kept[row])
            if slots[row] == 0:
                amounts.put("time", times[row])
            call = calls[row]
            if not is_op[row]:
                continue
            amounts.put("ops", 1)
            amounts.put("unknown_ops", int(flops[row] is None))
            if call in counted:
                continue
            counted.add(call)
            amounts.put("flops", in_convention(flops[row], macs[row], self.flops_per_mac))
            amounts.put("macs", macs[row])
            if saved is not None:
                amounts.put("saved_for_backward", saved[row])

    def add_backward(self) -> None:
        """Times and FLOPs of the firings, with the op that their node belongs to; others are outside."""
        if self.totals["backward_time"] is None and self.totals["backward_flops"] is None:
            return
        nodes = self.tables.table("grad_fns")
        homes = [self.amounts[home] if home != NOWHERE else self.outside for home in charged_ops(self.tables)]
        for home, count, time in zip(
            homes, nodes.column("num_calls"), nodes.column("total_backward_duration"), strict=True
        ):
            if count:
                home.put("backward_time", time)
        if self.totals["backward_flops"] is not None:
            self.add_executed(homes)

    def add_executed(self, homes: Sequence[Amounts]) -> None:
        fires = self.tables.table("grad_fn_calls")
        of_fires: Sequence[int] = fires.column("grad_fn_row")
        for node, flops in zip(of_fires, fires.column("flops"), strict=True):
            homes[node].put("backward_flops", products(flops, self.flops_per_mac))
        for flops in self.tables.table("backward_passes").column("unattributed_flops"):
            self.outside.put("backward_flops", products(flops, self.flops_per_mac))

    def add_parameters(self, homes: Iterable[Amounts | None]) -> None:
        """The parameters, each with the amounts of where it is at home; None for outside."""
        params = self.tables.params
        sizes, memory, trainable = map(params.column, ("num_params", "param_memory", "is_trainable"))
        for row, home in enumerate(homes):
            amounts = self.outside if home is None else home
            amounts.put("params", sizes[row])
            amounts.put("trainable_params", sizes[row] if trainable[row] else 0)
            amounts.put("param_memory", memory[row])


def kept_bytes(tables: CaptureTables) -> list[int]:
    """By op row the bytes of the payloads that were kept: of its value, and of what was made of it."""
    ops = tables.ops
    refs, sizes = ops.column("payload_ref"), ops.column("activation_memory")
    made = [0 if ref is None else size or 0 for ref, size in zip(refs, sizes, strict=True)]
    shapes, dtypes = ops.column("transformed_out_shape"), ops.column("transformed_out_dtype")
    for row, shape in enumerate(shapes):
        if shape is not None:
            made[row] += item_bytes(dtypes[row], math.prod(shape))
    return made


def in_convention(flops: int | None, macs: int | None, flops_per_mac: FlopsPerMac) -> int | None:
    """FLOPs of a forward, of which ``macs`` stand for two each."""
    return flops if flops is None or macs is None or flops_per_mac == 2 else flops - macs


def products(flops: int | None, flops_per_mac: FlopsPerMac) -> int | None:
    """FLOPs of operators of a backward, which are counted in products alone, two for each multiply-accumulate."""
    return flops if flops is None or flops_per_mac == 2 else flops // 2


def totals_of(tables: CaptureTables, flops_per_mac: FlopsPerMac) -> dict[str, float | None]:
    """By amount what the capture says of itself; None where it does not."""
    fact = tables.fact
    coverage, macs = fact("compute_coverage")["unknown"], fact("total_macs_forward")
    is_known = coverage < fact("num_ops") or not coverage
    executed = fact("executed_flops") if fact("executed_evidence") == "measured" else None
    times: list[float] = []
    if fact("num_grad_fn_calls"):
        found = tables.table("grad_fns").column("total_backward_duration")
        times = [time for time in found if time is not None]
    return {
        "ops": fact("num_ops"),
        "unknown_ops": coverage,
        "params": fact("num_params"),
        "trainable_params": fact("num_params_trainable"),
        "param_memory": fact("total_param_memory"),
        "flops": in_convention(fact("total_flops_forward"), macs, flops_per_mac) if is_known else None,
        "macs": macs if is_known else None,
        "memory": fact("total_activation_memory"),
        "kept": fact("saved_activation_memory"),
        "time": fact("func_calls_duration"),
        "saved_for_backward": fact("total_saved_for_backward"),
        "backward_flops": products(executed, flops_per_mac),
        "backward_time": sum(times) if times else None,
    }


# By op -------------------------------------------------------------------------------------------------


def by_op(tables: CaptureTables, *, fold: bool, with_buffers: bool = False, flops_per_mac: FlopsPerMac = 2) -> Sums:
    """The ops in the order in which they ran.

    Args:
        tables: A capture's tables.
        fold: Show the passes of a layer as one part where they had equal shapes and work.
        with_buffers: Show the versions of buffers too.
        flops_per_mac: FLOPs that a multiply-accumulate is.
    """
    with over_events():
        made = OpAmounts(tables, flops_per_mac)
        ops = tables.ops
        takers: Sequence[Sequence[int]] = tables.params.column("op_rows")
        made.add_parameters([made.amounts[min(rows)] if rows else None for rows in takers])
        is_op, is_buffer = ops.column("is_compute_op"), ops.column("is_buffer")
        alike: dict[Hashable, Part] = {}
        parts: list[Part] = []
        for row, amounts in enumerate(made.amounts):
            if not (is_op[row] or (with_buffers and is_buffer[row])):
                made.outside.add(amounts)
                continue
            key = pass_key(tables, row) if fold else row
            part = alike.get(key)
            if part is None:
                alike[key] = part = Part([row], amounts, amounts)
                parts.append(part)
            else:
                part.rows.append(row)
                part.own.add(amounts)
        return Sums("op", tuple(parts), made.outside, made.totals)


def pass_key(tables: CaptureTables, row: int) -> Hashable:
    value = tables.ops.value
    return (value("layer_row", row), *(value(name, row) for name in ("shape", "dtype", "flops_forward", "is_buffer")))


# By module ---------------------------------------------------------------------------------------------


def in_address_order(tables: CaptureTables) -> list[int]:
    """Rows of the modules as the model registers them, each behind the module that holds it."""
    modules = tables.modules
    addresses, holders, numbers = map(modules.column, ("address", "address_parent", "module_number"))
    held: dict[str | None, list[int]] = {}
    for row in sorted(range(len(modules)), key=numbers.__getitem__):
        held.setdefault(holders[row], []).append(row)
    order: list[int] = []
    stack = held.pop(None, [])[::-1]
    while stack:
        row = stack.pop()
        order.append(row)
        stack += held.pop(addresses[row], [])[::-1]
    return order


def by_module(tables: CaptureTables, *, fold: bool, flops_per_mac: FlopsPerMac = 2) -> Sums:
    """The modules in the order of their addresses, the root first.

    Args:
        tables: A capture's tables.
        fold: Show modules that stand next to each other and are alike as one part.
        flops_per_mac: FLOPs that a multiply-accumulate is.
    """
    with over_events():
        made = OpAmounts(tables, flops_per_mac)
        order = in_address_order(tables)
        place = {row: number for number, row in enumerate(order)}
        own = [Amounts() for _ in order]
        calls: Sequence[int]
        calls, of_call = tables.module_calls.column("module_row"), tables.ops.column("call_row")
        for row, amounts in enumerate(made.amounts):
            call: int = of_call[row]
            module = calls[call] if 0 <= call < len(calls) else NOWHERE
            (own[place[module]] if module in place else made.outside).add(amounts)
        holders = tables.params.column("module_row")
        made.add_parameters([own[place[row]] if row in place else None for row in holders])
        below = below_each(tables, order)
        parts = arranged(order, own, below, kinds(below, module_keys(tables, order, own, below)) if fold else ())
        return Sums("module", tuple(parts), made.outside, made.totals)


def below_each(tables: CaptureTables, order: Sequence[int]) -> list[list[int]]:
    """By place in the order the places right below; what no module holds is below the root."""
    modules = tables.modules
    addresses, holders = modules.column("address"), modules.column("address_parent")
    place: dict[str, int] = {}
    for number, row in enumerate(order):
        place.setdefault(addresses[row], number)
    below: list[list[int]] = [[] for _ in order]
    for number, row in enumerate(order):
        if number:
            below[0 if holders[row] is None else place[holders[row]]].append(number)
    return below


def module_keys(
    tables: CaptureTables, order: Sequence[int], own: Sequence[Amounts], below: Sequence[Sequence[int]]
) -> list[Hashable]:
    """What each module is and did, but for its name, what it kept and how long it took."""
    modules = tables.modules
    names = modules.column("name")
    told = [modules.column(name) for name in ("class_name", "training", "call_rows")]
    made: list[Hashable] = []
    for number, row in enumerate(order):
        class_name, training, calls = (column[row] for column in told)
        shapes = (shapes_at(tables, calls[0], "input"), shapes_at(tables, calls[0], "output")) if calls else None
        did = tuple([own[number].value(name) for name in ALIKE])
        made.append(
            (class_name, training, len(calls), shapes, did, tuple([names[order[one]] for one in below[number]]))
        )
    return made


def shapes_at(tables: CaptureTables, call: int, side: Literal["input", "output"]) -> tuple[Any, ...]:
    """Shapes of what a module call was given or returned."""
    rows = tables.module_calls.value(f"{side}_op_rows", call)
    return tuple([tables.ops.value("shape", row) for row in rows])


def arranged(
    order: Sequence[int], own: Sequence[Amounts], below: Sequence[Sequence[int]], alike: Sequence[int]
) -> list[Part]:
    """The parts of a tree of modules; neighbours of one kind are one, where ``alike`` tells the kinds."""
    if not order:
        return []
    parts: list[Part] = []
    waiting: list[tuple[list[int], Part | None]] = [([0], None)]
    while waiting:
        group, parent = waiting.pop()
        part = Part([order[one] for one in group], Amounts(), Amounts(), parent=parent)
        part.depth = 0 if parent is None else parent.depth + 1
        for one in group:
            part.own.add(own[one])
        if parent is not None:
            parent.below.append(part)
        parts.append(part)
        columns: list[list[int]] = [list(column) for column in zip(*(below[one] for one in group), strict=True)]
        if alike:
            joined = runs(columns, [alike[first] for first, *_ in columns])
            columns = [[one for column in run for one in column] for run in joined]
        waiting += [(column, part) for column in reversed(columns)]
    for part in reversed(parts):
        part.within.add(part.own)
        if part.parent is not None:
            part.parent.within.add(part.within)
    return parts


def added(amounts: Iterable[Amounts]) -> Amounts:
    """Several as one."""
    made = Amounts()
    for one in amounts:
        made.add(one)
    return made
