"""What a layer tells: its columns, and the fields of its only pass.

Not   the other records that it leads to (``links.py``).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torchlens.errors import AmbiguousReadError
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.fields import Field, Record
from torchlens.reading.locations import FuncCallLocation
from torchlens.reading.statistics import Statistics
from torchlens.reading.values import python_values, torch_dtype

__all__ = ["LayerFields", "PassField"]

T = TypeVar("T")


class PassField(Field[T]):
    """A field of a layer's only op; refused with ``layer_pass_ambiguous`` where the layer has several passes."""

    def value(self, owner: Any) -> T:
        passes = owner.read("op_rows")
        if len(passes) != 1:
            label = owner.read("layer_label")
            raise AmbiguousReadError(
                code="layer_pass_ambiguous",
                problem=f"{label!r} has {len(passes)} passes, each with its own {self.name}",
                remedy=f"ask one of them: trace[{label + ':1'!r}].{self.name} to trace[{f'{label}:{len(passes)}'!r}]"
                f".{self.name}, or layer.ops[k]",
                label=label,
                num_passes=len(passes),
                field=self.name,
            )
        made: T = getattr(owner.trace.record("ops", passes[0]), self.name)
        return made


def lists_of(pairs: tuple[tuple[Any, Any], ...]) -> dict[Any, list[Any]]:
    return {key: list(items) for key, items in dict(pairs).items()}


class LayerFields(Record):
    """The columns of a layer, and fields of its only pass."""

    __slots__ = ()
    table_name = "layers"

    layer_label = Field[str]("Its label: ``relu_1_2``.")
    layer_label_short = Field[str]("Its label without the total.")
    layer_type = Field[str]("Function name, lower-cased and without underscores.")
    type_index = Field[int]("Its number among the layers of its type, from 1.")
    ordinal_index = Field[int]("Position of its first pass in ``trace.ops``.")
    step_index = Field[int]("Step of its first pass.")
    num_passes = Field[int]("How often its code ran.")
    op_labels = Field[list[str]]("Labels of its passes.", list)

    func_name = Field[str]("The function of its first pass.")
    func_qualname = Field[str | None]("Its import path; None where no function ran.")
    is_opaque = Field[bool]("Whether what happened inside was not watched.")
    opaque_reason = Field[str | None]("Why, in a few words; None where it was watched.")
    grad_fn_class_name = Field[str | None]("Class of the autograd node of its first pass; None without one.")
    is_inplace = Field[bool]("Whether its first pass wrote an argument or returned that same object.")
    func_config = Field[dict[str, Any]]("Readable settings of its first pass.", python_values)
    arg_names = Field[tuple[str, ...]]("Parameter names where the signature is known.")
    num_args_total = Field[int]("Arguments of its first pass.")
    num_pos_args = Field[int]("Of them positional.")
    num_kwargs = Field[int]("Of them by keyword.")

    shape = Field[tuple[int, ...]]("Sizes of the axes of its first pass.")
    shape_summary = Field[str]("Its shapes as text, all of them where passes differ.")
    dtype = Field[Any]("Element type of its first pass, a ``torch.dtype``.", torch_dtype)
    device_ref = Field[str]("Device of its first pass.")
    activation_memory = Field[Bytes]("Size of what its first pass returned.", Bytes)
    total_activation_memory = Field[Bytes]("Size of what all passes returned.", Bytes)
    total_func_duration = Field[Duration]("Wall time of all passes.", Duration)
    flops_forward = Field[Flops | None]("Work of its first pass; None where unknown.", Flops)
    macs_forward = Field[Macs | None]("The multiply-accumulates among it; None where unknown.", Macs)
    flops_backward = Field[Flops | None]("Estimate of its backward's work; None where unknown.", Flops)
    total_flops_forward = Field[Flops | None]("Work of all passes; None where one is unknown.", Flops)
    total_macs_forward = Field[Macs | None]("The multiply-accumulates among it; None where one is unknown.", Macs)
    total_flops_backward = Field[Flops | None]("Estimate of their backward's work; None where one is unknown.", Flops)
    autograd_memory = Field[Bytes | None]("What autograd kept for its first pass's backward; None if unknown.", Bytes)
    num_autograd_tensors = Field[int | None]("How many tensors that is.")
    total_autograd_memory = Field[Bytes | None]("What it kept for all passes, each memory once.", Bytes)
    total_saved_for_backward = Field[Bytes | None](
        "What its passes keep, as .saved_for_backward; None if unknown.", Bytes
    )
    total_saved_params_for_backward = Field[Bytes | None]("The same of the model's parameters and buffers.", Bytes)
    total_saved_inputs_for_backward = Field[Bytes | None]("The same of the inputs.", Bytes)
    total_gradient_memory = Field[Bytes]("Size of the saved gradients of all passes.", Bytes)
    in_multi_output = Field[bool]("Whether its call returns several tensors.")
    multi_output_index = Field[int | None]("Which of them it is, from 0; None where the call returns one.")
    multi_output_name = Field[str | None]("Its field name in the returned value; None without one.")

    parents = Field[tuple[str, ...]]("Labels of the layers it was made from, over all passes.")
    children = Field[tuple[str, ...]]("Labels of the layers that used it, over all passes.")
    parents_per_pass = Field[dict[int, list[str]]]("Layers it was made from, by pass.", lists_of)
    children_per_pass = Field[dict[int, list[str]]]("Layers that used it, by pass.", lists_of)
    parent_ops_per_layer = Field[dict[str, list[int]]](
        "By parent layer, the passes of this one that used it.", lists_of
    )
    child_ops_per_layer = Field[dict[str, list[int]]]("By child layer, the passes of this one that it used.", lists_of)
    edges_vary_across_ops = Field[bool]("Whether its passes are wired differently.")
    num_parents = Field[int]("Length of ``parents``.")
    num_children = Field[int]("Length of ``children``.")
    has_parents = Field[bool]("Whether it was made from any layer.")
    has_children = Field[bool]("Whether any layer used it.")
    siblings = Field[tuple[str, ...]]("The other children of its parents.")
    co_parents = Field[tuple[str, ...]]("The other parents of its children.")
    has_siblings = Field[bool]("Whether it has siblings.")
    has_co_parents = Field[bool]("Whether it has co-parents.")

    is_input = Field[bool]("Whether it is an input of the model.")
    is_output = Field[bool]("Whether it is an output of the model.")
    is_final_output = Field[bool]("Whether it is the last output.")
    is_buffer = Field[bool]("Whether it is a version of a buffer.")
    is_compute_layer = Field[bool]("Whether it is neither input, output nor buffer.")
    is_internal_source = Field[bool]("Whether it was made without tensors from other ops.")
    is_internal_sink = Field[bool]("Whether nothing used it, though it is no output.")
    is_orphan = Field[bool]("Whether it is linked to no input and no output.")
    io_role = Field[str | None]("Where an input or output sits; None for others.")
    input_was_parameter = Field[bool]("Whether an input was passed as a ``nn.Parameter``.")
    address = Field[str | None]("Address of its buffer; None for others.")
    buffer_pass = Field[int | None]("Version of its buffer at the first pass; None for others.")
    buffer_source = Field[str | None]("Label of the op that wrote it first; None where it was only read.")
    buffer_write_kind = Field[str | None]("How it was written; None where it was only read.")
    has_input_ancestor = Field[bool]("Whether it descends from an input.")

    module = Field[str | None]("Call label of the innermost submodule that ran its first pass; None at the root.")
    modules = Field[tuple[str, ...]]("Call labels of the submodules that ran its first pass.")
    output_of_modules = Field[tuple[str, ...]]("Modules that return it.")
    output_of_module_calls = Field[tuple[str, ...]]("Module calls that return it.")
    is_atomic_module = Field[bool]("Whether it is the only op of a module without children.")
    module_call_depth = Field[int]("How many submodules its first pass is nested in.")

    uses_params = Field[bool]("Whether it takes a parameter.")
    param_names = Field[tuple[str, ...]]("Addresses of the parameters it takes.")
    param_shapes = Field[tuple[tuple[int, ...], ...]]("Their shapes.")
    num_params = Field[int]("Their elements, counted once.")
    num_params_trainable = Field[int]("Of them trainable.")
    num_params_frozen = Field[int]("Of them frozen.")
    num_param_tensors = Field[int]("How many parameters it takes.")
    num_param_tensors_trainable = Field[int]("Of them trainable.")
    num_param_tensors_frozen = Field[int]("Of them frozen.")
    total_param_memory = Field[Bytes]("Their size, counted once.", Bytes)
    is_scalar_bool = Field[bool]("Whether it is a bool of one element.")
    is_terminal_bool = Field[bool]("Whether Python took its truth.")
    in_conditionals = Field[tuple[tuple[str, int, str, str], ...]]("Those of its passes, each once.")
    conditional_branch_stack_ops = Field[dict[tuple[tuple[int, str], ...], list[int]]](
        "By the arms that passes ran in, these passes.", lists_of
    )
    bool_value = Field[bool | None]("The truth that Python took of its first pass; None where none was taken.")

    label = PassField[str]("Label of its only op.")
    pass_index = PassField[int]("1, for its only op.")
    lookup_keys = PassField[tuple[str, ...]]("Keys of its only op.")
    site_key = PassField[str]("Structural address of its only op.")
    out = PassField[Any]("The saved activation of its only op.")
    stats = PassField[Statistics]("Statistics of that.")
    transformed_out = PassField[Any]("What ``SaveOptions`` made of that; None where it made nothing.")
    transformed_out_shape = PassField[tuple[int, ...] | None]("Shape of what was made.")
    transformed_out_dtype = PassField[Any]("Element type of what was made.")
    has_saved_activation = PassField[bool]("Whether the activation of its only op was kept.")
    func_duration = PassField[Duration]("Wall time of its only op.")
    code_context = PassField[list[FuncCallLocation]]("Where its only op was called; see ``Op.code_context``.")
    input_ancestors = PassField[frozenset[str]]("The inputs its only op descends from.")
    output_descendants = PassField[frozenset[str]]("The outputs its only op feeds.")
    is_module_input = PassField[bool]("Whether a submodule was given it.")
    saved_args = PassField[list[Any] | None]("Copies of the positional arguments of its only op.")
    saved_kwargs = PassField[dict[str, Any] | None]("Copies of the keyword arguments of its only op.")
    func_rng_states = PassField[dict[str, Any]]("States of torch's generators before its only op.")
    grad = PassField[Any]("The only saved gradient of its only op.")
    has_grad = PassField[bool]("Whether a gradient of its only op was saved.")
    save_grads = Field[bool](
        "Whether its gradients are kept: the capture was asked for those of all ops, or one of some pass was kept."
    )

    def about(self) -> str:
        passes = self.read("num_passes")
        return f" {self.read('func_name')}{f', {passes} passes' if passes > 1 else ''} {self.read('shape')}"
