"""What a caption says of a picture: how the capture went where it did not come to its end, and what is not drawn.

Reads  the facts of the capture, and the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from projections.accounts.ended import ended
from projections.build import CaptureTables
from projections.picture.parts import Node, NodeKind, Picture
from projections.picture.request import WORDS, Request
from projections.picture.texts import ranges, short
from projections.wording import amount

WIDTH: Final = 100
"""Characters of a line of a caption."""

MOST_FAILED: Final = 3
"""Backward passes of which it is told why they failed."""

SEVERAL: Final[tuple[NodeKind, ...]] = ("ops", "grad_fns", "params")
"""Kinds of nodes that are several neighbours, drawn as one."""


def caption_of(tables: CaptureTables, request: Request, picture: Picture) -> Picture:
    """The picture, with what there is to say of it."""
    passes = (
        [] if request.options.graph == "forward" else [*passes_drawn(tables, request), *failed_passes(tables, request)]
    )
    lines = [*ending(tables), *passes, *drawn(request, picture)]
    return attrs.evolve(picture, caption=tuple([short(line, WIDTH) for line in lines]))


def ending(tables: CaptureTables) -> list[str]:
    end, status = ended(tables), str(tables.fact("status"))
    if end is None:
        return []
    return [": ".join(dict.fromkeys(filter(None, (status, end.short, end.message))))]


def error_text(kind: str, message: str | None) -> str:
    return f"{kind.rpartition('.')[2]}: {message or ''}".rstrip(": ")


def passes_drawn(tables: CaptureTables, request: Request) -> list[str]:
    """Which backward passes are drawn, where there are several."""
    recorded, asked = len(tables.backward_passes), request.passes
    if recorded < 2:
        return []
    if asked is None:
        return [f"{recorded:,} backward passes, drawn together; bwd= draws one"]
    return [f"backward pass{'es' if len(asked) > 1 else ''} {ranges(asked)} of {recorded:,}"]


def failed_passes(tables: CaptureTables, request: Request) -> list[str]:
    """The backward passes that raised: the first of them, and how many more there are."""
    passes, asked = tables.backward_passes, request.passes
    statuses = enumerate(passes.column("status"))
    failed = [row for row, status in statuses if status == "error" and (asked is None or row + 1 in asked)]
    made: list[str] = []
    for row in failed[:MOST_FAILED]:
        kind, node = passes.value("error_type", row), passes.value("raised_in", row)
        why = f": {error_text(kind, passes.value('error_message', row))}" if kind else ""
        where = f" in {node}" if node is not None else ""
        made.append(f"backward pass {passes.value('pass_index', row)} failed{where}{why}")
    if len(failed) > MOST_FAILED:
        made.append(f"and {len(failed) - MOST_FAILED:,} more backward passes failed")
    return made


def counted(nodes: Sequence[Node], words: Sequence[str]) -> str:
    """What nodes stand for, of some words: ``8 ops and 12 grad_fns``."""
    counts = {
        "ops": sum([node.ops for node in nodes]),
        "grad_fns": sum([node.grad_fns for node in nodes]),
        "params": sum([len(node.rows) for node in nodes if node.table == "params"]),
    }
    return " and ".join([amount(counts[word], word[:-1]) for word in words if counts[word]]) or amount(0, words[0][:-1])


def drawn(request: Request, picture: Picture) -> list[str]:
    """What is in closed modules, drawn as one, folded or left out."""
    hidden = dict(picture.hidden)
    closed = [node for node in picture.nodes if node.kind == "module"]
    made: list[str] = []
    if closed:
        of = WORDS[request.options.graph]
        inside = counted(closed, of)
        made.append(f"{counted(picture.nodes, of)}, {inside} in {amount(len(closed), 'closed module')}")
    several = [node for node in picture.nodes if node.kind in SEVERAL]
    if several:
        told = counted(several, (*WORDS[request.options.graph], "params"))
        made.append(f"{told} in a row drawn as {amount(len(several), 'node')}")
    if any(node.times > 1 for node in picture.nodes) or any(cluster.times > 1 for cluster in picture.clusters):
        made.append("x N: N equal ones, drawn once")
    left = [amount(hidden[one], one[:-1]) for one in ("buffers", "params") if one in hidden]
    shut = {"ops": sum([node.ops for node in closed]), "grad_fns": sum([node.grad_fns for node in closed])}
    for word, number in shut.items():
        if apart := hidden.get(word, 0) - number:
            left.append(amount(apart, word[:-1]))
    if left:
        made.append(f"not drawn: {' and '.join(filter(None, [', '.join(left[:-1]), left[-1]]))}")
    return made
