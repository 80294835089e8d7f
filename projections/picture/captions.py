"""What a caption says of a picture: how the capture went where it did not come to its end, and what is not drawn.

Reads  the facts of the capture, and the picture.
"""

from __future__ import annotations

from typing import Final

import attrs

from projections.build import CaptureTables
from projections.ended import ended
from projections.picture.parts import Picture
from projections.picture.request import Request
from projections.picture.texts import short
from projections.wording import amount

WIDTH: Final = 100
"""Characters of a line of a caption."""


def caption_of(tables: CaptureTables, request: Request, picture: Picture) -> Picture:
    """The picture, with what there is to say of it."""
    lines = [*ending(tables), *drawn(request, picture)]
    return attrs.evolve(picture, caption=tuple([short(line, WIDTH) for line in lines]))


def ending(tables: CaptureTables) -> list[str]:
    end, status = ended(tables), str(tables.fact("status"))
    if end is None:
        return []
    return [": ".join(dict.fromkeys(filter(None, (status, end.short, end.message))))]


def drawn(request: Request, picture: Picture) -> list[str]:
    word = "grad_fns" if request.options.graph == "backward" else "ops"
    hidden = dict(picture.hidden)
    total = sum([node.ops for node in picture.nodes])
    closed = sum([node.kind == "module" for node in picture.nodes])
    made: list[str] = []
    if closed:
        inside = amount(hidden.get(word, 0), word[:-1])
        made.append(f"{amount(total, word[:-1])}, {inside} in {amount(closed, 'closed module')}")
    several = [node.ops for node in picture.nodes if node.kind == "ops"]
    if several:
        made.append(f"{amount(sum(several), word[:-1])} in a row drawn as {amount(len(several), 'node')}")
    if any(node.times > 1 for node in picture.nodes) or any(cluster.times > 1 for cluster in picture.clusters):
        made.append("x N: N equal ones, drawn once")
    left = [amount(hidden[one], one[:-1]) for one in ("buffers", "params") if one in hidden]
    if left:
        made.append(f"not drawn: {' and '.join(left)}")
    return made
