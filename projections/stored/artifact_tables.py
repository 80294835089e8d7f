"""Tables that were stored with a capture, read back: columns come from their bytes, when they are read.

Reads  tables in canonical form (columnar/decoding.py), and the events of the forward that were stored beside them.
Gives  ``CaptureTables`` like those that were stored; and, of such ones, what is stored.
Rule   What an event tells is in a table already, so no column is made from events. What needs more than columns (names
       that people type, the nearest op before another) folds the events of the forward when somebody asks.
Rule   Backward passes have left their records and none of their events: what would need these is refused.
Not    where the bytes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Final, NoReturn

from projections.build import CaptureTables, Islands, Projector
from projections.columnar.decoding import PackedTable, table_malformed
from projections.columnar.sequences import Ragged
from projections.columnar.tables import Column, Maker, Table
from projections.columns import COLUMNS, IMPLIED, VERSIONS
from projections.errors import PayloadUnavailableError, over_events
from projections.folds.fold import Source
from projections.forward import Forward
from projections.records.grad_fns import Across
from projections.stored.encoding import EncodedTable, Encoder

OF_PASSES: Final[Mapping[str, frozenset[str]]] = {
    "backward_passes": frozenset(("dispatched_rows",)),
    "grad_fn_calls": frozenset(("dispatched_rows", "backward_duration")),
}
"""Columns that only a stream with its backward passes has: the operators that ran, and the time of each firing. What is
counted and added up of these is in others."""

ACCOUNTED: Final = ("unattributed_rows", "other_trace_rows")
"""Of passes, the operators that are in the account of no firing: these are stored, and named one by one."""


# What is stored ------------------------------------------------------------------------------------


def stored(tables: CaptureTables, whole: CaptureTables) -> Iterator[EncodedTable]:
    """The tables of a capture as an artifact holds them.

    Args:
        tables: Those without what is left out.
        whole: Those of all of the capture: why something has no gradient is told of what had none.

    Raises:
        JournalError: ``records_too_large``.
    """
    encoder = Encoder(tables)
    kept, renumbered = accounted(tables)
    for table in tables.all.values():
        if table.name == "explanations":
            table = whole.explanations
        if table.name == "dispatched_ops":
            table = picked(table, kept)
        elif table.name == "backward_passes" and len(table):
            table = with_columns(table, {name: renumbered[name] for name in ACCOUNTED})
        yield encoder.table(without(table, OF_PASSES.get(table.name, frozenset())))


def accounted(tables: CaptureTables) -> tuple[list[int], Mapping[str, Sequence[tuple[int, ...]]]]:
    """The operators that are stored, and the columns of passes that name them, by their rows among these."""
    passes = tables.backward_passes
    columns = {name: passes.column(name) for name in ACCOUNTED} if len(passes) else {}
    kept = sorted({row for column in columns.values() for rows in column for row in rows})
    place = {row: number for number, row in enumerate(kept)}
    return kept, {name: [tuple([place[row] for row in rows]) for rows in column] for name, column in columns.items()}


def picked(table: Table[Any], rows: Sequence[int]) -> Table[Any]:
    """Some rows of a table."""

    def maker(name: str) -> Maker[Any]:
        return lambda _: [table.value(name, row) for row in rows]

    return Table(table.name, table.version, len(rows), {name: maker(name) for name in table.names}, None)


def with_columns(table: Table[Any], columns: Mapping[str, Column]) -> Table[Any]:
    """A table some of whose columns are others."""
    return Table(
        table.name, table.version, len(table), {name: read_from(table, columns, name) for name in table.names}, None
    )


def read_from(table: Table[Any], columns: Mapping[str, Column], name: str) -> Maker[Any]:
    return lambda _: columns[name] if name in columns else table.column(name)


def without(table: Table[Any], names: Iterable[str]) -> Table[Any]:
    """A table without some columns; one without rows is without none."""
    left_out = frozenset(names) if len(table) else frozenset[str]()
    if not left_out:
        return table
    kept = {name: read_from(table, {}, name) for name in table.names if name not in left_out}
    return Table(table.name, table.version, len(table), kept, None)


# What is read --------------------------------------------------------------------------------------


class StoredTable(Table[Any]):
    """A table whose columns are read from their stored bytes.

    Args:
        packed: The table, its columns unread.
        context: What is asked beside the columns.
    """

    __slots__ = ()

    def __init__(self, packed: PackedTable, context: Any = None) -> None:
        name, rows, columns = packed.summary
        implied = IMPLIED.get(name, frozenset())
        makers: dict[str, Maker[Any]] = {}
        for column in COLUMNS[name]:
            if column in columns:
                makers[column] = reader(packed, column)
            elif column in implied:
                makers[column] = self.implied(column)
        super().__init__(name, VERSIONS[name], rows, makers, context)

    def column(self, name: str) -> Column:
        """A whole column. A name that no such table has is a ``KeyError``.

        Raises:
            PayloadUnavailableError: ``column_not_stored``.
            EncodingError: ``encoding_malformed``.
        """
        if name not in self.makers and name in COLUMNS[self.name]:
            raise PayloadUnavailableError(
                code="column_not_stored",
                problem=f"{name!r} of the {self.name.replace('_', ' ')} is known of a live or journaled capture alone",
                remedy="capture with journal=, which keeps every event, and read it there",
                table=self.name,
                column=name,
            )
        return super().column(name)

    def value(self, name: str, row: int) -> Any:
        with over_events():  # a row that another column names may be none of this table
            return super().value(name, row)

    def implied(self, name: str) -> Maker[Any]:
        """How a column is made that others tell: of the graph of autograd, the labels of nodes beside each."""
        there, back = ("parent_rows", "child_rows") if name == "siblings" else ("child_rows", "parent_rows")
        return lambda _: Across(self.column("label"), ragged(self.column(there)), ragged(self.column(back)))


def reader(packed: PackedTable, name: str) -> Maker[Any]:
    return lambda _: checked(name, packed.column(name))


TEXTS: Final = frozenset(("kind", "label", "reason", "subject"))
"""Columns of texts, by which records are told apart and found."""


def checked(name: str, cells: list[Any]) -> list[Any]:
    """A column as it was read, if what other columns refer to rows by is what refers to rows.

    Raises:
        EncodingError: ``encoding_malformed``.
    """
    kinds = frozenset(map(type, cells))
    if name.endswith("_row"):
        is_sound = kinds <= ROW
    elif name.endswith(("_rows", "figures")):
        is_sound = kinds <= SEVERAL
        if is_sound and name.endswith("_rows"):
            inner = chain.from_iterable(cell for cell in cells if cell is not None)
            is_sound = frozenset(map(type, inner)) <= ROW | SEVERAL
    else:
        is_sound = name not in TEXTS or kinds <= TEXT
    if not is_sound:
        raise table_malformed(f"the column {name!r} holds what it never does")
    return cells


ROW: Final = frozenset((int, type(None)))
SEVERAL: Final = frozenset((tuple, type(None)))
TEXT: Final = frozenset((str, type(None)))
"""Types of a number of a row, of several of these, and of a text."""


def ragged(column: Column) -> Ragged[int]:
    return Ragged(list(chain.from_iterable(column)), [0, *accumulate(map(len, column))])


class StoredReasons:
    """Where in the table of explanations something stands.

    Args:
        table: That table.
    """

    def __init__(self, packed: PackedTable) -> None:
        self.packed: Final = packed

    @cached_property
    def places(self) -> Mapping[tuple[bool, int], int]:
        kinds, rows = self.packed.column("kind"), self.packed.column("row")
        return {(kind == "parameter", row): place for place, (kind, row) in enumerate(zip(kinds, rows, strict=True))}

    def place(self, row: int, *, is_param: bool) -> int | None:
        """Where an op row or a parameter is explained; None where it has a gradient."""
        return self.places.get((is_param, row))


def diary_not_stored() -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="diary_not_stored",
        problem="this needs the events of backward passes, and an artifact holds what followed from them alone",
        remedy="ask the live trace, or capture with journal=, which keeps them, and ask tl.load(journal)",
    )


class ForwardWithoutDiary(Forward):
    """A forward with backward passes behind it of which no event is there: what they told is refused, and with it all
    that is worked out of that.

    Args:
        forward: The forward, as its own events tell it.
    """

    def __init__(self, forward: Forward) -> None:
        super().__init__(
            *(forward.source, forward.head, forward.words, forward.course, forward.rows, forward.calls, forward.names),
            *(forward.payloads, forward.transformed, forward.measured, forward.constants, forward.without_row),
            *(forward.saved, forward.beside),
            witnessed=forward.witnessed,
            checkpoints=forward.checkpoints,
        )

    @property
    def backward(self) -> NoReturn:
        raise diary_not_stored()


class StoredTables(CaptureTables):
    """The tables of a capture as they were stored.

    Args:
        tables: Each by name, packed.
        projector: Folds the stored events, which are those of the forward.
    """

    has_diary = False

    def __init__(self, tables: Mapping[str, PackedTable], projector: Projector) -> None:
        super().__init__(projector.source.head())
        self.packed: Final = tables
        self.projector: Final = projector
        for name, packed in tables.items():
            setattr(self, name, StoredTable(packed, StoredReasons(packed) if name == "explanations" else None))

    @cached_property
    def folded(self) -> CaptureTables:
        """The tables of the forward alone, folded from its events."""
        return self.projector.tables()

    @property
    def forward(self) -> Forward:
        """What the tables of the forward are computed from, folded when first asked for; refuses what would need the
        events of backward passes."""
        return self.without_diary if self.backward_passes.count else self.folded.forward

    @cached_property
    def without_diary(self) -> Forward:
        return ForwardWithoutDiary(self.folded.forward)

    def require_writable(self) -> None:
        """They are as large as they were stored."""

    @property
    def islands(self) -> Islands:
        return self.of_islands

    @cached_property
    def of_islands(self) -> Islands:
        return Islands(self, self.folded.orphans)

    def explained(self, only: int | None) -> Table[Any]:
        """Why what has no gradient has none, of all backward passes; of one alone where it is the only one."""
        if only is not None and self.backward_passes.count != 1:
            raise diary_not_stored()
        return self.explanations


class Overlaid(StoredTables):
    """Stored tables, with those columns that follow from the events of the forward, where these have become others.

    Args:
        tables: The stored tables.
        projector: Folds the events as they have become.
    """

    def __init__(self, tables: StoredTables, projector: Projector) -> None:
        super().__init__(tables.packed, projector)
        before, after = Encoder(tables.folded), Encoder(self.folded)
        for table in tables.folded.all.values():
            now = self.folded.table(table.name)
            columns = after.table(now).summary.columns
            differ = [name for name, digest in before.table(table).summary.columns.items() if columns[name] != digest]
            if differ:
                told = {name: now.column(name) for name in differ}
                setattr(self, table.name, with_columns(self.table(table.name), told))


class StoredProjector(Projector):
    """The tables of a stored capture, and the moments of its forward.

    Args:
        tables: Each by name, packed.
        source: The stored events.
    """

    def __init__(self, tables: Mapping[str, PackedTable], source: Source) -> None:
        super().__init__(source)
        self.stored: Final = StoredTables(tables, Projector(source))
        self.built = self.stored

    def tables(self, at: int | None = None) -> CaptureTables:
        """The stored tables; of fewer events than there are, what folding these gives."""
        if at is None or at >= self.stored.head:
            return self.stored
        return super().tables(at)
