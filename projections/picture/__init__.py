"""Records as a picture that knows no drawing library: nodes, edges and clusters."""

from __future__ import annotations

from projections.picture.parts import Cluster, Edge, EdgeKind, Mark, Node, NodeKind, Picture
from projections.picture.pictures import picture_of
from projections.picture.request import PictureOptions

__all__ = ["Cluster", "Edge", "EdgeKind", "Mark", "Node", "NodeKind", "Picture", "PictureOptions", "picture_of"]
