"""What the verbs of a trace do about backward passes, and the refusals where they can do nothing.

Gives  the ``LiveBackwards`` of a capture of this process, whether or not its forward made an autograd graph.
Not    what happens when the engine runs (engine.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from journal.events import Trigger
from torchlens import compat
from torchlens.backward import engine
from torchlens.backward.diary import Diary, ForwardLeft, VerbRequest
from torchlens.backward.policy import NOTHING, Policy
from torchlens.capture.places import calling, frame_at
from torchlens.errors import BackwardRefused, ConfigurationError, backward_not_requested

__all__ = ["Backwards"]


class Backwards:
    """The backward passes of one capture, as its trace asks for them and reads them.

    Args:
        capture: What the forward left.
        is_wanted: Whether passes are to be recorded at all.
        is_standing: Whether runs that come past torch's Python code are to be noticed too.
        has_census: Whether each operator that the engine runs is told.
        without_graph: What kept the forward from making a graph; None where nothing did.
    """

    def __init__(
        self,
        capture: ForwardLeft,
        *,
        is_wanted: bool,
        is_standing: bool,
        has_census: bool,
        without_graph: str | None,
    ) -> None:
        self.without_graph = without_graph
        self.is_wanted = is_wanted
        self.diary: Diary | None = None
        self.policy_of: Callable[[Any], Policy] = lambda asked: NOTHING  # until ``follow``
        if capture.nodes and is_wanted:
            self.diary = Diary(capture, is_standing=is_standing, has_census=has_census)
            engine.arm(self.diary)

    def follow(self, policy_of: Callable[[Any], Policy], save_grads: Any) -> None:
        """Keep gradients as asked, from now on and unless a verb says otherwise.

        Args:
            policy_of: Makes a policy of what ``save_grads=`` was given, in the finished forward.
            save_grads: As in ``CaptureOptions``.

        Raises:
            TorchLensError: What ``policy_of`` raises.
        """
        self.policy_of = policy_of
        if self.diary is not None:
            self.diary.policy = policy_of(save_grads)

    def require_possible(self, *, has_graph: bool) -> None:
        """Refuse, as ``backward`` would, where no loss can be connected to the capture.

        Args:
            has_graph: Whether something that the forward made or returned is on an autograd graph.

        Raises:
            BackwardRefused: ``backward_inference_only``, ``loss_not_connected``.
        """
        if not has_graph:
            self.disarm()
            self.diary = None
        self._require()

    def readable(self) -> int | None:
        """See ``LiveBackwards.readable``."""
        return None if self.diary is None else self.diary.readable()

    @property
    def is_disarmed(self) -> bool:
        """See ``LiveBackwards.is_disarmed``."""
        return self.diary is not None and not self.diary.is_armed

    def disarm(self) -> None:
        """See ``LiveBackwards.disarm``."""
        if self.diary is not None:
            engine.disarm(self.diary)
            self.diary.disarm()

    def abandon(self) -> None:
        """The trace was dropped without a cleanup."""
        if self.diary is not None:
            engine.abandon(self.diary)

    def backward(
        self, loss: Any, save_grads: Any, torch_kwargs: Mapping[str, Any], *, trigger: Trigger = "backward"
    ) -> None:
        """See ``Trace.backward``."""
        diary = self._require()
        if not isinstance(loss, Tensor):
            raise ConfigurationError(
                code="loss_type_invalid",
                problem=f"a backward begins at a tensor, not at {type(loss).__name__}",
                remedy="pass one tensor; several go to torch.autograd.backward, inside trace.capture_backward()",
                received_type=type(loss).__name__,
            )
        with compat.NoTorchFunction():
            has_graph = loss.requires_grad
        if not has_graph:
            raise BackwardRefused(
                code="loss_not_connected",
                problem="the loss requires no gradient, so a backward from it reaches no op",
                remedy="make it with grad mode on, from a value of this capture that requires one",
                requires_grad=False,
            )
        asked = self._asked(trigger, save_grads)
        with engine.asking(diary, asked, must_reach=True):
            loss.backward(**torch_kwargs)
        tell_refusal(diary)

    def capture_backward(self, save_grads: Any) -> contextlib.AbstractContextManager[None]:
        """See ``Trace.capture_backward``."""
        return _capturing(self._require(), self._asked("recording_backward", save_grads))

    def _asked(self, trigger: Trigger, save_grads: Any) -> VerbRequest:
        """What is said of the runs to come: by which verb they are asked for, where, and what is kept."""
        policy = None if save_grads is None else self.policy_of(save_grads)
        frame = calling()
        return VerbRequest(trigger, None if frame is None else frame_at(frame.f_code, frame.f_lasti), policy)

    def _require(self) -> Diary:
        """The diary, or why there is nothing to record.

        Raises:
            BackwardRefused: ``backward_inference_only``, ``backward_disarmed``, ``loss_not_connected``.
            CaptureError: ``recording_backward_not_requested``.
        """
        if not self.is_wanted:
            raise backward_not_requested()
        if self.diary is None and self.without_graph is not None:
            raise BackwardRefused(
                code="backward_inference_only",
                problem=f"the forward made no autograd graph: {self.without_graph}",
                remedy="capture again with grad mode on",
                cause=self.without_graph,
            )
        if self.diary is None:
            raise BackwardRefused(
                code="loss_not_connected",
                problem="no value of this capture requires a gradient, so no loss can reach one",
                remedy="let the parameters or an input require a gradient, and capture again",
            )
        tell_refusal(self.diary)
        if not self.diary.is_armed:
            raise BackwardRefused(
                code="backward_disarmed",
                problem="backward passes of this trace are recorded no more: it was disarmed",
                remedy="run the backward with torch, loss.backward(); or capture again",
            )
        return self.diary


@contextlib.contextmanager
def _capturing(diary: Diary, asked: VerbRequest) -> Iterator[None]:
    with engine.asking(diary, asked, must_reach=False):
        yield
    tell_refusal(diary)


def tell_refusal(diary: Diary) -> None:
    """Raise what has kept a pass from being recorded: a copy, for what was raised holds the frames it came through."""
    kept = diary.refusal
    if kept is not None:
        raised = type(kept).__new__(type(kept))
        raised.args = kept.args
        vars(raised).update(vars(kept))
        raise raised from kept.__cause__
