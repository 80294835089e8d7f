"""Parameters and buffers for a run: from the model, from an artifact, from a state dict, or drawn at random.

Rule  a run leaves what it is given as it is: buffers are copied, and so are parameters that the forward writes.
      Other parameters are the model's own, so that gradients of a result reach them.
Rule  tensors are laid out as the recorded ones were: a kernel may sum in another order where strides differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from projections.folds.vocabulary import Tensor as Row
from projections.structure.program import BufferRead, BufferSet, ParameterMade, Program
from torchlens import compat
from torchlens.capture.inputs import copied
from torchlens.errors import RunCapabilityUnavailableError, StateBindingError, TorchLensWarning
from torchlens.reading.run_result import StateSource
from torchlens.reading.view import View
from torchlens.replay.restoring import laid_out, spot
from torchlens.running.executing import as_it_lay
from torchlens.running.living import Living, living
from torchlens.running.obstacles import program_for
from torchlens.tensors import DTYPE_BY_WORD, DTYPE_WORD

__all__ = ["State", "bound_state", "embedded", "sources_of", "state_of"]

Key = TypeVar("Key")

SPREAD = 0.02
"""Standard deviation of random parameters: as small as is usual, so that what passes many layers stays finite."""


class State(NamedTuple):
    """What a run begins with."""

    source: StateSource
    parameters: dict[int, Tensor]  # those that are used, by number
    buffers: dict[int, Tensor]  # copies, by number
    living: Living | None  # the model, where they are its own


def sources_of(view: View) -> tuple[StateSource, ...]:
    """Where parameters and buffers can be taken from, the first of which a run takes."""
    return sources_beside(view, living(view))


def sources_beside(view: View, model: Living | None) -> tuple[StateSource, ...]:
    found: list[StateSource] = []
    if view.given_state is not None:
        found.append("user_state_dict")
    if model is not None:
        if all(one is not None for one in (*model.parameters, *model.buffers)):
            found.append("live_model_state")
    elif embedded(view) is not None:
        found.append("embedded_capture_state")
    if view.handles is None or "live_model_state" not in found:
        found.append("random_initialization")
    return tuple(found)


def embedded(view: View) -> Mapping[str, Any] | None:
    """Weights that are stored with the records."""
    return None if view.handles is not None else view.weights()


def state_of(view: View, program: Program, generator: torch.Generator) -> State:
    """The state that a run begins with.

    Raises:
        RunCapabilityUnavailableError: ``run_source_model_collected``.
    """
    words = view.tables.forward.words
    model = living(view)
    source = sources_beside(view, model)[0]
    if source == "random_initialization" and view.handles is not None and (words.registered or words.buffers):
        raise RunCapabilityUnavailableError(
            code="run_source_model_collected",
            problem="the model that was captured is gone, and parameters and buffers with it",
            remedy="keep the model, or give trace.load_state_dict(state_dict)",
        )
    if source == "random_initialization" and (words.registered or words.buffers):
        warnings.warn(
            TorchLensWarning(
                code="runnable_random_init_run",
                problem="no weights are here, and the run takes random ones: its numbers mean nothing",
                remedy="give trace.load_state_dict(model.state_dict()), or save with include_weights=True",
            ),
            stacklevel=4,
        )
    find = finder(view, source, model, generator)
    unregistered = {step.number: step for step in program.steps if isinstance(step, ParameterMade)}
    parameters: dict[int, Tensor] = {}
    for number in used_parameters(program):
        if number not in unregistered:
            parameters[number] = parameter_of(program, number, words.parameters[number], find("parameter", number))
    buffers: dict[int, Tensor] = {}
    for step in program.steps:
        if isinstance(step, BufferRead) and step.version == 1:
            held = find("buffer", step.buffer)
            if held is None or (source != "live_model_state" and step.value in program.constants):
                kept = program.constants.get(step.value)
                held = view.kept(kept) if kept is not None else held
            if held is not None:
                is_ours = source == "live_model_state"
                buffers[step.buffer] = held if is_ours else as_it_lay(held.to(step.like.device), step.like)
    made = unaliased(buffers | written_with(program, parameters, buffers))
    for number in [number for number in made if number < 0]:
        parameters[-1 - number] = made.pop(number).requires_grad_(parameters[-1 - number].requires_grad)
    return State(source, parameters, made, model if source == "live_model_state" else None)


def written_with(
    program: Program, parameters: Mapping[int, Tensor], buffers: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """Parameters whose memory the forward writes, under their own name or another's; by -1 - n."""
    writing = {step.buffer for step in program.steps if isinstance(step, BufferSet) and step.how != "reassign"}
    written = [
        *(parameters[number] for number in program.written if number in parameters),
        *(tensor for number, tensor in buffers.items() if number in writing),
    ]
    memories = {compat.storage_or_none(tensor) for tensor in written} - {None}
    return {
        -1 - number: tensor
        for number, tensor in parameters.items()
        if number in program.written or compat.storage_or_none(tensor) in memories
    }


def used_parameters(program: Program) -> list[int]:
    """Numbers of the parameters that anything is given, in order."""
    found: dict[int, None] = {}
    for step in program.steps:
        for number in getattr(step, "inputs", ()):
            if number < 0:
                found[-1 - number] = None
    for number in (program.returned or (None, (), ()))[1]:
        if number < 0:
            found[-1 - number] = None
    return list(found)


def finder(
    view: View, source: StateSource, model: Living | None, generator: torch.Generator
) -> Callable[[str, int], Tensor | None]:
    """What gives a parameter or buffer by number; None where the source has none."""
    words = view.tables.forward.words
    rows = {"parameter": words.parameters, "buffer": words.buffers}

    def live(kind: str, number: int) -> Tensor | None:
        assert model is not None  # else it is no source
        return model.parameters[number] if kind == "parameter" else model.buffers[number]

    held: Mapping[str, Any] = view.given_state or {}
    if source == "embedded_capture_state":
        held = embedded(view) or {}

    def named(kind: str, number: int) -> Tensor | None:
        row = rows[kind][number]
        return next((held[name] for name in (row.address, *row.aliases) if name in held), None)

    def drawn(kind: str, number: int) -> Tensor | None:
        return random_tensor(rows[kind][number], generator, is_buffer=kind == "buffer")

    return {"live_model_state": live, "random_initialization": drawn}.get(source, named)


def parameter_of(program: Program, number: int, row: Row, found: Tensor | None) -> Tensor:
    """A parameter for a run; of another source than the model, with the strides and the flag that were recorded."""
    if found is None:
        raise missing_key(row.address)
    if isinstance(found, torch.nn.Parameter):
        return found
    strides = None if program.witnessed is None else program.witnessed.layouts.get(number)
    made = compat.detach(found).to(row.device)
    if strides is not None or not made.is_contiguous():
        made = laid_out(made, spot(made.dtype, tuple(made.shape), strides, 0))
    return made.requires_grad_(row.requires_grad)


def unaliased(tensors: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """Copies, cut from the graph; what shares memory shares it in the copies."""
    if not tensors:
        return {}
    with compat.NoTorchFunction(), torch.no_grad():
        made, _, _ = copied(tuple(compat.detach(tensor) for tensor in tensors.values()), {})
    return dict(zip(tensors, made, strict=True))


def random_tensor(row: Row, generator: torch.Generator, *, is_buffer: bool) -> Tensor:
    """A tensor of the form of a parameter or buffer: small numbers, of a buffer positive ones: it may be a variance."""
    dtype = DTYPE_BY_WORD[row.dtype]
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(row.shape, dtype=dtype, device=row.device)
    real = torch.randn(row.shape, generator=generator) * SPREAD
    return (real.abs() + SPREAD if is_buffer else real).to(dtype=dtype, device=row.device)


def bound_state(view: View, state_dict: Any) -> dict[str, Tensor]:
    """A state dict whose keys and tensors are those of the model that was captured, copied.

    Parameters are taken as they are, so that gradients reach them.

    Raises:
        StateBindingError: ``state_dict_type_invalid``, ``state_missing_key``, ``state_unexpected_key``,
            ``state_shape_mismatch``, ``state_dtype_mismatch``.
    """
    if not isinstance(state_dict, Mapping):
        raise StateBindingError(
            code="state_dict_type_invalid",
            problem=f"a state dict was given as {type(state_dict).__name__}",
            remedy="give what model.state_dict() gives",
            received_type=type(state_dict).__name__,
        )
    words = view.tables.forward.words
    program = program_for(view)
    transient = {
        step.buffer for step in program.steps if isinstance(step, BufferRead) and step.value in program.constants
    }
    read = {step.buffer for step in program.steps if isinstance(step, BufferRead) and step.version == 1}
    rows = [*words.parameters[: words.registered], *words.buffers]
    names = {name: row for row in rows for name in (row.address, *row.aliases)}
    unexpected = [name for name in state_dict if name not in names and not str(name).endswith("_extra_state")]
    if unexpected:
        raise StateBindingError(
            code="state_unexpected_key",
            problem=f"the model that was captured has no {unexpected[0]!r}"
            + (f", nor {len(unexpected) - 1} more of the given keys" if len(unexpected) > 1 else ""),
            remedy="give the state dict of the model that was captured",
            keys=tuple(unexpected),
        )
    required = [
        *words.parameters[: words.registered],
        *(row for number, row in enumerate(words.buffers) if number in read - transient),
    ]
    for row in required:
        if not any(name in state_dict for name in (row.address, *row.aliases)):
            raise missing_key(row.address)
    for name, tensor in state_dict.items():
        if name in names:
            require_form(name, names[name], tensor)
    taken = {name: tensor for name, tensor in state_dict.items() if name in names}
    return taken | unaliased({name: tensor for name, tensor in taken.items() if not is_of_graph(tensor)})


def is_of_graph(tensor: Tensor) -> bool:
    """Whether gradients may be wanted of a tensor that was given, as with ``state_dict(keep_vars=True)``."""
    return isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad


def missing_key(name: str) -> StateBindingError:
    return StateBindingError(
        code="state_missing_key",
        problem=f"the state has no {name!r}, which the forward uses",
        remedy="give the state dict of the model that was captured, whole",
        key=name,
    )


def require_form(name: str, row: Row, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise StateBindingError(
            code="state_dict_type_invalid",
            problem=f"{name!r} is given as {type(tensor).__name__}, which is no tensor",
            remedy="give what model.state_dict() gives; of an array make a tensor: torch.from_numpy(array)",
            key=name,
            received_type=type(tensor).__name__,
        )
    shape, dtype = tuple(tensor.shape), DTYPE_WORD[tensor.dtype]
    if shape != row.shape:
        raise other_form("state_shape_mismatch", name, "shape", row.shape, shape)
    if dtype != row.dtype:
        raise other_form("state_dtype_mismatch", name, "dtype", row.dtype, dtype)


def other_form(code: str, name: str, what: str, recorded: Any, given: Any) -> StateBindingError:
    return StateBindingError(
        code=code,
        problem=f"{name!r} has {what} {given}, and was captured with {recorded}",
        remedy="give the state dict of the model that was captured, or convert it first",
        key=name,
        recorded=recorded,
        given=given,
    )
