"""What validating found: one record a check, counted, and told in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

import attrs

from torchlens.printable import amount, printable

__all__ = ["Check", "ValidationReport"]

Kind: TypeAlias = Literal[
    "output",
    "reexecution",
    "perturbation",
    "loss",
    "leaf_gradient",
    "increment",
    "module_gradient",
    "flow",
    "invariant",
]
Outcome: TypeAlias = Literal["passed", "skipped", "excused", "failed"]

FAILURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "outputs_differ": "the model returned something else than the trace has for its outputs",
        "output_not_readable": "the trace cannot give back what it has for an output",
        "model_not_deterministic": "two bare forwards differ from each other, so none can be compared with the trace",
        "value_not_reproduced": "the call, made again on its saved parents, gave other values",
        "form_not_reproduced": "the call, made again, gave another number of tensors, another shape, dtype or device",
        "sharing_not_reproduced": "the call, made again, shared memory with other arguments than recorded",
        "reexecution_raised": "the call, made again on its saved parents, raised",
        "parent_has_no_effect": "with other values of this parent the call gave the same, and nothing explains that",
        "invariant_broken": "two records contradict each other",
        "losses_differ": "the captured run came to another loss than a bare one",
        "gradients_differ": "after the captured run a leaf has another gradient than after a bare one",
        "recorded_gradient_differs": "the trace has another gradient than came there in a run without recording",
        "flow_inconsistent": "what nodes sent on does not add up to what arrived where they lead",
        "captured_run_raised": "the captured run raised, or its backward could not be recorded; bare ones run",
        "backward_not_recorded": "the backward ran, and no backward pass tells of all of it",
        "no_module_output_evidence": "no module inside the model returned anything that got a gradient, so there is "
        "nothing to hold against the trace",
        "non_leaf_parameter": "a parameter is no leaf, so its gradient runs on to what it was made from",
        "nothing_differentiable": "the loss, or everything that the model returned, requires no gradient",
    }
)
"""What each reason of a failed check means."""

SKIPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "replay_call_opaque": "what the call ran was not watched: a function of the model's own, scripted code",
        "replay_function_unknown": "this version of torch has no such function",
        "replay_argument_lost": "an argument was too large or too foreign for the event to hold",
        "replay_value_not_kept": "a parent, or the result, was not saved",
        "replay_memory_unknown": "the memory of a parent was exchanged or written in a way that no event tells in full",
        "uninitialized_memory": "the call returns memory as it happens to be; its form alone is compared",
        "tensor_not_dense": "the parent has no strided memory of its own in which to put other values",
        "made_unseen": "the tensor was made where no wrapper looks; what it was made of is not known",
        "nothing_else_is_safe": "the parent holds indexes, counts or parameters of a distribution, all alike, and "
        "others might not be checked",
        "changed_by_hook": "a hook of the model's own stands between what was sent and what arrived",
        "gradient_not_kept": "what some node sent there, or what arrived, was not kept",
        "gradient_taken": "a hook, or the forward, changes the gradient of the parameter beside the backward",
        "module_call_unseen": "a module was called where no hook sees it: by its forward itself, as scripted code, or "
        "made anew by each forward",
    }
)
"""What each reason of a skipped check means."""

EXCUSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "form_only": "the call reads shape, dtype and device of this parent and no value",
        "overwritten": "the call writes this parent, and nothing of what it held before is left",
        "hidden_by_another": "what the other arguments hold leaves no room for this one, as a mask does; with other "
        "values of theirs, it does change the result",
        "whole_result": "the result is of whole numbers or truth values, as of a comparison, and none of them moved",
        "constant_result": "a plain argument makes the result constant",
        "empty": "the parent, or the result, has no elements, or is on the device meta",
    }
)
"""Why a call may give the same for other values of a parent. Each is decided by what the calls give."""


@attrs.frozen
class Check:
    """One thing that was checked.

    Attributes:
        kind: ``"output"``: a returned tensor against a bare forward. ``"reexecution"``: a call made again on its
            saved parents. ``"perturbation"``: a call made again with other values of one parent. ``"loss"``: the
            loss of a captured run against a bare one's. ``"leaf_gradient"``: the gradient of a parameter or input
            after them, likewise. ``"increment"``: what the trace has of what was added to that of a parameter.
            ``"module_gradient"``: what it has of the gradient of what a module returned, against a run with hooks
            alone. ``"flow"``: what arrived at a node against what was sent there. ``"invariant"``: a promise that
            the records keep.
        record: Label of the op (of its first result), path of the output, address of the parameter, label of the
            module's call or of the node's firing, or name of the promise.
        func_name: Function of the call; None where it is no call.
        parent: Label of the perturbed parent or address of the parameter; None otherwise.
        outcome: ``"passed"``, ``"failed"``, ``"skipped"`` where it could not be made, ``"excused"`` where a call does
            not depend on a parent for a good reason.
        reason: Why, as one word; None where it passed.
        detail: The same in numbers.
    """

    kind: Kind
    record: str
    func_name: str | None = None
    parent: str | None = None
    outcome: Outcome = "passed"
    reason: str | None = None
    detail: str = ""

    def __str__(self) -> str:
        where = self.record if self.parent is None else f"{self.record} from {self.parent}"
        return ": ".join(part for part in (where, self.reason, self.detail) if part)


@attrs.frozen
class ValidationReport:
    """Everything that validating one model on one input has checked; true where nothing failed.

    Attributes:
        model_class_name: Class of the model.
        scope: What was asked to be checked.
        checks: Every check, in order.
    """

    model_class_name: str
    scope: str
    checks: tuple[Check, ...]

    def __bool__(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    def count(self, kind: Kind, outcome: Outcome) -> int:
        """How many checks of a kind ended so."""
        return sum(check.kind == kind and check.outcome == outcome for check in self.checks)

    def reasons(self, outcome: Outcome) -> Mapping[str, int]:
        """How often each reason was given for an outcome, the most frequent first."""
        given = Counter(check.reason or "" for check in self.checks if check.outcome == outcome)
        return MappingProxyType(dict(given.most_common()))

    def headline(self) -> str:
        """How many checks failed, and the first of them, in one line."""
        failures = self.failures
        if not failures:
            return f"every check of {self.model_class_name} passed"
        first = "; ".join(map(str, failures[:3]))
        more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
        return f"{amount(len(failures), 'check')} of {self.model_class_name} failed: {first}{more}"

    def summary(self) -> str:
        """All counts, and the first failures, as text."""
        lines = [f"{self.model_class_name}: {'valid' if self else 'NOT valid'} ({self.scope})"]
        for kind in get_args(Kind):
            counts = [
                f"{count} {outcome}"
                for outcome in ("passed", "excused", "skipped", "failed")
                if (count := self.count(kind, outcome))
            ]
            if counts:
                lines.append(f"  {kind}: {', '.join(counts)}")
        for outcome in ("excused", "skipped"):
            for reason, count in self.reasons(outcome).items():
                lines.append(f"  {outcome}, {reason}: {count}")
        lines += [f"  failed, {check}" for check in self.failures[:20]]
        if len(self.failures) > 20:
            lines.append(f"  and {len(self.failures) - 20} more")
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        verdict = "valid" if self else f"{len(self.failures)} failed"
        return f"<ValidationReport {self.model_class_name}: {verdict}, {amount(len(self.checks), 'check')}>"
