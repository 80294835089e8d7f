"""The promises records keep, each one a named function.

Reads  finished tables.
Gives  findings: which promise does not hold, and where. None is what a legal stream gives.
Rule   a promise says in its first line what holds; it costs no more than in proportion to the records, and where saying
       it of all would cost more, it looks at as many as that allows.
Not    those of backward passes (backward_invariants.py), which are checked behind these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, get_args

from journal.errors import TorchLensError
from projections.build import CaptureTables
from projections.columnar.tables import Table
from projections.errors import FAULTS, fault_text
from projections.folds.course import Status
from projections.promises.backward_invariants import OF_BACKWARD
from projections.promises.promise import (
    FEW,
    SMALL,
    Breaches,
    Promise,
    fact_is,
    marked,
    named,
    picked,
    shown,
    total,
    unequal,
)
from projections.structure.details import item_bytes


class Finding(NamedTuple):
    """A promise that does not hold."""

    promise: str
    record: str  # label or address
    problem: str


# -- edges


def parents_and_children_mirror_each_other(tables: CaptureTables) -> Breaches:
    """A row is among the children of each of its parents, and of no other row."""
    parents, children = tables.ops.column("parent_rows"), tables.ops.column("child_rows")
    labels = tables.ops.column("label")
    down = {(parent, row) for row, found in enumerate(parents) for parent in found}
    up = {(row, child) for row, found in enumerate(children) for child in found}
    for parent, child in down ^ up:
        yield labels[child], f"the edge from {labels[parent]} is known on one side only"


def parents_come_first(tables: CaptureTables) -> Breaches:
    """Every parent stands before its child."""
    labels = tables.ops.column("label")
    for row, parents in enumerate(tables.ops.column("parent_rows")):
        if any(parent >= row for parent in parents):
            yield labels[row], "it stands before one of its parents"


def edges_are_told_by_label_too(tables: CaptureTables) -> Breaches:
    """Parents, inputs and children by label are those by row."""
    ops = tables.ops
    labels = ops.column("label")
    for column, rows in (("parents", "parent_rows"), ("input_ops", "parent_rows"), ("children", "child_rows")):
        yield from unequal(ops, "label", column, (named(labels, found) for found in ops.column(rows)))


def uses_follow_the_edges(tables: CaptureTables) -> Breaches:
    """Each use of a parent by an argument is an edge, and each edge a use, in the same order."""
    ops = tables.ops
    columns = (ops.column(name) for name in ("label", "edge_uses", "parents", "parent_arg_positions"))
    for label, uses, parents, places in zip(*columns, strict=True):
        if tuple([use[0] for use in uses]) != parents or any(use[1] != label for use in uses):
            yield label, "its uses are not its edges"
        told = [place for kind in ("args", "kwargs") for place in places[kind].values()]
        if set(told) != set(parents):
            yield label, "its arguments hold other ops than its parents"


def degrees_are_counted(tables: CaptureTables) -> Breaches:
    """Numbers of neighbours are as many as there are."""
    ops = tables.ops
    parents, children = ops.column("parent_rows"), ops.column("child_rows")
    yield from unequal(ops, "label", "num_inputs", map(len, parents))
    yield from unequal(ops, "label", "num_parents", (len(set(rows)) for rows in parents))
    yield from unequal(ops, "label", "num_children", map(len, children))
    yield from unequal(ops, "label", "has_parents", (bool(rows) for rows in parents))
    yield from unequal(ops, "label", "has_children", (bool(rows) for rows in children))


def neighbours_of_neighbours_are_found(tables: CaptureTables) -> Breaches:
    """Siblings are the other children of the parents, co-parents the other parents of the children."""
    ops = tables.ops
    labels = ops.column("label")
    up: list[tuple[int, ...]] = [tuple(dict.fromkeys(rows)) for rows in ops.column("parent_rows")]
    down: list[tuple[int, ...]] = [tuple(rows) for rows in ops.column("child_rows")]
    for column, flag, there, back in (
        ("siblings", "has_siblings", up, down),
        ("co_parents", "has_co_parents", down, up),
    ):
        found, flags = ops.column(column), ops.column(flag)
        for row, near in enumerate(there):
            if flags[row] != any(len(back[other]) > 1 for other in near):
                yield labels[row], f"its {flag} is {flags[row]}"
            if len(ops) > SMALL or sum(len(back[other]) for other in near) > FEW:
                continue
            right = sorted({one for other in near for one in back[other]} - {row})
            if found[row] != named(labels, right):
                yield labels[row], f"its {column} are {shown(found[row])}"


def descent_follows_the_edges(tables: CaptureTables) -> Breaches:
    """An op descends from an input or an internal source when it is one or one of its parents does; and so upwards."""
    ops = tables.ops
    parents, children = ops.column("parent_rows"), ops.column("child_rows")
    for column, starts, near in (
        ("has_input_ancestor", "is_input", parents),
        ("has_internal_source_ancestor", "is_internal_source", parents),
        ("has_output_descendant", "is_output", children),
    ):
        flags = ops.column(column)
        right = (
            bool(start) or any(flags[other] for other in rows)
            for start, rows in zip(ops.column(starts), near, strict=True)
        )
        yield from unequal(ops, "label", column, right)


def ancestors_are_those_of_the_parents(tables: CaptureTables) -> Breaches:
    """The origins of an op are those of its parents, and itself where it is one; the outputs it feeds likewise."""
    ops = tables.ops
    if len(ops) > SMALL:
        return
    labels, parents, children = ops.column("label"), ops.column("parent_rows"), ops.column("child_rows")
    sources, inputs = ops.column("is_internal_source"), ops.column("is_input")
    roots = [one or other for one, other in zip(sources, inputs, strict=True)]
    for column, starts, near in (
        ("input_ancestors", inputs, parents),
        ("internal_source_ancestors", sources, parents),
        ("root_ancestors", roots, parents),
        ("output_descendants", ops.column("is_output"), children),
    ):
        found = ops.column(column)
        for row, others in enumerate(near):
            own = {labels[row]} if starts[row] else set[str]()
            if set(found[row]) != own.union(*(found[other] for other in others)):
                yield labels[row], f"its {column} are {shown(found[row])}"


def distances_follow_the_edges(tables: CaptureTables) -> Breaches:
    """The way from an input is one edge longer than that to the nearest, or farthest, parent; to an output likewise."""
    ops = tables.ops
    for end, starts, near in (("from_input", "is_input", "parent_rows"), ("to_output", "is_output", "child_rows")):
        for choose in (min, max):
            column = f"{choose.__name__}_distance_{end}"
            found = ops.column(column)
            right = (
                one_further(choose, found, rows, is_start=bool(start))
                for start, rows in zip(ops.column(starts), ops.column(near), strict=True)
            )
            yield from unequal(ops, "label", column, right)


def one_further(
    choose: Callable[[Iterable[int]], int], known: Sequence[int | None], rows: Iterable[int], *, is_start: bool
) -> int | None:
    ways = [0] if is_start else []
    ways += [way + 1 for row in rows if (way := known[row]) is not None]
    return choose(ways) if ways else None


def inputs_are_described_as_the_parents(tables: CaptureTables) -> Breaches:
    """Shapes, dtypes and bytes of the inputs are those of the parents."""
    ops = tables.ops
    parents, sizes = ops.column("parent_rows"), ops.column("activation_memory")
    for column, of in (("input_shapes", ops.column("shape")), ("input_dtypes", ops.column("dtype"))):
        yield from unequal(ops, "label", column, (tuple(picked(of, rows)) for rows in parents))
    yield from unequal(
        ops, "label", "input_memory", (sum(size or 0 for size in picked(sizes, rows)) for rows in parents)
    )


# -- roles


def every_op_has_one_role(tables: CaptureTables) -> Breaches:
    """A row is exactly one of input, output, buffer and compute op."""
    ops = tables.ops
    kinds = [ops.column(name) for name in ("is_input", "is_output", "is_buffer", "is_compute_op")]
    for label, *roles in zip(ops.column("label"), *kinds, strict=True):
        if sum(map(bool, roles)) != 1:
            yield label, "it is not exactly one of input, output, buffer and compute op"


def sources_and_sinks_have_no_edges(tables: CaptureTables) -> Breaches:
    """An internal source has no parents and is no input; an internal sink has no children and is no output."""
    ops = tables.ops
    for column, near, end in (
        ("is_internal_source", "parent_rows", ("is_input", "is_output")),
        ("is_internal_sink", "child_rows", ("is_output",)),
    ):
        ends = zip(*(ops.column(name) for name in end), strict=True)
        right = (not rows and not any(flags) for rows, flags in zip(ops.column(near), ends, strict=True))
        yield from unequal(ops, "label", column, right)


def outputs_end_the_graph(tables: CaptureTables) -> Breaches:
    """An output has no children, the last one is final, and those it was returned from know it."""
    ops = tables.ops
    outputs, parents = ops.column("is_output"), ops.column("parent_rows")
    for row in (rows := marked(outputs)):
        if ops.value("child_rows", row):
            yield ops.value("label", row), "it has children"
    yield from unequal(ops, "label", "is_final_output", (row == max(rows, default=-1) for row in range(len(ops))))
    fed = {parent for row in rows for parent in parents[row]}
    yield from unequal(ops, "label", "is_output_parent", (row in fed for row in range(len(ops))))


def only_inputs_and_outputs_have_a_place(tables: CaptureTables) -> Breaches:
    """Inputs and outputs say where in the arguments or the result they sit, each elsewhere; no other op does."""
    ops = tables.ops
    seen: set[str] = set()
    columns = (ops.column(name) for name in ("label", "io_role", "is_input", "is_output"))
    for label, role, is_input, is_output in zip(*columns, strict=True):
        kind = "input" if is_input else "output" if is_output else None
        if (role is None) != (kind is None) or (role is not None and role.partition(".")[0] != kind):
            yield label, f"its place is {role}"
        if role is not None:
            if role in seen:
                yield label, f"another sits at {role} too"
            seen.add(role)


def orphans_are_apart(tables: CaptureTables) -> Breaches:
    """What is on an island is in no other table."""
    yield from unequal(tables.ops, "label", "is_orphan", [False] * len(tables.ops))
    yield from unequal(tables.orphans, "raw_label", "is_orphan", [True] * len(tables.orphans))
    known = set(tables.ops.column("raw_label"))
    for label in tables.orphans.column("raw_label"):
        if label in known:
            yield label, "it is among the ops, too"


# -- labels and numbers


def labels_are_unique(tables: CaptureTables) -> Breaches:
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


def labels_spell_their_numbers(tables: CaptureTables) -> Breaches:
    """A layer counts among its type and, if it is of ops, among all; an op adds its pass where there are several."""
    layers, ops = tables.layers, tables.ops
    types: Counter[tuple[str, bool]] = Counter()
    every = 0
    columns = (layers.column(name) for name in ("layer_label", "layer_label_short", "layer_type", "type_index"))
    for row, (label, short, kind, index) in enumerate(zip(*columns, strict=True)):
        is_op = bool(layers.value("is_compute_layer", row))
        types[kind, is_op] += 1  # a function that is called like a kind of source counts apart from these
        every += is_op
        number = types[kind, is_op]
        right = f"{kind}_{number}"
        if index != number or short != right or label != (f"{right}_{every}" if is_op else right):
            yield label, f"it is number {number} of its type and {every} of all"
    of = ops.column("layer_row")
    for column, names in (("label", "layer_label"), ("label_short", "layer_label_short")):
        long = picked(layers.column(names), of)
        yield from unequal(ops, "raw_label", names, long)
        parts = zip(long, ops.column("num_passes"), ops.column("pass_index"), strict=True)
        yield from unequal(ops, "raw_label", column, (n if count == 1 else f"{n}:{index}" for n, count, index in parts))
    for column in ("layer_type", "type_index"):
        yield from unequal(ops, "raw_label", column, picked(layers.column(column), of))


def positions_are_dense(tables: CaptureTables) -> Breaches:
    """Ops and module calls are numbered by their place, a layer by that of its first pass."""
    yield from unequal(tables.ops, "label", "ordinal_index", range(len(tables.ops)))
    yield from unequal(tables.module_calls, "call_label", "ordinal_index", range(len(tables.module_calls)))
    first = [rows[0] for rows in tables.layers.column("op_rows") if rows]
    yield from unequal(tables.layers, "layer_label", "ordinal_index", first)


# -- layers


def passes_are_dense(tables: CaptureTables) -> Breaches:
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


def every_op_is_in_a_layer(tables: CaptureTables) -> Breaches:
    """Layers share out the ops."""
    rows = sorted(op for found in tables.layers.column("op_rows") for op in found)
    if rows != list(range(len(tables.ops))):
        yield "layers", "their passes are not exactly the ops"


def layers_stand_by_first_pass(tables: CaptureTables) -> Breaches:
    """Layers are in the order of their first passes."""
    last = -1
    for label, rows in zip(tables.layers.column("layer_label"), tables.layers.column("op_rows"), strict=True):
        first = rows[0] if rows else last
        if first < last:
            yield label, "its first pass stands before that of the layer before it"
        last = first


def passes_know_each_other(tables: CaptureTables) -> Breaches:
    """A layer names its passes by label, and each of them all of them."""
    labels = tables.ops.column("label")
    right = [named(labels, rows) for rows in tables.layers.column("op_rows")]
    yield from unequal(tables.layers, "layer_label", "op_labels", right)
    yield from unequal(tables.layers, "layer_label", "num_passes", map(len, right))
    found = tables.ops.column("recurrent_ops")
    for rows, passes in zip(tables.layers.column("op_rows"), right, strict=True):
        told = None  # passes that are told by one object are compared once
        for row in rows:
            if (told is None or found[row] is not told) and found[row] != passes:
                yield labels[row], f"its recurrent_ops are {shown(found[row])}"
            told = found[row]


FIRST_PASS: Final = tuple(
    """
    step_index func_name func_qualname is_inplace is_opaque arg_names num_args_total num_pos_args num_kwargs
    grad_fn_class_name shape dtype device_ref activation_memory in_multi_output multi_output_index multi_output_name
    is_input is_output is_final_output is_buffer io_role input_was_parameter address buffer_pass buffer_source
    buffer_write_kind module modules output_of_modules output_of_module_calls module_call_depth is_scalar_bool
    """.split()
)
"""What a layer shows of its first pass."""


def layers_show_their_first_pass(tables: CaptureTables) -> Breaches:
    """What a layer has of its first pass is what that pass has."""
    first = [rows[0] for rows in tables.layers.column("op_rows") if rows]
    for column in FIRST_PASS:
        yield from unequal(tables.layers, "layer_label", column, picked(tables.ops.column(column), first))
    right = picked(tables.ops.column("is_compute_op"), first)
    yield from unequal(tables.layers, "layer_label", "is_compute_layer", right)


def layers_mark_what_some_pass_is(tables: CaptureTables) -> Breaches:
    """A layer has a mark where one of its passes has it."""
    rows = tables.layers.column("op_rows")
    for column in (
        *("has_saved_activation", "is_internal_source", "is_internal_sink", "has_input_ancestor", "is_atomic_module"),
        *("has_saved_payload", "uses_params", "is_terminal_bool"),
    ):
        flags = tables.ops.column(column)
        right = (any(flags[row] for row in found) for found in rows)
        yield from unequal(tables.layers, "layer_label", column, right)


def layer_edges_join_those_of_the_passes(tables: CaptureTables) -> Breaches:
    """The neighbours of a layer are the layers of its passes' neighbours, by row and by label."""
    layers, ops = tables.layers, tables.ops
    labels, of = layers.column("layer_label"), ops.column("layer_row")
    for near, rows_of, name in (
        ("parent_rows", "parent_layer_rows", "parents"),
        ("child_rows", "child_layer_rows", "children"),
    ):
        edges, found = ops.column(near), layers.column(rows_of)
        for layer, rows in enumerate(layers.column("op_rows")):
            if set(found[layer]) != {of[other] for row in rows for other in edges[row]}:
                yield labels[layer], f"its {rows_of} are not those of its passes"
        yield from unequal(layers, "layer_label", name, (named(labels, rows) for rows in found))
        yield from unequal(layers, "layer_label", f"num_{name}", map(len, found))
        yield from unequal(layers, "layer_label", f"has_{name}", map(bool, map(len, found)))


def layer_sums_are_over_the_passes(tables: CaptureTables) -> Breaches:
    """Totals of a layer are sums over its passes, unknown where one of them is."""
    rows = tables.layers.column("op_rows")
    for column, of in (
        ("total_activation_memory", "activation_memory"),
        ("total_flops_forward", "flops_forward"),
        ("total_flops_backward", "flops_backward"),
        ("total_macs_forward", "macs_forward"),
    ):
        values = tables.ops.column(of)
        yield from unequal(tables.layers, "layer_label", column, (total(picked(values, found)) for found in rows))
    yield from sums_of_times(tables, tables.layers, "layer_label", "total_func_duration", rows)


def sums_of_times(
    tables: CaptureTables, table: Table[Any], key: str, column: str, rows: Iterable[Iterable[int]]
) -> Breaches:
    """Where a sum of durations is not that of the rows, but for rounding."""
    times = tables.ops.column("func_duration")
    for label, found, ops in zip(table.column(key), table.column(column), rows, strict=True):
        right = math.fsum(times[row] for row in ops)
        if found is not None and not math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-9):
            yield str(label), f"its {column} is {found} and not {right}"


def layers_are_one_kind(tables: CaptureTables) -> Breaches:
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


def steps_never_fall(tables: CaptureTables) -> Breaches:
    """The step of compute ops rises by one; inputs and buffers have 0, outputs the last step before them."""
    step = 0
    columns = (tables.ops.column(name) for name in ("label", "step_index", "is_compute_op", "is_output"))
    for label, found, is_op, is_output in zip(*columns, strict=True):
        step += is_op
        if found != (step if is_op or is_output else 0):
            yield label, f"its step is {found}"


# -- calls and values


def results_of_a_call_stand_together(tables: CaptureTables) -> Breaches:
    """The results of one call follow each other, in the order of their slots, with one function, place and parents."""
    ops = tables.ops
    labels, paths = ops.column("label"), ops.column("func_qualname")
    # What a module hands through is no call of a function, though several values leave with one event.
    events = zip(ops.column("func_call_id"), paths, strict=True)
    calls = [None if path is None else call for call, path in events]
    shared = [ops.column(name) for name in ("func_name", "call_row", "parent_rows", "is_opaque")]
    slots, several, index = ops.column("slot"), ops.column("in_multi_output"), ops.column("multi_output_index")
    seen: set[int] = set()
    for row, call in enumerate(calls):
        same_as_before = row > 0 and call is not None and calls[row - 1] == call
        with_next = row + 1 < len(calls) and call is not None and calls[row + 1] == call
        if same_as_before and any(column[row] != column[row - 1] for column in shared):
            yield labels[row], "it and the result before it are not of one call"
        if call is not None and not same_as_before and call in seen:
            yield labels[row], "another op stands between it and the other results of its call"
        if several[row] != (same_as_before or with_next):
            yield labels[row], f"its in_multi_output is {several[row]}"
        if index[row] != (slots[row] if several[row] else None) or (same_as_before and slots[row] <= slots[row - 1]):
            yield labels[row], f"it is result {index[row]}"
        if call is not None:
            seen.add(call)
    is_op = ops.column("is_compute_op")
    yield from unequal(
        ops,
        "label",
        "func_call_id",
        (at if flag else None for at, flag in zip(ops.column("event"), is_op, strict=True)),
    )


def arguments_are_counted(tables: CaptureTables) -> Breaches:
    """Arguments are the positional and the keyword ones, and no more are without tensors."""
    ops = tables.ops
    plain, named_ones = ops.column("num_pos_args"), ops.column("num_kwargs")
    yield from unequal(ops, "label", "num_args_total", map(sum, zip(plain, named_ones, strict=True)))
    for column, count in (("non_tensor_pos_args", plain), ("non_tensor_kwargs", named_ones)):
        for label, found, most in zip(ops.column("label"), ops.column(column), count, strict=True):
            if len(found) > most:
                yield label, f"{len(found)} of its {most} arguments hold no tensor"


def values_have_their_size(tables: CaptureTables) -> Breaches:
    """The bytes of a dense value follow from shape and dtype, and it is saved when it has a payload."""
    ops = tables.ops
    forms = zip(ops.column("shape"), ops.column("dtype"), ops.column("layout"), strict=True)
    sizes = (
        None if shape is None or layout is not None else item_bytes(dtype, math.prod(shape))
        for shape, dtype, layout in forms
    )
    yield from unequal(ops, "label", "activation_memory", sizes)


def truths_are_of_one_bool(tables: CaptureTables) -> Breaches:
    """A scalar bool has one element of that dtype; a truth was taken where its value is told."""
    ops = tables.ops
    forms = zip(ops.column("shape"), ops.column("dtype"), strict=True)
    right = (shape is not None and math.prod(shape) == 1 and dtype == "bool" for shape, dtype in forms)
    yield from unequal(ops, "label", "is_scalar_bool", right)
    yield from unequal(ops, "label", "is_terminal_bool", (value is not None for value in ops.column("bool_value")))


# -- modules


def modules_nest(tables: CaptureTables) -> Breaches:
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


def ops_know_their_calls(tables: CaptureTables) -> Breaches:
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


def calls_are_counted_by_module(tables: CaptureTables) -> Breaches:
    """A call's label is its module's address and which call of it this is; the module lists its calls in order."""
    calls, modules = tables.module_calls, tables.modules
    addresses = modules.column("address")
    rows: dict[int, list[int]] = {}
    for call, module in enumerate(calls.column("module_row")):
        rows.setdefault(module, []).append(call)
    of = calls.column("module_row")
    index = [0] * len(calls)
    for found in rows.values():
        for number, call in enumerate(found, 1):
            index[call] = number
    yield from unequal(calls, "call_label", "call_index", index)
    yield from unequal(calls, "call_label", "address", picked(addresses, of))
    right = [f"{addresses[module]}:{number}" for module, number in zip(of, index, strict=True)]
    yield from unequal(calls, "ordinal_index", "call_label", right)
    listed = [rows.get(module, []) for module in range(len(modules))]
    yield from unequal(modules, "address", "call_rows", map(tuple, listed))
    yield from unequal(modules, "address", "call_labels", (named(right, found) for found in listed))
    yield from unequal(modules, "address", "num_calls", map(len, listed))


def calls_know_their_place(tables: CaptureTables) -> Breaches:
    """Parent, children, stack and depth of a call, by label, are those by row."""
    calls = tables.module_calls
    labels, parents, stacks = calls.column("call_label"), calls.column("parent_row"), calls.column("module_call_stack")
    yield from unequal(calls, "call_label", "call_parent", (labels[row] if row >= 0 else None for row in parents))
    yield from unequal(
        calls, "call_label", "call_children", (named(labels, rows) for rows in calls.column("child_rows"))
    )
    right = ((*stacks[row], labels[row]) if row > 0 else () for row in parents)
    yield from unequal(calls, "call_label", "module_call_stack", right)
    depths = (len(stack) + (row >= 0) for stack, row in zip(stacks, parents, strict=True))
    yield from unequal(calls, "call_label", "call_depth", depths)


def descendants_of_calls_are_counted(tables: CaptureTables) -> Breaches:
    """A call has inside it its children and what is inside them, and is one level higher than the highest."""
    calls = tables.module_calls
    sizes, heights, children = (
        calls.column(name) for name in ("num_descendant_calls", "max_descendant_depth", "child_rows")
    )
    right = (sum(1 + sizes[row] for row in rows) for rows in children)
    yield from unequal(calls, "call_label", "num_descendant_calls", right)
    levels = (max((1 + heights[row] for row in rows), default=0) for rows in children)
    yield from unequal(calls, "call_label", "max_descendant_depth", levels)


def calls_name_what_is_inside(tables: CaptureTables) -> Breaches:
    """Ops of a call, and those that went in and came out, by label, are those by row, and are counted."""
    calls = tables.module_calls
    labels = tables.ops.column("label")
    for column, rows in (("ops", "op_rows"), ("input_ops", "input_op_rows"), ("output_ops", "output_op_rows")):
        yield from unequal(calls, "call_label", column, (named(labels, found) for found in calls.column(rows)))
    of = tables.ops.column("layer_row")
    is_op = tables.ops.column("is_compute_op")
    right = (sum(picked(is_op, rows)) for rows in calls.column("op_rows"))
    yield from unequal(calls, "call_label", "num_ops", right)
    right = (len(set(picked(of, rows))) for rows in calls.column("op_rows"))
    yield from unequal(calls, "call_label", "num_layers", right)


def edges_of_calls_are_counted(tables: CaptureTables) -> Breaches:
    """An edge is inside a call, leads into it or out of it; a module adds up its calls."""
    ops, calls, modules = tables.ops, tables.module_calls, tables.modules
    parents, children = ops.column("parent_rows"), ops.column("child_rows")
    columns = (calls.column(name) for name in ("call_label", "op_rows", "num_internal_edges", "num_input_edges"))
    outgoing = calls.column("num_output_edges")
    for call, (label, rows, *found) in enumerate(zip(*columns, strict=True)):
        inside = set(rows)
        incoming = [parent in inside for row in rows for parent in set(parents[row])]
        out = sum(child not in inside for row in rows for child in children[row])
        if [*found, outgoing[call]] != [sum(incoming), len(incoming) - sum(incoming), out]:
            yield label, f"it has {sum(incoming)} edges inside, {len(incoming) - sum(incoming)} in and {out} out"
    three = [modules.column(f"num_{kind}_edges") for kind in ("internal", "input", "output")]
    yield from unequal(modules, "address", "num_edges", map(sum, zip(*three, strict=True)))


def modules_hold_what_their_calls_hold(tables: CaptureTables) -> Breaches:
    """Ops and layers of a module are those of its calls."""
    modules, calls = tables.modules, tables.module_calls
    of, layer_labels = tables.ops.column("layer_row"), tables.layers.column("layer_label")
    labels = tables.ops.column("label")
    for column, name in (("op_rows", None), ("input_op_rows", "input_ops"), ("output_op_rows", "output_ops")):
        inside = calls.column(column)
        found = modules.column(column)
        for row, rows in enumerate(modules.column("call_rows")):
            if set(found[row]) != {op for call in rows for op in inside[call]}:
                yield modules.value("address", row), f"its {column} are not those of its calls"
        if name is not None:
            yield from unequal(modules, "address", name, (named(labels, rows) for rows in found))
    layers = [tuple(dict.fromkeys(picked(of, rows))) for rows in modules.column("op_rows")]
    yield from unequal(modules, "address", "layer_rows", layers)
    yield from unequal(modules, "address", "layer_labels", (named(layer_labels, rows) for rows in layers))
    yield from unequal(modules, "address", "num_layers", map(len, layers))


def addresses_nest(tables: CaptureTables) -> Breaches:
    """The address of a registered module is that of the module that holds it, and a name; both know each other."""
    modules = tables.modules
    columns = ("address", "name", "address_parent", "address_depth", "is_registered")
    children = modules.column("address_children")
    below: dict[str, list[str]] = {}
    for row, (address, name, parent, depth, is_registered) in enumerate(
        zip(*(modules.column(column) for column in columns), strict=True)
    ):
        if parent is not None:
            below.setdefault(parent, []).append(address)
        if address not in modules.value("all_addresses", row)[:1]:
            yield address, "its first name is another"
        if modules.value("has_multiple_addresses", row) != (len(modules.value("all_addresses", row)) > 1):
            yield address, "it does not know whether it has several names"
        if not is_registered or parent is None:
            continue
        if address != (name if depth == 1 else f"{parent}.{name}") or depth != 1 + address.count("."):
            yield address, f"it is called {name} and held by {parent}"
    for address, found in zip(modules.column("address"), children, strict=True):
        if sorted(found) != sorted(below.get(address, [])):
            yield address, f"it holds {shown(found)}"


def places_in_modules_are_told(tables: CaptureTables) -> Breaches:
    """The innermost module of an op is the last of those around it, and their number its depth."""
    ops = tables.ops
    around = ops.column("modules")
    yield from unequal(ops, "label", "module", (path[-1] if path else None for path in around))
    yield from unequal(ops, "label", "module_call_depth", map(len, around))
    yield from unequal(ops, "label", "in_submodule", (bool(path) for path in around))


def marks_of_boundaries_follow(tables: CaptureTables) -> Breaches:
    """An op is a module's input or output where it names the calls; the modules are those of the calls."""
    ops = tables.ops
    address = dict(zip(tables.module_calls.column("call_label"), tables.module_calls.column("address"), strict=True))
    leaves = ops.column("output_of_module_calls")
    yield from unequal(ops, "label", "is_module_input", (bool(names) for names in ops.column("input_to_module_calls")))
    yield from unequal(ops, "label", "is_module_output", (bool(names) for names in leaves))
    right = (tuple(dict.fromkeys(address[name] for name in names)) for names in leaves)
    yield from unequal(ops, "label", "output_of_modules", right)
    calls = ops.column("atomic_module_call")
    yield from unequal(ops, "label", "is_atomic_module", (name is not None for name in calls))
    yield from unequal(ops, "label", "atomic_module", (None if name is None else address[name] for name in calls))


CALL_OF_MODULE: Final = tuple(
    "name all_addresses class_name param_memory num_param_tensors has_trainable_params has_frozen_params".split()
)
"""What a module call shows of its module."""


def calls_show_their_module(tables: CaptureTables) -> Breaches:
    """What a call has of its module is what the module has; parameters are trainable or frozen where it has such."""
    calls, modules = tables.module_calls, tables.modules
    of = calls.column("module_row")
    for column in CALL_OF_MODULE:
        yield from unequal(calls, "call_label", column, picked(modules.column(column), of))
    for kind in ("trainable", "frozen"):
        right = (count > 0 for count in modules.column(f"num_param_tensors_{kind}"))
        yield from unequal(modules, "address", f"has_{kind}_params", right)


def memory_of_calls_adds_up(tables: CaptureTables) -> Breaches:
    """What a call returned and what else is inside it, in bytes."""
    calls, sizes = tables.module_calls, tables.ops.column("activation_memory")
    inside, returned = calls.column("op_rows"), calls.column("output_op_rows")
    out = [sum(size or 0 for size in picked(sizes, rows)) for rows in returned]
    yield from unequal(calls, "call_label", "output_activation_memory", out)
    left = map(frozenset[int], returned)
    rest = (sum(sizes[row] or 0 for row in rows if row not in out) for rows, out in zip(inside, left, strict=True))
    yield from unequal(calls, "call_label", "internal_activation_memory", rest)


# -- parameters and buffers


def parameters_and_ops_know_each_other(tables: CaptureTables) -> Breaches:
    """An op took a parameter when the parameter was taken by it; both name each other by label and address."""
    ops, params = tables.ops, tables.params
    labels, addresses = ops.column("label"), params.column("address")
    taken = {(row, number) for row, found in enumerate(ops.column("param_rows")) for number in found}
    known = {(row, number) for number, found in enumerate(params.column("op_rows")) for row in found}
    for row, number in taken ^ known:
        yield str(addresses[number]), f"it and op {labels[row]} do not know each other"
    yield from unequal(ops, "label", "param_names", (named(addresses, rows) for rows in ops.column("param_rows")))
    yield from unequal(ops, "label", "uses_params", map(bool, map(len, ops.column("param_rows"))))
    yield from unequal(params, "address", "used_by_ops", (named(labels, rows) for rows in params.column("op_rows")))
    layers = [tuple(dict.fromkeys(picked(ops.column("layer_label"), rows))) for rows in params.column("op_rows")]
    yield from unequal(params, "address", "used_by_layers", layers)
    for column in ("num_uses_by_ops", "num_calls"):
        yield from unequal(params, "address", column, map(len, params.column("op_rows")))
    yield from unequal(params, "address", "num_uses_by_layers", map(len, layers))


def parameters_are_summed_where_they_are_held(tables: CaptureTables) -> Breaches:
    """Elements, tensors and bytes of parameters are the sums over those that an op, layer or module has."""
    params = tables.params
    sizes, nbytes, trainable = (params.column(name) for name in ("num_params", "param_memory", "is_trainable"))
    for table, key, rows_of, prefix, memory in (
        (tables.ops, "label", "param_rows", "num_param", "param_memory"),
        (tables.layers, "layer_label", "param_rows", "num_param", "total_param_memory"),
        (tables.modules, "address", "param_rows", "num_param", "param_memory"),
        (tables.modules, "address", "recursive_param_rows", "num_recursive_param", "internal_param_memory"),
    ):
        held = table.column(rows_of)
        yield from unequal(table, key, memory, (sum(picked(nbytes, rows)) for rows in held))
        for kind, wanted in (("", None), ("_trainable", True), ("_frozen", False)):
            chosen = [[row for row in rows if wanted is None or bool(trainable[row]) is wanted] for rows in held]
            yield from unequal(table, key, f"{prefix}s{kind}", (sum(picked(sizes, rows)) for rows in chosen))
            yield from unequal(table, key, f"{prefix}_tensors{kind}", map(len, chosen))


def parameters_have_their_size(tables: CaptureTables) -> Breaches:
    """The elements of a parameter follow from its shape."""
    params = tables.params
    yield from unequal(params, "address", "num_params", map(math.prod, params.column("shape")))
    names = params.column("all_addresses")
    yield from unequal(params, "address", "has_multiple_addresses", (len(found) > 1 for found in names))


def modules_hold_their_parameters(tables: CaptureTables) -> Breaches:
    """A module has the parameters that name it as their holder, and below it those of the modules below it."""
    modules, params = tables.modules, tables.params
    held: dict[int, list[int]] = {}
    for number, module in enumerate(params.column("module_row")):
        held.setdefault(module, []).append(number)
    yield from unequal(modules, "address", "param_rows", (tuple(held.get(row, ())) for row in range(len(modules))))
    columns = ("address", "param_rows", "recursive_param_rows", "recursive_param_addresses")
    for address, own, below, names in zip(*(modules.column(column) for column in columns), strict=True):
        if not set(own) <= set(below):
            yield address, "its own parameters are not among those below it"
        if names != named(params.column("address"), below):
            yield address, f"its recursive_param_addresses are {shown(names)}"


def buffers_and_ops_know_each_other(tables: CaptureTables) -> Breaches:
    """An op row is a version of the buffer that lists it, and says whether it was written."""
    ops, buffers = tables.ops, tables.buffers
    labels, addresses = ops.column("label"), buffers.column("address")
    is_buffer, kinds = ops.column("is_buffer"), ops.column("buffer_write_kind")
    said = {(row, number) for row, number in enumerate(ops.column("buffer_row")) if number >= 0}
    known = {(row, number) for number, found in enumerate(buffers.column("version_rows")) for row in found}
    for row, number in said ^ known:
        yield labels[row], f"it and buffer {addresses[number]} do not know each other"
    yield from unequal(ops, "label", "is_buffer", (number >= 0 for number in ops.column("buffer_row")))
    right = (addresses[row] if row >= 0 else None for row in ops.column("buffer_row"))
    yield from unequal(ops, "label", "address", right)
    versions = [tuple(rows) for rows in buffers.column("version_rows")]
    written = [tuple([row for row in rows if kinds[row] is not None]) for rows in versions]
    for row, (flag, kind) in enumerate(zip(is_buffer, kinds, strict=True)):
        if kind is not None and not flag:
            yield labels[row], f"it is no buffer and was written by {kind}"
    yield from unequal(buffers, "address", "written_rows", written)
    for column, rows in (("versions", versions), ("write_versions", written)):
        yield from unequal(buffers, "address", column, (named(labels, found) for found in rows))
    for column, rows in (("num_versions", versions), ("num_overwrites", written)):
        yield from unequal(buffers, "address", column, map(len, rows))
    yield from unequal(buffers, "address", "is_overwritten", map(bool, map(len, written)))


def buffers_show_their_newest_version(tables: CaptureTables) -> Breaches:
    """What a buffer has of its newest version is what that version has; nothing where there is none."""
    ops, buffers = tables.ops, tables.buffers
    newest = [rows[-1] if rows else -1 for rows in buffers.column("version_rows")]
    for column in ("label", "layer_label", "buffer_pass", "module"):
        of = ops.column(column)
        yield from unequal(buffers, "address", column, (of[row] if row >= 0 else None for row in newest))
    for column in ("shape", "dtype", "activation_memory"):
        for address, row, found in zip(buffers.column("address"), newest, buffers.column(column), strict=True):
            wanted = ops.value(column, row) if row >= 0 else None
            is_told = row >= 0 and (column != "activation_memory" or wanted is not None)  # else as it was described
            if is_told and found != wanted:
                yield str(address), f"its {column} is {shown(found)}"


def writers_of_buffers_are_their_parents(tables: CaptureTables) -> Breaches:
    """A written version names the op it was made from; a version that was only read names none."""
    ops = tables.ops
    labels, names = ops.column("label"), ops.column("func_name")
    parents, kinds = ops.column("parent_rows"), ops.column("buffer_write_kind")
    writers = [rows[0] if kind is not None and rows else -1 for rows, kind in zip(parents, kinds, strict=True)]
    yield from unequal(ops, "label", "buffer_source", (labels[row] if row >= 0 else None for row in writers))
    yield from unequal(ops, "label", "buffer_source_func_name", (names[row] if row >= 0 else None for row in writers))


def buffers_read_and_written_are_neighbours(tables: CaptureTables) -> Breaches:
    """The buffer versions that an op read are among its parents, those that it wrote among its children."""
    ops = tables.ops
    labels, is_buffer, kinds = ops.column("label"), ops.column("is_buffer"), ops.column("buffer_write_kind")
    skipped = [one or other for one, other in zip(is_buffer, ops.column("is_output"), strict=True)]
    read = (
        () if skip else named(labels, [row for row in dict.fromkeys(rows) if is_buffer[row]])
        for rows, skip in zip(ops.column("parent_rows"), skipped, strict=True)
    )
    yield from unequal(ops, "label", "buffer_source_ops", read)
    written = (named(labels, [row for row in rows if kinds[row] is not None]) for rows in ops.column("child_rows"))
    yield from unequal(ops, "label", "buffer_sink_ops", written)


# -- inputs and outputs


def every_output_has_a_parent(tables: CaptureTables) -> Breaches:
    """An output was returned from one op; from none where the model returned a constant."""
    forward = tables.forward
    columns = (tables.ops.column(name) for name in ("label", "is_output", "parent_rows", "value"))
    for at, label, is_output, parents, value in zip(forward.rows.event, *columns, strict=True):
        if is_output and len(parents) != forward.has_row(value, at):
            yield label, f"it has {len(parents)} parents"


def inputs_have_no_parents(tables: CaptureTables) -> Breaches:
    """Inputs and buffers that were only read were made by nothing."""
    columns = (tables.ops.column(name) for name in ("label", "is_input", "is_buffer", "buffer_write_kind", "parents"))
    for label, is_input, is_buffer, kind, parents in zip(*columns, strict=True):
        if parents and (is_input or (is_buffer and kind is None)):
            yield label, "it has parents"


def buffer_versions_are_dense(tables: CaptureTables) -> Breaches:
    """The versions of a buffer that stayed are in order, and a reader finds each under its address."""
    passes = tables.ops.column("buffer_pass")
    for address, rows in zip(tables.buffers.column("address"), tables.buffers.column("version_rows"), strict=True):
        versions = [passes[row] for row in rows]
        if versions != sorted(set(versions)):
            yield address, f"its versions are numbered {versions}"


# -- the capture as a whole


def counts_add_up(tables: CaptureTables) -> Breaches:
    """What the capture counts is what the tables hold."""
    ops, layers = tables.ops, tables.layers
    is_op, is_buffer = ops.column("is_compute_op"), ops.column("is_buffer")
    edges = {(parent, row) for row, found in enumerate(ops.column("parent_rows")) for parent in found}
    held: dict[str, int] = {
        "num_tensors": len(ops),
        "num_ops": len(marked(is_op)),
        "num_layers": len(layers),
        "num_compute_layers": len(marked(layers.column("is_compute_layer"))),
        "num_module_calls": len(tables.module_calls),
        "num_modules": sum(count > 0 for count in tables.modules.column("num_calls")),
        "num_edges": len(edges),
        "num_layer_edges": sum(map(len, layers.column("parent_layer_rows"))),
        "num_compute_edges": sum(bool(is_op[parent] and is_op[row]) for parent, row in edges),
        "num_buffer_edges": sum(bool(is_buffer[parent] or is_buffer[row]) for parent, row in edges),
    }
    for name, count in held.items():
        yield from fact_is(tables, name, count)


def degrees_of_the_graph_are_told(tables: CaptureTables) -> Breaches:
    """The most passes of a layer, and the most parents and children of a compute op."""
    ops = tables.ops
    is_op = marked(ops.column("is_compute_op"))
    children = picked(ops.column("num_children"), is_op)
    passes = tables.layers.column("num_passes")
    yield from fact_is(tables, "max_layer_op_count", max(passes, default=0))
    yield from fact_is(tables, "is_recurrent", any(count > 1 for count in passes))
    yield from fact_is(tables, "max_in_degree", max(picked(ops.column("num_parents"), is_op), default=0))
    yield from fact_is(tables, "max_out_degree", max(children, default=0))
    yield from fact_is(tables, "is_branching", any(count > 1 for count in children))
    yield from fact_is(tables, "branching_factor", sum(children) / len(children) if children else 0.0)
    if any(ops.column("is_terminal_bool")):  # the truth of a tensor without a row may have been taken, too
        yield from fact_is(tables, "is_dynamic_graph", wanted=True)


LISTED: Final = (
    ("input_ops", "is_input"),
    ("output_ops", "is_output"),
    ("compute_ops", "is_compute_op"),
    ("internal_source_ops", "is_internal_source"),
    ("internal_sink_ops", "is_internal_sink"),
    ("saved_ops", "has_saved_payload"),
)
"""Lists of op labels, and the mark of the ops that stand in them."""


def lists_hold_the_marked(tables: CaptureTables) -> Breaches:
    """The lists of the capture are the records with a mark, in order."""
    ops, layers = tables.ops, tables.layers
    labels = ops.column("label")
    for name, mark in LISTED:
        yield from fact_is(tables, name, named(labels, marked(ops.column(mark))))
    for name, mark in (LISTED[0], LISTED[1], LISTED[5]):
        yield from fact_is(tables, name.replace("_ops", "_rows"), tuple(marked(ops.column(mark))))
    kinds, is_buffer = ops.column("buffer_write_kind"), marked(ops.column("is_buffer"))
    yield from fact_is(tables, "buffer_read_ops", named(labels, [row for row in is_buffer if kinds[row] is None]))
    yield from fact_is(tables, "buffer_write_ops", named(labels, [row for row in is_buffer if kinds[row] is not None]))
    layer_labels = layers.column("layer_label")
    yield from fact_is(tables, "compute_layers", named(layer_labels, marked(layers.column("is_compute_layer"))))
    several = marked(count > 1 for count in layers.column("num_passes"))
    yield from fact_is(tables, "recurrent_layers", named(layer_labels, several))
    for name, mark in (("input_layers", "is_input"), ("output_layers", "is_output")):
        yield from fact_is(tables, name, named(layer_labels, marked(layers.column(mark))))
    addresses, calls = tables.modules.column("address"), tables.modules.column("num_calls")
    yield from fact_is(tables, "uncalled_modules", named(addresses, marked(count == 0 for count in calls)))
    unused = marked(not rows for rows in tables.params.column("op_rows"))
    yield from fact_is(tables, "unexecuted_param_names", named(tables.params.column("address"), unused))


def parameters_of_the_model_add_up(tables: CaptureTables) -> Breaches:
    """Elements, tensors and bytes of all parameters, of the trainable ones and of those that some op took."""
    params = tables.params
    sizes, trainable = params.column("num_params"), marked(params.column("is_trainable"))
    rest = sorted(set(range(len(params))) - set(trainable))
    used = marked(params.column("op_rows"))
    yield from fact_is(tables, "num_params", sum(sizes))
    yield from fact_is(tables, "num_params_trainable", sum(picked(sizes, trainable)))
    yield from fact_is(tables, "num_params_frozen", sum(picked(sizes, rest)))
    yield from fact_is(tables, "num_param_tensors", len(params))
    yield from fact_is(tables, "num_param_tensors_trainable", len(trainable))
    yield from fact_is(tables, "num_param_tensors_frozen", len(rest))
    yield from fact_is(tables, "num_params_executed", sum(picked(sizes, used)))
    yield from fact_is(tables, "num_params_unexecuted", sum(sizes) - sum(picked(sizes, used)))
    yield from fact_is(tables, "total_param_memory", sum(params.column("param_memory")))


def memory_adds_up(tables: CaptureTables) -> Breaches:
    """The bytes of all values, and of the saved ones."""
    ops = tables.ops
    sizes = [size or 0 for size in ops.column("activation_memory")]
    yield from fact_is(tables, "total_activation_memory", sum(sizes))
    kept = sum(picked(sizes, marked(ops.column("has_saved_activation"))))
    made = zip(ops.column("transformed_out_dtype"), ops.column("transformed_out_shape"), strict=True)
    kept += sum(item_bytes(dtype, math.prod(shape)) for dtype, shape in made if dtype is not None)
    yield from fact_is(tables, "saved_activation_memory", kept)


def saved_payloads_are_of_activations_or_made_of_them(tables: CaptureTables) -> Breaches:
    """An op is kept where its activation is, or what was made of that."""
    ops = tables.ops
    refs = zip(ops.column("payload_ref"), ops.column("transformed_payload_ref"), strict=True)
    both = [(plain is not None, plain is not None or made is not None) for plain, made in refs]
    yield from unequal(ops, "label", "has_saved_activation", (plain for plain, _ in both))
    yield from unequal(ops, "label", "has_saved_payload", (kept for _, kept in both))


def work_adds_up(tables: CaptureTables) -> Breaches:
    """The work of an op is its forward and its backward; the capture's is the sum of what is known."""
    ops = tables.ops
    both = zip(ops.column("flops_forward"), ops.column("flops_backward"), strict=True)
    yield from unequal(ops, "label", "flops_total", map(total, both))
    once = first_results(tables, range(len(ops)))
    for name, column in (
        ("total_flops_forward", "flops_forward"),
        ("total_flops_backward", "flops_backward"),
        ("total_macs_forward", "macs_forward"),
    ):
        known = [value for value in picked(ops.column(column), once) if value is not None]
        yield from fact_is(tables, name, sum(known))


WORK: Final = ("flops_forward", "flops_backward", "macs_forward")


def work_of_calls_adds_up(tables: CaptureTables) -> Breaches:
    """The work of a module call is that of the ops inside, and a module's that of all its calls."""
    of_ops = [(name, tables.ops.column(name)) for name in WORK]
    for table, key, lead in ((tables.module_calls, "call_label", ""), (tables.modules, "address", "total_")):
        inside = [first_results(tables, rows) for rows in table.column("op_rows")]
        for name, column in of_ops:
            yield from unequal(table, key, f"{lead}{name}", (total(picked(column, rows)) for rows in inside))


CHARGED: Final = ("saved_for_backward", "saved_params_for_backward", "saved_inputs_for_backward")


def memory_for_the_backward_adds_up(tables: CaptureTables) -> Breaches:
    """What the backward needs is charged once: to calls, modules and layers what their ops are charged with."""
    ops, missing = tables.ops, frozenset(tables.fact("untold_saved_ops"))
    is_untold = [label in missing for label in ops.column("label")]
    of_ops = [(name, ops.column(name)) for name in CHARGED]

    def charged(column: Sequence[Any], rows: Sequence[int]) -> int | None:
        known = [value for value in picked(column, rows) if value is not None]
        return sum(known) if known and not any(picked(is_untold, rows)) else None

    for table, key, lead in ((tables.module_calls, "call_label", ""), (tables.modules, "address", "total_")):
        inside = [first_results(tables, rows) for rows in table.column("op_rows")]
        for name, column in of_ops:
            yield from unequal(table, key, f"{lead}{name}", (charged(column, rows) for rows in inside))
    for name, column in of_ops:
        passes = tables.layers.column("op_rows")
        yield from unequal(tables.layers, "layer_label", f"total_{name}", (charged(column, rows) for rows in passes))
        known = [value for value in picked(column, first_results(tables, range(len(ops)))) if value is not None]
        yield from fact_is(tables, f"total_{name}", sum(known) if known else None)


def first_results(tables: CaptureTables, rows: Iterable[int]) -> list[int]:
    """Rows without the further results of a call, so that a call counts once."""
    slots, is_op = tables.ops.column("slot"), tables.ops.column("is_compute_op")
    return [row for row in rows if not is_op[row] or slots[row] == 0]


def times_add_up(tables: CaptureTables) -> Breaches:
    """Time inside torch calls is the sum over ops, for the capture and for each module call; none is negative."""
    every = [first_results(tables, range(len(tables.ops)))]
    yield from sums_of_times(tables, tables.capture, "trace_label", "func_calls_duration", every)
    calls = tables.module_calls
    inside = (first_results(tables, rows) for rows in calls.column("op_rows"))
    yield from sums_of_times(tables, calls, "call_label", "func_calls_duration", inside)
    for label, time in zip(tables.ops.column("label"), tables.ops.column("func_duration"), strict=True):
        if time < 0:
            yield label, f"it took {time} seconds"


def times_of_the_capture_fit(tables: CaptureTables) -> Breaches:
    """What came before, in and after the forward is within the capture; overhead is the forward outside torch."""
    fact = tables.fact
    parts = [fact(name) for name in ("setup_duration", "forward_duration", "cleanup_duration")]
    whole, forward, inside = fact("capture_duration"), parts[1], fact("func_calls_duration")
    if whole is not None and total(parts) is not None and total(parts) > whole + 1e-9:
        yield "capture_duration", f"it is {whole}, and its parts take {total(parts)}"
    if forward is not None and not math.isclose(fact("overhead_duration"), forward - inside, abs_tol=1e-9):
        yield "overhead_duration", f"it is {fact('overhead_duration')}"


def work_is_told_by_type(tables: CaptureTables) -> Breaches:
    """Work by type of op is that of the capture, and every op's is known, unknown or no question."""
    by_type = tables.fact("flops_by_op_type")
    for way in ("forward", "backward"):
        yield from fact_is(tables, f"total_flops_{way}", sum(told[way] for told in by_type.values()))
    coverage = tables.fact("compute_coverage")
    if sum(coverage.values()) != len(tables.ops):
        yield "compute_coverage", f"it speaks of {sum(coverage.values())} ops, and there are {len(tables.ops)}"


STATUSES: Final = get_args(Status)


def the_ending_is_told_once(tables: CaptureTables) -> Breaches:
    """A capture is halted when it has a reason for it, partial when it neither returned nor was halted."""
    fact = tables.fact
    status = fact("status")
    if status not in STATUSES:
        yield "status", f"it is {status!r}"
    yield from fact_is(tables, "halted", status == "halted")
    yield from fact_is(tables, "is_partial", status not in ("complete", "halted"))
    for name, told in (("halt_reason", status == "halted"), ("ended_event", status != "unfinished")):
        if (fact(name) is not None) != told:
            yield name, f"it is {fact(name)!r} and the capture is {status}"


def keys_lead_back(tables: CaptureTables) -> Breaches:
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


def boundaries_agree(tables: CaptureTables) -> Breaches:
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
    edges_are_told_by_label_too,
    uses_follow_the_edges,
    degrees_are_counted,
    neighbours_of_neighbours_are_found,
    descent_follows_the_edges,
    ancestors_are_those_of_the_parents,
    distances_follow_the_edges,
    inputs_are_described_as_the_parents,
    every_op_has_one_role,
    sources_and_sinks_have_no_edges,
    outputs_end_the_graph,
    only_inputs_and_outputs_have_a_place,
    every_output_has_a_parent,
    inputs_have_no_parents,
    orphans_are_apart,
    labels_are_unique,
    labels_spell_their_numbers,
    positions_are_dense,
    steps_never_fall,
    keys_lead_back,
    passes_are_dense,
    passes_know_each_other,
    every_op_is_in_a_layer,
    layers_are_one_kind,
    layers_stand_by_first_pass,
    layers_show_their_first_pass,
    layers_mark_what_some_pass_is,
    layer_edges_join_those_of_the_passes,
    layer_sums_are_over_the_passes,
    results_of_a_call_stand_together,
    arguments_are_counted,
    values_have_their_size,
    truths_are_of_one_bool,
    modules_nest,
    ops_know_their_calls,
    boundaries_agree,
    calls_are_counted_by_module,
    calls_know_their_place,
    descendants_of_calls_are_counted,
    calls_name_what_is_inside,
    edges_of_calls_are_counted,
    modules_hold_what_their_calls_hold,
    addresses_nest,
    places_in_modules_are_told,
    marks_of_boundaries_follow,
    calls_show_their_module,
    memory_of_calls_adds_up,
    parameters_and_ops_know_each_other,
    parameters_are_summed_where_they_are_held,
    parameters_have_their_size,
    modules_hold_their_parameters,
    buffer_versions_are_dense,
    buffers_and_ops_know_each_other,
    buffers_show_their_newest_version,
    writers_of_buffers_are_their_parents,
    buffers_read_and_written_are_neighbours,
    counts_add_up,
    degrees_of_the_graph_are_told,
    lists_hold_the_marked,
    parameters_of_the_model_add_up,
    memory_adds_up,
    saved_payloads_are_of_activations_or_made_of_them,
    work_adds_up,
    work_of_calls_adds_up,
    memory_for_the_backward_adds_up,
    work_is_told_by_type,
    times_add_up,
    times_of_the_capture_fit,
    the_ending_is_told_once,
    *OF_BACKWARD,
)
"""All promises, in the order in which they are checked."""


def check(tables: CaptureTables) -> list[Finding]:
    """Everything that does not hold.

    Raises:
        JournalCorrupt: ``events_contradictory``, where there are no records to compare.
    """
    return [
        Finding(promise_name(promise), record, problem)
        for promise in PROMISES
        for record, problem in breaches(promise, tables)
    ]


def told(findings: Sequence[Finding]) -> str:
    """The first findings in words, and how many more there are."""
    first = "; ".join(f"{finding.record}: {finding.problem}" for finding in findings[:TOLD])
    return f"{first} and {len(findings) - TOLD} more" if len(findings) > TOLD else first


TOLD: Final = 3
"""So many findings are told in words."""


def breaches(promise: Promise, tables: CaptureTables) -> list[tuple[str, str]]:
    """What breaks one promise; records that do not even fit together do."""
    try:
        return list(promise(tables))
    except TorchLensError:
        raise
    except FAULTS as exc:
        return [("records", f"they cannot be compared: {fault_text(exc)}")]


def promise_name(promise: Any) -> str:
    return str(promise.__name__)
