"""What a capture comes to as a whole: counts, shape of the graph, time, work and memory."""

from __future__ import annotations

from typing import Any

from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.fields import Field
from torchlens.reading.view import View

__all__ = ["TotalFacts"]


class TotalFacts(View):
    """How much there is of what."""

    # -- how many

    num_ops = Field[int]("Compute ops; ``len(trace.ops)`` counts inputs, buffers and outputs too.")
    num_tensors = Field[int]("All ops, inputs, buffers and outputs included.")
    num_layers = Field[int]("All layers.")
    num_compute_layers = Field[int]("Layers of compute ops.")
    num_edges = Field[int]("Edges between ops.")
    num_layer_edges = Field[int]("Edges between layers.")
    num_compute_edges = Field[int]("Edges between compute ops.")
    num_buffer_edges = Field[int]("Edges from or to buffers.")
    num_modules = Field[int]("Modules that were called, the root included.")
    num_module_calls = Field[int]("Module calls, the root's included.")
    num_params = Field[int]("Elements of all parameters of the model.")
    num_params_trainable = Field[int]("Of them trainable.")
    num_params_frozen = Field[int]("Of them frozen.")
    num_param_tensors = Field[int]("Parameters of the model.")
    num_param_tensors_trainable = Field[int]("Of them trainable.")
    num_param_tensors_frozen = Field[int]("Of them frozen.")
    num_params_executed = Field[int]("Elements of the parameters that some op took.")
    num_params_unexecuted = Field[int]("Elements of the others.")

    # -- the shape of the graph

    is_recurrent = Field[bool]("Whether some layer has several passes.")
    max_layer_op_count = Field[int]("Most passes of a layer.")
    is_branching = Field[bool]("Whether some op has several children.")
    branching_factor = Field[float]("Children of a compute op, on average.")
    max_in_degree = Field[int]("Most parents of a compute op.")
    max_out_degree = Field[int]("Most children of a compute op.")
    is_dynamic_graph = Field[bool]("Whether Python took the truth of a tensor.")
    num_conditionals = Field[int]("Ifs and conditional expressions that the truth of a tensor had a part in.")
    has_conditional_branching = Field[bool]("Whether there are any.")

    # -- time

    setup_duration = Field[Duration | None]("From the request to the forward; None where it did not start.", Duration)
    forward_duration = Field[Duration | None]("The forward, recording included; None where it did not end.", Duration)
    cleanup_duration = Field[Duration | None]("From its end to the end of the capture; None without one.", Duration)
    capture_duration = Field[Duration | None]("The whole capture; None where it did not end.", Duration)
    func_calls_duration = Field[Duration]("Inside torch calls.", Duration)
    overhead_duration = Field[Duration | None]("The forward outside torch calls; None where it did not end.", Duration)

    # -- work

    total_flops_forward = Field[Flops]("Work of the forward, over the ops of which it is known.", Flops)
    total_macs_forward = Field[Macs]("The multiply-accumulates among it, two FLOPs each.", Macs)
    total_flops_backward = Field[Flops]("Estimate of the backward's work, by a rule for each op.", Flops)
    flops_by_op_type = Field[dict[str, dict[str, int]]](
        "By layer type: FLOPs of the forward and the backward, the calls, and how many of them are unknown.",
        lambda types: {kind: counted(told) for kind, told in types.items()},
    )
    unknown_flop_ops = Field[tuple[str, ...]]("Labels of the ops whose work is unknown; .compute_record says why.")
    compute_coverage = Field[dict[str, int]]("How many ops are known, unknown, or not applicable.", dict)

    # -- memory

    total_activation_memory = Field[Bytes]("Size of what all ops returned.", Bytes)
    saved_activation_memory = Field[Bytes]("Size of what was kept, and of what ``SaveOptions`` made.", Bytes)
    total_param_memory = Field[Bytes]("Size of all parameters.", Bytes)
    saved_gradient_memory = Field[Bytes](
        "Size of the gradients that were kept, those of parameters and at nodes too, each once.", Bytes
    )
    total_autograd_memory = Field[Bytes | None](
        "What autograd kept for the backward, each memory once; None where that was not asked.", Bytes
    )
    total_saved_for_backward = Field[Bytes | None](
        "Memory that ops keep for the backward, each storage once, over what is told; None where nothing is.", Bytes
    )
    total_saved_params_for_backward = Field[Bytes | None]("The same of the model's parameters and buffers.", Bytes)
    total_saved_inputs_for_backward = Field[Bytes | None]("The same of the inputs.", Bytes)
    untold_saved_ops = Field[tuple[str, ...]](
        "Labels of the ops of which torch does not tell what they keep; .saved_for_backward_reason says why."
    )
    checkpoint_invocation_witness = Field[dict[str, Any] | None](
        "The activation checkpoints of the forward that were witnessed, evidence of each, and how far that goes; None "
        "where there is neither a checkpoint nor a backward pass.",
        lambda told: witness_of(told),
    )


def counted(told: dict[str, int]) -> dict[str, int]:
    """What is told of one layer type, FLOPs as such."""
    return {name: Flops(number) if name in ("forward", "backward") else number for name, number in told.items()}


def witness_of(told: dict[str, Any]) -> dict[str, Any]:
    """The summary of checkpoints, with lists that the reader may change."""
    tokens = {number: {name: listed(value) for name, value in one.items()} for number, one in told["tokens"].items()}
    return {name: listed(value) for name, value in told.items()} | {"tokens": tokens}


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
