"""What a model of yours should do, as checks: the same twice, nothing to its inputs, and the same when it is captured.

Reads  a model and its arguments as ``tl.trace`` takes them. Copies of both are run; the random generators are seeded
       for each run and put back.
Rule   everything is compared bit for bit, as ``testing/comparing.py`` sees it.
Not    its gradients (slopes.py), or records and journals (recorded.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from torch import Tensor

from journal.events import DESCRIPTION, Event, InputSeen, OpExecuted
from torchlens import compat
from torchlens.api import trace
from torchlens.bits import gap, same_bits
from torchlens.errors import PayloadUnavailableError, ValidationError
from torchlens.generators import RandomState, seed_all
from torchlens.reading.facade import Trace
from torchlens.reading.failed import TraceCaptureError
from torchlens.reading.records import Op
from torchlens.testing.checking.copies import copies, named_inputs
from torchlens.testing.comparing import (
    Build,
    assert_tracing_changes_nothing,
    bits_of,
    changes_between,
    observed,
    run_bare,
)
from torchlens.testing.given import require_seed

__all__ = ["check_capture", "check_inputs", "check_repeat"]


def check_capture(
    model: Any,
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = True,
    seed: int = 0,
    **options: Any,
) -> Trace:
    """Capturing the model changes nothing: outputs, gradients and what it leaves behind are those of a bare run.

    It is ``assert_tracing_changes_nothing(build)`` with a build that copies the model and its arguments; that one has
    what is compared, and takes a model that cannot be copied.

    Args:
        model: As for ``tl.trace``, which runs a copy of it.
        input_args: As for ``tl.trace``.
        input_kwargs: As for ``tl.trace``.
        backward: Differentiate a weighted sum of the outputs after each run, and compare the gradients.
        seed: Of the random generators before each run.
        options: Keywords for ``tl.trace``.

    Returns:
        The trace; of a model that raises, the partial one.

    Raises:
        ValidationError: ``tracing_changed_run``. It is this too where the model does not repeat itself: ask
            ``check_repeat`` first.
        CompatibilityError: ``model_not_copied``.
    """
    build = copies(model, input_args, input_kwargs)
    return assert_tracing_changes_nothing(build, backward=backward, seed=seed, **options)


def check_repeat(
    model: Any,
    input_args: Any = None,
    input_kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = True,
    seed: int = 0,
) -> None:
    """The model does the same twice: two bare runs of it, from one state and one seed, differ in nothing.

    Args:
        model: As for ``tl.trace``; copies of it are run.
        input_args: As for ``tl.trace``.
        input_kwargs: As for ``tl.trace``.
        backward: Differentiate a weighted sum of the outputs after each run, and compare the gradients.
        seed: Of the random generators before each run.

    Raises:
        ValidationError: ``model_not_repeatable``; ``exc.fields["changes"]`` lists what differs, ``fields["op"]`` is
            the label of the first op that gave something else in one of two captures, with ``fields["place"]``, its
            line; both None where two captures did not differ.
        CompatibilityError: ``model_not_copied``.
    """
    require_seed(seed)
    build = copies(model, input_args, input_kwargs)
    streams = RandomState()
    try:
        seen: list[dict[str, Any]] = []
        for _ in range(2):
            seed_all(seed)
            seen.append(observed(build, run_bare, backward)[0])
        changes = changes_between("first", seen[0], "second", seen[1])
        if not changes:
            return
        op, place, what = first_other_op(build, seed)
    finally:
        streams.restore()
    begins = "" if op is None else f"; it begins with {op}" + ("" if place is None else f" at {place}") + f", {what}"
    raise ValidationError(
        code="model_not_repeatable",
        problem=f"two runs from one state and one seed differ in {len(changes)} facts{begins}:\n  "
        + "\n  ".join(changes[:20]),
        remedy="something other than its inputs, its state and the generators of torch, Python and NumPy decides what "
        "it does: a clock, a generator of its own, the order of a set, memory that nobody wrote, a kernel that varies",
        changes=changes,
        op=op,
        place=place,
    )


def first_other_op(build: Build, seed: int) -> tuple[str | None, str | None, str]:
    """The first op that was another, or gave another value, in the second of two captures: label, line, and what."""
    made: list[Trace] = []
    try:
        for _ in range(2):
            seed_all(seed)
            model, args, kwargs = build()
            try:
                made.append(trace(model, args, kwargs))
            except TraceCaptureError as exc:
                made.append(exc.partial_trace)
        for one, other in zip_longest(*(each.ops for each in made)):
            what = difference(one, other)
            if what is not None:
                op = other if one is None else one
                place = op.user_place
                return op.label, None if place is None else f"{place.file}:{place.line_number}", what
        return None, None, ""
    finally:
        for each in made:
            each.cleanup()


def difference(one: Op | None, other: Op | None) -> str | None:
    if one is None or other is None:
        return "which one of them did not run"
    if one.label != other.label:
        return f"where the other ran {other.label}"
    try:
        with compat.NoTorchFunction():
            first, second = one.out, other.out
            return None if same_bits(first, second) else gap(first, second)
    except PayloadUnavailableError:
        return None


def check_inputs(
    model: Any, input_args: Any = None, input_kwargs: Mapping[str, Any] | None = None, *, seed: int = 0
) -> None:
    """The model leaves its inputs as they were: a bare run writes no tensor of the arguments, has none require or
    gather gradients, and takes none out of a list or dict, nor puts any in.

    Args:
        model: As for ``tl.trace``; a copy of it is run, with copies of the arguments.
        input_args: As for ``tl.trace``.
        input_kwargs: As for ``tl.trace``.
        seed: Of the random generators before the run.

    Raises:
        ValidationError: ``model_writes_input``; ``exc.fields["inputs"]`` has the names of what was written, or came
            or went, ``input.0`` or ``input.x``, and ``fields["op"]`` the label of the first op that wrote to one, with
            ``fields["place"]``, its line. A write that gives the same bits counts, too.
        CompatibilityError: ``model_not_copied``.
    """
    require_seed(seed)
    build = copies(model, input_args, input_kwargs)
    streams = RandomState()
    try:
        seed_all(seed)
        model, args, kwargs = build()
        held = dict(named_inputs(args, kwargs))  # the tensors too: one that goes must not give its id to another
        before = stands(held)
        error = run_bare(model, args, kwargs)[1]
        after = stands(dict(named_inputs(args, kwargs)))
        written = tuple([name for name in {**before, **after} if before.get(name) != after.get(name)])
        if not written:
            if error is not None:
                raise error
            return
        seed_all(seed)
        op, place = first_writer(build)
    finally:
        streams.restore()
    by = "" if op is None else f"; first by {op}" + ("" if place is None else f" at {place}")
    raise ValidationError(
        code="model_writes_input",
        problem=f"the model wrote to its arguments: {', '.join(written)}{by}",
        remedy="let it work on a copy, x = x.clone(), or use the call that makes a new tensor",
        inputs=written,
        op=op,
        place=place,
    )


def stands(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    """What a model leaves as it is, of each tensor: which one it is, its elements, and what autograd knows of it."""
    return {name: (id(tensor), *stand(tensor)) for name, tensor in tensors.items()}


def stand(tensor: Tensor) -> tuple[object, ...]:
    gathered = tensor.grad if tensor.is_leaf else None
    return (
        *(bits_of(tensor), compat.version_of(tensor), tensor.requires_grad),
        None if gathered is None else bits_of(gathered),
    )


def first_writer(build: Build) -> tuple[str | None, str | None]:
    """The first op that wrote to the memory of an input, and its line."""
    model, args, kwargs = build()
    try:
        made = trace(model, args, kwargs, save="none")
    except TraceCaptureError as exc:
        made = exc.partial_trace
    try:
        value = next(writers_of_inputs([stamped.event for stamped in made.events()]), None)
        values = list(made.tables.ops.column("value"))
        if value is None or value not in values:
            return None, None
        op = made.ops[values.index(value)]
        place = op.user_place
        return op.label, None if place is None else f"{place.file}:{place.line_number}"
    finally:
        made.cleanup()


def writers_of_inputs(events: list[Event]) -> Iterator[int]:
    """First result of each call that wrote to the storage of an input."""
    place = DESCRIPTION.index("storage")
    storages: dict[int, Any] = {}
    of_inputs: set[Any] = set()
    for event in events:
        if isinstance(event, InputSeen):
            storages[event.value] = event.description[place]
            of_inputs.add(event.description[place])
        elif isinstance(event, OpExecuted):
            storages |= {event.first + slot: description[place] for slot, description in enumerate(event.outputs)}
            if any(storages.get(event.inputs[at]) in of_inputs for at in event.written or ()):
                yield event.first
