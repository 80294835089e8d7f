"""Two foldings of one table, compared: which records and which fields differ.

Reads  two tables in canonical form (canonical.py), unpacked as far as their digests differ.
Gives  differences, one by one.
Rule   where there are as many records as before, the first is compared with the first, and so on; otherwise records
       are matched by their labels, and those that only one side has are said once. A field that only one side has is
       said once, and not for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from projections.columnar.canonical import pack, plain
from projections.columnar.decoding import PackedTable

Change: TypeAlias = Literal["changed", "added", "removed"]

LABEL_FIELDS: Final = {
    "ops": "label",
    "layers": "layer_label",
    "modules": "address",
    "module_calls": "call_label",
    "params": "address",
    "buffers": "address",
    "conditionals": "id",
    "explanations": "subject",
    "backward_passes": "pass_index",
    "grad_fns": "label",
    "grad_fn_calls": "call_label",
    "dispatched_ops": "name",
    "gradients": "owner",
    "orphans": "label",
}
"""The field that names a record, by table; the one record of another table has no name."""


class TableDifference(NamedTuple):
    """One cell, record, field or table that is not what it was.

    ``record`` is None where a whole field or table is meant, or the table has one record alone; ``field`` is None where
    a whole record or table is meant.
    """

    table: str
    record: str | None
    field: str | None
    change: Change
    before: Any = None
    after: Any = None


def differences(before: PackedTable, after: PackedTable) -> Iterator[TableDifference]:
    """What differs between two foldings of a table, field by field in the order of the table.

    Raises:
        EncodingError: ``encoding_malformed``, when the bytes of a column are none.
    """
    table = after.summary.name
    old, new = before.summary.columns, after.summary.columns
    for field in old:
        if field not in new:
            yield TableDifference(table, None, field, "removed")
    for field in new:
        if field not in old:
            yield TableDifference(table, None, field, "added")
    pairs: list[Pair] = []
    for pair in matched(before, after):
        if pair.before is None or pair.after is None:
            yield TableDifference(table, pair.record, None, "added" if pair.before is None else "removed")
        else:
            pairs.append(pair)
    for field, digest in new.items():
        if field in old and digest != old[field]:
            cells, others = before.column(field), after.column(field)
            for record, row, other in pairs:
                assert row is not None
                assert other is not None
                if not same(cells[row], others[other]):
                    yield TableDifference(table, record, field, "changed", cells[row], others[other])


class Pair(NamedTuple):
    """A record as row of either side, None where it is not there."""

    record: str | None
    before: int | None
    after: int | None


def matched(before: PackedTable, after: PackedTable) -> list[Pair]:
    """The records of both sides, those that are gone last."""
    old, new = labels_of(before), labels_of(after)
    if len(old) == len(new):
        return [Pair(label, row, row) for row, label in enumerate(new)]
    rows: dict[str | None, list[int]] = {}
    for row in reversed(range(len(old))):
        rows.setdefault(old[row], []).append(row)
    pairs = [Pair(label, rows[label].pop() if rows.get(label) else None, row) for row, label in enumerate(new)]
    left = sorted([row for several in rows.values() for row in several])
    return pairs + [Pair(old[row], row, None) for row in left]


def labels_of(table: PackedTable) -> Sequence[str | None]:
    field = LABEL_FIELDS.get(table.summary.name)
    if field is None or field not in table.summary.columns:
        return [None] * table.summary.num_rows
    return [label if isinstance(label, str) else None for label in table.column(field)]


def same(before: Any, after: Any) -> bool:
    """Whether two cells have the same canonical bytes: 1, 1.0 and True are three."""
    return before is after or pack(plain(before)) == pack(plain(after))
