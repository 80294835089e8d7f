"""Facts about a capture as a whole: the one row of the capture table.

Reads  a ``Forward`` and the columns of the other tables.
Gives  the makers of the columns that ``columns.py`` lists under ``capture``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from journal.events import MODE_GRAD
from projections.columnar.tables import Maker
from projections.folds.graph import BUFFER_READ, NOWHERE
from projections.forward import Forward
from projections.records import cost, gradient_columns, saved
from projections.records.makers import fact
from projections.records.ops import (
    elements,
    frozen,
    has_saved_payload,
    internal_sinks,
    internal_sources,
    is_written,
    trainable,
)
from projections.structure.details import item_bytes
from projections.structure.rows import is_buffer


def of_course(name: str) -> Maker[Forward]:
    return fact(lambda forward: getattr(forward.course, name))


def seconds(start: str, stop: str) -> Maker[Forward]:
    """Time between two moments of the capture; None where it did not come to one of them."""

    def one(forward: Forward) -> float | None:
        began, ended = getattr(forward.course, start), getattr(forward.course, stop)
        return None if began is None or ended is None else (ended - began) / 1e9

    return fact(one)


def op_names(rows_of: Callable[[Forward], Sequence[int]]) -> Maker[Forward]:
    def one(forward: Forward) -> tuple[str, ...]:
        labels = forward.labels.op
        return tuple([labels[row] for row in rows_of(forward)])

    return fact(one)


def layer_names(rows_of: Callable[[Forward], Sequence[int]]) -> Maker[Forward]:
    def one(forward: Forward) -> tuple[str, ...]:
        labels, layer = forward.labels.layer, forward.groups.layer
        return tuple(dict.fromkeys([labels[layer[row]] for row in rows_of(forward)]))

    return fact(one)


def compute_rows(forward: Forward) -> list[int]:
    return [row for row, wanted in enumerate(forward.is_op) if wanted]


def recurrent_rows(forward: Forward) -> list[int]:
    passes = forward.groups.passes
    return [row for layer, row in enumerate(forward.groups.first) if passes[layer] > 1]


def saved_rows(forward: Forward) -> list[int]:
    return [row for row, is_kept in enumerate(has_saved_payload(forward)) if is_kept]


def buffer_reads(forward: Forward) -> list[int]:
    return forward.of_kind(BUFFER_READ)


def buffer_writes(forward: Forward) -> list[int]:
    return [row for row, function in enumerate(forward.rows.function) if is_written(function)]


def edges(forward: Forward, wanted: Callable[[int, int], bool]) -> int:
    """Edges between op rows that are wanted; a tensor used twice by one op counts once."""
    return sum([wanted(parent, row) for row, parents in enumerate(forward.unique_parents) for parent in parents])


def buffer_edges(forward: Forward) -> int:
    function = forward.rows.function
    return edges(forward, lambda parent, row: is_buffer(function[parent]) or is_buffer(function[row]))


def compute_edges(forward: Forward) -> int:
    return edges(forward, lambda parent, row: forward.is_op[parent] and forward.is_op[row])


def layer_edges(forward: Forward) -> int:
    layer = forward.groups.layer
    return len({(layer[parent], layer[row]) for row, parents in enumerate(forward.parents) for parent in parents})


def max_in_degree(forward: Forward) -> int:
    return max([forward.unique_parents.length(row) for row in compute_rows(forward)], default=0)


def max_out_degree(forward: Forward) -> int:
    return max([forward.children.length(row) for row in compute_rows(forward)], default=0)


def branching_factor(forward: Forward) -> float:
    """Children per compute op, on average."""
    ops = compute_rows(forward)
    return sum(map(forward.children.length, ops)) / len(ops) if ops else 0.0


def parameters(one: Callable[[list[Any]], Any], wanted: Callable[[Any], bool] = lambda tensor: True) -> Maker[Forward]:
    return fact(lambda forward: one([tensor for tensor in forward.words.parameters if wanted(tensor)]))


def executed(wanted: bool) -> Callable[[Forward], list[Any]]:
    def read(forward: Forward) -> list[Any]:
        used = forward.ops_using
        return [tensor for number, tensor in enumerate(forward.words.parameters) if (number in used) == wanted]

    return read


def unexecuted_names(forward: Forward) -> tuple[str, ...]:
    return tuple([tensor.address for tensor in executed(False)(forward)])


def uncalled(forward: Forward) -> tuple[str, ...]:
    called = forward.calls_of
    return tuple([module.address for number, module in enumerate(forward.words.modules) if number not in called])


def total_memory(forward: Forward) -> int:
    return sum([brief.nbytes or 0 for brief in forward.details.briefs])


def saved_memory(forward: Forward) -> int:
    """Bytes of the kept payloads: of values, and of what was made of values."""
    briefs = forward.details.briefs
    kept = sum([briefs[row].nbytes or 0 for row, payload in enumerate(forward.payload_refs) if payload is not None])
    made = [forward.transformed_of(row) for row in range(len(forward))] if forward.transformed else []
    return kept + sum([item_bytes(one.dtype, math.prod(one.shape)) for one in made if one is not None])


def func_calls_duration(forward: Forward) -> float:
    """Seconds inside torch calls, each once however many results it has."""
    durations = forward.details.durations
    return sum([durations[row] for row, slot in enumerate(forward.rows.slot) if slot == 0]) / 1e9


def overhead(forward: Forward) -> float | None:
    """Seconds of the forward that were not spent inside torch calls."""
    course = forward.course
    if course.started_ns is None or course.ended_ns is None:
        return None
    return (course.ended_ns - course.started_ns) / 1e9 - func_calls_duration(forward)


def graph_shape_hash(forward: Forward) -> str:
    """Digest of the structure: type, layer, pass, slot and parents of every op, in order."""
    digest = hashlib.sha256()
    rows, labels = forward.rows, forward.labels.op
    for row, parents in enumerate(rows.parents):
        kind = forward.names.layer_type(rows.function[row])
        digest.update(f"{kind}|{labels[row]}|{rows.slot[row]}|{','.join(map(str, parents))}\n".encode())
    return digest.hexdigest()


def input_signature_hash(forward: Forward) -> str:
    """Digest of where the inputs sit and of their shapes and dtypes."""
    digest = hashlib.sha256()
    for row in forward.input_rows:
        brief = forward.detail(row).brief
        digest.update(f"{forward.io_roles[row]}|{brief.shape}|{brief.dtype}\n".encode())
    return digest.hexdigest()


def raised_event(forward: Forward) -> int | None:
    course = forward.course
    return course.raised if course.status in ("failed", "interrupted") else None


def inference_only(forward: Forward) -> bool:
    """Whether no autograd graph could come to be: grad mode was off at the start, and in every call."""
    mode = forward.course.mode
    if mode is None or mode & MODE_GRAD:
        return dict(forward.course.options).get("inference_only", False) is True
    return not any(brief.mode is not None and brief.mode & MODE_GRAD for brief in forward.details.briefs)


def raised_call(forward: Forward) -> int:
    course = forward.course
    ended = course.status in ("failed", "interrupted")
    return NOWHERE if course.raised_call is None or not ended else course.raised_call


CAPTURE: Final[dict[str, Maker[Forward]]] = {
    # request
    "trace_label": fact(lambda forward: forward.course.name or forward.course.model_class),
    "name": of_course("name"),
    "tags": of_course("tags"),
    "stream_kind": of_course("kind"),
    "written_by": of_course("written_by"),
    "environment": of_course("environment"),
    "wall_time_ns": of_course("wall_time_ns"),
    "model_class_name": of_course("model_class"),
    "model_class_qualname": of_course("model_qualname"),
    "backend": of_course("backend"),
    "options": of_course("options"),
    "save_request": of_course("save"),
    "stop_after": of_course("stop_after"),
    "random_seed": of_course("random_seed"),
    "mode": of_course("mode"),
    "inference_only": fact(inference_only),
    # outcome
    "status": of_course("status"),
    "is_partial": fact(lambda forward: forward.course.status not in ("complete", "halted")),
    "halted": fact(lambda forward: forward.course.status == "halted"),
    "halt_reason": of_course("halt_reason"),
    "halted_at": of_course("halted_at"),
    "error_type": of_course("error_type"),
    "error_message": of_course("error_message"),
    "num_raised_ops": of_course("raised_ops"),
    "num_raised_module_calls": of_course("raised_calls"),
    "last_started_event": of_course("last_started"),
    "last_executed_event": of_course("last_executed"),
    "calls_in_progress": of_course("in_progress"),
    "called_from": fact(lambda forward: next(iter(forward.frames_at(forward.course.called_at)), None)),
    "error_frames": fact(lambda forward: forward.frames_at(forward.course.traced_at)),
    "raised_call_row": fact(raised_call),
    "raised_event": fact(raised_event),
    "is_settled": fact(lambda forward: forward.course.settled_ns is not None),
    # digests
    "graph_shape_hash": fact(graph_shape_hash),
    "input_signature_hash": fact(input_signature_hash),
    # lists of labels
    "input_layers": layer_names(lambda forward: forward.input_rows),
    "output_layers": layer_names(lambda forward: forward.output_rows),
    "input_ops": op_names(lambda forward: forward.input_rows),
    "output_ops": op_names(lambda forward: forward.output_rows),
    "compute_ops": op_names(compute_rows),
    "compute_layers": layer_names(compute_rows),
    "recurrent_layers": layer_names(recurrent_rows),
    "saved_ops": op_names(saved_rows),
    "saved_layers": layer_names(saved_rows),
    "internal_source_ops": op_names(internal_sources),
    "internal_sink_ops": op_names(internal_sinks),
    "buffer_read_ops": op_names(buffer_reads),
    "buffer_write_ops": op_names(buffer_writes),
    "uncalled_modules": fact(uncalled),
    "unexecuted_param_names": fact(unexecuted_names),
    # counts
    "num_ops": fact(lambda forward: sum(forward.is_op)),
    "num_tensors": fact(len),
    "num_layers": fact(lambda forward: len(forward.groups.passes)),
    "num_compute_layers": fact(lambda forward: sum([forward.is_op[row] for row in forward.groups.first])),
    "num_edges": fact(lambda forward: len(forward.unique_parents.items)),
    "num_layer_edges": fact(layer_edges),
    "num_compute_edges": fact(compute_edges),
    "num_buffer_edges": fact(buffer_edges),
    "num_modules": fact(lambda forward: len(forward.calls_of)),
    "num_module_calls": fact(lambda forward: len(forward.calls)),
    "num_params": parameters(elements),
    "num_params_trainable": parameters(elements, trainable),
    "num_params_frozen": parameters(elements, frozen),
    "num_param_tensors": parameters(len),
    "num_param_tensors_trainable": parameters(len, trainable),
    "num_param_tensors_frozen": parameters(len, frozen),
    "num_params_executed": fact(lambda forward: elements(executed(True)(forward))),
    "num_params_unexecuted": fact(lambda forward: elements(executed(False)(forward))),
    # shape of the graph
    "is_recurrent": fact(lambda forward: max(forward.groups.passes, default=0) > 1),
    "max_layer_op_count": fact(lambda forward: max(forward.groups.passes, default=0)),
    "is_branching": fact(lambda forward: max_out_degree(forward) > 1),
    "branching_factor": fact(branching_factor),
    "max_in_degree": fact(max_in_degree),
    "max_out_degree": fact(max_out_degree),
    "is_dynamic_graph": fact(lambda forward: bool(forward.rows.branches)),
    "num_conditionals": fact(lambda forward: len(forward.conditionals)),
    "has_conditional_branching": fact(lambda forward: bool(forward.conditionals.all)),
    # time, in seconds
    "setup_duration": seconds("requested_ns", "started_ns"),
    "forward_duration": seconds("started_ns", "ended_ns"),
    "cleanup_duration": seconds("ended_ns", "settled_ns"),
    "capture_duration": seconds("opened_ns", "settled_ns"),
    "func_calls_duration": fact(func_calls_duration),
    "overhead_duration": fact(overhead),
    # work
    **cost.CAPTURE,
    # memory, in bytes
    "total_activation_memory": fact(total_memory),
    "saved_activation_memory": fact(saved_memory),
    **saved.CAPTURE,
    "total_param_memory": parameters(lambda tensors: sum([tensor.nbytes for tensor in tensors])),
    # gradients
    **gradient_columns.CAPTURE,
    # plumbing
    "input_rows": fact(lambda forward: tuple(forward.input_rows)),
    "output_rows": fact(lambda forward: tuple(forward.output_rows)),
    "saved_rows": fact(lambda forward: tuple(saved_rows(forward))),
    "started_event": of_course("started_at"),
    "ended_event": of_course("ended_at"),
}
"""How each fact is made, in order."""
