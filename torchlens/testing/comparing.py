"""What a caller can see of a run of a model, and how a traced run differs from a bare one.

Gives  ``assert_tracing_changes_nothing``.
Rule   the model is built twice, so neither run meets what the other left behind; everything is compared bit for bit.
Rule   where the bare run raises, the traced run must raise the same, and leave the same behind.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from torchlens import compat
from torchlens.api import trace
from torchlens.bits import elements
from torchlens.capture.template import leaves
from torchlens.errors import ValidationError
from torchlens.generators import RandomState, seed_all
from torchlens.reading.facade import Trace
from torchlens.reading.failed import TraceCaptureError
from torchlens.tensors import contiguous_bytes
from torchlens.testing.given import require_seed
from torchlens.validation.default_loss import weighted

Build = Callable[[], tuple[Any, Any, Mapping[str, Any]]]
"""Makes a model with its positional and keyword arguments, new at each call and the same each time."""

Look = Callable[[Tensor], tuple[Any, ...]]

Given = tuple[Tensor, Any]
"""A tensor of the arguments, with the autograd node that it had before the run."""

Facts = dict[str, Any]
"""What was seen, by a name that tells where."""


def assert_tracing_changes_nothing(build: Build, *, backward: bool = True, seed: int = 0, **options: Any) -> Trace:
    """Run a model bare and traced, and compare what both runs gave and left behind.

    Compared are the outputs, parameters, buffers and other tensors kept on modules with their flags, gradients of
    parameters and inputs, hooks, training flags, attributes, the random streams of torch, Python and NumPy, torch's
    modes, and the caller's arguments, which tracing must not write. Tensors are compared bit for bit. For a model that
    can be copied ``check_capture(model, input_args)`` is shorter.

    Args:
        build: Makes the model with its positional and keyword arguments; called once for each run.
        backward: Differentiate a weighted sum of the outputs after each run, and compare the gradients.
        seed: Of the three random streams before each run; they are put back afterwards.
        options: Keywords for ``tl.trace``.

    Returns:
        The trace; of a model that raises, the partial one.

    Raises:
        ValidationError: ``tracing_changed_run``; ``exc.fields["changes"]`` lists what differs.

    Example:
        >>> import torch, torchlens as tl
        >>> model = torch.nn.Linear(2, 2)
        >>> tl.testing.assert_tracing_changes_nothing(lambda: (model, [torch.ones(1, 2)], {})).ops.labels
        ('input_1', 'linear_1_1', 'output_1')
    """
    require_seed(seed)
    streams = RandomState()
    try:
        seed_all(seed)
        bare, _ = observed(build, run_bare, backward)
        seed_all(seed)
        traced, made = observed(build, functools.partial(_traced, options), backward, copied=True)
    finally:
        streams.restore()
    changes = changes_between("bare", bare, "traced", traced)
    if changes:
        raise ValidationError(
            code="tracing_changed_run",
            problem=f"a traced run differs from a bare one in {len(changes)} facts:\n  " + "\n  ".join(changes[:20]),
            remedy="this is a bug of tracing if the model is the same each time it is built; please report it",
            changes=changes,
        )
    assert made is not None
    return made


def changes_between(one: str, first: Facts, other: str, second: Facts) -> tuple[str, ...]:
    """What differs between two runs, a line each, with the words for the runs."""
    return tuple(
        [
            f"{name}: {first.get(name)} {one}, {second.get(name)} {other}"
            for name in {**first, **second}
            if first.get(name) != second.get(name)
        ]
    )


# Running ------------------------------------------------------------------------------------------------------------


def run_bare(model: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, BaseException | None, None]:
    try:
        return model(*args, **kwargs), None, None
    except Exception as error:  # noqa: BLE001  # whatever the model raises is compared
        return None, error, None


def _traced(
    options: Mapping[str, Any], model: Any, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, BaseException | None, Trace | None]:
    given = [
        (path, tensor, bits_of(tensor), compat.version_of(tensor)) for path, tensor in leaves((args, dict(kwargs)))
    ]
    output: Any = None
    error: BaseException | None = None
    made: Trace | None
    try:
        made = trace(model, args, kwargs, **options)
        output = made.output
    except TraceCaptureError as raised:
        made, error = raised.partial_trace, raised.__cause__
    for path, tensor, bits, version in given:
        if bits_of(tensor) != bits or compat.version_of(tensor) != version:
            raise ValidationError(
                code="tracing_changed_run",
                problem=f"tracing wrote to the caller's tensor at {path}",
                remedy="this is a bug of tracing; please report it",
                changes=(str(path),),
            )
    return output, error, made


def observed(
    build: Build, run: Callable[..., tuple[Any, BaseException | None, Any]], backward: bool, *, copied: bool = False
) -> tuple[Facts, Any]:
    """Everything that can be seen of one run: of its result, and of what it left behind.

    Args:
        build: Makes the model with its arguments.
        run: Runs it.
        backward: Differentiate what it returns.
        copied: The run hands the model copies of the arguments.
    """
    model, args, kwargs = build()
    given = [(tensor, compat.node_of(tensor)) for _, tensor in leaves((args, dict(kwargs)))]
    look = functools.partial(_look, given, copied)
    seen: Facts = {}
    modes = _modes()
    output, error, made = run(model, args, kwargs)
    seen["raised"] = None if error is None else (type(error).__name__, str(error))
    for name, before in modes.items():
        seen[f"mode {name}"] = (before, _modes()[name])
    seen.update(_result(output, look))
    seen.update(_shown_streams())
    if isinstance(model, nn.Module):
        seen.update(_left_on(model, look))
    if backward and error is None:
        seen.update(_differentiated(model, given, output, look))
    return seen, made


def _result(output: Any, look: Look) -> Facts:
    """The tensors of what a model returned, which of them are one object, and the kinds of its containers."""
    found = list(leaves(output, deep=True))
    first = {id(tensor): place for place, (_, tensor) in reversed(list(enumerate(found)))}
    seen: Facts = {"output kind": _kinds(output)}
    for path, tensor in found:
        seen[f"output {path}"] = (*look(tensor), first[id(tensor)])
    return seen


def _kinds(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if isinstance(value, Mapping) and depth < 8:
        return (kind.__qualname__, [(key, _kinds(item, depth + 1)) for key, item in value.items()])
    if isinstance(value, (list, tuple)) and depth < 8:
        return (kind.__qualname__, [_kinds(item, depth + 1) for item in value])
    return (kind.__qualname__, value) if kind in (int, float, str, bool, type(None)) else kind.__qualname__


def _differentiated(model: Any, given: list[Given], output: Any, look: Look) -> Facts:
    """Gradients after a backward from all outputs, each element with a weight of its own."""
    with torch.inference_mode(False), torch.enable_grad():
        return _after_backward(model, given, output, look)


def _after_backward(model: Any, given: list[Given], output: Any, look: Look) -> Facts:
    seen: Facts = {}
    try:
        loss = weighted(output)
        if loss is None:
            return seen
        loss.backward()
    except RuntimeError as error:  # of a view, too, that torch lets nobody read any more
        # Which gradients had been accumulated by then depends on the order in which torch took the nodes.
        return {"backward raised": (type(error).__name__, _without_circumstances(str(error)))}
    if isinstance(model, nn.Module):
        for name, parameter in model.named_parameters():
            seen[f"gradient of {name}"] = None if parameter.grad is None else look(parameter.grad)
    for place, (tensor, node) in enumerate(given):
        if node is None:
            seen[f"gradient of input {place}"] = (
                None if not compat.is_leaf(tensor) or tensor.grad is None else look(tensor.grad)
            )
    seen.update({f"{name} after the backward": state for name, state in _shown_streams().items()})
    return seen


def _without_circumstances(message: str) -> str:
    """Torch's complaint of a write, without what it adds: how often the memory was written, which is counted anew
    from a copy on, and which of the nodes of a written view it saw, which depends on who has looked at the view."""
    return re.sub(r"version \d+|, which is output \d+ of \w+", "", message)


# Seeing -------------------------------------------------------------------------------------------------------------


def _left_on(model: nn.Module, look: Look) -> Facts:
    """What stands on a model: its modules with attributes, flags and hooks, and every tensor."""
    seen: Facts = {}
    for address, module in model.named_modules(remove_duplicate=False):
        names = vars(module)
        seen[f"module {address!r}"] = (type(module).__qualname__, module.training, tuple(names))
        for name in compat.HOOKS:
            seen[f"{name} of {address!r}"] = tuple(getattr(hook, "__qualname__", "") for hook in names[name].values())
        for name, registered in (
            ("parameters", compat.own_parameters(module)),
            ("buffers", compat.own_buffers(module)),
        ):
            seen[f"{name} of {address!r}"] = (type(registered).__name__, tuple(registered))
        children = compat.own_children(module)
        held = {key: value for key, value in names.items() if key not in compat.HOOKS and value is not children}
        for path, tensor in leaves(held):
            where = ".".join(map(str, path))
            grad = tensor.grad if compat.is_leaf(tensor) else None
            attributes = tuple(getattr(tensor, "__dict__", ()))
            hooks = compat.num_tensor_hooks(tensor)
            seen[f"{where} of {address!r}"] = (*look(tensor), None if grad is None else look(grad), attributes, hooks)
    return seen


def _look(given: list[Given], copied: bool, tensor: Tensor) -> tuple[Any, ...]:
    """A tensor as it can be told from another; its values by their digest."""
    return (
        type(tensor).__qualname__,
        str(tensor.dtype),
        tuple(tensor.shape) if not tensor.is_nested else "nested",
        tensor.stride() if tensor.layout == torch.strided and not tensor.is_nested else str(tensor.layout),
        tensor.requires_grad,
        _node(given, copied, tensor),
        _digest(bits_of(tensor)),
    )


COPYING: Final = ("CloneBackward0", "_CopyBackward")


def _node(given: list[Given], copied: bool, tensor: Tensor) -> str | None:
    """The kind of the autograd node that made a tensor; of an input, or of the copy that a traced model gets, which.

    A model that returns the clone of an input shows the clone's node in both runs.
    """
    node = compat.node_of(tensor)
    for place, (one, of_input) in enumerate(given):
        if tensor is one and node is of_input and tensor.requires_grad:
            return f"input {place}"
    if node is None:
        return None
    name = type(node).__name__
    if name in COPYING and copied:
        before = node.next_functions[0][0]
        for place, (one, of_input) in enumerate(given):
            if before is not None and (before is of_input or getattr(before, "variable", None) is one):
                return f"input {place}"
    return name


def bits_of(tensor: Tensor) -> bytes:
    """All there is of a tensor of any kind; nothing of one on ``meta``."""
    with torch.no_grad():
        return b"".join(_part_bits(part) for part in elements(tensor))


def _part_bits(part: Tensor) -> bytes:
    shape = repr(tuple(part.shape)).encode()
    held = contiguous_bytes(part)
    return shape if held is None else shape + bytes(held)


def _digest(value: Any) -> str:
    data = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def _modes() -> Facts:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": str(torch.get_default_dtype()),
        "recursion limit": sys.getrecursionlimit(),
        "collector": gc.isenabled(),
    }


def _shown_streams() -> Facts:
    now = RandomState()
    numpys = None if now.numpy is None else (now.numpy[1].tolist(), now.numpy[2:])
    shown = {"torch": now.torch.tolist(), "Python": now.python, "NumPy": numpys}
    return {f"stream of {name}": _digest(state) for name, state in shown.items()}
