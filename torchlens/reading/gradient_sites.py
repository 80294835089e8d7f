"""What a selector means of a finished trace's backward passes, as rows: ops by their gradients, and firings.

Reads  the tables of ops, autograd nodes and their firings, and the terms of a selector
       (projections/selecting/backward_terms.py).
Rule   an op has a gradient where one came to it in some backward pass, kept or not
       (projections/autograd/arrivals.py). An output means that of the op whose value it is. A term about passes or
       nodes holds of an op where it holds in some pass.
Rule   sites of gradients and of activations are never of one selection; autograd nodes are no sites.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from projections import CaptureTables
from projections.selecting.backward_terms import Spot, about, behind_outputs, matching, names_nodes
from projections.selecting.selector import Record, Selector
from torchlens.errors import SelectionError, SelectorTypeError

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
        SelectorTypeError: ``selector_argument_type_invalid``, for what is no selector.
    """
    if not isinstance(selector, Selector):
        raise SelectorTypeError(
            code="selector_argument_type_invalid",
            problem=f"a {type(selector).__name__} is no selector",
            remedy='give one: .matching(tl.grad_fn("addmm")); .find("addmm") looks for a part of a label, .where(test)'
            " takes a function",
            received_type=type(selector).__name__,
        )
    require_passes(selector, tables)
    if selector.reads_values:
        raise kinds_mixed(f"{selector!r} compares values, which are those of activations, to choose firings")
    holds = matching(selector, lambda part: behind_outputs(part.rows(tables, records), tables))
    is_of_nodes = names_nodes(selector)
    nodes, calls = Nodes(tables), tables.grad_fn_calls
    at_node = ops_at_nodes(tables)
    found: list[int] = []
    columns = (calls.column(name) for name in ("grad_fn_row", "backward_pass_index", "missing_outputs"))
    for call, (node, number, missing) in enumerate(zip(*columns, strict=True)):
        ops = at_node.get(node)
        if ops is None and not is_of_nodes and not nodes.gathers[node]:
            continue
        spot = nodes.spot(node, number)
        sends = is_of_nodes and not nodes.gathers[node]
        rows = [(None, True)] if ops is None else [(row, slot not in missing) for row, slot in ops]
        if any(
            (came and holds(attrs.evolve(spot, row=row)))
            or (sends and holds(attrs.evolve(spot, row=row, side="input")))
            for row, came in rows
        ):
            found.append(call)
    return tuple(found)


def ops_at_nodes(tables: CaptureTables) -> dict[int, list[tuple[int, int]]]:
    """By node, the op rows whose gradients come there, each with the output at which they do."""
    ops, found = tables.ops, dict[int, list[tuple[int, int]]]()
    for row, (node, slot) in enumerate(zip(ops.column("gradient_node_row"), ops.column("grad_slot"), strict=True)):
        if node >= 0:
            found.setdefault(node, []).append((row, slot or 0))
    return found


class Nodes:
    """What selectors ask of autograd nodes, by row.

    Args:
        tables: The tables of the capture.
    """

    def __init__(self, tables: CaptureTables) -> None:
        nodes = tables.grad_fns
        self.names, self.labels, self.are_custom, self.have_op, self.gathers = (
            nodes.column(name) for name in ("class_name", "label", "is_custom", "has_op", "is_gatherer")
        )

    def spot(self, node: int, pass_index: int) -> Spot:
        """What comes to the outputs of a node in a pass, at no op."""
        return Spot(
            class_name=self.names[node],
            label=self.labels[node],
            is_custom=self.are_custom[node],
            has_op=self.have_op[node],
            side="output",
            row=None,
            pass_index=pass_index,
        )


def gradient_rows(tables: CaptureTables) -> tuple[int, ...]:
    """The op rows that have a gradient."""
    return tuple(row for row, passes in enumerate(tables.ops.column("gradient_pass_rows")) if passes)


def spots(tables: CaptureTables) -> Iterator[Spot]:
    """Each gradient that came to an op, in each pass, by op."""
    ops, nodes = tables.ops, Nodes(tables)
    columns = (ops.column(name) for name in ("gradient_node_row", "gradient_pass_rows"))
    for row, (node, passes) in enumerate(zip(*columns, strict=True)):
        for number in passes:
            yield attrs.evolve(nodes.spot(node, number + 1), row=row)


def kinds_mixed(problem: str, *, remedy: str = "ask for one kind at a time") -> SelectionError:
    return SelectionError(code="selection_kind_incompatible", problem=problem, remedy=remedy)
