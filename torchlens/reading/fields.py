"""What a record is: a facade, that is a trace, a table and a row.

A record holds no fact of its own; each field reads its column when asked. Two facades of one row are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from projections.errors import over_events
from torchlens.printable import printable
from torchlens.reading.lookup import LABELS
from torchlens.reading.view import View

__all__ = ["Field", "Readable", "Record"]

T = TypeVar("T")


class Record:
    """A row of a table of a trace."""

    __slots__ = ("row", "trace")

    table_name: ClassVar[str]

    trace: View
    row: int

    def __init__(self, trace: View, row: int) -> None:
        self.trace = trace
        self.row = row

    def read(self, column: str) -> Any:
        """The value of one column in this row, as the table holds it."""
        return self.trace.table(self.table_name).value(column, self.row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self.row == other.row and self.table_name == other.table_name and self.trace is other.trace

    def __hash__(self) -> int:
        return hash((id(self.trace), self.table_name, self.row))

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__} {self.read(LABELS[self.table_name])}{self.about()}>")

    def about(self) -> str:
        """What the short form says behind the label."""
        return ""


class Readable(Protocol):
    """What has columns: a record, or a trace with its facts."""

    def read(self, column: str) -> Any:
        """The value of one column, as the table holds it."""
        ...


class Field(Generic[T]):
    """A column read as an attribute, in one line: ``name = Field[str]("Last part of its address.")``.

    ``make`` turns the stored value into what the reader gets; None stays None.
    """

    def __init__(self, doc: str, make: Callable[[Any], Any] | None = None) -> None:
        self.__doc__ = doc
        self.make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, cls: type) -> Field[T]: ...

    @overload
    def __get__(self, owner: Readable, cls: type) -> T: ...

    def __get__(self, owner: Readable | None, cls: type) -> Field[T] | T:
        return self if owner is None else self.value(owner)

    def value(self, owner: Any) -> T:
        stored = owner.read(self.name)
        if self.make is None or stored is None:
            plain: T = stored
            return plain
        with over_events():
            made: T = self.make(stored)
            return made
