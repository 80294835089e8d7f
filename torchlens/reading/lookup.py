"""The one lookup order behind ``trace[...]`` and behind every typed collection.

Reads  the finished tables: labels, addresses and the keys of each op.
Gives  which table and which rows a key names; never a record, so that it stands below them.
Rule   a string is tried as a module alias, a layer label, another op key, a label of each
       collection in turn, the same ignoring case, and last as a substring of one op's keys.
Not    what a selector matches (projections.selecting.selector), or which class stands for a row (records).
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from projections import CaptureTables, Table
from projections.folds.vocabulary import ROOT
from projections.selecting.selector import RAW_TAIL, is_count
from torchlens.errors import AmbiguousOpLookupError, IndexOutOfRange, LookupRefused

__all__ = ["KINDS", "LABELS", "Found", "Index", "at_position", "near_misses", "sliced", "whole"]

T = TypeVar("T")

MOST_NAMED: Final = 6
"""How many candidates a message lists before it says how many more there are."""

MOST_COMPARED: Final = 3_000
"""How many keys are compared to find near misses: the comparison costs some microseconds each."""

KINDS: Final[Mapping[str, str]] = {
    "ops": "op",
    "layers": "layer",
    "modules": "module",
    "module_calls": "module call",
    "params": "parameter",
    "buffers": "buffer",
    "conditionals": "conditional",
    "explanations": "explanation",
    "orphans": "orphan",
    "backward_passes": "backward pass",
    "grad_fns": "grad_fn",
    "grad_fn_calls": "grad_fn call",
    "dispatched_ops": "dispatched operator",
    "gradients": "gradient record",
}


LABELS: Final[Mapping[str, str]] = {
    "ops": "label",
    "layers": "layer_label",
    "modules": "address",
    "module_calls": "call_label",
    "params": "address",
    "buffers": "address",
    "conditionals": "id",
    "explanations": "subject",
    "orphans": "label",
    "backward_passes": "pass_index",
    "grad_fns": "label",
    "grad_fn_calls": "call_label",
    "dispatched_ops": "name",
    "gradients": "backward_pass_index",
}
"""The column of each table whose values are its lookup labels."""


class Found(NamedTuple):
    """What a key names: one row of a table, or, with ``every``, all passes in order."""

    source: str  # the key
    table: str
    rows: tuple[int, ...]
    every: bool = False

    @property
    def row(self) -> int:
        return self.rows[0]


Door = Mapping[str, tuple[int, ...]]


class Index:
    """The keys of one state of a trace's tables, gathered when first asked for."""

    def __init__(self, tables: CaptureTables) -> None:
        self.tables = tables
        self.doors: dict[str, Door] = {}
        self.folded: dict[str, Door] = {}

    def find(self, key: str) -> Found:
        """What ``trace[key]`` names, in the order of the module header.

        Raises:
            LookupRefused: ``op_lookup_not_found``, ``ambiguous_op_lookup``,
                ``ambiguous_record_lookup`` or ``op_lookup_pass_out_of_range``.
        """
        return self.exact(key) or self.ignoring_case(key) or self.substring(key) or self.missing(key)

    def exact(self, key: str) -> Found | None:
        key = self.canonical(key)
        return self.through_doors(key, self.door) or self.pass_token(key, self.door)

    def ignoring_case(self, key: str) -> Found | None:
        key = self.canonical(key).casefold()
        return self.through_doors(key, self.folded_door) or self.pass_token(key, self.folded_door)

    def through_doors(self, key: str, door: Callable[[str], Door]) -> Found | None:
        for name in ("layers", "ops", "modules", "module_calls", "params", "buffers", "grad_fns", "grad_fn_calls"):
            rows = door(name).get(key)
            if rows is not None:
                return Found(key, name, (self.only(key, name, rows),))
        return None

    def only(self, key: str, table: str, rows: tuple[int, ...]) -> int:
        if len(rows) == 1:
            return rows[0]
        self.ambiguous(key, table, rows)

    def canonical(self, key: str) -> str:
        """``key`` with a module alias before its pass token replaced by the module's address."""
        name, colon, token = key.rpartition(":")
        if colon:
            return f"{self.tables.aliases.get(name, name)}:{token}"
        return self.tables.aliases.get(key, key)

    def pass_token(self, key: str, door: Callable[[str], Door]) -> Found | None:
        """``base:2``, ``base:last`` and ``base:all`` after a layer label, short label, module or buffer address."""
        base, colon, token = key.rpartition(":")
        if not colon or not (token in ("last", "all") or is_count(token)):
            return None
        passes = self.passes(base, door)
        if passes is None:
            return None
        table, per_pass = passes
        if token == "all" and table == "grad_fn_calls":
            return None  # a firing is no site; trace.autograd.grad_fns[base].calls has them all
        if token == "all":
            if table == "module_calls":
                per_pass = [self.tables.module_calls.value("output_op_rows", call) for (call,) in per_pass]
            return Found(key, "ops", tuple(row for rows in per_pass for row in rows), every=True)
        number = len(per_pass) if token == "last" else int(token)
        if not 1 <= number <= len(per_pass):
            self.pass_out_of_range(key, base, len(per_pass), has_all=table != "grad_fn_calls")
        return Found(key, table, (self.only(key, table, per_pass[number - 1]),))

    def passes(self, base: str, door: Callable[[str], Door]) -> tuple[str, list[tuple[int, ...]]] | None:
        """The rows of each pass of what ``base`` names; None where it names nothing that has passes."""
        tables = self.tables
        layer = door("layers").get(base) or door("short labels").get(base)
        if layer is not None:
            return "ops", [(row,) for row in tables.layers.value("op_rows", self.only(base, "layers", layer))]
        module = door("modules").get(base)
        if module is not None:
            calls = tables.modules.value("call_rows", self.only(base, "modules", module))
            outputs = [tuple(tables.module_calls.value("output_op_rows", call)) for call in calls]
            is_root = tables.modules.value("address", module[0]) == ROOT
            if is_root or not all(outputs):
                return "module_calls", [(call,) for call in calls]
            return "ops", outputs
        buffer = door("buffers").get(base)
        if buffer is not None:
            return "ops", [(row,) for row in tables.buffers.value("version_rows", self.only(base, "buffers", buffer))]
        node = door("grad_fns").get(base)
        if node is not None:
            calls = tables.table("grad_fns").value("call_rows", self.only(base, "grad_fns", node))
            return "grad_fn_calls", [(row,) for row in calls]
        return None

    def substring(self, key: str) -> Found | None:
        part = key.casefold()
        if not part:
            return None
        hits = self.holding(part)
        return Found(key, "ops", (self.only(key, "ops", tuple(sorted(hits))),)) if hits else None

    def holding(self, part: str) -> set[int]:
        """The ops that have a key with this text in it, ignoring case; raw labels are keys as a whole alone."""
        part = part.casefold()
        keys = self.folded_door("ops").items()
        return {row for name, rows in keys if part in name and not name.endswith(RAW_TAIL) for row in rows}

    def later(self, key: str) -> str | None:
        """That something comes later, in a sentence, where the tables are those of a trace in the past; else None."""
        return None

    # -- the keys of each collection

    def door(self, name: str) -> Door:
        """Every key of one collection and the rows it names; several rows make the key ambiguous."""
        made = self.doors.get(name)
        if made is None:
            made = self.doors[name] = self.open_door(name)
        return made

    def folded_door(self, name: str) -> Door:
        """The same ignoring case."""
        made = self.folded.get(name)
        if made is None:
            folded: dict[str, dict[int, None]] = {}
            for key, rows in self.door(name).items():
                folded.setdefault(key.casefold(), {}).update(dict.fromkeys(rows))
            made = self.folded[name] = {key: tuple(rows) for key, rows in folded.items()}
        return made

    def open_door(self, name: str) -> Door:
        tables = self.tables
        if name == "ops":
            return tables.keys
        if name == "layers":
            return numbered(tables.layers.column("layer_label"))
        if name == "short labels":
            return numbered(tables.layers.column("layer_label_short"))
        if name == "module_calls":
            return numbered(tables.module_calls.column("call_label"))
        if name == "conditionals":
            return numbered(tables.conditionals.column("id"))
        if name == "explanations":
            return numbered(tables.explanations.column("subject"))
        if name == "orphans":
            return numbered(tables.orphans.column("label"))
        if name in ("grad_fns", "grad_fn_calls"):
            return numbered(tables.table(name).column(LABELS[name]))
        if name == "dispatched_ops":  # for near misses: several have one name
            return numbered(tables.dispatched_ops.column("name"))
        if name in ("backward_passes", "gradients"):  # a pass has a number and no label
            return {}
        if name == "modules":
            rows = numbered(tables.modules.column("address"))
            return {alias: rows[address] for alias, address in tables.aliases.items() if address in rows}
        table = tables.params if name == "params" else tables.buffers
        return {**by_last_name(table), **with_aliases(table)}

    # -- refusals

    def ambiguous(self, key: str, table: str, rows: Sequence[int]) -> NoReturn:
        column = LABELS[table]
        names = [self.tables.table(table).value(column, row) for row in rows]
        raise AmbiguousOpLookupError(
            code="ambiguous_op_lookup" if table == "ops" else "ambiguous_record_lookup",
            problem=f"{key!r} names {len(rows)} {KINDS[table]}s: {listed(names)}",
            remedy=f"ask for one of them by its whole {column.replace('_', ' ')}",
            key=key,
            candidates=tuple(names),
        )

    def pass_out_of_range(self, key: str, base: str, count: int, *, has_all: bool = True) -> NoReturn:
        last = f" to {f'{base}:{count}'!r}" if count > 1 else ""
        every = f", or for all, {base + ':all'!r}" if has_all else ""
        raise IndexOutOfRange(
            code="op_lookup_pass_out_of_range",
            problem=f"{key!r} asks for a pass that {base!r} does not have: it has {count}",
            remedy=f"ask for {base + ':1'!r}{last}{every}" if count else "ask for something that was called",
            key=key,
            num_passes=count,
        )

    def missing(self, key: str, table: str | None = None) -> NoReturn:
        """Refuse a key that names nothing, in the whole trace or in one table."""
        everywhere = ("layers", "modules", "params", "buffers", "ops", "module_calls", "grad_fns", "grad_fn_calls")
        names = everywhere if table is None else (table,)
        near = near_misses(key, (self.door(name) for name in names))
        ops = len(self.tables.ops)
        if table is None:
            kinds = "a position, a label, a module address or call, a parameter or buffer address, or a selector"
            valid = f"positions go from {-ops} to {ops - 1}" if ops else "there are no ops"
        else:
            kind, column = KINDS[table], LABELS[table]
            what = column if column in ("address", "id") else "label"
            kinds = f"the {what} of {'an' if kind[0] in 'aeiou' else 'a'} {kind}, or a position"
            valid = "its .labels lists what is there"
        hint = f"did you mean {listed(near)}? " if near else ""
        raise LookupRefused(
            code="op_lookup_not_found" if table in (None, "ops") else "record_lookup_not_found",
            problem=f"{key!r} names no {'record of this trace' if table is None else KINDS[table]}",
            remedy=f"{hint}Give {kinds}; {valid}",
            key=key,
            suggestions=tuple(near),
        )


def at_position(key: object, count: int, what: str) -> int:
    """The position that ``key`` names, counted from the front; refused where there is no such one."""
    try:
        position = operator.index(key)  # type: ignore[arg-type]  # whether it is a number is the question
    except TypeError as exc:
        raise LookupRefused(
            code="lookup_key_type_invalid",
            problem=f"a {type(key).__name__} names no {what}",
            remedy="give a position, a slice or a text; a trace takes a selector too",
            received_type=type(key).__name__,
        ) from exc
    if -count <= position < count:
        return position % count
    raise IndexOutOfRange(
        code="op_lookup_index_out_of_range" if what == "op" else "record_lookup_index_out_of_range",
        problem=f"there is no {what} at position {position}: there are {count}",
        remedy=f"ask for a position from {-count} to {count - 1}" if count else "there is nothing to ask for",
        position=position,
        count=count,
    )


def whole(number: object) -> int | None:
    """A number as ``int``, NumPy's too; None for a boolean and what else is no whole number, as a float or a tensor."""
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else None


def sliced(rows: Sequence[T], key: slice, what: str) -> Sequence[T]:
    """The part of ``rows`` that a slice names; refused where it is no slice of numbers."""
    try:
        return rows[key]
    except (TypeError, ValueError) as exc:
        raise LookupRefused(
            code="lookup_slice_invalid",
            problem=f"{key!r} names no {what}s: {exc}",
            remedy="give whole numbers or None, and a step other than 0",
            key=repr(key),
        ) from exc


def numbered(labels: Iterable[str]) -> Door:
    return {label: (row,) for row, label in enumerate(labels)}


def with_aliases(table: Table[Any]) -> dict[str, tuple[int, ...]]:
    """Rows by address, and by every other name where no address claims it."""
    keys: dict[str, tuple[int, ...]] = {}
    for row, names in enumerate(table.column("all_addresses")):
        for name in names:
            keys[name] = (*keys.get(name, ()), row)
    return {**keys, **numbered(table.column("address"))}


def by_last_name(table: Table[Any]) -> dict[str, tuple[int, ...]]:
    """Rows by the last part of their address."""
    keys: dict[str, tuple[int, ...]] = {}
    for row, address in enumerate(table.column("address")):
        last = address.rpartition(".")[2]
        keys[last] = (*keys.get(last, ()), row)
    return keys


def near_misses(key: str, doors: Iterable[Door]) -> list[str]:
    """Up to three keys that look like ``key``: those that it is the dotted end of, or else those like it as a whole, of
    which those that begin alike are compared first."""
    folded = key.casefold()
    begin = folded[:3]
    alike: dict[str, None] = {}
    others: dict[str, None] = {}
    ends: dict[str, None] = {}
    for door in doors:
        for name in door:
            if folded and name.casefold().endswith(f".{folded}"):
                ends[name] = None
            if name.casefold().startswith(begin):
                alike[name] = None
            elif len(others) < MOST_COMPARED:
                others[name] = None
    if ends:
        return list(ends)[:3]
    pool = [*alike, *others][:MOST_COMPARED]
    by_fold = {name.casefold(): name for name in reversed(pool)}
    return [by_fold[name] for name in difflib.get_close_matches(folded, by_fold, n=3, cutoff=0.6)]


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
