"""``Drawing``: a picture with its look and its renderer, which shows itself wherever it is asked to.

Rule   nothing is rendered before it is needed, and each format once.
Rule   where no renderer was named, the first one that is here and writes the format does it, and the next one where it
       fails. Text and DOT need no renderer.
"""

from __future__ import annotations

import os
import re
import tempfile
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from projections.picture.parts import Picture
from torchlens.errors import ConfigurationError, GraphvizUnavailableError, RenderingError
from torchlens.printable import amount, cut
from torchlens.viz.dot import dot_of
from torchlens.viz.look import Look
from torchlens.viz.plain_text import text_of
from torchlens.viz.refusing import MOST_LETTERS, one_of, quoted
from torchlens.viz.registry import RENDERERS, Renderer, known
from torchlens.whole_file import written

__all__ = ["Drawing"]

WRITTEN: Final = ("dot", "gv", "txt")
"""Formats that a drawing writes by itself."""

BEGINS: Final[Mapping[str, bytes]] = {"svg": b"<", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
"""How a file of a format begins."""

MOST_DOTS: Final = 32_700
"""Of a side of a PNG. What is longer few programs open, and ``dot`` shrinks it to 32,767 dots without a word."""

TAG: Final = re.compile(r"<[A-Za-z](?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
ATTRIBUTE: Final = re.compile(r"\s([\w:.-]+)=(\"[^\"]*\"|'[^']*')")
REFERENCE: Final = re.compile(r"#([\w:.-]+)")
PROLOG: Final = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
"""What stands before the element in an SVG file, and has no place in a page."""


class Drawing:
    """A picture of a trace: ``print`` shows it as text, a notebook as SVG, ``save`` writes a file.

    Args:
        picture: What is drawn.
        look: How.
        renderer: Name of the renderer; ``"auto"`` for the first one that is here and writes what is asked for.

    Raises:
        ConfigurationError: ``visualization_renderer_invalid``.
        GraphvizUnavailableError: ``graphviz_unavailable``, where the renderer that is named is not here.
    """

    def __init__(self, picture: Picture, look: Look | None = None, *, renderer: str = "auto") -> None:
        self.picture = picture
        self.look = Look() if look is None else look
        self.asked = renderer
        self.made: dict[tuple[str, int], bytes] = {}
        self.failed: set[str] = set()
        if renderer != "auto":
            missing = known(renderer).missing()
            if missing is not None:
                raise unavailable(f"{missing}, which renderer={renderer!r} needs", renderer)

    @property
    def renderer(self) -> str:
        """Name of the renderer that is used for what is not text or DOT, ``"text"`` where there is none."""
        if self.asked != "auto":
            return self.asked
        return next(iter(self.candidates()), "text")

    @property
    def source(self) -> str:
        """The picture in DOT, the language of Graphviz; ``graphviz.Source(drawing.source)`` takes it too."""
        return dot_of(self.picture, self.look)

    def candidates(self, format: str | None = None) -> dict[str, Renderer]:
        """The renderers that may be used, by name in the order of trying; all that write an image by default."""
        if self.asked != "auto":
            return {self.asked: known(self.asked)}
        usable = {
            name: renderer
            for name, renderer in RENDERERS.items()
            if (format or "svg") in renderer.formats and renderer.missing() is None
        }
        return dict(sorted(usable.items(), key=lambda item: item[0] in self.failed))  # what failed once stands last

    def render(self, format: str = "svg", *, dpi: int = 144) -> bytes:
        """The bytes of a file in a format.

        Args:
            format: ``"svg"``, ``"png"``, ``"pdf"``, ``"dot"``, ``"gv"``, ``"txt"``, or what a registered renderer
                writes.
            dpi: Dots per inch of a PNG; a point is 1/72 inch.

        Raises:
            ConfigurationError: ``visualization_format_invalid``, where no renderer is known to write it, and
                ``visualization_dpi_invalid``.
            GraphvizUnavailableError: ``graphviz_unavailable``, where nothing that draws is here.
            RenderingError: ``visualization_format_unavailable``, where the ones that are here do not write it;
                ``visualization_renderer_failed`` or ``visualization_renderer_timeout``, where all of them fail;
                ``visualization_image_too_large``, for a PNG that could not be read.
        """
        if type(dpi) is not int or not 10 <= dpi <= 1200:
            raise ConfigurationError(
                code="visualization_dpi_invalid",
                problem=f"dpi is {quoted(dpi)}",
                remedy="give a whole number from 10 to 1200",
            )
        if format in ("dot", "gv"):
            return self.source.encode()
        if format == "txt":
            return str(self).encode()
        key = (format, dpi if format == "png" else 0)
        if key not in self.made:
            self.made[key] = self.rendered(format, dpi)
        return self.made[key]

    def rendered(self, format: str, dpi: int) -> bytes:
        every = dict.fromkeys((*WRITTEN, *(one for renderer in RENDERERS.values() for one in renderer.formats)))
        if format not in every:
            raise ConfigurationError(
                code="visualization_format_invalid",
                problem=f"no renderer writes {quoted(format)}",
                remedy=one_of(format, every),
            )
        candidates = self.candidates(format)
        if not candidates and not self.candidates():
            raise unavailable("nothing here draws images")
        error: RenderingError | None = None
        for name, renderer in candidates.items():
            if format not in renderer.formats:
                break
            try:
                return checked(renderer.render(self.picture, self.look, format, dpi=dpi), name, format)
            except RenderingError as exc:
                if exc.code == "visualization_image_too_large":
                    raise  # the next one would make it as large
                error = error or exc
                self.failed.add(name)
        if error is not None:
            raise error
        raise not_written(format, self.renderer, every)

    def save(self, path: str | os.PathLike[str], *, dpi: int = 144, overwrite: bool = False) -> Path:
        """Write a file, in the format of its suffix: ``.svg``, ``.png``, ``.pdf``, ``.dot``, ``.gv`` or ``.txt``.

        Args:
            path: Where; the file is there whole or not at all.
            dpi: Dots per inch of a PNG.
            overwrite: Replace a file that is there.

        Returns:
            The absolute path.

        Raises:
            ConfigurationError: ``drawing_path_exists``, ``drawing_not_written``; see ``render`` for others.
            GraphvizUnavailableError, RenderingError: see ``render``; nothing is written then.
        """
        try:
            suffix = os.path.splitext(path)[1]
        except TypeError:  # it is no path, which is refused where it is written to
            suffix = ""
        return saved(path, lambda: self.render(suffix[1:].lower(), dpi=dpi), overwrite=overwrite)

    def view(self) -> Path | None:
        """Show it: as SVG in the browser, from a temporary file, of which this gives the path; else on the terminal.

        Raises:
            RenderingError: ``visualization_renderer_failed`` or ``visualization_renderer_timeout``.
        """
        if "svg" not in known(self.renderer).formats:
            Console().print(self)
            return None
        with tempfile.NamedTemporaryFile(prefix="torchlens-", suffix=".svg", delete=False) as file:
            file.write(self.render("svg"))
        webbrowser.open(Path(file.name).as_uri())
        return Path(file.name)

    def _repr_svg_(self) -> str | None:
        try:
            return inline(self.render("svg"))
        except RenderingError:
            return None  # a notebook shows the text then

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        svg = self._repr_svg_()
        return {"text/plain": str(self)} | ({} if svg is None else {"image/svg+xml": svg})

    def __rich__(self) -> Text:
        return Text(str(self), no_wrap=True)

    def __str__(self) -> str:
        return text_of(self.picture, self.look)

    def __repr__(self) -> str:
        shown = amount(len(self.picture.nodes), "node"), amount(len(self.picture.edges), "edge")
        return f"<Drawing of {cut(self.picture.title, MOST_LETTERS)}: {', '.join(shown)}, renderer {self.renderer!r}>"


def saved(path: str | os.PathLike[str], render: Callable[[], bytes], *, overwrite: bool) -> Path:
    """Write a picture, rendered once nothing is in its way; gives its absolute path.

    Raises:
        ConfigurationError: ``drawing_path_exists``, ``drawing_not_written``.
    """
    return written(
        path,
        lambda: [render()],
        overwrite=overwrite,
        what="the drawing",
        exists_code="drawing_path_exists",
        failed_code="drawing_not_written",
    )


def checked(made: object, renderer: str, format: str) -> bytes:
    """What a renderer made, where it is of the format.

    Raises:
        RenderingError: ``visualization_renderer_failed``, ``visualization_image_too_large``.
    """
    if type(made) is not bytes or not made.lstrip()[:8].startswith(BEGINS.get(format, b"")):
        raise RenderingError(
            code="visualization_renderer_failed",
            problem=f"what {renderer} made is no {format}",
            remedy="draw with another renderer=",
            program=renderer,
        )
    if format == "png":
        width, height = int.from_bytes(made[16:20], "big"), int.from_bytes(made[20:24], "big")
        if max(width, height) >= MOST_DOTS:
            raise RenderingError(
                code="visualization_image_too_large",
                problem=f"as a PNG this would be {width:,} by {height:,} dots, or shrunk until nothing can be read",
                remedy="save .svg, which is sharp at any size; show less, with collapse= or most_nodes=; or give a "
                "smaller dpi=",
                width=width,
                height=height,
            )
    return made


def inline(svg: bytes) -> str:
    """The element of an SVG file, as it may stand in a page, beside others; it is no wider than there is room.

    Several in one page would share ids: what nothing in the file refers to becomes ``data-id``.
    """
    text = PROLOG.sub("", svg.decode(), count=1).replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
    taken = set(REFERENCE.findall(text))

    def renamed(found: re.Match[str]) -> str:
        name, value = found.groups()
        return f" data-id={value}" if name == "id" and value[1:-1] not in taken else found[0]

    return TAG.sub(lambda tag: ATTRIBUTE.sub(renamed, tag[0]), text)


INSTALLED: Final = {
    "graphviz": "install Graphviz (graphviz.org/download), so that dot is on the PATH",
    "graphviz-pure": "pip install graphviz-pure, which is the extra draw of this package",
}
"""How the programs are had."""


def unavailable(problem: str, renderer: str = "auto") -> GraphvizUnavailableError:
    """The refusal of what needs a Graphviz, where there is none, or not that of the renderer."""
    ways = INSTALLED.get(renderer, ", or ".join(INSTALLED.values()) + "; .pdf takes dot")
    return GraphvizUnavailableError(
        code="graphviz_unavailable",
        problem=problem,
        remedy=f"{ways}; str(drawing), .source and files .txt and .dot need neither",
    )


def not_written(format: str, renderer: str, every: Mapping[str, Any]) -> RenderingError:
    """The refusal of a format that there is, by renderers that do not write it."""
    others = {name: other for name, other in RENDERERS.items() if format in other.formats and name != renderer}
    here = [name for name, other in others.items() if other.missing() is None]
    if here:
        remedy = f"save another format, such as .svg or .txt, or draw with renderer={here[0]!r}"
    elif format == "pdf":
        remedy = "install Graphviz (graphviz.org/download), whose dot writes it, or save .svg, which a browser prints"
    elif others:
        remedy = f"save .txt or .dot, or have one of these drawn with: {', '.join(others)}; see tl.viz.renderers()"
    else:
        remedy = f"save one of {', '.join('.' + one for one in every)}"
    return RenderingError(
        code="visualization_format_unavailable",
        problem=f"{renderer} does not write .{format}",
        remedy=remedy,
        renderer=renderer,
        format=format,
    )
