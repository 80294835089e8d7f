"""What a run gives back, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import attrs

__all__ = ["Diagnostic", "Divergence", "Draws", "Readiness", "RunReport", "RunResult"]

PathFaithfulness: TypeAlias = Literal["verified", "diverged", "unverifiable"]
NumericAttestation: TypeAlias = Literal["attested", "numeric_attestation_failed", "not_applicable", "not_present"]
StateSource: TypeAlias = Literal[
    "live_model_state", "embedded_capture_state", "user_state_dict", "random_initialization"
]
Draws: TypeAlias = Literal["fresh", "recorded"]


class Diagnostic(NamedTuple):
    """One reason why a capture cannot be run."""

    code: str
    problem: str
    event: int | None  # number of the event; None for the capture as a whole
    place: str | None  # in the model's source

    def __str__(self) -> str:
        return f"{self.code}: {self.problem}" + ("" if self.place is None else f" ({self.place})")


class Divergence(NamedTuple):
    """Where a run left what was recorded, or may have."""

    code: str
    problem: str
    event: int | None  # number of the recorded event; None for the run as a whole
    place: str | None  # in the model's source: "model.py:17 in Net.forward"

    def __str__(self) -> str:
        return self.problem if self.place is None else f"{self.problem} ({self.place})"


@attrs.frozen
class Readiness:
    """Whether a trace can be run, and with what.

    Attributes:
        status: ``"ready"`` or ``"unavailable"``.
        provider: Where its events are: ``"live"``, ``"journal"`` or ``"artifact"``.
        state_sources: Where its parameters and buffers can be taken from, the first of which a run takes.
        diagnostics: What cannot be run, each with a code, in the order of the forward.
    """

    status: Literal["ready", "unavailable"]
    provider: str
    state_sources: tuple[StateSource, ...]
    diagnostics: tuple[Diagnostic, ...]

    def __bool__(self) -> bool:
        return self.status == "ready"


@attrs.frozen
class RunReport:
    """What a run can say of its result.

    Attributes:
        path_faithfulness: ``"verified"``: everything that Python took out of tensors was taken again and was the same,
            so the model's code would have gone the way that was recorded. ``"diverged"``: something was not; the
            result is that of the recorded path, which the model would not have gone. ``"unverifiable"``: nothing
            was other, but something that Python may have looked at is, or cannot be compared.
        numeric_attestation: Given what the capture was given, did the capture's results come out, bit for bit?
            ``"not_applicable"`` where inputs, state or random numbers are others; ``"not_present"`` where there are
            no digests to compare with.
        state_source: Where parameters and buffers came from.
        seed: The seed that every generator was set to; None where they were left as they stood.
        draws: ``"fresh"`` random numbers, ``"recorded"`` ones; None where no call draws any.
        num_checks: How many facts about inputs, results and what Python took were compared.
        divergence: The first that was not as recorded, or cannot be compared; None where all were.
        buffers_written: Addresses of the buffers that the forward writes. The model's own are left alone; what the run
            made of them is in ``RunResult.buffers``.
    """

    path_faithfulness: PathFaithfulness
    numeric_attestation: NumericAttestation
    state_source: StateSource
    seed: int | None
    draws: Draws | None
    num_checks: int
    divergence: Divergence | None
    buffers_written: tuple[str, ...]


@attrs.frozen(repr=False)
class RunResult:
    """What came of running the recorded calls.

    Attributes:
        output: What the model would return, in the container that it returned; a class that is not torch's or the
            standard library's own comes as a ``Structure``, with its fields as attributes and items.
        trace: The run as a ``Trace``: the records of the capture with the values of the run. None with
            ``fast=True``, and where it diverged: the model would not have gone that way.
        report: What can be said of both.
        buffers: The buffers that the forward writes, by address, as the run leaves them.
    """

    output: Any
    trace: Any
    report: RunReport
    buffers: Mapping[str, Any]

    def __repr__(self) -> str:
        report = self.report
        return f"<RunResult: {report.path_faithfulness}, {report.numeric_attestation}, {report.state_source}>"
