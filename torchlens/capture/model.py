"""The model before, during and after a capture: described, its forwards wrapped, everything put back.

Nothing is stored on the model between captures. While one runs, what calling a module runs and the
forwards of the model's classes are ours; the root, and an instance that has a forward of its own, have one
of ours in their dictionaries. A module that is not registered is numbered at its first call. A module with
buffers has a dictionary of them that tells when one is exchanged.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
from torch import Tensor, nn

from journal.events import ModelDescribed, ModuleSeen
from projections.folds.vocabulary import ROOT
from torchlens import compat
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.functions import SCRIPTED, Function
from torchlens.capture.places import described_classes
from torchlens.capture.recorder import Recorder, parameter_row
from torchlens.capture.template import path_of, spelled
from torchlens.undoing import undo


@attrs.define(slots=True)
class DescribedModel:
    """A model's modules, parameters and buffers, each numbered by position."""

    modules: list[nn.Module]
    parameters: list[Tensor]
    buffers: list[Tensor]
    buffer_names: list[tuple[int, str]]  # module number and attribute of each buffer, first name first
    event: ModelDescribed

    @property
    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Address and other names of each module."""
        rows: Any = self.event.modules
        return ((row[0], row[5]) for row in rows)

    @property
    def transient_buffers(self) -> frozenset[int]:
        """Numbers of the buffers that no state dict of the model holds."""
        return frozenset(
            number
            for number, (owner, name) in enumerate(self.buffer_names)
            if compat.is_transient_buffer(self.modules[owner], name)
        )

    @property
    def buffer_addresses(self) -> Iterator[str]:
        """Address of each buffer."""
        rows: Any = self.event.buffers
        return (row[0] for row in rows)


def describe(root: nn.Module, *, also_called: str | None = None) -> DescribedModel:
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
            addresses.append(own_address(address))
            parents.append(parent)
        elif known in above:
            continue
        else:
            aliases.setdefault(known, []).append(own_address(address))
        children = compat.own_children(module)
        if children:
            inside = above | {known}
            prefix = f"{address}." if address else ""
            for name, child in reversed(children.items()):
                if child is not None:
                    stack.append((child, prefix + spelled(name), known, inside))
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
        forward, before, backward = (tuple(map(spelled, names)) if names else () for names in compat.hook_names(module))
        rows.append((address, kind.__name__, path, parents[number], module.training, others, forward, before, backward))
        own_parameters, own_buffers = compat.own_parameters(module), compat.own_buffers(module)
        if not own_parameters and not own_buffers:
            continue
        for own in (address, *others):
            found_at = ROOT if own == CALLED_AS_ROOT else own
            prefix = f"{found_at}." if found_at else ""
            for name, parameter in own_parameters.items():
                if parameter is not None:
                    entry = parameters.get(id(parameter))
                    if entry is None:
                        parameters[id(parameter)] = (parameter, [prefix + spelled(name)])
                    else:
                        entry[1].append(prefix + spelled(name))
            for name, buffer in own_buffers.items():
                if buffer is not None:
                    held = buffers.get(id(buffer))
                    if held is None:
                        buffers[id(buffer)] = (buffer, [prefix + spelled(name)])
                        places.append((number, name))
                    else:
                        held[1].append(prefix + spelled(name))
    return DescribedModel(
        modules=modules,
        parameters=[tensor for tensor, _ in parameters.values()],
        buffers=[tensor for tensor, _ in buffers.values()],
        buffer_names=places,
        event=ModelDescribed(
            modules=tuple(rows),
            parameters=tuple(parameter_row(n[0], t, tuple(n[1:])) for t, n in parameters.values()),
            buffers=tuple(parameter_row(n[0], t, tuple(n[1:])) for t, n in buffers.values()),
        ),
    )


def own_address(path: str) -> str:
    """The address of the module at a path: a child of the root that is called as the root is gets a name of its own."""
    return CALLED_AS_ROOT if path == ROOT else path


def address_of(root: nn.Module, name: str) -> str | None:
    """The address that records have of the submodule that ``name`` leads to; None where it leads to none."""
    if name in (ROOT, CALLED_AS_ROOT):
        name = ROOT if name == CALLED_AS_ROOT else ""
    wanted: nn.Module | None = root
    for part in name.split("."):
        wanted = None if wanted is None else compat.own_children(wanted).get(part)
    if wanted is None:
        return None
    seen: set[int] = set()
    stack: list[tuple[nn.Module, str]] = [(root, "")]
    while stack:  # in the order of ``describe``: the first address is the module's own
        module, address = stack.pop()
        if module is wanted:
            return own_address(address) or None
        if id(module) not in seen:
            seen.add(id(module))
            for part, child in reversed(compat.own_children(module).items()):
                if child is not None:
                    stack.append((child, f"{address}.{spelled(part)}" if address else spelled(part)))
    return None


CALLED_AS_ROOT: Final = f"~{ROOT}"
"""Address of a child of the root that has the root's address as its name; what is in it keeps its path."""

OWN_ATTRIBUTES: Final = frozenset((*nn.Module().__dict__, "forward"))
"""What every module has in its instance dictionary; the rest is the user's."""


class Buffers(dict[str, Any]):
    """A module's buffers, telling when one is exchanged."""

    def __init__(self, held: dict[str, Any]) -> None:
        super().__init__(held)
        self.__dict__["told"] = {}

    def watch(self, name: str, tell: Callable[[Any], None]) -> None:
        self.__dict__["told"][name] = tell

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy or pickle of the model made during the capture has a plain dictionary."""
        return (dict, (dict(self),))

    def tell_no_more(self) -> None:
        self.__dict__["told"].clear()

    def __setitem__(self, name: str, buffer: Any) -> None:
        super().__setitem__(name, buffer)
        tell = self.__dict__["told"].get(name)
        if tell is not None:
            tell(buffer)


class Instrumented:
    """The model while it is captured; ``restore`` leaves it as it was."""

    def __init__(
        self,
        described: DescribedModel,
        recorder: Recorder,
        *,
        enters_root: bool,
        found: Callable[[list[nn.Module]], None] = lambda modules: None,
        tells_source: bool = False,
    ) -> None:
        self._recorder = recorder
        self._tell_found = found  # of a module that is not registered, before its forward runs
        self._described = described
        # Whether the root's forward is still to be run for the driver, who has entered it around its hooks.
        self._root_waits = enters_root
        self._tells_source = tells_source
        self._numbers: dict[int, int] = {}  # number of each module whose class's forward is wrapped, by id
        self._special: dict[int, int] = {}  # number, by id, of the modules with a forward of ours in their dictionary
        self._by_class: dict[type, Any] = {}
        self._originals: dict[Any, Any] = {}  # forward of ours -> the class's
        self._patched: list[tuple[type, str, Any]] = []
        # Instance dictionary, its own forward or MISSING, ours.
        self._forwards: list[tuple[dict[str, Any], Any, Any]] = []
        self._compiled: list[tuple[nn.Module, Any]] = []
        self._watched: list[tuple[nn.Module, dict[str, Any], Buffers]] = []
        self._found: list[nn.Module] = []  # keeps discovered modules, and so their ids, alive
        self._next_module = len(described.modules)

    def install(self) -> None:
        recorder, described = self._recorder, self._described
        recorder.adopt_parameters(described.parameters)
        for number, buffer in enumerate(described.buffers):
            recorder.adopt_buffer(buffer, number)
        for number, module in enumerate(described.modules):
            self._adopt(number, module)
        for number, (owner, name) in enumerate(described.buffer_names):
            self._watch(described.modules[owner], name, number)
        recorder.sites.root = _enter.__code__
        # Not ``__call__``: to set a special method is to visit every subclass there is.
        self._patch(nn.Module, compat.CALL, self._calling())

    def _adopt(self, number: int, module: nn.Module) -> None:
        kind, names = type(module), module.__dict__
        plain = self._by_class[kind] if kind in self._by_class else self._forward_of_class(kind)
        if plain is None or "forward" in names or compat.COMPILED_CALL in names:
            self._wrap(number, module)
        else:
            self._numbers[id(module)] = number

    def _forward_of_class(self, kind: type[nn.Module]) -> Callable[..., Any] | None:
        """What modules of this class run, its class attribute wrapped; None where that is no plain function."""
        if kind not in self._by_class:
            owner = next((base for base in kind.__mro__ if "forward" in base.__dict__), nn.Module)
            plain = owner.__dict__.get("forward")
            if owner is nn.Module or not isinstance(plain, types.FunctionType) or compat.may_hide_model(kind):
                plain = None
            elif plain in self._originals:
                plain = self._originals[plain]
            else:
                made = self._shared_forward(plain)
                self._originals[made] = plain
                self._patch(owner, "forward", made)
            self._by_class[kind] = plain
        return self._by_class[kind]

    def _shared_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A class's forward, for calls that do not go through ``__call__``."""
        called, numbers, by_class = self._recorder.module_called, self._numbers, self._by_class

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            number = numbers.get(id(module))
            if number is not None and type(module) not in by_class:  # its class was changed meanwhile
                self._forward_of_class(type(module))
            if number is None or by_class[type(module)] is not original:  # reached by super() from a subclass
                return original(module, *args, **kwargs)
            if number == 0 and self._is_drivers():
                return _enter(original, module, *args, **kwargs)
            return called(number, types.MethodType(original, module), args, kwargs)

        OWN_CODE.add(forward.__code__)
        return functools.wraps(original)(forward)

    def _is_drivers(self) -> bool:
        """Whether this run of the root's forward is the one that the driver has entered."""
        if self._root_waits and self._recorder.is_listening():
            self._root_waits = False
            return True
        return False

    def _wrap(self, number: int, module: nn.Module) -> None:
        """Put a forward into the instance's dictionary, where that of its class does not serve."""
        self._special[id(module)] = number
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
        made = self._own_forward(number, original)
        self._forwards.append((names, names.get("forward", MISSING), made))
        names["forward"] = made

    def _own_forward(self, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
        called = self._recorder.module_called

        def forward(*args: Any, **kwargs: Any) -> Any:
            if number == 0 and self._is_drivers():
                return _enter(original, *args, **kwargs)
            return called(number, original, args, kwargs)

        OWN_CODE.add(forward.__code__)
        return forward

    def _opaque(self, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        """A scripted module: one op, since what it runs is not Python."""
        name = getattr(module, "original_name", type(module).__name__)
        function = Function(name.lower(), f"torch.jit.{name}", original, opaque=SCRIPTED)
        applied = self._recorder.applied

        def forward(*args: Any, **kwargs: Any) -> Any:
            return applied(function, args, kwargs, False)

        OWN_CODE.add(forward.__code__)
        return forward

    def _patch(self, owner: type, name: str, made: Callable[..., Any]) -> None:
        self._patched.append((owner, name, vars(owner)[name]))
        setattr(owner, name, made)

    def _calling(self) -> Callable[..., Any]:
        """What calling a module runs, for the length of the capture.

        A module without hooks would only be handed on to its forward: that is done here at once.
        """
        original, recorder, called = vars(nn.Module)[compat.CALL], self._recorder, self._recorder.module_called
        numbers, by_class, only_calls_forward = self._numbers, self._by_class, compat.only_calls_forward
        special, has_pre_hooks = self._special, compat.has_pre_hooks

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            number = numbers.get(id(module))
            if number is None:
                if id(module) not in self._special and recorder.is_listening():
                    self._discover(module)
            elif number == 0 and self._root_waits:
                return original(module, *args, **kwargs)
            elif only_calls_forward(module) and "forward" not in module.__dict__:
                plain = by_class.get(type(module)) or self._forward_of_class(type(module))
                if plain is not None:
                    return called(number, types.MethodType(plain, module), args, kwargs)
            if has_pre_hooks(module) and recorder.is_listening():
                number = numbers.get(id(module), special.get(id(module), 0))
                if number:  # the root has been entered already
                    recorder.pre_hooks_started(number, args, kwargs)
            return original(module, *args, **kwargs)

        OWN_CODE.add(call.__code__)
        return call

    def _discover(self, module: nn.Module) -> None:
        """A module that the model does not register is called for the first time."""
        kind = type(module)
        number = self._next_module
        self._next_module += 1
        self._recorder.plan.discovered(kind.__name__)
        self._found.append(module)
        self._recorder.note(
            ModuleSeen(number=number, class_name=kind.__name__, class_qualname=path_of(kind), training=module.training)
        )
        for name, parameter in compat.own_parameters(module).items():
            if parameter is not None and self._recorder.value_of(parameter) is None:
                self._recorder.meet_parameter(parameter, number, name)
        if self._tells_source:
            for told in described_classes([module], number):
                self._recorder.note(told)
        self._tell_found([module])
        self._adopt(number, module)

    def _watch(self, module: nn.Module, name: str, number: int) -> None:
        """Hear of it when ``module``'s buffer ``name`` is exchanged."""
        held = compat.own_buffers(module)
        if not isinstance(held, dict):  # a scripted module's; what runs in it is one op
            return
        if not isinstance(held, Buffers):
            watched = Buffers(held)
            self._watched.append((module, held, watched))
            compat.set_buffers(module, watched)
            held = watched
        held.watch(name, functools.partial(self._assigned, number))

    def _assigned(self, number: int, buffer: Any) -> None:
        if isinstance(buffer, Tensor) and self._recorder.is_listening():
            self._recorder.buffer_assigned(buffer, number)

    def restore(self) -> None:
        """Put everything back, and take the numbers off tensors that live on."""
        undo(
            [
                *[functools.partial(setattr, *patched) for patched in reversed(self._patched)],
                *[functools.partial(_put_forward_back, *replaced) for replaced in self._forwards],
                *[functools.partial(_put_buffers_back, *watched) for watched in self._watched],
                *[functools.partial(_put_compiled_back, *compiled) for compiled in self._compiled],
                self._recorder.clear_numbers,
                self._let_go,
            ]
        )

    def _let_go(self) -> None:
        for held in (self._patched, self._forwards, self._originals, self._watched):
            held.clear()  # what stands in these refers back here

    @property
    def modules(self) -> list[nn.Module]:
        """Every module that was seen, registered or not."""
        return [*self._described.modules, *self._found]


def _put_forward_back(names: dict[str, Any], own: Any, made: Any) -> None:
    if names.get("forward") is not made:  # the model has set one of its own, or it is back
        return
    if own is MISSING:
        del names["forward"]
    else:
        names["forward"] = own


def _put_buffers_back(module: nn.Module, held: dict[str, Any], watched: Buffers) -> None:
    if compat.own_buffers(module) is watched:
        held.clear()
        held.update(watched)
        compat.set_buffers(module, held)
    watched.tell_no_more()


def _put_compiled_back(module: nn.Module, compiled: Any) -> None:
    module.__dict__[compat.COMPILED_CALL] = compiled


def _enter(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs the root's forward for the driver; call sites of the root end at this frame."""
    return original(*args, **kwargs)


OWN_CODE.add(_enter.__code__)

MISSING: Final = object()


class FunctionModel(nn.Module):
    """Stands for a plain function that is captured like a model; its modules are found when they are called."""

    fn: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["fn"] = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["fn"](*args, **kwargs)


OWN_CODE.add(FunctionModel.forward.__code__)
