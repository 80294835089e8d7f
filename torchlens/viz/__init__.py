"""Drawing: a picture of a trace as SVG, PNG, PDF, DOT or text.

``trace.draw()`` makes a ``Drawing``. Its picture comes from ``projections.picture``, which knows no drawing library;
here are what is asked for (``asking``), the looks (``look``, ``themes``, ``legend``), what is written at a node
(``wording``), the languages (``dot``, ``plain_text``, ``svg``), where titles of open modules stand (``placing``), the
programs that place and paint (``programs``) and the table that finds them by name (``registry``).
"""

from __future__ import annotations

from projections.picture import Cluster, Edge, Node, Picture
from torchlens.viz.animation import Animation
from torchlens.viz.drawing import Drawing
from torchlens.viz.look import Direction, Layout, Look
from torchlens.viz.programs import Graphviz
from torchlens.viz.registry import Renderer, register_renderer, renderers, unregister_renderer
from torchlens.viz.themes import DARK, LIGHT, PAPER, THEMES, Theme

__all__ = [
    "DARK",
    "LIGHT",
    "PAPER",
    "THEMES",
    "Animation",
    "Cluster",
    "Direction",
    "Drawing",
    "Edge",
    "Graphviz",
    "Layout",
    "Look",
    "Node",
    "Picture",
    "Renderer",
    "Theme",
    "register_renderer",
    "renderers",
    "unregister_renderer",
]
