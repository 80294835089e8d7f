"""What runs at each autograd node: one hook before it and one after it, and the tape that they append to.

Rule   from a hook no path leads to a node, or the graph would never be freed: hooks hold the diary weakly, and numbers.
       What goes wrong in a hook is told to the diary; a hook raises nothing.
Rule   what arrives at a node is told as its tensors got it: before prehooks of the user's on the node. What arrives at
       the node of a leaf is told as it is added: behind them.
Note   A prehook sees the gradients after every hook on a tensor, also those that were put on later.
       The span of a node begins when ours has done its work, and ends when the hook after the node begins.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from time import monotonic_ns
from typing import Any, Final, Protocol

import attrs
from torch import Tensor

from journal.events import At, GradientObserved, GradientStatisticsTaken, NodeFired, Row, Side
from torchlens import compat
from torchlens.backward.keeping import Keep, Waiting
from torchlens.backward.policy import WHOLE, Kept, Policy
from torchlens.measuring import measured
from torchlens.tensors import like_of

__all__ = ["Handle", "HookedDiary", "MeasuringTape", "Tape", "hook"]

FIRED: Final = NodeFired.type_id
OBSERVED: Final = GradientObserved.type_id
MEASURED: Final = GradientStatisticsTaken.type_id

_task = compat.running_task
_next_number = compat.sequence_number


class Handle(Protocol):
    """What takes a hook off."""

    def remove(self) -> None: ...


class HookedDiary(Protocol):
    """A diary, as its hooks know it."""

    def entered(self, task: int, node: int) -> Tape | None:
        """The tape of a graph task not met before; None where its run is none of this capture's."""

    def met(self, tape: Tape, node: int) -> None:
        """A node fires that the run was not told of."""

    def failed(self, error: Exception) -> None:
        """Something went wrong in a hook: nothing more is recorded."""


@attrs.define(slots=True, eq=False)
class Tape:
    """What the hooks of one pass need of it, and what they leave."""

    number: int  # of the pass
    pending: list[Row]
    chunk: int  # rows that are flushed together
    flush: Callable[[], None]
    keep: Keep
    policy: Policy
    kept: dict[int, Kept] = attrs.field(factory=dict)  # by node
    begun: dict[int, int | None] = attrs.field(factory=dict)  # by node, when it began; None once it has ended
    missing: dict[int, tuple[int, ...]] = attrs.field(factory=dict)  # of those that run: outputs without a gradient
    sequences: dict[int, int] | None = None  # under create_graph, the next node's number as a node began
    told: set[int] | None = None  # of an implicit pass, the nodes that it was told of
    is_odd: bool = False  # whether either of these two is told
    keeps_sent: bool = False  # whether what some node sends on is kept
    waiting: Waiting = attrs.field(factory=list)

    def tells_more(self, *, sequences: bool = False, told: bool = False) -> None:
        """Have more told of each firing than of most: numbers of nodes made meanwhile, or that it is met."""
        self.sequences = {} if sequences else self.sequences
        self.told = set() if told else self.told
        self.is_odd = True

    def keep_more(self, kept: Mapping[int, Kept]) -> None:
        """Take what is kept at nodes that were found."""
        self.kept.update(kept)
        self.keeps_sent = self.keeps_sent or any(wanted.inputs for wanted in kept.values())

    def observe(
        self,
        node: int,
        side: Side,
        gradients: tuple[Tensor | None, ...],
        slots: Container[int] | None,
        *,
        is_leaf: bool,
    ) -> None:
        """Tell of the gradients in these slots, or in all where it is None, and of what a leaf gets."""
        for slot, gradient in enumerate(gradients):
            if gradient is not None:
                keeps = slots is None or slot in slots
                if keeps or is_leaf:
                    self.tell(node, side, slot, gradient, keeps=keeps)

    def tell(self, node: int, side: Side, slot: int, gradient: Tensor, *, keeps: bool) -> None:
        if type(gradient) is not Tensor:  # a subclass of the user's is not asked
            with compat.NoTorchFunction():
                payload, like = (self.keep(gradient) if keeps else None), like_of(gradient)
        else:
            payload, like = (self.keep(gradient) if keeps else None), like_of(gradient)
        self.pending.append((OBSERVED, monotonic_ns(), self.number, node, side, slot, like, payload))


@attrs.define(slots=True, eq=False)
class MeasuringTape(Tape):
    """A tape that takes statistics in place of gradients.

    Attributes:
        next_at: Gives the number that the next event of the stream has.
    """

    next_at: Callable[[], At] = attrs.field(kw_only=True)

    def tell(self, node: int, side: Side, slot: int, gradient: Tensor, *, keeps: bool) -> None:
        at = self.next_at()
        super().tell(node, side, slot, gradient, keeps=False)
        if keeps:
            self.pending.append((MEASURED, monotonic_ns(), at, measured(compat.detach(gradient))))


class Hooks:
    """The two hooks of one node.

    Args:
        number: The node's.
        tasks: The tapes of the runs that go on, by graph task.
        diary: Whose they are; a weak reference.
        is_leaf: Whether the node gathers the gradient of a leaf.
    """

    __slots__ = ("diary", "is_leaf", "number", "tasks")

    def __init__(
        self, number: int, tasks: dict[int, Tape], diary: Callable[[], HookedDiary | None], is_leaf: bool
    ) -> None:
        self.number = number
        self.tasks = tasks
        self.diary = diary
        self.is_leaf = is_leaf

    def before(self, gradients: tuple[Tensor | None, ...]) -> None:
        try:
            number = self.number
            tape = self.tasks.get(_task())
            if tape is None or tape.is_odd:
                tape = oddly_begun(tape, self.diary(), number)
                if tape is None:
                    return
            if number in tape.begun:  # a hook that an interrupt has left on the node has told it
                return
            wanted = tape.kept.get(number)
            if wanted is WHOLE and len(gradients) == 1 and (gradient := gradients[0]) is not None:  # as most are
                tape.tell(number, "output", 0, gradient, keeps=True)
            else:
                is_leaf = self.is_leaf
                if wanted is not None or is_leaf:
                    slots: Container[int] | None = () if wanted is None else wanted.outputs
                    tape.observe(number, "output", gradients, slots, is_leaf=is_leaf)
                for gradient in gradients:
                    if gradient is None:
                        tape.missing[number] = tuple([slot for slot, each in enumerate(gradients) if each is None])
                        break
            tape.begun[number] = monotonic_ns()
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            tell_failure(self.diary, error)

    def after(self, sent: tuple[Tensor | None, ...], gradients: tuple[Tensor | None, ...]) -> None:
        end = monotonic_ns()
        try:
            tape = self.tasks.get(_task())
            if tape is None:
                return
            number, begun = self.number, tape.begun
            start = begun.get(number)
            if start is None:
                return
            begun[number] = None
            missing = tape.missing.pop(number, ()) if tape.missing else ()
            sequence = None if tape.sequences is None else (tape.sequences[number], _next_number())
            if tape.keeps_sent and (wanted := tape.kept.get(number)) is not None and wanted.inputs:
                tape.observe(number, "input", sent, None, is_leaf=False)
            pending = tape.pending
            pending.append((FIRED, start, tape.number, number, end - start, missing, sequence))
            if len(pending) >= tape.chunk:
                tape.flush()
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            tell_failure(self.diary, error)


class HooksOfParameter(Hooks):
    """Those of the node that gathers the gradient of a parameter.

    The node fires also where the parameter requires no gradient any more, and then adds nothing: no gradient is told.
    """

    __slots__ = ("parameter",)

    def __init__(
        self,
        number: int,
        tasks: dict[int, Tape],
        diary: Callable[[], HookedDiary | None],
        parameter: Callable[[], Tensor | None],
    ) -> None:
        super().__init__(number, tasks, diary, is_leaf=True)
        self.parameter = parameter

    def before(self, gradients: tuple[Tensor | None, ...]) -> None:
        parameter = self.parameter()
        super().before(gradients if parameter is None or parameter.requires_grad else ())


def hook(
    node: Any,
    number: int,
    tasks: dict[int, Tape],
    diary: Callable[[], HookedDiary | None],
    *,
    is_leaf: bool,
    parameter: Callable[[], Tensor | None] | None = None,
) -> tuple[Handle, Handle]:
    """Put the two hooks on a node; ``parameter`` is a weak reference to that of a leaf that is one."""
    hooks = (
        Hooks(number, tasks, diary, is_leaf) if parameter is None else HooksOfParameter(number, tasks, diary, parameter)
    )
    before = node.register_prehook(hooks.before)
    if not is_leaf:
        compat.put_first(before)
    return before, node.register_hook(hooks.after)


def oddly_begun(tape: Tape | None, diary: HookedDiary | None, number: int) -> Tape | None:
    """The tape of a firing that is its first, or of which more is to be told."""
    if diary is None:
        return tape
    if tape is None:
        tape = diary.entered(_task(), number)
    if tape is not None and tape.told is not None and number not in tape.told:
        diary.met(tape, number)
    if tape is not None and tape.sequences is not None:
        tape.sequences[number] = _next_number()
    return tape


def tell_failure(diary: Callable[[], HookedDiary | None], error: Exception) -> None:
    held = diary()
    if held is not None:
        held.failed(error)
