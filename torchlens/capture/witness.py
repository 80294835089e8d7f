"""A recorder that also accounts for what the dispatcher runs, and stops at values that are not finite. Opt-in.

Below Python every torch call becomes operators, which a dispatch mode sees one by one. Each is put down to the
innermost wrapped call that is open in that moment; what runs while none is open came to torch past the
wrappers, and is an escape. A dispatch mode is used and no function mode: that one would see Python's names, but torch
itself asks whether one is on and then leaves its fused paths, so that the model would run otherwise.

Nothing here is part of a default capture: its recorder is the plain one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic_ns
from typing import Any, Final

import attrs
from torch import Tensor

from journal.events import CallEscaped, OperatorsDispatched, OperatorSeen, Owner
from torchlens import compat
from torchlens.capture import wrap
from torchlens.capture.bare import bindings, model_frame
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.facts import shape_of
from torchlens.capture.functions import Function
from torchlens.capture.overwritten import Asked, overwritten
from torchlens.capture.recorder import Halt, Recorder
from torchlens.capture.template import leaves
from torchlens.measuring import nonfinite_in

_get_ident = threading.get_ident

DISPATCHED: Final = OperatorsDispatched.type_id

MAX_BINDINGS: Final = 8
"""Most places named for one escape."""


class Nonfinite(Halt):
    """Leaves the forward at a value that is not finite; the model's own ``except Exception`` does not catch it."""

    def __init__(self, at: int, value: int, num_nan: int, num_inf: int) -> None:
        super().__init__(at, "a value is not finite", ())
        self.value = value
        self.num_nan = num_nan
        self.num_inf = num_inf


@attrs.define(slots=True, eq=False)
class Open:
    """A wrapped call that is open, and what the dispatcher has run for it."""

    function: Function | None
    owner: Owner = "question"
    by: int | None = None
    calls: list[Any] = attrs.field(factory=list)


class WitnessRecorder(Recorder):
    """The recorder, told of the operators below its calls.

    Args:
        verify: Account for every dispatched operator.
        forbidden: ``"nonfinite"`` stops the forward at the first NaN or infinity that an op returns or writes,
            ``"nan"`` at the first NaN; None at neither.
    """

    __slots__ = (
        "_by_operator",
        "_engine",
        "_forbidden",
        "_frame",
        "_made_at",
        "_ours",
        "_overwritten",
        "_proxies",
        "_returned",
        "_verify",
        "_watched",
        "_wrote",
    )

    def __init__(self, *args: Any, verify: bool, forbidden: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verify = verify
        self._forbidden = forbidden
        self._ours = 0  # how deep in the recorder's own work, whose operators are no model's
        self._frame: Open | None = None  # the innermost open call
        self._returned: Open | None = None  # the call whose original returned last
        self._made_at: int | None = None
        self._overwritten: set[int] = set()  # values told of as such
        self._wrote: list[Tensor] = []  # arguments that the call wrote
        self._proxies: dict[Function, Function] = {}  # watched function -> one whose original tells when it runs
        self._watched: dict[Function, Function] = {}  # and back: records and handles name the watched one
        self._by_operator: dict[Any, int] = {}
        self._engine: deque[Any] = deque()  # operators that the autograd engine ran on threads of its own

    # -- the borders between the model's work and ours ----------------------------------------------

    @contextlib.contextmanager
    def _our_work(self) -> Iterator[None]:
        """Operators inside are no model's, but for those of a call that is open."""
        self._ours += 1
        try:
            yield
        finally:
            self._ours -= 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with self._our_work(), super().working():
            yield

    def _inside(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The original of a wrapped call: from here on operators are put down to it."""
        outer, ours = self._frame, self._ours
        frame = self._frame = self._opening()
        self._ours = 0
        try:
            return original(*args, **kwargs)
        finally:
            self._frame, self._ours = outer, ours
            self._returned = frame

    def _theirs(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A module's forward, or user code that a call only hands on to: no call of torch is open in it."""
        outer, ours = self._frame, self._ours
        self._frame, self._ours = None, 0
        try:
            return original(*args, **kwargs)
        finally:
            self._frame, self._ours = outer, ours

    def _opening(self) -> Open:
        frame = self._returned
        assert frame is not None  # set by whoever is about to make the call
        return frame

    def _proxy(self, function: Function) -> Function:
        made = self._proxies.get(function)
        if made is None:
            original = functools.partial(self._inside, function.original)
            made = self._proxies[function] = attrs.evolve(function, original=original)
            self._watched[made] = function
        return made

    def _function(self, function: Function) -> int:
        return Recorder._function(self, self._watched.get(function, function))

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or _get_ident() != self.thread:
            return Recorder.called(self, function, args, kwargs)
        return self._accounted(Open(function), Recorder.called, self._proxy(function), args, kwargs)

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        if self.paused or _get_ident() != self.thread:
            return Recorder.applied(self, function, args, kwargs, watched)
        if watched:
            return self._handed_on(function, args, kwargs)
        frame = Open(function, "opaque")
        return self._accounted(frame, Recorder.applied, self._proxy(function), args, kwargs, watched)

    def _handed_on(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that runs user code, whose calls are ops of their own."""
        frame = Open(function)

        def theirs(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._theirs(function.original, *args, **kwargs)
            finally:
                self._returned = frame

        OWN_CODE.add(theirs.__code__)
        proxy = attrs.evolve(function, original=theirs)
        self._watched[proxy] = function
        with self._our_work():
            return Recorder.applied(self, proxy, args, kwargs, True)

    def transparent(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or _get_ident() != self.thread:
            return Recorder.transparent(self, original, args, kwargs)
        inside = functools.partial(self._inside, original)
        return self._accounted(Open(None, "opaque"), Recorder.transparent, inside, args, kwargs)

    def unwatched(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused or _get_ident() != self.thread:
            return Recorder.unwatched(self, original, args, kwargs)
        if self._frame is not None and not self._ours:  # a subclass's own code, in a call that is open
            return Recorder.unwatched(self, original, args, kwargs)
        inside = functools.partial(self._inside, original)
        return self._accounted(Open(None, "opaque"), Recorder.unwatched, inside, args, kwargs)

    def _accounted(self, frame: Open, record: Callable[..., Any], *given: Any) -> Any:
        """Make a call through the recorder, then tell which operators ran for it, and what it was."""
        before = self.values
        self._returned = frame
        try:
            with self._our_work():
                result = record(self, *given)
                if frame.by is None and frame.owner == "question" and frame.calls:
                    is_made_inside = self.values != before and any(True for _ in leaves(result))
                    frame.owner = "composite" if is_made_inside or stands_for_tensors(result) else "question"
                return result
        except BaseException:
            if frame.by is None:
                frame.owner = "raised"
            raise
        finally:
            if frame.calls:
                self._tell(frame.owner, frame.by, frame.function, frame.calls)

    def module_called(
        self, number: int, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.paused or _get_ident() != self.thread:
            return Recorder.module_called(self, number, original, args, kwargs)
        theirs = functools.partial(self._theirs, original)
        with self._our_work():
            return Recorder.module_called(self, number, theirs, args, kwargs)

    def asked_truth(self, tensor: Any, result: bool) -> None:
        with self._our_work():
            Recorder.asked_truth(self, tensor, result)

    def escaping(self, tensor: Any, name: str) -> None:
        with self._our_work():
            Recorder.escaping(self, tensor, name)

    def data_replaced(self, tensor: Any, source: Any) -> None:
        with self._our_work():
            Recorder.data_replaced(self, tensor, source)

    def buffer_assigned(self, tensor: Tensor, number: int) -> None:
        with self._our_work():
            Recorder.buffer_assigned(self, tensor, number)

    # -- what became of a call -------------------------------------------------------------------

    def _executed(
        self,
        function: Function,
        template: tuple[Any, ...],
        named: tuple[Any, ...],
        inputs: list[int],
        tensors: list[Tensor],
        result: Any,
        start: int,
        duration: int,
        rng: int | None,
        written: list[int] | None,
        place: Any,
    ) -> None:
        frame, before = self._returned, self.values
        self._made_at, self._wrote = None, []
        if self._verify and self.keeper.exposed:
            self._look_at_exposed(inputs, tensors, written or ())
        try:
            watched = self._watched.get(function, function)
            given = (watched, template, named, inputs, tensors, result, start, duration, rng, written, place)
            Recorder._executed(self, *given)
        finally:
            if self.values != before:
                if self._made_at is None:
                    self._made_at = self.writer.next_at() - 1
                if frame is not None:
                    frame.by = self._made_at
                    frame.owner = "opaque" if function.opaque else "op"
        if self._forbidden is not None and self._made_at is not None:
            self._require_finite(self._made_at, before, result)

    def _look_at_exposed(self, inputs: list[int], tensors: list[Tensor], written: Sequence[int]) -> None:
        """Tell which arguments on memory that was handed out are not what was kept of them, each once.

        Left out are those that this call, or a recorded one before it, wrote.
        """
        own = {self._storage_number(inputs[position]) for position in written}
        asked: list[Asked] = []
        for value, tensor in zip(inputs, tensors, strict=True):
            storage = self._storage_number(value)
            if storage is None or storage in own or storage not in self.keeper.exposed or value in self._overwritten:
                continue
            if value >= 0 and self._writers.get(storage, -1) <= value:
                asked.append((value, tensor, storage))
        with self.working():
            found = set(overwritten(self.keeper, asked))
        self._overwritten |= found
        self._tell_overwritten(found)

    def _was_written(self, inputs: list[int], tensors: list[Tensor], written: list[int], first: int) -> None:
        self._made_at = self.writer.next_at() - 1  # events of the buffers that were written follow
        self._wrote = [tensors[position] for position in written]
        Recorder._was_written(self, inputs, tensors, written, first)

    def _require_finite(self, at: int, first: int, result: Any) -> None:
        """Look at what a call returned and wrote; what cannot be looked at is passed over."""
        made = {id(tensor): (first + position, tensor) for position, (_, tensor) in enumerate(leaves(result))}
        for tensor in self._wrote:
            value = self.value_of(tensor)  # a new one of a buffer; other memory stands for the first result
            made.setdefault(id(tensor), (first if value is None or value < first else value, tensor))
        for value, tensor in made.values():
            with self.working():
                num_nan, num_inf = nonfinite_in(tensor) or (0, 0)
            if num_nan or (num_inf and self._forbidden == "nonfinite"):
                raise self._left_with(Nonfinite(at, value, num_nan, num_inf))

    # -- what the dispatcher ran -------------------------------------------------------------------

    def dispatched(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operator has returned."""
        if self.left is not None or (self._ours and _get_ident() == self.thread):
            return
        given = shapes_in(*args) if not kwargs else shapes_in(*args, *kwargs.values())
        made = shapes_in(result)
        if _get_ident() != self.thread:
            self._engine.append((operator, compat.grad_enabled(), given, made))
            return
        row = (self._operator(operator), compat.grad_enabled(), given, made)
        if compat.running_node() is not None:
            self._tell("engine", None, None, [row])
        elif self._frame is not None:
            self._frame.calls.append(row)
        elif made and not isinstance(operator, compat.OP_OVERLOAD) and self._all_labelled(result):
            self._tell("opaque", None, None, [row])  # it only ran the model's own code
        elif made:
            self._escaped(operator, row)
        else:
            self._tell("question", None, None, [row])

    def _operator(self, operator: Any) -> int:
        number = self._by_operator.get(operator)
        if number is None:
            number = self._by_operator[operator] = len(self._by_operator)
            self.note(OperatorSeen(number=number, name=compat.operator_name(operator)))
        return number

    def _tell(self, owner: Owner, by: int | None, function: Function | None, calls: list[Any]) -> None:
        known = None
        if function is not None:
            known = self._function(function) if owner == "composite" else self._functions.get(function)
        self._append((DISPATCHED, monotonic_ns(), owner, by, known, tuple(calls)))

    def _escaped(self, operator: Any, row: Any) -> None:
        with self._our_work():
            frame = model_frame(sys._getframe(1))
            watched = wrap.wrappers()
            bound = list(itertools.islice(bindings(frame, watched.bare), MAX_BINDINGS))
            name = compat.op_name(operator)[0]
            candidates = {function.qualname for function in watched.functions if function.func_name == name}
            self.note(
                CallEscaped(
                    operator=row[0],
                    site=self.sites.at(frame),
                    call=self.call,
                    candidates=tuple(sorted(candidates | {function.qualname for _, function in bound})),
                    bound=tuple([place for place, _ in bound]),
                )
            )
            self._tell("nobody", None, None, [row])

    def watching(self) -> AbstractContextManager[Any]:
        """The context in which the forward runs."""
        return _witnessed(self) if self._verify else contextlib.nullcontext()

    def tell_of_others(self) -> None:
        """Tell also what the engine ran on its own threads."""
        Recorder.tell_of_others(self)
        while self._engine:
            operator, *rest = self._engine.popleft()
            self._tell("engine", None, None, [(self._operator(operator), *rest)])


class Witness(compat.DispatchMode):  # type: ignore[misc, valid-type]  # a class that torch builds
    """Tells a recorder of every operator; changes none."""

    supports_higher_order_operators = True
    is_witness = True

    def __init__(self, recorder: WitnessRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if isinstance(func, compat.OP_OVERLOAD):
            result = compat.run_overload(func, *args, **given)
        else:
            result = func(*args, **given)
        with compat.NoTorchFunction():
            self.recorder.dispatched(func, args, given, result)
        return result


@contextlib.contextmanager
def _witnessed(recorder: WitnessRecorder) -> Iterator[None]:
    """A witness is on, and a subclass of ``Tensor`` can be made of a tensor all the same.

    Where a mode hears of the alias that such a class is made on, that alias has a Python object of its own, and torch
    refuses to give it another one.
    """
    witness, own = Witness(recorder), compat.TENSOR_BASE.__new__

    def __new__(kind: type, *args: Any, **kwargs: Any) -> Any:
        if kind is Tensor:
            return own(kind, *args, **kwargs)
        with compat.without_mode(witness):
            return own(kind, *args, **kwargs)

    OWN_CODE.add(__new__.__code__)
    try:
        Tensor.__new__ = staticmethod(__new__)  # type: ignore[assignment]  # for the length of the forward
        with witness:
            yield
    finally:
        del Tensor.__new__


def shapes_in(*values: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of the tensors among some values and within them, in order."""
    made: list[tuple[int, ...]] = []
    for value in values:
        if isinstance(value, Tensor):
            made.append(shape_of(value))
        elif type(value) in (list, tuple, dict):
            made += [shape_of(tensor) for _, tensor in leaves(value)]
    return tuple(made)


def stands_for_tensors(result: Any) -> bool:
    """Whether something is no tensor and stands for some by torch's protocol: whatever it holds, no op tells of it."""
    parts = result if type(result) in (list, tuple) else (result,)
    return any(hasattr(type(part), "__torch_function__") and not isinstance(part, Tensor) for part in parts)


OWN_CODE.update(
    method.__code__
    for method in (
        WitnessRecorder._inside,
        WitnessRecorder._theirs,
        WitnessRecorder._handed_on,
        WitnessRecorder.called,
        WitnessRecorder.applied,
        WitnessRecorder.transparent,
        WitnessRecorder.unwatched,
        WitnessRecorder.module_called,
        WitnessRecorder._accounted,
        WitnessRecorder._escaped,
        WitnessRecorder.dispatched,
        WitnessRecorder.asked_truth,
        WitnessRecorder._executed,
        inspect.unwrap(Witness.__torch_dispatch__),
    )
)
wrap.CALLING_CODE.add(WitnessRecorder._inside.__code__)
