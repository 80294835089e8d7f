"""Captures that differ in the occasion alone, such as the steps of a training loop: what they share is encoded once.

Reads  the rows of a stream, and the tables folded from them.
Gives  the tables in canonical form, as ``Encoder`` gives them.
Rule   two captures are twins if the text of their functions is equal, and their events are but for times, durations,
       the numbers of storages (which follow from where the allocator put them), the event that opened the stream and
       the one that tells where the capture was asked for. All columns but those of ``OCCASION``
       are then equal, since nothing else that they are made from differs: the law is in
       ``tests/projections/test_twins.py``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from journal.events import (
    DESCRIPTION,
    EVENTS_BY_NAME,
    CaptureCalled,
    CodeSeen,
    OpExecuted,
    ParameterSeen,
    Row,
    StreamOpened,
)
from projections.build import CaptureTables
from projections.columnar.packing import packed_bytes
from projections.columns import OCCASION
from projections.stored.encoding import EncodedTable, Encoder, OpLabels
from projections.structure.details import DURATION, OUTPUTS, field

MOST: Final = 8
"""Captures of which the encoded tables are held, those that were asked for last."""


class Twin(NamedTuple):
    """A capture that was encoded."""

    labels: OpLabels
    tables: dict[str, EncodedTable]


class Twins:
    """Encodes captures one after the other, and what the next one has in common with an earlier one only once."""

    def __init__(self) -> None:
        self.held: OrderedDict[bytes, Twin] = OrderedDict()

    def encoded(self, rows: Sequence[Row] | None, tables: CaptureTables) -> dict[str, EncodedTable]:
        """The tables of a capture in canonical form.

        Args:
            rows: The rows that they were folded from; None where these are too many to be looked at again.
            tables: The tables.

        Raises:
            EncodingError, JournalCorrupt: as ``Encoder.table``.
        """
        key = None if rows is None else likeness(rows, tables.forward.source.payload)
        twin = None if key is None else self.held.get(key)
        encoder = Encoder(tables, None if twin is None else twin.labels)
        if twin is None:
            made = {name: encoder.table(table) for name, table in tables.all.items()}
        else:
            made = {
                name: encoder.renewed(twin.tables[name], table, OCCASION[name]) for name, table in tables.all.items()
            }
        if key is not None:
            self.held[key] = Twin(encoder.labels, made)
            self.held.move_to_end(key)
            if len(self.held) > MOST:
                self.held.popitem(last=False)
        return made


OP: Final = OpExecuted.type_id
OPENED: Final = StreamOpened.type_id
CALLED: Final = CaptureCalled.type_id
CODE: Final = CodeSeen.type_id
SOURCE: Final = field(CodeSeen, "source")
DESCRIBED: Final = frozenset(
    cls.type_id for cls in EVENTS_BY_NAME.values() if cls.fields and cls.fields[-1] == "description"
) - {ParameterSeen.type_id}
"""Events whose last field describes a value."""

STORAGE: Final = DESCRIPTION.index("storage")


def likeness(rows: Sequence[Row], payload: Callable[[int], bytes | None] = lambda number: None) -> bytes | None:
    """SHA-256 of everything in some rows but the occasion, and of the texts that they name.

    None where they hold what has no bytes.
    """
    try:
        texts = [payload(row[SOURCE]) for row in rows if row[0] == CODE and row[SOURCE] is not None]
        return hashlib.sha256(packed_bytes([[told_by(row) for row in rows], texts])).digest()
    except (TypeError, ValueError, OverflowError):
        return None


def told_by(row: Row) -> Row:
    """A row without what the occasion brings; of the event that opened the stream, its type."""
    kind: int = row[0]
    if kind == OP:
        outputs = tuple([told_of(given) for given in row[OUTPUTS]])
        return (kind, *row[2:DURATION], *row[DURATION + 1 : OUTPUTS], outputs, *row[OUTPUTS + 1 :])
    if kind in DESCRIBED:
        return (kind, *row[2:-1], told_of(row[-1]))
    return (kind,) if kind in (OPENED, CALLED) else (kind, *row[2:])


def told_of(description: Row) -> Row:
    return (*description[:STORAGE], *description[STORAGE + 1 :])
