"""The model before, during and after a capture: described, its forwards wrapped, everything put back.

Nothing is stored on the model between captures. While one runs, each registered module has a ``forward``
of ours in its instance dictionary; a module that is not registered gets one at its first call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import attrs
from torch import Tensor, nn

from journal.events import ModelDescribed, ModuleSeen
from torchlens import compat
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import Function
from torchlens.capture.recorder import Recorder, clear_slot, parameter_row
from torchlens.capture.template import path_of


@attrs.define(slots=True)
class Description:
    """A model's modules, parameters and buffers, each numbered by position."""

    modules: list[nn.Module]
    addresses: list[str]
    parameters: list[Tensor]
    buffers: list[Tensor]
    buffer_names: list[tuple[int, str]]  # module number and attribute of each buffer, first name first
    event: ModelDescribed


def describe(root: nn.Module, *, also_called: str | None = None) -> Description:
    """Walk the model once; a module, parameter or buffer with several names keeps the first and lists the others.

    Args:
        root: The model.
        also_called: Address of the root within a wrapper that was taken off, so that addresses with it lead here too.
    """
    modules: list[nn.Module] = []
    addresses: list[str] = []
    parents: list[int | None] = []
    aliases: dict[int, list[str]] = {}
    numbers: dict[int, int] = {}
    stack: list[tuple[nn.Module, str, int | None, frozenset[int]]] = [(root, "", None, frozenset())]
    while stack:
        module, address, parent, above = stack.pop()
        known = numbers.get(id(module))
        if known is None:
            known = numbers[id(module)] = len(modules)
            modules.append(module)
            addresses.append(address)
            parents.append(parent)
        elif known in above:
            continue
        else:
            aliases.setdefault(known, []).append(address)
        children = compat.own_children(module)
        if children:
            inside = above | {known}
            prefix = f"{address}." if address else ""
            for name, child in reversed(children.items()):
                if child is not None:
                    stack.append((child, prefix + name, known, inside))
    rows: list[Any] = []
    parameters: dict[int, tuple[Tensor, list[str]]] = {}
    buffers: dict[int, tuple[Tensor, list[str]]] = {}
    places: list[tuple[int, str]] = []
    paths: dict[type, str] = {}
    for number, module in enumerate(modules):
        address, others = addresses[number], tuple(aliases.get(number, ()))
        if also_called is not None:
            others = (*others, *(".".join(filter(None, (also_called, name))) for name in (address, *others)))
        kind = type(module)
        path = paths.get(kind)
        if path is None:
            path = paths[kind] = path_of(kind)
        forward, before, backward = compat.hook_names(module)
        rows.append((address, kind.__name__, path, parents[number], module.training, others, forward, before, backward))
        own_parameters, own_buffers = compat.own_parameters(module), compat.own_buffers(module)
        if not own_parameters and not own_buffers:
            continue
        for own in (address, *others):
            prefix = f"{own}." if own else ""
            for name, parameter in own_parameters.items():
                if parameter is not None:
                    entry = parameters.get(id(parameter))
                    if entry is None:
                        parameters[id(parameter)] = (parameter, [prefix + name])
                    else:
                        entry[1].append(prefix + name)
            for name, buffer in own_buffers.items():
                if buffer is not None:
                    held = buffers.get(id(buffer))
                    if held is None:
                        buffers[id(buffer)] = (buffer, [prefix + name])
                        places.append((number, name))
                    else:
                        held[1].append(prefix + name)
    return Description(
        modules=modules,
        addresses=addresses,
        parameters=[tensor for tensor, _ in parameters.values()],
        buffers=[tensor for tensor, _ in buffers.values()],
        buffer_names=places,
        event=ModelDescribed(
            modules=tuple(rows),
            parameters=tuple(parameter_row(n[0], t, tuple(n[1:])) for t, n in parameters.values()),
            buffers=tuple(parameter_row(n[0], t, tuple(n[1:])) for t, n in buffers.values()),
        ),
    )


NO_HOOKS: Final = ((), (), ())


def module_numbers(root: nn.Module) -> dict[str, int]:
    """Number of each registered submodule by every name it has; the root, whose name is empty, left out."""
    rows = describe(root).event.modules
    return {name: number for number, row in enumerate(rows) for name in (row[0], *row[5]) if name}  # type: ignore[misc, index]


OWN_ATTRIBUTES: Final = frozenset((*nn.Module().__dict__, "forward"))
"""What every module has in its instance dictionary; the rest is the user's."""


_getframe = sys._getframe


class Instrumented:
    """The model while it is captured; ``restore`` leaves it as it was."""

    def __init__(self, described: Description, recorder: Recorder) -> None:
        self._recorder = recorder
        self._described = described
        self._forwards: list[tuple[dict[str, Any], Any]] = []  # instance dictionary, its own forward or MISSING
        self._plain: list[dict[str, Any]] = []  # instance dictionaries that had no forward
        self._compiled: list[tuple[nn.Module, Any]] = []
        self._classes: list[tuple[str, Any]] = []
        self._buffers: dict[tuple[int, str], int] = {}
        self._found: list[nn.Module] = []  # keeps discovered modules, and so their ids, alive
        self.holders: list[dict[str, Any]] = []  # instance dictionaries that may hold tensors of this forward
        self._next_module = len(described.modules)

    def install(self) -> None:
        recorder, described = self._recorder, self._described
        for number, parameter in enumerate(described.parameters):
            recorder.adopt_parameter(parameter, number)
        for number, buffer in enumerate(described.buffers):
            recorder.adopt_buffer(buffer, number)
        plain: dict[type, bool] = {}
        numbers = recorder.module_numbers
        for number, module in enumerate(described.modules):
            kind, names = type(module), module.__dict__
            simple = plain.get(kind)
            if simple is None:
                simple = plain[kind] = not compat.may_hide_model(kind)
            if simple and number and "forward" not in names and compat.COMPILED_CALL not in names:
                numbers[id(module)] = number
                names["forward"] = self._forward(number, module.forward)
                self._plain.append(names)
            else:
                self._wrap(number, module, root=number == 0)
        for number, (owner, name) in enumerate(described.buffer_names):
            self._buffers[id(described.modules[owner]), name] = number
        self._patch("__call__", self._calling())
        self._patch("__setattr__", self._setting())

    def _wrap(self, number: int, module: nn.Module, *, root: bool = False) -> None:
        self._recorder.module_numbers[id(module)] = number
        names = module.__dict__
        original = module.forward
        if names.get(compat.COMPILED_CALL) is not None:
            self._compiled.append((module, names[compat.COMPILED_CALL]))
            names[compat.COMPILED_CALL] = None
        if compat.may_hide_model(type(module)):
            inner = compat.inner_model(module)
            if inner is not None:
                original = inner.__call__
            elif compat.is_scripted(module):
                original = self._opaque(module, original)
        self._forwards.append((names, names.get("forward", MISSING)))
        names["forward"] = self._root_forward(module, original) if root else self._forward(number, original)

    def _forward(self, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
        called = self._recorder.module_called

        def forward(*args: Any, **kwargs: Any) -> Any:
            return called(number, original, args, kwargs)

        return forward

    def _root_forward(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        """The driver entered the root's first call, around the root's hooks; later ones are calls of their own."""
        recorder, entered = self._recorder, False

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal entered
            if not entered:
                entered = True
                return original(*args, **kwargs)
            return recorder.module_called(0, original, args, kwargs)

        recorder.sites.root = forward.__code__
        return forward

    def _opaque(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        """A scripted module: one operation, since what it runs is not Python."""
        name = getattr(module, "original_name", type(module).__name__)
        function = Function(name.lower(), f"torch.jit.{name}", original, opaque=True)
        applied = self._recorder.applied

        def forward(*args: Any, **kwargs: Any) -> Any:
            return applied(function, args, kwargs, False)

        OWN_CODE.add(forward.__code__)
        return forward

    def _patch(self, name: str, made: Callable[..., Any]) -> None:
        self._classes.append((name, vars(nn.Module)[name]))
        setattr(nn.Module, name, made)

    def _calling(self) -> Callable[..., Any]:
        original, recorder, known = vars(nn.Module)["__call__"], self._recorder, self._recorder.module_numbers

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_listening():
                number = known.get(id(module))
                if number is None:
                    number = self._discover(module)
                recorder.caller = (number, _getframe(1))
            return original(module, *args, **kwargs)

        OWN_CODE.add(__call__.__code__)
        return __call__

    def _discover(self, module: nn.Module) -> int:
        """A module that the model does not register is called for the first time."""
        kind = type(module)
        number = self._next_module
        self._next_module += 1
        self._recorder.plan.discovered(kind.__name__)
        self._found.append(module)
        self.holders.append(module.__dict__)
        self._recorder.note(
            ModuleSeen(number=number, class_name=kind.__name__, class_qualname=path_of(kind), training=module.training)
        )
        for name, parameter in compat.own_parameters(module).items():
            if parameter is not None and self._recorder.value_of(parameter) is None:
                self._recorder.meet_parameter(parameter, number, name)
        self._wrap(number, module)
        return number

    def _setting(self) -> Callable[..., Any]:
        original, recorder, buffers = vars(nn.Module)["__setattr__"], self._recorder, self._buffers
        holders = self.holders

        def __setattr__(module: nn.Module, name: str, value: Any) -> None:
            original(module, name, value)
            if type(value) in CONTAINERS:
                holders.append(module.__dict__)
            elif isinstance(value, Tensor) and recorder.is_listening():
                holders.append(module.__dict__)
                number = buffers.get((id(module), name))
                if number is not None:
                    recorder.buffer_assigned(module, name, value, number)

        OWN_CODE.add(__setattr__.__code__)
        return __setattr__

    def check_buffers(self) -> None:
        """Notice buffers that were exchanged past ``__setattr__``, as ``_buffers[name] = tensor`` does."""
        for number, (owner, name) in enumerate(self._described.buffer_names):
            module = self._described.modules[owner]
            held = compat.own_buffers(module).get(name)
            if held is not None:
                self._recorder.buffer_assigned(module, name, held, number)

    def restore(self) -> None:
        """Put everything back, and take the slots off tensors that the model stored on itself."""
        for name, original in self._classes:
            setattr(nn.Module, name, original)
        for names in self._plain:
            names.pop("forward", None)
        for names, own in self._forwards:
            if own is MISSING:
                names.pop("forward", None)
            else:
                names["forward"] = own
        for module, compiled in self._compiled:
            module.__dict__[compat.COMPILED_CALL] = compiled
        self._recorder.clear_slots()
        for names in self.holders:
            for name in names.keys() - OWN_ATTRIBUTES:
                _clear(names[name])


def _clear(value: Any) -> None:
    """Take slots off tensors that the model stored on itself, one container deep."""
    if isinstance(value, Tensor):
        clear_slot(value)
    elif type(value) in (list, tuple):
        for item in value:
            if isinstance(item, Tensor):
                clear_slot(item)
    elif type(value) is dict:
        for item in value.values():
            if isinstance(item, Tensor):
                clear_slot(item)


MISSING: Final = object()
CONTAINERS: Final = frozenset((list, tuple, dict, set))


class FunctionModel(nn.Module):
    """Stands for a plain function that is captured like a model; its modules are found when they are called."""

    fn: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["fn"] = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["fn"](*args, **kwargs)


OWN_CODE.add(FunctionModel.forward.__code__)
