"""What ``save_grads=`` was given, as a policy: which gradients a selector keeps, worked out of the finished ops.

Reads  the op rows that a selector matches, and at which output of which autograd node each stands.
Gives  a ``Policy``, which is asked about nodes of a pass.
Rule   of what ``True`` keeps, gradients of ops and increments of leaves, a selector keeps those that it matches. One
       that names nodes or sides keeps what it names at nodes, and the gradients of the ops that stand there.
Note   an output stands for the op whose value it is. A predicate is asked once about each finished op.
Not    when a gradient passes, or how it is kept.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final
from weakref import ref

import attrs

from journal import Journal
from journal.events import GraphNode, Side, StreamId
from projections import CaptureTables, Projector
from projections.selecting.backward_terms import OfNode, Spot, behind_outputs, matching, names_nodes
from projections.selecting.selector import (
    Compound,
    Contains,
    Func,
    InModule,
    Label,
    ModuleOutput,
    Not,
    Record,
    Regex,
    Selector,
)
from torchlens.backward.policy import EVERYTHING, NOTHING, Kept, Measuring, Policy
from torchlens.capture.places import is_own
from torchlens.capture.plan import runs_code
from torchlens.errors import ConfigurationError, TorchLensError, TorchLensWarning, message_of
from torchlens.options import StatisticsOnly
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource
from torchlens.tracing.request import gradients_of, text_of
from torchlens.tracing.requested import unmatched, what_there_is

__all__ = ["Choice", "Chosen", "policies_of", "policy_of"]


class Choice:
    """Which gradients a selector keeps of one capture.

    Args:
        selector: What it was asked.
        tables: The tables of the finished forward.
        record: What predicates are asked about.

    Raises:
        ConfigurationError: ``predicate_return_invalid``, ``predicate_evaluation_failed``.
        SelectionError: What the selector is refused with in finished tables, as ``multipass_bare_label_ambiguous``.
    """

    def __init__(self, selector: Selector, tables: CaptureTables, record: Record) -> None:
        self.selector = selector
        self.names_nodes = names_nodes(selector)
        self.needs_labels = any(isinstance(node, OfNode) and node.label is not None for node in selector.nodes())
        self.of_value: dict[int, list[int]] = {}  # op rows, by value
        self.at_node: dict[int, dict[int, list[int]]] = {}  # op rows, by node and its output
        ops = tables.ops
        values, is_output = ops.column("value"), ops.column("is_output")
        for row, (node, slot) in enumerate(zip(ops.column("grad_fn_object_id"), ops.column("grad_slot"), strict=True)):
            if not is_output[row]:
                self.of_value.setdefault(values[row], []).append(row)
                if node is not None:
                    self.at_node.setdefault(node, {}).setdefault(slot, []).append(row)

        self._asks = matching(selector, lambda part: behind_outputs(answered(part, tables, record), tables))

    def at(self, node: GraphNode, label: str, pass_index: int) -> Kept | None:
        """What is kept at a node in a pass, from 1; None for nothing."""
        number, class_name, _, is_custom, _, leaf, sequence = node
        rows_at = self.at_node.get(number)
        if rows_at is None:
            rows_at = {0: self.of_value[leaf]} if leaf in self.of_value else {}
        if not rows_at and sequence is not None and not self.names_nodes:
            return None

        def keeps(side: Side, rows: Sequence[int | None]) -> bool:
            return any(
                self._asks(
                    Spot(
                        class_name=class_name,
                        label=label,
                        is_custom=is_custom,
                        has_op=number in self.at_node,
                        side=side,
                        row=row,
                        pass_index=pass_index,
                    )
                )
                for row in rows
            )

        if not rows_at:
            outputs = None if keeps("output", (None,)) else frozenset[int]()
            inputs = self.names_nodes and keeps("input", (None,))
        else:
            sends = self.names_nodes and number in self.at_node  # what gathers for a leaf sends nothing on
            sending = {slot for slot, rows in rows_at.items() if sends and keeps("input", rows)}
            outputs = frozenset(slot for slot, rows in rows_at.items() if slot in sending or keeps("output", rows))
            inputs = bool(sending)
        return None if outputs == frozenset() and not inputs else Kept(outputs, inputs)

    def names_no_op(self) -> bool:
        """Whether a selector of the forward matches none of its ops."""
        if self.selector.names_gradients:
            return False
        rows = [row for found in self.of_value.values() for row in found]
        return not any(self._asks(attrs.evolve(ANYWHERE, row=row)) for row in rows)


ANYWHERE: Final = Spot(class_name="", label="", is_custom=False, has_op=True, side="output", row=None, pass_index=1)
"""For selectors that look at nothing but the op."""


def answered(part: Selector, tables: CaptureTables, record: Record) -> set[int]:
    """The op rows that a selector of the forward matches; what its predicate raises is the request's fault."""
    try:
        return part.found(tables, record)
    except TorchLensError:
        raise
    except Exception as error:
        if not runs_code(part):
            raise
        raise ConfigurationError(
            code="predicate_evaluation_failed",
            problem=f"the predicate in save_grads={part!r} raised {type(error).__name__}: {message_of(error)}",
            remedy="it is given each finished op, inputs, buffers and outputs too",
            selector=repr(part),
        ) from error


class Chosen(Policy):
    """The gradients that a selector matches.

    Args:
        text: The request.
        choice: What it keeps.
        labels: Gives the label of each autograd node that a pass has told of, by its number.
    """

    def __init__(self, text: str, choice: Choice, labels: Callable[[], Mapping[int, str]]) -> None:
        self.text = text
        self._choice = choice
        self._labels = labels

    def kept_at(self, nodes: Sequence[GraphNode], num_op_nodes: int, pass_number: int) -> Mapping[int, Kept]:
        labels = self._labels() if self._choice.needs_labels else {}
        at = self._choice.at
        kept = ((node[0], at(node, labels.get(node[0], ""), pass_number + 1)) for node in nodes)
        return {number: one for number, one in kept if one is not None}


def policies_of(trace: Trace) -> Callable[[Any], Policy]:
    """What makes a policy of a request, for one capture, whose trace it does not hold."""
    held = ref(trace)

    def policy(asked: Any) -> Policy:
        trace = held()
        return NOTHING if trace is None else policy_of(asked, trace)

    return policy


def policy_of(asked: Any, trace: Trace) -> Policy:
    """The policy that a request makes of one capture, whose forward has ended.

    Args:
        asked: What ``save_grads=`` was given.
        trace: The capture.

    Raises:
        ConfigurationError: ``save_grads_type_invalid``; and what ``Choice`` raises.

    Warns:
        TorchLensWarning: ``save_grads_matched_nothing``.
    """
    if isinstance(asked, StatisticsOnly):
        inner = policy_of(True if asked.select is None else asked.select, trace)
        return inner if inner is NOTHING else Measuring(text_of(asked), inner)
    selector = gradients_of(asked)
    if isinstance(selector, bool):
        return EVERYTHING if selector else NOTHING
    tables = trace.tables
    choice = Choice(selector, tables, trace.records)
    missed = list(dict.fromkeys(map(repr, (*unmatched(selector, tables), *unmatched_names(selector, tables)))))
    if missed or choice.names_no_op():
        warnings.warn(
            TorchLensWarning(
                code="save_grads_matched_nothing",
                problem=f"save_grads={', '.join(missed) or text_of(asked)} matched no op",
                remedy=what_there_is(selector, tables),
            ),
            stacklevel=frames_to_caller(),
        )
    return Chosen(text_of(asked), choice, NodeLabels(trace.journal, trace.stream))


def unmatched_names(request: Selector, tables: CaptureTables) -> Iterator[Selector]:
    """The names within a request, each asked for by itself, that match no op; not those of what it leaves out, and not
    a predicate, which is asked once."""
    if isinstance(request, Compound) and not isinstance(request, Not):
        for part in request.parts():
            yield from unmatched_names(part, tables)
    elif isinstance(request, (Contains, Func, InModule, Label, ModuleOutput, Regex)) and not request.rows(tables):
        yield request


class NodeLabels:
    """Labels of the autograd nodes that a stream has told of, also of a pass that has not ended.

    Args:
        journal: Where the stream is.
        stream: Its number.
    """

    def __init__(self, journal: Journal, stream: StreamId) -> None:
        self._projector = Projector(StreamSource(journal, stream))

    def __call__(self) -> Mapping[int, str]:
        nodes = self._projector.tables().grad_fns
        return dict(zip(nodes.column("grad_fn_object_id"), nodes.column("label"), strict=True))


def frames_to_caller() -> int:
    """How many frames up from the caller of this the user's is, for a warning to point there."""
    level = 1
    here: FrameType | None = sys._getframe(1)
    while here is not None and is_own(here.f_code):
        here, level = here.f_back, level + 1
    return level
