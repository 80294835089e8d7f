"""``travel``: a cursor over a capture, at the terminal or by a script."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from journal import TorchLensError
from torchlens.commands.parsing import add_capture
from torchlens.commands.reading import chosen
from torchlens.debugger.session import Session
from torchlens.errors import CompatibilityError, ConfigurationError
from torchlens.journals.journal_view import open_journal
from torchlens.printable import printable
from torchlens.travel.cursor import Cursor

if TYPE_CHECKING:
    from torchlens.commands.parsing import Subparsers


def add(groups: Subparsers) -> None:
    text = "go through a capture event by event, forwards and backwards"
    made = groups.add_parser("travel", help=text, description=text[0].upper() + text[1:] + ".")
    made.add_argument("path", metavar="PATH", help="directory of the journal")
    add_capture(made)
    made.add_argument(
        "--script", metavar="FILE", help="do what its lines say, - for standard input, and show nothing else"
    )
    made.set_defaults(answer=travel)


def travel(asked: argparse.Namespace) -> int:
    """Exits with 1 at the first line of a script that is refused."""
    with open_journal(asked.path) as view:
        session = Session(Cursor(chosen(view, asked.capture), view))
        if asked.script is None:
            return on_screen(session)
        if asked.script == "-":
            if sys.stdin is None:  # closed by whoever started this
                raise unreadable("-", "standard input is closed")
            if isinstance(sys.stdin, io.TextIOWrapper):  # as the file below is read; else it has text already
                sys.stdin.reconfigure(errors="replace")
            return by_script(session, sys.stdin)
        try:
            with open(asked.script, encoding="utf-8", errors="replace") as lines:
                return by_script(session, lines)
        except OSError as exc:
            raise unreadable(asked.script, exc.strerror or str(exc)) from exc


def unreadable(script: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        code="travel_script_unreadable",
        problem=f"the script {script!r} cannot be read: {why}",
        remedy="give a file of commands, a line each, or - for standard input",
        path=script,
    )


def by_script(session: Session, lines: Iterable[str]) -> int:
    for number, line in enumerate(lines, start=1):
        try:
            answer = session.answer(line)
        except TorchLensError as exc:
            sys.stdout.flush()
            sys.stderr.write(f"torchlens: line {number}: {printable(str(exc))}\n")
            return 1
        sys.stdout.writelines(f"{shown}\n" for shown in answer)
        if session.is_over:
            break
    return 0


def on_screen(session: Session) -> int:
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            code="travel_needs_terminal",
            problem="a screen was asked for, and this is no terminal",
            remedy="give the commands with --script FILE, or --script - on standard input",
        )
    try:
        from torchlens.debugger.screen import Screen  # for cost, and textual is an extra
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "textual":
            raise
        raise CompatibilityError(
            code="textual_not_installed",
            problem="a screen was asked for, and textual is not installed",
            remedy="install textual, or this package with its extra travel; --script needs none",
        ) from exc
    Screen(session).run()
    return 0
