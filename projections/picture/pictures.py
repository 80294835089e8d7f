"""Pictures of records: what is asked for becomes a scene, is opened, and composed.

Gives  ``picture_of``.
Not    drawing: a picture knows no library that does.
"""

from __future__ import annotations

from collections.abc import Sequence

from projections.build import CaptureTables
from projections.errors import over_events
from projections.picture.backward_scene import BackwardItems
from projections.picture.boxes import boxes_of
from projections.picture.captions import caption_of
from projections.picture.composing import Composer
from projections.picture.forward_scene import ForwardItems
from projections.picture.opening import Opened
from projections.picture.parts import Picture
from projections.picture.repeats import Repeats, unfolded
from projections.picture.request import (
    LINES,
    MOST_NODES,
    Collapse,
    GraphKind,
    Line,
    Request,
    Showing,
    asked,
)
from projections.picture.scene import Scene, Tree
from projections.picture.texts import short


def picture_of(
    tables: CaptureTables,
    *,
    graph: GraphKind = "forward",
    rolled: bool = False,
    collapse: Collapse = "auto",
    fold_repeats: bool | None = None,
    buffers: Showing = "meaningful",
    params: Showing = "meaningful",
    node_lines: Sequence[Line] = LINES,
    most_nodes: int = MOST_NODES,
    orphans: bool = False,
) -> Picture:
    """The records of a capture as nodes, edges and clusters.

    Args:
        tables: The records, live or stored.
        graph: ``forward``; ``backward``, the autograd nodes that backward passes met; ``combined``, both, each op
            joined with its own.
        rolled: Draw each layer once, with its passes, and each module once; else every op and every call.
        collapse: Which modules are drawn closed, as one node: ``none``; ``max``, all that the root calls; a depth, all
            that have so many calls around them, the root's counted; a part, from 0.0 (none) to 1.0 (as ``max``);
            addresses of modules or labels of their calls; ``auto``, so that there are ``most_nodes`` or a few more.
        fold_repeats: Draw equal siblings as one, ``x N``, where that tells the truth, and inputs or outputs that differ
            in a number; None does so where there are more than 30 ops, unless ``collapse="none"``.
        buffers: Versions of buffers to draw: ``never``, ``always``, or those that carry a value between ops.
        params: Parameters to draw: ``never``, ``always``, or those that several modules take. In a backward, where they
            are what gathers a gradient, all are meaningful.
        node_lines: What nodes tell under their title, in this order: ``shape``, ``module``, ``params``, ``flops``,
            ``time``, ``memory``.
        most_nodes: Of ``auto``.
        orphans: Draw ops that neither an input nor an output reaches, where the records have them.

    Raises:
        ConfigurationError: ``visualization_mode_invalid``, ``option_value_invalid``, ``collapse_mode_invalid``,
            ``collapse_level_invalid``, ``fold_repeats_invalid``, ``buffer_visibility_invalid``,
            ``visualization_node_style_invalid``, for what is no value of an option.
        PayloadUnavailableError: ``backward_graph_unavailable``, before a backward pass.
        JournalCorrupt: ``events_contradictory``.
    """
    request = asked(
        tables,
        graph=graph,
        rolled=rolled,
        collapse=collapse,
        fold_repeats=fold_repeats,
        buffers=buffers,
        params=params,
        node_lines=node_lines,
        most_nodes=most_nodes,
        orphans=orphans,
    )
    with over_events():
        scene = scene_of(tables, request)
        tree = Tree(scene)
        repeats = Repeats(scene, tree) if request.fold_repeats else None
        opened = Opened(scene, tree, unfolded(tree) if repeats is None else repeats.pieces)
        open_boxes(opened, request, repeats)
        picture = Composer(scene, tree, opened).picture()
        return caption_of(tables, request, picture)


def scene_of(tables: CaptureTables, request: Request) -> Scene:
    """All that the request may show."""
    title = short(str(tables.fact("trace_label") or tables.fact("model_class_name") or "capture"))
    main = "grad_fns" if request.graph == "backward" else "ops"
    scene = Scene(title, boxes_of(tables, request.node_lines, main, rolled=request.rolled), main)
    if request.graph == "backward":
        BackwardItems(scene, tables, request)
        return scene
    forward = ForwardItems(scene, tables, request)
    if request.graph == "combined":
        BackwardItems(scene, tables, request, forward.of_op)
    return scene


def open_boxes(opened: Opened, request: Request, repeats: Repeats | None) -> None:
    how = request.collapse
    if how == "none":
        opened.all()
    elif how == "max":
        opened.to_depth(1)
    elif how == "auto":
        opened.as_many_as(request.most_nodes, repeats)
    elif isinstance(how, int):
        opened.to_depth(how)
    elif isinstance(how, float):
        opened.part(how)
    else:
        opened.but(how)
