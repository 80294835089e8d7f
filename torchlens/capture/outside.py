"""Tensors that a forward takes from outside: where each stands, so that a run can see whether it is still what it was.

Reads  the attributes of modules that are neither parameters nor buffers, in containers and plain objects too.
Gives  for each tensor, when it is asked for, what stands in its place now.
Rule   nothing is held: of a tensor that stands in no attribute of a module, such as a global, a weak reference is kept.
Not    a tensor that code reaches by another name and that was exchanged there: the old one may live on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from weakref import ref

from torch import Tensor, nn

from torchlens.capture.template import leaves
from torchlens.tensors import digest_of, like_of

__all__ = ["Met", "Outside"]

OWN: Final = frozenset(nn.Module().__dict__)
"""What every module has in its dictionary; the rest is the model's."""


class Met(NamedTuple):
    """A tensor from outside."""

    tensor: ref[Tensor]
    like: tuple[tuple[int, ...], str, str]  # shape, dtype and device
    digest: str | None  # None where it has no plain memory
    module: int | None  # number of the module that holds it; None where none was seen to
    path: tuple[Any, ...]

    def agrees(self, tensor: Tensor) -> bool:
        """Whether a tensor is as this one was when it was taken; of what cannot be read, whether it is this one."""
        if like_of(tensor) != self.like:
            return False
        found = digest_of(tensor)
        return found == self.digest and (found is not None or self.tensor() is tensor)

    def now(self, module: nn.Module | None) -> Tensor | None:
        """What stands in its place now; itself, if it lives, where no module holds it."""
        if self.module is None:
            return self.tensor()
        return None if module is None else dict(in_attribute(module, self.path[0])).get(self.path)


class Outside:
    """The tensors that one forward took from outside.

    Args:
        modules: The modules of the model, by number.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.met: Final[dict[int, Met]] = {}
        self._modules: Sequence[nn.Module] = modules
        self._places: dict[int, tuple[int, tuple[Any, ...]]] | None = None  # by id: each has lived since they were read

    def meet(self, number: int, tensor: Tensor) -> None:
        """Remember a tensor; the number is that of its value, or -1 - n for parameter n."""
        if self._places is None:
            self._places = {id(held): (at, path) for at, path, held in held_by(self._modules)}
        module, path = self._places.get(id(tensor), (None, ()))
        self.met[number] = Met(ref(tensor), like_of(tensor), digest_of(tensor), module, path)

    def let_go(self) -> None:
        """Nothing more will be met."""
        self._modules, self._places = (), None


def held_by(modules: Sequence[nn.Module]) -> Iterator[tuple[int, tuple[Any, ...], Tensor]]:
    """Tensors in attributes of modules: the module's number, the path from it on, the tensor."""
    for number, module in enumerate(modules):
        for name in vars(module).keys() - OWN:
            for path, tensor in in_attribute(module, name):
                yield number, path, tensor


def in_attribute(module: nn.Module, name: str) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    return leaves(vars(module).get(name), (name,), deep=True)
