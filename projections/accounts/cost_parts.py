"""Where the work of a capture is: module calls as a tree, what each did itself and what it did with all inside it.

Reads  the module calls and op rows of a ``Forward``, what each call of torch costs (records/cost.py) and is
       charged with (records/saved.py); and what the tables of backward passes say that each firing executed.
Gives  ``cost_tree``: parts in the order of the tree, with their amounts, and what the whole is.
Rule   work is its innermost module call's. What ran in no call but the root's has a part of its own, as has backward
       work on a node that differentiates no op, and what ran in no recorded node: so the own amounts of all parts add
       up to the whole, and what is inside the root is the whole.
Rule   calls of one module from one call are folded where their forward did the same, down to the last call inside;
       what backward passes did for them, or how they share memory, does not part them.
Rule   what is not shown, for being deep or small, is a part too. Nothing is lost, and what is so hidden is told.
Rule   an amount is over what is known. It is None, never 0, where nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from projections.accounts.alike import kinds
from projections.accounts.charging import charged_ops
from projections.build import CaptureTables
from projections.errors import over_events
from projections.folds.graph import NOWHERE
from projections.forward import Forward, first_results
from projections.records.cost import every_cost
from projections.records.saved import charges, kept_by_row

Kind: TypeAlias = Literal["root", "call", "remainder", "grad_fn", "unattributed"]

Role: TypeAlias = Literal["owner", "subtotal", "remainder"]

ROOT: Final = "self:1"
OUTSIDE: Final = "::outside"
UNATTRIBUTED: Final = "::unattributed"


@attrs.define(slots=True)
class Amounts:
    """What was done somewhere, as far as it is known; each call of torch once."""

    flops: int = 0
    mac_flops: int = 0  # of the products alone, two each
    backward: int = 0
    recompute: int = 0  # of these, what checkpoints ran again of the forward
    saved: int = 0  # bytes charged that nobody had before
    ops: int = 0
    unknown: int = 0  # ops whose FLOPs are not known
    untold: int = 0  # ops of which torch does not tell what they keep
    unkept: int = 0  # these, and ops that ran with autograd off, of which nobody asks

    @property
    def known_flops(self) -> int | None:
        return self.flops if self.flops or not self.unknown else None

    @property
    def known_mac_flops(self) -> int | None:
        return self.mac_flops if self.mac_flops or not self.unknown else None

    @property
    def known_saved(self) -> int | None:
        if self.saved:
            return self.saved
        return None if self.untold or (self.ops and self.unkept == self.ops) else 0

    def add(self, other: Amounts) -> None:
        self.flops += other.flops
        self.mac_flops += other.mac_flops
        self.backward += other.backward
        self.recompute += other.recompute
        self.saved += other.saved
        self.ops += other.ops
        self.unknown += other.unknown
        self.untold += other.untold
        self.unkept += other.unkept


@attrs.define(slots=True)
class Part:
    """A row of the tree, with those below it.

    Attributes:
        part_id: Label of its first call, of its node, or what it is.
        label: The same for people.
        kind: What it is.
        is_remainder: Whether it stands for what no call owns, or for several parts that are not shown.
        class_name: Of the module; None where it is no call.
        passes: Calls of its module in the whole capture; None where it is no call.
        folded: Calls that it stands for.
        own: What they did themselves.
        within: That and what is below.
    """

    part_id: str
    label: str
    kind: Kind
    is_remainder: bool = False
    class_name: str | None = None
    passes: int | None = None
    folded: int = 1
    own: Amounts = attrs.field(factory=Amounts)
    within: Amounts = attrs.field(factory=Amounts)
    below: list[Part] = attrs.Factory(list["Part"])
    depth: int = 0
    parent_id: str | None = None

    @property
    def role(self) -> Role:
        """Of what its amounts are: of one thing, of that and of parts below, or of what no call owns."""
        if self.is_remainder:
            return "remainder"
        return "subtotal" if self.below else "owner"


@attrs.frozen
class Tree:
    """The parts, and what is true of all of them.

    Attributes:
        parts: Each behind the one that it is below.
        is_counted: Whether the backward is: what it executed was measured.
        is_recompute_known: Whether it is known what of that checkpoints ran again.
        is_measured: Whether it is known of any op what it keeps for the backward.
        hidden: What parts hold that stand for calls not shown.
        uncounted_families: Families of operators of the backward that do work and have no count, with how many calls.
    """

    parts: tuple[Part, ...]
    is_counted: bool
    is_recompute_known: bool
    is_measured: bool
    hidden: Amounts
    uncounted_families: tuple[tuple[str, int], ...]


def cost_tree(
    tables: CaptureTables, *, top_k: int | None = None, max_depth: int | None = None, fold_repeats: bool = True
) -> Tree:
    """The tree of a capture.

    Args:
        tables: The capture.
        top_k: Parts of a kind to show below each; the largest, by the work of the forward inside them.
        max_depth: Deepest level of calls to show, the root's being 0.
        fold_repeats: Whether repeated calls that did the same work are one part.
    """
    with over_events():
        forward, fact = tables.forward, tables.fact
        work = Work(tables)
        root = work.tree(fold_repeats=fold_repeats)
        if work.outside.ops or work.outside.backward:
            root.below.append(
                Part(OUTSIDE, "(ops outside recorded calls)", "remainder", is_remainder=True, own=work.outside)
            )
        if work.is_counted:
            root.below += backward_parts(tables)
        hidden = Amounts()
        sum_up(root)
        trim(root, top_k, max_depth, hidden)
        return Tree(
            tuple(placed(root)),
            work.is_counted,
            work.is_counted and fact("recompute_flops") is not None,
            any(charge is not None for row, charge in enumerate(charges(forward, 0)) if forward.is_op[row]),
            hidden,
            fact("uncounted_families") if work.is_counted else (),
        )


# The calls ----------------------------------------------------------------------------------------------


class Work:
    """What each module call did itself.

    Args:
        tables: The capture.
    """

    def __init__(self, tables: CaptureTables) -> None:
        self.tables: Final = tables
        self.forward: Final[Forward] = tables.forward
        forward = self.forward
        self.count: Final = len(forward.calls)
        self.own: Final = [Amounts() for _ in range(self.count)]
        self.outside: Final = Amounts()  # what ran in no call but the root's
        self.is_counted: Final = tables.fact("executed_evidence") == "measured"
        self.add_forward()
        if self.is_counted:
            self.add_backward()

    def of_row(self, row: int) -> Amounts:
        call = self.forward.rows.call[row]
        return self.own[call] if 0 < call < self.count else self.outside

    def add_forward(self) -> None:
        forward = self.forward
        first, costs = first_results(forward, 0), every_cost(forward, 0).of_rows()
        charge, kept = charges(forward, 0), kept_by_row(forward, 0)
        for row, cost in enumerate(costs):
            if not forward.is_op[row]:
                continue
            amounts = self.of_row(row)
            amounts.ops += 1
            amounts.unknown += cost.is_known is False
            amounts.untold += kept[row].is_untold
            amounts.unkept += kept[row].tensors is None
            if first[row] == row:
                amounts.flops += cost.forward or 0
                amounts.mac_flops += 2 * (cost.macs or 0)
                charged = charge[row]
                amounts.saved += 0 if charged is None else charged.nobodys

    def add_backward(self) -> None:
        charged = charged_ops(self.tables)
        for node, done in enumerate(work_of_nodes(self.tables)):
            if done.backward and charged[node] != NOWHERE:
                self.of_row(charged[node]).add(done)

    # -- the tree

    def kinds(self) -> list[int]:
        """By call a number: equal for calls of one module that did the same work, down to the last call inside."""
        modules = self.forward.calls.module
        own = [(modules[call], did.flops, did.mac_flops, did.ops, did.unknown) for call, did in enumerate(self.own)]
        return kinds(self.forward.inner_calls, own)

    def tree(self, *, fold_repeats: bool) -> Part:
        """The root, with the calls below it."""
        forward = self.forward
        kinds: Sequence[int] = self.kinds() if fold_repeats else range(self.count)
        root = Part(ROOT, forward.course.model_class or ROOT, "root", class_name=forward.course.model_class or None)
        if self.count:
            root.part_id, root.passes = forward.call_labels[0], len(forward.calls_of[forward.calls.module[0]])
        outer = [call for call, parent in enumerate(forward.calls.parent) if call and parent < 0]
        waiting = [(root, [*forward.inner_calls[0], *outer] if self.count else [])]
        while waiting:
            part, inside = waiting.pop()
            alike: dict[int, list[int]] = {}
            for call in inside:
                alike.setdefault(kinds[call], []).append(call)
            for group in alike.values():
                below = self.part(group)
                part.below.append(below)
                waiting.append((below, [one for call in group for one in forward.inner_calls[call]]))
        return root

    def part(self, group: Sequence[int]) -> Part:
        """Some calls as one."""
        forward, first = self.forward, group[0]
        label, module, times = forward.call_labels[first], forward.calls.module[first], len(group)
        modules = forward.words.modules
        made = Part(
            label,
            label if times == 1 else f"{label} (x{times})",
            "call",
            class_name=modules[module].class_name if module < len(modules) else None,
            passes=len(forward.calls_of[module]),
            folded=times,
        )
        for call in group:
            made.own.add(self.own[call])
        return made


# The backward -------------------------------------------------------------------------------------------


def work_of_nodes(tables: CaptureTables) -> list[Amounts]:
    """By autograd node, the FLOPs of the operators that ran in its firings."""
    made = [Amounts() for _ in range(len(tables.grad_fns))]
    calls = tables.grad_fn_calls
    nodes: Sequence[int] = calls.column("grad_fn_row")
    for node, executed, recomputed in zip(nodes, calls.column("flops"), calls.column("recompute_flops"), strict=True):
        made[node].backward += executed or 0
        made[node].recompute += recomputed or 0
    return made


def backward_parts(tables: CaptureTables) -> Iterable[Part]:
    """A part for each node with work that differentiates no op, and one for what ran in no recorded node."""
    labels, charged = tables.grad_fns.column("label"), charged_ops(tables)
    for node, done in enumerate(work_of_nodes(tables)):
        if done.backward and charged[node] == NOWHERE:
            yield Part(labels[node], labels[node], "grad_fn", own=done)
    passes = tables.backward_passes
    if any(passes.column("unattributed_rows")):
        label, loose = "(backward under no recorded node)", sum(passes.column("unattributed_flops"))
        yield Part(UNATTRIBUTED, label, "unattributed", is_remainder=True, own=Amounts(backward=loose))


# The shape ----------------------------------------------------------------------------------------------


def in_order(root: Part) -> list[Part]:
    """All parts, each behind the one that it is below."""
    made, stack = list[Part](), [root]
    while stack:
        part = stack.pop()
        made.append(part)
        stack += reversed(part.below)
    return made


def sum_up(root: Part) -> None:
    for part in reversed(in_order(root)):
        part.within = attrs.evolve(part.own)
        for below in part.below:
            part.within.add(below.within)


def placed(root: Part) -> list[Part]:
    """All parts, which know their depth and parent."""
    made = in_order(root)
    for part in made:
        for below in part.below:
            below.depth, below.parent_id = part.depth + 1, part.part_id
    return made


def trim(root: Part, top_k: int | None, max_depth: int | None, hidden: Amounts) -> None:
    """Put parts that stand for calls in place of those that are too deep or too small."""
    level, depth = [root], 0
    while level:
        for part in level:
            if depth == max_depth:
                deep = [below for below in part.below if below.kind == "call"]
                where = f"calls below depth {depth}"
                put_together(part, deep, f"{part.part_id}::depth", where, "remainder", hidden)
            elif top_k is not None:
                calls = smaller(part, "call", top_k)
                put_together(part, calls, f"{part.part_id}::rest", "smaller calls", "remainder", hidden)
            if top_k is not None:
                nodes = smaller(part, "grad_fn", top_k)
                put_together(part, nodes, f"{part.part_id}::grad_fns", "autograd nodes", "grad_fn", hidden)
        level, depth = [below for part in level for below in part.below], depth + 1


def smaller(part: Part, kind: Kind, top_k: int) -> list[Part]:
    """The parts of a kind below another that are not among its largest."""
    found = [below for below in part.below if below.kind == kind]
    ranked = sorted(found, key=lambda below: (-below.within.flops, -below.within.backward))  # stable: the first stay
    return ranked[top_k:]


def put_together(part: Part, gone: Sequence[Part], part_id: str, what: str, kind: Kind, hidden: Amounts) -> None:
    """One part for some of those below another, and for all that is below them."""
    if not gone:
        return
    every = [one for below in gone for one in in_order(below)]
    number = sum(one.folded for one in every)
    if number == 1:
        what = what.replace("calls", "call").replace("nodes", "node")
    made = Part(part_id, f"(+ {number} {what})", kind, is_remainder=True, folded=number)
    for below in gone:
        made.own.add(below.within)
    made.within = attrs.evolve(made.own)
    hidden.add(made.own)
    left = {id(below) for below in gone}
    last = max(place for place, below in enumerate(part.below) if id(below) in left)
    part.below[:] = [below for below in part.below if id(below) not in left]
    part.below.insert(last + 1 - len(gone), made)
