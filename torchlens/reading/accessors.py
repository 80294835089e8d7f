"""The typed collections: ``trace.ops``, ``.layers``, ``.modules``, ``.module_calls``, ``.params``, ``.buffers``.

Each holds rows of one table and makes a record when one is asked for. A collection takes a position
(negative ones from the end), a slice (which gives a list) or a label, tells ``in`` by label, iterates
over records, and has ``labels``, ``keys``, ``values``, ``items``, ``find``, ``head`` and ``to_pandas``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from typing_extensions import Self

from projections.selecting.selector import is_count
from torchlens.errors import LookupRefused
from torchlens.printable import amount, printable
from torchlens.reading.lookup import KINDS, LABELS, at_position, sliced
from torchlens.reading.tabular import COLUMNS, data_frame
from torchlens.reading.view import View

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Accessor",
    "BufferAccessor",
    "ConditionalAccessor",
    "ExplanationAccessor",
    "LayerAccessor",
    "ModuleAccessor",
    "ModuleCallAccessor",
    "OpAccessor",
    "OrphanAccessor",
    "ParamAccessor",
]

R = TypeVar("R")


class Accessor(Sequence[R], Generic[R]):
    """Records of one kind, in the order of their table.

    ``rows`` picks some of them; None means all there are, also those that come to be later.
    """

    table_name: ClassVar[str]

    def __init__(self, trace: View, rows: Sequence[int] | None = None) -> None:
        self.trace = trace
        self.chosen = rows

    @property
    def rows(self) -> Sequence[int]:
        return range(len(self.trace.table(self.table_name))) if self.chosen is None else self.chosen

    @property
    def labels(self) -> tuple[str, ...]:
        """The lookup label of each member."""
        return tuple(self.column(LABELS[self.table_name]))

    def column(self, name: str) -> list[Any]:
        """One column of the table, for the members."""
        column = self.trace.table(self.table_name).column(name)
        return list(column) if self.chosen is None else [column[row] for row in self.rows]

    # -- reading

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[R]:
        for row in self.rows:
            yield self.trace.record(self.table_name, row)

    @overload
    def __getitem__(self, key: int | str) -> R: ...

    @overload
    def __getitem__(self, key: slice) -> list[R]: ...

    def __getitem__(self, key: int | slice | str) -> R | list[R]:
        if isinstance(key, str):
            return self.labelled(key)
        if isinstance(key, slice):
            return [self.record(row) for row in sliced(self.rows, key, KINDS[self.table_name])]
        rows = self.rows
        return self.record(rows[at_position(key, len(rows), KINDS[self.table_name])])

    def record(self, row: int) -> R:
        made: R = self.trace.record(self.table_name, row)
        return made

    def labelled(self, key: str) -> R:
        row = self.row_of(key)
        if row is None or (self.chosen is not None and row not in self.rows):
            self.trace.index().missing(key, self.table_name)
        return self.record(row)

    def row_of(self, key: str) -> int | None:
        """The row that ``key`` names exactly in this collection's own terms; None where it names none.

        Raises:
            AmbiguousOpLookupError: when it names several.
        """
        index = self.trace.index()
        rows = index.door(self.table_name).get(key)
        if rows is None:
            rows = index.door(self.table_name).get(index.canonical(key))
        return None if rows is None else index.only(key, self.table_name, rows)

    def __contains__(self, key: object) -> bool:
        """Whether a label, or a record, is a member."""
        if not isinstance(key, str):
            place = (getattr(key, "trace", None), getattr(key, "table_name", None))
            return place == (self.trace, self.table_name) and getattr(key, "row", None) in self.rows
        try:
            row = self.row_of(key)
        except LookupRefused:
            return False
        return row is not None and (self.chosen is None or row in self.rows)

    def keys(self) -> tuple[str, ...]:
        return self.labels

    def values(self) -> list[R]:
        return list(self)

    def items(self) -> list[tuple[str, R]]:
        return list(zip(self.labels, self, strict=True))

    def find(self, text: str) -> Self:
        """The members whose label holds ``text``, ignoring case."""
        if not isinstance(text, str):
            raise LookupRefused(
                code="lookup_key_type_invalid",
                problem=f"a {type(text).__name__} is part of no label",
                remedy="give a text; a position or slice goes into brackets",
                received_type=type(text).__name__,
            )
        part = text.casefold()
        rows = zip(self.labels, self.rows, strict=True)
        return type(self)(self.trace, [row for label, row in rows if part in label.casefold()])

    def head(self, n: int = 5) -> Self:
        """The first ``n`` members."""
        return type(self)(self.trace, sliced(self.rows, slice(n), KINDS[self.table_name]))

    def where(self, test: Callable[[R], bool]) -> Self:
        """The members for which ``test`` is true."""
        return type(self)(self.trace, [row for row in self.rows if test(self.record(row))])

    def to_pandas(self) -> pandas.DataFrame:
        """One row per member, plain numbers for quantities, None for what is refused; needs pandas."""
        return self.frame(COLUMNS[self.table_name])

    def frame(self, columns: Sequence[str]) -> pandas.DataFrame:
        """Some columns and fields as a data frame."""
        return data_frame(self.trace.table(self.table_name), columns, self.rows, self)

    # -- how it looks

    def __repr__(self) -> str:
        if self.trace.projector is None:
            return f"<{KINDS[self.table_name]}s of {self.trace!r}>"
        count = len(self)
        shown = printable(", ".join(map(str, self.labels[:5])))
        more = ", ..." if count > 5 else ""
        return f"<{amount(count, KINDS[self.table_name])}{': ' + shown + more if count else ''}>"

    # -- helpers for the filters

    def having(self, column: str, wanted: bool = True) -> Self:
        """The members whose ``column`` is true, or, unless ``wanted``, those whose is not."""
        values = self.trace.table(self.table_name).column(column)
        return type(self)(self.trace, [row for row in self.rows if bool(values[row]) is wanted])


class ComputedAccessor(Accessor[R]):
    """What ops and layers have in common: the part each plays in the forward."""

    is_compute: ClassVar[str]
    """The column that tells what is neither input, output nor buffer."""

    @property
    def compute(self) -> Self:
        """Those that are neither input, output nor buffer."""
        return self.having(self.is_compute)

    @property
    def inputs(self) -> Self:
        """The inputs of the model."""
        return self.having("is_input")

    @property
    def outputs(self) -> Self:
        """The outputs of the model."""
        return self.having("is_output")

    @property
    def buffers(self) -> Self:
        """The versions of buffers."""
        return self.having("is_buffer")

    @property
    def saved(self) -> Self:
        """Those whose activation was kept, or what ``SaveOptions`` made of it; of a layer, that of some pass."""
        return self.having("has_saved_payload")


class OpAccessor(ComputedAccessor[R]):
    """Ops; a label that several passes share is refused with ``ambiguous_op_lookup``."""

    table_name = "ops"
    is_compute = "is_compute_op"

    def labelled(self, key: str) -> R:
        index = self.trace.index()
        row = self.row_of(key)
        if row is None:
            found = index.pass_token(index.canonical(key), index.door)
            if found is not None and found.table == "ops":
                if self.chosen is not None:
                    found = found._replace(rows=tuple(row for row in found.rows if row in self.chosen))
                if found.rows:
                    op: R = self.trace.found(found)
                    return op
        if row is None or (self.chosen is not None and row not in self.chosen):
            index.missing(key, "ops")
        return self.record(row)


class ConditionalAccessor(Accessor[R]):
    """Conditionals, by id."""

    table_name = "conditionals"


class ExplanationAccessor(Accessor[R]):
    """Why what has no gradient has none, by op label or parameter address; ops come first.

    A part of them (``find``, ``where``) is of the same ops and parameters from then on, without those that a later
    backward pass brings a gradient.
    """

    table_name = "explanations"

    def __init__(self, trace: View, rows: Sequence[int] | None = None) -> None:
        super().__init__(trace, rows)
        table = None if rows is None else trace.table(self.table_name)
        columns = () if table is None else (table.column("kind"), table.column("row"))
        self.subjects = [tuple(column[place] for column in columns) for place in rows or ()]

    @property
    def rows(self) -> Sequence[int]:
        if self.chosen is None:
            return super().rows
        place = self.trace.table(self.table_name).context.place
        found = [place(row, is_param=kind == "parameter") for kind, row in self.subjects]
        return [one for one in found if one is not None]

    def row_of(self, key: str) -> int | None:
        row = super().row_of(key)
        if row is None:  # another name of a parameter
            params = self.trace.index().door("params").get(key, ())
            place = self.trace.table(self.table_name).context.place
            row = place(params[0], is_param=True) if len(params) == 1 else None
        return row

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) if isinstance(key, str) else key in list(self)


class OrphanAccessor(Accessor[R]):
    """Ops that are linked to no input and no output, by their raw label."""

    table_name = "orphans"


class LayerAccessor(ComputedAccessor[R]):
    """Layers, by label or by label without its total."""

    table_name = "layers"
    is_compute = "is_compute_layer"

    def row_of(self, key: str) -> int | None:
        row = super().row_of(key)
        if row is None:
            rows = self.trace.index().door("short labels").get(key)
            row = rows[0] if rows else None
        return row

    @property
    def recurrent(self) -> Self:
        """Those with several passes."""
        passes = self.trace.table("layers").column("num_passes")
        return type(self)(self.trace, [row for row in self.rows if passes[row] > 1])


class ModuleAccessor(Accessor[R]):
    """Modules, by any of their addresses (``"self"`` or ``""`` for the root) or by one of their calls."""

    table_name = "modules"

    def row_of(self, key: str) -> int | None:
        row = super().row_of(key)
        if row is None:
            index = self.trace.index()
            call = index.door("module_calls").get(index.canonical(key))
            row = self.trace.table("module_calls").value("module_row", call[0]) if call else None
        return row

    @property
    def called(self) -> Self:
        """Those that the forward called."""
        return self.having("num_calls")

    @property
    def uncalled(self) -> Self:
        """Those that it did not call."""
        return self.having("num_calls", wanted=False)


class ModuleCallAccessor(Accessor[R]):
    """Module calls in order of entry, by call label; by address where the module was called once."""

    table_name = "module_calls"

    def row_of(self, key: str) -> int | None:
        row = super().row_of(key)
        if row is not None:
            return row
        index = self.trace.index()
        address, colon, token = key.rpartition(":")
        module = index.door("modules").get(address if colon else key)
        if module is None:
            return None
        calls = tuple(self.trace.table("modules").value("call_rows", module[0]))
        if not colon:
            return index.only(key, "module_calls", calls) if calls else None
        if token == "last" and calls:
            return calls[-1]
        if is_count(token):
            index.pass_out_of_range(key, address, len(calls))
        return None


class ParamAccessor(Accessor[R]):
    """Parameters, by any of their addresses, or by their last name where only one has it."""

    table_name = "params"

    @property
    def trainable(self) -> Self:
        """Those that required a gradient at capture."""
        return self.having("is_trainable")

    @property
    def frozen(self) -> Self:
        """Those that did not."""
        return self.having("is_trainable", wanted=False)

    @property
    def used(self) -> Self:
        """Those that some op took."""
        return self.having("num_calls")

    @property
    def unused(self) -> Self:
        """Those that no op took."""
        return self.having("num_calls", wanted=False)


class BufferAccessor(Accessor[R]):
    """Buffers, by any of their addresses, or by their last name where only one has it."""

    table_name = "buffers"

    @property
    def overwritten(self) -> Self:
        """Those that the forward wrote."""
        return self.having("is_overwritten")
