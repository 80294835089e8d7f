"""The error for a forward that was stopped at a value that is not finite (``CaptureOptions(raise_on_nan=True)``)."""

from __future__ import annotations

from torchlens.reading.calls_made import call_at
from torchlens.reading.facade import Trace, TraceCaptureError

__all__ = ["stopped"]


def stopped(trace: Trace) -> TraceCaptureError:
    """The error for a forward that was left at a value that is not finite."""
    tables = trace.tables
    event, _, num_nan, num_infinite = tables.fact("nonfinite_stop")
    call = call_at(trace, event)
    place = call.place
    operands = tuple((tensor.argument, tensor.shape, tensor.dtype) for tensor in call.tensors)
    line = "" if place is None else f", at {place.file}:{place.line}" + (f": {place.text}" if place.text else "")
    return TraceCaptureError(
        code="nonfinite_value",
        problem=f"{call.label or call.function} gave {tables.fact('nonfinite_reason')}: {call}{line}",
        remedy="look at its operands in exc.partial_trace; where infinities are meant, pass raise_on_nan='nan'",
        partial_trace=trace,
        op=call.label,
        function=call.function,
        operands=operands,
        module=call.modules[-1] if call.modules else None,
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        num_nan=num_nan,
        num_infinite=num_infinite,
    )
