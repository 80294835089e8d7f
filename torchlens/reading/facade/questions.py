"""Questions about a capture: how it stood at some time, why a value is what it is, where the first NaN came from.

Not   how they are answered: this file alone of reading knows ``torchlens.questions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from projections import Moment
from torchlens import collector
from torchlens.errors import ConfigurationError, IndexOutOfRange
from torchlens.reading.facade.backward import BackwardVerbs

if TYPE_CHECKING:
    from torchlens.questions.chain import Chain
    from torchlens.questions.nonfinite_answer import FirstNonfinite, Nonfinite

__all__ = ["QuestionVerbs"]


class QuestionVerbs(BackwardVerbs):
    """Asking what came from what, and when."""

    def as_of(self, event: int) -> Moment:
        """The capture as it stood after its first ``event`` events, at the cost of a few thousand of them at most.

        Args:
            event: How many events are taken into account: 0 is before the first one, and all of them is now.

        Raises:
            ConfigurationError: ``event_count_type_invalid``.
            IndexOutOfRange: ``event_out_of_range``, when the stream has not as many.
        """
        head = self.tables.head
        if type(event) is not int:
            raise ConfigurationError(
                code="event_count_type_invalid",
                problem=f"{event!r} is no number of events",
                remedy=f"ask for a whole number from 0 to {head}",
                received_type=type(event).__name__,
            )
        if not 0 <= event <= head:
            raise IndexOutOfRange(
                code="event_out_of_range",
                problem=f"{event!r} is no number of events of this capture, which has {head}",
                remedy=f"ask for a whole number from 0 to {head}",
                event=event,
                events=head,
            )
        assert self.projector is not None  # tables would have refused
        with collector.paused():
            return self.projector.at(event)

    def why(self, site: Any, *, bwd: int | None = None) -> Chain:
        """The chain of events that produced a value or a gradient, back to what it came from.

        Args:
            site: An op, its label or position, a selector or site of one, what has one op (a layer, a module that was
                called once): its activation. ``tl.grad(label)``, a record of ``trace.autograd.gradients``, a parameter:
                a gradient. A firing: that.
            bwd: Of a gradient or a node, the number of the backward pass, from 1; needed where there are several.

        Returns:
            Of an activation the calls, writes in place, buffer writes and inputs that it came from; of a gradient the
            firings from the loss to it. The newest is first; its text is a tree of some of them.

        Raises:
            LookupRefused: ``why_subject_invalid``; ``why_gradient_missing``, where none came;
                ``backward_pass_unknown``; ``why_pass_contradicted``, where ``bwd`` is given of an activation, or of a
                gradient or firing of another pass; and what ``trace[...]`` raises for a key.
            AmbiguousReadError: ``why_subject_ambiguous``; ``gradient_pass_ambiguous``.
        """
        from torchlens.questions.chain import why  # for cost

        self.require_open()
        if bwd is not None:
            self.autograd.backward_passes.in_pass(bwd)
        return why(self, site, bwd=bwd)

    def first_nonfinite(self, kind: Nonfinite = "nonfinite") -> FirstNonfinite:
        """The first tensor that holds NaN or infinity, forward and backward, in the order in which things happened.

        Everything that was kept is looked at, once each, until one is found: activations, arguments, gradients, or the
        statistics that ``tl.stats_only()`` kept of them. What was not kept and came before is named in the answer.

        Args:
            kind: ``"nan"`` passes over infinities, which masks are often made of.

        Returns:
            What it is and holds, what it was made from and how far that reaches, and where; false where none was found.

        Raises:
            PayloadUnavailableError: ``torch_not_installed``, where there are payloads to read.
            ConfigurationError: ``option_value_invalid``.
        """
        from torchlens.questions.nonfinite import first_nonfinite  # for cost

        self.require_open()
        return first_nonfinite(self, kind)
