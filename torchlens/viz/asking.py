"""What ``trace.draw(...)`` and ``trace.animate(...)`` are asked for, as a drawing.

Here a picture of records meets the records: a function of the user's is asked for labels, and what is to stand out is
found among the nodes, those of closed modules too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from projections.picture.parts import Picture
from projections.selecting.selector import Selector
from torchlens.errors import ConfigurationError, LookupRefused
from torchlens.printable import cut
from torchlens.reading.fields import Record
from torchlens.reading.selection import Selection, Site
from torchlens.reading.view import View
from torchlens.viz.drawing import Drawing
from torchlens.viz.look import look_of
from torchlens.viz.refusing import MOST_LETTERS, quoted

__all__ = ["drawn"]

Named: TypeAlias = tuple[str, int]
"""A table and a row of it."""

OPS_OF: Final[Mapping[str, str]] = {
    "layers": "op_rows",
    "modules": "op_rows",
    "module_calls": "op_rows",
    "params": "op_rows",
    "buffers": "version_rows",
    "grad_fns": "op_row",
}
"""The column that tells the ops of a row, by table."""


def drawn(
    trace: View,
    picture: Picture,
    *,
    direction: object,
    theme: object,
    layout: object,
    legend: object,
    renderer: str,
    node_label: Callable[[Any], str | None] | None,
    highlight: Any,
) -> Drawing:
    """The drawing of a picture of a trace.

    Raises:
        ConfigurationError: for what is no value of an option.
    """
    look = look_of(theme=theme, direction=direction, layout=layout, legend=legend)
    if node_label is not None:
        look = attrs.evolve(look, labels=labels_by(trace, picture, node_label))
    if highlight is not None:
        look = attrs.evolve(look, highlighted=frozenset(shown(trace, picture, highlight)))
    return Drawing(picture, look, renderer=renderer)


def labels_by(trace: View, picture: Picture, node_label: Callable[[Any], str | None]) -> dict[int, str]:
    """What a function gives for the record of each node; what it gives None for is left out."""
    if not callable(node_label):
        raise ConfigurationError(
            code="visualization_node_style_invalid",
            problem=f"node_label is {quoted(node_label)}",
            remedy="give a function that takes a record and gives the text of its node, or None to leave it as it is",
        )
    labels: dict[int, str] = {}
    for position, node in enumerate(picture.nodes):
        if not node.table or not node.rows:
            continue  # the call that raised has no record
        text = node_label(trace.record(node.table, node.rows[0]))
        if text is None:
            continue
        if not isinstance(text, str):
            raise ConfigurationError(
                code="visualization_node_style_invalid",
                problem=f"node_label gave {type(text).__name__} for {cut(node.title, MOST_LETTERS)!r}",
                remedy="let it give a text, or None to leave the node as it is",
                received_type=type(text).__name__,
            )
        labels[position] = text
    return labels


def shown(trace: View, picture: Picture, highlight: Any) -> set[int]:
    """Positions of the nodes that stand for what is to stand out.

    Raises:
        ConfigurationError: ``visualization_highlight_invalid``.
    """
    at = positions(picture)
    found: set[int] = set()
    for named in named_by(trace, highlight, titles(picture)):
        found |= standing(trace, at, named)
    if not found:
        raise ConfigurationError(
            code="visualization_highlight_invalid",
            problem=f"nothing in this picture stands for {quoted(highlight)}",
            remedy="highlight what trace[...] finds and the picture shows: see graph=, buffers=, params=",
        )
    return found


def positions(picture: Picture) -> dict[Named, set[int]]:
    """The nodes that stand for each row."""
    at: dict[Named, set[int]] = {}
    for position, node in enumerate(picture.nodes):
        for row in node.rows:
            at.setdefault((node.table, row), set()).add(position)
    return at


def titles(picture: Picture) -> dict[str, list[Named]]:
    """The rows of nodes by what stands on them."""
    found: dict[str, list[Named]] = {}
    for node in picture.nodes:
        found.setdefault(node.title, []).extend((node.table, row) for row in node.rows)
    return found


def standing(trace: View, at: Mapping[Named, set[int]], named: Named) -> set[int]:
    """The nodes that stand for a row: those that are of it; else the innermost closed module around it; else, for what
    has ops, those that stand for them."""
    if named in at:
        return at[named]
    table, row = named
    if table == "ops":
        return next((at[home] for home in homes(trace, row) if home in at), set())
    if table not in OPS_OF:
        return set()
    found: set[int] = set()
    rows = trace.table(table).value(OPS_OF[table], row)
    for op in (rows,) if isinstance(rows, int) else rows:
        if op is not None and op >= 0:
            found |= standing(trace, at, ("ops", op))
    return found


def homes(trace: View, op: int) -> Iterator[Named]:
    """The layer of an op, then the module calls around it, innermost first, and their modules."""
    ops, calls = trace.table("ops"), trace.table("module_calls")
    yield "layers", ops.value("layer_row", op)
    call = ops.value("call_row", op)
    while call >= 0:
        yield "module_calls", call
        yield "modules", calls.value("module_row", call)
        call = calls.value("parent_row", call)


def named_by(trace: Any, highlight: Any, called: Mapping[str, Sequence[Named]]) -> Iterator[Named]:
    """The rows that something names.

    Args:
        called: Rows by other names that they have, for a text that names nothing of the trace, or several.
    """
    if isinstance(highlight, (str, Selector)):
        try:
            highlight = trace[highlight]
        except LookupRefused:
            if not isinstance(highlight, str) or not called.get(highlight):
                raise
            yield from called[highlight]
            return
    if isinstance(highlight, (Selection, Record, Site)) and highlight.trace is not trace:
        raise no_highlight(highlight, "it is of another trace")
    match highlight:
        case Selection():
            yield from (("ops", row) for row in highlight.rows)
        case Site():
            yield "ops", highlight.row
        case Record():
            yield highlight.table_name, highlight.row
        case Iterable():
            for one in highlight:
                if isinstance(one, Iterable) and not isinstance(one, (str, Selection)):
                    raise no_highlight(one, "it is a collection in a collection")
                yield from named_by(trace, one, called)
        case _:
            raise no_highlight(highlight, f"it is {type(highlight).__name__}")


def no_highlight(highlight: Any, why: str) -> ConfigurationError:
    return ConfigurationError(
        code="visualization_highlight_invalid",
        problem=f"{quoted(highlight)} cannot be highlighted: {why}",
        remedy="give a selector, a label or address, a selection or record of this trace, or a list of these",
    )
