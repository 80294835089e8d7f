"""The records that lead to one another: Op, Orphan, Layer, Module, ModuleCall, Param, Buffer.

Where a field has one answer per pass or per call and there are several, it refuses and says where to ask.

None means that the question does not apply. Memory and time come as ``Bytes`` and ``Duration``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from projections.errors import over_events
from torchlens.errors import AmbiguousReadError, IndexOutOfRange, PayloadUnavailableError
from torchlens.printable import amount
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.accessors import BufferAccessor, LayerAccessor, ModuleCallAccessor, OpAccessor, ParamAccessor
from torchlens.reading.autograd import (
    Gradients,
    OpAutograd,
    gradients_of,
    gradients_read,
    only_gradient,
)
from torchlens.reading.fields import Field, Record, pass_through
from torchlens.reading.given import Given, kept_arguments
from torchlens.reading.locations import FuncCallLocation, innermost_own, location_of
from torchlens.reading.statistics import Statistics, statistics_of
from torchlens.reading.values import python_value, python_values, torch_dtype, torch_dtypes
from torchlens.reading.view import View

__all__ = ["Buffer", "Layer", "Module", "ModuleCall", "Op", "Orphan", "Param"]

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
        made: T = getattr(Op(owner.trace, passes[0]), self.name)
        return made


class CallField(Field[T]):
    """A field of a module's only call; refused with ``module_call_ambiguous`` where it was not called exactly once."""

    def value(self, owner: Any) -> T:
        calls = owner.read("call_rows")
        if len(calls) != 1:
            address = owner.read("address")
            several = len(calls) > 1
            raise AmbiguousReadError(
                code="module_call_ambiguous" if several else "module_not_called",
                problem=f"module {address!r} was called {len(calls)} times"
                + (f", each call with its own {self.name}" if several else f" and has no {self.name}"),
                remedy=f"ask one of them: trace.module_calls[{address + ':1'!r}].{self.name}, or module.calls[k]"
                if several
                else "ask a module that the forward called; .num_calls says how often",
                address=address,
                num_calls=len(calls),
                field=self.name,
            )
        made: T = getattr(ModuleCall(owner.trace, calls[0]), self.name)
        return made


@attrs.frozen
class ComputeRecord:
    """How the FLOPs of an op were counted: ``2 * fma_macs + other_flops``."""

    fma_macs: int | None  # multiply-accumulates, two FLOPs each; None where unknown
    other_flops: int | None  # all others; None where unknown
    evidence: str  # "formula_exact", "estimated" or "unknown"
    reason: str | None  # why it is no more than that; None for what is exact


def locations(record: Record) -> list[FuncCallLocation]:
    """The frames on the way to a call and, last, the user's frame that asked for the capture; none for no call."""
    frames = record.read("code_context")
    caller = record.trace.tables.fact("called_from") if frames else None
    return [location_of(record.trace, frame) for frame in (*frames, *(() if caller is None else (caller,)))]


def module_at(trace: View, address: str | None) -> Module | None:
    """The module of an address; None for no address."""
    rows = () if address is None else trace.index().door("modules").get(address, ())
    return Module(trace, rows[0]) if rows else None


def live_function(trace: View, number: int) -> Any:
    """The function with a number; None for a row without one, and outside the process that captured."""
    return None if number < 0 or trace.handles is None else trace.handles.function(number)


def call_tree(trace: View, calls: tuple[int, ...]) -> dict[str, Any]:
    """Calls by label, each with the calls made in it."""
    table = trace.table("module_calls")
    top: dict[str, Any] = {}
    waiting = [(top, calls)]
    while waiting:
        into, rows = waiting.pop()
        for row in rows:
            inner = into[table.value("call_label", row)] = dict[str, Any]()
            waiting.append((inner, table.value("child_rows", row)))
    return top


def lists_of(pairs: tuple[tuple[Any, Any], ...]) -> dict[Any, list[Any]]:
    return {key: list(items) for key, items in dict(pairs).items()}


def values_of(templates: tuple[Any, ...]) -> list[Any]:
    return [python_value(template) for template in templates]


class Op(Record):
    """One executed torch call, one output of it; also an input, an output or a version of a buffer."""

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
    def layer(self) -> Layer:
        """The layer it is a pass of."""
        return Layer(self.trace, self.read("layer_row"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """The parameters it took."""
        return ParamAccessor(self.trace, self.read("param_rows"))

    @property
    def atomic_module(self) -> Module | None:
        """The module without children whose only op this is; None otherwise."""
        return module_at(self.trace, self.read("atomic_module"))

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

    @property
    def buffer_source_ops(self) -> OpAccessor[Op]:
        """The versions of buffers that it read."""
        buffers = self.trace.table("ops").column("is_buffer")
        return OpAccessor(self.trace, [row for row in self.read("parent_rows") if buffers[row]])

    @property
    def buffer_sink_ops(self) -> OpAccessor[Op]:
        """The versions of buffers that it wrote."""
        buffers = self.trace.table("ops").column("is_buffer")
        return OpAccessor(self.trace, [row for row in self.read("child_rows") if buffers[row]])

    def about(self) -> str:
        return f" {self.read('func_name')} {self.read('shape')} {self.read('dtype')}"


class Orphan(Op):
    """An op that is linked to no input and no output; in no other collection, and never numbered."""

    __slots__ = ()
    table_name = "orphans"


class Layer(Record):
    """Ops that are the same code run more than once; each is one pass.

    Every other field of an op passes through where there is one pass, and is refused with
    ``layer_pass_ambiguous`` where there are several.
    """

    __slots__ = ()
    table_name = "layers"

    if TYPE_CHECKING:  # the fields of an op that are given at the end of this file

        def __getattr__(self, name: str) -> Any: ...

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

    @property
    def func(self) -> Any:
        """The function of its passes; None where none ran, and outside the process that captured."""
        return self.ops[0].func

    @property
    def ops(self) -> OpAccessor[Op]:
        """Its passes: ``layer.ops[0]`` is pass 1."""
        return OpAccessor(self.trace, self.read("op_rows"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """The parameters it takes."""
        return ParamAccessor(self.trace, self.read("param_rows"))

    def about(self) -> str:
        passes = self.read("num_passes")
        return f" {self.read('func_name')}{f', {passes} passes' if passes > 1 else ''} {self.read('shape')}"


class Module(Record):
    """One ``nn.Module`` instance of the model.

    Every other field of a call passes through where it was called once, and is refused with
    ``module_call_ambiguous`` where it was called several times.
    """

    __slots__ = ()
    table_name = "modules"

    if TYPE_CHECKING:  # the fields of a call that are given at the end of this file

        def __getattr__(self, name: str) -> Any: ...

    address = Field[str]("Its first registered name, dotted; ``self`` for the root.")
    name = Field[str]("Last part of its address.")
    all_addresses = Field[tuple[str, ...]]("Every name it is registered under.")
    has_multiple_addresses = Field[bool]("Whether that is more than one.")
    class_name = Field[str]("Name of its class.")
    class_qualname = Field[str]("Import path of its class.")
    class_docstring = Field[str | None](
        "What its class says of itself; None unless ``save_code_context`` was asked for."
    )
    class_source_location = Field[str | None](
        "File and line of its class; None unless ``save_code_context`` was asked for."
    )
    init_source_location = Field[str | None](
        "File and line of its ``__init__``; None unless ``save_code_context`` was asked for."
    )
    forward_source_location = Field[str | None](
        "File and line of its ``forward``; None unless ``save_code_context`` was asked for."
    )
    init_signature = Field[str | None](
        "Parameters of its ``__init__``; None unless ``save_code_context`` was asked for."
    )
    forward_signature = Field[str | None](
        "Parameters of its ``forward``; None unless ``save_code_context`` was asked for."
    )
    training = Field[bool]("Whether it was in training mode at capture.")
    has_forward_hooks = Field[bool]("Whether it had forward hooks.")
    has_backward_hooks = Field[bool]("Whether it had backward hooks.")
    forward_hooks = Field[list[str]]("Their names.", list)
    forward_pre_hooks = Field[list[str]]("Their names.", list)
    backward_hooks = Field[list[str]]("Their names.", list)
    is_registered = Field[bool]("Whether the model registers it.")

    address_parent = Field[str | None]("The module that holds it; None for the root.")
    address_children = Field[tuple[str, ...]]("The modules it holds.")
    address_depth = Field[int]("How many modules hold it, one in another.")
    call_parent = Field[str | None]("The module that called it; None for the root.")
    call_children = Field[tuple[str, ...]]("The modules it called.")
    call_depth = Field[int]("How many calls its first call is nested in.")
    num_calls = Field[int]("How often it was called.")
    call_labels = Field[list[str]]("Labels of its calls.", list)

    layer_labels = Field[list[str]]("Labels of the layers inside, those of submodules too.", list)
    num_layers = Field[int]("How many they are.")
    input_ops = Field[list[str]]("Labels of the ops it was given, over its calls.", list)
    input_layers = Field[list[str]]("Their layers.", list)
    output_ops = Field[list[str]]("Labels of the ops it returned, over its calls.", list)
    output_layers = Field[list[str]]("Their layers.", list)
    num_internal_edges = Field[int]("Edges between ops inside.")
    num_input_edges = Field[int]("Edges that come in.")
    num_output_edges = Field[int]("Edges that go out.")
    num_edges = Field[int]("All three.")

    num_params = Field[int]("Elements of its own parameters.")
    num_params_trainable = Field[int]("Of them trainable.")
    num_params_frozen = Field[int]("Of them frozen.")
    num_param_tensors = Field[int]("How many parameters of its own it has.")
    num_param_tensors_trainable = Field[int]("Of them trainable.")
    num_param_tensors_frozen = Field[int]("Of them frozen.")
    param_memory = Field[Bytes]("Their size.", Bytes)
    has_trainable_params = Field[bool]("Whether one of its own is trainable.")
    has_frozen_params = Field[bool]("Whether one of its own is frozen.")
    num_recursive_params = Field[int]("Elements of its parameters, those of submodules too.")
    num_recursive_params_trainable = Field[int]("Of them trainable.")
    num_recursive_params_frozen = Field[int]("Of them frozen.")
    num_recursive_param_tensors = Field[int]("How many parameters those are.")
    num_recursive_param_tensors_trainable = Field[int]("Of them trainable.")
    num_recursive_param_tensors_frozen = Field[int]("Of them frozen.")
    recursive_param_addresses = Field[tuple[str, ...]]("Their addresses.")
    internal_param_memory = Field[Bytes]("Their size.", Bytes)
    buffer_layers = Field[list[str]]("Labels of the versions of its own buffers.", list)

    total_forward_duration = Field[Duration | None]("Wall time of its calls; None where one was not left.", Duration)
    total_func_calls_duration = Field[Duration]("Wall time of the ops inside.", Duration)
    total_flops_forward = Field[Flops | None]("Work of the calls inside, over its calls; None if unknown.", Flops)
    total_macs_forward = Field[Macs | None]("The multiply-accumulates among it; None if unknown.", Macs)
    total_flops_backward = Field[Flops | None]("Estimate of their backward's work; None if unknown.", Flops)
    total_autograd_memory = Field[Bytes | None]("What autograd kept for the calls inside, each memory once.", Bytes)
    total_saved_for_backward = Field[Bytes | None](
        "What ops inside keep, as .saved_for_backward; None if unknown.", Bytes
    )
    total_saved_params_for_backward = Field[Bytes | None]("The same of the model's parameters and buffers.", Bytes)
    total_saved_inputs_for_backward = Field[Bytes | None]("The same of the inputs.", Bytes)
    total_backward_duration = Field[Duration | None](
        "Time in the autograd nodes of its calls, over all backward passes; None where none was timed.", Duration
    )
    total_output_gradient_memory = Field[Bytes]("Size of the saved gradients of what it returned.", Bytes)
    total_internal_gradient_memory = Field[Bytes]("Size of those of the other ops inside.", Bytes)
    total_internal_activation_memory = Field[Bytes]("Size of what the ops inside returned.", Bytes)
    total_output_activation_memory = Field[Bytes]("Size of what it returned.", Bytes)
    max_descendant_depth = Field[int]("Levels of calls below it.")
    num_descendant_calls = Field[int]("Calls below it.")

    out = CallField[Any]("The activation its only call returned.")
    outs = CallField[tuple[Any, ...]]("The activations its only call returned.")
    out_shape = CallField[tuple[int, ...]]("Shape of what its only call returned.")
    out_shapes = CallField[tuple[tuple[int, ...], ...]]("Shapes of what its only call returned.")
    grad = CallField[Any]("The only saved gradient of what its only call returned.")
    grads = CallField[tuple[Any, ...]]("The saved gradients of what its only call returned.")
    forward_duration = CallField[Duration | None]("Wall time of its only call; None where that was not left.")
    backward_duration = CallField[Duration | None]("Time of the backward through its only call; None if not timed.")
    func_calls_duration = CallField[Duration]("Wall time of the ops inside its only call.")
    forward_args_summary = CallField[str]("Positional arguments of its only call, as text.")
    forward_kwargs_summary = CallField[str]("Keyword arguments of its only call, as text.")

    @property
    def handle(self) -> Any:
        """The module itself, held weakly; None once it is gone, and outside the process that captured."""
        return None if self.trace.handles is None else self.trace.handles.module(self.read("module_number"))

    @property
    def cls(self) -> type | None:
        """Its class; None where ``handle`` is."""
        handle = self.handle
        return None if handle is None else type(handle)

    @property
    def call_tree(self) -> dict[str, Any]:
        """Its calls and, in each, the calls made in it: dictionaries by call label."""
        return call_tree(self.trace, self.read("call_rows"))

    @property
    def calls(self) -> ModuleCallAccessor[ModuleCall]:
        """Its calls: ``module.calls[0]`` is the first."""
        return ModuleCallAccessor(self.trace, self.read("call_rows"))

    @property
    def layers(self) -> LayerAccessor[Layer]:
        """The layers inside, those of submodules too."""
        return LayerAccessor(self.trace, self.read("layer_rows"))

    @property
    def params(self) -> ParamAccessor[Param]:
        """Its own parameters."""
        return ParamAccessor(self.trace, self.read("param_rows"))

    @property
    def recursive_params(self) -> ParamAccessor[Param]:
        """Its parameters, those of submodules too."""
        return ParamAccessor(self.trace, self.read("recursive_param_rows"))

    @property
    def buffers(self) -> BufferAccessor[Buffer]:
        """Its buffers, those of submodules too."""
        return BufferAccessor(self.trace, self.read("buffer_rows"))

    def about(self) -> str:
        calls = self.read("num_calls")
        return f" ({self.read('class_name')}), {amount(calls, 'call')}"


class ModuleCall(Record):
    """One call of one module; also a call that returned no tensor, and one that was left by an exception."""

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
    def module(self) -> Module:
        """The module that was called."""
        return Module(self.trace, self.read("module_row"))

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
        return tuple(Op(self.trace, row).grad for row in self.read("output_op_rows"))

    @property
    def grad(self) -> Any:
        """The saved gradient of what it returned; refused with ``module_output_ambiguous`` unless that is one tensor,
        and as ``op.grad`` is."""
        return Op(self.trace, self.only_output("grad")).grad

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


class Param(Record):
    """One parameter; tied weights are one parameter with several addresses."""

    __slots__ = ()
    table_name = "params"

    address = Field[str]("Its first registered name, dotted.")
    name = Field[str]("Last part of its address.")
    all_addresses = Field[tuple[str, ...]]("Every name it is registered under.")
    has_multiple_addresses = Field[bool]("Whether that is more than one.")
    module_address = Field[str | None]("Address of the module that holds it; None where that is unknown.")
    all_module_addresses = Field[tuple[str, ...]]("Addresses of all modules that hold it.")
    is_registered = Field[bool]("Whether the model registers it.")
    shape = Field[tuple[int, ...]]("Sizes of its axes.")
    dtype = Field[Any]("Its element type, a ``torch.dtype``.", torch_dtype)
    device_ref = Field[str]("Its device.")
    num_params = Field[int]("Its elements.")
    param_memory = Field[Bytes]("Its size.", Bytes)
    is_trainable = Field[bool]("Whether it required a gradient at capture.")
    is_quantized = Field[bool]("Whether its elements are quantised.")
    used_by_ops = Field[list[str]]("Labels of the ops that took it.", list)
    used_by_layers = Field[list[str]]("Their layers.", list)
    has_optimizer = Field[bool | None]("Whether the optimizer given at capture steps it; None where none was given.")
    num_uses_by_ops = Field[int]("How many ops took it.")
    num_uses_by_layers = Field[int]("How many layers took it.")
    num_calls = Field[int]("How many ops took it.")
    co_parent_params = Field[list[str]]("Parameters that were taken together with it.", list)
    has_grad = Field[bool](
        "Whether a recorded backward pass added to its gradient, which is told whether or not it was kept:"
        " ``.grads[k].is_saved`` says which can be read."
    )
    grad_shape = Field[tuple[int, ...] | None]("Shape of what the last one added; None without one.")
    grad_dtype = Field[Any]("Element type of that, a ``torch.dtype``; None without one.", torch_dtype)
    gradient_memory = Field[Bytes]("Size of that; 0 without one.", Bytes)

    @property
    def module(self) -> Module | None:
        """The module that holds it; None where that is unknown."""
        return module_at(self.trace, self.module_address)

    @property
    def modules(self) -> list[Module]:
        """All modules that hold it."""
        found = (module_at(self.trace, address) for address in self.all_module_addresses)
        return [module for module in found if module is not None]

    @property
    def barcode(self) -> str:
        """Token of which parameter this is: of model class, address, shape and dtype, and the same in every capture."""
        model = self.trace.tables.fact("model_class_qualname")
        facts = "\n".join(map(str, (model, self.address, self.read("shape"), self.read("dtype"))))
        return hashlib.sha256(facts.encode("utf-8", "backslashreplace")).hexdigest()[:16]

    @property
    def handle(self) -> Any:
        """The parameter itself, held weakly; None once it is gone, and outside the process that captured."""
        return None if self.trace.handles is None else self.trace.handles.parameter(self.row)

    def live(self, field: str) -> Any:
        """The parameter itself, for what only it can tell."""
        handle = self.handle
        if handle is None:
            raise PayloadUnavailableError(
                code="parameter_not_live",
                problem=f"{field} of parameter {self.address!r} is asked of the parameter itself, which is not here",
                remedy="ask in the process that captured, while the model lives",
                address=self.address,
                field=field,
            )
        return handle

    @property
    def value(self) -> Any:
        """A copy of the parameter: as it is now while it lives, else as it was when an op first took it, or as an
        artifact holds it.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, where it is gone or of another process, and was not kept.
        """
        if self.value_basis == "stored":
            embedded = self.embedded()
            row = self.read("op_rows")[0] if embedded is None else -1
            return self.trace.argument("ops", row, self.first_place(row)) if embedded is None else embedded
        return self.live("value").detach().clone()

    def embedded(self) -> Any | None:
        """It as the artifact holds it that the trace was loaded from; None where that does not."""
        weights = None if self.trace.artifact is None else self.trace.artifact.weights()
        return None if weights is None else weights.get(self.address)

    def as_captured(self, field: str) -> Any:
        """The parameter itself if nothing has written to it since the capture, else a copy of what was kept of it.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, where it is neither; ``parameter_changed``, where it was
                written since, and was not kept.
        """
        handle = self.handle
        if handle is not None and self.trace.handles is not None and self.trace.handles.is_as_captured(self.row):
            return handle
        embedded = self.embedded()
        if embedded is not None:
            return embedded
        rows = self.read("op_rows")
        if rows and self.trace.table("ops").value("has_saved_args", rows[0]):
            return self.trace.argument("ops", rows[0], self.first_place(rows[0]))
        self.live(field)
        raise PayloadUnavailableError(
            code="parameter_changed",
            problem=f"{field} is asked as of the capture, and parameter {self.address!r} was written since",
            remedy="read it before the parameters change, or capture with CaptureOptions(save_arg_values=True)",
            address=self.address,
            field=field,
        )

    @property
    def value_basis(self) -> str | None:
        """Where ``value`` comes from: ``live`` or ``stored``; None where it is not to be had."""
        if self.handle is not None:
            return "live"
        rows = self.read("op_rows")
        is_stored = rows and self.trace.table("ops").value("has_saved_args", rows[0])
        return "stored" if is_stored or self.embedded() is not None else None

    def first_place(self, row: int) -> int:
        """Where it stands among the inputs of an op that took it."""
        with over_events():
            place: int = self.trace.event(self.trace.table("ops").value("event", row)).inputs.index(-1 - self.row)
        return place

    @property
    def grad(self) -> Any:
        """The gradient that torch has accumulated on the parameter by now; None where there is none.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, as for ``value``.
        """
        return self.live("grad").grad

    @property
    def grads(self) -> Gradients:
        """What each recorded backward pass added to its gradient; ``torch.autograd.grad`` adds nothing."""
        return gradients_of(self.trace, self.read("gradient_rows"), self.address)

    def about(self) -> str:
        return f" {self.read('shape')} {self.read('dtype')}{'' if self.read('is_trainable') else ', frozen'}"


class Buffer(Record):
    """One buffer; each version of it that was seen is an op."""

    __slots__ = ()
    table_name = "buffers"

    address = Field[str]("Its first registered name, dotted.")
    name = Field[str]("Last part of its address.")
    all_addresses = Field[tuple[str, ...]]("Every name it is registered under.")
    has_multiple_addresses = Field[bool]("Whether that is more than one.")
    module_address = Field[str]("Address of the module that holds it.")
    all_module_addresses = Field[tuple[str, ...]]("Addresses of all modules that hold it.")
    label = Field[str | None]("Op label of the newest version; None where none was seen.")
    num_overwrites = Field[int]("Writes that were seen.")
    num_versions = Field[int]("Versions that were seen.")
    is_overwritten = Field[bool]("Whether it was written.")
    buffer_pass = Field[int | None]("Number of the newest version; None where none was seen.")
    device_ref = Field[str]("Device of the newest version.")
    module = Field[str | None]("Call label of the innermost submodule that the newest version was seen in.")
    modules = Field[tuple[str, ...]]("Call labels of the submodules it was seen in, outermost first.")
    layer_label = Field[str | None]("Layer label of the newest version; None where none was seen.")
    buffer_source = Field[str | None]("Label of the op that wrote that; None where it was never written.")
    shape = Field[tuple[int, ...]]("Sizes of the axes of the newest version.")
    dtype = Field[Any]("Its element type, a ``torch.dtype``.", torch_dtype)
    activation_memory = Field[Bytes]("Its size.", Bytes)
    has_saved_activation = Field[bool]("Whether the newest version was kept.")
    has_grad = Field[bool]("Whether a gradient of the newest version was saved.")
    grad_shape = Field[tuple[int, ...] | None]("Shape of that; None without one.")
    grad_dtype = Field[Any]("Element type of that, a ``torch.dtype``; None without one.", torch_dtype)
    gradient_memory = Field[Bytes]("Size of the saved gradients of the newest version.", Bytes)

    @property
    def handle(self) -> Any:
        """What stands under its name now; None once its module is gone, and outside the process that captured."""
        return None if self.trace.handles is None else self.trace.handles.buffer(self.row)

    @property
    def call_index(self) -> int | None:
        """Number of the newest version; None where none was seen."""
        return self.buffer_pass

    @property
    def versions(self) -> OpAccessor[Op]:
        """Every version that was seen."""
        return OpAccessor(self.trace, self.read("version_rows"))

    @property
    def write_versions(self) -> OpAccessor[Op]:
        """Those that a write made."""
        return OpAccessor(self.trace, self.read("written_rows"))

    @property
    def initial_value(self) -> Any:
        """The value before the forward, where it was read before any write; None otherwise."""
        first = self.read("version_rows")[:1]
        return self.trace.activation(first[0]) if first and first != self.read("written_rows")[:1] else None

    @property
    def final_value(self) -> Any:
        """The newest version that was seen; None where none was."""
        rows = self.read("version_rows")
        return self.trace.activation(rows[-1]) if rows else None

    def value_at(self, n: int) -> Any:
        """The n-th version, from 1."""
        return self.versions[self.counted(n, len(self.versions), "version")].out

    def value_after(self, n: int) -> Any:
        """The value after the n-th write, from 1."""
        return self.write_versions[self.counted(n, len(self.write_versions), "write")].out

    def counted(self, n: int, count: int, what: str) -> int:
        if 1 <= n <= count:
            return n - 1
        raise IndexOutOfRange(
            code="buffer_version_out_of_range",
            problem=f"buffer {self.address!r} has no {what} {n}: it has {count}",
            remedy=f"ask for one from 1 to {count}" if count else "ask for a buffer that the forward used",
            address=self.address,
            count=count,
        )

    def about(self) -> str:
        versions = len(self.read("version_rows"))
        return f" {amount(versions, 'version')}"


pass_through(Layer, Op, PassField, "Of its only op")
pass_through(Module, ModuleCall, CallField, "Of its only call")
