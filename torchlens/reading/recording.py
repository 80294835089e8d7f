"""A recording: the kept activations of one forward, by the labels they had while it ran.

Nothing is folded until something is read: while the model ran, events and the selected payloads were kept, and that
is all. What is read of it, and the trace it becomes, come from the same tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, overload

import attrs

from projections.folds.vocabulary import ROOT
from torchlens import collector
from torchlens.errors import (
    AmbiguousOpLookupError,
    CaptureError,
    LookupRefused,
    PayloadUnavailableError,
    backward_not_requested,
)
from torchlens.options import require_switch
from torchlens.printable import amount, printable
from torchlens.quantities import Bytes
from torchlens.reading.autograd import gradients_read
from torchlens.reading.backward import GradientRecord
from torchlens.reading.backward_accessors import GradientAccessor
from torchlens.reading.cut_losses import told_where_cut
from torchlens.reading.explaining import op_rows_of
from torchlens.reading.facade import MISSING, CaptureOutcome, Trace
from torchlens.reading.lookup import at_position, listed, near_misses, sliced
from torchlens.reading.records import Op, Orphan, Param
from torchlens.reading.statistics import Statistics
from torchlens.reading.summary import SummaryText
from torchlens.reading.tabular import frame_of
from torchlens.reading.values import torch_dtype
from torchlens.reading.view import no_loss, not_saved

if TYPE_CHECKING:
    import pandas

__all__ = ["RecordedActivation", "Recording"]

COLUMNS: Final = (
    "label",
    "kind",
    "func_name",
    "layer_type",
    "shape",
    "dtype",
    "address",
    "module",
    "modules",
    "parents",
    "pass_index",
    "event_index",
    "output_index",
)
"""What a recorded activation tells of itself, and the columns of a recording's data frame."""


@attrs.frozen
class RecordedActivation:
    """One activation that was kept, and what its op was.

    Attributes:
        label: Its label while the model ran, ``relu_4_raw``.
        kind: ``"op"``, ``"input"`` or ``"buffer"``.
        func_name, layer_type: The function, and the type it has in labels.
        shape, dtype: Of what the op returned.
        address: Of the innermost module that ran it; of the buffer, for one.
        module: Label of the innermost module call; None at the root.
        modules: Labels of all enclosing module calls, outermost first, without the root's.
        parents: Labels of the ops it was made from, one for each use.
        pass_index: Which time round, from 1, it is the same code.
        event_index: Number of the event that made it.
        output_index: Which of several results of one call; None for the only one.
    """

    label: str
    kind: str
    func_name: str
    layer_type: str
    shape: tuple[int, ...]
    dtype: Any
    address: str
    module: str | None
    modules: tuple[str, ...]
    parents: tuple[str, ...]
    pass_index: int
    event_index: int
    output_index: int | None
    op: Op = attrs.field(repr=False)

    @property
    def out(self) -> Any:
        """The activation, as ``op.out`` gives it.

        Raises:
            PayloadUnavailableError: ``activation_not_saved``, where only what ``SaveOptions`` made of it was kept;
                ``statistics_only``, where only statistics were.
        """
        return self.op.out

    @property
    def transformed_out(self) -> Any:
        """What ``SaveOptions`` made of it; None where it made nothing."""
        return self.op.transformed_out

    @property
    def stats(self) -> Statistics:
        """Statistics of it, as ``op.stats`` gives them."""
        return self.op.stats

    @staticmethod
    def of(op: Op) -> RecordedActivation:
        """What is told of an op of a trace."""
        read, ops = op.read, op.trace.table(op.table_name)
        module, is_buffer = read("module"), read("is_buffer")
        address = read("address") if is_buffer else ROOT if module is None else module.rpartition(":")[0]
        raw = ops.column("raw_label")
        return RecordedActivation(
            label=read("raw_label"),
            kind="input" if read("is_input") else "buffer" if is_buffer else "op",
            func_name=read("func_name"),
            layer_type=read("layer_type"),
            shape=read("shape"),
            dtype=torch_dtype(read("dtype")),
            address=address,
            module=module,
            modules=tuple(read("modules")),
            parents=tuple(raw[row] for row in read("parent_rows")),
            pass_index=read("pass_index"),
            event_index=read("event"),
            output_index=read("multi_output_index"),
            op=op,
        )


@attrs.frozen
class GradientsAsked:
    """Which gradients the backward passes of a recording keep."""

    save_grads: Any  # None where it was not given
    default_grad: bool | None  # in its place

    @property
    def standing(self) -> Any:
        """What is kept where a pass is not asked otherwise."""
        return bool(self.default_grad) if self.save_grads is None else self.save_grads

    def of_pass(self, save_grads: Any, default_grad: bool | None) -> Any:
        """What a pass keeps that is asked so; None for what stands."""
        return default_grad if save_grads is None and self.save_grads is None else save_grads


class Recording(Sequence[RecordedActivation]):
    """The kept activations of one forward, in the order in which they were made; made by ``tl.record``.

    ``recording[k]`` and ``recording[a:b]`` go by position, ``recording["relu_4_raw"]`` by the label that the op had
    while the model ran, or by the address of the module that returned it.

    Args:
        trace: The capture, of which nothing has been read.
        asked: What a backward pass keeps; None where none was asked for.
    """

    def __init__(self, trace: Trace, asked: GradientsAsked | None = None) -> None:
        self._trace = trace
        self._asked = asked
        self._held: tuple[int, tuple[RecordedActivation, ...]] | None = None

    # -- what was kept

    @property
    def records(self) -> tuple[RecordedActivation, ...]:
        """Every kept activation; an output has no record of its own, since the op that made it has."""
        head = self._trace.tables.head
        if self._held is None or self._held[0] != head:
            with collector.paused():
                self._held = (head, tuple(map(RecordedActivation.of, self._kept())))
        return self._held[1]

    def _kept(self) -> list[Op]:
        """The op behind each kept value, in order; those on islands too."""
        found: dict[int, Op] = {}
        for name, record in (("ops", Op), ("orphans", Orphan)):
            table = self._trace.table(name)
            payloads, made = table.column("payload_ref"), table.column("transformed_payload_ref")
            measured = table.column("has_stored_stats")
            outputs, values = table.column("is_output"), table.column("value")
            for row in range(len(table)):
                kept = payloads[row] is not None or made[row] is not None or measured[row]
                if kept and not outputs[row]:
                    found.setdefault(values[row], record(self._trace, row))
        return sorted(found.values(), key=lambda op: (op.read("event"), op.read("slot")))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RecordedActivation]:
        return iter(self.records)

    @overload
    def __getitem__(self, key: int | str) -> RecordedActivation: ...

    @overload
    def __getitem__(self, key: slice) -> list[RecordedActivation]: ...

    def __getitem__(self, key: int | str | slice) -> RecordedActivation | list[RecordedActivation]:
        """By position, slice, label while the model ran, or the address of a module that returned it.

        Raises:
            PayloadUnavailableError: ``activation_not_saved``, for an op that ran and was not selected.
            AmbiguousOpLookupError: ``ambiguous_record_lookup``, where the module returned several that were kept.
            LookupRefused: ``record_lookup_not_found``, ``record_lookup_index_out_of_range``.
        """
        records = self.records
        if isinstance(key, str):
            for record in records:
                if record.label == key:
                    return record
            return self._returned_by(key)
        if isinstance(key, slice):
            return list(sliced(records, key, "recorded activation"))
        return records[at_position(key, len(records), "recorded activation")]

    def _returned_by(self, key: str) -> RecordedActivation:
        """The only kept activation that the module at an address returned."""
        tables = self._trace.tables
        address = tables.aliases.get(key)
        returned = self._returned()
        found = [record for record in self.records if address in returned[record.op.read("value")]]
        if address is None:
            if any(key in self._trace.table(name).column("raw_label") for name in ("ops", "orphans")):
                raise not_saved(key)
            self._missing(key)
        if len(found) == 1:
            return found[0]
        if not found:
            raise PayloadUnavailableError(
                code="activation_not_saved",
                problem=f"nothing that module {key!r} returned was kept",
                remedy=f"record again with save={key!r}; by_address({key!r}) lists what was kept inside",
                label=key,
            )
        raise AmbiguousOpLookupError(
            code="ambiguous_record_lookup",
            problem=f"module {key!r} returned {len(found)} activations of this recording: "
            + listed([record.label for record in found]),
            remedy="ask for one by its label, or for all with by_address",
            key=key,
            candidates=tuple(record.label for record in found),
        )

    def _returned(self) -> Mapping[int, set[str]]:
        """Addresses of the modules that returned each value, under whichever op: a module may hand one on."""
        made: defaultdict[int, set[str]] = defaultdict(set)
        for name in ("ops", "orphans"):
            table = self._trace.table(name)
            for value, modules in zip(table.column("value"), table.column("output_of_modules"), strict=True):
                made[value].update(modules)
        return made

    def _missing(self, key: str) -> NoReturn:
        doors = ({record.label: () for record in self.records}, dict.fromkeys(self._trace.tables.aliases, ()))
        near = near_misses(key, doors)
        raise LookupRefused(
            code="record_lookup_not_found",
            problem=f"no op or module of this recording is called {key!r}",
            remedy=(f"did you mean {near[0]!r}? " if near else "")
            + "give a position, a label as .records tells them, or a module address; final labels come with to_trace()",
            key=key,
            suggestions=tuple(near),
        )

    def by_address(self, address: str) -> list[RecordedActivation]:
        """Those that ran in a module, modules inside it included, or that it returned; or the versions of a buffer.

        ``"self"`` gives those that ran in no submodule.

        Raises:
            LookupRefused: ``record_lookup_not_found``, where there is no such module or buffer.
        """
        tables = self._trace.tables
        found = [record for record in self.records if record.kind == "buffer" and record.address == address]
        module = tables.aliases.get(address)
        if module == ROOT:
            return [record for record in self.records if record.module is None and record.kind != "buffer"]
        if module is not None:
            returned = self._returned()
            return [
                record
                for record in self.records
                if module in returned[record.op.read("value")]
                or any(call.rpartition(":")[0] == module for call in record.modules)
            ]
        if not found and address not in tables.buffers.column("address"):
            self._missing(address)
        return found

    def by_pass(self, index: int) -> list[RecordedActivation]:
        """Those that are the same code for this time round, from 1."""
        return [record for record in self.records if record.pass_index == index]

    @property
    def n_records(self) -> int:
        """How many activations were kept."""
        return len(self)

    @property
    def n_passes(self) -> int:
        """How many times round the code went of which most was kept; 0 where nothing was."""
        return max((record.pass_index for record in self.records), default=0)

    # -- how it went

    @property
    def outcome(self) -> CaptureOutcome:
        """How the forward ended, in one record."""
        return self._trace.outcome

    @property
    def status(self) -> str:
        """``complete``, ``halted``, ``failed`` or ``interrupted``."""
        return self._trace.status

    @property
    def halted(self) -> bool:
        """Whether the forward was stopped on purpose."""
        return self._trace.halted

    @property
    def halt_reason(self) -> str | None:
        """Why it was stopped; None otherwise."""
        return self._trace.halt_reason

    @property
    def save_request(self) -> str:
        """What was asked to be kept, as text."""
        return self._trace.save_request

    @property
    def output(self) -> Any:
        """What the model returned; refused with ``output_not_stored`` where it did not."""
        return self._trace.output

    # -- reports

    def summary(self) -> SummaryText:
        """How many activations of which function were kept, how large they are, and how the forward ended, as text."""
        count: dict[str, list[int]] = {}
        for record in self.records:
            of_one = count.setdefault(record.layer_type, [0, 0])
            of_one[0] += 1
            of_one[1] += record.op.read("activation_memory") or 0
        width = max([4, *map(len, count)])
        lines = [printable(f"{self!r}, save={self.save_request}")]
        lines += [printable(f"  {name:<{width}}  {number:>5}  {Bytes(size)}") for name, (number, size) in count.items()]
        return SummaryText("\n".join(lines))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per kept activation; needs pandas."""
        records = self.records
        return frame_of({name: [getattr(record, name) for record in records] for name in COLUMNS}, len(records))

    # -- what it becomes

    def to_trace(self) -> Trace:
        """The trace of this forward, with final labels: what ``tl.trace`` with the same ``save=`` gives.

        It is one with the recording: whichever is cleaned up, both are.
        """
        self._trace.require_open()
        return self._trace

    # -- gradients

    def backward(
        self,
        loss: Any = MISSING,
        *,
        save_grads: Any = None,
        default_grad: bool | None = None,
        **torch_kwargs: Any,
    ) -> Recording:
        """Run ``loss.backward(**torch_kwargs)`` and record it as a backward pass; its gradients join ``grad_records``.

        Args:
            loss: A tensor made of ``output`` or of recorded activations.
            save_grads: Which gradients this pass keeps, as in ``CaptureOptions``; None leaves it at what ``tl.record``
                was given.
            default_grad: Whether it keeps all where neither says which; None likewise.
            torch_kwargs: ``gradient``, ``retain_graph``, ``create_graph`` and ``inputs``, as torch takes them.

        Returns:
            This recording.

        Raises:
            CaptureError: ``recording_backward_not_requested``, where ``tl.record`` was asked for no backward;
                ``recording_backward_halted`` and ``recording_backward_failed``, where the forward did not return.
            TorchLensError: What ``Trace.backward`` refuses.
        """
        self._trace.require_open()
        if self._asked is None:
            raise backward_not_requested()
        if self.halted:
            raise CaptureError(
                code="recording_backward_halted",
                problem="this forward was stopped on purpose, so it returned nothing to make a loss of",
                remedy="record without stop_after=; or backpropagate from an activation that was kept, "
                "recording.to_trace().backward(loss)",
            )
        if self._trace.is_partial:
            raise CaptureError(
                code="recording_backward_failed",
                problem=f"this forward did not return: it is {self.status}",
                remedy="mend what ended it, which recording.to_trace().failure tells, and record again",
                status=self.status,
            )
        if loss is MISSING:
            raise no_loss()
        require_switch("default_grad", default_grad)
        with told_where_cut(self._trace):
            self._trace.live_backwards().backward(
                loss,
                self._asked.of_pass(save_grads, default_grad),
                torch_kwargs,
                trigger="recording_backward",
            )
        return self

    @property
    def grad_records(self) -> GradientAccessor[GradientRecord]:
        """Kept gradients of ops, and what was added to those of parameters, kept or not (``.is_saved``), in the order
        in which they passed: ``trace.autograd.gradients`` of the trace that it becomes."""
        return self._trace.autograd.gradients

    def grad_by_label(self, label: str | int) -> list[GradientRecord]:
        """Those of what a name stands for, one for each time that a pass left one.

        Args:
            label: An op's label while the model ran, or its final one; the address of a parameter; a layer or a module,
                which stands for all that it returned; or the position of a recorded activation.

        Raises:
            LookupRefused: ``record_lookup_not_found``, ``record_lookup_index_out_of_range``.
        """
        if not isinstance(label, str):
            return list(gradients_read(self[label].op))
        for name in ("ops", "orphans"):
            labels = self._trace.table(name).column("raw_label")
            if label in labels:
                return [] if name == "orphans" else list(gradients_read(Op(self._trace, labels.index(label))))
        try:
            found = self._trace[label]
        except LookupRefused:
            self._missing(label)
        if isinstance(found, Param):
            return list(found.grads)
        return [record for row in op_rows_of(found) for record in gradients_read(Op(self._trace, row))]

    def grad_by_pass(self, number: int) -> list[GradientRecord]:
        """Those of one backward pass, from 1; refused with ``backward_pass_unknown`` where there was none."""
        return list(GradientAccessor(self._trace).in_pass(number))

    # -- its life

    def cleanup(self) -> None:
        """Let go of everything, the trace included. Twice is nothing."""
        self._trace.cleanup()
        self._held = None

    def __repr__(self) -> str:
        if self._trace.is_cleaned_up:
            return "<Recording, cleaned up>"
        return printable(f"<Recording {self._trace.trace_label}: {amount(len(self), 'activation')}, {self.status}>")
