"""A program as a module that runs it: blocks are submodules, statements are executed one by one.

Reads  a ``Description``.
Gives  the model with its arguments, the same bit for bit every time.
Rule   each line of the program is a place of its own in the source, ``<program>`` and its number, so that two lines
       are two call sites and a line in a loop is one.
Rule   a program that writes in place, or uses autocast, gets copies of its inputs if one requires a gradient: torch
       refuses to write to a leaf and keeps a leaf's cast for its next use; tracing hands on copies, which are none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from torchlens.testing.language import MAIN, VARIABLES, Block, Description, Given, Nest, Run, Statement, Style, runs
from torchlens.testing.snippets import LAYERS, SNIPPETS, WRITING

SIZE: Final = 4
PROGRAM_FILE: Final = "<program>"

STRIDES: Final = {"transposed": (1, SIZE), "strided": (4 * SIZE, 2)}

Values = dict[str, Tensor]


@dataclasses.dataclass
class Record:
    """A model's result with names."""

    first: Tensor
    others: list[Tensor]
    missing: Tensor | None = None
    note: str = "a record"


def build(program: Description) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(program.seed)
        made: dict[str, BlockModule] = {}
        line = 1 + len(program.inputs)
        for block in program.blocks:
            line += 1 if block.style == "plain" else 2
            places, line = placed(block.body, line)
            kind = Root if block.name == MAIN else BlockModule
            made[block.name] = kind(block, places, dict(made), program)
        model = made[MAIN]
        inputs: list[Tensor] = []
        for given in program.inputs:
            inputs.append(given_tensor(given, inputs))
    model.train(program.training)
    return model, *passed(model.style, inputs)


def given_tensor(given: Given, before: Sequence[Tensor]) -> Tensor:
    dtype = getattr(torch, given.dtype)
    if given.layout == "alias" and before:
        return before[0] if given.grad else before[0].detach().view(SIZE, SIZE)
    # No view: whether a view of it made without gradients requires one would depend on its base.
    made = torch.empty_strided((SIZE, SIZE), STRIDES.get(given.layout, (SIZE, 1)), dtype=dtype)
    made.copy_(torch.randn(SIZE, SIZE))
    return made.requires_grad_(given.grad)


def passed(style: Style, values: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Values as arguments in a block's style."""
    if style == "plain":
        return tuple(values), {}
    if style == "keywords":
        return (), dict(zip(VARIABLES, values, strict=False))
    return ({"first": values[0], "rest": list(values[1:]), "name": "none of these", "empty": ()},), {}


# Places ---------------------------------------------------------------------------------------------------------


def _here(do: Callable[..., Any], *args: Any) -> Any:
    return do(*args)


@functools.lru_cache(maxsize=512)
def place(line: int) -> Callable[..., Any]:
    """``_here`` as if it stood on this line of the program."""
    code = _here.__code__.replace(co_filename=PROGRAM_FILE, co_firstlineno=line, co_name=f"line_{line}")
    return types.FunctionType(code, globals(), f"line_{line}")


class Line:
    """A statement with its place; those under it too."""

    def __init__(self, statement: Statement, line: int, body: tuple[Line, ...], orelse: tuple[Line, ...]) -> None:
        self.statement = statement
        self.at = place(line)
        self.body = body
        self.orelse = orelse


def placed(body: Sequence[Statement], line: int) -> tuple[tuple[Line, ...], int]:
    """Statements with the lines on which the program's text has them; the first is on the line after ``line``."""
    made: list[Line] = []
    if not body:
        return (), line + 1
    for statement in body:
        line += 1
        own = line
        inner: tuple[Line, ...] = ()
        other: tuple[Line, ...] = ()
        if isinstance(statement, Nest):
            inner, line = placed(statement.body, line)
            if statement.kind == "try":
                line += 2
            elif statement.orelse:
                other, line = placed(statement.orelse, line + 1)
        made.append(Line(statement, own, inner, other))
    return tuple(made), line


# Running --------------------------------------------------------------------------------------------------------


class BlockModule(nn.Module):
    """A block, with the layers, parameters and buffers that its snippets need and the blocks it calls."""

    def __init__(
        self, block: Block, lines: tuple[Line, ...], above: dict[str, BlockModule], program: Description
    ) -> None:
        super().__init__()
        self.style: Style = block.style
        self.name = block.name
        self.lines = lines
        called = dict.fromkeys(run.snippet for run in runs(block.body))
        for snippet in called:
            if snippet in above:
                self.add_module(snippet, above[snippet])
            else:
                for layer in SNIPPETS[snippet].needs:
                    if not hasattr(self, layer):
                        LAYERS[layer](self, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        values = self.run(self.received(args, kwargs))
        if self.style == "containers":
            return {"made": [values["a"], values["b"]], "none": None}
        return values["a"]

    def received(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Values:
        given: list[Tensor] = [*args, *kwargs.values()]
        if self.style == "containers":
            given = [args[0]["first"], *args[0]["rest"]]
        return {name: given[min(position, len(given) - 1)] for position, name in enumerate(VARIABLES)}

    def run(self, values: Values) -> Values:
        for line in self.lines:
            self.step(line, values)
        return values

    def step(self, line: Line, values: Values) -> None:
        statement = line.statement
        if isinstance(statement, Run):
            given = (values[statement.source], values[statement.other])
            snippet = SNIPPETS.get(statement.snippet)
            if snippet is None:
                values[statement.target] = line.at(self.call, getattr(self, statement.snippet), given)
            else:
                values[statement.target] = line.at(snippet.do, self, *given)
        else:
            NESTS[statement.kind](self, line, statement.argument, values)

    def steps(self, lines: tuple[Line, ...], values: Values) -> None:
        for line in lines:
            self.step(line, values)

    @staticmethod
    def call(block: BlockModule, given: Sequence[Tensor]) -> Tensor:
        args, kwargs = passed(block.style, given)
        result = block(*args, **kwargs)
        made: Tensor = result["made"][0] if block.style == "containers" else result
        return made


class Root(BlockModule):
    """``main``: it takes the inputs and returns in the program's form."""

    def __init__(
        self, block: Block, lines: tuple[Line, ...], above: dict[str, BlockModule], program: Description
    ) -> None:
        super().__init__(block, lines, above, program)
        self.returns = program.returns
        heeds_leaves = uses_autocast(program) or not WRITING.isdisjoint(run.snippet for run in program.statements())
        self.copies = heeds_leaves and any(given.grad for given in program.inputs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        values = self.received(args, kwargs)
        if self.copies:
            values = {name: value.clone() for name, value in values.items()}
        values = self.run(values)
        first, second, third = (values[name] for name in VARIABLES)
        match self.returns:
            case "one":
                return first
            case "several":
                return first, second, third
            case "nested":
                return {"first": first, "rest": [second, (third, None)], "count": 3, "name": "nested"}
            case "record":
                return Record(first, [second])
            case "twice":
                return first, first


def uses_autocast(program: Description) -> bool:
    waiting = [statement for block in program.blocks for statement in block.body]
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, Nest):
            if statement.argument == "autocast":
                return True
            waiting.extend((*statement.body, *statement.orelse))
    return False


def _for(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    for _ in range(int(argument)):
        module.steps(line.body, values)


def _while(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    rounds = 0
    while line.at(_is_small, values["a"]) and rounds < int(argument):
        rounds += 1
        module.steps(line.body, values)


def _is_small(tensor: Tensor) -> bool:
    return bool(tensor.abs().sum() < 100)


def _if(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    if line.at(_is_positive, values[argument]):
        module.steps(line.body, values)
    else:
        module.steps(line.orelse, values)


def _is_positive(tensor: Tensor) -> bool:
    return bool(tensor.sum() > 0)


def _with(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    with CONTEXT_MANAGERS[argument]():
        module.steps(line.body, values)


CONTEXT_MANAGERS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference_mode": torch.inference_mode,
}


def _recursion(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    def again(left: int) -> None:
        module.steps(line.body, values)
        if left > 1:
            again(left - 1)

    again(int(argument))


def _try(module: BlockModule, line: Line, argument: str, values: Values) -> None:
    try:
        module.steps(line.body, values)
    except RuntimeError:
        pass


NESTS: Final[dict[str, Callable[[BlockModule, Line, str, Values], None]]] = {
    "for": _for,
    "while": _while,
    "if": _if,
    "with": _with,
    "recursion": _recursion,
    "try": _try,
}
