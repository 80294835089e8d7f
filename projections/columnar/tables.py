"""Columnar tables: a column is made when it is first read, a record is a table and a row.

``CaptureTables`` is what everything a user reads of one forward capture comes from. Its columns are
listed in ``columns.py``, each with its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from projections.errors import over_events

Context = TypeVar("Context")

# What a cell holds differs from column to column; the list of columns says what.
Column = Sequence[Any]

Maker = Callable[[Context], Column]
"""Makes a column from what the tables of one capture are computed from."""


class Table(Generic[Context]):
    """Columns of one length, by name.

    Args:
        name: What the table is called.
        version: Raised whenever the same events may give other cells (``columns.VERSIONS``).
        count: Number of rows.
        makers: How each column is made, in the order of the table.
        context: What they are made from.
    """

    __slots__ = ("context", "count", "made", "makers", "name", "version")

    def __init__(
        self, name: str, version: int, count: int, makers: Mapping[str, Maker[Context]], context: Context
    ) -> None:
        self.name: Final = name
        self.version: Final = version
        self.count: Final = count
        self.makers = makers
        self.context = context
        self.made: dict[str, Column] = {}

    def __len__(self) -> int:
        return self.count

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.makers)

    def column(self, name: str) -> Column:
        """A whole column. A name the table does not have is a ``KeyError``.

        Raises:
            JournalCorrupt: ``events_contradictory``, here or when a cell is read.
        """
        made = self.made.get(name)
        if made is None:
            maker = self.makers[name]
            with over_events():
                made = self.made[name] = maker(self.context)
        return made

    def value(self, name: str, row: int) -> Any:
        """One cell."""
        made = self.made.get(name)
        if made is None:
            made = self.column(name)
        return made[row]

    def row(self, row: int) -> dict[str, Any]:
        """All cells of a row."""
        return {name: self.value(name, row) for name in self.makers}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row, as ``row`` gives it."""
        columns = {name: self.column(name) for name in self.makers}
        for row in range(self.count):
            yield {name: column[row] for name, column in columns.items()}

    def __repr__(self) -> str:
        return f"<Table {self.name}: {self.count} rows, {len(self.makers)} columns>"
