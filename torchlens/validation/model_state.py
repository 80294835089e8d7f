"""A model as it was found, to be put back after forwards that nobody asked to keep.

Put back: values, gradients and identities of parameters, buffers and tensors that modules hold as attributes;
attributes themselves, the members of lists, dicts and sets among them, and with them training flags, hooks and
submodules. A scripted module holds all this outside Python, where it is asked for by name.
Not: what a module changes elsewhere, or deeper inside its attributes; objects of TorchScript classes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import torch
from torch import Tensor, nn

from torchlens import compat
from torchlens.bits import same_bits
from torchlens.capture.template import leaves
from torchlens.errors import ConfigurationError
from torchlens.replay.restoring import ParameterBefore

MEMBERS: Final = (dict, list, set, deque)

PLAIN: Final = frozenset((bool, int, float, str, complex))


class Held:
    """One tensor as it was found."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Final = tensor
        self.alias: Final = compat.detach(tensor)  # keeps its memory, should the tensor be put on other
        self.values: Final = compat.clone(self.alias)
        self.requires_grad: Final = tensor.requires_grad
        self.grad: Final = tensor.grad if tensor.is_leaf else None
        self.grad_values: Final = None if self.grad is None else compat.clone(compat.detach(self.grad))

    def restore(self) -> None:
        tensor = self.tensor
        if not lies_alike(tensor, self.alias):
            tensor.data = self.alias
        put_back(tensor, self.values)
        if not tensor.is_leaf:
            return
        if tensor.requires_grad is not self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if tensor.grad is not self.grad:
            tensor.grad = self.grad
        if self.grad is not None and self.grad_values is not None:
            put_back(self.grad, self.grad_values)


def lies_alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one memory and one shape of it. Sparse and nested ones tell none: their values say."""
    if compat.storage_or_none(tensor) != compat.storage_or_none(other):
        return False
    if tensor.layout is not other.layout or tensor.is_nested is not other.is_nested:
        return False
    return tensor.layout is not torch.strided or tensor.is_nested or tensor.stride() == other.stride()


def put_back(tensor: Tensor, values: Tensor) -> None:
    """Write what differs, and past the count of writes: a graph of the user's over the tensor holds these values."""
    if not same_bits(tensor, values):
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if tensor.layout is torch.sparse_coo:  # whose copy_ gives an alias other memory, and not the tensor
                tensor.data = compat.clone(values)
            else:
                compat.uncounted(tensor).copy_(values)


class ModelState:
    """A model as it was found.

    Args:
        model: Its root; None where it is no module.

    Raises:
        ConfigurationError: ``validation_model_uninitialized``, when a lazy module has not got its shape yet.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.attributes: Final[list[tuple[dict[str, Any], dict[str, Any]]]] = []
        self.members: Final[list[tuple[Any, Any]]] = []
        self.scripted: Final[list[tuple[nn.Module, dict[str, Any]]]] = []
        self.held: Final[dict[int, Held]] = {}
        waiting = [] if model is None else [model]
        seen = set(map(id, waiting))
        with compat.NoTorchFunction():
            while waiting:
                for inner in self.take(waiting.pop()):
                    if id(inner) not in seen:
                        seen.add(id(inner))
                        waiting.append(inner)

    def take(self, module: nn.Module) -> list[nn.Module]:
        """Remember one module; gives the modules it holds, also those that it does not register."""
        found: list[nn.Module] = []
        names = module.__dict__
        self.attributes.append((names, dict(names)))
        for value in names.values():
            inner: Any = ()
            if isinstance(value, MEMBERS):  # a subclass, such as an OrderedDict of hooks, too
                self.members.append((value, parts(value)))
                inner = value.values() if isinstance(value, dict) else value
            for item in (value, *inner):
                if isinstance(item, nn.Module):
                    found.append(item)
                elif isinstance(item, Tensor):
                    self.hold(item, module)
        if script := {name: compat.script_value(module, name) for name in compat.script_names(module)}:
            self.scripted.append((module, script))
            for _, tensor in leaves(script):
                self.hold(tensor, module)
        if compat.is_scripted(module):
            found += module.children()
        return found

    def hold(self, tensor: Tensor, module: nn.Module) -> None:
        """Remember a tensor of a module."""
        if id(tensor) in self.held:
            return
        if compat.is_uninitialized(tensor):
            raise ConfigurationError(
                code="validation_model_uninitialized",
                problem=f"a lazy module, {type(module).__name__}, has parameters without a shape yet",
                remedy="run the model once; it must be left as it was, which a first run cannot do",
                module=type(module).__name__,
            )
        self.held[id(tensor)] = Held(tensor)

    def known(self, tensor: Tensor) -> ParameterBefore:
        """A parameter as it was found; as it is, where it was not found in the model."""
        held = self.held.get(id(tensor))
        values = compat.clone(compat.detach(tensor)) if held is None else held.values
        wants = tensor.requires_grad if held is None else held.requires_grad
        return ParameterBefore(values, int(tensor.storage_offset()), wants)

    def storages(self) -> frozenset[int | None]:
        """Where the tensors of the model lie; None is among them where one has no storage."""
        return frozenset(compat.storage_or_none(held.alias) for held in self.held.values())

    def restore(self) -> None:
        """Put everything back."""
        with compat.NoTorchFunction():
            for names, found in self.attributes:
                if list(map(id, parts(names))) != list(map(id, parts(found))):
                    names.clear()
                    names.update(found)
            for value, found in self.members:
                if list(map(id, parts(value))) != list(map(id, found)):
                    value.clear()
                    if isinstance(value, dict):
                        value.update(zip(found[0::2], found[1::2], strict=True))
                    else:
                        (value.update if isinstance(value, set) else value.extend)(found)
            for module, script in self.scripted:
                for name, value in script.items():
                    now = compat.script_value(module, name)
                    if now is not value and not (type(value) in PLAIN and now == value):
                        compat.set_script_value(module, name, value)
            for held in self.held.values():
                held.restore()


def parts(container: Any) -> list[Any]:
    """Everything in a container; of a dict key, value, key, value, ...."""
    return [part for pair in container.items() for part in pair] if isinstance(container, dict) else list(container)
