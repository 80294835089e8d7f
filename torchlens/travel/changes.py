"""What one event changed in the records: rows that came, and cells that are not what they were.

Reads  the tables right before an event and right after it, both named by the head.
Gives  ``Changes``: one ``Change`` for each row and each cell, by table.
Rule   a record is known again by what names it in its table (``KEYS``), since a row may come between others. A cell is
       compared by what it holds, and only fields that people read are: not the numbers of rows by which tables refer to
       each other, and not the texts that name an op by its distance from the end, which every op moves.
Note   it compares all records before with all after, so that nothing that changed is left out: the cost is that of
       reading every field of a trace twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import attrs

from journal.errors import JournalError
from projections import CaptureTables, Table
from projections.columnar.comparison import LABEL_FIELDS, same
from torchlens import collector
from torchlens.printable import amount, cut, printable
from torchlens.reading.tabular import COLUMNS, frame_of

if TYPE_CHECKING:
    import pandas

__all__ = ["Change", "Changes", "changes"]

How: TypeAlias = Literal["came", "went", "changed"]

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "modules": ("module_number",),
    "grad_fns": ("grad_fn_object_id",),
    "gradients": ("owner", "event"),
    "explanations": ("subject",),
    "conditionals": ("id",),
}
"""Columns that name a record for good, where its place in the table is not for good."""

LEFT_OUT: Final = frozenset(("lookup_keys", "siblings", "co_parents"))
"""Fields of which nearly every event changes nearly every cell, and those that hold, of a wide graph, as many labels in
each cell as there are rows; ``parents`` and ``children`` tell what these are made of."""

SHOWN: Final = 60
"""Characters of a value that the short form of a change shows."""


@attrs.frozen(repr=False)
class Change:
    """A row that came or went, or a cell that is not what it was.

    Attributes:
        table: Name of the table.
        record: What its record is called; None for the capture itself.
        how: ``came``, ``went`` or ``changed``.
        field: Which field changed; None for a row.
        before, after: What the cell held and holds, as the table has it; None for a row.
    """

    table: str
    record: str | None
    how: How
    field: str | None = None
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        name = " ".join(filter(None, (self.table, self.record)))
        if self.field is None:
            return printable(f"{name} {self.how}")
        return printable(f"{name}.{self.field}: {shown(self.before)} -> {shown(self.after)}")

    def __repr__(self) -> str:
        return f"<Change {self}>"


def shown(value: object) -> str:
    return cut(repr(value), SHOWN)


class Changes(Sequence[Change]):
    """What one event changed, rows first within each table.

    Attributes:
        at: Number of the event.
        event_name: Name of its type, as stored.
    """

    def __init__(self, at: int, event_name: str, found: Sequence[Change]) -> None:
        self.at: Final = at
        self.event_name: Final = event_name
        self.all: Final = tuple(found)

    def __len__(self) -> int:
        return len(self.all)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        return self.all[index]

    @property
    def rows(self) -> tuple[Change, ...]:
        """The rows that came or went."""
        return tuple(one for one in self.all if one.field is None)

    @property
    def cells(self) -> tuple[Change, ...]:
        """The cells that changed."""
        return tuple(one for one in self.all if one.field is not None)

    @property
    def by_table(self) -> dict[str, tuple[Change, ...]]:
        """The changes by the name of their table, of those that have any."""
        made: dict[str, list[Change]] = {}
        for one in self.all:
            made.setdefault(one.table, []).append(one)
        return {table: tuple(found) for table, found in made.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per change; needs pandas."""
        names = [field.name for field in attrs.fields(Change)]
        return frame_of({name: [getattr(one, name) for one in self.all] for name in names}, len(self.all))

    def __str__(self) -> str:
        return "\n".join((f"event {self.at} {self.event_name}", *(f"  {one}" for one in self.all)))

    def __repr__(self) -> str:
        rows, cells = len(self.rows), len(self.cells)
        return f"<Changes by event {self.at} {self.event_name}: {amount(rows, 'row')}, {amount(cells, 'cell')}>"


def changes(at: int, event_name: str, before: CaptureTables, after: CaptureTables) -> Changes:
    """What an event changed.

    Args:
        at: Its number.
        event_name: Name of its type.
        before: The tables right before it.
        after: The tables right after it, with the same names.
    """
    with collector.paused():
        found = [one for name in after.all for one in of_table(before.table(name), after.table(name))]
    return Changes(at, event_name, found)


def of_table(before: Table[Any], after: Table[Any]) -> Iterator[Change]:
    table = after.name
    old, new = names_of(before), names_of(after)
    labels = labels_of(after)
    for key, row in new.items():
        if key not in old:
            yield Change(table, labels[row], "came")
    if len(old) + sum(key not in old for key in new) > len(new):
        gone = labels_of(before)
        for key, row in old.items():
            if key not in new:
                yield Change(table, gone[row], "went")
    pairs = [(old[key], row) for key, row in new.items() if key in old]
    for field in fields_of(after) if pairs else ():
        try:
            cells, others = before.column(field), after.column(field)
        except JournalError as exc:
            if exc.code != "records_too_large":
                raise
            continue
        for one, other in pairs:
            was, now = cells[one], others[other]
            if was is not now and was != now and not same(was, now):
                yield Change(table, labels[other], "changed", field, was, now)


def names_of(table: Table[Any]) -> dict[Any, int]:
    """Row by what names it for good."""
    keys = KEYS.get(table.name)
    if keys is None:
        return {row: row for row in range(len(table))}
    made: dict[Any, int] = {}
    for row, name in enumerate(zip(*(table.column(key) for key in keys), strict=True)):
        made.setdefault(name, row)
    return made


def labels_of(table: Table[Any]) -> Sequence[str | None]:
    field = LABEL_FIELDS.get(table.name)
    return [None] * len(table) if field is None else [str(label) for label in table.column(field)]


def fields_of(table: Table[Any]) -> list[str]:
    """The fields that people read, of those that are columns."""
    shown = COLUMNS.get(table.name)
    if shown is None:
        return [name for name in table.names if not name.endswith(("_row", "_rows", "_event"))]
    return [name for name in shown if name in table.makers and name not in LEFT_OUT]
