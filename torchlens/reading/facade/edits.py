"""What has changed a trace since it was captured."""

from __future__ import annotations

from typing import Any

from torchlens.reading.view import View

__all__ = ["EditFacts"]


class EditFacts(View):
    """What has changed it since it was captured."""

    @property
    def state(self) -> str:
        """``pristine`` as captured, ``edited`` once something changed it."""
        return "edited" if self.state_history else "pristine"

    @property
    def state_history(self) -> tuple[Any, ...]:
        """What has changed the trace since it was captured. Nothing can yet."""
        self.require_open()
        return ()
