"""Where a bare function is bound: a call escaped, and the code around it names what it called.

Gives  the model's frame of an escape, and the places in the frames from there outwards that hold a watched function.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Final

from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import Function
from torchlens.capture.recorder import Recorder

NESTED_MODULES: Final = 4
"""How deep a path of modules is followed: ``torch._C._nn.gelu``."""

LOOKED_THROUGH: Final = 3
"""Frames of the model, from the escape outwards, whose names are looked through for the bare function."""


def model_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither ours nor of torch's dispatching."""
    while frame is not None and (frame.f_code in OWN_CODE or is_dispatching(frame.f_code)):
        frame = frame.f_back
    return frame


def is_dispatching(code: CodeType) -> bool:
    return code.co_filename.endswith(DISPATCHING)


DISPATCHING: Final = (
    "torch/_compile.py",
    "torch/_ops.py",
    "torch/_dynamo/eval_frame.py",
    "torch/utils/_python_dispatch.py",
)
"""Files of torch whose frames stand between a call and the mode that hears of its operators."""


def bindings(frame: FrameType | None, bare: Mapping[int, Function]) -> Iterator[tuple[str, Function]]:
    """Where in the calling frames a watched function stands that is no wrapper, and which one it is."""
    for _ in range(LOOKED_THROUGH):
        if frame is None or frame.f_code is Recorder.module_called.__code__:
            return
        for name, value in nameable(frame):
            function = bare.get(id(value.func if type(value) is functools.partial else value))
            if function is not None:
                yield f"{name} in {frame.f_code.co_filename}", function
        frame = frame.f_back


def nameable(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What the code of a frame can name: its locals and their attributes, its globals, and what is in their modules."""
    names = frame.f_code.co_names
    for name, value in list(frame.f_locals.items()):
        yield name, value
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and type(value) is not types.ModuleType:
            for attribute in names:
                if attribute in attributes:
                    yield f"{name}.{attribute}", attributes[attribute]
    reached = [(name, frame.f_globals[name]) for name in names if name in frame.f_globals]
    looked_into: set[int] = set()
    while reached:
        path, value = reached.pop()
        yield path, value
        if type(value) is types.ModuleType and id(value) not in looked_into and path.count(".") < NESTED_MODULES:
            looked_into.add(id(value))
            inside = vars(value)
            reached += [(f"{path}.{name}", inside[name]) for name in names if name in inside]
