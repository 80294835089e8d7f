"""The renderers by name.

Gives  ``Renderer``, what one has to have, and each that there is, by name.
Rule   those that come with the package and those of a user stand in one table and are found alike; one of ours
       that was replaced can come back.
Not    drawing: a renderer makes bytes of a picture and a look (programs.py, plain_text.py).
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from projections.picture.parts import Picture
from torchlens.errors import ConfigurationError
from torchlens.viz.look import Look
from torchlens.viz.plain_text import PlainText
from torchlens.viz.programs import Graphviz
from torchlens.viz.refusing import MOST_LETTERS, one_of, quoted

__all__ = ["OURS", "Renderer", "known", "register_renderer", "renderers", "unregister_renderer"]


@runtime_checkable
class Renderer(Protocol):
    """What draws a picture."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that it writes, as suffixes of files without their dot; the first is its usual one."""
        ...

    def missing(self) -> str | None:
        """What it lacks on this machine, in words; None where it can be used."""
        ...

    def render(self, picture: Picture, look: Look, format: str, *, dpi: int) -> bytes:
        """The picture in one of its formats; ``dpi`` is for those made of dots."""
        ...


OURS: Final[dict[str, Renderer]] = {
    "graphviz": Graphviz("dot"),
    "graphviz-pure": Graphviz("graphviz-pure"),
    "text": PlainText(),
}
"""In the order in which ``auto`` takes them, what only writes text last."""

RENDERERS: Final = dict(OURS)


def renderers() -> dict[str, str | None]:
    """The names of the renderers that there are, each with what it lacks here; None where it can be used."""
    return {name: renderer.missing() for name, renderer in RENDERERS.items()}


def register_renderer(name: str, renderer: Renderer, *, replace: bool = False) -> None:
    """Have ``trace.draw(renderer=name)`` draw with a renderer.

    Args:
        name: Short; not ``auto``.
        renderer: An object with ``formats``, ``missing()`` and ``render(picture, look, format, dpi=)``.
        replace: Whether it may take the place of another one.

    Raises:
        ConfigurationError: ``visualization_renderer_invalid``, where it is no renderer or the name is taken.
    """
    if not is_name(name):
        raise ConfigurationError(
            code="visualization_renderer_invalid",
            problem=f"{quoted(name)} is no name of a renderer",
            remedy=f"give a word of at most {MOST_LETTERS} letters, other than 'auto'",
        )
    if isinstance(renderer, type) or not isinstance(renderer, Renderer):
        raise ConfigurationError(
            code="visualization_renderer_invalid",
            problem=f"{quoted(renderer)} is no renderer",
            remedy="give an object with formats, missing() and render(picture, look, format, dpi=), as tl.viz.Renderer",
        )
    if name in RENDERERS and not replace:
        raise ConfigurationError(
            code="visualization_renderer_invalid",
            problem=f"there is a renderer {name!r} already",
            remedy="choose another name, or pass replace=True",
        )
    RENDERERS[name] = renderer


def is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MOST_LETTERS and name.isprintable() and name != "auto"


def unregister_renderer(name: str) -> None:
    """Forget a renderer that was registered; one of the package's own that it replaced is back.

    Raises:
        ConfigurationError: ``visualization_renderer_invalid``, for a name that was not registered.
    """
    known(name)
    if RENDERERS[name] is OURS.get(name):
        raise ConfigurationError(
            code="visualization_renderer_invalid",
            problem=f"the renderer {name!r} is the package's own",
            remedy="only what register_renderer added can be taken away",
        )
    if name in OURS:
        RENDERERS[name] = OURS[name]
    else:
        del RENDERERS[name]


def known(name: object) -> Renderer:
    """The renderer of a name.

    Raises:
        ConfigurationError: ``visualization_renderer_invalid``.
    """
    if isinstance(name, str) and name in RENDERERS:
        return RENDERERS[name]
    raise ConfigurationError(
        code="visualization_renderer_invalid",
        problem=f"there is no renderer {quoted(name)}",
        remedy=one_of(name, ("auto", *RENDERERS), "or register one with tl.viz.register_renderer"),
    )
