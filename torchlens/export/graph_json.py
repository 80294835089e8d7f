"""The graph of a capture as JSON: one object, its form documented and with a version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

from torchlens.export.files import write_export
from torchlens.export.graph import ExportedGraph, Graph, Level, graph_of
from torchlens.reading.view import View

__all__ = ["to_json"]


@overload
def to_json(trace: View, path: None = None, *, graph: Graph = "forward", level: Level = "op") -> str: ...


@overload
def to_json(
    trace: View,
    path: str | os.PathLike[str],
    *,
    graph: Graph = "forward",
    level: Level = "op",
    overwrite: bool = False,
) -> Path: ...


def to_json(
    trace: View,
    path: str | os.PathLike[str] | None = None,
    *,
    graph: Graph = "forward",
    level: Level = "op",
    overwrite: bool = False,
) -> str | Path:
    """The graph of a trace as JSON, as text or in a file, which is there whole or not at all.

    The object has ``format``, ``version`` and facts of the capture, and ``nodes`` and ``edges``: lists of objects, a
    node with an ``id``, an edge with the ids of its ``source`` and ``target``. Numbers are finite, texts ASCII.

    Args:
        trace: A trace, live or loaded.
        path: Of the file; None for the text.
        graph: ``"forward"``; ``"backward"``, the autograd nodes that backward passes found; ``"combined"``, both, with
            an edge from each op to the node that differentiates it.
        level: ``"op"``, a node for each op and an edge for each use; ``"layer"``, passes together.
        overwrite: Replace a file that is there.

    Returns:
        The text, or the absolute path of the file.

    Raises:
        ConfigurationError: ``export_type_invalid``, ``export_option_invalid``, ``export_backward_missing``,
            ``export_too_large``, ``export_path_exists``, ``export_not_written``.
    """
    exported = graph_of(trace, graph=graph, level=level)
    if path is None:
        return "".join(lines(exported))
    return write_export(path, (line.encode("ascii") for line in lines(exported)), overwrite=overwrite)


def lines(exported: ExportedGraph) -> Iterator[str]:
    """The text, a line for each node and edge."""
    yield "{\n"
    for name, value in exported.facts.items():
        yield f'"{name}": {text(value)},\n'
    yield '"nodes": [\n'
    last = len(exported.nodes) - 1
    for number, node in enumerate(exported.nodes):
        yield f"{text({'id': node.name, **node.attributes})}{'' if number == last else ','}\n"
    yield '],\n"edges": [\n'
    last = len(exported.edges) - 1
    for number, edge in enumerate(exported.edges):
        ends = {"source": edge.source, "target": edge.target}
        yield f"{text({**ends, **edge.attributes})}{'' if number == last else ','}\n"
    yield "]\n}\n"


def text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(", ", ": "))
