"""A recorded call, checked: made again on its saved parents it gives its saved results, and its parents matter.

Reads  calls through ``Replay``.
Gives  one ``Check`` for the call and one for each of its parents.
Rule   a result must come out bit for bit. Only where the kernel is not deterministic, which torch documents or which
       making the call twice shows, a tolerance decides.
Rule   a parent that makes no difference is a failure, unless what the call gives for other arguments explains it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import Tensor

from projections.structure.memory import Executed
from torchlens import compat
from torchlens.bits import gap, is_close, same_bits
from torchlens.errors import ReplayRefused
from torchlens.replay.replaying import Defaults, Remade, Replay, defaults_of, is_plain
from torchlens.replay.restoring import cells_of
from torchlens.tensors import DTYPE_WORD
from torchlens.validation import excuses, kernels
from torchlens.validation.findings import Check, Outcome
from torchlens.validation.perturbing import others

JOINT_TRIES: Final = 6
"""Other values that are tried for all other arguments, to see whether they hide one."""


class Judged(NamedTuple):
    """Whether a call came out as recorded."""

    reason: str | None  # of the failure; None where it came out
    detail: str


FINE: Final = Judged(None, "")


class Checking:
    """Checks of single calls.

    Args:
        replay: The capture.
        name_of: Label of the op, address of the parameter or word for the constant that an argument number names.
        atol: Absolute tolerance where a kernel is not deterministic; by default that of the dtype.
        rtol: Relative tolerance, likewise.
    """

    def __init__(
        self, replay: Replay, name_of: Callable[[int], str], *, atol: float | None = None, rtol: float | None = None
    ) -> None:
        self.replay = replay
        self.name_of = name_of
        self.atol = atol
        self.rtol = rtol
        self.defaults: Defaults | None = None  # that the call which is being checked is made in

    def of(self, call: Executed) -> Iterator[Check]:
        """All checks of one call."""
        told = functools.partial(Check, "reexecution", self.name_of(call.first), call.func_name, None)
        try:
            made = self.made(call)
            varies = self.varies(call, made)
            yield self.reproduced(call, told, made, varies=varies)
            yield from self.parents(call, made, varies=varies)
        except ReplayRefused as refusal:
            yield told("skipped", refusal.code, refusal.problem)
        except Exception as error:  # noqa: BLE001  # whatever the function raises is the finding
            yield told("failed", "reexecution_raised", f"{type(error).__name__}: {error}"[:300])

    # -- the same again

    def made(self, call: Executed) -> Remade:
        """The call, made again; where that gives another dtype or device, in the defaults that its results tell of."""
        self.defaults = None
        made = self.again(call)
        if self.form(call, made).reason is not None:
            self.defaults = defaults_of(call)
            made = self.again(call)
            if self.form(call, made).reason is not None:
                self.defaults = None
                made = self.again(call)
        return made

    def again(self, call: Executed, given: Sequence[Tensor] | None = None) -> Remade:
        return self.replay.run(call, self.replay.inputs(call) if given is None else given, self.defaults)

    def varies(self, call: Executed, made: Remade) -> bool:
        """Whether the kernel gives different bits for the same arguments."""
        if call.func_name in kernels.UNINITIALIZED:
            return True
        if any(kernels.varies_on(str(tensor.device), call.func_name) for tensor in made.results):
            return True
        return not all_same(outcome(call, made), outcome(call, self.again(call)))

    def reproduced(self, call: Executed, told: Callable[..., Check], made: Remade, *, varies: bool) -> Check:
        """Whether what came out is what was recorded."""
        judged = self.form(call, made)
        if judged.reason is None:
            judged = self.sharing(call, made)
        if judged.reason is not None:
            return told("failed", *judged)
        if call.func_name in kernels.UNINITIALIZED:
            return told("skipped", "uninitialized_memory")
        try:
            judged = self.values(call, made, varies=varies)
        except ReplayRefused as refusal:  # the parents can still be checked
            return told("skipped", refusal.code, refusal.problem)
        return told("passed" if judged.reason is None else "failed", *judged)

    def form(self, call: Executed, made: Remade) -> Judged:
        if len(made.results) != len(call.outputs):
            return Judged("form_not_reproduced", f"{len(made.results)} tensors came out and not {len(call.outputs)}")
        for slot, (tensor, output) in enumerate(zip(made.results, call.outputs, strict=True)):
            found, wanted = (DTYPE_WORD[tensor.dtype], str(tensor.device)), (output.dtype, output.device)
            if found != wanted:
                return Judged("form_not_reproduced", f"result {slot} is {found} and not {wanted}")
            if not tensor.is_nested and tuple(tensor.shape) != output.shape:
                return Judged("form_not_reproduced", f"result {slot} is {tuple(tensor.shape)} and not {output.shape}")
        return FINE

    def sharing(self, call: Executed, made: Remade) -> Judged:
        """Which results are an argument, or lie in the memory of one."""
        numbers = call.inputs
        lies_in = [compat.storage_or_none(tensor) for tensor in made.tensors]
        for slot, (tensor, output) in enumerate(zip(made.results, call.outputs, strict=True)):
            same = next((numbers[place] for place, given in enumerate(made.tensors) if given is tensor), None)
            recorded = None if output.same_as is None else numbers[output.same_as]
            if same != recorded:
                is_one, was_one = (self.argument(number) for number in (same, recorded))
                return Judged("sharing_not_reproduced", f"result {slot} is {is_one}; recorded was {was_one}")
            address = compat.storage_or_none(tensor)
            shares = address is not None and address in lies_in
            if output.storage is not None and output.layout is None and shares != (output.view_of is not None):
                lies = "shares memory with an argument" if shares else "has memory of its own"
                return Judged("sharing_not_reproduced", f"result {slot} {lies}, and it was recorded otherwise")
        return FINE

    def argument(self, number: int | None) -> str:
        return "no argument" if number is None else f"the argument {self.name_of(number)}"

    def values(self, call: Executed, made: Remade, *, varies: bool) -> Judged:
        """The elements, of buffers too that the call wrote."""
        for slot, tensor in enumerate(made.results):
            judged = self.compare(tensor, self.replay.value(call.first + slot), f"result {slot}", varies=varies)
            if judged.reason is not None:
                return judged
        for version in self.replay.memory.versions_by(call):
            described = self.replay.memory.describe(version)
            for position in call.written:
                before = self.replay.memory.describe(call.inputs[position])
                if described is None or before is None or before.storage != described.storage:
                    continue
                if before.shape == described.shape:
                    wanted, what = self.replay.value(version), self.name_of(version)
                    judged = self.compare(made.tensors[position], wanted, what, varies=varies)
                    if judged.reason is not None:
                        return judged
        return FINE

    def compare(self, tensor: Tensor, wanted: Tensor, what: str, *, varies: bool) -> Judged:
        if same_bits(tensor, wanted) or (varies and is_close(tensor, wanted, self.atol, self.rtol)):
            return FINE
        return Judged("value_not_reproduced", f"{what}: {gap(tensor, wanted)}")

    # -- other values of one parent

    def parents(self, call: Executed, made: Remade, *, varies: bool) -> Iterator[Check]:
        """One check for each different argument."""
        for number in dict.fromkeys(call.inputs):
            reason, detail = self.effect(call, number, outcome(call, made), varies=varies)
            verdict: Outcome = "passed" if reason is None else VERDICTS.get(reason, "excused")
            parent = self.name_of(self.writer(call, number))
            yield Check("perturbation", self.name_of(call.first), call.func_name, parent, verdict, reason, detail)

    @staticmethod
    def writer(call: Executed, number: int) -> int:
        """What an argument hangs on: the last writer of its memory, if there is one."""
        writer = None if call.writers is None else call.writers[call.inputs.index(number)]
        return number if writer is None else writer

    def effect(self, call: Executed, number: int, base: Sequence[Tensor], *, varies: bool) -> Judged:
        """Why a parent has no effect on the call; no reason where it has one."""
        if call.func_name in kernels.UNINITIALIZED:
            return Judged("form_only" if number not in self.written(call) else "overwritten", "")
        tensor = self.replay.inputs(call)[call.inputs.index(number)]
        if not is_plain(tensor):
            return Judged("tensor_not_dense", f"it is {type(tensor).__name__}, {tensor.layout}")
        if tensor.numel() == 0 or not any(result.numel() and not result.is_meta for result in base):
            return Judged("empty", "")
        tried = 0
        for values in self.other_values(call, tensor):
            tried += 1
            if self.moves(call, {number: values}, base, varies=varies):
                return FINE
        return self.excuse(call, number, base, tried, varies=varies)

    def other_values(self, call: Executed, tensor: Tensor) -> Iterator[Tensor]:
        """Other memory for a tensor than it has, as far as that is safe for the call."""
        name = call.func_name
        careful = call.func_qualname.startswith("torch.ops.") and not call.func_qualname.startswith("torch.ops.aten.")
        if tensor.is_floating_point() or tensor.is_complex():
            careful = careful or name in kernels.TAKES_PARAMETERS
        else:
            careful = careful or name in kernels.UNCHECKED or tensor.is_cuda
        now = cells_of(tensor)
        with torch.no_grad():
            for values in others(now.clone(), careful=careful):
                if not same_bits(values, now):
                    yield values

    def moves(self, call: Executed, changes: dict[int, Tensor], base: Sequence[Tensor], *, varies: bool) -> bool:
        """Whether the call gives something else, or refuses, when arguments hold other values."""
        found = self.with_values(call, changes)
        if found is None or len(found) != len(base):
            return True
        return not all(
            same_bits(one, other) or (varies and is_close(one, other, self.atol, self.rtol))
            for one, other in zip(found, base, strict=True)
        )

    def with_values(self, call: Executed, changes: dict[int, Tensor]) -> list[Tensor] | None:
        """What the call gives when some arguments hold other values; None where it refuses them."""
        given = self.replay.inputs(call)
        with torch.no_grad():
            for number, values in changes.items():
                cells_of(given[call.inputs.index(number)]).copy_(values)
        try:
            return outcome(call, self.again(call, given))
        except Exception:  # noqa: BLE001  # a refusal of these very values: the function has read them
            return None

    @staticmethod
    def written(call: Executed) -> set[int]:
        return {call.inputs[position] for position in call.written}

    def excuse(self, call: Executed, number: int, base: Sequence[Tensor], tried: int, *, varies: bool) -> Judged:
        """Why a parent that was seen to have no effect has none."""
        held = zip(excuses.arguments_of(call), call.inputs, strict=True)
        given = {argument for argument, one in held if one == number}
        if given <= excuses.FORM_ONLY.get(call.func_name, frozenset()):
            return Judged("form_only", "")
        if number in self.written(call):
            return Judged("overwritten", "")
        if not tried:
            return Judged("nothing_else_is_safe", "")
        if self.is_hidden(call, number, varies=varies):
            return Judged("hidden_by_another", "")
        absorbs = excuses.CONSTANT.get(call.func_name)
        if (absorbs is not None and absorbs(call)) or (excuses.is_nan(call) and all(map(is_nan, base))):
            return Judged("constant_result", "")
        if not any(result.is_floating_point() or result.is_complex() for result in base):
            return Judged("whole_result", "")
        return Judged("parent_has_no_effect", f"{tried} other values were tried")

    def is_hidden(self, call: Executed, number: int, *, varies: bool) -> bool:
        """Whether the parent does change the result when all other arguments hold other values."""
        given = self.replay.inputs(call)
        tensors = dict(zip(call.inputs, given, strict=True))
        rest = {
            other: list(islice(self.other_values(call, tensor), JOINT_TRIES))
            for other, tensor in tensors.items()
            if other != number and is_plain(tensor) and tensor.numel()
        }
        rest = {other: values for other, values in rest.items() if values}
        if not rest:
            return False
        for attempt in range(JOINT_TRIES):
            changes = {other: values[attempt % len(values)] for other, values in rest.items()}
            base = self.with_values(call, changes)
            if base is None:
                continue
            for values in self.other_values(call, tensors[number]):
                if self.moves(call, {**changes, number: values}, base, varies=varies):
                    return True
        return False


VERDICTS: Final[dict[str, Outcome]] = {
    "parent_has_no_effect": "failed",
    "tensor_not_dense": "skipped",
    "nothing_else_is_safe": "skipped",
}
"""How a perturbation with this reason ended; with any other one it is excused."""


def is_nan(tensor: Tensor) -> bool:
    return bool(tensor.isnan().all())


def outcome(call: Executed, made: Remade) -> list[Tensor]:
    """Everything that a call has brought about: what it returned, and what it wrote."""
    written = [made.tensors[position] for position in call.written]
    return [*made.results, *(tensor for tensor in written if not any(tensor is result for result in made.results))]


def all_same(some: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(some) == len(other) and all(map(same_bits, some, other))
