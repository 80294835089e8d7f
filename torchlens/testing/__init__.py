"""Random real models, and the check that tracing one changes nothing: for tests of this package and of yours.

``Program`` describes a model and its inputs; its text is all there is to it, so a failing example is kept by keeping
the text. ``programs()`` is a hypothesis strategy of them. ``assert_tracing_changes_nothing`` runs a model
once bare and once traced, and compares everything that a caller could see.
"""

from __future__ import annotations

from torchlens.testing.comparing import assert_tracing_changes_nothing
from torchlens.testing.generating import programs
from torchlens.testing.program import Program

__all__ = ["Program", "assert_tracing_changes_nothing", "programs"]
