"""The copy of the caller's arguments that the model gets, so that a capture never writes to the caller's tensors.

Each storage is copied once and every tensor on it becomes a view of the copy with its own strides, so
aliasing between arguments stays as it was. The copies hang on the caller's autograd graph.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import weakref
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor, nn

from torchlens import compat
from torchlens.capture.template import field_names, leaves
from torchlens.copying import copy_of
from torchlens.tensors import has_plain_memory


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], set[int]]:
    """Arguments with every tensor in a container copied.

    Returns:
        Positional and keyword arguments, and the ids of those copies whose original was a parameter.
    """
    made: dict[int, Tensor] = {}
    parameters: set[int] = set()
    found = list({id(tensor): tensor for _, tensor in leaves((args, kwargs))}.values())
    addresses = [compat.storage_or_none(tensor) for tensor in found]
    counts = Counter(addresses)
    shared: dict[int, Tensor] = {}
    for tensor, address in zip(found, addresses, strict=True):
        has_company = address is not None and counts[address] > 1
        with _modes_of(tensor):
            made[id(tensor)] = fresh = _copy(tensor, shared if has_company else None)
        if isinstance(tensor, nn.Parameter):
            parameters.add(id(fresh))
    return (
        tuple(_replaced(item, made) for item in args),
        {name: _replaced(item, made) for name, item in kwargs.items()},
        parameters,
    )


def cut_off(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with each tensor on a graph exchanged for a leaf in the same memory that requires a gradient."""
    made = {
        id(tensor): compat.detach(tensor).requires_grad_()
        for _, tensor in leaves((args, kwargs))
        if tensor.requires_grad and not compat.is_leaf(tensor)
    }
    if not made:
        return args, kwargs
    return tuple(_replaced(item, made) for item in args), {k: _replaced(item, made) for k, item in kwargs.items()}


def _modes_of(tensor: Tensor) -> AbstractContextManager[None]:
    """The modes in which a copy is what the tensor is, on its graph or an inference tensor, whatever the caller's."""
    if compat.grad_enabled() and tensor.is_inference() == compat.inference_enabled():
        return contextlib.nullcontext()
    return _modes(inference=tensor.is_inference())


@contextlib.contextmanager
def _modes(*, inference: bool) -> Iterator[None]:
    with torch.inference_mode(inference), torch.enable_grad():
        yield


def _copy(tensor: Tensor, shared: dict[int, Tensor] | None) -> Tensor:
    if not has_plain_memory(tensor):
        with compat.NoTorchFunction():
            return copy_of(tensor)
    if tensor.dtype.is_complex and compat.is_conj(tensor):
        return _copy(tensor.conj(), shared).conj()
    if compat.is_neg(tensor):
        return compat.neg_view(_copy(compat.neg_view(tensor), shared))
    with compat.NoTorchFunction():
        if shared is None:
            simple = copy_of(tensor)
            if simple.stride() == tensor.stride():
                return simple
        made = _Copy.apply(tensor, shared)
        kind = type(tensor)
        return made if kind in (Tensor, nn.Parameter) else made.as_subclass(kind)


class _Copy(torch.autograd.Function):
    """A copy with the strides and the aliasing of its source; the gradient passes through unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, shared: dict[int, Tensor] | None) -> Tensor:
        storage = compat.untyped_storage(tensor)
        address = compat.storage_address(tensor)
        held = None if shared is None else shared.get(address)
        if held is None:
            held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage.clone())
            if shared is not None:
                shared[address] = held
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(compat.untyped_storage(held), tensor.storage_offset(), tensor.size(), tensor.stride())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def _replaced(value: Any, made: Mapping[int, Tensor], above: frozenset[int] = frozenset()) -> Any:
    """``value`` with its tensors exchanged; containers are rebuilt, everything else is the same object.

    A container that holds itself is handed on as it is.
    """
    if isinstance(value, Tensor):
        return made.get(id(value), value)
    if id(value) in above:
        return value
    above = above | {id(value)}
    if isinstance(value, set | frozenset):
        return type(value)(_replaced(item, made, above) for item in value)
    if not any(True for _ in leaves(value)):
        return value
    kind = type(value)
    if isinstance(value, tuple):
        items = [_replaced(item, made, above) for item in value]
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    if isinstance(value, deque):
        return deque((_replaced(item, made, above) for item in value), value.maxlen)
    if isinstance(value, list):
        if kind is list:
            return [_replaced(item, made, above) for item in value]
        rebuilt = copy.copy(value)
        rebuilt[:] = [_replaced(item, made, above) for item in value]
        return rebuilt
    if kind is dict:
        return {key: _replaced(item, made, above) for key, item in value.items()}
    if isinstance(value, dict | UserDict):
        mapping: Any = copy.copy(value)
        for key, item in value.items():
            mapping[key] = _replaced(item, made, above)
        return mapping
    if dataclasses.is_dataclass(value) and field_names(value) is not None:
        record: Any = copy.copy(value)
        for name in field_names(value) or ():
            object.__setattr__(record, name, _replaced(getattr(value, name, None), made, above))
        return record
    return value


def argument_names(forward: Callable[..., Any], count: int) -> list[tuple[str | int, ...]]:
    """Path of each positional argument: its parameter's name, or ``args`` and a position."""
    plain, star = _positional(getattr(forward, "__func__", forward), bound=hasattr(forward, "__func__"))
    names: list[tuple[str | int, ...]] = [(name,) for name in plain[:count]]
    names.extend((star, position) for position in range(count - len(names)))
    return names


_signatures: Final[weakref.WeakKeyDictionary[Any, tuple[tuple[str, ...], str]]] = weakref.WeakKeyDictionary()


def _positional(forward: Callable[..., Any], *, bound: bool) -> tuple[tuple[str, ...], str]:
    """Names of the positional parameters, the bound one left out, and of the one that takes the rest."""
    try:
        plain, rest = _signatures[forward]
    except (KeyError, TypeError):  # not met yet, or a callable that cannot be hashed or weakly held
        plain, rest = _read_signature(forward)
        with contextlib.suppress(TypeError):
            _signatures[forward] = (plain, rest)
    return plain[1 if bound else 0 :], rest


def _read_signature(forward: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return (), "args"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL]
    return tuple(parameter.name for parameter in parameters if parameter.kind in positional), (rest or ["args"])[0]
