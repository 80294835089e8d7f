"""What a module tells: its columns, and the fields of its only call.

Not   the other records that it leads to (``links.py``).
"""

from __future__ import annotations

from typing import Any, TypeVar

from torchlens.errors import AmbiguousReadError
from torchlens.printable import amount
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.fields import Field, Record
from torchlens.reading.view import View

__all__ = ["CallField", "ModuleFields"]

T = TypeVar("T")


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
        made: T = getattr(owner.trace.record("module_calls", calls[0]), self.name)
        return made


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


class ModuleFields(Record):
    """The columns of a module, and fields of its only call."""

    __slots__ = ()
    table_name = "modules"

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

    def about(self) -> str:
        calls = self.read("num_calls")
        return f" ({self.read('class_name')}), {amount(calls, 'call')}"
