"""Made-up events and captures for hypothesis: those of ``torchlens.testing``, by the names that tests use."""

from __future__ import annotations

from torchlens.testing.drawing.events import any_event, events_of, plain_values
from torchlens.testing.drawing.streams import (
    branched,
    capture_streams,
    opened,
    payload_bytes,
    payloads_named,
    write_stream,
)

__all__ = [
    "any_event",
    "branched",
    "capture_streams",
    "events_of",
    "opened",
    "payload_bytes",
    "payloads_named",
    "plain_values",
    "write_stream",
]
