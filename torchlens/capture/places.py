"""Places outside the recorded calls: where a capture was asked for, where an exception came through, where classes are.

Gives  frames as events hold them, and what the source says of a module's class.
Rule   frames of this project, and those of ``nn.Module`` between a module and its forward, are left out.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from torch import nn

from journal.events import ClassDescribed, Frame
from torchlens import compat
from torchlens.capture.callsite import OWN_CODE, span_of

OWN: Final = tuple(
    str(Path(__file__).resolve().parents[2] / package) + "/" for package in ("torchlens", "journal", "projections")
)
"""Where the source of this project is."""

DEEPEST: Final = 64
"""Frames that are told of an exception: the innermost ones."""

MOST_TEXT: Final = 1 << 16
"""Characters of a docstring or a signature."""


def is_own(code: CodeType) -> bool:
    return code in OWN_CODE or code.co_filename == compat.MODULE_CALL_FILE or code.co_filename.startswith(OWN)


def frame_at(code: CodeType, instruction: int) -> Frame:
    span = span_of(code, instruction)
    column = span[2] if len(span) == 4 else None
    qualname = getattr(code, "co_qualname", code.co_name)  # absent before Python 3.11
    return (code.co_filename, span[0], code.co_name, qualname, code.co_firstlineno, column)


def calling() -> FrameType | None:
    """The frame of the user's that called into this project."""
    here: FrameType | None = sys._getframe(1)
    while here is not None and is_own(here.f_code):
        here = here.f_back
    return here


def way_of(error: BaseException, root: Callable[[CodeType], bool]) -> list[tuple[CodeType, int]]:
    """Code and instruction of each frame an exception came through, from the root's forward inwards.

    Args:
        error: The exception.
        root: Whether this is the code that runs the root's forward; frames around it are left out.
    """
    made: list[tuple[CodeType, int]] = []
    inside = False
    here = error.__traceback__
    while here is not None:
        code = here.tb_frame.f_code
        if inside and not is_own(code):
            made.append((code, here.tb_lasti))
        inside = inside or root(code)
        here = here.tb_next
    return made[-DEEPEST:]


def described_classes(modules: Sequence[nn.Module], first: int = 0) -> Iterator[ClassDescribed]:
    """What the source says of the class of each module, each class once.

    Args:
        modules: Modules, numbered by position.
        first: Number of the first one.
    """
    numbers: dict[type[nn.Module], list[int]] = {}
    for number, module in enumerate(modules, first):
        numbers.setdefault(type(module), []).append(number)
    for kind, of_kind in numbers.items():
        yield ClassDescribed(
            modules=tuple(of_kind),
            docstring=text_of(vars(kind).get("__doc__")),
            class_location=location(kind),
            init_location=location(kind.__init__),
            forward_location=location(kind.forward),
            init_signature=signature(kind.__init__),
            forward_signature=signature(kind.forward),
        )


def described_function(function: Callable[..., Any]) -> ClassDescribed:
    """The same of a plain function that was captured in place of a module: it has a forward and no class."""
    return ClassDescribed(
        modules=(0,),
        docstring=None,
        class_location=None,
        init_location=None,
        forward_location=location(function),
        init_signature=None,
        forward_signature=signature(function),
    )


def text_of(value: Any) -> str | None:
    return inspect.cleandoc(value)[:MOST_TEXT] if isinstance(value, str) else None


def location(what: Any) -> tuple[str, int] | None:
    """File and line; None where there is no source, as for a class made at run time."""
    try:
        code = getattr(inspect.unwrap(what), "__code__", None)
        if code is not None:
            return (code.co_filename, code.co_firstlineno)
        file = inspect.getsourcefile(what)
        return None if file is None else (file, inspect.findsource(what)[1] + 1)
    except (OSError, TypeError, ValueError, IndexError):
        return None


def signature(function: Any) -> str | None:
    try:
        return str(inspect.signature(function))[:MOST_TEXT]
    except Exception:  # noqa: BLE001  # a default value's repr is the user's code
        return None
