"""The forward of a capture: what it was given, what it gave, and how it ended."""

from __future__ import annotations

from typing import Any, Final

import attrs

from projections.accounts.ended import ended
from projections.errors import over_events
from torchlens.errors import PayloadUnavailableError
from torchlens.reading.calls_made import Failure, failure_of
from torchlens.reading.fields import Field
from torchlens.reading.given import Given
from torchlens.reading.locations import FuncCallLocation, location_of
from torchlens.reading.raw import raw_input, raw_output
from torchlens.reading.view import View

__all__ = ["MISSING", "CaptureOutcome", "ForwardFacts"]

MISSING: Final = object()
"""Stands for the return value of a model that did not return in this process."""

ORIGINS: Final = {"halted": "request", "aborted_nonfinite": "request", "failed": "model", "interrupted": "outside"}
"""What cuts a capture short, by how it ended."""


@attrs.frozen
class CaptureOutcome:
    """How a capture ended."""

    status: str  # "complete", "halted", "aborted_nonfinite", "failed", "interrupted", "unfinished"
    reason: str | None  # why it was halted, or the message of what was raised
    error: str | None  # qualified class of what was raised
    phase: str | None  # what was going on then: "setup", "forward" or "cleanup"; None for a whole one
    origin: str | None  # what ended it: "request", "model", "outside"; None where nothing cut it short, or unknown
    partial: bool  # whether the records are a prefix of what a whole forward would have given


class ForwardFacts(View):
    """What went in, what came out, and how it ended."""

    returned: object  # what the model returned, in the process that captured it; else MISSING

    @property
    def raw_input(self) -> Given | None:
        """The arguments of the forward, ``.args`` and ``.kwargs``, from what was kept of the inputs.

        None where one of them was not kept, or the forward did not start.
        """
        self.require_open()
        return raw_input(self)

    @property
    def raw_output(self) -> Any:
        """What the forward returned, from what was kept of the outputs, in any process; containers of known kinds as
        they are, a named tuple, dataclass or model output as a dictionary.

        None where one of them was not kept, or the forward did not return. ``output`` is the object itself.
        """
        self.require_open()
        return raw_output(self)

    @property
    def output(self) -> Any:
        """What the model returned, in the process that captured it.

        Raises:
            PayloadUnavailableError: ``output_not_stored``, for a trace that was read from a journal, and
                for one whose model did not return.
        """
        self.require_open()
        if self.returned is MISSING:
            status = self.status
            returned = status == "complete"
            raise PayloadUnavailableError(
                code="output_not_stored",
                problem="the returned object lives in the process that captured it"
                if returned
                else f"the model did not return: the capture is {status}",
                remedy="read the output ops, trace.output_ops[k].out, or capture again"
                if returned
                else "read the ops that ran, trace.ops",
                status=status,
            )
        return self.returned

    # -- how it ended

    status = Field[str](
        "``complete``, ``halted``, ``aborted_nonfinite``, ``failed``, ``interrupted``, or ``unfinished``."
    )
    is_partial = Field[bool]("Whether the forward neither returned nor was halted on purpose.")
    halted = Field[bool]("Whether the forward was stopped on purpose.")
    halt_reason = Field[str | None]("Why it was stopped; None otherwise.")

    @property
    def error(self) -> str | None:
        """Class and message of what the model raised, or of what interrupted it; None otherwise."""
        fact = self.tables.fact
        kind, message = fact("error_type"), fact("error_message")
        return f"{kind}: {message}" if kind and message else kind

    @property
    def failure(self) -> Failure | None:
        """What ended the forward, and where: the torch call with its operands, the module call, the lines of source.

        None where the forward was not ended by an exception. Its text form is for people.
        """
        self.require_open()
        with over_events():
            return failure_of(self)

    @property
    def called_from(self) -> FuncCallLocation | None:
        """Where in the user's code the capture was asked for; None where that is not known."""
        frame = self.tables.fact("called_from")
        return None if frame is None else location_of(self, frame)

    @property
    def outcome(self) -> CaptureOutcome:
        """How the capture ended, in one record."""
        fact = self.tables.fact
        end = ended(self.tables)
        status: str = fact("status")
        return CaptureOutcome(
            status=status,
            reason=None if end is None else end.message,
            error=fact("error_type"),
            phase=self.phase_of_end(),
            origin=ORIGINS.get(status),
            partial=fact("is_partial"),
        )

    def phase_of_end(self) -> str | None:
        """What was going on when the capture ended, or goes on now; None where it came to its end."""
        fact = self.tables.fact
        if fact("status") == "complete":
            return None if fact("is_settled") else "cleanup"
        return "setup" if fact("started_event") is None else "forward"
