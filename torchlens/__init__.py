"""Take a neural network apart: one forward pass becomes events in a journal, and records are read from it.

Nothing heavy is imported until a name is used, so that journals can be read where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from torchlens.above import tell_running as _tell_running

if TYPE_CHECKING:
    from projections.selecting.backward_terms import grad_fn, grad_input, grad_output, in_backward_pass, without_op
    from projections.selecting.nearby import followed_by, preceded_by
    from projections.selecting.portable import selector_from_spec, selector_to_spec
    from projections.selecting.queries import threshold, top_fraction, top_k
    from projections.selecting.selector import (
        Selector,
        contains,
        func,
        grad,
        in_module,
        label,
        module,
        output,
        regex,
        where,
    )
    from torchlens import errors, export, options, report, testing, validation, viz
    from torchlens.api import record, trace, wrapped
    from torchlens.errors import TorchLensError
    from torchlens.journals.ending import postmortem
    from torchlens.journals.journal_view import open_journal
    from torchlens.journals.reprojection import Reprojection, reproject
    from torchlens.options import CaptureOptions, JournalOptions, SaveOptions, stats_only, to_disk
    from torchlens.quantities import Bytes, Duration, Flops, Macs
    from torchlens.questions.differing import first_difference
    from torchlens.reading.facade import Trace
    from torchlens.reading.failed import TraceCaptureError, TraceJournalError
    from torchlens.reading.recording import RecordedActivation, Recording
    from torchlens.reading.selection import Selection
    from torchlens.tlspec.loading import load
    from torchlens.tlspec.saving import save
    from torchlens.tracing.extraction import extract, pluck
    from torchlens.tracing.summarizing import summary
    from torchlens.travel.cursor import Cursor, time_travel
    from torchlens.validation.validating import validate
    from torchlens.version import VERSION as __version__

__all__ = [
    "Bytes",
    "CaptureOptions",
    "Cursor",
    "Duration",
    "Flops",
    "JournalOptions",
    "Macs",
    "RecordedActivation",
    "Recording",
    "Reprojection",
    "SaveOptions",
    "Selection",
    "Selector",
    "TorchLensError",
    "Trace",
    "TraceCaptureError",
    "TraceJournalError",
    "__version__",
    "contains",
    "errors",
    "export",
    "extract",
    "first_difference",
    "followed_by",
    "func",
    "grad",
    "grad_fn",
    "grad_input",
    "grad_output",
    "in_backward_pass",
    "in_module",
    "label",
    "load",
    "module",
    "open_journal",
    "options",
    "output",
    "pluck",
    "postmortem",
    "preceded_by",
    "record",
    "regex",
    "report",
    "reproject",
    "save",
    "selector_from_spec",
    "selector_to_spec",
    "stats_only",
    "summary",
    "testing",
    "threshold",
    "time_travel",
    "to_disk",
    "top_fraction",
    "top_k",
    "trace",
    "validate",
    "validation",
    "viz",
    "where",
    "without_op",
    "wrapped",
]

_HOMES: Final[dict[str, tuple[str, str | None]]] = {
    "Bytes": ("torchlens.quantities", "Bytes"),
    "CaptureOptions": ("torchlens.options", "CaptureOptions"),
    "Cursor": ("torchlens.travel.cursor", "Cursor"),
    "Duration": ("torchlens.quantities", "Duration"),
    "Flops": ("torchlens.quantities", "Flops"),
    "JournalOptions": ("torchlens.options", "JournalOptions"),
    "Macs": ("torchlens.quantities", "Macs"),
    "RecordedActivation": ("torchlens.reading.recording", "RecordedActivation"),
    "Recording": ("torchlens.reading.recording", "Recording"),
    "Reprojection": ("torchlens.journals.reprojection", "Reprojection"),
    "SaveOptions": ("torchlens.options", "SaveOptions"),
    "Selection": ("torchlens.reading.selection", "Selection"),
    "Selector": ("projections.selecting.selector", "Selector"),
    "TorchLensError": ("torchlens.errors", "TorchLensError"),
    "Trace": ("torchlens.reading.facade", "Trace"),
    "TraceCaptureError": ("torchlens.reading.failed", "TraceCaptureError"),
    "TraceJournalError": ("torchlens.reading.failed", "TraceJournalError"),
    "__version__": ("torchlens.version", "VERSION"),
    "contains": ("projections.selecting.selector", "contains"),
    "errors": ("torchlens.errors", None),
    "export": ("torchlens.export", None),
    "extract": ("torchlens.tracing.extraction", "extract"),
    "first_difference": ("torchlens.questions.differing", "first_difference"),
    "followed_by": ("projections.selecting.nearby", "followed_by"),
    "func": ("projections.selecting.selector", "func"),
    "grad": ("projections.selecting.selector", "grad"),
    "grad_fn": ("projections.selecting.backward_terms", "grad_fn"),
    "grad_input": ("projections.selecting.backward_terms", "grad_input"),
    "grad_output": ("projections.selecting.backward_terms", "grad_output"),
    "in_backward_pass": ("projections.selecting.backward_terms", "in_backward_pass"),
    "in_module": ("projections.selecting.selector", "in_module"),
    "label": ("projections.selecting.selector", "label"),
    "load": ("torchlens.tlspec.loading", "load"),
    "module": ("projections.selecting.selector", "module"),
    "open_journal": ("torchlens.journals.journal_view", "open_journal"),
    "options": ("torchlens.options", None),
    "output": ("projections.selecting.selector", "output"),
    "pluck": ("torchlens.tracing.extraction", "pluck"),
    "postmortem": ("torchlens.journals.ending", "postmortem"),
    "preceded_by": ("projections.selecting.nearby", "preceded_by"),
    "record": ("torchlens.api", "record"),
    "regex": ("projections.selecting.selector", "regex"),
    "report": ("torchlens.report", None),
    "reproject": ("torchlens.journals.reprojection", "reproject"),
    "save": ("torchlens.tlspec.saving", "save"),
    "selector_from_spec": ("projections.selecting.portable", "selector_from_spec"),
    "selector_to_spec": ("projections.selecting.portable", "selector_to_spec"),
    "stats_only": ("torchlens.options", "stats_only"),
    "summary": ("torchlens.tracing.summarizing", "summary"),
    "testing": ("torchlens.testing", None),
    "threshold": ("projections.selecting.queries", "threshold"),
    "time_travel": ("torchlens.travel.cursor", "time_travel"),
    "to_disk": ("torchlens.options", "to_disk"),
    "top_fraction": ("projections.selecting.queries", "top_fraction"),
    "top_k": ("projections.selecting.queries", "top_k"),
    "trace": ("torchlens.api", "trace"),
    "validate": ("torchlens.validation.validating", "validate"),
    "validation": ("torchlens.validation", None),
    "viz": ("torchlens.viz", None),
    "where": ("projections.selecting.selector", "where"),
    "without_op": ("projections.selecting.backward_terms", "without_op"),
    "wrapped": ("torchlens.api", "wrapped"),
}


_tell_running(lambda: importlib.import_module("torchlens.running"))


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchlens' has no attribute {name!r}")
    module = importlib.import_module(home[0])
    value = module if home[1] is None else getattr(module, home[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
