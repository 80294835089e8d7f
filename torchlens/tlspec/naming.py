"""What each payload of an artifact is called: after the first record that refers to it.

Reads  the tables of a capture, and the events of its forward.
Gives  by number of a payload its kind, its name, and dtype and shape where it is one whole tensor.
Rule   a payload that several values lie in has the name of the first of them, and is stored as bytes unless that value
       is all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from journal.events import ArgumentsKept, CodeSeen, ConstantKept, GeneratorsKept, OpExecuted, Row
from projections import CaptureTables
from projections.stored.stripped import named_by
from projections.structure.details import field
from torchlens.tlspec.manifest import STORED_AS, StoredKind

OF: Final = field(ArgumentsKept, "of")
TENSORS: Final = field(ArgumentsKept, "tensors")
KEPT: Final = field(ConstantKept, "kept")
STATES_OF: Final = field(GeneratorsKept, "of")
STATES: Final = field(GeneratorsKept, "states")
QUALNAME: Final = field(CodeSeen, "qualname")

BYTES: Final = ("bytes", ())
"""Stands for the dtype and shape of what is no whole tensor."""


class Name(NamedTuple):
    """What a payload is called."""

    kind: StoredKind
    name: str
    dtype: str = BYTES[0]
    shape: tuple[int, ...] = BYTES[1]


def names_of(tables: CaptureTables, rows: Iterable[tuple[int, Row]]) -> dict[int, Name]:
    """By number, the name of each payload that a capture refers to.

    Args:
        tables: Its records.
        rows: The events of its forward, each with its number.
    """
    found: dict[int, Name] = {}
    for number, name in (*of_values(tables), *of_gradients(tables), *of_events(tables, rows)):
        found.setdefault(number, name)
    return found


def whole(kind: StoredKind, name: str, ref: Any, dtype: str, shape: Any) -> tuple[int, Name]:
    """The name of a payload that a reference leads into."""
    number, first, strides = ref
    return number, Name(kind, name, *((dtype, tuple(shape)) if first == 0 and strides is None else BYTES))


def of_values(tables: CaptureTables) -> Iterator[tuple[int, Name]]:
    for table in (tables.ops, tables.orphans):
        labels = table.column("label")
        for row, ref in enumerate(table.column("payload_ref")):
            if ref is not None:
                dtype, shape = table.value("dtype", row), table.value("shape", row)
                yield whole("activation", f"{labels[row]}.out", ref, str(dtype), shape or ())
        for row, ref in enumerate(table.column("transformed_payload_ref")):
            if ref is not None:
                dtype, shape = table.value("transformed_out_dtype", row), table.value("transformed_out_shape", row)
                yield whole("transformed", f"{labels[row]}.transformed_out", ref, dtype, shape)


def of_gradients(tables: CaptureTables) -> Iterator[tuple[int, Name]]:
    gradients, calls = tables.gradients, tables.grad_fn_calls
    columns = (gradients.column(name) for name in ("owner", "payload_ref", "dtype", "shape"))
    for owner, ref, dtype, shape in zip(*columns, strict=True):
        if ref is not None:
            yield whole("gradient", f"{owner}.grad", ref, dtype, shape)
    for side in ("grad_outputs", "grad_inputs"):
        columns = (calls.column(name) for name in ("call_label", side, f"{side}_like"))
        for label, refs, likes in zip(*columns, strict=True):
            for place, ref in enumerate(refs or ()):
                if ref is not None:
                    shape, dtype, _ = likes[place]
                    yield whole("node_gradient", f"{label}.{side}.{place}", ref, dtype, shape)


def of_events(tables: CaptureTables, rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Name]]:
    """What is kept beside values: what calls were given, states of generators, texts, tensors from elsewhere."""
    labels = labels_by_event(tables)
    for at, row in rows:
        kind = row[0]
        if kind == ArgumentsKept.type_id:
            label = labels.get(row[OF], f"event_{row[OF]}")
            for place, kept in enumerate(row[TENSORS]):
                if kept is not None:
                    ref, shape, dtype = kept
                    yield whole("argument", f"{label}.args.{place}", ref, dtype, shape)
        elif kind == ConstantKept.type_id:
            ref, shape, dtype = row[KEPT]
            yield whole("constant", f"event_{at}.constant", ref, dtype, shape)
        elif kind == GeneratorsKept.type_id:
            label = labels.get(row[STATES_OF], f"event_{row[STATES_OF]}")
            for device, number in row[STATES]:
                yield number, Name("generator", f"{label}.rng.{device}")
        elif kind == CodeSeen.type_id:
            for _, number in named_by(row):
                yield number, Name("source", f"{row[QUALNAME]}.source")
        else:
            for what, number in named_by(row):
                role = "rng" if kind == OpExecuted.type_id else "value"
                yield number, Name(STORED_AS[what], f"{labels.get(at, f'event_{at}')}.{role}")


def labels_by_event(tables: CaptureTables) -> Mapping[int, str]:
    """What an event is called in names: the label of the first record that it made."""
    found: dict[int, str] = {}
    for table, key, columns in (
        (tables.ops, "label", ("event",)),
        (tables.orphans, "label", ("event",)),
        (tables.module_calls, "call_label", ("event", "hooks_event")),
    ):
        labels: Sequence[str] = table.column(key)
        for column in columns:
            for label, event in zip(labels, table.column(column), strict=True):
                found.setdefault(event, label)
    return found
