"""A trace: everything people read of one capture.

A trace holds no fact. It holds a journal and the number of a stream; the tables come from folding that
stream, and the live tensors, where this process made the capture, from its handles. When events are
appended, the next read folds those.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, overload

import attrs
from typing_extensions import Unpack

from journal import Journal, StreamId
from projections import CaptureTables, Moment, Selector, fingerprint
from projections.accounts.ended import ended
from projections.errors import over_events
from projections.folds.vocabulary import ROOT
from projections.picture import PictureOptions, picture_of
from projections.picture.request import USUAL, Collapse, GraphKind, Line, Showing
from projections.promises import invariants
from projections.selecting import masks
from projections.selecting.masks import Choice
from projections.selecting.queries import resolve
from projections.selecting.selector import label
from torchlens import collector
from torchlens.above import Running
from torchlens.above import running as running_above
from torchlens.errors import (
    ConfigurationError,
    IndexOutOfRange,
    LookupRefused,
    PayloadUnavailableError,
    SelectionError,
    SiteAmbiguityError,
    ValidationError,
)
from torchlens.printable import amount, printable
from torchlens.quantities import Bytes, Duration, Flops, Macs
from torchlens.reading.absent import absences
from torchlens.reading.accessors import (
    BufferAccessor,
    ConditionalAccessor,
    LayerAccessor,
    ModuleAccessor,
    ModuleCallAccessor,
    OpAccessor,
    OrphanAccessor,
    ParamAccessor,
)
from torchlens.reading.autograd import TraceAutograd
from torchlens.reading.backward import BackwardPass, GradFn, GradFnCall, GradientRecord
from torchlens.reading.calls_made import Failure, failure_of
from torchlens.reading.conditionals import Conditional
from torchlens.reading.cut_losses import told_where_cut
from torchlens.reading.executed import DispatchedOp
from torchlens.reading.explaining import Explanation
from torchlens.reading.fields import Field, Record
from torchlens.reading.given import Given
from torchlens.reading.gradient_sites import resolve_gradients
from torchlens.reading.health import (
    NonfiniteFinding,
    TraceHealth,
    health_of,
    nonfinite_of,
    unstored_gradients,
    unstored_rows,
)
from torchlens.reading.locations import FuncCallLocation, location_of
from torchlens.reading.lookup import Found
from torchlens.reading.nonfinite_gradients import GradientFinding, nonfinite_gradients_of
from torchlens.reading.raw import raw_input, raw_output
from torchlens.reading.records import (
    Buffer,
    Layer,
    Module,
    ModuleCall,
    Op,
    Orphan,
    Param,
)
from torchlens.reading.selection import Kind, Selection
from torchlens.reading.summary import Summary, summary
from torchlens.reading.summary_options import USUAL as USUAL_SUMMARY
from torchlens.reading.summary_options import SummaryAsked, SummaryLevel, options_of
from torchlens.reading.tabular import COLUMNS
from torchlens.reading.values import python_values
from torchlens.reading.view import LiveTensors, View, no_loss, no_torch, not_copied
from torchlens.signatures import takes
from torchlens.tlspec.levels import USUAL as USUAL_SAVING
from torchlens.tlspec.levels import Saving

if TYPE_CHECKING:
    import pandas

    from torchlens.questions.chain import Chain
    from torchlens.questions.nonfinite_answer import FirstNonfinite, Nonfinite
    from torchlens.reading.run_result import Draws, Readiness, RunResult
    from torchlens.viz import Animation, Direction, Drawing, Layout, Theme

__all__ = ["MISSING", "CaptureOutcome", "Trace"]

RECORDS: Final[Mapping[str, type[Record]]] = {
    record.table_name: record
    for record in (
        *(Op, Layer, Module, ModuleCall, Param, Buffer, Conditional, Explanation, Orphan),
        *(BackwardPass, GradFn, GradFnCall, DispatchedOp, GradientRecord),
    )
}
"""The class that stands for a row of each table."""

MISSING: Final = object()
"""Stands for the return value of a model that did not return in this process."""


ORIGINS: Final = {"halted": "request", "aborted_nonfinite": "request", "failed": "model", "interrupted": "outside"}
"""What cuts a capture short, by how it ended."""


@attrs.frozen
class CaptureOutcome:
    """How a capture ended."""

    status: str  # "complete", "halted", "aborted_nonfinite", "failed", "interrupted", "unfinished"
    reason: str | None  # why it was halted, or the message of what was raised
    error: str | None  # qualified class of what was raised
    phase: str | None  # what was going on then: "setup", "forward" or "cleanup"; None for a whole one
    origin: str | None  # what ended it: "request", "model", "outside"; None where nothing cut it short, or unknown
    partial: bool  # whether the records are a prefix of what a whole forward would have given


INSIDE: Final = frozenset(dir(View)) - {"events", "opened", "weights"} | frozenset(
    (
        "alive",
        "gradients_looked_at",
        "known_of_gradients",
        "known_of_values",
        "live_backwards",
        "phase_of_end",
        "read",
        "records",
        "resolved",
        "values_looked_at",
    )
)
"""Names of a trace that are for other parts of the package, and in no ``dir``."""

HINTS: Final = {
    "nodes": "trace.ops holds the calls",
    "activations": "trace.ops[label].out is one",
}
"""What to use for an attribute that is looked for here."""


class Trace(View):
    """The records of one capture.

    ``trace.ops``, ``.layers``, ``.modules``, ``.module_calls``, ``.params`` and ``.buffers`` are its collections;
    ``trace[...]`` takes a position, a label, an address or a selector.

    Args:
        journal: Where the stream is; closed by ``cleanup``.
        stream: Its number.
        handles: The live tensors, in the process that captured.
        output: What the model returned, in that process.
    """

    def __init__(
        self, journal: Journal, stream: StreamId, handles: LiveTensors | None = None, output: object = MISSING
    ) -> None:
        super().__init__(journal, stream, handles)
        self.returned = output
        self.looked_at: tuple[CaptureTables, NonfiniteFinding] | None = None
        self.looked_at_gradients: tuple[CaptureTables, GradientFinding] | None = None

    trace_label = Field[str]("Name given to it, else the class of its model.")
    name = Field[str | None]("Name given to it; None without one.")
    tags = Field[tuple[str, ...]]("Words given to find it by.")
    model_class_name = Field[str]("Class of the model.")
    model_class_qualname = Field[str]("Import path of that class.")
    backend = Field[str]("The engine that ran the model.")
    options = Field[dict[str, Any]]("The capture options that differed from their defaults.", python_values)
    environment = Field[dict[str, str]]("Versions and platform of the process that captured.", dict)
    written_by = Field[str]("Version of this package that captured.")
    save_request = Field[str]("What was asked to be kept, as text.")
    stop_after = Field[str | None]("Where the forward was to stop, as text; None for its end.")
    random_seed = Field[int | None]("The seed that was asked for; None where none was.")
    graph_shape_hash = Field[str]("Digest of the structure: types, labels, slots and edges.")
    input_signature_hash = Field[str]("Digest of where the inputs sit, their shapes and dtypes.")

    capture_mode = Field[str](
        "How the forward was watched: ``wrapped``, by wrappers on torch's functions alone, or ``witnessed``, by the"
        " dispatcher below them too."
    )

    @property
    def param_hash_quick(self) -> str:
        """Digest of the parameters as the capture had them: equal for equal addresses, shapes, dtypes and elements.

        It is worked out at each read, of all elements: of the live parameters, if nothing has written to them since, or
        of what ``save_arg_values`` kept.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, ``parameter_changed``, where there is neither.
        """
        self.require_open()
        try:
            from torchlens.reading.digests import digest_of  # for cost: a trace is read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        return digest_of((param.address, param.as_captured("param_hash_quick")) for param in self.params)

    @property
    def raw_input(self) -> Given | None:
        """The arguments of the forward, ``.args`` and ``.kwargs``, from what was kept of the inputs.

        None where one of them was not kept, or the forward did not start.
        """
        self.require_open()
        return raw_input(self)

    @property
    def raw_output(self) -> Any:
        """What the forward returned, from what was kept of the outputs, in any process; containers of known kinds as
        they are, a named tuple, dataclass or model output as a dictionary.

        None where one of them was not kept, or the forward did not return. ``output`` is the object itself.
        """
        self.require_open()
        return raw_output(self)

    # -- how it ended

    status = Field[str](
        "``complete``, ``halted``, ``aborted_nonfinite``, ``failed``, ``interrupted``, or ``unfinished``."
    )
    is_partial = Field[bool]("Whether the forward neither returned nor was halted on purpose.")
    halted = Field[bool]("Whether the forward was stopped on purpose.")
    halt_reason = Field[str | None]("Why it was stopped; None otherwise.")

    @property
    def error(self) -> str | None:
        """Class and message of what the model raised, or of what interrupted it; None otherwise."""
        fact = self.tables.fact
        kind, message = fact("error_type"), fact("error_message")
        return f"{kind}: {message}" if kind and message else kind

    @property
    def failure(self) -> Failure | None:
        """What ended the forward, and where: the torch call with its operands, the module call, the lines of source.

        None where the forward was not ended by an exception. Its text form is for people.
        """
        self.require_open()
        with over_events():
            return failure_of(self)

    @property
    def called_from(self) -> FuncCallLocation | None:
        """Where in the user's code the capture was asked for; None where that is not known."""
        frame = self.tables.fact("called_from")
        return None if frame is None else location_of(self, frame)

    @property
    def outcome(self) -> CaptureOutcome:
        """How the capture ended, in one record."""
        fact = self.tables.fact
        end = ended(self.tables)
        status: str = fact("status")
        return CaptureOutcome(
            status=status,
            reason=None if end is None else end.message,
            error=fact("error_type"),
            phase=self.phase_of_end(),
            origin=ORIGINS.get(status),
            partial=fact("is_partial"),
        )

    @property
    def output(self) -> Any:
        """What the model returned, in the process that captured it.

        Raises:
            PayloadUnavailableError: ``output_not_stored``, for a trace that was read from a journal, and
                for one whose model did not return.
        """
        self.require_open()
        if self.returned is MISSING:
            status = self.status
            returned = status == "complete"
            raise PayloadUnavailableError(
                code="output_not_stored",
                problem="the returned object lives in the process that captured it"
                if returned
                else f"the model did not return: the capture is {status}",
                remedy="read the output ops, trace.output_ops[k].out, or capture again"
                if returned
                else "read the ops that ran, trace.ops",
                status=status,
            )
        return self.returned

    @property
    def health(self) -> TraceHealth:
        """What could not be watched, and how far the capture can be trusted."""
        with over_events():
            return health_of(
                self.tables,
                self.values_looked_at,
                self.known_of_values,
                self.gradients_looked_at,
                self.known_of_gradients,
                unstored_rows(self),
                unstored_gradients(self),
            )

    # -- collections

    @property
    def ops(self) -> OpAccessor[Op]:
        """Every op in capture order, inputs, buffers and outputs included."""
        return OpAccessor(self.alive())

    @property
    def layers(self) -> LayerAccessor[Layer]:
        """Every layer, by first pass."""
        return LayerAccessor(self.alive())

    @property
    def modules(self) -> ModuleAccessor[Module]:
        """Every module, the root first; those that were not called come last."""
        return ModuleAccessor(self.alive())

    @property
    def module_calls(self) -> ModuleCallAccessor[ModuleCall]:
        """Every module call, in order of entry."""
        return ModuleCallAccessor(self.alive())

    @property
    def params(self) -> ParamAccessor[Param]:
        """Every parameter of the model."""
        return ParamAccessor(self.alive())

    @property
    def buffers(self) -> BufferAccessor[Buffer]:
        """Every buffer of the model."""
        return BufferAccessor(self.alive())

    @property
    def conditionals(self) -> ConditionalAccessor[Conditional]:
        """Every if and conditional expression that the truth of a tensor had a part in, in the order of their tests."""
        return ConditionalAccessor(self.alive())

    @property
    def orphans(self) -> OrphanAccessor[Orphan]:
        """Ops linked to no input and no output; empty unless the capture was asked to keep them."""
        kept = dict(self.tables.fact("options")).get("keep_orphans", False)
        return OrphanAccessor(self.alive(), None if kept else ())

    @property
    def input_ops(self) -> OpAccessor[Op]:
        """The inputs, in order."""
        return OpAccessor(self.alive(), self.tables.fact("input_rows"))

    @property
    def output_ops(self) -> OpAccessor[Op]:
        """The outputs, in order."""
        return OpAccessor(self.alive(), self.tables.fact("output_rows"))

    @property
    def compute_ops(self) -> OpAccessor[Op]:
        """The ops that are neither input, output nor buffer."""
        return self.ops.compute

    @property
    def saved_ops(self) -> OpAccessor[Op]:
        """The ops whose activation was kept, or what ``SaveOptions`` made of it."""
        return OpAccessor(self.alive(), self.tables.fact("saved_rows"))

    @property
    def compute_layers(self) -> LayerAccessor[Layer]:
        """The layers that are neither input, output nor buffer."""
        return self.layers.compute

    @property
    def recurrent_layers(self) -> LayerAccessor[Layer]:
        """The layers with several passes."""
        return self.layers.recurrent

    @property
    def saved_layers(self) -> LayerAccessor[Layer]:
        """Their layers."""
        layers = self.tables.ops.column("layer_row")
        return LayerAccessor(self.alive(), list(dict.fromkeys(layers[row] for row in self.tables.fact("saved_rows"))))

    @property
    def saved_grad_ops(self) -> OpAccessor[Op]:
        """The ops of which a gradient was saved; outputs have none of their own."""
        return OpAccessor(self.alive(), self.tables.fact("saved_grad_rows"))

    @property
    def root_module(self) -> Module:
        """The model itself."""
        return self.modules[ROOT]

    input_layers = Field[list[str]]("Labels of the inputs, in order.", list)
    output_layers = Field[list[str]]("Labels of the outputs, in order.", list)
    internal_source_ops = Field[list[str]]("Labels of the ops made without tensors from other ops.", list)
    internal_sink_ops = Field[list[str]]("Labels of the ops that nothing used, outputs left out.", list)
    buffer_read_ops = Field[list[str]]("Labels of the buffer versions that were read first.", list)
    buffer_write_ops = Field[list[str]]("Labels of the buffer versions that were written.", list)
    uncalled_modules = Field[list[str]]("Addresses of the modules that the forward did not call.", list)
    unexecuted_param_names = Field[list[str]]("Addresses of the parameters that no op took.", list)

    @property
    def op_labels(self) -> list[str]:
        """Labels of all ops, in order."""
        return list(self.ops.labels)

    @property
    def layer_labels(self) -> list[str]:
        """Labels of all layers, in order."""
        return list(self.layers.labels)

    # -- counts, time and memory

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
    is_recurrent = Field[bool]("Whether some layer has several passes.")
    max_layer_op_count = Field[int]("Most passes of a layer.")
    is_branching = Field[bool]("Whether some op has several children.")
    branching_factor = Field[float]("Children of a compute op, on average.")
    max_in_degree = Field[int]("Most parents of a compute op.")
    max_out_degree = Field[int]("Most children of a compute op.")
    is_dynamic_graph = Field[bool]("Whether Python took the truth of a tensor.")
    num_conditionals = Field[int]("Ifs and conditional expressions that the truth of a tensor had a part in.")
    has_conditional_branching = Field[bool]("Whether there are any.")
    setup_duration = Field[Duration | None]("From the request to the forward; None where it did not start.", Duration)
    forward_duration = Field[Duration | None]("The forward, recording included; None where it did not end.", Duration)
    cleanup_duration = Field[Duration | None]("From its end to the end of the capture; None without one.", Duration)
    capture_duration = Field[Duration | None]("The whole capture; None where it did not end.", Duration)
    func_calls_duration = Field[Duration]("Inside torch calls.", Duration)
    overhead_duration = Field[Duration | None]("The forward outside torch calls; None where it did not end.", Duration)
    total_flops_forward = Field[Flops]("Work of the forward, over the ops of which it is known.", Flops)
    total_macs_forward = Field[Macs]("The multiply-accumulates among it, two FLOPs each.", Macs)
    total_flops_backward = Field[Flops]("Estimate of the backward's work, by a rule for each op.", Flops)
    flops_by_op_type = Field[dict[str, dict[str, int]]](
        "By layer type: FLOPs of the forward and the backward, the calls, and how many of them are unknown.",
        lambda types: {kind: counted(told) for kind, told in types.items()},
    )
    unknown_flop_ops = Field[tuple[str, ...]]("Labels of the ops whose work is unknown; .compute_record says why.")
    compute_coverage = Field[dict[str, int]]("How many ops are known, unknown, or not applicable.", dict)
    total_activation_memory = Field[Bytes]("Size of what all ops returned.", Bytes)
    saved_activation_memory = Field[Bytes]("Size of what was kept, and of what ``SaveOptions`` made.", Bytes)
    total_param_memory = Field[Bytes]("Size of all parameters.", Bytes)
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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all records in canonical form: equal for equal records, wherever they were folded."""
        tables = self.tables
        with collector.paused():  # every cell is looked at, and none of what is made on the way belongs to a cycle
            return fingerprint(tables)

    def fingerprint_at(self, level: str = "portable") -> str:
        """The fingerprint that a trace has which is saved at a level and loaded again.

        An artifact leaves out the operators and times of single firings, and what its level does not keep; so, once
        there was a backward pass, its fingerprint is not that of the capture. With this, one is held against the other.

        Args:
            level: As for ``save``.

        Raises:
            ConfigurationError: ``artifact_save_level_invalid``; ``gradients_inseparable``, as ``save`` does.

        Example:
            >>> import torch, torchlens as tl
            >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
            >>> trace.backward(trace.output.sum())
            >>> loaded = tl.load(trace.save("held_against.tlspec"))
            >>> loaded.fingerprint == trace.fingerprint, loaded.fingerprint == trace.fingerprint_at("portable")
            (False, True)
        """
        from torchlens.tlspec.saving import fingerprint_at  # for cost

        return fingerprint_at(self, level)

    @property
    def journal_path(self) -> str | None:
        """Directory of its journal; None for one in memory."""
        return self.journal.path

    # -- gradients and edits

    inference_only = Field[bool]("Whether the forward ran without an autograd graph.")
    has_backward_pass = Field[bool]("Whether a backward pass was recorded.")
    saved_gradient_memory = Field[Bytes](
        "Size of the gradients that were kept, those of parameters and at nodes too, each once.", Bytes
    )

    @property
    def backward_ready(self) -> bool:
        """Whether the capture was made ready for a backward."""
        return self.has_option("backward_ready")

    @property
    def autograd(self) -> TraceAutograd:
        """The records of its backward passes."""
        return TraceAutograd(self)

    def backward(self, loss: Any = MISSING, *, save_grads: Any = None, **torch_kwargs: Any) -> Trace:
        """Run ``loss.backward(**torch_kwargs)`` and record it as a backward pass of this capture.

        Args:
            loss: A tensor that was made from a value of this capture.
            save_grads: Which gradients this pass keeps, in place of what the capture was asked for.
            torch_kwargs: ``gradient``, ``retain_graph``, ``create_graph`` and ``inputs``, as torch takes them.

        Raises:
            BackwardRefused: ``loss_not_connected``, ``backward_inference_only``, ``backward_disarmed``.
            ConfigurationError: ``loss_type_invalid``.
            RunCapabilityUnavailableError: ``run_capability_unavailable``, for a trace that was read from a journal,
                and for the trace of a run.
            JournalError: The journal refused what the pass had to say; the backward has run.
        """
        if loss is MISSING:
            raise no_loss()
        with told_where_cut(self):
            self.live_backwards().backward(loss, save_grads, torch_kwargs)
        return self

    def capture_backward(self, *, save_grads: Any = None) -> AbstractContextManager[None]:
        """A context in which every run of the autograd engine over this capture is recorded as asked for here.

        Args:
            save_grads: Which gradients the passes keep, in place of what the capture was asked for.

        Raises:
            TorchLensError: As ``backward``, without what is said of a loss.
        """
        return self.live_backwards().capture_backward(save_grads)

    @property
    def state_history(self) -> tuple[Any, ...]:
        """What has changed the trace since it was captured. Nothing can yet."""
        self.require_open()
        return ()

    @property
    def state(self) -> str:
        """``pristine`` as captured, ``edited`` once something changed it."""
        return "edited" if self.state_history else "pristine"

    # -- lookup

    @overload
    def __getitem__(self, key: slice) -> list[Op]: ...

    @overload
    def __getitem__(self, key: Selector) -> Selection: ...

    @overload
    def __getitem__(self, key: int) -> Op: ...

    @overload
    def __getitem__(self, key: str) -> Any: ...

    def __getitem__(self, key: int | slice | str | Selector) -> Any:
        """What a position, slice, label, address or selector names; the order is that of ``torchlens.reading.lookup``.

        Raises:
            LookupRefused: a ``KeyError`` with a code, when it names nothing, or several where one is needed.
            SelectionError: ``multipass_bare_label_ambiguous``, when a label selector names several passes.
        """
        if isinstance(key, str):
            return self.found(self.index().find(key))
        if isinstance(key, Selector):
            kind: Kind = "gradient" if key.names_gradients else "activation"
            return Selection(self, self.resolved(key), repr(key), selector=key, kind=kind)
        return self.ops[key]

    def resolved(self, selector: Selector) -> Choice:
        """Which elements of which op rows a selector means: of their activations, or of their gradients."""
        if selector.names_gradients:
            return masks.whole(resolve_gradients(selector, self.tables, self.records))
        if not selector.reads_values:
            return masks.whole(selector.rows(self.tables, self.records))
        from torchlens.reading.ranking import Values  # for cost: a trace is read without torch

        try:
            with collector.paused():  # tensors and masks of many sites, and no cycle among them
                return resolve(selector, self.tables, self.records, Values(self))
        except SelectionError as exc:
            absent = "; ".join(dict.fromkeys(absences(selector, self.index())))
            if exc.fields.get("reason") != "population_too_small" or not absent:
                raise
            raise SelectionError(
                code=exc.code,
                problem=f"{exc.problem}: {absent}",
                remedy="name what there is: trace.ops.labels and trace.modules.labels list it",
                **{name: fact for name, fact in exc.fields.items() if name not in ("code", "remedy")},
            ) from exc

    def __contains__(self, key: object) -> bool:
        """Whether a label or address names a record exactly, or a record is of this trace."""
        if isinstance(key, Record):
            return key.trace is self
        if isinstance(key, Selector):
            return bool(self[key])
        if not isinstance(key, str):
            return False
        try:
            return self.index().exact(key) is not None
        except LookupRefused:
            return False

    def find_sites(self, query: Selector | str, *, strict: bool = False, max_fanout: int = 8) -> Selection:
        """The sites that a selector matches, refused where they are more than expected.

        Args:
            query: A selector; a bare string means its label.
            strict: Refuse a bare string.
            max_fanout: Most sites the caller is ready for.

        Raises:
            SelectionError: ``max_fanout_invalid``.
            SiteAmbiguityError: ``site_fanout_exceeded``, when there are more; ``trace[query]`` has no such bound.
        """
        if isinstance(query, str) and not strict:
            query = label(query)
        if not isinstance(query, Selector):
            raise SelectionError(
                code="site_query_type_invalid",
                problem=f"sites are not found by {type(query).__name__}" + (" when strict" if strict else ""),
                remedy="give a selector, such as tl.label(...) or tl.func(...)",
                received_type=type(query).__name__,
            )
        if type(max_fanout) is not int or max_fanout < 0:
            raise SelectionError(
                code="max_fanout_invalid",
                problem=f"max_fanout={max_fanout!r} is no number of sites",
                remedy="pass a whole number, 0 or more",
                max_fanout=max_fanout,
            )
        sites = self[query]
        if len(sites) > max_fanout:
            raise SiteAmbiguityError(
                code="site_fanout_exceeded",
                problem=f"{query!r} matches {len(sites)} sites, more than max_fanout={max_fanout}",
                remedy=f"narrow it, pass max_fanout={len(sites)}, or use trace[selector]",
                count=len(sites),
                max_fanout=max_fanout,
            )
        return sites

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    # -- running it

    def run(
        self,
        model: Any = None,
        inputs: Any = None,
        input_kwargs: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        draws: Draws = "fresh",
        strict: bool = False,
        fast: bool = False,
    ) -> RunResult:
        """Run the recorded calls with other inputs, without the model's code.

        The capture must have been made with ``CaptureOptions(replayable=True)``. The model's own parameters and buffers
        are used where it lives, else those of ``load_state_dict``, of the artifact, or random ones; none is written.

        Args:
            model: Refused until edits are available.
            inputs: The positional arguments, as for ``tl.trace``; what the capture was given, if it was kept, by
                default. Names, nesting, plain values, shapes, dtypes and devices must be those of the capture.
            input_kwargs: The keyword arguments.
            seed: Seed every generator with this for the run, and put its state back after it.
            draws: ``"fresh"``: calls that draw random numbers draw them from the generators as they stand.
                ``"recorded"``: they draw those of the capture.
            strict: Refuse, and do not only report, where the model would not have gone the recorded way.
            fast: Leave out the result's trace.

        Returns:
            The output, the run as a trace, and a report that says whether the model's code would have gone the same
            way: ``result.report.path_faithfulness``. Where it would not, the result is that of the recorded path, and
            a ``TorchLensWarning`` says so.

        Raises:
            RunCapabilityUnavailableError: ``run_capability_unavailable``, for a capture that was not made for it;
                ``sparse_preflight_failed``, where something in it cannot be run, with ``fields["diagnostics"]``;
                ``run_source_model_collected``, where the model is gone.
            PathDivergenceError: ``input_tree_mismatch``, ``input_shape_mismatch``, ``input_dtype_mismatch``,
                ``input_device_mismatch``; ``call_structure_mismatch`` and ``run_call_raised``, where the recorded path
                does not lead on; with ``strict``, ``scalar_bool_divergence``, ``taken_value_divergence`` and
                ``call_outcome_divergence``.
            StateBindingError: ``state_missing_key``.
            ConfigurationError: ``run_input_missing``, ``option_value_invalid``, ``option_not_available``.

        Example:
            >>> import torch, torchlens as tl
            >>> model = torch.nn.Linear(2, 3)
            >>> trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(replayable=True))
            >>> x = torch.randn(1, 2)
            >>> torch.equal(trace.run(inputs=x).output, model(x))
            True
        """
        self.require_open()
        return running().run(self, model, inputs, input_kwargs, seed=seed, draws=draws, strict=strict, fast=fast)

    @property
    def readiness(self) -> Readiness:
        """Whether the capture can be run, where its parameters and buffers would come from, and what is in the way."""
        self.require_open()
        return running().readiness(self)

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Give ``run`` its parameters and buffers, as ``model.state_dict()`` gives them; None takes them back.

        The tensors are not copied, and not written.

        Raises:
            StateBindingError: ``state_missing_key``, ``state_unexpected_key``, ``state_shape_mismatch``,
                ``state_dtype_mismatch``, ``state_dict_type_invalid``.
        """
        self.require_open()
        running().load_state_dict(self, state_dict)

    def make_again(self, site: Any, *, allowed_custom_callable_modules: Sequence[str] = ()) -> tuple[Any, ...]:
        """Make the call of one op again, on what it was given, and give the tensors that it returns.

        What it was given is taken from saved arguments (``save_arg_values=True``) or from the values that its arguments
        were; random numbers are those that it drew.

        Args:
            site: An op, its label, its position, or a selector of one.
            allowed_custom_callable_modules: Modules whose ``autograd.Function``s may be imported and called, and
                namespaces of custom operators (``"torch.ops.mine"``). By default only torch's own functions are.

        Raises:
            LookupRefused: ``made_by_no_call``, and what ``trace.ops[...]`` raises.
            ReplayRefused: ``replay_value_not_kept`` and its siblings, where it was not kept what the call was given;
                ``custom_callable_untrusted``, ``custom_callable_not_found``, ``custom_callable_unsupported``.
            ConfigurationError: ``option_value_invalid``.
        """
        self.require_open()
        op = site if isinstance(site, Op) else self.ops[site]
        return running().make_again(self, op, allowed_custom_callable_modules)

    # -- reports

    def as_of(self, event: int) -> Moment:
        """The capture as it stood after its first ``event`` events, at the cost of a few thousand of them at most.

        Args:
            event: How many events are taken into account: 0 is before the first one, and all of them is now.

        Raises:
            ConfigurationError: ``event_count_type_invalid``.
            IndexOutOfRange: ``event_out_of_range``, when the stream has not as many.
        """
        head = self.tables.head
        if type(event) is not int:
            raise ConfigurationError(
                code="event_count_type_invalid",
                problem=f"{event!r} is no number of events",
                remedy=f"ask for a whole number from 0 to {head}",
                received_type=type(event).__name__,
            )
        if not 0 <= event <= head:
            raise IndexOutOfRange(
                code="event_out_of_range",
                problem=f"{event!r} is no number of events of this capture, which has {head}",
                remedy=f"ask for a whole number from 0 to {head}",
                event=event,
                events=head,
            )
        assert self.projector is not None  # tables would have refused
        with collector.paused():
            return self.projector.at(event)

    def why(self, site: Any, *, bwd: int | None = None) -> Chain:
        """The chain of events that produced a value or a gradient, back to what it came from.

        Args:
            site: An op, its label or position, a selector or site of one, what has one op (a layer, a module that was
                called once): its activation. ``tl.grad(label)``, a record of ``trace.autograd.gradients``, a parameter:
                a gradient. A firing: that.
            bwd: Of a gradient or a node, the number of the backward pass, from 1; needed where there are several.

        Returns:
            Of an activation the calls, writes in place, buffer writes and inputs that it came from; of a gradient the
            firings from the loss to it. The newest is first; its text is a tree of some of them.

        Raises:
            LookupRefused: ``why_subject_invalid``; ``why_gradient_missing``, where none came;
                ``backward_pass_unknown``; ``why_pass_contradicted``, where ``bwd`` is given of an activation, or of a
                gradient or firing of another pass; and what ``trace[...]`` raises for a key.
            AmbiguousReadError: ``why_subject_ambiguous``; ``gradient_pass_ambiguous``.
        """
        from torchlens.questions.chain import why  # for cost

        self.require_open()
        if bwd is not None:
            self.autograd.backward_passes.in_pass(bwd)
        return why(self, site, bwd=bwd)

    def first_nonfinite(self, kind: Nonfinite = "nonfinite") -> FirstNonfinite:
        """The first tensor that holds NaN or infinity, forward and backward, in the order in which things happened.

        Everything that was kept is looked at, once each, until one is found: activations, arguments, gradients, or the
        statistics that ``tl.stats_only()`` kept of them. What was not kept and came before is named in the answer.

        Args:
            kind: ``"nan"`` passes over infinities, which masks are often made of.

        Returns:
            What it is and holds, what it was made from and how far that reaches, and where; false where none was found.

        Raises:
            PayloadUnavailableError: ``torch_not_installed``, where there are payloads to read.
            ConfigurationError: ``option_value_invalid``.
        """
        from torchlens.questions.nonfinite import first_nonfinite  # for cost

        self.require_open()
        return first_nonfinite(self, kind)

    @takes(Saving, USUAL_SAVING)
    def save(self, path: str | os.PathLike[str], **options: Unpack[Saving]) -> Path:
        """Save it as an artifact: a directory that ``tl.load(path)`` reads in any process, without the model's code.

        Args:
            path: Where nothing is yet, such as ``"run.tlspec"``.
            level: What is kept beside the records: ``"portable"`` activations and gradients; ``"audit"`` no tensor;
                ``"executable_with_callables"`` also what calls were given and the states of random generators, as far
                as the capture kept them; ``"runnable"`` what it takes to run the forward again.
            include_outs: Keep activations. None here and below is as the level has it.
            include_grads: Keep gradients.
            include_saved_args: Keep what calls were given (``save_arg_values``).
            include_rng_states: Keep the states of random generators.
            include_weights: Keep the parameters and buffers of the model, as the capture had them.
            include_activations: At level ``"runnable"``, keep activations beside what it needs.
            include_source: Keep the text of the model's functions, which source lines and names of variables are read
                from.
            overwrite: Replace an artifact that stands there.
            strict: Refuse where a payload that is to be kept has no bytes; else leave it out with a warning.

        Returns:
            Its absolute path.

        Raises:
            ConfigurationError: ``artifact_save_level_invalid``, ``save_payload_level_conflict``,
                ``option_value_invalid``.
            ArtifactError: ``bundle_save_failed``, when something stands there, or the disk refuses.
            PayloadUnavailableError: ``payload_without_bytes``.
            JournalError: ``payload_lost``, ``payload_damaged``, of a trace that was read from a journal.

        Example:
            >>> import torch, torchlens as tl
            >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
            >>> path = trace.save("linear.tlspec")
            >>> tl.load(path).ops.labels
            ('input_1', 'linear_1_1', 'output_1')
        """
        from torchlens.tlspec.saving import write_artifact  # for cost

        return write_artifact(self, path, **options)

    @takes(SummaryAsked, USUAL_SUMMARY)
    def summary(self, level: SummaryLevel = "auto", **options: Unpack[SummaryAsked]) -> Summary:
        """The modules, or the ops, with shapes, parameters and work, and totals: a text with rows.

        Args:
            level: What a row is: ``"module"``, a module of the model; ``"op"``, a call of torch; ``"auto"``, modules
                where the model called any.
            view: Which columns: ``"overview"`` or, for work alone, ``"compute"``.
            depth: Deepest level of modules to show; None or ``"auto"`` shows as many as fit in ``max_rows``, ``"all"``
                all.
            columns: Names of columns, in order; or changes to those of the view, ``"+macs"`` or ``"-time"``.
            filter: A regular expression, looked for in names, or a function of a row: only what it finds is shown.
            buffers: ``"summary"``, a line below the table; ``"hide"``; ``"show"``, rows at level ``op``.
            fold_repeats: Show modules that stand next to each other and are alike, or the passes of a layer, as one
                row; ``"auto"`` where not all would fit.
            max_rows: Most rows; None for all.
            flop_convention: ``"fma2"``, a multiply-accumulate is two FLOPs; ``"fma1"``, it is one.
            units: ``"auto"``, ``"raw"`` for plain numbers, or ``"K"``, ``"M"``, ``"G"``.
            style: ``"ascii"`` for characters of ASCII alone, ``"unicode"`` for lines that are drawn.

        Raises:
            ConfigurationError: ``summary_level_invalid``, ``summary_option_invalid``, ``summary_option_conflict``,
                ``summary_one_call_only``, ``fold_repeats_invalid``, ``flop_convention_unavailable``.
        """
        checked = options_of({"level": level, **options})
        failure = self.failure
        said = None if failure is None else failure.said
        return summary(self.tables, checked, where=said, is_disarmed=self.is_disarmed)

    def to_html(
        self, path: str | os.PathLike[str], *, statistics: Literal["kept"] | bool = True, overwrite: bool = False
    ) -> Path:
        """Write one page that shows the capture in a browser: its graph, and a time scrubber over its events.

        The file needs no server and no network. It holds no tensor: statistics and small histograms, lines of source
        around each call, and what the records say.

        Args:
            path: Of the file.
            statistics: True for statistics and histograms of the activations and gradients that were kept, as far as
                a page looks at them; ``"kept"`` for those that ``tl.stats_only()`` kept, which reads no payload; False
                for none.
            overwrite: Replace a file that is there.

        Returns:
            The absolute path.

        Raises:
            ConfigurationError: ``page_path_exists``, ``page_not_written``, ``page_option_invalid``.
            CompatibilityError: ``page_too_large``, for a capture beyond what a browser opens.
        """
        from torchlens.page.writing import write_page  # for cost

        return write_page(self, path, statistics=statistics, overwrite=overwrite)

    # -- pictures

    def draw(
        self,
        *,
        graph: GraphKind = USUAL.graph,
        rolled: bool = USUAL.rolled,
        collapse: Collapse = USUAL.collapse,
        fold_repeats: bool | None = USUAL.fold_repeats,
        buffers: Showing = USUAL.buffers,
        params: Showing = USUAL.params,
        node_lines: Sequence[Line] = USUAL.node_lines,
        most_nodes: int = USUAL.most_nodes,
        orphans: bool = USUAL.orphans,
        direction: Direction = "bottomup",
        theme: str | Theme = "light",
        layout: Layout = "auto",
        legend: bool = True,
        renderer: str = "auto",
        node_label: Callable[[Any], str | None] | None = None,
        highlight: Any = None,
    ) -> Drawing:
        """A picture of the capture, which shows itself in a notebook; ``print`` shows it as text, ``.save`` writes it.

        Args:
            graph: ``"forward"``, ``"backward"`` (autograd nodes), or ``"combined"``, both side by side.
            rolled: Draw each layer once, with the number of its passes, instead of every pass.
            collapse: Which modules are drawn closed: ``"none"``; ``"auto"``, as many as it takes for ``most_nodes``;
                ``"max"``, all that the root calls; a depth, from 0 on; a part of them, from 0.0 to 1.0; or addresses.
            fold_repeats: Draw equal siblings once, with how many there are; None does where there are more than 30 ops,
                unless ``collapse="none"``.
            buffers: Which buffer versions are drawn: ``"never"``, ``"meaningful"``, ``"always"``.
            params: Which parameters are drawn: the same words.
            node_lines: What is told below a title: ``"shape"``, ``"module"``, ``"params"``, ``"flops"``, ``"time"``,
                ``"memory"``.
            most_nodes: Nodes that an automatic picture has at most, where that can be.
            orphans: Draw ops that are linked to no input and no output too, where they were kept.
            direction: Where the forward leads: ``"bottomup"``, ``"topdown"``, ``"leftright"``.
            theme: ``"light"``, ``"dark"``, ``"paper"``, or a ``tl.viz.Theme``.
            layout: ``"dot"`` until lines cross little; ``"rank"`` quicker; ``"auto"`` the first up to a size.
            legend: Whether it is told what the colours mean.
            renderer: What draws, one of ``tl.viz.renderers()``; ``"auto"`` the first one that is here.
            node_label: A function that is given the record of a node and gives a text in place of title and lines, or
                None to leave them. Where a node stands for several records, it is given the first one.
            highlight: What is to stand out: a selector, a label or address, a selection or record, or a list of these.

        Raises:
            ConfigurationError: ``visualization_mode_invalid``, ``option_value_invalid``, ``collapse_mode_invalid``,
                ``collapse_level_invalid``, ``fold_repeats_invalid``, ``buffer_visibility_invalid``,
                ``visualization_node_style_invalid``, ``visualization_direction_invalid``,
                ``visualization_theme_invalid``, ``visualization_layout_invalid``,
                ``visualization_legend_invalid``, ``visualization_renderer_invalid``,
                ``visualization_highlight_invalid``.
            PayloadUnavailableError: ``backward_graph_unavailable``.
            GraphvizUnavailableError: ``graphviz_unavailable``, where the renderer that is named is not here.
        """
        from torchlens.viz.asking import drawn  # for cost

        self.require_open()
        options = PictureOptions(
            graph=graph,
            rolled=rolled,
            collapse=collapse,
            fold_repeats=fold_repeats,
            buffers=buffers,
            params=params,
            node_lines=node_lines,
            most_nodes=most_nodes,
            orphans=orphans,
        )
        picture = picture_of(self.tables, options)
        return drawn(
            self,
            picture,
            direction=direction,
            theme=theme,
            layout=layout,
            legend=legend,
            renderer=renderer,
            node_label=node_label,
            highlight=highlight,
        )

    def animate(
        self,
        site: Any,
        *,
        direction: Direction = "bottomup",
        theme: str | Theme = "light",
        renderer: str = "auto",
    ) -> Animation:
        """The drawing in which the passes of a site are gone through, one frame each: an HTML fragment for a notebook.

        Args:
            site: A layer or op: a record, label or selector. Where it is an op, its layer is taken.
            direction: Where the forward leads, as in ``draw``.
            theme: Colours, as in ``draw``.
            renderer: What draws; it has to write SVG.

        Raises:
            ConfigurationError: ``animation_site_invalid``, where it names no layer or several.
            GraphvizUnavailableError: ``graphviz_unavailable``, where nothing here draws.
            RenderingError: ``visualization_renderer_failed``, ``visualization_renderer_timeout``,
                ``visualization_format_unavailable``.
        """
        from torchlens.viz.animation import animated  # for cost

        self.require_open()
        return animated(self, site, direction=direction, theme=theme, renderer=renderer)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per op, without tensors and what is as large, which ``trace.ops.to_pandas()`` has; needs pandas."""
        return self.ops.frame(COLUMNS["trace"])

    def check_metadata_invariants(self) -> bool:
        """Check the records against each other; True, or refused.

        Raises:
            ValidationError: ``invariant_broken``, with every finding in ``fields["findings"]``. Something was recorded
                or projected wrongly.
        """
        findings = invariants.check(self.tables)
        if findings:
            raise ValidationError(
                code="invariant_broken",
                problem=f"the records contradict each other: {invariants.told(findings)}",
                remedy="report it with the model and the journal; the records cannot be trusted",
                findings=tuple(tuple(finding) for finding in findings),
            )
        return True

    # -- its life

    @property
    def is_cleaned_up(self) -> bool:
        return self.projector is None

    def cleanup(self) -> None:
        """Let go of the tables, the live tensors, the returned object and the journal. Twice is nothing.

        Every later read is refused with ``trace_cleaned_up``. What is on disk stays.

        Raises:
            JournalError: ``journal_write_failed``, when the disk refused; calling it again tries again.
        """
        if not self.is_cleaned_up:
            if self.backwards is not None:
                self.backwards.disarm()
                self.backwards = None
            self.projector = None
            self.indexed = None
            self.returned = MISSING
            self.looked_at = self.looked_at_gradients = None
            if self.handles is not None:
                self.handles.close()
        self.journal.close()

    # -- what records and collections need of it

    def read(self, column: str) -> Any:
        """One fact about the capture as a whole, as the table holds it."""
        return self.tables.fact(column)

    def alive(self) -> Trace:
        self.require_open()
        return self

    def record(self, table: str, row: int) -> Record:
        return RECORDS[table](self, row)

    def phase_of_end(self) -> str | None:
        """What was going on when the capture ended, or goes on now; None where it came to its end."""
        fact = self.tables.fact
        if fact("status") == "complete":
            return None if fact("is_settled") else "cleanup"
        return "setup" if fact("started_event") is None else "forward"

    def values_looked_at(self) -> NonfiniteFinding:
        """NaN and infinities among the kept activations; what ``trace.health.nonfinite`` reads, looked at once."""
        known = self.known_of_values()
        if known is None:
            known = nonfinite_of(self)
            self.looked_at = (self.tables, known)
        return known

    def known_of_values(self) -> NonfiniteFinding | None:
        """The same where it was looked at."""
        tables = self.tables
        return self.looked_at[1] if self.looked_at is not None and self.looked_at[0] is tables else None

    def gradients_looked_at(self) -> GradientFinding:
        """NaN and infinities among the kept gradients; what ``trace.health.gradients`` reads, looked at once."""
        known = self.known_of_gradients()
        if known is None:
            known = nonfinite_gradients_of(self)
            self.looked_at_gradients = (self.tables, known)
        return known

    def known_of_gradients(self) -> GradientFinding | None:
        """The same where it was looked at."""
        tables, known = self.tables, self.looked_at_gradients
        return known[1] if known is not None and known[0] is tables else None

    @property
    def records(self) -> OpRecords:
        """What predicates are asked about."""
        return OpRecords(self)

    def found(self, found: Found) -> Record | Selection:
        if found.every:
            return Selection(self, found.rows, found.source, "passes")
        return self.record(found.table, found.row)

    # -- how it looks

    def __dir__(self) -> list[str]:
        return sorted(name for name in {"journal", *dir(type(self))} - INSIDE if not name.startswith("_"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What a trace has not, with a hint at what was perhaps meant."""
            if hasattr(type(self), name):  # its own refusal is an AttributeError too, as after cleanup
                return object.__getattribute__(self, name)
            hint = HINTS.get(name) or (f"it is trace.autograd.{name}" if hasattr(TraceAutograd, name) else None)
            raise AttributeError(f"a Trace has no {name!r}" + (f": {hint}" if hint else ""), name=name, obj=self)

    def __reduce__(self) -> NoReturn:
        raise not_copied("a Trace", self.journal_path)

    def __repr__(self) -> str:
        if self.is_cleaned_up:
            return "<Trace, cleaned up>"
        return printable(f"<Trace {self.trace_label}: {amount(self.num_ops, 'op')}, {self.status}>")

    def _repr_html_(self) -> str:
        if self.is_cleaned_up:
            return f"<pre>{html.escape(repr(self))}</pre>"
        from torchlens.page.notebook import notebook_html  # for cost

        return notebook_html(self)


class OpRecords:
    """The op of a row, and of a row on an island, as predicates of selectors are asked about them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __call__(self, row: int) -> Op:
        return Op(self.trace, row)

    def islands(self, row: int) -> Op:
        return Orphan(self.trace, row)


def counted(told: dict[str, int]) -> dict[str, int]:
    """What is told of one layer type, FLOPs as such."""
    return {name: Flops(number) if name in ("forward", "backward") else number for name, number in told.items()}


def witness_of(told: dict[str, Any]) -> dict[str, Any]:
    """The summary of checkpoints, with lists that the reader may change."""
    tokens = {number: {name: listed(value) for name, value in one.items()} for number, one in told["tokens"].items()}
    return {name: listed(value) for name, value in told.items()} | {"tokens": tokens}


def listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def running() -> Running:
    """What runs recorded calls.

    Raises:
        PayloadUnavailableError: ``torch_not_installed``.
    """
    try:
        return running_above()
    except ModuleNotFoundError as exc:
        raise no_torch(exc) from exc
