"""Why a forward did not run to its end, for whoever words it.

Rule   the status decides which of the reasons counts: what it was left for on purpose, the value that is not finite, or
       what was raised.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.build import CaptureTables

__all__ = ["Ended", "ended"]


class Ended(NamedTuple):
    """How a forward ended that did not return."""

    kind: str
    """The class of what ended it, where something was raised; else the status."""

    message: str | None
    """What is said of it: the reason, the finding, or the message of what was raised; None where nothing is."""

    @property
    def short(self) -> str:
        """The kind, a class without its module."""
        return self.kind.rpartition(".")[2]


def ended(tables: CaptureTables) -> Ended | None:
    """How a forward ended; None where it returned."""
    fact = tables.fact
    status: str = fact("status")
    if status == "complete":
        return None
    if status == "halted":
        return Ended(status, fact("halt_reason"))
    if status == "aborted_nonfinite":
        return Ended(status, fact("nonfinite_reason"))
    return Ended(fact("error_type") or status, fact("error_message"))
