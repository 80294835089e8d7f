"""A cursor moved by lines of text: what `torchlens travel --script` reads, and what is typed after a colon.

Gives  ``Session``: a line in, lines out. After each move it says where the cursor stands.
Rule   the words are those of ``Cursor``; a letter that stands for one is in ``COMMANDS``. A line that cannot be done is
       refused by code, and the cursor stays where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from journal.events import Stamped
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

    @cached_property
    def begun_ns(self) -> int:
        """The time of the first event."""
        return next(self.cursor.whole.events(0, 1)).time_ns

    def line(self, stamped: Stamped) -> str:
        """An event as it is listed."""
        return event_line(self.cursor.whole, stamped, self.begun_ns)

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
        rest = rest.strip()
        if rest and command.takes is None:
            raise argument_invalid(f"{command.words[0]} takes no argument", f"say {command.words[0]} alone")
        return list(command.run(self, rest))

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
        yield "before the first event" if stamped is None else self.line(stamped)

    def where(self, _rest: str) -> Iterator[str]:
        yield from str(self.cursor.where()).split("\n")

    def changed(self, _rest: str) -> Iterator[str]:
        yield from str(self.cursor.changed()).split("\n")

    def record(self, _rest: str) -> Iterator[str]:
        yield from record_lines(self.cursor)

    def source(self, _rest: str) -> Iterator[str]:
        yield from source_lines(self.cursor)

    def values(self, _rest: str) -> Iterator[str]:
        yield from value_lines(self.cursor) or ["no values: this event made no op and no gradient"]

    def state(self, _rest: str) -> Iterator[str]:
        yield state_line(self.cursor)

    def events(self, rest: str) -> Iterator[str]:
        here = self.cursor.position - 1
        around = number(rest, NEIGHBOURS)
        for stamped in self.cursor.whole.events(max(0, here - around), here + around + 1):
            mark = ">" if stamped.at == here else " "
            yield f"{mark}{self.line(stamped)}"

    def why(self, rest: str) -> Iterator[str]:
        yield from str(self.cursor.why(read_what(rest) if rest else self.made())).split("\n")

    def made(self) -> Any:
        """The op, gradient or firing that the event tells of."""
        stamped = self.cursor.event
        found = None if stamped is None else next(records_at(self.cursor.trace, stamped), None)
        if found is None:
            raise argument_invalid("the event tells of no op and no gradient", "say which: why relu_1_2")
        return found

    def help(self, _rest: str) -> Iterator[str]:
        yield from aligned([(command.usage, command.text) for command in COMMANDS])

    def quit(self, _rest: str) -> Iterator[str]:
        self.is_over = True
        yield from ()


Run: TypeAlias = Callable[[Session, str], Iterator[str]]


class Command(NamedTuple):
    """Something that can be said."""

    words: tuple[str, ...]  # the first one is its name
    takes: str | None  # what may stand behind it, as it is written in the help; None for nothing
    run: Run
    text: str

    @property
    def usage(self) -> str:
        """How it is said: its name with what it takes, then its letter."""
        name, *letters = self.words
        return ", ".join((f"{name} {self.takes}" if self.takes else name, *letters))


COMMANDS: Final = (
    Command(("step", "s"), "[N]", Session.step, "N events on, 1 if no number is given"),
    Command(("back", "b"), "[N]", Session.back, "N events back"),
    Command(("seek",), "N", Session.seek, "onto event N, from the end if negative; 0.5 is half of the way"),
    Command(("next", "n"), "[WHAT]", Session.next, "to the next match; without WHAT, of what was sought last"),
    Command(("previous", "p"), "[WHAT]", Session.previous, "to the match before"),
    Command(("run_to",), "[WHAT]", Session.run_to, "as next, but stays where this event matches"),
    Command(("run_back_to",), "[WHAT]", Session.run_back_to, "as previous, but stays where this one does"),
    Command(("first_nonfinite", "f"), "[nan]", Session.first_nonfinite, "to the first NaN or infinity, or NaN alone"),
    Command(("why",), "[WHAT]", Session.why, "what made this value, or that of WHAT"),
    Command(("where", "w"), None, Session.where, "line of source, module calls, pass and node"),
    Command(("record", "r"), None, Session.record, "the record that the event made"),
    Command(("source",), None, Session.source, "the lines around the call"),
    Command(("values", "v"), None, Session.values, "statistics of what it made, with a histogram"),
    Command(("changed", "c"), None, Session.changed, "what the event changed in the records"),
    Command(("events", "e"), "[N]", Session.events, "the N events on either side"),
    Command(("state",), None, Session.state, "how much there is by now"),
    Command(("help", "h"), None, Session.help, "this"),
    Command(("quit", "q"), None, Session.quit, "the end"),
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


def argument_invalid(problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(code="travel_argument_invalid", problem=problem, remedy=remedy)
