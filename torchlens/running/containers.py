"""A returned object put together again around new tensors.

Containers of Python, of torch's return types and of packed sequences come back as they were. A class that is neither,
as a model output or a dataclass of the model's own, comes as a ``Structure``: its code is not here to be run.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from journal.events import template as tag
from projections.columnar.arguments import text_of
from torchlens.capture.template import plain_key
from torchlens.errors import ReplayRefused
from torchlens.replay.arguments import CONTAINERS, RETURN_TYPES, argument

__all__ = ["Structure", "rebuilt"]

DICTS: Final[dict[str, Any]] = {
    "collections.OrderedDict": OrderedDict,
    "collections.UserDict": UserDict,
}

RECORDS: Final[dict[str, Any]] = {
    **{name: lambda values, kind=kind: kind(values) for name, kind in RETURN_TYPES.items()},
    "torch.nn.utils.rnn.PackedSequence": lambda values: PackedSequence(*values),
}
"""Named classes that are made again, by import path."""


class Structure:
    """Stands for an object of a class that is not here: its fields, as attributes and as items.

    ``structure.name``, ``structure["name"]`` and, by position, ``structure[0]`` give a field; iterating gives the
    fields' values, in order, and ``len`` their number. What is not a field has an underscore, as with named tuples.

    Attributes:
        _class_path: Qualified name of the class that the model returned.
        _fields: Names of the fields, in order.
    """

    __slots__ = ("__values", "_class_path", "_fields")

    def __init__(self, class_path: str, values: Mapping[str, Any]) -> None:
        self._class_path: Final = class_path
        self._fields: Final = tuple(values)
        self.__values: Final = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__values[name]
        except KeyError:
            raise AttributeError(f"a {self._class_path} as recorded has no {name!r}") from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return self.__values[key] if isinstance(key, str) else tuple(self.__values.values())[key]

    def __contains__(self, name: object) -> bool:
        return name in self.__values

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self.__values.values()))

    def __len__(self) -> int:
        return len(self.__values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.__values.items())
        return f"Structure of {self._class_path}({inner})"


def rebuilt(template: Any, paths: Mapping[tuple[Any, ...], Tensor], classes: Mapping[tuple[Any, ...], str]) -> Any:
    """The object that a template stands for.

    Args:
        template: Of what was returned.
        paths: Its tensors, by the path of each.
        classes: Classes of containers that the template shows as plain ones, by path.
    """
    return Building(paths, classes).build(template, ())


class Building:
    """One object being put together."""

    def __init__(self, paths: Mapping[tuple[Any, ...], Tensor], classes: Mapping[tuple[Any, ...], str]) -> None:
        self.paths = paths
        self.classes = classes

    def build(self, template: Any, path: tuple[Any, ...]) -> Any:
        if template == tag.HOLE:
            return self.paths[path]
        if not isinstance(template, tuple):
            return template
        kind, *parts = template
        if kind == tag.DICT:
            keys = [argument(key, iter(())) for key in parts[0::2]]
            items = [self.build(item, (*path, plain_key(key))) for key, item in zip(keys, parts[1::2], strict=True)]
            return DICTS.get(self.classes.get(path, ""), dict)(zip(keys, items, strict=True))
        if kind == tag.NAMED:
            name, fields, *inner = parts
            values = [self.build(item, (*path, field)) for field, item in zip(fields, inner, strict=True)]
            make = RECORDS.get(name)
            return Structure(name, dict(zip(fields, values, strict=True))) if make is None else make(values)
        if kind in CONTAINERS and kind not in (tag.SLICE, tag.RANGE, tag.COMPLEX, tag.SET, tag.SIZE):
            made = CONTAINERS[kind]([self.build(item, (*path, place)) for place, item in enumerate(parts)])
            return deque(made) if self.classes.get(path) == "collections.deque" else made
        if kind == tag.OPAQUE and (self.inner(path) or not str(parts[0]).startswith("numpy.")):
            return self.opened(str(parts[0]), path)
        try:
            return argument(template, iter(()))
        except ReplayRefused:  # a callable, a member of an enumeration: its text says what it was
            return text_of(template)

    def inner(self, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Paths of the tensors inside an object."""
        return [one for one in self.paths if len(one) > len(path) and one[: len(path)] == path]

    def opened(self, name: str, path: tuple[Any, ...]) -> Structure:
        """An object of a class that is not known, as far as there are tensors in it."""
        fields: dict[str, Any] = {}
        for one in self.inner(path):
            here = one[len(path)]
            if str(here) not in fields:
                inside = (*path, here)
                fields[str(here)] = self.paths[inside] if inside in self.paths else self.opened("an attribute", inside)
        return Structure(name, fields)
