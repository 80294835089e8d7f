"""The promises records keep, each one a named function.

Reads  finished tables.
Gives  findings: which promise does not hold, and where. None is what a legal stream gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from projections.build import CaptureTables
from projections.errors import over_events


class Finding(NamedTuple):
    """A promise that does not hold."""

    promise: str
    record: str  # label or address
    problem: str


Promise = Callable[[CaptureTables], Iterator[tuple[str, str]]]
"""Yields the record and the problem of each breach."""


def parents_and_children_mirror_each_other(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """A row is among the children of each of its parents, and of no other row."""
    parents, children = tables.ops.column("parent_rows"), tables.ops.column("child_rows")
    labels = tables.ops.column("label")
    down = {(parent, row) for row, found in enumerate(parents) for parent in found}
    up = {(row, child) for row, found in enumerate(children) for child in found}
    for parent, child in down ^ up:
        yield labels[child], f"the edge from {labels[parent]} is known on one side only"


def parents_come_first(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """Every parent stands before its child."""
    labels = tables.ops.column("label")
    for row, parents in enumerate(tables.ops.column("parent_rows")):
        if any(parent >= row for parent in parents):
            yield labels[row], "it stands before one of its parents"


def labels_are_unique(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """No two records of a table share a label."""
    for table, column in (
        (tables.ops, "label"),
        (tables.ops, "raw_label"),
        (tables.layers, "layer_label"),
        (tables.modules, "address"),
        (tables.module_calls, "call_label"),
        (tables.params, "address"),
        (tables.buffers, "address"),
    ):
        for label, count in Counter(table.column(column)).items():
            if count > 1:
                yield str(label), f"{count} records of {table.name} have it as {column}"


def passes_are_dense(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """The passes of a layer are numbered from 1 without gaps, in order, and know how many they are."""
    index, count = tables.ops.column("pass_index"), tables.ops.column("num_passes")
    layer = tables.ops.column("layer_row")
    for row, (label, rows) in enumerate(
        zip(tables.layers.column("layer_label"), tables.layers.column("op_rows"), strict=True)
    ):
        if [index[op] for op in rows] != list(range(1, len(rows) + 1)) or list(rows) != sorted(rows):
            yield label, "its passes are not numbered in order"
        if any(count[op] != len(rows) or layer[op] != row for op in rows):
            yield label, "its passes disagree about their layer"


def every_op_is_in_a_layer(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """Layers share out the ops."""
    rows = sorted(op for found in tables.layers.column("op_rows") for op in found)
    if rows != list(range(len(tables.ops))):
        yield "layers", "their passes are not exactly the ops"


def layers_are_one_kind(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """All passes of a layer have its function name, slot and module, and no input or output is grouped."""
    names, slots = tables.ops.column("func_name"), tables.ops.column("multi_output_index")
    roles = [tables.ops.column(name) for name in ("is_input", "is_output")]
    for label, rows in zip(tables.layers.column("layer_label"), tables.layers.column("op_rows"), strict=True):
        if len({names[row] for row in rows}) > 1:
            yield label, "its passes have different functions"
        if len({slots[row] or 0 for row in rows}) > 1:
            yield label, "its passes have different output slots"
        if len(rows) > 1 and any(role[row] for role in roles for row in rows):
            yield label, "it groups inputs or outputs"


def steps_never_fall(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """The step of compute ops rises by one; inputs and buffers have 0, outputs the last step before them."""
    step = 0
    columns = (tables.ops.column(name) for name in ("label", "step_index", "is_compute_op", "is_output"))
    for label, found, is_op, is_output in zip(*columns, strict=True):
        step += is_op
        if found != (step if is_op or is_output else 0):
            yield label, f"its step is {found}"


def modules_nest(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """A call is entered before the calls inside it, is their parent, and holds their ops."""
    calls = tables.module_calls
    labels, ops, children = calls.column("call_label"), calls.column("op_rows"), calls.column("child_rows")
    around: dict[int, tuple[set[int], set[int]]] = {}
    for row, parent in enumerate(calls.column("parent_row")):
        if parent >= row:
            yield labels[row], "it was entered before the call around it"
        if parent < 0:
            continue
        if parent not in around:
            around[parent] = (set(children[parent]), set(ops[parent]))
        calls_around, ops_around = around[parent]
        if row not in calls_around:
            yield labels[row], "the call around it does not know it"
        if not ops_around.issuperset(ops[row]):
            yield labels[row], "some op inside is not inside the call around it"


def ops_know_their_calls(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """The modules of an op are the calls around it, outermost first, and those calls hold it."""
    paths = [
        (*stack, label) if parent >= 0 else ()
        for stack, label, parent in zip(
            tables.module_calls.column("module_call_stack"),
            tables.module_calls.column("call_label"),
            tables.module_calls.column("parent_row"),
            strict=True,
        )
    ]
    inside = [set(rows) for rows in tables.module_calls.column("op_rows")]
    columns = (tables.ops.column(name) for name in ("label", "modules", "call_row"))
    for row, (label, modules, call) in enumerate(zip(*columns, strict=True)):
        if call >= 0 and (tuple(modules) != paths[call] or row not in inside[call]):
            yield label, "it and the module call it ran in disagree"


def every_output_has_a_parent(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """An output was returned from one op; from none only where the model returned a constant."""
    constants = tables.forward.constants
    columns = (tables.ops.column(name) for name in ("label", "is_output", "parent_rows", "value"))
    for label, is_output, parents, value in zip(*columns, strict=True):
        if is_output and len(parents) != 1 and value not in constants:
            yield label, f"it has {len(parents)} parents"


def inputs_have_no_parents(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """Inputs and buffers that were only read were made by nothing."""
    columns = (tables.ops.column(name) for name in ("label", "is_input", "is_buffer", "buffer_write_kind", "parents"))
    for label, is_input, is_buffer, kind, parents in zip(*columns, strict=True):
        if parents and (is_input or (is_buffer and kind is None)):
            yield label, "it has parents"


def buffer_versions_are_dense(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """The versions of a buffer that stayed are in order, and a reader finds each under its address."""
    passes = tables.ops.column("buffer_pass")
    for address, rows in zip(tables.buffers.column("address"), tables.buffers.column("version_rows"), strict=True):
        versions = [passes[row] for row in rows]
        if versions != sorted(set(versions)):
            yield address, f"its versions are numbered {versions}"


def counts_add_up(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """What the capture says of its tables is what the tables hold."""
    ops = tables.ops
    kinds = [ops.column(name) for name in ("is_input", "is_output", "is_buffer", "is_compute_op")]
    edges = {(parent, row) for row, found in enumerate(ops.column("parent_rows")) for parent in found}
    held: dict[str, int] = {
        "num_tensors": len(ops),
        "num_ops": sum(map(bool, kinds[3])),
        "num_layers": len(tables.layers),
        "num_module_calls": len(tables.module_calls),
        "num_modules": sum(count > 0 for count in tables.modules.column("num_calls")),
        "num_param_tensors": len(tables.params),
        "num_edges": len(edges),
    }
    for name, count in held.items():
        if tables.fact(name) != count:
            yield name, f"it is {tables.fact(name)}, and the tables hold {count}"
    for label, *roles in zip(ops.column("label"), *kinds, strict=True):
        if sum(map(bool, roles)) != 1:
            yield label, "it is not exactly one of input, output, buffer and compute op"


def keys_lead_back(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """Every text an op answers to names it, and a text names nothing but its ops and the passes of its layer."""
    labels, short = tables.layers.column("layer_label"), tables.layers.column("layer_label_short")
    said = {
        (name, row)
        for row, names in enumerate(tables.ops.column("lookup_keys"))
        for name in names
        if isinstance(name, str)
    }
    passes = {
        (name, row)
        for layer, rows in enumerate(tables.layers.column("op_rows"))
        for name in (labels[layer], short[layer])
        for row in rows
    }
    known = {(name, row) for name, rows in tables.keys.items() for row in rows}
    for name, row in (said | passes) ^ known:
        yield name, f"it and op {tables.ops.value('label', row)} do not know each other"


def boundaries_agree(tables: CaptureTables) -> Iterator[tuple[str, str]]:
    """An op is an output of the calls that say so, and an input likewise; the root's call is left out."""
    calls = tables.module_calls
    labels = calls.column("call_label")
    for column, mirror in (("output_op_rows", "output_of_module_calls"), ("input_op_rows", "input_to_module_calls")):
        said = {(row, labels[call]) for call, rows in enumerate(calls.column(column)) if call for row in rows}
        known = {(row, label) for row, names in enumerate(tables.ops.column(mirror)) for label in names}
        for row, label in said ^ known:
            yield label, f"it and op {tables.ops.value('label', row)} disagree about {mirror}"


PROMISES: Final[Sequence[Promise]] = (
    parents_and_children_mirror_each_other,
    parents_come_first,
    labels_are_unique,
    passes_are_dense,
    every_op_is_in_a_layer,
    layers_are_one_kind,
    steps_never_fall,
    modules_nest,
    ops_know_their_calls,
    every_output_has_a_parent,
    inputs_have_no_parents,
    buffer_versions_are_dense,
    counts_add_up,
    keys_lead_back,
    boundaries_agree,
)
"""All promises, in the order in which they are checked."""


def check(tables: CaptureTables) -> list[Finding]:
    """Everything that does not hold.

    Raises:
        JournalCorrupt: ``events_contradictory``, where the records cannot even be compared.
    """
    with over_events():
        return [
            Finding(promise_name(promise), record, problem)
            for promise in PROMISES
            for record, problem in promise(tables)
        ]


def promise_name(promise: Any) -> str:
    return str(promise.__name__)
