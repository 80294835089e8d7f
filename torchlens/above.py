"""What traces hand on to parts of the package that see more than they may, told here when the package is imported.

Rule  A trace is read where nothing can be captured, and reading knows nothing of how that is done; running recorded
      calls needs both. So the verb of a trace asks here, and ``torchlens/__init__.py`` says whom.
Not   how calls are run (``torchlens.running``), nor what a run gives back (``torchlens.reading.run_result``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchlens.reading.records import Op
    from torchlens.reading.run_result import Readiness, RunResult
    from torchlens.reading.view import View

__all__ = ["Running", "running", "tell_running"]


class Running(Protocol):
    """What runs recorded calls (``torchlens.running``)."""

    def run(
        self,
        view: View,
        model: Any,
        inputs: Any,
        input_kwargs: Mapping[str, Any] | None,
        *,
        seed: int | None,
        draws: str,
        strict: bool,
        fast: bool,
    ) -> RunResult: ...

    def make_again(self, view: View, op: Op, allowed: Sequence[str]) -> tuple[Any, ...]: ...

    def readiness(self, view: View) -> Readiness: ...

    def require_runnable(self, view: View) -> None: ...

    def load_state_dict(self, view: View, state_dict: Any) -> None: ...


_load_running: Callable[[], Running] | None = None


def tell_running(load: Callable[[], Running]) -> None:
    """Say who runs recorded calls; ``load`` imports it when it is asked for."""
    global _load_running  # the package is imported once
    _load_running = load


def running() -> Running:
    """Who runs recorded calls."""
    assert _load_running is not None  # the package says so as it is imported
    return _load_running()
