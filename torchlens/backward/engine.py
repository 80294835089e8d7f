"""Where torch's Python code calls the autograd engine: each run is told to the captures whose nodes it reaches.

Rule   the function is replaced in torch while a capture is armed, and put back with the last one, if it is still ours.
       What goes wrong here is kept for the capture's verbs, and the run goes on: the user gets torch's result or
       torch's exception. One thing is raised: a verb's refusal of a loss that is not connected.
       A run within a captured forward is part of that forward.
Not    what came another way than through these functions: hooks find that (diary.py).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple
from weakref import ref

from torch import Tensor

from journal import JournalError
from journal.lifecycle import PassStep
from torchlens import collector, compat, turns
from torchlens.backward.closing import Pass
from torchlens.backward.deep import let_go, roots_of, sweep
from torchlens.backward.diary import Diary, EngineRequest, VerbRequest
from torchlens.backward.dispatching import Dispatches, Run, Telling, mode_on, seed_row
from torchlens.backward.making import given_nodes
from torchlens.backward.walking import Edge, Walk, own_part
from torchlens.copying import past_copies
from torchlens.errors import BackwardRefused
from torchlens.tensors import like_of

__all__ = ["abandon", "arm", "asking", "disarm", "not_connected"]

LEAST_WALKED: Final = 2_000
"""Nodes that a walk may look at however many the captures have looked at already."""

_lock: Final = threading.RLock()
_armed: Final[list[ref[Diary]]] = []
_abandoned: Final[list[Diary]] = []  # of traces that were dropped while a pass was open
_replaced: Final[list[tuple[Any, Callable[..., Any], Callable[..., Any]]]] = []  # module, torch's, ours


class Asked(NamedTuple):
    """A verb that runs in this thread, and what it has asked for."""

    diary: Diary
    request: VerbRequest
    task: int  # under which it asked
    must_reach: bool  # whether a run is refused that reaches no node of the diary's


class _Local(threading.local):
    """What this thread is about."""

    def __init__(self) -> None:
        self.asked: Asked | None = None
        self.outside: list[int] = []  # the task around each run that is told of, innermost last


_here: Final = _Local()


def arm(diary: Diary) -> None:
    """Have the diary told of runs from now on."""
    close_abandoned()
    sweep()
    with _lock:
        _armed.append(ref(diary))
        if not _replaced:
            for module in compat.ENGINE_CALLERS:
                original = getattr(module, compat.ENGINE_CALL)
                ours = functools.partial(_run, original)
                functools.update_wrapper(ours, original)
                setattr(module, compat.ENGINE_CALL, ours)
                _replaced.append((module, original, ours))


def disarm(diary: Diary) -> None:
    """Tell the diary no more, and give torch its function back where it was the last one."""
    with _lock:
        _armed[:] = [held for held in _armed if held() is not None and held() is not diary]
        if not _armed:
            for module, original, ours in _replaced:
                if getattr(module, compat.ENGINE_CALL) is ours:
                    setattr(module, compat.ENGINE_CALL, original)
            _replaced.clear()


def abandon(diary: Diary) -> None:
    """Disarm the diary of a trace that was dropped, which Python may say at any moment, also while events are stored.

    So nothing is appended here: where passes are open, they are closed when the next run or capture begins.
    """
    if diary.passes:
        _abandoned.append(diary)
    else:
        disarm(diary)
        diary.disarm()


def close_abandoned() -> None:
    while _abandoned:
        diary = _abandoned.pop()
        disarm(diary)
        with contextlib.suppress(JournalError):  # there is nobody to tell
            diary.disarm()


@contextlib.contextmanager
def asking(diary: Diary, request: VerbRequest, *, must_reach: bool) -> Iterator[None]:
    """Runs that this thread starts inside are asked for through a capture.

    Args:
        diary: The capture's.
        request: What is asked of them.
        must_reach: Refuse a run that reaches none of its nodes.
    """
    before, _here.asked = _here.asked, Asked(diary, request, compat.running_task(), must_reach)
    try:
        yield
    finally:
        _here.asked = before


def _run(original: Callable[..., Any], roots: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands for the function of torch that runs the engine."""
    outside = compat.running_task()
    if not _armed or (_here.outside and _here.outside[-1] == outside) or turns.is_within():
        return original(roots, *args, **kwargs)
    close_abandoned()
    sweep()
    bracket = _Bracket()
    depth = len(_here.outside)
    try:
        try:
            with collector.paused():
                bracket.open(roots, args, kwargs, outside, sys._getframe(1))
        except BackwardRefused:
            raise
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            bracket.give_up(error)
        if not bracket.belonging:
            return original(roots, *args, **kwargs)
        _here.outside.append(outside)
        try:
            if bracket.puts_on is not None:
                compat.put_mode(bracket.puts_on)
            result = original(roots, *args, **kwargs)
        finally:  # an interrupt may come right here
            if bracket.dispatches is not None:
                bracket.stop_dispatches(bracket.dispatches)
        del _here.outside[depth:]
        bracket.returned(result)
    except BaseException as error:  # of the engine, or an interrupt at any moment, before the run and after it, too
        del _here.outside[depth:]
        bracket.end(PassStep.ENGINE_ERROR, error)
        raise
    return result


class _Bracket:
    """One run, as it is told to the diaries that it belongs to."""

    def __init__(self) -> None:
        self.name: Final = object()  # by which its passes know it, without holding it
        self.belonging: list[Diary] = []  # those that it belongs to, whose passes it closes, however far they came
        self.opened: list[tuple[Diary, Pass, list[Any]]] = []
        self.request: EngineRequest | None = None
        self.dispatches: Dispatches | None = None  # where it tells or notes operators
        self.puts_on: Dispatches | None = None  # the same, where no run around it has put one on
        self.run = Run(())
        self.makers: list[tuple[int, Any]] | None = None

    # -- before

    def open(self, roots: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outside: int, caller: FrameType) -> None:
        diaries = [diary for held in list(_armed) if (diary := held()) is not None and diary.is_armed]
        if not diaries:
            return
        asked = _here.asked if _here.asked is not None and _here.asked.task == outside else None
        with compat.NoTorchFunction():
            edges = [edge_of(root) for root in roots]
            walk = Walk([edge[0] for edge in edges if edge is not None])
            if asked is None:
                touched = max([diary.nodes for diary in diaries], key=len)
                walk.go(max(compat.MAX_TOUCHED_NODES - len(touched), LEAST_WALKED), touched)
            else:
                walk.go()
            own = [diary for diary in diaries if reached(diary, walk)]
            if walk.is_cut and any(diary.is_standing for diary in diaries):
                walk.go()
                own = [diary for diary in diaries if reached(diary, walk)]
            tensors = roots_of(roots, len(walk.edges))
            if asked is not None and asked.must_reach and asked.diary not in own:
                let_go(dict.fromkeys(walk.edges, 0), tensors)
                raise not_connected()
            parents = parents_of(diaries, outside)
            belonging = [diary for diary in diaries if diary in own or diary in parents]
            if not belonging:
                return
            self.belonging = belonging
            for diary in belonging:
                diary.roots += tensors
            self.request = request = requested(roots, edges, args, kwargs, caller, walk)
            self._open_each(belonging, diaries, own, parents, walk, request, asked)
            self._start_dispatches(diaries, outside)

    def _open_each(
        self,
        belonging: list[Diary],
        diaries: list[Diary],
        own: list[Diary],
        parents: dict[Diary, Pass],
        walk: Walk,
        request: EngineRequest,
        asked: Asked | None,
    ) -> None:
        usual = VerbRequest("autograd_backward" if request.accumulates else "autograd_grad", None, None)
        starts = [edge[0] for edge, _ in request.roots if edge is not None]
        for diary in belonging:
            others = [other for other in own if other is not diary]
            nodes = own_part(walk, starts, diary.made, made_by_any(others)) if others else walk.walked()
            mine = asked.request if asked is not None and asked.diary is diary else usual
            try:
                made = diary.open(mine, request, nodes, walk, parents.get(diary), self.name)
            except Exception as error:  # noqa: BLE001  # another capture's pass may be told
                diary.failed(error)
            else:
                self.opened.append((diary, made, nodes if request.create_graph else []))

    def give_up(self, error: Exception) -> None:
        """Something of ours went wrong before the run: it goes on without us."""
        for held in tuple(_armed):  # a finalizer may disarm one meanwhile
            diary = held()
            if diary is not None and diary.is_armed:
                diary.failed(error)

    def _start_dispatches(self, diaries: Sequence[Diary], outside: int) -> None:
        """Have operators told and noted, by the mode of a run around this one or by one of its own."""
        request = self.request
        told = [(diary, made) for diary, made, _ in self.opened if diary.has_census]
        around = mode_on()
        notes = request is not None and request.create_graph and (around is None or around.makers is None)
        if request is None or not (told or notes or (around is not None and around.is_telling)):
            return
        self.dispatches = dispatches = around or Dispatches()
        for diary, made in told:
            if around is None or not around.tells(diary, outside):
                made.tape.pending += [seed_row(made.number, *seed) for seed in request.made_seeds]
        self.run = Run(tuple([self._telling(diary, made, diaries) for diary, made in told]))
        dispatches.begin(self.run)
        if notes:
            self.makers = dispatches.makers = []
        self.puts_on = dispatches if around is None else None

    def _telling(self, diary: Diary, made: Pass, diaries: Sequence[Diary]) -> Telling:
        passes = [other.numbers for _, other, _ in self.opened if other is not made]
        is_made = made_by_any([other for other in diaries if other is not diary])
        tape = made.tape
        return Telling(
            diary=diary,
            number=made.number,
            pending=tape.pending,
            chunk=tape.chunk,
            flush=tape.flush,
            numbers=made.numbers,
            is_others=lambda node: any(node in numbers for numbers in passes) or is_made(node),
        )

    def stop_dispatches(self, dispatches: Dispatches) -> None:
        dispatches.end(self.run)
        if self.makers is not None:
            dispatches.makers = None
        if self.puts_on is not None:
            compat.take_mode(dispatches)

    # -- after

    def returned(self, result: Any) -> None:
        """The engine has run to its end."""
        request = self.request
        for diary, made, nodes in self.opened:
            with telling(diary), compat.NoTorchFunction():
                if made.is_open and request is not None:
                    diary.returned(made, request, result)
                    if request.create_graph:
                        made.gave = given_nodes(() if request.accumulates else result, nodes)
        self.end(PassStep.TRIGGER_RETURN)

    def end(self, step: PassStep, error: BaseException | None = None) -> None:
        """Close what was opened, unless the trace was cleaned up or disarmed while the engine ran."""
        for diary in reversed(self.belonging):
            with telling(diary):
                for made in reversed([each for each in diary.passes.values() if each.opener is self.name]):
                    if made.tape.sequences is not None:
                        made.sequences = (made.sequences[0], compat.sequence_number())
                        made.makers = self.makers or []
                    if made.is_open:
                        diary.close(made, step, error)


@contextlib.contextmanager
def telling(diary: Diary) -> Iterator[None]:
    """What goes wrong inside is the diary's, and not the user's backward's, which has run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # of any kind
        diary.failed(error)


def edge_of(given: Any) -> Edge | None:
    """The node and output that a root or an end of a run stands on, past copies of ours; None for a leaf."""
    edge = raw_edge(given)
    return None if edge is None else past_copies(*edge)


def raw_edge(given: Any) -> Edge | None:
    """The node and output of a tensor, or of what torch's function takes for one; None for a leaf."""
    if not isinstance(given, Tensor):
        return (given[0], given[1])
    node = compat.node_of(given)
    return None if node is None else (node, given.output_nr)


def reached(diary: Diary, walk: Walk) -> bool:
    """Whether a walk has reached a node of the diary's capture."""
    return any(map(diary.made, walk.edges))


def made_by_any(diaries: Sequence[Diary]) -> Callable[[Any], bool]:
    return lambda node: any(diary.made(node) for diary in diaries)


def parents_of(diaries: list[Diary], outside: int) -> dict[Diary, Pass]:
    """For each diary that a node belongs to within which the run is started, the pass that runs it."""
    if outside == -1:
        return {}
    node = compat.running_node()
    found: dict[Diary, Pass] = {}
    for diary in diaries:
        if node is None or diary.made(node) or not any(other.made(node) for other in diaries):
            running = diary.running(outside)
            if running is not None:
                found[diary] = running
    return found


def requested(
    roots: Sequence[Any],
    edges: Sequence[Edge | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    caller: FrameType,
    walk: Walk,
) -> EngineRequest:
    """What a run was asked for, from the arguments of torch's function."""
    seeds, retain_graph, create_graph, inputs = (*args, *[None] * 4)[:4]
    accumulates = bool(kwargs.get("accumulate_grad", True))
    given = compat.given_seeds(caller)
    told: list[Any] = []
    made_seeds: list[tuple[Tensor, bool]] = []
    for place, seed in enumerate(seeds or ()):
        is_given = given is None or (place < len(given) and given[place] is not None)
        told.append(like_of(seed) if is_given and isinstance(seed, Tensor) else None)
        if not is_given and isinstance(seed, Tensor):
            made_seeds.append((seed, isinstance(roots[place], Tensor)))
    gatherers = {id(compat.leaf_of(node)): node for node in walk.edges} if inputs else {}
    tensors = [each for each in (*roots, *(seeds or ())) if isinstance(each, Tensor)]
    ends = [endpoint(each, gatherers) for each in inputs or ()]
    return EngineRequest(
        roots=tuple((edge, root_like(root)) for root, edge in zip(roots, edges, strict=True)),
        seeds=tuple(told),
        inputs=tuple(ends) if inputs else None,
        parts=frozenset([place for place, end in enumerate(ends) if is_part(inputs[place], end, roots, walk)]),
        retain_graph=bool(retain_graph),
        create_graph=bool(create_graph),
        accumulates=accumulates,
        is_transient=any(map(compat.is_transient, tensors)),
        made_seeds=made_seeds,
    )


def root_like(root: Any) -> Any:
    if isinstance(root, Tensor):
        return like_of(root)
    return compat.likes_of(root[0])[root[1]]


def endpoint(given: Any, gatherers: dict[int, Any]) -> Edge | None:
    """The edge that ``inputs=`` names; of a leaf, that of the node that gathers its gradient, if it was reached."""
    edge = edge_of(given)
    if edge is not None:
        return edge
    gatherer = gatherers.get(id(given))
    return None if gatherer is None else (gatherer, 0)


def is_part(given: Any, end: Edge | None, roots: Iterable[Any], walk: Walk) -> bool:
    """Whether ``inputs=`` names a copy of ours, and gradients come to where it was copied from on another way, too."""
    named = raw_edge(given)
    if end is None or named is None or named == end:
        return False
    ways = [raw_edge(root) for root in roots]
    ways += [way for node in walk.edges for way in node.next_functions if way[0] is not None]
    return any(way is not None and way != named and past_copies(*way) == end for way in ways)


def not_connected() -> BackwardRefused:
    return BackwardRefused(
        code="loss_not_connected",
        problem="the loss was not made from a value of this capture, so a backward from it reaches no op",
        remedy="make the loss from trace.output or from trace[...].out, with grad mode on",
    )
