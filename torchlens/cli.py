"""The command line: ``torchlens journal COMMAND PATH``, ``torchlens travel|view PATH``, and ``torchlens doctor``.

Reading a journal needs no torch; ``doctor`` and the statistics of ``view`` alone import it, if it is there. What goes
to standard output is the answer, as a table or with ``--json`` for programs; progress and refusals go to standard
error. The exit status is 0, or 1 where the question could not be answered (a coded error says why) or the answer is
that something is wrong, or 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from journal import TorchLensError
from torchlens.commands import endings, environment, integrity, passes, reading, reprojection, streams, travel, view
from torchlens.commands.parsing import Commands
from torchlens.printable import printable
from torchlens.version import VERSION

__all__ = ["main"]

GROUPS = (reading, passes, streams, integrity, endings, reprojection)
"""Files of commands, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one command line; the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    asked = parser().parse_args(given or ["--help"])
    if sys.stdout is None:  # closed by whoever started this
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may have letters that the terminal has not
    try:
        status = asked.answer(asked) or 0
        sys.stdout.flush()
    except TorchLensError as exc:
        print(f"torchlens: {printable(str(exc))}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough
        let_go_of_output()
        return 0
    except OSError as exc:
        let_go_of_output()
        what = "the answer could not be written: " if exc.filename is None else ""
        print(f"torchlens: {what}{printable(str(exc))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return int(status)


def let_go_of_output() -> None:
    """What is still buffered goes nowhere, so that the exit is quiet."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="torchlens", description="Read what captures of PyTorch models recorded.")
    top.add_argument("--version", action="version", version=f"torchlens {VERSION}")
    groups = top.add_subparsers(required=True, metavar="COMMAND")
    journal = groups.add_parser("journal", help="read a journal", description="Read a journal.")
    travel.add(groups)
    view.add(groups)
    environment.add(groups)
    commands = Commands(journal.add_subparsers(required=True, metavar="COMMAND"))
    for group in GROUPS:
        group.add(commands)
    return top
