"""What a record is: a facade, that is a trace, a table and a row.

A record holds no fact of its own; each field reads its column when asked. Two facades of one row are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar, overload

from typing_extensions import Self

from projections.errors import over_events
from torchlens.printable import printable
from torchlens.reading.lookup import LABELS
from torchlens.reading.view import View, not_copied

__all__ = ["Field", "Readable", "Record", "pass_through", "public_names"]

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
        if self.trace.projector is None:
            return f"<{type(self).__name__} of {self.trace!r}>"
        with over_events():
            text = f"<{type(self).__name__} {self.read(LABELS[self.table_name])}{self.about()}>"
        return printable(text)

    def about(self) -> str:
        """What the short form says behind the label."""
        return ""

    def __reduce__(self) -> NoReturn:
        raise not_copied("a record of a trace", self.trace.journal.path)

    def __copy__(self) -> Self:
        return type(self)(self.trace, self.row)

    def __dir__(self) -> list[str]:
        return public_names(type(self))


def public_names(kind: type) -> list[str]:
    """What a reader may ask of a record: its fields, and its methods that are not how it is made."""
    kept = {"trace", *(name for name in dir(kind) if not name.startswith("_"))}
    return sorted(kept - INSIDE)


INSIDE: Final = frozenset(
    (
        *("about", "first_place", "live", "nth", "only_output", "read", "row", "table_name"),
        *("as_captured", "changed", "embedded", "quiet_grad", "told"),
    )
)
"""Names of records that are for other parts of the package, and in no ``dir``."""


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


def pass_through(outer: type, inner: type, field: Callable[[str], Field[Any]], of_what: str) -> None:
    """Give a record every field of the only pass or call in it that it has no answer of its own to.

    Args:
        outer: Class of the record of all passes or calls.
        inner: Class of that of one.
        field: Makes the field that asks that one, or refuses, from its docstring.
        of_what: Of what it is a field, as the docstring begins.
    """
    for name in public_names(inner):
        told = getattr(inner, name, None)
        if not hasattr(outer, name) and isinstance(told, (Field, property)):
            made = field(f"{of_what}: {told.__doc__}")
            made.__set_name__(outer, name)
            setattr(outer, name, made)
