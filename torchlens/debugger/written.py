"""What a cursor is sent to, as people type it: a selector as in Python, the name of an event type, a label, or nan.

Rule   nothing that is typed is run: a selector is read as an expression of calls to functions in ``CONSTRUCTORS``, with
       constants as arguments, and of the signs ``|``, ``&``, ``-`` and ``~``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from journal.events import EVENTS_BY_NAME
from projections import Selector
from projections.selecting.backward_terms import grad_fn, grad_input, grad_output, in_backward_pass, without_op
from projections.selecting.nearby import followed_by, preceded_by
from projections.selecting.selector import contains, func, grad, in_module, label, module, output, regex
from torchlens.errors import ConfigurationError, TorchLensError
from torchlens.questions.nonfinite_answer import NONFINITE

__all__ = ["CONSTRUCTORS", "read_what"]

LONGEST: Final = 2_000
"""Characters that are read at all."""

CONSTRUCTORS: Final[dict[str, Callable[..., Selector]]] = {
    made.__name__: made
    for made in (
        *(func, module, in_module, label, contains, regex, grad, output),
        *(preceded_by, followed_by, grad_fn, grad_input, grad_output, in_backward_pass, without_op),
    )
}
"""What makes a selector, by name; ``tl.`` may stand before it."""


def read_what(text: str) -> Selector | str:
    """A selector, the name of an event type, or ``nonfinite`` or ``nan``.

    Args:
        text: ``func("relu") & in_module("block.2")``, ``node_fired``, ``nan`` or ``relu_1_2``.

    Raises:
        ConfigurationError: ``selector_text_malformed``.
        SelectionError, SelectorTypeError: What the selectors themselves are refused with.
    """
    text = text.strip()
    if text in EVENTS_BY_NAME or text in NONFINITE:
        return text
    if not text or len(text) > LONGEST:
        raise malformed(text, "it is empty" if not text else f"it is longer than {LONGEST} characters")
    if "(" not in text and not set(text) & set("|&~\"'"):
        return label(text)
    try:
        tree = ast.parse(text, mode="eval").body
        return selector_of(text, tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        if isinstance(exc, TorchLensError):
            raise
        raise malformed(text, "it is no expression of Python") from exc


def selector_of(text: str, tree: ast.expr) -> Selector:
    match tree:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return selector_of(text, left) | selector_of(text, right)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return selector_of(text, left) & selector_of(text, right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return selector_of(text, left) - selector_of(text, right)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return ~selector_of(text, inner)
        case ast.Constant(value=str() as name):
            return label(name)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="tl"), attr=name)):
            made = CONSTRUCTORS.get(name)
            if made is None:
                raise malformed(text, f"{name} makes no selector that can be typed")
            args = [argument_of(text, each) for each in tree.args]
            named = {each.arg: argument_of(text, each.value) for each in tree.keywords if each.arg is not None}
            if len(named) != len(tree.keywords):
                raise malformed(text, "arguments are written out one by one")
            try:
                return made(*args, **named)
            except TypeError as exc:
                if hasattr(exc, "code"):
                    raise
                raise malformed(text, f"{name} is not called like that") from exc
        case _:
            raise malformed(text, f"there is {type(tree).__name__} in it, which is no part of a selector")


def argument_of(text: str, tree: ast.expr) -> Any:
    """An argument of a selector: a constant, or a selector."""
    match tree:
        case ast.Constant(value=str() | int() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case _:
            return selector_of(text, tree)


def malformed(text: str, why: str) -> ConfigurationError:
    shown = text if len(text) <= 80 else f"{text[:80]}..."
    return ConfigurationError(
        code="selector_text_malformed",
        problem=f"{shown!r} is not understood: {why}",
        remedy='write a selector, func("relu") & in_module("block.2"); an event type, node_fired; or a label, relu_1_2',
        received=shown,
    )
