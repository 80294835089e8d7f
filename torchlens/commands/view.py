"""``view``: the page of a capture, written and opened in a browser."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchlens.commands.parsing import add_capture
from torchlens.commands.reading import chosen
from torchlens.commands.refusing import of_the_command
from torchlens.journals.journal_view import open_journal
from torchlens.printable import printable
from torchlens.reading.facade import Trace
from torchlens.tlspec.loading import is_artifact, load

if TYPE_CHECKING:
    from torchlens.commands.parsing import Subparsers

UNPLAIN: Final = re.compile(r"[^\w.-]+", re.ASCII)
"""What is left out of the name of a file."""

LONGEST_NAME: Final = 60


def add(groups: Subparsers) -> None:
    text = "write the page of a capture and open it in a browser"
    made = groups.add_parser("view", help=text, description=text[0].upper() + text[1:] + ".")
    made.add_argument("path", metavar="PATH", help="directory of the journal, or of an artifact")
    add_capture(made)
    made.add_argument("--output", metavar="FILE", help="where to write it; in a new temporary folder by default")
    made.add_argument("--overwrite", action="store_true", help="replace FILE where it is there")
    made.add_argument("--no-open", action="store_true", help="write it alone")
    made.set_defaults(answer=view)


def view(asked: argparse.Namespace) -> None:
    with opened(asked) as trace, of_the_command():
        path = asked.output or os.path.join(tempfile.mkdtemp(prefix="torchlens-"), file_name(trace.trace_label))
        page = trace.to_html(path, overwrite=asked.overwrite)
    sys.stdout.write(f"{printable(str(page))}\n")
    sys.stdout.flush()
    if not asked.no_open and not shown(page):
        sys.stderr.write("torchlens: no browser was found here; open the file in one\n")


@contextmanager
def opened(asked: argparse.Namespace) -> Iterator[Trace]:
    """The trace of an artifact, or the capture of a journal that was asked for."""
    if is_artifact(asked.path):
        trace = load(asked.path, capture=asked.capture, lazy=True)
        try:
            yield trace
        finally:
            trace.cleanup()
    else:
        with of_the_command(), open_journal(asked.path) as journal:
            yield chosen(journal, asked.capture)


def file_name(label: str) -> str:
    """A name for the page of a trace, of letters that any file system has."""
    return (UNPLAIN.sub("_", label[:LONGEST_NAME]).strip("._") or "page") + ".html"


def shown(page: Path) -> bool:
    """Whether a browser was told to open the page. One that would take over this terminal is none."""
    if sys.platform.startswith("linux") and not {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & set(os.environ):
        return False
    try:
        return webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        return False
