"""Themes: which colour means what.

Rule   a colour is never alone: what it tells is told by the shape, the line around a node or a word too, so a picture
       can be read in grey. The colours of ``paper`` are made from those of Okabe and Ito, which people who do not see
       some colours tell apart (Color Universal Design, 2008).
Rule   text stands on a fill with a contrast of at least 4.5 to 1 (WCAG 2.1, 1.4.3); a test computes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from torchlens.errors import ConfigurationError
from torchlens.viz.refusing import one_of, quoted

__all__ = ["DARK", "LIGHT", "PAPER", "THEMES", "Theme", "theme_of"]

COLOUR: Final = re.compile(r"#[0-9a-f]{6}", re.ASCII | re.IGNORECASE)


def is_colour(instance: Any, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or COLOUR.fullmatch(value) is None:
        raise ConfigurationError(
            code="visualization_theme_invalid",
            problem=f"{attribute.name} of a theme is {quoted(value)}",
            remedy="give a colour as '#rrggbb'",
        )


def is_word(instance: Any, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z][A-Za-z0-9 _.-]{0,63}", value) is None:
        raise ConfigurationError(
            code="visualization_theme_invalid",
            problem=f"{attribute.name} of a theme is {quoted(value)}",
            remedy="give a short name of letters, digits and blanks",
        )


def colour() -> Any:
    return attrs.field(validator=is_colour)


@attrs.frozen(kw_only=True)
class Theme:
    """Colours of a picture, each as ``#rrggbb``; ``attrs.evolve(tl.viz.LIGHT, kept="#ddeeff")`` makes another one.

    Attributes:
        name: What it is called.
        font: A font family that the reader of the picture has; widths are those of Helvetica.
        background: Behind everything.
        ink: Titles.
        faint: The lines below them, and what is said about the whole.
        line: Edges, and the line around what has none of its own.
        cluster, cluster_line: Inside of an open module, and around it; one inside another is a little stronger.
        op: An op whose activation was not kept, or a stretch of several.
        kept: An op whose activation was kept.
        input, output, param, buffer, module, grad_fn: What each is filled with.
        gradient: The line around what has a gradient that was kept, and backward edges.
        inplace: The word at what writes to its argument, and edges that write to a buffer.
        failed: The call that raised, or has not returned, and the op that was left for NaN or infinite elements.
        highlight: The line around what was asked for with ``highlight=``.
    """

    name: str = attrs.field(validator=is_word)
    font: str = attrs.field(default="Helvetica", validator=is_word)
    background: str = colour()
    ink: str = colour()
    faint: str = colour()
    line: str = colour()
    cluster: str = colour()
    cluster_line: str = colour()
    op: str = colour()
    kept: str = colour()
    input: str = colour()
    output: str = colour()
    param: str = colour()
    buffer: str = colour()
    module: str = colour()
    grad_fn: str = colour()
    gradient: str = colour()
    inplace: str = colour()
    failed: str = colour()
    highlight: str = colour()


LIGHT: Final = Theme(
    name="light",
    background="#ffffff",
    ink="#1b1f24",
    faint="#57606a",
    line="#6e7781",
    cluster="#f6f8fa",
    cluster_line="#b6bec7",
    op="#ffffff",
    kept="#e3edf9",
    input="#cfeed6",
    output="#f9d9c9",
    param="#efe6d2",
    buffer="#e9def5",
    module="#d4dfee",
    grad_fn="#f7dbe9",
    gradient="#a4245f",
    inplace="#9a4a00",
    failed="#ffc9c7",
    highlight="#d4820f",
)

DARK: Final = Theme(
    name="dark",
    background="#14171c",
    ink="#f0f3f6",
    faint="#b4bcc6",
    line="#8b949e",
    cluster="#1c2128",
    cluster_line="#4a525c",
    op="#20262e",
    kept="#1d3a5f",
    input="#1c4a2b",
    output="#5c3320",
    param="#4a3f22",
    buffer="#40305c",
    module="#2f3f57",
    grad_fn="#55233c",
    gradient="#ff8fc0",
    inplace="#ffb36b",
    failed="#7d1f1f",
    highlight="#ffc53d",
)

PAPER: Final = Theme(
    name="paper",
    background="#ffffff",
    ink="#000000",
    faint="#333333",
    line="#444444",
    cluster="#ffffff",
    cluster_line="#888888",
    op="#ffffff",
    kept="#bfe3f7",
    input="#8fd6bf",
    output="#f5c99a",
    param="#f7ee9b",
    buffer="#e6bcd3",
    module="#dddddd",
    grad_fn="#f3d0e3",
    gradient="#0072b2",
    inplace="#8f3f00",
    failed="#f2a477",
    highlight="#d55e00",
)

THEMES: Final[Mapping[str, Theme]] = MappingProxyType({theme.name: theme for theme in (LIGHT, DARK, PAPER)})
"""The themes that have a name."""


def theme_of(theme: object) -> Theme:
    """A theme by its name, or the one that is given.

    Raises:
        ConfigurationError: ``visualization_theme_invalid``.
    """
    if isinstance(theme, Theme):
        return theme
    if isinstance(theme, str) and theme in THEMES:
        return THEMES[theme]
    raise ConfigurationError(
        code="visualization_theme_invalid",
        problem=f"there is no theme {quoted(theme)}",
        remedy=one_of(theme, THEMES, "or a tl.viz.Theme"),
    )
