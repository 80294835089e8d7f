"""A small language to make up the events of a forward, so that a test reads like the model it stands for.

    made = Made(modules={"fc": "Linear"}, parameters={"fc.weight": (4, 4)})
    x = made.input("x")
    with made.call("fc", x) as call:
        call.returns(made.op("linear", x, "fc.weight"))
    tables = made.returns(call.output).tables()

An op is at a call site of its own unless it is given one: ops of one ``site`` are the same code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from journal.events import (
    DESCRIPTION,
    MODE_GRAD,
    BranchTaken,
    BufferSeen,
    BufferWritten,
    CallSiteSeen,
    CaptureRequested,
    CaptureSettled,
    CodeSeen,
    ConstantSeen,
    Event,
    ForwardHalted,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    FunctionSeen,
    InputSeen,
    ModelDescribed,
    ModuleEntered,
    ModuleLeft,
    ModuleRaised,
    ModuleSeen,
    OpExecuted,
    ParameterSeen,
    PayloadKept,
    Row,
    StreamOpened,
)
from journal.events.template import HOLE, LIST, NAMED, TUPLE
from projections import CaptureTables, Projector

TICK_NS = 1000
"""Time between two events."""

DURATION_NS = 500
"""Time that every call takes."""


class Rows:
    """Rows in memory, as a source that folds read.

    Args:
        rows: The rows.
        run: How many rows come in one run.
    """

    def __init__(self, rows: Sequence[Row], run: int = 256) -> None:
        self.all = rows
        self.run = run
        self.payloads: dict[int, bytes] = {}

    def head(self) -> int:
        return len(self.all)

    def rows(self, start: int, stop: int | None = None) -> Iterator[Sequence[Row]]:
        end = len(self.all) if stop is None else min(stop, len(self.all))
        for at in range(start, end, self.run):
            yield self.all[at : min(at + self.run, end)]

    def row(self, at: int) -> Row:
        return self.all[at]

    def payload(self, number: int) -> bytes | None:
        return self.payloads.get(number)


def source_of(events: Iterable[Event], run: int = 256) -> Rows:
    """Events as a source, one tick apart."""
    return Rows([event.row(TICK_NS * at) for at, event in enumerate(events)], run)


class Call:
    """A module call in the making."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outputs: tuple[int, ...] = ()

    def returns(self, *values: int) -> None:
        self.outputs = values

    @property
    def output(self) -> int:
        return self.outputs[0]


class Made:
    """The events of one forward.

    Args:
        modules: Class by address; the root need not be given.
        parameters: Shape by address.
        buffers: Shape by address.
        aliases: Other addresses of a module or parameter.
        start: Whether the forward starts by itself with the first op.
    """

    def __init__(
        self,
        modules: Mapping[str, str] | None = None,
        parameters: Mapping[str, tuple[int, ...]] | None = None,
        buffers: Mapping[str, tuple[int, ...]] | None = None,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.modules = ["", *(modules or {})]
        self.parameters = list(parameters or {})
        self.buffers = list(buffers or {})
        self.shapes: list[tuple[int, ...]] = []
        self.inputs: list[int] = []
        self.functions: dict[str, int] = {}
        self.sites: dict[Any, int] = {}
        self.versions: dict[str, int] = {}
        self.num_calls = 0
        self.stack: list[int] = []
        other = aliases or {}
        self.add(
            StreamOpened(
                kind="capture",
                label=None,
                tags=(),
                parent=None,
                branched_at=None,
                wall_time_ns=0,
                written_by="0",
                environment=(),
            ),
            CaptureRequested(
                backend="torch", model_class="Net", model_qualname="m.Net", options=(), save="all", stop_after=None
            ),
            ModelDescribed(
                modules=(
                    ("", "Net", "m.Net", None, True, (), (), (), ()),
                    *(
                        (address, name, f"m.{name}", self.parent(address), True, other.get(address, ()), (), (), ())
                        for address, name in (modules or {}).items()
                    ),
                ),
                parameters=self.tensors(parameters or {}, other, trainable=True),
                buffers=self.tensors(buffers or {}, other, trainable=False),
            ),
        )

    def add(self, *events: Event) -> None:
        self.events += events

    def parent(self, address: str) -> int:
        return self.modules.index(address.rpartition(".")[0])

    def tensors(
        self, shapes: Mapping[str, tuple[int, ...]], aliases: Mapping[str, tuple[str, ...]], *, trainable: bool
    ) -> tuple[Any, ...]:
        return tuple(
            (address, shape, "float32", "cpu", trainable, 4 * math.prod(shape), aliases.get(address, ()))
            for address, shape in shapes.items()
        )

    def describe(self, shape: tuple[int, ...], **known: Any) -> tuple[Any, ...]:
        facts = {**dict.fromkeys(DESCRIPTION), "shape": shape, "dtype": "float32", "device": "cpu"}
        return tuple({**facts, "offset": 0, "requires_grad": False, "path": (), **known}[name] for name in DESCRIPTION)

    def value(self, shape: tuple[int, ...]) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    # -- before the forward

    def input(self, *path: str | int, shape: tuple[int, ...] = (2, 4), **known: Any) -> int:
        value = self.value(shape)
        self.inputs.append(value)
        self.add(
            InputSeen(value=value, path=path or ("x",), was_parameter=False, description=self.describe(shape, **known))
        )
        return value

    def start(self) -> None:
        """Begin the forward and enter the root; ops do so by themselves."""
        if self.num_calls == 0:
            holes, inputs = (HOLE,) * len(self.inputs), tuple(self.inputs)
            self.add(ForwardStarted(args=holes, kwargs=(), inputs=inputs, mode=MODE_GRAD, random_seed=None))
            self.enter(0, None, inputs)

    # -- module calls

    def enter(self, module: int, site: int | None, inputs: tuple[int, ...]) -> Call:
        self.add(
            ModuleEntered(module=module, site=site, args=(HOLE,) * len(inputs), kwargs=(), inputs=inputs, writers=None)
        )
        self.stack.append(self.num_calls)
        self.num_calls += 1
        return Call(self.num_calls - 1)

    @contextmanager
    def call(self, address: str, *inputs: int, site: Any = None) -> Iterator[Call]:
        """A call of a module, left at the end of the block with what ``returns`` was given."""
        self.start()
        module = self.modules.index("" if address == "self" else address)
        call = self.enter(module, self.site(site), inputs)
        yield call
        self.stack.pop()
        result = HOLE if len(call.outputs) == 1 else (TUPLE, *(HOLE,) * len(call.outputs))
        self.add(ModuleLeft(call=call.number, result=result, outputs=call.outputs))

    def see_module(self, name: str, class_name: str) -> None:
        """Meet a module that the model does not register; calls name it by ``name``."""
        self.start()
        self.add(
            ModuleSeen(number=len(self.modules), class_name=class_name, class_qualname=f"m.{class_name}", training=True)
        )
        self.modules.append(name)

    def see_parameter(self, name: str, shape: tuple[int, ...], module: str | None = None) -> None:
        self.start()
        self.add(
            ParameterSeen(
                number=len(self.parameters),
                module=None if module is None else self.modules.index(module),
                attribute=None if module is None else name,
                source=None,
                description=("", shape, "float32", "cpu", True, 4 * math.prod(shape), ()),
            )
        )
        self.parameters.append(name)

    # -- calls

    def site(self, key: Any) -> int:
        """A call site by any key; None is one of its own."""
        if key is not None and key in self.sites:
            return self.sites[key]
        number = len(self.sites)
        if number == 0:
            self.add(CodeSeen(number=0, file="m.py", qualname="Net.forward", name="forward", first_line=1, source=None))
        self.sites[object() if key is None else key] = number
        self.add(CallSiteSeen(number=number, code=0, span=(number + 2, number + 2, 4, 20), caller=None))
        return number

    def number(self, argument: int | str) -> int:
        """A value, or a parameter by its address, as ``inputs`` has it."""
        return argument if isinstance(argument, int) else -1 - self.parameters.index(argument)

    def op(
        self,
        func: str,
        *arguments: int | str | Sequence[int],
        site: Any = None,
        results: int = 1,
        fields: tuple[str, ...] = (),
        shape: tuple[int, ...] | None = None,
        writes: int | None = None,
        writers: tuple[int | None, ...] | None = None,
        plain: tuple[Any, ...] = (),
        kwargs: tuple[Any, ...] = (),
        **known: Any,
    ) -> int:
        """A torch call; gives its first value, and the others follow.

        Args:
            func: Function name.
            arguments: Values, parameter addresses, or lists of values.
            site: Call site; one of its own by default.
            results: How many tensors it returns.
            fields: Names under which it returns them.
            shape: Shape of every result; that of the first value by default.
            writes: Position of the argument that it writes and returns.
            writers: Last writers of the arguments.
            plain: Further arguments without tensors.
            kwargs: Keyword arguments without tensors: name, value, ....
            known: Facts of the results' descriptions.
        """
        self.start()
        if func not in self.functions:
            number = self.functions[func] = len(self.functions)
            self.add(FunctionSeen(number=number, func_name=func, qualname=f"torch.{func}", opaque=None))
        here = self.site(site)
        lists = [argument if isinstance(argument, list | tuple) else None for argument in arguments]
        flat = [
            item for argument in arguments for item in (argument if isinstance(argument, list | tuple) else (argument,))
        ]
        inputs = tuple(self.number(argument) for argument in flat)
        if shape is None:
            shape = self.shapes[inputs[0]] if inputs and inputs[0] >= 0 else (2, 4)
        if writes is not None:
            known = {"same_as": writes, "view_of": inputs[writes], **known}
        several = results > 1 or bool(fields)
        paths = [(fields[slot],) if fields else (slot,) for slot in range(results)] if several else [()]
        holes = (HOLE,) * results
        container = (NAMED, f"torch.return_types.{func}", fields, *holes) if fields else (TUPLE, *holes)
        first = len(self.shapes)
        outputs = tuple(self.describe(shape, **{"path": path, **known}) for path in paths)
        self.add(
            OpExecuted(
                function=self.functions[func],
                site=here,
                call=self.stack[-1],
                thread=0,
                duration_ns=DURATION_NS,
                mode=MODE_GRAD,
                args=(*((LIST, *(HOLE,) * len(found)) if found else HOLE for found in lists), *plain),
                kwargs=kwargs,
                inputs=inputs,
                writers=writers,
                written=None if writes is None else (writes,),
                first=first,  # type: ignore[arg-type]  # a plain number stands for a value here
                outputs=outputs,
                container=container if several else None,
                autocast=None,
                rng=None,
            )
        )
        self.shapes += [shape] * results
        return first

    def constant(self, made_by: str | None = None, *, shape: tuple[int, ...] = (2, 4)) -> int:
        self.start()
        value = self.value(shape)
        self.add(
            ConstantSeen(
                value=value,  # type: ignore[arg-type]  # the same
                made_by=made_by,
                inside=made_by is not None,
                inputs=(),
                thread=None,
                description=self.describe(shape),
            )
        )
        return value

    def read(self, address: str) -> int:
        """The first read of a buffer's version."""
        self.start()
        version = self.versions[address] = self.versions.get(address, 0) + 1
        value = self.value((2,))
        self.add(
            BufferSeen(
                value=value,  # type: ignore[arg-type]  # the same
                buffer=self.buffers.index(address),
                version=version,
                description=self.describe((2,)),
            )
        )
        return value

    def write(self, address: str, source: int | None, how: Any = "inplace", *, changed: bool | None = True) -> int:
        """A new version of a buffer."""
        self.start()
        version = self.versions[address] = self.versions.get(address, 0) + 1
        value = self.value((2,))
        self.add(
            BufferWritten(
                value=value,  # type: ignore[arg-type]  # the same
                buffer=self.buffers.index(address),
                version=version,
                how=how,
                source=source,  # type: ignore[arg-type]  # the same
                changed=changed,
                description=self.describe((2,)),
            )
        )
        return value

    def branch(self, value: int, result: bool) -> None:
        self.add(BranchTaken(value=value, result=result, site=self.site(None), call=self.stack[-1]))

    # -- the end

    def returns(self, *values: int, paths: Sequence[tuple[Any, ...]] | None = None) -> Made:
        """The root returns; one value is a bare tensor unless paths say otherwise."""
        self.start()
        result = HOLE if len(values) == 1 else (TUPLE, *(HOLE,) * len(values))
        self.add(ModuleLeft(call=self.stack.pop(), result=result, outputs=values))
        if paths is None:
            paths = [()] if len(values) == 1 else [(place,) for place in range(len(values))]
        self.add(ForwardReturned(result=result, outputs=values, paths=tuple(paths)))
        self.add(CaptureSettled(torch_restored=True))
        return self

    def halts(self, *values: int) -> Made:
        at = len(self.events) - 1
        self.add(ForwardHalted(at=at, reason="relu", outputs=values))  # type: ignore[arg-type]  # the same
        self.add(CaptureSettled(torch_restored=True))
        return self

    def raises(self) -> Made:
        while self.stack:
            self.add(ModuleRaised(call=self.stack.pop(), exception="builtins.ValueError"))
        self.add(ForwardRaised(exception="builtins.ValueError", message="no"))
        return self

    def keep(self, value: int, payload: int) -> None:
        self.add(PayloadKept(value=value, payload=(payload, 0, None)))  # type: ignore[arg-type]  # the same

    def source(self, run: int = 256) -> Rows:
        return source_of(self.events, run)

    def tables(self) -> CaptureTables:
        return Projector(self.source()).tables()


def two_blocks() -> Made:
    """A block with a layer inside, called twice: a parameter taken, a buffer read and, at the end, written."""
    made = Made({"blk": "Block", "blk.act": "ReLU"}, {"w": (4,)}, {"b": (2,)})
    x = made.input("x")
    for _ in range(2):
        with made.call("blk", x, site="blk") as outer:
            with made.call("blk.act", x, site="act") as inner:
                inner.returns(made.op("relu", x, "w", site="r"))
            outer.returns(made.op("add", inner.output, made.read("b")))
        x = outer.output
    made.write("b", made.op("mul", x), "reassign")
    return made.returns(x)


def labels(tables: CaptureTables) -> list[str]:
    """Op labels in order."""
    return list(tables.ops.column("label"))


def op_labels(tables: CaptureTables) -> list[str]:
    """Labels of compute ops in order."""
    pairs = zip(tables.ops.column("label"), tables.ops.column("is_compute_op"), strict=True)
    return [label for label, is_op in pairs if is_op]


def row_of(tables: CaptureTables, label: str) -> int:
    return labels(tables).index(label)


def cell(tables: CaptureTables, label: str, column: str) -> Any:
    """A cell of the op table, by label."""
    return tables.ops.value(column, row_of(tables, label))


def cells(tables: CaptureTables, column: str) -> dict[str, Any]:
    """A column of the op table, by label."""
    return dict(zip(labels(tables), tables.ops.column(column), strict=True))
