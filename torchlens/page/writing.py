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
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from torchlens.json_in_html import json_in_html
from torchlens.page.data import page_data
from torchlens.page.texts import too_large
from torchlens.page.values import Statistics
from torchlens.reading.view import View
from torchlens.whole_file import written

__all__ = ["page_of", "write_page"]

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
    return written(
        path,
        lambda: [page_of(trace, statistics=statistics).encode()],
        overwrite=overwrite,
        what="the page",
        exists_code="page_path_exists",
        failed_code="page_not_written",
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
        data=json_in_html(data, too_large),
        script=script,
    )


@cache
def front(name: str) -> str:
    """A file of the built front end."""
    return (resources.files("torchlens.page") / "front" / name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Of a script or style as a Content-Security-Policy names it (CSP Level 3, section 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
