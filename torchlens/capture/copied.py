"""Copies of a tensor that Python makes with everything the tensor carries: ``copy.deepcopy`` and pickles.

A tensor is known by a number that it carries (recorder). Copied along, that number would make the copy pass for the
original: what writes to one would count as written to the other, and a file would hold a number that a later capture
takes for one of its own. So a deep copy is one op, whose result has its own number, and a pickle holds none.

Rule   ``copy.copy`` gives a second name for the same memory, and that one keeps the number.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from torchlens import compat
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import Function

__all__ = ["MARK", "deep_copied", "pickled"]

MARK: Final = "_torchlens_value"
"""The attribute of a tensor with the number of its value."""


class Applies(Protocol):
    """Who is told of calls that are one op each."""

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any: ...


Listening = Callable[[], Applies | None]


def deep_copied(listening: Listening, known: Callable[[Function], Function]) -> Callable[..., Any]:
    """``Tensor.__deepcopy__``, told of as one op of the tensor alone: what else was copied is no argument of it."""
    original = vars(torch.Tensor)["__deepcopy__"]
    given = threading.local()  # the memo of the copy that is being made

    def copied(tensor: Any) -> Any:
        return original(tensor, getattr(given, "memo", {}))

    function = known(Function("__deepcopy__", "torch.Tensor.__deepcopy__", copied))

    def __deepcopy__(self: Any, memo: Any) -> Any:
        listener = listening()
        if listener is None or id(self) in memo or not self.is_leaf:
            return original(self, memo)
        outer, given.memo = getattr(given, "memo", {}), memo
        try:
            return listener.applied(function, (self,), {}, False)
        finally:
            given.memo = outer

    OWN_CODE.update((copied.__code__, __deepcopy__.__code__))
    return functools.wraps(original)(__deepcopy__)


def pickled() -> Callable[..., Any]:
    """``Tensor.__reduce_ex__``, without the number."""
    original = vars(torch.Tensor)["__reduce_ex__"]

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        made = original(self, protocol)
        if MARK not in self.__dict__ or sys._getframe(1).f_code is copy.copy.__code__:
            return made
        rebuild, arguments = made[:2]
        if rebuild is not compat.REBUILD_WITH_STATE:
            return made
        func, kind, args, state = arguments
        attributes, *slots = state if isinstance(state, tuple) else (state,)
        if isinstance(attributes, dict):
            attributes = {name: value for name, value in attributes.items() if name != MARK}
        if kind is torch.Tensor and not attributes:
            return func, args  # as torch does for a tensor that carries nothing
        return rebuild, (func, kind, args, (attributes, *slots) if slots else attributes), *made[2:]

    OWN_CODE.add(__reduce_ex__.__code__)
    return functools.wraps(original)(__reduce_ex__)
