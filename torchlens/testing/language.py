"""Programs: models described by a few lines of text, which are all there is to them.

Gives  ``Description`` and the statements it is made of; its text, and a description from its text.
Rule   the text is Python to look at, and is read with Python's own parser; nothing of it is ever executed as Python.
Rule   every value of a program is a tensor of shape (4, 4), named a, b or c, so every statement may follow every other.
Not    what a snippet computes (snippets.py), how a program becomes a module (building.py), or whether the words of a
       text are known (program.py).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from torchlens.errors import ConfigurationError

VARIABLES: Final = ("a", "b", "c")
DTYPES: Final = ("float32", "float64", "bfloat16")
LAYOUTS: Final = ("fresh", "transposed", "strided", "alias")
"""An input's memory: its own, its own transposed, every second element of a larger one, or the first input's."""

Style = Literal["plain", "keywords", "containers"]
"""How a block gets its values: by position, by name, or inside a dict that holds a list."""

Returns = Literal["one", "several", "nested", "record", "twice"]
"""What the model returns: a tensor, a tuple, a dict of a list and a tuple, a dataclass, or one tensor twice."""

Kind = Literal["for", "while", "if", "with", "recursion", "try"]
CONTEXTS: Final = ("no_grad", "enable_grad", "autocast", "inference_mode")
MAIN: Final = "main"


@attrs.frozen
class Given:
    """One input."""

    name: str
    dtype: str = "float32"
    layout: str = "fresh"
    grad: bool = False


@attrs.frozen
class Run:
    """``target = snippet(source, other)``; a block is called in the same way."""

    target: str
    snippet: str
    source: str
    other: str


@attrs.frozen
class Nest:
    """Statements under a head: a loop, a branch of a tensor's test, a context, a function that calls itself, a try.

    Attributes:
        kind: Which of these.
        argument: How often a loop or recursion goes round (a while at most), the context, or the variable tested.
        body: What runs under it.
        orelse: What runs instead, of an if.
    """

    kind: Kind
    argument: str
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


Statement: TypeAlias = "Run | Nest"


@attrs.frozen
class Block:
    """A module with statements of its own."""

    name: str
    body: tuple[Statement, ...]
    style: Style = "plain"


@attrs.frozen
class Description:
    """A model and its inputs, described completely.

    Attributes:
        blocks: Its modules, the root, ``main``, last; each calls those before it.
        inputs: One to three.
        returns: The form of what the model returns.
        training: In train mode, or in eval mode.
        seed: Of weights and inputs.
    """

    blocks: tuple[Block, ...]
    inputs: tuple[Given, ...] = (Given("a"),)
    returns: Returns = "one"
    training: bool = False
    seed: int = 0

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def statements(self) -> Iterator[Run]:
        """Every line that runs a snippet or a block, of every block."""
        for block in self.blocks:
            yield from runs(block.body)


def runs(body: Sequence[Statement]) -> Iterator[Run]:
    for statement in body:
        if isinstance(statement, Run):
            yield statement
        else:
            yield from runs(statement.body)
            yield from runs(statement.orelse)


# Text -----------------------------------------------------------------------------------------------------------

HEADS: Final[dict[str, str]] = {
    "for": "for _ in range({}):",
    "while": "while small(a, {}):",
    "if": "if positive({}):",
    "with": "with {}():",
    "recursion": "for _ in recursion({}):",
    "try": "try:",
}


def _lines(program: Description) -> Iterator[str]:
    yield f"model(train={program.training}, seed={program.seed}, returns={program.returns!r})"
    for given in program.inputs:
        layout = "" if given.layout == "fresh" else f", layout={given.layout!r}"
        yield f"{given.name} = given({given.dtype!r}{layout}{', grad=True' if given.grad else ''})"
    for block in program.blocks:
        if block.style != "plain":
            yield f"@{block.style}"
        yield f"def {block.name}():"
        yield from _shown(block.body, "    ")


def _shown(body: Sequence[Statement], indent: str) -> Iterator[str]:
    if not body:
        yield f"{indent}pass"
    for statement in body:
        if isinstance(statement, Run):
            yield f"{indent}{statement.target} = {statement.snippet}({statement.source}, {statement.other})"
            continue
        yield indent + HEADS[statement.kind].format(statement.argument)
        yield from _shown(statement.body, indent + "    ")
        if statement.kind == "try":
            yield f"{indent}except RuntimeError:"
            yield f"{indent}    pass"
        elif statement.orelse:
            yield f"{indent}else:"
            yield from _shown(statement.orelse, indent + "    ")


def parsed(text: str) -> Description:
    """The description with this text; whether its words are known is not asked here.

    Raises:
        ConfigurationError: ``program_malformed``, naming the line.
    """
    try:
        tree = ast.parse(textwrap.dedent(text).strip())
    except SyntaxError as exc:
        raise _malformed(str(exc), exc.lineno or 0) from exc
    options: dict[str, Any] = {}
    inputs: list[Given] = []
    blocks: list[Block] = []
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="model"), args=[], keywords=keywords)):
                options = _constants(keywords)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="given"), args=[dtype])):
                assert isinstance(node.value, ast.Call)
                inputs.append(Given(name, _constant(dtype), **_constants(node.value.keywords)))
            case ast.FunctionDef(name=name, body=body):
                style = [item.id for item in node.decorator_list if isinstance(item, ast.Name)]
                given: Any = style[0] if style else "plain"
                blocks.append(Block(name, _body(body), given))
            case _:
                raise _malformed("it is no input, block or model(...)", node.lineno)
    return Description(
        tuple(blocks),
        tuple(inputs),
        options.get("returns", "one"),
        options.get("train", False),
        options.get("seed", 0),
    )


def _body(nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
    return tuple(_statement(node) for node in nodes if not isinstance(node, ast.Pass))


def _statement(node: ast.stmt) -> Statement:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=target)],
            value=ast.Call(func=ast.Name(id=snippet), args=[ast.Name(id=source), ast.Name(id=other)]),
        ):
            return Run(target, snippet, source, other)
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[times]), body=body):
            return Nest("for", str(_constant(times)), _body(body))
        case ast.For(iter=ast.Call(func=ast.Name(id="recursion"), args=[times]), body=body):
            return Nest("recursion", str(_constant(times)), _body(body))
        case ast.While(test=ast.Call(func=ast.Name(id="small"), args=[_, times]), body=body):
            return Nest("while", str(_constant(times)), _body(body))
        case ast.If(test=ast.Call(func=ast.Name(id="positive"), args=[ast.Name(id=name)]), body=body, orelse=orelse):
            return Nest("if", name, _body(body), _body(orelse))
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id=name)))], body=body):
            return Nest("with", name, _body(body))
        case ast.Try(body=body):
            return Nest("try", "", _body(body))
        case _:
            raise _malformed("it is no statement of a program", node.lineno)


def _constant(node: ast.expr) -> Any:
    if not isinstance(node, ast.Constant):
        raise _malformed("a number or text belongs here", node.lineno)
    return node.value


def _constants(keywords: Sequence[ast.keyword]) -> dict[str, Any]:
    return {keyword.arg or "": _constant(keyword.value) for keyword in keywords}


def _malformed(problem: str, line: int) -> ConfigurationError:
    return ConfigurationError(
        code="program_malformed",
        problem=f"line {line} of the program cannot be read: {problem}",
        remedy="write it as str(program) shows it",
        line=line,
    )
