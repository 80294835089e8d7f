"""The graph of a capture as a graph of networkx, and by its writer as GraphML."""

from __future__ import annotations

import importlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchlens.errors import CompatibilityError
from torchlens.export.files import write_export
from torchlens.export.graph import Graph, Level, graph_of
from torchlens.printable import printable
from torchlens.reading.view import View

if TYPE_CHECKING:
    import networkx

__all__ = ["to_graphml", "to_networkx"]


def to_networkx(trace: View, *, graph: Graph = "forward", level: Level = "op") -> networkx.MultiDiGraph[str]:
    """The graph of a trace as a ``networkx.MultiDiGraph``; needs the extra ``export``.

    Nodes are named by their labels and have the attributes that the records have, in Python's types; each use is an
    edge of its own, whose key is its number. What is said of the capture stands in ``.graph``.

    Args:
        trace: A trace, live or loaded.
        graph: ``"forward"``; ``"backward"``, the autograd nodes that backward passes found; ``"combined"``, both, with
            an edge from each op to the node that differentiates it.
        level: ``"op"``, a node for each op and an edge for each use; ``"layer"``, passes together.

    Raises:
        CompatibilityError: ``networkx_not_installed``.
        ConfigurationError: ``export_type_invalid``, ``export_option_invalid``, ``export_backward_missing``,
            ``export_too_large``.

    Example:
        >>> import torch, torchlens as tl
        >>> graph = tl.export.to_networkx(tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2)))
        >>> list(graph.edges())
        [('input_1', 'linear_1_1'), ('linear_1_1', 'output_1')]
    """
    made = library()
    exported = graph_of(trace, graph=graph, level=level)
    multi = made.MultiDiGraph(**exported.facts)
    for node in exported.nodes:
        multi.add_node(node.name, **node.attributes)
    for number, edge in enumerate(exported.edges):
        multi.add_edge(edge.source, edge.target, key=number, **edge.attributes)
    return multi


def to_graphml(
    trace: View,
    path: str | os.PathLike[str],
    *,
    graph: Graph = "forward",
    level: Level = "op",
    overwrite: bool = False,
) -> Path:
    """Write the graph of a trace as GraphML, which Gephi, yEd, Cytoscape and networkx read; needs the extra ``export``.

    GraphML has no lists and no None: a list is written as JSON, and an attribute that is None is left out. Characters
    that XML has not are spelled out, ``\\x1b``.

    Args:
        trace: A trace, live or loaded.
        path: Of the file, which is there whole or not at all.
        graph: As for ``to_networkx``.
        level: As for ``to_networkx``.
        overwrite: Replace a file that is there.

    Returns:
        The absolute path.

    Raises:
        CompatibilityError: ``networkx_not_installed``.
        ConfigurationError: What ``to_networkx`` raises; ``export_path_exists``, ``export_not_written``.
    """
    made = library()
    file = io.BytesIO()
    made.write_graphml_xml(flat(to_networkx(trace, graph=graph, level=level)), file)
    return write_export(path, [file.getvalue()], overwrite=overwrite)


def flat(multi: Any) -> Any:
    """The graph with attributes as GraphML has them, and names as XML has them, no two alike."""
    made = type(multi)(**plain(multi.graph))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name, attributes in multi.nodes(data=True):
        shown, number = printable(name), 2
        while shown in taken:
            shown, number = f"{printable(name)} #{number}", number + 1
        taken.add(shown)
        names[name] = shown
        made.add_node(shown, **plain(attributes))
    for source, target, key, attributes in multi.edges(keys=True, data=True):
        made.add_edge(names[source], names[target], key=key, **plain(attributes))
    return made


def plain(attributes: Any) -> dict[str, Any]:
    return {name: scalar(value) for name, value in attributes.items() if value is not None}


def scalar(value: Any) -> Any:
    if isinstance(value, tuple):
        return json.dumps(value)
    return printable(value) if isinstance(value, str) else value


def library() -> Any:
    try:
        return importlib.import_module("networkx")  # for cost, and where it is not installed
    except ImportError as exc:
        raise CompatibilityError(
            code="networkx_not_installed",
            problem="a graph of networkx was asked for, and it is not installed",
            remedy="install networkx, or this package with its extra export; tl.export.to_json needs neither",
        ) from exc
