"""What traces hand on to parts of the package that see more than they may, told here when the package is imported.

A trace is read where nothing can be captured, and reading knows nothing of how that is done; running recorded calls
needs both. So the verb of a trace asks here, and ``torchlens/__init__.py`` says whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Running", "running", "tell_running"]


class Running(Protocol):
    """What runs recorded calls (``torchlens.running``)."""

    def run(
        self,
        view: Any,
        model: Any,
        inputs: Any,
        input_kwargs: Mapping[str, Any] | None,
        *,
        seed: int | None,
        draws: str,
        strict: bool,
        fast: bool,
    ) -> Any: ...

    def make_again(self, view: Any, op: Any, allowed: Any) -> Any: ...

    def readiness(self, view: Any) -> Any: ...

    def require_runnable(self, view: Any) -> None: ...

    def load_state_dict(self, view: Any, state_dict: Any) -> None: ...


_load_running: Callable[[], Any] | None = None


def tell_running(load: Callable[[], Any]) -> None:
    """Say who runs recorded calls; ``load`` imports it when it is asked for."""
    global _load_running  # the package is imported once
    _load_running = load


def running() -> Running:
    """Who runs recorded calls."""
    assert _load_running is not None  # the package says so as it is imported
    made: Running = _load_running()
    return made
