"""From a stream to its tables: the folds in order, memoised by head; and back to any moment of it.

    projector = Projector(source)
    projector.tables().ops.column("label")
    projector.at(1000).running  # the module calls that ran after 1000 events

The folds advance together in one pass and go on where they stopped. What needs the whole prefix (islands,
layers, labels) is worked out from their states; the columns of the tables follow when they are read. For
a moment in the past only the events behind the nearest snapshot are folded again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import attrs

from projections.columnar.tables import Maker, Table
from projections.columns import VERSIONS
from projections.errors import over_events
from projections.folds.asides import ASIDES, Asides
from projections.folds.backward import BACKWARD, Backward
from projections.folds.checkpoint import CHECKPOINTS, Checkpoints
from projections.folds.course import COURSE, Course
from projections.folds.fold import Fold, Folding, Source
from projections.folds.graph import GRAPH, Graph, without_row
from projections.folds.retention import RETENTION, Kept
from projections.folds.snapshots import SPACING, Snapshot, Snapshots
from projections.folds.vocabulary import VOCABULARY, Vocabulary
from projections.folds.window import Window
from projections.folds.witness import WITNESS, Witnessed
from projections.forward import Beside, Forward
from projections.records.absence import Reasons
from projections.records.bounds import require_bounded, require_writable
from projections.records.checkpoint_witness import CAPTURE as CHECKPOINTS_OF_CAPTURE
from projections.records.control import TABLE as CONDITIONALS
from projections.records.executed_columns import CAPTURE as EXECUTED_OF_CAPTURE
from projections.records.executed_columns import DISPATCHED_OPS
from projections.records.executed_columns import FIRES as EXECUTED_OF_FIRES
from projections.records.executed_columns import PASSES as EXECUTED_OF_PASSES
from projections.records.explanations import EXPLANATIONS
from projections.records.flow import Passed
from projections.records.grad_fn_calls import GRAD_FN_CALLS
from projections.records.grad_fns import GRAD_FNS
from projections.records.gradient_columns import GRADIENTS
from projections.records.health import CAPTURE as HEALTH
from projections.records.keys import module_aliases, op_keys
from projections.records.layers import LAYERS, layer_count
from projections.records.modules import CALLS, MODULES
from projections.records.ops import OPS
from projections.records.passes import CAPTURE as PASSES_OF_CAPTURE
from projections.records.passes import PASSES
from projections.records.saved import SAVED, Saved
from projections.records.weights import BUFFERS, PARAMS
from projections.records.whole import CAPTURE
from projections.structure.labels import Names
from projections.structure.rows import pairs, settle

FOLDS: Final[tuple[Fold[Any], ...]] = (
    VOCABULARY,
    COURSE,
    GRAPH,
    RETENTION,
    WITNESS,
    SAVED,
    ASIDES,
    BACKWARD,
    CHECKPOINTS,
)
"""The folds, in the order of their states."""


Context = TypeVar("Context")


def versioned(name: str, count: int, makers: Mapping[str, Maker[Context]], context: Context) -> Table[Context]:
    return Table(name, VERSIONS[name], count, makers, context)


class CaptureTables(ABC):
    """Everything a user reads of one forward capture, at one head, wherever its columns come from.

    Attributes:
        head: Number of events taken into account.
        ops, layers, modules, module_calls, params, buffers: The records, in order.
        orphans: Op rows that are on islands; in no other table.
        capture: One row of facts about the capture as a whole.
        backward_passes, grad_fns, grad_fn_calls, dispatched_ops: What backward passes did.
        has_diary: Whether the events of its backward passes can be read, and with them each operator that ran.
    """

    ops: Table[Forward]
    layers: Table[Table[Forward]]
    modules: Table[Forward]
    module_calls: Table[Forward]
    params: Table[Forward]
    buffers: Table[Forward]
    orphans: Table[Forward]
    capture: Table[Forward]
    backward_passes: Table[Forward]
    grad_fns: Table[Forward]
    grad_fn_calls: Table[Forward]
    dispatched_ops: Table[Forward]

    has_diary: bool

    def __init__(self, head: int) -> None:
        self.head = head
        self.last_explained: tuple[int, Table[Reasons]] | None = None

    @property
    @abstractmethod
    def forward(self) -> Forward:
        """What they are computed from."""

    @cached_property
    def conditionals(self) -> Table[Forward]:
        """What tests decided: found in the source text, when somebody asks."""
        with over_events():
            return versioned("conditionals", len(self.forward.conditionals), CONDITIONALS, self.forward)

    @cached_property
    def explanations(self) -> Table[Reasons]:
        """Why what has no gradient has none: found when somebody asks."""
        return self.explained(None)

    def explanations_of_pass(self, number: int) -> Table[Reasons]:
        """The same of one backward pass, from 0: why what has no gradient of it has none. The last one is kept."""
        known = self.last_explained
        if known is None or known[0] != number:
            self.last_explained = known = (number, self.explained(number))
        return known[1]

    @abstractmethod
    def explained(self, only: int | None) -> Table[Reasons]:
        """Why what has no gradient has none: of all backward passes, or of one, from 0."""

    @cached_property
    def gradients(self) -> Table[Forward]:
        """The gradients of ops and parameters: paired with their owners when somebody asks."""
        with over_events():
            count = len(self.forward.gradients) if self.forward.backward.payloads else 0
            return versioned("gradients", count, GRADIENTS, self.forward)

    @cached_property
    def all(self) -> Mapping[str, Table[Any]]:
        """Every table by name, in order."""
        tables: tuple[Table[Any], ...] = (
            self.ops,
            self.layers,
            self.modules,
            self.module_calls,
            self.params,
            self.buffers,
            self.conditionals,
            self.explanations,
            self.backward_passes,
            self.grad_fns,
            self.grad_fn_calls,
            self.dispatched_ops,
            self.gradients,
            self.orphans,
            self.capture,
        )
        return {table.name: table for table in tables}

    def table(self, name: str) -> Table[Any]:
        """One table. A name that is none is a ``KeyError``."""
        found: Table[Any] = self.__dict__[name] if name in self.__dict__ else self.all[name]
        return found

    def fact(self, name: str) -> Any:
        """One fact about the capture as a whole."""
        return self.capture.value(name, 0)

    @abstractmethod
    def require_writable(self) -> None:
        """Refuse to write them all out where that would take room out of all proportion to the events.

        Raises:
            JournalError: ``records_too_large``.
        """

    @property
    def kept(self) -> CaptureTables:
        """The tables of the ops that stay: these."""
        return self

    @property
    @abstractmethod
    def islands(self) -> Islands:
        """The ops that were left out, for questions about everything that ran."""

    @cached_property
    def keys(self) -> Mapping[str, tuple[int, ...]]:
        """Every text an op answers to, with the op rows it names."""
        with over_events():
            return op_keys(self.forward)

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Canonical address of every name of a module, its address included."""
        with over_events():
            return module_aliases(self.forward)


class FoldedTables(CaptureTables):
    """The tables of a capture whose events were folded.

    Args:
        forward: What they gave.
        orphans: The same of the ops on islands.
    """

    has_diary = True

    def __init__(self, forward: Forward, orphans: Forward) -> None:
        super().__init__(forward.head)
        self.made_of: Final = forward
        self.ops = versioned("ops", len(forward), OPS, forward)
        self.layers = versioned("layers", layer_count(forward), LAYERS, self.ops)
        self.modules = versioned("modules", len(forward.modules), MODULES, forward)
        self.module_calls = versioned("module_calls", len(forward.calls), CALLS, forward)
        self.params = versioned("params", len(forward.words.parameters), PARAMS, forward)
        self.buffers = versioned("buffers", len(forward.words.buffers), BUFFERS, forward)
        self.orphans = versioned("orphans", len(orphans), OPS, orphans)
        facts = CAPTURE | PASSES_OF_CAPTURE | EXECUTED_OF_CAPTURE | HEALTH | CHECKPOINTS_OF_CAPTURE
        self.capture = versioned("capture", 1, facts, forward)
        autograd = forward.autograd
        self.backward_passes = versioned("backward_passes", autograd.num_passes, PASSES | EXECUTED_OF_PASSES, forward)
        self.grad_fns = versioned("grad_fns", len(autograd), GRAD_FNS, forward)
        self.grad_fn_calls = versioned("grad_fn_calls", autograd.num_fires, GRAD_FN_CALLS | EXECUTED_OF_FIRES, forward)
        self.dispatched_ops = versioned("dispatched_ops", len(forward.executed), DISPATCHED_OPS, forward)

    @property
    def forward(self) -> Forward:
        return self.made_of

    def explained(self, only: int | None) -> Table[Reasons]:
        with over_events():
            reasons = Reasons(self.forward, self.orphans.context, Passed(self.forward, only))
            return versioned("explanations", len(reasons.absences), EXPLANATIONS, reasons)

    def require_writable(self) -> None:
        for table in (self.ops, self.orphans):
            with over_events():
                require_writable(table.context)

    @property
    def islands(self) -> Islands:
        return self.of_islands

    @cached_property
    def of_islands(self) -> Islands:
        return Islands(self, self.orphans)


class Islands:
    """The ops of a capture that are on islands, with the tables that questions about ops read.

    Args:
        kept: The tables of the ops that stay.
        ops: The op rows of the islands.
    """

    def __init__(self, kept: CaptureTables, ops: Table[Forward]) -> None:
        forward = ops.context
        self.kept: Final = kept
        self.ops: Final = ops
        self.forward: Final = forward
        self.layers = versioned("layers", 0, dict.fromkeys(LAYERS, no_cells), ops)  # islands are never numbered
        self.module_calls = versioned("module_calls", len(forward.calls), CALLS, forward)

    @property
    def islands(self) -> Islands:
        return self

    @property
    def aliases(self) -> Mapping[str, str]:
        return self.kept.aliases


def no_cells(ops: Table[Forward]) -> Sequence[Any]:
    return ()


class Moment:
    """A capture as it stood after its first ``head`` events: which rows and facts there were.

    Nothing here needs more than the events behind the nearest snapshot, save ``tables``.

    Attributes:
        head: Number of events taken into account.
        counts: Number of rows there were, by kind; ``ops`` are inputs, outputs, buffer versions and islands too.
        made: Places of the rows that the last event made, by kind, among those that ``counts`` counts; a kind of
            which it made none is left out.
    """

    def __init__(self, projector: Projector, snapshot: Snapshot, before: Snapshot) -> None:
        self.projector: Final = projector
        self.later: Final = projector.folding
        self.snapshot: Final = snapshot
        self.head: Final = snapshot.at
        self.counts: Final = counts_of(snapshot)
        self.made: Final = {
            kind: range(count, self.counts[kind])
            for kind, count in counts_of(before).items()
            if count < self.counts[kind]
        }

    @cached_property
    def facts(self) -> Course:
        """How the capture had gone."""
        course = COURSE.split.put_together(self.snapshot.heads[FOLDS.index(COURSE)], {})
        assert isinstance(course, Course)
        return course

    @property
    def running(self) -> tuple[int, ...]:
        """Module calls that were running, by number, outermost first."""
        values = self.snapshot.heads[FOLDS.index(GRAPH)]
        return tuple(values[GRAPH.split.head.index("stack")])

    def ops_in(self, tables: CaptureTables) -> int:
        """How many op rows of some later tables there were: the first so many.

        So a cursor over the events tells which rows of the tables at the head are there yet.
        """
        return bisect_left(tables.forward.rows.event, self.head)

    def calls_in(self, tables: CaptureTables) -> int:
        """How many module calls of some later tables had been entered: the first so many."""
        return bisect_left(tables.forward.calls.event, self.head)

    @cached_property
    def tables(self) -> CaptureTables:
        """The tables of the events up to here, as folding them gives.

        Raises:
            JournalCorrupt: ``events_contradictory``.
        """
        with over_events():
            return build(self.projector.source, self.head, self.states())

    def named_by(self, tables: CaptureTables) -> CaptureTables:
        """The tables of the events up to here, with the names that some later tables of the stream have for things.

        A row of ops, layers, module calls, passes or firings stands where it stands there, and has the label that it
        has there, whatever is known by now of what tells them apart.

        Raises:
            JournalCorrupt: ``events_contradictory``.
        """
        if tables.head == self.head:
            return tables
        with over_events():
            return build(self.projector.source, self.head, self.states(), tables.forward)

    def __repr__(self) -> str:
        return f"<Moment after {self.head} events: {self.counts['ops']} ops, {len(self.running)} module calls running>"

    def states(self) -> list[Any]:
        """The states of the folds, whole."""
        parts = zip(FOLDS, self.later.states, self.snapshot.heads, self.snapshot.lengths, strict=True)
        with self.projector.lock:  # the states it reads are folded on by whoever asks for later events
            return [fold.split.as_it_was(state, self.head, head, lengths) for fold, state, head, lengths in parts]


def counts_of(snapshot: Snapshot) -> dict[str, int]:
    made: dict[str, int] = {}
    for fold, lengths in zip(FOLDS, snapshot.lengths, strict=True):
        made |= fold.split.counts(lengths)
    return made


class Projector:
    """The tables of one stream, at any head.

    Args:
        source: The stream.
        spacing: Events between two snapshots.
    """

    def __init__(self, source: Source, *, spacing: int = SPACING) -> None:
        self.source: Final = source
        self.lock: Final = threading.Lock()
        self.folding = Folding(FOLDS)
        self.snapshots: Final = Snapshots(FOLDS, spacing)
        self.window: Window | None = None
        self.built: CaptureTables | None = None

    def tables(self, at: int | None = None) -> CaptureTables:
        """The tables as they stand after the first ``at`` events, by default after all of them.

        Raises:
            JournalCorrupt: ``events_contradictory``, and what reading the events raises.
        """
        with self.lock, over_events():
            head = self.source.head()
            wanted = head if at is None else max(0, min(at, head))
            if self.built is not None and self.built.head == wanted:
                return self.built
            if wanted >= self.folding.at:
                self.advance(wanted)
                self.built = build(self.source, wanted, self.folding.states)
                return self.built
            moment = self.moment(wanted)
        return moment.tables

    def at(self, at: int) -> Moment:
        """The capture as it stood after its first ``at`` events, after all of them where there are not so many.

        A stream is folded once up to there; from then on, what is asked about it costs the distance to the
        nearest snapshot, and next to the place that was asked about last, less.

        Raises:
            JournalCorrupt: ``events_contradictory``, and what reading the events raises.
        """
        with self.lock, over_events():
            wanted = max(0, min(at, self.source.head()))
            self.advance(wanted)
            return self.moment(wanted)

    def advance(self, wanted: int) -> None:
        """Have folded ``wanted`` events or more."""
        if wanted > self.folding.at:
            folding, self.folding = self.folding, Folding(FOLDS)
            self.snapshots.advance(folding, self.source, wanted)
            # Only now: states that an exception left half way must not be folded further.
            self.folding = folding

    def moment(self, at: int) -> Moment:
        """The moment after ``at`` events, which have been folded."""
        before = max(0, at - 1)
        window, self.window = self.window, None
        if window is None or window.later is not self.folding or window.start.at != self.snapshots.nearest(before):
            window = Window(FOLDS, self.snapshots.latest(before), self.folding)
        stop = min(self.folding.at, self.snapshots.following(before) or self.folding.at)
        last = window.snapshot(self.source, before, stop)
        moment = Moment(self, window.snapshot(self.source, at, stop), last)
        self.window = window
        return moment


def build(source: Source, head: int, states: Sequence[Any], later: Forward | None = None) -> CaptureTables:
    """The tables of the first ``head`` events, from what folding them gave.

    Args:
        source: The stream.
        head: Number of events.
        states: What folding them gave.
        later: The capture further on, by which things are named; None names them by these events alone.
    """
    words, course, graph, kept, seen, saved, asides, backward, checkpoints = states
    assert isinstance(words, Vocabulary)
    assert isinstance(course, Course)
    assert isinstance(graph, Graph)
    assert isinstance(kept, Kept)
    assert isinstance(seen, Witnessed)
    assert isinstance(saved, Saved)
    assert isinstance(asides, Asides)
    assert isinstance(backward, Backward)
    assert isinstance(checkpoints, Checkpoints)
    rows, islands, calls, island_calls = settle(graph, None if later is None else later.rows)
    words = words.frozen()
    course = attrs.evolve(course)
    names = Names(words.func_names, graph.opaque.copy())
    constants = (dict(pairs(graph.constants)), without_row(graph))
    payloads = (kept.by_value(), kept.made_by_value(), kept.measured_by_value())
    values = (*payloads, *constants, saved.by_node(), Beside.of(asides))
    backward = backward.frozen()
    forward = Forward(
        *(source, head, words, course, rows, calls, names),
        *values,
        witnessed=seen.frozen(),
        backward=backward,
        checkpoints=checkpoints.frozen(),
        later=later,
    )
    orphans = Forward(
        *(source, head, words, course, islands, island_calls, names),
        *values,
        orphaned=True,
        backward=backward,
        later=later,
    )
    for part in (forward, orphans):
        require_bounded(part)
    return FoldedTables(forward, orphans)
