"""Options that several verbs take, declared once, and told by each of them as its own keywords.

Such options stand in a ``TypedDict``. A verb takes them as ``**options: Unpack[Declared]``, which is what type checkers
and editors read, and hands them on whole; ``takes`` tells them to ``help`` and whatever else asks a function for its
signature while the program runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar

__all__ = ["takes"]

F = TypeVar("F", bound=Callable[..., Any])


def takes(declared: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """A decorator that tells the keywords of ``declared`` in place of ``**options`` in a function's signature.

    Args:
        declared: A ``TypedDict``: the keywords, in order, with their types.
        defaults: What each is where it is not given; None, where it does not stand here.
    """
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind,
        )
        for name, kind in declared.__annotations__.items()
    ]

    def told(function: F) -> F:
        signature = inspect.signature(function)
        *own, rest = signature.parameters.values()
        assert rest.kind is rest.VAR_KEYWORD
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]  # read by inspect
        return function

    return told
