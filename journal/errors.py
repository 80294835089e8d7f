"""The root of every error of this project, and the journal's own refusals.

Facts first: an error is a code that never changes its sense, a problem, a remedy and the facts
behind them. The sentence is built from these; nobody parses it. ``docs/errors.md`` lists all codes.
"""

from __future__ import annotations

from typing import Any


class Coded(Exception):
    """What errors and warnings share: a code and the facts behind a sentence.

    Attributes:
        code: Stable, machine-readable name of the cause.
        problem: What was wrong, as a sentence without its full stop.
        remedy: What to do about it.
        fields: The facts, by name; holds ``code`` and ``remedy`` too.
        partial_trace: The trace of what was recorded, on an error that a capture ended with; None on all others.
            It stays in this process: a copy made by pickling has None.
    """

    partial_trace: Any = None

    def __init__(self, *, code: str, problem: str, remedy: str, **facts: Any) -> None:
        self.code = code
        self.problem = problem
        self.remedy = remedy
        self.fields: dict[str, Any] = {"code": code, "remedy": remedy, **facts}
        Exception.__init__(self, f"{problem}. Remedy: {remedy} [{code}]")  # whatever else a class with this one is

    def __str__(self) -> str:
        return f"{self.problem}. Remedy: {self.remedy} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.problem, dict(self.fields)))


def _rebuild(cls: type[Coded], problem: str, fields: dict[str, Any]) -> Coded:
    made = cls.__new__(cls)
    Coded.__init__(made, problem=problem, **fields)
    return made


class TorchLensError(Coded):
    """Every refusal of this project."""


class JournalError(TorchLensError):
    """A journal cannot do what was asked."""


class JournalCorrupt(JournalError):
    """Stored bytes are not what a journal of this project holds."""


class IllegalTransition(JournalError):
    """An event may not follow in the present state of its machine."""


def malformed(code: str, problem: str) -> JournalCorrupt:
    return JournalCorrupt(
        code=code,
        problem=f"stored bytes are damaged or were not written by this package: {problem}",
        remedy="open a copy of the journal, or one from before the damage",
    )


def writer_of(written_by: str | None) -> str:
    return f"the version of this package that wrote it ({written_by})" if written_by else "the version that wrote it"
