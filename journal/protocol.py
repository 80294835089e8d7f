"""The journal as a protocol: what a store of streams offers, whatever it keeps them in.

Not   how: in memory (memory_journal.py), on disk (lmdb_journal.py), and what both share (shelf.py, user.py).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from journal.errors import JournalError
from journal.events.base import At, Event, Row, Stamped, StreamId
from journal.events.capture import StreamOpened
from journal.lifecycle import CaptureState
from journal.payloads import Buffer, Lender


@attrs.define(frozen=True, slots=True)
class StreamInfo:
    """A stream as a journal lists it."""

    stream: StreamId
    opened: StreamOpened
    head: int  # number of its events


@attrs.define(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied.

    Attributes:
        numbers: Number there of each stream, the parents that were brought along included.
        events: Events of these streams, each counted where it is stored and not in the branches that read it.
        payloads: Payloads that have their bytes there.
        payload_bytes: How many bytes they have.
        payloads_missing: Payloads that have none there: lost, damaged, or held nowhere.
    """

    numbers: Mapping[StreamId, StreamId]
    events: int
    payloads: int
    payload_bytes: int
    payloads_missing: int

    @property
    def streams(self) -> int:
        """Number of streams copied."""
        return len(self.numbers)


class StreamWriter(Protocol):
    """Appends to one stream."""

    stream: StreamId
    pending: list[Row]  # rows appended but not yet a chunk; may be appended to directly
    chunk_size: int  # flush when pending holds as many
    is_patient: bool  # what the disk refuses to `append`, `flush` and `keep` is not raised but kept in `refusal`
    refusal: JournalError | None  # the first of these; from then on only `keep`, `commit` and `close` ask the disk
    num_unstored: int  # payloads whose bytes were refused

    @property
    def state(self) -> CaptureState:
        """How far the capture has come, by the events given to `append`."""
        ...

    def next_at(self) -> At:
        """Number of the next event."""
        ...

    def append(self, event: Event, time_ns: int | None = None) -> At:
        """Append any event and tell its number, exact while no other thread appends.

        Args:
            event: An input of the capture's machine is stepped first.
            time_ns: On the monotonic clock; now, by default.

        Raises:
            IllegalTransition: `illegal_transition`; nothing is appended then.
            JournalError: `stream_closed`, `journal_forked`, `row_malformed` for a time or a field of another type;
                and what `flush` raises.
        """
        ...

    def flush(self) -> None:
        """Make a chunk of the pending rows, and commit if that is due.

        Raises:
            JournalError: `journal_write_failed`, `journal_full`; rows are kept and written next time.
        """
        ...

    def commit(self) -> None:
        """Flush, and make everything so far as durable as the journal promises."""
        ...

    def keep(self, data: Buffer) -> int:
        """Store a copy of any contiguous buffer's bytes and give the payload its number.

        Where a patient writer is refused, the number has no bytes.
        """
        ...

    def store(self, data: Buffer) -> int | None:
        """As `keep`; None, and no number, where a patient writer is refused."""
        ...

    def reserve(self) -> int:
        """A payload number without bytes: its tensor is held live by the capturing process."""
        ...

    def close(self) -> None:
        """Commit and append no more. Closing twice is nothing."""
        ...


class Journal(Protocol):
    """A store of streams."""

    @property
    def path(self) -> str | None:
        """Directory of the journal; None for one in memory."""
        ...

    @property
    def id(self) -> bytes | None:
        """What tells the journal from every other, for good; None for one in memory."""
        ...

    def open_stream(self, opened: StreamOpened, time_ns: int | None = None) -> StreamWriter:
        """Begin a stream with this event, at a time of the monotonic clock; now, by default.

        The event is number 0 or, for a branch, has the number of its branch point: the events before are the
        parent's, also when they are read, and the parent may go on by itself.

        Raises:
            JournalError: `branch_point_invalid`, `stream_unknown` for the parent; `journal_read_only`.
        """
        ...

    def continue_stream(self, stream: StreamId) -> StreamWriter:
        """Go on with a stream whose writer was closed, here or in a process before: with the next event, the next
        payload number, and its capture's state as they were.

        It costs as little as opening one where this process closed its writer. A writer that the disk has kept from
        closing is given back as it is, with what it has not stored.

        Raises:
            JournalError: `stream_open`, since a stream has one writer, which those who append to it share;
                `stream_unknown`, `journal_read_only`, `journal_closed`, and what reading raises. Another process is
                kept from appending by `journal_locked`, as it opens the journal.
        """
        ...

    def streams(self) -> list[StreamInfo]:
        """All streams, in the order they were opened."""
        ...

    def head(self, stream: StreamId) -> int:
        """Number of events of a stream that can be read.

        Raises:
            JournalError: `stream_unknown`.
        """
        ...

    def rows(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Sequence[Row]]:
        """Runs of rows from ``start`` to before ``stop``, or to the head as it is now."""
        ...

    def events(self, stream: StreamId, start: int = 0, stop: int | None = None) -> Iterator[Stamped]:
        """The same, as events with their places; those before a branch point have their place in the parent."""
        ...

    def since(self, seq: int) -> Iterator[Stamped]:
        """Every event from ``seq`` to the last one that there is now, of all streams, in the order of seq.

        Rows that are pending in this process get their seq by this.
        """
        ...

    def news(self) -> Hashable:
        """A mark that has changed when there is more to read. It costs little to ask, and nothing is held."""
        ...

    def is_written(self) -> bool:
        """Whether more may be appended: a writer is open, or on disk, some process has the journal open for writing."""
        ...

    def payload(self, stream: StreamId, number: int) -> memoryview | bytes:
        """The bytes of a payload, checked against their digest.

        Those that may be written to are the caller's own: nothing that is read later shares them. Those that may not
        are shared with others, as those that a journal in memory holds.

        Raises:
            JournalError: `payload_unknown`, `payload_not_stored`, `payload_lost`, `payload_damaged`.
        """
        ...

    def payload_size(self, stream: StreamId, number: int) -> int | None:
        """Number of bytes, or None where none are stored."""
        ...

    def lend(self, stream: StreamId, lender: Lender) -> None:
        """Ask ``lender`` for the bytes of a stream's reserved payloads when it is copied."""
        ...

    def lender(self, stream: StreamId) -> Lender | None:
        """Who has the bytes of a stream's reserved payloads; None where nobody has said so."""
        ...

    def copy_to(self, path: str | os.PathLike[str]) -> Copied:
        """Append all streams to the journal at ``path``, which is made if it is missing.

        Raises:
            JournalError: `copy_onto_itself`, and what opening, reading and writing raise. A copy that did
                not end is listed by `unfinished_copies` of the target.
        """
        ...

    def unfinished_copies(self) -> list[int]:
        """First seq of each copy into this journal that was begun and did not end."""
        ...

    def close(self) -> None:
        """Close the writers that this user has and let go of the journal. Closing twice is nothing."""
        ...
