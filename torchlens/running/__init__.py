"""Recorded calls run again as a whole: other inputs go through the path that was recorded, without the model's code.

Reads  a capture's events as a ``Program``, and parameters and buffers from the model, an artifact or a state dict.
Gives  what the model would return, where Python would have gone the same way, and a report that says whether it would.
Rule   functions are found by name in the tables of those that a capture watches; nothing is imported by a stored name.
Rule   what cannot be run is told before anything runs (``preflight``), and never guessed.
Not    single calls made again to be checked (``torchlens.replay``, ``torchlens.validation``).
"""

from __future__ import annotations

from torchlens.reading.run_result import Diagnostic, Divergence, Readiness, RunReport, RunResult
from torchlens.running.containers import Structure
from torchlens.running.making_again import make_again
from torchlens.running.obstacles import CAUSES, preflight, refusal
from torchlens.running.verbs import load_state_dict, readiness, require_runnable, run

__all__ = [
    "CAUSES",
    "Diagnostic",
    "Divergence",
    "Readiness",
    "RunReport",
    "RunResult",
    "Structure",
    "load_state_dict",
    "make_again",
    "preflight",
    "readiness",
    "refusal",
    "require_runnable",
    "run",
]
