"""A run as a trace: the recorded events told again, with the values, times and graph of the run.

Reads  the rows of the capture, and each step as the run takes it.
Gives  a stream of its own in memory, and the trace over it: same ops, labels, modules and places in the source.
Rule   what was told of the values of the capture alone (payloads, arguments, operators, what Python took) is left out,
       and every event keeps its number.
Not    what a run that diverged would be told as: it has no trace, since the model would not have gone that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any, Final

from torch import Tensor

from journal import MemoryJournal
from journal.errors import JournalError
from journal.events import (
    BranchTaken,
    BufferSeen,
    BufferWritten,
    CallSiteSeen,
    CaptureRequested,
    CaptureSettled,
    CodeSeen,
    ConstantSeen,
    ForwardReturned,
    ForwardStarted,
    FunctionSeen,
    InputSeen,
    LeftOut,
    ModelDescribed,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    ModuleSeen,
    OpExecuted,
    OpRaised,
    ParameterSeen,
    PreHooksStarted,
    Row,
    ValueReread,
)
from journal.events.base import event_class
from journal.lifecycle import CAPTURE_INPUTS
from projections.structure.details import DURATION, OUTPUTS, RNG, field
from projections.structure.memory import Described, Executed
from projections.structure.program import Step
from torchlens import compat
from torchlens.capture.facts import shape_of
from torchlens.capture.functions import Function, generator_of
from torchlens.capture.keeping import Keeper
from torchlens.capture.template import path_of
from torchlens.generators import state_of
from torchlens.handles import Handles
from torchlens.reading.facade import Trace
from torchlens.reading.view import OF_RUN, View
from torchlens.replay.arguments import call_arguments
from torchlens.running.executing import Heard
from torchlens.running.functions import ANSWERING, function_of
from torchlens.tensors import DTYPE_WORD, STRIDED
from torchlens.tracing.driver import opening

__all__ = ["Retelling"]

AS_IT_WAS: Final = frozenset(
    kind.type_id
    for kind in (
        *(BranchTaken, CallSiteSeen, CaptureSettled, ForwardReturned, FunctionSeen, ModelDescribed, ModuleEntered),
        *(ModuleLeft, ModuleRaised, ModuleSeen, OpRaised, ParameterSeen, PreHooksStarted),
    )
)
"""Events that are true of the run as they stand."""

MOVING: Final = frozenset(kind.type_id for kind in CAPTURE_INPUTS if isinstance(kind, type))
"""Events that the writer steps its machine by."""

ASKED_OF_CAPTURE: Final = frozenset(("random_seed", "source_context_lines", "keep_orphans"))
"""Options of the capture that hold of the run too."""

OP: Final = OpExecuted.type_id
DESCRIBED: Final = frozenset(kind.type_id for kind in (InputSeen, ConstantSeen, ValueReread, BufferSeen, BufferWritten))
SOURCE: Final = field(CodeSeen, "source")
SEED: Final = field(ForwardStarted, "random_seed")
OPTIONS: Final = field(CaptureRequested, "options")
SAVE: Final = field(CaptureRequested, "save")


class Retelling(Heard):
    """Told of a run, and tells it as a capture.

    Args:
        view: The capture.
        seed: The seed of the run.
        recorded: Calls draw the recorded random numbers.
    """

    def __init__(self, view: View, seed: int | None, *, recorded: bool) -> None:
        self.view: Final = view
        self.seed: Final = seed
        self.recorded: Final = recorded
        source = view.tables.forward.source
        self.rows: Final = [row for run in source.rows(0, view.tables.head) for row in run]
        self.journal: Final = MemoryJournal()
        opened = view.opened
        self.writer: Final = self.journal.open_stream(opening(opened.label, opened.tags))
        self.keeper: Final = Keeper(self.writer.reserve, None, detach=False)
        self.nodes: Final[dict[Any, int]] = {}
        self.storages: Final[dict[int, int | None]] = {}  # by value
        self.next = 1  # the recorded event that is to be told next
        self.began = 0
        self.rng: int | None = None
        self.is_read = False

    # -- as the run goes

    def before(self, step: Executed, tensors: list[Tensor]) -> None:
        for storage in self.written(step):
            self.keeper.before_write(storage)
        self.rng = self.state_before(step, tensors)
        self.began = monotonic_ns()

    def after(self, step: Step, tensors: list[Tensor]) -> None:
        at = step.event if isinstance(step, Executed) else step.at
        duration = monotonic_ns() - self.began
        self.tell_up_to(at)
        if self.next > at:  # told: the step is one of several that an event is
            return
        row = self.rows[at]
        if isinstance(step, Executed):
            outputs = tuple(
                self.described(recorded, tensor, step.first + slot)
                for slot, (recorded, tensor) in enumerate(zip(row[OUTPUTS], tensors, strict=True))
            )
            made = [*row]
            made[1], made[DURATION], made[OUTPUTS], made[RNG] = self.began, duration, outputs, self.rng
            self.append(tuple(made))
        elif row[0] in DESCRIBED and tensors:
            is_kept = row[0] != ConstantSeen.type_id
            self.append((row[0], monotonic_ns(), *row[2:-1], self.described(row[-1], tensors[0], row[2], keep=is_kept)))
        else:
            self.append(self.passed_on(row))

    def written(self, step: Executed) -> set[int]:
        """Storages that a call is about to write."""
        found = {self.storages.get(step.inputs[position]) for position in step.written}
        found |= {output.storage for output in step.outputs if output.same_as in step.written}
        return {storage for storage in found if storage is not None}

    def state_before(self, step: Executed, tensors: list[Tensor]) -> int | None:
        """The payload with the state of the generator that a call is about to draw from."""
        if step.rng is None:
            return None
        if self.recorded:
            return self.copied(step.rng)
        args, kwargs = call_arguments(step.args, step.kwargs, tensors)
        return self.writer.keep(state_of(generator_of(tuple(args), kwargs)))

    def described(self, recorded: Any, tensor: Tensor, value: int, *, keep: bool = True) -> tuple[Any, ...]:
        """A tensor of the run, in the place of a recorded one."""
        was = Described(*recorded)
        self.storages[value] = was.storage
        is_plain = tensor.layout is STRIDED and was.storage is not None
        requires_grad = tensor.requires_grad
        grad_fn = grad_slot = grad_node = None
        if requires_grad and not compat.loses_node(tensor) and len(self.nodes) < compat.MAX_TOUCHED_NODES:
            node = compat.node_of(tensor)
            if node is not None:
                grad_fn, grad_slot = type(node).__name__, tensor.output_nr
                grad_node = self.nodes.setdefault(node, len(self.nodes))
        payload = self.keeper.keep(value, tensor, was.storage) if keep else None
        kind = type(tensor)
        return (
            tuple(tensor.shape) if is_plain else shape_of(tensor),
            DTYPE_WORD[tensor.dtype],
            "cpu" if tensor.is_cpu else str(tensor.device),
            was.layout,
            tuple(tensor.stride()) if is_plain and not tensor.is_contiguous() else None,
            int(tensor.storage_offset()) if is_plain else 0,
            was.storage,
            was.view_of,
            was.same_as,
            requires_grad,
            grad_fn,
            grad_slot,
            grad_node,
            tuple(was.path),
            payload,
            None if kind is Tensor else path_of(kind),
        )

    # -- what is no step

    def tell_up_to(self, at: int) -> None:
        while self.next < at:
            self.append(self.passed_on(self.rows[self.next]))

    def append(self, row: Row) -> None:
        self.next += 1
        if row[0] in MOVING:
            kind = event_class(row[0])
            self.writer.append(kind(**dict(zip(kind.fields, row[2:], strict=True))), row[1])
            return
        pending = self.writer.pending
        pending.append(row)
        if len(pending) >= self.writer.chunk_size:
            self.writer.flush()

    def passed_on(self, row: Row) -> Row:
        """A recorded row as it is true of the run."""
        kind, now = row[0], monotonic_ns()
        if kind in AS_IT_WAS:
            return (kind, now, *row[2:])
        made = [kind, now, *row[2:]]
        if kind == CodeSeen.type_id:
            made[SOURCE] = None if row[SOURCE] is None else self.copied(row[SOURCE])
        elif kind == CaptureRequested.type_id:
            asked = [(name, value) for name, value in row[OPTIONS] if name in ASKED_OF_CAPTURE]
            made[OPTIONS] = (*asked, (OF_RUN, True))
            made[SAVE] = "None"
        elif kind == ForwardStarted.type_id:
            made[SEED] = self.seed
        else:
            return (LeftOut.type_id, now, event_class(kind).event_name)
        return tuple(made)

    def copied(self, payload: int) -> int | None:
        try:
            return self.writer.keep(bytes(self.view.journal.payload(self.view.stream, payload)))
        except JournalError:  # lost, as after a power cut
            return None

    # -- the end

    def close_unless_read(self) -> None:
        """Let go of what no trace will read."""
        if not self.is_read:
            self.writer.close()
            self.journal.close()

    def trace(self, output: Any) -> Trace:
        """The run as a trace; ``output`` is what it returned."""
        end = next((at + 1 for at, row in enumerate(self.rows) if row[0] == CaptureSettled.type_id), len(self.rows))
        self.tell_up_to(end)
        self.is_read = True
        self.writer.close()
        self.keeper.let_go()
        functions: Mapping[Function, int] = {
            Function(name, path, ANSWERING.get((name, path)) or function_of(name, path, None) or absent): number
            for number, (name, path) in enumerate(
                zip(
                    self.view.tables.forward.words.func_names,
                    self.view.tables.forward.words.func_qualnames,
                    strict=True,
                )
            )
        }
        handles = Handles(self.keeper.pins, self.nodes, self.keeper.reserved, functions, {})
        self.journal.lend(self.writer.stream, handles)
        made = Trace(self.journal, self.writer.stream, handles=handles, output=output)
        return made


def absent(*args: Any, **kwargs: Any) -> Any:
    """Stands for a function that this process does not have."""
    raise NotImplementedError
