"""One stream of a journal, read: its tables as of now, its payloads, its live tensors.

Records, collections and verbs read through this object alone. Its tables follow the stream: when
events were appended, the next read folds those and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from journal import Journal
from journal.errors import JournalError
from journal.events import Event, KeptTensor, Stamped, StreamId, StreamOpened, TransformKept, Trigger
from projections import CaptureTables, Projector, Table
from projections.errors import over_events
from projections.source.syntax import Syntax
from projections.stored.stripped import PayloadKind
from torchlens import collector
from torchlens.errors import (
    CompatibilityError,
    ConfigurationError,
    PayloadUnavailableError,
    RunCapabilityUnavailableError,
    TorchLensError,
    TraceCleanedUpError,
)
from torchlens.reading.lookup import Found, Index
from torchlens.reading.source import StreamSource

__all__ = ["LiveBackwards", "LiveTensors", "View", "no_loss", "not_saved", "require_trace", "statistics_only"]

T = TypeVar("T")


class LiveTensors(Protocol):
    """The live side of a capture, as reading needs it."""

    @property
    def outside(self) -> Mapping[int, Any]:
        """What the forward took from outside, by number; empty where that was not asked for."""
        ...

    def tensor(self, value: int) -> Any:
        """A connected copy of the value's tensor; None where it is not held."""
        ...

    def transformed(self, value: int) -> Any:
        """The same of what was made of the value before it was kept."""
        ...

    def copy(self, number: int) -> Any:
        """A copy of the tensor kept as this payload beside a call; None where it is not held."""
        ...

    def module(self, number: int) -> Any:
        """The module with this number; None once it is gone."""
        ...

    def parameter(self, number: int) -> Any:
        """The parameter with this number; None once it is gone."""
        ...

    def is_as_captured(self, number: int) -> bool:
        """Whether the parameter with this number is as the forward began with it, as far as can be seen."""
        ...

    def buffer_as_captured(self, number: int) -> Any:
        """The buffer with this number if it is as the forward began with it, as far as can be seen; None otherwise."""
        ...

    def is_buffer(self, number: int, tensor: Any) -> bool:
        """Whether a tensor has the elements of the buffer with this number; True where that cannot be told."""
        ...

    def buffer(self, number: int) -> Any:
        """The buffer with this number, as it is now; None once it is gone."""
        ...

    def function(self, number: int) -> Any:
        """The function with this number."""
        ...

    def node(self, number: int) -> Any:
        """The autograd node with this number; None where it is not held."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class LiveBackwards(Protocol):
    """The live side of a capture's backward passes, as reading needs it."""

    def readable(self) -> int | None:
        """How many events may be read now; None for all there are. Asked before each read of the tables.

        Outside the autograd engine a read shows that what ran before is over: the diary closes what is left open and
        says None. While the engine runs, nothing is closed, and what may be read ends where the outermost pass that is
        open was opened.
        """
        ...

    @property
    def is_disarmed(self) -> bool:
        """Whether passes were recorded, and are no more."""
        ...

    def disarm(self) -> None:
        """Close what is open and hear of no further pass. Twice is nothing."""
        ...

    def backward(
        self, loss: Any, save_grads: Any, torch_kwargs: Mapping[str, Any], *, trigger: Trigger = "backward"
    ) -> None:
        """Run ``loss.backward(**torch_kwargs)`` as a pass of the capture; see ``Trace.backward``."""
        ...

    def capture_backward(self, save_grads: Any) -> AbstractContextManager[None]:
        """A context in which runs of the engine are passes that were asked for; see ``Trace.capture_backward``."""
        ...


OF_RUN: Final = "is_of_run"
"""Stands among the options of a stream that tells a run."""


class Stored(Protocol):
    """The artifact that a trace was loaded from, as reading needs it."""

    @property
    def level(self) -> str:
        """The level that it was saved at."""
        ...

    @property
    def device(self) -> Any:
        """The device that tensors are put on; None for the CPU."""
        ...

    def keeps(self, kind: PayloadKind) -> bool:
        """Whether it holds the payloads of a kind that the capture kept."""
        ...

    def leaves_out(self, kind: type[Event]) -> bool:
        """Whether the capture had events of a kind, each of which told of a payload that it does not hold."""
        ...

    def placed(self, tensor: Any) -> Any:
        """A tensor that was read from it, on the device that was asked for."""
        ...

    def weights(self) -> Mapping[str, Any] | None:
        """The parameters and buffers that it holds, by address; None where it was saved without."""
        ...


class View(ABC):
    """A stream of a journal as tables, payloads and live tensors.

    Which class stands for a row is said above it, where the records are known.
    """

    @abstractmethod
    def record(self, table: str, row: int) -> Any:
        """The record that stands for a row."""

    @property
    @abstractmethod
    def records(self) -> Any:
        """What predicates of selectors are asked about: gives the record of an op row."""

    @abstractmethod
    def found(self, found: Found) -> Any:
        """What a lookup found, as the caller gets it."""

    def __init__(
        self,
        journal: Journal,
        stream: StreamId,
        handles: LiveTensors | None = None,
        *,
        projector: Projector | None = None,
    ) -> None:
        self.journal = journal
        self.stream = stream
        self.handles = handles
        self.backwards: LiveBackwards | None = None  # set by the side that writes backward passes, until cleanup
        self.projector: Projector | None = projector or Projector(StreamSource(journal, stream))
        self.artifact: Stored | None = None  # set by whoever loaded it from one
        self.indexed: tuple[CaptureTables, Index] | None = None
        self.given_state: Mapping[str, Any] | None = None  # parameters and buffers for ``run``, by name
        self.is_journal_closed = False  # with that it was cleaned up

    # -- tables

    @property
    def tables(self) -> CaptureTables:
        """The tables of everything the stream holds now; while the engine runs, of what it held before.

        Raises:
            TraceCleanedUpError: ``trace_cleaned_up``, after ``cleanup``.
        """
        if self.projector is None:
            raise TraceCleanedUpError(
                code="trace_cleaned_up",
                problem="the journal that this trace was read from was closed"
                if self.is_journal_closed
                else "this trace was cleaned up",
                remedy="read before close() and before its with block ends, or open it again with open_journal()"
                if self.is_journal_closed
                else "read before cleanup(), capture again, or open its journal with open_journal()",
            )
        stop = None if self.backwards is None else self.backwards.readable()
        built = self.projector.built
        if built is not None and built.head == (self.projector.source.head() if stop is None else stop):
            return built
        with collector.paused():
            return self.projector.tables(stop)

    def table(self, name: str) -> Table[Any]:
        """One table as it is now."""
        return self.tables.table(name)

    def read(self, column: str) -> Any:
        """One fact about the capture as a whole, as the table holds it."""
        return self.tables.fact(column)

    def index(self) -> Index:
        """The lookup keys of the tables as they are now."""
        tables = self.tables
        if self.indexed is None or self.indexed[0] is not tables:
            self.indexed = (tables, Index(tables))
        return self.indexed[1]

    def has_option(self, name: str) -> bool:
        """Whether a capture option was switched on."""
        return bool(dict(self.tables.fact("options")).get(name))

    @property
    def is_of_run(self) -> bool:
        """Whether it tells a run of a capture's recorded calls, and no capture."""
        return self.has_option(OF_RUN)

    # -- events

    @property
    def num_events(self) -> int:
        """Number of events that may be read now; while the engine runs, of those that were stored before."""
        self.require_open()
        assert self.projector is not None  # else it is not open
        limit = None if self.backwards is None else self.backwards.readable()
        head = self.projector.source.head()
        return head if limit is None else min(limit, head)

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Stamped]:
        """The stored facts, in order; while the engine runs, those that were stored before."""
        self.require_open()
        limit = None if self.backwards is None else self.backwards.readable()
        if limit is not None:
            stop = limit if stop is None else min(stop, limit)
        return self.journal.events(self.stream, start, stop)

    @property
    def opened(self) -> StreamOpened:
        """The stream's own first event: when, by which version and where it was written."""
        self.require_open()
        return self.journal.streams()[self.stream].opened

    def live_backwards(self) -> LiveBackwards:
        """What records backward passes.

        Raises:
            RunCapabilityUnavailableError: ``run_capability_unavailable``, for a trace that was read from a journal,
                and for the trace of a run.
        """
        self.require_open()
        if self.is_of_run:
            raise RunCapabilityUnavailableError(
                code="run_capability_unavailable",
                problem="this is the trace of a run, and backward passes are recorded of captures alone",
                remedy="call backward on what result.output holds, or capture the model with these inputs",
            )
        if self.backwards is None:
            raise RunCapabilityUnavailableError(
                code="run_capability_unavailable",
                problem=f"this trace was read from {'a journal' if self.artifact is None else 'an artifact'}, and the"
                " autograd graph lived with the capturing process",
                remedy="capture the model again, and run the backward there",
            )
        return self.backwards

    @property
    def is_disarmed(self) -> bool:
        """Whether backward passes of this capture were recorded, and are no more, though the trace is open."""
        return self.backwards is not None and self.backwards.is_disarmed

    def require_open(self) -> None:
        if self.projector is None:
            self.tables  # noqa: B018  # refuses

    def source_text(self, file: str, first_line: int, qualname: str) -> str | None:
        """The text of a function of the model as it was when it ran; None where it could not be read."""
        found = self.code_with_text(file, first_line, qualname)
        source = None if found is None else self.tables.forward.words.codes[found].source
        return None if source is None else bytes(self.journal.payload(self.stream, source)).decode(errors="replace")

    def syntax_of(self, file: str, first_line: int, qualname: str) -> Syntax | None:
        """What that text says; None where there is none, or it is not parsed (``projections.source.texts``)."""
        found = self.code_with_text(file, first_line, qualname)
        return None if found is None else self.tables.forward.texts.of(found)

    def code_with_text(self, file: str, first_line: int, qualname: str) -> int | None:
        """Number of the code of a function."""
        for number, code in enumerate(self.tables.forward.words.codes):
            if (code.file, code.first_line, code.qualname) == (file, first_line, qualname) and code.source is not None:
                return number
        return None

    # -- payloads

    def activation(self, row: int, table: str = "ops") -> Any:
        """The tensor of an op row as it was when the op returned.

        Live and connected to the autograd graph in the process that captured it, else from the stored bytes.

        Raises:
            PayloadUnavailableError: ``activation_not_saved``, when the capture kept neither; ``statistics_only``, when
                it kept statistics in its place; ``activation_not_stored``, when its process held the tensor alone;
                ``payload_unavailable``, when the artifact that the trace was loaded from keeps no activations.
        """
        ops = self.table(table)
        overwritten: PayloadUnavailableError | None = None
        if self.handles is not None:
            try:
                tensor = self.handles.tensor(ops.value("value", row))
            except PayloadUnavailableError as exc:
                overwritten = exc
            else:
                if tensor is not None:
                    return tensor
        ref = ops.value("payload_ref", row)
        if ref is None and overwritten is None and ops.value("has_stored_stats", row):
            raise statistics_only(ops.value("label", row))
        if ref is None:
            self.require_kept("activation", f"the activation of {ops.value('label', row)!r}")
            is_made = ops.value("transformed_payload_ref", row) is not None
            raise overwritten or not_saved(ops.value("label", row), is_made=is_made)
        try:
            return self.stored(ref, ops.value("dtype", row), ops.value("shape", row))
        except JournalError as exc:
            if exc.code != "payload_not_stored":
                raise
            raise overwritten or not_stored(ops.value("label", row)) from exc

    def transformed(self, row: int, table: str = "ops") -> Any:
        """What ``save=`` made of an op row's activation before it was kept; None where it made nothing.

        Raises:
            PayloadUnavailableError: ``activation_not_stored``, when the process that captured held the tensor alone;
                ``payload_unavailable``, when the capture made something of any, and the artifact keeps none of it.
        """
        ops = self.table(table)
        ref = ops.value("transformed_payload_ref", row)
        if ref is None:
            if self.artifact is not None and self.artifact.leaves_out(TransformKept):
                self.require_kept("transformed", f"what save= made of the activation of {ops.value('label', row)!r}")
            return None
        tensor = None if self.handles is None else self.handles.transformed(ops.value("value", row))
        if tensor is not None:
            return tensor
        try:
            return self.stored(ref, ops.value("transformed_out_dtype", row), ops.value("transformed_out_shape", row))
        except JournalError as exc:
            if exc.code != "payload_not_stored":
                raise
            raise not_stored(ops.value("label", row)) from exc

    def kept(self, kept: KeptTensor) -> Any:
        """A copy of a tensor that was kept beside a call.

        Raises:
            PayloadUnavailableError: ``argument_not_stored``, when the process that captured held it alone.
        """
        with over_events():
            ref, shape, dtype = kept
        held = None if self.handles is None else self.handles.copy(ref[0])
        if held is not None:
            return held
        try:
            return self.stored(ref, dtype, shape)
        except JournalError as exc:
            if exc.code != "payload_not_stored":
                raise
            raise PayloadUnavailableError(
                code="argument_not_stored",
                problem="this argument was held by the process that captured it, and its bytes are not here",
                remedy="capture with journal=, or copy a capture to disk before its cleanup()",
                payload=ref[0],
            ) from exc

    def gradient(self, row: int) -> Any:
        """The tensor of a row of the gradients.

        Raises:
            PayloadUnavailableError: ``gradient_not_saved``, when it was not kept; ``gradient_not_stored``, when the
                process that captured held it alone; ``payload_unavailable``, when the artifact keeps no gradients.
        """
        gradients = self.table("gradients")
        ref = gradients.value("payload_ref", row)
        if ref is None and gradients.value("has_stored_stats", row):
            raise statistics_only(f"the gradient of {gradients.value('owner', row)}")
        if ref is None:
            self.require_kept("gradient", f"the gradient of {gradients.value('owner', row)!r}")
            raise PayloadUnavailableError(
                code="gradient_not_saved",
                problem=f"the gradient of {gradients.value('owner', row)} in backward pass "
                f"{gradients.value('backward_pass_index', row)} was not kept",
                remedy="run the backward with save_grads=True; its shape and dtype are told in any case",
            )
        return self.kept_gradient((ref, gradients.value("shape", row), gradients.value("dtype", row)))

    def kept_gradient(self, kept: KeptTensor) -> Any:
        """A copy of a gradient that was kept.

        Raises:
            PayloadUnavailableError: ``gradient_not_stored``.
        """
        try:
            return self.kept(kept)
        except PayloadUnavailableError as exc:
            if exc.code != "argument_not_stored":
                raise
            raise PayloadUnavailableError(
                code="gradient_not_stored",
                problem="this gradient was held by the process that captured it, and its bytes are not here",
                remedy="capture with journal=, or copy a capture to disk before its cleanup()"
                if self.journal.path is None
                else "read it in that process; to have it in a journal, let it be dense there, as with"
                " Embedding(sparse=False): sparse, nested and quantised ones have no bytes to store",
                payload=kept[0][0],
            ) from exc

    def argument(self, table: str, row: int, place: int) -> Any:
        """A copy of one of the tensors that a call was given, as it was then.

        Args:
            table: Table of the call's row.
            row: The row.
            place: Which of its tensor arguments, from 0.

        Raises:
            PayloadUnavailableError: ``arguments_not_saved``, when the capture was not asked to keep them;
                ``payload_unavailable``, when the artifact keeps none.
        """
        told = self.table(table).value("arguments_event", row)
        with over_events():
            kept = None if told < 0 else self.event(told).tensors[place]
        if kept is None:
            label = self.table(table).value("label", row)
            self.require_kept("argument", f"what {label!r} was given")
            raise PayloadUnavailableError(
                code="arguments_not_saved",
                problem=f"what {label!r} was given was not kept",
                remedy="capture again with tl.CaptureOptions(save_arg_values=True)",
                label=label,
            )
        return self.kept(kept)

    def weights(self) -> Mapping[str, Any] | None:
        """Parameters and buffers by address: those of the live model, as they are now, or those that the artifact holds
        which the trace was loaded from, as they were when the capture began. None where they are not here."""
        self.require_open()
        if self.artifact is not None:
            return self.artifact.weights()
        if self.handles is None:
            return None
        words = self.tables.forward.words
        held = {
            row.address: self.handles.parameter(number)
            for number, row in enumerate(words.parameters[: words.registered])
        }
        held |= {row.address: self.handles.buffer(number) for number, row in enumerate(words.buffers)}
        return None if any(tensor is None for tensor in held.values()) else held

    def bytes_tensor(self, number: int) -> Any:
        """A payload as a tensor of bytes."""
        with over_events():
            data = self.journal.payload(self.stream, number)
        return self.tensor_in(data, "uint8", (len(data),), 0, None)

    def event(self, number: int) -> Any:
        """One stored fact, by its number."""
        return next(self.events(number, number + 1)).event

    def stored(self, ref: tuple[int, int, tuple[int, ...] | None], dtype: str, shape: tuple[int, ...]) -> Any:
        """A tensor of its own from the stored bytes that ``ref`` names."""
        with over_events():
            number, offset, strides = ref
            data = self.journal.payload(self.stream, number)
        return self.tensor_in(data, dtype, shape, offset, strides)

    def tensor_in(self, data: Any, *place: Any) -> Any:
        """A tensor of its own from bytes of a payload, which are given up; ``place`` is as for ``from_payload``."""
        try:
            from torchlens.tensors import from_payload  # for cost: the tables are read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        with over_events():
            made = from_payload(data, *place)
        return made if self.artifact is None else self.artifact.placed(made)

    def require_kept(self, kind: PayloadKind, what: str) -> None:
        """Refuse what the artifact that the trace was loaded from holds none of, whether or not the capture did.

        Raises:
            PayloadUnavailableError: ``payload_unavailable``.
        """
        if self.artifact is not None and not self.artifact.keeps(kind):
            raise PayloadUnavailableError(
                code="payload_unavailable",
                problem=f"{what} is not in this artifact, which was saved at level {self.artifact.level!r}",
                remedy="save the capture at a level that keeps it, or with the include_ option for it",
                level=self.artifact.level,
                kind=kind,
            )


def if_there(read: Callable[[], T]) -> T | None:
    """What reading a payload gives; None where it is not to be had: not kept, not stored, overwritten, lost or damaged.

    Without torch, and where the events contradict themselves, the refusal stands.
    """
    try:
        return read()
    except (PayloadUnavailableError, JournalError) as exc:
        if exc.code in ("events_contradictory", "torch_not_installed"):
            raise
        return None


def not_copied(what: str, path: str | None) -> TorchLensError:
    """The refusal to pickle or copy what reads from an open journal."""
    return CompatibilityError(
        code="trace_not_copied",
        problem=f"{what} reads from an open journal, so it cannot be pickled or copied",
        remedy="use it as it is; "
        + (
            f"in another process, tl.load({path!r}, capture=...) reads the same"
            if path
            else "trace.journal.copy_to(path) writes it to a journal, which tl.load(path) reads anywhere"
        ),
        path=path,
    )


def no_torch(missing: ModuleNotFoundError) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="torch_not_installed",
        problem=f"an activation is a tensor, and {missing.name} is not installed here",
        remedy="install it; everything but activations is read without",
        missing=missing.name,
    )


def not_stored(label: str) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="activation_not_stored",
        problem=f"the activation of {label!r} was held by the process that captured it, and its bytes are not here",
        remedy="capture with journal=, or copy a capture to disk before its cleanup()",
        label=label,
    )


def not_saved(label: str, *, is_made: bool = False) -> PayloadUnavailableError:
    return PayloadUnavailableError(
        code="activation_not_saved",
        problem=f"the activation of {label!r} was not kept" + (", only what was made of it" if is_made else ""),
        remedy="read .transformed_out, or capture again with SaveOptions(raw=True)"
        if is_made
        else f"capture again with a save= that matches it, such as save=tl.label({label!r}) or save='all'",
        label=label,
    )


def statistics_only(of: str) -> PayloadUnavailableError:
    """The refusal of a payload in whose place statistics were kept."""
    return PayloadUnavailableError(
        code="statistics_only",
        problem=f"of {of} statistics were kept, and not its elements",
        remedy="read .stats, or capture again with save= and save_grads= that name it without tl.stats_only()",
        label=of,
    )


def require_trace(given: object, code: str, asked: str) -> None:
    """Refuse what is no trace, where one is needed for what was ``asked``."""
    if not isinstance(given, View):
        raise ConfigurationError(
            code=code,
            problem=f"{asked} of {type(given).__name__!r} was asked for",
            remedy="give a Trace; a Recording becomes one by .to_trace()",
            received_type=type(given).__name__,
        )


def no_loss() -> ConfigurationError:
    """The refusal of a backward that was not told where to begin."""
    return ConfigurationError(
        code="loss_type_invalid",
        problem="a backward was asked for and no loss was given",
        remedy="pass the tensor that it begins at, made from the model's output: trace.backward(trace.output.sum())",
        received_type=None,
    )
