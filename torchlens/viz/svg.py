"""The SVG that a Graphviz wrote, as it is better shown.

Graphviz places each line of a label from its left end, by the widths of the font that it has. A browser may have
another, so the lines of a node are put around its middle. Titles of modules have a seam in the colour of the module, so
that what leads past them does not strike them through. What is told of a node, Graphviz gives to a link; browsers show
the title of its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

__all__ = ["polished"]

SVG: Final = "{http://www.w3.org/2000/svg}"
XLINK: Final = "{http://www.w3.org/1999/xlink}"
FAMILY: Final = "Helvetica, Arial, Liberation Sans, Arimo, sans-serif"
"""Families with the widths of Helvetica, then whatever there is."""

NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")

ElementTree.register_namespace("", SVG[1:-1])
ElementTree.register_namespace("xlink", XLINK[1:-1])


def polished(svg: bytes) -> bytes:
    """The same drawing, as browsers show it well.

    Raises:
        ParseError: it is no SVG.
    """
    root = ElementTree.fromstring(svg)
    if root.tag != f"{SVG}svg":
        raise ElementTree.ParseError(f"its outermost element is {root.tag}")
    whole = root.find(f"{SVG}g")
    if whole is None:
        return svg
    for group in whole.findall(f"{SVG}g"):
        kinds = group.get("class", "").split()
        if "title" in kinds:
            seam(group)
            continue
        tell(group)
        if "node" in kinds:
            centre(group)
    for text in root.iter(f"{SVG}text"):
        family = text.get("font-family", "")
        if family.lower().startswith(("helvetica", "arial")):
            text.set("font-family", FAMILY)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="utf-8")


def tell(group: ElementTree.Element) -> None:
    """Have the title of a group say what its link says."""
    title = group.find(f"{SVG}title")
    said = next((link.get(f"{XLINK}title") for link in group.iter(f"{SVG}a")), None)
    if title is not None and said:
        title.text = said


def shapes(group: ElementTree.Element) -> Iterator[ElementTree.Element]:
    return (element for element in group.iter() if element.tag in (f"{SVG}path", f"{SVG}polygon"))


def centre(group: ElementTree.Element) -> None:
    """Put the texts of a node around its middle."""
    shape = next(shapes(group), None)
    xs = (
        []
        if shape is None
        else [float(one) for one in NUMBER.findall(shape.get("d") or shape.get("points") or "")[::2]]
    )
    if not xs:
        return
    middle = f"{(min(xs) + max(xs)) / 2:.2f}"
    for text in group.iter(f"{SVG}text"):
        text.set("text-anchor", "middle")
        text.set("x", middle)


def seam(group: ElementTree.Element) -> None:
    """Have the title of a module stand out from lines by a seam, and by no ground."""
    behind = next((shape.get("fill", "none") for shape in shapes(group)), "none")
    texts = list(group.iter(f"{SVG}text"))
    for element in list(group):
        group.remove(element)
    group.set("class", "title")
    for text in texts:
        text.tail = None
        for name, value in (("paint-order", "stroke"), ("stroke", behind), ("stroke-width", "3")):
            text.set(name, value)
        text.set("stroke-linejoin", "round")
        group.append(text)
