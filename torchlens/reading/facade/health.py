"""How far a capture can be trusted: what could not be watched, values that are not finite, records that contradict."""

from __future__ import annotations

from projections import CaptureTables
from projections.errors import over_events
from projections.promises import invariants
from torchlens.errors import ValidationError
from torchlens.reading.health import (
    NonfiniteFinding,
    TraceHealth,
    health_of,
    nonfinite_of,
    unstored_gradients,
    unstored_rows,
)
from torchlens.reading.nonfinite_gradients import GradientFinding, nonfinite_gradients_of
from torchlens.reading.view import View

__all__ = ["HealthFacts"]


class HealthFacts(View):
    """How far it can be trusted."""

    looked_at: tuple[CaptureTables, NonfiniteFinding] | None  # the tables of that time, and what was found
    looked_at_gradients: tuple[CaptureTables, GradientFinding] | None

    @property
    def health(self) -> TraceHealth:
        """What could not be watched, and how far the capture can be trusted."""
        with over_events():
            return health_of(
                self.tables,
                self.values_looked_at,
                self.known_of_values,
                self.gradients_looked_at,
                self.known_of_gradients,
                unstored_rows(self),
                unstored_gradients(self),
            )

    def check_metadata_invariants(self) -> bool:
        """Check the records against each other; True, or refused.

        Raises:
            ValidationError: ``invariant_broken``, with every finding in ``fields["findings"]``. Something was recorded
                or projected wrongly.
        """
        findings = invariants.check(self.tables)
        if findings:
            raise ValidationError(
                code="invariant_broken",
                problem=f"the records contradict each other: {invariants.told(findings)}",
                remedy="report it with the model and the journal; the records cannot be trusted",
                findings=tuple(tuple(finding) for finding in findings),
            )
        return True

    # -- looked at once

    def values_looked_at(self) -> NonfiniteFinding:
        """NaN and infinities among the kept activations; what ``trace.health.nonfinite`` reads, looked at once."""
        known = self.known_of_values()
        if known is None:
            known = nonfinite_of(self)
            self.looked_at = (self.tables, known)
        return known

    def known_of_values(self) -> NonfiniteFinding | None:
        """The same where it was looked at."""
        tables = self.tables
        return self.looked_at[1] if self.looked_at is not None and self.looked_at[0] is tables else None

    def gradients_looked_at(self) -> GradientFinding:
        """NaN and infinities among the kept gradients; what ``trace.health.gradients`` reads, looked at once."""
        known = self.known_of_gradients()
        if known is None:
            known = nonfinite_gradients_of(self)
            self.looked_at_gradients = (self.tables, known)
        return known

    def known_of_gradients(self) -> GradientFinding | None:
        """The same where it was looked at."""
        tables, known = self.tables, self.looked_at_gradients
        return known[1] if known is not None and known[0] is tables else None
