"""The golden journal: captures made once, with every kind of event in them, a branch, and what they must project to.

    tests/data/golden/
        models.py        the models that were captured
        journal/         the journal, as capturing left it
        events.msgpack   the same events and payloads in a form that any machine reads
        manifest.json    per stream: events, rows of each table, fingerprint, digests of the payloads

``tools/golden.py`` makes all but the first anew. Beside it stand the golden journals of earlier schemas, each in a
folder ``golden-VERSION`` without models. Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgpack

from journal import At, Event, Journal, JournalError, MemoryJournal, Row, Seq, Stamped, StreamId, StreamInfo
from journal.events import StreamOpened
from journal.wire import Envelope, event_of
from torchlens.reading.facade import Trace

GOLDEN = Path(__file__).resolve().parent / "data" / "golden"
"""That of the present schema."""

GOLDENS = (GOLDEN, *sorted(GOLDEN.parent.glob("golden-*")))
"""That of every schema that was released."""

JOURNAL, EVENTS, MANIFEST = "journal", "events.msgpack", "manifest.json"

OF_A_PROCESS = ("lock.mdb", "writer.lease", "cache")
"""Files of a journal's directory that belong to whoever has it open."""


def manifest(golden: Path = GOLDEN) -> dict[str, Any]:
    """What a golden journal must project to."""
    made: dict[str, Any] = json.loads((golden / MANIFEST).read_text())
    return made


def copied(folder: Path, golden: Path = GOLDEN) -> Path:
    """A copy of a golden journal in ``folder``: opening one makes files beside it."""
    return Path(shutil.copytree(golden / JOURNAL, folder / JOURNAL, ignore=shutil.ignore_patterns(*OF_A_PROCESS)))


# What a journal projects to ------------------------------------------------------------------------


def described(journal: Journal) -> list[dict[str, Any]]:
    """One entry per stream, as the manifest has it."""
    return [described_stream(journal, info.stream) for info in journal.streams()]


def described_stream(journal: Journal, stream: StreamId) -> dict[str, Any]:
    trace = Trace(journal, stream)
    return {
        "name": trace.name,
        "status": trace.status,
        "events": journal.head(stream),
        "fingerprint": trace.fingerprint,
        "tables": {name: len(table) for name, table in trace.tables.all.items()},
        "payloads": [digest_of(data) for data in payloads(journal, stream)],
    }


def payloads(journal: Journal, stream: StreamId) -> Iterator[bytes | None]:
    """Every payload of a stream; None where a number was reserved and no bytes were stored."""
    number = 0
    while True:
        try:
            size = journal.payload_size(stream, number)
        except JournalError as exc:
            assert exc.code == "payload_unknown"  # noqa: PT017 - the numbers have no other end
            return
        yield None if size is None else bytes(journal.payload(stream, number))
        number += 1


def digest_of(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


# The same events in a form of their own ------------------------------------------------------------


def own_events(journal: Journal, info: StreamInfo) -> Iterator[Stamped]:
    """The events of a stream, of a branch without those of its parent: its header comes first."""
    return journal.events(info.stream, info.opened.branched_at or 0)


def write_portable(journal: Journal, path: Path) -> None:
    """Every stream as records, each a length of four bytes, little-endian, and as much msgpack.

    A record is ``["stream"]``, ``["payload", bytes or nil]`` or ``["event", name, version, time, [field, ...]]``. The
    payloads of a branch are those of its parent up to the branch point, which keep their numbers, and then its own;
    its events are its own alone.
    """
    with path.open("wb") as file:
        for info in journal.streams():
            records: list[list[Any]] = [["stream"]]
            records += [["payload", data] for data in payloads(journal, info.stream)]
            for stamped in own_events(journal, info):
                event = stamped.event
                fields = [getattr(event, name) for name in event.fields]
                records.append(["event", event.event_name, event.event_version, stamped.time_ns, fields])
            for record in records:
                data = msgpack.packb(record)
                file.write(len(data).to_bytes(4, "little") + data)


def portable_records(path: Path) -> Iterator[tuple[Any, ...]]:
    data = path.read_bytes()
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        yield msgpack.unpackb(data[start + 4 : end], use_list=False)
        start = end


def portable_streams(path: Path) -> Iterator[tuple[list[bytes | None], list[tuple[int, Event]]]]:
    """Payloads, and time and event, of each stream; old versions of events are lifted."""
    kept: list[bytes | None] = []
    events: list[tuple[int, Event]] = []
    for kind, *rest in portable_records(path):
        if kind == "stream":
            if events:
                yield kept, events
            kept, events = [], []
        elif kind == "payload":
            kept.append(rest[0])
        else:
            name, version, time_ns, fields = rest
            events.append((time_ns, event_of(row_of(name, version, time_ns, fields))))
    if events:
        yield kept, events


def row_of(name: str, version: int, time_ns: int, fields: tuple[Any, ...]) -> Row:
    """A row of this process from an event of any version, through the decoder of chunks."""
    body = msgpack.packb([[0, time_ns, *fields]])
    (row,) = Envelope(Seq(0), StreamId(0), At(0), 1, ((0, name, version),), 0, (), body).rows()
    return row


def portable(golden: Path = GOLDEN) -> MemoryJournal:
    """The events and payloads of the portable form, in a journal in memory."""
    journal = MemoryJournal()
    numbers: list[StreamId] = []  # of each stream in the new journal
    for kept, events in portable_streams(golden / EVENTS):
        (time_ns, opened), *rest = events
        assert isinstance(opened, StreamOpened)
        if opened.parent is not None:
            opened = attrs.evolve(opened, parent=numbers[opened.parent])
        writer = journal.open_stream(opened, time_ns)
        numbers.append(writer.stream)
        for data in kept[writer.payload_end :]:
            _ = writer.reserve() if data is None else writer.keep(data)
        for time_ns, event in rest:
            writer.append(event, time_ns)
        writer.close()
    return journal
