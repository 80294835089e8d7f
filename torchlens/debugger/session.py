"""A cursor moved by lines of text: what `torchlens travel --script` reads, and what is typed after a colon.

Gives  ``Session``: a line in, lines out. After each move it says where the cursor stands.
Rule   the words are those of ``Cursor``; a letter that stands for one is in ``COMMANDS``. A line that cannot be done is
       refused by code, and the cursor stays where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from torchlens.debugger.panes import event_line, record_lines, records_at, source_lines, state_line, value_lines
from torchlens.debugger.written import read_what
from torchlens.errors import ConfigurationError
from torchlens.printable import aligned, printable
from torchlens.questions.nonfinite_answer import NONFINITE
from torchlens.reading.lookup import near_misses
from torchlens.travel.cursor import Cursor
from torchlens.travel.matching import What

__all__ = ["COMMANDS", "Session"]

NEIGHBOURS: Final = 10
"""Events that are listed on either side of the cursor where no number is given."""


class Session:
    """A cursor, and what was sought with it last.

    Args:
        cursor: What is moved.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor: Final = cursor
        self.sought: What | None = None
        self.is_over = False

    def answer(self, line: str) -> list[str]:
        """What a line gives; nothing for an empty one, and for one that begins with ``#``.

        Raises:
            ConfigurationError: ``travel_command_unknown``, ``travel_argument_invalid``, ``selector_text_malformed``.
            TorchLensError: What the cursor refuses.
        """
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            return []
        command = BY_WORD.get(word)
        if command is None:
            near = near_misses(word, (dict.fromkeys(BY_WORD, ()),))
            raise ConfigurationError(
                code="travel_command_unknown",
                problem=f"{word!r} is no command",
                remedy=(f"did you mean {near[0]!r}? " if near else "") + "help lists them",
                received=word,
            )
        return list(command.run(self, rest.strip()))

    # -- moves

    def step(self, rest: str) -> Iterator[str]:
        self.cursor.step(number(rest, 1))
        yield from self.position()

    def back(self, rest: str) -> Iterator[str]:
        self.cursor.back(number(rest, 1))
        yield from self.position()

    def seek(self, rest: str) -> Iterator[str]:
        self.cursor.seek(place(rest))
        yield from self.position()

    def next(self, rest: str) -> Iterator[str]:
        self.cursor.next(self.what(rest))
        yield from self.position()

    def previous(self, rest: str) -> Iterator[str]:
        self.cursor.previous(self.what(rest))
        yield from self.position()

    def run_to(self, rest: str) -> Iterator[str]:
        self.cursor.run_to(self.what(rest))
        yield from self.position()

    def run_back_to(self, rest: str) -> Iterator[str]:
        self.cursor.run_back_to(self.what(rest))
        yield from self.position()

    def first_nonfinite(self, rest: str) -> Iterator[str]:
        kind = next((one for one in NONFINITE if one == (rest or NONFINITE[0])), None)
        if kind is None:
            raise argument_invalid(
                f"{printable(rest[:40])!r} is nothing that first_nonfinite looks for",
                "say first_nonfinite nan for NaN alone, or first_nonfinite for infinities too",
            )
        self.sought = kind
        found = self.cursor.first_nonfinite(kind)
        if found.at is not None:
            self.cursor.seek(found.at)
            yield from self.position()
        yield from str(found).split("\n")

    def what(self, rest: str) -> What:
        """What is sought: what was written, else what was sought last."""
        if rest:
            self.sought = read_what(rest)
        if self.sought is None:
            raise argument_invalid("nothing was sought yet", 'say what: next func("relu")')
        return self.sought

    # -- questions

    def position(self) -> Iterator[str]:
        stamped = self.cursor.event
        yield "before the first event" if stamped is None else event_line(self.cursor.whole, stamped)

    def where(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "where")
        yield from str(self.cursor.where()).split("\n")

    def changed(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "changed")
        yield from str(self.cursor.changed()).split("\n")

    def record(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "record")
        yield from record_lines(self.cursor)

    def source(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "source")
        yield from source_lines(self.cursor)

    def values(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "values")
        yield from value_lines(self.cursor) or ["no values: this event made no op and no gradient"]

    def state(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "state")
        yield state_line(self.cursor)

    def events(self, rest: str) -> Iterator[str]:
        here = self.cursor.position - 1
        around = number(rest, NEIGHBOURS)
        for stamped in self.cursor.whole.events(max(0, here - around), here + around + 1):
            mark = ">" if stamped.at == here else " "
            yield f"{mark}{event_line(self.cursor.whole, stamped)}"

    def why(self, rest: str) -> Iterator[str]:
        yield from str(self.cursor.why(read_what(rest) if rest else self.made())).split("\n")

    def made(self) -> Any:
        """The op, gradient or firing that the event tells of."""
        stamped = self.cursor.event
        found = None if stamped is None else next(records_at(self.cursor.trace, stamped), None)
        if found is None:
            raise argument_invalid("the event tells of no op and no gradient", "say which: why relu_1_2")
        return found

    def help(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "help")
        yield from aligned([(command.usage, command.text) for command in COMMANDS])

    def quit(self, rest: str) -> Iterator[str]:
        nothing_behind(rest, "quit")
        self.is_over = True
        yield from ()


Run: TypeAlias = Callable[[Session, str], Iterator[str]]


class Command(NamedTuple):
    """Something that can be said."""

    words: tuple[str, ...]  # the first one is its name
    run: Run
    usage: str
    text: str


COMMANDS: Final = (
    Command(("step", "s"), Session.step, "step [N], s", "N events on, 1 if no number is given"),
    Command(("back", "b"), Session.back, "back [N], b", "N events back"),
    Command(("seek",), Session.seek, "seek N", "onto event N, from the end if negative; 0.5 is half of the way"),
    Command(("next", "n"), Session.next, "next [WHAT], n", "to the next match; without WHAT, of what was sought last"),
    Command(("previous", "p"), Session.previous, "previous [WHAT], p", "to the match before"),
    Command(("run_to",), Session.run_to, "run_to [WHAT]", "as next, but stays where this event matches"),
    Command(("run_back_to",), Session.run_back_to, "run_back_to [WHAT]", "as previous, but stays where this one does"),
    Command(
        ("first_nonfinite", "f"),
        Session.first_nonfinite,
        "first_nonfinite [nan], f",
        "to the first NaN or infinity, or NaN alone",
    ),
    Command(("why",), Session.why, "why [WHAT]", "what made this value, or that of WHAT"),
    Command(("where", "w"), Session.where, "where, w", "line of source, module calls, pass and node"),
    Command(("record", "r"), Session.record, "record, r", "the record that the event made"),
    Command(("source",), Session.source, "source", "the lines around the call"),
    Command(("values", "v"), Session.values, "values, v", "statistics of what it made, with a histogram"),
    Command(("changed", "c"), Session.changed, "changed, c", "what the event changed in the records"),
    Command(("events", "e"), Session.events, "events [N], e", "the N events on either side"),
    Command(("state",), Session.state, "state", "how much there is by now"),
    Command(("help", "h"), Session.help, "help, h", "this"),
    Command(("quit", "q"), Session.quit, "quit, q", "the end"),
)
"""WHAT is a selector, as ``func("relu")``; the name of an event type; a label; ``nonfinite``, or ``nan`` alone."""

BY_WORD: Final = {word: command for command in COMMANDS for word in command.words}


def number(text: str, otherwise: int) -> int:
    """A number of events."""
    if not text:
        return otherwise
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise argument_invalid(f"{printable(text[:40])!r} is no number of events", "give a whole number, 0 or more")
    return int(text)


def place(text: str) -> int | float:
    """The number of an event, or a part of the way."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise argument_invalid(
            f"{printable(text[:40])!r} is no place", "give the number of an event, or a part of the way as 0.5"
        ) from None


def nothing_behind(rest: str, word: str) -> None:
    if rest:
        raise argument_invalid(f"{word} takes no argument", f"say {word} alone")


def argument_invalid(problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(code="travel_argument_invalid", problem=problem, remedy=remedy)
