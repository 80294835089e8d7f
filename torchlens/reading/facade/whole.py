"""A trace: everything people read of one capture.

A trace holds no fact. It holds a journal and the number of a stream; the tables come from folding that
stream, and the live tensors, where this process made the capture, from its handles. When events are
appended, the next read folds those.

Gives  ``Trace``, whose verbs and facts stand by concern in the files beside this one; its life; how it looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from journal import Journal, StreamId
from torchlens.printable import amount, printable
from torchlens.reading.autograd import TraceAutograd
from torchlens.reading.facade.accessors import Collections
from torchlens.reading.facade.backward import BackwardVerbs
from torchlens.reading.facade.drawing import DrawVerbs
from torchlens.reading.facade.edits import EditFacts
from torchlens.reading.facade.forward import MISSING, ForwardFacts
from torchlens.reading.facade.health import HealthFacts
from torchlens.reading.facade.identity import IdentityFacts
from torchlens.reading.facade.lookup import Lookups
from torchlens.reading.facade.page import PageVerbs
from torchlens.reading.facade.questions import QuestionVerbs
from torchlens.reading.facade.running import RunVerbs
from torchlens.reading.facade.saving import SaveVerb
from torchlens.reading.facade.summary import SummaryVerb
from torchlens.reading.facade.totals import TotalFacts
from torchlens.reading.view import LiveTensors, View, not_copied

__all__ = ["Trace"]

INSIDE: Final = frozenset(dir(View)) - {"events", "opened", "weights"} | frozenset(
    (
        "alive",
        "gradients_looked_at",
        "known_of_gradients",
        "known_of_values",
        "live_backwards",
        "phase_of_end",
        "records",
        "resolved",
        "values_looked_at",
    )
)
"""Names of a trace that are for other parts of the package, and in no ``dir``."""

HINTS: Final = {
    "nodes": "trace.ops holds the calls",
    "activations": "trace.ops[label].out is one",
}
"""What to use for an attribute that is looked for here."""


class Trace(
    Lookups,
    QuestionVerbs,
    BackwardVerbs,
    RunVerbs,
    EditFacts,
    SummaryVerb,
    DrawVerbs,
    PageVerbs,
    SaveVerb,
    IdentityFacts,
    Collections,
    ForwardFacts,
    HealthFacts,
    TotalFacts,
):
    """The records of one capture.

    ``trace.ops``, ``.layers``, ``.modules``, ``.module_calls``, ``.params`` and ``.buffers`` are its collections;
    ``trace[...]`` takes a position, a label, an address or a selector.

    Args:
        journal: Where the stream is; closed by ``cleanup``.
        stream: Its number.
        handles: The live tensors, in the process that captured.
        output: What the model returned, in that process.
    """

    def __init__(
        self, journal: Journal, stream: StreamId, handles: LiveTensors | None = None, output: object = MISSING
    ) -> None:
        super().__init__(journal, stream, handles)
        self.returned = output
        self.looked_at = self.looked_at_gradients = None

    # -- its life

    @property
    def is_cleaned_up(self) -> bool:
        """Whether it was cleaned up, so that every read is refused."""
        return self.projector is None

    def cleanup(self) -> None:
        """Let go of the tables, the live tensors, the returned object and the journal. Twice is nothing.

        Every later read is refused with ``trace_cleaned_up``. What is on disk stays.

        Raises:
            JournalError: ``journal_write_failed``, when the disk refused; calling it again tries again.
        """
        if not self.is_cleaned_up:
            if self.backwards is not None:
                self.backwards.disarm()
                self.backwards = None
            self.projector = None
            self.indexed = None
            self.returned = MISSING
            self.looked_at = self.looked_at_gradients = None
            if self.handles is not None:
                self.handles.close()
        self.journal.close()

    def __reduce__(self) -> NoReturn:
        raise not_copied("a Trace", self.journal_path)

    # -- how it looks

    def __dir__(self) -> list[str]:
        return sorted(name for name in {"journal", *dir(type(self))} - INSIDE if not name.startswith("_"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What a trace has not, with a hint at what was perhaps meant."""
            if hasattr(type(self), name):  # its own refusal is an AttributeError too, as after cleanup
                return object.__getattribute__(self, name)
            hint = HINTS.get(name) or (f"it is trace.autograd.{name}" if hasattr(TraceAutograd, name) else None)
            raise AttributeError(f"a Trace has no {name!r}" + (f": {hint}" if hint else ""), name=name, obj=self)

    def __repr__(self) -> str:
        if self.is_cleaned_up:
            return "<Trace, cleaned up>"
        return printable(f"<Trace {self.trace_label}: {amount(self.num_ops, 'op')}, {self.status}>")
