"""Columns of the op table: one row per call and result, input, output and buffer version.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``ops``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, TypeAlias

from journal.events import MODE_GRAD, MODE_INFERENCE, BufferWritten, InputSeen
from projections.columnar.arguments import (
    argument_paths,
    arguments_text,
    flat_kwargs,
    has_hole,
    keywords_text,
    step_into,
)
from projections.columnar.ordered import by_key
from projections.columnar.sequences import Classes, Computed, Deferred, Each, Picked, Ragged
from projections.columnar.tables import Column, Maker
from projections.folds.graph import BUFFER_FUSED, BUFFER_WRITTEN, INPUT, NOWHERE, OUTPUT
from projections.forward import Forward
from projections.records import control, cost, gradient_columns, saved
from projections.records.kept_calls import (
    arguments_event,
    has_out_variations,
    has_saved_args,
    out_variations,
    rng_states,
)
from projections.records.keys import every_keys, keys_of
from projections.records.makers import (
    flags,
    from_brief,
    from_brief_by,
    from_call,
    from_event,
    labels_of,
    of_call,
    of_classes,
    of_function,
    of_layer,
    per_row,
    some,
)
from projections.records.naming import arg_expressions, var_names
from projections.records.opacity import opaque_reason
from projections.records.signatures import arg_names, config_of
from projections.source.sites import frames
from projections.structure.details import ARGS, CONTAINER, INPUTS, KWARGS, WRITERS, Brief, field
from projections.structure.reach import distances, reached
from projections.structure.rows import is_buffer

WAS_PARAMETER: Final = field(InputSeen, "was_parameter")
HOW: Final = field(BufferWritten, "how")
CHANGED: Final = field(BufferWritten, "changed")


# -- identity


def label_short(forward: Forward) -> Column:
    """A pass is named where the whole label names it: by what the head knows of the layer."""
    labels, groups = forward.labels, forward.groups
    return [
        labels.layer_short[layer] if label == labels.layer[layer] else f"{labels.layer_short[layer]}:{index}"
        for label, layer, index in zip(labels.op, groups.layer, groups.pass_index, strict=True)
    ]


def lookup_keys(forward: Forward) -> Column:
    """Positions from both ends, then texts."""
    count = len(forward)
    return Deferred(
        count,
        lambda row: (row, row - count, *keys_of(forward, row)),
        lambda: [(row, row - count, *keys) for row, keys in enumerate(every_keys(forward))],
    )


def site_keys(forward: Forward) -> list[str]:
    """Structural keys that do not depend on numbering: version, module path, type, slot, rank."""
    ranks: dict[tuple[Any, ...], int] = {}
    made: list[str] = []
    rows, paths, words = forward.rows, forward.call_paths, forward.words
    multi = in_multi_output(forward)
    for row, (function, call, slot) in enumerate(zip(rows.function, rows.call, rows.slot, strict=True)):
        kind = forward.names.layer_type(function)
        place = str(slot) if multi[row] else ""
        rank = ranks[call, kind, place] = ranks.get((call, kind, place), 0) + 1
        path = "/".join([words.module_path(forward.calls.module[outer]) for outer in paths[call]]) if paths else ""
        made.append(f"s1|{path}|{kind}|{place}|{rank}")
    return made


def recurrent_ops(forward: Forward) -> Column:
    """Labels of all passes of the layer: one tuple a layer, which its passes share."""
    labels = forward.labels.op
    passes = [tuple([labels[row] for row in rows]) for rows in forward.layer_ops]
    return Picked(passes, forward.layer_classes)


# -- function


def func_qualname(forward: Forward, function: int) -> str | None:
    if function >= 0:
        return forward.words.func_qualnames[function]
    return None


def func_call_id(forward: Forward) -> Column:
    return [at if wanted else None for at, wanted in zip(forward.rows.event, forward.is_op, strict=True)]


def non_tensors(forward: Forward, row: int, event: Any) -> tuple[Any, ...]:
    return tuple([template for template in event[ARGS] if not has_hole(template)])


def non_tensor_keywords(forward: Forward, row: int, event: Any) -> tuple[tuple[str, Any], ...]:
    return tuple([(name, template) for name, template in flat_kwargs(event[KWARGS]) if not has_hole(template)])


def shapes_of(forward: Forward, numbers: Sequence[int]) -> list[tuple[tuple[int, ...] | None, str | None]]:
    """Shape and dtype of each tensor argument, given as in ``OpExecuted.inputs``, where they are known."""
    found: list[tuple[tuple[int, ...] | None, str | None]] = []
    for number in numbers:
        if number < 0:
            parameter = forward.words.parameters[-1 - number]
            found.append((parameter.shape, parameter.dtype))
        else:
            brief = forward.brief_of(number)
            found.append((brief.shape, brief.dtype))
    return found


def tensor_texts(forward: Forward, numbers: Sequence[int]) -> list[str]:
    return [tensor_text(shape, dtype) for shape, dtype in shapes_of(forward, numbers)]


def tensor_text(shape: tuple[int, ...] | None, dtype: str | None) -> str:
    return "Tensor" if shape is None else f"Tensor(shape={shape}, dtype={dtype})"


def args_summary(forward: Forward, row: int, event: Any) -> str:
    return arguments_text(event[ARGS], iter(tensor_texts(forward, event[INPUTS])))


def kwargs_summary(forward: Forward, row: int, event: Any) -> str:
    texts = tensor_texts(forward, event[INPUTS])
    before = len(argument_paths(event[ARGS], ()))
    return keywords_text(event[KWARGS], iter(texts[before:]))


def func_config(forward: Forward, row: int, event: Any) -> tuple[tuple[str, Any], ...]:
    inputs: tuple[int, ...] = event[INPUTS]
    shapes = [forward.words.parameters[-1 - number].shape for number in inputs if number < 0]
    name = forward.names.func_name(forward.rows.function[row])
    return config_of(name, event[ARGS], flat_kwargs(event[KWARGS]), shapes)


def code_context(forward: Forward, row: int) -> tuple[Any, ...]:
    rows = forward.rows
    if rows.function[row] < 0:
        return ()
    calls = forward.call_paths[rows.call[row]] if len(forward.calls) else ()
    outer = [frame for call in calls for frame in frames(forward.words, forward.calls.site[call])]
    return (*outer, *frames(forward.words, rows.site[row]))


def of_sites(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column that rows have from their call site, module call and slot."""

    def make(forward: Forward) -> Column:
        slots = zip(forward.site_classes.of, forward.rows.slot, strict=True)
        classes = Classes.by(
            [pair if function >= 0 else NOWHERE for pair, function in zip(slots, forward.rows.function, strict=True)]
        )
        return Picked([one(forward, row) for row in classes.first], classes)

    return make


# -- slots


def in_multi_output(forward: Forward) -> list[bool]:
    """Whether the call of each row returned several tensors: its neighbours then stem from the same event."""
    event, function = forward.rows.event, forward.rows.function
    last = len(event) - 1
    return [
        function[row] >= 0 and ((row > 0 and event[row - 1] == at) or (row < last and event[row + 1] == at))
        for row, at in enumerate(event)
    ]


def multi_output_index(forward: Forward) -> Column:
    multi, slot = in_multi_output(forward), forward.rows.slot
    return [slot[row] if several else None for row, several in enumerate(multi)]


def container_path(forward: Forward, row: int, event: Any) -> tuple[Any, ...]:
    path = forward.detail(row).brief.path
    return step_into(event[CONTAINER], path) if path else ()


def multi_output_name(forward: Forward, row: int, event: Any) -> str | None:
    path = container_path(forward, row, event)
    return str(path[-1][1]) if path and path[-1][0] in ("NamedField", "DictKey") else None


# -- graph


def unique_parent_rows(forward: Forward) -> Ragged[int]:
    return forward.unique_parents


def child_rows(forward: Forward) -> Ragged[int]:
    return forward.children


def parent_rows(forward: Forward) -> Ragged[int]:
    return forward.parents


Use: TypeAlias = "tuple[int | str, tuple[int | str, ...]]"
"""How a call uses a parent: the argument's position or name, and the place inside that argument."""


FIRST: Final[Use] = (0, ())
"""How outputs and buffers use what they were made from."""


def places_of(forward: Forward, at: int, event: Any) -> list[Use]:
    """How a call uses each tensor that has a row: constants and plain parameters are not among the parents."""
    inputs, writers = event[INPUTS], event[WRITERS]
    made: list[Use] = []
    for index, use in enumerate(argument_paths(event[ARGS], event[KWARGS])):
        writer = None if writers is None else writers[index]
        value = inputs[index] if writer is None else writer
        if forward.has_row(value, at):
            made.append(use)
    return made


def uses_of(forward: Forward, row: int) -> Iterable[tuple[int, Use]]:
    """Per use of a parent: its row, and how."""
    rows = forward.rows
    parents = rows.parents[row]
    if rows.function[row] < 0:
        return [(parent, FIRST) for parent in parents]
    at = rows.event[row]
    return zip(parents, places_of(forward, at, forward.source.row(at)), strict=False)


def every_use(forward: Forward) -> Iterator[Iterable[tuple[int, Use]]]:
    """``uses_of`` of every row, in order."""
    classes, events = forward.given
    made_at = forward.rows.event
    places = [
        None if event is None else places_of(forward, made_at[row], event)
        for row, event in zip(classes.first, events, strict=True)
    ]
    for number, parents in zip(classes.of, forward.parents, strict=True):
        uses = places[number]
        yield zip(parents, repeat(FIRST) if uses is None else uses, strict=False)


def from_uses(one: Callable[[Forward, int, Iterable[tuple[int, Use]]], Any]) -> Maker[Forward]:
    """A column made from how each row uses its parents."""

    def make(forward: Forward) -> Column:
        return Deferred(
            len(forward),
            lambda row: one(forward, row, uses_of(forward, row)),
            lambda: [one(forward, row, uses) for row, uses in enumerate(every_use(forward))],
        )

    return make


def parent_arg_positions(forward: Forward, row: int, uses: Iterable[tuple[int, Use]]) -> dict[str, dict[Any, str]]:
    """Parent labels by place: a position or name, or a path that starts with one."""
    label = forward.labels.op
    made: dict[str, dict[Any, str]] = {"args": {}, "kwargs": {}}
    for parent, (argument, path) in uses:
        made["args" if isinstance(argument, int) else "kwargs"][(argument, *path) if path else argument] = label[parent]
    return {kind: by_key(places) for kind, places in made.items()}


def edge_uses(forward: Forward, row: int, uses: Iterable[tuple[int, Use]]) -> tuple[Any, ...]:
    label = forward.labels.op
    return tuple(
        [
            (label[parent], label[row], "positional" if isinstance(argument, int) else "keyword", (argument, *path))
            for parent, (argument, path) in uses
        ]
    )


def one_across(there: Ragged[int], back: Ragged[int], row: int) -> list[int]:
    """What is reached from a row by a step there and one back, itself left out, ascending."""
    found = {one for other in there[row] for one in back[other]}
    found.discard(row)
    return sorted(found)


def across(there: Callable[[Forward], Ragged[int]], back: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    """A column of the op labels that are reached by a step there and one back."""

    def make(forward: Forward) -> Column:
        labels, going, coming = forward.labels.op, there(forward), back(forward)

        def names(rows: Sequence[int]) -> tuple[str, ...]:
            return tuple([labels[row] for row in rows])

        return Deferred(
            len(forward),
            lambda row: names(one_across(going, coming, row)),
            lambda: [names(rows) if rows else () for rows in forward.across(going, coming)],
        )

    return make


def some_across(there: Callable[[Forward], Ragged[int]], back: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    """Whether another row is reached by a step there and one back: each step back leads to the row too."""

    def make(forward: Forward) -> Column:
        ends = back(forward).ends
        is_shared = [end - start > 1 for start, end in pairwise(ends)]
        return [any(map(is_shared.__getitem__, rows)) for rows in there(forward)]

    return make


def of_buffers(one: Callable[[Forward, int], Sequence[int]]) -> Maker[Forward]:
    """A column of op labels, sorted by row; without buffers there are none."""

    def read(forward: Forward, row: int) -> tuple[str, ...]:
        labels = forward.labels.op
        return tuple([labels[other] for other in one(forward, row)])

    def make(forward: Forward) -> Column:
        if not forward.versions_of:
            return Picked([()], Classes.by([()] * len(forward)))
        return Each(forward, range(len(forward)), read)

    return make


def internal_sources(forward: Forward) -> list[int]:
    """Rows made without tensor parents, first reads of buffers included."""
    parents = forward.parents
    function = forward.rows.function
    return [row for row, count in enumerate(parents.lengths()) if not count and function[row] not in (INPUT, OUTPUT)]


def internal_sinks(forward: Forward) -> list[int]:
    function = forward.rows.function
    return [row for row, count in enumerate(forward.children.lengths()) if not count and function[row] != OUTPUT]


def set_labels(read: Callable[[Forward], list[frozenset[int]]]) -> Maker[Forward]:
    """A column of op labels in row order from sets of rows; equal sets give one tuple."""

    def make(forward: Forward) -> Column:
        labels = forward.labels.op
        known: dict[frozenset[int], tuple[str, ...]] = {}
        made: list[tuple[str, ...]] = []
        for rows in read(forward):
            found = known.get(rows)
            if found is None:
                found = known[rows] = tuple([labels[row] for row in sorted(rows)])
            made.append(found)
        return made

    return make


def ancestors(forward: Forward, starts: Sequence[int]) -> list[frozenset[int]]:
    return reached(forward.parents, starts, range(len(forward)))


def root_ancestors(forward: Forward) -> list[frozenset[int]]:
    return ancestors(forward, sorted((*forward.input_rows, *internal_sources(forward))))


def input_ancestors(forward: Forward) -> list[frozenset[int]]:
    return ancestors(forward, forward.input_rows)


def source_ancestors(forward: Forward) -> list[frozenset[int]]:
    return ancestors(forward, internal_sources(forward))


def output_descendants(forward: Forward) -> list[frozenset[int]]:
    return reached(forward.children, forward.output_rows, reversed(range(len(forward))))


def not_empty(read: Callable[[Forward], Sequence[Any]]) -> Maker[Forward]:
    def make(forward: Forward) -> Column:
        return [bool(items) for items in read(forward)]

    return make


def lengths(read: Callable[[Forward], Ragged[int]]) -> Maker[Forward]:
    return lambda forward: read(forward).lengths()


def from_input(longest: bool) -> Maker[Forward]:
    return lambda forward: distances(forward.parents, forward.input_rows, range(len(forward)), longest)


def to_output(longest: bool) -> Maker[Forward]:
    return lambda forward: distances(forward.children, forward.output_rows, reversed(range(len(forward))), longest)


# -- roles


def output_parents(forward: Forward) -> list[int]:
    return [parent for row in forward.output_rows for parent in forward.parents[row]]


def input_was_parameter(forward: Forward, row: int, event: Any) -> bool:
    return bool(event[WAS_PARAMETER])


# -- buffers


def only_buffers(one: Callable[[Forward, int], Any], missing: Any) -> Maker[Forward]:
    """A column that buffer versions have; ``missing`` for all other rows."""

    def make(forward: Forward) -> Column:
        made = [missing] * len(forward)
        for versions in forward.versions_of.values():
            for row in versions:
                made[row] = one(forward, row)
        return made

    return make


def buffer_address(forward: Forward, row: int) -> str:
    return forward.buffer_address(forward.rows.site[row])


def buffer_row(forward: Forward, row: int) -> int:
    return forward.rows.site[row]


def buffer_pass(forward: Forward, row: int) -> int:
    return forward.rows.slot[row]


def is_written(function: int) -> bool:
    return function in (BUFFER_WRITTEN, BUFFER_FUSED)


def buffer_writer(forward: Forward, row: int) -> int:
    """The op row that wrote a buffer version, NOWHERE if there is none."""
    if not is_written(forward.rows.function[row]) or not forward.parents.length(row):
        return NOWHERE
    return forward.parents[row][0]


def buffer_source(forward: Forward, row: int) -> str | None:
    writer = buffer_writer(forward, row)
    return None if writer == NOWHERE else forward.labels.op[writer]


def buffer_source_func_name(forward: Forward, row: int) -> str | None:
    writer = buffer_writer(forward, row)
    return None if writer == NOWHERE else forward.names.func_name(forward.rows.function[writer])


def buffers_read(forward: Forward, row: int) -> list[int]:
    function = forward.rows.function
    if is_buffer(function[row]) or function[row] == OUTPUT:
        return []
    return [parent for parent in forward.unique_parents[row] if is_buffer(function[parent])]


def buffers_written(forward: Forward, row: int) -> list[int]:
    function = forward.rows.function
    return [child for child in forward.children[row] if is_written(function[child])]


# -- modules


def call_column(forward: Forward) -> Column:
    return forward.rows.call if len(forward.calls) else [NOWHERE] * len(forward)


def modules_of(forward: Forward, row: int) -> tuple[str, ...]:
    paths = forward.label_paths
    return paths[forward.rows.call[row]] if paths else ()


def module_of(forward: Forward, row: int) -> str | None:
    path = modules_of(forward, row)
    return path[-1] if path else None


def module_call_depth(forward: Forward, row: int) -> int:
    return len(modules_of(forward, row))


def in_submodule(forward: Forward, row: int) -> bool:
    return bool(modules_of(forward, row))


def call_names(read: Callable[[Forward], Sequence[Sequence[int]]]) -> Maker[Forward]:
    """Call labels from lists of calls per row."""

    def make(forward: Forward) -> Column:
        calls, labels = read(forward), forward.call_labels
        return Computed(len(forward), lambda row: tuple([labels[call] for call in calls[row]]))

    return make


def left_modules(forward: Forward, row: int) -> tuple[str, ...]:
    words, module = forward.words, forward.calls.module
    return tuple(dict.fromkeys(words.module_path(module[call]) for call in forward.left_calls[row]))


def of_atomic(one: Callable[[Forward, int], str]) -> Maker[Forward]:
    """Something of the call in which an op is the only one; None for other rows."""

    def make(forward: Forward) -> Column:
        made: list[str | None] = [None] * len(forward)
        for row, call in forward.atomic_calls.items():
            made[row] = one(forward, call)
        return made

    return make


# -- parameters


def param_rows(forward: Forward, row: int) -> tuple[int, ...]:
    return forward.own_params.get(row, ())


def parameters_of(one: Callable[[Sequence[Any]], Any]) -> Maker[Forward]:
    """A column made from the parameters that each op used, each once."""

    def read(forward: Forward, row: int) -> Any:
        parameters = forward.words.parameters
        return one([parameters[number] for number in param_rows(forward, row)])

    return of_classes(lambda forward: forward.param_classes, read)


# -- conditionals, modes


def bool_values(forward: Forward) -> Column:
    made: list[bool | None] = [None] * len(forward)
    for row, truth, *_ in forward.rows.branches:
        if row >= 0:
            made[row] = truth
    return made


def is_scalar_bool(brief: Brief) -> bool:
    return brief.dtype == "bool" and all(size == 1 for size in brief.shape or ())


def func_autocast_state(brief: Brief) -> tuple[Any, ...]:
    """Pairs: the modes under which the call ran, then a dtype per device with autocast on."""
    mode = brief.mode
    if mode is None:
        return ()
    return (
        ("grad_enabled", bool(mode & MODE_GRAD)),
        ("inference_mode", bool(mode & MODE_INFERENCE)),
        *(brief.autocast or ()),
    )


def parent_cells(column: Callable[[Any], Any]) -> Maker[Forward]:
    """A tuple of something of each parent, per use."""

    def read(forward: Forward, row: int) -> tuple[Any, ...]:
        return tuple([column(forward.detail(parent).brief) for parent in forward.parents[row]])

    return of_parents(read)


def of_parents(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column that depends on the parents' briefs alone."""

    def make(forward: Forward) -> Column:
        every = of_classes(lambda forward: forward.input_classes, one)
        return Deferred(len(forward), lambda row: one(forward, row), lambda: every(forward))

    return make


def input_memory(forward: Forward, row: int) -> int:
    return sum(map(forward.nbytes, forward.parents[row]))


def payload_refs(forward: Forward) -> Column:
    return Deferred(len(forward), forward.payload, lambda: forward.payload_refs)


def has_saved_activation(forward: Forward) -> Column:
    return [payload is not None for payload in forward.payload_refs]


def has_saved_payload(forward: Forward) -> Column:
    kept: Column = has_saved_activation(forward)
    if not forward.transformed:
        return kept
    return [is_kept or forward.transformed_of(row) is not None for row, is_kept in enumerate(kept)]


def of_transformed(field: str) -> Maker[Forward]:
    """A column of what was made of activations before they were kept; None where nothing was."""

    def read(forward: Forward, row: int) -> Any:
        made = forward.transformed_of(row)
        return None if made is None else getattr(made, field)

    def make(forward: Forward) -> Column:
        if not forward.transformed:
            return Picked([None], Classes.by([None] * len(forward)))
        return Each(forward, range(len(forward)), read)

    return make


def of_measured(read: Callable[[Forward, int], Any], missing: Any) -> Maker[Forward]:
    """A column of the statistics that were taken in place of payloads, where there are any."""

    def make(forward: Forward) -> Column:
        if not forward.measured:
            return Picked([missing], Classes.by([None] * len(forward)))
        return Each(forward, range(len(forward)), read)

    return make


def trainable(parameter: Any) -> bool:
    return bool(parameter.requires_grad)


def frozen(parameter: Any) -> bool:
    return not parameter.requires_grad


def elements(parameters: Iterable[Any]) -> int:
    return sum([math.prod(parameter.shape) for parameter in parameters])


def rng_payload(forward: Forward) -> Column:
    return Deferred(
        len(forward),
        lambda row: forward.detail(row).rng,
        lambda: list(map(forward.details.rngs.get, range(len(forward)))),
    )


def grad_fn_object_id(forward: Forward) -> Column:
    return Deferred(len(forward), lambda row: forward.detail(row).node, lambda: forward.details.nodes)


def func_duration(forward: Forward) -> Column:
    """Seconds inside the original call."""
    return Deferred(
        len(forward),
        lambda row: forward.detail(row).duration_ns / 1e9,
        lambda: [duration / 1e9 for duration in forward.details.durations],
    )


OPS: Final[dict[str, Maker[Forward]]] = {
    # identity
    "label": lambda forward: forward.labels.op,
    "layer_label": of_layer(lambda forward: forward.labels.layer),
    "label_short": label_short,
    "layer_label_short": of_layer(lambda forward: forward.labels.layer_short),
    "raw_label": lambda forward: forward.raw_labels,
    "layer_type": of_function(lambda forward, function: forward.names.layer_type(function)),
    "type_index": of_layer(lambda forward: forward.labels.type_index),
    "step_index": lambda forward: forward.steps,
    "ordinal_index": lambda forward: range(len(forward)),
    "pass_index": lambda forward: forward.groups.pass_index,
    "num_passes": of_layer(lambda forward: forward.groups.passes),
    "lookup_keys": lookup_keys,
    "site_key": site_keys,
    # function
    "func_name": of_function(lambda forward, function: forward.names.func_name(function)),
    "func_qualname": of_function(func_qualname),
    "func_call_id": func_call_id,
    "is_inplace": from_brief("is_inplace"),
    "is_opaque": of_function(lambda forward, function: forward.is_opaque(function)),
    "opaque_reason": opaque_reason,
    "num_args_total": from_call(lambda f, row, event: len(event[ARGS]) + len(event[KWARGS]) // 2, 0),
    "num_pos_args": from_call(lambda f, row, event: len(event[ARGS]), 0),
    "num_kwargs": from_call(lambda f, row, event: len(event[KWARGS]) // 2, 0),
    "non_tensor_pos_args": from_call(non_tensors, ()),
    "non_tensor_kwargs": from_call(non_tensor_keywords, ()),
    "func_config": from_call(func_config, ()),
    "args_summary": from_call(args_summary, ""),
    "kwargs_summary": from_call(kwargs_summary, ""),
    "code_context": of_classes(lambda forward: forward.site_classes, code_context),
    "arg_names": of_function(lambda forward, function: arg_names(forward.names.func_name(function))),
    "var_names": of_sites(var_names),
    "arg_expressions": of_classes(lambda forward: forward.site_classes, arg_expressions),
    "has_saved_args": has_saved_args,
    # tensor
    "has_out_variations": has_out_variations,
    "has_saved_activation": has_saved_activation,
    "has_saved_payload": has_saved_payload,
    "payload_ref": payload_refs,
    "transformed_payload_ref": of_transformed("payload"),
    "transformed_out_shape": of_transformed("shape"),
    "transformed_out_dtype": of_transformed("dtype"),
    "has_stored_stats": of_measured(Forward.is_measured, False),
    "figures": of_measured(Forward.figures_of, None),
    "shape": from_brief("shape"),
    "dtype": from_brief("dtype"),
    "device_ref": from_brief("device"),
    "activation_memory": from_brief("nbytes"),
    "layout": from_brief("layout"),
    "tensor_class": from_brief("tensor_class"),
    "input_ops": labels_of(parent_rows),
    "num_inputs": lengths(parent_rows),
    "input_shapes": parent_cells(lambda brief: brief.shape),
    "input_dtypes": parent_cells(lambda brief: brief.dtype),
    "input_memory": of_parents(input_memory),
    # slots
    "in_multi_output": in_multi_output,
    "multi_output_index": multi_output_index,
    "multi_output_name": from_call(multi_output_name, None),
    "container_path": from_call(container_path, ()),
    # graph
    "parents": labels_of(parent_rows),
    "children": labels_of(child_rows),
    "num_parents": lengths(unique_parent_rows),
    "num_children": lengths(child_rows),
    "has_parents": some(parent_rows),
    "has_children": some(child_rows),
    "parent_arg_positions": from_uses(parent_arg_positions),
    "edge_uses": from_uses(edge_uses),
    "siblings": across(unique_parent_rows, child_rows),
    "has_siblings": some_across(unique_parent_rows, child_rows),
    "co_parents": across(child_rows, unique_parent_rows),
    "has_co_parents": some_across(child_rows, unique_parent_rows),
    "root_ancestors": set_labels(root_ancestors),
    "input_ancestors": set_labels(input_ancestors),
    "has_input_ancestor": not_empty(input_ancestors),
    "internal_source_ancestors": set_labels(source_ancestors),
    "has_internal_source_ancestor": not_empty(source_ancestors),
    "output_descendants": set_labels(output_descendants),
    "has_output_descendant": not_empty(output_descendants),
    "min_distance_from_input": from_input(longest=False),
    "max_distance_from_input": from_input(longest=True),
    "min_distance_to_output": to_output(longest=False),
    "max_distance_to_output": to_output(longest=True),
    # roles
    "is_input": flags(lambda forward: forward.input_rows),
    "is_output": flags(lambda forward: forward.output_rows),
    "is_final_output": flags(lambda forward: forward.output_rows[-1:]),
    "is_output_parent": flags(output_parents),
    "is_compute_op": lambda forward: forward.is_op,
    "io_role": lambda forward: forward.io_roles,
    "input_was_parameter": from_event(lambda function: function == INPUT, input_was_parameter, False),
    "is_internal_source": flags(internal_sources),
    "is_internal_sink": flags(internal_sinks),
    "is_orphan": lambda forward: [forward.orphaned] * len(forward),
    # buffers
    "is_buffer": of_function(lambda forward, function: is_buffer(function)),
    "address": only_buffers(buffer_address, None),
    "buffer_pass": only_buffers(buffer_pass, None),
    "buffer_write_kind": from_event(is_written, lambda f, row, event: event[HOW], None),
    "buffer_value_changed": from_event(is_written, lambda f, row, event: event[CHANGED], None),
    "buffer_source": only_buffers(buffer_source, None),
    "buffer_source_func_name": only_buffers(buffer_source_func_name, None),
    "buffer_source_ops": of_buffers(buffers_read),
    "buffer_sink_ops": of_buffers(buffers_written),
    # modules
    "module": of_call(module_of),
    "modules": of_call(modules_of),
    "in_submodule": of_call(in_submodule),
    "module_call_depth": of_call(module_call_depth),
    "is_module_input": not_empty(lambda forward: forward.entered_calls),
    "input_to_module_calls": call_names(lambda forward: forward.entered_calls),
    "is_module_output": not_empty(lambda forward: forward.left_calls),
    "output_of_module_calls": call_names(lambda forward: forward.left_calls),
    "output_of_modules": per_row(left_modules),
    "is_atomic_module": flags(lambda forward: list(forward.atomic_calls)),
    "atomic_module": of_atomic(lambda forward, call: forward.words.module_path(forward.calls.module[call])),
    "atomic_module_call": of_atomic(lambda forward, call: forward.call_labels[call]),
    # parameters
    "uses_params": parameters_of(bool),
    "param_names": parameters_of(lambda used: tuple([parameter.address for parameter in used])),
    "param_shapes": parameters_of(lambda used: tuple([parameter.shape for parameter in used])),
    "param_dtypes": parameters_of(lambda used: tuple([parameter.dtype for parameter in used])),
    "num_params": parameters_of(lambda used: elements(used)),
    "num_params_trainable": parameters_of(lambda used: elements(filter(trainable, used))),
    "num_params_frozen": parameters_of(lambda used: elements(filter(frozen, used))),
    "num_param_tensors": parameters_of(len),
    "num_param_tensors_trainable": parameters_of(lambda used: sum(map(trainable, used))),
    "num_param_tensors_frozen": parameters_of(lambda used: sum(map(frozen, used))),
    "param_memory": parameters_of(lambda used: sum([parameter.nbytes for parameter in used])),
    # cost
    "func_duration": func_duration,
    **cost.OPS,
    **saved.OPS,
    # conditionals
    "is_scalar_bool": from_brief_by(is_scalar_bool),
    "bool_value": bool_values,
    "is_terminal_bool": flags(lambda forward: [row for row, *_ in forward.rows.branches if row >= 0]),
    **control.OPS,
    # loops, modes, random numbers
    "recurrent_ops": recurrent_ops,
    "func_autocast_state": from_brief_by(func_autocast_state),
    "rng_payload": rng_payload,
    "rng_states": rng_states,
    # autograd
    "requires_grad": from_brief("requires_grad"),
    "grad_fn_class_name": from_brief("grad_fn"),
    "grad_fn_object_id": grad_fn_object_id,
    "grad_slot": from_brief("grad_slot"),
    **gradient_columns.OPS,
    # plumbing: row numbers of other records, -1 for none; events and values by number
    "layer_row": lambda forward: forward.groups.layer,
    "parent_rows": parent_rows,
    "child_rows": child_rows,
    "origin_row": per_row(lambda forward, row: forward.origin(row)),
    "call_row": call_column,
    "param_rows": of_classes(lambda forward: forward.param_classes, param_rows),
    "buffer_row": only_buffers(buffer_row, NOWHERE),
    "function": of_function(lambda forward, function: max(function, NOWHERE)),
    "value": lambda forward: forward.rows.value,
    "event": lambda forward: forward.rows.event,
    "arguments_event": arguments_event,
    "out_variations": out_variations,
    "slot": lambda forward: forward.rows.slot,
    **gradient_columns.OPS_PLUMBING,
}
"""How each column of the op table is made, in order."""
