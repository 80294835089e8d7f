"""What holds of the order of a forward's events, in any capture, made up or real.

Gives  ``ForwardOrder``, which refuses an event that speaks of something which was not told before, or tells something
       anew.
Rule   functions, code, call sites, operators, modules, parameters and module calls are numbered from 0 in the order
       they are told; a value is told once, before any event reads it; an event is spoken of by number after it.
Not    what may follow what (journal/lifecycle.py), or backward passes (diary_order.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from journal.events import (
    ArgumentsKept,
    BranchTaken,
    BufferSeen,
    BufferWritten,
    CallEscaped,
    CallSiteSeen,
    CodeSeen,
    ConstantKept,
    ConstantSeen,
    Event,
    ForwardAborted,
    ForwardHalted,
    ForwardReturned,
    ForwardStarted,
    ForwardWitnessed,
    FunctionSeen,
    GeneratorsKept,
    InputSeen,
    ModelDescribed,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    ModuleSeen,
    OperatorsDispatched,
    OperatorSeen,
    OpExecuted,
    OpLeft,
    OpRaised,
    OpStarted,
    OptimizerGiven,
    ParameterSeen,
    PayloadKept,
    PreHooksStarted,
    StatisticsTaken,
    TransformKept,
    ValueOverwritten,
    ValueReread,
    ValueTaken,
    WrittenUnseen,
)
from torchlens.testing.checking.refusing import require

__all__ = ["ForwardOrder"]


class ForwardOrder:
    """What a forward has told so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.values: set[int] = set()
        self.running: list[int] = []
        self.types: list[type[Event]] = []  # by number of the event

    def take(self, event: Event) -> None:
        self.judge(event)
        self.types.append(type(event))

    def judge(self, event: Event) -> None:
        match event:
            case ModelDescribed(modules=modules, parameters=parameters, buffers=buffers):
                self.counts.update(module=len(modules), parameter=len(parameters), buffer=len(buffers))
            case ModuleSeen(number=number):
                self.give("module", number)
            case ParameterSeen(number=number, source=source):
                self.read([source])
                self.give("parameter", number)
            case FunctionSeen(number=number):
                self.give("function", number)
            case OperatorSeen(number=number):
                self.give("operator", number)
            case CodeSeen(number=number):
                self.give("code", number)
            case CallSiteSeen(number=number, code=code, caller=caller):
                self.give("call site", number)
                self.have("code", code)
                self.have("call site", caller)
            case InputSeen(value=value):
                self.give_value(value)
            case ConstantSeen(value=value, inputs=inputs):
                self.read(inputs)
                self.give_value(value)
            case BufferSeen(value=value, buffer=buffer):
                self.have("buffer", buffer)
                self.give_value(value)
            case BufferWritten(value=value, buffer=buffer, source=source):
                self.have("buffer", buffer)
                self.read([source])
                self.give_value(value)
            case ValueReread(value=value, of=of, writer=writer):
                self.read([of, writer])
                self.give_value(value)
            case ForwardStarted(inputs=inputs):
                self.read(inputs)
            case PreHooksStarted(module=module, inputs=inputs):
                self.have("module", module)
                self.read(inputs)
            case ModuleEntered(module=module, site=site, inputs=inputs):
                self.have("module", module)
                self.have("call site", site)
                self.read(inputs)
                self.running.append(self.counts["module call"])
                self.counts["module call"] += 1
            case ModuleLeft(call=call, outputs=outputs):
                self.leave(call)
                self.read(outputs)
            case ModuleRaised(call=call):
                self.leave(call)
            case OpStarted() | OpRaised() | ValueTaken():
                self.call(event)
            case OpExecuted(first=first, outputs=outputs, writers=writers, written=written):
                self.call(event)
                self.read(writers or ())
                require(all(0 <= at < len(event.inputs) for at in written or ()), "a call writes what it was not given")
                for slot in range(len(outputs)):
                    self.give_value(first + slot)
            case BranchTaken(value=value, site=site, call=call):
                self.read([value])
                self.have("call site", site)
                self.have("module call", call)
            case OperatorsDispatched(function=function, calls=calls):
                self.have("function", function)
                for operator, *_ in calls:
                    self.have("operator", operator)
            case ForwardReturned(outputs=outputs):
                self.read(outputs)
            case ForwardHalted(at=at, outputs=outputs):
                self.told(at)
                self.read(outputs)
            case ForwardAborted(at=at, value=value):
                self.told(at)
                self.read([value])
            case OpLeft(started=started):
                self.told(started, OpStarted)
            case ArgumentsKept(of=of):
                self.told(of, OpExecuted, ModuleEntered, PreHooksStarted)
            case GeneratorsKept(of=of):
                self.told(of, OpExecuted)
            case OptimizerGiven(parameters=parameters):
                for number in parameters:
                    self.have("parameter", number)
            case CallEscaped(operator=operator, site=site, call=call):
                self.have("operator", operator)
                self.have("call site", site)
                self.have("module call", call)
            case PayloadKept() | StatisticsTaken() | TransformKept() | ValueOverwritten():
                self.read([event.value])
            case ConstantKept(value=value) | WrittenUnseen(value=value):
                self.read([value])
            case ForwardWitnessed(parameters=parameters, buffers=buffers):
                self.read([value for value, _ in (*event.inputs, *event.outputs)])
                for number, _ in (*parameters, *event.layouts):
                    self.have("parameter", number)
                for number, _ in buffers:
                    self.have("buffer", number)
                for numbers in event.shared:
                    for number in numbers:
                        self.have(*(("buffer", number) if number >= 0 else ("parameter", -1 - number)))
            case _:
                pass

    def call(self, event: OpStarted | OpRaised | OpExecuted | ValueTaken) -> None:
        self.have("function", event.function)
        self.have("call site", event.site)
        self.have("module call", event.call)
        self.read(event.inputs)

    def told(self, at: int, *types: type[Event]) -> None:
        """An event that was told, of one of some types where these are given."""
        require(0 <= at < len(self.types), f"event {at} is spoken of before it is told")
        require(not types or issubclass(self.types[at], types), f"event {at} is none that this may speak of")

    def give(self, kind: str, number: int) -> None:
        require(number == self.counts[kind], f"{kind} {number} is told where {self.counts[kind]} is next")
        self.counts[kind] += 1

    def have(self, kind: str, number: int | None) -> None:
        """A number that was told; None speaks of nothing."""
        require(number is None or 0 <= number < self.counts[kind], f"{kind} {number} was not told before")

    def give_value(self, value: int) -> None:
        require(value >= 0 and value not in self.values, f"value {value} is told twice")
        self.values.add(value)

    def read(self, inputs: Iterable[int | None]) -> None:
        for number in inputs:
            if number is not None and number < 0:
                self.have("parameter", -1 - number)
            else:
                require(number is None or number in self.values, f"value {number} is read before it is told")

    def leave(self, call: int) -> None:
        require(bool(self.running) and self.running[-1] == call, f"module call {call} is left and is not the innermost")
        self.running.pop()
