"""The stored form of events: chunks of rows as msgpack, decoded under limits and lifted to the present version.

A chunk value is the msgpack array ``[format, first seq, stream, first at, number of rows,
((type number, name, version), ...), (payload numbers given out so far, ((number, segment, offset, bytes,
digest), ...)), rows]`` followed by its CRC-32, little-endian. The rows are packed at once, as a nested
binary, so that an envelope is read without them. A row is ``(type number, time in ns, *fields)``; a type
number means what the chunk's own table says.

Rule  A type or version that this process does not know is refused, never skipped; stored bytes are never
      rewritten: an upcaster lifts an old row on reading.
Note  Every declared length is known to be backed by bytes before anything is built: `skip` walks a message
      without building it, so what a message can make us allocate is a small multiple of its own size.
Not   what a field may hold (checks.py), values without a form in msgpack (plain.py), or other versions (upcasting.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import attrs
import msgpack

from journal.checks import as_tuple, checks_of
from journal.errors import JournalError, malformed, writer_of
from journal.events import EVENTS_BY_NAME, event_class
from journal.events.base import At, Event, Row, Seq, StreamId
from journal.events.template import DICT
from journal.plain import storable
from journal.upcasting import lifted, plan_for

FORMAT: Final = 1
"""Version of the journal's layout and of a chunk's envelope."""

MAX_CHUNK_BYTES: Final = 64 << 20
"""No chunk is longer; one event may not be either."""

SPLIT_BYTES: Final = 8 << 20
"""Rows that pack to more than this are cut into several chunks."""

MAX_CHUNK_ROWS: Final = 1 << 16
MAX_TYPES: Final = 1 << 12


# Payloads and envelopes ---------------------------------------------------------------------------


class Located(NamedTuple):
    """Where the bytes of one payload are."""

    number: int
    segment: int
    offset: int
    nbytes: int
    digest: bytes  # XXH3-128; empty where the bytes never leave the process, or are known to be lost

    @property
    def end(self) -> tuple[int, int]:
        """The segment, and where in it the bytes end; nowhere for bytes that are known to be lost."""
        return (self.segment, self.offset + self.nbytes) if self.digest else (0, 0)


@attrs.define(frozen=True, slots=True)
class Chunk:
    """Some rows of one stream, packed, with their place in the journal."""

    first_seq: Seq
    stream: StreamId
    first_at: At
    count: int
    payloads: tuple[Located, ...]
    data: bytes

    @property
    def end_seq(self) -> Seq:
        return Seq(self.first_seq + self.count)

    @property
    def end_at(self) -> At:
        return At(self.first_at + self.count)


@attrs.define(frozen=True, slots=True)
class Envelope:
    """A chunk as read: everything but its rows, which are decoded on demand."""

    first_seq: Seq
    stream: StreamId
    first_at: At
    count: int
    types: tuple[tuple[int, str, int], ...]
    payload_end: int
    payloads: tuple[Located, ...]
    body: bytes

    @property
    def end_at(self) -> At:
        return At(self.first_at + self.count)

    def rows(self, written_by: str | None = None) -> Sequence[Row]:
        """The rows, with this process's type numbers, lifted to its versions.

        Args:
            written_by: Version of the package that wrote the journal, for the refusal to name.

        Raises:
            JournalCorrupt: `event_malformed`.
            JournalError: `event_unknown`, `event_version_newer`, `event_upcaster_missing`.
        """
        plan = plan_for(self.types, written_by)
        rows = as_tuple(decoded(self.body, "event_malformed"))
        if rows is None or len(rows) != self.count or set(map(type, rows)) != {tuple}:
            raise malformed("event_malformed", "the rows of a chunk are no arrays, or not as many as its envelope says")
        widths = plan.widths
        try:
            for row in rows:
                kind = row[0]
                if type(kind) is not int or widths[kind] not in (len(row), -1) or type(row[1]) is not int:
                    raise malformed("event_malformed", f"a row of type {kind!r} has {len(row)} fields")
        except (KeyError, IndexError, TypeError) as exc:
            raise malformed("event_malformed", "a row does not start with a type of its chunk and a time") from exc
        return rows if plan.lifts is None else lifted(rows, plan.lifts)


# Packing ------------------------------------------------------------------------------------------


class ChunkPacker:
    """Packs rows into chunks. Holds a reused buffer, so each needs a lock of its own around it."""

    def __init__(self) -> None:
        self.pack: Callable[[object], bytes] = msgpack.Packer(autoreset=True).pack
        self.tables: dict[frozenset[int], tuple[tuple[int, str, int], ...]] = {}
        self.is_exact = True  # whether the last chunk reads back equal to the rows given

    def chunk(
        self,
        rows: list[Row],
        first_seq: Seq,
        stream: StreamId,
        first_at: At,
        payload_end: int,
        payloads: tuple[Located, ...],
    ) -> Chunk:
        """One chunk of as many of ``rows`` as fit, from the first on.

        A value that msgpack has no form for is replaced by its template tag; the event is kept.

        Raises:
            JournalError: `row_malformed`, for a row that is not of its class; `event_too_large`.
        """
        self.check(rows)
        body = self.body(rows)
        while len(body) > SPLIT_BYTES and len(rows) > 1:
            rows = rows[: max(1, len(rows) * SPLIT_BYTES // (2 * len(body)))]
            body = self.body(rows)
        if len(body) > MAX_CHUNK_BYTES // 2:
            body = self.shortened(rows[0])
        table = self.table(frozenset([row[0] for row in rows]))
        return self.enveloped(Envelope(first_seq, stream, first_at, len(rows), table, payload_end, payloads, body))

    def enveloped(self, envelope: Envelope) -> Chunk:
        """The chunk that reads as ``envelope``."""
        one = envelope
        head = (FORMAT, one.first_seq, one.stream, one.first_at, one.count, one.types)
        data = self.pack((*head, (one.payload_end, one.payloads), one.body))
        if len(data) > MAX_CHUNK_BYTES:
            raise too_large(len(data))
        data += zlib.crc32(data).to_bytes(4, "little")
        return Chunk(one.first_seq, one.stream, one.first_at, one.count, one.payloads, data)

    def check(self, rows: list[Row]) -> None:
        widths = local_widths(len(EVENTS_BY_NAME))
        for row in rows:
            if len(row) != widths[row[0]]:
                cls = event_class(row[0])
                raise row_malformed(f"a row of {cls.event_name} has {len(row)} fields where {widths[row[0]]} are due")

    def body(self, rows: list[Row]) -> bytes:
        try:
            self.is_exact = True
            return self.pack(rows)
        except (OverflowError, UnicodeError, TypeError, ValueError):
            self.is_exact = False
        try:
            return self.pack([storable(row) for row in rows])
        except (OverflowError, TypeError, ValueError) as exc:
            raise row_malformed(f"a row has no stored form: {exc}") from exc

    def shortened(self, row: Row) -> bytes:
        """One row that is too long for a chunk, its longest texts and containers cut."""
        body = self.pack([storable(row)])
        self.is_exact = False
        for limit in (1 << 16, 1 << 10, 1 << 4):
            cut = storable(row, limit)
            if not is_well_typed(cut):  # a container that the class names is cut to a tag, which is none
                break
            body = self.pack([cut])
            if len(body) <= MAX_CHUNK_BYTES // 2:
                return body
        raise too_large(len(body))

    def table(self, kinds: frozenset[int]) -> tuple[tuple[int, str, int], ...]:
        table = self.tables.get(kinds)
        if table is None:
            classes = [event_class(kind) for kind in sorted(kinds)]
            table = self.tables[kinds] = tuple((cls.type_id, cls.event_name, cls.event_version) for cls in classes)
        return table


@lru_cache(maxsize=4)
def local_widths(registered: int) -> tuple[int, ...]:
    """Length of a row of each of the ``registered`` types of this process."""
    return tuple(len(event_class(kind).fields) + 2 for kind in range(registered))


# Reading ------------------------------------------------------------------------------------------


def read_envelope(data: bytes, written_by: str | None = None) -> Envelope:
    """The envelope of a stored chunk.

    Args:
        data: Its bytes.
        written_by: Version of the package that wrote the journal, for the refusal to name.

    Raises:
        JournalCorrupt: `chunk_checksum`, `chunk_malformed`.
        JournalError: `journal_newer`, for a chunk of a later format.
    """
    if not 4 < len(data) <= MAX_CHUNK_BYTES + 4:
        raise malformed("chunk_malformed", f"a chunk of {len(data)} bytes")
    view = memoryview(data)[:-4]
    if zlib.crc32(view).to_bytes(4, "little") != data[-4:]:
        raise malformed("chunk_checksum", "the bytes of a chunk do not match their checksum")
    parts = as_tuple(decoded(view, "chunk_malformed"))
    if not parts or not is_count(parts[0]):
        raise malformed("chunk_malformed", "a chunk does not start with its format")
    if parts[0] > FORMAT:
        raise newer_format(parts[0], written_by)
    if parts[0] != FORMAT or len(parts) != 8 or not all(map(is_count, parts[1:5])):
        raise malformed("chunk_malformed", "an envelope without its eight parts")
    _, first_seq, stream, first_at, count, table, payloads, body = parts
    if not 1 <= count <= MAX_CHUNK_ROWS or type(body) is not bytes:
        raise malformed("chunk_malformed", "a chunk without rows")
    types_used, kept = as_tuple(table), as_tuple(payloads)
    if types_used is None or len(types_used) > MAX_TYPES or not all(map(is_type_entry, types_used)):
        raise malformed("chunk_malformed", "a table of types that is none")
    entries = None if kept is None or len(kept) != 2 or not is_count(kept[0]) else as_tuple(kept[1])
    if kept is None or entries is None or not all(is_payload_entry(entry, kept[0]) for entry in entries):
        raise malformed("chunk_malformed", "a table of payloads that is none")
    located = tuple(Located(*entry) for entry in entries)
    return Envelope(Seq(first_seq), StreamId(stream), At(first_at), count, types_used, kept[0], located, body)


def packed_rows(envelope: Envelope) -> bytes:
    """The rows of a chunk as they are packed, one after the other.

    Raises:
        JournalCorrupt: `event_malformed`, when the body is not exactly as many values as the envelope says.
    """
    body = envelope.body
    try:
        walk = msgpack.Unpacker(None, max_buffer_size=max(1, len(body)))
        walk.feed(body)
        count, start = walk.read_array_header(), walk.tell()
        for _ in range(count):
            walk.skip()
        is_whole = count == envelope.count and walk.tell() == len(body)
    except (ValueError, TypeError, msgpack.UnpackException):
        is_whole, start = False, 0
    if not is_whole:
        raise malformed("event_malformed", "the rows of a chunk are not as many as its envelope says")
    return body[start:]


def body_of(rows: Sequence[bytes], count: int) -> bytes:
    """A body of ``count`` packed rows."""
    return b"".join((msgpack.Packer().pack_array_header(count), *rows))


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_type_entry(entry: object) -> bool:
    match entry:
        case (int() as kind, str(), int() as version):
            return is_count(kind) and is_count(version)
        case _:
            return False


def is_payload_entry(entry: object, payload_end: int) -> bool:
    match entry:
        case (int() as number, int() as segment, int() as offset, int() as nbytes, bytes() as digest):
            return all(map(is_count, (number, segment, offset, nbytes))) and number < payload_end and len(digest) <= 16
        case _:
            return False


def decoded(data: bytes | memoryview, code: str) -> Any:
    """One message of plain values; arrays become tuples and a map becomes its template.

    Raises:
        JournalCorrupt: ``code``, whatever is wrong with the bytes.
    """
    try:
        walk = msgpack.Unpacker(None, max_buffer_size=max(1, len(data)))
        walk.feed(data)
        walk.skip()
        return msgpack.unpackb(
            data,
            use_list=False,
            strict_map_key=False,
            object_pairs_hook=map_template,
            ext_hook=refuse_ext,
            max_ext_len=0,
        )
    # msgpack: ValueError and its kin for bad bytes, its own UnpackException for bytes that end too soon
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as exc:
        raise malformed(code, f"bytes that are not one whole msgpack value ({type(exc).__name__})") from exc


EMPTY_MAP: Final = (DICT,)
"""One for all: it takes a byte to store."""


def map_template(pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, ...]:
    return (DICT, *(part for pair in pairs for part in pair)) if pairs else EMPTY_MAP


def refuse_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def event_of(row: Row) -> Event:
    """The event a row stands for.

    Args:
        row: As `Envelope.rows` gives it.

    Raises:
        JournalCorrupt: `event_malformed`, when a field is not of the type its class declares.
    """
    cls = check_row(row)
    return cls(**dict(zip(cls.fields, row[2:], strict=True)))


def check_row(row: Row) -> type[Event]:
    """The class of a row, each field of which is of the type that the class declares.

    Raises:
        JournalCorrupt: `event_malformed`.
    """
    cls = event_class(row[0])
    values = row[2:]
    if len(values) != len(cls.fields):
        raise malformed("event_malformed", f"a row of {cls.event_name} has {len(row)} fields")
    fit = [fits(value) for value, fits in zip(values, checks_of(cls.type_id), strict=True)]
    if not all(fit):
        wrong = fit.index(False)
        raise malformed(
            "event_malformed", f"{cls.event_name}.{cls.fields[wrong]} holds a {type(values[wrong]).__name__}"
        )
    return cls


def is_well_typed(row: Row) -> bool:
    """Whether each field is of the type that the class of the row declares."""
    return all(fits(value) for value, fits in zip(row[2:], checks_of(row[0]), strict=True))


def require_storable(row: Row) -> None:
    """Refuse a row that could not be stored, or not be read back.

    Raises:
        JournalError: `row_malformed`.
    """
    if type(row[1]) is not int or not -(1 << 63) <= row[1] < 1 << 63:
        raise row_malformed(f"an event of the time {row[1]!r}, which is no count of ns in 64 bits")
    if not is_well_typed(row) and not is_well_typed(storable(row)):
        try:
            check_row(storable(row))
        except JournalError as exc:
            raise row_malformed(exc.problem) from exc


# Refusals -----------------------------------------------------------------------------------------


def row_malformed(problem: str) -> JournalError:
    return JournalError(
        code="row_malformed",
        problem=problem,
        remedy="append the type number, the time and every field of the class, in its order and of its type",
    )


def newer_format(found: int, written_by: str | None) -> JournalError:
    return JournalError(
        code="journal_newer",
        problem=f"the journal has format {found}; this package knows up to {FORMAT}",
        remedy=f"open it with {writer_of(written_by)} or a later one",
        format=found,
        written_by=written_by,
    )


def too_large(nbytes: int) -> JournalError:
    return JournalError(
        code="event_too_large",
        problem=f"one event takes {nbytes} bytes even after its long values were cut",
        remedy=f"an event may take {MAX_CHUNK_BYTES} bytes; keep large data as a payload",
        nbytes=nbytes,
    )
