"""How a command joins the command line."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # the class has no public name

Answer: TypeAlias = Callable[[argparse.Namespace], "int | None"]
"""Answers one command line; gives the exit status where that is not 0."""


class Commands:
    """The commands of one group, as they are listed."""

    def __init__(self, group: Subparsers) -> None:
        self.group = group

    def add(
        self, name: str, answer: Answer, text: str, *, path: str = "PATH", is_plain: bool = False
    ) -> argparse.ArgumentParser:
        """A command whose first argument is the directory of a journal.

        Args:
            name: What is typed.
            answer: What is done.
            text: One line of help, without a capital or a full stop.
            path: What the help calls the first argument.
            is_plain: Whether it answers with text for people alone.
        """
        made = self.group.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made.add_argument("path", metavar=path, help="directory of the journal")
        if not is_plain:
            made.add_argument("--json", action="store_true", help="for programs")
        made.set_defaults(answer=answer)
        return made


def add_capture(command: argparse.ArgumentParser, *, otherwise: str = "") -> None:
    """The option that names a capture."""
    text = "which capture: its number in `captures`, from the end if negative, or its name"
    command.add_argument("--capture", metavar="N", help=text + otherwise)


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number


def count(text: str) -> Any:
    """A number of things, 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return min(number, sys.maxsize)
