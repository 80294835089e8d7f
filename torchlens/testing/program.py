"""``Program``: a description whose words are all known, and which can be built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import attrs
from torch import nn

from torchlens.errors import ConfigurationError
from torchlens.testing.building import build
from torchlens.testing.language import (
    CONTEXTS,
    DTYPES,
    LAYOUTS,
    MAIN,
    VARIABLES,
    Description,
    Returns,
    Run,
    Statement,
    Style,
    parsed,
)
from torchlens.testing.snippets import SNIPPETS


@attrs.frozen(repr=False)
class Program(Description):
    """A model and its inputs as a few lines of text: equal programs build equal models.

    Example:
        >>> from torchlens.testing import Program
        >>> program = Program.parse('''
        ... model(train=True, seed=3, returns='one')
        ... a = given('float32', grad=True)
        ... def main():
        ...     for _ in range(2):
        ...         a = linear(a, a)
        ... ''')
        >>> model, args, kwargs = program.build()
        >>> model(*args, **kwargs).shape
        torch.Size([4, 4])
    """

    def __attrs_post_init__(self) -> None:
        _check(self)

    def __repr__(self) -> str:
        return f"Program.parse('''\n{self}\n''')"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # what hypothesis and IPython show
        printer.text(repr(self))

    @classmethod
    def parse(cls, text: str) -> Program:
        """The program with this text, as ``str`` gives it.

        Raises:
            ConfigurationError: ``program_malformed``, naming the line or the word.
        """
        made = parsed(text)
        return cls(made.blocks, made.inputs, made.returns, made.training, made.seed)

    def build(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """The model, new, with its positional and keyword arguments; the generators are left as they were."""
        return build(self)


def _check(program: Description) -> None:
    """Every word is known, and a block calls only blocks before it."""

    def among(what: str, word: str, known: Sequence[str]) -> None:
        if word not in known:
            raise ConfigurationError(
                code="program_malformed",
                problem=f"{word!r} is no {what}",
                remedy=f"known are {', '.join(known)}",
            )

    def walk(body: Sequence[Statement], callable_: Sequence[str]) -> None:
        for statement in body:
            if isinstance(statement, Run):
                among("snippet, or block above", statement.snippet, callable_)
                for name in (statement.target, statement.source, statement.other):
                    among("variable", name, VARIABLES)
                continue
            if statement.kind == "with":
                among("context", statement.argument, CONTEXTS)
            elif statement.kind == "if":
                among("variable", statement.argument, VARIABLES)
            walk(statement.body, callable_)
            walk(statement.orelse, callable_)

    names = [block.name for block in program.blocks]
    among("last block", names[-1] if names else "nothing", (MAIN,))
    among("form of what is returned", program.returns, get_args(Returns))
    among("number of inputs", str(len(program.inputs)), ("1", "2", "3"))
    for given in program.inputs:
        among("variable", given.name, VARIABLES)
        among("dtype of an input", given.dtype, DTYPES)
        among("layout", given.layout, LAYOUTS)
    for position, block in enumerate(program.blocks):
        among("style", block.style, get_args(Style))
        walk(block.body, (*SNIPPETS, *names[:position]))
