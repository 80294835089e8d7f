"""The captures of a journal folded anew, and held against what folding them gave before.

After a capture was folded, its tables are kept beside the journal (``results.py``). Folding it anew with another
version of this package gives tables of the same digests, or else the kept ones tell which records and fields differ.

Rule   a result of an older head is compared with a fold of the events up to that head: a stream only grows, so what
       its events gave once they must still give. A result of other events is stale, and not compared.
Not    which of two different results is right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from journal import Journal, StreamInfo, open_for_reading
from journal.errors import TorchLensError
from projections.accounts.twins import Twins
from projections.columnar import comparison
from projections.columnar.canonical import pack, plain
from projections.columnar.comparison import Change, TableDifference
from projections.columnar.decoding import PackedTable
from torchlens.journals.cache import FileCache, cache_of
from torchlens.journals.folded import Result, fold, unpacked
from torchlens.journals.journal_view import captures_in
from torchlens.journals.results import Receipt, find, has_tables, keep, kept_tables
from torchlens.printable import amount
from torchlens.reading.tabular import frame_of

if TYPE_CHECKING:
    import pandas

__all__ = ["ChangedField", "Difference", "ReprojectedCapture", "Reprojection", "reproject", "reproject_watched"]

Status: TypeAlias = Literal["new", "equal", "different", "stale", "failed"]

MOST_DIFFERENCES: Final = 1000
"""Differences that are listed; the others are counted."""

MOST_FIELDS: Final = 1000
"""Fields whose differences are counted apart: more than there are."""

LONGEST_CELL: Final = 4096
"""Canonical bytes of a cell that is told as it is; a longer one is told by the beginning of its text."""

TOLD: Final = 200
"""Characters of that text."""


@attrs.frozen
class Difference:
    """One cell, record, field or table that is not what it was.

    Attributes:
        stream: The capture's stream.
        capture: Name of the capture.
        table: One of the record tables, or "capture" for its own facts.
        record: Label of the record; None where a whole field or table is meant, and for facts of the capture.
        field: Name of the field; None where a whole record or table is meant.
        change: "changed", or "added" and "removed" for what only the present or only the stored result has.
        before: The stored value; a long one by the beginning of its text.
        after: The value now.
    """

    stream: int
    capture: str | None
    table: str
    record: str | None
    field: str | None
    change: Change
    before: Any
    after: Any


FIELDS: Final = tuple([field.name for field in attrs.fields(Difference)])


@attrs.frozen
class ChangedField:
    """How often one field differs, and the first example.

    Attributes:
        table: One of the record tables, or "capture" for its own facts.
        field: Name of the field; None where whole records or tables are meant.
        change: "changed", "added" or "removed", as in ``Difference``.
        num_differences: In how many records; of a field or table that only one side has, in how many captures.
        num_captures: In how many captures.
        example: The first of them.
    """

    table: str
    field: str | None
    change: Change
    num_differences: int
    num_captures: int
    example: Difference


@attrs.frozen
class ReprojectedCapture:
    """How folding one capture anew went.

    Attributes:
        stream: Its stream.
        name: Its name; None where it was given none.
        num_events: Events that were folded.
        status: "new" where nothing was stored; "equal" or "different" where what was stored is of these events, or of
            the first of them, and was compared; "stale" where it is of other events or in another form; "failed" where
            the events cannot be folded.
        fingerprint: Digest of all its records now; None where it failed.
        stored_fingerprint: Digest of the records that were stored; None where nothing was compared.
        stored_head: Number of events that these were made of.
        stored_by: Version of this package that made them.
        num_differences: Cells, records, fields and tables that differ.
        code: Of the error, where it failed.
        problem: What the error says.
    """

    stream: int
    name: str | None
    num_events: int
    status: Status
    fingerprint: str | None = None
    stored_fingerprint: str | None = None
    stored_head: int | None = None
    stored_by: str | None = None
    num_differences: int = 0
    code: str | None = None
    problem: str | None = None


@attrs.frozen
class Reprojection:
    """What folding a journal anew gave.

    Attributes:
        path: Directory of the journal.
        captures: One entry each, in the order they were made.
        differences: What differs from the stored results: all of it, or the first thousand.
        num_differences: How much differs in all.
        fields: The same by field, all of it counted, in the order in which they were met.
    """

    path: str
    captures: tuple[ReprojectedCapture, ...]
    differences: tuple[Difference, ...]
    num_differences: int
    fields: tuple[ChangedField, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every capture could be folded, and none differs from what was stored."""
        return all(capture.status not in ("different", "failed") for capture in self.captures)

    @property
    def num_uncompared(self) -> int:
        """Captures for which nothing was stored that they could be compared with."""
        return sum(capture.status in ("new", "stale") for capture in self.captures)

    def to_pandas(self) -> pandas.DataFrame:
        """The listed differences, one a row; needs the extra ``pandas``."""
        rows = self.differences
        return frame_of({name: [getattr(one, name) for one in rows] for name in FIELDS}, len(rows))

    def __repr__(self) -> str:
        captures, differing = amount(len(self.captures), "capture"), amount(self.num_differences, "difference")
        return f"<Reprojection {self.path!r}: {captures}, {differing}>"


Watch: TypeAlias = Callable[[Sequence[StreamInfo]], Iterable[StreamInfo]]
"""Hands streams on, one by one, and may show how far it is."""


def reproject(path: str | os.PathLike[str], *, check: bool = False) -> Reprojection:
    """Fold every capture of a journal anew, and compare the records with those stored when that was done last.

    Args:
        path: Directory of the journal.
        check: Compare, and store nothing. By default the records as they are now are stored in the journal's ``cache``
            folder in place of the older ones, so that a later version of this package can be compared with this one.

    Raises:
        JournalError: when there is no journal, or one that cannot be read. A capture that cannot be folded is
            reported by its code, and does not keep the others from being folded.
    """
    return reproject_watched(path, check=check, watch=iter)


def reproject_watched(path: str | os.PathLike[str], *, check: bool, watch: Watch) -> Reprojection:
    """``reproject``, with ``watch`` told of each capture when it is its turn."""
    differences = Differences()
    journal = open_for_reading(path)
    try:
        cache = cache_of(journal)
        twins = Twins()
        captures = [
            folded_anew(journal, info, cache, twins, differences, check=check) for info in watch(captures_in(journal))
        ]
    finally:
        journal.close()
    return Reprojection(
        os.fspath(path), tuple(captures), tuple(differences.listed), differences.count, tuple(differences.by_field())
    )


@attrs.define
class Tally:
    """How often one field differs, so far."""

    example: Difference
    count: int = 0
    captures: int = 0
    last: int | None = None  # stream that it was met in last


class Differences:
    """Differences, counted, also by field, the first of them listed."""

    def __init__(self) -> None:
        self.listed: list[Difference] = []
        self.count = 0
        self.fields: dict[tuple[str, str | None, Change], Tally] = {}

    def by_field(self) -> Iterator[ChangedField]:
        for (table, field, change), tally in self.fields.items():
            yield ChangedField(table, field, change, tally.count, tally.captures, tally.example)

    def add(self, info: StreamInfo, found: Iterable[TableDifference]) -> None:
        for one in found:
            self.count += 1
            tally = self.fields.get((one.table, one.field, one.change))
            is_listed = len(self.listed) < MOST_DIFFERENCES
            if is_listed or (tally is None and len(self.fields) < MOST_FIELDS):
                table, record, field, change, before, after = one
                told = Difference(
                    int(info.stream),
                    info.opened.label,
                    table,
                    brief(record),
                    field,
                    change,
                    brief(before),
                    brief(after),
                )
                if is_listed:
                    self.listed.append(told)
                if tally is None and len(self.fields) < MOST_FIELDS:
                    tally = self.fields[table, field, change] = Tally(told)
            if tally is not None:
                tally.count += 1
                tally.captures += tally.last != info.stream
                tally.last = int(info.stream)


def brief(cell: Any) -> Any:
    """A cell as it is told: one that is long by the beginning of its text."""
    try:
        return cell if len(pack(plain(cell))) <= LONGEST_CELL else f"{str(cell)[:TOLD]}..."
    except (ValueError, RecursionError):  # a stored one, nested deeper than any that is made
        return f"a {type(cell).__name__} that cannot be told"


def folded_anew(
    journal: Journal, info: StreamInfo, cache: FileCache | None, twins: Twins, differences: Differences, *, check: bool
) -> ReprojectedCapture:
    """One capture folded, compared and, unless only checked, kept."""
    stream, name = int(info.stream), info.opened.label
    try:
        now = fold(journal, info, info.head, twins)
        if cache is None:
            return ReprojectedCapture(stream, name, info.head, "new", now.fingerprint)
        receipt, is_stale = find(cache, now.source, info)
        if receipt is None:
            status: Status = "stale" if is_stale else "new"
            made = ReprojectedCapture(stream, name, info.head, status, now.fingerprint)
        else:
            then = now if receipt.head == info.head else fold(journal, info, receipt.head, twins)
            before = differences.count
            if receipt.fingerprint != then.fingerprint:
                differences.add(info, differing(cache, stream, receipt, then))
            made = ReprojectedCapture(
                stream,
                name,
                info.head,
                "equal" if receipt.fingerprint == then.fingerprint else "different",
                now.fingerprint,
                receipt.fingerprint,
                receipt.head,
                receipt.written_by,
                differences.count - before,
            )
        is_kept = made.status == "equal" and made.stored_head == info.head
        if not check and not (is_kept and has_tables(cache, stream, now)):
            keep(cache, stream, now)
        return made
    except TorchLensError as exc:
        return ReprojectedCapture(stream, name, info.head, "failed", code=exc.code, problem=exc.problem)


def differing(cache: FileCache, stream: int, receipt: Receipt, result: Result) -> Iterator[TableDifference]:
    """What differs between a kept result and one of the same events now."""
    kept = kept_tables(cache, stream, receipt, result)
    for name in receipt.tables:
        if name not in result.encoded:
            yield TableDifference(name, None, None, "removed")
    for name, encoded in result.encoded.items():
        if name not in receipt.tables:
            yield TableDifference(name, None, None, "added")
        elif receipt.tables[name][1] != encoded.summary.digest():
            yield from differing_in(kept.get(name), name, result)


def differing_in(before: PackedTable | None, name: str, result: Result) -> Iterator[TableDifference]:
    """The cells that differ in one table; the table alone where its cells are not there to be compared."""
    whole = TableDifference(name, None, None, "changed")
    if before is None:
        yield whole
        return
    try:
        yield from comparison.differences(before, unpacked(result.encoded[name]))
    except (ValueError, RecursionError):  # no canonical form, or nested deeper than any that is made
        yield whole
