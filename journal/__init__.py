"""Events in order: their schema, their stored form, and the stores that keep them."""

from __future__ import annotations

from journal.damages import Damage
from journal.errors import IllegalTransition, JournalCorrupt, JournalError, TorchLensError
from journal.events.base import At, Event, Row, Seq, Stamped, StreamId, Value
from journal.following import follow
from journal.integrity import Report, verify
from journal.lifecycle import CaptureState
from journal.lmdb_journal import LmdbJournal, open_for_reading, open_for_writing
from journal.memory_journal import MemoryJournal
from journal.protocol import Copied, Journal, StreamInfo, StreamWriter
from journal.recovery import Recovered, recover

__all__ = [
    "At",
    "CaptureState",
    "Copied",
    "Damage",
    "Event",
    "IllegalTransition",
    "Journal",
    "JournalCorrupt",
    "JournalError",
    "LmdbJournal",
    "MemoryJournal",
    "Recovered",
    "Report",
    "Row",
    "Seq",
    "Stamped",
    "StreamId",
    "StreamInfo",
    "StreamWriter",
    "TorchLensError",
    "Value",
    "follow",
    "open_for_reading",
    "open_for_writing",
    "recover",
    "verify",
]
