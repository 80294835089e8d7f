"""The writing side of one live capture's backward passes: its nodes, their hooks, its open passes, its writer.

Rule   a node is numbered when it is first seen, on from those of the forward, and told once.
       The stream is open for appending while a pass is not finalized; passes that overlap share its writer.
       A run that was not asked for (compiled or scripted code, an operator, C++) is noticed by the first node that
       fires under a graph task not met before; the engine is asked to tell its end, and what comes next shows it too.
Not    which captures a run belongs to (engine.py), or the steps of a close (closing.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final, TypeAlias
from weakref import ref

import attrs
from torch import Tensor

from journal import Journal
from journal.events import (
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    EngineEntered,
    Event,
    Frame,
    GraphNode,
    NodesFound,
    NodesMade,
    PassOpened,
    StreamId,
    Trigger,
)
from journal.events.backward import TensorLike
from journal.lifecycle import PassState, PassStep
from journal.protocol import StreamWriter
from torchlens import compat, turns
from torchlens.backward.closing import Pass, is_inside, surely
from torchlens.backward.deep import Roots, let_go
from torchlens.backward.hooks import Handle, MeasuringTape, Tape, hook
from torchlens.backward.keeping import Keep, Waiting, in_memory, in_stream, keep_waiting, nothing_kept
from torchlens.backward.making import made_by
from torchlens.backward.policy import NOTHING, Policy
from torchlens.backward.walking import Edge, Edges, Walk, kind_of
from torchlens.capture.checkpoints import Evidence
from torchlens.errors import BackwardRefused, TorchLensError, message_of

__all__ = ["Diary", "EngineRequest", "ForwardLeft", "VerbRequest"]

FOUND: Final = NodesFound.type_id
UNPACKED: Final = CheckpointUnpacked.type_id

NODES_TOGETHER: Final = 1024
"""Nodes that one event tells of."""

Root: TypeAlias = "tuple[Edge | None, TensorLike]"


@attrs.frozen(eq=False)
class ForwardLeft:
    """What the forward of a capture left that its backward passes go on from.

    Attributes:
        journal: Where its stream is.
        stream: Its number.
        nodes: Number of each autograd node of a value of the forward; those that are found later join them.
        first_node: Sequence number that the first node of the forward could have.
        behind_last: The number that the next node had when the forward had ended.
        parameters: The parameters, by number.
        leaves: Other leaves that the forward met, with their value numbers.
        held: Tensors that have no stored bytes, by payload number.
        evidence: What tells when something is unpacked that was packed in a checkpoint of the forward.
    """

    journal: Journal
    stream: StreamId
    nodes: dict[Any, int]
    first_node: int
    behind_last: int
    parameters: Sequence[ref[Tensor]]
    leaves: Sequence[tuple[ref[Tensor], int]]
    held: dict[int, Tensor]
    evidence: Evidence


@attrs.frozen(eq=False)
class VerbRequest:
    """What a verb of a trace asks of the runs that it is about to start."""

    trigger: Trigger
    frame: Frame | None
    policy: Policy | None  # in place of the standing one


@attrs.frozen(eq=False)
class EngineRequest:
    """A run of the engine as it was asked for, for every capture that it belongs to."""

    roots: Sequence[Root]
    seeds: tuple[TensorLike | None, ...]
    inputs: Sequence[Edge | None] | None
    parts: frozenset[int]  # the places of inputs whose gradient is not all that comes to their node
    retain_graph: bool
    create_graph: bool
    accumulates: bool
    is_transient: bool  # its gradients live only while a transform runs
    made_seeds: Sequence[tuple[Tensor, bool]]  # the gradients that torch made for roots, and whether for a tensor


class Diary:
    """One capture's writing side.

    Args:
        capture: What its forward left.
        is_standing: Whether the nodes of the forward are hooked from now on, so that no run goes by unnoticed.
        has_census: Whether each operator of a run that is announced is told.
    """

    def __init__(self, capture: ForwardLeft, *, is_standing: bool, has_census: bool = False) -> None:
        self.capture = capture
        self.nodes = capture.nodes
        self.num_op_nodes = len(capture.nodes)
        self._is_large = len(capture.nodes) >= compat.MAX_TOUCHED_NODES
        self.policy: Policy = NOTHING  # of passes that are not asked otherwise
        self.is_standing = is_standing
        self.has_census = has_census
        self.is_armed = True
        self.refusal: TorchLensError | None = None  # what the next verb raises
        self.tasks: dict[int, Tape] = {}
        self.passes: dict[int, Pass] = {}  # those that are not finalized, by number
        self.roots: Roots = []  # of runs over a deep graph
        self.lock = threading.RLock()
        self._count = 0
        self._waiting: list[Pass] = []  # opened, and none of their nodes has fired
        self._told: set[int] = set()
        self._made: set[int] = set()
        self._standing: dict[int, tuple[Handle, Handle]] = {}
        self._hooks: dict[int, tuple[Handle, Handle]] = {}  # of nodes that are hooked while passes are open
        self._parameters: dict[int, int] | None = None
        self._leaves = {number: held for held, number in capture.leaves}
        self._writer: StreamWriter | None = None
        self._is_matched = True  # whether all that was unpacked was so in a pass
        capture.evidence.go_on_with(self)
        if is_standing:
            tasks, here = self.tasks, ref(self)
            for node, number in capture.nodes.items():
                if self.made(node):  # not of another capture, which this one met as a constant
                    self._standing[number] = hook(node, number, tasks, here, is_leaf=False)

    # -- which nodes are its own

    def made(self, node: Any) -> bool:
        """Whether the node came to be in the forward, or in a pass of this capture."""
        number = self.nodes.get(node)
        if number is None:  # of a large graph, the forward has not looked at each
            sequence = compat.sequence_of(node) if self._is_large else -1
            return self.capture.first_node <= sequence < self.capture.behind_last
        if number < self.num_op_nodes:
            return compat.made_since(node, self.capture.first_node)
        return number in self._made

    def running(self, task: int) -> Pass | None:
        """The open pass of a graph task; else the one of this thread that waits for its first node: the task is its."""
        for each in reversed(self.passes.values()):
            if each.is_open and each.task == task:
                return each
        thread = threading.get_ident()
        for each in reversed(self._waiting):
            if each.is_open and each.thread == thread:
                self._enter(each, task)
                return each
        return None

    # -- opening

    def open(
        self,
        asked: VerbRequest,
        request: EngineRequest,
        nodes: Iterable[Any],
        walk: Walk,
        parent: Pass | None,
        opener: object,
    ) -> Pass:
        """Open a pass over nodes that a walk has reached, and hook them.

        Whatever is raised meanwhile, the pass is among ``passes`` from the moment on at which it is told.

        Raises:
            JournalError: The stream cannot be appended to.
        """
        with self.lock:
            self.close_implicit()
            found = list(nodes)
            number_of = self.number(found)
            policy = asked.policy or self._policy_within(parent)
            opened = self._begin(asked, policy, request, parent, number_of, opener=opener)
            opened.numbers = number_of
            opened.entries = frozenset(
                [number_of[edge[0]] for edge, _ in request.roots if edge is not None and edge[0] in number_of]
            )
            if request.create_graph:
                opened.tape.tells_more(sequences=True)
                opened.sequences = (compat.sequence_number(), 0)
            self._tell_and_hook(opened, found, walk)
            self._waiting.append(opened)
            return opened

    def _begin(
        self,
        asked: VerbRequest,
        policy: Policy,
        request: EngineRequest | None,
        parent: Pass | None,
        number_of: dict[Any, int],
        task: int | None = None,
        opener: object = None,
    ) -> Pass:
        def numbers(edge: Edge | None) -> tuple[int, int] | None:
            number = None if edge is None else number_of.get(edge[0], self.nodes.get(edge[0]))
            return None if edge is None or number is None else (number, edge[1])

        inputs = None if request is None else request.inputs
        writer = self._writing()
        number = max([self._count, *[known + 1 for known in self.passes]])
        told = PassOpened(
            pass_number=number,
            trigger=asked.trigger,
            frame=asked.frame,
            policy=policy.text,
            parent=None if parent is None else parent.number,
            thread=threading.current_thread().name,
            task=task,
            roots=() if request is None else tuple((numbers(edge), like) for edge, like in request.roots),
            seeds=() if request is None else request.seeds,
            inputs=None if inputs is None else tuple(map(numbers, inputs)),
            retain_graph=request is not None and request.retain_graph,
            create_graph=request is not None and request.create_graph,
            accumulates=request is None or request.accumulates,
            is_transient=request is not None and request.is_transient,
            has_census=self.has_census and request is not None,
        )
        waiting: Waiting = []
        if request is not None and request.is_transient:
            keep: Keep = nothing_kept
        elif self.capture.journal.path is None:
            keep = in_memory(writer, self.capture.held)
        else:
            keep = in_stream(writer, self.capture.held, waiting)
        given = (number, writer.pending, writer.chunk_size, writer.flush, keep, policy)
        if policy.only_statistics and keep is not nothing_kept:
            tape: Tape = MeasuringTape(*given, waiting=waiting, next_at=writer.next_at)
        else:
            tape = Tape(*given, waiting=waiting)
        made = Pass(tape, writer, writer.next_at(), asked.trigger, parent, opener)
        made.at = surely(writer, told, None, partial(self.passes.update, {number: made}))
        return made

    def _policy_within(self, parent: Pass | None) -> Policy:
        """What a pass keeps that was not asked otherwise: what the pass keeps within which it runs, or what stands."""
        return self.policy if parent is None else parent.tape.policy

    def _writing(self) -> StreamWriter:
        """The open writer of the stream."""
        if self._writer is None:
            self._writer = self.capture.journal.continue_stream(self.capture.stream)
            self._writer.is_patient = True  # a full disk is no reason to fail a backward
        return self._writer

    def number(self, found: Iterable[Any]) -> dict[Any, int]:
        """Number of each node, new ones in this order."""
        nodes = self.nodes
        made: dict[Any, int] = {}
        for node in found:
            number = nodes.get(node)
            if number is None:
                number = nodes[node] = len(nodes)
            made[node] = number
        return made

    def _tell_and_hook(self, opened: Pass, found: Sequence[Any], walk: Walk) -> None:
        """Tell of the nodes that were not told before, and hook those that are not hooked."""
        tape, nodes, told = opened.tape, self.nodes, self._told
        rows = [self.row(node, walk.edges[node]) for node in found]
        new = [row for row in rows if row[0] not in told]
        parts = range(0, len(new), NODES_TOGETHER)
        for start in parts or (range(1) if walk.is_cut else ()):
            is_last = start + NODES_TOGETHER >= len(new)
            part = tuple(new[start : start + NODES_TOGETHER])
            event = (FOUND, monotonic_ns(), tape.number, part, walk.is_cut and is_last)
            numbers = [row[0] for row in part]
            is_appended = False
            try:
                tape.pending.append(event)
                is_appended = True
            finally:  # an interrupt may come right here
                if is_appended or tape.pending[-1:] == [event]:
                    told.update(numbers)
        tape.keep_more(tape.policy.kept_at(rows, self.num_op_nodes, tape.number))
        standing, hooks, tasks, held = self._standing, self._hooks, self.tasks, ref(self)
        for node, row in zip(found, rows, strict=True):
            number = row[0]
            if number not in standing and number not in hooks:
                leaf = row[5]
                parameter = None if leaf is None or leaf >= 0 else self.capture.parameters[-1 - leaf]
                hooks[number] = hook(node, nodes[node], tasks, held, is_leaf=row[6] is None, parameter=parameter)

    def told(self, node: Any) -> int | None:
        """See ``making.Numbering``."""
        number = self.nodes.get(node)
        return number if number in self._told else None

    def row(self, node: Any, edges: Edges) -> GraphNode:
        """A node as events have it."""
        number_of = self.nodes.get
        name, qualname, is_python = kind_of(node)
        leaf = None if edges else compat.leaf_of(node)
        if leaf is not None:
            return (self.nodes[node], name, qualname, is_python, (), self._number_of(leaf), None)
        numbered: list[tuple[int, int] | None] = []
        for edge in edges:
            number = None if edge is None else number_of(edge[0])
            numbered.append(None if edge is None or number is None else (number, edge[1]))
        return (self.nodes[node], name, qualname, is_python, tuple(numbered), None, compat.sequence_of(node))

    def _leaf(self, node: Any) -> int | None:
        """The leaf that a node gathers the gradient of."""
        leaf = compat.leaf_of(node)
        return None if leaf is None else self._number_of(leaf)

    def _number_of(self, leaf: Tensor) -> int | None:
        """As events number a leaf; None for one that the forward did not meet."""
        parameters = self.capture.parameters
        if self._parameters is None:
            here = [held() for held in parameters]
            self._parameters = {id(found): number for number, found in enumerate(here) if found is not None}
        number = self._parameters.get(id(leaf))
        if number is not None and parameters[number]() is leaf:
            return -1 - number
        return next((value for value, held in self._leaves.items() if held() is leaf), None)

    # -- while the engine runs

    def entered(self, task: int, node: int) -> Tape | None:
        """The run of a graph task not met before, whose node ``node`` fires first."""
        with self.lock:
            known = self.tasks.get(task)
            if known is not None or not self.is_armed:
                return known
            opened = self._expected(node)
            if opened is not None:
                return self._enter(opened, task)
            if not self.is_standing or turns.is_within():  # what a captured forward runs is part of it
                return None
            return self._open_implicit(task)

    def _expected(self, node: int) -> Pass | None:
        """The pass that waits for its first node: this thread's or, in a thread of the engine's, one that begins so."""
        waiting = [each for each in self._waiting if each.is_open]
        thread = threading.get_ident()
        ours = [each for each in waiting if each.thread == thread]
        if ours:
            return ours[-1]
        if not is_foreign():
            return None
        return next((each for each in waiting if node in each.entries), waiting[0] if len(waiting) == 1 else None)

    def _enter(self, opened: Pass, task: int) -> Tape:
        opened.task = task
        self._waiting.remove(opened)
        self.tasks[task] = opened.tape
        opened.writer.append(EngineEntered(pass_number=opened.number, task=task))
        return opened.tape

    def _open_implicit(self, task: int) -> Tape:
        """Open a pass for a run that has begun."""
        thread = threading.get_ident()
        running = [each for each in self.passes.values() if each.is_open and each.thread == thread]
        for each in running:
            if each.trigger == "implicit":  # whose end was not told: its run failed
                self.close(each, PassStep.SYNC_POINT)
        parent = next((each for each in reversed(running) if each.is_open), None)
        opened = self._begin(IMPLICIT, self._policy_within(parent), None, parent, {}, task)
        opened.task = task
        opened.tape.tells_more(told=True)
        self.tasks[task] = opened.tape
        if compat.call_when_drained is not None:
            compat.call_when_drained(partial(_drained, ref(self), opened.number, task))
            opened.drain_queued = True
        return opened.tape

    def met(self, tape: Tape, node: int) -> None:
        """A node fires that the run was not told of: it, and what is reached from it, are found now."""
        with self.lock:
            opened = self.passes.get(tape.number)
            here = compat.running_node()
            if tape.told is None or opened is None or here is None:
                return
            walk = Walk([here])
            walk.go()
            found = walk.walked()
            self.number(found)
            tape.told.update([self.nodes[each] for each in found])
            self._tell_and_hook(opened, found, walk)

    def unpacked(self, token: int) -> None:
        """What a checkpoint of the forward packed is asked for. Outside the engine that is no backward's doing."""
        task = compat.running_task()
        if task == -1 or not self.is_armed:
            return
        number = self.nodes.get(compat.running_node())
        tape = self.tasks.get(task)
        if tape is None and number is not None:  # asked for by a hook before ours
            tape = self.entered(task, number)
        if tape is not None:
            tape.pending.append((UNPACKED, monotonic_ns(), token, tape.number, number))
            if len(tape.pending) >= tape.chunk:
                tape.flush()
        elif self._is_matched:
            self._is_matched = False
            self._note(CheckpointUnwitnessed(reason="unmatched_backward"))

    def _note(self, event: Event) -> None:
        """Append an event that belongs to no pass."""
        with self.lock:
            self._writing().append(event)
            if not self.passes:
                self._end()

    def drained(self, number: int, task: int) -> None:
        """The engine tells that a run is over."""
        with self.lock:
            opened = self.passes.get(number)
            if opened is not None and opened.task == task:
                self.close(opened, PassStep.ENGINE_DRAIN)

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong: nothing more is recorded, and what was is as it was."""
        self.refuse(error)
        self.is_armed = False
        self.tasks.clear()
        for each in tuple(self.passes.values()):
            if each.is_open and each.lost is None:
                each.lost = f"{type(error).__name__}: {message_of(error)}"

    def refuse(self, error: Exception) -> None:
        """Keep what kept a pass from being recorded, the first of it, for the verbs."""
        if self.refusal is None:
            drop_frames(error)
            self.refusal = error if isinstance(error, TorchLensError) else recording_failed(error)

    # -- the end of a pass

    def returned(self, closing: Pass, request: EngineRequest, result: Any) -> None:
        """Tell of the gradients that the engine returned for nodes that did not fire."""
        if request.accumulates or request.inputs is None or not isinstance(result, (tuple, list)):
            return
        tape = closing.tape
        for place, (edge, gradient) in enumerate(zip(request.inputs, result, strict=False)):
            number = None if edge is None else self.nodes.get(edge[0])
            if edge is None or number is None or number in tape.begun or place in request.parts:
                continue
            if not isinstance(gradient, Tensor):  # nothing came there
                continue
            leaf = self._leaf(edge[0])
            if leaf is not None and leaf < 0:  # nothing was added to the parameter's gradient
                continue
            kept = tape.kept.get(number)
            keeps = kept is not None and (kept.outputs is None or edge[1] in kept.outputs)
            tape.tell(number, "output", edge[1], gradient, keeps=keeps)

    def close(self, closing: Pass, step: PassStep, error: BaseException | None = None) -> None:
        """A pass has ended; what can be done for it now is done."""
        with self.lock:
            if closing.task is not None:
                self.tasks.pop(closing.task, None)
            elif closing in self._waiting:
                self._waiting.remove(closing)
            closing.journal(step, error)
            self.go_on()

    def close_implicit(self) -> None:
        """Close what implicit passes have left open in this thread, now that something else happens."""
        if is_inside():
            return
        thread = threading.get_ident()
        for each in list(self.passes.values()):
            if each.trigger == "implicit" and each.is_open and (each.thread == thread or not is_alive(each.thread)):
                self.close(each, PassStep.SYNC_POINT)

    def go_on(self) -> None:
        """Scavenge and finalize what may be now, the innermost first, and end the stream where nothing is left."""
        for each in reversed(list(self.passes.values())):
            each.tell()
            if each.may(PassStep.SCAVENGE):
                self._scavenge(each)
            if each.may(PassStep.FINALIZE):
                each.step(PassStep.FINALIZE)
            if each.state is PassState.FINALIZED:
                self._count = max(self._count, each.number + 1)
                del self.passes[each.number]
        if not self.passes:
            self._end()

    def _scavenge(self, closing: Pass) -> None:
        """Take out of the engine what the pass has left there."""
        if not any(each.is_open for each in self.passes.values()):
            for handles in self._hooks.values():
                for handle in handles:
                    handle.remove()
            self._hooks.clear()
        tape, writer = closing.tape, closing.writer
        keep_waiting(writer, self.capture.held, tape.waiting)
        if closing.gave:
            for event, numbers in made_by(self, closing):
                writer.append(event)
                self._made.update(numbers)
                if isinstance(event, NodesFound | NodesMade):
                    self._told.update([row[0] for row in event.nodes])
            closing.gave.clear()
            closing.makers.clear()
        closing.step(PassStep.SCAVENGE)

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            finally:
                if writer.refusal is not None:
                    self.refuse(writer.refusal)

    # -- as readers see it

    def readable(self) -> int | None:
        """See ``LiveBackwards.readable``."""
        with self.lock:
            if not self.passes:
                return None
            self.close_implicit()
            self.go_on()
            return min((each.at for each in self.passes.values()), default=None)

    def disarm(self) -> None:
        """Close what is open, take every hook off, and let go of the nodes."""
        with self.lock:
            self.is_armed = False
            try:
                for each in list(self.passes.values()):
                    if each.is_open and (each.opener is not None or is_inside()) and each.lost is None:
                        each.lost = "the trace was disarmed while it ran"
                    if each.is_open:
                        self.close(each, PassStep.SYNC_POINT)
                self.go_on()
                self._end()
            finally:
                self.passes.clear()
                self.tasks.clear()
                for handles in (*self._standing.values(), *self._hooks.values()):
                    for handle in handles:
                        handle.remove()
                self._standing.clear()
                self._hooks.clear()
                let_go(self.nodes, self.roots)


IMPLICIT: Final = VerbRequest("implicit", None, None)
"""Of a run that nobody has asked for as far as is known."""


def _drained(diary: ref[Diary], number: int, task: int) -> None:
    held = diary()
    if held is not None:
        try:
            held.drained(number, task)
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            held.failed(error)


def drop_frames(error: BaseException | None) -> None:
    """Let go of the frames that an exception came through, whose variables would live as long as it does."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def recording_failed(error: Exception) -> BackwardRefused:
    refusal = BackwardRefused(
        code="backward_recording_failed",
        problem=f"a backward pass could not be recorded to its end: {type(error).__name__}: {message_of(error)}",
        remedy="the backward itself has run; capture again, and read the exception that this one came from",
    )
    refusal.__cause__ = error
    return refusal


def is_foreign() -> bool:
    """Whether Python did not start this thread, as those of the engine; there is no public word for it."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def is_alive(thread: int) -> bool:
    return any(each.ident == thread for each in threading.enumerate())
