"""The graph of a capture as plain nodes and edges, which every export writes in its own way.

Reads  the tables of ops or layers, and of grad_fns.
Gives  ``graph_of``: an ``ExportedGraph`` with a node for each record, and an edge for each use of its value.
Rule   nothing is left out and nothing added: the nodes are the rows of the tables, in order, and the edges what the
       records tell of parents, children and pairs.
Rule   attributes are None where the record has none, and never a number that is not finite or that 64 bits do not hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from projections import CaptureTables, Table
from projections.accounts.roles import roles_of
from projections.errors import over_events
from torchlens.errors import ConfigurationError
from torchlens.reading.view import View, require_trace

__all__ = ["VERSION", "Edge", "ExportedGraph", "Graph", "Level", "Node", "graph_of", "require_choices"]

Graph: TypeAlias = Literal["forward", "backward", "combined"]
Level: TypeAlias = Literal["op", "layer"]

VERSION: Final = 1
"""Of what nodes and edges tell: raised whenever an attribute changes its meaning or goes."""

MOST: Final = 4_000_000
"""Nodes and edges together; a graph beyond is refused before it is made."""


@attrs.frozen
class Node:
    """A record: its label and what it tells. No op is labelled like an autograd node, whose label has ``_back_``."""

    name: str
    attributes: Mapping[str, Any]


@attrs.frozen
class Edge:
    """A use of one record by another, by their names."""

    source: str
    target: str
    attributes: Mapping[str, Any]


@attrs.frozen
class ExportedGraph:
    """Nodes and edges, and what is said of all of them."""

    facts: Mapping[str, Any]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


OP_COLUMNS: Final = {
    "layer": "layer_label",
    "pass_index": "pass_index",
    "num_passes": "num_passes",
    "step_index": "step_index",
    "type": "layer_type",
    "func_name": "func_name",
    "module": "module",
    "modules": "modules",
    "shape": "shape",
    "dtype": "dtype",
    "device": "device_ref",
    "memory": "activation_memory",
    "flops": "flops_forward",
    "macs": "macs_forward",
    "duration": "func_duration",
    "params": "param_names",
    "num_params": "num_params",
    "is_inplace": "is_inplace",
    "has_saved_activation": "has_saved_activation",
    "address": "address",
    "io_role": "io_role",
    "grad_fn": "grad_fn_label",
}
"""By attribute the column of the table of ops."""

LAYER_COLUMNS: Final = {
    "num_passes": "num_passes",
    "step_index": "step_index",
    "type": "layer_type",
    "func_name": "func_name",
    "module": "module",
    "modules": "modules",
    "shape": "shape",
    "dtype": "dtype",
    "device": "device_ref",
    "memory": "total_activation_memory",
    "flops": "total_flops_forward",
    "macs": "total_macs_forward",
    "duration": "total_func_duration",
    "params": "param_names",
    "num_params": "num_params",
    "is_inplace": "is_inplace",
    "has_saved_activation": "has_saved_activation",
    "address": "address",
    "io_role": "io_role",
}
"""The same of layers; amounts are of all passes."""

GRAD_FN_COLUMNS: Final = {
    "type": "type",
    "class_name": "class_name",
    "order": "order",
    "op": "op_label",
    "param": "param_address",
    "module": "module_address",
    "modules": "modules",
    "num_calls": "num_calls",
    "duration": "total_backward_duration",
    "is_custom": "is_custom",
}
"""The same of autograd nodes."""


def graph_of(trace: View, *, graph: Graph, level: Level) -> ExportedGraph:
    """The graph of a trace.

    Raises:
        ConfigurationError: ``export_type_invalid``, ``export_option_invalid``, ``export_backward_missing``,
            ``export_too_large``.
    """
    require_trace(trace, "export_type_invalid", "an export")
    require_choices(graph, level)
    tables = trace.tables
    if graph != "forward" and not tables.fact("num_grad_fns"):
        raise ConfigurationError(
            code="export_backward_missing",
            problem=f'graph is "{graph}", and no backward pass was recorded',
            remedy='run one, trace.backward(loss), or give graph="forward"',
        )
    with over_events():
        require_size(tables, graph, level)
        nodes: list[Node] = []
        edges: list[Edge] = []
        forward: Sequence[str] = tables.ops.column("label") if level == "op" else tables.layers.column("layer_label")
        if graph != "backward" and level == "op":
            nodes += nodes_of(tables.ops, forward, OP_COLUMNS, "op")
            edges += op_edges(tables, forward)
        elif graph != "backward":
            nodes += nodes_of(tables.layers, forward, LAYER_COLUMNS, "layer")
            edges += layer_edges(tables, forward)
        if graph != "forward":
            grad_fns = tables.table("grad_fns")
            backward: Sequence[str] = grad_fns.column("label")
            nodes += nodes_of(grad_fns, backward, GRAD_FN_COLUMNS, "grad_fn")
            edges += backward_edges(grad_fns, backward)
            if graph == "combined":
                edges += pair_edges(tables, level, forward, backward)
        return ExportedGraph(facts_of(tables, graph, level), tuple(nodes), tuple(edges))


def require_choices(graph: object, level: object) -> None:
    for name, value, kind in (("graph", graph, Graph), ("level", level, Level)):
        if value not in get_args(kind):
            raise ConfigurationError(
                code="export_option_invalid",
                problem=f"{name} is {value!r}",
                remedy=f"give one of {', '.join(get_args(kind))}",
                argument=name,
            )


def require_size(tables: CaptureTables, graph: Graph, level: Level) -> None:
    """Refuse what is larger than an export may be, before it is made."""
    count = 0
    if graph != "backward":
        count += len(tables.ops) + sum(map(len, tables.ops.column("parent_rows")))
    if graph != "forward":
        grad_fns = tables.table("grad_fns")
        count += len(grad_fns) + sum(map(len, grad_fns.column("child_rows"))) + len(tables.ops)
    if count > MOST:
        raise ConfigurationError(
            code="export_too_large",
            problem=f"the graph has {count:,} nodes and edges, and at most {MOST:,} are exported",
            remedy='give graph="forward", or read the records, trace.ops'
            if graph == "combined"
            else "read the records, trace.ops",
        )


def facts_of(tables: CaptureTables, graph: Graph, level: Level) -> Mapping[str, Any]:
    fact = tables.fact
    return {
        "format": "torchlens-graph",
        "version": VERSION,
        "graph": graph,
        "level": level,
        "name": fact("trace_label"),
        "model": fact("model_class_qualname"),
        "status": fact("status"),
        "graph_shape_hash": fact("graph_shape_hash"),
        "written_by": fact("written_by"),
    }


def nodes_of(table: Table[Any], labels: Sequence[str], told: Mapping[str, str], kind: str) -> Iterator[Node]:
    columns = {name: table.column(column) for name, column in told.items()}
    roles = [kind] * len(table) if kind == "grad_fn" else roles_of(table)
    for row, role in enumerate(roles):
        what = kind if role == "op" else role
        attributes = {name: finite(column[row]) for name, column in columns.items()}
        yield Node(labels[row], {"kind": what, **attributes})


def finite(value: Any) -> Any:
    """A value that every format holds: texts, whole numbers of 64 bits, finite ones, truths, None, tuples of these."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() > 63:
        return None
    if isinstance(value, tuple | list):
        return tuple([finite(one) for one in value])
    return value if value is None or isinstance(value, str | int) else str(value)


# Edges -------------------------------------------------------------------------------------------------


def uses_of(tables: CaptureTables, row: int) -> Iterator[tuple[int, str | None, tuple[Any, ...] | None]]:
    """Per use by an op its parent's row, whether it was a positional or a keyword argument, and where it stood."""
    parents: Sequence[int] = tables.ops.value("parent_rows", row)
    uses = tables.ops.value("edge_uses", row)
    for place, parent in enumerate(parents):
        if len(uses) == len(parents):
            _, _, argument, path = uses[place]
            yield parent, argument, finite(tuple(path))
        else:
            yield parent, None, None


def op_edges(tables: CaptureTables, labels: Sequence[str]) -> Iterator[Edge]:
    for row, target in enumerate(labels):
        for parent, argument, path in uses_of(tables, row):
            yield edge(labels[parent], target, "forward", argument, path)


def layer_edges(tables: CaptureTables, labels: Sequence[str]) -> Iterator[Edge]:
    """One for each argument of a layer and layer that it came from, with how many passes used it so."""
    layers: Sequence[int] = tables.ops.column("layer_row")
    uses = [(row, *use) for row in range(len(tables.ops)) for use in uses_of(tables, row)]
    counted = Counter([(layers[parent], layers[row], argument, path) for row, parent, argument, path in uses])
    for (source, target, argument, path), count in counted.items():
        yield edge(labels[source], labels[target], "forward", argument, path, count)


def backward_edges(grad_fns: Table[Any], labels: Sequence[str]) -> Iterator[Edge]:
    """From each node to those that its gradients go to."""
    for source, children in zip(labels, grad_fns.column("child_rows"), strict=True):
        for child in children:
            yield edge(source, labels[child], "backward")


def pair_edges(tables: CaptureTables, level: Level, forward: Sequence[str], backward: Sequence[str]) -> Iterator[Edge]:
    """From each op, or its layer, to the node that differentiates it."""
    layers: Sequence[int] = tables.ops.column("layer_row") if level == "layer" else range(len(tables.ops))
    for target, ops in zip(backward, tables.table("grad_fns").column("op_rows"), strict=True):
        for source, count in Counter([layers[op] for op in dict.fromkeys(ops) if op >= 0]).items():
            yield edge(forward[source], target, "pair", count=count)


def edge(
    source: str,
    target: str,
    kind: str,
    argument: str | None = None,
    path: tuple[Any, ...] | None = None,
    count: int = 1,
) -> Edge:
    return Edge(source, target, {"kind": kind, "argument": argument, "path": path, "count": count})
