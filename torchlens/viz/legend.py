"""The legend: what the colours and lines of a picture mean, of those that are in it.

Reads  the nodes and edges of a ``Picture``.
Gives  its meanings, in the order in which a legend lists them.
Rule   a colour or line has one meaning, and stands in a legend only if something in the picture has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from projections.picture.amounts import AT_LEAST, SUM
from projections.picture.parts import Picture
from torchlens.viz.look import Look

__all__ = ["Meaning", "meanings", "signs"]


@attrs.frozen
class Meaning:
    """A word in the colours that it explains."""

    word: str
    fill: str
    line: str
    ink: str
    is_wide: bool = False


def meanings(picture: Picture, look: Look) -> Iterator[Meaning]:
    """What there is in a picture, in a fixed order."""
    theme = look.theme
    kinds = {node.kind for node in picture.nodes}
    ops = [node.marks for node in picture.nodes if node.kind in ("op", "ops")]
    marks = frozenset[str]().union(*(node.marks for node in picture.nodes))
    edges = {edge.kind for edge in picture.edges}
    failed = [node for node in picture.nodes if node.kind == "failed" and "nonfinite" not in node.marks]
    fills = (
        ("input", "input" in kinds, theme.input),
        ("output", "output" in kinds, theme.output),
        ("op, kept", any("saved" in op for op in ops), theme.kept),
        ("op, not kept", any("saved" not in op for op in ops), theme.op),
        ("module, closed", "module" in kinds, theme.module),
        ("parameter", bool(kinds & {"param", "params"}), theme.param),
        ("buffer", "buffer" in kinds, theme.buffer),
        ("grad_fn", bool(kinds & {"grad_fn", "grad_fns"}), theme.grad_fn),
        ("failed", "failed" in marks or bool(failed), theme.failed),
        ("not finite", "nonfinite" in marks, theme.failed),
    )
    for word, is_there, fill in fills:
        if is_there:
            yield Meaning(word, fill, theme.line, theme.ink)
    if "grad" in marks:
        yield Meaning("gradient kept", theme.background, theme.gradient, theme.ink, is_wide=True)
    if "opaque" in marks:
        yield Meaning("dashed: opaque", theme.background, theme.line, theme.ink)
    if "backward" in edges:
        yield Meaning("gradient flows", theme.background, theme.background, theme.gradient)
    if "pair" in edges:
        yield Meaning("dotted: its grad_fn", theme.background, theme.background, theme.gradient)
    if "buffer_write" in edges:
        yield Meaning("dashed: writes", theme.background, theme.background, theme.inplace)
    if edges & {"repeat", "recurrent"}:
        yield Meaning("dashed: again", theme.background, theme.background, theme.line)
    for word in signs(picture):
        yield Meaning(word, theme.background, theme.background, theme.ink)
    if look.highlighted:
        yield Meaning("highlighted", theme.background, theme.highlight, theme.ink, is_wide=True)


def signs(picture: Picture) -> Iterator[str]:
    """What the signs before amounts mean, of those that are there."""
    told = [*(node.lines for node in picture.nodes), *(cluster.lines for cluster in picture.clusters)]
    lines = [line for one in told for line in one]
    if any(line.startswith((SUM, AT_LEAST + SUM)) for line in lines):
        yield f"{SUM}all that are drawn as one, together"
    if any(line.startswith(AT_LEAST) for line in lines):
        yield f"{AT_LEAST}of some not known"
