"""How a picture is to look: everything that a renderer is told besides the picture.

Rule   what is asked for is checked here, before anything is drawn.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from projections.picture.parts import Picture
from torchlens.errors import ConfigurationError
from torchlens.viz.refusing import one_of, quoted
from torchlens.viz.themes import LIGHT, Theme, theme_of

__all__ = ["Direction", "Layout", "Look", "look_of"]

Direction: TypeAlias = Literal["bottomup", "topdown", "leftright"]
"""Where the forward leads. A backward pass that is drawn alone goes that way too; beside its forward, against it."""

Layout: TypeAlias = Literal["auto", "dot", "rank"]
"""How much work goes into placing: ``dot``, until lines cross little; ``rank``, rows in order and no more than that;
``auto``, the first up to a size."""

MOST_PLACED: Final = 600
"""Nodes and edges together up to which ``auto`` takes the trouble: about a second. The time that ``dot`` takes grows
with nodes, edges and the rows that edges pass, and above some thousands it may not end."""


@attrs.frozen(kw_only=True)
class Look:
    """How a picture is to look.

    Attributes:
        theme: Its colours.
        direction: Where the forward leads.
        layout: How much work goes into placing.
        legend: Whether it is told what the colours mean, of what there is in the picture.
        highlighted: Positions of nodes that stand out.
        labels: A text in place of title and lines, by position of the node.
    """

    theme: Theme = LIGHT
    direction: Direction = "bottomup"
    layout: Layout = "auto"
    legend: bool = True
    highlighted: frozenset[int] = frozenset()
    labels: dict[int, str] = attrs.Factory(dict)

    def placing(self, picture: Picture) -> Literal["dot", "rank"]:
        """The layout, decided."""
        if self.layout != "auto":
            return self.layout
        return "dot" if len(picture.nodes) + len(picture.edges) <= MOST_PLACED else "rank"


def look_of(*, theme: object, direction: object, layout: object, legend: object) -> Look:
    """A look as it is asked for.

    Raises:
        ConfigurationError: ``visualization_theme_invalid``, ``visualization_direction_invalid``,
            ``visualization_layout_invalid``, ``visualization_legend_invalid``.
    """
    if direction not in get_args(Direction):
        raise ConfigurationError(
            code="visualization_direction_invalid",
            problem=f"direction is {quoted(direction)}",
            remedy=one_of(direction, get_args(Direction)),
        )
    if layout not in get_args(Layout):
        raise ConfigurationError(
            code="visualization_layout_invalid",
            problem=f"layout is {quoted(layout)}",
            remedy=one_of(layout, get_args(Layout)),
        )
    if not isinstance(legend, bool):
        raise ConfigurationError(
            code="visualization_legend_invalid",
            problem=f"legend is {quoted(legend)}",
            remedy="give True or False",
        )
    made: dict[str, Any] = {"direction": direction, "layout": layout}
    return Look(theme=theme_of(theme), legend=legend, **made)
