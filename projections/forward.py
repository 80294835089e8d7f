"""What the tables of one capture are computed from: the folds' states at one head, and steps between them.

A ``Forward`` belongs to one head of one stream and never changes; what is expensive is worked out when
it is first asked for and then kept. The files of records/, which hold the columns, read nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, wraps
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, TypeVar

from journal.errors import TorchLensError
from journal.events import Frame, PayloadRef, Row, StreamOpened
from projections.autograd.arrivals import Arrivals
from projections.autograd.containment import Containment
from projections.autograd.executed import Executed
from projections.autograd.gradients import Gradients
from projections.autograd.inner_nodes import inner_nodes
from projections.autograd.nodes import Autograd
from projections.autograd.pairing import Pairing
from projections.columnar.arguments import is_tuple, text_of
from projections.columnar.packing import packed_bytes
from projections.columnar.sequences import SMALL, Classes, Ragged
from projections.folds.asides import Asides
from projections.folds.backward import Backward
from projections.folds.checkpoint import Checkpoints
from projections.folds.course import Course
from projections.folds.fold import Source
from projections.folds.graph import IDENTITY, INPUT, NOWHERE, OPAQUE, OUTPUT
from projections.folds.retention import Figures, Transformed, cell_of, plain_ref
from projections.folds.vocabulary import ClassFacts, Tensor, Vocabulary
from projections.folds.witness import Witnessed
from projections.source.sites import whole_frame
from projections.source.texts import Texts
from projections.structure.conditionals import Conditionals
from projections.structure.details import (
    ARGS,
    AUTOCAST,
    CONTAINER,
    DTYPE,
    DURATION,
    GRAD_NODE,
    INPUT_PATH,
    INPUTS,
    KWARGS,
    MODE,
    NOTHING,
    OUTPUTS,
    PATHS,
    PAYLOAD,
    RNG,
    SHAPE,
    UNKNOWN,
    WALL_TIME,
    WRITERS,
    WRITTEN,
    Brief,
    Detail,
    Details,
    detail_of,
    is_alias,
    shown,
    told_of,
)
from projections.structure.grouping import Groups, group
from projections.structure.labels import Labels, Names, label
from projections.structure.rows import Calls, Rows, is_buffer, is_op, pairs

SHOWING: Final = (OUTPUT, IDENTITY)
"""Kinds of row that show a value made elsewhere."""


class Beside(NamedTuple):
    """Events that tell what was kept beside the calls (folds/asides.py)."""

    arguments: dict[int, int]  # by event of the call
    generators: dict[int, int]  # likewise
    hooked: dict[int, int]  # by module call
    optimizer: int | None

    @staticmethod
    def of(asides: Asides) -> Beside:
        arguments, generators, hooked = asides.arguments, asides.generators, asides.hooked
        return Beside(dict(pairs(arguments)), dict(pairs(generators)), dict(pairs(hooked)), asides.optimizer)


def scanned(source: Source, head: int, events: Sequence[int]) -> Iterator[tuple[int, Row]]:
    """``Forward.scan``, for what a forward holds itself: its own method there would keep it alive."""
    position, count = 0, len(events)
    if not count:
        return
    at = events[0]
    for run in source.rows(at, head):
        stop = at + len(run)
        while position < count and events[position] < stop:
            yield position, run[events[position] - at]
            position += 1
        if position == count:
            return
        at = stop


class Forward:
    """One capture's forward at one head.

    Args:
        source: The stream, for what is read from single events.
        head: Number of events taken into account.
        words: Functions, sites, modules and tensors that the stream names by number.
        course: How the capture went.
        rows: Op rows; of the islands, for the table of orphans.
        calls: Module calls.
        names: Function names and layer types.
        payloads: Payloads kept after their value's own event, by value.
        transformed: What was made of a value's activation and kept, by value.
        measured: The statistics that were taken in place of a payload, by value.
        constants: Event of each value that is described by none of a row.
        without_row: Values that stood at no row when they came, each with the event that gave it one.
        saved: What each autograd node kept for the backward, by its number, or what of it did not tell.
        beside: What was kept beside the calls.
        orphaned: Whether the rows are the islands.
        witnessed: What ran beside and below the recorded calls.
        backward: What backward passes have told.
        checkpoints: What was witnessed of activation checkpoints.
        later: The same capture further on, which ops, layers and autograd nodes take their labels from; None where
            they are named by what is here.
    """

    def __init__(
        self,
        source: Source,
        head: int,
        words: Vocabulary,
        course: Course,
        rows: Rows,
        calls: Calls,
        names: Names,
        payloads: dict[int, PayloadRef],
        transformed: dict[int, Transformed],
        measured: dict[int, Figures | None],
        constants: dict[int, int],
        without_row: dict[int, int],
        saved: Mapping[int, tuple[tuple[int, int, int, int, str | None], ...] | str],
        beside: Beside,
        orphaned: bool = False,
        witnessed: Witnessed | None = None,
        backward: Backward | None = None,
        checkpoints: Checkpoints | None = None,
        later: Forward | None = None,
    ) -> None:
        self.source = source
        self.head = head
        self.words = words
        self.course = course
        self.rows = rows
        self.calls = calls
        self.names = names
        self.payloads = payloads
        self.transformed = transformed
        self.measured = measured
        self.constants = constants
        self.without_row = without_row
        self.saved = saved
        self.beside = beside
        self.orphaned = orphaned
        self.witnessed = witnessed or Witnessed()
        self._backward = backward or Backward()
        self.checkpoints = checkpoints or Checkpoints()
        self.later = later
        self.groups: Groups = (
            Groups(range(len(rows)), [1] * len(rows), [1] * len(rows), range(len(rows)))
            if orphaned
            else group(rows, calls.module, words.same_name)
        )

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Labels:
        """Islands are never numbered: their labels are the raw ones."""
        if not self.orphaned:
            if self.later is not None:
                return self.later.labels.first(len(self.groups.passes), len(self))
            return label(self.rows, self.groups, self.names)
        kinds = [self.names.layer_type(function) for function in self.rows.function]
        raw = self.raw_labels
        return Labels(raw, raw, kinds, [0] * len(raw), raw)

    def raw_label(self, row: int) -> str:
        """The label that is known while the forward runs: by value, or, for a row that only shows one, by row."""
        rows = self.rows
        function = rows.function[row]
        ordinal = rows.ordinal[row] if function in SHOWING else rows.value[row] + 1
        return f"{self.names.layer_type(function)}_{ordinal}_raw"

    @cached_property
    def raw_labels(self) -> list[str]:
        """``raw_label`` of every row."""
        return [self.raw_label(row) for row in range(len(self))]

    # -- source

    @cached_property
    def texts(self) -> Texts:
        """The text of the functions that were visited."""
        return Texts(self.source, self.words) if self.later is None else self.later.texts

    @cached_property
    def conditionals_or_refusal(self) -> Conditionals | TorchLensError:
        try:
            return Conditionals(self.rows, self.calls, self.words, self.texts)
        except TorchLensError as refused:  # once is enough: many columns will ask
            return refused

    @property
    def conditionals(self) -> Conditionals:
        """Which tests decided which arm."""
        found = self.conditionals_or_refusal
        if isinstance(found, TorchLensError):
            raise found
        return found

    @cached_property
    def conditional_ids(self) -> list[str]:
        """Their ids, by number."""
        return self.conditionals.ids(self.labels.layer, self.groups.layer)

    # -- edges

    @property
    def parents(self) -> Ragged[int]:
        return self.rows.parents

    @cached_property
    def children(self) -> Ragged[int]:
        """Rows made from each row, ascending, each once."""
        ends, items = self.rows.parents.ends, self.rows.parents.items
        count = len(self.rows)
        last_added = [NOWHERE] * count  # child last added to each row
        child_ends = [0] * (count + 1)  # first the number of children, one place on; then where they end
        edges: list[tuple[int, int]] = []
        start = 0
        for row in range(count):
            end = ends[row + 1]
            for parent in items[start:end]:
                if last_added[parent] != row:
                    last_added[parent] = row
                    child_ends[parent + 1] += 1
                    edges.append((parent, row))
            start = end
        for row in range(count):
            child_ends[row + 1] += child_ends[row]
        fill = child_ends.copy()
        children = [0] * len(edges)
        for parent, row in edges:
            children[fill[parent]] = row
            fill[parent] += 1
        return Ragged(children, child_ends)

    @cached_property
    def unique_parents(self) -> Ragged[int]:
        """Rows each row was made from, each once, in order of first use."""
        items: list[int] = []
        ends = [0]
        for parents in self.rows.parents:
            items += dict.fromkeys(parents) if len(parents) > 1 else parents
            ends.append(len(items))
        return Ragged(items, ends)

    def across(self, there: Ragged[int], back: Ragged[int]) -> list[tuple[int, ...]]:
        """Per op row what is reached by a step there and one back, itself left out, ascending."""
        ends, items = there.ends, there.items
        back_ends, back_items = back.ends, back.items
        is_only = [end - start == 1 for start, end in pairwise(back_ends)]
        made: list[tuple[int, ...]] = [()] * len(self)
        for row, (start, end) in enumerate(pairwise(ends)):
            if start == end or (end == start + 1 and is_only[items[start]]):
                continue
            found = {one for other in items[start:end] for one in back_items[back_ends[other] : back_ends[other + 1]]}
            found.discard(row)
            if found:
                made[row] = tuple(sorted(found))
        return made

    # -- roles

    @cached_property
    def is_op(self) -> list[bool]:
        return [is_op(function) for function in self.rows.function]

    def of_kind(self, *kinds: int) -> list[int]:
        """Rows of some kinds, ascending."""
        return [row for row, function in enumerate(self.rows.function) if function in kinds]

    @cached_property
    def input_rows(self) -> list[int]:
        return self.of_kind(INPUT)

    @cached_property
    def output_rows(self) -> list[int]:
        return self.of_kind(OUTPUT)

    @cached_property
    def steps(self) -> list[int]:
        """Running count of op executions."""
        steps: list[int] = []
        step = 0
        for function in self.rows.function:
            if function >= 0 or function <= IDENTITY:
                step += 1
                steps.append(step)
            else:
                steps.append(step if function == OUTPUT else 0)
        return steps

    # -- modules

    @cached_property
    def call_labels(self) -> list[str]:
        paths: dict[int, str] = {}
        counts: dict[int, int] = {}
        labels: list[str] = []
        for module in self.calls.module:
            path = paths.get(module)
            if path is None:
                path = paths[module] = self.words.module_path(module)
            index = counts[module] = counts.get(module, 0) + 1
            labels.append(f"{path}:{index}")
        return labels

    @cached_property
    def call_paths(self) -> list[tuple[int, ...]]:
        """Enclosing calls of each call, outermost first, itself last; without the root's."""
        paths: list[tuple[int, ...]] = []
        for call, parent in enumerate(self.calls.parent):
            outer = paths[parent] if parent > 0 else ()
            paths.append((*outer, call) if call else ())
        return paths

    @cached_property
    def label_paths(self) -> list[tuple[str, ...]]:
        labels = self.call_labels
        return [tuple([labels[call] for call in path]) for path in self.call_paths]

    @cached_property
    def own_rows(self) -> list[list[int]]:
        """Op rows that ran directly in each call."""
        made: list[list[int]] = [[] for _ in range(len(self.calls))]
        if made:
            for row, call in enumerate(self.rows.call):
                made[call].append(row)
        return made

    @cached_property
    def inner_calls(self) -> list[list[int]]:
        """Calls made directly in each call, in order of entry."""
        made: list[list[int]] = [[] for _ in range(len(self.calls))]
        for call, parent in enumerate(self.calls.parent):
            if parent >= 0:
                made[parent].append(call)
        return made

    @cached_property
    def known(self) -> Known:
        """What was found once of single calls and modules, for the many columns that ask for it."""
        return Known(16 * (len(self) + len(self.calls) + len(self.words.modules) + len(self.words.parameters)) + SMALL)

    def descendants(self, call: int) -> list[int]:
        """Calls inside a call, at any depth, in order of entry."""
        found: list[int] = []
        stack = [call]
        while stack:
            inner = self.inner_calls[stack.pop()]
            found += inner
            stack += inner
        found.sort()
        return found

    def rows_inside(self, call: int) -> Sequence[int]:
        """Op rows in a call, at any depth, ascending."""
        return rows_inside(self, call)

    def input_rows_of(self, call: int) -> list[int]:
        """Op rows whose values a call was given, each once; for the root's call the inputs."""
        if call == 0:
            return self.input_rows
        return [row for row in dict.fromkeys(self.calls.inputs[call]) if row >= 0]

    def output_rows_of(self, call: int) -> list[int]:
        """Op rows whose values a call returned, each once; for the root's call the outputs."""
        if call == 0:
            return self.output_rows
        return [row for row in dict.fromkeys(self.calls.outputs[call]) if row >= 0]

    @cached_property
    def entered_calls(self) -> list[tuple[int, ...]]:
        """Per op row the calls its value was given to, in order of entry; the root's is left out."""
        return self.by_row(self.input_rows_of, range(1, len(self.calls)))

    @cached_property
    def left_calls(self) -> list[tuple[int, ...]]:
        """Per op row the calls that returned its value, inner ones first; the root's is left out."""
        left = self.calls.left
        order = sorted((left[call][0], call) for call in range(1, len(self.calls)) if left[call][0] >= 0)
        return self.by_row(self.output_rows_of, [call for _, call in order])

    def by_row(self, rows_of: Callable[[int], list[int]], calls: Iterable[int]) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        if not self.orphaned:
            for call in calls:
                for row in rows_of(call):
                    found.setdefault(row, []).append(call)
        return [tuple(found.get(row, ())) for row in range(len(self))]

    @cached_property
    def atomic_calls(self) -> dict[int, int]:
        """The call of a module without inner calls, by the one op that ran in it."""
        found: dict[int, int] = {}
        for call, inner in enumerate(self.inner_calls):
            if not inner and not self.orphaned:
                ops = [row for row in self.own_rows[call] if self.is_op[row]]
                if len(ops) == 1 and call:
                    found[ops[0]] = call
        return found

    @cached_property
    def call_sizes(self) -> list[int]:
        """Number of calls inside each call, at any depth."""
        made = [0] * len(self.calls)
        for call in range(len(made) - 1, 0, -1):
            parent = self.calls.parent[call]
            if parent >= 0:
                made[parent] += made[call] + 1
        return made

    @cached_property
    def call_heights(self) -> list[int]:
        """Levels of calls inside each call."""
        made = [0] * len(self.calls)
        for call in range(len(made) - 1, 0, -1):
            parent = self.calls.parent[call]
            if parent >= 0:
                made[parent] = max(made[parent], made[call] + 1)
        return made

    def enclosing(self, call: int) -> Iterator[int]:
        """Calls around a call, innermost first, the root's included."""
        outer = self.calls.parent[call]
        while outer >= 0:
            yield outer
            outer = self.calls.parent[outer]

    @cached_property
    def module_rows(self) -> dict[int, int]:
        """Row in the table of modules by module number."""
        return {module: row for row, module in enumerate(self.modules)}

    @cached_property
    def class_facts(self) -> dict[int, ClassFacts]:
        """What the source says of the class of a module, by number; only what the request asked for is told."""
        return {module: facts for facts in reversed(self.words.classes) for module in facts.modules}

    def frames_at(self, at: int | None) -> tuple[Frame, ...]:
        """The places that an event of its own tells of; none where there is no such event."""
        if at is None:
            return ()
        told = self.source.row(at)[-1]
        is_one = bool(told) and not is_tuple(told[0])
        return tuple([whole_frame(frame) for frame in ((told,) if is_one else told)])

    @cached_property
    def module_children(self) -> dict[int, list[int]]:
        """Modules right below a module by name, by number."""
        made: dict[int, list[int]] = {}
        for number, module in enumerate(self.words.modules):
            if module.parent is not None:
                made.setdefault(module.parent, []).append(number)
        return made

    @cached_property
    def params_in(self) -> dict[int, list[int]]:
        """Parameters that each module holds itself, by number."""
        made: dict[int, list[int]] = {}
        for number, parameter in enumerate(self.words.parameters):
            made.setdefault(parameter.module, []).append(number)
        return made

    @cached_property
    def modules(self) -> list[int]:
        """Numbers of the modules, those that were called first, in order of their first call."""
        return list(dict.fromkeys((*self.calls.module, *range(len(self.words.modules)))))

    @cached_property
    def calls_of(self) -> dict[int, list[int]]:
        """Calls of each module that was called."""
        made: dict[int, list[int]] = {}
        for call, module in enumerate(self.calls.module):
            made.setdefault(module, []).append(call)
        return made

    # -- layers, parameters, buffers

    @cached_property
    def layer_ops(self) -> Ragged[int]:
        """Op rows of each layer, by pass."""
        ends = [0]
        for count in self.groups.passes:
            ends.append(ends[-1] + count)
        items = [0] * len(self)
        for row, (layer, index) in enumerate(zip(self.groups.layer, self.groups.pass_index, strict=True)):
            items[ends[layer] + index - 1] = row
        return Ragged(items, ends)

    def near_layers(self, near: Ragged[int]) -> list[tuple[int, ...]]:
        """Per op row the layers of the rows near it, each once, in first-seen order; equal tuples are one object."""
        layer, ends = self.groups.layer, near.ends
        layers = list(map(layer.__getitem__, near.items))
        alone = [(number,) for number in range(len(self.groups.passes))]
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        made: list[tuple[int, ...]] = []
        for start, end in pairwise(ends):
            if end == start + 1:
                made.append(alone[layers[start]])
            else:
                found = tuple(dict.fromkeys(layers[start:end]))
                made.append(known.setdefault(found, found))
        return made

    @cached_property
    def near_parents(self) -> list[tuple[int, ...]]:
        """Per op row the layers of its parents."""
        return self.near_layers(self.rows.parents)

    @cached_property
    def near_children(self) -> list[tuple[int, ...]]:
        """Per op row the layers of its children."""
        return self.near_layers(self.children)

    def over_passes(self, near: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Per layer, what is near one of its passes."""
        made: list[tuple[int, ...]] = []
        for rows in self.layer_ops:
            passes = dict.fromkeys([near[row] for row in rows])
            made.append(next(iter(passes)) if len(passes) == 1 else tuple(dict.fromkeys(chain.from_iterable(passes))))
        return made

    @cached_property
    def layer_parents(self) -> list[tuple[int, ...]]:
        """Layers one edge before each layer, over passes, in first-seen order."""
        return self.over_passes(self.near_parents)

    @cached_property
    def layer_children(self) -> list[tuple[int, ...]]:
        """Layers one edge behind each layer, over passes, in first-seen order."""
        return self.over_passes(self.near_children)

    @cached_property
    def layer_siblings(self) -> list[tuple[int, ...]]:
        """Other children of each layer's parents, ascending."""
        return beside(self.layer_parents, self.layer_children)

    @cached_property
    def layer_co_parents(self) -> list[tuple[int, ...]]:
        """Other parents of each layer's children, ascending."""
        return beside(self.layer_children, self.layer_parents)

    @cached_property
    def params_of(self) -> dict[int, list[int]]:
        """Parameter numbers that each op used, once per use."""
        made: dict[int, list[int]] = {}
        for row, number in pairs(self.rows.uses):
            made.setdefault(row, []).append(number)
        return made

    @cached_property
    def own_params(self) -> dict[int, tuple[int, ...]]:
        """Parameter numbers of each op that used any, each once."""
        return {row: tuple(dict.fromkeys(numbers)) for row, numbers in self.params_of.items()}

    @cached_property
    def layer_params(self) -> dict[int, tuple[int, ...]]:
        """Parameter numbers of each layer whose passes used any, each once, in order of use."""
        made: dict[int, tuple[int, ...]] = {}
        for row, numbers in sorted(self.own_params.items()):
            layer = self.groups.layer[row]
            before = made.get(layer, ())
            made[layer] = before if set(numbers) <= set(before) else tuple(dict.fromkeys((*before, *numbers)))
        return made

    @cached_property
    def ops_using(self) -> dict[int, list[int]]:
        """Op rows that used each parameter, once per use."""
        made: dict[int, list[int]] = {}
        for row, number in pairs(self.rows.uses):
            made.setdefault(number, []).append(row)
        return made

    @cached_property
    def versions_of(self) -> dict[int, list[int]]:
        """Op rows of the versions of each buffer that was seen."""
        made: dict[int, list[int]] = {}
        for row, function in enumerate(self.rows.function):
            if is_buffer(function):
                made.setdefault(self.rows.site[row], []).append(row)
        return made

    def buffer_address(self, number: int) -> str:
        """Address of a buffer, also where the stream does not describe it."""
        buffers = self.words.buffers
        return buffers[number].address if number < len(buffers) else f"~{number}"

    def is_opaque(self, function: int) -> bool:
        """Whether what happened inside a function was not watched."""
        return self.words.func_opaque[function] is not None if function >= 0 else function <= OPAQUE

    # -- values

    def has_row(self, value: int, at: int) -> bool:
        """Whether a value stood at a row when an event came: a parameter did not, nor most constants."""
        return value >= 0 and self.without_row.get(value, NOWHERE) < at

    @cached_property
    def value_rows(self) -> dict[int, int]:
        """The row that made each value."""
        made: dict[int, int] = {}
        for row, value in enumerate(self.rows.value):
            made.setdefault(value, row)
        return made

    def brief_of(self, value: int) -> Brief:
        """What is known of a value."""
        row = self.value_rows.get(value)
        if row is not None:
            return self.detail(row).brief
        at = self.constants.get(value)
        return NOTHING if at is None else detail_of(self.source.row(at), NOWHERE, 0, self.names).brief

    @cached_property
    def brief_classes(self) -> Classes:
        """Rows of equal briefs."""
        return Classes.by(list(map(id, self.details.briefs)))  # equal ones are one object

    @cached_property
    def input_classes(self) -> Classes:
        """Rows whose parents have equal briefs, use by use."""
        ends, items = self.rows.parents.ends, self.rows.parents.items
        briefs = list(map(self.brief_classes.of.__getitem__, items))
        return Classes.by([tuple(briefs[start:end]) for start, end in pairwise(ends)])

    @cached_property
    def function_classes(self) -> Classes:
        """Rows of one function or kind."""
        return Classes.by(self.rows.function)

    @cached_property
    def layer_classes(self) -> Classes:
        """Rows of one layer."""
        return Classes(self.groups.layer, self.groups.first)

    @cached_property
    def call_classes(self) -> Classes:
        """Rows that ran in one module call."""
        return Classes.by(self.rows.call)

    @cached_property
    def site_classes(self) -> Classes:
        """Calls from one site in one module call; rows that are no call are of one class."""
        rows = self.rows
        keys = zip(rows.function, rows.call, rows.site, strict=True)
        return Classes.by([NOWHERE if function < 0 else (call, site) for function, call, site in keys])

    @cached_property
    def param_classes(self) -> Classes:
        """Rows that used the same parameters."""
        used = self.own_params
        return Classes.by([used.get(row, ()) for row in range(len(self))])

    @cached_property
    def given(self) -> tuple[Classes, list[Row | None]]:
        """Calls that were given equal things and returned equal things, and an event of each class.

        Equal are function, arguments, keywords and the structure of the result; of tensors what their briefs say,
        whether they are among the parents, and which are one value; of several results the shapes of all. Rows that
        are no call are of one class, without an event.
        """
        rows = self.rows
        kinds: list[Hashable] = [*map(told_of_parameter, self.words.parameters)]
        own = [row for row, function in enumerate(rows.function) if function >= 0]
        keys: list[Hashable] = [None] * len(rows)
        briefs = self.brief_classes.of
        by_value: dict[int, Hashable] = dict(zip(reversed(rows.value), reversed(briefs), strict=True))
        events: dict[Hashable, Row] = {}
        beside_first: dict[Hashable, int] = {}  # what is told of several results, by number
        told, others = NOWHERE, NOWHERE  # the event, and its number of those
        for position, event in self.scan([rows.event[row] for row in own]):
            row = own[position]
            inputs: tuple[int, ...] = event[INPUTS]
            writers = event[WRITERS]
            tensors: list[Hashable] = []
            values: list[int] = []
            for place, number in enumerate(inputs):
                writer = None if writers is None else writers[place]
                value = number if writer is None else writer
                values.append(value)
                if number >= 0 and number not in by_value:
                    by_value[number] = self.brief_of(number)
                seen = kinds[-1 - number] if number < 0 else by_value[number]
                tensors.append(seen if self.has_row(value, rows.event[row]) else (seen,))
            if len(set(values)) < len(values):
                tensors.append(tuple(map(values.index, values)))
            # As bytes, since templates of 1, 1.0 and True are equal and mean three things.
            template = exactly((event[ARGS], event[KWARGS], event[CONTAINER]))
            if rows.event[row] != told:
                told, others = rows.event[row], beside_first.setdefault(told_of_others(event), len(beside_first))
            keys[row] = key = (rows.function[row], template, briefs[row], tuple(tensors), others)
            events.setdefault(key, event)
        classes = Classes.by(keys)
        return classes, [events.get(keys[row]) for row in classes.first]

    @cached_property
    def output_paths(self) -> Sequence[tuple[Any, ...]]:
        """Where each returned tensor sits; for a halted forward its place among the frontier's tensors."""
        at = self.course.ended_at
        if at is None or self.course.status not in ("complete", "halted"):
            return ()
        ending = self.source.row(at)
        if self.course.status == "complete":
            return [tuple(path) for path in ending[PATHS]]
        count = len(ending[-1])
        return [()] if count == 1 else [(index,) for index in range(count)]

    def nbytes(self, row: int) -> int:
        """Bytes of a row's value, 0 where they are not known."""
        details = self.__dict__.get("details")
        brief = self.detail(row).brief if details is None else details.briefs[row]
        return brief.nbytes or 0

    def duration_ns(self, row: int) -> int:
        """Time inside the original call."""
        details = self.__dict__.get("details")
        return self.detail(row).duration_ns if details is None else details.durations[row]

    # -- backward passes

    @property
    def backward(self) -> Backward:
        """What backward passes have told."""
        return self._backward

    @cached_property
    def autograd(self) -> Autograd:
        """Autograd's graph, as far as passes told it."""
        told = self.backward
        later = self.later if told.numbers else None  # what there is no node of needs no names from there
        return Autograd(self.source, told, None if later is None else later.autograd)

    @cached_property
    def pairing(self) -> Pairing:
        """Which op each node of that differentiates."""
        return Pairing(self.autograd, self.rows, self.details, self.words.parameters)

    @cached_property
    def inner_of(self) -> list[int]:
        """By node, the op whose call made it, where the results of that stand at other nodes; NOWHERE for others."""
        return inner_nodes(self.pairing, first_results(self, 0), self.saw_arguments)

    def charged_op(self, node: int) -> int:
        """The op that the work of a node is charged to: that which it differentiates, alone or as an inner node."""
        op = self.pairing.op_of[node]
        return self.inner_of[node] if op == NOWHERE else op

    def saw_arguments(self, row: int) -> bool:
        """Whether it was seen of all that was given to a call how it was made."""
        ((_, event),) = self.scan([self.rows.event[row]])
        rows, leaves = self.value_rows, self.autograd.leaves
        return all(value < 0 or value in rows or value in leaves for value in event[INPUTS])

    @cached_property
    def containment(self) -> Containment:
        """In which modules each node belongs."""
        return Containment(self.pairing, self.calls, self.words.modules)

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients of op rows and parameters."""
        return Gradients(self.pairing)

    @cached_property
    def executed(self) -> Executed:
        """The operators that ran in backward passes."""
        return Executed(self.autograd, partial(scanned, self.source, self.head))

    @cached_property
    def arrivals(self) -> Arrivals:
        """Where gradients came, kept or not."""
        return Arrivals(self.pairing, partial(scanned, self.source, self.head))

    @cached_property
    def epoch_ns(self) -> int | None:
        """What the time of an event is short of the time since the epoch; None where the stream has no header."""
        opened = self.source.row(0) if self.head else None
        if opened is None or opened[0] != StreamOpened.type_id:
            return None
        return int(opened[WALL_TIME]) - int(opened[1])

    def timestamp(self, time_ns: int) -> float | None:
        """Seconds since the epoch of the time of an event."""
        return None if self.epoch_ns is None else (time_ns + self.epoch_ns) / 1e9

    # -- larger fields, read from the events

    def scan(self, events: Sequence[int]) -> Iterator[tuple[int, Row]]:
        """Position and row of each of some events, given ascending, in one pass over the stream."""
        return scanned(self.source, self.head, events)

    def origin(self, row: int) -> int:
        """The row whose value a row shows: outputs and ``identity`` rows show that of their parent."""
        return self.origins.get(row, row)

    @cached_property
    def origins(self) -> dict[int, int]:
        """``origin`` of each row that shows another's value; a row stands behind its parents."""
        made: dict[int, int] = {}
        parents, value = self.rows.parents, self.rows.value
        for row in self.of_kind(*SHOWING):
            if parents.length(row) and value[row] not in self.constants:
                parent = parents.items[parents.ends[row]]
                made[row] = made.get(parent, parent)
        return made

    def described_at(self, row: int) -> int:
        """The event that describes the value of a row, NOWHERE if there is none. Takes an origin."""
        rows = self.rows
        if rows.function[row] in SHOWING:  # it shows a constant
            return self.constants.get(rows.value[row], NOWHERE)
        return rows.event[row]

    def detail(self, row: int) -> Detail:
        """What the events say of one row."""
        if "details" in self.__dict__:  # read already, in one pass
            return self.details[row]
        rows = self.rows
        origin = self.origin(row)
        at = self.described_at(origin)
        if at == NOWHERE:
            return UNKNOWN
        found = detail_of(self.source.row(at), rows.function[origin], rows.slot[origin], self.names)
        return found if origin == row else shown(found)

    @cached_property
    def details(self) -> Details:
        """``detail`` of every row, in one pass over the stream."""
        rows = self.rows
        made = Details(len(rows))
        own: list[tuple[int, int]] = []
        showing: list[int] = []
        for row, function in enumerate(rows.function):
            if function in SHOWING:
                showing.append(row)
            else:
                own.append((rows.event[row], row))
        constants = [(self.described_at(row), row) for row in showing if self.origin(row) == row]
        own = sorted([*own, *[(at, row) for at, row in constants if at != NOWHERE]])
        known: dict[Hashable, Brief] = {}
        for position, event in self.scan([at for at, _ in own]):
            row = own[position][1]
            function = rows.function[row]
            if function < 0:
                made[row] = detail_of(event, function, rows.slot[row], self.names)
                continue
            given = event[OUTPUTS][rows.slot[row]]
            key = (function, event[MODE], event[AUTOCAST], event[WRITTEN], is_alias(given), told_of(given))
            brief = known.get(key)
            if brief is None:
                detail = detail_of(event, function, rows.slot[row], self.names)
                made[row] = detail
                known[key] = made.briefs[row]
                continue
            made.briefs[row] = brief
            made.durations[row] = event[DURATION]
            made.nodes[row] = given[GRAD_NODE]
            payload = given[PAYLOAD]
            if payload is not None:
                made.payloads[row] = plain_ref(payload)
            if event[RNG] is not None:
                made.rngs[row] = event[RNG]
        for row in showing:
            origin = self.origin(row)
            if origin != row:
                made[row] = shown(made[origin])
        return made

    def payload(self, row: int) -> PayloadRef | None:
        """Where the payload of a row's value is."""
        later = self.payloads.get(self.rows.value[self.origin(row)])
        return self.detail(row).payload if later is None else later

    def transformed_of(self, row: int) -> Transformed | None:
        """What was made of a row's value and kept; None where nothing was."""
        return self.transformed.get(self.rows.value[self.origin(row)])

    def is_measured(self, row: int) -> bool:
        """Whether statistics of a row's value were to be taken in place of its payload."""
        return self.rows.value[self.origin(row)] in self.measured

    def figures_of(self, row: int) -> tuple[Any, ...] | None:
        """The statistics that were taken of a row's value, as a cell; None where none were, or they could not be."""
        return cell_of(self.measured.get(self.rows.value[self.origin(row)]))

    @cached_property
    def payload_refs(self) -> list[PayloadRef | None]:
        """Where the payload of each row's value is."""
        self.details  # noqa: B018  # one pass for all rows instead of one read each
        return [self.payload(row) for row in range(len(self))]

    @cached_property
    def io_roles(self) -> list[str | None]:
        """Where inputs and outputs sit: ``input.x``, ``output.b.0``."""
        rows = self.rows
        made: list[str | None] = [None] * len(rows)
        inputs = self.input_rows
        for position, event in self.scan([rows.event[row] for row in inputs]):
            made[inputs[position]] = ".".join(("input", *map(part_text, event[INPUT_PATH])))
        for row in self.output_rows:
            made[row] = ".".join(("output", *map(part_text, self.output_paths[rows.slot[row]])))
        return made


class Known:
    """Sequences found once, as long as they are not many items in all.

    Args:
        most: Items that are held; what is found beyond them is found again when it is asked for.
    """

    __slots__ = ("found", "left")

    def __init__(self, most: int) -> None:
        self.left = most
        self.found: dict[tuple[object, int], Any] = {}


Found = TypeVar("Found", bound=Sequence[Any])


def once(find: Callable[[Forward, int], Found]) -> Callable[[Forward, int], Found]:
    """A function of one number that a forward remembers, within bounds."""

    @wraps(find)
    def remembered(forward: Forward, number: int) -> Found:
        known = forward.known
        found: Found | None = known.found.get((find, number))
        if found is None:
            found = find(forward, number)
            if known.left > 0:
                known.left -= 1 + len(found)
                known.found[find, number] = found
        return found

    return remembered


@once
def first_results(forward: Forward, _whole: int) -> Sequence[int]:
    """Per op row the first row of its call; itself where it is no call."""
    event, function = forward.rows.event, forward.rows.function
    made = list(range(len(event)))
    for row in range(1, len(made)):
        if function[row] >= 0 and event[row] == event[row - 1]:
            made[row] = made[row - 1]
    return made


def one_each(forward: Forward, rows: Iterable[int]) -> list[int]:
    """Of some op rows the first of each call."""
    first = first_results(forward, 0)
    return list(dict.fromkeys([first[row] for row in rows]))


@once
def rows_inside(forward: Forward, call: int) -> Sequence[int]:
    rows = forward.own_rows[call].copy()
    for inner in forward.descendants(call):
        rows += forward.own_rows[inner]
    rows.sort()
    return rows


def beside(there: Sequence[tuple[int, ...]], back: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """What is reached from each number by a step there and one back, itself left out, ascending."""
    made: list[tuple[int, ...]] = []
    for number, others in enumerate(there):
        if len(others) == 1 and len(back[others[0]]) == 1:
            made.append(())  # it is the only one
        else:
            made.append(tuple(sorted({found for other in others for found in back[other]} - {number})))
    return made


def told_of_parameter(parameter: Tensor) -> Hashable:
    return (parameter.shape, parameter.dtype, parameter.requires_grad)


def told_of_others(event: Row) -> Hashable:
    """Shapes, dtypes and aliasing of the results of a call that has several; None where there is one."""
    outputs = event[OUTPUTS]
    if len(outputs) == 1:
        return None
    return tuple([(tuple(given[SHAPE]), given[DTYPE], is_alias(given)) for given in outputs])


def exactly(value: Any) -> Hashable:
    """What is equal just for the same value of the same types; for what has no bytes, the one object."""
    try:
        return packed_bytes(value)
    except (TypeError, ValueError, OverflowError):
        return id(value)


def part_text(part: Any) -> str:
    return part if isinstance(part, str) else text_of(part)
