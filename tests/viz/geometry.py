"""What stands where in an SVG that Graphviz wrote: boxes of nodes and clusters, and texts, in points.

Widths of texts are those of Helvetica (Adobe font metrics), which the pictures are set in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from rich.cells import cell_len

SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WIDTHS = {0.25: "iljtfrI.,:;'|!()[]/ \\", 0.5: "cksvxyzJ", 0.6: "abdeghnopqu0123456789_", 0.85: "mwMW@%"}
WIDTH = {char: width for width, chars in WIDTHS.items() for char in chars}


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box, slack: float = 0.5) -> bool:
        """Whether the two have more in common than a line."""
        return (
            self.left + slack < other.right
            and other.left + slack < self.right
            and self.top + slack < other.bottom
            and other.top + slack < self.bottom
        )

    def holds(self, other: Box, slack: float = 0.5) -> bool:
        return (
            self.left - slack <= other.left
            and other.right <= self.right + slack
            and self.top - slack <= other.top
            and other.bottom <= self.bottom + slack
        )


class Text(NamedTuple):
    text: str
    box: Box


class Thing(NamedTuple):
    """A node, a cluster or the whole."""

    id: str
    box: Box
    texts: list[Text]


def width_of(text: str, size: float) -> float:
    """About what a text takes in Helvetica."""
    return size * sum(1.0 if cell_len(char) == 2 else WIDTH.get(char, 0.67) for char in text)


def texts_of(group: ElementTree.Element) -> Iterator[Text]:
    for element in group.iter(f"{SVG}text"):
        text, size = "".join(element.itertext()), float(element.get("font-size", "14"))
        x, y, wide = float(element.get("x", "0")), float(element.get("y", "0")), width_of(text, size)
        left = {"middle": x - wide / 2, "end": x - wide}.get(element.get("text-anchor", "start"), x)
        yield Text(text, Box(left, y - 0.75 * size, left + wide, y + 0.2 * size))


def outline(group: ElementTree.Element) -> Box:
    """The box of the largest shape of a group."""
    found: list[Box] = []
    for element in group.iter():
        points = element.get("points") if element.tag == f"{SVG}polygon" else element.get("d")
        if points is None:
            continue
        numbers = [float(number) for number in NUMBER.findall(points)]
        xs, ys = numbers[::2], numbers[1::2]
        found.append(Box(min(xs), min(ys), max(xs), max(ys)))
    return max(found or [Box(0, 0, 0, 0)], key=lambda box: (box.right - box.left) * (box.bottom - box.top))


def things(svg: bytes, kind: str) -> list[Thing]:
    """The nodes (``node``), clusters (``cluster``) and their titles (``title``), or the whole (``graph``) of an SVG."""
    root = ElementTree.fromstring(svg)
    found: list[Thing] = []
    for group in root.iter(f"{SVG}g"):
        if group.get("class") != kind:
            continue
        own = group
        if kind == "graph":  # what is directly in it, and not in its nodes
            own = ElementTree.Element("g")
            own.extend([child for child in group if child.tag != f"{SVG}g" or child.get("class") is None])
        found.append(Thing(group.get("id", ""), outline(own), list(texts_of(own))))
    return found


def curves(svg: bytes) -> dict[str, list[tuple[float, float]]]:
    """Points along each line that joins nodes, two apart at most: a path of Graphviz is of cubic curves, one after the
    other."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("class") == "edge":
            paths = [path.get("d", "") for path in group.iter(f"{SVG}path")]
            found[group.get("id", "")] = [place for path in paths for place in along(path)]
    return found


def along(path: str) -> Iterator[tuple[float, float]]:
    numbers = [complex(*map(float, pair.split(","))) for pair in re.findall(r"[-\d.]+,[-\d.]+", path)]
    for at in range(0, len(numbers) - 3, 3):
        a, b, c, d = numbers[at : at + 4]
        count = 1 + int((abs(b - a) + abs(c - b) + abs(d - c)) / 2)
        for t in (step / count for step in range(count + 1)):
            place = a * (1 - t) ** 3 + 3 * b * t * (1 - t) ** 2 + 3 * c * t * t * (1 - t) + d * t**3
            yield place.real, place.imag


def all_texts(svg: bytes) -> list[str]:
    return [text.text.replace("\u00a0", " ") for text in texts_of(ElementTree.fromstring(svg))]
