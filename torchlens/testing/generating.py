"""A hypothesis strategy of programs: small ones first, and a failing one shrinks to few plain lines."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, get_args

from torchlens.errors import CompatibilityError, ConfigurationError
from torchlens.testing.language import (
    CONTEXTS,
    DTYPES,
    LAYOUTS,
    MAIN,
    VARIABLES,
    Block,
    Given,
    Nest,
    Returns,
    Run,
    Statement,
    Style,
)
from torchlens.testing.program import Program
from torchlens.testing.snippets import SNIPPETS

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

MOST_STATEMENTS: Final = 6
MOST_DEPTH: Final = 2
MOST_ROUNDS: Final = 3


def programs(*, snippets: Collection[str] | None = None, without: Collection[str] = ()) -> SearchStrategy[Program]:
    """Programs of up to two blocks beside ``main``.

    Args:
        snippets: Names of those to use; all of ``torchlens.testing.snippets.SNIPPETS`` by default.
        without: Names of those to leave out.

    Raises:
        CompatibilityError: ``hypothesis_not_installed``.
        ConfigurationError: ``program_malformed``, for the name of no snippet.
    """
    try:
        from hypothesis import strategies as st
    except ImportError as exc:
        raise CompatibilityError(
            code="hypothesis_not_installed",
            problem="random programs were asked for, and hypothesis is not installed",
            remedy="install hypothesis, or this package with its extra testing",
        ) from exc
    odd = sorted({*(snippets or ()), *without} - SNIPPETS.keys())
    if odd:
        raise ConfigurationError(
            code="program_malformed",
            problem=f"there is no snippet named {odd[0]!r}",
            remedy=f"known are {', '.join(SNIPPETS)}",
        )
    known = [name for name in SNIPPETS if (snippets is None or name in snippets) and name not in without]
    variables = st.sampled_from(VARIABLES)

    @functools.cache
    def statements(depth: int, callable_: tuple[str, ...]) -> SearchStrategy[tuple[Statement, ...]]:
        line: SearchStrategy[Statement] = st.builds(Run, variables, st.sampled_from(callable_), variables, variables)
        if depth < MOST_DEPTH:
            inner = statements(depth + 1, callable_)
            rounds = st.integers(1, MOST_ROUNDS).map(str)
            line = st.one_of(
                line,
                line,
                line,
                st.builds(Nest, st.sampled_from(("for", "recursion", "while")), rounds, inner),
                st.builds(Nest, st.just("if"), variables, inner, inner),
                st.builds(Nest, st.just("with"), st.sampled_from(CONTEXTS), inner),
                st.builds(Nest, st.just("try"), st.just(""), inner),
            )
        return st.lists(line, max_size=MOST_STATEMENTS if depth == 0 else 2).map(tuple)

    @st.composite
    def program(draw: DrawFn) -> Program:
        styles: Any = st.sampled_from(get_args(Style))
        blocks: list[Block] = []
        for number in range(draw(st.integers(0, 2))):
            name = f"block_{number + 1}"
            blocks.append(Block(name, draw(statements(1, (*known, *(b.name for b in blocks)))), draw(styles)))
        above = [block.name for block in blocks]
        blocks.append(Block(MAIN, draw(statements(0, (*above, *known))), draw(styles)))
        inputs = [
            Given(
                name,
                draw(st.sampled_from(DTYPES)),
                draw(st.sampled_from(LAYOUTS if name != "a" else LAYOUTS[:-1])),
                draw(st.booleans()),
            )
            for name in VARIABLES[: draw(st.integers(1, 3))]
        ]
        returns: Any = draw(st.sampled_from(get_args(Returns)))
        return Program(tuple(blocks), tuple(inputs), returns, draw(st.booleans()), draw(st.integers(0, 99)))

    return program()
