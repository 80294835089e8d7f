"""Journals that could have been left: several captures that took turns, branches of them, a writer that was killed.

Gives  ``JournalDraft``, all that a journal holds and how it was written, which puts it on disk or into memory;
       ``journals``, a hypothesis strategy of drafts.
Rule   a draft is plain data: drawing one writes nothing, and it can be written as often as one likes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from hypothesis import strategies as st

from journal import Journal, LmdbJournal, MemoryJournal, StreamWriter
from journal.events import Event, StreamOpened
from torchlens.testing.drawing.streams import branched, capture_streams, payload_bytes, payloads_named

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["JournalDraft", "journals"]


@attrs.frozen(repr=False)
class JournalDraft:
    """What a journal holds, and how its writer came to leave it.

    Attributes:
        streams: The events of each, from its header on, without those that a branch reads from its parent.
        turns: Which stream got its next event, in the order of writing.
        killed: After so many turns the process died; None where it closed the journal. On disk there is then, of
            streams that were open, what was committed: at least what ``committed`` turns had given.
        committed: After so many turns everything was committed.
    """

    streams: tuple[tuple[Event, ...], ...]
    turns: tuple[int, ...]
    killed: int | None = None
    committed: int = 0

    def __repr__(self) -> str:
        ended = (
            "closed" if self.killed is None else f"killed after {self.killed} turns, committed after {self.committed}"
        )
        told = ", ".join([names(events) for events in self.streams])
        return f"<JournalDraft: {len(self.turns)} turns, {ended}; streams {told}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # what hypothesis and IPython show
        printer.text(repr(self))

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a directory that is not there, and leave it as its writer did; the directory."""
        journal = LmdbJournal(path, durability="close", sync="none")
        try:
            self.put(journal)
            if self.killed is None:
                journal.close()
        finally:
            journal.abandon()
        return Path(path)

    def in_memory(self) -> MemoryJournal:
        """The same in memory, where nothing that was appended is ever lost."""
        journal = MemoryJournal()
        self.put(journal)
        return journal

    def put(self, journal: Journal) -> None:
        writers: dict[int, StreamWriter] = {}
        given = [0] * len(self.streams)
        for turn, number in enumerate(self.turns[: self.killed]):
            if turn == self.committed:
                commit(writers.values())
            events = self.streams[number]
            event, at = events[given[number]], given[number]
            given[number] += 1
            if isinstance(event, StreamOpened):
                writers[number] = journal.open_stream(event, 0)
                continue
            writer = writers[number]
            for payload in payloads_named(event):
                assert writer.keep(payload_bytes(payload)) == payload
            writer.append(event, 1000 * at)
            if given[number] == len(events):
                writer.close()
                del writers[number]
        if self.killed is not None and self.committed >= self.killed:
            commit(writers.values())


def commit(writers: Any) -> None:
    for writer in writers:
        writer.commit()


def speaks_of(event: Event, start: int) -> bool:
    """Whether an event names, by its number, one from ``start`` on."""
    named = (getattr(event, name) for name in event.fields if name in ("at", "by", "of", "started"))
    return any(isinstance(number, int) and number >= start for number in named)


def names(events: Sequence[Event]) -> str:
    """The last events of a stream, which tell how it ended."""
    return f"of {len(events)} events to {events[-1].event_name}"


def journals(
    *, most_streams: int = 3, backward: bool | None = None, killed: bool | None = None
) -> SearchStrategy[JournalDraft]:
    """Journals with one capture or several.

    Args:
        most_streams: So many streams at most: captures, and branches of them.
        backward: As for ``capture_streams``.
        killed: True for those whose writer was killed, False for none of these; by default some are.
    """

    @st.composite
    def draft(draw: DrawFn) -> JournalDraft:
        streams: list[tuple[Event, ...]] = []
        turns: list[int] = []
        left: list[int] = []
        for number in range(draw(st.integers(1, most_streams))):
            streams.append(tuple(draw(capture_streams(max_steps=6, backward=backward))))
            left.append(number)
        given = [0] * len(streams)
        while left:
            number = draw(st.sampled_from(left))
            count = draw(st.integers(1, len(streams[number]) - given[number]))
            turns += [number] * count
            given[number] += count
            if given[number] == len(streams[number]):
                left.remove(number)
        if len(streams) < most_streams and draw(st.booleans()):
            parent = draw(st.sampled_from(range(len(streams))))
            at = draw(st.integers(1, len(streams[parent])))
            # Streams are numbered as they are opened.
            opened_as = list(dict.fromkeys(turns)).index(parent)
            # Its payloads are numbered on from those of a chunk of the parent, which depends on the store: it has none.
            # The event that opens it has the number of the branch point: those behind it are numbered otherwise there.
            tail = tuple(
                takewhile(
                    lambda event: not payloads_named(event) and not speaks_of(event, at), streams[parent][at : at + 9]
                )
            )
            tail = tail[: draw(st.integers(0, len(tail)))]
            turns += [len(streams)] * (1 + len(tail))
            streams.append((branched(opened_as, at), *tail))
        is_killed = draw(st.booleans()) if killed is None else killed
        if not is_killed:
            return JournalDraft(tuple(streams), tuple(turns))
        last = draw(st.integers(1, len(turns)))
        return JournalDraft(tuple(streams), tuple(turns), last, draw(st.integers(0, last)))

    return draft()
