"""A page as one HTML file: data, script and style in it, written whole or not at all.

Rule  Nothing of a journal is markup: the data is JSON in which no tag can begin, and what little the file says
      without its script is escaped.
Rule  The file runs its own script and style and nothing else: a Content-Security-Policy names both by their hashes, and
      allows no network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from torchlens.errors import ConfigurationError
from torchlens.page.data import page_data
from torchlens.page.texts import too_large
from torchlens.page.values import Statistics
from torchlens.reading.view import View
from torchlens.whole_file import write_whole

__all__ = ["page_of", "write_page"]

MOST_BYTES: Final = 1 << 27
"""Of the data; browsers refuse strings not far above."""

POLICY: Final = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="torchlens"></main>
<noscript>
<h1>{title}</h1>
<p>This page shows its trace by its own script, which did not run.</p>
<pre>{text}</pre>
</noscript>
<script type="application/json" id="torchlens-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(trace: View, path: str | os.PathLike[str], *, statistics: Statistics, overwrite: bool) -> Path:
    """Write the page of a trace; see ``Trace.to_html``."""
    target = Path(path).expanduser().absolute()
    if target.is_dir() or (target.exists() and not overwrite):
        raise is_there(target)  # before a page is made
    page = page_of(trace, statistics=statistics).encode()
    try:
        is_written = write_whole(target, [page], overwrite=overwrite)
    except (OSError, ValueError) as exc:  # a path may have a zero in it
        raise ConfigurationError(
            code="page_not_written",
            problem=f"the page {str(target)!r} could not be written: {getattr(exc, 'strerror', None) or exc}",
            remedy="give a path in a folder that is there and can be written to",
            path=str(target),
        ) from exc
    if not is_written:
        raise is_there(target)
    return target


def is_there(target: Path) -> ConfigurationError:
    is_folder = target.is_dir()
    return ConfigurationError(
        code="page_path_exists",
        problem=f"{str(target)!r} is there already" + (", and a folder" if is_folder else ""),
        remedy="give another path" + ("" if is_folder else ", or overwrite=True"),
        path=str(target),
    )


def page_of(trace: View, *, statistics: Statistics = True) -> str:
    """The page of a trace as text."""
    data = page_data(trace, statistics=statistics)
    script, style = front("page.js"), front("page.css")
    return PAGE.format(
        policy=POLICY.format(script=hash_of(script), style=hash_of(style)),
        title=html.escape(data["title"]),
        text=html.escape("\n".join(f"{name}: {text}" for name, text in data["facts"])),
        style=style,
        data=json_in_html(data),
        script=script,
    )


def json_in_html(data: Any) -> str:
    """Data as JSON that stands inside a script element of HTML: without ``<``, so that no tag and no comment begins.

    Raises:
        CompatibilityError: ``page_too_large``.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    if len(text) > MOST_BYTES:
        raise too_large(f"{len(text):,} bytes")
    return text


@cache
def front(name: str) -> str:
    """A file of the built front end."""
    return (resources.files("torchlens.page") / "front" / name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Of a script or style as a Content-Security-Policy names it (CSP Level 3, section 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
