"""Handlers: what a mode, or a class of tensors, does with an operator that a call has come to; no call of the model.

Torch hands an operator to ``__torch_dispatch__`` of the modes that are on and of the classes of its tensors, in the
middle of the wrapped call that led to it. Such code calls torch itself (it counts FLOPs, looks for NaN, computes with
what a wrapper of tensors holds); only the call that the model made is an op. For the length of a capture these
handlers run unheard: of modes those that are on when it begins, and each as it is entered.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchlens import compat
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.wrap import listening
from torchlens.undoing import undo

__all__ = ["Handlers"]

NAME = "__torch_dispatch__"


class Handlers:
    """The handlers of one capture; ``restore`` puts each back."""

    def __init__(self) -> None:
        self._modes: list[Any] = []
        self._classes: list[tuple[type, Any]] = []
        self._enter: Any = None

    def install(self) -> None:
        for kind in _classes_below(Tensor):
            held = vars(kind).get(NAME)
            if isinstance(held, classmethod | staticmethod) and isinstance(held.__func__, types.FunctionType):
                self._classes.append((kind, held))
                setattr(kind, NAME, type(held)(_unheard(held.__func__)))
        for mode in compat.dispatch_modes():
            self._mute(mode)
        self._enter = original = vars(compat.DispatchMode)["__enter__"]
        mute = self._mute

        def enter(mode: Any) -> Any:
            mute(mode)
            return original(mode)

        OWN_CODE.add(enter.__code__)
        setattr(compat.DispatchMode, "__enter__", functools.wraps(original)(enter))  # noqa: B010  # a class that torch builds

    def _mute(self, mode: Any) -> None:
        if not getattr(mode, "is_witness", False) and NAME not in vars(mode):
            made = types.MethodType(_unheard_method(getattr(mode, NAME)), mode)
            self._modes.append(mode)
            vars(mode)[NAME] = made

    def restore(self) -> None:
        if self._enter is not None:
            setattr(compat.DispatchMode, "__enter__", self._enter)  # noqa: B010  # as above
        undo(
            [
                *[functools.partial(vars(mode).pop, NAME, None) for mode in self._modes],
                *[functools.partial(setattr, kind, NAME, held) for kind, held in self._classes],
            ]
        )
        self._modes.clear()
        self._classes.clear()


def _classes_below(kind: type) -> Iterator[type]:
    found: list[type] = kind.__subclasses__()
    for below in found:
        yield below
        yield from _classes_below(below)


def _unheard(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle(*args: Any, **kwargs: Any) -> Any:
        listener = listening()
        return original(*args, **kwargs) if listener is None else listener.handling(original, args, kwargs)

    OWN_CODE.add(handle.__code__)
    return functools.wraps(original)(handle)


def _unheard_method(bound: Callable[..., Any]) -> Callable[..., Any]:
    """The same of a bound method, for an instance: torch asks that it be a method."""

    def handle(_mode: Any, *args: Any, **kwargs: Any) -> Any:
        listener = listening()
        return bound(*args, **kwargs) if listener is None else listener.handling(bound, args, kwargs)

    OWN_CODE.add(handle.__code__)
    return handle
