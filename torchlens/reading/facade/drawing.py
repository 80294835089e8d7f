"""Pictures of a trace.

Not   how they are made: this file alone of reading knows ``torchlens.viz``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from projections.picture import PictureOptions, picture_of
from projections.picture.request import USUAL, Collapse, GraphKind, Line, Showing
from torchlens.reading.autograd import TraceAutograd
from torchlens.reading.view import View

if TYPE_CHECKING:
    from torchlens.viz import Animation, Direction, Drawing, Layout, Theme

__all__ = ["DrawVerbs"]


class DrawVerbs(View):
    """Drawing it."""

    def draw(
        self,
        *,
        graph: GraphKind = USUAL.graph,
        rolled: bool = USUAL.rolled,
        collapse: Collapse = USUAL.collapse,
        fold_repeats: bool | None = USUAL.fold_repeats,
        buffers: Showing = USUAL.buffers,
        params: Showing = USUAL.params,
        node_lines: Sequence[Line] = USUAL.node_lines,
        most_nodes: int = USUAL.most_nodes,
        bwd: int | Sequence[int] | None = USUAL.bwd,
        orphans: bool = USUAL.orphans,
        direction: Direction = "bottomup",
        theme: str | Theme = "light",
        layout: Layout = "auto",
        legend: bool = True,
        renderer: str = "auto",
        node_label: Callable[[Any], str | None] | None = None,
        highlight: Any = None,
    ) -> Drawing:
        """A picture of the capture, which shows itself in a notebook; ``print`` shows it as text, ``.save`` writes it.

        Args:
            graph: ``"forward"``, ``"backward"`` (autograd nodes), or ``"combined"``, both side by side.
            rolled: Draw each layer once, with the number of its passes, instead of every pass.
            collapse: Which modules are drawn closed: ``"none"``; ``"auto"``, as many as it takes for ``most_nodes``;
                ``"max"``, all that the root calls; a depth, from 0 on; a part of them, from 0.0 to 1.0; or addresses.
            fold_repeats: Draw equal siblings once, with how many there are; None does where there are more than 30 ops,
                unless ``collapse="none"``.
            buffers: Which buffer versions are drawn: ``"never"``, ``"meaningful"``, ``"always"``.
            params: Which parameters are drawn: the same words.
            node_lines: What is told below a title: ``"shape"``, ``"module"``, ``"params"``, ``"flops"``, ``"time"``,
                ``"memory"``.
            most_nodes: Nodes that an automatic picture has at most, where that can be; up to a quarter more where that
                draws all modules of a class alike, or a stretch that repeats as it is; fewer where there would be more
                than three times as many edges.
            bwd: Number of the backward pass to draw, from 1, or a list of several; None for all, together.
            orphans: Draw ops that are linked to no input and no output too, where they were kept.
            direction: Where the forward leads: ``"bottomup"``, ``"topdown"``, ``"leftright"``.
            theme: ``"light"``, ``"dark"``, ``"paper"``, or a ``tl.viz.Theme``.
            layout: ``"dot"`` until lines cross little; ``"rank"`` quicker; ``"auto"`` the first up to a size.
            legend: Whether it is told what the colours mean.
            renderer: What draws, one of ``tl.viz.renderers()``; ``"auto"`` the first one that is here.
            node_label: A function that is given the record of a node and gives a text in place of title and lines, or
                None to leave them. Where a node stands for several records, it is given the first one.
            highlight: What is to stand out: a selector, a label or address, a selection or record, or a list of these.

        Raises:
            ConfigurationError: ``visualization_mode_invalid``, ``option_value_invalid``, ``collapse_mode_invalid``,
                ``collapse_level_invalid``, ``fold_repeats_invalid``, ``buffer_visibility_invalid``,
                ``visualization_node_style_invalid``, ``visualization_direction_invalid``,
                ``visualization_theme_invalid``, ``visualization_layout_invalid``,
                ``visualization_legend_invalid``, ``visualization_renderer_invalid``,
                ``visualization_highlight_invalid``.
            PayloadUnavailableError: ``backward_graph_unavailable``.
            LookupRefused: ``backward_pass_unknown``, where ``bwd`` names no backward pass of the trace.
            GraphvizUnavailableError: ``graphviz_unavailable``, where the renderer that is named is not here.
        """
        from torchlens.viz.asking import drawn  # for cost

        self.require_open()
        options = PictureOptions(
            graph=graph,
            rolled=rolled,
            collapse=collapse,
            fold_repeats=fold_repeats,
            buffers=buffers,
            params=params,
            node_lines=node_lines,
            most_nodes=most_nodes,
            bwd=bwd,
            orphans=orphans,
        )
        if graph != "forward" and isinstance(bwd, int | list | tuple) and len(self.tables.backward_passes):
            for number in [bwd] if isinstance(bwd, int) else bwd:
                TraceAutograd(self).backward_passes.in_pass(number)  # refuses one that there is not
        picture = picture_of(self.tables, options)
        return drawn(
            self,
            picture,
            direction=direction,
            theme=theme,
            layout=layout,
            legend=legend,
            renderer=renderer,
            node_label=node_label,
            highlight=highlight,
        )

    def animate(
        self,
        site: Any,
        *,
        direction: Direction = "bottomup",
        theme: str | Theme = "light",
        renderer: str = "auto",
    ) -> Animation:
        """The drawing in which the passes of a site are gone through, one frame each: an HTML fragment for a notebook.

        Args:
            site: A layer or op: a record, label or selector. Where it is an op, its layer is taken.
            direction: Where the forward leads, as in ``draw``.
            theme: Colours, as in ``draw``.
            renderer: What draws; it has to write SVG.

        Raises:
            ConfigurationError: ``animation_site_invalid``, where it names no layer or several.
            GraphvizUnavailableError: ``graphviz_unavailable``, where nothing here draws.
            RenderingError: ``visualization_renderer_failed``, ``visualization_renderer_timeout``,
                ``visualization_format_unavailable``.
        """
        from torchlens.viz.animation import animated  # for cost

        self.require_open()
        return animated(self, site, direction=direction, theme=theme, renderer=renderer)
