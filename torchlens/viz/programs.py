"""Graphviz as a program of its own: found, run with a limit of time, and what it says where it fails.

Rule   it runs in another process, so that nothing it does takes this one along: not a crash, not a graph that it does
       not end with. ``dot`` 2.43 does both with graphs of a thousand nodes where some edges pass many rows.
Note   ``dot`` is the system's Graphviz; ``graphviz-pure`` (https://graphviz-pure.github.io) a port of it that pip
       installs. It brings its fonts, gives the same bytes everywhere, and writes no PDF.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final
from xml.etree import ElementTree

import attrs

from projections.picture.parts import Picture
from torchlens.errors import RenderingError, TorchLensWarning
from torchlens.printable import cut
from torchlens.quantities import Bytes
from torchlens.viz.dot import dot_of, placed_by
from torchlens.viz.look import Look
from torchlens.viz.placing import NoLayout
from torchlens.viz.svg import polished

__all__ = ["Graphviz"]

SECONDS: Final = 60.0

MOST_BYTES: Final = 64 << 20
"""Of what a program may write; ten thousand nodes are a tenth of it."""

LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at how much a program wrote."""

MOST_SAID: Final = 300
"""Letters of what a program said that stand in a refusal."""

LETTERS: Final = ((0x0, 0x600), (0x1E00, 0x2460), (0x2500, 0x2600))
"""Where the letters of the fonts of ``graphviz-pure`` are: Latin, Greek, Cyrillic and Hebrew, signs and shapes."""

MOST_MISSING: Final = 10
"""Letters that a warning names."""

FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "dot": ("svg", "png", "pdf"),
    "graphviz-pure": ("svg", "png"),
}
"""What each program writes. A format is never tried: a program that does not know one may write another."""


@attrs.frozen
class Graphviz:
    """A renderer that hands the DOT of a picture to a program.

    Args:
        program: ``dot`` or ``graphviz-pure``.
        seconds: How long it may take.
    """

    program: str
    seconds: float = SECONDS

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that it writes."""
        return FORMATS.get(self.program, ())

    def missing(self) -> str | None:
        """What it lacks here; None where it can be used."""
        return None if where_is(self.program) else f"no program {self.program} is on the PATH"

    def render(self, picture: Picture, look: Look, format: str, *, dpi: int) -> bytes:
        """The picture in a format.

        Raises:
            RenderingError: ``visualization_renderer_failed``, ``visualization_renderer_timeout``.
        """
        options = [f"-Gdpi={dpi}"] if format == "png" else []
        source, how = dot_of(picture, look), ["-Kdot"]
        if picture.clusters:
            try:
                placed = placed_by(lambda source: self.run(source, "-Kdot", "-Tjson0"), picture, look)
                source, how = dot_of(picture, look, placed), ["-Kneato", "-n2"]
            except NoLayout as exc:
                raise self.failed(str(exc)) from exc
        if format == "png" and self.program == "graphviz-pure":
            tell_missing(source)
        made = self.run(source, *how, f"-T{format}", *options)
        if format != "svg":
            return made
        try:
            return polished(made)
        except ElementTree.ParseError as exc:
            raise self.failed(f"what it wrote is no SVG: {exc}") from exc

    def run(self, source: str, *options: str) -> bytes:
        """What the program makes of a source in DOT."""
        found = where_is(self.program)
        command = [found or self.program, *options]
        try:
            status, made, said = answer(command, source.encode(), self.seconds)
        except subprocess.TimeoutExpired as exc:
            raise RenderingError(
                code="visualization_renderer_timeout",
                problem=f"{self.program} did not end within {self.seconds:g} s",
                remedy='show less, with collapse= or most_nodes=, or draw with layout="rank" or another renderer=',
                program=self.program,
                seconds=self.seconds,
            ) from exc
        except OSError as exc:
            raise self.failed(str(exc)) from exc
        if len(made) > MOST_BYTES:
            raise self.failed(f"it writes more than {Bytes(MOST_BYTES)}")
        if status or not made:
            raise self.failed(said.decode(errors="replace").strip() or f"exit {status}")
        return made

    def failed(self, said: str) -> RenderingError:
        return RenderingError(
            code="visualization_renderer_failed",
            problem=f"{self.program} could not draw this: {cut(said, MOST_SAID)}",
            remedy='draw with another renderer= or layout="rank", or show less, with collapse= or most_nodes=',
            program=self.program,
        )


def tell_missing(source: str) -> None:
    """Warn of letters that ``graphviz-pure`` has no shape for: it brings its fonts, and takes no others."""
    missing = sorted({char for char in source if not any(low <= ord(char) < high for low, high in LETTERS)})
    if missing:
        warnings.warn(
            TorchLensWarning(
                code="visualization_letters_missing",
                problem=f"the fonts of graphviz-pure lack {''.join(missing[:MOST_MISSING])!r}; it draws boxes for them",
                remedy="save .svg, which is shown in the fonts that are there, or install Graphviz, which uses them",
                count=len(missing),
            ),
            stacklevel=6,
        )


def answer(command: list[str], given: bytes, seconds: float) -> tuple[int, bytes, bytes]:
    """How a program ended, what it wrote and what it said; of what it wrote, little more than it may.

    Files take what it writes, so that this process holds no more than it may and waits for no pipe.

    Raises:
        subprocess.TimeoutExpired: it was ended, because it took longer.
    """
    deadline = time.monotonic() + seconds
    with TemporaryFile() as source, TemporaryFile() as made, TemporaryFile() as said:
        source.write(given)
        source.seek(0)
        process = subprocess.Popen(command, stdin=source, stdout=made, stderr=said, **quietly())
        try:
            while process.poll() is None and max(size_of(made), size_of(said)) <= MOST_BYTES:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(command, seconds)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(LOOK_AGAIN, left))
        finally:
            process.kill()
            status = process.wait()
        made.seek(0)
        said.seek(0)
        return status, made.read(MOST_BYTES + 1), said.read(8 * MOST_SAID)


def size_of(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def where_is(program: str) -> str | None:
    """Path of a program: where this Python's own programs are, else on the PATH."""
    if program not in FORMATS:
        return None
    if program == "dot":
        return shutil.which(program)
    places = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    return shutil.which(program, path=os.pathsep.join(map(str, places))) or shutil.which(program)


def quietly() -> dict[str, Any]:
    """Arguments of a process that opens no window; only Windows would open one."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NO_WINDOW}
    return {}
