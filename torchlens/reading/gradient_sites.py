"""The gradients and the firings that a selector means in a finished trace, as rows.

Reads  the tables of ops, autograd nodes and their firings, and the terms of a selector (projections.backward_terms).
Rule   an op has a gradient where one arrived at its place on its autograd node in some backward pass, kept or not.
       An output means that of the op whose value it is. A term about passes or nodes holds of an op where it holds in
       some pass.
Rule   sites of gradients and of activations are never of one selection; autograd nodes are no sites.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from journal.events import Side
from projections import CaptureTables
from projections.backward_terms import Spot, about, behind_outputs, matching, names_nodes
from projections.selector import Record, Selector
from torchlens.errors import SelectionError

__all__ = ["gradient_rows", "kinds_mixed", "matching_firings", "resolve_gradients"]


def resolve_gradients(selector: Selector, tables: CaptureTables, records: Record) -> tuple[int, ...]:
    """The op rows whose gradients a selector means, ascending.

    Raises:
        SelectionError: ``gradient_sites_unavailable`` before any backward pass; ``selection_kind_incompatible`` where
            it means activations or autograd nodes too, or compares values.
    """
    require_passes(selector, tables)
    kind = about(selector)
    if kind == "mixed":
        raise kinds_mixed(f"{selector!r} means gradients and something else")
    if kind == "node":
        raise kinds_mixed(
            f"{selector!r} means autograd nodes, which are no sites",
            remedy="trace.autograd.grad_fns.matching(selector) and .grad_fn_calls.matching(selector) find them; "
            "tl.grad(...) means the gradients of ops",
        )
    if selector.reads_values:
        raise kinds_mixed(f"{selector!r} compares values, which are those of activations, to choose gradients")
    holds = matching(selector, lambda part: behind_outputs(part.rows(tables, records), tables))
    return tuple(dict.fromkeys(spot.row for spot in spots(tables) if spot.row is not None and holds(spot)))


def require_passes(selector: Selector, tables: CaptureTables) -> None:
    if not len(tables.table("backward_passes")):
        raise SelectionError(
            code="gradient_sites_unavailable",
            problem=f"{selector!r} asks what a backward pass does, and none was recorded",
            remedy="run trace.backward(loss) first, or ask for activations by selectors of the forward",
            selector=repr(selector),
        )


def matching_firings(selector: Selector, tables: CaptureTables, records: Record) -> tuple[int, ...]:
    """The firings at which a gradient passed that a selector means, on either side of the node, ascending.

    Raises:
        SelectionError: ``gradient_sites_unavailable``, and ``selection_kind_incompatible`` where it compares values.
    """
    require_passes(selector, tables)
    if selector.reads_values:
        raise kinds_mixed(f"{selector!r} compares values, which are those of activations, to choose firings")
    holds = matching(selector, lambda part: behind_outputs(part.rows(tables, records), tables))
    sides: tuple[Side, ...] = ("output", "input") if names_nodes(selector) else ("output",)
    nodes, calls = tables.table("grad_fns"), tables.table("grad_fn_calls")
    names, labels, are_custom, ops = (nodes.column(name) for name in ("class_name", "label", "is_custom", "op_rows"))
    found: list[int] = []
    for call, (node, number) in enumerate(
        zip(calls.column("grad_fn_row"), calls.column("backward_pass_index"), strict=True)
    ):
        about_node = Spot(
            class_name=names[node],
            label=labels[node],
            is_custom=are_custom[node],
            has_op=bool(ops[node]),
            side="output",
            row=None,
            pass_index=number,
        )
        rows: tuple[int | None, ...] = ops[node] or (None,)
        if any(holds(attrs.evolve(about_node, side=side, row=row)) for side in sides for row in rows):
            found.append(call)
    return tuple(found)


def gradient_rows(tables: CaptureTables) -> tuple[int, ...]:
    """The op rows that have a gradient."""
    return tuple(dict.fromkeys(spot.row for spot in spots(tables) if spot.row is not None))


def spots(tables: CaptureTables) -> Iterator[Spot]:
    """Each gradient that arrived at an op, in each pass, by op."""
    ops, nodes, calls = tables.ops, tables.table("grad_fns"), tables.table("grad_fn_calls")
    names, labels, are_custom, fired = (
        nodes.column(name) for name in ("class_name", "label", "is_custom", "call_rows")
    )
    passes, missing = calls.column("backward_pass_index"), calls.column("missing_outputs")
    for row, (node, slot, is_output) in enumerate(
        zip(ops.column("grad_fn_row"), ops.column("grad_slot"), ops.column("is_output"), strict=True)
    ):
        if node < 0 or is_output:
            continue
        for number in dict.fromkeys(passes[call] for call in fired[node] if slot not in missing[call]):
            yield Spot(
                class_name=names[node],
                label=labels[node],
                is_custom=are_custom[node],
                has_op=True,
                side="output",
                row=row,
                pass_index=number,
            )


def kinds_mixed(problem: str, *, remedy: str = "ask for one kind at a time") -> SelectionError:
    return SelectionError(code="selection_kind_incompatible", problem=problem, remedy=remedy)
