"""The dispatch mode that is on while the engine runs: what it tells of each operator that the dispatcher runs.

Gives  `BackwardDispatched` events, for each pass with a census whose run an operator belongs to; and, where a run makes
       a graph, which node ran at each operator (making.py).
Rule   one mode is on, however runs nest: each operator is told once, in the innermost run.
       It holds nothing of a pass beyond the run, and raises nothing: what goes wrong is told to the diary.
Not    what these operators cost (projections); the operators of our own copies, which no mode hears of (keeping.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, Final, Protocol

import attrs
from torch import Tensor, nn

from journal.events import BackwardDispatched, Row
from journal.events.backward import Operand
from journal.events.base import Plain
from torchlens import compat
from torchlens.tensors import like_of

__all__ = ["Dispatches", "Run", "Telling", "mode_on", "seed_row"]

DISPATCHED: Final = BackwardDispatched.type_id

SETTINGS_MATTER: Final = ("convolution", "conv2d", "flash_attention", "efficient_attention", "cudnn_attention")
"""Parts of the names of operators whose work depends on arguments that are no tensors."""

_task = compat.running_task
_node = compat.running_node
_grad_enabled = compat.grad_enabled
_function_mode_on = compat.function_mode_on


class OperatorDiary(Protocol):
    """A diary, as far as it is told of operators."""

    is_armed: bool

    @property
    def tasks(self) -> Mapping[int, object]:
        """What its hooks know of the runs that go on, by graph task."""

    def failed(self, error: Exception) -> None:
        """Something went wrong: nothing more is recorded."""


@attrs.frozen(eq=False)
class Telling:
    """What tells the operators of one pass.

    Attributes:
        diary: Of the pass.
        number: Of the pass.
        pending: The rows of the stream.
        chunk: Rows that are flushed together.
        flush: Flushes them.
        numbers: Number of each node that fires in the pass.
        is_others: Whether a node that is not among these belongs to another capture.
    """

    diary: OperatorDiary
    number: int
    pending: list[Row]
    chunk: int
    flush: Callable[[], None]
    numbers: Mapping[Any, int]
    is_others: Callable[[Any], bool]


@attrs.define(eq=False)
class Run:
    """A run of the engine that the mode is told of.

    Attributes:
        tellings: Of its passes that have a census.
        task: Its graph task, once an operator has run in it.
    """

    tellings: tuple[Telling, ...]
    task: int | None = None


@attrs.frozen(eq=False)
class Plan:
    """What is looked at when an operator is called.

    Attributes:
        name: As `BackwardDispatched.operator`.
        call: Calls it.
        behind: The place behind its last tensor argument.
        writes: Whether it writes an argument, whose shape it may change.
        settings: The places of arguments that are no tensors, where its work depends on them.
    """

    name: str
    call: Callable[..., Any]
    behind: int
    writes: bool
    settings: tuple[int, ...] | None


_plans: Final[dict[Any, Plan]] = {}


def plan_of(func: Any) -> Plan:
    """The plan of an operator, made at its first call."""
    name = compat.operator_name(func)
    arguments = compat.arguments_of(func)
    if arguments is None:
        plan = Plan(name, func, -1, False, None)
    else:
        tensors = [place for place, (_, is_tensor) in enumerate(arguments) if is_tensor]
        settings = None
        if any(part in name for part in SETTINGS_MATTER):
            settings = tuple([place for place, (_, is_tensor) in enumerate(arguments) if not is_tensor])
        behind = 1 + max(tensors, default=-1)
        plan = Plan(name, compat.caller_of(func), behind, compat.op_writes(func), settings)
    _plans[func] = plan
    return plan


class Dispatches(compat.QuickMode):
    """Tells of every operator; changes none."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()
        self.makers: list[tuple[int, Any]] | None = None  # which node ran at which number, where that is noted
        self._runs: list[Run] = []
        self._by_task: dict[int, tuple[Telling, ...]] = {}
        self._operands: dict[Any, dict[Any, Operand]] = {}  # by dtype and shape: most are met again

    # -- runs

    def begin(self, run: Run) -> None:
        self._runs.append(run)

    def end(self, run: Run) -> None:
        """A run is over, and those that were begun within it."""
        if run in self._runs:
            place = self._runs.index(run)
            for ended in self._runs[place:]:
                if ended.task is not None:
                    self._by_task.pop(ended.task, None)
            del self._runs[place:]

    @property
    def is_telling(self) -> bool:
        """Whether a run is told of."""
        return bool(self._runs)

    def tells(self, diary: object, task: int) -> bool:
        """Whether an operator that runs now is told to a diary."""
        return any(telling.diary is diary for telling in self._by_task.get(task) or self._belonging(task))

    def _belonging(self, task: int) -> tuple[Telling, ...]:
        """What tells the operators of a graph task not met before."""
        if task == -1 or not self._runs:
            return ()
        run = self._runs[-1]
        if run.task is None:  # nothing but this run can have begun
            run.task = task
            self._by_task[task] = run.tellings
            return run.tellings
        # A run within this one that nobody announced: that of an implicit pass, which has no census, or of no pass.
        return tuple([telling for telling in run.tellings if task not in telling.diary.tasks])

    # -- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = _plans.get(func)
        if plan is None:
            plan = plan_of(func)
        if self.makers is not None:
            self._note_maker(self.makers)
        task = _task()
        tellings = self._by_task.get(task)
        if tellings is None:
            tellings = self._belonging(task)
        if not tellings:
            return plan.call(*args, **kwargs) if kwargs else plan.call(*args)
        inputs = self._guarded(tellings, self._inputs, plan, args, kwargs) if plan.writes else None
        result = plan.call(*args, **kwargs) if kwargs else plan.call(*args)
        self._guarded(tellings, self._tell, tellings, plan, args, kwargs, inputs, result)
        return result

    def _guarded(self, tellings: tuple[Telling, ...], does: Callable[..., Any], *given: Any) -> Any:
        """Do it, and let no function mode of the user's see it; what goes wrong is the diaries'."""
        try:
            if _function_mode_on():
                with compat.NoTorchFunction():
                    return does(*given)
            return does(*given)
        except Exception as error:  # noqa: BLE001  # the user's backward goes on
            for telling in tellings:
                telling.diary.failed(error)
            return None

    def _note_maker(self, makers: list[tuple[int, Any]]) -> None:
        entry = (compat.sequence_number(), _node())
        if makers and makers[-1][1] is entry[1]:
            makers[-1] = entry  # a node belongs to the first entry with a larger number
        else:
            makers.append(entry)

    def _tell(
        self, tellings: tuple[Telling, ...], plan: Plan, args: Any, kwargs: Any, inputs: Any, result: Any
    ) -> None:
        if inputs is None:
            inputs = self._inputs(plan, args, kwargs)
        kind = type(result)
        outputs = self._operands_in((result,) if kind is not tuple and kind is not list else result)
        settings = None if plan.settings is None else settings_of(plan.settings, args)
        node = _node()
        for telling in tellings:
            if telling.diary.is_armed:
                number = telling.numbers.get(node)
                is_elsewhere = number is None and node is not None and telling.is_others(node)
                row = (
                    *(DISPATCHED, monotonic_ns(), telling.number, plan.name, number, is_elsewhere, _grad_enabled()),
                    *(inputs, outputs, settings),
                )
                pending = telling.pending
                pending.append(row)
                if len(pending) >= telling.chunk:
                    telling.flush()

    def _inputs(self, plan: Plan, args: Any, kwargs: Any) -> tuple[Operand, ...]:
        behind = plan.behind
        if not kwargs:
            return self._operands_in(args if behind < 0 else args[:behind])
        return self._operands_in((*args, *kwargs.values()))

    def _operands_in(self, values: Sequence[Any]) -> tuple[Operand, ...]:
        """Shape and dtype of each tensor among some values, and within lists among them."""
        found: list[Operand] = []
        for value in values:
            kind = type(value)
            if kind is Tensor or kind is nn.Parameter:
                try:
                    found.append(self._operands[value.dtype][value.shape])
                except (KeyError, RuntimeError):  # not met before, or nested
                    found.append(self._operand(value))
            elif kind is list or kind is tuple:
                found += self._operands_in(value)
            elif isinstance(value, Tensor):
                with compat.NoTorchFunction():
                    found.append(self._operand(value))
        return tuple(found)

    def _operand(self, tensor: Tensor) -> Operand:
        shape, dtype, _ = like_of(tensor)
        return self._operands.setdefault(tensor.dtype, {}).setdefault(shape, (shape, dtype))


def settings_of(places: tuple[int, ...], args: Sequence[Any]) -> tuple[Plain, ...]:
    """The arguments at these places, as far as they were given, as plain data."""
    return tuple([plain(args[place]) for place in places if place < len(args)])


def plain(value: Any) -> Plain:
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def mode_on() -> Dispatches | None:
    """The mode of a run around this one, on this thread."""
    return next((mode for mode in compat.dispatch_modes() if isinstance(mode, Dispatches)), None)


def seed_row(number: int, seed: Tensor, like_root: bool) -> Row:
    """The row of the operator by which torch has made the gradient of a root, in no node.

    Args:
        number: Of the pass.
        seed: What it made.
        like_root: Whether it was made from a tensor, and not for an edge.
    """
    shape, dtype, _ = like_of(seed)
    operand = ((shape, dtype),)
    name, inputs = ("aten.ones_like.default", operand) if like_root else ("aten.ones.default", ())
    return (DISPATCHED, monotonic_ns(), number, name, None, False, _grad_enabled(), inputs, operand, None)
