"""Captures that could have happened, event by event, as hypothesis draws them.

Gives  ``capture_streams``, with their backward passes (passes.py); ``write_stream``, which puts one into a journal.
Rule   In a capture stream every number is given before it is used and is dense: values, functions, code,
       call sites, module calls, payloads, autograd nodes, passes. Modules, parameters and buffers are those that were
       described.
Not    single events without a meaning (events.py).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import attrs
from hypothesis import strategies as st

from journal.events import (
    DESCRIPTION,
    MODE_GRAD,
    ArgumentsKept,
    BranchTaken,
    BufferSeen,
    BufferWritten,
    CallEscaped,
    CallSiteSeen,
    CaptureCalled,
    CaptureRequested,
    CaptureSettled,
    CheckpointEntered,
    CheckpointLeft,
    CheckpointUnpacked,
    CheckpointUnwitnessed,
    ClassDescribed,
    CodeSeen,
    ConstantKept,
    ConstantSeen,
    Event,
    ExceptionTraced,
    Figures,
    ForwardAborted,
    ForwardHalted,
    ForwardInterrupted,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    ForwardWitnessed,
    FunctionSeen,
    GeneratorsKept,
    GradientKept,
    GradientObserved,
    InputSeen,
    ModelDescribed,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    OperatorsDispatched,
    OperatorSeen,
    OpExecuted,
    OpLeft,
    OpRaised,
    OpStarted,
    OptimizerGiven,
    Owner,
    PayloadKept,
    PreHooksStarted,
    SavedForBackward,
    StatisticsTaken,
    StreamOpened,
    ThreadCalled,
    TransformKept,
    Unwitnessed,
    ValueOverwritten,
    ValueReread,
    ValueTaken,
    WrittenUnseen,
)
from journal.events.base import At, Plain, Value
from journal.events.template import HOLE, TUPLE
from journal.protocol import Journal, StreamWriter
from torchlens.testing.drawing.passes import DrawnPasses

T = TypeVar("T")


def opened(label: str | None = None, **fields: Any) -> StreamOpened:
    """A header to begin a capture's stream with; its fields as told, the others as any capture has them."""
    usual: dict[str, Any] = {
        "kind": "capture",
        "label": label,
        "tags": (),
        "parent": None,
        "branched_at": None,
        "wall_time_ns": 1_700_000_000_000_000_000,
        "written_by": "0.1.0",
        "environment": (("python", "3.11"), ("torch", "2.13")),
    }
    return StreamOpened(**usual | fields)


def branched(parent: int | None, at: int | None, label: str | None = None) -> StreamOpened:
    """A header to begin a branch with."""
    return opened(label, kind="branch", parent=parent, branched_at=at)


# Whole captures -----------------------------------------------------------------------------------

Ending = Literal["returned", "halted", "aborted", "raised", "interrupted", "unfinished"]
ENDINGS: tuple[Ending, ...] = typing.get_args(Ending)
OWNERS: tuple[Owner, ...] = typing.get_args(Owner)
UNWITNESSED: tuple[Unwitnessed, ...] = typing.get_args(Unwitnessed)

# name, import path, number of tensor arguments, number of results, writes its first argument
FUNCTIONS: tuple[tuple[str, str, int, int, bool], ...] = (
    ("relu", "torch.nn.functional.relu", 1, 1, False),
    ("linear", "torch.nn.functional.linear", 2, 1, False),
    ("__add__", "torch.Tensor.__add__", 2, 1, False),
    ("add_", "torch.Tensor.add_", 2, 1, True),
    ("chunk", "torch.chunk", 1, 2, False),
    ("flatten", "torch.flatten", 1, 1, False),
)
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (), (2, 1, 5))
CLASS_NAMES = ("Linear", "Sequential", "Block")


@attrs.define
class Building:
    """A capture that is being made up: the events so far, and every number given out."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    events: list[Event] = attrs.Factory(list)
    shapes: list[tuple[int, ...]] = attrs.Factory(list)  # by value
    storages: list[Any] = attrs.Factory(list)  # by value
    writers: dict[Any, Value] = attrs.Factory(dict)  # result of the last in-place call, by storage
    parents: list[int | None] = attrs.Factory(list)  # by module
    num_parameters: int = 0
    buffers: list[tuple[int, ...]] = attrs.Factory(list)  # shape by buffer
    buffer_versions: dict[int, tuple[int, Value]] = attrs.Factory(dict)  # version and value by buffer
    functions: dict[int, int] = attrs.Factory(dict)
    num_sites: int = 0
    num_codes: int = 0
    num_calls: int = 0
    num_payloads: int = 0
    num_storages: int = 0
    num_nodes: int = 0
    node_of: dict[int, tuple[int, int]] = attrs.Factory(dict)  # autograd node and output, by value that a call gave
    inputs_of: list[tuple[int, ...]] = attrs.Factory(list)  # arguments by autograd node
    names_of: list[str] = attrs.Factory(list)  # class by autograd node
    stack: list[tuple[int, int]] = attrs.Factory(list)  # module and call number
    kept: set[int] = attrs.Factory(set)  # values whose payload stands in their own event
    announces: bool = False  # each call is told before it is made
    verifies: bool = False  # operators are counted
    num_operators: int = 0
    keeps: bool = False  # arguments and generator states are kept
    checkpoints: bool = False  # it enters some
    replayable: bool = False  # what a run needs is told
    num_tokens: int = 0
    open_tokens: list[int] = attrs.Factory(list)
    unwitnessed: set[Unwitnessed] = attrs.Factory(set)
    is_settled: bool = False
    must_settle: bool = False

    def pick(self, options: Sequence[T]) -> T:
        picked: T = self.draw(st.sampled_from(options))
        return picked

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def add(self, event: Event) -> None:
        self.events.append(event)

    def payload(self) -> tuple[int, int, None] | None:
        if not self.chance():
            return None
        self.num_payloads += 1
        return (self.num_payloads - 1, 0, None)

    def describe(self, shape: tuple[int, ...], **known: Any) -> tuple[Any, ...]:
        facts = dict.fromkeys(DESCRIPTION) | {
            "shape": shape,
            "dtype": "float32",
            "device": "cpu",
            "offset": 0,
            "requires_grad": False,
            "path": (),
            "payload": self.payload(),
        }
        if "storage" not in known:
            facts["storage"] = self.num_storages
            self.num_storages += 1
        return tuple({**facts, **known}.values())

    def new_value(self, description: tuple[Any, ...]) -> Value:
        value = Value(len(self.shapes))
        self.shapes.append(description[DESCRIPTION.index("shape")])
        self.storages.append(description[DESCRIPTION.index("storage")])
        if description[DESCRIPTION.index("payload")] is not None:
            self.kept.add(value)
        return value

    def describe_model(self) -> None:
        modules: list[Any] = [("", "Net", "models.Net", None, True, (), (), (), ())]
        parameters: list[Any] = []
        buffers: list[Any] = []
        self.parents.append(None)
        for number in range(1, 1 + self.draw(st.integers(0, 4))):
            parent = self.pick(range(number))
            address = f"{modules[parent][0]}.m{number}".lstrip(".")
            name = self.pick(CLASS_NAMES)
            modules.append((address, name, f"torch.nn.{name}", parent, True, (), (), (), ()))
            self.parents.append(parent)
            if self.chance():
                shape = self.pick(SHAPES)
                parameters.append((f"{address}.weight", shape, "float32", "cpu", True, 4 * math.prod(shape), ()))
            if self.chance():
                shape = self.pick(SHAPES)
                buffers.append((f"{address}.state", shape, "float32", "cpu", False, 4 * math.prod(shape), ()))
                self.buffers.append(shape)
        self.num_parameters = len(parameters)
        self.add(ModelDescribed(modules=tuple(modules), parameters=tuple(parameters), buffers=tuple(buffers)))

    def describe_classes(self) -> None:
        self.add(
            ClassDescribed(
                modules=tuple(range(len(self.parents))),
                docstring=self.pick((None, "A net.")),
                class_location=("models.py", 3),
                init_location=None,
                forward_location=("models.py", 5),
                init_signature=None,
                forward_signature="(self, x)",
            )
        )

    def see_inputs(self) -> None:
        count = self.draw(st.integers(1, 2))
        for number in range(count):
            description = self.describe(self.pick(SHAPES))
            value = self.new_value(description)
            self.add(InputSeen(value=value, path=(f"x{number}",), was_parameter=False, description=description))
        inputs = tuple(range(count))
        self.add(ForwardStarted(args=(HOLE,) * count, kwargs=(), inputs=inputs, mode=MODE_GRAD, random_seed=None))
        self.enter(0, None, inputs)

    def keep_arguments(self, inputs: tuple[int, ...]) -> None:
        """Of the last event."""
        if not self.keeps or not self.chance():
            return
        of = At(len(self.events) - 1)
        payloads = [self.payload() for _ in inputs]
        kept = tuple([None if payload is None else (payload, (2, 3), "float32") for payload in payloads])
        self.add(ArgumentsKept(of=of, tensors=kept))

    def keep_generators(self, of: At) -> None:
        payload = self.payload() if self.keeps else None
        if payload is not None:
            self.add(GeneratorsKept(of=of, states=(("cpu", payload[0]),)))

    def hook(self, module: int, inputs: tuple[int, ...]) -> None:
        """Pre-hooks of a module begin."""
        args = (HOLE,) * len(inputs)
        writers = self.last_writers(inputs)
        self.add(PreHooksStarted(module=module, args=args, kwargs=(), inputs=inputs, writers=writers))
        self.keep_arguments(inputs)

    def enter(self, module: int, site: int | None, inputs: tuple[int, ...]) -> None:
        args, writers = (HOLE,) * len(inputs), self.last_writers(inputs)
        self.add(ModuleEntered(module=module, site=site, args=args, kwargs=(), inputs=inputs, writers=writers))
        self.keep_arguments(inputs)
        self.stack.append((module, self.num_calls))
        self.num_calls += 1

    def leave(self) -> None:
        output = self.returned(self.pick(range(len(self.shapes))))
        self.add(ModuleLeft(call=self.stack.pop()[1], result=HOLE, outputs=(output,)))

    def site(self) -> int:
        """A call site: often one that was seen before, as in a loop."""
        if self.num_sites and self.chance():
            return self.pick(range(self.num_sites))
        if not self.num_codes or self.chance():
            source = self.payload()
            self.add(
                CodeSeen(
                    number=self.num_codes,
                    file="models.py",
                    qualname=f"Net.step{self.num_codes}",
                    name=f"step{self.num_codes}",
                    first_line=10 * self.num_codes + 1,
                    source=None if source is None else source[0],
                )
            )
            self.num_codes += 1
        code = self.pick(range(self.num_codes))
        line = 10 * code + 2 + self.num_sites
        caller = self.pick((None, *range(self.num_sites)))
        self.add(CallSiteSeen(number=self.num_sites, code=code, span=(line, line, 4, 20), caller=caller))
        self.num_sites += 1
        return self.num_sites - 1

    def argument(self) -> int:
        """A value, a parameter, a buffer or a constant, seen first where it must be."""
        kind = self.pick(("value", "value", "value", "parameter", "buffer", "constant"))
        if kind == "parameter" and self.num_parameters:
            return -1 - self.pick(range(self.num_parameters))
        if kind == "buffer" and self.buffers:
            number = self.pick(range(len(self.buffers)))
            if number not in self.buffer_versions:
                description = self.describe(self.buffers[number])
                value = self.new_value(description)
                self.add(BufferSeen(value=value, buffer=number, version=1, description=description))
                self.buffer_versions[number] = (1, value)
            return self.buffer_versions[number][1]
        if kind == "constant":
            inside = self.chance()
            description = self.describe(self.pick(SHAPES), grad_fn="GeluBackward0" if inside else None)
            value = self.new_value(description)
            made_by = "GeluBackward0" if inside else None
            self.add(
                ConstantSeen(
                    value=value, made_by=made_by, inside=inside, inputs=(), thread=None, description=description
                )
            )
            self.keep_constant(value)
            return value
        return self.pick(range(len(self.shapes)))

    def keep_constant(self, value: int) -> None:
        payload = self.payload() if self.replayable else None
        if payload is not None:
            self.add(ConstantKept(value=value, kept=(payload, (2, 3), "float32")))

    def take(self) -> None:
        """Python takes something out of a value, or its memory was written past torch."""
        value = self.pick(range(len(self.shapes)))
        if self.chance():
            self.add(WrittenUnseen(value=value))
        if self.functions:
            is_number = self.chance()
            self.add(
                ValueTaken(
                    function=self.pick(sorted(self.functions.values())),
                    site=self.site(),
                    call=self.stack[-1][1],
                    args=(HOLE,),
                    kwargs=(),
                    inputs=(value,),
                    result=self.pick((True, 3, 0.5)) if is_number else None,
                    digest=None if is_number else self.pick((None, "0" * 32)),
                )
            )

    def witness(self, outputs: Sequence[int]) -> None:
        """What a run is held to."""
        self.add(
            ForwardWitnessed(
                inputs=((0, self.pick((None, "1" * 32))),),
                outputs=tuple((value, "2" * 32) for value in outputs),
                containers=(((), "collections.OrderedDict"),) if self.chance() else (),
                parameters=tuple((number, "3" * 32) for number in range(self.num_parameters)),
                buffers=tuple((number, None) for number in range(len(self.buffers))),
                generators=("python",) if self.chance() else (),
                layouts=tuple((number, (1, 2)) for number in range(self.num_parameters)),
                taken_elsewhere=("torch.Tensor.item",) if self.chance() else (),
                modes=("models.Doubling",) if self.chance() else (),
                settings=(("default_dtype", "float32"),) if self.chance() else (),
                shared=(tuple(-1 - number for number in range(self.num_parameters)),) if self.num_parameters else (),
            )
        )

    def call(self) -> None:
        """One torch call, and the buffer it wrote."""
        chosen = self.pick(range(len(FUNCTIONS)))
        func_name, qualname, num_arguments, num_results, writes = FUNCTIONS[chosen]
        if chosen not in self.functions:
            self.functions[chosen] = len(self.functions)
            self.add(FunctionSeen(number=self.functions[chosen], func_name=func_name, qualname=qualname, opaque=None))
        site = self.site()
        inputs = tuple(self.argument() for _ in range(num_arguments))
        writes = writes and inputs[0] >= 0
        descriptions: list[tuple[Any, ...]] = []
        around = self.announce(self.functions[chosen], site, inputs) if self.announces and self.chance() else None
        if self.announces:
            self.announce(self.functions[chosen], site, inputs)
        writers = self.last_writers(inputs)
        first = Value(len(self.shapes))
        name = f"{func_name.strip('_').title()}Backward0"
        self.inputs_of.append(inputs)
        self.names_of.append(name)
        for slot in range(num_results):
            self.node_of[first + slot] = (self.num_nodes, slot)
            shape = self.shapes[inputs[0]] if writes else self.pick(SHAPES)
            node = self.num_nodes
            facts: dict[str, Any] = {"requires_grad": True, "grad_fn": name}
            facts |= {"grad_slot": slot, "grad_node": node, "path": (slot,) if num_results > 1 else ()}
            if writes:
                facts |= {"same_as": 0, "view_of": inputs[0], "storage": self.storages[inputs[0]]}
            descriptions.append(self.describe(shape, **facts))
        self.num_nodes += 1
        for description in descriptions:
            self.new_value(description)
        if writes:
            self.writers[self.storages[inputs[0]]] = first
        self.add(
            OpExecuted(
                function=self.functions[chosen],
                site=site,
                call=self.stack[-1][1],
                thread=0,
                duration_ns=1000,
                mode=MODE_GRAD,
                args=(HOLE,) * num_arguments,
                kwargs=(),
                inputs=inputs,
                writers=writers,
                written=(0,) if writes else None,
                first=first,
                outputs=tuple(descriptions),
                container=(TUPLE, *(HOLE,) * num_results) if num_results > 1 else None,
                autocast=None,
                rng=None,
            )
        )
        executed = At(len(self.events) - 1)
        self.keep_arguments(inputs)
        self.keep_generators(executed)
        if around is not None:
            self.add(OpLeft(started=around))
        written = [number for number, (_, value) in self.buffer_versions.items() if writes and value == inputs[0]]
        for number in written:
            self.write_buffer(number, "inplace", first)

    def announce(self, function: int, site: int, inputs: tuple[int, ...]) -> At:
        self.add(
            OpStarted(
                function=function,
                site=site,
                call=self.stack[-1][1],
                args=(HOLE,) * len(inputs),
                kwargs=(),
                inputs=inputs,
                shapes=(((), "float32"),) * len(inputs),
            )
        )
        return At(len(self.events) - 1)

    def failed_call(self) -> None:
        """A call that raised, which the model may have caught."""
        function = self.pick(sorted(self.functions.values()))
        site, inputs = self.site(), (self.pick(range(len(self.shapes))),)
        if self.announces:
            self.announce(function, site, inputs)
        self.add(
            OpRaised(
                function=function,
                site=site,
                call=self.stack[-1][1],
                args=(HOLE,),
                kwargs=(),
                inputs=inputs,
                exception="builtins.RuntimeError",
                message="shapes",
            )
        )

    def write_buffer(self, number: int, how: Literal["inplace", "reassign"], source: Value | None) -> None:
        version = self.buffer_versions.get(number, (0, Value(0)))[0] + 1
        description = self.describe(self.buffers[number])
        value = self.new_value(description)
        self.add(
            BufferWritten(
                value=value,
                buffer=number,
                version=version,
                how=how,
                source=source,
                changed=True,
                description=description,
            )
        )
        self.buffer_versions[number] = (version, value)

    def step(self) -> None:
        """Something that a running forward may do next."""
        what = self.pick(("call", "call", "call", "fail", "enter", "leave", "branch", "assign"))
        module, running = self.stack[-1]
        children = [number for number, parent in enumerate(self.parents) if parent == module]
        if what == "enter" and children:
            child, given = self.pick(children), (self.pick(range(len(self.shapes))),)
            if self.chance():
                self.hook(child, given)
                given = (self.pick(range(len(self.shapes))),)
            self.enter(child, self.site(), given)
        elif what == "fail" and self.functions:
            self.failed_call()
        elif what == "leave" and len(self.stack) > 1:
            self.leave()
        elif what == "branch":
            value = self.pick(range(len(self.shapes)))
            self.add(BranchTaken(value=value, result=self.chance(), site=self.site(), call=running))
            if self.replayable:
                self.take()
        elif what == "assign" and self.buffers:
            source = Value(self.pick(range(len(self.shapes))))
            self.write_buffer(self.pick(range(len(self.buffers))), "reassign", source)
        elif what == "call" and self.checkpoints and self.chance():
            self.checkpoint()
        else:
            self.call()
            if self.verifies:
                self.dispatch()

    def checkpoint(self) -> None:
        """A checkpoint is entered or left, something is unpacked in a run of the engine, or was not witnessed."""
        what = self.pick(("enter", "enter", "leave", "unpack", "miss"))
        if what == "leave" and self.open_tokens:
            self.leave_checkpoint()
        elif what == "unpack" and self.num_tokens:
            node = self.pick((None, *range(self.num_nodes)))
            self.add(CheckpointUnpacked(token=self.pick(range(self.num_tokens)), pass_number=None, node=node))
        elif what == "miss":
            self.miss_checkpoint()
        else:
            self.add(CheckpointEntered(token=self.num_tokens))
            self.open_tokens.append(self.num_tokens)
            self.num_tokens += 1

    def leave_checkpoint(self) -> None:
        self.add(CheckpointLeft(token=self.open_tokens.pop(), num_packed=self.pick(range(3))))

    def miss_checkpoint(self) -> None:
        reason = self.pick(UNWITNESSED)
        if reason not in self.unwitnessed:
            self.unwitnessed.add(reason)
            self.add(CheckpointUnwitnessed(reason=reason))

    def operator(self) -> int:
        """An operator, often one that ran before."""
        if self.num_operators and self.chance():
            return self.pick(range(self.num_operators))
        self.num_operators += 1
        self.add(OperatorSeen(number=self.num_operators - 1, name=f"aten.op{self.num_operators}.default"))
        return self.num_operators - 1

    def dispatch(self) -> None:
        """What ran for the last call, or past it."""
        owner = self.pick(OWNERS)
        operators = [self.operator() for _ in range(self.draw(st.integers(1, 2)))]
        executed = [at for at, event in enumerate(self.events) if isinstance(event, OpExecuted)]
        by = At(executed[-1]) if owner in ("op", "opaque") and executed else None
        if owner == "nobody":
            site = self.site()
            bound = ("act in models.py",) if self.chance() else ()
            self.add(
                CallEscaped(
                    operator=operators[0],
                    site=site,
                    call=self.stack[-1][1],
                    candidates=("torch.nn.functional.gelu",),
                    bound=bound,
                )
            )
        function = self.pick((None, *sorted(self.functions.values())))
        calls = tuple((operator, True, ((2, 3),), ((2, 3),)) for operator in operators)
        self.add(OperatorsDispatched(owner=owner, by=by, function=function, calls=calls))

    def last_writers(self, inputs: tuple[int, ...]) -> tuple[int | None, ...] | None:
        """Per argument the value that wrote its memory after it was made; None where none was written."""
        found: list[int | None] = []
        for value in inputs:
            writer = self.writers.get(self.storages[value]) if value >= 0 else None
            found.append(writer if writer is not None and writer > value else None)
        return tuple(found) if any(writer is not None for writer in found) else None

    def returned(self, value: int) -> int:
        """A value as it is returned: read again where its memory was written since."""
        writer = self.writers.get(self.storages[value])
        if writer is None or writer <= value:
            return value
        description = self.describe(self.shapes[value], storage=self.storages[value], view_of=value)
        reread = self.new_value(description)
        self.add(ValueReread(value=reread, of=Value(value), writer=writer, description=description))
        return reread

    def end(self, ending: Ending) -> None:
        if ending == "unfinished":
            if self.announces and self.functions and self.chance():
                self.announce(self.pick(sorted(self.functions.values())), self.site(), (0,))
            return
        if self.chance():
            if self.shapes:
                self.add(ValueOverwritten(value=Value(self.pick(range(len(self.shapes))))))
            self.add(ThreadCalled(thread="worker", num_calls=2, functions=(("torch.tanh", 1), ("torch.add", 1))))
        if ending == "returned":
            while self.stack:
                self.leave()
            known = range(len(self.shapes))
            outputs = tuple([self.returned(self.pick(known)) for _ in range(self.draw(st.integers(1, 2)))])
            result: Plain = HOLE if len(outputs) == 1 else (TUPLE, *(HOLE,) * len(outputs))
            paths = ((),) if len(outputs) == 1 else tuple((place,) for place in range(len(outputs)))
            self.add(ForwardReturned(result=result, outputs=outputs, paths=paths))
            if self.replayable:
                self.witness(outputs)
        elif ending == "halted":
            self.call()
            last = next(at for at in reversed(range(len(self.events))) if isinstance(self.events[at], OpExecuted))
            executed = self.events[last]
            assert isinstance(executed, OpExecuted)
            outputs = tuple(range(executed.first, executed.first + len(executed.outputs)))
            self.add(ForwardHalted(at=At(last), reason="relu", outputs=outputs))
        elif ending == "aborted":
            self.call()
            last = next(at for at in reversed(range(len(self.events))) if isinstance(self.events[at], OpExecuted))
            executed = self.events[last]
            assert isinstance(executed, OpExecuted)
            self.add(ForwardAborted(at=At(last), value=executed.first, num_nan=1, num_inf=0))
        else:
            while self.stack:
                self.add(ModuleRaised(call=self.stack.pop()[1], exception="builtins.ValueError"))
            if ending == "raised":
                if self.chance():
                    frame = ("models.py", 7, "forward", "Net.forward", 1, None)
                    self.add(ExceptionTraced(frames=(frame,) * self.pick(range(3))))
                self.add(ForwardRaised(exception="builtins.ValueError", message="no"))
            else:
                self.add(ForwardInterrupted(exception="builtins.KeyboardInterrupt"))
        while self.open_tokens and ending != "interrupted":
            self.leave_checkpoint()
        if self.num_parameters and self.chance():
            self.add(OptimizerGiven(class_qualname="torch.optim.SGD", parameters=tuple(range(self.num_parameters))))
        late = sorted(set(range(len(self.shapes))) - self.kept)[:2]
        for value in late:
            payload = self.payload()
            if payload is not None:
                self.add(PayloadKept(value=Value(value), payload=payload))
                if self.chance():
                    made = self.payload()
                    if made is not None:
                        self.add(TransformKept(value=Value(value), shape=(2,), dtype="float16", payload=made))
            elif self.chance():
                self.add(StatisticsTaken(value=Value(value), figures=self.figures()))
        if ending != "interrupted" and self.chance():
            for node in range(self.num_nodes):
                first = self.draw(st.integers(0, 2))  # so that nodes share storages
                kept = tuple([(number, 64, 8 * number, 16, HOLDERS[number]) for number in range(first, first + 2)])
                untold = None if self.chance() else "CopySlices"
                self.add(SavedForBackward(node=node, tensors=None if untold else kept, untold=untold))
        if self.must_settle or self.chance():
            self.add(CaptureSettled(torch_restored=True))
            self.is_settled = True

    def figures(self) -> Figures | None:
        """Statistics of a tensor, as an event has them."""
        num_nan, num_inf, num_finite = (self.draw(st.integers(0, 3)) for _ in range(3))
        if not self.chance():
            return None
        count = num_nan + num_inf + num_finite
        return (count, num_nan, num_inf, *((-1.5, 2, 0.25, 1.0) if num_finite else (None,) * 4))

    def backward(self) -> None:
        """Passes over what the forward left, the last of them maybe unfinished."""
        begun = len(self.events)
        passes = DrawnPasses(self)
        for _ in range(self.draw(st.integers(1, 3))):
            if passes.graph:
                passes.run()
        if self.draw(st.integers(0, 3)) == 0:
            del self.events[self.draw(st.integers(begun, len(self.events))) :]


HOLDERS = (None, "parameter", None, "input")
"""Whose the storages are that nodes hold, by number."""


@st.composite
def capture_streams(
    draw: Any,
    *,
    min_steps: int = 0,
    max_steps: int = 12,
    endings: Sequence[Ending] = ENDINGS,
    backward: bool | None = None,
) -> list[Event]:
    """Captures that could have happened, header first; event k of the stream is item k.

    Args:
        draw: Of hypothesis.
        min_steps: So many things happen in the forward at least.
        max_steps: And at most.
        endings: How it may end.
        backward: True for captures that settle and go on with backward passes, False for none of these; by default
            some do.
    """
    does = {name: draw(st.booleans()) for name in ("announces", "verifies", "keeps", "checkpoints", "replayable")}
    building = Building(draw, **does, must_settle=backward is True)
    building.add(opened())
    asked = (("measure_autograd_memory", True),) if draw(st.booleans()) else ()
    building.add(
        CaptureRequested(
            backend="torch",
            model_class="Net",
            model_qualname="models.Net",
            options=((("verify_capture", True),) if building.verifies else ())
            + ((("replayable", True),) if building.replayable else ())
            + asked,
            save="all",
            stop_after=None,
        )
    )
    if building.chance():
        building.add(CaptureCalled(frame=("run.py", draw(st.integers(1, 9)), "main", "main", 1, 4)))
    building.describe_model()
    if building.chance():
        building.describe_classes()
    building.see_inputs()
    for _ in range(draw(st.integers(min_steps, max_steps))):
        building.step()
    building.end(draw(st.sampled_from(endings)))
    if building.is_settled and (draw(st.booleans()) if backward is None else backward):
        building.backward()
    return building.events


def payload_bytes(number: int) -> bytes:
    """What `write_stream` keeps as payload ``number``."""
    return bytes([number % 256]) * (4 * number + 1)


def payloads_named(event: Event) -> list[int]:
    """Numbers of the payloads that an event of a capture stream names."""
    if isinstance(event, CodeSeen):
        return [] if event.source is None else [event.source]
    if isinstance(event, (PayloadKept, TransformKept, GradientKept)):
        return [event.payload[0]]
    if isinstance(event, GradientObserved):
        return [] if event.payload is None else [event.payload[0]]
    if isinstance(event, ArgumentsKept):
        return [kept[0][0] for kept in event.tensors if kept is not None]
    if isinstance(event, ConstantKept):
        return [event.kept[0][0]]
    if isinstance(event, GeneratorsKept):
        return [number for _, number in event.states]
    place = DESCRIPTION.index("payload")
    if isinstance(event, OpExecuted):
        named = [description[place] for description in event.outputs]
    elif isinstance(event, (InputSeen, ConstantSeen, BufferSeen, BufferWritten, ValueReread)):
        named = [event.description[place]]
    else:
        named = []
    return [payload[0] for payload in named if isinstance(payload, tuple) and isinstance(payload[0], int)]


def write_stream(journal: Journal, events: Sequence[Event]) -> StreamWriter:
    """Append a capture stream, its payloads kept before the events that name them; event k at k microseconds."""
    header = events[0]
    assert isinstance(header, StreamOpened)
    writer = journal.open_stream(header, 0)
    for at, event in enumerate(events[1:], start=1):
        for number in payloads_named(event):
            assert writer.keep(payload_bytes(number)) == number
        writer.append(event, 1000 * at)
    return writer
