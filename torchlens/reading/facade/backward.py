"""Backward passes of a capture: having them recorded, and what was.

Not   how a pass is recorded (``torchlens.backward``), or its records (``torchlens.reading.autograd``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from typing_extensions import Self

from torchlens.reading.autograd import TraceAutograd
from torchlens.reading.cut_losses import told_where_cut
from torchlens.reading.facade.forward import MISSING
from torchlens.reading.fields import Field
from torchlens.reading.view import View, no_loss

__all__ = ["BackwardVerbs"]


class BackwardVerbs(View):
    """Recording backward passes, and reading them."""

    inference_only = Field[bool]("Whether the forward ran without an autograd graph.")
    has_backward_pass = Field[bool]("Whether a backward pass was recorded.")

    @property
    def backward_ready(self) -> bool:
        """Whether the capture was made ready for a backward."""
        return self.has_option("backward_ready")

    @property
    def autograd(self) -> TraceAutograd:
        """The records of its backward passes."""
        return TraceAutograd(self)

    def backward(self, loss: Any = MISSING, *, save_grads: Any = None, **torch_kwargs: Any) -> Self:
        """Run ``loss.backward(**torch_kwargs)`` and record it as a backward pass of this capture.

        Args:
            loss: A tensor that was made from a value of this capture.
            save_grads: Which gradients this pass keeps, in place of what the capture was asked for.
            torch_kwargs: ``gradient``, ``retain_graph``, ``create_graph`` and ``inputs``, as torch takes them.

        Raises:
            BackwardRefused: ``loss_not_connected``, ``backward_inference_only``, ``backward_disarmed``.
            ConfigurationError: ``loss_type_invalid``.
            RunCapabilityUnavailableError: ``run_capability_unavailable``, for a trace that was read from a journal,
                and for the trace of a run.
            JournalError: The journal refused what the pass had to say; the backward has run.
        """
        if loss is MISSING:
            raise no_loss()
        with told_where_cut(self):
            self.live_backwards().backward(loss, save_grads, torch_kwargs)
        return self

    def capture_backward(self, *, save_grads: Any = None) -> AbstractContextManager[None]:
        """A context in which every run of the autograd engine over this capture is recorded as asked for here.

        Args:
            save_grads: Which gradients the passes keep, in place of what the capture was asked for.

        Raises:
            TorchLensError: As ``backward``, without what is said of a loss.
        """
        return self.live_backwards().capture_backward(save_grads)
