"""What the backward passes of a capture executed: ``tl.report.backward_status(trace)``.

Everything in it is a fact of the trace's records; it is the same of a trace that was read from its journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from projections.records.executed_columns import BackwardState, Evidence
from torchlens.printable import aligned, amount, printable
from torchlens.quantities import Flops
from torchlens.reading.backward import BackwardPass
from torchlens.reading.executed import BackwardFlopsAttribution, attribution_of
from torchlens.reading.tabular import frame_of
from torchlens.reading.view import View, require_trace

if TYPE_CHECKING:
    import pandas

__all__ = ["BackwardStatus", "backward_status"]

MOST_SHOWN: Final = 20
"""Passes, and families of operators, that the text names."""

SHOWN: Final[Mapping[str, str]] = {
    "pass": "pass_index",
    "trigger": "trigger",
    "status": "status",
    "executed": "executed_flops",
    "recompute": "recompute_flops",
    "unattributed": "unattributed_flops",
    "firings": "num_grad_fn_calls",
    "time": "duration",
}
"""Of each pass what the text says, by what stands above it."""

TOLD: Final = (*SHOWN.values(), "executed_reason")
"""Of each pass what the frame has."""


@attrs.frozen(repr=False)
class BackwardStatus:
    """What is known of the work of a capture's backward passes. Its text is a table.

    Attributes:
        state: ``backward_observed``; ``grad_enabled_unobserved``, a backward could be and none was seen; or
            ``grad_disabled``, the forward made no autograd graph.
        executed_flops: Over all passes, two for a multiply-accumulate, as far as there are counts. None where one pass
            is not counted, or none was seen; 0 where none could be.
        executed_evidence: ``measured``, counted by the operators that ran; ``formula_exact``, there was nothing to
            count; ``unknown``.
        reason: Why ``executed_flops`` is not known, or is 0; None where it is measured.
        recompute: Of the FLOPs those that checkpoints ran again of the forward; None where that is not known.
        uncounted_families: Families of operators that did work and have no count, and how many calls of each ran.
        passes: The passes, in order.
        flops_attributions: The account of each counted pass, in order.
        n_grad_fn_records: Autograd nodes that passes found or made.
        measured_seconds: Time of the passes, those within others left out; None where none was timed.
    """

    state: BackwardState
    executed_flops: Flops | None
    executed_evidence: Evidence
    reason: str | None
    recompute: Flops | None
    uncounted_families: Mapping[str, int]
    passes: tuple[BackwardPass, ...]
    flops_attributions: tuple[BackwardFlopsAttribution, ...]
    n_grad_fn_records: int
    measured_seconds: float | None

    @property
    def n_backward_passes(self) -> int:
        """How many passes there are."""
        return len(self.passes)

    @property
    def status_line(self) -> str:
        """What is known, in a line."""
        if self.executed_evidence != "measured":
            known = "0 FLOPs" if self.executed_flops is not None else "unknown FLOPs"
            return printable(f"backward: {known}: {self.reason}")
        parts = [f"backward: {self.executed_flops} in {amount(self.n_backward_passes, 'pass')}"]
        if self.recompute:
            parts.append(f"{self.recompute} of them recompute")
        if self.uncounted_families:
            count = len(self.uncounted_families)
            parts.append(f"{count} {'family' if count == 1 else 'families'} of operators not counted")
        return printable(", ".join(parts))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per backward pass, plain numbers; needs pandas."""
        return frame_of({name: [one.read(name) for one in self.passes] for name in TOLD}, len(self.passes))

    def __repr__(self) -> str:
        return f"<BackwardStatus: {self.status_line}>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        yield self.status_line
        if self.passes and self.passes[0].trace.projector is None:
            return  # the passes went with the trace
        if self.passes:
            yield ""
            yield from aligned([tuple(SHOWN), *(cells_of(one) for one in self.passes[:MOST_SHOWN])])
        if len(self.passes) > MOST_SHOWN:
            yield f"... and {len(self.passes) - MOST_SHOWN} more"
        if self.uncounted_families:
            yield ""
            families = list(self.uncounted_families.items())[:MOST_SHOWN]
            yield printable(f"not counted: {', '.join(f'{family} x{calls}' for family, calls in families)}")
        if len(self.uncounted_families) > MOST_SHOWN:
            yield f"... and {len(self.uncounted_families) - MOST_SHOWN} more families"


def cells_of(one: BackwardPass) -> tuple[str, ...]:
    """What the text says of a pass."""
    found = [getattr(one, name) for name in SHOWN.values()]
    return tuple(["?" if value is None else str(value) for value in found])


def backward_status(trace: View) -> BackwardStatus:
    """What the backward passes of a capture executed, as far as it is known, and why not where it is not.

    Operators are told with ``tl.CaptureOptions(backward_ready=True)``; without, what ran is unknown, and never 0.

    Args:
        trace: A trace, live or read from a journal.

    Raises:
        ConfigurationError: ``backward_status_type_invalid``, for what is no trace.
        TraceCleanedUpError: ``trace_cleaned_up``.

    Example:
        >>> import torch, torchlens as tl
        >>> trace = tl.trace(torch.nn.Linear(4, 6), torch.ones(5, 4), capture=tl.CaptureOptions(backward_ready=True))
        >>> trace.backward(trace.output.sum())
        >>> tl.report.backward_status(trace).executed_flops
        Flops('240 FLOPs')
    """
    require_trace(trace, "backward_status_type_invalid", "the backward status")
    fact, passes = trace.tables.fact, trace.table("backward_passes")
    accounts = (attribution_of(trace, number) for number in range(len(passes)))
    return BackwardStatus(
        state=fact("backward_state"),
        executed_flops=flops(fact("executed_flops")),
        executed_evidence=fact("executed_evidence"),
        reason=fact("executed_reason"),
        recompute=flops(fact("recompute_flops")),
        uncounted_families=dict(fact("uncounted_families")),
        passes=tuple([BackwardPass(trace, number) for number in range(len(passes))]),
        flops_attributions=tuple(account for account in accounts if account is not None),
        n_grad_fn_records=fact("num_grad_fns"),
        measured_seconds=fact("backward_duration"),
    )


def flops(count: int | None) -> Flops | None:
    return None if count is None else Flops(count)
