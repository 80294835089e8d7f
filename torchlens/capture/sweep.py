"""References to torch functions that were bound by name before wrapping, exchanged for the length of a capture.

``from torch.nn.functional import gelu`` copies a reference into a module's globals, where replacing
``torch.nn.functional.gelu`` does not reach. Looked through: globals of imported modules (once each, again
when their number changes), and of the model's classes and submodules (every time) the class attributes,
method defaults and closures, and instance attributes. In each of these places also what containers hold (a table of
activations), and defaults and closures of functions, as far as ``DEEPEST`` and ``MOST_ITEMS`` go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
import torch
from torch import nn

from torchlens import compat
from torchlens.capture.model import OWN_ATTRIBUTES
from torchlens.capture.taking import takers
from torchlens.capture.wrap import wrapper_of, wrappers
from torchlens.undoing import undo

CALLABLES: Final = frozenset(
    (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
)

TABLES: Final[frozenset[type]] = frozenset((dict, OrderedDict, defaultdict, list, tuple, types.SimpleNamespace))
"""Containers that are looked into; instances of dataclasses and of plain classes are, too."""

CACHED: Final[type] = type(functools.lru_cache(len))
"""What ``functools.lru_cache`` gives: it calls what it wraps from C, under no name."""

DEEPEST: Final = 3
"""How many containers deep a function is found."""

MOST_ITEMS: Final = 128
"""Most items of a container that is looked into; a larger one is data."""

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

_simple: Final[weakref.WeakKeyDictionary[type, bool | tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""Whether the attributes of a class's instances are looked at as those of a container; names, where they are slots."""


@functools.cache
def found_functions() -> frozenset[int]:
    """The ids of all functions that are looked for; which of them are exchanged is the capture's to say."""
    return frozenset(wrappers().by_original.keys() | takers().by_original.keys())


class Sweep:
    """The exchanges of one capture; ``restore`` takes each back. An exchange is noted before it is made.

    Args:
        takes: What takes numbers out of tensors is exchanged, too.
    """

    def __init__(self, *, takes: bool = False) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._wrapped = wrappers().by_original
        self._takers = takers().by_original if takes else {}
        self._known = found_functions()
        self._wrappers = {**wrappers().by_wrapper, **(takers().by_wrapper if takes else {})}

    def replacement(self, value: Any) -> Any:
        """What to put in the place of ``value``; None to leave it."""
        kind = type(value)
        if kind in CALLABLES:
            made = self._wrapped.get(id(value)) or self._takers.get(id(value))
            if made is None and kind is types.FunctionType:
                return wrappers().transformed(value)
            if made is not None or kind is not types.BuiltinFunctionType:
                return made
        if kind in BOUND and _is_function_apply(value):
            return value.__self__.apply
        if kind is functools.partial:
            inner = self.replacement(value.func)
            return None if inner is None else functools.partial(inner, *value.args, **value.keywords)
        if kind is CACHED and id(value.__wrapped__) in self._wrapped:
            return _watched_cache(value)
        return None

    def over_globals(self) -> None:
        """Globals of every imported module, when modules were added; of an interactive session, every time."""
        if len(sys.modules) != _sizes.get(""):
            for name, module in list(sys.modules.items()):
                self._look_through(name, module)
            _sizes[""] = len(sys.modules)
        _sizes["__main__"] = -1  # its names may have changed with their number the same
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
        size = len(names)
        hits = [key for key, value in list(names.items()) if self._hit(value)]
        if hits:
            _global_hits[name] = hits
        else:
            _global_hits.pop(name, None)
        _sizes[name] = size  # last: who is interrupted before has to look again

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
                if known in SIMPLE:
                    continue
                found = found or known in KINDS or known in TABLES
                if self._hit(value):
                    found = True
                    self._in_mapping(names, [name])
            classes[kind] = not found and compat.is_torchs_own(kind)
        for base in dict.fromkeys(base for kind in classes for base in kind.__mro__):
            if base is not object and base.__module__.partition(".")[0] not in OWN_PACKAGES:
                self._over_class(base)

    def over_function(self, names: dict[str, Any], name: str) -> None:
        """A plain function that is captured like a model; one that a transform gave is exchanged itself."""
        self._in_mapping(names, [name])
        fn = names[name]
        plain = getattr(fn, "__func__", fn)
        if isinstance(plain, types.FunctionType):
            self._in_function(plain)
            names = plain.__globals__
            self._in_mapping(names, [name for name in plain.__code__.co_names if self._hit(names.get(name))])

    def _hit(self, value: Any, depth: int = 0) -> bool:
        """Whether this is a function to exchange, or holds one."""
        kind = type(value)
        if kind in CALLABLES and id(value) in self._known:
            return True
        if kind is types.FunctionType:
            if id(value) in self._wrappers:
                return False
            return self._holds(value, depth) or wrappers().transformed(value) is not None
        if kind in BOUND or kind is functools.partial:
            return self.replacement(value) is not None
        if kind is CACHED:
            inner = value.__wrapped__
            return type(inner) in CALLABLES and depth < DEEPEST and self._hit(inner, depth + 1)
        return depth < DEEPEST and any(self._hit(item, depth + 1) for _, item in _items(value))

    def _in_mapping(self, names: dict[str, Any], hits: Iterable[str]) -> None:
        for name in hits:
            original = names.get(name)
            made = self._exchanged(original)
            if made is not None:
                self._undo.append(functools.partial(_exchange, names, name, made, original))
                names[name] = made

    def _exchanged(self, value: Any, depth: int = 0) -> Any:
        """What to put in the place of ``value``; None to leave it, which may have been changed within."""
        made = self.replacement(value)
        if made is not None or depth == DEEPEST:
            return made
        kind = type(value)
        plain = value.__wrapped__ if kind is CACHED else value
        if type(plain) is types.FunctionType:
            if id(plain) not in self._wrappers:
                self._in_function(plain, depth)
            return None
        if type(value) is tuple:
            parts = [self._exchanged(item, depth + 1) for _, item in _items(value)]
            if all(part is None for part in parts):
                return None
            return tuple(old if new is None else new for old, new in zip(value, parts, strict=True))
        holder: Any = value if isinstance(value, dict | list) else _attributes(value, type(value))
        for key, item in list(_items(value)):
            new = self._exchanged(item, depth + 1)
            if new is not None:
                self._undo.append(functools.partial(_exchange, holder, key, new, item))
                holder[key] = new
        return None

    def _over_class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            plain = value.__func__ if isinstance(value, staticmethod) else value
            made = self._wrapped.get(id(plain)) or self._takers.get(id(plain)) if type(plain) in CALLABLES else None
            if made is not None:
                self._undo.append(functools.partial(setattr, kind, name, value))
                setattr(kind, name, staticmethod(made))
            elif type(plain) in TABLES and self._hit(plain):
                made = self._exchanged(plain)
                if made is not None:
                    self._undo.append(functools.partial(setattr, kind, name, value))
                    setattr(kind, name, made)
        parts = _class_parts.get(kind)
        if parts is None:
            _class_strays[kind] = [name for name, method in _methods(kind) if not _is_imported(method)]
            parts = _class_parts[kind] = [name for name, method in _methods(kind) if self._holds(method)]
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

    def _holds(self, method: types.FunctionType, depth: int = 0) -> bool:
        if depth == DEEPEST or not (method.__defaults__ or method.__kwdefaults__ or method.__closure__):
            return False
        values = (*(method.__defaults__ or ()), *(method.__kwdefaults__ or {}).values())
        held = (*values, *(value for _, value in _cells(method)))
        return any(self._hit(value, depth + 1) for value in held)

    def _in_function(self, method: types.FunctionType, depth: int = 0) -> None:
        defaults, named = method.__defaults__, method.__kwdefaults__
        new = [self._exchanged(value, depth + 1) for value in defaults or ()]
        if any(made is not None for made in new):
            self._undo.append(functools.partial(setattr, method, "__defaults__", defaults))
            method.__defaults__ = tuple(
                old if made is None else made for old, made in zip(defaults or (), new, strict=True)
            )
        by_name = {name: self._exchanged(value, depth + 1) for name, value in (named or {}).items()}
        if any(made is not None for made in by_name.values()):
            self._undo.append(functools.partial(setattr, method, "__kwdefaults__", named))
            method.__kwdefaults__ = {
                name: old if by_name[name] is None else by_name[name] for name, old in (named or {}).items()
            }
        for cell, value in _cells(method):
            made = self._exchanged(value, depth + 1)
            if made is not None:
                self._undo.append(functools.partial(setattr, cell, "cell_contents", value))
                cell.cell_contents = made

    def restore(self) -> None:
        undo(reversed(self._undo))
        self._undo.clear()

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


def _exchange(names: Any, name: Any, made: Any, original: Any) -> None:
    """Put the original back, unless someone has put something else there meanwhile."""
    with contextlib.suppress(LookupError):  # the container has become shorter
        if names[name] is made:
            names[name] = original


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and items of a container of functions; none of a large one, and of what is no container."""
    kind = type(value)
    if kind in (list, tuple):
        return enumerate(value) if len(value) <= MOST_ITEMS else ()
    held = value if kind in TABLES and isinstance(value, dict) else _attributes(value, kind)
    return held.items() if held and len(held) <= MOST_ITEMS else ()


def _attributes(value: Any, kind: type) -> dict[str, Any] | Slots | None:
    """Attributes of a simple object: a namespace, an instance of a dataclass, of a class with ``__call__`` or slots."""
    simple = _simple.get(kind)
    if simple is None:
        plain = kind is types.SimpleNamespace or dataclasses.is_dataclass(kind) or _calls_by_itself(kind)
        simple = _simple[kind] = _slot_names(kind) or plain
    if not simple or isinstance(value, type):
        return None
    return Slots(value, simple) if isinstance(simple, tuple) else getattr(value, "__dict__", None)


class Slots:
    """The slots of an object, by name, as a dictionary has them; an empty one holds None."""

    def __init__(self, value: Any, names: tuple[str, ...]) -> None:
        self._value = value
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._value, name, None)

    def __setitem__(self, name: str, held: Any) -> None:
        object.__setattr__(self._value, name, held)  # a frozen class does not forbid it

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self._names]


def _slot_names(kind: type) -> tuple[str, ...]:
    """Names of the slots of a plain class all of whose attributes are in slots."""
    if not _is_plain(kind) or kind.__dictoffset__:
        return ()
    return tuple(
        name
        for base in kind.__mro__
        for name, held in vars(base).items()
        if type(held) is types.MemberDescriptorType and base is not object
    )


def _calls_by_itself(kind: type) -> bool:
    return _is_plain(kind) and type(vars(kind).get("__call__")) is types.FunctionType


def _is_plain(kind: type) -> bool:
    """Whether a class is of a package whose objects are looked into, and no module's."""
    package = vars(kind).get("__module__")
    return type(package) is str and package.partition(".")[0] not in OWN_PACKAGES and not issubclass(kind, nn.Module)


def _watched_cache(cache: Any) -> Any:
    """A cached torch function whose calls are those of the function; what is in the cache comes from there."""
    made: Any = wrapper_of(attrs.evolve(wrappers().bare[id(cache.__wrapped__)], original=cache))
    for name in ("cache_info", "cache_clear", "cache_parameters"):
        setattr(made, name, getattr(cache, name))
    return made


SIMPLE: Final = frozenset((int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size, torch.Tensor))
"""What an attribute of a module is mostly."""

BOUND: Final = (types.MethodType, types.BuiltinFunctionType)
"""What a class method is that was read from its class: of Python's, and of C's."""

KINDS: Final = CALLABLES | {types.MethodType, functools.partial, CACHED}
"""What an attribute of a module may be that is a function."""


def _is_imported(method: types.FunctionType) -> bool:
    """Whether the globals of a method are those of a module that ``over_globals`` looks through."""
    found = sys.modules.get(method.__globals__.get("__name__", ""))
    return isinstance(found, types.ModuleType) and vars(found) is method.__globals__


def _is_function_apply(method: types.MethodType | types.BuiltinFunctionType) -> bool:
    owner = method.__self__
    return (
        isinstance(owner, type)
        and issubclass(owner, torch.autograd.Function)
        and method.__name__ == "apply"
        and method != owner.apply
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
