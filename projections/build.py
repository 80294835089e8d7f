"""From a stream to its tables: the folds in order, memoised by head.

    tables = Projector(source).tables()
    tables.ops.column("label")

The folds advance together in one pass and go on where they stopped. What needs the whole prefix (islands,
layers, labels) is worked out from their states; the columns of the tables follow when they are read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import attrs

from projections.course import COURSE, Course
from projections.errors import over_events
from projections.fold import Fold, Folding, Source
from projections.forward import Forward
from projections.graph import GRAPH, Graph
from projections.keys import module_aliases, op_keys
from projections.labels import Names
from projections.layers import LAYERS, layer_count
from projections.modules import CALLS, MODULES
from projections.ops import OPS
from projections.retention import RETENTION, Kept
from projections.rows import settle
from projections.tables import Table
from projections.vocabulary import VOCABULARY, Vocabulary
from projections.weights import BUFFERS, PARAMS
from projections.whole import CAPTURE

FOLDS: Final[tuple[Fold[Any], ...]] = (VOCABULARY, COURSE, GRAPH, RETENTION)
"""The folds, in the order of their states."""


class CaptureTables:
    """Everything a user reads of one forward capture, at one head.

    Attributes:
        head: Number of events taken into account.
        ops, layers, modules, module_calls, params, buffers: The records, in order.
        orphans: Op rows that are on islands; in no other table.
        capture: One row of facts about the capture as a whole.
    """

    def __init__(self, forward: Forward, orphans: Forward) -> None:
        self.forward: Final = forward
        self.head: Final = forward.head
        self.ops = Table("ops", len(forward), OPS, forward)
        self.layers = Table("layers", layer_count(forward), LAYERS, forward)
        self.modules = Table("modules", len(forward.modules), MODULES, forward)
        self.module_calls = Table("module_calls", len(forward.calls), CALLS, forward)
        self.params = Table("params", len(forward.words.parameters), PARAMS, forward)
        self.buffers = Table("buffers", len(forward.words.buffers), BUFFERS, forward)
        self.orphans = Table("orphans", len(orphans), OPS, orphans)
        self.capture = Table("capture", 1, CAPTURE, forward)

    @cached_property
    def all(self) -> Mapping[str, Table[Forward]]:
        """Every table by name, in order."""
        tables = (
            self.ops,
            self.layers,
            self.modules,
            self.module_calls,
            self.params,
            self.buffers,
            self.orphans,
            self.capture,
        )
        return {table.name: table for table in tables}

    def table(self, name: str) -> Table[Forward]:
        """One table. A name that is none is a ``KeyError``."""
        return self.all[name]

    def fact(self, name: str) -> Any:
        """One fact about the capture as a whole."""
        return self.capture.value(name, 0)

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


class Projector:
    """The tables of one stream, at any head.

    Args:
        source: The stream.
    """

    def __init__(self, source: Source) -> None:
        self.source: Final = source
        self.lock: Final = threading.Lock()
        self.folding = Folding(FOLDS)
        self.built: CaptureTables | None = None

    def tables(self, at: int | None = None) -> CaptureTables:
        """The tables as they stand after the first ``at`` events, by default after all of them.

        Raises:
            JournalCorrupt: ``events_contradictory``, and what reading the events raises.
        """
        with self.lock, over_events():
            head = self.source.head()
            wanted = head if at is None else min(at, head)
            if self.built is not None and self.built.head == wanted:
                return self.built
            if wanted < self.folding.at:
                past = Folding(FOLDS)
                past.advance(self.source, wanted)
                return build(self.source, past)
            folding, self.folding = self.folding, Folding(FOLDS)
            folding.advance(self.source, wanted)
            # Only now: states that an exception left half way must not be folded further.
            self.folding = folding
            self.built = build(self.source, folding)
            return self.built


def build(source: Source, folding: Folding) -> CaptureTables:
    """The tables of the events folded so far."""
    words, course, graph, kept = folding.states
    assert isinstance(words, Vocabulary)
    assert isinstance(course, Course)
    assert isinstance(graph, Graph)
    assert isinstance(kept, Kept)
    rows, islands, calls = settle(graph)
    words = words.frozen()
    course = attrs.evolve(course)
    names = Names(words.func_names, graph.opaque.copy())
    values = (kept.by_value.copy(), graph.constants.copy())
    forward = Forward(source, folding.at, words, course, rows, calls, names, *values)
    orphans = Forward(source, folding.at, words, course, islands, calls, names, *values, orphaned=True)
    return CaptureTables(forward, orphans)
