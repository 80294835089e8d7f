"""What a scan finds, told one by one as it is found: damages, and how much was looked at.

Not   what is looked at (scan.py), or what a caller gets (integrity.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

LISTED: Final = 1000
"""As many damages are told one by one; more are counted."""

TOLD_NOTES: Final = 100

LONGEST_PROBLEM: Final = 500

Message: TypeAlias = tuple[Any, ...]
"""What is told: a word, then what belongs to it."""


@attrs.define(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not as the journal's writer left it, or that this version cannot read.

    Attributes:
        code: As of an error; ``docs/errors.md`` lists it.
        problem: What is wrong, as a sentence without its full stop.
        file: Of the journal's directory.
        seq: Event of the journal that it concerns.
        stream: Stream that it concerns.
        number: Payload of the stream that it concerns.
    """

    code: str
    problem: str
    file: str = "data.mdb"
    seq: int | None = None
    stream: int | None = None
    number: int | None = None


@attrs.define(slots=True)
class Counts:
    """How much was looked at."""

    events: int = 0
    chunks: int = 0
    commits: int = 0
    streams: int = 0
    payloads: int = 0
    payload_bytes: int = 0
    omitted: int = 0  # damages beyond those that are told one by one
    is_sealed: bool = False


class Damages:
    """Takes what a scan finds and tells it."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self.tell = tell
        self.counts = Counts()
        self.told = 0
        self.notes = 0
        self.known: set[str] = set()

    def damage(
        self,
        code: str,
        problem: str,
        *,
        file: str = "data.mdb",
        seq: int | None = None,
        stream: int | None = None,
        number: int | None = None,
    ) -> None:
        if self.told < LISTED:
            self.told += 1
            damage = Damage(code=code, problem=short(problem), file=file, seq=seq, stream=stream, number=number)
            self.tell(("damage", attrs.asdict(damage)))
        else:
            self.counts.omitted += 1

    def unread(self, code: str, problem: str, *, seq: int, stream: int) -> None:
        """Something that a newer version wrote: its bytes are whole, what they say was not looked at."""
        if problem not in self.known and len(self.known) < TOLD_NOTES:
            self.known.add(problem)
            self.tell(("unread", attrs.asdict(Damage(code=code, problem=short(problem), seq=seq, stream=stream))))

    def note(self, text: str) -> None:
        if self.notes < TOLD_NOTES:
            self.notes += 1
            self.tell(("note", short(text)))

    def end(self) -> None:
        self.tell(("end", *attrs.astuple(self.counts)))


def short(text: str) -> str:
    plain = text.encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= LONGEST_PROBLEM else plain[: LONGEST_PROBLEM - 1] + "…"
