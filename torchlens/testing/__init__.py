"""For tests of this package and of yours: what could have happened, as hypothesis draws it, and checks of what must
hold.

Drawn are streams of events, journals, programs (random real models) and tensors. A check is named ``check_...``, and
ends silently or raises an ``AssertionError`` with a code. Streams, journals and their checks need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torchlens.testing.checking.models import check_capture, check_inputs, check_repeat
    from torchlens.testing.checking.recorded import check_journal, check_stream, check_trace
    from torchlens.testing.checking.slopes import check_gradients
    from torchlens.testing.comparing import assert_tracing_changes_nothing
    from torchlens.testing.drawing.events import any_event
    from torchlens.testing.drawing.journals import JournalDraft, journals
    from torchlens.testing.drawing.streams import capture_streams, write_stream
    from torchlens.testing.drawing.tensors import tensors
    from torchlens.testing.generating import programs
    from torchlens.testing.program import Program

__all__ = [
    "JournalDraft",
    "Program",
    "any_event",
    "assert_tracing_changes_nothing",
    "capture_streams",
    "check_capture",
    "check_gradients",
    "check_inputs",
    "check_journal",
    "check_repeat",
    "check_stream",
    "check_trace",
    "journals",
    "programs",
    "tensors",
    "write_stream",
]

_HOMES: Final[dict[str, str]] = {
    "JournalDraft": "torchlens.testing.drawing.journals",
    "Program": "torchlens.testing.program",
    "any_event": "torchlens.testing.drawing.events",
    "assert_tracing_changes_nothing": "torchlens.testing.comparing",
    "capture_streams": "torchlens.testing.drawing.streams",
    "check_capture": "torchlens.testing.checking.models",
    "check_gradients": "torchlens.testing.checking.slopes",
    "check_inputs": "torchlens.testing.checking.models",
    "check_journal": "torchlens.testing.checking.recorded",
    "check_repeat": "torchlens.testing.checking.models",
    "check_stream": "torchlens.testing.checking.recorded",
    "check_trace": "torchlens.testing.checking.recorded",
    "journals": "torchlens.testing.drawing.journals",
    "programs": "torchlens.testing.generating",
    "tensors": "torchlens.testing.drawing.tensors",
    "write_stream": "torchlens.testing.drawing.streams",
}
"""Where each name is made; nothing is imported until it is used, so that streams can be had without torch."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchlens.testing' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as exc:
        if exc.name != "hypothesis":
            raise
        from torchlens.errors import CompatibilityError

        raise CompatibilityError(
            code="hypothesis_not_installed",
            problem=f"{name} was asked for, and hypothesis is not installed",
            remedy="install hypothesis, or this package with its extra testing",
        ) from exc
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
