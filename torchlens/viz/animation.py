"""``trace.animate(site)``: the drawing of a trace, in which the passes of one layer are gone through, as HTML.

Rule   the fragment needs nothing from elsewhere: the SVG, a few rules of style and a script stand in it. What it tells
       of a pass is data, which the script puts there as text.
Note   a frame only says which nodes stand for its pass; the drawing is there once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from projections.picture import PictureOptions, picture_of
from projections.picture.parts import Picture
from projections.picture.request import MOST_NODES
from torchlens.errors import CompatibilityError, ConfigurationError
from torchlens.json_in_html import json_in_html
from torchlens.printable import cut
from torchlens.reading.view import View
from torchlens.viz.asking import Named, drawn, named_by, positions, standing
from torchlens.viz.drawing import inline, saved
from torchlens.viz.refusing import MOST_LETTERS, quoted

__all__ = ["Animation", "animated"]

MOST_NODES_APART: Final = 640
"""Nodes that a picture may have so that each pass has one: more are long to place, and to scroll through."""


class Animation(str):
    """An HTML fragment, which a notebook shows; ``save`` writes a page of it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a page that opens from the file, whole or not at all.

        Args:
            path: Where.
            overwrite: Replace a file that is there.

        Returns:
            The absolute path.

        Raises:
            ConfigurationError: ``drawing_path_exists``, ``drawing_not_written``.
        """
        head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Animation</title></head><body>\n'
        return saved(path, lambda: f"{head}{self}\n</body></html>\n".encode(), overwrite=overwrite)


def animated(trace: View, site: Any, *, direction: object, theme: object, renderer: str) -> Animation:
    """The fragment of a site.

    Raises:
        ConfigurationError: ``animation_site_invalid``, where it is not one layer.
        CompatibilityError: ``animation_too_large``.
        GraphvizUnavailableError, RenderingError: where no SVG can be made.
    """
    rows = passes_of(trace, site)
    picture = picture_for(trace, rows)
    look: dict[str, Any] = {"layout": "auto", "legend": True, "node_label": None, "highlight": None}
    drawing = drawn(trace, picture, direction=direction, theme=theme, renderer=renderer, **look)
    at = positions(picture)
    ops = trace.table("ops")
    frames = [
        {"nodes": sorted(standing(trace, at, ("ops", row))), "text": frame_text(ops, row, number, len(rows))}
        for number, row in enumerate(rows, 1)
    ]
    colours = drawing.look.theme
    return Animation(
        FRAGMENT.replace("{svg}", inline(drawing.render("svg")))
        .replace("{background}", colours.background)
        .replace("{ink}", colours.ink)
        .replace("{highlight}", colours.highlight)
        .replace("{frames}", json_in_html(frames, too_large))
    )


def picture_for(trace: View, rows: Sequence[int]) -> Picture:
    """A picture of few nodes in which each pass has one of its own, as an op or in a closed module; where that takes
    more than ``MOST_NODES_APART``, the rolled one, in which all passes are one node."""
    most = MOST_NODES
    while most <= MOST_NODES_APART:
        picture = picture_of(trace.tables, PictureOptions(fold_repeats=False, most_nodes=most))
        if are_apart(trace, picture, rows):
            return picture
        most *= 2
    return picture_of(trace.tables, PictureOptions(fold_repeats=False, rolled=True))


def are_apart(trace: View, picture: Picture, rows: Sequence[int]) -> bool:
    at = positions(picture)
    nodes = [node for row in rows for node in standing(trace, at, ("ops", row))]
    return len(set(nodes)) == len(nodes) and all(picture.nodes[node].kind != "ops" for node in nodes)


def passes_of(trace: View, site: Any) -> Sequence[int]:
    """The op rows of the layer that something names, by pass."""
    layers: set[int] = set()
    try:
        named = list(named_by(trace, site, layers_by_title(trace)))
    except ConfigurationError as exc:
        if exc.code != "visualization_highlight_invalid":
            raise
        raise no_site(site, f"it is {type(site).__name__}, which names nothing of this trace") from exc
    for table, row in named:
        if table == "layers":
            layers.add(row)
        elif table == "ops":
            layers.add(trace.table("ops").value("layer_row", row))
        else:
            raise no_site(site, f"it names a row of {table}")
    if len(layers) != 1:
        raise no_site(site, f"it names {len(layers)} layers")
    rows: Sequence[int] = trace.table("layers").value("op_rows", layers.pop())
    return rows


def layers_by_title(trace: View) -> dict[str, list[Named]]:
    """Layers by what stands on their nodes where loops are rolled."""
    found: dict[str, list[Named]] = {}
    for row, name in enumerate(trace.table("layers").column("layer_label_short")):
        found.setdefault(name, []).append(("layers", row))
    return found


def no_site(site: Any, why: str) -> ConfigurationError:
    return ConfigurationError(
        code="animation_site_invalid",
        problem=f"{quoted(site)} cannot be animated: {why}",
        remedy="name one layer or op, such as trace.layers.recurrent[0] or its label",
    )


def too_large(what: str) -> CompatibilityError:
    return CompatibilityError(
        code="animation_too_large",
        problem=f"the passes of the animation take {what}",
        remedy="animate a layer with fewer passes, or read them: trace.layers[...].ops",
    )


def frame_text(ops: Any, row: int, number: int, count: int) -> str:
    shape, dtype = ops.value("shape", row), ops.value("dtype", row)
    return cut(f"{ops.value('label', row)}: pass {number} of {count}, {shape} {dtype}", 2 * MOST_LETTERS)


FRAGMENT: Final = """\
<div class="torchlens-animation" style="background:{background};color:{ink};font:14px sans-serif">
<style>
.torchlens-animation [role=group]{position:sticky;top:0;padding:4px;background:{background}}
.torchlens-animation .tl-later{opacity:.3}
.torchlens-animation .tl-now path,.torchlens-animation .tl-now polygon{stroke:{highlight};stroke-width:4px}
</style>
<div role="group" aria-label="passes">
<button type="button" data-go="first" aria-label="first pass">|&lt;</button>
<button type="button" data-go="back" aria-label="pass before">&lt;</button>
<button type="button" data-go="play" aria-label="play">play</button>
<button type="button" data-go="next" aria-label="next pass">&gt;</button>
<button type="button" data-go="last" aria-label="last pass">&gt;|</button>
<input type="range" min="0" value="0" aria-label="pass">
<output aria-live="polite"></output>
</div>
{svg}
<script type="application/json">{frames}</script>
<script>
(function (root) {
  const frames = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const slider = root.querySelector("input"), told = root.querySelector("output");
  const play = root.querySelector('[data-go="play"]'), nodes = new Map();
  for (const node of root.querySelectorAll("g.node")) nodes.set(node.dataset.id || node.id, node);
  const of = (frame) => frame.nodes.map((node) => nodes.get("n" + node).classList);
  let at = 0, timer = null;
  const look = () => nodes.get("n" + frames[at].nodes[0]).scrollIntoView({block: "nearest"});
  const show = (to) => {
    at = Math.min(Math.max(to, 0), frames.length - 1);
    for (const frame of frames) of(frame).forEach((list) => { list.remove("tl-now"); list.add("tl-later"); });
    for (const frame of frames.slice(0, at + 1)) of(frame).forEach((list) => list.remove("tl-later"));
    of(frames[at]).forEach((list) => list.add("tl-now"));
    slider.value = at;
    told.textContent = frames[at].text;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "play"; };
  const start = () => {
    if (at === frames.length - 1) show(0);
    play.textContent = "stop";
    timer = setInterval(() => { at + 1 < frames.length ? show(at + 1) : stop(); }, 1000);
  };
  const go = { first: () => 0, back: () => at - 1, next: () => at + 1, last: () => frames.length - 1 };
  slider.max = frames.length - 1;
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  for (const button of root.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      if (button === play) timer === null ? start() : stop();
      else { stop(); show(go[button.dataset.go]()); look(); }
    });
  }
  show(0);
})(document.currentScript.closest(".torchlens-animation"));
</script>
</div>"""
