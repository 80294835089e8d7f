"""What holds of everything that is recorded: of a stream of events, of a trace, of a journal.

Rule   a check ends silently or raises; none writes anything, and none needs torch.
Not    what models do (models.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from journal import Journal, JournalError, StreamId, TorchLensError, open_for_reading, verify
from journal.events import Event, Row, StreamOpened
from journal.lifecycle import CAPTURE, CAPTURE_INPUTS, CaptureState
from journal.machine import Machine
from projections import CaptureTables, Projector, fingerprint
from projections.promises import invariants
from torchlens.errors import ValidationError
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource
from torchlens.testing.checking.diary_order import DiaryOrder
from torchlens.testing.checking.forward_order import ForwardOrder
from torchlens.testing.checking.refusing import require
from torchlens.testing.given import argument_invalid

__all__ = ["check_journal", "check_stream", "check_trace"]

CUTS: Final = 4
"""A stream is folded up to so many of its events, evenly spread, and held against its prefix."""

CHANGED_BY_READERS: Final = ("lock.mdb",)
"""Files of a journal that reading may write: LMDB's table of readers."""

TICK_NS: Final = 1000
"""Time between two events of a stream that is no journal's."""


class Rows:
    """Rows in memory, as a source that folds read."""

    def __init__(self, rows: Sequence[Row], payload: Callable[[int], bytes | None] = lambda number: None) -> None:
        self.held = rows
        self.payload = payload

    def head(self) -> int:
        return len(self.held)

    def rows(self, start: int, stop: int | None = None) -> Iterator[Sequence[Row]]:
        yield self.held[start:stop]

    def row(self, at: int) -> Row:
        return self.held[at]


def check_stream(events: Sequence[Event]) -> CaptureTables:
    """The events are those of a capture that could have happened, and give the same records however they are folded.

    Held are: the machines of the capture and of each backward pass, that every number is given before it is used,
    that a prefix gives what the whole gave after as many events, and every promise of the records.

    Args:
        events: Of one stream, from its header on; they may end anywhere.

    Returns:
        The records.

    Raises:
        IllegalTransition: ``illegal_transition``, for an event that may not follow.
        ValidationError: ``stream_illegal`` for one that speaks of what was not told; ``fold_unstable`` where folding in
            pieces gives other records; ``invariant_broken`` for records that contradict each other, with the names of
            the promises in ``exc.fields["findings"]``.
        JournalCorrupt: ``events_contradictory``, for events of which no records can be made.
    """
    given: Any = events
    if not isinstance(given, Sequence) or not all(isinstance(event, Event) for event in given):
        raise argument_invalid(
            f"check_stream() got {type(events).__name__}, which is no list of events",
            "give the events of one stream, [stamped.event for stamped in trace.events()]",
        )
    check_order(events)
    tables = check_folding(Rows([event.row(TICK_NS * at) for at, event in enumerate(events)]))
    check_promises(tables)
    return tables


def check_order(events: Sequence[Event]) -> None:
    """Every event may follow those before it."""
    machine = Machine(CAPTURE, CaptureState.IDLE)
    forward, diary = ForwardOrder(), DiaryOrder()
    at, event = 0, None
    try:
        for at, event in enumerate(events):
            require(at > 0 or isinstance(event, StreamOpened), "the first event is no StreamOpened")
            if type(event) in CAPTURE_INPUTS:
                machine.step(event)
            forward.take(event)
            diary.take(at, event)
    except TorchLensError as exc:
        exc.fields.update(at=at, event=None if event is None else event.event_name)
        raise


def check_folding(rows: Rows) -> CaptureTables:
    """The records, the same at once, in pieces, and from prefixes."""
    head = rows.head()
    tables = Projector(rows).tables()
    whole = fingerprint(tables)
    pieces = Projector(rows)
    stops = sorted({head * cut // CUTS for cut in range(CUTS)})
    for stop in stops:
        prefix = Projector(Rows(rows.held[:stop], rows.payload)).tables()
        if fingerprint(pieces.tables(stop)) != fingerprint(prefix):
            raise unstable(f"after {stop} of {head} events the records are not those of the first {stop} events alone")
    if fingerprint(pieces.tables()) != whole:
        raise unstable(f"folding up to the events {', '.join(map(str, stops))} on the way gives other records")
    return tables


def unstable(problem: str) -> ValidationError:
    return ValidationError(
        code="fold_unstable",
        problem=problem,
        remedy="a fold reads something besides its events, or its state does not say how it changes: see "
        "projections/folds/split.py",
    )


def check_promises(tables: CaptureTables) -> None:
    findings = invariants.check(tables)
    if findings:
        raise broken(findings)


def broken(findings: Sequence[invariants.Finding]) -> ValidationError:
    return ValidationError(
        code="invariant_broken",
        problem=f"the records contradict each other: {invariants.told(findings)}",
        remedy="report it with the model and the journal; the records cannot be trusted",
        findings=tuple(tuple(finding) for finding in findings),
    )


def check_trace(trace: Trace) -> None:
    """What was captured is a capture that could have happened, and the trace reads as its events do.

    It looks at what there is now, so it may be asked while backward passes go on to be recorded, and again afterwards.

    Args:
        trace: A live one, or one from a journal. Of one from an artifact the stored events are those of the forward,
            and its records are held to their promises alone.

    Raises:
        TorchLensError: what ``check_stream`` raises of its events; ``ValidationError``, ``fold_unstable``, where the
            trace shows other records than its events give.
    """
    if not isinstance(trace, Trace):
        raise argument_invalid(
            f"check_trace() got {type(trace).__name__}, which is no trace",
            "give a trace; check_journal() takes a path, check_stream() a list of events",
        )
    head = trace.tables.head
    seen = fingerprint(trace.tables)
    source = StreamSource(trace.journal, trace.stream)
    rows = [row for run in source.rows(0, head) for row in run]
    check_order([stamped.event for stamped in trace.journal.events(trace.stream, 0, head)])
    tables = check_folding(Rows(rows, source.payload))
    if trace.tables.has_diary and fingerprint(tables) != seen:
        raise unstable("the trace shows other records than its events give when they are folded anew")
    check_promises(trace.tables)


def check_journal(journal: Journal | str | os.PathLike[str]) -> tuple[str, ...]:
    """Every byte is as it was written, every stream reads as it should, and reading leaves no trace.

    Args:
        journal: A journal, or the directory of one, which may be that of a process that was killed. One that another
            process is writing may be checked; that reading writes nothing is then not looked at.

    Returns:
        The fingerprint of each stream's records, by number.

    Raises:
        ValidationError: ``journal_unsound``, with ``exc.fields["damages"]``, as ``torchlens journal verify`` tells
            them, or the stream and the code of what its events are refused with; ``reading_wrote``, with the files in
            ``fields["files"]``.
        JournalError: what opening a journal raises.
    """
    if not isinstance(journal, (str, os.PathLike)) and not hasattr(journal, "streams"):
        raise argument_invalid(
            f"check_journal() got {type(journal).__name__}, which is no journal",
            "give a journal, or the directory of one; check_trace() takes a trace",
        )
    if isinstance(journal, (str, os.PathLike)):
        with_path = open_for_reading(journal)
        try:
            return check_journal(with_path)
        finally:
            with_path.close()
    if journal.path is None:
        return tuple([check_one(journal, info.stream) for info in journal.streams()])
    before = None if journal.is_written() else digests(journal.path)
    report = verify(journal.path)
    if not report.ok:
        raise ValidationError(
            code="journal_unsound",
            problem=f"{len(report.damages) + report.omitted} damages: "
            + "; ".join(damage.problem for damage in report.damages[:3]),
            remedy="`torchlens journal recover` writes what proves itself into a new journal",
            damages=report.damages,
        )
    prints = tuple([check_one(journal, info.stream) for info in journal.streams()])
    after = None if journal.is_written() else digests(journal.path)
    if before is not None and after is not None and before != after:
        files = tuple(sorted(name for name in {**before, **after} if before.get(name) != after.get(name)))
        raise ValidationError(
            code="reading_wrote",
            problem=f"reading the journal changed {', '.join(files)}",
            remedy="see that no other process writes to it; else report it",
            files=files,
        )
    return prints


def check_one(journal: Journal, stream: StreamId) -> str:
    try:
        trace = Trace(journal, stream)
        check_trace(trace)
        return trace.fingerprint
    except JournalError as exc:
        raise ValidationError(
            code="journal_unsound",
            problem=f"stream {stream} cannot be read: {exc.problem}",
            remedy=exc.remedy,
            stream=int(stream),
            refused_with=exc.code,
        ) from exc


def digests(path: str) -> dict[str, str]:
    """Of every file of a journal, by its name in there."""
    folder = Path(path)
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in CHANGED_BY_READERS)
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
