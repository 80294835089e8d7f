"""References to torch functions that were bound by name before wrapping, exchanged for the length of a capture.

``from torch.nn.functional import gelu`` copies a reference into a module's globals, where replacing
``torch.nn.functional.gelu`` does not reach. Looked through: globals of imported modules (once each, again
when their number changes), and of the model's classes and submodules (every time) the class attributes,
method defaults and closures, and instance attributes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn

from torchlens import compat
from torchlens.capture.model import OWN_ATTRIBUTES
from torchlens.capture.wrap import wrappers

CALLABLES: Final = frozenset(
    (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
)

OWN_PACKAGES: Final = frozenset(
    ("torch", "torchgen", "torchlens", "journal", "projections", "numpy", "pandas", "msgpack", "lmdb", "attr", "attrs")
)

TORCHS_BINDERS: Final = ("torch.nn.utils", "torch.nn.modules", "torch.nn.attention", "torchlens.testing")
"""Packages of torch, and one of ours with models in it, that bind torch functions by name, as a model's code does."""

_sizes: Final[dict[str, int]] = {}  # number of globals of each module when it was last looked through
_global_hits: Final[dict[str, list[str]]] = {}  # module name -> global names that hold a torch function
# Names of the methods of a class with a torch function in default or closure; the classes are the user's to drop.
_class_parts: Final[weakref.WeakKeyDictionary[type, list[str]]] = weakref.WeakKeyDictionary()
# Names of the methods of a class whose globals are no imported module's, as those of a file run by hand.
_class_strays: Final[weakref.WeakKeyDictionary[type, list[str]]] = weakref.WeakKeyDictionary()


class Sweep:
    """The exchanges of one capture; ``restore`` takes each back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._wrapped = wrappers().by_original
        self._wrappers = wrappers().by_wrapper

    def replacement(self, value: Any) -> Any:
        """What to put in the place of ``value``; None to leave it."""
        kind = type(value)
        if kind in CALLABLES:
            return self._wrapped.get(id(value))
        if kind is types.MethodType and _is_function_apply(value):
            return value.__self__.apply
        if kind is functools.partial:
            inner = self.replacement(value.func)
            return None if inner is None else functools.partial(inner, *value.args, **value.keywords)
        return None

    def over_globals(self) -> None:
        """Globals of every imported module, when modules were added; of an interactive session, every time."""
        if len(sys.modules) != _sizes.get(""):
            for name, module in list(sys.modules.items()):
                self._look_through(name, module)
            _sizes[""] = len(sys.modules)
        _sizes.pop("__main__", None)
        self._look_through("__main__", sys.modules.get("__main__"))
        for name, hits in _global_hits.items():
            found = sys.modules.get(name)
            if found is not None:
                self._in_mapping(vars(found), hits)

    def _look_through(self, name: str, module: Any) -> None:
        if not isinstance(module, types.ModuleType):
            return
        if name.partition(".")[0] in OWN_PACKAGES and not name.startswith(TORCHS_BINDERS):
            return
        names = vars(module)
        if _sizes.get(name) == len(names):
            return
        _sizes[name] = len(names)
        hits = [key for key, value in list(names.items()) if self._hit(value)]
        if hits:
            _global_hits[name] = hits
        else:
            _global_hits.pop(name, None)

    def over_model(self, modules: Iterable[nn.Module]) -> None:
        classes: dict[type, bool] = {}  # whether another instance of the class need not be looked at
        for module in modules:
            kind = type(module)
            if classes.get(kind):
                continue
            names = module.__dict__
            found = False
            for name in names.keys() - OWN_ATTRIBUTES:
                value = names[name]
                known = type(value)
                if known in KINDS:
                    found = True
                    if self._hit(value):
                        self._in_mapping(names, [name])
            classes[kind] = not found and compat.is_torchs_own(kind)
        for base in dict.fromkeys(base for kind in classes for base in kind.__mro__):
            if base is not object and base.__module__.partition(".")[0] not in OWN_PACKAGES:
                self._over_class(base)

    def over_function(self, fn: Callable[..., Any]) -> None:
        """A plain function that is captured like a model."""
        plain = getattr(fn, "__func__", fn)
        if isinstance(plain, types.FunctionType):
            self._in_function(plain)
            names = plain.__globals__
            self._in_mapping(names, [name for name in plain.__code__.co_names if self._hit(names.get(name))])

    def _hit(self, value: Any) -> bool:
        kind = type(value)
        if kind in CALLABLES:
            return id(value) in self._wrapped
        return kind in (types.MethodType, functools.partial) and self.replacement(value) is not None

    def _in_mapping(self, names: dict[str, Any], hits: list[str]) -> None:
        for name in hits:
            original = names.get(name)
            made = self.replacement(original)
            if made is not None:
                names[name] = made
                self._undo.append(functools.partial(_exchange, names, name, made, original))

    def _over_class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            plain = value.__func__ if isinstance(value, staticmethod) else value
            if type(plain) in CALLABLES and id(plain) in self._wrapped:
                setattr(kind, name, staticmethod(self._wrapped[id(plain)]))
                self._undo.append(functools.partial(setattr, kind, name, value))
        parts = _class_parts.get(kind)
        if parts is None:
            parts = _class_parts[kind] = [name for name, method in _methods(kind) if self._holds(method)]
            _class_strays[kind] = [name for name, method in _methods(kind) if not _is_imported(method)]
        strays = _class_strays[kind]
        if parts or strays:
            methods = dict(_methods(kind))
            for name in parts:
                self._in_function(methods[name])
            for name in strays:
                names = methods[name].__globals__
                self._in_mapping(
                    names, [used for used in methods[name].__code__.co_names if self._hit(names.get(used))]
                )

    def _holds(self, method: types.FunctionType) -> bool:
        values = (*(method.__defaults__ or ()), *(method.__kwdefaults__ or {}).values())
        return any(map(self._hit, values)) or any(self._hit(value) for _, value in _cells(method))

    def _in_function(self, method: types.FunctionType) -> None:
        defaults, named = method.__defaults__, method.__kwdefaults__
        if defaults and any(map(self._hit, defaults)):
            method.__defaults__ = tuple(self.replacement(value) or value for value in defaults)
            self._undo.append(functools.partial(setattr, method, "__defaults__", defaults))
        if named and any(map(self._hit, named.values())):
            method.__kwdefaults__ = {name: self.replacement(value) or value for name, value in named.items()}
            self._undo.append(functools.partial(setattr, method, "__kwdefaults__", named))
        for cell, value in _cells(method):
            made = self.replacement(value)
            if made is not None:
                cell.cell_contents = made
                self._undo.append(functools.partial(setattr, cell, "cell_contents", value))

    def restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def put_back(self, modules: Iterable[nn.Module]) -> None:
        """Exchange the wrappers that the forward itself bound: on modules, and in packages it imported."""
        plain: dict[type, bool] = {}
        for module in modules:
            kind = type(module)
            if kind not in plain:
                plain[kind] = compat.is_torchs_own(kind)
            if not plain[kind]:
                names = module.__dict__
                for name in names.keys() - OWN_ATTRIBUTES:
                    self._unwrap(names, name)
        if len(sys.modules) != _sizes.get(""):
            for key, imported in list(sys.modules.items()):
                names = getattr(imported, "__dict__", {})
                for name in list(names) if key not in _sizes else ():
                    self._unwrap(names, name)

    def _unwrap(self, names: dict[str, Any], name: str) -> None:
        value = names[name]
        if type(value) is types.FunctionType and id(value) in self._wrappers:
            names[name] = self._wrappers[id(value)]


def _exchange(names: dict[str, Any], name: str, made: Any, original: Any) -> None:
    """Put the original back, unless someone has put something else there meanwhile."""
    if names.get(name) is made:
        names[name] = original


KINDS: Final = CALLABLES | {types.MethodType, functools.partial}


def _is_imported(method: types.FunctionType) -> bool:
    """Whether the globals of a method are those of a module that ``over_globals`` looks through."""
    found = sys.modules.get(method.__globals__.get("__name__", ""))
    return isinstance(found, types.ModuleType) and vars(found) is method.__globals__


def _is_function_apply(method: types.MethodType) -> bool:
    owner = method.__self__
    return (
        isinstance(owner, type)
        and issubclass(owner, torch.autograd.Function)
        and method.__func__.__name__ == "apply"
        and method.__func__ is not getattr(owner.apply, "__func__", None)
    )


def _methods(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    for name, value in list(vars(kind).items()):
        plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(plain, types.FunctionType):
            yield name, plain


def _cells(method: types.FunctionType) -> Iterator[tuple[types.CellType, Any]]:
    """The closure's cells with what they hold; one that is not yet filled is left out."""
    for cell in method.__closure__ or ():
        with contextlib.suppress(ValueError):
            yield cell, cell.cell_contents
