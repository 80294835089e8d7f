"""Columns of the tables of modules and of module calls.

Reads  a ``Forward``.
Gives  the makers of the columns that ``columns.py`` lists under ``modules`` and ``module_calls``.
Rule   modules that were called stand first, in the order of first calls; the root is ``self``. What is inside a
       call is what ran while it was open, nested calls included; its inputs and outputs are the values it was
       given and returned, and for the root the rows of inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from journal.events import ModuleEntered, ModuleLeft
from projections.columnar.arguments import (
    argument_paths,
    arguments_text,
    flat_kwargs,
    holes,
    keywords_text,
)
from projections.columnar.sequences import Each
from projections.columnar.tables import Column, Maker
from projections.folds.graph import NOWHERE
from projections.folds.vocabulary import ClassFacts, Module
from projections.forward import Forward, once
from projections.records import cost, gradient_columns, saved
from projections.records.kept_calls import (
    call_arguments_event,
    had_pre_hook_input_change,
    hooks_arguments_event,
    hooks_event,
)
from projections.records.makers import per_call
from projections.records.ops import elements, frozen, tensor_texts, trainable
from projections.source.sites import frames
from projections.structure.details import field

ARGS: Final = field(ModuleEntered, "args")
KWARGS: Final = field(ModuleEntered, "kwargs")
INPUTS: Final = field(ModuleEntered, "inputs")
RESULT: Final = field(ModuleLeft, "result")
RETURNED: Final = field(ModuleLeft, "outputs")


def op_names(forward: Forward, rows: Iterable[int]) -> tuple[str, ...]:
    labels = forward.labels.op
    return tuple([labels[row] for row in rows])


def layer_names(forward: Forward, rows: Iterable[int]) -> tuple[str, ...]:
    labels, layer = forward.labels.layer, forward.groups.layer
    return tuple(dict.fromkeys([labels[layer[row]] for row in rows]))


def call_names(forward: Forward, calls: Iterable[int]) -> tuple[str, ...]:
    labels = forward.call_labels
    return tuple([labels[call] for call in calls])


# -- calls


def described(forward: Forward, call: int) -> Module | None:
    number, modules = forward.calls.module[call], forward.words.modules
    return modules[number] if number < len(modules) else None


def address_of(forward: Forward, call: int) -> str:
    return forward.words.module_path(forward.calls.module[call])


def last_part(address: str) -> str:
    return address.rpartition(".")[2]


def call_index(forward: Forward, call: int) -> int:
    return int(forward.call_labels[call].rpartition(":")[2])


def call_parent(forward: Forward, call: int) -> str | None:
    parent = forward.calls.parent[call]
    return None if parent == NOWHERE else forward.call_labels[parent]


@once
def ancestors(forward: Forward, call: int) -> tuple[str, ...]:
    """Enclosing calls outermost first, root and itself left out."""
    return call_names(forward, forward.call_paths[call][:-1])


def layers_inside(forward: Forward, rows: Iterable[int]) -> int:
    layer = forward.groups.layer
    return len({layer[row] for row in rows})


def edge_counts(forward: Forward, rows: Sequence[int]) -> tuple[int, int, int]:
    """Edges within some op rows, into them and out of them; a tensor used twice by one op counts once."""
    inside = set(rows)
    internal = entering = leaving = 0
    parents, children = forward.unique_parents, forward.children
    for row in rows:
        for parent in parents[row]:
            if parent in inside:
                internal += 1
            else:
                entering += 1
        for child in children[row]:
            leaving += child not in inside
    return internal, entering, leaving


@once
def edges_of_call(forward: Forward, call: int) -> tuple[int, int, int]:
    return edge_counts(forward, forward.rows_inside(call))


def call_edges(which: int) -> Maker[Forward]:
    return per_call(lambda forward, call: edges_of_call(forward, call)[which])


def memory(forward: Forward, rows: Iterable[int]) -> int:
    return sum(map(forward.nbytes, rows))


def output_memory(forward: Forward, call: int) -> int:
    return memory(forward, forward.output_rows_of(call))


def internal_memory(forward: Forward, call: int) -> int:
    leaving = set(forward.output_rows_of(call))
    return memory(forward, [row for row in forward.rows_inside(call) if row not in leaving])


def duration(forward: Forward, call: int) -> float | None:
    """Seconds from entering to leaving; None where the call did not come to its end."""
    left = forward.calls.left[call][1]
    return None if left == NOWHERE else (left - forward.calls.entered_ns[call]) / 1e9


def func_calls_duration(forward: Forward, call: int) -> float:
    return time_in_ops(forward, forward.rows_inside(call))


def time_in_ops(forward: Forward, rows: Iterable[int]) -> float:
    """Seconds inside torch calls, each call once however many results it has."""
    slot = forward.rows.slot
    return sum([forward.duration_ns(row) for row in rows if slot[row] == 0]) / 1e9


def entering(forward: Forward, call: int) -> Any:
    return forward.source.row(forward.calls.event[call])


def leaving(forward: Forward, call: int) -> Any | None:
    """The event that says what a call returned; None where it returned nothing."""
    at = forward.calls.left[call][0]
    if at == NOWHERE:
        return None
    event = forward.source.row(at)
    return event if event[0] == ModuleLeft.type_id else None


def code_context(forward: Forward, call: int) -> tuple[Any, ...]:
    chain: list[Any] = []
    for outer in forward.call_paths[call]:
        chain += frames(forward.words, forward.calls.site[outer])
    return tuple(chain)


def output_structure(forward: Forward, call: int) -> Any:
    """Template of what a call returned; None where it did not come to that."""
    event = leaving(forward, call)
    return None if event is None else event[RESULT]


def output_paths(forward: Forward, call: int) -> tuple[Any, ...]:
    """Where the value of each output op sits in what a call returned."""
    event = leaving(forward, call)
    if event is None:
        return ()
    places = zip(event[RETURNED], holes(event[RESULT]), strict=False)
    found: dict[int, Any] = {}
    rows = iter(forward.calls.outputs[call])
    for value, path in places:
        if value >= 0:
            row = next(rows, NOWHERE)
            if row >= 0:
                found.setdefault(row, path)
    return tuple(found.values())


@once
def args_summary(forward: Forward, call: int) -> str:
    event = entering(forward, call)
    return arguments_text(event[ARGS], iter(tensor_texts(forward, event[INPUTS])))


@once
def kwargs_summary(forward: Forward, call: int) -> str:
    event = entering(forward, call)
    before = len(argument_paths(event[ARGS], ()))
    return keywords_text(event[KWARGS], iter(tensor_texts(forward, event[INPUTS])[before:]))


def forward_arg_names(forward: Forward, call: int) -> tuple[str, ...]:
    """Positions of positional arguments as text, then names of keyword arguments."""
    event = entering(forward, call)
    return (*map(str, range(len(event[ARGS]))), *(name for name, _ in flat_kwargs(event[KWARGS])))


def own_parameters(forward: Forward, module: int) -> list[int]:
    return forward.params_in.get(module, [])


def parameter_memory(forward: Forward, numbers: Iterable[int]) -> int:
    return sum([forward.words.parameters[number].nbytes for number in numbers])


def inside_call(inside: Callable[[Forward, Iterable[int]], int | None]) -> Maker[Forward]:
    """A column of a sum over the op rows in a call."""
    return per_call(lambda forward, call: inside(forward, forward.rows_inside(call)))


CALLS: Final[dict[str, Maker[Forward]]] = {
    "call_label": lambda forward: forward.call_labels,
    "address": per_call(address_of),
    "name": per_call(lambda forward, call: last_part(address_of(forward, call))),
    "all_addresses": per_call(lambda forward, call: all_addresses(forward, forward.calls.module[call])),
    "class_name": per_call(lambda forward, call: found.class_name if (found := described(forward, call)) else ""),
    "call_index": per_call(call_index),
    "ordinal_index": lambda forward: range(len(forward.calls)),
    "call_parent": per_call(call_parent),
    "call_children": per_call(lambda forward, call: call_names(forward, forward.inner_calls[call])),
    "module_call_stack": per_call(ancestors),
    "call_depth": per_call(lambda forward, call: len(forward.call_paths[call])),
    "ops": per_call(lambda forward, call: op_names(forward, forward.rows_inside(call))),
    "num_ops": per_call(lambda forward, call: sum(forward.is_op[row] for row in forward.rows_inside(call))),
    "num_layers": per_call(lambda forward, call: layers_inside(forward, forward.rows_inside(call))),
    "input_ops": per_call(lambda forward, call: op_names(forward, forward.input_rows_of(call))),
    "input_layers": per_call(lambda forward, call: layer_names(forward, forward.input_rows_of(call))),
    "output_ops": per_call(lambda forward, call: op_names(forward, forward.output_rows_of(call))),
    "output_layers": per_call(lambda forward, call: layer_names(forward, forward.output_rows_of(call))),
    "num_internal_edges": call_edges(0),
    "num_input_edges": call_edges(1),
    "num_output_edges": call_edges(2),
    "output_structure": per_call(output_structure),
    "output_paths": per_call(output_paths),
    "forward_arg_names": per_call(forward_arg_names),
    "num_forward_args_total": per_call(lambda forward, call: len(forward_arg_names(forward, call))),
    "forward_args_summary": per_call(args_summary),
    "forward_kwargs_summary": per_call(kwargs_summary),
    "has_saved_forward_args": per_call(lambda forward, call: call_arguments_event(forward, call) != NOWHERE),
    "had_pre_hook_input_change": per_call(had_pre_hook_input_change),
    "code_context": per_call(code_context),
    "forward_duration": per_call(duration),
    "func_calls_duration": per_call(func_calls_duration),
    "is_returned": per_call(lambda forward, call: leaving(forward, call) is not None),
    "flops_forward": per_call(lambda forward, call: cost.flops_inside(forward, forward.rows_inside(call))),
    "macs_forward": per_call(lambda forward, call: cost.macs_inside(forward, forward.rows_inside(call))),
    "flops_backward": per_call(lambda forward, call: cost.flops_back_inside(forward, forward.rows_inside(call))),
    "autograd_memory": per_call(lambda forward, call: saved.memory_inside(forward, forward.rows_inside(call))),
    **{name: inside_call(inside) for name, inside in saved.INSIDE.items()},
    "output_activation_memory": per_call(output_memory),
    "internal_activation_memory": per_call(internal_memory),
    "output_gradient_memory": per_call(gradient_columns.output_gradients),
    "internal_gradient_memory": per_call(gradient_columns.internal_gradients),
    "backward_duration": per_call(gradient_columns.call_duration),
    "param_memory": per_call(
        lambda forward, call: parameter_memory(forward, own_parameters(forward, forward.calls.module[call]))
    ),
    "num_param_tensors": per_call(lambda forward, call: len(own_parameters(forward, forward.calls.module[call]))),
    "has_trainable_params": per_call(
        lambda forward, call: has_any(forward, own_parameters(forward, forward.calls.module[call]), trainable)
    ),
    "has_frozen_params": per_call(
        lambda forward, call: has_any(forward, own_parameters(forward, forward.calls.module[call]), frozen)
    ),
    "num_descendant_calls": per_call(lambda forward, call: forward.call_sizes[call]),
    "max_descendant_depth": per_call(lambda forward, call: forward.call_heights[call]),
    # plumbing
    "module_row": lambda forward: [forward.module_rows[module] for module in forward.calls.module],
    "parent_row": lambda forward: forward.calls.parent,
    "child_rows": per_call(lambda forward, call: tuple(forward.inner_calls[call])),
    "op_rows": per_call(lambda forward, call: tuple(forward.rows_inside(call))),
    "input_op_rows": per_call(lambda forward, call: tuple(forward.input_rows_of(call))),
    "output_op_rows": per_call(lambda forward, call: tuple(forward.output_rows_of(call))),
    "event": lambda forward: forward.calls.event,
    "left_event": per_call(lambda forward, call: forward.calls.left[call][0]),
    "arguments_event": per_call(call_arguments_event),
    "hooks_event": per_call(hooks_event),
    "hooks_arguments_event": per_call(hooks_arguments_event),
}
"""How each column of the table of module calls is made, in order."""


# -- modules


def per_module(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """A column of modules whose cells are worked out at each read, from the module's number."""

    def make(forward: Forward) -> Column:
        return Each(forward, forward.modules, one)

    return make


def from_description(name: str, missing: Any) -> Maker[Forward]:
    """A column that the description of the model has."""

    def make(forward: Forward) -> Column:
        described = [getattr(module, name) for module in forward.words.modules]
        count = len(described)
        return [described[module] if module < count else missing for module in forward.modules]

    return make


def all_addresses(forward: Forward, module: int) -> tuple[str, ...]:
    modules = forward.words.modules
    aliases = modules[module].aliases if module < len(modules) else ()
    return (forward.words.module_path(module), *aliases)


def address_parent(forward: Forward, module: int) -> str | None:
    modules = forward.words.modules
    parent = modules[module].parent if module < len(modules) else None
    return None if parent is None else forward.words.module_path(parent)


def address_children(forward: Forward, module: int) -> tuple[str, ...]:
    return tuple([forward.words.module_path(child) for child in forward.module_children.get(module, ())])


def address_depth(forward: Forward, module: int) -> int:
    """Parts of the address; 0 for the root."""
    modules = forward.words.modules
    return 0 if module == 0 else modules[module].address.count(".") + 1 if module < len(modules) else 1


def calls_of(forward: Forward, module: int) -> list[int]:
    return forward.calls_of.get(module, [])


def call_parent_module(forward: Forward, module: int) -> str | None:
    calls = calls_of(forward, module)
    parent = forward.calls.parent[calls[0]] if calls else NOWHERE
    return None if parent == NOWHERE else address_of(forward, parent)


def call_children_modules(forward: Forward, module: int) -> tuple[str, ...]:
    inner = [child for call in calls_of(forward, module) for child in forward.inner_calls[call]]
    return tuple(dict.fromkeys([address_of(forward, call) for call in inner]))


def module_call_depth(forward: Forward, module: int) -> int | None:
    calls = calls_of(forward, module)
    return len(forward.call_paths[calls[0]]) if calls else None


@once
def rows_of_module(forward: Forward, module: int) -> Sequence[int]:
    """Op rows in any of its calls, ascending, each once."""
    calls = calls_of(forward, module)
    if len(calls) == 1:
        return forward.rows_inside(calls[0])
    return sorted({row for call in calls for row in forward.rows_inside(call)})


def joined(forward: Forward, module: int, rows_of: Callable[[int], list[int]]) -> list[int]:
    """Op rows of all calls, in order, each once."""
    return list(dict.fromkeys([row for call in calls_of(forward, module) for row in rows_of(call)]))


@once
def inputs_of_module(forward: Forward, module: int) -> list[int]:
    return joined(forward, module, forward.input_rows_of)


@once
def outputs_of_module(forward: Forward, module: int) -> list[int]:
    return joined(forward, module, forward.output_rows_of)


@once
def edges_of_module(forward: Forward, module: int) -> tuple[int, int, int]:
    calls = calls_of(forward, module)
    if len(calls) == 1:
        return edges_of_call(forward, calls[0])
    return edge_counts(forward, rows_of_module(forward, module))


def module_edges(which: int | None) -> Maker[Forward]:
    def read(forward: Forward, module: int) -> int:
        counts = edges_of_module(forward, module)
        return sum(counts) if which is None else counts[which]

    return per_module(read)


def module_output_memory(forward: Forward, module: int) -> int:
    return memory(forward, outputs_of_module(forward, module))


def module_internal_memory(forward: Forward, module: int) -> int:
    leaving_rows = set(outputs_of_module(forward, module))
    return memory(forward, [row for row in rows_of_module(forward, module) if row not in leaving_rows])


def module_internal_gradients(forward: Forward, module: int) -> int:
    leaving_rows = set(gradient_columns.shown(forward, outputs_of_module(forward, module)))
    rows = [row for row in rows_of_module(forward, module) if row not in leaving_rows]
    return gradient_columns.memory_of(forward, rows)


def below(forward: Forward, module: int) -> set[int]:
    """A module and the modules that it holds, at any depth."""
    if module not in forward.module_children:
        return {module}
    found: set[int] = set()
    stack = [module]
    while stack:
        here = stack.pop()
        found.add(here)
        stack += forward.module_children.get(here, ())
    return found


@once
def all_parameters(forward: Forward, module: int) -> list[int]:
    """Parameters of a module and of the modules below it, by number."""
    return sorted({number for here in below(forward, module) for number in own_parameters(forward, here)})


def parameters(numbers_of: Callable[[Forward, int], Sequence[int]], one: Callable[[list[Any]], Any]) -> Maker[Forward]:
    """A column made from a module's parameters."""

    def read(forward: Forward, module: int) -> Any:
        return one([forward.words.parameters[number] for number in numbers_of(forward, module)])

    return per_module(read)


def has_any(forward: Forward, numbers: Iterable[int], wanted: Callable[[Any], bool]) -> bool:
    return any(wanted(forward.words.parameters[number]) for number in numbers)


def nbytes(found: list[Any]) -> int:
    return sum([parameter.nbytes for parameter in found])


def buffer_layers(forward: Forward, module: int) -> tuple[str, ...]:
    own = [number for number, buffer in enumerate(forward.words.buffers) if buffer.module == module]
    return layer_names(forward, [row for number in own for row in forward.versions_of.get(number, ())])


def buffer_rows(forward: Forward, module: int) -> tuple[int, ...]:
    """Buffers of a module and of the modules below it."""
    holders = below(forward, module)
    return tuple([number for number, buffer in enumerate(forward.words.buffers) if buffer.module in holders])


def total_duration(forward: Forward, module: int) -> float | None:
    """Seconds over all calls, one inside another counted once; None where a call was not left."""
    calls = calls_of(forward, module)
    own = set(calls)
    outer = [call for call in calls if own.isdisjoint(forward.enclosing(call))]
    times = [duration(forward, call) for call in outer]
    return None if None in times else sum([time for time in times if time is not None])


def only_call(one: Callable[[Forward, int], Any]) -> Maker[Forward]:
    """Something of a module's only call; None where it was called several times."""

    def read(forward: Forward, module: int) -> Any:
        calls = calls_of(forward, module)
        return one(forward, calls[0]) if len(calls) == 1 else None

    return per_module(read)


def forward_hooks(forward: Forward, module: int) -> tuple[str, ...]:
    modules = forward.words.modules
    found = modules[module] if module < len(modules) else None
    return () if found is None else (*found.forward_hooks, *found.forward_pre_hooks)


def backward_hooks(forward: Forward, module: int) -> tuple[str, ...]:
    modules = forward.words.modules
    return modules[module].backward_hooks if module < len(modules) else ()


def of_class(read: Callable[[ClassFacts], Any]) -> Maker[Forward]:
    """Something that the source says of the class; None unless the request asked for it."""

    def one(forward: Forward, module: int) -> Any:
        facts = forward.class_facts.get(module)
        return None if facts is None else read(facts)

    return per_module(one)


def place_text(place: tuple[str, int] | None) -> str | None:
    return None if place is None else f"{place[0]}:{place[1]}"


def inside_module(inside: Callable[[Forward, Iterable[int]], int | None]) -> Maker[Forward]:
    """A column of a sum over the op rows in any call of a module."""
    return per_module(lambda forward, module: inside(forward, rows_of_module(forward, module)))


MODULES: Final[dict[str, Maker[Forward]]] = {
    "address": per_module(lambda forward, module: forward.words.module_path(module)),
    "all_addresses": per_module(all_addresses),
    "has_multiple_addresses": per_module(lambda forward, module: len(all_addresses(forward, module)) > 1),
    "name": per_module(lambda forward, module: last_part(forward.words.module_path(module))),
    "is_registered": from_description("is_registered", False),
    "class_name": from_description("class_name", ""),
    "class_qualname": from_description("class_qualname", ""),
    "class_source_location": of_class(lambda facts: place_text(facts.class_location)),
    "init_source_location": of_class(lambda facts: place_text(facts.init_location)),
    "forward_source_location": of_class(lambda facts: place_text(facts.forward_location)),
    "class_docstring": of_class(lambda facts: facts.docstring),
    "init_signature": of_class(lambda facts: facts.init_signature),
    "forward_signature": of_class(lambda facts: facts.forward_signature),
    "training": from_description("training", False),
    "has_forward_hooks": per_module(lambda forward, module: bool(forward_hooks(forward, module))),
    "has_backward_hooks": per_module(lambda forward, module: bool(backward_hooks(forward, module))),
    "forward_hooks": from_description("forward_hooks", ()),
    "forward_pre_hooks": from_description("forward_pre_hooks", ()),
    "backward_hooks": from_description("backward_hooks", ()),
    "address_parent": per_module(address_parent),
    "address_children": per_module(address_children),
    "address_depth": per_module(address_depth),
    "call_parent": per_module(call_parent_module),
    "call_children": per_module(call_children_modules),
    "call_depth": per_module(module_call_depth),
    "num_calls": per_module(lambda forward, module: len(calls_of(forward, module))),
    "call_labels": per_module(lambda forward, module: call_names(forward, calls_of(forward, module))),
    "layer_labels": per_module(lambda forward, module: layer_names(forward, rows_of_module(forward, module))),
    "num_layers": per_module(lambda forward, module: layers_inside(forward, rows_of_module(forward, module))),
    "input_ops": per_module(lambda forward, module: op_names(forward, inputs_of_module(forward, module))),
    "input_layers": per_module(lambda forward, module: layer_names(forward, inputs_of_module(forward, module))),
    "output_ops": per_module(lambda forward, module: op_names(forward, outputs_of_module(forward, module))),
    "output_layers": per_module(lambda forward, module: layer_names(forward, outputs_of_module(forward, module))),
    "num_internal_edges": module_edges(0),
    "num_input_edges": module_edges(1),
    "num_output_edges": module_edges(2),
    "num_edges": module_edges(None),
    "num_params": parameters(own_parameters, elements),
    "num_params_trainable": parameters(own_parameters, lambda found: elements(filter(trainable, found))),
    "num_params_frozen": parameters(own_parameters, lambda found: elements(filter(frozen, found))),
    "num_param_tensors": parameters(own_parameters, len),
    "num_param_tensors_trainable": parameters(own_parameters, lambda found: sum(map(trainable, found))),
    "num_param_tensors_frozen": parameters(own_parameters, lambda found: sum(map(frozen, found))),
    "param_memory": parameters(own_parameters, nbytes),
    "num_recursive_params": parameters(all_parameters, elements),
    "num_recursive_params_trainable": parameters(all_parameters, lambda found: elements(filter(trainable, found))),
    "num_recursive_params_frozen": parameters(all_parameters, lambda found: elements(filter(frozen, found))),
    "num_recursive_param_tensors": parameters(all_parameters, len),
    "num_recursive_param_tensors_trainable": parameters(all_parameters, lambda found: sum(map(trainable, found))),
    "num_recursive_param_tensors_frozen": parameters(all_parameters, lambda found: sum(map(frozen, found))),
    "recursive_param_addresses": parameters(
        all_parameters, lambda found: tuple([parameter.address for parameter in found])
    ),
    "internal_param_memory": parameters(all_parameters, nbytes),
    "has_trainable_params": parameters(own_parameters, lambda found: any(map(trainable, found))),
    "has_frozen_params": parameters(own_parameters, lambda found: any(map(frozen, found))),
    "buffer_layers": per_module(buffer_layers),
    "forward_duration": only_call(duration),
    "forward_args_summary": only_call(args_summary),
    "forward_kwargs_summary": only_call(kwargs_summary),
    "func_calls_duration": only_call(func_calls_duration),
    "total_forward_duration": per_module(total_duration),
    "total_func_calls_duration": per_module(
        lambda forward, module: time_in_ops(forward, rows_of_module(forward, module))
    ),
    "total_flops_forward": per_module(
        lambda forward, module: cost.flops_inside(forward, rows_of_module(forward, module))
    ),
    "total_flops_backward": per_module(
        lambda forward, module: cost.flops_back_inside(forward, rows_of_module(forward, module))
    ),
    "total_macs_forward": per_module(
        lambda forward, module: cost.macs_inside(forward, rows_of_module(forward, module))
    ),
    "total_autograd_memory": per_module(
        lambda forward, module: saved.memory_inside(forward, rows_of_module(forward, module))
    ),
    **{f"total_{name}": inside_module(inside) for name, inside in saved.INSIDE.items()},
    "total_output_activation_memory": per_module(module_output_memory),
    "total_internal_activation_memory": per_module(module_internal_memory),
    "total_output_gradient_memory": per_module(
        lambda forward, module: gradient_columns.memory_of(
            forward, gradient_columns.shown(forward, outputs_of_module(forward, module))
        )
    ),
    "total_internal_gradient_memory": per_module(module_internal_gradients),
    "backward_duration": only_call(gradient_columns.call_duration),
    "total_backward_duration": per_module(
        lambda forward, module: gradient_columns.durations_of_calls(forward, calls_of(forward, module))
    ),
    "num_descendant_calls": per_module(
        lambda forward, module: sum([forward.call_sizes[call] for call in calls_of(forward, module)])
    ),
    "max_descendant_depth": per_module(
        lambda forward, module: max([forward.call_heights[call] for call in calls_of(forward, module)], default=0)
    ),
    # plumbing
    "module_number": lambda forward: forward.modules,
    "call_rows": per_module(lambda forward, module: tuple(calls_of(forward, module))),
    "op_rows": per_module(lambda forward, module: tuple(rows_of_module(forward, module))),
    "input_op_rows": per_module(lambda forward, module: tuple(inputs_of_module(forward, module))),
    "output_op_rows": per_module(lambda forward, module: tuple(outputs_of_module(forward, module))),
    "layer_rows": per_module(
        lambda forward, module: tuple(
            dict.fromkeys([forward.groups.layer[row] for row in rows_of_module(forward, module)])
        )
    ),
    "param_rows": per_module(lambda forward, module: tuple(own_parameters(forward, module))),
    "recursive_param_rows": per_module(lambda forward, module: tuple(all_parameters(forward, module))),
    "buffer_rows": per_module(buffer_rows),
}
"""How each column of the module table is made, in order."""
