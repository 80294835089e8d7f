"""What an op tells: its columns, and the tensors and arguments behind them.

Not   the other records that it leads to (``links.py``).
"""

from __future__ import annotations

from typing import Any

import attrs

from projections.errors import over_events
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.autograd import OpAutograd, gradients_read, only_gradient
from torchlens.reading.fields import Field, Record
from torchlens.reading.given import kept_arguments
from torchlens.reading.locations import FuncCallLocation, innermost_own, location_of, locations
from torchlens.reading.statistics import Statistics, statistics_of
from torchlens.reading.values import python_value, python_values, torch_dtype, torch_dtypes
from torchlens.reading.view import View

__all__ = ["ComputeRecord", "OpFields"]


@attrs.frozen
class ComputeRecord:
    """How the FLOPs of an op were counted: ``2 * fma_macs + other_flops``."""

    fma_macs: int | None  # multiply-accumulates, two FLOPs each; None where unknown
    other_flops: int | None  # all others; None where unknown
    evidence: str  # "formula_exact", "estimated" or "unknown"
    reason: str | None  # why it is no more than that; None for what is exact


def live_function(trace: View, number: int) -> Any:
    """The function with a number; None for a row without one, and outside the process that captured."""
    return None if number < 0 or trace.handles is None else trace.handles.function(number)


def values_of(templates: tuple[Any, ...]) -> list[Any]:
    return [python_value(template) for template in templates]


class OpFields(Record):
    """The columns of an op, and what is read by them."""

    __slots__ = ()
    table_name = "ops"

    # identity
    label = Field[str]("Its label: ``relu_1_2``, with ``:3`` behind it where its layer has several passes.")
    layer_label = Field[str]("Label of its layer.")
    label_short = Field[str]("Its label without the total.")
    layer_label_short = Field[str]("Label of its layer without the total.")
    raw_label = Field[str]("Label by position in the capture; a lookup key only.")
    layer_type = Field[str]("Function name, lower-cased and without underscores.")
    type_index = Field[int]("Number of its layer among those of its type, from 1.")
    step_index = Field[int]("Running count of executed ops: 0 for inputs and buffers, the last step for outputs.")
    ordinal_index = Field[int]("Position in ``trace.ops``.")
    pass_index = Field[int]("Which pass of its layer it is, from 1.")
    num_passes = Field[int]("Passes of its layer.")
    lookup_keys = Field[tuple[str, ...]]("Every key under which ``trace[...]`` finds it.")
    site_key = Field[str]("Structural address: module path, type, slot and rank, joined by bars.")

    # function
    func_name = Field[str]("The wrapped function that ran; ``none`` for inputs, outputs and buffers that were read.")
    func_qualname = Field[str | None]("Its import path; None where no function ran.")
    func_call_id = Field[int | None]("Number of the call, shared by all outputs of one call; None where none ran.")
    is_inplace = Field[bool]("Whether it wrote one of its arguments or returned that same object.")
    arg_names = Field[tuple[str, ...]]("Parameter names where the signature is known.")
    num_args_total = Field[int]("Arguments it was given.")
    num_pos_args = Field[int]("Of them positional.")
    num_kwargs = Field[int]("Of them by keyword.")
    non_tensor_pos_args = Field[list[Any]]("The positional arguments that hold no tensor.", values_of)
    non_tensor_kwargs = Field[dict[str, Any]]("The keyword arguments that hold no tensor.", python_values)
    func_config = Field[dict[str, Any]]("Readable settings of the call: features, p, dim, ....", python_values)
    is_opaque = Field[bool]("Whether what happened inside was not watched.")
    opaque_reason = Field[str | None]("Why, in a few words; None where it was watched.")
    var_names = Field[list[str]](
        "Variables that its result was assigned to, as text, also where a function returned it as it was; empty where"
        " it was used at once, or there is no source.",
        list,
    )
    arg_expressions = Field[list[str]](
        "Text of the arguments in its call; empty for operators, and where there is no source.", list
    )
    has_saved_args = Field[bool]("Whether what it was given was kept as it was then.")
    args_summary = Field[str]("Its positional arguments, as text.")
    kwargs_summary = Field[str]("Its keyword arguments, as text.")

    # tensor
    has_out_variations = Field[bool]("Whether a child read another part of its memory, under another name.")
    has_saved_activation = Field[bool]("Whether its activation was kept, which ``out`` reads.")
    has_saved_payload = Field[bool]("Whether that was kept, or what ``SaveOptions`` made of it.")
    has_stored_stats = Field[bool]("Whether statistics were kept in place of its activation, which ``stats`` reads.")
    shape = Field[tuple[int, ...]]("Sizes of the axes of what it returned.")
    dtype = Field[Any]("Element type of what it returned, a ``torch.dtype``.", torch_dtype)
    device_ref = Field[str]("Device of what it returned.")
    activation_memory = Field[Bytes]("Size of what it returned, kept or not.", Bytes)
    transformed_out_shape = Field[tuple[int, ...] | None]("Shape of what ``save=`` made of it; None where nothing.")
    transformed_out_dtype = Field[Any]("Element type of that, a ``torch.dtype``; None where nothing.", torch_dtype)
    tensor_class = Field[str | None]("Qualified class of what it returned; None for ``torch.Tensor``.")
    layout = Field[str | None]("Layout of what it returned; None for strided.")
    requires_grad = Field[bool]("Whether what it returned required a gradient.")
    grad_fn_class_name = Field[str | None]("Class of its autograd node; None without one.")
    input_ops = Field[tuple[str, ...]]("Labels of the ops whose results it took.")
    num_inputs = Field[int]("Tensors among its arguments.")
    input_shapes = Field[tuple[tuple[int, ...], ...]]("Their shapes.")
    input_dtypes = Field[tuple[Any, ...]]("Their dtypes.", torch_dtypes)
    input_memory = Field[Bytes]("Their sizes, added.", Bytes)

    # slots
    in_multi_output = Field[bool]("Whether the call returned several tensors.")
    multi_output_index = Field[int | None]("Which of them this is, from 0; None where the call returned one.")
    multi_output_name = Field[str | None]("Its field name in the returned value, such as ``values``; None without one.")
    container_path = Field[tuple[Any, ...]]("Where it sits in the returned container; empty for a bare tensor.")

    # graph
    parents = Field[tuple[str, ...]]("Labels of the ops it was made from, one for each use.")
    children = Field[tuple[str, ...]]("Labels of the ops that used it, each once.")
    num_parents = Field[int]("How many different ops it was made from.")
    num_children = Field[int]("How many different ops used it.")
    has_parents = Field[bool]("Whether it was made from any op.")
    has_children = Field[bool]("Whether any op used it.")
    parent_arg_positions = Field[dict[str, dict[Any, str]]](
        "Which argument each parent was: ``{'args': {0: label}, 'kwargs': {}}``; a tuple leads inside an argument.",
        lambda uses: {kind: dict(places) for kind, places in dict(uses).items()},
    )
    edge_uses = Field[tuple[Any, ...]]("Each use: parent, child, positional or keyword, path in the argument.")
    siblings = Field[tuple[str, ...]]("The other children of its parents.")
    co_parents = Field[tuple[str, ...]]("The other parents of its children.")
    has_siblings = Field[bool]("Whether it has siblings.")
    has_co_parents = Field[bool]("Whether it has co-parents.")
    root_ancestors = Field[frozenset[str]]("The inputs and internal sources it descends from.", frozenset)
    input_ancestors = Field[frozenset[str]]("The inputs it descends from.", frozenset)
    has_input_ancestor = Field[bool]("Whether it descends from an input.")
    internal_source_ancestors = Field[frozenset[str]]("The internal sources it descends from.", frozenset)
    has_internal_source_ancestor = Field[bool]("Whether it descends from an internal source.")
    output_descendants = Field[frozenset[str]]("The outputs it feeds.", frozenset)
    has_output_descendant = Field[bool]("Whether it feeds an output.")
    min_distance_from_input = Field[int | None]("Edges on the shortest path from an input; None without one.")
    max_distance_from_input = Field[int | None]("Edges on the longest path from an input; None without one.")
    min_distance_to_output = Field[int | None]("Edges on the shortest path to an output; None without one.")
    max_distance_to_output = Field[int | None]("Edges on the longest path to an output; None without one.")

    # roles
    is_input = Field[bool]("Whether it is an input of the model.")
    is_output = Field[bool]("Whether it is an output of the model.")
    is_final_output = Field[bool]("Whether it is the last output.")
    is_output_parent = Field[bool]("Whether an output was made from it.")
    is_compute_op = Field[bool]("Whether it is neither input, output nor buffer.")
    io_role = Field[str | None]("Where an input or output sits: ``input.x``, ``output.b.0``; None for others.")
    input_was_parameter = Field[bool]("Whether an input was passed as a ``nn.Parameter``.")
    is_internal_source = Field[bool]("Whether it was made without tensors from other ops.")
    is_internal_sink = Field[bool]("Whether nothing used it, though it is no output.")
    is_orphan = Field[bool]("Whether it is linked to no input and no output.")

    # buffers
    is_buffer = Field[bool]("Whether it is a version of a buffer.")
    address = Field[str | None]("Address of that buffer; None for other ops.")
    buffer_pass = Field[int | None]("Which version of it this is, from 1; None for other ops.")
    buffer_write_kind = Field[str | None]("``reassign``, ``inplace`` or ``fused``; None where it was only read.")
    buffer_source = Field[str | None]("Label of the op that wrote it; None where it was only read.")
    buffer_source_func_name = Field[str | None]("Function of that op.")
    buffer_value_changed = Field[bool | None]("Whether the write changed a value; None where not compared.")

    # modules
    module = Field[str | None]("Call label of the innermost submodule that ran it; None at the root.")
    modules = Field[tuple[str, ...]]("Call labels of the submodules that ran it, outermost first.")
    in_submodule = Field[bool]("Whether a submodule ran it.")
    module_call_depth = Field[int]("How many submodules it is nested in.")
    is_module_input = Field[bool]("Whether a submodule was given it.")
    input_to_module_calls = Field[tuple[str, ...]]("Module calls that were given it.")
    is_module_output = Field[bool]("Whether a submodule returned it.")
    output_of_module_calls = Field[tuple[str, ...]]("Module calls that returned it.")
    output_of_modules = Field[tuple[str, ...]]("Their modules.")
    is_atomic_module = Field[bool]("Whether it is the only op of a module without children.")
    atomic_module_call = Field[str | None]("That module call; None otherwise.")

    # parameters
    uses_params = Field[bool]("Whether it took a parameter.")
    param_names = Field[tuple[str, ...]]("Addresses of the parameters it took.")
    param_shapes = Field[tuple[tuple[int, ...], ...]]("Their shapes.")
    param_dtypes = Field[tuple[Any, ...]]("Their dtypes.", torch_dtypes)
    num_params = Field[int]("Their elements.")
    num_params_trainable = Field[int]("Of them trainable.")
    num_params_frozen = Field[int]("Of them frozen.")
    num_param_tensors = Field[int]("How many parameters it took.")
    num_param_tensors_trainable = Field[int]("Of them trainable.")
    num_param_tensors_frozen = Field[int]("Of them frozen.")
    param_memory = Field[Bytes]("Their size.", Bytes)

    # cost and settings
    func_duration = Field[Duration]("Wall time inside the call; 0 where none ran.", Duration)
    flops_forward = Field[Flops | None]("Work of its call, shared by all its outputs; None where unknown.", Flops)
    macs_forward = Field[Macs | None]("The multiply-accumulates among it, two FLOPs each; None where unknown.", Macs)
    flops_backward = Field[Flops | None]("Estimate of its backward's work, by a rule; None where unknown.", Flops)
    flops_total = Field[Flops | None]("Both; None where unknown.", Flops)
    compute_record = Field[ComputeRecord | None](
        "How the work was counted, and how sure that is; None for inputs, outputs and buffers.",
        lambda told: ComputeRecord(*told),
    )
    bytes_read = Field[Bytes | None]("What its call has to read, each argument once; None where unknown.", Bytes)
    bytes_written = Field[Bytes | None]("What its call has to write; None where unknown.", Bytes)
    arithmetic_intensity = Field[float | None]("FLOPs for each byte that is moved; None where none is.")
    autograd_memory = Field[Bytes | None](
        "What autograd kept for its backward; None where that was not asked, or autograd was off.", Bytes
    )
    num_autograd_tensors = Field[int | None]("How many tensors that is.")
    saved_for_backward = Field[Bytes | None](
        "Memory that is still there because it is the first to need it for its backward, each storage whole and once, "
        "the model's and the inputs' apart; None where .saved_for_backward_reason says why.",
        Bytes,
    )
    saved_params_for_backward = Field[Bytes | None]("The same of the model's parameters and buffers.", Bytes)
    saved_inputs_for_backward = Field[Bytes | None]("The same of the inputs.", Bytes)
    saved_for_backward_reason = Field[str | None]("Why these three are None; None where they are told.")
    func_autocast_state = Field[dict[str, Any]]("Autocast, grad and inference mode at the call.", dict)
    recurrent_ops = Field[tuple[str, ...]]("Labels of all passes of its layer.")

    # gradients
    has_grad = Field[bool]("Whether a gradient of it was saved; of an output, one of the op whose tensor it is.")
    save_grads = Field[bool](
        "Whether its gradients are kept: the capture was asked for those of all ops, or one of it was kept."
    )
    num_saved_grads = Field[int]("How many were.")
    grad_shape = Field[tuple[int, ...] | None]("Shape of the first; None without one.")
    grad_dtype = Field[Any]("Element type of the first, a ``torch.dtype``; None without one.", torch_dtype)
    gradient_memory = Field[Bytes]("Size of all of them.", Bytes)

    # conditions
    is_scalar_bool = Field[bool]("Whether it is a bool of one element.")
    bool_value = Field[bool | None]("The truth that Python took of it; None where none was taken.")
    is_terminal_bool = Field[bool]("Whether Python took its truth.")
    is_terminal_conditional_bool = Field[bool]("Whether that decided an if, an elif or a conditional expression.")
    conditional_context_kind = Field[str | None](
        "What its truth was taken for: ``if_test``, ``elif_test``, ``ifexp``, ``while``, ``assert`` or ``unknown``;"
        " None where it was not taken."
    )
    conditional_wrapper_kind = Field[str | None]("``bool_cast`` where ``bool()`` was called on it; None otherwise.")
    terminal_bool_for = Field[tuple[str, int] | None](
        "Id of the conditional and number of the arm that its truth decided first; None for others."
    )
    conditional_branch_stack = Field[tuple[tuple[int, str], ...]](
        "The arms it ran in, outermost first: position of the conditional and ``then``, ``elif_1`` or ``else``. What a"
        " module or function does that is called in an arm runs in it too."
    )
    conditional_branch_depth = Field[int]("How many they are.")
    in_conditionals = Field[tuple[tuple[str, int, str, str], ...]](
        "The tests and arms it ran in, outermost first: id of the conditional, number and kind of the arm, and"
        " ``evaluation`` or ``body``."
    )
    conditional_arm_children = Field[dict[int, dict[str, list[str]]]](
        "By conditional and arm, the children that ran in it while this op did not.",
        lambda arms: {
            number: {name: list(labels) for name, labels in dict(named).items()} for number, named in arms.items()
        },
    )

    @property
    def out(self) -> Any:
        """The saved activation: a copy, on the autograd graph of the model where that still lives.

        Raises:
            PayloadUnavailableError: ``activation_not_saved``, when the capture did not keep it;
                ``statistics_only``, when it kept statistics.
        """
        return self.trace.activation(self.row, self.table_name)

    @property
    def transformed_out(self) -> Any:
        """What ``SaveOptions`` made of the activation before it was kept, a copy; None where it made nothing."""
        return self.trace.transformed(self.row, self.table_name)

    @property
    def stats(self) -> Statistics:
        """Statistics of its activation: those that ``tl.stats_only()`` kept, else worked out of the saved activation.

        Raises:
            PayloadUnavailableError: What ``out`` raises, where there is neither; ``statistics_unavailable``.
        """
        return statistics_of(self.trace, self.row, self.table_name)

    @property
    def func(self) -> Any:
        """The function that ran, as torch has it without a capture; None where none ran, and outside the process that
        captured."""
        return live_function(self.trace, self.read("function"))

    @property
    def saved_args(self) -> list[Any] | None:
        """Copies of its positional arguments as they were at the call; None unless they were asked to be kept."""
        kept = kept_arguments(self.trace, self.read("event"), self.read("arguments_event"))
        return None if kept is None else kept[0]

    @property
    def saved_kwargs(self) -> dict[str, Any] | None:
        """Copies of its keyword arguments; None as for ``saved_args``."""
        kept = kept_arguments(self.trace, self.read("event"), self.read("arguments_event"))
        return None if kept is None else kept[1]

    @property
    def func_rng_states(self) -> dict[str, Any]:
        """States of torch's generators before the call, by device, as ``torch.set_rng_state`` takes them: all of them
        where the capture was asked to keep them, else that of the one it drew from; empty where it drew nothing.
        That of a generator which the call was given stands under ``generator``.

        Raises:
            PayloadUnavailableError: ``payload_unavailable``, where the artifact leaves such states out.
        """
        states = self.read("rng_states")
        if states or (self.is_compute_op and self.trace.has_option("save_rng_states")):
            self.trace.require_kept("generator", f"the state of generators before {self.label!r}")
        with over_events():
            return {device: self.trace.bytes_tensor(number) for device, number in states}

    @property
    def out_versions_by_child(self) -> dict[str, Any]:
        """What children saw that is another tensor than ``out``, by label: they read its memory under another name.

        Raises:
            PayloadUnavailableError: ``arguments_not_saved``, when there are any, and arguments were not kept.
        """
        labels = self.trace.table(self.table_name).column("label")
        found = self.read("out_variations")
        return {labels[child]: self.trace.argument(self.table_name, child, place) for child, place in found}

    @property
    def detach_saved_activations(self) -> bool:
        """Whether its activation was kept, and cut from the autograd graph for that."""
        return self.has_saved_activation and self.trace.has_option("detach_saved_activations")

    @property
    def grad(self) -> Any:
        """Its only saved gradient, a copy; of an output, that of the op whose tensor it is.

        Raises:
            PayloadUnavailableError: ``gradient_not_saved``, where there is none; it says why.
            AmbiguousReadError: ``gradient_pass_ambiguous``, where several backward passes left one.
        """
        return only_gradient(self)

    @property
    def quiet_grad(self) -> Any:
        """The same; None where it is refused."""
        records = gradients_read(self)
        return records[0].quiet_grad if len(records) == 1 else None

    @property
    def autograd(self) -> OpAutograd:
        """Its autograd node and saved gradients."""
        return OpAutograd(self)

    @property
    def code_context(self) -> list[FuncCallLocation]:
        """Where it was called: the frames of the model, outermost forward first, then the user's frame that asked for
        the capture. The call itself is the last of the model's, ``user_place`` the last of the user's own."""
        return locations(self)

    @property
    def user_place(self) -> FuncCallLocation | None:
        """The line of the user's own code: the innermost outside installed packages on the way to the call, which is
        that which asked for the capture where the model is all of such a package; None where no call was made."""
        frames = self.read("code_context")
        caller = self.trace.tables.fact("called_from") if frames else None
        with over_events():
            frame = innermost_own((*(() if caller is None else (caller,)), *frames), lambda frame: frame[0])
        return None if frame is None else location_of(self.trace, frame)

    @property
    def input_activations(self) -> tuple[Any, ...]:
        """The activations of its parents, in order; None for one that was not kept.

        Raises:
            PayloadUnavailableError: ``payload_unavailable``, where the artifact keeps no activations.
        """
        saved = self.trace.table("ops").column("has_saved_activation")
        if self.read("parent_rows"):
            self.trace.require_kept("activation", f"what {self.label!r} was given")
        return tuple(self.trace.activation(row) if saved[row] else None for row in self.read("parent_rows"))

    def about(self) -> str:
        return f" {self.read('func_name')} {self.read('shape')} {self.read('dtype')}"
