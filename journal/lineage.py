"""Where a stream begins: at nothing, or in its parent.

A branch goes on with the numbers of its parent: its events before `branched_at` are the parent's, its own first
one, the header, has that number, and its own payloads are numbered after those that the parent's events could
name. Nothing is copied, so a stream is read in runs, each from the stream that holds it.

Rule  a parent is an earlier stream, and the branch point lies within it; so every chain of parents ends. Chains
      are walked step by step, never by recursion: a made-up journal may hold one of any length.
Note  where the payloads of a branch begin stands in the envelope of its header, which is a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from journal.errors import JournalError
from journal.events.base import At, StreamId
from journal.events.capture import StreamOpened
from journal.wire import Envelope, event_of


class Origin(NamedTuple):
    """How a stream begins."""

    parent: StreamId | None  # whose events come first; None where there are none
    at: At  # number of its own first event
    payloads: int  # number of its own first payload


FROM_NOTHING: Final = Origin(None, At(0), 0)


class Run(NamedTuple):
    """A run of a stream's events, and the stream that holds them."""

    stream: StreamId
    start: int
    stop: int


def runs(origin: Callable[[StreamId], Origin], stream: StreamId, start: int, stop: int) -> list[Run]:
    """Where the events from ``start`` to before ``stop`` of a stream are, in order."""
    found: list[Run] = []
    start = max(0, start)
    while start < stop:
        parent, at, _ = origin(stream)
        if stop > at:
            found.append(Run(stream, max(start, at), stop))
            stop = at
        if parent is None:
            break
        stream = parent
    return found[::-1]


def holder_of(origin: Callable[[StreamId], Origin], stream: StreamId, payload: int) -> StreamId:
    """The stream among this one and its parents that gave out a payload number."""
    while True:
        parent, _, first = origin(stream)
        if parent is None or payload >= first:
            return stream
        stream = parent


def origin_of(
    stream: StreamId, opened: StreamOpened, at: At, payloads: int, parent_head: Callable[[StreamId], int]
) -> Origin:
    """How a stored stream begins, its header held against what the journal holds.

    Args:
        stream: Its number.
        opened: Its header.
        at: Number of the header.
        payloads: Payload numbers given out when the header was appended.
        parent_head: Number of stored events of an earlier stream; 0 where there is none.

    Raises:
        JournalError: `stream_malformed`.
    """
    parent, branched_at = opened.parent, opened.branched_at
    if opened.kind != "branch":
        if at:
            raise stream_malformed(stream, f"is a {opened.kind} and begins with event {at}")
        return FROM_NOTHING
    if parent is None or not 0 <= parent < stream:
        raise stream_malformed(stream, f"is a branch of {parent}, which is no earlier stream")
    if branched_at is None or branched_at != at or not 1 <= at <= parent_head(parent):
        raise stream_malformed(stream, f"is a branch of stream {parent} at {branched_at}, which is no event of it")
    return Origin(parent, at, payloads)


def header_of(envelope: Envelope, written_by: str | None = None) -> StreamOpened | None:
    """The header of a stream, by its first chunk; None where that cannot be read.

    Args:
        envelope: The chunk.
        written_by: Version of the package that wrote the journal.
    """
    with suppress(JournalError):
        opened = event_of(envelope.rows(written_by)[0])
        if isinstance(opened, StreamOpened):
            return opened
    return None


def require_branch_point(opened: StreamOpened, head: Callable[[StreamId], int]) -> None:
    """Refuse a header whose stream would not begin where it says.

    Args:
        opened: The header of a stream that is to be opened.
        head: Number of events of a stream; refuses one that is not there.

    Raises:
        JournalError: `branch_point_invalid`, `stream_unknown`.
    """
    parent, at = opened.parent, opened.branched_at
    last = None if parent is None else head(parent)
    if opened.kind != "branch":
        if at is None:
            return
        problem = f"a {opened.kind} begins with nothing, and is to be branched at {at}"
    elif last is None:
        problem = "a branch is to be opened without a parent"
    elif at is None or not 1 <= at <= last:
        problem = f"a branch of stream {parent} is to begin at {at}, and the stream has {last} events"
    else:
        return
    raise JournalError(
        code="branch_point_invalid",
        problem=problem,
        remedy=f"give kind='branch', an earlier stream as parent, and branched_at from 1 to {last or 'its head'}",
        parent=parent,
        branched_at=at,
        head=last,
    )


def stream_malformed(stream: StreamId, problem: str) -> JournalError:
    return JournalError(
        code="stream_malformed",
        problem=f"stream {stream} {problem}",
        remedy="open a copy of the journal, or one from before the damage",
        stream=stream,
    )
