"""What a module call tells: its columns, what it was given and what it returned.

Not   the module that was called (``links.py``).
"""

from __future__ import annotations

from typing import Any

from torchlens.errors import AmbiguousReadError
from torchlens.printable import amount
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.fields import Field, Record
from torchlens.reading.given import Given, kept_arguments
from torchlens.reading.locations import FuncCallLocation, locations
from torchlens.reading.values import python_value, torch_dtype

__all__ = ["ModuleCallFields"]


class ModuleCallFields(Record):
    """The columns of a module call, and what is read by them."""

    __slots__ = ()
    table_name = "module_calls"

    call_label = Field[str]("Its label: ``encoder.0:2``.")
    address = Field[str]("Address of the module.")
    name = Field[str]("Last part of that address.")
    all_addresses = Field[tuple[str, ...]]("Every name the module is registered under.")
    class_name = Field[str]("Class of the module.")
    call_index = Field[int]("Which call of this module it is, from 1.")
    ordinal_index = Field[int]("Position in ``trace.module_calls``.")
    call_parent = Field[str | None]("The call it was made in; None for the root's.")
    call_children = Field[list[str]]("The calls made in it, directly.", list)
    call_depth = Field[int]("How many calls are around it, itself included, without the root's; 0 for that.")
    module_call_stack = Field[list[str]]("The calls around it, outermost first, without the root and itself.", list)

    ops = Field[list[str]](
        "Labels of the ops inside, those of inner calls too; for the root inputs and outputs too.", list
    )
    num_ops = Field[int]("How many of them are compute ops; ``len(call.ops)`` counts buffers, inputs and outputs too.")
    num_layers = Field[int]("How many layers all of them make.")
    input_ops = Field[list[str]]("Labels of the ops it was given.", list)
    input_layers = Field[list[str]]("Their layers.", list)
    output_ops = Field[list[str]]("Labels of the ops it returned.", list)
    output_layers = Field[list[str]]("Their layers.", list)
    num_internal_edges = Field[int]("Edges between ops inside.")
    num_input_edges = Field[int]("Edges that come in.")
    num_output_edges = Field[int]("Edges that go out.")

    has_saved_forward_args = Field[bool]("Whether what it was given was kept as it was then.")
    had_pre_hook_input_change = Field[bool | None](
        "Whether its forward pre-hooks made something else of what it was called with; None for a root that has any."
    )
    output_structure = Field[Any]("What it returned, with a placeholder for each tensor.", python_value)
    output_paths = Field[tuple[Any, ...]]("Where each tensor sits in it.")
    forward_arg_names = Field[tuple[str, ...]]("Parameter names of its forward.")
    num_forward_args_total = Field[int]("Arguments it was given.")
    forward_args_summary = Field[str]("Its positional arguments, as text.")
    forward_kwargs_summary = Field[str]("Its keyword arguments, as text.")
    forward_duration = Field[Duration | None]("Wall time from entering to leaving; None if not left.", Duration)
    backward_duration = Field[Duration | None](
        "Time in the autograd nodes of the ops inside, over all backward passes; None where none was timed.", Duration
    )
    output_gradient_memory = Field[Bytes]("Size of the saved gradients of what it returned.", Bytes)
    internal_gradient_memory = Field[Bytes]("Size of those of the other ops inside.", Bytes)
    is_returned = Field[bool]("Whether it came to its end.")
    func_calls_duration = Field[Duration]("Wall time of the ops inside.", Duration)
    flops_forward = Field[Flops | None]("Work of the ops inside; None where one is unknown.", Flops)
    macs_forward = Field[Macs | None]("The multiply-accumulates among it; None where one is unknown.", Macs)
    flops_backward = Field[Flops | None]("Estimate of their backward's work; None where one is unknown.", Flops)
    internal_activation_memory = Field[Bytes]("Size of what the ops inside returned.", Bytes)
    output_activation_memory = Field[Bytes]("Size of what it returned.", Bytes)
    autograd_memory = Field[Bytes | None]("What autograd kept for the calls inside, each memory once.", Bytes)
    saved_for_backward = Field[Bytes | None]("What ops inside keep, as op.saved_for_backward; None if unknown.", Bytes)
    saved_params_for_backward = Field[Bytes | None]("The same of the model's parameters and buffers.", Bytes)
    saved_inputs_for_backward = Field[Bytes | None]("The same of the inputs.", Bytes)
    param_memory = Field[Bytes]("Size of the module's own parameters.", Bytes)
    num_param_tensors = Field[int]("How many parameters of its own the module has.")
    has_trainable_params = Field[bool]("Whether one of them is trainable.")
    has_frozen_params = Field[bool]("Whether one of them is frozen.")
    max_descendant_depth = Field[int]("Levels of calls below it.")
    num_descendant_calls = Field[int]("Calls below it.")

    @property
    def forward_args(self) -> list[Any] | None:
        """Copies of the positional arguments of its forward; None unless the capture was asked to keep them."""
        kept = kept_arguments(self.trace, self.read("event"), self.read("arguments_event"))
        return None if kept is None else kept[0]

    @property
    def forward_kwargs(self) -> dict[str, Any] | None:
        """Copies of the keyword arguments of its forward; None as for ``forward_args``."""
        kept = kept_arguments(self.trace, self.read("event"), self.read("arguments_event"))
        return None if kept is None else kept[1]

    @property
    def inputs_before_pre_hooks(self) -> Given | None:
        """What it was called with, where it has forward pre-hooks; None without, or unless arguments were kept."""
        kept = kept_arguments(self.trace, self.read("hooks_event"), self.read("hooks_arguments_event"))
        return None if kept is None else Given(*kept)

    @property
    def inputs_after_pre_hooks(self) -> Given | None:
        """What its forward was given by them; None as for ``inputs_before_pre_hooks``."""
        if self.read("hooks_arguments_event") < 0:
            return None
        kept = kept_arguments(self.trace, self.read("event"), self.read("arguments_event"))
        return None if kept is None else Given(*kept)

    @property
    def code_context(self) -> list[FuncCallLocation]:
        """Where it was called, outermost frame first."""
        return locations(self)

    @property
    def outs(self) -> tuple[Any, ...]:
        """The activations it returned."""
        return tuple(self.trace.activation(row) for row in self.read("output_op_rows"))

    @property
    def out(self) -> Any:
        """The activation it returned; refused with ``module_output_ambiguous`` unless that is one tensor."""
        return self.trace.activation(self.only_output("out"))

    @property
    def out_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what it returned."""
        shapes = self.trace.table("ops").column("shape")
        return tuple(shapes[row] for row in self.read("output_op_rows"))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of what it returned; refused with ``module_output_ambiguous`` unless that is one tensor."""
        shape: tuple[int, ...] = self.trace.table("ops").value("shape", self.only_output("out_shape"))
        return shape

    @property
    def out_dtypes(self) -> tuple[Any, ...]:
        """Dtypes of what it returned."""
        dtypes = self.trace.table("ops").column("dtype")
        return tuple(torch_dtype(dtypes[row]) for row in self.read("output_op_rows"))

    @property
    def out_dtype(self) -> Any:
        """Dtype of what it returned; refused with ``module_output_ambiguous`` unless that is one tensor."""
        return torch_dtype(self.trace.table("ops").value("dtype", self.only_output("out_dtype")))

    @property
    def grads(self) -> tuple[Any, ...]:
        """The saved gradients of what it returned; refused as ``op.grad`` is."""
        return tuple(self.trace.record("ops", row).grad for row in self.read("output_op_rows"))

    @property
    def grad(self) -> Any:
        """The saved gradient of what it returned; refused with ``module_output_ambiguous`` unless that is one tensor,
        and as ``op.grad`` is."""
        return self.trace.record("ops", self.only_output("grad")).grad

    def only_output(self, field: str) -> int:
        rows: tuple[int, ...] = self.read("output_op_rows")
        if len(rows) == 1:
            return rows[0]
        raise AmbiguousReadError(
            code="module_output_ambiguous",
            problem=f"module call {self.call_label!r} returned {len(rows)} tensors and has no single {field}",
            remedy=f"read .{'grads' if field == 'grad' else 'outs'}, or one of the ops that .output_ops names",
            call_label=self.call_label,
            output_ops=tuple(self.output_ops),
        )

    def about(self) -> str:
        return f" ({self.read('class_name')}), {amount(self.read('num_ops'), 'op')}"
