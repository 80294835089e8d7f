"""What the forward was given, and what it returned, as far as every tensor of it was kept.

Reads  the events in which the forward began and ended, and the kept activations of inputs and outputs.
Gives  the arguments and the returned object, every tensor a copy; a named tuple, dataclass or model output comes as a
       dictionary of its fields, and an object of another class as text.
Not    the returned object itself, which the capturing process has (``trace.output``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from projections.errors import over_events
from torchlens.errors import PayloadUnavailableError
from torchlens.reading.given import Given
from torchlens.reading.records import Param
from torchlens.reading.values import given_values, python_value
from torchlens.reading.view import View

__all__ = ["raw_input", "raw_output"]


def raw_input(trace: View) -> Given | None:
    """The arguments of the forward; None where it did not start, or a tensor of them was not kept.

    Raises:
        PayloadUnavailableError: ``payload_unavailable``, where the artifact keeps no activations.
    """
    at = trace.tables.fact("started_event")
    if at is None:
        return None
    ops = trace.table("ops")
    rows = {ops.value("value", row): row for row in trace.tables.fact("input_rows")}
    with over_events():
        event = trace.event(at)
        tensors = kept(trace, ((rows.get(number), number) for number in event.inputs))
        return None if tensors is None else Given(*given_values(event.args, event.kwargs, iter(tensors)))


def raw_output(trace: View) -> Any:
    """What the forward returned; None where it did not return, or a tensor of it was not kept.

    Raises:
        PayloadUnavailableError: ``payload_unavailable``, where the artifact keeps no activations.
    """
    if trace.tables.fact("status") != "complete":
        return None
    ops = trace.table("ops")
    rows = {ops.value("slot", row): row for row in trace.tables.fact("output_rows")}
    with over_events():
        event = trace.event(trace.tables.fact("ended_event"))
        tensors = kept(trace, ((rows.get(slot), number) for slot, number in enumerate(event.outputs)))
        return None if tensors is None else python_value(event.result, iter(tensors))


def kept(trace: View, wanted: Iterable[tuple[int | None, int]]) -> list[Any] | None:
    """Copies of some values, each given by its op row and its number; None where one of them was not kept."""
    found: list[Any] = []
    for row, number in wanted:
        tensor = parameter(trace, -1 - number) if number < 0 else activation(trace, row)
        if tensor is None:
            return None
        found.append(tensor)
    return found


def activation(trace: View, row: int | None) -> Any:
    if row is None:
        return None
    ops = trace.table("ops")
    if ops.value("has_saved_activation", row):
        return trace.activation(row)
    trace.require_kept("activation", f"the activation of {ops.value('label', row)!r}")
    return None


def parameter(trace: View, number: int) -> Any:
    """A copy of a parameter as the capture had it; None where that is not to be had."""
    try:
        return Param(trace, number).as_captured("value").detach().clone()
    except PayloadUnavailableError:
        return None
