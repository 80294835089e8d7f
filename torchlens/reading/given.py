"""What a call was given, as it was then.

Reads  the event of a call, and that which tells what was kept of its arguments.
Gives  the arguments, every tensor a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.errors import over_events
from torchlens.reading.values import given_values
from torchlens.reading.view import View

__all__ = ["Given", "kept_arguments"]


class Given(NamedTuple):
    """What a call was given."""

    args: list[Any]
    kwargs: dict[str, Any]


def kept_arguments(trace: View, call: int, told: int) -> tuple[list[Any], dict[str, Any]] | None:
    """Copies of the arguments of a call as they were then.

    Args:
        trace: Where it is.
        call: The event of the call.
        told: The event that tells what was kept; negative for none, which gives None.

    Raises:
        PayloadUnavailableError: ``payload_unavailable``, where it was kept, and the artifact leaves it out.
    """
    if told < 0:
        if trace.has_option("save_arg_values"):
            trace.require_kept("argument", "what this call was given")
        return None
    with over_events():
        event = trace.event(call)
        tensors = (None if kept is None else trace.kept(kept) for kept in trace.event(told).tensors)
        return given_values(event.args, event.kwargs, tensors)
