"""The records of what the autograd engine did: BackwardPass, GradFn, GradFnCall, GradientRecord.

A pass is one run of the engine; a grad_fn is an autograd node, which may fire in several passes; a gradient record
is the gradient of an op that a pass left, or what it added to that of a parameter.

None means that the question does not apply. A gradient that was not kept is refused, never None.
"""

from __future__ import annotations

from typing import Any

from projections.errors import over_events
from torchlens.errors import AmbiguousReadError
from torchlens.printable import amount, printable
from torchlens.quantities import Bytes, Duration, Flops
from torchlens.reading.backward_accessors import GradFnCallAccessor
from torchlens.reading.executed import (
    BackwardFlopsAttribution,
    DispatchedOpAccessor,
    attribution_of,
    operators_of,
    require_timings,
)
from torchlens.reading.fields import Field, Record
from torchlens.reading.locations import FuncCallLocation, location_of
from torchlens.reading.statistics import Statistics, statistics_of_gradient
from torchlens.reading.values import torch_dtype

__all__ = ["BackwardPass", "GradFn", "GradFnCall", "GradientRecord"]


class BackwardPass(Record):
    """One run of the autograd engine over nodes of this capture."""

    __slots__ = ()
    table_name = "backward_passes"

    pass_index = Field[int]("Its number, from 1, in the order in which passes began.")
    trigger = Field[str](
        "What began it: ``backward`` (of the trace), ``recording_backward``, ``autograd_backward``, ``autograd_grad``,"
        " or ``implicit`` where the engine was not called by any of these."
    )
    implicit = Field[bool]("Whether nothing announced it, so that it was found by the nodes that fired.")
    outer_context = Field[int | None]("Number of the pass during which it was begun; None outside any.")
    save_grads_policy = Field[str | None]("Which gradients it kept, as text; None for none.")
    root_meta = Field[tuple[dict[str, Any], ...]](
        "Shape, dtype and device of each tensor that it went out from; empty for an implicit one.",
        lambda told: tuple(map(dict, told)),
    )
    root_grad_fn_ids = Field[tuple[int | None, ...]]("Numbers of their autograd nodes; None for a leaf.")
    root_grad_fns = Field[tuple[str | None, ...]]("Labels of those.")
    root_grad_arguments = Field[tuple[dict[str, Any] | None, ...] | None](
        "The same of the gradients that were given for them; None where torch made ones.",
        lambda told: tuple(None if parts is None else dict(parts) for parts in told),
    )
    inputs_subset = Field[tuple[str | None, ...] | None](
        "Labels of the nodes that ``inputs=`` named, whether or not a gradient came there, with None for one that no"
        " pass found; None without it."
    )
    engine_flags = Field[dict[str, bool]]("``retain_graph`` and ``create_graph``; empty for an implicit one.", dict)
    accumulates = Field[bool]("Whether it added to the ``.grad`` of leaves.")
    is_transient = Field[bool](
        "Whether its gradients lived only while a transform ran, as with ``is_grads_batched=True``: none is kept."
    )
    order = Field[int | None](
        "The highest order among the nodes that fired; None where one is not known, and for an implicit one."
    )
    order_attribution_coverage = Field[float]("Of the nodes that it made, the part whose order is known.")
    origin_backward_pass = Field[int | None]("The pass that made its nodes of the highest order; None at order 1.")
    num_grad_fn_calls = Field[int]("How many nodes fired.")
    status = Field[str](
        "``ok``, ``error`` where the engine raised, which its caller was given, ``incomplete`` where not all that it"
        " did could be recorded, or ``unfinished`` while it runs."
    )
    closed_by = Field[str | None](
        "What told its end: ``trigger_return``, ``engine_drain``, ``sync_point`` or ``engine_error``; None before it."
    )
    error_type = Field[str | None]("Qualified class of what the engine raised; None otherwise.")
    error_message = Field[str | None]("Its message; None otherwise.")
    raised_in = Field[str | None]("Label of the node that ran then; None where that is not known.")
    incomplete_reason = Field[str | None]("What kept the rest of it from being recorded; None where all is.")
    is_cut = Field[bool]("Whether the graph goes on beyond the nodes that were found.")
    duration = Field[Duration | None](
        "From its beginning to its end, or to that of its last firing where only something later (``sync_point``)"
        " showed that it was over; None where neither is known.",
        Duration,
    )
    peak_memory = Field[Bytes | None](
        "Most bytes allocated beside what was before; None without an accelerator, and where the process had more at"
        " some time before.",
        Bytes,
    )
    executed_flops = Field[Flops | None](
        "FLOPs of the operators that it ran, those of which there is a count; None where not everything that ran was"
        " told: ``executed_reason`` says why.",
        Flops,
    )
    executed_reason = Field[str | None]("Why its FLOPs are not known, in words; None otherwise.")
    recompute_flops = Field[Flops | None](
        "Of its FLOPs those that a checkpoint ran again of the forward; None where that is not known.", Flops
    )
    unattributed_flops = Field[Flops | None](
        "Of its FLOPs those of what ran in no recorded node; None where they are not known.", Flops
    )
    uncounted_families = Field[dict[str, int] | None](
        "The families of operators that do work and have no count, and how many calls of each ran; None where its FLOPs"
        " are not known.",
        dict,
    )
    thread = Field[str]("Name of the thread that asked for it.")
    timestamp = Field[float | None]("When it began, in seconds since the epoch.")

    @property
    def backward_call_context(self) -> FuncCallLocation | None:
        """Where ``trace.backward`` or a recording's was called; None for plain torch calls and implicit passes."""
        frame = self.read("backward_call_context")
        return None if frame is None else location_of(self.trace, frame)

    @property
    def grad_fn_calls(self) -> GradFnCallAccessor[GradFnCall]:
        """The firings, in order; after a failure those before it."""
        return GradFnCallAccessor(self.trace, self.read("call_rows"))

    @property
    def aten_ops(self) -> DispatchedOpAccessor:
        """Every operator that the dispatcher ran for it, in order; of one that failed, those before.

        Raises:
            PayloadUnavailableError: ``aten_ops_not_recorded``, where they were not told: the capture was not made with
                ``backward_ready=True``, or nothing announced the pass; ``aten_ops_not_stored``, for a trace that was
                loaded from an artifact.
        """
        return operators_of(self.trace, self.row, lambda: self.read("dispatched_rows"))

    @property
    def flops_attribution(self) -> BackwardFlopsAttribution | None:
        """Its FLOPs by firing and by op; None where ``executed_flops`` is."""
        return attribution_of(self.trace, self.row)

    def about(self) -> str:
        return f" {self.read('trigger')}, {self.read('status')}, {amount(self.read('num_grad_fn_calls'), 'firing')}"


class GradFn(Record):
    """One autograd node that a pass found."""

    __slots__ = ()
    table_name = "grad_fns"

    label = Field[str]("Its label: ``addmm_back_1_4``, counted by type and over all.")
    type = Field[str]("Its class without ``Backward`` and digits at the end, lower-cased.")
    type_index = Field[int]("Its number among the nodes of its type, from 1.")
    ordinal_index = Field[int]("Position in ``trace.autograd.grad_fns``.")
    step_index = Field[int]("``ordinal_index + 1``: its number among all nodes, from 1, the last number of its label.")
    class_name = Field[str]("Name of its class.")
    class_qualname = Field[str]("Import path of its class.")
    is_custom = Field[bool]("Whether it is of a Python ``torch.autograd.Function``.")
    grad_fn_object_id = Field[int]("Number of the node in this capture; ``op.autograd.grad_fn_object_id`` is the same.")
    has_op = Field[bool]("Whether it differentiates an op of the forward.")
    op_label = Field[str | None]("Label of that op; of several results of one call, of the first. None without one.")
    inner_of = Field[str | None](
        "Label of the op whose call made it, where its results stand at other nodes; None for others."
    )
    param_address = Field[str | None]("Address of the parameter whose gradient it gathers; None for others.")
    parents = Field[list[str]]("Labels of the nodes towards the loss.", list)
    children = Field[list[str]]("Labels of the nodes towards the leaves.", list)
    siblings = Field[list[str]]("The other children of its parents.", list)
    co_parents = Field[list[str]]("The other parents of its children.", list)
    has_parents = Field[bool]("Whether it has parents.")
    has_children = Field[bool]("Whether it has children.")
    has_siblings = Field[bool]("Whether it has siblings.")
    has_co_parents = Field[bool]("Whether it has co-parents.")
    order = Field[int | None](
        "1 for what was made in the open, one more than its maker for what a pass made; None"
        " where the maker is not known."
    )
    origin_backward_pass = Field[int | None]("The pass that made it; None for what was made in the open.")
    differentiates = Field[str | None]("Label of the node that made it; None likewise.")
    creator_object_id = Field[int | None]("Number of that node; None likewise.")
    modules = Field[list[str]]("Addresses of the modules it belongs in, outermost first, without the root.", list)
    module_address = Field[str | None]("The innermost of them; None where there is none.")
    module_membership_source = Field[str | None](
        "``paired``, from its op or parameter; ``inferred``, from its neighbours; None where neither says."
    )
    num_calls = Field[int]("How often it fired.")
    call_labels = Field[list[str]]("Labels of its firings.", list)
    has_saved_call = Field[bool]("Whether a gradient was kept at one of them.")
    total_backward_duration = Field[Duration | None](
        "Time of its firings; None where there is none, or one was not timed.", Duration
    )

    @property
    def backward_duration(self) -> Duration | None:
        """Time of its only firing; None where it did not fire, or that was not timed.

        Raises:
            AmbiguousReadError: ``gradient_pass_ambiguous``, where it fired several times.
        """
        if self.num_calls > 1:
            raise AmbiguousReadError(
                code="gradient_pass_ambiguous",
                problem=f"{self.label!r} fired {self.num_calls} times, each with its own backward_duration",
                remedy="ask one: .calls[k].backward_duration; or for all, .total_backward_duration",
                label=self.label,
                count=self.num_calls,
            )
        return made_duration(self.read("backward_duration"))

    @property
    def calls(self) -> GradFnCallAccessor[GradFnCall]:
        """Its firings: ``grad_fn.calls[0]`` is the first, ``.for_pass(k)`` that in a backward pass."""
        return GradFnCallAccessor(self.trace, self.read("call_rows"), of=self.read("label"))

    @property
    def op(self) -> Any:
        """The op of the forward that it differentiates; None without one."""
        row = self.read("op_row")
        return None if row < 0 else self.trace.record("ops", row)

    @property
    def param(self) -> Any:
        """The parameter whose gradient it gathers; None for others."""
        row = self.read("param_row")
        return None if row < 0 else self.trace.record("params", row)

    @property
    def handle(self) -> Any:
        """The node itself, held until the trace is cleaned up; None then, and outside the process that captured."""
        handles = self.trace.handles
        return None if handles is None else handles.node(self.read("grad_fn_object_id"))

    def about(self) -> str:
        op, inner = self.read("op_label"), self.read("inner_of")
        whose = f" of {op}" if op else f" inside {inner}" if inner else ""
        return f" {self.read('class_name')}{whose}, {amount(self.read('num_calls'), 'call')}"


class GradFnCall(Record):
    """One firing of one autograd node."""

    __slots__ = ()
    table_name = "grad_fn_calls"

    call_label = Field[str]("Its label: ``addmm_back_1_4:2``.")
    label = Field[str]("Label of the node.")
    call_index = Field[int]("Which firing of the node it is, from 1.")
    ordinal_in_pass = Field[int]("Position among the firings of its pass.")
    backward_pass_index = Field[int]("Number of the pass it fired in.")
    is_saved = Field[bool]("Whether a gradient was kept at it.")
    timestamp = Field[float | None]("When it began, in seconds since the epoch; None where that is not known.")
    flops = Field[Flops | None](
        "FLOPs of the operators that ran in it, those of which there is a count; None where its pass is not counted.",
        Flops,
    )
    recompute_flops = Field[Flops | None](
        "Of these what a checkpoint ran again of the forward; None where that is not known.", Flops
    )

    @property
    def ordinal(self) -> int:
        """The same as ``call_index``."""
        return self.call_index

    @property
    def backward_duration(self) -> Duration | None:
        """Its time, with what it called; None where it was not timed.

        Raises:
            PayloadUnavailableError: ``grad_fn_fire_timing_unavailable``, for a trace that was loaded from an artifact.
        """
        require_timings(self.trace)
        return made_duration(self.read("backward_duration"))

    @property
    def grad_fn(self) -> GradFn:
        """The node."""
        return GradFn(self.trace, self.read("grad_fn_row"))

    @property
    def backward_pass(self) -> BackwardPass:
        """The pass it fired in."""
        return BackwardPass(self.trace, self.read("pass_row"))

    @property
    def aten_ops(self) -> DispatchedOpAccessor:
        """The operators that ran in it; refused as those of its pass."""
        return operators_of(self.trace, self.read("pass_row"), lambda: self.read("dispatched_rows"))

    @property
    def grad_outputs(self) -> tuple[Any, ...] | None:
        """The gradients that arrived, one for each output of what it differentiates; None for one that was not kept,
        and None at all where none was."""
        return kept_at(self, "grad_outputs")

    @property
    def grad_inputs(self) -> tuple[Any, ...] | None:
        """The gradients that it sent on, one for each input; None as for ``grad_outputs``."""
        return kept_at(self, "grad_inputs")

    @property
    def grad_output_stats(self) -> tuple[Statistics | None, ...] | None:
        """Statistics that were kept of the gradients that arrived, in their place; None as for ``grad_outputs``."""
        return measured_at(self, "grad_outputs_figures")

    @property
    def grad_input_stats(self) -> tuple[Statistics | None, ...] | None:
        """The same of those that it sent on."""
        return measured_at(self, "grad_inputs_figures")

    def about(self) -> str:
        return f" in pass {self.read('backward_pass_index')}"


class GradientRecord(Record):
    """The gradient of an op that one backward pass left, or what one added to that of a parameter."""

    __slots__ = ()
    table_name = "gradients"

    owner_kind = Field[str]("``op`` or ``param``.")
    backward_pass_index = Field[int]("Number of the pass.")
    ordinal = Field[int]("Position among those of its owner.")
    shape = Field[tuple[int, ...]]("Sizes of its axes.")
    dtype = Field[Any]("Its element type, a ``torch.dtype``.", torch_dtype)
    device_ref = Field[str]("Its device.")
    memory = Field[Bytes]("Its size.", Bytes)
    grad_fn_label = Field[str]("Label of the node at which it was seen.")
    is_saved = Field[bool]("Whether it was kept; that a parameter was added to is told in any case.")
    has_stored_stats = Field[bool]("Whether statistics of it were kept in its place, which ``stats`` reads.")
    timestamp = Field[float | None]("When it was seen, in seconds since the epoch; None where that is not known.")

    @property
    def grad(self) -> Any:
        """The gradient, a copy.

        Raises:
            PayloadUnavailableError: ``gradient_not_saved``, where it was not kept; ``gradient_not_stored``, where the
                process that captured held it alone.
        """
        return self.trace.gradient(self.row)

    @property
    def stats(self) -> Statistics:
        """Statistics of the gradient: those that ``tl.stats_only()`` kept, else worked out of the gradient.

        Raises:
            PayloadUnavailableError: What ``grad`` raises, where there is neither; ``statistics_unavailable``.
        """
        return statistics_of_gradient(self.trace, self.row)

    @property
    def quiet_grad(self) -> Any:
        """The same; None where it was not kept."""
        return self.grad if self.is_saved else None

    @property
    def owner(self) -> Any:
        """The op or the parameter."""
        row = self.read("op_row")
        return self.trace.record("params", self.read("param_row")) if row < 0 else self.trace.record("ops", row)

    @property
    def grad_fn_call(self) -> GradFnCall | None:
        """The firing at which it arrived; None where it was returned, or nothing fired."""
        row = self.read("call_row")
        return None if row < 0 else GradFnCall(self.trace, row)

    def __repr__(self) -> str:
        if self.trace.projector is None:
            return super().__repr__()
        of = f"of {self.read('owner')} in pass {self.read('backward_pass_index')}"
        measured = ", statistics kept" if self.read("has_stored_stats") else ", not kept"
        kept = "" if self.read("is_saved") else measured
        return printable(f"<{type(self).__name__} {of}, {self.read('shape')} {self.read('dtype')}{kept}>")


def made_duration(seconds: float | None) -> Duration | None:
    return None if seconds is None else Duration(seconds)


def measured_at(call: GradFnCall, column: str) -> tuple[Statistics | None, ...] | None:
    """The statistics that were kept at one side of a firing, by place; None where none were."""
    figures = call.read(column)
    with over_events():
        return None if figures is None else tuple(None if each is None else Statistics(*each) for each in figures)


def kept_at(call: GradFnCall, side: str) -> tuple[Any, ...] | None:
    """What was kept of the gradients at one side of a firing, by place; None where nothing was."""
    refs, likes = call.read(side), call.read(f"{side}_like")
    if refs is None:
        return None
    with over_events():
        kept = [None if ref is None else (ref, like[0], like[1]) for ref, like in zip(refs, likes, strict=True)]
    return tuple(None if one is None else call.trace.kept_gradient(one) for one in kept)
