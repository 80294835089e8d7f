"""Where a model's work is: FLOPs of the forward and of the backward, and memory kept for it, by module call.

Reads  the parts of ``projections.accounts.cost_parts``.
Gives  ``cost_tree``: rows with their amounts, as a table for a terminal, for markdown and for pandas.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs

from projections.accounts.cost_parts import Amounts, Kind, Part, Role, Tree
from projections.accounts.cost_parts import cost_tree as parts_of
from projections.records.executed_columns import BackwardState, Evidence
from torchlens.errors import ConfigurationError, LookupRefused
from torchlens.printable import aligned, amount, cut, printable
from torchlens.quantities import Bytes, Flops
from torchlens.reading.tabular import frame_of
from torchlens.reading.view import View, require_trace

if TYPE_CHECKING:
    import pandas

WIDTH: Final = 80
NARROWEST: Final = 16
"""Columns of the whole table, and of the names at least."""

DEEPEST: Final = 8
"""Levels beyond which a line is not moved further in."""

MOST_LINES: Final = 60
"""Rows that the printed table has at most: deeper ones are left out."""


@attrs.frozen(kw_only=True)
class CostTreeRow:
    """A module call, or what belongs to none; the amounts of work that is known.

    Every ``self_`` amount is of what ran in the call and in no call inside it: these add up. A ``subtree_`` amount has
    what is inside too. An amount is None where nothing is known of it; those of the backward where it is not counted;
    memory where the capture did not measure it, torch tells of no op there, or autograd was off for each.

    Attributes:
        row_id: Label of the call, of the first of several, or of the autograd node; ``::`` and what it is for the rest.
        label: The same for people, with how many calls it stands for.
        kind: ``root``; ``call``; ``remainder``, ops outside calls or calls not shown; ``grad_fn``, an autograd node
            that differentiates no op; ``unattributed``, what ran in the backward in no recorded node.
        role: ``owner`` with nothing below, ``subtotal`` with rows below, ``remainder`` for what no call owns.
        class_name: Class of the module; None where it is no call.
        depth: Calls around it.
        parent_id: The row that it is below; None for the root.
        self_flops: FLOPs of the forward, those of elementwise functions included.
        self_pct: Of all of them, in per cent; None where there are none.
        subtree_flops, subtree_pct: The same with what is inside.
        self_forward_mac_flops: FLOPs of its products alone, two for each multiply-accumulate.
        self_backward_flops: FLOPs of the products that the backward passes executed for its ops.
        self_recompute_flops: Of these, what checkpoints ran again of the forward; None where that is not known.
        self_forward_backward_flops: The forward's products and the backward's; None where one is not known.
        subtree_forward_mac_flops, subtree_backward_flops, subtree_recompute_flops, subtree_forward_backward_flops: With
            what is inside.
        self_saved_for_backward: Memory kept for the backward because of its ops, see ``Op.saved_for_backward``.
        subtree_saved_for_backward: With what is inside.
        n_ops: Ops that ran in it.
        n_unknown_ops: Of these, how many have no known FLOPs.
        n_untold_ops: Of these, how many torch does not tell the memory of.
        passes: Calls of its module in the whole capture; None where it is no call.
        folded: Calls that the row stands for.
    """

    row_id: str
    label: str
    kind: Kind
    role: Role
    class_name: str | None
    depth: int
    parent_id: str | None
    self_flops: Flops | None
    self_pct: float | None
    subtree_flops: Flops | None
    subtree_pct: float | None
    self_forward_mac_flops: Flops | None
    self_backward_flops: Flops | None
    self_recompute_flops: Flops | None
    self_forward_backward_flops: Flops | None
    subtree_forward_mac_flops: Flops | None
    subtree_backward_flops: Flops | None
    subtree_recompute_flops: Flops | None
    subtree_forward_backward_flops: Flops | None
    self_saved_for_backward: Bytes | None
    subtree_saved_for_backward: Bytes | None
    n_ops: int
    n_unknown_ops: int
    n_untold_ops: int
    passes: int | None
    folded: int


COLUMNS: Final = tuple(field.name for field in attrs.fields(CostTreeRow))

ADDITIVITY: Final[Mapping[str, bool]] = MappingProxyType(
    {name: not name.startswith("subtree_") for name in COLUMNS if name.startswith(("self_", "subtree_", "n_"))}
)
"""By column of amounts, whether its rows add up to the whole."""


@attrs.frozen(repr=False, kw_only=True)
class CostTree:
    """The rows of a capture, each behind the one that it is below. Printed, it is a table.

    Attributes:
        rows: The rows.
        backward_state: Whether the backward was run, as in ``backward_status``: ``backward_observed``; else it was
            not, ``grad_enabled_unobserved`` where one could be, ``grad_disabled`` where none could.
        executed_evidence: Whether what it executed is counted, ``measured``, or ``unknown``; ``formula_exact`` where
            none could be.
        backward_reason: Why the backward is not counted, in words; None where it is.
        partition_total: FLOPs of the forward, over the ops of which they are known: the sum of ``self_flops``.
        executed_flops: FLOPs that the backward passes executed: the sum of ``self_backward_flops``; None unless
            counted.
        hidden_flops: FLOPs of the forward in rows that stand for calls not shown, for ``top_k`` and ``max_depth``.
        hidden_backward_flops: Those of the backward in such rows; None unless counted.
        unknown_events: Ops whose FLOPs are not known: the sum of ``n_unknown_ops``.
        uncounted_families: Families of operators that ran in the backward, do work and have no count, with how many
            calls of each.
        column_additivity: By column of amounts, whether its rows add up to the whole.
    """

    rows: tuple[CostTreeRow, ...]
    backward_state: BackwardState
    executed_evidence: Evidence
    backward_reason: str | None
    partition_total: Flops
    executed_flops: Flops | None
    hidden_flops: Flops
    hidden_backward_flops: Flops | None
    unknown_events: int
    uncounted_families: dict[str, int]
    column_additivity: Mapping[str, bool] = attrs.field(factory=lambda: dict(ADDITIVITY))

    def __getitem__(self, row_id: str) -> CostTreeRow:
        """The row of a call by its label, or another by its ``row_id``.

        Raises:
            LookupRefused: ``record_lookup_not_found``, ``lookup_key_type_invalid``. Both are a ``KeyError`` too.
        """
        rows = {row.row_id: row for row in self.rows}
        if not isinstance(row_id, str):
            raise LookupRefused(
                code="lookup_key_type_invalid",
                problem=f"a row of a cost tree was asked for by {row_id!r}",
                remedy="give its row_id, such as the label of a call, or take .rows by position",
            )
        if row_id not in rows:
            near = [name for name in rows if name.startswith(f"{row_id}:")]
            near += difflib.get_close_matches(row_id, rows, n=3)
            named = " or ".join(map(repr, list(dict.fromkeys(near))[:3]))
            raise LookupRefused(
                code="record_lookup_not_found",
                problem=f"no row of this cost tree has the row_id {row_id!r}",
                remedy=(f"did you mean {named}? " if near else "")
                + "[row.row_id for row in tree] lists them; repeated calls stand in one row unless fold_repeats=False",
                key=row_id,
            )
        return rows[row_id]

    def __iter__(self) -> Iterator[CostTreeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        backward = f", backward {self.executed_flops}" if self.executed_flops is not None else ""
        return f"<CostTree: {amount(len(self.rows), 'row')}, forward {self.partition_total}{backward}>"

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each, with every column; plain numbers.

        Raises:
            CompatibilityError: ``pandas_not_installed``.
        """
        return frame_of({name: [plain(getattr(row, name)) for row in self.rows] for name in COLUMNS}, len(self.rows))

    def to_markdown(self) -> str:
        """The printed table, with every row, as a table of markdown."""
        shown = [column for column in PRINTED if column.is_shown(self)]
        heads = ["call", *(column.head for column in shown)]
        table = [heads, ["---", *("---:" for _ in shown)]]
        for row in self.rows:
            indent = "&nbsp;&nbsp;" * row.depth
            name = printable(row.label).replace("|", "\\|").replace("<", "&lt;")
            table.append([indent + name, *(column.cell(row) for column in shown)])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def plain(value: Any) -> Any:
    return int(value) if isinstance(value, Flops | Bytes) else value


def cost_tree(
    trace: View, *, top_k: int | None = None, max_depth: int | None = None, fold_repeats: bool = True
) -> CostTree:
    """Where the work of a capture is, by module call.

    FLOPs count as in ``Op.flops_forward`` and, for the ``_mac_`` and ``_backward_`` columns, as the convention of
    ``torch.utils.flop_counter.FlopCounterMode`` does: products alone, two FLOPs for each multiply-accumulate.

    Args:
        trace: A trace, live or loaded. The backward is counted where it was captured with ``backward_ready=True``,
            memory where with ``measure_autograd_memory=True``.
        top_k: Show no more than so many calls inside each call, at every level, those with the most FLOPs of the
            forward inside; the others are one row. So it is with autograd nodes that differentiate no op. None shows
            all.
        max_depth: Show no calls below this level, the root's being 0; what is below is one row. None shows all.
        fold_repeats: Show calls of one module from one call as one row, where their forward did the same work.

    Raises:
        ConfigurationError: ``cost_tree_top_k_invalid``, ``cost_tree_depth_invalid``, ``fold_repeats_invalid`` for other
            values of these; ``cost_tree_type_invalid`` for what is no trace.
        TraceCleanedUpError: ``trace_cleaned_up``.

    Example:
        >>> import torch, torchlens as tl
        >>> trace = tl.trace(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU()), torch.ones(5, 4))
        >>> [(row.label, row.self_flops) for row in tl.report.cost_tree(trace)]
        [('Sequential', Flops('0 FLOPs')), ('0:1', Flops('270 FLOPs')), ('1:1', Flops('30 FLOPs'))]
    """
    require_trace(trace, "cost_tree_type_invalid", "a cost tree")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ConfigurationError(
            code="cost_tree_top_k_invalid",
            problem=f"top_k is {top_k!r}",
            remedy="give a whole number from 1 on, or None for all calls",
        )
    if max_depth is not None and (type(max_depth) is not int or max_depth < 0):
        raise ConfigurationError(
            code="cost_tree_depth_invalid",
            problem=f"max_depth is {max_depth!r}",
            remedy="give a whole number, 0 for the root alone, or None for all levels",
        )
    if type(fold_repeats) is not bool:
        raise ConfigurationError(
            code="fold_repeats_invalid",
            problem=f"fold_repeats is {fold_repeats!r}",
            remedy="give True or False",
        )
    tree = parts_of(trace.tables, top_k=top_k, max_depth=max_depth, fold_repeats=fold_repeats)
    whole, fact = tree.parts[0].within, trace.tables.fact
    return CostTree(
        rows=tuple([row_of(tree, part) for part in tree.parts]),
        backward_state=fact("backward_state"),
        executed_evidence=fact("executed_evidence"),
        backward_reason=fact("executed_reason"),
        partition_total=Flops(whole.flops),
        executed_flops=Flops(whole.backward) if tree.is_counted else None,
        hidden_flops=Flops(tree.hidden.flops),
        hidden_backward_flops=Flops(tree.hidden.backward) if tree.is_counted else None,
        unknown_events=whole.unknown,
        uncounted_families=dict(tree.uncounted_families),
    )


def row_of(tree: Tree, part: Part) -> CostTreeRow:
    return CostTreeRow(
        row_id=part.part_id,
        label=part.label,
        kind=part.kind,
        role=part.role,
        class_name=part.class_name,
        depth=part.depth,
        parent_id=part.parent_id,
        passes=part.passes,
        folded=part.folded,
        n_ops=part.own.ops,
        n_unknown_ops=part.own.unknown,
        n_untold_ops=part.own.untold,
        **amounts_of(tree, "self", part.own),
        **amounts_of(tree, "subtree", part.within),
    )


def amounts_of(tree: Tree, whose: str, amounts: Amounts) -> dict[str, Any]:
    """The columns of what a part did itself, or with what is inside."""
    whole = tree.parts[0].within.flops
    flops, mac_flops = amounts.known_flops, amounts.known_mac_flops
    backward = amounts.backward if tree.is_counted else None
    both = None if mac_flops is None or backward is None else mac_flops + backward
    return {
        f"{whose}_flops": made(Flops, flops),
        f"{whose}_pct": 100 * flops / whole if flops is not None and whole else None,
        f"{whose}_forward_mac_flops": made(Flops, mac_flops),
        f"{whose}_backward_flops": made(Flops, backward),
        f"{whose}_recompute_flops": made(Flops, amounts.recompute if tree.is_recompute_known else None),
        f"{whose}_forward_backward_flops": made(Flops, both),
        f"{whose}_saved_for_backward": made(Bytes, amounts.known_saved if tree.is_measured else None),
    }


def made(kind: Callable[[int], Any], number: int | None) -> Any:
    return None if number is None else kind(number)


# As text ------------------------------------------------------------------------------------------------


@attrs.frozen
class Printed:
    """A column of the printed table.

    Attributes:
        head: What stands above it.
        cell: The text of a row.
        is_shown: Whether a tree has it.
    """

    head: str
    cell: Callable[[CostTreeRow], str]
    is_shown: Callable[[CostTree], bool] = lambda tree: True


def work(number: int | None) -> str:
    """FLOPs without their unit, which stands above."""
    return "?" if number is None else str(Flops(number)).removesuffix("FLOPs").strip()


def memory(number: Bytes | None) -> str:
    return "?" if number is None else str(number)


def percent(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}%"


def is_counted(tree: CostTree) -> bool:
    return tree.executed_evidence == "measured"


def has_recompute(tree: CostTree) -> bool:
    return bool(tree.rows[0].subtree_recompute_flops)


def is_measured(tree: CostTree) -> bool:
    return any(row.subtree_saved_for_backward is not None for row in tree.rows)


PRINTED: Final = (
    Printed("self", lambda row: work(row.self_flops)),
    Printed("subtree", lambda row: work(row.subtree_flops)),
    Printed("%", lambda row: percent(row.subtree_pct)),
    Printed("backward", lambda row: work(row.subtree_backward_flops), is_counted),
    Printed("recompute", lambda row: work(row.subtree_recompute_flops), has_recompute),
    Printed("saved", lambda row: memory(row.subtree_saved_for_backward), is_measured),
)
"""Behind the name, from left to right."""


def lines(tree: CostTree) -> Iterator[str]:
    """The printed table, at most ``WIDTH`` columns wide."""
    rows, left_out = shown_rows(tree)
    columns = [column for column in PRINTED if column.is_shown(tree)]
    cells = [[column.cell(row) for column in columns] for row in rows]
    heads = [column.head for column in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    room = max(NARROWEST, WIDTH - sum(widths) - 2 * len(widths))
    named = [[cut(name_of(row, tree), room), *texts] for row, texts in zip(rows, cells, strict=True)]
    head, *below = aligned([["FLOPs by call", *heads], *named], right=range(1, 1 + len(columns)))
    rule = "-" * len(head)
    yield from (head, rule, *below, rule)
    yield from notes(tree, left_out)


def shown_rows(tree: CostTree) -> tuple[list[CostTreeRow], int]:
    """As many levels as there are lines for, and how many rows are left out."""
    depth = max(row.depth for row in tree.rows)
    while depth > 1 and sum(row.depth <= depth for row in tree.rows) > MOST_LINES:
        depth -= 1
    shown = [row for row in tree.rows if row.depth <= depth][:MOST_LINES]
    return shown, len(tree.rows) - len(shown)


def name_of(row: CostTreeRow, tree: CostTree) -> str:
    """The label behind that of the row above, with the class where that says more."""
    label, above = row.label, (row.parent_id or "").rpartition(":")[0]
    if row.kind == "call" and label.startswith(f"{above}."):
        label = label[len(above) + 1 :]
    if row.kind == "call" and row.class_name:
        label = f"{label} {row.class_name}"
    return "  " * min(row.depth, DEEPEST) + label


def notes(tree: CostTree, left_out: int) -> Iterator[str]:
    """What stands below the table."""
    total = f"forward {tree.partition_total}"
    if tree.unknown_events:
        total += f", without {amount(tree.unknown_events, 'op')} of unknown work"
    yield total
    if tree.executed_flops is None:
        how = "unknown" if tree.backward_state == "backward_observed" else "not run"
        yield cut(f"backward {how}: {tree.backward_reason}", WIDTH)
    else:
        products = tree.rows[0].subtree_forward_mac_flops
        yield f"backward {tree.executed_flops} in products; products of the forward are {products}"
        families = [f"{name} {count}" for name, count in tree.uncounted_families.items()]
        if families:
            yield cut(f"not counted in the backward: {', '.join(families)}", WIDTH)
    untold = sum(row.n_untold_ops for row in tree.rows)
    if untold and is_measured(tree):
        yield f"saved without {amount(untold, 'op')} of which torch does not tell"
    if tree.hidden_flops or tree.hidden_backward_flops:
        yield f"{tree.hidden_flops} of the forward in rows for calls not shown"
    if left_out:
        yield f"{amount(left_out, 'row')} below not printed; .rows has all"
