"""Pictures of records: what is asked for becomes a scene, is opened, and composed.

Gives  ``picture_of``.
Rule   an automatic picture whose lines would be too many to follow is made again with fewer nodes.
Not    drawing: a picture knows no library that does.
"""

from __future__ import annotations

from typing import Final

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
from projections.picture.request import USUAL, WORDS, PictureOptions, Request, asked
from projections.picture.scene import Scene, Tree
from projections.picture.texts import short

EDGES: Final = 3
"""Edges, for each node that an automatic picture may have, up to which lines can be told apart. An op that is drawn
with its autograd node has one or two; with dense connections it is half as many as there are nodes."""

FEWEST: Final = 6
"""Nodes down to which an automatic picture is made smaller for its edges."""


def picture_of(tables: CaptureTables, options: PictureOptions = USUAL) -> Picture:
    """The records of a capture as nodes, edges and clusters.

    Args:
        tables: The records, live or stored.
        options: What is to be shown of them.

    Raises:
        ConfigurationError: ``visualization_mode_invalid``, ``option_value_invalid``, ``collapse_mode_invalid``,
            ``collapse_level_invalid``, ``fold_repeats_invalid``, ``buffer_visibility_invalid``,
            ``visualization_node_style_invalid``, for what is no value of an option.
        PayloadUnavailableError: ``backward_graph_unavailable``, before a backward pass.
        JournalCorrupt: ``events_contradictory``.
    """
    request = asked(tables, options)
    with over_events():
        scene = scene_of(tables, request)
        tree = Tree(scene)
        repeats = Repeats(scene, tree) if request.fold_repeats else None
        return caption_of(tables, request, composed(scene, tree, request, repeats))


def scene_of(tables: CaptureTables, request: Request) -> Scene:
    """All that the request may show."""
    title = short(str(tables.fact("trace_label") or tables.fact("model_class_name") or "capture"))
    options = request.options
    scene = Scene(title, boxes_of(tables, options.node_lines, rolled=options.rolled), WORDS[options.graph])
    if request.options.graph == "backward":
        BackwardItems(scene, tables, request)
        return scene
    forward = ForwardItems(scene, tables, request)
    if request.options.graph == "combined":
        BackwardItems(scene, tables, request, forward.of_op)
    return scene


def composed(scene: Scene, tree: Tree, request: Request, repeats: Repeats | None) -> Picture:
    """What is drawn; of automatic pictures that with most nodes whose edges can still be followed, where there is one,
    else that with the fewest edges."""
    most, edges = request.options.most_nodes, EDGES * request.options.most_nodes
    found: Picture | None = None
    while True:
        opened = Opened(scene, tree, unfolded(tree) if repeats is None else repeats.pieces)
        open_boxes(opened, request, most, repeats)
        picture = Composer(scene, tree, opened).picture()
        if found is None or len(picture.edges) < len(found.edges):
            found = picture
        if request.collapse != "auto" or len(found.edges) <= edges or most <= FEWEST:
            return found
        most = most * 3 // 4


def open_boxes(opened: Opened, request: Request, most: int, repeats: Repeats | None) -> None:
    how = request.collapse
    if how == "none":
        opened.all()
    elif how == "max":
        opened.to_depth(1)
    elif how == "auto":
        opened.as_many_as(most, repeats)
    elif isinstance(how, int):
        opened.to_depth(how)
    elif isinstance(how, float):
        opened.part(how)
    else:
        opened.but(how)
