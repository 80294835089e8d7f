"""Wrappers around torch's public functions: made once, put in place for a capture, taken away after it.

A wrapper tests one name of this module. While it is None, the original runs and nothing else happens.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, Protocol, TypeAlias

import torch

from torchlens import compat
from torchlens.capture import functions
from torchlens.capture.callsite import OWN_CODE
from torchlens.capture.copied import deep_copied, pickled
from torchlens.capture.functions import Function
from torchlens.capture.slots import SequenceSlots


class Listener(Protocol):
    """Who is told of torch calls while a capture runs."""

    def is_listening(self) -> bool:
        """Whether the calls of this thread are being recorded just now."""

    def called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A watched function was called; makes the original call and gives its result."""

    def applied(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], watched: bool) -> Any:
        """A call whose inside is watched only if ``watched``; None of its inner calls is recorded otherwise."""

    def transparent(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that hands its tensor arguments on under new identities and is no op itself."""

    def unwatched(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose inside is not the model's and which is no op."""

    def handling(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a mode or a class of tensors does with a call that is being made: calls no one is told of."""

    def asked_truth(self, tensor: Any, result: bool) -> None:
        """Python asked a tensor for its truth."""

    def escaping(self, tensor: Any, name: str) -> None:
        """The memory of a tensor is about to be handed out, by the method or property of this name."""

    def data_replaced(self, tensor: Any, source: Any) -> None:
        """``tensor.data = source`` was executed."""

    def taking(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Python takes out of tensors what is no tensor; makes the call and gives its result."""


_listener: Listener | None = None


def listen(listener: Listener | None) -> None:
    """Make ``listener`` hear every wrapped call of this process, or none."""
    global _listener  # one name per process is what a wrapper can test in nanoseconds
    _listener = listener


def leave_child(*, keep_wrappers: bool) -> None:
    """In a forked child: its calls are not the parent's capture."""
    listen(None)
    if _wrappers is not None and _wrappers.dirty and not keep_wrappers:
        _wrappers.remove()


def listening() -> Listener | None:
    return _listener


def wrapper_of(function: Function) -> Callable[..., Any]:
    original = function.original

    def call(*args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(*args, **kwargs)
        return listener.called(function, args, kwargs)

    OWN_CODE.add(call.__code__)
    return _dressed(call, function)


def _dressed(call: Callable[..., Any], function: Function) -> Callable[..., Any]:
    for name in ("__doc__", "__name__", "__text_signature__"):
        value = getattr(function.original, name, None)
        if isinstance(value, str):
            setattr(call, name, value)
    module, _, qualname = function.qualname.rpartition(".")
    call.__module__, call.__qualname__ = module or "torch", qualname
    call.__wrapped__ = function.original  # type: ignore[attr-defined]  # as functools.wraps does
    return call


class Wrappers:
    """All wrappers of this process and the names they go to.

    Attributes:
        installed: Every wrapper is in its place.
        dirty: Some may be: putting them on or off was begun, and not brought to the end of taking them off.
    """

    def __init__(self) -> None:
        self.by_original: dict[int, Callable[..., Any]] = {}
        self.by_wrapper: dict[int, Callable[..., Any]] = {}
        self.functions: list[Function] = []  # keeps the originals alive, so that their ids stay theirs
        self._by_name: dict[tuple[str, str], Function] = {}
        self._spaces: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = []
        self._methods: list[tuple[type, str, Any, Any]] = []  # owner, name, wrapper, original or MISSING
        self.installed = False
        self.dirty = False
        self._codes_of_transforms = compat.transform_codes()
        self._sequence = SequenceSlots(torch.Tensor)
        self._find()

    def _find(self) -> None:
        compat.fill_identity_caches()
        for namespace, path in functions.namespaces():
            pairs = [
                (name, self._wrapper(name, f"{path}.{name}", original), original)
                for name, original in functions.namespace_functions(namespace)
            ]
            self._space(vars(namespace), pairs)
        variable = [
            (name, self.by_original[id(original)], original)
            for name in compat.CALLED_THROUGH_MODULE
            if id(original := getattr(compat.VARIABLE_FUNCTIONS, name, None)) in self.by_original
        ]
        self._space(vars(compat.VARIABLE_FUNCTION_MODULE), variable)
        for name, original in functions.tensor_methods():
            self._method(torch.Tensor, name, self._wrapper(name, f"torch.Tensor.{name}", original))
        for name in functions.TENSOR_PROPERTIES:
            self._method(torch.Tensor, name, _property(name, self._known))
        for name in functions.ESCAPES:
            self._method(torch.Tensor, name, _escape(name))
        self._method(torch.Tensor, "__bool__", _truth())
        self._method(torch.Tensor, "__torch_function__", _torch_function())
        self._method(torch.Tensor, "__deepcopy__", deep_copied(listening, self._known))
        self._method(torch.Tensor, "__reduce_ex__", pickled())
        self._method(torch.Tensor, "as_subclass", _handed_on(torch.Tensor.as_subclass))
        self._method(torch.Tensor, compat.MAKE_SUBCLASS, staticmethod(_handed_on(compat.make_subclass)))
        for name in ("__repr__", "__format__"):
            self._method(torch.Tensor, name, _unwatched(getattr(torch.Tensor, name)))
        materialize = compat.LAZY.materialize  # gives a lazy module's tensor its memory: no call of the model's
        self._method(compat.LAZY, "materialize", _unwatched(materialize))
        self._space(vars(torch), [("compile", _compile(torch.compile), torch.compile)])
        for owner in compat.SCRIPTED:
            self._method(owner, "__call__", _scripted(owner))
        self._method(compat.OP_PACKET, "__call__", _operator(compat.OP_PACKET))
        self._method(compat.OP_OVERLOAD, "__call__", _operator(compat.OP_OVERLOAD))
        self._method(torch.autograd.Function, "apply", _apply())
        self._transforms()

    def function(self, name: str, qualname: str) -> Function | None:
        """The watched function with this name and import path, as an event has them; None where there is none."""
        return self._by_name.get((name, qualname))

    def placed(self, owner: type, name: str) -> Any:
        """What stands for a method of a class while wrapped."""
        return next(wrapper for kind, known, wrapper, _ in self._methods if kind is owner and known == name)

    def _known(self, function: Function) -> Function:
        self.functions.append(function)
        self._by_name.setdefault((function.func_name, function.qualname), function)
        return function

    def _wrapper(self, name: str, qualname: str, original: Callable[..., Any]) -> Callable[..., Any]:
        made = self.by_original.get(id(original))
        if made is None:
            function = self._known(functions.function(name, qualname, original))
            made = self.by_original[id(original)] = wrapper_of(function)
            self.by_wrapper[id(made)] = original
            compat.known_to_script(original, made)
        return made

    def _space(self, names: dict[str, Any], pairs: list[tuple[str, Any, Any]]) -> None:
        wrapped = {name: wrapper for name, wrapper, _ in pairs}
        originals = {name: original for name, _, original in pairs if name in names}
        self._spaces.append((names, wrapped, originals, tuple(wrapped.keys() - originals.keys())))

    def _method(self, owner: type, name: str, wrapper: Any) -> None:
        self._methods.append((owner, name, wrapper, vars(owner).get(name, MISSING)))

    def _transforms(self) -> None:
        """Functions that are one op and not watched inside, by the namespace they stand in."""
        by_space: dict[int, tuple[dict[str, Any], list[tuple[str, Any, Any]]]] = {}
        for namespace, name, gives in compat.transforms():
            self._opaque(by_space, namespace, name, f"torch.func.{name}", functions.TRANSFORM, gives)
        self._opaque(by_space, torch.autograd, "grad", "torch.autograd.grad", functions.ENGINE, "result")
        for name in compat.nested_functions():
            self._opaque(by_space, torch.nested, name, f"torch.nested.{name}", functions.NESTED, "result")
        for names, pairs in by_space.values():
            self._space(names, pairs)
        if compat.JAGGED is not None:  # what its Python code computes with are not the tensors of the model
            self._method(compat.JAGGED, "__torch_function__", _unwatched_class_method(compat.JAGGED))

    @functools.cached_property
    def _transform_codes(self) -> dict[CodeType, Function]:
        known = {function.func_name: function for function in self.functions if function.opaque == functions.TRANSFORM}
        return {code: known[name] for code, name in self._codes_of_transforms.items()}

    def transformed(self, value: FunctionType) -> Callable[..., Any] | None:
        """A function that a transform gave before the capture, as one given during it would be; None for another."""
        function = self._transform_codes.get(value.__code__)
        return None if function is None else _applied_later(function, value, ())

    def _opaque(
        self,
        by_space: dict[int, tuple[dict[str, Any], list[tuple[str, Any, Any]]]],
        namespace: Any,
        name: str,
        qualname: str,
        reason: str,
        gives: compat.Gives,
    ) -> None:
        original = getattr(namespace, name)
        made = self.by_original.get(id(original))
        if made is None:
            function = self._known(Function(name, qualname, original, opaque=reason))
            made = self.by_original[id(original)] = _transform(function, gives)
        by_space.setdefault(id(namespace), (vars(namespace), []))[1].append((name, made, original))

    @functools.cached_property
    def bare(self) -> dict[int, Function]:
        """Every watched function by the id of its original."""
        return {id(function.original): function for function in self.functions}

    def install(self) -> None:
        """Put every wrapper in its place. It may be cut short anywhere: this or ``remove`` goes over all of them."""
        self.dirty = True
        for names, wrapped, _, _ in self._spaces:
            names.update(wrapped)
        _set_all(*self._wrapped_methods)
        self._sequence.clear()
        self.installed = True

    def remove(self) -> None:
        self.installed = False
        for names, _, originals, added in self._spaces:
            names.update(originals)
            for name in added:
                names.pop(name, None)
        _set_all(*self._original_methods)
        for owner, own_names in self._inherited_methods.items():
            held = vars(owner)
            for name in own_names:
                if name in held:
                    delattr(owner, name)
        self._sequence.clear()
        self.dirty = False

    @functools.cached_property
    def _wrapped_methods(self) -> Columns:
        return _columns((owner, name, wrapper) for owner, name, wrapper, _ in self._methods)

    @functools.cached_property
    def _original_methods(self) -> Columns:
        return _columns((owner, name, held) for owner, name, _, held in self._methods if held is not MISSING)

    @functools.cached_property
    def _inherited_methods(self) -> dict[type, list[str]]:
        """What an owner has from a base, and of its own only while wrapped."""
        names: dict[type, list[str]] = {}
        for owner, name, _, original in self._methods:
            if original is MISSING:
                names.setdefault(owner, []).append(name)
        return names


Columns: TypeAlias = tuple[tuple[type, ...], tuple[str, ...], tuple[Any, ...]]
"""Owners, names, values: six hundred attributes are set at the beginning and the end of every capture."""


def _columns(rows: Iterable[tuple[type, str, Any]]) -> Columns:
    owners, names, values = zip(*rows, strict=True)
    return owners, names, values


def _set_all(owners: tuple[type, ...], names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    deque(map(setattr, owners, names, values), maxlen=0)


MISSING: Final = object()
"""In the place of what an owner has not itself, but perhaps from a base."""


def _property(name: str, known: Callable[[Function], Function]) -> property:
    described = getattr(compat.TENSOR_BASE, name)
    shown = "detach" if name == "data" else name
    function = known(functions.function(shown, f"torch.Tensor.{name}", described.__get__))
    writer = known(Function(f"set_{name}", f"torch.Tensor.{name}", described.__set__, functions.first_argument))

    def read(self: Any) -> Any:
        listener = _listener
        if listener is None:
            return described.__get__(self)
        return listener.called(function, (self,), {})

    def write(self: Any, value: Any) -> None:
        listener = _listener
        if listener is None:
            described.__set__(self, value)
        elif name == "data":
            listener.escaping(self, name)
            described.__set__(self, value)
            listener.data_replaced(self, value)
        else:
            listener.called(writer, (self, value), {})

    def erase(self: Any) -> None:
        described.__delete__(self)

    OWN_CODE.update((read.__code__, write.__code__))
    return property(read, write, erase, described.__doc__)


def _unwatched_class_method(owner: type) -> Any:
    """A class method whose inside is no part of the model; the call around it may be an op."""
    original = vars(owner)["__torch_function__"].__func__

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(cls, *args, **kwargs)
        return listener.unwatched(original, (cls, *args), kwargs)

    OWN_CODE.add(call.__code__)
    return classmethod(functools.wraps(original)(call))


def _torch_function() -> Any:
    """What calls do with tensors of a subclass: the builtin again, and its results made tensors of that class.

    The call that the model made is the op, and gives the tensor of that class. A function written in Python is heard:
    its own calls are what is recorded of it with plain tensors too.
    """
    original = vars(torch.Tensor)["__torch_function__"].__func__

    def __torch_function__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        listener = _listener
        if listener is None:
            return original(cls, func, types, args, kwargs)
        if isinstance(getattr(func, "__wrapped__", func), functions.BUILTINS) and _is_in_call(sys._getframe(1)):
            return listener.handling(original, (cls, func, types, args, kwargs), {})
        return original(cls, func, types, args, kwargs)

    OWN_CODE.add(__torch_function__.__code__)
    return classmethod(functools.wraps(original)(__torch_function__))


CALLING_CODE: Final[set[CodeType]] = set()
"""Code of listeners that makes the call which a wrapper stands for."""


def _is_in_call(frame: FrameType | None) -> bool:
    """Whether a handler was reached straight from a wrapped call, at most through those of a subclass."""
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return frame is not None and frame.f_code in CALLING_CODE


def _handed_on(original: Callable[..., Any]) -> Callable[..., Any]:
    """A call that gives the tensor it was given under another class."""

    def call(*args: Any, **kwargs: Any) -> Any:
        listener = _listener
        return original(*args, **kwargs) if listener is None else listener.transparent(original, args, kwargs)

    OWN_CODE.add(call.__code__)
    return functools.wraps(original)(call)


def _unwatched(original: Callable[..., Any]) -> Callable[..., Any]:
    """Printing a tensor computes with tensors; that is no part of the model."""

    def call(*args: Any, **kwargs: Any) -> Any:
        listener = _listener
        return original(*args, **kwargs) if listener is None else listener.unwatched(original, args, kwargs)

    OWN_CODE.add(call.__code__)
    return functools.wraps(original)(call)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` within a capture leaves the function eager: generated code is not watched."""

    def call(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _listener is None:
            return original(model, *args, **kwargs)
        return (lambda given: given) if model is None else model

    OWN_CODE.add(call.__code__)
    return functools.wraps(original)(call)


def _truth() -> Callable[[Any], bool]:
    original = compat.truth

    def __bool__(self: Any) -> bool:
        result = original(self)
        listener = _listener
        if listener is not None:
            listener.asked_truth(self, result)
        return result

    OWN_CODE.add(__bool__.__code__)
    return __bool__


def _escape(name: str) -> Callable[..., Any]:
    original = getattr(torch.Tensor, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(self, *args, **kwargs)
        listener.escaping(self, name)
        return listener.unwatched(original, (self, *args), kwargs)

    OWN_CODE.add(call.__code__)
    return functools.wraps(original)(call)


def _operator(owner: type) -> Callable[..., Any]:
    """``torch.ops.*``: one method of the class catches every operator, custom ones too."""
    original = owner.__call__
    known: dict[int, tuple[Any, Function]] = {}  # holds the operators, so that their ids stay theirs

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(self, *args, **kwargs)
        entry = known.get(id(self))
        if entry is None:
            name, path = compat.op_name(self)
            writes = functions.every_argument if compat.op_writes(self) else None
            draws = functions.always if compat.op_draws(self) else None
            bound = functools.partial(original, self)
            opaque = None if compat.is_torchs_operator(self) else functions.CUSTOM
            entry = known[id(self)] = (self, Function(name, path, bound, writes, draws, opaque))
        if entry[1].opaque is not None:
            return listener.applied(entry[1], args, kwargs, False)
        return listener.called(entry[1], args, kwargs)

    OWN_CODE.add(__call__.__code__)
    return __call__


def _scripted(owner: type) -> Callable[..., Any]:
    """A scripted function or a method of a scripted module: one op, since what it runs is no Python."""
    original = vars(owner)["__call__"]

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(self, *args, **kwargs)
        name = compat.scripted_name(self)
        function = Function(name, f"torch.jit.{name}", functools.partial(original, self), opaque=functions.SCRIPTED)
        return listener.applied(function, args, kwargs, False)

    OWN_CODE.add(__call__.__code__)
    return __call__


def _apply() -> Any:
    """``autograd.Function.apply``: one op named after the class; its inside is not the model's."""
    original = compat.function_apply
    known: dict[type, Function] = {}
    transparent = compat.backward_hook_function()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(cls, *args, **kwargs)
        if cls is transparent:
            return listener.transparent(functools.partial(original, cls), args, kwargs)
        function = known.get(cls)
        if function is None:
            path = f"{cls.__module__}.{cls.__qualname__}"
            bound = functools.partial(original, cls)
            function = known[cls] = Function(cls.__name__, path, bound, opaque=functions.AUTOGRAD_FUNCTION)
        watched = cls in compat.checkpoint_functions() or any(map(_runs_modules, args))
        return listener.applied(function, args, kwargs, watched)

    OWN_CODE.add(apply.__code__)
    return classmethod(apply)


def _runs_modules(argument: Any) -> bool:
    """Whether a Function is handed a module, or several: it runs them, as a checkpoint does."""
    if isinstance(argument, (list, tuple)):
        return any(isinstance(item, torch.nn.Module) for item in argument)
    return isinstance(argument, torch.nn.Module)


def _transform(function: Function, gives: compat.Gives) -> Callable[..., Any]:
    """A call that is one op; what it computes inside has no tensors of its own to keep.

    Where it gives a function, that one's calls are ops; where it gives one beside its result, both are.
    """
    original = function.original

    def call(*args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return original(*args, **kwargs)
        if gives == "function":
            return _applied_later(function, original(*args, **kwargs), ())
        result = listener.applied(function, args, kwargs, False)
        if gives == "result":
            return result
        output, made, *rest = result
        return (output, _applied_later(function, made, args[1:]), *rest)

    OWN_CODE.add(call.__code__)
    return _dressed(call, function)


def _applied_later(function: Function, made: Callable[..., Any], given: tuple[Any, ...]) -> Callable[..., Any]:
    """A function that a transform gave; ``given`` is what it was made at, and counts among the inputs of each call."""
    applied = Function(
        function.func_name,
        function.qualname,
        lambda *args, **kwargs: made(*args[len(given) :], **kwargs),
        opaque=function.opaque,
    )

    def transformed(*args: Any, **kwargs: Any) -> Any:
        listener = _listener
        if listener is None:
            return made(*args, **kwargs)
        return listener.applied(applied, (*given, *args), kwargs, False)

    OWN_CODE.add(transformed.__code__)
    return functools.wraps(made)(transformed)


_wrappers: Wrappers | None = None


def are_gone() -> bool:
    """Whether no wrapper stands in torch's names."""
    return _wrappers is None or not _wrappers.dirty


def wrappers() -> Wrappers:
    """The wrappers of this process, made at the first call."""
    global _wrappers  # made once: finding two thousand functions takes milliseconds
    if _wrappers is None:
        _wrappers = Wrappers()
    return _wrappers
