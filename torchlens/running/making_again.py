"""One recorded call made again: ``trace.make_again(site)``.

Reads  what the call was given, from saved arguments or the values that its arguments were, and its generator's state.
Gives  the tensors that it gives, on memory of their own.
Rule   a function is torch's own, or of the user's in a module that the caller names: nothing else is imported.
Not    the forward as a whole (executing.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from journal.events import OpExecuted
from projections.errors import over_events
from projections.structure.memory import Executed
from torchlens import compat
from torchlens.capture.functions import AUTOGRAD_FUNCTION, CUSTOM
from torchlens.copying import copy_of
from torchlens.errors import ConfigurationError, LookupRefused, ReplayRefused
from torchlens.reading.records import Op
from torchlens.reading.view import View
from torchlens.replay.replaying import Replay, is_plain, spot_of
from torchlens.replay.restoring import ParameterBefore, laid_out
from torchlens.running.functions import function_of
from torchlens.running.state import embedded

__all__ = ["make_again"]


def make_again(view: View, op: Op, allowed: Sequence[str]) -> tuple[Tensor, ...]:
    """Make the call of an op again; see ``Trace.make_again``."""
    if isinstance(allowed, str) or not all(isinstance(one, str) for one in allowed):
        raise ConfigurationError(
            code="option_value_invalid",
            problem=f"allowed_custom_callable_modules={allowed!r} is no list of names of modules",
            remedy='pass a list, such as ["my_package.layers"]',
            argument="allowed_custom_callable_modules",
        )
    event = op.read("event")
    with over_events():
        if not isinstance(view.event(event), OpExecuted):
            raise LookupRefused(
                code="made_by_no_call",
                problem=f"{op.label} was made by no call: it is an input, an output or a buffer, or was handed on",
                remedy="name an op that a function of torch returned",
                label=op.label,
            )
        single = Single(view, frozenset(allowed))
        call = single.memory.call(event)
        single.take_arguments(call, op.read("arguments_event"))
        with compat.NoTorchFunction():
            made = single.run(call, single.inputs(call))
        return tuple(copy_of(tensor) for tensor in made.results)


class Single(Replay):
    """A replay of one call, which may take what it was given from saved arguments.

    Args:
        view: The capture.
        allowed: Modules whose functions may be imported.
    """

    def __init__(self, view: View, allowed: frozenset[str]) -> None:
        super().__init__(view, self.known)
        self.allowed: Final = allowed
        self.given: dict[int, Tensor] = {}

    def take_arguments(self, call: Executed, told: int) -> None:
        """What was kept of the arguments of a call; ``told`` is the event that tells of it, negative for none."""
        if told < 0:
            return
        event: Any = self.view.event(told)
        self.given = {
            number: self.view.kept(kept)
            for number, kept in zip(call.inputs, event.tensors, strict=True)
            if kept is not None
        }

    def known(self, number: int) -> ParameterBefore | None:
        """A parameter as the call was given it, or as it is where it has not changed since."""
        view = self.view
        row = view.tables.forward.words.parameters[number]
        tensor: Any = self.given.get(-1 - number)
        if tensor is None and view.handles is not None and view.handles.is_as_captured(number):
            tensor = view.handles.parameter(number)
        if tensor is None:
            tensor = (embedded(view) or {}).get(row.address)
        if tensor is None:
            return None
        return ParameterBefore(compat.detach(tensor), int(tensor.storage_offset()), row.requires_grad)

    def inputs(self, call: Executed) -> list[Tensor]:
        try:
            return super().inputs(call)
        except ReplayRefused:
            if call.written or not all(number in self.given for number in call.inputs):
                raise
        with torch.inference_mode(mode=False), torch.no_grad():
            return [self.laid_out(number) for number in call.inputs]

    def laid_out(self, number: int) -> Tensor:
        tensor, described = self.given[number], self.memory.describe(number) if number >= 0 else None
        return copy_of(tensor) if described is None or not is_plain(tensor) else laid_out(tensor, spot_of(described))

    def function(self, call: Executed) -> Callable[..., Any]:
        opaque = str(call.is_opaque) if call.is_opaque else None
        found = function_of(call.func_name, call.func_qualname, opaque)
        return self.of_user(call, opaque) if found is None else found

    def of_user(self, call: Executed, opaque: str | None) -> Callable[..., Any]:
        """A function of the user's, from a module that was allowed.

        Raises:
            ReplayRefused: ``custom_callable_untrusted``, ``custom_callable_unsupported``,
                ``custom_callable_not_found``.
        """
        path = call.func_qualname
        if opaque == CUSTOM:
            found = compat.op_at(path)
            if found is not None and self.is_allowed(path):
                return found
        elif opaque != AUTOGRAD_FUNCTION:
            return super().function(call)
        if not self.is_allowed(path):
            raise ReplayRefused(
                code="custom_callable_untrusted",
                problem=f"{path} is code of the model's own, and no module that it stands in was allowed",
                remedy=f"if you trust it, pass allowed_custom_callable_modules=[{path.rpartition('.')[0]!r}]",
                func_qualname=path,
            )
        kind = None if opaque == CUSTOM else imported(path, self.allowed)
        if kind is None:
            raise ReplayRefused(
                code="custom_callable_not_found",
                problem=f"{path} is not to be had in this process",
                remedy="put the module on the path, or load the library that has the operator",
                func_qualname=path,
            )
        if not (isinstance(kind, type) and issubclass(kind, torch.autograd.Function)):
            raise ReplayRefused(
                code="custom_callable_unsupported",
                problem=f"{path} is no autograd.Function any more",
                remedy="use the version of the module that the capture was made with",
                func_qualname=path,
            )
        apply: Callable[..., Any] = kind.apply
        return apply

    def is_allowed(self, path: str) -> bool:
        return any(path.startswith(f"{module}.") for module in self.allowed)


def imported(path: str, allowed: frozenset[str]) -> Any:
    """What an import path leads to, of modules that were allowed by name; None where there is nothing."""
    for module in sorted(allowed, key=len, reverse=True):
        if not path.startswith(f"{module}."):
            continue
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            continue
        for name in path.removeprefix(f"{module}.").split("."):
            found = vars(found).get(name) if hasattr(found, "__dict__") else None
            if isinstance(found, ModuleType):  # another module than the one that was allowed
                found = None
        if found is not None:
            return found
    return None
