"""The trace, by concern: each file has the verbs and facts of one, and ``whole`` puts them together as ``Trace``.

Facts     ``identity``, ``forward``, ``totals``, ``health``, ``edits``; collections of records in ``accessors``.
Finding   ``lookup``, for ``trace[...]``; ``questions``, for what came from what.
Doing     ``backward``, ``running``.
Showing   ``summary``, ``drawing``, ``page``; ``saving``.
Rule      Here stands what a verb takes, gives and refuses; what it does is in the file or folder that it hands on to,
          mostly of the same name.
Rule      A part that asks another is made of it, so that a type checker knows what is there.
"""

from __future__ import annotations

from torchlens.reading.facade.accessors import RECORDS
from torchlens.reading.facade.forward import MISSING, CaptureOutcome
from torchlens.reading.facade.whole import Trace

__all__ = ["MISSING", "RECORDS", "CaptureOutcome", "Trace"]
