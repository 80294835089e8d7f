"""All tables of a capture in canonical form, and back: what the fingerprint is of, to be compared as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from projections import CaptureTables
from projections.columnar.decoding import unpack_table
from projections.stored.encoding import Encoder, packed


def encode(tables: CaptureTables) -> list[bytes]:
    """Each table by itself."""
    encoder = Encoder(tables)
    return [packed(encoder.table(table)) for table in tables.all.values()]


def decode(tables: Sequence[bytes]) -> dict[str, dict[str, list[Any]]]:
    """The columns by name, by table."""
    opened = map(unpack_table, tables)
    return {table.summary.name: {name: table.column(name) for name in table.columns} for table in opened}
