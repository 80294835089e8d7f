"""The input contract: a run is given what the capture was given, but for the elements of its tensors.

Rule  names, nesting, plain values, shapes, dtypes and devices must be those that were recorded: Python may have
      looked at each of them, and what it did then is the path that is run.
Note  tensors are counted twice, and both must agree. A capture numbers each tensor once, in the order in which it is
      found, in the attributes of unknown objects too: so values are bound. Its templates have a hole for every place
      of a tensor in containers, and see no such attribute: so it is found out that one tensor stood in two places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from journal.events import template as tag
from journal.events.template import HOLE
from projections.columnar.arguments import flat_kwargs, members, text_of
from projections.structure.memory import Described
from projections.structure.program import Given, Program
from torchlens import compat
from torchlens.capture.inputs import copied
from torchlens.capture.template import PLAIN, encode, leaves, spelled
from torchlens.errors import PathDivergenceError
from torchlens.tensors import STRIDED, like_of

__all__ = ["Bound", "bound"]


class Bound(NamedTuple):
    """Inputs that keep the contract."""

    tensors: dict[int, Tensor]  # copies, by value
    originals: dict[int, Tensor]
    num_checks: int


def bound(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Copies of the given tensors, each under the value that stood in its place.

    Raises:
        PathDivergenceError: ``input_tree_mismatch``, ``input_shape_mismatch``, ``input_dtype_mismatch``,
            ``input_device_mismatch``.
    """
    assert program.started is not None  # preflight would have refused
    recorded_args, recorded_kwargs, inputs, _ = program.started
    holes: list[Tensor] = []
    require_same_form("arguments", recorded_args, tuple(encoded(item, holes) for item in args))
    given = dict(kwargs)
    wanted = dict(flat_kwargs(recorded_kwargs))
    if given.keys() != wanted.keys():
        raise other_tree("keyword arguments", ", ".join(sorted(wanted)) or "none", ", ".join(sorted(given)) or "none")
    for name, template in wanted.items():
        require_same_form(name, (template,), (encoded(given[name], holes),))
    kwargs = {name: given[name] for name in wanted}
    steps = [step for step in program.steps if isinstance(step, Given)]
    found = list(dict.fromkeys(_Identity(tensor) for _, tensor in leaves((tuple(args), kwargs), deep=True)))
    if len(found) != len(steps):
        raise other_tree("tensors in it", str(len(steps)), str(len(found)))
    by_value = {step.value: one.tensor for step, one in zip(steps, found, strict=True)}
    if any(by_value.get(value) is not tensor for value, tensor in zip(inputs, holes, strict=True)):
        raise other_tree("tensors", "one tensor in several places", "several, or in other places")
    for step in steps:
        require_like(step, by_value[step.value])
    with compat.NoTorchFunction():
        new_args, new_kwargs, _ = copied(tuple(args), kwargs)
    made = list(dict.fromkeys(_Identity(tensor) for _, tensor in leaves((new_args, new_kwargs), deep=True)))
    tensors = {step.value: one.tensor for step, one in zip(steps, made, strict=True)}
    return Bound(tensors, by_value, 2 + 3 * len(steps))


class _Identity:
    """A tensor by identity: tensors compare by element."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


def encoded(item: Any, holes: list[Tensor]) -> Any:
    """An argument as a capture stores it."""
    return item if type(item) in PLAIN else encode(item, holes.append)


def require_same_form(where: str, recorded: Sequence[Any], given: Sequence[Any]) -> None:
    """Refuse where two templates differ, naming the place."""
    if len(recorded) != len(given):
        raise other_tree(where, f"{len(recorded)} of them", str(len(given)))
    pairs = zip(recorded, given, strict=True)
    waiting: list[tuple[tuple[str, ...], tuple[Any, Any]]] = [((where, str(at)), pair) for at, pair in enumerate(pairs)]
    while waiting:
        path, (one, other) = waiting.pop(0)
        if is_same(one, other):
            continue
        inner, others = members(one), members(other)
        steps = [step for step, _ in inner]
        differing = [
            ((*path, str(step[1])), (a, b))
            for (step, a), (_, b) in zip(inner, others, strict=False)
            if not is_same(a, b)
        ]
        if differing and one[0] == other[0] and steps == [step for step, _ in others]:
            waiting += differing
            continue
        place = path[0] + "".join(f"[{part}]" for part in path[1:])
        raise other_tree(place, worded(one), worded(other))


def is_same(one: Any, other: Any) -> bool:
    """Whether two templates are equal, True being no 1 and NaN being NaN; a text as it was given is as it is stored."""
    if isinstance(one, tuple) and one[:1] == (tag.TEXT,) and isinstance(other, str):
        return one[1:] == (spelled(other),)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # NaN


def worded(template: Any) -> str:
    return "a tensor" if template == HOLE else text_of(template)[:80]


def require_like(step: Given, tensor: Tensor) -> None:
    like: Described = step.like
    name = ".".join(map(str, step.path)) or "the input"
    shape, dtype, device = like_of(tensor)
    layout = None if tensor.layout is STRIDED else str(tensor.layout).removeprefix("torch.")
    if shape != like.shape:
        raise other_like("input_shape_mismatch", name, "shape", like.shape, shape)
    if dtype != like.dtype:
        raise other_like("input_dtype_mismatch", name, "dtype", like.dtype, dtype)
    if device != like.device:
        raise other_like("input_device_mismatch", name, "device", like.device, device)
    if layout != like.layout:
        raise other_tree(name, like.layout or "dense", layout or "dense")


def other_like(code: str, name: str, what: str, recorded: Any, given: Any) -> PathDivergenceError:
    return PathDivergenceError(
        code=code,
        problem=f"{name} has {what} {given}, and was recorded with {recorded}",
        remedy="give what the capture was given, but for the elements; for another form capture the model anew",
        input=name,
        recorded=recorded,
        given=given,
    )


def other_tree(where: str, recorded: str, given: str) -> PathDivergenceError:
    return PathDivergenceError(
        code="input_tree_mismatch",
        problem=f"{where}: recorded was {recorded}, and given is {given}",
        remedy="give what the capture was given, by position and by name as then, but for the elements of tensors",
        where=where,
        recorded=recorded,
        given=given,
    )
